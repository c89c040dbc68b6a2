/* The model families and their published towers, one row each. Enums, names, choices of the experiment and
 * defaults are generated from them. Macros only. */
#ifndef MEOPT_MODEL_FAMILIES_H
#define MEOPT_MODEL_FAMILIES_H

/* X(c, number, name, aliases, pipeline, words...), c: passed through.
 *   number     FAMILY_<number> of enum family (choices.h)
 *   aliases    other key_maps of the name in the experiment: "|OTHER=NAME"
 *   pipeline   the usual data.pipeline
 *   words      core/config/resolve.c's. NORMALIZED: outputs are compared L2-normalised; PATCH_TOKENS: they
 *              may be matched, too; GATED: a gated feed-forward exists; CROPS: an image may have pixels after
 *              its last whole patch; ENCODER: a classifier of it reads texts
 * The tensors of a family: core/model/family.c; their names in other libraries: core/model/key_mappings.c. */
// clang-format off
#define FAMILIES(X, c) \
    X(c, EVA,      "eva",      "|eva_clip=eva",       CLIP, NORMALIZED, GATED) \
    X(c, OPENCLIP, "openclip", "|open_clip=openclip", CLIP) \
    X(c, DINOV2,   "dinov2",   "",                    DINOV2, PATCH_TOKENS, GATED) \
    X(c, DINOV3,   "dinov3",   "",                    DINOV2, PATCH_TOKENS, GATED) \
    X(c, SIGLIP,   "siglip",   "",                    SIGLIP, CROPS) \
    X(c, PE,       "pe",       "",                    SIGLIP, PATCH_TOKENS) \
    X(c, RADIO,    "radio",    "|c_radio=radio",      CLIP, PATCH_TOKENS)

/* Language models, which read tokens: decoders, and encoders. XLM-RoBERTa and CamemBERT are RoBERTas. */
#define LANGUAGE_FAMILIES(X, c) \
    X(c, GPT2,       "gpt2",       "",                    AUTO) \
    X(c, LLAMA,      "llama",      "",                    AUTO, GATED) \
    X(c, BERT,       "bert",       "",                    AUTO, ENCODER) \
    X(c, DISTILBERT, "distilbert", "",                    AUTO, ENCODER) \
    X(c, ROBERTA,    "roberta",    "|xlm_roberta=roberta|camembert=roberta", AUTO, ENCODER) \
    X(c, ELECTRA,    "electra",    "",                    AUTO, ENCODER) \
    X(c, BIG_BIRD,   "big_bird",   "|bigbird=big_bird",   AUTO, ENCODER)

#define ALL_FAMILIES(X, c) FAMILIES(X, c) LANGUAGE_FAMILIES(X, c)

/* P(c, name, family, image, patch, pos_grid, width, depth, heads, hidden, out, ffn, registers, words...):
 * fields of struct model_shape (shape.h), with the sizes of the tower's own class, out 0: the width;
 * TOWER_ARCH_<name> of the experiment. ffn and words are core/model/presets.c's. EUPE's towers are DINOv3's
 * class: eupe/hub/backbones.py of facebookresearch/EUPE; PE's: core/vision_encoder/config.py of
 * facebookresearch/perception_models. */
