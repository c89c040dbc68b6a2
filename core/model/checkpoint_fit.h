/* Checks whether a checkpoint contains exactly one tower, from names and shapes alone. */
#ifndef MEOPT_MODEL_CHECKPOINT_FIT_H
#define MEOPT_MODEL_CHECKPOINT_FIT_H

#include "core/model/names.h"

/* Finds the key mapping of a checkpoint for a tower of that family, and with its heads. */
int fit_family(struct key_map *key_map, const struct model_shape *model_shape, const struct weights *weights,
               struct error *err);

/* Refuses a tensor inside the tower that no role of the family reads, because ignoring trained values would
 * change the outputs silently. Tensors outside the tower (a text tower, a classifier) and those that change
 * no output are allowed. */
int fit_names(const struct key_map *key_map, const struct weights *weights, struct error *err);

/* Returns the highest block number in the checkpoint, plus one. */
/* Returns the meaning of a part of a tensor's name that no class has (quantized, wrapped, ...), NULL:
 * unknown; *hint: what to do, NULL: the usual. */
const char *fit_meaning(const char *key, const char **hint);
int64_t fit_blocks(const struct key_map *key_map, const struct weights *weights);

/* Checks that every parameter exists with its shape, ignoring leading dimensions of 1. The distillation head
 * and parameters that are not trained may be absent; their shapes are checked. */
int fit_shapes(const struct key_map *key_map, int ffn, const struct parameter *parameters, int count,
               const struct weights *weights, struct error *err);

/* Returns the location of a parameter's values in the checkpoint. */
struct values_place fit_place(const struct key_map *key_map, int ffn, const struct parameter *parameter,
                              const struct weights *weights);
/* Returns whether the values are absent, which fit_shapes allows for its exceptions only. */
bool fit_absent(const struct values_place *place);

/* Returns the number of dimensions after leading ones, and the first of them. */
int fit_dimensions(int ndim, const int64_t *shape, const int64_t **first);

#endif
