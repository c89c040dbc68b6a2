/* Key mappings of checkpoints: see names.h. */
#include "core/model/key_mapping.h"
#include "core/model/parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the role's key without the blocks' prefix; NULL: such a tower has none. */
static const char *key_of(const struct key_map *s, enum role role, int ffn)
{
    const struct key_mapping *n = s->mapping;
    const char *key = n->keys[role];
    if (ffn == 1 + ACTIVATION_SWIGLU && role >= ROLE_FFN_FIRST && role < ROLE_FFN_FIRST + ROLE_FFN_COUNT)
        key = n->swiglu[role - ROLE_FFN_FIRST];
    if (s->classifier && (role == ROLE_OUT_W || role == ROLE_OUT_B)) return NULL;
    if (s->fc_norm && role == ROLE_NORM_W) return "fc_norm.weight";
    if (s->fc_norm && role == ROLE_NORM_B) return "fc_norm.bias";
    return key ? key : family_key(family_row(s->family), role, ffn);
}

static const char *block_prefix(const struct key_map *s)
{
    return s->mapping->block_prefix ? s->mapping->block_prefix : family_row(s->family)->block_prefix;
}

static bool chunked(const struct key_map *s)
{
    return !s->mapping->block_prefix && family_row(s->family)->chunked_blocks;
}

static int64_t find_key(const struct key_map *s, const struct weights *weights, const char *key)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%s%s", s->tower, key);
    return n > 0 && (size_t)n < sizeof name ? weights_find_under(weights, &s->prefix, name) : -1;
}

