/* The published towers by name, their sizes as their own classes have them. */
#include "core/nn/nn.h"

#include <string.h>

#define GELU   (1 + ACTIVATION_GELU)
#define SWIGLU (1 + ACTIVATION_SWIGLU)
#define QUICK  (1 + ACTIVATION_QUICK_GELU)

static const struct {
    const char *name;
    struct geometry geometry;
} presets[] = {
// clang-format off
#define PRESET(name, Family, Image, Patch, Pos, Width, Depth, Heads, Hidden, Out, Ffn, Registers, Scale) \
    {name, {.family = FAMILY_##Family, .image = Image, .patch = Patch, .pos_grid = Pos, .width = Width, \
            .depth = Depth, .heads = Heads, .hidden = Hidden, .out = Out, .ffn = Ffn, \
            .registers = Registers, .layerscale = LAYERSCALE_##Scale}},
/* the same with what few have */
#define MORE(name, Family, Image, Patch, Pos, Width, Depth, Heads, Hidden, Out, Ffn, Registers, ...) \
    {name, {.family = FAMILY_##Family, .image = Image, .patch = Patch, .pos_grid = Pos, .width = Width, \
            .depth = Depth, .heads = Heads, .hidden = Hidden, .out = Out, .ffn = Ffn, \
            .registers = Registers, __VA_ARGS__}},
#define SUB_LN   .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM
#define BEHIND   .norms = NORMS_BEHIND
#define PLAIN    .pool = POOL_AVG_FIRST, .unprojected = true
#define PLAIN_LN PLAIN, .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_FFN_NORM
#define CLIPA    .pool = POOL_AVG_FIRST, .parts = PARTS_KNOWN | PART_QKV_BIAS
#define COCA     .parts = PARTS_KNOWN | PART_PRE_NORM | PART_QKV_BIAS | PART_ATTN_POOL, .pool_queries = 256, \
                 .pool_heads = 8
#define BARE     .parts = PARTS_KNOWN /* no biases of queries and values */
    /*      name                    family image patch pos width depth heads hidden out ffn registers scale */
    PRESET("eva01_g14",                     EVA,      224, 14, 16, 1408, 40, 16, 6144, 1024, GELU, 0, USUAL)
    PRESET("eva01_g14_plus",                EVA,      224, 14, 16, 1408, 40, 16, 6144, 1024, GELU, 0, USUAL)
    MORE("eva02_b16",                  EVA,      224, 16, 14,  768, 12, 12,  2048,  512, SWIGLU, 0, SUB_LN)
    MORE("eva02_l14",                  EVA,      224, 14, 16, 1024, 24, 16,  2730,  768, SWIGLU, 0, SUB_LN)
    MORE("eva02_l14_336",              EVA,      336, 14, 24, 1024, 24, 16,  2730,  768, SWIGLU, 0, SUB_LN)
    MORE("eva02_e14",                  EVA,      224, 14, 16, 1792, 64, 16, 15360, 1024, GELU, 0, BEHIND)
    MORE("eva02_e14_plus",             EVA,      224, 14, 16, 1792, 64, 16, 15360, 1024, GELU, 0, BEHIND)
    MORE("eva02_tiny14",               EVA,      224, 14, 16,  192, 12,  3,   512,  192, SWIGLU, 0, PLAIN)
    MORE("eva02_tiny14_336",           EVA,      336, 14, 24,  192, 12,  3,   512,  192, SWIGLU, 0, PLAIN)
    MORE("eva02_small14",              EVA,      224, 14, 16,  384, 12,  6,  1024,  384, SWIGLU, 0, PLAIN)
    MORE("eva02_small14_336",          EVA,      336, 14, 24,  384, 12,  6,  1024,  384, SWIGLU, 0, PLAIN)
    MORE("eva02_base14",               EVA,      224, 14, 16,  768, 12, 12,  2048,  768, SWIGLU, 0, PLAIN_LN)
    MORE("eva02_base14_448",           EVA,      448, 14, 32,  768, 12, 12,  2048,  768, SWIGLU, 0, PLAIN_LN)
    MORE("eva02_large14",              EVA,      224, 14, 16, 1024, 24, 16,  2730, 1024, SWIGLU, 0, PLAIN_LN)
    MORE("eva02_large14_448",          EVA,      448, 14, 32, 1024, 24, 16,  2730, 1024, SWIGLU, 0, PLAIN_LN)
    PRESET("openclip_vit_s16",              OPENCLIP, 224, 16, 14,  384, 12,  6, 1536,  384, GELU, 0, USUAL)
    PRESET("openclip_vit_s16_alt",          OPENCLIP, 224, 16, 14,  384, 12,  6, 1536,  256, GELU, 0, USUAL)
    PRESET("openclip_vit_s32",              OPENCLIP, 224, 32,  7,  384, 12,  6, 1536,  384, GELU, 0, USUAL)
    PRESET("openclip_vit_s32_alt",          OPENCLIP, 224, 32,  7,  384, 12,  6, 1536,  256, GELU, 0, USUAL)
    PRESET("openclip_vit_m16",              OPENCLIP, 224, 16, 14,  512, 12,  8, 2048,  512, GELU, 0, USUAL)
    PRESET("openclip_vit_m16_alt",          OPENCLIP, 224, 16, 14,  512, 12,  8, 2048,  384, GELU, 0, WITH)
    PRESET("openclip_vit_m32",              OPENCLIP, 224, 32,  7,  512, 12,  8, 2048,  512, GELU, 0, USUAL)
    PRESET("openclip_vit_m32_alt",          OPENCLIP, 224, 32,  7,  512, 12,  8, 2048,  384, GELU, 0, USUAL)
    PRESET("openclip_vit_b16",              OPENCLIP, 224, 16, 14,  768, 12, 12, 3072,  512, GELU, 0, USUAL)
    PRESET("openclip_vit_b16_quickgelu",    OPENCLIP, 224, 16, 14,  768, 12, 12, 3072,  512, QUICK, 0, USUAL)
    PRESET("openclip_vit_b16_plus",         OPENCLIP, 224, 16, 14,  896, 12, 14, 3584,  640, GELU, 0, USUAL)
    PRESET("openclip_vit_b16_plus_240",     OPENCLIP, 240, 16, 15,  896, 12, 14, 3584,  640, GELU, 0, USUAL)
    PRESET("openclip_vit_b32",              OPENCLIP, 224, 32,  7,  768, 12, 12, 3072,  512, GELU, 0, USUAL)
    PRESET("openclip_vit_b32_quickgelu",    OPENCLIP, 224, 32,  7,  768, 12, 12, 3072,  512, QUICK, 0, USUAL)
    PRESET("openclip_vit_b32_256",          OPENCLIP, 256, 32,  8,  768, 12, 12, 3072,  512, GELU, 0, USUAL)
    MORE("openclip_coca_b32",           OPENCLIP, 224, 32,  7,  768, 12, 12, 3072,  512, GELU, 0, COCA)
    MORE("openclip_coca_l14",           OPENCLIP, 224, 14, 16, 1024, 24, 16, 4096,  768, GELU, 0, COCA)
    PRESET("openclip_vit_b32_plus_256",     OPENCLIP, 256, 32,  8,  896, 12, 14, 3584,  640, GELU, 0, USUAL)
    PRESET("openclip_vit_l14",              OPENCLIP, 224, 14, 16, 1024, 24, 16, 4096,  768, GELU, 0, USUAL)
    PRESET("openclip_vit_l14_quickgelu",    OPENCLIP, 224, 14, 16, 1024, 24, 16, 4096,  768, QUICK, 0, USUAL)
    PRESET("openclip_vit_l14_280",          OPENCLIP, 280, 14, 20, 1024, 24, 16, 4096,  768, GELU, 0, USUAL)
    PRESET("openclip_vit_l14_336",          OPENCLIP, 336, 14, 24, 1024, 24, 16, 4096,  768, GELU, 0, USUAL)
    PRESET("openclip_vit_l14_336_quickgelu", OPENCLIP, 336, 14, 24, 1024, 24, 16, 4096,  768, QUICK, 0, USUAL)
    PRESET("openclip_vit_l16",              OPENCLIP, 224, 16, 14, 1024, 24, 16, 4096,  768, GELU, 0, USUAL)
    PRESET("openclip_vit_l16_320",          OPENCLIP, 320, 16, 20, 1024, 24, 16, 4096,  768, GELU, 0, USUAL)
    PRESET("openclip_vit_h14",              OPENCLIP, 224, 14, 16, 1280, 32, 16, 5120, 1024, GELU, 0, USUAL)
    PRESET("openclip_vit_h14_quickgelu",    OPENCLIP, 224, 14, 16, 1280, 32, 16, 5120, 1024, QUICK, 0, USUAL)
    PRESET("openclip_vit_h14_378",          OPENCLIP, 378, 14, 27, 1280, 32, 16, 5120, 1024, GELU, 0, USUAL)
    PRESET("openclip_vit_h14_378_quickgelu", OPENCLIP, 378, 14, 27, 1280, 32, 16, 5120, 1024, QUICK, 0, USUAL)
    PRESET("openclip_vit_h16",              OPENCLIP, 224, 16, 14, 1280, 32, 16, 5120, 1024, GELU, 0, USUAL)
    PRESET("openclip_vit_g14",              OPENCLIP, 224, 14, 16, 1408, 40, 16, 6144, 1024, GELU, 0, USUAL)
    PRESET("openclip_vit_bigg14",           OPENCLIP, 224, 14, 16, 1664, 48, 16, 8192, 1280, GELU, 0, USUAL)
    PRESET("openclip_vit_bigg14_quickgelu", OPENCLIP, 224, 14, 16, 1664, 48, 16, 8192, 1280, QUICK, 0, USUAL)
    PRESET("openclip_vit_bigg14_378",       OPENCLIP, 378, 14, 27, 1664, 48, 16, 8192, 1280, GELU, 0, USUAL)
    PRESET("openclip_vit_e14",              OPENCLIP, 224, 14, 16, 1792, 56, 16, 15360, 1280, GELU, 0, USUAL)
    MORE("openclip_vit_l14_clipa",     OPENCLIP, 224, 14, 16, 1024, 24, 16,  4096,  768, GELU, 0, CLIPA)
    MORE("openclip_vit_l14_clipa_336", OPENCLIP, 336, 14, 24, 1024, 24, 16,  4096,  768, GELU, 0, CLIPA)
    MORE("openclip_vit_h14_clipa",     OPENCLIP, 224, 14, 16, 1280, 32, 16,  5120, 1024, GELU, 0, CLIPA)
    MORE("openclip_vit_h14_clipa_336", OPENCLIP, 336, 14, 24, 1280, 32, 16,  5120, 1024, GELU, 0, CLIPA)
    MORE("openclip_vit_bigg14_clipa",  OPENCLIP, 224, 14, 16, 1664, 48, 16,  8192, 1280, GELU, 0, CLIPA)
    MORE("openclip_vit_bigg14_clipa_336",  OPENCLIP, 336, 14, 24, 1664, 48, 16,  8192, 1280, GELU, 0, CLIPA)
    PRESET("dinov2_vits14",                 DINOV2,   224, 14, 37,  384, 12,  6, 1536,  384, GELU, 0, USUAL)
    PRESET("dinov2_vitb14",                 DINOV2,   224, 14, 37,  768, 12, 12, 3072,  768, GELU, 0, USUAL)
    PRESET("dinov2_vitl14",                 DINOV2,   224, 14, 37, 1024, 24, 16, 4096, 1024, GELU, 0, USUAL)
    PRESET("dinov2_vitg14",                 DINOV2,   224, 14, 37, 1536, 40, 24, 4096, 1536, SWIGLU, 0, USUAL)
    PRESET("dinov2_vits14_reg",             DINOV2,   224, 14, 37,  384, 12,  6, 1536,  384, GELU, 4, USUAL)
    PRESET("dinov2_vitb14_reg",             DINOV2,   224, 14, 37,  768, 12, 12, 3072,  768, GELU, 4, USUAL)
    PRESET("dinov2_vitl14_reg",             DINOV2,   224, 14, 37, 1024, 24, 16, 4096, 1024, GELU, 4, USUAL)
    PRESET("dinov2_vitg14_reg",             DINOV2,   224, 14, 37, 1536, 40, 24, 4096, 1536, SWIGLU, 4, USUAL)
    PRESET("dinov3_vits16",                 DINOV3,   224, 16, 14,  384, 12,  6, 1536,  384, GELU, 4, USUAL)
    PRESET("dinov3_vits16plus",             DINOV3,   224, 16, 14,  384, 12,  6, 1536,  384, SWIGLU, 4, USUAL)
    PRESET("dinov3_vitb16",                 DINOV3,   224, 16, 14,  768, 12, 12, 3072,  768, GELU, 4, USUAL)
    PRESET("dinov3_vitl16",                 DINOV3,   224, 16, 14, 1024, 24, 16, 4096, 1024, GELU, 4, USUAL)
    PRESET("dinov3_vith16plus",             DINOV3,   224, 16, 14, 1280, 32, 20, 5120, 1280, SWIGLU, 4, USUAL)
    MORE("dinov3_vit7b16",             DINOV3,   224, 16, 14, 4096, 40, 32,  8192, 4096, SWIGLU, 4, BARE)
    // clang-format on
};
enum { PRESET_COUNT = sizeof presets / sizeof *presets };

const char *geometry_preset_name(int i) { return i >= 0 && i < PRESET_COUNT ? presets[i].name : NULL; }

int geometry_preset(const char *name, struct geometry *geometry, struct error *err)
{
    for (int i = 0; i < PRESET_COUNT; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *geometry = presets[i].geometry;
            return 0;
        }
    return error_set(err, EXIT_CONFIG, "meopt.yaml(5) lists them", "no architecture '%s'", name);
}
