/* The model configuration of a tower, as the names and shapes of a checkpoint's tensors determine it. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/nn/sidecar.h"
#include "core/nn/checkpoint_fit.h"
#include "core/nn/parameters.h"
#include "core/nn/positions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWIGLU (1 + ACTIVATION_SWIGLU)

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
        if (family_row((enum family)i)->keys[ROLE_POS] &&
            !family_row((enum family)i)->classless) /* else DINOv2's */
            snprintf(keys + at, sizeof keys - at, "%s%s", i == 1 ? "" : ", ", key);
    }
    const char *is = names_stranger(weights);
    if (is)
        return error_set(err, EXIT_CONFIG, "EVA-CLIP, OpenCLIP, DINOv2, DINOv3 and SigLIP are known",
                         "holds no tower that is known here: it is %s", is);
    char called[64];
    if (sidecar_model(weights_path(weights), called, sizeof called))
        return error_set(err, EXIT_CONFIG, "EVA-CLIP, OpenCLIP, DINOv2, DINOv3 and SigLIP are known",
                         "holds no tower that is known here: config.json beside it calls it %s", called);
    char unread[192] = "", name[80];
    const char *odd = weights_unread_name(weights, 0);
    if (odd)
        snprintf(unread, sizeof unread, "; %s is %s, which is not read",
                 name_printable(name, sizeof name, odd), weights_unread(weights, odd));
    return error_set(
        err, EXIT_CONFIG,
        "expected a state dict of EVA-CLIP, OpenCLIP, DINOv2, DINOv3 or SigLIP with an image tower",
        "no known image tower among its %lld tensors (no %s)%s", (long long)weights_count(weights), keys,
        unread);
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

static int settle_parts(struct model_shape *g, int found, struct error *err)
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
static int check_table(struct model_shape *g, const struct weights *weights, int64_t index, bool sines,
                       struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, index);
    int64_t side = t->ndim == 2 ? square_root(t->shape[0]) : -1, dh = t->ndim == 2 ? t->shape[1] : 0;
    struct model_shape of_table = *g;
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
static int take_periods(struct model_shape *g, const struct weights *weights, int64_t index,
                        struct error *err)
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

static int check_tables(struct model_shape *g, const struct spelling *spelling, const struct weights *weights,
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
        if (model_shape_rotates(g)) code = check_table(g, weights, i, use == NAMES_SINES, err);
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
static int settle_kind(struct model_shape *g, const struct spelling *spelling, const struct weights *weights,
                       int ffn, struct error *err)
{
    if (g->ffn && (g->ffn == SWIGLU) != (ffn == SWIGLU))
        return error_set(
            err, EXIT_CONFIG, NULL, "the feed-forward is %s in the checkpoint, the configuration says %s",
            model_shape_activation(&(struct model_shape){.ffn = ffn}), model_shape_activation(g));
    if (!g->ffn) g->ffn = names_activation(spelling, ffn);
    int64_t at = names_tensor(spelling, weights, ROLE_REGISTERS, 0, ffn);
    const struct weights_tensor *registers = at >= 0 ? weights_tensor(weights, at) : NULL;
    int64_t count = registers && registers->ndim == 3 ? registers->shape[1] : 0;
    g->classless = spelling->classless;
    if (g->registers && count != g->registers)
        return error_set(err, EXIT_CONFIG, "is this the file for this arch?",
                         "%lld registers are in the checkpoint, the arch has %lld", (long long)count,
                         (long long)g->registers);
    g->registers = count;
    at = names_tensor(spelling, weights, ROLE_POOL_QUERY, 0, ffn);
    const struct weights_tensor *queries = at >= 0 ? weights_tensor(weights, at) : NULL;
    g->pool_queries = queries && queries->ndim == 2 ? queries->shape[0] : 0;
    bool positioned = names_place(spelling, weights, ROLE_POS, 0, ffn).held_rows > 0;
    if (!g->pos_resize && names_pos_resize(spelling)) /* transformers with registers: as timm */
        g->pos_resize = count && !positioned ? POS_RESIZE_TIMM : names_pos_resize(spelling);
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

static int settle_positions(struct model_shape *g, const struct spelling *spelling,
                            const struct weights *weights, int ffn, struct error *err)
{
    const struct weights_tensor *pos;
    if (!family_has(family_row(spelling->family), ROLE_POS)) return 0;
    int code = need(weights, spelling, ROLE_POS, ffn, &pos, err);
    if (code) return code;
    struct values_place place = names_place(spelling, weights, ROLE_POS, 0, ffn);
    int64_t others = !spelling->classless - place.zero_rows + place.held_rows;
    int64_t grid = square_root(pos->shape[pos->ndim - 2] - others);
    if (grid < 1)
        return error_set(err, EXIT_CONFIG,
                         square_root(pos->shape[pos->ndim - 2]) > 0
                             ? "it is a square number: no such tower without a class token, or with one "
                               "without position, is known here"
                             : "positions of a square image are read, and with them that of the class token",
                         "the position embedding has %lld rows, expected %lld + a square number",
                         (long long)pos->shape[pos->ndim - 2], (long long)others);
    return settle(&g->pos_grid, grid, "pos_grid", pos->name, err);
}

static int settle_sizes(struct model_shape *g, const struct spelling *spelling, const struct weights *weights,
                        struct error *err)
{
    const struct family_row *row = family_row(spelling->family);
    int ffn = names_ffn(spelling, weights);
    const struct weights_tensor *conv, *fc, *last = NULL;
    int64_t depth = 0;
    int code = need(weights, spelling, ROLE_PATCH_W, ffn, &conv, err);
    if (!code) code = need(weights, spelling, ROLE_FC1_W, ffn, &fc, err);
    g->projected = row->out_rare && names_tensor(spelling, weights, ROLE_OUT_W, 0, ffn) >= 0;
    g->unprojected =
        row->out_optional && !row->out_rare && names_tensor(spelling, weights, ROLE_OUT_W, 0, ffn) < 0;
    g->out_biasless = model_shape_projects(g) && family_has(row, ROLE_OUT_B) &&
                      names_tensor(spelling, weights, ROLE_OUT_B, 0, ffn) < 0;
    if (!code && model_shape_projects(g)) code = need(weights, spelling, ROLE_OUT_W, ffn, &last, err);
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

int model_shape_dims(struct model_shape *g, const struct weights *weights, struct error *err)
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
    if (!given_norms && g->width == family_row(family)->postnorm_width) g->norms = POST_NORM;
    return code;
}

int model_shape_infer(struct model_shape *g, const struct weights *weights, int64_t head_dim,
                      struct error *err)
{
    int code = model_shape_dims(g, weights, err);
    return code ? code : model_shape_check(g, head_dim, err);
}

int model_shape_fits(const struct model_shape *g, int64_t target, const struct weights *weights,
                     struct error *err)
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
