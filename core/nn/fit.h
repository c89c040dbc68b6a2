/* Does a checkpoint hold a tower, the whole of it, and nothing more? Told from names and shapes alone. */
#ifndef MEOPT_NN_FIT_H
#define MEOPT_NN_FIT_H

#include "core/nn/family.h"

/* Refuses a tensor inside the tower that no role of the family reads: what it was trained for would be left
 * out in silence. Tensors beside the tower (a text tower, a classifier) and those of family_row.ignored are
 * nobody's business. */
int fit_names(enum family family, const struct weights *weights, struct error *err);

/* One more than the number of the last block that the checkpoint has anything of. */
int64_t fit_blocks(enum family family, const struct weights *weights);

/* Every parameter is there with its shape. Of the distillation head, and of what is not trained, only the
 * shape. */
int fit_shapes(enum family family, const struct parameter *parameters, int count,
               const struct weights *weights, struct error *err);

/* Index of a parameter's tensor in a checkpoint; -1 when it is not there. */
int64_t fit_find(enum family family, const struct parameter *parameter, const struct weights *weights);

#endif
