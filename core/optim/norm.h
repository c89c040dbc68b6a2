/* Inside core/optim: sums of the chunks' results, over all handles that hold parts of the tensors. */
#ifndef MEOPT_OPTIM_NORM_H
#define MEOPT_OPTIM_NORM_H

#include "core/optim/optim.h"

/* A value of what a chunk found, added to the slots of the tensor (optim_slots); and their sum, onto one.
 */
#define OPTIM_VALUE(field) offsetof(struct optim_partial, field)
void slots_add(const struct meopt *opt, const struct tensor *t, size_t value, double *slots);
double slots_sum(const struct meopt *opt, const struct tensor *t, double sum, const double *slots);

/* Returns whether dtype is one of gradients, and the address is aligned for it. */
static inline bool gradient_valid(const void *gradient, int dtype)
{
    return dtype >= MEOPT_F32 && dtype <= MEOPT_F16 &&
           (uintptr_t)gradient % (dtype == MEOPT_F32 ? 4 : 2) == 0;
}
/* Sets the gradient of a task: the given one, or for NULL the accumulated one. */
int gradient_prepare(const struct tensor *t, const void *gradient, int dtype, struct optim_task *task,
                     struct meopt_error *err);

/* Sums squares, bad groups and saturated groups over the tensors for which `of` returns true, on all handles
 * that hold parts. by_tensor: sums the chunks of each tensor first, else all chunks in order. */
int gradient_sums(const struct meopt *opt, bool (*of)(const struct meopt *, size_t, const void *),
                  const void *context, bool by_tensor, double *squares, int64_t *bad, int64_t *wide,
                  struct meopt_error *err);

/* Waits for the device, and copies the results of its chunks to opt->partials. */
int optim_results(struct meopt *opt, struct meopt_error *err);

#endif
