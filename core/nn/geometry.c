/* What a tower is: families, the published presets, and what a checkpoint's shapes determine (models.md 0-2).
 */
#include "core/nn/parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *prefix;
} families[] = {
    [FAMILY_UNKNOWN] = {"unknown", ""},
    [FAMILY_EVA] = {"eva", "visual."},
    [FAMILY_OPENCLIP] = {"openclip", "visual."},
    [FAMILY_DINOV2] = {"dinov2", ""},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

const char *family_name(enum family family) { return families[family].name; }
const char *family_prefix(enum family family) { return families[family].prefix; }

enum family family_from_name(const char *name)
{
    for (int i = 1; i < FAMILY_COUNT; i++)
        if (strcmp(name, families[i].name) == 0) return (enum family)i;
    return FAMILY_UNKNOWN;
}

#define GELU   (1 + ACTIVATION_GELU)
#define SWIGLU (1 + ACTIVATION_SWIGLU)

static const struct {
    const char *name;
    struct geometry geometry;
} presets[] = {
    /*                      family           image patch pos width depth heads hidden out  ffn */
    {"eva01_g14", {FAMILY_EVA, 224, 14, 16, 1408, 40, 16, 6144, 1024, GELU}},
    {"eva01_g14_plus", {FAMILY_EVA, 224, 14, 16, 1408, 40, 16, 6144, 1024, GELU}},
    {"openclip_vit_g14", {FAMILY_OPENCLIP, 224, 14, 16, 1408, 40, 16, 6144, 1024, GELU}},
    {"openclip_vit_h14", {FAMILY_OPENCLIP, 224, 14, 16, 1280, 32, 16, 5120, 1024, GELU}},
    {"dinov2_vitg14", {FAMILY_DINOV2, 224, 14, 37, 1536, 40, 24, 4096, 1536, SWIGLU}},
    {"dinov2_vitl14", {FAMILY_DINOV2, 224, 14, 37, 1024, 24, 16, 4096, 1024, GELU}},
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
    return error_set(err, EXIT_CONFIG,
                     "eva01_g14 eva01_g14_plus openclip_vit_g14 openclip_vit_h14 dinov2_vitg14 dinov2_vitl14",
                     "no architecture '%s'", name);
}

static const char *ffn_name(int ffn) { return ffn == SWIGLU ? "swiglu" : "gelu"; }

/* Take `found` for a field, or check it against what is set. */
static int settle(int64_t *field, int64_t found, const char *what, const char *tensor, struct error *err)
{
    if (*field == 0) *field = found;
    if (*field == found) return 0;
    return error_set(err, EXIT_CONFIG,
                     "is this the file for this tower? remove the key to take the checkpoint's value",
                     "%s is %lld in the checkpoint (%s), the configuration says %lld", what, (long long)found,
                     tensor, (long long)*field);
}

int64_t family_find_key(enum family family, const struct weights *weights, const char *name)
{
    char key[192];
    snprintf(key, sizeof key, "%s%s", families[family].prefix, name);
    int64_t i = weights_find(weights, key);
    int n = 0;
    long long block;
    if (i >= 0 || family != FAMILY_DINOV2 || sscanf(name, "blocks.%lld.%n", &block, &n) != 1 || !n) return i;
    /* DINOv2's training checkpoints chunk their blocks: blocks.CHUNK.N.rest */
    for (int chunk = 0; chunk < 64 && i < 0; chunk++) {
        snprintf(key, sizeof key, "blocks.%d.%lld.%s", chunk, block, name + n);
        i = weights_find(weights, key);
    }
    return i;
}

static const struct weights_tensor *find(const struct weights *weights, enum family family, const char *name)
{
    int64_t i = family_find_key(family, weights, name);
    return i < 0 ? NULL : weights_tensor(weights, i);
}

/* The families by a key that only they have. A DINOv2-like file has LayerScale; EVA's has the prefix. */
static enum family family_of(const struct weights *weights)
{
    if (find(weights, FAMILY_OPENCLIP, "conv1.weight")) return FAMILY_OPENCLIP;
    if (find(weights, FAMILY_EVA, "patch_embed.proj.weight")) return FAMILY_EVA;
    if (find(weights, FAMILY_DINOV2, "patch_embed.proj.weight")) return FAMILY_DINOV2;
    return FAMILY_UNKNOWN;
}

static int64_t square_root(int64_t n)
{
    int64_t r = 0;
    while ((r + 1) * (r + 1) <= n) r++;
    return r * r == n ? r : -1;
}

static int need(const struct weights *weights, enum family family, const char *name, int ndim,
                const struct weights_tensor **tensor, struct error *err)
{
    *tensor = find(weights, family, name);
    if (*tensor && (*tensor)->ndim == ndim) return 0;
    return error_set(err, EXIT_CONFIG, "is this the right file, and the right model.family?",
                     "%s tower: tensor %s%s %s", families[family].name, families[family].prefix, name,
                     *tensor ? "has the wrong number of dimensions" : "is missing");
}

int geometry_infer(struct geometry *g, const struct weights *weights, int64_t head_dim, struct error *err)
{
    enum family family = family_of(weights), wanted = g->family;
    if (family == FAMILY_UNKNOWN)
        return error_set(err, EXIT_CONFIG,
                         "expected a state dict of EVA01-CLIP, OpenCLIP or DINOv2 with an image tower",
                         "no known image tower among its %lld tensors (no visual.conv1.weight, "
                         "visual.patch_embed.proj.weight "
                         "or patch_embed.proj.weight)",
                         (long long)weights_count(weights));
    if (wanted && wanted != family)
        return error_set(err, EXIT_CONFIG, "correct the weight path, or model.family",
                         "holds a %s tower, the configuration says %s", families[family].name,
                         families[wanted].name);
    g->family = family;

    bool openclip = family == FAMILY_OPENCLIP,
         swiglu = find(weights, family, "blocks.0.mlp.w12.weight") != NULL;
    const struct weights_tensor *conv, *pos, *fc, *last = NULL;
    int code = need(weights, family, openclip ? "conv1.weight" : "patch_embed.proj.weight", 4, &conv, err);
    if (!code)
        code = need(weights, family, openclip ? "positional_embedding" : "pos_embed", openclip ? 2 : 3, &pos,
                    err);
    if (!code)
        code = need(weights, family,
                    openclip ? "transformer.resblocks.0.mlp.c_fc.weight"
                    : swiglu ? "blocks.0.mlp.w12.weight"
                             : "blocks.0.mlp.fc1.weight",
                    2, &fc, err);
    if (!code && family != FAMILY_DINOV2)
        code = need(weights, family, openclip ? "proj" : "head.weight", 2, &last, err);
    if (code) return code;
    int64_t grid = square_root(pos->shape[pos->ndim - 2] - 1);
    if (grid < 1)
        return error_set(err, EXIT_CONFIG, NULL,
                         "the position embedding has %lld rows, expected 1 + a square number",
                         (long long)pos->shape[pos->ndim - 2]);
    int64_t depth = 0;
    for (char name[96]; depth < 1024; depth++) {
        snprintf(name, sizeof name,
                 openclip ? "transformer.resblocks.%lld.ln_1.weight" : "blocks.%lld.norm1.weight",
                 (long long)depth);
        if (!find(weights, family, name)) break;
    }
    int ffn = swiglu ? SWIGLU : GELU;
    int64_t hidden = swiglu ? fc->shape[0] / 2 : fc->shape[0];
    int64_t out = !last ? conv->shape[0] : openclip ? last->shape[1] : last->shape[0];
    if (g->ffn && g->ffn != ffn)
        return error_set(err, EXIT_CONFIG, NULL,
                         "the feed-forward is %s in the checkpoint, the configuration says %s", ffn_name(ffn),
                         ffn_name(g->ffn));
    g->ffn = ffn;
    code = settle(&g->width, conv->shape[0], "width", conv->name, err);
    if (!code) code = settle(&g->patch, conv->shape[2], "patch", conv->name, err);
    if (!code) code = settle(&g->pos_grid, grid, "pos_grid", pos->name, err);
    if (!code) code = settle(&g->depth, depth, "depth", "number of blocks", err);
    if (!code) code = settle(&g->hidden, hidden, "hidden", "feed-forward", err);
    if (!code) code = settle(&g->out, out, "out", "output", err);
    return code ? code : geometry_check(g, head_dim, err);
}

int geometry_check(struct geometry *g, int64_t head_dim, struct error *err)
{
    if (!g->family)
        return error_set(err, EXIT_CONFIG, "set model.family, or an arch", "the tower's family is not known");
    if (!g->ffn) g->ffn = GELU;
    if (!g->patch) g->patch = 14;
    if (!g->out && g->family == FAMILY_DINOV2) g->out = g->width;
    if (!g->hidden && g->width) g->hidden = 4 * g->width;
    if (!g->pos_grid && g->image && g->family != FAMILY_DINOV2) g->pos_grid = g->image / g->patch;
    if (!g->pos_grid && g->family == FAMILY_DINOV2) g->pos_grid = 37;
    if (!g->image) g->image = g->family == FAMILY_DINOV2 ? 16 * g->patch : g->pos_grid * g->patch;
    if (!g->heads && g->width) {
        if (!head_dim)
            head_dim = g->family == FAMILY_DINOV2                      ? 64
                       : g->width % 88 == 0 || g->family == FAMILY_EVA ? 88
                                                                       : 80;
        if (g->width % head_dim)
            return error_set(err, EXIT_CONFIG, "set heads or head_dim",
                             "width %lld is no multiple of the head dimension %lld", (long long)g->width,
                             (long long)head_dim);
        g->heads = g->width / head_dim;
    }
    const struct {
        const char *name;
        int64_t value, max;
    } fields[] = {{"image", g->image, 4096},      {"patch", g->patch, 256},  {"pos_grid", g->pos_grid, 1024},
                  {"width", g->width, 65536},     {"depth", g->depth, 1024}, {"heads", g->heads, 1024},
                  {"hidden", g->hidden, 1 << 20}, {"out", g->out, 1 << 20}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < 1 || fields[i].value > fields[i].max)
            return error_set(err, EXIT_CONFIG, "give an arch, a checkpoint, or the key",
                             "the tower's %s is %lld, expected 1 to %lld", fields[i].name,
                             (long long)fields[i].value, (long long)fields[i].max);
    if (g->width % g->heads)
        return error_set(err, EXIT_CONFIG, NULL, "width %lld is no multiple of heads %lld",
                         (long long)g->width, (long long)g->heads);
    if (g->image % g->patch)
        return error_set(err, EXIT_CONFIG, NULL, "image %lld is no multiple of patch %lld",
                         (long long)g->image, (long long)g->patch);
    if (g->family != FAMILY_DINOV2 && g->pos_grid != g->image / g->patch)
        return error_set(err, EXIT_CONFIG, "set data.image_size to pos_grid * patch",
                         "the position embedding is for %lldx%lld patches, an image of %lld px has %lldx%lld",
                         (long long)g->pos_grid, (long long)g->pos_grid, (long long)g->image,
                         (long long)(g->image / g->patch), (long long)(g->image / g->patch));
    if (g->family == FAMILY_DINOV2 && g->out != g->width)
        return error_set(err, EXIT_CONFIG, "remove out",
                         "a DINOv2 tower's output is its width %lld, not %lld", (long long)g->width,
                         (long long)g->out);
    if (g->ffn == SWIGLU && g->family != FAMILY_DINOV2)
        return error_set(err, EXIT_CONFIG, NULL, "SwiGLU is known in DINOv2 towers only");
    return 0;
}

int64_t geometry_tokens(const struct geometry *g)
{
    int64_t side = g->image / g->patch;
    return side * side + 1;
}

double geometry_forward_flops(const struct geometry *g)
{
    double N = (double)geometry_tokens(g), d = (double)g->width, h = (double)g->hidden,
           p = (double)(3 * g->patch * g->patch);
    double c = g->ffn == SWIGLU ? 6 : 4;
    double projection = g->family == FAMILY_DINOV2 ? 0 : 2 * d * (double)g->out;
    return 2 * (N - 1) * p * d + (double)g->depth * (8 * N * d * d + 4 * N * N * d + c * N * d * h) +
           projection;
}

double geometry_recompute_flops(const struct geometry *g, bool twice)
{
    double N = (double)geometry_tokens(g), d = (double)g->width,
           first = (g->ffn == SWIGLU ? 4 : 2) * N * d * (double)g->hidden;
    return (double)(twice ? 2 * g->depth : g->depth - 1) * (8 * N * d * d + 4 * N * N * d + first);
}

int64_t geometry_parameters(const struct geometry *g)
{
    struct parameter *list;
    enum role *roles;
    int64_t sum = 0;
    for (int i = parameters_list(g, 0, &list, &roles); i-- > 0;) sum += list[i].count;
    free(list);
    free(roles);
    return sum;
}
