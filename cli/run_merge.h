/* A model with its adapters merged: W + alpha / rank B A in place of each W (lora.rank). */
#ifndef MEOPT_CLI_RUN_MERGE_H
#define MEOPT_CLI_RUN_MERGE_H

#include "core/config/config.h"
#include "core/nn/nn.h"

/* Opens the model of `base` with the adapters of a checkpoint, in fp32 under the family's own names; a weight
 * is merged when it is read. The caller closes it, before `base`. */
int run_merge_open(struct weights **merged, const struct config *config,
                   const struct model_shape *model_shape, const struct weights *base,
                   const struct weights *adapters, struct error *err);

#endif