static int64_t find_in_block(const struct key_map *s, const struct weights *weights, int64_t block,
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

static int64_t find_outside(const struct key_map *s, const struct weights *weights, const char *name)
{
    char full[256];
    if (!s->head) return weights_find_under(weights, &s->prefix, name);
    int n = snprintf(full, sizeof full, "%s%s", s->outer, name);
    return n > 0 && (size_t)n < sizeof full ? weights_find(weights, full) : -1;
}

static bool in_block(enum role role) { return role >= ROLE_BLOCK_FIRST && role <= ROLE_BLOCK_LAST; }

/* Copies the part-th of the names in a|b|c. */
static bool part_of(const char *parts, int part, char *name, size_t size)
{
    const char *at = parts;
    for (; at && part > 0; part--)
        if ((at = strchr(at, '|')) != NULL) at++;
    if (at) snprintf(name, size, "%.*s", (int)strcspn(at, "|@*"), at);
    return at != NULL;
}

/* Returns the number of shares of the part-th name: 2 for b*2. */
static int share_of(const char *parts, int part)
{
    const char *at = parts;
    for (; part > 0; part--) at = strchr(at, '|') + 1;
    at += strcspn(at, "|@*");
    return *at == '*' ? at[1] - '0' : 1;
}

/* Returns the name of a projection, or of its bias, outside the tower; NULL: the family's key, or the file
 * has a classifier. */
static const char *projection_outside(const struct key_map *s, enum role role)
{
    if (s->head)
        return role == ROLE_OUT_W ? "head.proj.weight" : role == ROLE_OUT_B ? "head.proj.bias" : NULL;
    return s->classifier || role != ROLE_OUT_W ? NULL : s->mapping->out;
}

bool names_part(const struct key_map *s, enum role role, int64_t block, int ffn, int part, char *name,
                size_t size)
{
    char key[128], number[32] = "";
    const char *out = projection_outside(s, role);
    bool outside = out != NULL;
    if (!part_of(outside ? out : key_of(s, role, ffn), part, key, sizeof key)) return false;
    if (in_block(role)) snprintf(number, sizeof number, "%lld.", (long long)block);
    snprintf(name, size, "%s%s%s%s", outside ? s->outer : s->begin, in_block(role) ? block_prefix(s) : "",
             number, key);
    return true;
}

void names_set_heads(struct key_map *s, const struct model_shape *g)
{
    if (!model_shape_language(g)) return;
    s->heads = (int)g->heads;
    s->kv_heads = (int)model_shape_kv_heads(g);
}

static bool is_qkv(enum role role) { return role == ROLE_QKV_W || role == ROLE_QKV_B; }

struct values_place names_place(const struct key_map *s, const struct weights *weights, enum role role,
                                int64_t block, int ffn)
{
    struct values_place place = {.zero_rows = role == ROLE_POS && s->class_unpositioned, .added = -1};
    const char *out = projection_outside(s, role);
    bool outside = out != NULL, missing = false;
    const char *key = outside ? out : key_of(s, role, ffn);
    const char *slice = key ? strchr(key, '@') : NULL;
    char part[128];
    if (slice) {
        place.slice = slice[1] - '0';
        place.slices = slice[3] - '0';
    }
    place.held_from = s->classless ? 0 : 1;
    if (role == ROLE_POS) place.held_rows = s->held;
    if (role == ROLE_REGISTERS && s->held && weights)
        place.added = find_key(s, weights, key_of(s, ROLE_POS, ffn));
    place.transposed = (outside && family_row(s->family)->out_transposed) ||
                       (s->mapping->conv1d && in_block(role) && role_ndim(family_row(s->family), role) == 2);
    while (place.parts < NAMES_PARTS && part_of(key, place.parts, part, sizeof part)) {
        int64_t found = !weights         ? -1
                        : outside        ? find_outside(s, weights, part)
                        : in_block(role) ? find_in_block(s, weights, block, part)
                                         : find_key(s, weights, part);
        if (place.parts == 0 || (found < 0 && !missing))
            names_part(s, role, block, ffn, place.parts, place.first, sizeof place.first);
        missing |= found < 0;
        int share = share_of(key, place.parts);
        if (s->heads && is_qkv(role)) share = place.parts ? s->kv_heads : s->heads;
        place.shares += place.share[place.parts] = share;
        place.tensor[place.parts++] = found;
    }
    return place;
}

int64_t names_tensor(const struct key_map *s, const struct weights *weights, enum role role, int64_t block,
                     int ffn)
{
    struct values_place place = names_place(s, weights, role, block, ffn);
    for (int i = 0; i < place.parts; i++)
        if (place.tensor[i] < 0) return -1;
    return place.parts ? place.tensor[0] : -1;
}

/* Returns whether every value of a vector is 0. */
static bool is_zero(const struct weights *weights, int64_t index)
{
    if (index < 0) return true;
    const struct weights_tensor *t = weights_tensor(weights, index);
    struct error ignored;
    float *values = t->count > 0 && t->count <= 1 << 20 ? malloc((size_t)t->count * sizeof *values) : NULL;
    bool zero = values && weights_read(weights, index, values, DTYPE_F32, &ignored) == 0;
    for (int64_t i = 0; zero && i < t->count; i++) zero = values[i] == 0;
    free(values);
    return zero;
}

/* Returns whether the first matrix of the feed-forward has the rows of two, the gate's and the value's. */
static bool is_packed(const struct key_map *s, const struct weights *weights)
{
    int64_t first = names_tensor(s, weights, ROLE_FC1_W, 0, 1 + ACTIVATION_SWIGLU),
            second = names_tensor(s, weights, ROLE_FC2_W, 0, 1 + ACTIVATION_SWIGLU);
    if (first < 0 || second < 0) return false;
    const struct weights_tensor *a = weights_tensor(weights, first), *b = weights_tensor(weights, second);
    return a->ndim == 2 && b->ndim == 2 && b->shape[1] > 0 && a->shape[0] / 2 == b->shape[1] &&
           a->shape[0] % 2 == 0;
}

int names_ffn(const struct key_map *s, const struct weights *weights)
{
    bool gated = names_tensor(s, weights, ROLE_FC1_W, 0, 1 + ACTIVATION_SWIGLU) >= 0;
    const char *plain = key_of(s, ROLE_FC1_W, 1 + ACTIVATION_GELU);
    if (gated && plain && strcmp(plain, key_of(s, ROLE_FC1_W, 1 + ACTIVATION_SWIGLU)) == 0)
        gated = is_packed(s, weights);
    return 1 + (gated ? ACTIVATION_SWIGLU : ACTIVATION_GELU);
}

int names_activation(const struct key_map *s, int ffn)
{
    if (ffn == 1 + ACTIVATION_SWIGLU) return ffn;
    return s->mapping->ffn ? s->mapping->ffn : family_ffn(s->family);
}

enum pool names_pool(const struct key_map *s)
{
    if (s->classifier && s->mapping->classifier) return s->mapping->classifier_pool;
    return s->fc_norm ? (s->all_tokens ? POOL_AVG_ALL : POOL_AVG_FIRST) : s->mapping->pool;
}
float names_norm_eps(const struct key_map *s) { return s->mapping->norm_eps; }
enum pos_resize names_pos_resize(const struct key_map *s)
{
    return s->fc_norm ? POS_RESIZE_TIMM : s->mapping->pos_resize;
}

const char *names_around(const struct key_map *s) { return s->mapping->around; }

static int unsettled(const struct key_map *s, const struct weights *weights)
{
    enum {
        OPEN = FACT_BIT(HEADS) | FACT_BIT(ACTIVATION) | FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(NORM_EPS) |
               FACT_BIT(POS_RESIZE)
    };
    int all = OPEN & ~s->mapping->settles;
    bool gated = names_ffn(s, weights) == 1 + ACTIVATION_SWIGLU;
    return gated && !s->mapping->gate_varies ? all & ~FACT_BIT(ACTIVATION) : all;
}

/* Distinguishes a classifier from CLIP's projection, which have the same name in timm. A projection's bias is
 * 0 (ViT), or its number of outputs is not a data set's number of classes and it follows a class token (EVA).
 * Inside a model of open_clip it is always a projection. */
static void find_classifier(struct key_map *s, const struct weights *weights)
{
    static const int64_t classes[] = {10, 100, 101, 200, 365, 1000, 11821, 21841, 21843};
    const char *classifier = s->prefix.drop ? NULL : s->mapping->classifier;
    if (classifier) s->classifier = weights_find_under(weights, &s->prefix, classifier) >= 0;
    int64_t at = s->mapping->head ? find_key(s, weights, "head.weight") : -1;
    if (at < 0 || s->trunk || (*s->tower && !s->prefix.drop)) return;
    const struct weights_tensor *t = weights_tensor(weights, at);
    bool usual = t->ndim != 2;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) usual |= t->shape[0] == classes[i];
    if (s->mapping->zero) s->classifier = !is_zero(weights, find_key(s, weights, s->mapping->zero));
    else {
        s->classifier = s->fc_norm || usual;
        s->unsettled |= FACT_BIT(PROJECTION);
    }
}

