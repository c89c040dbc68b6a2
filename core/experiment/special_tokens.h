/* The tokens that training by masked tokens treats apart: the mask, and those that are never masked. */
#ifndef MEOPT_EXPERIMENT_SPECIAL_TOKENS_H
#define MEOPT_EXPERIMENT_SPECIAL_TOKENS_H

#include "core/config/config.h"
#include "core/model/shape.h"

/* Sets data.mask_token and data.special_tokens where they are not given: from the tokenizer.json next to the
 * checkpoint, else those of the family's published models. */
int special_tokens_settle(struct config *config, const struct model_shape *model_shape, struct error *err);

#endif
