/* The list of a tower's parameters, with checkpoint names. */
#ifndef MEOPT_MODEL_PARAMETERS_H
#define MEOPT_MODEL_PARAMETERS_H

#include "core/model/family.h"
#include "core/model/outputs.h"

/* Fills a new list (malloc'ed) in group order; returns the count. outputs: of a distillation, whose heads
 * follow the groups that compute their tokens; NULL: none. */
int parameters_list(const struct model_shape *model_shape, const struct outputs *outputs,
                    struct parameter **list);

int role_part(enum role role);                               /* PART_... that the role belongs to, 0: none */
int role_ndim(const struct family_row *row, enum role role); /* dimensions of its tensor after leading 1s */

/* Slices (model_s.slices). With model_shape.slices S > 1 some tensors are S parameters each, which follow
 * each other in the list; the s-th is called name#s. A slice has 1 / S of the heads, of the hidden units, or
 * of the vocabulary, the last one of these maybe less:
 *
 *   queries, keys, values; first feed-forward matrix; token table and head    rows, with their biases
 *   projection of attention; second feed-forward matrix                       columns
 *
 * Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3. */

enum { MOST_SLICES = 64 };
/* The rows of a slice in a tensor of `rows`. */
struct slice_rows {
    int64_t first, count;
};
static inline struct slice_rows slice_of_rows(int64_t rows, int slice, int slices)
{
    int64_t each = (rows + slices - 1) / slices, first = slice * each, left = rows - first;
    return (struct slice_rows){first, left < each ? left : each};
}
/* Returns EXIT_CONFIG unless such a model has S slices. */
int parameters_check_slices(const struct model_shape *model_shape, int slices, struct error *err);
/* Returns the tensor of which p is a slice, with name and shape of files; else p. */
struct parameter parameter_whole(const struct model_shape *model_shape, const struct parameter *p);
/* Copies a slice's values out of the whole tensor's, or into them. */
void parameter_cut(const struct model_shape *model_shape, const struct parameter *p, const float *whole,
                   float *values);
void parameter_merge(const struct model_shape *model_shape, const struct parameter *p, const float *values,
                     float *whole);

#endif
