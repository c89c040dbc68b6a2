/* Export of a trained tower: its tensors under another library's names, or inside the file of the model that
 * it was initialized from. Values are split, transposed and moved, never computed, with one exception: if the
 * class token has no position of its own, its position is added to it, as in the forward pass.
 *
 *     rename_keys_open(&r, tower, DTYPE_F32);        // tower: a checkpoint with the family's own names
 *     code = rename_keys_library(r, &model_shape, LIBRARY_TIMM, err);
 *     weights_write_safetensors(path, rename_keys_rows(r), rename_keys_count(r), metadata, err);
 *     rename_keys_close(r);                          // the weights stay the caller's
 */
#ifndef MEOPT_MODEL_RENAME_KEYS_H
#define MEOPT_MODEL_RENAME_KEYS_H

#include "core/model/names.h"

struct rename_keys;

/* dtype: F32 or BF16, of the tower's values. */
void rename_keys_open(struct rename_keys **rename, const struct weights *tower, enum dtype dtype);
void rename_keys_close(struct rename_keys *rename); /* NULL is allowed */

/* Call one of these three. As in the checkpoint, with or without its distillation head or classifier. */
void rename_keys_as_is(struct rename_keys *rename, bool head);
/* As a library's classes load it strictly. EXIT_CONFIG if they cannot compute such a tower. */
int rename_keys_library(struct rename_keys *rename, const struct model_shape *model_shape,
                        enum library library, struct error *err);
/* All tensors of `original` in their order: its tower's tensors under its own names with the new values, all
 * others byte for byte. EXIT_CONFIG if its tower differs. */
int rename_keys_merge(struct rename_keys *rename, const struct model_shape *model_shape,
                      const struct weights *original, struct error *err);

const struct weights_row *rename_keys_rows(const struct rename_keys *rename);
int64_t rename_keys_count(const struct rename_keys *rename);

#endif
