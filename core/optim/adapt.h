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

/* Behind the samples: weights beside each of a sample's states, which take the step as a tensor's do. Its
 * correction lies in the second half of bf16 weights. */
enum { SAMPLE_WEIGHTS = OPTIM_GROUP * 4 };
struct sample_room {
    uint8_t weights[3][SAMPLE_WEIGHTS];
};
static inline size_t sample_rooms_at(const struct samples *s)
{
    return (2 * (size_t)s->count * sizeof(struct sample) + 63) & ~(size_t)63;
}

/* Tasks that a sweep of samples has at most: their table is small enough to be sent without waiting. */
enum { ADAPT_TASKS = 256 };

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
/* Out of a record, into one: where samples are now. before: trials of m of 8 bits have codes of before spans,
 * and begin anew. */
size_t samples_bytes(const struct tensor *tensor);
int adapt_save(const struct meopt *opt, const struct tensor *tensor, void *to, struct meopt_error *err);
int adapt_load(const struct meopt *opt, struct tensor *tensor, const void *from, bool before,
               struct meopt_error *err);
/* Numbers of samples from outside: what is wrong with them, NULL: nothing. */
const char *adapt_check(const struct meopt *opt, const struct tensor *tensor, const void *from);

/* Every step, before its sweep: the samples of those tensors that are watched take it, where they are.
 * Nothing is waited for. It counts from adapt_done on, and no longer after another: the step was refused. */
bool adapt_due(const struct meopt *opt, const struct tensor *tensor);
int adapt_step(struct meopt *opt, const size_t *tensors, const struct optim_task *tasks, size_t count,
               const struct optim_clip *clip, struct meopt_error *err);
void adapt_done(struct tensor *tensor);
/* The end of a step, where it is due: what measuring needs is asked of a card, and is there when the host has
 * next waited for it; then both errors of struct meopt_report, and promotion or the way back. */
void adapt_fetch(struct meopt *opt);
int adapt_measure(struct meopt *opt, struct meopt_error *err);
/* Numbers of meopt.sums that a tensor takes there. */
size_t adapt_values(void);

#endif
