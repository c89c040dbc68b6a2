/* How a checkpoint spells a tower: whose names its tensors have (the family's own repository, transformers,
 * timm), what wrappers put before them, and where a parameter's values lie. The values themselves are taken
 * as they are: parts of one matrix stand one behind the other, a projection may stand transposed, and that is
 * all. */
#ifndef MEOPT_NN_NAMES_H
#define MEOPT_NN_NAMES_H

#include "core/nn/family.h"

struct naming; /* a row of the table in names.c */

struct spelling {
    enum family family; /* FAMILY_UNKNOWN: no tower is there */
    const struct naming *naming;
    const char *tower;            /* before the tower's names, behind what wrappers put there: "visual." */
    struct weights_prefix prefix; /* that, and whether the tower was saved alone (weights.h) */
    char begin[128];              /* both: what every name of the tower begins with in the file */
    bool any;                     /* words that are not in the list of weights.h stand before the names */
    bool trunk;      /* timm's tower inside open_clip's: what stands beside it is the tower's, too */
    bool fc_norm;    /* timm's: the last norm is called fc_norm and stands behind the mean */
    bool all_tokens; /* EVA-CLIP's: the mean of all tokens, the class token among them */
    bool classless;  /* there is no class token */
    bool slotless;   /* there is one, without a position */
    int held;        /* so many register tokens have positions, before those of the patches */
    bool head;       /* open_clip's timm_proj: a projection next to the trunk */
    char outer[128]; /* what the name of a projection outside the tower begins with */
    bool classifier; /* head.* or classifier.* is a classifier, which is not read */
    int untold;      /* ASSUMED_... that files with these names do not settle */
};

/* Look for a tower. Costs some passes over the table of tensors. */
void names_find(struct spelling *spelling, const struct weights *weights);
/* What is there instead of a tower that is known: "a SigLIP tower (pooling by attention)"; NULL: unknown. */
const char *names_stranger(const struct weights *weights);

/* The spelling that a library's classes load strictly; false: none here for towers of that family. */
enum library { LIBRARY_TRANSFORMERS, LIBRARY_TIMM };
bool names_library(struct spelling *spelling, enum library library, const struct model_shape *model_shape);
/* The name of the part-th tensor of a parameter in such a file; false behind the last. */
bool names_part(const struct spelling *spelling, enum role role, int64_t block, int ffn, int part, char *name,
                size_t size);
/* What its classes have that a tower may lack. */
bool names_always_scales(const struct spelling *spelling);
bool names_always_registers(const struct spelling *spelling);
/* What of a tower a library has no place for. */
bool names_leaves_out(const struct spelling *spelling, enum role role);
/* A class token, and positions, are (1, 1, width) and (1, rows, width) there, whatever the family has. */
bool names_batched(const struct spelling *spelling);
bool names_flat(const struct spelling *spelling); /* positions are (rows, width) there */
/* A vector of zeros as long as the output that its classes ask for beside the projection; NULL: none. */
const char *names_zero(const struct spelling *spelling);

/* Where the values of a parameter are. */
enum { NAMES_PARTS = 3 };
struct values_place {
    int64_t tensor[NAMES_PARTS]; /* indices; parts of the parameter's rows, in order. -1: not there */
    int parts;                   /* 0: such a tower has no such parameter */
    int share[NAMES_PARTS];      /* of the parameter's rows, each part's in `shares` */
    int shares;
    int zero_rows;            /* rows of 0 before those in the file */
    int held_rows, held_from; /* rows of the positions that belong to the register tokens, and the first */
    int64_t added;            /* of register tokens: the tensor that holds their rows; -1: there is none */
    bool transposed;          /* stored (columns, rows) */
    int slice, slices;        /* slices > 0: the slice-th of as many equal parts of the tensor's rows */
    char first[384];          /* name in the file of the first part that is not there, else of the first */
};
/* block: of a role inside the blocks, else not looked at. ffn: 1 + enum activation. weights NULL: of a file
 * yet to be written, nothing is there. */
struct values_place names_place(const struct spelling *spelling, const struct weights *weights,
                                enum role role, int64_t block, int ffn);
/* Rows of the part-th part, of so many in all. */
static inline int64_t values_rows(const struct values_place *place, int part, int64_t rows)
{
    return rows / place->shares * place->share[part];
}
/* Index of its first tensor, -1 when a part is not there. */
int64_t names_tensor(const struct spelling *spelling, const struct weights *weights, enum role role,
                     int64_t block, int ffn);

/* The feed-forward in the first block: 1 + ACTIVATION_SWIGLU or 1 + ACTIVATION_GELU. */
int names_ffn(const struct spelling *spelling, const struct weights *weights);

/* Its usual activation in such files, where that is SWIGLU or not. */
int names_activation(const struct spelling *spelling, int ffn);
/* How the embedding is pooled, where names tell; else POOL_USUAL. */
enum pool names_pool(const struct spelling *spelling);
/* The usual epsilon of the norms in such files; 0: the family's. */
float names_norm_eps(const struct spelling *spelling);
/* How the library that wrote it resizes positions; POS_RESIZE_USUAL: as the family's own. */
enum pos_resize names_pos_resize(const struct spelling *spelling);

/* Does a tensor of that name belong to the tower, or to its projection? */
bool names_inside(const struct spelling *spelling, const char *name);
/* Its key in a block (*block its number) or outside (-1); not of the tower's prefix: the whole name. */
const char *names_key(const struct spelling *spelling, const char *name, int64_t *block);
enum names_use {
    NAMES_UNREAD,  /* nothing here knows it */
    NAMES_READ,    /* a parameter's */
    NAMES_IGNORED, /* changes no output */
    NAMES_COSINES, /* of rotary positions (P, dh), which are computed here: the same, or another model's */
    NAMES_SINES,
    NAMES_PERIODS,  /* of rotary positions (dh / 4) */
    NAMES_BIAS_MASK /* multiplies the bias of queries, keys and values: 1, any, 1 */
};
enum names_use names_use(const struct spelling *spelling, const char *key, bool in_block);

#endif
