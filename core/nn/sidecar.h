/* What a checkpoint's tensors do not tell, from the configuration that its library laid beside it:
 * open_clip_config.json (open_clip), config.json (transformers, timm). */
#ifndef MEOPT_NN_SIDECAR_H
#define MEOPT_NN_SIDECAR_H

#include "core/nn/nn.h"

struct json_t;

enum sidecar_library { SIDECAR_NONE, SIDECAR_OPEN_CLIP, SIDECAR_TRANSFORMERS, SIDECAR_TIMM };

struct sidecar {
    const char *name;              /* "config.json"; NULL: there is none, or it is of another tower */
    enum sidecar_library library;  /* that wrote it */
    enum family family;            /* FAMILY_UNKNOWN: not said */
    int ffn;                       /* 1 + enum activation, as geometry.ffn; 0: not said */
    int64_t heads;                 /* 0: not said */
    char activation[48], pool[48]; /* as spelled there; "" when not said. ffn 0 with an activation: unknown */
    enum pool pool_kind;           /* of `pool`; POOL_USUAL: unknown */
    int64_t pool_heads;            /* it pools by attention, with so many heads; 0: it does not */
    bool map;                      /* or with the heads of the blocks (timm's map, SigLIP) */
    enum norms norms;
    char odd[96];               /* what it says that no tower here has; "": nothing */
    enum pos_resize pos_resize; /* of the library; POS_RESIZE_USUAL: not said */
    double norm_eps;            /* 0: not said */
    double rope_theta;          /* of DINOv3's rotary positions; 0: not said */
    int64_t image;              /* usual side of the input of a tower without positions; 0: not said */
    bool rotary;                /* it says how positions are rotated, as the towers here do it */
    /* Sizes, which must be those of the tower; 0: not said. */
    struct {
        int64_t width, depth, patch, hidden, grid;
    } sizes;
};

/* Looks in the checkpoint's directory (or in the checkpoint, when that is one). `tower`: what its tensors
 * show. A file of another family or with other
 * sizes is left alone, and the log says why; one that cannot be read as JSON is
 * EXIT_CONFIG, for it may say what nothing else does. */
int sidecar_read(struct sidecar *beside, const char *checkpoint, const struct model_shape *tower,
                 struct error *err);
/* Another file there, as a JSON object that the caller frees with json_decref; *root NULL: there is none. */
int sidecar_object(struct json_t **root, const char *checkpoint, const char *name, struct error *err);
/* What config.json there calls the model (transformers' model_type, timm's architecture), printable; false:
 * nothing does. */
bool sidecar_model(const char *checkpoint, char *name, size_t size);

#endif
