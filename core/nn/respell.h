/* A trained tower on its way out: its tensors under another library's names, or inside the file of the model
 * that it was taken from. Values are split, transposed and moved, never computed, with one exception: where
 * the class token has no position of its own, its position is added to it, as the forward pass would do.
 *
 *     respell_open(&r, tower, DTYPE_F32);        // tower: a checkpoint with the family's own names
 *     code = respell_library(r, &geometry, LIBRARY_TIMM, err);
 *     weights_write_safetensors(path, respell_rows(r), respell_count(r), metadata, err);
 *     respell_close(r);                          // the weights stay the caller's
 */
#ifndef MEOPT_NN_RESPELL_H
#define MEOPT_NN_RESPELL_H

#include "core/nn/names.h"

struct respell;

/* dtype: F32 or BF16, of the tower's values. */
void respell_open(struct respell **respell, const struct weights *tower, enum dtype dtype);
void respell_close(struct respell *respell); /* NULL is fine */

/* One of these. As the checkpoint has it, with or without its distillation head. */
void respell_as_is(struct respell *respell, bool head);
/* As a library's classes load it strictly. EXIT_CONFIG when they cannot compute such a tower. */
int respell_library(struct respell *respell, const struct geometry *geometry, enum library library,
                    struct error *err);
/* All tensors of `original` in their order: those of its tower with these values, under the names that it
 * has for them; every other one with its bytes as they are. EXIT_CONFIG when its tower is another. */
int respell_merge(struct respell *respell, const struct geometry *geometry, const struct weights *original,
                  struct error *err);

const struct weights_row *respell_rows(const struct respell *respell);
int64_t respell_count(const struct respell *respell);

#endif
