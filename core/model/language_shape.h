/* The parts of model_shape_... (shape.h) for decoder language models. */
#ifndef MEOPT_MODEL_LANGUAGE_SHAPE_H
#define MEOPT_MODEL_LANGUAGE_SHAPE_H

#include "core/model/shape.h"

int language_shape_check(struct model_shape *model_shape, int64_t head_dim, struct error *err);
void language_shape_text(const struct model_shape *model_shape, char *text, size_t size);
/* Per sample of N tokens, 2 per multiply-add; of the attention only what the mask leaves. */
double language_forward_flops(const struct model_shape *model_shape);
double language_attention_flops(const struct model_shape *model_shape);
double language_recompute_flops(const struct model_shape *model_shape, int64_t blocks);

#endif
