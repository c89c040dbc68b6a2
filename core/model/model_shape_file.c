/* The model shape of a tower or a language model, from the names and shapes of a checkpoint's tensors. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/model/sidecar.h"
#include "core/model/checkpoint_fit.h"
#include "core/model/language_config.h"
#include "core/model/metadata.h"
#include "core/model/names.h"
#include "core/model/parameters.h"
#include "core/model/positions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWIGLU (1 + ACTIVATION_SWIGLU)

/* Sets a size to `found`, or compares `found` with the value that is set. */
static int settle_size(struct model_shape *g, enum fact fact, int64_t found, const char *tensor,
                       struct error *err)
{
    int64_t is = (int64_t)fact_value(g, fact);
    if (is == 0) fact_set(g, fact, (double)found, SOURCE_TENSORS);
    if (is == 0 || is == found) return 0;
    return error_set(err, EXIT_CONFIG,
                     "check the weight path, or remove the key to use the checkpoint's value",
                     "%s is %lld in the checkpoint (%s), the configuration has %lld", fact_rows[fact].name,
                     (long long)found, tensor, (long long)is);
}

static const char supported[] = "supported: towers of EVA-CLIP, OpenCLIP, DINOv2/3, SigLIP, PE, C-RADIO; "
                                "GPT-2, the kin of Llama and of BERT";

/* Refuses the tensors' names of a type of language model that is supported: quantized, or under a prefix. */
static int refuse_names(const struct language_config *config, const struct weights *weights,
                        struct error *err)
{
    const char *table = family_row(config->says.family)->keys[ROLE_TOKENS], *end = strchr(table, '.');
    char printed[160];
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name, *hint, *meaning = fit_meaning(name, &hint);
        if (meaning && hint)
            return error_set(err, EXIT_CONFIG, hint,
                             "the %s model has tensor %s, which meopt does not read: %s", config->type,
                             name_printable(printed, sizeof printed, name), meaning);
    }
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        size_t n = strlen(name), m = strlen(end);
        if (n < m || strcmp(name + n - m, end) != 0 || strcmp(name, table) == 0) continue;
        return error_set(err, EXIT_CONFIG, "save the language model alone, under the names of its class",
                         "the %s model has tensor %s, expected the name %s", config->type,
                         name_printable(printed, sizeof printed, name), table);
    }
    const char *unread = weights_unread_name(weights, 0),
               *missing = names_missing(config->says.family, weights);
    if (!missing) missing = table;
    if (unread && strcmp(missing, table) != 0) missing = unread;
    return weights_refuse_missing(weights, missing, "check the weight path: is the file whole?", err);
}

static int no_family(const struct weights *weights, struct error *err)
{
    char keys[256] = "";
    for (int i = 1; i < FAMILY_COUNT; i++) {
        char key[80];
        size_t at = strlen(keys);
        if (family_language(family_row((enum family)i))) continue;
        snprintf(key, sizeof key, "%s%s", family_prefix((enum family)i),
                 family_row((enum family)i)->keys[ROLE_PATCH_W]);
        char named[sizeof key + 2];
        snprintf(named, sizeof named, ", %s", key);
        if (family_row((enum family)i)->keys[ROLE_POS] && !strstr(keys, named) &&
            !family_row((enum family)i)->classless) /* else DINOv2's */
            snprintf(keys + at, sizeof keys - at, "%s%s", i == 1 ? "" : ", ", key);
    }
    struct language_config config;
    int code = language_config_read(&config, weights_path(weights), err);
    if (code) return code;
    if (config.says.family) return refuse_names(&config, weights, err);
    char called[64];
    const char *is = names_unsupported(weights);
    bool typed = sidecar_model(weights_path(weights), called, sizeof called);
    if (typed && !(is && sidecar_type_known(called))) /* else the tensors say more than its type */
        return error_set(err, EXIT_CONFIG, supported,
                         "is not a supported model: its config.json has model type %s", called);
    if (is) return error_set(err, EXIT_CONFIG, supported, "is not a supported model: it is %s", is);
    char unread[192] = "", name[80];
    const char *odd = weights_unread_name(weights, 0);
    if (odd)
        snprintf(unread, sizeof unread, _("; %s is %s, which is not supported"),
                 name_printable(name, sizeof name, odd), weights_unread(weights, odd));
    return error_set(err, EXIT_CONFIG, supported, "no known model among its %lld tensors (no %s)%s",
                     (long long)weights_count(weights), keys, unread);
}

static int64_t square_root(int64_t n)
{
    int64_t r = 0;
    while ((r + 1) * (r + 1) <= n) r++;
    return r * r == n ? r : -1;
}

/* Returns in *tensor the first part of a parameter, of block 0 for those of blocks, with its role's
 * dimensions. */
