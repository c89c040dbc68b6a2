/* Optimizers whose arrays lie on a card. The step runs there (kernels/gpu/optim.hip, same bits); everything
 * rare (save, load, import, conversion, measuring errors) goes through copies in this machine's memory and
 * the CPU's kernels.
 */
#ifndef MEOPT_OPTIM_CARD_H
#define MEOPT_OPTIM_CARD_H

#include "core/optim/optim.h"

struct device;

/* The card of an optimizer; NULL when its arrays are this machine's memory (or nobody's: dry). */
struct device *card_of(const struct meopt *opt);
struct device *card_of_options(const struct meopt_options *options);
/* Blocks on the card for callers who give no allocator; kind: enum meopt_memory_kind. */
void *card_allocate(const struct meopt_options *options, int kind, size_t bytes);

/* What the sweep over a table of tasks needs on the card, for tables of up to `tasks` tasks and `partials`
 * results. */
int card_create(struct meopt *opt, size_t partials, struct meopt_error *err);
void card_destroy(struct meopt *opt);
/* Step the tensors with tasks[i].count > 0; results to opt->partials, now (wait) or when card_collect asks
 * for those of all tensors: the host need not wait for the card after every tensor. */
int card_sweep(const struct meopt *opt, const struct tensor *tensors, const struct optim_task *tasks,
               size_t count, bool wait, struct meopt_error *err);
int card_collect(const struct meopt *opt, size_t partials, struct meopt_error *err);
/* Have the card look for NaN and infinity in the gradients of the next sweep, and until card_check_end step
 * nothing if there are: the norms are infinite then. */
void card_check_begin(const struct meopt *opt);
void card_check_end(const struct meopt *opt);
/* Sum of squares and finiteness of an array on the card. */
int card_squares(const struct meopt *opt, const void *x, int gradient_format, int64_t count, double *squares,
                 int *finite, struct meopt_error *err);
void card_clear(const struct meopt *opt, void *block, size_t bytes);
int card_read(const struct meopt *opt, void *host, const void *card, size_t bytes, struct meopt_error *err);
int card_write(const struct meopt *opt, void *card, const void *host, size_t bytes, struct meopt_error *err);

/* A tensor as the host may touch it. On the CPU that is the tensor; on a card, copies of the parts asked for
 * (the other pointers are NULL). tensor_release ends it, after bringing the parts back to the card when
 * `changed`. */
enum { PART_WEIGHTS = 1, PART_STATE = 2 }; /* weights: with their copy and correction */
int tensor_hold(const struct meopt *opt, const struct tensor *t, unsigned parts, struct tensor *host,
                struct meopt_error *err);
int tensor_release(const struct meopt *opt, const struct tensor *t, struct tensor *host, bool changed,
                   struct meopt_error *err);

/* One group of a task as a task of its own whose arrays the host may read, and those of accumulators, too.
 * Copies lie in `room`; on the CPU it stays empty. Nothing is written back. */
struct group_room {
    _Alignas(64) uint8_t gradient[256], weights[256], copy[128], correction[128], m[256], v[256], scales[1],
        gradient_scales[1];
};
int group_hold(const struct meopt *opt, const struct optim_task *task, int64_t group, struct group_room *room,
               struct optim_task *host, struct meopt_error *err);

#endif
