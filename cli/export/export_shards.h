/* Writes a model's tensors into a directory as transformers does: model.safetensors, or several files of a
 * limited size with model.safetensors.index.json. */
#ifndef MEOPT_CLI_EXPORT_SHARDS_H
#define MEOPT_CLI_EXPORT_SHARDS_H

#include "core/weights/weights.h"

#define EXPORT_INDEX "model.safetensors.index.json"

/* most: bytes of tensors in one file; a larger tensor has a file of its own. */
int export_shards_write(const char *directory, const struct weights_row *rows, int64_t count,
                        const char *const *metadata, double most, struct error *err);

#endif