static int need(const struct weights *weights, const struct key_map *key_map, enum role role, int ffn,
                const struct weights_tensor **tensor, struct error *err)
{
    struct values_place place = names_place(key_map, weights, role, 0, ffn);
    if (fit_absent(&place))
        return weights_refuse_missing(weights, place.first, "check the weight path and model.family", err);
    *tensor = weights_tensor(weights, place.tensor[0]);
    const int64_t *first;
    if ((*tensor)->count == 0 && (*tensor)->ndim == 1)
        return error_set(err, EXIT_CONFIG,
                         "save the model whole: zero_to_fp32.py of DeepSpeed, FULL_STATE_DICT of FSDP",
                         "tensor %s is empty: its values are on other ranks (ZeRO-3, FSDP)", place.first);
    if (fit_dimensions((*tensor)->ndim, (*tensor)->shape, &first) ==
        role_ndim(family_row(key_map->family), role))
        return 0;
    return error_set(err, EXIT_CONFIG, "check the weight path and model.family",
                     "%s model: tensor %s has the wrong number of dimensions", family_name(key_map->family),
                     place.first);
}

/* Determines the parts of the tower, among those that the family's towers may lack. */
static int find_parts(const struct key_map *key_map, const struct weights *weights, int ffn)
{
    const struct family_row *row = family_row(key_map->family);
    int parts = PARTS_KNOWN | (row->parts & ~row->varies);
    for (enum role role = 0; role < ROLE_COUNT; role++)
        if (role_part(role) & row->varies && names_tensor(key_map, weights, role, 0, ffn) >= 0)
            parts |= role_part(role);
    return parts;
}

/* Sets the parts of the tower, or compares them with those that are set. */
static int settle_parts(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        int ffn, struct error *err)
{
    int found = find_parts(key_map, weights, ffn);
    static const char *const names[] = {"",
                                        N_("a norm before the blocks"),
                                        N_("a norm inside the attention"),
                                        N_("a norm inside the feed-forward"),
                                        N_("biases of queries, keys and values"),
                                        N_("pooling by attention"),
                                        N_("norms of the queries and keys")};
    for (int i = 1; i < 7 && g->parts; i++)
        if ((found ^ g->parts) & 1 << i)
            return error_set(err, EXIT_CONFIG, "check the weight path and arch",
                             "the checkpoint has %s%s, the arch has %s", found & 1 << i ? "" : "not ",
                             names[i], found & 1 << i ? "not" : "them");
    g->parts = found;
    return 0;
}

/* Compares a table of rotary positions, (P, dh) cosines or sines, with the computed one. Its width gives the
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
    if (fits) fact_set(g, FACT_HEADS, (double)(g->width / dh), SOURCE_TENSORS);
    of_table.heads = g->heads;
    of_table.image = side * g->patch;
    float *table = fits ? xcalloc((size_t)t->count, sizeof *table) : NULL,
          *values = fits ? xcalloc((size_t)t->count, sizeof *values) : NULL;
    if (fits) positions_rotation(&of_table, table);
    int code = fits ? weights_read(weights, index, values, DTYPE_F32, err) : 0;
    for (int64_t i = 0; fits && !code && i < t->count; i++) {
        int64_t n = i / dh, pair = i % dh / 2; /* EVA's pairs are neighbours with one angle */
        fits = fabsf(values[i] - table[n * dh + (sines ? dh / 2 : 0) + pair]) <= 1e-2f; /* bf16 */
    }
    free(table);
    free(values);
    if (code || fits) return code;
    return error_set(err, EXIT_CONFIG, "towers with these rotary positions are not supported",
                     "tensor %s has rotary positions that differ from EVA02's",
                     name_printable(name, sizeof name, t->name));
}

/* Reads the values of a small vector (xmalloc). NULL with an error. */
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

/* Reads the periods of the rotary positions, (dh / 4). They are used unchanged, and their number gives the
 * heads. */
static int read_periods(struct model_shape *g, const struct weights *weights, int64_t index,
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
        fact_set(g, FACT_HEADS, (double)(g->width / dh), SOURCE_TENSORS);
        g->rope_count = (int)t->count;
        memcpy(g->rope_periods, values, (size_t)t->count * sizeof *values);
        /* Meta's files store them in bfloat16, and their class computes in float32; a class created in
         * bfloat16 also rounds the angles */
        if (t->dtype == DTYPE_F32) g->facts.from[FACT_POS_RESIZE] = SOURCE_TENSORS;
    }
    free(values);
    if (fine) return 0;
    return error_set(
        err, EXIT_CONFIG, "check the weight path and heads",
        "tensor %s has %lld periods (head dimension %lld), which does not match width %lld with %lld heads",
        name_printable(name, sizeof name, t->name), (long long)t->count, (long long)dh, (long long)g->width,
        (long long)g->heads);
}

/* Checks a mask of the bias of queries, keys and values. A bias of the keys changes no output. */
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

