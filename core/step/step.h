/* The parts of a step: shared inside core/step, and run dry by core/plan. */
#ifndef MEOPT_STEP_STEP_H
#define MEOPT_STEP_STEP_H

#include "core/step/trainer.h"

/* Sets err from an error of libmeopt, and returns its exit code. */
int trainer_library_error(const struct meopt_error *library, struct error *err);

/* Return libmeopt's constant for a value of the configuration; -1 for auto. */
int trainer_weight_format(enum optim_weights weights);
int trainer_state_format(enum optim_state state);

/* ---- optimizer_create.c ---- */

/* Returns the directory of scratch files. */
const char *trainer_scratch_directory(const struct trainer *t);
/* Creates t->opt, for the student's trained parameters. */
int create_optimizer(struct trainer *t, struct error *err);
/* Sets a parameter's weight as an optimizer of these options rounds the values, but keeps no states: for a
 * trainer that only evaluates. */
int optimizer_round_values(struct trainer *t, int parameter, const float *values, struct error *err);

/* ---- values.c ---- */

/* Sets a parameter to fp32 values, of which this rank stores its part. */
int trainer_set_values(void *trainer, int parameter, const float *values, struct error *err);

/* ---- schedule.c ---- */

extern const char step_not_finite[];
/* Sets err and returns EXIT_DIVERGED. moved: other groups have already been updated in this step. */
int step_diverged(struct trainer *t, int64_t step, const char *what, bool moved, struct error *err);
/* Returns the micro-batches of this rank's step, and the images of one; 0: it has none in that round. */
int64_t step_micro_batches(const struct trainer *t);
int64_t step_micro_images(const struct trainer *t, int64_t index);
/* Runs the operations of one micro-batch on the dry device, with this number of backward passes. */
int step_dry(struct trainer *t, int backwards, struct error *err);

/* ---- sinks.c, step_ranks.c ---- */

extern const struct sink sink_kept, sink_released, sink_accumulated, sink_grouped, sink_ranks;
/* Begin and end the updates of a step. After groups were clipped by their own norms: `exchange` (may be NULL)
 * makes these known, then their `squares` are added up. Then `gather` (may be NULL) sets what the ranks of a
 * tensor group found in the step. */
int step_begin_updates(struct step *s, struct error *err);
int step_end_updates(struct step *s, int code, double (*squares)(const struct trainer *t, int group),
                     int (*exchange)(struct trainer *t, struct error *err),
                     int (*gather)(struct step *s, struct error *err), struct error *err);

/* ---- clipping.c ---- */

/* Decides by which norm the step is clipped, where this step's norm is not measured. */
void step_clip_begin(struct step *s);
/* Sets the norm of all gradients, and the scale that clips them by optim.clip_grad_norm and LAMB's
 * pre-clipping. */
void step_clip_by(struct step *s, double norm);
/* Returns the limits of a group, in proportion to its parameters; the caller sets `found`. */
struct meopt_clip step_clip_group(const struct trainer *t, int group);
/* Adds up the squared norms of all groups, in the order of their updates. One that is not finite is
 * EXIT_DIVERGED. */
int step_add_norms(struct step *s, double (*squares)(const struct trainer *t, int group), struct error *err);
/* A group has one norm, or with slices (model_s.slices) one of what is not sliced and one of each slice,
 * whose squares are added in that order: whichever ranks have the slices, the sum has the same bits. Returns
 * the norms of a group; and a parameter's: group * sets + 1 + slice. */
static inline int step_norm_sets(const struct trainer *t)
{
    return t->config->model_s.slices > 1 ? 1 + (int)t->config->model_s.slices : 1;
}
static inline int step_norm_set(const struct trainer *t, const struct parameter *p)
{
    return p->group * step_norm_sets(t) + 1 + p->slice;
}
/* Computes the statistics of a group's gradients on the device, in t->sums; -1: of all, as group 0. */
void step_measure(struct trainer *t, int group);
struct meopt_grad_stats *step_grad_stats(const struct trainer *t, int group);
/* Copies the statistics of all groups to t->host_sums, without waiting. */
void step_send_grad_stats(struct trainer *t);
/* Returns a group's squared norm in t->host_sums; NAN: not all gradients are finite. */
double step_found_squares(const struct trainer *t, int group);
/* Return the size of t->sums in bytes, and the doubles up to and with a group's statistics. */
size_t step_sums_bytes(const struct trainer *t);
int64_t step_sums_to(const struct trainer *t, int group);

/* ---- step_targets.c: the targets of a distillation (core/experiment/targets.h). In a micro-batch they have
 * the layout of the student's outputs. ---- */

