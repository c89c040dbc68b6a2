/* Does a checkpoint hold a tower, the whole of it, and nothing more? Told from names and shapes alone. */
#ifndef MEOPT_NN_CHECKPOINT_FIT_H
#define MEOPT_NN_CHECKPOINT_FIT_H

#include "core/nn/names.h"

/* How the checkpoint spells a tower of that family. */
int fit_family(struct spelling *spelling, enum family family, const struct weights *weights,
               struct error *err);

/* Refuses a tensor inside the tower that no role of the family reads: what it was trained for would be left
 * out in silence. Tensors beside the tower (a text tower, a classifier) and those that change no output are
 * nobody's business. */
int fit_names(const struct spelling *spelling, const struct weights *weights, struct error *err);

/* One more than the number of the last block that the checkpoint has anything of. */
int64_t fit_blocks(const struct spelling *spelling, const struct weights *weights);

/* Every parameter is there with its shape, dimensions of 1 before the others aside. Of the distillation head,
 * and of what is not trained, only the shape. */
int fit_shapes(const struct spelling *spelling, int ffn, const struct parameter *parameters, int count,
               const struct weights *weights, struct error *err);

/* Where a parameter's values are in the checkpoint. */
struct values_place fit_place(const struct spelling *spelling, int ffn, const struct parameter *parameter,
                              const struct weights *weights);
/* Not there, which only fit_shapes' exceptions may be. */
bool fit_absent(const struct values_place *place);

/* Dimensions behind leading ones, and the first of them. */
int fit_dimensions(int ndim, const int64_t *shape, const int64_t **first);

#endif