static int check_tables(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        struct error *err)
{
    size_t begin = strlen(key_map->begin);
    int code = 0;
    for (int64_t i = 0; i < weights_count(weights) && !code; i++) {
        const char *name = weights_tensor(weights, i)->name;
        char printable[160];
        int64_t block;
        if (strncmp(name, key_map->begin, begin) != 0) continue;
        const char *key = names_key(key_map, name, &block);
        enum names_use use = names_use(key_map, key, block >= 0);
        if (use == NAMES_PERIODS) code = read_periods(g, weights, i, err);
        if (use == NAMES_BIAS_MASK) code = check_bias_mask(weights, i, err);
        if (use != NAMES_COSINES && use != NAMES_SINES) continue;
        g->facts.from[FACT_POS_RESIZE] = SOURCE_TENSORS;
        if (model_shape_rotates(g)) code = check_table(g, weights, i, use == NAMES_SINES, err);
        else
            code = error_set(
                err, EXIT_CONFIG, "without them the outputs would differ from the model's",
                "tensor %s implies rotary positions, which no %s tower with a plain feed-forward has "
                "here",
                name_printable(printable, sizeof printable, name), family_name(g->family));
    }
    return code;
}

/* Sets the classes from the file's classifier, and its pooling: twice the width is that of POOL_CLS_AVG. */
static void settle_classifier(struct model_shape *g, const struct key_map *key_map,
                              const struct weights *weights)
{
    int64_t at = g->classes ? names_classifier(key_map, weights, "weight") : -1,
            patch = names_tensor(key_map, weights, ROLE_PATCH_W, 0, 1 + ACTIVATION_GELU);
    const struct weights_tensor *t = at >= 0 ? weights_tensor(weights, at) : NULL;
    if (!t || t->ndim != 2 || patch < 0) return;
    if (g->classes == CLASSES_UNKNOWN) g->classes = t->shape[0];
    if (g->pool || t->shape[1] != 2 * weights_tensor(weights, patch)->shape[0] || g->classless) return;
    fact_set(g, FACT_POOL, POOL_CLS_AVG, SOURCE_TENSORS);
}

/* Sets the remaining properties of the tower, which are no sizes. */
static int settle_kind(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                       int ffn, struct error *err)
{
    if (g->ffn && (g->ffn == SWIGLU) != (ffn == SWIGLU))
        return error_set(
            err, EXIT_CONFIG, "check the weight path, or remove the key to use the checkpoint's value",
            "the feed-forward is %s in the checkpoint, the configuration has %s",
            model_shape_activation(&(struct model_shape){.ffn = ffn}), model_shape_activation(g));
    if (!g->ffn) g->ffn = names_activation(key_map, ffn);
    int64_t at = names_tensor(key_map, weights, ROLE_REGISTERS, 0, ffn);
    const struct weights_tensor *registers = at >= 0 ? weights_tensor(weights, at) : NULL;
    int64_t count = registers && registers->ndim >= 2 ? registers->shape[registers->ndim - 2] : 0;
    g->classless = key_map->classless;
    int code = g->registers || count ? settle_size(g, FACT_REGISTERS, count, "register tokens", err) : 0;
    if (code) return code;
    at = names_tensor(key_map, weights, ROLE_POOL_QUERY, 0, ffn);
    const struct weights_tensor *queries = at >= 0 ? weights_tensor(weights, at) : NULL;
    g->pool_queries = queries && queries->ndim == 2 ? queries->shape[0] : 0;
    bool positioned = names_place(key_map, weights, ROLE_POS, 0, ffn).held_rows > 0;
    if (!g->pos_resize && names_pos_resize(key_map)) /* transformers with registers: as timm */
        g->pos_resize = count && !positioned ? POS_RESIZE_TIMM : names_pos_resize(key_map);
    settle_classifier(g, key_map, weights);
    if (!g->pool) g->pool = names_pool(key_map);
    if (!(g->norm_eps > 0)) g->norm_eps = names_norm_eps(key_map);
    enum layerscale scaled =
        names_tensor(key_map, weights, ROLE_LS1, 0, ffn) >= 0 ? LAYERSCALE_WITH : LAYERSCALE_WITHOUT;
    if (g->facts.from[FACT_LAYERSCALE] == SOURCE_KEY && g->layerscale != scaled)
        return error_set(err, EXIT_CONFIG, "remove the key to use the checkpoint's value",
                         "layerscale is %s in the checkpoint, the configuration has %s",
                         layerscale_names[scaled], layerscale_names[g->layerscale]);
    fact_set(g, FACT_LAYERSCALE, scaled, SOURCE_TENSORS);
    static const enum fact named[] = {FACT_ACTIVATION, FACT_POOL, FACT_NORM_EPS, FACT_POS_RESIZE};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (!g->facts.from[named[i]] && fact_value(g, named[i]) > 0) g->facts.from[named[i]] = SOURCE_TENSORS;
    return settle_parts(g, key_map, weights, ffn, err);
}

static int count_blocks(const struct key_map *key_map, const struct weights *weights, int ffn, int64_t *depth,
                        struct error *err)
{
    *depth = 0;
    while (*depth < 1024 && names_tensor(key_map, weights, ROLE_NORM1_W, *depth, ffn) >= 0) ++*depth;
    if (fit_blocks(key_map, weights) == *depth) return 0;
    struct values_place place = names_place(key_map, weights, ROLE_NORM1_W, *depth, ffn);
    return weights_refuse_missing(weights, place.first, "is the file whole?", err);
}

