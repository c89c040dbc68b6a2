/* The ways to spell a tower: see names.h. */
#include "core/nn/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOWERS = 3, MAX_PROBES = 3, MAX_IGNORED = 2 };

struct naming {
    enum family family;
    const char *towers[MAX_TOWERS]; /* what may stand before the tower's names; none: the family's prefix */
    const char *probes[MAX_PROBES]; /* names behind it that only such a file has: all of them are there */
    const char *absent;             /* and one that is not there */
    bool whole;                     /* and the family's prefix stands before them */
    const char *block_prefix;       /* NULL: the family's */
    /* NULL: the family's. a|b|c: rows of one matrix or vector in parts. a@1/3: the second third of a's rows
     */
    const char *keys[ROLE_COUNT];
    const char *swiglu[ROLE_FFN_COUNT]; /* NULL: the family's */
    const char *out; /* the projection, outside the tower, (out, width); NULL: as the family has it */
    const char *ignored[MAX_IGNORED];
    enum pos_resize pos_resize; /* how that library does it; 0: as the family */
    bool pos_patches;           /* the class token has no position: its row is 0 */
    bool fc_norm;               /* the last norm may be called fc_norm, and then stands behind the mean */
    bool rope;                  /* may hold tables of cosines and sines, in every block */
    const char *zero;           /* changes nothing when it is 0 */
    /* Of files that are written so. */
    int library;         /* 1 + enum library; 0: none are */
    const char *written; /* before the tower's names; NULL: nothing */
    bool batched;        /* class token and positions begin with a dimension of 1 */
    bool maskless;       /* has no place for a mask token */
    bool scaleless;      /* nor for LayerScale */
    int parts;           /* PART_...: only of towers that have any of them; 0: of any */
};

#define EVA_SPLIT [ROLE_QKV_W] = "attn.q_proj.weight|attn.k_proj.weight|attn.v_proj.weight"

#define DINOV3_TRANSFORMERS(blocks)                                                                          \
    .block_prefix = blocks,                                                                                  \
    .keys = {[ROLE_CLS] = "embeddings.cls_token",                                                            \
             [ROLE_REGISTERS] = "embeddings.register_tokens",                                                \
             [ROLE_MASK] = "embeddings.mask_token",                                                          \
             [ROLE_PATCH_W] = "embeddings.patch_embeddings.weight",                                          \
             [ROLE_PATCH_B] = "embeddings.patch_embeddings.bias",                                            \
             [ROLE_QKV_W] = "attention.q_proj.weight|attention.k_proj.weight|attention.v_proj.weight",       \
             [ROLE_Q_B] = "attention.q_proj.bias",                                                           \
             [ROLE_V_B] = "attention.v_proj.bias",                                                           \
             [ROLE_PROJ_W] = "attention.o_proj.weight",                                                      \
             [ROLE_PROJ_B] = "attention.o_proj.bias",                                                        \
             [ROLE_LS1] = "layer_scale1.lambda1",                                                            \
             [ROLE_FC1_W] = "mlp.up_proj.weight",                                                            \
             [ROLE_FC1_B] = "mlp.up_proj.bias",                                                              \
             [ROLE_FC2_W] = "mlp.down_proj.weight",                                                          \
             [ROLE_FC2_B] = "mlp.down_proj.bias",                                                            \
             [ROLE_LS2] = "layer_scale2.lambda1"},                                                           \
    .swiglu = {"mlp.gate_proj.weight|mlp.up_proj.weight", "mlp.gate_proj.bias|mlp.up_proj.bias",             \
               "mlp.down_proj.weight", "mlp.down_proj.bias"},                                                \
    .batched = true

/* torchvision's VisionTransformer; the names of its feed-forward changed once. It resizes positions in its
 * own way, corner to corner, which none here does: at another size it is timm's, and that is said. */
