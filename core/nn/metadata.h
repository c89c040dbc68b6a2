/* What a tower's tensors do not tell, inside the files that MEOpt itself writes: heads, activation, whose
 * resize of the positions, pooling, its heads, the place of the norms and their epsilon, and the periods of
 * rotary positions, as key and value in the metadata of
 * safetensors, or in extra/meopt.json of PyTorch's zip. So a student computes as it was trained wherever its
 * file is put. */
#ifndef MEOPT_NN_METADATA_H
#define MEOPT_NN_METADATA_H

#include "core/nn/nn.h"

struct metadata {
    const char *metadata[24]; /* key, value, ..., NULL: what weights_write_* take */
    char heads[24], pool_heads[24], norm_eps[24], rope_periods[16 * ROPE_MAX_PERIODS];
};

/* "format" alone where the tensors tell all of such a tower when nothing lies beside them, unless `always`.
 */
void metadata_make(struct metadata *notes, const struct model_shape *model_shape, bool always);

struct metadata_found {
    int64_t heads;              /* 0: not said */
    int ffn;                    /* 1 + enum activation; 0: not said, or swiglu */
    enum pos_resize pos_resize; /* POS_RESIZE_USUAL: not said */
    enum pool pool;             /* POOL_USUAL: not said */
    enum norms norms;           /* NORMS_USUAL: not said */
    int64_t pool_heads;         /* of pooling by attention; 0: not said */
    double norm_eps;            /* 0: not said */
    int rope_count;             /* periods of rotary positions; 0: not said */
    float rope_periods[ROPE_MAX_PERIODS];
};
/* EXIT_CONFIG for a value that is not known. */
int metadata_read(struct metadata_found *found, const struct weights *weights, struct error *err);

#endif
