/* Sizes of a tower's outputs: see outputs.h. */
#include "core/model/outputs.h"

int64_t output_rows(const struct model_shape *g, const struct output *o)
{
    int64_t patches = model_shape_patches(g);
    return o->tokens == OUTPUT_PATCH ? patches : o->tokens == OUTPUT_CLS_PATCH ? 1 + patches : 1;
}

int64_t output_input(const struct model_shape *g, const struct output *o)
{
    return o->tokens == OUTPUT_CLS && o->block == 0 ? g->out : g->width;
}

int64_t output_width(const struct model_shape *g, const struct output *o)
{
    return o->head == HEAD_NONE ? output_input(g, o) : o->width;
}

bool outputs_read_patches(const struct outputs *outputs)
{
    for (int i = 0; i < outputs->count; i++)
        if (outputs->of[i].tokens != OUTPUT_CLS && outputs->of[i].block == 0) return true;
    return false;
}