static int settle_positions(struct model_shape *g, const struct key_map *key_map,
                            const struct weights *weights, int ffn, struct error *err)
{
    const struct weights_tensor *pos;
    if (!family_has(family_row(key_map->family), ROLE_POS)) return 0;
    int code = need(weights, key_map, ROLE_POS, ffn, &pos, err);
    if (code) return code;
    struct values_place place = names_place(key_map, weights, ROLE_POS, 0, ffn);
    int64_t others = !key_map->classless - place.zero_rows + place.held_rows;
    int64_t grid = square_root(pos->shape[pos->ndim - 2] - others);
    if (grid < 1)
        return error_set(
            err, EXIT_CONFIG,
            square_root(pos->shape[pos->ndim - 2]) > 0
                ? N_("it is a square number: no such tower without a class token, or with one "
                     "without position, is known here")
                : N_("positions of a square image are read, and with them that of the class token"),
            "the position embedding has %lld rows, expected %lld + a square number",
            (long long)pos->shape[pos->ndim - 2], (long long)others);
    return settle_size(g, FACT_POS_GRID, grid, pos->name, err);
}

/* Returns the side of a patch, from the matrix of a convolution, or from (width, 3 patch^2). */
static int64_t patch_of(const struct weights_tensor *t)
{
    int64_t side = 1;
    while (t->ndim == 2 && 3 * side * side < t->shape[1]) side++;
    return t->ndim == 2 ? side : t->shape[2];
}

static int settle_sizes(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        struct error *err)
{
    const struct family_row *row = family_row(key_map->family);
    int ffn = names_ffn(key_map, weights);
    const struct weights_tensor *conv, *fc, *last = NULL;
    int64_t depth = 0;
    int code = need(weights, key_map, ROLE_PATCH_W, ffn, &conv, err);
    if (!code) code = need(weights, key_map, ROLE_FC1_W, ffn, &fc, err);
    g->projected = row->out_rare && names_tensor(key_map, weights, ROLE_OUT_W, 0, ffn) >= 0;
    g->unprojected =
        row->out_optional && !row->out_rare && names_tensor(key_map, weights, ROLE_OUT_W, 0, ffn) < 0;
    g->out_biasless = model_shape_projects(g) && family_has(row, ROLE_OUT_B) &&
                      names_tensor(key_map, weights, ROLE_OUT_B, 0, ffn) < 0;
    if (!code && model_shape_projects(g)) code = need(weights, key_map, ROLE_OUT_W, ffn, &last, err);
    if (!code) code = count_blocks(key_map, weights, ffn, &depth, err);
    if (!code) code = settle_kind(g, key_map, weights, ffn, err);
    if (code) return code;
    bool transposed = names_place(key_map, weights, ROLE_OUT_W, 0, ffn).transposed;
    int64_t parts = names_place(key_map, weights, ROLE_FC1_W, 0, ffn).parts;
    int64_t hidden = fc->shape[0] * (parts > 1 ? parts : 1) / (ffn == SWIGLU ? 2 : 1),
            out = last ? last->shape[row->out_transposed != transposed] : conv->shape[0];
    code = settle_size(g, FACT_WIDTH, conv->shape[0], conv->name, err);
    if (!code) code = settle_size(g, FACT_PATCH, patch_of(conv), conv->name, err);
    if (!code) code = settle_positions(g, key_map, weights, ffn, err);
    if (!code) code = settle_size(g, FACT_DEPTH, depth, "number of blocks", err);
    if (!code) code = settle_size(g, FACT_HIDDEN, hidden, "feed-forward", err);
    if (!code) code = settle_size(g, FACT_OUT, out, "output", err);
    return code;
}

/* ---- Language models: their metadata (files of meopt) and config.json have what no tensor shows ---- */

struct found {
    struct language_config config;
    struct model_shape own;         /* of the metadata */
    const struct model_shape *says; /* the description in use: config.json, else the metadata; empty: none */
    enum fact_source from;
    int64_t attn, kv;   /* rows of queries, and of keys */
    const char *tensor; /* that shows them */
};

/* Compares sizes in config.json with the tensors'. */
static int compare(const struct language_config *c, const struct model_shape *g, const enum fact *sizes,
                   struct error *err)
{
    for (; *sizes != FACT_COUNT; sizes++) {
        double says = fact_value(&c->says, *sizes), is = fact_value(g, *sizes);
        if (c->says.family && says > 0 && fabs(says - is) > 0)
            return error_set(err, EXIT_CONFIG, "use the config.json of this checkpoint",
                             "config.json has %s %lld, the tensors %lld", fact_rows[*sizes].member,
                             (long long)says, (long long)is);
    }
    return 0;
}

