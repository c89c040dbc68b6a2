/* One key mapping of a tower: a row of the table in key_mappings.c. */
#ifndef MEOPT_MODEL_KEY_MAPPING_H
#define MEOPT_MODEL_KEY_MAPPING_H

#include "core/model/names.h"

enum { MAX_TOWERS = 3, MAX_PROBES = 3, MAX_IGNORED = 2 };

struct key_mapping {
    enum family family;
    const char *towers[MAX_TOWERS]; /* prefixes that the tower's names may have; none: the family's prefix */
    const char
        *probes[MAX_PROBES];  /* names after the prefix that only such a file has; all must be present */
    const char *absent;       /* a name that must be absent */
    const char *around;       /* part of the names of tensors next to the tower that change its output */
    bool whole;               /* the family's prefix comes before them */
    const char *block_prefix; /* NULL: the family's */
    /* NULL: the family's. a|b|c: rows of one matrix or vector in parts; b*2: a part twice as large. a@1/3:
     * the second third of a's rows */
    const char *keys[ROLE_COUNT];
    const char *swiglu[ROLE_FFN_COUNT]; /* NULL: the family's */
    const char *out; /* the projection, outside the tower, (out, width); NULL: as in the family */
    const char *ignored[MAX_IGNORED];
    enum pos_resize pos_resize; /* as in that library; 0: as in the family */
    bool pos_patches;           /* for writing: the class token has no position */
    bool fc_norm;               /* the last norm may be called fc_norm, and then comes after the mean */
    bool all_tokens;            /* and the mean is over all tokens */
    enum pool pool;             /* as in its classes; POOL_USUAL: not determined by the names */
    const char *classifier;     /* a tensor of this name next to the tower is a classifier: not read */
    enum pool classifier_pool;  /* input of that classifier */
    bool classifier_apart;      /* a classifier reads the tokens in a way that the tower does not pool */
    bool rope;                  /* every block may have tables of cosines and sines */
    const char *zero;           /* has no effect if it is 0; otherwise the layer before it is a classifier */
    bool head;                  /* head.* may be a classifier */
    int settles;                /* FACT_BIT(...): properties that are equal in all classes with these names */
    float norm_eps;             /* default epsilon of the norms; 0: the family's */
    int ffn;                    /* default activation of an mlp, 1 + enum activation; 0: the family's */
    bool conv1d;      /* matrices of blocks are stored (in, out), as transformers' Conv1D has them */
    bool convolves;   /* the patches' matrix has the shape of a convolution, (width, 3, patch, patch) */
    bool gate_varies; /* the activation of a gated feed-forward is also an argument of the class */
    /* For writing. */
    int library;         /* 1 + enum library; 0: none are */
    const char *written; /* before the tower's names; NULL: nothing */
    bool batched;        /* class token and positions begin with a dimension of 1 */
    bool flat;           /* positions are (rows, width), whatever the family has */
    bool scaled;         /* its classes always have LayerScale: written as 1 for a tower without it */
    bool registered;     /* its classes always have register tokens: written as none for a tower without */
    bool maskless;       /* no mask token */
    const char *classifier_as; /* key of a classifier, without "weight"; NULL: its classes have none */
    const char *classified;    /* before the tower's names if there is a classifier; NULL: as written */
    const char *registered_as; /* the same with registers; NULL: the same */
    bool widened;   /* the classifier reads class token and mean: written with zeros for the unused one */
    bool plain;     /* only for a plain ViT with a classifier: no LayerScale, no registers, the class token */
    bool scaleless; /* no LayerScale */
    int parts;      /* PART_...: only for towers with any of them; 0: for all */
};

extern const struct key_mapping key_mappings[]; /* in the order in which they are tried */
extern const int naming_count;

#endif
