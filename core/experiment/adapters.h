/* Adapters of the student (section lora of the configuration): a run trains them alone, its checkpoints have
 * no other weights, and its model is model.weight with them. */
#ifndef MEOPT_EXPERIMENT_ADAPTERS_H
#define MEOPT_EXPERIMENT_ADAPTERS_H

#include "core/config/config.h"
#include "core/model/lora.h"

#include <jansson.h>

/* Files of PEFT. */
#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_VALUES "adapter_model.safetensors"

/* Takes rank, alpha and targets from lora.adapter, if it is a directory of PEFT; keys that say something
 * else are EXIT_CONFIG, and so is what meopt does not have. */
int adapters_settle(struct config *config, const struct model_shape *model_shape, struct error *err);
/* Sets the tower's options; rank 0: there are no adapters. EXIT_CONFIG: targets that the model does not
 * have. */
int adapters_options(const struct config *config, const struct model_shape *model_shape,
                     struct lora_options *options, struct error *err);
/* Returns what the adapters are for: path, bytes (of a file) and checksum as in meta.json. */
json_t *adapters_base(const struct config *config, uint32_t crc32c);
/* Opens the file of lora.adapter. */
int adapters_open(const struct config *config, struct weights **weights, struct error *err);

#endif
