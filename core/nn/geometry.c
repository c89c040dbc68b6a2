/* The model configuration of a tower, as the names and shapes of a checkpoint's tensors determine it. */
#include "core/base/log.h"
#include "core/nn/beside.h"
#include "core/nn/fit.h"
#include "core/nn/parameters.h"
#include "core/nn/positions.h"
#include "core/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GELU   (1 + ACTIVATION_GELU)
#define SWIGLU (1 + ACTIVATION_SWIGLU)
#define QUICK  (1 + ACTIVATION_QUICK_GELU)

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
        char key[80];
        size_t at = strlen(keys);
        snprintf(key, sizeof key, "%s%s", family_prefix((enum family)i),
                 family_row((enum family)i)->keys[ROLE_PATCH_W]);
        if (family_row((enum family)i)->keys[ROLE_POS]) /* those without have DINOv2's */
            snprintf(keys + at, sizeof keys - at, "%s%s", i == 1 ? "" : ", ", key);
    }
    const char *is = names_stranger(weights);
    if (is)
        return error_set(err, EXIT_CONFIG, "EVA-CLIP, OpenCLIP, DINOv2 and DINOv3 are known",
                         "holds no tower that is known here: it is %s", is);
    char called[64];
    if (beside_model(weights_path(weights), called, sizeof called))
        return error_set(err, EXIT_CONFIG, "EVA-CLIP, OpenCLIP, DINOv2 and DINOv3 are known",
                         "holds no tower that is known here: config.json beside it calls it %s", called);
    char unread[192] = "", name[80];
    const char *odd = weights_unread_name(weights, 0);
    if (odd)
        snprintf(unread, sizeof unread, "; %s is %s, which is not read",
                 name_printable(name, sizeof name, odd), weights_unread(weights, odd));
    return error_set(err, EXIT_CONFIG,
                     "expected a state dict of EVA-CLIP, OpenCLIP, DINOv2 or DINOv3 with an image tower",
                     "no known image tower among its %lld tensors (no %s)%s",
                     (long long)weights_count(weights), keys, unread);
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
    if ((*tensor)->count == 0 && (*tensor)->ndim == 1)
        return error_set(err, EXIT_CONFIG,
                         "save the model whole: zero_to_fp32.py of DeepSpeed, FULL_STATE_DICT of FSDP",
                         "tensor %s is empty: its values are with other ranks (ZeRO-3, FSDP)", place.first);
    if (fit_dimensions((*tensor)->ndim, (*tensor)->shape, &first) ==
        role_ndim(family_row(spelling->family), role))
        return 0;
    return error_set(err, EXIT_CONFIG, "is this the right file, and the right model.family?",
                     "%s tower: tensor %s has the wrong number of dimensions", family_name(spelling->family),
                     place.first);
}

/* The parts of the tower, of those that the family's have or lack. */
static int find_parts(const struct spelling *spelling, const struct weights *weights, int ffn)
{
    const struct family_row *row = family_row(spelling->family);
    int parts = PARTS_KNOWN | (row->parts & ~row->varies);
    for (enum role role = 0; role < ROLE_COUNT; role++)
        if (role_part(role) & row->varies && names_tensor(spelling, weights, role, 0, ffn) >= 0)
            parts |= role_part(role);
    return parts;
}

static int settle_parts(struct geometry *g, int found, struct error *err)
{
    static const char *const names[] = {"",
                                        "a norm before the blocks",
                                        "a norm inside the attention",
                                        "a norm inside the feed-forward",
                                        "biases of queries, keys and values",
                                        "pooling by attention"};
    for (int i = 1; i < 6 && g->parts; i++)
        if ((found ^ g->parts) & 1 << i)
            return error_set(err, EXIT_CONFIG, "is this the file for this arch?",
                             "the checkpoint has %s%s, the arch has %s", found & 1 << i ? "" : "not ",
                             names[i], found & 1 << i ? "not" : "them");
    g->parts = found;
    return 0;
}

