/* What a tower is: the published presets, and what a checkpoint's shapes determine (models.md 0-2). */
#include "core/base/log.h"
#include "core/nn/fit.h"
#include "core/nn/parameters.h"

#include <stdio.h>
#include <stdlib.h>
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
    /*      name                    family image patch pos width depth heads hidden out ffn registers scale */
    PRESET("eva01_g14",                     EVA,      224, 14, 16, 1408, 40, 16, 6144, 1024, GELU, 0, USUAL)
    PRESET("eva01_g14_plus",                EVA,      224, 14, 16, 1408, 40, 16, 6144, 1024, GELU, 0, USUAL)
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
    PRESET("dinov2_vits14",                 DINOV2,   224, 14, 37,  384, 12,  6, 1536,  384, GELU, 0, USUAL)
    PRESET("dinov2_vitb14",                 DINOV2,   224, 14, 37,  768, 12, 12, 3072,  768, GELU, 0, USUAL)
    PRESET("dinov2_vitl14",                 DINOV2,   224, 14, 37, 1024, 24, 16, 4096, 1024, GELU, 0, USUAL)
    PRESET("dinov2_vitg14",                 DINOV2,   224, 14, 37, 1536, 40, 24, 4096, 1536, SWIGLU, 0, USUAL)
    PRESET("dinov2_vits14_reg",             DINOV2,   224, 14, 37,  384, 12,  6, 1536,  384, GELU, 4, USUAL)
    PRESET("dinov2_vitb14_reg",             DINOV2,   224, 14, 37,  768, 12, 12, 3072,  768, GELU, 4, USUAL)
    PRESET("dinov2_vitl14_reg",             DINOV2,   224, 14, 37, 1024, 24, 16, 4096, 1024, GELU, 4, USUAL)
    PRESET("dinov2_vitg14_reg",             DINOV2,   224, 14, 37, 1536, 40, 24, 4096, 1536, SWIGLU, 4, USUAL)
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

static const char *ffn_name(int ffn)
{
    return ffn == SWIGLU ? "swiglu" : ffn == QUICK ? "quick_gelu" : "gelu";
}

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

static int no_family(const struct weights *weights, struct error *err)
{
    char keys[256] = "";
    for (int i = 1; i < FAMILY_COUNT; i++) {
        size_t at = strlen(keys);
        snprintf(keys + at, sizeof keys - at, "%s%s%s", i == 1 ? "" : ", ", family_prefix((enum family)i),
                 family_row((enum family)i)->keys[ROLE_PATCH_W]);
    }
    const char *is = names_stranger(weights);
    if (is)
        return error_set(err, EXIT_CONFIG, "EVA01-CLIP, OpenCLIP and DINOv2 are known",
                         "holds no tower that is known here: it is %s", is);
    return error_set(
        err, EXIT_CONFIG, "expected a state dict of EVA01-CLIP, OpenCLIP or DINOv2 with an image tower",
        "no known image tower among its %lld tensors (no %s)", (long long)weights_count(weights), keys);
}

static int64_t square_root(int64_t n)
{
    int64_t r = 0;
    while ((r + 1) * (r + 1) <= n) r++;
    return r * r == n ? r : -1;
}

static int need(const struct weights *weights, const struct spelling *spelling, enum role role, int ffn,
                const struct weights_tensor **tensor, struct error *err)
{
    struct values_place place = names_place(spelling, weights, role, 0, ffn);
    if (fit_absent(&place))
        return weights_refuse_missing(weights, place.first,
                                      "is this the right file, and the right model.family?", err);
    *tensor = weights_tensor(weights, place.tensor[0]);
    const int64_t *first;
    if (fit_dimensions((*tensor)->ndim, (*tensor)->shape, &first) ==
        role_ndim(family_row(spelling->family), role))
        return 0;
    return error_set(err, EXIT_CONFIG, "is this the right file, and the right model.family?",
                     "%s tower: tensor %s has the wrong number of dimensions", family_name(spelling->family),
                     place.first);
}

