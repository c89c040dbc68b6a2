/* Metadata of files that meopt writes: see metadata.h. */
#include "core/model/metadata.h"
#include "core/model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 1024 };
static const char heads_key[] = "meopt.heads", activation_key[] = "meopt.activation",
                  resize_key[] = "meopt.pos_resize", pool_key[] = "meopt.pool", norm_key[] = "meopt.norm",
                  pool_heads_key[] = "meopt.pool_heads", norm_eps_key[] = "meopt.norm_eps",
                  periods_key[] = "meopt.rope_periods", language_key[] = "meopt.language",
                  rope_key[] = "meopt.rope";
static const char *const scalings[] = {
    [ROPE_UNSCALED] = "none", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};

/* "%.9g" reproduces a float exactly. */
static void write_periods(struct metadata *n, const struct model_shape *g)
{
    size_t at = 0;
    for (int i = 0; i < g->rope_count; i++)
        at += (size_t)snprintf(n->rope_periods + at, sizeof n->rope_periods - at, "%s%.9g", i ? " " : "",
                               (double)g->rope_periods[i]);
}

/* "%.17g" reproduces a double exactly. */
static int make_language(struct metadata *n, const struct model_shape *g, int at)
{
    const struct rope_of_tokens *r = &g->rope;
    if (!model_shape_language(g)) return at;
    snprintf(n->language, sizeof n->language, "head_dim %lld window %lld positions %lld",
             (long long)model_shape_head_dim(g), (long long)g->window, (long long)g->positions);
    snprintf(n->rope, sizeof n->rope, "%s %.17g %.17g %.17g %.17g %.17g %.17g", scalings[r->scaling],
             r->theta, r->factor, r->original, r->low, r->high, r->attention);
    n->metadata[at++] = language_key;
    n->metadata[at++] = n->language;
    n->metadata[at++] = rope_key;
    n->metadata[at++] = n->rope;
    return at;
}

void metadata_make(struct metadata *n, const struct model_shape *g, bool always)
{
    struct model_shape plain = {.family = g->family, .registers = g->registers};
    bool gated = g->ffn == 1 + ACTIVATION_SWIGLU;
    bool usual = (gated || g->ffn == family_ffn(g->family)) &&
                 model_shape_pos_resize(g) == model_shape_pos_resize(&plain) &&
                 g->heads == model_shape_usual_heads(g->family, g->width) && g->pool <= POOL_CLS &&
                 !model_shape_language(g) && g->norms != POST_NORM &&
                 g->width != family_row(g->family)->postnorm_width &&
                 !(fabsf(model_shape_norm_eps(g) - model_shape_norm_eps(&plain)) > 0) && !g->rope_count;
    bool attn_pool = model_shape_parts(g) & PART_ATTN_POOL;
    int at = 0;
    *n = (struct metadata){.metadata = {NULL}};
    n->metadata[at++] = "format"; /* required by transformers */
    n->metadata[at++] = "pt";
    int64_t pool_heads = family_pool_heads(g->family) ? family_pool_heads(g->family) : g->heads;
    if (usual && !always && (!attn_pool || g->pool_heads == pool_heads)) return;
    snprintf(n->heads, sizeof n->heads, "%lld", (long long)g->heads);
    n->metadata[at++] = heads_key;
    n->metadata[at++] = n->heads;
    if (!model_shape_language(g)) {
        n->metadata[at++] = resize_key;
        n->metadata[at++] = pos_resize_name(model_shape_pos_resize(g));
        n->metadata[at++] = pool_key;
        n->metadata[at++] = model_shape_pool(g);
    }
    n->metadata[at++] = norm_key;
    n->metadata[at++] = model_shape_norms(g);
    snprintf(n->norm_eps, sizeof n->norm_eps, "%.9g", (double)model_shape_norm_eps(g));
    n->metadata[at++] = norm_eps_key;
    n->metadata[at++] = n->norm_eps;
    at = make_language(n, g, at);
    if (g->rope_count) {
        write_periods(n, g);
        n->metadata[at++] = periods_key;
        n->metadata[at++] = n->rope_periods;
    }
    if (attn_pool) {
        snprintf(n->pool_heads, sizeof n->pool_heads, "%lld", (long long)g->pool_heads);
        n->metadata[at++] = pool_heads_key;
        n->metadata[at++] = n->pool_heads;
    }
    if (gated) return; /* the shapes determine it */
    n->metadata[at++] = activation_key;
    n->metadata[at++] = model_shape_activation(g);
}

