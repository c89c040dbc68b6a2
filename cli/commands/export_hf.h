/* What transformers wants beside model.safetensors: config.json and preprocessor_config.json.
 * The directory is there. */
#ifndef MEOPT_CLI_COMMANDS_EXPORT_HF_H
#define MEOPT_CLI_COMMANDS_EXPORT_HF_H

#include "core/config/config.h"
#include "core/nn/nn.h"

/* Of such a tower; EXIT_CONFIG when its class cannot have it. config: the run's, for the images. */
int export_hf_write(const char *directory, const struct model_shape *model_shape, const struct config *config,
                    bool bf16, struct error *err);
/* Of the model that `original` (a directory, or a file in one) is, as they lie there. */
int export_hf_copy(const char *directory, const char *original, struct error *err);

#endif
