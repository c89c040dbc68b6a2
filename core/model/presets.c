/* The published towers by name: see families.h. */
#include "core/model/shape.h"

#include <string.h>

MODEL_CHOICE_LISTS(CHOICE_NAMES)

#define GELU   (1 + ACTIVATION_GELU)
#define SWIGLU (1 + ACTIVATION_SWIGLU)
#define QUICK  (1 + ACTIVATION_QUICK_GELU)
#define TANH   (1 + ACTIVATION_GELU_TANH)

// clang-format off
#define SUB_LN   .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM
#define POSTNORM .norms = POST_NORM
#define PLAIN    .pool = POOL_AVG_FIRST, .unprojected = true
#define PLAIN_LN PLAIN, .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_FFN_NORM
#define CLIPA    .pool = POOL_AVG_FIRST, .parts = PARTS_KNOWN | PART_QKV_BIAS
#define COCA     .parts = PARTS_KNOWN | PART_PRE_NORM | PART_QKV_BIAS | PART_ATTN_POOL, .pool_queries = 256, \
                 .pool_heads = 8
#define BARE     .parts = PARTS_KNOWN /* no biases of queries and values */
#define SCALED   .layerscale = LAYERSCALE_WITH
#define CLASSLESS SCALED, .classless = true
#define VIT      .layerscale = LAYERSCALE_WITHOUT, .pos_resize = POS_RESIZE_TIMM
#define PRESET(c, Name, Family, Image, Patch, Pos, Width, Depth, Heads, Hidden, Out, Ffn, Registers, ...) \
    {#Name, {.family = FAMILY_##Family, .image = Image, .patch = Patch, .pos_grid = Pos, .width = Width, \
             .depth = Depth, .heads = Heads, .hidden = Hidden, .out = Out, .ffn = Ffn, \
             .registers = Registers, __VA_ARGS__}},
#define TIED         .tied = true
#define WINDOW(n)    .window = n
#define THETA(n)     .rope.theta = n
#define NARROW(n)    .embedding = n
#define LLAMA2       .parts = PARTS_KNOWN
#define LLAMA3(n)    .parts = PARTS_KNOWN, .rope = {500000, ROPE_LLAMA3, n, 8192, 1, 4, 0}
#define QWEN2        .parts = PARTS_KNOWN | PART_QKV_BIAS, .norm_eps = 1e-6f, THETA(1000000)
#define QWEN3        .parts = PARTS_KNOWN | PART_QK_NORM, .norm_eps = 1e-6f, THETA(1000000)
#define LANGUAGE_PRESET(c, Name, Family, Vocabulary, Positions, Width, Depth, Heads, Kv, Dim, Hidden, ...) \
    {#Name, {.family = FAMILY_##Family, .vocabulary = Vocabulary, .positions = Positions, .width = Width, \
             .depth = Depth, .heads = Heads, .kv_heads = Kv, .head_dim = Dim, .hidden = Hidden, \
             FAMILY_##Family##_IS, __VA_ARGS__}},
#define FAMILY_GPT2_IS  .tied = true
#define FAMILY_BERT_IS  .tied = true
#define FAMILY_DISTILBERT_IS .tied = true
#define FAMILY_ROBERTA_IS .tied = true
#define FAMILY_ELECTRA_IS .tied = true
#define FAMILY_BIG_BIRD_IS .tied = true
#define FAMILY_LLAMA_IS .ffn = SWIGLU
static const struct {
    const char *name;
    struct model_shape model_shape;
} presets[] = {PRESETS(PRESET, ) LANGUAGE_PRESETS(LANGUAGE_PRESET, )};
// clang-format on
enum { PRESET_COUNT = sizeof presets / sizeof *presets };

int model_shape_preset(const char *name, struct model_shape *model_shape, struct error *err)
{
    for (int i = 0; i < PRESET_COUNT; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *model_shape = presets[i].model_shape;
            return 0;
        }
    return error_set(err, EXIT_CONFIG, "meopt.yaml(5) lists them", "no architecture '%s'", name);
}
