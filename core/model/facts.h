/* The properties of a model that keys and files give: one row each, from which follow the YAML key that gives
 * it, the member of config.json and the metadata that say it, and the text of its value. The value is a field
 * of struct model_shape (0: not known); where it comes from is in its `facts`.
 *
 * Whatever describes a model (keys, sidecar config, metadata, preset) is read into a struct model_shape, and
 * these are merged in the order of enum fact_source. */
#ifndef MEOPT_MODEL_FACTS_H
#define MEOPT_MODEL_FACTS_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_shape;

/* F(number, name, kind, field, most, words, member, {gpt2, distilbert})
 *   name     model.NAME is its key, if there is one; in messages too
 *   kind     of the field: INT int64_t, FLOAT, DOUBLE, CHOICE an enum with `words`, FFN 1 + enum activation
 *   most     of a size or number: its limit
 *   member   of config.json in transformers, and GPT-2's and DistilBERT's; NULL: differs by class, or none */
// clang-format off
#define FACTS(F) \
    F(IMAGE,      image,      INT,    image,      4096,    NULL, NULL, {NULL}) \
    F(PATCH,      patch,      INT,    patch,      256,     NULL, "patch_size", {NULL}) \
    F(POS_GRID,   pos_grid,   INT,    pos_grid,   1024,    NULL, NULL, {NULL}) \
    F(REGISTERS,  registers,  INT,    registers,  256,     NULL, "num_register_tokens", {NULL}) \
    F(VOCABULARY, vocabulary, INT,    vocabulary, 1 << 24, NULL, "vocab_size", {NULL}) \
    F(EMBEDDING,  embedding,  INT,    embedding,  65536,   NULL, "embedding_size", {NULL}) \
    F(TYPES,      types,      INT,    types,      65536,   NULL, "type_vocab_size", {NULL}) \
    F(CONTEXT,    context,    INT,    context,    1 << 24, NULL, NULL, {NULL}) \
    F(POSITIONS,  positions,  INT,    positions,  1 << 24, NULL, "max_position_embeddings", \
      {"n_positions"}) \
    F(WIDTH,      width,      INT,    width,      65536,   NULL, "hidden_size", {"n_embd", "dim"}) \
    F(DEPTH,      depth,      INT,    depth,      1024,    NULL, "num_hidden_layers", \
      {"n_layer", "n_layers"}) \
    F(HEADS,      heads,      INT,    heads,      1024,    NULL, "num_attention_heads", \
      {"n_head", "n_heads"}) \
    F(HEAD_DIM,   head_dim,   INT,    head_dim,   1024,    NULL, "head_dim", {NULL}) \
    F(KV_HEADS,   kv_heads,   INT,    kv_heads,   1024,    NULL, "num_key_value_heads", {NULL}) \
    F(HIDDEN,     hidden,     INT,    hidden,     1 << 20, NULL, "intermediate_size", \
      {"n_inner", "hidden_dim"}) \
    F(OUT,        out,        INT,    out,        1 << 20, NULL, NULL, {NULL}) \
    F(WINDOW,     window,     INT,    window,     1 << 30, NULL, NULL, {NULL}) \
    F(BLOCK,      block_size, INT,    block,      1 << 20, NULL, "block_size", {NULL}) \
    F(ACTIVATION, activation, FFN,    ffn,        0,       NULL, NULL, {NULL}) \
    F(POOL,       pool,       CHOICE, pool,       0,       pool_names, NULL, {NULL}) \
    F(POOL_HEADS, pool_heads, INT,    pool_heads, 1024,    NULL, NULL, {NULL}) \
    F(NORM,       norm,       CHOICE, norms,      0,       norms_names, NULL, {NULL}) \
    F(LAYERSCALE, layerscale, CHOICE, layerscale, 0,       layerscale_names, NULL, {NULL}) \
    F(NORM_EPS,   norm_eps,   FLOAT,  norm_eps,   1,       NULL, NULL, {NULL}) \
    F(POS_RESIZE, pos_resize, CHOICE, pos_resize, 0,       pos_resize_names, NULL, {NULL}) \
    F(ROPE_THETA, rope_theta, DOUBLE, rope.theta, 0,       NULL, NULL, {NULL})
#define FACT_NUMBER(number, ...) FACT_##number,
/* POS_RESIZE: its source is also that of the rotary positions of images; ROPE_THETA: of a language model.
 * FACT_PROJECTION has a source alone: whether the last matrix is a projection or a classifier. */
enum fact { FACTS(FACT_NUMBER) FACT_VALUES, FACT_PROJECTION = FACT_VALUES, FACT_COUNT };
// clang-format on

/* In order of authority. Sizes in tensors are compared with those of keys and presets. */
enum fact_source {
    SOURCE_FAMILY, /* the family's, or not known yet: below all others */
    SOURCE_KEY,
    SOURCE_SIDECAR,  /* config.json, open_clip_config.json */
    SOURCE_METADATA, /* of the weights, in files that meopt wrote */
    SOURCE_PRESET,   /* arch */
    SOURCE_TENSORS,  /* their names and shapes */
    SOURCE_ASSUMED   /* nothing gave it: the usual value, which model_shape_text marks with "(assumed)" */
};

struct model_facts {
    unsigned char from[FACT_COUNT]; /* enum fact_source */
    char replaced[112];             /* values of the files of a language model that keys replaced */
};

/* A set of properties. */
#define FACT_BIT(fact) (1 << FACT_##fact)

/* Whose names of members a class of language models has. */
enum fact_members { MEMBERS_USUAL, MEMBERS_GPT2, MEMBERS_DISTILBERT, MEMBERS_OWN = MEMBERS_DISTILBERT };
enum fact_kind { FACT_INT, FACT_FLOAT, FACT_DOUBLE, FACT_CHOICE, FACT_FFN };
struct fact_row {
    const char *name;
    enum fact_kind kind;
    size_t offset; /* in struct model_shape */
    int64_t most;
    const char *const *words;
    const char *member, *own[MEMBERS_OWN];
};
extern const struct fact_row fact_rows[FACT_VALUES];
/* Returns its member in the config.json of such a class. */
const char *fact_member(enum fact fact, enum fact_members of);

enum { FACT_TEXT = 32 };
double fact_value(const struct model_shape *model_shape, enum fact fact); /* 0: not known */
/* Writes the value as in YAML, to the last bit if `exact`; returns `text`. */
const char *fact_text(const struct model_shape *model_shape, enum fact fact, bool exact,
                      char text[FACT_TEXT]);
/* Reads such a text; false: it is no supported value. */
bool fact_read(struct model_shape *model_shape, enum fact fact, const char *text);
void fact_set(struct model_shape *model_shape, enum fact fact, double value, enum fact_source from);
/* Sets the value to that of `says`, if there is one and it has more authority. */
void fact_take(struct model_shape *model_shape, enum fact fact, const struct model_shape *says,
               enum fact_source from);
bool fact_assumed(const struct model_shape *model_shape, enum fact fact);
bool facts_assumed(const struct model_shape *model_shape); /* any of them */
/* Names the source of values that have none SOURCE_KEY: the caller gave them. */
void facts_given(struct model_shape *model_shape);
/* Refuses a size of the list (its end: FACT_COUNT) that is not set, or beyond its limit. */
int facts_check(const struct model_shape *model_shape, const enum fact *facts, struct error *err);
/* Marks the properties of the set that nothing has given. */
void facts_assume(struct model_shape *model_shape, int set);
/* Whether both know the value, and it differs by more than rounding. */
bool fact_differs(const struct model_shape *a, const struct model_shape *b, enum fact fact);

#endif