/* A table of rotary positions, (P, dh) cosines or sines: does it hold what is computed here? It tells the
 * heads. */
static int check_table(struct geometry *g, const struct weights *weights, int64_t index, bool sines,
                       struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, index);
    int64_t side = t->ndim == 2 ? square_root(t->shape[0]) : -1, dh = t->ndim == 2 ? t->shape[1] : 0;
    struct geometry of_table = *g;
    char name[160];
    bool fits =
        side >= 1 && dh > 0 && dh % 4 == 0 && g->width % dh == 0 && (!g->heads || g->heads * dh == g->width);
    if (fits) g->heads = of_table.heads = g->width / dh;
    of_table.image = side * g->patch;
    float *table = fits ? xcalloc((size_t)t->count, sizeof *table) : NULL,
          *values = fits ? xcalloc((size_t)t->count, sizeof *values) : NULL;
    if (fits) positions_rotation(&of_table, table);
    int code = fits ? weights_read(weights, index, values, DTYPE_F32, err) : 0;
    for (int64_t i = 0; fits && !code && i < t->count; i++) {
        int64_t n = i / dh, pair = i % dh / 2; /* EVA's pairs are neighbours, with one angle */
        fits = fabsf(values[i] - table[n * dh + (sines ? dh / 2 : 0) + pair]) <= 1e-2f; /* bf16 */
    }
    free(table);
    free(values);
    if (code || fits) return code;
    return error_set(err, EXIT_CONFIG, "no tower with such rotary positions is known here",
                     "tensor %s holds other rotary positions than EVA02's",
                     name_printable(name, sizeof name, t->name));
}

/* The values of a small vector; xmalloc'ed. NULL with an error. */
static float *read_vector(const struct weights *weights, int64_t index, int64_t most, struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, index);
    char name[160];
    if (t->ndim != 1 || t->count < 1 || t->count > most) {
        error_set(err, EXIT_CONFIG, "is the file whole?", "tensor %s has %d dimensions and %lld values",
                  name_printable(name, sizeof name, t->name), t->ndim, (long long)t->count);
        return NULL;
    }
    float *values = xcalloc((size_t)t->count, sizeof *values);
    if (weights_read(weights, index, values, DTYPE_F32, err) == 0) return values;
    free(values);
    return NULL;
}

/* Periods of the rotary positions, (dh / 4): they are used as they are, and their number gives the heads. */
static int take_periods(struct geometry *g, const struct weights *weights, int64_t index, struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, index);
    char name[160];
    float *values = read_vector(weights, index, ROPE_MAX_PERIODS, err);
    if (!values) return EXIT_CONFIG;
    int64_t dh = 4 * t->count;
    bool fine = g->width % dh == 0 && (!g->heads || g->heads * dh == g->width);
    for (int64_t i = 0; i < t->count; i++) fine &= values[i] > 0 && isfinite(values[i]);
    if (fine) {
        g->heads = g->width / dh;
        g->rope_count = (int)t->count;
        memcpy(g->rope_periods, values, (size_t)t->count * sizeof *values);
        /* Meta's files keep them in bfloat16, and their class computes with them in float32; a class that was
         * made for bfloat16 rounds the angles, too */
        if (t->dtype == DTYPE_F32) g->assumed &= ~ASSUMED_POSITIONS;
    }
    free(values);
    if (fine) return 0;
    return error_set(
        err, EXIT_CONFIG, "is it the file for these heads?",
        "tensor %s has %lld periods: heads of %lld values do not go with a width of %lld and %lld heads",
        name_printable(name, sizeof name, t->name), (long long)t->count, (long long)dh, (long long)g->width,
        (long long)g->heads);
}