#define PRESETS(P, c) \
P(c, eva01_g14,                     EVA,      224, 14, 16, 1408, 40, 16,  6144, 1024, GELU, 0) \
P(c, eva01_g14_plus,                EVA,      224, 14, 16, 1408, 40, 16,  6144, 1024, GELU, 0) \
P(c, eva02_b16,                     EVA,      224, 16, 14,  768, 12, 12,  2048,  512, SWIGLU, 0, SUB_LN) \
P(c, eva02_l14,                     EVA,      224, 14, 16, 1024, 24, 16,  2730,  768, SWIGLU, 0, SUB_LN) \
P(c, eva02_l14_336,                 EVA,      336, 14, 24, 1024, 24, 16,  2730,  768, SWIGLU, 0, SUB_LN) \
P(c, eva02_e14,                     EVA,      224, 14, 16, 1792, 64, 16, 15360, 1024, GELU, 0, POSTNORM) \
P(c, eva02_e14_plus,                EVA,      224, 14, 16, 1792, 64, 16, 15360, 1024, GELU, 0, POSTNORM) \
P(c, eva02_tiny14,                  EVA,      224, 14, 16,  192, 12,  3,   512,  192, SWIGLU, 0, PLAIN) \
P(c, eva02_tiny14_336,              EVA,      336, 14, 24,  192, 12,  3,   512,  192, SWIGLU, 0, PLAIN) \
P(c, eva02_small14,                 EVA,      224, 14, 16,  384, 12,  6,  1024,  384, SWIGLU, 0, PLAIN) \
P(c, eva02_small14_336,             EVA,      336, 14, 24,  384, 12,  6,  1024,  384, SWIGLU, 0, PLAIN) \
P(c, eva02_base14,                  EVA,      224, 14, 16,  768, 12, 12,  2048,  768, SWIGLU, 0, PLAIN_LN) \
P(c, eva02_base14_448,              EVA,      448, 14, 32,  768, 12, 12,  2048,  768, SWIGLU, 0, PLAIN_LN) \
P(c, eva02_large14,                 EVA,      224, 14, 16, 1024, 24, 16,  2730, 1024, SWIGLU, 0, PLAIN_LN) \
P(c, eva02_large14_448,             EVA,      448, 14, 32, 1024, 24, 16,  2730, 1024, SWIGLU, 0, PLAIN_LN) \
P(c, openclip_vit_s16,              OPENCLIP, 224, 16, 14,  384, 12,  6,  1536,  384, GELU, 0) \
P(c, openclip_vit_s16_alt,          OPENCLIP, 224, 16, 14,  384, 12,  6,  1536,  256, GELU, 0) \
P(c, openclip_vit_s32,              OPENCLIP, 224, 32,  7,  384, 12,  6,  1536,  384, GELU, 0) \
P(c, openclip_vit_s32_alt,          OPENCLIP, 224, 32,  7,  384, 12,  6,  1536,  256, GELU, 0) \
P(c, openclip_vit_m16,              OPENCLIP, 224, 16, 14,  512, 12,  8,  2048,  512, GELU, 0) \
P(c, openclip_vit_m16_alt,          OPENCLIP, 224, 16, 14,  512, 12,  8,  2048,  384, GELU, 0, SCALED) \
P(c, openclip_vit_m32,              OPENCLIP, 224, 32,  7,  512, 12,  8,  2048,  512, GELU, 0) \
P(c, openclip_vit_m32_alt,          OPENCLIP, 224, 32,  7,  512, 12,  8,  2048,  384, GELU, 0) \
P(c, openclip_vit_b16,              OPENCLIP, 224, 16, 14,  768, 12, 12,  3072,  512, GELU, 0) \
P(c, openclip_vit_b16_quickgelu,    OPENCLIP, 224, 16, 14,  768, 12, 12,  3072,  512, QUICK, 0) \
P(c, openclip_vit_b16_plus,         OPENCLIP, 224, 16, 14,  896, 12, 14,  3584,  640, GELU, 0) \
P(c, openclip_vit_b16_plus_240,     OPENCLIP, 240, 16, 15,  896, 12, 14,  3584,  640, GELU, 0) \
P(c, openclip_vit_b32,              OPENCLIP, 224, 32,  7,  768, 12, 12,  3072,  512, GELU, 0) \
P(c, openclip_vit_b32_quickgelu,    OPENCLIP, 224, 32,  7,  768, 12, 12,  3072,  512, QUICK, 0) \
P(c, openclip_vit_b32_256,          OPENCLIP, 256, 32,  8,  768, 12, 12,  3072,  512, GELU, 0) \
P(c, openclip_coca_b32,             OPENCLIP, 224, 32,  7,  768, 12, 12,  3072,  512, GELU, 0, COCA) \
P(c, openclip_coca_l14,             OPENCLIP, 224, 14, 16, 1024, 24, 16,  4096,  768, GELU, 0, COCA) \
P(c, openclip_vit_b32_plus_256,     OPENCLIP, 256, 32,  8,  896, 12, 14,  3584,  640, GELU, 0) \
P(c, openclip_vit_l14,              OPENCLIP, 224, 14, 16, 1024, 24, 16,  4096,  768, GELU, 0) \
P(c, openclip_vit_l14_quickgelu,    OPENCLIP, 224, 14, 16, 1024, 24, 16,  4096,  768, QUICK, 0) \
P(c, openclip_vit_l14_280,          OPENCLIP, 280, 14, 20, 1024, 24, 16,  4096,  768, GELU, 0) \
P(c, openclip_vit_l14_336,          OPENCLIP, 336, 14, 24, 1024, 24, 16,  4096,  768, GELU, 0) \
P(c, openclip_vit_l14_336_quickgelu, OPENCLIP, 336, 14, 24, 1024, 24, 16,  4096,  768, QUICK, 0) \
P(c, openclip_vit_l16,              OPENCLIP, 224, 16, 14, 1024, 24, 16,  4096,  768, GELU, 0) \
P(c, openclip_vit_l16_320,          OPENCLIP, 320, 16, 20, 1024, 24, 16,  4096,  768, GELU, 0) \
P(c, openclip_vit_h14,              OPENCLIP, 224, 14, 16, 1280, 32, 16,  5120, 1024, GELU, 0) \
P(c, openclip_vit_h14_quickgelu,    OPENCLIP, 224, 14, 16, 1280, 32, 16,  5120, 1024, QUICK, 0) \
P(c, openclip_vit_h14_378,          OPENCLIP, 378, 14, 27, 1280, 32, 16,  5120, 1024, GELU, 0) \
P(c, openclip_vit_h14_378_quickgelu, OPENCLIP, 378, 14, 27, 1280, 32, 16,  5120, 1024, QUICK, 0) \
P(c, openclip_vit_h16,              OPENCLIP, 224, 16, 14, 1280, 32, 16,  5120, 1024, GELU, 0) \
P(c, openclip_vit_g14,              OPENCLIP, 224, 14, 16, 1408, 40, 16,  6144, 1024, GELU, 0) \
P(c, openclip_vit_bigg14,           OPENCLIP, 224, 14, 16, 1664, 48, 16,  8192, 1280, GELU, 0) \
P(c, openclip_vit_bigg14_quickgelu, OPENCLIP, 224, 14, 16, 1664, 48, 16,  8192, 1280, QUICK, 0) \
P(c, openclip_vit_bigg14_378,       OPENCLIP, 378, 14, 27, 1664, 48, 16,  8192, 1280, GELU, 0) \
P(c, openclip_vit_e14,              OPENCLIP, 224, 14, 16, 1792, 56, 16, 15360, 1280, GELU, 0) \
P(c, openclip_vit_l14_clipa,        OPENCLIP, 224, 14, 16, 1024, 24, 16,  4096,  768, GELU, 0, CLIPA) \
P(c, openclip_vit_l14_clipa_336,    OPENCLIP, 336, 14, 24, 1024, 24, 16,  4096,  768, GELU, 0, CLIPA) \
P(c, openclip_vit_h14_clipa,        OPENCLIP, 224, 14, 16, 1280, 32, 16,  5120, 1024, GELU, 0, CLIPA) \
P(c, openclip_vit_h14_clipa_336,    OPENCLIP, 336, 14, 24, 1280, 32, 16,  5120, 1024, GELU, 0, CLIPA) \
P(c, openclip_vit_bigg14_clipa,     OPENCLIP, 224, 14, 16, 1664, 48, 16,  8192, 1280, GELU, 0, CLIPA) \
P(c, openclip_vit_bigg14_clipa_336, OPENCLIP, 336, 14, 24, 1664, 48, 16,  8192, 1280, GELU, 0, CLIPA) \
P(c, dinov2_vits14,                 DINOV2,   224, 14, 37,  384, 12,  6,  1536,  384, GELU, 0) \
P(c, dinov2_vitb14,                 DINOV2,   224, 14, 37,  768, 12, 12,  3072,  768, GELU, 0) \
P(c, dinov2_vitl14,                 DINOV2,   224, 14, 37, 1024, 24, 16,  4096, 1024, GELU, 0) \
P(c, dinov2_vitg14,                 DINOV2,   224, 14, 37, 1536, 40, 24,  4096, 1536, SWIGLU, 0) \
P(c, dinov2_vits14_reg,             DINOV2,   224, 14, 37,  384, 12,  6,  1536,  384, GELU, 4) \
P(c, dinov2_vitb14_reg,             DINOV2,   224, 14, 37,  768, 12, 12,  3072,  768, GELU, 4) \
P(c, dinov2_vitl14_reg,             DINOV2,   224, 14, 37, 1024, 24, 16,  4096, 1024, GELU, 4) \
P(c, dinov2_vitg14_reg,             DINOV2,   224, 14, 37, 1536, 40, 24,  4096, 1536, SWIGLU, 4) \
P(c, vit_ti16,                      DINOV2,   224, 16, 14,  192, 12,  3,   768,    0, GELU, 0, VIT) \
P(c, vit_s16,                       DINOV2,   224, 16, 14,  384, 12,  6,  1536,    0, GELU, 0, VIT) \
P(c, vit_s32,                       DINOV2,   224, 32,  7,  384, 12,  6,  1536,    0, GELU, 0, VIT) \
P(c, vit_b16,                       DINOV2,   224, 16, 14,  768, 12, 12,  3072,    0, GELU, 0, VIT) \
P(c, vit_b32,                       DINOV2,   224, 32,  7,  768, 12, 12,  3072,    0, GELU, 0, VIT) \
P(c, vit_l14,                       DINOV2,   224, 14, 16, 1024, 24, 16,  4096,    0, GELU, 0, VIT) \
P(c, vit_l16,                       DINOV2,   224, 16, 14, 1024, 24, 16,  4096,    0, GELU, 0, VIT) \
P(c, vit_l32,                       DINOV2,   224, 32,  7, 1024, 24, 16,  4096,    0, GELU, 0, VIT) \
P(c, vit_h14,                       DINOV2,   224, 14, 16, 1280, 32, 16,  5120,    0, GELU, 0, VIT) \
P(c, dinov3_vits16,                 DINOV3,   224, 16, 14,  384, 12,  6,  1536,  384, GELU, 4) \
P(c, dinov3_vits16plus,             DINOV3,   224, 16, 14,  384, 12,  6,  1536,  384, SWIGLU, 4) \
P(c, dinov3_vitb16,                 DINOV3,   224, 16, 14,  768, 12, 12,  3072,  768, GELU, 4) \
P(c, dinov3_vitl16,                 DINOV3,   224, 16, 14, 1024, 24, 16,  4096, 1024, GELU, 4) \
P(c, dinov3_vitl16plus,             DINOV3,   224, 16, 14, 1024, 24, 16,  4096, 1024, SWIGLU, 4) \
P(c, dinov3_vith16plus,             DINOV3,   224, 16, 14, 1280, 32, 20,  5120, 1280, SWIGLU, 4) \
P(c, dinov3_vit7b16,                DINOV3,   224, 16, 14, 4096, 40, 32,  8192, 4096, SWIGLU, 4, BARE) \
P(c, eupe_vitt16,                   DINOV3,   224, 16, 14,  192, 12,  3,   768,  192, GELU, 4) \
P(c, eupe_vits16,                   DINOV3,   224, 16, 14,  384, 12,  6,  1536,  384, GELU, 4) \
P(c, eupe_vitb16,                   DINOV3,   224, 16, 14,  768, 12, 12,  3072,  768, GELU, 4) \
P(c, siglip_b32_256,                SIGLIP,   256, 32,  8,  768, 12, 12,  3072,  768, TANH, 0) \
P(c, siglip_b16,                    SIGLIP,   224, 16, 14,  768, 12, 12,  3072,  768, TANH, 0) \
P(c, siglip_b16_256,                SIGLIP,   256, 16, 16,  768, 12, 12,  3072,  768, TANH, 0) \
P(c, siglip_b16_384,                SIGLIP,   384, 16, 24,  768, 12, 12,  3072,  768, TANH, 0) \
P(c, siglip_b16_512,                SIGLIP,   512, 16, 32,  768, 12, 12,  3072,  768, TANH, 0) \
P(c, siglip_l16_256,                SIGLIP,   256, 16, 16, 1024, 24, 16,  4096, 1024, TANH, 0) \
P(c, siglip_l16_384,                SIGLIP,   384, 16, 24, 1024, 24, 16,  4096, 1024, TANH, 0) \
P(c, siglip_l16_512,                SIGLIP,   512, 16, 32, 1024, 24, 16,  4096, 1024, TANH, 0) \
P(c, siglip_so400m14,               SIGLIP,   224, 14, 16, 1152, 27, 16,  4304, 1152, TANH, 0) \
P(c, siglip_so400m14_384,           SIGLIP,   384, 14, 27, 1152, 27, 16,  4304, 1152, TANH, 0) \
P(c, siglip_so400m16_256,           SIGLIP,   256, 16, 16, 1152, 27, 16,  4304, 1152, TANH, 0) \
P(c, siglip_so400m16_384,           SIGLIP,   384, 16, 24, 1152, 27, 16,  4304, 1152, TANH, 0) \
P(c, siglip_so400m16_512,           SIGLIP,   512, 16, 32, 1152, 27, 16,  4304, 1152, TANH, 0) \
P(c, siglip_gopt16_256,             SIGLIP,   256, 16, 16, 1536, 40, 16,  6144, 1536, TANH, 0) \
P(c, siglip_gopt16_384,             SIGLIP,   384, 16, 24, 1536, 40, 16,  6144, 1536, TANH, 0) \
P(c, pe_spatial_t16,                PE,       512, 16, 32,  192, 12,  3,   768,  192, GELU, 0) \
P(c, pe_spatial_s16,                PE,       512, 16, 32,  384, 12,  6,  1536,  384, GELU, 0) \
P(c, pe_spatial_b16,                PE,       512, 16, 32,  768, 12, 12,  3072,  768, GELU, 0) \
P(c, pe_spatial_l14,                PE,       448, 14, 32, 1024, 24, 16,  4096, 1024, GELU, 0) \
P(c, pe_spatial_g14,                PE,       448, 14, 32, 1536, 50, 16,  8960, 1536, GELU, 0, CLASSLESS) \
P(c, pe_lang_l14,                   PE,       448, 14, 32, 1024, 23, 16,  4096, 1024, GELU, 0, SCALED) \
P(c, pe_lang_g14,                   PE,       448, 14, 32, 1536, 47, 16,  8960, 1536, GELU, 0, CLASSLESS)

