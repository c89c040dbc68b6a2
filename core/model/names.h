/* The key mapping of a checkpoint: the library whose names its tensors have (the family's own repository,
 * transformers, timm), the prefixes of wrappers, and the location of each parameter's values. The values
 * themselves are read unchanged, except that parts of one matrix are concatenated and a projection may be
 * transposed. */
#ifndef MEOPT_MODEL_NAMES_H
#define MEOPT_MODEL_NAMES_H

#include "core/model/family.h"

struct key_mapping; /* a row of the table in key_mappings.c */

struct key_map {
    enum family family; /* FAMILY_UNKNOWN: no tower found */
    const struct key_mapping *mapping;
    const char *tower; /* prefix of the tower's names, after the wrappers' prefix: "visual." */
    struct weights_prefix
        prefix;      /* the wrappers' prefix, and whether the tower was saved alone (weights.h) */
    char begin[128]; /* both: the common prefix of all the tower's names in the file */
    bool any;        /* the prefix has words that are not in the list of weights.h */
    bool trunk;      /* timm's tower inside open_clip's: tensors next to the trunk also belong to it */
    bool fc_norm;    /* timm's: the last norm is called fc_norm and comes after the mean */
    bool all_tokens; /* EVA-CLIP's: the mean of all tokens, the class token included */
    bool classless;  /* no class token */
    bool class_unpositioned; /* a class token without a position */
    int held;                /* number of register tokens with positions, before those of the patches */
    bool head;               /* open_clip's timm_proj: a projection next to the trunk */
    char outer[128];         /* prefix of the name of a projection outside the tower */
    bool classifier;         /* head.* or classifier.* is a classifier, which is not read */
    int unsettled;           /* FACT_BIT(...) of the properties that these names leave open */
    int heads, kv_heads;     /* shares of the parts of queries, keys and values; 0: equal ones */
};

/* Finds the tower. Takes several passes over the table of tensors. */
void names_find(struct key_map *key_map, const struct weights *weights);
/* Returns whether the names are also those of another family of language models, whose classes save the same
 * ones: *key_map is then of that family. */
bool names_find_as(struct key_map *key_map, enum family family, const struct weights *weights);
/* Sets the heads of a language model, by which its queries, keys and values are cut. */
void names_set_heads(struct key_map *key_map, const struct model_shape *model_shape);
/* Returns the kind of a known but unsupported model: "a SigLIP tower (pooling by attention)"; NULL:
 * unknown. */
const char *names_unsupported(const struct weights *weights);
/* Returns the first name that transformers' files of a family always have, and this one has not; NULL: it has
 * all of them. */
const char *names_missing(enum family family, const struct weights *weights);

/* The key mapping that a library's classes load strictly; false: none for towers of that family. */
enum library { LIBRARY_TRANSFORMERS, LIBRARY_TIMM, LIBRARY_TORCHVISION };
extern const char *const library_names[]; /* "transformers", "timm", "torchvision" */
bool names_library(struct key_map *key_map, enum library library, const struct model_shape *model_shape);
/* Returns the name of the part-th tensor of a parameter in such a file; false after the last. */
bool names_part(const struct key_map *key_map, enum role role, int64_t block, int ffn, int part, char *name,
                size_t size);
/* Returns the name of a classifier's tensor in such a file, end "weight" or "bias"; false: its classes have
 * none. */
bool names_classifier_as(const struct key_map *key_map, const char *end, char *name, size_t size);
/* Returns whether that classifier reads the class token and the mean of the patches. */
bool names_widened(const struct key_map *key_map);
/* Returns whether its classes are plain ViTs, without LayerScale and registers. */
bool names_plain(const struct key_map *key_map);
/* Returns whether its classes always have LayerScale, which a tower may lack. */
bool names_always_scales(const struct key_map *key_map);
bool names_always_registers(const struct key_map *key_map);
/* Returns whether the library has no tensor for this role. */
bool names_leaves_out(const struct key_map *key_map, enum role role);
/* Returns whether class token and positions are (1, 1, width) and (1, rows, width), whatever the family
 * has. */
