/* Metadata of a tower that its tensors do not determine, in files that meopt itself writes: heads,
 * activation, resize method of the positions, pooling and its heads, the order and epsilon of the norms, and
 * the periods of rotary positions; of a language model the width of its heads, window, longest context and
 * rotary scaling. They are key and value in the metadata of safetensors, or in
 * extra/meopt.json of PyTorch's zip. So a student computes as it was trained, wherever its file is copied. */
#ifndef MEOPT_MODEL_METADATA_H
#define MEOPT_MODEL_METADATA_H

#include "core/model/shape.h"

struct metadata {
    const char *metadata[32]; /* key, value, ..., NULL: as for weights_write_* */
    char language[96], rope[192];
    char heads[24], pool_heads[24], norm_eps[24], rope_periods[16 * ROPE_MAX_PERIODS];
};

/* Fills the metadata: "format" alone if the tensors and the defaults determine such a tower without a sidecar
 * config, unless `always`. */
void metadata_make(struct metadata *notes, const struct model_shape *model_shape, bool always);

struct metadata_found {
    int64_t heads;              /* 0: absent */
    int ffn;                    /* 1 + enum activation; 0: absent, or swiglu */
    enum pos_resize pos_resize; /* POS_RESIZE_USUAL: absent */
    enum pool pool;             /* POOL_USUAL: absent */
    enum norms norms;           /* NORMS_USUAL: absent */
    int64_t pool_heads;         /* of attention pooling; 0: absent */
    double norm_eps;            /* 0: absent */
    int rope_count;             /* periods of rotary positions; 0: absent */
    float rope_periods[ROPE_MAX_PERIODS];
    int64_t head_dim, window, positions; /* of a language model; 0: absent */
    struct rope_of_tokens rope;
};
/* Reads the metadata; EXIT_CONFIG for an unsupported value. */
int metadata_read(struct metadata_found *found, const struct weights *weights, struct error *err);

#endif