static int settle_token_sizes(struct model_shape *g, const struct key_map *key_map,
                              const struct weights *weights, const struct language_config *c, int ffn,
                              struct error *err)
{
    static const enum fact sizes[] = {FACT_POSITIONS, FACT_WIDTH, FACT_VOCABULARY, FACT_EMBEDDING,
                                      FACT_TYPES,     FACT_DEPTH, FACT_HIDDEN,     FACT_COUNT};
    const struct family_row *row = family_row(key_map->family);
    const struct weights_tensor *table, *positions = NULL, *norm = NULL, *fc;
    int64_t depth, types = names_tensor(key_map, weights, ROLE_TYPES, 0, 0); /* may have one row */
    int code = need(weights, key_map, ROLE_TOKENS, 0, &table, err);
    if (!code && family_has(row, ROLE_POS)) code = need(weights, key_map, ROLE_POS, 0, &positions, err);
    if (!code && family_has(row, ROLE_EMBED_W)) code = need(weights, key_map, ROLE_NORM1_W, ffn, &norm, err);
    if (!code && norm) code = settle_size(g, FACT_EMBEDDING, table->shape[1], table->name, err);
    if (!code && types >= 0)
        code = settle_size(g, FACT_TYPES, weights_tensor(weights, types)->shape[0], "token types", err);
    if (!code)
        code = settle_size(g, FACT_WIDTH, norm ? norm->shape[0] : table->shape[1],
                           norm ? norm->name : table->name, err);
    if (!code) code = settle_size(g, FACT_VOCABULARY, table->shape[0], table->name, err);
    if (!code && positions)
        code =
            settle_size(g, FACT_POSITIONS, positions->shape[0] - row->first_position, positions->name, err);
    if (!code && !positions) fact_take(g, FACT_POSITIONS, &c->says, SOURCE_SIDECAR);
    if (!code) code = count_blocks(key_map, weights, ffn, &depth, err);
    if (!code) code = settle_size(g, FACT_DEPTH, depth, "number of blocks", err);
    if (!code) code = need(weights, key_map, ROLE_FC2_W, ffn, &fc, err);
    if (code) return code;
    int64_t hidden = fc->shape[!names_place(key_map, weights, ROLE_FC2_W, 0, ffn).transposed];
    code = settle_size(g, FACT_HIDDEN, hidden, fc->name, err);
    return code ? code : compare(c, g, sizes, err);
}

/* Determines the rows of the queries and of the keys. */
static int find_rows(struct found *f, const struct key_map *key_map, const struct weights *weights, int ffn,
                     struct error *err)
{
    const struct weights_tensor *qkv, *proj;
    struct values_place place = names_place(key_map, weights, ROLE_QKV_W, 0, ffn);
    int code = need(weights, key_map, ROLE_QKV_W, ffn, &qkv, err);
    if (!code) code = need(weights, key_map, ROLE_PROJ_W, ffn, &proj, err);
    if (code) return code;
    f->attn = proj->shape[!place.transposed];
    f->kv = place.parts > 1 ? weights_tensor(weights, place.tensor[1])->shape[0]
                            : (qkv->shape[place.transposed] - f->attn) / 2;
    f->tensor = proj->name;
    return 0;
}

/* The width of a head comes from a norm of its queries, the metadata or config.json; or the number of heads
 * does, and the width follows. */
static int settle_heads(struct model_shape *g, const struct found *f, const struct key_map *key_map,
                        const struct weights *weights, int ffn, struct error *err)
{
    static const enum fact sizes[] = {FACT_HEAD_DIM, FACT_KV_HEADS, FACT_COUNT};
    const struct model_shape *says = f->says;
    int64_t norm = names_tensor(key_map, weights, ROLE_Q_NORM_W, 0, ffn),
            dim = norm < 0 ? 0 : weights_tensor(weights, norm)->count,
            heads = g->heads ? g->heads : says->heads;
    if (!dim && !g->heads) dim = g->head_dim ? g->head_dim : says->head_dim;
    if (!dim && !heads && !family_row(key_map->family)->rms) { /* all published GPT-2s */
        dim = 64;
        g->facts.from[FACT_HEADS] = SOURCE_ASSUMED;
    }
    if (!dim && !heads)
        return error_set(err, EXIT_CONFIG, "put the model's config.json next to it, or set model.heads",
                         "the number of heads is unknown: no tensor shows it, and there is no config.json");
    if (!dim) dim = f->attn / heads;
    if (dim < 1 || f->attn % dim || f->kv < dim || f->kv % dim || (heads && heads * dim != f->attn))
        return error_set(
            err, EXIT_CONFIG, "check heads, head_dim and the checkpoint's config.json",
            "%lld heads of %lld values do not match the %lld rows of queries and %lld of keys (%s)",
            (long long)heads, (long long)dim, (long long)f->attn, (long long)f->kv, f->tensor);
    if (heads && !g->heads) fact_set(g, FACT_HEADS, (double)heads, f->from);
    else if (!g->heads && fact_assumed(g, FACT_HEADS))
        fact_set(g, FACT_HEADS, (double)(f->attn / dim), SOURCE_ASSUMED);
    int code = settle_size(g, FACT_HEADS, f->attn / dim, f->tensor, err);
    if (!code) code = settle_size(g, FACT_KV_HEADS, f->kv / dim, f->tensor, err);
    if (!code) code = settle_size(g, FACT_HEAD_DIM, dim, f->tensor, err);
    return code ? code : compare(&f->config, g, sizes, err);
}