#define TORCHVISION(fc1, fc2)                                                                                \
    {                                                                                                        \
        .family = FAMILY_DINOV2, .towers = {""},                                                             \
        .probes = {"conv_proj.weight", "class_token", "encoder.layers.encoder_layer_0." fc1 ".weight"},      \
        .block_prefix = "encoder.layers.encoder_layer_",                                                     \
        .keys = {[ROLE_CLS] = "class_token",                                                                 \
                 [ROLE_POS] = "encoder.pos_embedding",                                                       \
                 [ROLE_PATCH_W] = "conv_proj.weight",                                                        \
                 [ROLE_PATCH_B] = "conv_proj.bias",                                                          \
                 [ROLE_NORM1_W] = "ln_1.weight",                                                             \
                 [ROLE_NORM1_B] = "ln_1.bias",                                                               \
                 [ROLE_QKV_W] = "self_attention.in_proj_weight",                                             \
                 [ROLE_QKV_B] = "self_attention.in_proj_bias",                                               \
                 [ROLE_PROJ_W] = "self_attention.out_proj.weight",                                           \
                 [ROLE_PROJ_B] = "self_attention.out_proj.bias",                                             \
                 [ROLE_NORM2_W] = "ln_2.weight",                                                             \
                 [ROLE_NORM2_B] = "ln_2.bias",                                                               \
                 [ROLE_FC1_W] = fc1 ".weight",                                                               \
                 [ROLE_FC1_B] = fc1 ".bias",                                                                 \
                 [ROLE_FC2_W] = fc2 ".weight",                                                               \
                 [ROLE_FC2_B] = fc2 ".bias",                                                                 \
                 [ROLE_NORM_W] = "encoder.ln.weight",                                                        \
                 [ROLE_NORM_B] = "encoder.ln.bias"},                                                         \
        .ignored = {"heads."}, .pos_resize = POS_RESIZE_TIMM                                                 \
    }