bool names_batched(const struct key_map *key_map);
bool names_flat(const struct key_map *key_map); /* positions are (rows, width) */
/* Returns the name of a vector of zeros, as long as the output, that its classes require next to the
 * projection; NULL: none. */
const char *names_zero(const struct key_map *key_map);

/* Location of a parameter's values. */
enum { NAMES_PARTS = 3 };
struct values_place {
    int64_t tensor[NAMES_PARTS]; /* indices; parts of the parameter's rows, in order. -1: absent */
    int parts;                   /* 0: such a tower has no such parameter */
    int share[NAMES_PARTS];      /* of the parameter's rows, each part's in `shares` */
    int shares;
    int zero_rows;            /* rows of 0 before those in the file */
    int held_rows, held_from; /* rows of the positions that belong to the register tokens, and the first */
    int64_t added;            /* for register tokens: the tensor with their position rows; -1: none */
    bool transposed;          /* stored (columns, rows) */
    int slice, slices;        /* slices > 0: the slice-th of that many equal parts of the tensor's rows */
    char first[384];          /* name in the file of the first absent part, else of the first */
};
/* block: for roles inside the blocks, otherwise ignored. ffn: 1 + enum activation. weights NULL: for a file
 * that is not written yet; all parts are absent. */
struct values_place names_place(const struct key_map *key_map, const struct weights *weights, enum role role,
                                int64_t block, int ffn);
/* Rows of the part-th part, if all parts have `rows`. */
static inline int64_t values_rows(const struct values_place *place, int part, int64_t rows)
{
    return rows / place->shares * place->share[part];
}
/* Index of its first tensor, -1 if a part is absent. */
int64_t names_tensor(const struct key_map *key_map, const struct weights *weights, enum role role,
                     int64_t block, int ffn);

/* The feed-forward in the first block: 1 + ACTIVATION_SWIGLU or 1 + ACTIVATION_GELU. */
int names_ffn(const struct key_map *key_map, const struct weights *weights);

/* Its default activation in such files, given whether it is SWIGLU. */
int names_activation(const struct key_map *key_map, int ffn);
/* The pooling, if the names determine it; else POOL_USUAL. */
enum pool names_pool(const struct key_map *key_map);
/* The default epsilon of the norms in such files; 0: the family's. */
float names_norm_eps(const struct key_map *key_map);
/* The resize method of the library that wrote it; POS_RESIZE_USUAL: the family's own. */
enum pos_resize names_pos_resize(const struct key_map *key_map);

/* Returns a part of the names of tensors outside the tower that change its output; NULL: there are none. */
const char *names_around(const struct key_map *key_map);

/* Returns the index of a classifier's tensor under the key of any library; -1: none. end: "weight" or "bias".
 * It may have any number of classes. */
int64_t names_classifier(const struct key_map *key_map, const struct weights *weights, const char *end);

/* Returns whether a tensor of that name belongs to the tower, or to its projection. */
bool names_inside(const struct key_map *key_map, const char *name);
/* Its key in a block (*block its number) or outside (-1); without the tower's prefix: the whole name. */
const char *names_key(const struct key_map *key_map, const char *name, int64_t *block);
enum names_use {
    NAMES_UNREAD,  /* unknown */
    NAMES_READ,    /* a parameter */
    NAMES_IGNORED, /* changes no output */
    NAMES_COSINES, /* rotary positions (P, dh), which are computed here: equal, or the model is unsupported */
    NAMES_SINES,
    NAMES_PERIODS,  /* periods of rotary positions (dh / 4) */
    NAMES_BIAS_MASK /* multiplies the bias of queries, keys and values: 1, any, 1 */
};
enum names_use names_use(const struct key_map *key_map, const char *key, bool in_block);

#endif
