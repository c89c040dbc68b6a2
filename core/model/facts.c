/* The table of properties: see facts.h. */
#include "core/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 1024 };

// clang-format off
#define AT(field) offsetof(struct model_shape, field)
const struct fact_row fact_rows[FACT_VALUES] = {
    [FACT_WIDTH] = {"width", "hidden_size", "n_embd", FACT_INT, AT(width), NULL},
    [FACT_DEPTH] = {"depth", "num_hidden_layers", "n_layer", FACT_INT, AT(depth), NULL},
    [FACT_HEADS] = {"heads", "num_attention_heads", "n_head", FACT_INT, AT(heads), NULL},
    [FACT_KV_HEADS] = {"kv_heads", "num_key_value_heads", NULL, FACT_INT, AT(kv_heads), NULL},
    [FACT_HEAD_DIM] = {"head_dim", "head_dim", NULL, FACT_INT, AT(head_dim), NULL},
    [FACT_HIDDEN] = {"hidden", "intermediate_size", "n_inner", FACT_INT, AT(hidden), NULL},
    [FACT_OUT] = {"out", NULL, NULL, FACT_INT, AT(out), NULL},
    [FACT_PATCH] = {"patch", "patch_size", NULL, FACT_INT, AT(patch), NULL},
    [FACT_POS_GRID] = {"pos_grid", NULL, NULL, FACT_INT, AT(pos_grid), NULL},
    [FACT_VOCABULARY] = {"vocabulary", "vocab_size", NULL, FACT_INT, AT(vocabulary), NULL},
    [FACT_CONTEXT] = {"context", NULL, NULL, FACT_INT, AT(context), NULL},
    [FACT_POSITIONS] = {"positions", "max_position_embeddings", "n_positions", FACT_INT, AT(positions), NULL},
    [FACT_WINDOW] = {"window", NULL, NULL, FACT_INT, AT(window), NULL},
    [FACT_ACTIVATION] = {"activation", NULL, NULL, FACT_FFN, AT(ffn), NULL},
    [FACT_POOL] = {"pool", NULL, NULL, FACT_CHOICE, AT(pool), pool_names},
    [FACT_POOL_HEADS] = {"pool_heads", NULL, NULL, FACT_INT, AT(pool_heads), NULL},
    [FACT_NORM] = {"norm", NULL, NULL, FACT_CHOICE, AT(norms), norms_names},
    [FACT_NORM_EPS] = {"norm_eps", NULL, NULL, FACT_FLOAT, AT(norm_eps), NULL},
    [FACT_POS_RESIZE] = {"pos_resize", NULL, NULL, FACT_CHOICE, AT(pos_resize), pos_resize_names},
    [FACT_ROPE_THETA] = {"rope_theta", NULL, NULL, FACT_DOUBLE, AT(rope.theta), NULL},
};
// clang-format on
_Static_assert(sizeof(enum pool) == sizeof(int) && sizeof(enum norms) == sizeof(int) &&
                   sizeof(enum pos_resize) == sizeof(int),
               "choices are read as int");

double fact_value(const struct model_shape *g, enum fact fact)
{
    const void *at = (const char *)g + fact_rows[fact].offset;
    switch (fact_rows[fact].kind) {
    case FACT_INT: return (double)*(const int64_t *)at;
    case FACT_FLOAT: return (double)*(const float *)at;
    case FACT_DOUBLE: return *(const double *)at;
    default: return *(const int *)at;
    }
}

void fact_set(struct model_shape *g, enum fact fact, double value, enum fact_source from)
{
    void *at = (char *)g + fact_rows[fact].offset;
    switch (fact_rows[fact].kind) {
    case FACT_INT: *(int64_t *)at = (int64_t)value; break;
    case FACT_FLOAT: *(float *)at = (float)value; break;
    case FACT_DOUBLE: *(double *)at = value; break;
    default: *(int *)at = (int)value;
    }
    g->facts.from[fact] = (unsigned char)from;
}

void fact_take(struct model_shape *g, enum fact fact, const struct model_shape *says, enum fact_source from)
{
    double value = fact_value(says, fact);
    bool below = !g->facts.from[fact] || from < g->facts.from[fact];
    if (below && fabs(value) > 0) fact_set(g, fact, value, from);
}

const char *fact_text(const struct model_shape *g, enum fact fact, bool exact, char text[FACT_TEXT])
{
    const struct fact_row *row = &fact_rows[fact];
    double value = fact_value(g, fact);
    int digits = !exact && row->kind != FACT_INT ? 6 : row->kind == FACT_FLOAT ? 9 : 17;
    if (row->kind == FACT_FFN) snprintf(text, FACT_TEXT, "%s", model_shape_activation(g));
    else if (row->kind == FACT_CHOICE) snprintf(text, FACT_TEXT, "%s", row->words[(int)value]);
    else snprintf(text, FACT_TEXT, "%.*g", digits, value);
    return text;
}

bool fact_read(struct model_shape *g, enum fact fact, const char *text)
{
    const struct fact_row *row = &fact_rows[fact];
    bool integer = row->kind == FACT_INT;
    char *end;
    double value = 0;
    if (row->kind == FACT_FFN) value = activation_named(text);
    else if (row->kind == FACT_CHOICE)
        for (int i = 1; row->words[i]; i++) value = strcmp(row->words[i], text) == 0 ? i : value;
    else {
        value = integer ? (double)strtoll(text, &end, 10) : strtod(text, &end);
        if (end == text || *end || !(value > 0 && value < 1e30) || (integer && value > MAX_HEADS)) value = 0;
    }
    fact_set(g, fact, value, SOURCE_METADATA);
    return value > 0;
}

bool fact_assumed(const struct model_shape *g, enum fact fact)
{
    return g->facts.from[fact] == SOURCE_ASSUMED;
}

bool facts_assumed(const struct model_shape *g)
{
    return memchr(g->facts.from, SOURCE_ASSUMED, sizeof g->facts.from) != NULL;
}

void facts_given(struct model_shape *g)
{
    for (enum fact f = 0; f < FACT_VALUES; f++)
        if (!g->facts.from[f] && fabs(fact_value(g, f)) > 0) g->facts.from[f] = SOURCE_KEY;
}

void facts_assume(struct model_shape *g, int set)
{
    for (enum fact f = 0; f < FACT_COUNT; f++)
        if (set & 1 << f && !g->facts.from[f]) g->facts.from[f] = SOURCE_ASSUMED;
}

bool fact_differs(const struct model_shape *a, const struct model_shape *b, enum fact fact)
{
    double is = fact_value(a, fact), other = fact_value(b, fact);
    bool real = fact_rows[fact].kind == FACT_FLOAT || fact_rows[fact].kind == FACT_DOUBLE;
    return fabs(is) > 0 && fabs(other) > 0 && fabs(is - other) > (real ? 1e-5 * fabs(other) : 0);
}