/* Returns whether two tensors have the same values. */
static int same_values(const struct weights *weights, int64_t a, int64_t b, bool *same, struct error *err)
{
    const struct weights_tensor *t = weights_tensor(weights, a), *u = weights_tensor(weights, b);
    *same = t->count == u->count && t->dtype == u->dtype;
    if (!*same) return 0;
    size_t bytes = (size_t)t->count * dtype_bytes(t->dtype);
    char *values = malloc(2 * bytes + 1);
    if (!values) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %zu bytes", 2 * bytes);
    int code = weights_read(weights, a, values, t->dtype, err);
    if (!code) code = weights_read(weights, b, values + bytes, t->dtype, err);
    if (!code) *same = memcmp(values, values + bytes, bytes) == 0;
    free(values);
    return code;
}

static int refuse_tied(const char *head, const char *table, struct error *err)
{
    return error_set(err, EXIT_CONFIG, "set tie_word_embeddings to false there if the head was trained apart",
                     "config.json ties the embeddings, but %s differs from %s", head, table);
}

/* An encoder's head is its token table; a file may have copies of the table and of the bias. */
static int check_copies(const struct found *f, const struct key_map *key_map, const struct weights *weights,
                        struct error *err)
{
    const struct family_row *row = family_row(key_map->family);
    bool head = names_tensor(key_map, weights, ROLE_LM_BIAS, 0, 0) >= 0;
    if (!family_encoder(row)) return 0;
    if (head && f->config.says.family && !f->config.says.tied)
        return error_set(err, EXIT_CONFIG, "tie them in transformers, and save the model again",
                         "config.json has tie_word_embeddings false, but the head here is the token table");
    for (int i = 0; i < FAMILY_COPIES && row->copies[i].key; i++) {
        int64_t copy = weights_find_under(weights, &key_map->prefix, row->copies[i].key),
                of = names_tensor(key_map, weights, row->copies[i].of, 0, 0);
        bool same = true;
        int code = copy >= 0 && of >= 0 ? same_values(weights, copy, of, &same, err) : 0;
        if (code || !same)
            return code ? code : refuse_tied(row->copies[i].key, weights_tensor(weights, of)->name, err);
    }
    return 0;
}

/* The head is the token table if config.json says so, or the file has no head, or the same values twice. */
static int settle_tied(struct model_shape *g, const struct found *f, const struct key_map *key_map,
                       const struct weights *weights, struct error *err)
{
    int64_t head = names_tensor(key_map, weights, ROLE_LM_HEAD, 0, 0),
            table = names_tensor(key_map, weights, ROLE_TOKENS, 0, 0);
    bool config = f->config.says.family, same = true;
    g->tied = head < 0 || (config && f->config.says.tied);
    if (config && !f->config.says.tied && head < 0 && family_row(g->family)->keys[ROLE_LM_HEAD])
        return error_set(err, EXIT_CONFIG, "use the file of the whole model (...ForCausalLM)",
                         "config.json has tie_word_embeddings false, but the checkpoint no lm_head.weight");
    if (head < 0) return check_copies(f, key_map, weights, err);
    if (!config && !f->own.heads) return same_values(weights, head, table, &g->tied, err);
    int code = g->tied ? same_values(weights, head, table, &same, err) : 0;
    if (code || same) return code;
    return refuse_tied(weights_tensor(weights, head)->name, weights_tensor(weights, table)->name, err);
}

/* Compares the parts of the tensors with those of config.json's class. */
static int check_parts(const struct model_shape *g, const struct found *f, const struct key_map *key_map,
                       const struct weights *weights, int ffn, struct error *err)
{
    static const struct {
        int part;
        enum role role;
    } parts[] = {{PART_QKV_BIAS, ROLE_QKV_B}, {PART_QK_NORM, ROLE_Q_NORM_W}};
    for (size_t i = 0; i < 2 && f->config.says.family; i++) {
        if (!((g->parts ^ f->config.says.parts) & parts[i].part)) continue;
        bool has = g->parts & parts[i].part;
        struct values_place place = names_place(key_map, weights, parts[i].role, 0, ffn);
        return error_set(err, EXIT_CONFIG, "use the config.json of this checkpoint",
                         has ? N_("config.json is of a %s model, which has no tensor %s")
                             : N_("config.json is of a %s model, but tensor %s is missing"),
                         f->config.type, has ? weights_tensor(weights, place.tensor[0])->name : place.first);
    }
    return 0;
}

