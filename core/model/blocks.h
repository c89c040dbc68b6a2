/* The lists of BigBird's block-sparse attention (struct attention of kernels/operations.h), as transformers'
 * BigBirdBlockSparseAttention has them.
 *
 * A sample of N tokens has nb = ceil(N / block) blocks. The first and the last block see all. Any other block
 * sees the first, the last, itself, its two neighbours, and r random blocks:
 *
 *   training    those that numpy draws in the class, seeded with the layer's number before each pass: the
 *               same in every step, and in a resumed run. At nb * block of 1024, 3072 and 4096 as in the
 *               paper (among the first 1024 tokens, and for the longest sequence at once), else among the
 *               first 2 r + 5 blocks
 *   evaluation  the first block, r times, so that it counts 1 + r times
 *
 * In the second and the last but one row, one of the first, the last and the neighbours is the same block: it
 * counts once. A random block that is also another of the row counts twice. Samples of (5 + 2 r) * block
 * tokens or fewer have no lists: all tokens see all. */
#ifndef MEOPT_MODEL_BLOCKS_H
#define MEOPT_MODEL_BLOCKS_H

#include "core/model/shape.h"

/* Whether the model has lists, at its context. */
bool blocks_used(const struct model_shape *model_shape);
/* Longest context without lists, 0 for a model that never has any. */
int64_t blocks_dense_context(const struct model_shape *model_shape);
/* Refuses (EXIT_CONFIG) sizes for which the class has no lists. */
int blocks_check(const struct model_shape *model_shape, struct error *err);

int64_t blocks_listed(const struct model_shape *model_shape);       /* members of the lists of all heads */
int64_t blocks_list_numbers(const struct model_shape *model_shape); /* of keys, or of queries: their array */
/* Writes the lists of a layer; queries may be NULL. */
void blocks_lists(const struct model_shape *model_shape, int64_t layer, bool training, int32_t *keys,
                  int32_t *queries);

#endif