/* In the order in which they are tried. */
static const struct naming namings[] = {
    TORCHVISION("mlp.0", "mlp.3"),
    TORCHVISION("mlp.linear_1", "mlp.linear_2"),
    /* transformers: DINOv3ViTModel */
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"embeddings.cls_token", "layer.0.attention.o_proj.weight"},
     DINOV3_TRANSFORMERS("layer."),
     .library = 1 + LIBRARY_TRANSFORMERS},
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"embeddings.cls_token", "model.layer.0.attention.o_proj.weight"},
     DINOV3_TRANSFORMERS("model.layer.")},
    /* timm: vit_*_dinov3, whose class is Eva */
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"patch_embed.proj.weight", "reg_token", "blocks.0.gamma_1"},
     .absent = "pos_embed",
     .keys = {[ROLE_REGISTERS] = "reg_token", [ROLE_LS1] = "gamma_1", [ROLE_LS2] = "gamma_2"},
     .swiglu = {"mlp.fc1_g.weight|mlp.fc1_x.weight", "mlp.fc1_g.bias|mlp.fc1_x.bias", "mlp.fc2.weight",
                "mlp.fc2.bias"},
     .library = 1 + LIBRARY_TIMM,
     .fc_norm = true,
     .maskless = true},
    /* its own repository, which masks the bias of the keys */
    {.family = FAMILY_DINOV3,
     .probes = {"storage_tokens", "blocks.0.attn.qkv.bias", "blocks.0.attn.qkv.bias_mask"},
     .keys = {[ROLE_Q_B] = "attn.qkv.bias@0/3", [ROLE_V_B] = "attn.qkv.bias@2/3"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .ignored = {"rope_embed.periods", "attn.qkv.bias_mask"}},
    {.family = FAMILY_DINOV3, /* without these biases: ViT-7B */
     .probes = {"storage_tokens", "blocks.0.mlp.w1.weight"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .ignored = {"rope_embed.periods"}},
    {.family = FAMILY_DINOV3,
     .probes = {"blocks.0.ls1.gamma", "cls_token"},
     .absent = "pos_embed",
     .ignored = {"rope_embed.periods"}},
    /* timm: eva02_*, inside open_clip, too */
    {.family = FAMILY_EVA,
     .towers = {"visual.", "visual.trunk."},
     .probes = {"blocks.0.attn.q_proj.weight", "blocks.0.attn.q_proj.bias"},
     .keys = {EVA_SPLIT, [ROLE_Q_B] = "attn.q_proj.bias", [ROLE_V_B] = "attn.v_proj.bias",
              [ROLE_ATTN_NORM_W] = "attn.norm.weight", [ROLE_ATTN_NORM_B] = "attn.norm.bias",
              [ROLE_FFN_NORM_W] = "mlp.norm.weight", [ROLE_FFN_NORM_B] = "mlp.norm.bias"},
     .swiglu = {"mlp.fc1_g.weight|mlp.fc1_x.weight", "mlp.fc1_g.bias|mlp.fc1_x.bias", "mlp.fc2.weight",
                "mlp.fc2.bias"},
     .pos_resize = POS_RESIZE_TIMM,
     .library = 1 + LIBRARY_TIMM,
     .parts = PART_ATTN_NORM | PART_FFN_NORM,
     .fc_norm = true},
    /* EVA-CLIP's own repository: EVA02-CLIP, with and without sub-LN */
    {.family = FAMILY_EVA,
     .probes = {"blocks.0.attn.q_proj.weight", "blocks.0.attn.q_bias"},
     .keys = {EVA_SPLIT},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .rope = true},
    {.family = FAMILY_EVA,
     .probes = {"blocks.0.attn.q_bias", "blocks.0.mlp.w1.weight"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .rope = true},
    {.family = FAMILY_EVA, .probes = {"blocks.0.attn.q_bias", "blocks.0.mlp.w12.weight"}},
    {.family =
         FAMILY_EVA, /* timm's inside open_clip, too: EVA01-g-14. A gated one has the plain one's names */
     .towers = {"visual.", "visual.trunk."},
     .probes = {"blocks.0.attn.q_bias"},
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .library = 1 + LIBRARY_TIMM,
     .fc_norm = true,
     .rope = true},
    {.family = FAMILY_OPENCLIP, .probes = {"class_embedding", "conv1.weight"}},
    /* transformers: CLIPModel, CLIPVisionModel, CLIPVisionModelWithProjection */
    {.family = FAMILY_OPENCLIP,
     .towers = {"vision_model.", ""},
     .probes = {"embeddings.class_embedding", "pre_layrnorm.weight"},
     .block_prefix = "encoder.layers.",
     .keys = {[ROLE_CLS] = "embeddings.class_embedding",
              [ROLE_POS] = "embeddings.position_embedding.weight",
              [ROLE_PATCH_W] = "embeddings.patch_embedding.weight",
              [ROLE_PRE_W] = "pre_layrnorm.weight",
              [ROLE_PRE_B] = "pre_layrnorm.bias",
              [ROLE_NORM1_W] = "layer_norm1.weight",
              [ROLE_NORM1_B] = "layer_norm1.bias",
              [ROLE_QKV_W] = "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight",
              [ROLE_QKV_B] = "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias",
              [ROLE_PROJ_W] = "self_attn.out_proj.weight",
              [ROLE_PROJ_B] = "self_attn.out_proj.bias",
              [ROLE_NORM2_W] = "layer_norm2.weight",
              [ROLE_NORM2_B] = "layer_norm2.bias",
              [ROLE_FC1_W] = "mlp.fc1.weight",
              [ROLE_FC1_B] = "mlp.fc1.bias",
              [ROLE_FC2_W] = "mlp.fc2.weight",
              [ROLE_FC2_B] = "mlp.fc2.bias",
              [ROLE_NORM_W] = "post_layernorm.weight",
              [ROLE_NORM_B] = "post_layernorm.bias"},
     .out = "visual_projection.weight",
     .library = 1 + LIBRARY_TRANSFORMERS,
     .written = "vision_model.",
     .scaleless = true,
     .pos_resize = POS_RESIZE_HF,
     .ignored = {"embeddings.position_ids"}},
    /* transformers: Dinov2Model, and with a head behind it */
    {.family = FAMILY_DINOV2,
     .pos_resize = POS_RESIZE_HF,
     .library = 1 + LIBRARY_TRANSFORMERS,
     .towers = {"dinov2.", "dinov2_with_registers.", ""},
     .probes = {"embeddings.cls_token", "encoder.layer.0.layer_scale1.lambda1"},
     .block_prefix = "encoder.layer.",
     .keys =
         {[ROLE_CLS] = "embeddings.cls_token",
          [ROLE_POS] = "embeddings.position_embeddings",
          [ROLE_REGISTERS] = "embeddings.register_tokens",
          [ROLE_MASK] = "embeddings.mask_token",
          [ROLE_PATCH_W] = "embeddings.patch_embeddings.projection.weight",
          [ROLE_PATCH_B] = "embeddings.patch_embeddings.projection.bias",
          [ROLE_QKV_W] = "attention.attention.query.weight|attention.attention.key.weight|"
                         "attention.attention.value.weight",
          [ROLE_QKV_B] =
              "attention.attention.query.bias|attention.attention.key.bias|attention.attention.value.bias",
          [ROLE_PROJ_W] = "attention.output.dense.weight",
          [ROLE_PROJ_B] = "attention.output.dense.bias",
          [ROLE_LS1] = "layer_scale1.lambda1",
          [ROLE_LS2] = "layer_scale2.lambda1",
          [ROLE_NORM_W] = "layernorm.weight",
          [ROLE_NORM_B] = "layernorm.bias"},
     .swiglu = {"mlp.weights_in.weight", "mlp.weights_in.bias", "mlp.weights_out.weight",
                "mlp.weights_out.bias"}},
    /* timm: vit_*_clip_* */
    {.family = FAMILY_OPENCLIP,
     .towers = {""},
     .probes = {"norm_pre.weight", "patch_embed.proj.weight"},
     .block_prefix = "blocks.",
     .keys = {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_PRE_W] = "norm_pre.weight",
              [ROLE_PRE_B] = "norm_pre.bias", [ROLE_QKV_B] = "attn.qkv.bias", [ROLE_LS1] = "ls1.gamma",
              [ROLE_LS2] = "ls2.gamma"},
     .out = "head.weight",
     .zero = "head.bias",
     .library = 1 + LIBRARY_TIMM,
     .batched = true},
    /* timm: vit_*_patch14_reg4_dinov2, vit_*_patch14_dinov2. A gated feed-forward has the plain one's names.
     */
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "reg_token"},
     .keys = {[ROLE_REGISTERS] = "reg_token"},
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .pos_resize = POS_RESIZE_TIMM,
     .library = 1 + LIBRARY_TIMM,
     .maskless = true,
     .fc_norm = true,
     .pos_patches = true},
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "blocks.0.ls1.gamma", "blocks.0.mlp.fc1.weight"},
     .absent = "mask_token", /* which the hub's files have */
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .library = 1 + LIBRARY_TIMM,
     .maskless = true,
     .fc_norm = true,
     .pos_resize = POS_RESIZE_TIMM},
    {.family = FAMILY_DINOV2, .probes = {"patch_embed.proj.weight"}, .fc_norm = true},
    /* Something of a family's, without what only it has: what is missing, the reader will say. */
    {.family = FAMILY_EVA, .probes = {"patch_embed.proj.weight"}, .whole = true},
    {.family = FAMILY_OPENCLIP, .probes = {"conv1.weight"}, .whole = true},
};
enum { NAMING_COUNT = sizeof namings / sizeof *namings };