/* A mask of the bias of queries, keys and values. A bias of the keys changes no output. */
static int check_bias_mask(const struct weights *weights, int64_t index, struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, index);
    char name[160];
    float *values = read_vector(weights, index, 1 << 20, err);
    if (!values) return EXIT_CONFIG;
    bool fine = true;
    for (int64_t i = 0; i < t->count; i++) {
        bool key = i >= t->count / 3 && i < t->count - t->count / 3;
        fine &= isfinite(values[i]) && (key || !(values[i] < 1 || values[i] > 1));
    }
    free(values);
    if (fine) return 0;
    return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                     "tensor %s masks biases of queries or values, expected 1 for all of them",
                     name_printable(name, sizeof name, t->name));
}

static int check_tables(struct geometry *g, const struct spelling *spelling, const struct weights *weights,
                        struct error *err)
{
    size_t begin = strlen(spelling->begin);
    int code = 0;
    for (int64_t i = 0; i < weights_count(weights) && !code; i++) {
        const char *name = weights_tensor(weights, i)->name;
        char printable[160];
        int64_t block;
        if (strncmp(name, spelling->begin, begin) != 0) continue;
        const char *key = names_key(spelling, name, &block);
        enum names_use use = names_use(spelling, key, block >= 0);
        if (use == NAMES_PERIODS) code = take_periods(g, weights, i, err);
        if (use == NAMES_BIAS_MASK) code = check_bias_mask(weights, i, err);
        if (use != NAMES_COSINES && use != NAMES_SINES) continue;
        g->assumed &= ~ASSUMED_POSITIONS;
        if (geometry_rotates(g)) code = check_table(g, weights, i, use == NAMES_SINES, err);
        else
            code =
                error_set(err, EXIT_CONFIG, "without them the outputs would be another model's",
                          "tensor %s says rotary positions, which no %s tower with a plain feed-forward has "
                          "here",
                          name_printable(printable, sizeof printable, name), family_name(g->family));
    }
    return code;
}

/* What a file says of the tower beside its sizes. */
static int settle_kind(struct geometry *g, const struct spelling *spelling, const struct weights *weights,
                       int ffn, struct error *err)
{
    if (g->ffn && (g->ffn == SWIGLU) != (ffn == SWIGLU))
        return error_set(err, EXIT_CONFIG, NULL,
                         "the feed-forward is %s in the checkpoint, the configuration says %s",
                         geometry_activation(&(struct geometry){.ffn = ffn}), geometry_activation(g));
    if (!g->ffn) g->ffn = ffn;
    int64_t at = names_tensor(spelling, weights, ROLE_REGISTERS, 0, ffn);
    const struct weights_tensor *registers = at >= 0 ? weights_tensor(weights, at) : NULL;
    int64_t count = registers && registers->ndim == 3 ? registers->shape[1] : 0;
    if (g->registers && count != g->registers)
        return error_set(err, EXIT_CONFIG, "is this the file for this arch?",
                         "%lld registers are in the checkpoint, the arch has %lld", (long long)count,
                         (long long)g->registers);
    g->registers = count;
    at = names_tensor(spelling, weights, ROLE_POOL_QUERY, 0, ffn);
    const struct weights_tensor *queries = at >= 0 ? weights_tensor(weights, at) : NULL;
    g->pool_queries = queries && queries->ndim == 2 ? queries->shape[0] : 0;
    if (!g->pos_resize && names_pos_resize(spelling)) /* transformers with registers: as timm */
        g->pos_resize = count ? POS_RESIZE_TIMM : names_pos_resize(spelling);
    if (!g->pool) g->pool = names_pool(spelling);
    if (!(g->norm_eps > 0)) g->norm_eps = names_norm_eps(spelling);
    bool scaled = names_tensor(spelling, weights, ROLE_LS1, 0, ffn) >= 0;
    g->layerscale = scaled ? LAYERSCALE_WITH : LAYERSCALE_WITHOUT;
    return settle_parts(g, find_parts(spelling, weights, ffn), err);
}