int geometry_shapes(struct geometry *g, const struct weights *weights, struct error *err)
{
    struct spelling spelling;
    names_find(&spelling, weights);
    enum family family = spelling.family, wanted = g->family;
    if (family == FAMILY_UNKNOWN) return no_family(weights, err);
    if (spelling.prefix.other[0])
        log_info("%s: the tower behind %s is taken, not the one behind %s", weights_path(weights),
                 spelling.prefix.add[0] ? spelling.prefix.add : "nothing", spelling.prefix.other);
    if (wanted && wanted != family)
        return error_set(err, EXIT_CONFIG, "correct the weight path, or model.family",
                         "holds a %s tower, the configuration says %s", family_name(family),
                         family_name(wanted));
    int code = fit_names(&spelling, weights, err);
    if (code) return code;
    const struct family_row *row = family_row(family);
    g->family = family;
    int ffn = names_ffn(&spelling, weights);
    const struct weights_tensor *conv, *pos, *fc, *last = NULL;
    code = need(weights, &spelling, ROLE_PATCH_W, ffn, &conv, err);
    if (!code) code = need(weights, &spelling, ROLE_POS, ffn, &pos, err);
    if (!code) code = need(weights, &spelling, ROLE_FC1_W, ffn, &fc, err);
    g->unprojected = row->out_optional && names_tensor(&spelling, weights, ROLE_OUT_W, 0, ffn) < 0;
    if (!code && family_has(row, ROLE_OUT_W) && !g->unprojected)
        code = need(weights, &spelling, ROLE_OUT_W, ffn, &last, err);
    if (code) return code;
    if (row->refused_width && conv->shape[0] == row->refused_width)
        return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                         "a tower of family %s that is %lld wide is %s: no such tower is known here",
                         row->name, (long long)row->refused_width, row->refused);
    int64_t others = 1 - names_place(&spelling, weights, ROLE_POS, 0, ffn).zero_rows;
    int64_t grid = square_root(pos->shape[pos->ndim - 2] - others);
    if (grid < 1)
        return error_set(err, EXIT_CONFIG,
                         "positions of a square image are read, and with them that of the class token",
                         "the position embedding has %lld rows, expected %sa square number",
                         (long long)pos->shape[pos->ndim - 2], others ? "1 + " : "");
    int64_t depth = 0;
    while (depth < 1024 && names_tensor(&spelling, weights, ROLE_NORM1_W, depth, ffn) >= 0) depth++;
    if (fit_blocks(&spelling, weights) != depth)
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "there is no block %lld in the %s tower, but the file has %lld blocks",
                         (long long)depth, family_name(family), (long long)fit_blocks(&spelling, weights));
    int64_t hidden = ffn == SWIGLU ? fc->shape[0] / 2 : fc->shape[0];
    int64_t out = !last ? conv->shape[0]
                        : last->shape[row->out_transposed !=
                                      names_place(&spelling, weights, ROLE_OUT_W, 0, ffn).transposed];
    if (g->ffn && (g->ffn == SWIGLU) != (ffn == SWIGLU))
        return error_set(err, EXIT_CONFIG, NULL,
                         "the feed-forward is %s in the checkpoint, the configuration says %s", ffn_name(ffn),
                         ffn_name(g->ffn));
    if (!g->ffn) g->ffn = ffn;
    int64_t at = names_tensor(&spelling, weights, ROLE_REGISTERS, 0, ffn);
    const struct weights_tensor *registers = at >= 0 ? weights_tensor(weights, at) : NULL;
    int64_t count = registers && registers->ndim == 3 ? registers->shape[1] : 0;
    if (g->registers && count != g->registers)
        return error_set(err, EXIT_CONFIG, "is this the file for this arch?",
                         "%lld registers are in the checkpoint, the arch has %lld", (long long)count,
                         (long long)g->registers);
    g->registers = count;
    if (!g->pos_resize && names_pos_resize(&spelling)) /* transformers with registers: as timm */
        g->pos_resize = count ? POS_RESIZE_TIMM : names_pos_resize(&spelling);
    bool scaled = names_tensor(&spelling, weights, ROLE_LS1, 0, ffn) >= 0;
    g->layerscale = scaled ? LAYERSCALE_WITH : LAYERSCALE_WITHOUT;
    code = settle(&g->width, conv->shape[0], "width", conv->name, err);
    if (!code) code = settle(&g->patch, conv->shape[2], "patch", conv->name, err);
    if (!code) code = settle(&g->pos_grid, grid, "pos_grid", pos->name, err);
    if (!code) code = settle(&g->depth, depth, "depth", "number of blocks", err);
    if (!code) code = settle(&g->hidden, hidden, "hidden", "feed-forward", err);
    if (!code) code = settle(&g->out, out, "out", "output", err);
    return code;
}

int geometry_infer(struct geometry *g, const struct weights *weights, int64_t head_dim, struct error *err)
{
    int code = geometry_shapes(g, weights, err);
    return code ? code : geometry_check(g, head_dim, err);
}

int geometry_fits(const struct geometry *g, int64_t target, const struct weights *weights, struct error *err)
{
    struct parameter *list;
    struct spelling spelling;
    int code = fit_family(&spelling, g->family, weights, err);
    if (code) return code;
    int count = parameters_list(g, target, &list);
    code = fit_shapes(&spelling, g->ffn, list, count, weights, err);
    free(list);
    return code;
}

/* Width of a head where only the tower's width is known: what all published vision transformers of that width
 * have (the 56 of open_clip, EVA, DINOv2, timm, transformers); 0: no idea. Widths that are no multiple of 64
 * are nobody's but our own samples'. */
static int64_t usual_head(int64_t width)
{
    static const struct {
        int64_t width, head;
    } published[] = {{1280, 80}, {1408, 88}, {1664, 104}, {1792, 112}};
    static const int64_t others[] = {64, 88, 80};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].width == width) return published[i].head;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (width % others[i] == 0) return others[i];
    return 0;
}

int64_t geometry_usual_heads(int64_t width)
{
    int64_t head = usual_head(width);
    return head ? width / head : 0;
}

static bool projected(const struct geometry *g)
{
    return family_has(family_row(g->family), ROLE_OUT_W) && !g->unprojected;
}

