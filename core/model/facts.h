/* The properties of a model that keys and files give: one row each, from which follow the YAML key that gives
 * it, the member of config.json and the metadata that say it, and the text of its value. The value is a field
 * of struct model_shape (0: not known); where it comes from is in its `facts`.
 *
 * Whatever describes a model (keys, sidecar config, metadata, preset) is read into a struct model_shape, and
 * these are merged in the order of enum fact_source. */
#ifndef MEOPT_MODEL_FACTS_H
#define MEOPT_MODEL_FACTS_H

#include <stdbool.h>
#include <stddef.h>

struct model_shape;

enum fact {
    FACT_WIDTH,
    FACT_DEPTH,
    FACT_HEADS,
    FACT_KV_HEADS,
    FACT_HEAD_DIM,
    FACT_HIDDEN,
    FACT_OUT,
    FACT_PATCH,
    FACT_POS_GRID,
    FACT_VOCABULARY,
    FACT_CONTEXT,
    FACT_POSITIONS,
    FACT_WINDOW,
    FACT_ACTIVATION,
    FACT_POOL,
    FACT_POOL_HEADS,
    FACT_NORM,
    FACT_NORM_EPS,
    FACT_POS_RESIZE, /* its source is also that of the rotary positions of images */
    FACT_ROPE_THETA, /* of a language model */
    FACT_VALUES,
    FACT_PROJECTION =
        FACT_VALUES, /* whether the last matrix is a projection or a classifier; a source alone */
    FACT_COUNT
};

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

enum fact_kind { FACT_INT, FACT_FLOAT, FACT_DOUBLE, FACT_CHOICE, FACT_FFN };
struct fact_row {
    const char *name;    /* model.NAME, in messages too */
    const char *member;  /* of config.json in transformers; NULL: differs by class, or none */
    const char *gpt2;    /* GPT-2's; NULL: the same */
    enum fact_kind kind; /* FACT_FFN: 1 + enum activation */
    size_t offset;       /* in struct model_shape */
    const char *const *words;
};
extern const struct fact_row fact_rows[FACT_VALUES];

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
/* Marks the properties of the set that nothing has given. */
void facts_assume(struct model_shape *model_shape, int set);
/* Whether both know the value, and it differs by more than rounding. */
bool fact_differs(const struct model_shape *a, const struct model_shape *b, enum fact fact);

#endif