/* The role's key, without the blocks' prefix; NULL: such a tower has none. */
static const char *key_of(const struct spelling *s, enum role role, int ffn)
{
    const struct naming *n = s->naming;
    const char *key = n->keys[role];
    if (ffn == 1 + ACTIVATION_SWIGLU && role >= ROLE_FFN_FIRST && role < ROLE_FFN_FIRST + ROLE_FFN_COUNT)
        key = n->swiglu[role - ROLE_FFN_FIRST];
    if (s->fc_norm && role == ROLE_NORM_W) return "fc_norm.weight";
    if (s->fc_norm && role == ROLE_NORM_B) return "fc_norm.bias";
    return key ? key : family_key(family_row(s->family), role, ffn);
}

static const char *block_prefix(const struct spelling *s)
{
    return s->naming->block_prefix ? s->naming->block_prefix : family_row(s->family)->block_prefix;
}

static bool chunked(const struct spelling *s)
{
    return !s->naming->block_prefix && family_row(s->family)->chunked_blocks;
}

static int64_t find_key(const struct spelling *s, const struct weights *weights, const char *key)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%s%s", s->tower, key);
    return n > 0 && (size_t)n < sizeof name ? weights_find_under(weights, &s->prefix, name) : -1;
}

static int64_t find_in_block(const struct spelling *s, const struct weights *weights, int64_t block,
                             const char *key)
{
    char name[192];
    snprintf(name, sizeof name, "%s%lld.%s", block_prefix(s), (long long)block, key);
    int64_t i = find_key(s, weights, name);
    for (int chunk = 0; chunk < 64 && i < 0 && chunked(s); chunk++) {
        snprintf(name, sizeof name, "%s%d.%lld.%s", block_prefix(s), chunk, (long long)block, key);
        i = find_key(s, weights, name);
    }
    return i;
}