static int count_blocks(const struct spelling *spelling, const struct weights *weights, int ffn,
                        int64_t *depth, struct error *err)
{
    *depth = 0;
    while (*depth < 1024 && names_tensor(spelling, weights, ROLE_NORM1_W, *depth, ffn) >= 0) ++*depth;
    if (fit_blocks(spelling, weights) == *depth) return 0;
    return error_set(err, EXIT_CONFIG, "is the file whole?",
                     "there is no block %lld in the %s tower, but the file has %lld blocks",
                     (long long)*depth, family_name(spelling->family),
                     (long long)fit_blocks(spelling, weights));
}

static int settle_positions(struct geometry *g, const struct spelling *spelling,
                            const struct weights *weights, int ffn, struct error *err)
{
    const struct weights_tensor *pos;
    if (!family_has(family_row(spelling->family), ROLE_POS)) return 0;
    int code = need(weights, spelling, ROLE_POS, ffn, &pos, err);
    if (code) return code;
    int64_t others = 1 - names_place(spelling, weights, ROLE_POS, 0, ffn).zero_rows;
    int64_t grid = square_root(pos->shape[pos->ndim - 2] - others);
    if (grid < 1)
        return error_set(err, EXIT_CONFIG,
                         others && square_root(pos->shape[pos->ndim - 2]) > 0
                             ? "it is a square number: towers without a class token, or one without position "
                               "(DeiT III, SigLIP, FlexiViT), are not known here"
                             : "positions of a square image are read, and with them that of the class token",
                         "the position embedding has %lld rows, expected %sa square number",
                         (long long)pos->shape[pos->ndim - 2], others ? "1 + " : "");
    return settle(&g->pos_grid, grid, "pos_grid", pos->name, err);
}

static int settle_sizes(struct geometry *g, const struct spelling *spelling, const struct weights *weights,
                        struct error *err)
{
    const struct family_row *row = family_row(spelling->family);
    int ffn = names_ffn(spelling, weights);
    const struct weights_tensor *conv, *fc, *last = NULL;
    int64_t depth = 0;
    int code = need(weights, spelling, ROLE_PATCH_W, ffn, &conv, err);
    if (!code) code = need(weights, spelling, ROLE_FC1_W, ffn, &fc, err);
    g->unprojected = row->out_optional && names_tensor(spelling, weights, ROLE_OUT_W, 0, ffn) < 0;
    if (!code && family_has(row, ROLE_OUT_W) && !g->unprojected)
        code = need(weights, spelling, ROLE_OUT_W, ffn, &last, err);
    if (!code) code = count_blocks(spelling, weights, ffn, &depth, err);
    if (!code) code = settle_kind(g, spelling, weights, ffn, err);
    if (code) return code;
    bool transposed = names_place(spelling, weights, ROLE_OUT_W, 0, ffn).transposed;
    int64_t parts = names_place(spelling, weights, ROLE_FC1_W, 0, ffn).parts;
    int64_t hidden = fc->shape[0] * (parts > 1 ? parts : 1) / (ffn == SWIGLU ? 2 : 1),
            out = last ? last->shape[row->out_transposed != transposed] : conv->shape[0];
    code = settle(&g->width, conv->shape[0], "width", conv->name, err);
    if (!code) code = settle(&g->patch, conv->shape[2], "patch", conv->name, err);
    if (!code) code = settle_positions(g, spelling, weights, ffn, err);
    if (!code) code = settle(&g->depth, depth, "depth", "number of blocks", err);
    if (!code) code = settle(&g->hidden, hidden, "hidden", "feed-forward", err);
    if (!code) code = settle(&g->out, out, "out", "output", err);
    return code;
}

