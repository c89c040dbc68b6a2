/* The shape of a language model, from names and shapes of a checkpoint's tensors, from its metadata (files of
 * meopt) and from config.json. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/model/language_config.h"
#include "core/model/metadata.h"
#include "core/model/model_shape_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int settle_table(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        const struct language_config *c, struct error *err)
{
    static const enum fact sizes[] = {FACT_POSITIONS, FACT_WIDTH, FACT_VOCABULARY, FACT_COUNT};
    const struct weights_tensor *table, *positions = NULL;
    int code = shape_need(weights, key_map, ROLE_TOKENS, 0, &table, err);
    if (!code && family_has(family_row(key_map->family), ROLE_POS))
        code = shape_need(weights, key_map, ROLE_POS, 0, &positions, err);
    if (!code) code = shape_settle(g, FACT_WIDTH, table->shape[1], table->name, err);
    if (!code) code = shape_settle(g, FACT_VOCABULARY, table->shape[0], table->name, err);
    if (!code && positions) code = shape_settle(g, FACT_POSITIONS, positions->shape[0], positions->name, err);
    if (!code && !positions) fact_take(g, FACT_POSITIONS, &c->says, SOURCE_SIDECAR);
    return code ? code : compare(c, g, sizes, err);
}

static int settle_blocks(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                         const struct language_config *c, int ffn, struct error *err)
{
    static const enum fact sizes[] = {FACT_DEPTH, FACT_HIDDEN, FACT_COUNT};
    const struct weights_tensor *fc;
    int64_t depth;
    int code = shape_count_blocks(key_map, weights, ffn, &depth, err);
    if (!code) code = shape_settle(g, FACT_DEPTH, depth, "number of blocks", err);
    if (!code) code = shape_need(weights, key_map, ROLE_FC2_W, ffn, &fc, err);
    if (code) return code;
    int64_t hidden = fc->shape[!names_place(key_map, weights, ROLE_FC2_W, 0, ffn).transposed];
    code = shape_settle(g, FACT_HIDDEN, hidden, fc->name, err);
    return code ? code : compare(c, g, sizes, err);
}

/* Determines the rows of the queries and of the keys. */
static int find_rows(struct found *f, const struct key_map *key_map, const struct weights *weights, int ffn,
                     struct error *err)
{
    const struct weights_tensor *qkv, *proj;
    struct values_place place = names_place(key_map, weights, ROLE_QKV_W, 0, ffn);
    int code = shape_need(weights, key_map, ROLE_QKV_W, ffn, &qkv, err);
    if (!code) code = shape_need(weights, key_map, ROLE_PROJ_W, ffn, &proj, err);
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
    int code = shape_settle(g, FACT_HEADS, f->attn / dim, f->tensor, err);
    if (!code) code = shape_settle(g, FACT_KV_HEADS, f->kv / dim, f->tensor, err);
    if (!code) code = shape_settle(g, FACT_HEAD_DIM, dim, f->tensor, err);
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

/* BERT's head is its token table; a file may have copies of the table and of the bias. */
static int check_copies(const struct key_map *key_map, const struct weights *weights, struct error *err)
{
    static const struct {
        const char *key;
        enum role of;
    } copies[] = {{"cls.predictions.decoder.weight", ROLE_TOKENS},
                  {"cls.predictions.decoder.bias", ROLE_LM_BIAS}};
    for (size_t i = 0; i < 2 && family_encoder(family_row(key_map->family)); i++) {
        int64_t copy = weights_find_under(weights, &key_map->prefix, copies[i].key),
                of = names_tensor(key_map, weights, copies[i].of, 0, 0);
        bool same = true;
        int code = copy >= 0 && of >= 0 ? same_values(weights, copy, of, &same, err) : 0;
        if (code || !same)
            return code ? code : refuse_tied(copies[i].key, weights_tensor(weights, of)->name, err);
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
    if (head < 0) return check_copies(key_map, weights, err);
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

/* Properties that no tensor shows. */
static const enum fact unshown[] = {FACT_HEADS, FACT_WINDOW, FACT_ROPE_THETA, FACT_ACTIVATION, FACT_NORM_EPS};
enum { UNSHOWN = sizeof unshown / sizeof *unshown };

static void warn_difference(const char *name, const char *says, const char *is)
{
    log_warn("config.json differs from the metadata in the weights and is used: %s %s instead of %s", name,
             says, is);
}

/* Says where config.json differs from the metadata of a file that meopt wrote: the former is the newer word,
 * for people edit it. */
static void warn_differences(const struct model_shape *c, const struct model_shape *own)
{
    const struct rope_of_tokens *r = &c->rope, *s = &own->rope;
    char says[FACT_TEXT], is[FACT_TEXT];
    for (size_t i = 0; i < UNSHOWN; i++) {
        double value = fact_value(own, unshown[i]), differ = fabs(fact_value(c, unshown[i]) - value);
        if (differ > 1e-6 * value && (value > 0 || unshown[i] != FACT_ACTIVATION)) /* they omit a gated one */
            warn_difference(fact_rows[unshown[i]].name, fact_text(c, unshown[i], false, says),
                            fact_text(own, unshown[i], false, is));
    }
    snprintf(says, sizeof says, "%s %g", language_rope_type(r->scaling), r->factor);
    snprintf(is, sizeof is, "%s %g", language_rope_type(s->scaling), s->factor);
    if (strcmp(says, is) != 0) warn_difference("rope_scaling", says, is);
}

/* Writes the values of the files that keys have replaced: "heads 8, no window". */
static void list_replaced(struct model_shape *g, const struct model_shape *says, double dropout)
{
    char *text = g->facts.replaced, value[FACT_TEXT];
    size_t size = sizeof g->facts.replaced, n = 0;
    for (size_t i = 0; i < UNSHOWN && n < size; i++) {
        enum fact f = unshown[i];
        bool none = !(fact_value(says, f) > 0), applies = f != FACT_ROPE_THETA || model_shape_rotates(g);
        if (!applies || (none && f != FACT_WINDOW) || !(fabs(fact_value(says, f) - fact_value(g, f)) > 0))
            continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s %s", n ? ", " : "", none ? "no" : fact_rows[f].name,
                              none ? fact_rows[f].name : fact_text(says, f, false, value));
    }
    if (dropout > 0 && n < size)
        snprintf(text + n, size - n, "%sdropout %g, which is not applied", n ? ", " : "", dropout);
}

/* Sets the properties that no tensor shows: keys replace values of the files, and these those of a preset. */
static void settle_rest(struct model_shape *g, const struct found *f, int ffn, bool transposed)
{
    const struct model_shape *says = f->says;
    double theta = g->facts.from[FACT_ROPE_THETA] == SOURCE_KEY ? g->rope.theta : 0;
    bool gated = ffn == 1 + ACTIVATION_SWIGLU;
    if (f->config.says.family && f->own.heads) warn_differences(&f->config.says, &f->own);
    if (gated) fact_set(g, FACT_ACTIVATION, ffn, SOURCE_TENSORS);
    if (says->heads) {
        g->rope = says->rope; /* with its scaling, also if a key gives the base */
        fact_set(g, FACT_ROPE_THETA, theta > 0 ? theta : says->rope.theta, theta > 0 ? SOURCE_KEY : f->from);
        if (g->facts.from[FACT_WINDOW] != SOURCE_KEY) /* 0 is a value: no window */
            fact_set(g, FACT_WINDOW, (double)says->window, f->from);
        if (f->from == SOURCE_METADATA && says->positions)
            fact_set(g, FACT_POSITIONS, (double)says->positions, f->from);
        fact_take(g, FACT_NORM_EPS, says, f->from);
        if (!gated) fact_take(g, FACT_ACTIVATION, says, f->from);
        list_replaced(g, says, f->config.dropout);
    }
    if (!g->ffn) { /* nanoGPT's matrices are not transposed, and its GELU is the exact one */
        g->ffn = transposed ? family_ffn(g->family) : 1 + ACTIVATION_GELU;
        facts_assume(g, FACT_BIT(ACTIVATION));
    }
    if (!(g->norm_eps > 0)) facts_assume(g, FACT_BIT(NORM_EPS));
    if (model_shape_rotates(g) && !(g->rope.theta > 0)) facts_assume(g, FACT_BIT(ROPE_THETA));
}

int language_shape_dims(struct model_shape *g, const struct key_map *key_map, const struct weights *weights,
                        const struct language_config *config, struct error *err)
{
    struct found f = {.config = *config};
    int ffn = names_ffn(key_map, weights);
    int code = metadata_read(&f.own, weights, err);
    if (code) return code;
    if (!f.config.says.family && !f.own.heads) language_config_arguments(&f.config, weights);
    f.says = f.config.says.family ? &f.config.says : &f.own;
    f.from = f.says == &f.own || !f.config.type[0] ? SOURCE_METADATA : SOURCE_SIDECAR; /* also nanoGPT's */
    code = settle_table(g, key_map, weights, &f.config, err);
    if (!code) code = settle_blocks(g, key_map, weights, &f.config, ffn, err);
    if (!code) code = shape_settle_parts(g, key_map, weights, ffn, err);
    if (!code) code = check_parts(g, &f, key_map, weights, ffn, err);
    if (!code) code = find_rows(&f, key_map, weights, ffn, err);
    if (!code) code = settle_heads(g, &f, key_map, weights, ffn, err);
    if (!code) code = settle_tied(g, &f, key_map, weights, err);
    bool transposed = names_place(key_map, weights, ROLE_FC2_W, 0, ffn).transposed;
    if (!code) settle_rest(g, &f, ffn, transposed);
    if (!code) settle_classes(g, key_map, weights);
    return code;
}