/* Returns the number of the word in the table, whose rows are counted from 1; 0: no word; -1: unknown. */
static int find_word(const char *const *words, const char *word)
{
    if (!word) return 0;
    for (int i = 1; words[i]; i++)
        if (strcmp(words[i], word) == 0) return i;
    return -1;
}

/* Reads a number of heads; 0: none; -1: invalid. */
static long long read_heads(const char *word)
{
    char *end;
    if (!word) return 0;
    long long count = strtoll(word, &end, 10);
    return count >= 1 && count <= MAX_HEADS && !*end ? count : -1;
}

/* Reads a number above 0; 0: none; -1: invalid. */
static double read_positive(const char *word, char **end)
{
    double value = word ? strtod(word, end) : 0;
    return !word || (*end != word && value > 0 && value < 1e30) ? value : -1;
}

/* Reads numbers separated by one space; returns their count, 0: none, -1: invalid. */
static int read_periods(const char *word, float *periods)
{
    int count = 0;
    char *end = NULL;
    for (const char *at = word; at && *at; at = end) {
        double value = count < ROPE_MAX_PERIODS ? read_positive(at, &end) : -1;
        if (value < 0 || (*end && *end != ' ')) return -1;
        periods[count++] = (float)value;
    }
    return word && !count ? -1 : count;
}

/* Reads head_dim, window and positions. */
static bool read_language(const char *word, struct metadata_found *found)
{
    long long dim, window, positions;
    int end = 0;
    if (!word) return true;
    if (sscanf(word, "head_dim %9lld window %9lld positions %9lld%n", &dim, &window, &positions, &end) != 3 ||
        word[end] || dim < 1 || window < 0 || positions < 1)
        return false;
    found->head_dim = dim;
    found->window = window;
    found->positions = positions;
    return true;
}

static bool read_rope(const char *word, struct rope_of_tokens *r)
{
    double *const values[] = {&r->theta, &r->factor, &r->original, &r->low, &r->high, &r->attention};
    size_t n = word ? strcspn(word, " ") : 0, kind = 0;
    if (!word) return true;
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

int metadata_read(struct metadata_found *found, const struct weights *weights, struct error *err)
{
    const char *words[] = {weights_metadata(weights, heads_key),    weights_metadata(weights, activation_key),
                           weights_metadata(weights, resize_key),   weights_metadata(weights, pool_key),
                           weights_metadata(weights, norm_key),     weights_metadata(weights, pool_heads_key),
                           weights_metadata(weights, norm_eps_key), weights_metadata(weights, periods_key),
                           weights_metadata(weights, language_key), weights_metadata(weights, rope_key)};
    static const char *const keys[] = {heads_key,      activation_key, resize_key,  pool_key,     norm_key,
                                       pool_heads_key, norm_eps_key,   periods_key, language_key, rope_key};
    long long heads = read_heads(words[0]), pool_heads = read_heads(words[5]);
    int ffn = words[1] ? activation_named(words[1]) : 0, resize = find_word(pos_resize_names, words[2]),
        pool = find_word(pool_names, words[3]), norm = find_word(norms_names, words[4]);
    char *end = NULL;
    double norm_eps = read_positive(words[6], &end);
    *found = (struct metadata_found){.heads = 0};
    int periods = read_periods(words[7], found->rope_periods);
    bool fine[] = {heads >= 0,
                   ffn > 0 || !words[1],
                   resize >= 0,
                   pool >= 0,
                   norm >= 0,
                   pool_heads >= 0,
                   norm_eps >= 0 && (!end || !*end),
                   periods >= 0,
                   read_language(words[8], found),
                   read_rope(words[9], &found->rope)};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        char printed[64];
        if (!fine[i])
            return error_set(err, EXIT_CONFIG,
                             "the file is of a different version or was edited: export it again",
                             "metadata value %s = %s is not supported", keys[i],
                             name_printable(printed, sizeof printed, words[i]));
    }
    found->heads = heads;
    found->ffn = ffn;
    found->pos_resize = (enum pos_resize)resize;
    found->pool = (enum pool)pool;
    found->norms = (enum norms)norm;
    found->pool_heads = pool_heads;
    found->norm_eps = norm_eps;
    found->rope_count = periods;
    return 0;
}
