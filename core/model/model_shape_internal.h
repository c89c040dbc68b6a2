/* Parts of model_shape_dims (shape.h) that towers of images and language models share. Private to
 * core/model. */
#ifndef MEOPT_MODEL_MODEL_SHAPE_INTERNAL_H
#define MEOPT_MODEL_MODEL_SHAPE_INTERNAL_H

#include "core/model/language_config.h"
#include "core/model/names.h"

/* Sets a size to `found`, or compares `found` with the value that is set. */
int shape_settle(struct model_shape *g, enum fact fact, int64_t found, const char *tensor, struct error *err);
/* Returns in *tensor the first part of a parameter, of block 0 for those of blocks, with its role's
 * dimensions. */
int shape_need(const struct weights *weights, const struct key_map *key_map, enum role role, int ffn,
               const struct weights_tensor **tensor, struct error *err);
int shape_count_blocks(const struct key_map *key_map, const struct weights *weights, int ffn, int64_t *depth,
                       struct error *err);
/* Determines the parts of the tower, among those that the family's towers may lack. */
int shape_settle_parts(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                       int ffn, struct error *err);

/* The whole of model_shape_dims for a language model with this config.json; its metadata are read here. */
int language_shape_dims(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        const struct language_config *config, struct error *err);

#endif