int geometry_shapes(struct geometry *g, const struct weights *weights, struct error *err)
{
    struct spelling spelling;
    names_find(&spelling, weights);
    enum family family = spelling.family, wanted = g->family;
    if (family == FAMILY_UNKNOWN) return no_family(weights, err);
    if (spelling.any && spelling.prefix.other[0])
        return error_set(err, EXIT_CONFIG, "save the one that is meant alone",
                         "holds two towers, under %s and under %s", spelling.prefix.add,
                         spelling.prefix.other);
    if (spelling.any)
        log_info("%s: the tower's names begin with %s", weights_path(weights), spelling.prefix.add);
    else if (spelling.prefix.other[0])
        log_info("%s: the tower behind %s is taken, not the one behind %s", weights_path(weights),
                 spelling.prefix.add[0] ? spelling.prefix.add : "nothing", spelling.prefix.other);
    if (wanted && wanted != family)
        return error_set(
            err, EXIT_CONFIG,
            "correct the weight path, or model.family; a student of another family has model_s.family",
            "holds a %s tower, the configuration says %s", family_name(family), family_name(wanted));
    int code = fit_names(&spelling, weights, err);
    if (code) return code;
    g->family = family;
    bool given_norms = g->norms != NORMS_USUAL;
    g->assumed |= spelling.untold;
    g->classifier = spelling.classifier;
    code = settle_sizes(g, &spelling, weights, err);
    if (!code) code = check_tables(g, &spelling, weights, err);
    if (!given_norms && g->width == family_row(family)->postnorm_width) g->norms = NORMS_BEHIND;
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
static int64_t usual_head(const struct family_row *row, int64_t width)
{
    static const struct {
        int64_t width, head;
    } published[] = {{1280, 80}, {1408, 88}, {1664, 104}, {1792, 112}};
    static const int64_t others[] = {64, 88, 80};
    for (int i = 0; i < FAMILY_HEADS && row->heads[i].head; i++)
        if (row->heads[i].width == width || (!row->heads[i].width && width % row->heads[i].head == 0))
            return row->heads[i].head;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].width == width) return published[i].head;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (width % others[i] == 0) return others[i];
    return 0;
}

int64_t geometry_usual_heads(enum family family, int64_t width)
{
    int64_t head = usual_head(family_row(family), width);
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
    if (!g->patch) g->patch = row->patch ? row->patch : 14;
    if (!g->out && !projected(g)) g->out = g->width;
    if (!g->hidden && g->width) g->hidden = 4 * g->width;
    if (geometry_parts(g) & PART_ATTN_POOL && !g->pool_heads) g->pool_heads = 8; /* CLIPVisionCfg's */
    if (!g->pos_grid) g->pos_grid = row->pos_grid ? row->pos_grid : g->image / g->patch;
    bool usual = row->image_grid && (!family_has(row, ROLE_POS) || g->pos_grid == row->pos_grid);
    if (!g->image) g->image = (usual ? row->image_grid : g->pos_grid) * g->patch;
    if (!family_has(row, ROLE_POS)) g->pos_grid = g->image / g->patch; /* it stores none */
    if (g->heads && head_dim && g->heads * head_dim != g->width)
        return error_set(err, EXIT_CONFIG, "remove heads or head_dim",
                         "%lld heads of %lld values do not make a width of %lld", (long long)g->heads,
                         (long long)head_dim, (long long)g->width);
    if (g->heads) g->assumed &= ~ASSUMED_HEADS;
    if (g->heads || !g->width) return 0;
    if (head_dim) g->assumed &= ~ASSUMED_HEADS;
    else g->assumed |= ASSUMED_HEADS;
    if (!head_dim && !(head_dim = usual_head(row, g->width)))
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

static int check_attn_pool(const struct geometry *g, const struct family_row *row, struct error *err)
{
    if (g->pool_queries < 1 || g->pool_queries > 65536)
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "the %s tower pools by attention with %lld queries, expected 1 to 65536", row->name,
                         (long long)g->pool_queries);
    if (g->pool_heads < 1 || g->pool_heads > 1024 || g->out % g->pool_heads)
        return error_set(err, EXIT_CONFIG,
                         "attn_pooler_heads in open_clip_config.json beside the checkpoint says how many",
                         "out %lld is no multiple of the %lld heads of pooling by attention",
                         (long long)g->out, (long long)g->pool_heads);
    if (g->unprojected)
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "a %s tower that pools by attention without its projection is not known here",
                         row->name);
    if (g->pool <= POOL_CLS) return 0;
    return error_set(err, EXIT_CONFIG, "pool: cls, or no such key",
                     "pool is %s, but the tower pools by attention", geometry_pool(g));
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
    if (geometry_parts(g) & PART_ATTN_POOL && (code = check_attn_pool(g, row, err)) != 0) return code;
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
    if (geometry_rotates(g) && g->width / g->heads % 4)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "heads of %lld values cannot be rotated by row and column: no multiple of 4",
                         (long long)(g->width / g->heads));
    if (g->rope_count && g->rope_count * 4 * g->heads != g->width)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "the rotary positions have %d periods, expected %lld for heads of %lld values",
                         g->rope_count, (long long)(g->width / g->heads / 4),
                         (long long)(g->width / g->heads));
    if (g->norms == NORMS_BEHIND && !row->postnorm_width)
        return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                         "no %s tower whose norms stand behind the branches (postnorm) is known", row->name);
    if (g->norms == NORMS_BEHIND && (g->layerscale == LAYERSCALE_WITH || (!g->layerscale && row->layerscale)))
        return error_set(err, EXIT_CONFIG, "norm: pre, where that is right",
                         "a tower with LayerScale whose norms stand behind the branches is not known here");
    if (!family_key(row, ROLE_FC1_W, g->ffn))
        return error_set(err, EXIT_CONFIG, NULL, "no %s tower with a SwiGLU feed-forward is known",
                         row->name);
    return 0;
}