static bool in_block(enum role role) { return role >= ROLE_BLOCK_FIRST && role <= ROLE_BLOCK_LAST; }

/* The part-th of the names in a|b|c. */
static bool part_of(const char *parts, int part, char *name, size_t size)
{
    const char *at = parts;
    for (; at && part > 0; part--)
        if ((at = strchr(at, '|')) != NULL) at++;
    if (at) snprintf(name, size, "%.*s", (int)strcspn(at, "|@"), at);
    return at != NULL;
}

bool names_part(const struct spelling *s, enum role role, int64_t block, int ffn, int part, char *name,
                size_t size)
{
    char key[128], number[32] = "";
    bool outside = role == ROLE_OUT_W && s->naming->out;
    if (!part_of(outside ? s->naming->out : key_of(s, role, ffn), part, key, sizeof key)) return false;
    if (in_block(role)) snprintf(number, sizeof number, "%lld.", (long long)block);
    snprintf(name, size, "%s%s%s%s", outside ? s->prefix.add : s->begin,
             in_block(role) ? block_prefix(s) : "", number, key);
    return true;
}

struct values_place names_place(const struct spelling *s, const struct weights *weights, enum role role,
                                int64_t block, int ffn)
{
    struct values_place place = {.zero_rows = role == ROLE_POS && s->naming->pos_patches};
    bool outside = role == ROLE_OUT_W && s->naming->out, missing = false;
    const char *key = outside ? s->naming->out : key_of(s, role, ffn);
    const char *slice = key ? strchr(key, '@') : NULL;
    char part[128];
    if (slice) {
        place.slice = slice[1] - '0';
        place.slices = slice[3] - '0';
    }
    place.transposed = outside && family_row(s->family)->out_transposed;
    while (place.parts < NAMES_PARTS && part_of(key, place.parts, part, sizeof part)) {
        int64_t found = !weights         ? -1
                        : outside        ? weights_find_under(weights, &s->prefix, part)
                        : in_block(role) ? find_in_block(s, weights, block, part)
                                         : find_key(s, weights, part);
        if (place.parts == 0 || (found < 0 && !missing))
            names_part(s, role, block, ffn, place.parts, place.first, sizeof place.first);
        missing |= found < 0;
        place.tensor[place.parts++] = found;
    }
    return place;
}

int64_t names_tensor(const struct spelling *s, const struct weights *weights, enum role role, int64_t block,
                     int ffn)
{
    struct values_place place = names_place(s, weights, role, block, ffn);
    for (int i = 0; i < place.parts; i++)
        if (place.tensor[i] < 0) return -1;
    return place.parts ? place.tensor[0] : -1;
}

