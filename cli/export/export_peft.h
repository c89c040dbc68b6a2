/* Writes the adapters of a run as PEFT loads them: adapter_config.json and adapter_model.safetensors. */
#ifndef MEOPT_CLI_EXPORT_PEFT_H
#define MEOPT_CLI_EXPORT_PEFT_H

#include "core/config/config.h"
#include "core/nn/nn.h"

/* Writes both into an existing directory, and the tokenizer next to the base. adapters: a checkpoint's. */
int export_peft_write(const char *directory, const struct config *config,
                      const struct model_shape *model_shape, const struct weights *adapters, bool bf16,
                      struct error *err);

#endif
