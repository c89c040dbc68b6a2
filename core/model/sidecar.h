/* Properties of a tower that a checkpoint's tensors do not determine, from the sidecar config that its
 * library saved in the same directory: open_clip_config.json (open_clip), config.json (transformers,
 * timm). */
#ifndef MEOPT_MODEL_SIDECAR_H
#define MEOPT_MODEL_SIDECAR_H

#include "core/model/shape.h"

struct json_t;

enum sidecar_library { SIDECAR_NONE, SIDECAR_OPEN_CLIP, SIDECAR_TRANSFORMERS, SIDECAR_TIMM };

struct sidecar {
    const char *name;              /* "config.json"; NULL: none, or of a different tower */
    enum sidecar_library library;  /* that wrote it */
    enum family family;            /* FAMILY_UNKNOWN: absent */
    int ffn;                       /* 1 + enum activation, as model_shape.ffn; 0: absent */
    int64_t heads;                 /* 0: absent */
    char activation[48], pool[48]; /* as in the file; "" if absent. ffn 0 with an activation: unknown */
    enum pool pool_kind;           /* of `pool`; POOL_USUAL: unknown */
    int64_t pool_heads;            /* attention pooling with this number of heads; 0: none */
    bool map;                      /* or with the heads of the blocks (timm's map, SigLIP) */
    enum norms norms;
    char odd[96];               /* an unsupported property; "": none */
    enum pos_resize pos_resize; /* of the library; POS_RESIZE_USUAL: absent */
    double norm_eps;            /* 0: absent */
    double rope_theta;          /* of DINOv3's rotary positions; 0: absent */
    int64_t image;              /* default input side of a tower without positions; 0: absent */
    bool rotary;                /* rotary positions are specified, and supported */
    /* Sizes, which must match the tower's; 0: absent. */
    struct {
        int64_t width, depth, patch, hidden, grid;
    } sizes;
};

/* Reads the sidecar config in the checkpoint's directory (or in the checkpoint, if that is one). `tower`: the
 * model shape from its tensors. A file of a different family or with different sizes is ignored, and the log
 * gives the reason. A file that is not valid JSON is EXIT_CONFIG, because its properties may be needed. */
int sidecar_read(struct sidecar *sidecar, const char *checkpoint, const struct model_shape *tower,
                 struct error *err);
/* Reads a different file of the directory, as a JSON object that the caller frees with json_decref; *root
 * NULL: no such file. */
int sidecar_object(struct json_t **root, const char *checkpoint, const char *name, struct error *err);
/* Returns the model type in config.json (transformers' model_type, timm's architecture), printable; false:
 * none. */
bool sidecar_model(const char *checkpoint, char *name, size_t size);
/* Returns whether towers of this model_type are supported. */
bool sidecar_type_known(const char *type);

#endif
