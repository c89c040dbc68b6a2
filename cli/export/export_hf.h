/* Writes config.json and preprocessor_config.json for transformers into an existing directory, next to
 * model.safetensors; of a language model config.json and its tokenizer (export_language.h). */
#ifndef MEOPT_CLI_EXPORT_HF_H
#define MEOPT_CLI_EXPORT_HF_H

#include "core/config/config.h"
#include "core/nn/nn.h"

struct json_t;

/* Writes both for a tower; EXIT_CONFIG if transformers has no class for its shape. classes: array of names,
 * or NULL. config: of the run, for the images. */
int export_hf_write(const char *directory, const struct model_shape *model_shape,
                    const struct json_t *classes, const struct config *config, bool bf16, struct error *err);
/* Copies both, and a tokenizer, from the model `original` (a directory, or a file in one). */
int export_hf_copy(const char *directory, const char *original, struct error *err);

#endif