/* What nothing says is what the family's towers usually have. */
static int complete(struct geometry *g, const struct family_row *row, int64_t head_dim, struct error *err)
{
    if (!g->ffn) g->ffn = GELU;
    if (!g->patch) g->patch = 14;
    if (!g->out && !projected(g)) g->out = g->width;
    if (!g->hidden && g->width) g->hidden = 4 * g->width;
    if (!g->pos_grid) g->pos_grid = row->pos_grid ? row->pos_grid : g->image / g->patch;
    if (!g->image) g->image = (row->image_grid ? row->image_grid : g->pos_grid) * g->patch;
    if (g->heads || !g->width) return 0;
    g->heads_assumed = !head_dim;
    if (!head_dim && !(head_dim = usual_head(g->width)))
        return error_set(err, EXIT_CONFIG, "set heads or head_dim",
                         "no published tower is %lld wide, so nothing says how many heads it has",
                         (long long)g->width);
    if (g->width % head_dim)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "width %lld is no multiple of the head dimension %lld", (long long)g->width,
                         (long long)head_dim);
    g->heads = g->width / head_dim;
    return 0;
}

int geometry_check(struct geometry *g, int64_t head_dim, struct error *err)
{
    const struct family_row *row = family_row(g->family);
    if (!g->family)
        return error_set(err, EXIT_CONFIG, "set model.family, or an arch", "the tower's family is not known");
    int code = complete(g, row, head_dim, err);
    if (code) return code;
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
    if (g->registers < 0 || g->registers > 256 || (g->registers && !family_has(row, ROLE_REGISTERS)))
        return error_set(err, EXIT_CONFIG, NULL, "%lld registers in a tower of family %s, expected 0%s",
                         (long long)g->registers, row->name,
                         family_has(row, ROLE_REGISTERS) ? " to 256" : "");
    if (!projected(g) && g->out != g->width)
        return error_set(err, EXIT_CONFIG, "remove out",
                         "the output of a %s tower without projection is its width %lld, not %lld", row->name,
                         (long long)g->width, (long long)g->out);
    if (!family_key(row, ROLE_FC1_W, g->ffn))
        return error_set(err, EXIT_CONFIG, NULL, "no %s tower with a SwiGLU feed-forward is known",
                         row->name);
    return 0;
}

const char *geometry_activation(const struct geometry *g) { return ffn_name(g->ffn); }

const char *pos_resize_name(enum pos_resize resize)
{
    static const char *const libraries[] = {"", "dinov2", "hf", "timm"};
    return libraries[resize];
}

void geometry_text(const struct geometry *g, char *text, size_t size)
{
    char heads[48] = "", registers[48] = "", positions[64] = "";
    long long grid = g->pos_grid;
    if (g->registers) snprintf(registers, sizeof registers, ", %lld registers", (long long)g->registers);
    if (g->pos_grid != g->image / g->patch)
        snprintf(positions, sizeof positions, ", positions of %lldx%lld resized as %s does", grid, grid,
                 pos_resize_name(geometry_pos_resize(g)));
    if (g->heads_assumed)
        snprintf(heads, sizeof heads, " (assumed: %lld wide)", (long long)(g->width / g->heads));
    snprintf(text, size, "%s, %lld blocks of width %lld, %lld heads%s, %s%s, cls token%s%s%s, image %lld%s",
             family_name(g->family), (long long)g->depth, (long long)g->width, (long long)g->heads, heads,
             geometry_activation(g), g->activation_assumed ? " (assumed)" : "",
             g->pool_assumed ? " (assumed)" : "", g->unprojected ? ", no projection" : "", registers,
             (long long)g->image, positions);
}

int64_t geometry_patches(const struct geometry *g)
{
    int64_t side = g->image / g->patch;
    return side * side;
}
int64_t geometry_tokens(const struct geometry *g) { return 1 + g->registers + geometry_patches(g); }

bool geometry_resizes(const struct geometry *g)
{
    return family_row(g->family)->pos_matrix || g->pos_grid != g->image / g->patch;
}

enum pos_resize geometry_pos_resize(const struct geometry *g)
{
    if (g->pos_resize) return g->pos_resize;
    return g->registers ? POS_RESIZE_TIMM : family_row(g->family)->pos_resize;
}

size_t geometry_input_bytes(const struct geometry *g, int64_t count)
{
    return (size_t)(count * 3 * g->image * g->image) * sizeof(float);
}

double geometry_forward_flops(const struct geometry *g)
{
    double N = (double)geometry_tokens(g), d = (double)g->width, h = (double)g->hidden,
           p = (double)(3 * g->patch * g->patch);
    double c = g->ffn == SWIGLU ? 6 : 4;
    double projection = !projected(g) ? 0 : 2 * d * (double)g->out;
    return 2 * (double)geometry_patches(g) * p * d +
           (double)g->depth * (8 * N * d * d + 4 * N * N * d + c * N * d * h) + projection;
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
    int64_t sum = 0;
    for (int i = parameters_list(g, 0, &list); i-- > 0;) sum += list[i].count;
    free(list);
    return sum;
}
