/* Shared inside core/train. */
#ifndef MEOPT_TRAIN_TRAIN_INTERNAL_H
#define MEOPT_TRAIN_TRAIN_INTERNAL_H

#include "core/train/trainer.h"

/* The optimizer library's error as ours. */
int trainer_library_error(const struct meopt_error *library, struct error *err);

/* A choice of the experiment as libmeopt's number; -1 for auto. */
int trainer_weight_format(enum optim_weights weights);
int trainer_state_format(enum optim_state state);

/* ---- values.c ---- */

/* F32 values of a parameter, of which this rank keeps its part. */
int trainer_take_values(void *trainer, int parameter, const float *values, struct error *err);

/* ---- step.c ---- */

extern const char step_not_finite[];
/* EXIT_DIVERGED. moved: groups that were met earlier have taken the step already. */
int step_diverged(struct trainer *t, int64_t step, const char *what, bool moved, struct error *err);
/* The scale that turns the gradient's norm into what optim.clip_grad_norm and LAMB's own pre-clipping allow;
 * of a group's gradient: into its share of that. */
double step_clip_scale(const struct trainer *t, double norm, double share);
/* Of one group, or with group -1 of all. */
int64_t step_parameters(const struct trainer *t, int group);
/* Forward and loss of one micro-batch of `count` images, the index-th of this rank's step, behind `done` of
 * its images; the gradient of the output to dout. Its loss and the cosines of its images stay on the card, at
 * t->sums + 2 index, so that the host need not wait for each. */
int step_forward(struct trainer *t, int64_t index, int64_t done, int64_t count,
                 const struct batch_source *source, struct error *err);
/* What that is clipped by; its `found` is the caller's to set. */
struct meopt_clip step_clip(const struct trainer *t, double share);
/* Of what is found of a group's gradients the place on the device, in t->sums; and, of sums that were read,
 * what it says: false: not all is finite. */
struct meopt_grad_stats *step_grad_stats(const struct trainer *t, int group);
bool step_found_read(const struct trainer *t, int group, double *squares);
/* All that is found, into t->host_sums when the device is waited for next. */
void step_send_grad_stats(struct trainer *t);
/* How many bytes t->sums has. */
size_t step_sums_bytes(const struct trainer *t);
/* Its first `count` doubles to t->host_sums; waits for all that the device was given. */
int step_read_sums(struct trainer *t, int64_t count, struct error *err);

/* ---- optimizer_reduce.c ---- */

/* Where other ranks hold parts of the tensors: by what the optimizer's sums go over all. */
void options_of_parts(const struct trainer *t, struct meopt_options *options);

/* ---- step_ranks.c ---- */

/* Is this configuration stepped in micro-batches that ranks share? */
bool dp_enabled(const struct config *config, int ranks);
/* How: t->images, batch, micro, twice. Before any tower is made. */
int dp_plan(struct trainer *t, struct error *err);
/* How often a step's gradients are added up: 1 for one rank alone. */
int64_t dp_round_count(const struct trainer *t);
/* Is each tensor's state held in parts? Then this rank's part of a parameter's values, else all of it. */
bool dp_sharded(const struct trainer *t);
void dp_part(const struct trainer *t, int parameter, int64_t *first, int64_t *count);
/* The rank whose parts are the largest. */
int dp_largest_rank(const struct trainer *t);
/* Buffers that groups of the student take turns in, for what travels while the next one is computed; and of
 * weights: 0 where each rank holds them all. */
int dp_gradient_buffers(const struct trainer *t);
int dp_weight_buffers(const struct trainer *t);
/* With the student there, and before its optimizer: how its tensors are cut; then what sums are kept in. */
int dp_partition(struct trainer *t, struct error *err);
/* Where this rank's part of a parameter's weights lies, as the optimizer steps them. */
void *dp_weights(const struct trainer *t, int parameter);
int dp_buffers(struct trainer *t, struct error *err);
/* Weights that each rank holds the exact values of, as forward and backward read them, to all. */
int dp_gather_weights(struct trainer *t, struct error *err);
/* Values of a parameter, of which this rank has set its part: all of them. */
int dp_gather_values(const struct trainer *t, int parameter, float *values, struct error *err);
void dp_close(struct trainer *t);
int dp_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
            struct step_result *result, struct error *err);

#endif