/* Has the first matrix of the feed-forward the rows of two, the gate's and the value's? */
static bool is_packed(const struct spelling *s, const struct weights *weights)
{
    int64_t first = names_tensor(s, weights, ROLE_FC1_W, 0, 1 + ACTIVATION_SWIGLU),
            second = names_tensor(s, weights, ROLE_FC2_W, 0, 1 + ACTIVATION_SWIGLU);
    if (first < 0 || second < 0) return false;
    const struct weights_tensor *a = weights_tensor(weights, first), *b = weights_tensor(weights, second);
    return a->ndim == 2 && b->ndim == 2 && b->shape[1] > 0 && a->shape[0] / 2 == b->shape[1] &&
           a->shape[0] % 2 == 0;
}

int names_ffn(const struct spelling *s, const struct weights *weights)
{
    bool gated = names_tensor(s, weights, ROLE_FC1_W, 0, 1 + ACTIVATION_SWIGLU) >= 0;
    const char *plain = key_of(s, ROLE_FC1_W, 1 + ACTIVATION_GELU);
    if (gated && strcmp(plain, key_of(s, ROLE_FC1_W, 1 + ACTIVATION_SWIGLU)) == 0)
        gated = is_packed(s, weights);
    return 1 + (gated ? ACTIVATION_SWIGLU : ACTIVATION_GELU);
}

enum pool names_pool(const struct spelling *s) { return s->fc_norm ? POOL_AVG_FIRST : POOL_USUAL; }
enum pos_resize names_pos_resize(const struct spelling *s)
{
    return s->fc_norm ? POS_RESIZE_TIMM : s->naming->pos_resize;
}

/* Is the tower there, with `tower` before its names? */
static bool fits(struct spelling *s, const struct naming *naming, const char *tower,
                 const struct weights *weights)
{
    char name[160];
    *s = (struct spelling){.family = naming->family, .naming = naming, .tower = tower};
    snprintf(name, sizeof name, "%s%s", tower, naming->probes[0]);
    if (weights_find_suffix(weights, name, &s->prefix) < 0 || (naming->whole && s->prefix.drop)) return false;
    snprintf(s->begin, sizeof s->begin, "%s%s", s->prefix.add, tower + s->prefix.drop);
    for (int i = 1; i < MAX_PROBES && naming->probes[i]; i++)
        if (find_key(s, weights, naming->probes[i]) < 0) return false;
    if (naming->absent && find_key(s, weights, naming->absent) >= 0) return false;
    s->fc_norm = naming->fc_norm && find_key(s, weights, "norm.weight") < 0 &&
                 find_key(s, weights, "fc_norm.weight") >= 0;
    return true;
}

void names_find(struct spelling *s, const struct weights *weights)
{
    for (int i = 0; i < NAMING_COUNT; i++) {
        const struct naming *n = &namings[i];
        const char *const own[MAX_TOWERS] = {family_prefix(n->family)}, *const *towers =
                                                                            n->towers[0] ? n->towers : own;
        for (int k = 0; k < MAX_TOWERS && towers[k]; k++)
            if (fits(s, n, towers[k], weights)) return;
    }
    *s = (struct spelling){.family = FAMILY_UNKNOWN};
}

bool names_library(struct spelling *s, enum library library, const struct geometry *g)
{
    int parts = geometry_parts(g);
    for (int i = 0; i < NAMING_COUNT; i++) {
        const struct naming *n = &namings[i];
        if (n->family != g->family || n->library != 1 + (int)library) continue;
        if (n->pos_patches && !g->registers)
            continue; /* a class token without position: towers with registers */
        if (n->parts && !(parts & n->parts)) continue;
        *s = (struct spelling){.family = g->family, .naming = n, .tower = ""};
        if (n->written) s->tower = n->written;
        s->fc_norm = n->fc_norm && g->pool == POOL_AVG_FIRST;
        snprintf(s->begin, sizeof s->begin, "%s", s->tower);
        return true;
    }
    return false;
}

bool names_leaves_out(const struct spelling *s, enum role role)
{
    return (s->naming->maskless && role == ROLE_MASK) ||
           (s->naming->scaleless && (role == ROLE_LS1 || role == ROLE_LS2));
}

bool names_batched(const struct spelling *s) { return s->naming->batched; }
const char *names_zero(const struct spelling *s) { return s->naming->zero; }