int64_t names_classifier(const struct key_map *s, const struct weights *weights, const char *end)
{
    static const struct {
        const char *key;
        bool inside;                     /* the tower */
    } keys[] = {{CLASSIFIER_KEY, false}, /* transformers, meopt */
                {CLASSIFIER_KEY "out_proj.", false},
                {"heads.head.", true},    /* torchvision */
                {"head.", true},          /* timm */
                {"linear_head.", false}}; /* the hub's DINOv2 */
    const char *out = projection_outside(s, ROLE_OUT_W);
    if (!out) out = key_of(s, ROLE_OUT_W, 1 + ACTIVATION_GELU);
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !s->mapping->classifier_apart; i++) {
        char name[64];
        size_t n = strlen(keys[i].key);
        if (out && strncmp(out, keys[i].key, n) == 0) continue;
        snprintf(name, sizeof name, "%s%s", keys[i].key, end);
        int64_t at =
            keys[i].inside ? find_key(s, weights, name) : weights_find_under(weights, &s->prefix, name);
        if (at < 0 && !keys[i].inside) at = weights_find(weights, name);
        if (at >= 0) return at;
    }
    return -1;
}

static bool is_square(int64_t n)
{
    int64_t side = 0;
    while (side * side < n) side++;
    return n > 0 && side * side == n;
}

/* A square number of positions means one per patch, because 1 + a square is never a square. Otherwise they
 * may belong to all tokens. */
