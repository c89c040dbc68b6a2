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
    char text[2048];
};

/* Fills the metadata: "format" alone if the tensors and the defaults determine such a tower without a sidecar
 * config, unless `always`. */
void metadata_make(struct metadata *notes, const struct model_shape *model_shape, bool always);

/* Reads the metadata, 0 for what they do not say; EXIT_CONFIG for an unsupported value. */
int metadata_read(struct model_shape *says, const struct weights *weights, struct error *err);

#endif