/* Sets the classes from the file's classifier, of a family that has one. */
static void settle_classes(struct model_shape *g, const struct key_map *key_map,
                           const struct weights *weights)
{
    bool asked = g->classes == CLASSES_UNKNOWN && family_encoder(family_row(g->family));
    int64_t at = asked ? names_classifier(key_map, weights, "weight") : -1;
    const struct weights_tensor *t = at >= 0 ? weights_tensor(weights, at) : NULL;
    if (t && t->ndim == 2) g->classes = t->shape[0];
}

/* Writes the properties of `says` that no tensor shows, where those of `g` differ: "heads 8, no window". */
static void list_differences(const struct model_shape *says, const struct model_shape *g, char *text,
                             size_t size)
{
    static const enum fact unshown[] = {FACT_HEADS,      FACT_WINDOW,     FACT_BLOCK,
                                        FACT_ROPE_THETA, FACT_ACTIVATION, FACT_NORM_EPS};
    const struct rope_of_tokens *r = &says->rope;
    char value[FACT_TEXT];
    size_t n = 0;
    for (size_t i = 0; i < sizeof unshown / sizeof *unshown && n < size; i++) {
        enum fact f = unshown[i];
        double is = fact_value(says, f);
        bool none = !(is > 0), applies = f != FACT_ROPE_THETA || model_shape_rotates(g);
        if (!applies || (none && f != FACT_WINDOW) || fabs(is - fact_value(g, f)) <= 1e-6 * is) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s %s", n ? ", " : "", none ? "no" : fact_rows[f].name,
                              none ? fact_rows[f].name : fact_text(says, f, false, value));
    }
    if (n < size && (r->scaling != g->rope.scaling || fabs(r->factor - g->rope.factor) > 0))
        snprintf(text + n, size - n, "%srope_scaling %s %g", n ? ", " : "", language_rope_type(r->scaling),
                 r->factor);
}

/* Sets the properties that no tensor shows: keys replace values of the files, and these those of a preset. */
static void settle_rest(struct model_shape *g, const struct found *f, int ffn, bool transposed)
{
    const struct model_shape *says = f->says;
    double theta = g->facts.from[FACT_ROPE_THETA] == SOURCE_KEY ? g->rope.theta : 0;
    bool gated = ffn == 1 + ACTIVATION_SWIGLU;
    char other[160] = "";
    if (f->config.says.family && f->own.heads) /* people edit config.json: it is the newer word */
        list_differences(&f->own, &f->config.says, other, sizeof other);
    if (other[0])
        log_warn("config.json is used where it differs from the metadata in the weights, which have %s",
                 other);
    if (gated) fact_set(g, FACT_ACTIVATION, ffn, SOURCE_TENSORS);
    if (says->heads) {
        g->rope = says->rope; /* with its scaling, also if a key gives the base */
        fact_set(g, FACT_ROPE_THETA, theta > 0 ? theta : says->rope.theta, theta > 0 ? SOURCE_KEY : f->from);
        if (g->facts.from[FACT_WINDOW] != SOURCE_KEY) /* 0 is a value: no window */
            fact_set(g, FACT_WINDOW, (double)says->window, f->from);
        g->block = says->block;
        g->random = says->random;
        if (f->from == SOURCE_METADATA && says->positions)
            fact_set(g, FACT_POSITIONS, (double)says->positions, f->from);
        fact_take(g, FACT_NORM_EPS, says, f->from);
        if (!gated) fact_take(g, FACT_ACTIVATION, says, f->from);
        list_differences(says, g, g->facts.replaced, sizeof g->facts.replaced);
        size_t n = strlen(g->facts.replaced);
        if (f->config.dropout > 0)
            snprintf(g->facts.replaced + n, sizeof g->facts.replaced - n,
                     "%sdropout %g, which is not applied", n ? ", " : "", f->config.dropout);
    }
    if (!g->ffn) { /* nanoGPT's matrices are not transposed, and its GELU is the exact one */
        g->ffn = transposed ? family_ffn(g->family) : 1 + ACTIVATION_GELU;
        facts_assume(g, FACT_BIT(ACTIVATION));
    }
    if (!(g->norm_eps > 0)) facts_assume(g, FACT_BIT(NORM_EPS));
    if (!g->block && family_row(g->family)->block) facts_assume(g, FACT_BIT(BLOCK));
    if (model_shape_rotates(g) && !(g->rope.theta > 0)) facts_assume(g, FACT_BIT(ROPE_THETA));
}