static void find_positions(struct key_map *s, const struct weights *weights)
{
    enum { GELU = 1 + ACTIVATION_GELU };
    const struct family_row *row = family_row(s->family);
    s->classless = row->classless;
    int64_t at = row->class_varies ? find_key(s, weights, key_of(s, ROLE_POS, GELU)) : -1, registers = 0;
    const struct weights_tensor *pos = at < 0 ? NULL : weights_tensor(weights, at), *t;
    if (!pos || pos->ndim < 2) return;
    at = find_key(s, weights, key_of(s, ROLE_REGISTERS, GELU));
    if (at >= 0 && (t = weights_tensor(weights, at))->ndim == 3 && t->shape[1] <= 256)
        registers = t->shape[1];
    bool there = find_key(s, weights, key_of(s, ROLE_CLS, GELU)) >= 0;
    int64_t rows = pos->shape[pos->ndim - 2];
    bool patches = is_square(rows), all = !patches && registers && is_square(rows - there - registers);
    s->classless = (patches || all) && !there;
    s->class_unpositioned = patches && there;
    s->held = all ? (int)registers : 0;
}

/* Finds open_clip's timm_proj: visual.head.proj next to visual.trunk. */
static void find_projection(struct key_map *s, const struct weights *weights)
{
    s->head = s->trunk;
    if (s->trunk)
        snprintf(s->outer, sizeof s->outer, "%.*s", (int)(strlen(s->begin) - strlen("trunk.")), s->begin);
    s->head = s->trunk && find_outside(s, weights, "head.proj.weight") >= 0;
    if (!s->head) snprintf(s->outer, sizeof s->outer, "%s", s->prefix.add);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Returns whether the checkpoint has the tower with prefix `tower`. */
static bool fits(struct key_map *s, const struct key_mapping *mapping, const char *tower, bool any,
                 const struct weights *weights)
{
    char name[160];
    *s = (struct key_map){.family = mapping->family, .mapping = mapping, .tower = tower, .any = any};
    snprintf(name, sizeof name, "%s%s", tower, mapping->probes[0]);
    if (weights_find_suffix(weights, name, any, &s->prefix) < 0 || (mapping->whole && s->prefix.drop))
        return false;
    snprintf(s->begin, sizeof s->begin, "%s%s", s->prefix.add, tower + s->prefix.drop);
    for (int i = 1; i < MAX_PROBES && mapping->probes[i]; i++)
        if (find_key(s, weights, mapping->probes[i]) < 0) return false;
    if (mapping->absent && find_key(s, weights, mapping->absent) >= 0) return false;
    int64_t patch = mapping->convolves ? find_key(s, weights, mapping->keys[ROLE_PATCH_W]) : -1;
    if (patch >= 0 && weights_tensor(weights, patch)->ndim != 4) return false;
    int64_t qkv = mapping->conv1d ? find_in_block(s, weights, 0, key_of(s, ROLE_QKV_W, 0)) : -1;
    if (qkv >= 0 && weights_tensor(weights, qkv)->shape[0] >= weights_tensor(weights, qkv)->shape[1])
        return false;
    s->trunk = strcmp(tower, "visual.trunk.") == 0 || ends_with(s->begin, "visual.trunk.");
    find_projection(s, weights);
    /* EVA-CLIP's own fc_norm comes after the mean of all tokens, the class token included */
    bool own = strcmp(tower, "visual.") == 0 && !s->prefix.drop;
    s->fc_norm = mapping->fc_norm && find_key(s, weights, "norm.weight") < 0 &&
                 find_key(s, weights, "fc_norm.weight") >= 0;
    s->all_tokens = s->fc_norm && (own || mapping->all_tokens);
    find_positions(s, weights);
    s->unsettled = unsettled(s, weights);
    find_classifier(s, weights);
    return true;
}

static bool find_with(struct key_map *s, const struct weights *weights, bool any)
{
    for (int i = 0; i < naming_count; i++) {
        const struct key_mapping *n = &key_mappings[i];
        if (any && family_language(family_row(n->family))) continue;
        const char *const own[MAX_TOWERS] = {family_prefix(n->family)}, *const *towers =
                                                                            n->towers[0] ? n->towers : own;
        for (int k = 0; k < MAX_TOWERS && towers[k]; k++)
            if (!(any && n->whole) && fits(s, n, towers[k], any, weights)) return true;
    }
    return false;
}

bool names_find_as(struct key_map *s, enum family family, const struct weights *weights)
{
    struct key_map found;
    for (int i = 0; i < naming_count; i++) {
        if (key_mappings[i].family != family) continue;
        if (!fits(&found, &key_mappings[i], family_prefix(family), false, weights)) continue;
        *s = found;
        return true;
    }
    return false;
}

void names_find(struct key_map *s, const struct weights *weights)
{
    if (!find_with(s, weights, false) && !find_with(s, weights, true))
        *s = (struct key_map){.family = FAMILY_UNKNOWN};
}

const char *const library_names[] = {"transformers", "timm", "torchvision"};

static bool find_library(struct key_map *s, enum library library, const struct model_shape *g, bool plain)
{
    int parts = model_shape_parts(g);
    for (int i = 0; i < naming_count; i++) {
        const struct key_mapping *n = &key_mappings[i];
        if (n->family != g->family || n->library != 1 + (int)library || n->plain != plain) continue;
        if (n->pos_patches && !g->registers)
            continue; /* a class token without position: only towers with registers */
        if (n->parts && !(parts & n->parts)) continue;
        *s = (struct key_map){.family = g->family, .mapping = n, .tower = ""};
        if (n->written) s->tower = n->written;
        if (g->classes > 0 && n->classified) s->tower = n->classified;
        if (g->classes > 0 && n->classified && g->registers && n->registered_as) s->tower = n->registered_as;
        s->fc_norm = n->fc_norm && g->pool == POOL_AVG_FIRST;
        s->class_unpositioned = n->pos_patches && !g->classless;
        snprintf(s->begin, sizeof s->begin, "%s", s->tower);
        names_set_heads(s, g);
        return true;
    }
    return false;
}

bool names_library(struct key_map *s, enum library library, const struct model_shape *g)
{
    bool plain = g->layerscale == LAYERSCALE_WITHOUT && !g->registers && !g->classless &&
                 g->pool <= POOL_CLS && g->ffn != 1 + ACTIVATION_SWIGLU && g->classes > 0;
    return (plain && find_library(s, library, g, true)) || find_library(s, library, g, false);
}

bool names_classifier_as(const struct key_map *s, const char *end, char *name, size_t size)
{
    if (!s->mapping->classifier_as) return false;
    snprintf(name, size, "%s%s", s->mapping->classifier_as, end);
    return true;
}

bool names_widened(const struct key_map *s) { return s->mapping->widened; }
bool names_plain(const struct key_map *s) { return s->mapping->plain; }

bool names_always_scales(const struct key_map *s) { return s->mapping->scaled; }
bool names_always_registers(const struct key_map *s) { return s->mapping->registered; }

bool names_leaves_out(const struct key_map *s, enum role role)
{
    return (s->mapping->maskless && role == ROLE_MASK) ||
           (s->mapping->scaleless && (role == ROLE_LS1 || role == ROLE_LS2));
}

bool names_batched(const struct key_map *s) { return s->mapping->batched; }
bool names_flat(const struct key_map *s) { return s->mapping->flat; }
const char *names_zero(const struct key_map *s) { return s->mapping->zero; }

/* Other kinds of files, by parts of names that they have, and one that they lack. */
static const struct {
    const char *parts[2], *lacks, *is;
} unsupported[] = {
    {{"embeddings.position_embedding.weight", "self_attn.out_proj"},
     "class_embedding",
     N_("a SigLIP2 tower for images of any shape (NaFlex)")},
    {{"inner.patch_generator"}, NULL, N_("a C-RADIO-g, which is a DINOv2 with other positions")},
    {{"attn_pool.probe"},
     NULL,
     N_("a PE-Core tower, whose pooling by attention comes before its projection")},
    {{"attn_pool.latent", "norm_pre.weight"}, NULL, N_("a PE-Core tower of timm, pooled by attention")},
    {{"embeds.pos_embed"}, NULL, N_("a NaFlex tower of timm, for images of any shape")},
    {{"temporal"}, NULL, N_("a model of videos")},
    {{"mobilevit"}, NULL, N_("a MobileViT")},
    {{"conv_1x1.convolution", "layernorm_before"}, NULL, N_("a MobileViT")},
    {{"cpb_mlp"}, NULL, N_("a Swin transformer V2")},
    {{"continuous_position_bias"}, NULL, N_("a Swin transformer V2")},
    {{"downsample.reduction.weight"}, NULL, N_("a Swin transformer")},
    {{"layers.0.blocks.0.", "relative_position_bias_table"}, NULL, N_("a Swin transformer")},
    {{"layers.0.blocks.0.", "layernorm_before"}, NULL, N_("a Swin transformer")},
    {{"encoder.layers.0.attn.qkv.weight", "class_embedding"}, NULL, N_("an InternViT")},
    {{"encoder.layers.0.attn.qkv.weight", "ls1"}, NULL, N_("an InternViT")},
    {{"class_pos_emb"}, NULL, N_("an MLCD tower of transformers, with rotary positions")},
    {{"self_attn.qkv.weight", "class_embedding"}, NULL, N_("a BLIP tower of transformers")},
    {{"preprocessor.patchifier"}, NULL, N_("an AIMv2 tower")},
    {{"rms_norm1"}, NULL, N_("an AIMv2 tower of transformers")},
    {{"decoder_embed.weight", "mask_token"},
     "norm_pre.weight",
     N_("a masked autoencoder (MAE) with its decoder")},
    {{"lambda_1", "layernorm_before"}, NULL, N_("a BEiT or Data2Vec tower of transformers")},
    {{"layernorm_before.weight", "relative_position"}, NULL, N_("a BEiT or Data2Vec tower of transformers")},
    {{"layernorm_before.weight"},
     "cls_token",
     N_("an I-JEPA or video model of transformers, which has no class token")},
    {{"layernorm_before.weight"}, NULL, N_("a BEiT or Data2Vec of transformers")},
    {{"neck.0.weight", "rel_pos_h"}, NULL, N_("the image encoder of SAM")},
    {{"rel_pos_h"}, NULL, N_("a ViTDet or the image encoder of SAM")},
    {{"blocks_token_only"}, NULL, "a CaiT"},
    {{"cls_attn_blocks"}, NULL, "an XCiT"},
    {{"merger.mlp"}, NULL, N_("a vision tower of Qwen-VL")},
    {{"visual.attnpool."}, NULL, N_("a ResNet of CLIP, not a vision transformer")},
    {{"flat_param"}, NULL, N_("one rank's share of FSDP weights: save the full model (FULL_STATE_DICT)")},
    {{"lora_"}, NULL, N_("a LoRA adapter: merge it into its model first (merge_and_unload() of peft)")},
    {{"layer4."}, NULL, N_("a ResNet, not a vision transformer")},
    {{"conv_dw.weight"}, NULL, N_("a ConvNeXt, not a vision transformer")},
    {{"dwconv.weight"}, NULL, N_("a ConvNeXt, not a vision transformer")},
    {{"conv_stem.weight"}, NULL, N_("a convolutional network, not a vision transformer")},
    {{"embed_tokens."}, NULL, N_("a language model of another family")},
    {{"down_blocks."}, NULL, N_("a diffusion model")},
    {{"visual.trunk."}, NULL, N_("an unsupported tower of timm inside a model of open_clip")},
};

static bool has_part(const struct weights *weights, const char *part)
{
    for (int64_t i = 0; i < weights_count(weights); i++)
        if (strstr(weights_tensor(weights, i)->name, part)) return true;
    return false;
}

const char *names_unsupported(const struct weights *weights)
{
    for (size_t k = 0; k < sizeof unsupported / sizeof *unsupported; k++)
        if (has_part(weights, unsupported[k].parts[0]) &&
            (!unsupported[k].parts[1] || has_part(weights, unsupported[k].parts[1])) &&
            !(unsupported[k].lacks && has_part(weights, unsupported[k].lacks)))
            return unsupported[k].is;
    return NULL;
}

const char *names_missing(enum family family, const struct weights *weights)
{
    for (int i = 0; i < naming_count; i++) {
        const struct key_mapping *n = &key_mappings[i];
        if (n->family != family || n->library != 1 + LIBRARY_TRANSFORMERS) continue;
        for (int k = 0; k < MAX_PROBES && n->probes[k]; k++)
            if (weights_find(weights, n->probes[k]) < 0) return n->probes[k];
    }
    return NULL;
}

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

bool names_inside(const struct key_map *s, const char *name)
{
    const char *out = s->head ? NULL : projection_outside(s, ROLE_OUT_W),
               *dot = out ? strrchr(out, '.') : NULL;
    size_t add = strlen(s->prefix.add);
    if (begins(name, s->begin)) return true;
    if (s->trunk && !*s->tower) return strncmp(name, s->begin, strlen(s->begin) - strlen("trunk.")) == 0;
    if (strncmp(name, s->prefix.add, add) != 0) return false;
    if (s->trunk)
        return begins(name + add, &"visual."[s->prefix.drop]) &&
               (!s->prefix.drop || begins(name + add, "head."));
    return dot && strncmp(name + add, out, (size_t)(dot + 1 - out)) == 0;
}

/* "blocks.3.attn.proj.bias" -> "attn.proj.bias" and 3. A chunked one has two numbers. */
const char *names_key(const struct key_map *s, const char *name, int64_t *block)
{
    const char *key = name + strlen(s->begin), *prefix = block_prefix(s);
    size_t begin = strlen(prefix);
    *block = -1;
    if (s->head && !begins(name, s->begin) && begins(name, s->outer)) return name + strlen(s->outer);
    if (!begins(name, s->begin)) return name + (begins(name, s->prefix.add) ? strlen(s->prefix.add) : 0);
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

/* Returns whether `name` is one of the parts a|b|c. */
static bool is_part(const char *parts, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = parts; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strcspn(at, "|@*") == bytes && strncmp(at, name, bytes) == 0) return true;
    }
    return false;
}