/* Returns their values per image, and where a target begins in a micro-batch. */
int64_t targets_values(const struct trainer *t);
int64_t targets_at(const struct trainer *t, int target);
/* Returns its rows per image, and values of a row. */
int64_t targets_rows(const struct trainer *t, int target);
int64_t targets_width(const struct trainer *t, int target);
/* Makes what resizes grids of patches, after the teachers. */
int targets_create(struct trainer *t, struct error *err);
void targets_close(struct trainer *t);
/* Returns whether they need memory of their own: else they are the outputs of the only teacher. */
bool targets_are_copied(const struct trainer *t);
/* Computes them for the images at t->input; *target (may be NULL) is where they are. */
int targets_compute(struct trainer *t, int64_t count, const float **target, struct error *err);
/* Returns the bytes of the cached targets of an image in their file. */
int64_t step_cached_bytes(const struct trainer *t);
/* Returns whether a target's rows are standardized; sets its map, matrix (width, width) and shift (width). */
bool targets_are_mapped(const struct trainer *t, int target);
void targets_set_map(struct trainer *t, int target, const float *matrix, const float *shift);
/* Returns the CRC-32C of a target's map after `before`, which it returns for a target without one. */
uint32_t targets_map_hash(const struct trainer *t, int target, uint32_t before);
/* Adds to sums (width), products (width, width), which may be NULL, and *rows those of a target's rows of
 * `count` images, which targets_compute has computed; nothing on a stage without outputs. */
int targets_add_moments(struct trainer *t, int target, int64_t count, double *sums, double *products,
                        int64_t *rows, struct error *err);
/* Copies those of one teacher's outputs to t->in.target. */
void targets_take(struct trainer *t, int teacher, int64_t count);
/* Adds the losses and cosines of `count` images from `first` on, of a micro-batch of `batch` images, to sums:
 * two for each target. scale: of the losses; dout: NULL, or where gradients are added. */
void targets_loss(struct trainer *t, const float *target, int64_t batch, int64_t first, int64_t count,
                  float scale, float *dout, double *sums);
/* Returns FLOPs of the heads per image and pass. */
double targets_head_flops(const struct trainer *t);

/* ---- losses.c ---- */

/* Returns the sums of a micro-batch in t->sums. */
int step_sums(const struct trainer *t);
/* Adds the loss and the metrics of sums over `units` to total (1 + OBJECTIVE_METRICS). */
void step_total(const struct trainer *t, const double *sums, double units, double *total);

/* Returns the doubles of all micro-batches' losses and metrics in t->sums. */
int64_t step_loss_sums(const struct trainer *t);
/* Computes the loss of a micro-batch, the index-th of this rank's step, from the student's output, and the
 * gradient of the output to t->dout. Loss and metrics stay on the card, at t->sums + step_sums * index,
 * so that the host does not wait for each micro-batch. */
void step_loss(struct trainer *t, int64_t index, const struct batch *batch, const float *target);
/* Copies the first `count` doubles of t->sums to t->host_sums and synchronizes with the device. */
int step_read_sums(struct trainer *t, int64_t count, struct error *err);
/* Adds up loss and metrics of the step from t->host_sums. A loss that is not finite is EXIT_DIVERGED. */
int step_add_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err);
/* Sums loss and metrics of the step's micro-batches in order: rank by rank in each round. Collective call. */
int step_sum_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err);

/* ---- step_breadth.c ---- */

/* Sets t->schedule from train.rounds, train.wave and the clipping: on all ranks the same. */
void schedule_plan(struct trainer *t);

/* ---- layout.c ---- */

/* Sets t->data and t->plane, t->stages if there is a pipeline, and t->tensor if there are tensor groups,
 * after t->ranks and the shapes. Collective call. */
int layout_open(struct trainer *t, struct error *err);
void layout_close(struct trainer *t);
/* Returns the tensor index that has a parameter's slice; 0 for a tensor that is not sliced. */
int layout_slice_owner(struct comm_layout layout, const struct parameter *p);
/* Returns whether this rank is the one of its tensor group that gives a parameter to others: to files, and to
 * sums over the group. */
bool layout_gives(const struct trainer *t, const struct parameter *p);

/* ---- slice_ranks.c ---- */

/* Connects the student's slices with those of the tensor group. Collective call. */
int slice_ranks_bind(struct trainer *t, struct error *err);
void slice_ranks_close(struct trainer *t);

/* ---- step_pipeline.c ---- */

/* Makes t->pipeline, after the student. */
void pipeline_create(struct trainer *t);
/* Returns whether the stages divide the teacher too: one that computes in each step. The whole teacher of
 * train.cache_teacher is on each rank until its outputs are computed. */
bool pipeline_divides_teacher(const struct trainer *t);
/* Returns the size of the residual stream of a micro-batch. */
int64_t pipeline_stream_bytes(const struct tower *tower, int64_t samples);
void pipeline_close(struct trainer *t);
/* Runs a pass over the groups of all stages. */
int pipeline_run(struct trainer *t, const struct group_pass *pass, struct error *err);
/* A forward pass of one micro-batch, which all ranks of the replica have; stage 0 has the output. count 0:
 * only joins the collectives of the other replicas. */
