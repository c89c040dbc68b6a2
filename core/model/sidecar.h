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
    struct model_shape says;       /* 0: absent. Its sizes must match the tower's */
    char activation[48], pool[48]; /* as in the file; "" if absent. says.ffn, says.pool 0: unknown */
    bool map;                      /* attention pooling with the heads of the blocks (timm's map, SigLIP) */
    bool rotary;                   /* rotary positions are specified, and supported */
    char odd[96];                  /* an unsupported property; "": none */
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