/* Returns whether name is in the list; "head." stands for every name that starts so. */
static bool is_in(const char *const *names, size_t count, const char *key)
{
    for (size_t i = 0; i < count && names[i]; i++) {
        size_t n = strlen(names[i]);
        if (names[i][n - 1] == '.' ? strncmp(key, names[i], n) == 0 : strcmp(key, names[i]) == 0) return true;
    }
    return false;
}

/* Use of rope.freqs_cos, and of attn.rope.freqs_cos in a block: EVA-CLIP's tables */
static enum names_use rope_use(const struct key_map *s, const char *key, bool block)
{
    const char *begin = block ? "attn.rope.freqs_" : "rope.freqs_";
    size_t bytes = strlen(begin);
    if (!s->mapping->rope || strncmp(key, begin, bytes) != 0) return NAMES_UNREAD;
    return strcmp(key + bytes, "cos") == 0   ? NAMES_COSINES
           : strcmp(key + bytes, "sin") == 0 ? NAMES_SINES
                                             : NAMES_UNREAD;
}

enum names_use names_use(const struct key_map *s, const char *key, bool block)
{
    const struct key_mapping *n = s->mapping;
    for (enum role role = ROLE_OUT_W; !block && role <= ROLE_OUT_B; role++)
        if (s->head && strcmp(key, projection_outside(s, role)) == 0) return NAMES_READ;
    for (enum role role = 0; role < ROLE_COUNT; role++)
        if (in_block(role) == block && (is_part(key_of(s, role, 1 + ACTIVATION_GELU), key) ||
                                        is_part(key_of(s, role, 1 + ACTIVATION_SWIGLU), key)))
            return NAMES_READ;
    if (!block && s->classifier && begins(key, "head.")) return NAMES_IGNORED;
    if (!block && begins(key, CLASSIFIER_KEY)) return NAMES_IGNORED;
    if (!block && begins(key, HEAD_KEY)) return NAMES_READ;
    if (!block && n->out && strcmp(key, n->out) == 0) return NAMES_READ;
    if (!block && n->zero && strcmp(key, n->zero) == 0) return NAMES_IGNORED;
    if (family_row(n->family)->rope == ROPE_DINOV3) {
        if (!block && strcmp(key, "rope_embed.periods") == 0) return NAMES_PERIODS;
        if (block && strcmp(key, "attn.qkv.bias_mask") == 0) return NAMES_BIAS_MASK;
    }
    if (strcmp(key, "n_averaged") == 0) return NAMES_IGNORED; /* torch.optim.swa_utils counts updates there */
    return is_in(n->ignored, MAX_IGNORED, key) || is_in(family_row(s->family)->ignored, FAMILY_IGNORED, key)
               ? NAMES_IGNORED
               : rope_use(s, key, block);
}
