/* How the tensors of a student are cut among ranks.
 *
 * A group's tensors stand one behind the other, vectors first, then matrices, as its gradients and weights
 * lie in memory, and rank r has the r-th of `ranks` parts of that row, as equal as cuts at 32768 elements of
 * a tensor allow. So the part is one span of weights, and of gradients one of vectors and one of matrices;
 * and what the optimizer adds up of a tensor's chunks has the bits of the whole tensor (core/meopt.h,
 * MEOPT_PART). */
#ifndef MEOPT_TRAIN_PARTITION_H
#define MEOPT_TRAIN_PARTITION_H

#include "core/nn/nn.h"

enum { CUT_ELEMENTS = 32768 };

/* Offsets (ranks + 1) from 0: in elements of the group's gradients, vectors and matrices apart, and in bytes
 * of its weights. */
struct partition_group {
    int64_t *vectors, *matrices, *weights;
};

struct partition {
    int ranks, rank, group_count;
    struct partition_group *groups;
    int64_t *first, *count; /* (parameters) of this rank's part of each; a part may be empty */
    int64_t *element;       /* (parameters) of a tensor in its group's vectors or matrices */
};

/* Of a tower that has gradients. */
struct partition *partition_make(const struct tower *tower, int ranks, int rank);
void partition_free(struct partition *cut);

/* Where in a parameter each rank's part begins (offsets[ranks + 1], in `unit` bytes an element). */
void partition_offsets(const struct partition *cut, const struct tower *tower, int parameter, int64_t unit,
                       int64_t *offsets);

/* Elements of a group's gradients, all or this rank's part. */
int64_t partition_elements(const struct partition *cut, int group);
int64_t partition_own(const struct partition *cut, int group);
/* Or another rank's. */
int64_t partition_of(const struct partition *cut, int group, int rank);

#endif
