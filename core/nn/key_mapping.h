/* One way to spell a tower: a row of the table in key_mappings.c. */
#ifndef MEOPT_NN_KEY_MAPPING_H
#define MEOPT_NN_KEY_MAPPING_H

#include "core/nn/names.h"

enum { MAX_TOWERS = 3, MAX_PROBES = 3, MAX_IGNORED = 2 };

struct naming {
    enum family family;
    const char *towers[MAX_TOWERS]; /* what may stand before the tower's names; none: the family's prefix */
    const char *probes[MAX_PROBES]; /* names behind it that only such a file has: all of them are there */
    const char *absent;             /* and one that is not there */
    bool whole;                     /* and the family's prefix stands before them */
    const char *block_prefix;       /* NULL: the family's */
    /* NULL: the family's. a|b|c: rows of one matrix or vector in parts; b*2: a part twice as large. a@1/3:
     * the second third of a's rows */
    const char *keys[ROLE_COUNT];
    const char *swiglu[ROLE_FFN_COUNT]; /* NULL: the family's */
    const char *out; /* the projection, outside the tower, (out, width); NULL: as the family has it */
    const char *ignored[MAX_IGNORED];
    enum pos_resize pos_resize; /* how that library does it; 0: as the family */
    bool pos_patches;           /* of files that are written so: the class token has no position */
    bool fc_norm;               /* the last norm may be called fc_norm, and then stands behind the mean */
    bool all_tokens;            /* and that is the mean of all tokens */
    enum pool pool;             /* as its classes do; POOL_USUAL: the names do not tell */
    const char *classifier;     /* beside the tower, with this name: it is not read */
    enum pool classifier_pool;  /* what that classifier reads */
    bool rope;                  /* may hold tables of cosines and sines, in every block */
    const char *zero;           /* changes nothing when it is 0; else what stands before it is a classifier */
    bool head;                  /* head.* may be a classifier */
    int settles;      /* ASSUMED_...: properties that are the same in all classes with these names */
    float norm_eps;   /* usual epsilon of the norms; 0: the family's */
    int ffn;          /* usual activation of an mlp, 1 + enum activation; 0: the family's */
    bool convolves;   /* the patches' matrix is that of a convolution, (width, 3, patch, patch) */
    bool gate_varies; /* of a gated feed-forward the activation, too, is an argument of the class */
    /* Of files that are written so. */
    int library;         /* 1 + enum library; 0: none are */
    const char *written; /* before the tower's names; NULL: nothing */
    bool batched;        /* class token and positions begin with a dimension of 1 */
    bool flat;           /* positions are (rows, width) there, whatever the family has */
    bool scaled;         /* its classes always have LayerScale: 1 for a tower without it */
    bool registered;     /* its classes always have register tokens: none of them for a tower without */
    bool maskless;       /* has no place for a mask token */
    bool scaleless;      /* nor for LayerScale */
    int parts;           /* PART_...: only of towers that have any of them; 0: of any */
};

extern const struct naming namings[]; /* in the order in which they are tried */
extern const int naming_count;

#endif