float geometry_norm_eps(const struct geometry *g)
{
    return g->norm_eps > 0 ? g->norm_eps : family_row(g->family)->norm_eps;
}

int64_t geometry_patches(const struct geometry *g)
{
    int64_t side = g->image / g->patch;
    return side * side;
}
int64_t geometry_tokens(const struct geometry *g) { return 1 + g->registers + geometry_patches(g); }

bool geometry_resizes(const struct geometry *g)
{
    const struct family_row *row = family_row(g->family);
    return family_has(row, ROLE_POS) && (row->pos_matrix || g->pos_grid != g->image / g->patch);
}

bool geometry_rotates(const struct geometry *g)
{
    const struct family_row *row = family_row(g->family);
    return row->rope != ROPE_NONE && (!row->rope_gated || g->ffn == SWIGLU);
}

int geometry_parts(const struct geometry *g)
{
    return g->parts ? g->parts : PARTS_KNOWN | family_row(g->family)->parts;
}

int64_t geometry_pooled(const struct geometry *g)
{
    return geometry_parts(g) & PART_ATTN_POOL ? g->out : g->width;
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
    double o = (double)g->out, projection = !projected(g) ? 0 : 2 * (double)geometry_pooled(g) * o;
    if (geometry_parts(g) & PART_ATTN_POOL) projection += 4 * N * d * o + 4 * N * o + 4 * o * o;
    return 2 * (double)geometry_patches(g) * p * d +
           (double)g->depth * (8 * N * d * d + 4 * N * N * d + c * N * d * h) + projection;
}

double geometry_attention_flops(const struct geometry *g)
{
    double N = (double)geometry_tokens(g);
    return (double)g->depth * 4 * N * N * (double)g->width;
}

double geometry_recompute_flops(const struct geometry *g, bool twice)
{
    double N = (double)geometry_tokens(g), d = (double)g->width,
           first = (g->ffn == SWIGLU ? 4 : 2) * N * d * (double)g->hidden;
    if (g->norms == NORMS_BEHIND) first += 2 * N * d * (double)g->hidden; /* to what the second norm sees */
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