/* The whole of model_shape_dims for a language model with this config.json. */
static int language_dims(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                         const struct language_config *config, struct error *err)
{
    struct found f = {.config = *config};
    int ffn = names_ffn(key_map, weights);
    int code = metadata_read(&f.own, weights, err);
    if (code) return code;
    if (!f.config.says.family && !f.own.heads) code = language_config_arguments(&f.config, weights, err);
    if (code) return code;
    f.says = f.config.says.family ? &f.config.says : &f.own;
    f.from = f.says == &f.own || !f.config.type[0] ? SOURCE_METADATA : SOURCE_SIDECAR; /* also nanoGPT's */
    code = settle_token_sizes(g, key_map, weights, &f.config, ffn, err);
    if (!code && !f.says->heads && g->types != family_row(key_map->family)->types)
        code = error_set(err, EXIT_CONFIG, "put the model's config.json next to it, or set model.family",
                         "a %s model has %lld token types, the checkpoint %lld", family_name(key_map->family),
                         (long long)family_row(key_map->family)->types, (long long)g->types);
    if (!code) code = settle_parts(g, key_map, weights, ffn, err);
    if (!code) code = check_parts(g, &f, key_map, weights, ffn, err);
    if (!code) code = find_rows(&f, key_map, weights, ffn, err);
    if (!code) code = settle_heads(g, &f, key_map, weights, ffn, err);
    if (!code) code = settle_tied(g, &f, key_map, weights, err);
    bool transposed = names_place(key_map, weights, ROLE_FC2_W, 0, ffn).transposed;
    if (!code) settle_rest(g, &f, ffn, transposed);
    if (!code) settle_classes(g, key_map, weights);
    return code;
}

/* Refuses a tensor outside the tower that changes its output. */
static int check_around(const struct key_map *key_map, const struct weights *weights, struct error *err)
{
    const char *around = names_around(key_map);
    char name[160];
    for (int64_t i = 0; around && i < weights_count(weights); i++)
        if (strstr(weights_tensor(weights, i)->name, around))
            return error_set(err, EXIT_CONFIG, "use a version of the model without it",
                             "tensor %s changes the outputs of the %s tower, and meopt does not read it",
                             name_printable(name, sizeof name, weights_tensor(weights, i)->name),
                             family_name(key_map->family));
    return 0;
}

static int dims_of(struct model_shape *g, const struct weights *weights, struct error *err)
{
    struct key_map key_map;
    names_find(&key_map, weights);
    enum family wanted = g->family;
    if (key_map.family == FAMILY_UNKNOWN) return no_family(weights, err);
    struct language_config config = {.type = ""};
    bool language = family_language(family_row(key_map.family));
    int code = language ? language_config_read(&config, weights_path(weights), err) : 0;
    if (!code) code = check_around(&key_map, weights, err);
    if (code) return code;
    enum family named = config.type[0] ? config.says.family : wanted;
    if (language && named && named != key_map.family) (void)names_find_as(&key_map, named, weights);
    enum family family = key_map.family;
    if (key_map.any && key_map.prefix.other[0])
        return error_set(err, EXIT_CONFIG, "save only the intended tower",
                         "has two towers, under %s and under %s", key_map.prefix.add, key_map.prefix.other);
    if (key_map.any)
        log_info("%s: the %s's names begin with %s", weights_path(weights), family_noun(family),
                 key_map.prefix.add);
    else if (key_map.prefix.other[0])
        log_info("%s: using weights under prefix %s (ignored: %s)", weights_path(weights),
                 key_map.prefix.add[0] ? key_map.prefix.add : "nothing", key_map.prefix.other);
    if (wanted && wanted != family)
        return error_set(
            err, EXIT_CONFIG,
            "correct the weight path, or model.family; a student of another family has model_s.family",
            "has a %s %s, the configuration has %s", family_name(family), family_noun(family),
            family_name(wanted));
    if (!code && language) code = language_config_check(&config, family, err);
    if (!code) code = fit_names(&key_map, weights, err);
    if (code) return code;
    g->family = family;
    if (language) return language_dims(g, &key_map, weights, &config, err);
    bool given_norms = g->norms != NORMS_USUAL;
    facts_assume(g, key_map.unsettled);
    g->classifier = key_map.classifier;
    code = settle_sizes(g, &key_map, weights, err);
    if (!code) code = check_tables(g, &key_map, weights, err);
    if (!given_norms && g->width == family_row(family)->postnorm_width) g->norms = POST_NORM;
    return code;
}

int model_shape_dims(struct model_shape *g, const struct weights *weights, struct error *err)
{
    int code = dims_of(g, weights, err);
    char called[64];
    size_t n = code && err ? strlen(err->what) : 0;
    /* a tower that differs in a tensor is known to people by the name of its class or architecture */
    if (n && code == EXIT_CONFIG && !model_shape_language(g) &&
        sidecar_model(weights_path(weights), called, sizeof called) && !strstr(err->what, called))
        snprintf(err->what + n, sizeof err->what - n, _("; its config.json says %s"), called);
    return code;
}

int model_shape_infer(struct model_shape *g, const struct weights *weights, int64_t head_dim,
                      struct error *err)
{
    facts_given(g);
    int code = model_shape_dims(g, weights, err);
    return code ? code : model_shape_check(g, head_dim, err);
}

int model_shape_fits(const struct model_shape *g, const struct outputs *outputs,
                     const struct weights *weights, struct error *err)
{
    struct parameter *list;
    struct key_map key_map;
    int code = fit_family(&key_map, g, weights, err);
    if (code) return code;
    struct model_shape whole = *g;
    whole.slices = 0;
    int count = parameters_list(&whole, outputs, &list);
    code = fit_shapes(&key_map, g->ffn, list, count, weights, err);
    free(list);
    return code;
}