/* L(c, name, family, vocabulary, positions, width, depth, heads, kv_heads, head_dim, hidden, words...):
 * positions is the longest sequence of the published model. */
#define LANGUAGE_PRESETS(L, c) \
L(c, gpt2_small,      GPT2,   50257,   1024,  768, 12, 12, 12,  64,  3072) \
L(c, gpt2_medium,     GPT2,   50257,   1024, 1024, 24, 16, 16,  64,  4096) \
L(c, gpt2_large,      GPT2,   50257,   1024, 1280, 36, 20, 20,  64,  5120) \
L(c, gpt2_xl,         GPT2,   50257,   1024, 1600, 48, 25, 25,  64,  6400) \
L(c, gpt_1_3b,        GPT2,   50304,   1024, 2048, 24, 32, 32,  64,  8192) \
L(c, tinyllama_1_1b,  LLAMA,  32000,   2048, 2048, 22, 32,  4,  64,  5632, LLAMA2) \
L(c, llama2_7b,       LLAMA,  32000,   4096, 4096, 32, 32, 32, 128, 11008, LLAMA2) \
L(c, llama3_8b,       LLAMA, 128256,   8192, 4096, 32, 32,  8, 128, 14336, LLAMA2, THETA(500000)) \
L(c, llama3_2_1b,     LLAMA, 128256, 131072, 2048, 16, 32,  8,  64,  8192, LLAMA3(32), TIED) \
L(c, llama3_2_3b,     LLAMA, 128256, 131072, 3072, 28, 24,  8, 128,  8192, LLAMA3(32), TIED) \
L(c, llama3_1_8b,     LLAMA, 128256, 131072, 4096, 32, 32,  8, 128, 14336, LLAMA3(8)) \
L(c, mistral_7b,      LLAMA,  32000,  32768, 4096, 32, 32,  8, 128, 14336, LLAMA2, WINDOW(4096)) \
L(c, qwen2_5_0_5b,    LLAMA, 151936,  32768,  896, 24, 14,  2,  64,  4864, QWEN2, TIED) \
L(c, qwen2_5_1_5b,    LLAMA, 151936, 131072, 1536, 28, 12,  2, 128,  8960, QWEN2, TIED) \
L(c, qwen2_5_3b,      LLAMA, 151936,  32768, 2048, 36, 16,  2, 128, 11008, QWEN2, TIED) \
L(c, qwen2_5_7b,      LLAMA, 152064, 131072, 3584, 28, 28,  4, 128, 18944, QWEN2) \
L(c, qwen3_0_6b,      LLAMA, 151936,  40960, 1024, 28, 16,  8, 128,  3072, QWEN3, TIED) \
L(c, qwen3_1_7b,      LLAMA, 151936,  40960, 2048, 28, 16,  8, 128,  6144, QWEN3, TIED) \
L(c, qwen3_4b,        LLAMA, 151936,  40960, 2560, 36, 32,  8, 128,  9728, QWEN3, TIED) \
L(c, qwen3_8b,        LLAMA, 151936,  40960, 4096, 36, 32,  8, 128, 12288, QWEN3) \
L(c, smollm_135m,     LLAMA,  49152,   2048,  576, 30,  9,  3,  64,  1536, LLAMA2, TIED) \
L(c, smollm_360m,     LLAMA,  49152,   2048,  960, 32, 15,  5,  64,  2560, LLAMA2, TIED) \
L(c, bert_base,       BERT,    30522,    512,  768, 12, 12, 12,  64,  3072) \
L(c, bert_large,      BERT,    30522,    512, 1024, 24, 16, 16,  64,  4096) \
L(c, distilbert_base, DISTILBERT, 30522, 512,  768,  6, 12, 12,  64,  3072) \
L(c, roberta_base,    ROBERTA,  50265,   512,  768, 12, 12, 12,  64,  3072) \
L(c, roberta_large,   ROBERTA,  50265,   512, 1024, 24, 16, 16,  64,  4096) \
L(c, xlm_roberta_base, ROBERTA, 250002,  512,  768, 12, 12, 12,  64,  3072) \
L(c, xlm_roberta_large, ROBERTA, 250002, 512, 1024, 24, 16, 16,  64,  4096) \
L(c, electra_small,   ELECTRA,  30522,   512,  256, 12,  4,  4,  64,  1024, NARROW(128)) \
L(c, electra_base,    ELECTRA,  30522,   512,  768, 12, 12, 12,  64,  3072) \
L(c, electra_large,   ELECTRA,  30522,   512, 1024, 24, 16, 16,  64,  4096) \
L(c, bigbird_base,    BIG_BIRD, 50358,  4096,  768, 12, 12, 12,  64,  3072) \
L(c, bigbird_large,   BIG_BIRD, 50358,  4096, 1024, 24, 16, 16,  64,  4096)
// clang-format on

#endif
