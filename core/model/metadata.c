/* Metadata of files that meopt writes: see metadata.h. */
#include "core/model/metadata.h"
#include "core/model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scalings[] = {
    [ROPE_UNSCALED] = "none", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};

static bool always_has(const struct model_shape *g) { return g->family != FAMILY_UNKNOWN; }
static bool has_images(const struct model_shape *g) { return !model_shape_language(g); }
static bool has_periods(const struct model_shape *g) { return g->rope_count > 0; }
static bool has_attn_pool(const struct model_shape *g) { return model_shape_parts(g) & PART_ATTN_POOL; }
static bool has_blocks(const struct model_shape *g) { return family_row(g->family)->block; }
static bool has_mlp(const struct model_shape *g) /* the shapes determine a gated one */
{
    return g->ffn != 1 + ACTIVATION_SWIGLU;
}

/* "%.9g" reproduces a float exactly. */
static void write_periods(const struct model_shape *g, char *text, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < g->rope_count; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%.9g", i ? " " : "", (double)g->rope_periods[i]);
}

/* Reads numbers above 0, separated by one space. */
static bool read_periods(const char *word, struct model_shape *g)
{
    char *end = NULL;
    for (const char *at = word; *at; at = end) {
        double value = strtod(at, &end);
        if (end == at || !(value > 0 && value < 1e30) || (*end && *end != ' ')) return false;
        if (g->rope_count == ROPE_MAX_PERIODS) return false;
        g->rope_periods[g->rope_count++] = (float)value;
    }
    return g->rope_count > 0;
}

static void write_language(const struct model_shape *g, char *text, size_t size)
{
    snprintf(text, size, "head_dim %lld window %lld positions %lld", (long long)model_shape_head_dim(g),
             (long long)g->window, (long long)g->positions);
}

static bool read_language(const char *word, struct model_shape *g)
{
    long long dim, window, positions;
    int end = 0;
    if (sscanf(word, "head_dim %9lld window %9lld positions %9lld%n", &dim, &window, &positions, &end) != 3 ||
        word[end] || dim < 1 || window < 0 || positions < 1)
        return false;
    g->head_dim = dim;
    g->window = window;
    g->positions = positions;
    return true;
}

static void write_blocks(const struct model_shape *g, char *text, size_t size)
{
    snprintf(text, size, "%lld %lld", (long long)g->block, (long long)g->random);
}

static bool read_blocks(const char *word, struct model_shape *g)
{
    long long block, random;
    int end = 0;
    if (sscanf(word, "%9lld %9lld%n", &block, &random, &end) != 2 || word[end] || !block ||
        block < BLOCK_NONE || random < 0)
        return false;
    g->block = block;
    g->random = random;
    return true;
}

/* "%.17g" reproduces a double exactly. */
static void write_rope(const struct model_shape *g, char *text, size_t size)
{
    const struct rope_of_tokens *r = &g->rope;
    snprintf(text, size, "%s %.17g %.17g %.17g %.17g %.17g %.17g", scalings[r->scaling], r->theta, r->factor,
             r->original, r->low, r->high, r->attention);
}

static bool read_rope(const char *word, struct model_shape *g)
{
    struct rope_of_tokens *r = &g->rope;
    double *const values[] = {&r->theta, &r->factor, &r->original, &r->low, &r->high, &r->attention};
    size_t n = strcspn(word, " "), kind = 0;
    while (kind < sizeof scalings / sizeof *scalings &&
           (strlen(scalings[kind]) != n || strncmp(word, scalings[kind], n) != 0))
        kind++;
    if (kind == sizeof scalings / sizeof *scalings) return false;
    r->scaling = (enum rope_scaling)kind;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char *end;
        if (word[n] != ' ') return false;
        word += n + 1;
        *values[i] = strtod(word, &end);
        if (end == word || !(*values[i] >= 0 && *values[i] < 1e30)) return false;
        n = (size_t)(end - word);
    }
    return !word[n];
}

/* The keys, in the order of the file. */
static const struct entry {
    const char *key;
    bool (*has)(const struct model_shape *g);
    enum fact fact; /* of its value; FACT_VALUES: several values, which the functions write and read */
    void (*write)(const struct model_shape *g, char *text, size_t size);
    bool (*read)(const char *word, struct model_shape *g);
} entries[] = {
    {"meopt.heads", always_has, FACT_HEADS, NULL, NULL},
    {"meopt.pos_resize", has_images, FACT_POS_RESIZE, NULL, NULL},
    {"meopt.pool", has_images, FACT_POOL, NULL, NULL},
    {"meopt.norm", always_has, FACT_NORM, NULL, NULL},
    {"meopt.norm_eps", always_has, FACT_NORM_EPS, NULL, NULL},
    {"meopt.language", model_shape_language, FACT_VALUES, write_language, read_language},
    {"meopt.blocks", has_blocks, FACT_VALUES, write_blocks, read_blocks},
    {"meopt.rope", model_shape_language, FACT_VALUES, write_rope, read_rope},
    {"meopt.rope_periods", has_periods, FACT_VALUES, write_periods, read_periods},
    {"meopt.pool_heads", has_attn_pool, FACT_POOL_HEADS, NULL, NULL},
    {"meopt.activation", has_mlp, FACT_ACTIVATION, NULL, NULL},
};
enum { ENTRIES = sizeof entries / sizeof *entries };

void metadata_make(struct metadata *n, const struct model_shape *g, bool always)
{
    struct model_shape plain = {.family = g->family, .registers = g->registers}, is = *g;
    bool gated = g->ffn == 1 + ACTIVATION_SWIGLU;
    is.pos_resize = model_shape_pos_resize(g);
    is.pool = g->pool ? g->pool : POOL_CLS;
    is.norms = g->norms ? g->norms : NORMS_BEFORE;
    is.norm_eps = model_shape_norm_eps(g);
    int64_t pool_heads = family_pool_heads(g->family) ? family_pool_heads(g->family) : g->heads;
    bool usual = (gated || g->ffn == family_ffn(g->family)) &&
                 is.pos_resize == model_shape_pos_resize(&plain) &&
                 g->heads == model_shape_usual_heads(g->family, g->width) && g->pool <= POOL_CLS &&
                 !model_shape_language(g) && g->norms != POST_NORM &&
                 g->width != family_row(g->family)->postnorm_width &&
                 !(fabsf(is.norm_eps - model_shape_norm_eps(&plain)) > 0) && !g->rope_count &&
                 (!has_attn_pool(g) || g->pool_heads == pool_heads);
    size_t at = 2, used = 0;
    *n = (struct metadata){.metadata = {"format", "pt"}}; /* required by transformers */
    for (size_t i = 0; i < ENTRIES && (!usual || always); i++) {
        char *text = n->text + used;
        if (!entries[i].has(g)) continue;
        if (entries[i].write) entries[i].write(g, text, sizeof n->text - used);
        else fact_text(&is, entries[i].fact, true, text);
        n->metadata[at++] = entries[i].key;
        n->metadata[at++] = text;
        used += strlen(text) + 1;
    }
}

int metadata_read(struct model_shape *says, const struct weights *weights, struct error *err)
{
    *says = (struct model_shape){.family = FAMILY_UNKNOWN};
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct entry *e = &entries[i];
        const char *word = weights_metadata(weights, e->key);
        char printed[64];
        if (!word || (e->read ? e->read(word, says) : fact_read(says, e->fact, word))) continue;
        return error_set(
            err, EXIT_CONFIG, "the file is of a different version or was edited: export it again",
            "metadata value %s = %s is not supported", e->key, name_printable(printed, sizeof printed, word));
    }
    return 0;
}
