/* Adaptive precision: a sample of a tensor's groups whose moments are kept in fp32 beside the stored ones.
 * See adapt.c. */
#ifndef MEOPT_OPTIM_ADAPT_H
#define MEOPT_OPTIM_ADAPT_H

#include "core/optim/optim.h"

#define SAMPLE_GROUPS 16

/* A sampled group, exact. Of a promoted tensor also: since_m, since_v: exact since the promotion, from what
 * was stored then; codes: the group in the next narrower format (struct trial), m at 0, v (a pair: nothing)
 * at 128, scales at 256. */
struct sample {
    float m[OPTIM_GROUP], v[OPTIM_GROUP], since_m[OPTIM_GROUP], since_v[OPTIM_GROUP];
    _Alignas(8) uint8_t codes[264];
};

/* Samples lie evenly over the groups of the whole tensor: number k of n is group k * groups / n. Those in a
 * part of it, and which group a part's number k is. */
struct samples samples_in(int64_t whole_groups, int64_t first_group, int64_t groups);
int64_t sample_group(const struct samples *samples, int64_t k);

/* What a record says of them before the samples themselves. */
struct sampled {
    int64_t since;
    int32_t m, v; /* struct trial */
};

/* Is the tensor watched: do its options ask for low-bit states, and for measuring them? */
bool adapt_watches(const struct meopt_options *options, const struct layout *layout);
/* The samples begin anew from the stored moments; promoted: only what counts since a promotion, and the
 * trial.
 */
int adapt_restart(const struct meopt *opt, struct tensor *tensor, bool promoted, struct meopt_error *err);
/* Out of a record, into one: where samples are now. */
size_t samples_bytes(const struct tensor *tensor);
int adapt_save(const struct meopt *opt, const struct tensor *tensor, void *to, struct meopt_error *err);
int adapt_load(const struct meopt *opt, struct tensor *tensor, const void *from, struct meopt_error *err);
/* Numbers of samples from outside: what is wrong with them, NULL: nothing. */
const char *adapt_check(const struct meopt *opt, const struct tensor *tensor, const void *from);

/* Every step of a watched tensor, before its sweep: the samples take it; where it is due, both errors of
 * struct meopt_report. It counts from adapt_done on; adapt_undone: it turned out that the step was refused.
 */
bool adapt_due(const struct meopt *opt, const struct tensor *tensor);
int adapt_step(const struct meopt *opt, const struct tensor *tensor, const struct optim_task *task,
               double errors[2], struct meopt_error *err);
void adapt_done(struct tensor *tensor);
int adapt_undone(const struct meopt *opt, struct tensor *tensor, struct meopt_error *err);
/* After the sweep of a step that was due: promote or demote. */
int adapt_act(struct meopt *opt, struct tensor *tensor, const double errors[2], struct meopt_error *err);

#endif
