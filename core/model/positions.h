/* Position embeddings of one grid from those of another. */
#ifndef MEOPT_MODEL_POSITIONS_H
#define MEOPT_MODEL_POSITIONS_H

#include "core/model/shape.h"

/* w (1 + P, 1 + pos_grid^2), all zero on entry: positions of the image's patches, and of the class token, as
 * sums of the stored ones. */
void positions_matrix(const struct model_shape *model_shape, float *w);

/* w (to^2, from^2), all zero on entry: the tokens of a grid of to x to patches as sums of those of from x
 * from, as PyTorch's bicubic interpolation with antialias resizes an image. */
void positions_grid(int64_t from, int64_t to, float *w);

/* table (P, 2, dh/2), of a language model (context, 2, dh/2): for each patch or token the cosines, then the
 * sines, of the angles of a head's pairs. */
void positions_rotation(const struct model_shape *model_shape, float *table);

#endif