const char *names_stranger(const struct weights *weights)
{
    static const struct {
        const char *name, *is; /* a part of a name that only such a model has */
    } strangers[] = {
        {"vision_model.head.probe",
         "a SigLIP tower of transformers, which pools by attention and has no class token"},
        {"head.attention.in_proj_weight",
         "a SigLIP tower of transformers, which pools by attention and has no class token"},
        {"layernorm_before.weight", "a plain ViT, BEiT or DeiT of transformers"},
        {"visual.trunk.", "a tower of timm inside a model of open_clip"},
        {"visual.attnpool.", "a ResNet of CLIP, no vision transformer"},
        {"flat_param", "what one rank of FSDP had of the weights, to be saved whole (FULL_STATE_DICT)"},
        {"lora_", "a LoRA adapter, to be merged into its model first (merge_and_unload() of peft)"},
        {"layer4.", "a ResNet, no vision transformer"},
        {"embed_tokens.", "a language model"},
        {"down_blocks.", "a diffusion model"},
    };
    for (size_t k = 0; k < sizeof strangers / sizeof *strangers; k++)
        for (int64_t i = 0; i < weights_count(weights); i++)
            if (strstr(weights_tensor(weights, i)->name, strangers[k].name)) return strangers[k].is;
    return NULL;
}

/* "blocks.3.attn.proj.bias" -> "attn.proj.bias" and 3. A chunked one has two numbers. */
const char *names_key(const struct spelling *s, const char *name, int64_t *block)
{
    const char *key = name + strlen(s->begin), *prefix = block_prefix(s);
    size_t begin = strlen(prefix);
    *block = -1;
    if (strncmp(key, prefix, begin) != 0) return key;
    const char *at = key + begin;
    for (int numbers = 0; numbers < (chunked(s) ? 2 : 1); numbers++) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || at[digits] != '.') break;
        *block = strtoll(at, NULL, 10);
        at += digits + 1;
    }
    return *block >= 0 ? at : key;
}

/* Is `name` one of the parts a|b|c? */
static bool is_part(const char *parts, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = parts; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strcspn(at, "|@") == bytes && strncmp(at, name, bytes) == 0) return true;
    }
    return false;
}

/* "head.": everything that begins so. */
static bool is_in(const char *const *names, size_t count, const char *key)
{
    for (size_t i = 0; i < count && names[i]; i++) {
        size_t n = strlen(names[i]);
        if (names[i][n - 1] == '.' ? strncmp(key, names[i], n) == 0 : strcmp(key, names[i]) == 0) return true;
    }
    return false;
}

/* rope.freqs_cos, and in a block attn.rope.freqs_cos: EVA-CLIP's tables */
static enum names_use rope_use(const struct spelling *s, const char *key, bool block)
{
    const char *begin = block ? "attn.rope.freqs_" : "rope.freqs_";
    size_t bytes = strlen(begin);
    if (!s->naming->rope || strncmp(key, begin, bytes) != 0) return NAMES_UNREAD;
    return strcmp(key + bytes, "cos") == 0   ? NAMES_COSINES
           : strcmp(key + bytes, "sin") == 0 ? NAMES_SINES
                                             : NAMES_UNREAD;
}

enum names_use names_use(const struct spelling *s, const char *key, bool block)
{
    const struct naming *n = s->naming;
    for (enum role role = 0; role < ROLE_COUNT; role++)
        if (in_block(role) == block && (is_part(key_of(s, role, 1 + ACTIVATION_GELU), key) ||
                                        is_part(key_of(s, role, 1 + ACTIVATION_SWIGLU), key)))
            return NAMES_READ;
    if (!block && n->out && strcmp(key, n->out) == 0) return NAMES_READ;
    if (!block && n->zero && strcmp(key, n->zero) == 0) return NAMES_ZERO;
    if (strcmp(key, "n_averaged") == 0) return NAMES_IGNORED; /* torch.optim.swa_utils counts there */
    return is_in(n->ignored, MAX_IGNORED, key) || is_in(family_row(s->family)->ignored, FAMILY_IGNORED, key)
               ? NAMES_IGNORED
               : rope_use(s, key, block);
}
