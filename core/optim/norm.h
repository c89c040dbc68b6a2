/* Inside core/optim: sums over what the chunks of tensors found, and over all who hold parts of them. */
#ifndef MEOPT_OPTIM_NORM_H
#define MEOPT_OPTIM_NORM_H

#include "core/optim/optim.h"

/* A value of what a chunk found, added to the places of the tensor (optim_places); and their sum, onto one.
 */
#define OPTIM_VALUE(field) offsetof(struct optim_partial, field)
void places_fill(const struct meopt *opt, const struct tensor *t, size_t value, double *places);
double places_sum(const struct meopt *opt, const struct tensor *t, double sum, const double *places);

/* Is it an array of a dtype that gradients may have, at an address for it? */
static inline bool gradient_valid(const void *gradient, int dtype)
{
    return dtype >= MEOPT_F32 && dtype <= MEOPT_F16 &&
           (uintptr_t)gradient % (dtype == MEOPT_F32 ? 4 : 2) == 0;
}
/* Where the gradient of a task is: what was given, or (NULL) accumulated. */
int gradient_prepare(const struct tensor *t, const void *gradient, int dtype, struct optim_task *task,
                     struct meopt_error *err);

/* Squares, bad and wide groups of those gradients, over all who hold parts of them, from what their chunks
 * found; added up tensor by tensor, or chunk by chunk. */
int gradient_sums(const struct meopt *opt, bool (*of)(const struct meopt *, size_t, const void *),
                  const void *context, bool by_tensor, double *squares, int64_t *bad, int64_t *wide,
                  struct meopt_error *err);

/* What the device's chunks found comes here, if that is not where it is; waits. */
int optim_results(struct meopt *opt, struct meopt_error *err);

#endif