int pipeline_forward(struct trainer *t, struct tower *tower, const struct batch *batch, struct error *err);
/* The same, or the forward pass of a whole tower without a pipeline. */
int step_tower_forward(struct trainer *t, struct tower *tower, const struct batch *batch, struct error *err);

/* ---- step_batch.c ---- */

/* Binds the input, labels, keep, target and dout of a slot. */
void step_select(struct trainer *t, int64_t slot);

/* Sets t->units: of the step's micro-batches of all ranks, before the first forward. */
int step_count_units(struct trainer *t, const struct batch_source *source, struct error *err);
/* Returns whether all micro-batches pass through the teacher group by group: a streamed one in breadth-first
 * rounds, and one in stages. */
bool step_teacher_by_groups(const struct trainer *t);
/* Uploads the input of a micro-batch, its labels, and drop path's factors, and sets *target: the teacher's
 * output, or rows of the cache, or NULL: there is none, or not yet (step_teacher_by_groups). source NULL: of
 * a plan, which uploads nothing. */
int step_prepare(struct trainer *t, int64_t index, int64_t count, const struct batch_source *source,
                 const float **target, struct error *err);
/* Prefetches the next micro-batch, of this step or the next, while the card computes. An input that is not
 * loaded yet is not waited for: step_prepare uploads it later. */
void step_prefetch(struct trainer *t, int64_t index, const struct batch_source *source);
/* Uploads the labels of a micro-batch, with the limits of tokens, and in a step their order. */
void step_set_labels(struct trainer *t, const struct batch *host);
/* Returns the student's micro-batch of `count` images in device memory, the index-th of this rank's step, of
 * the last step_prepare. */
struct batch step_batch(const struct trainer *t, int64_t index, int64_t count);

/* ---- optimizer_reduce.c ---- */

/* Sets the all-reduce callbacks of an optimizer whose tensors are sharded; else does nothing. */
void set_reduce_callbacks(const struct trainer *t, struct meopt_options *options);

/* ---- step_ranks.c ---- */

/* Divides the step's micro-batches among the ranks: sets t->batch and the rounds, after t->images and micro,
 * before the towers are created. */
void dp_plan(struct trainer *t, int64_t micro_count);
/* Returns the saturated groups of the last step (meopt_wide_groups), of all ranks. */
int64_t dp_wide_groups(const struct trainer *t);
/* Returns the images in a step of the rank with the most, after dp_plan. */
int64_t dp_most_images(const struct trainer *t);
/* Returns the bytes of sharded weights that this rank gathered so far. */
int64_t dp_gathered_bytes(const struct trainer *t);
/* dp_sharded: whether optimizer states are sharded. dp_part: this rank's part of a parameter, else all of
 * it. */
bool dp_sharded(const struct trainer *t);
/* Returns whether ranks with the same groups divide their states (dist.shard). */
bool dp_divides_states(const struct trainer *t);
/* Returns the ranks that write states, the first ones: without a division one of each stage. */
int dp_writers(const struct trainer *t);
void dp_part(const struct trainer *t, int parameter, int64_t *first, int64_t *count);
/* Returns the rank whose parts are the largest. */
int dp_largest_rank(const struct trainer *t);
/* Return the number of round-robin buffers for a group's gradients (2: communication overlaps with backward)
 * and for its weights (0: each rank stores all weights). */
int dp_gradient_buffers(const struct trainer *t);
int dp_weight_buffers(const struct trainer *t);
/* dp_partition: partitions the student's tensors, before its optimizer is created. dp_buffers, afterwards:
 * allocates the buffers of the sums. */
int dp_partition(struct trainer *t, struct error *err);
/* Returns this rank's part of a parameter's weights; of undivided ones all. */
void *dp_weights(const struct trainer *t, int parameter);
int dp_buffers(struct trainer *t, struct error *err);
/* All-gathers the weights that forward and backward read, after this rank's parts were set. */
int dp_gather_weights(struct trainer *t, struct error *err);
/* Returns whether evaluations of this training move the weights to another point (trainer_set_point). */
bool trainer_moves_points(const struct trainer *t);
/* Allocates and frees the memory of an evaluation by a rule WITH_POINTS: to fail at the start, or to plan. */
int trainer_reserve_points(struct trainer *t, struct error *err);
/* All-gathers the values of a parameter, of which this rank has set its part. */
int dp_gather_values(const struct trainer *t, int parameter, float *values, struct error *err);
void dp_close(struct trainer *t);
/* Joins the collectives of a forward pass without a micro-batch. */
int dp_forward_idle(struct trainer *t, struct error *err);
/* Waits for the collectives in flight, after a step that returned `code`. */
int dp_settle(struct trainer *t, int code, struct error *err);

#endif
