/* Partition of a student's tensors among ranks (dist.shard).
 *
 * The tensors of a group are ordered as in memory: vectors first, then matrices. Rank r owns the r-th of
 * `ranks` parts of that sequence. Cuts are at multiples of 32768 elements of a tensor, and parts are as
 * equal as that allows; a parameter that is `owned` is not cut. Where there are such, what a cut is
 * short of equal parts, the cut of the stage's next group adds, so that the parts of all groups together
 * are as equal as that allows. So a part is one span of the group's weights, one of its vector gradients
 * and one of its matrix gradients. Sums that the optimizer computes over chunks of a tensor are
 * bit-identical to those of the whole tensor (core/meopt.h, MEOPT_PART). */
#ifndef MEOPT_STEP_PARTITION_H
#define MEOPT_STEP_PARTITION_H

#include "core/nn/nn.h"

enum { CUT_ELEMENTS = 32768 };

/* Offsets of the parts of a group, (ranks + 1) each: in elements of its vector and of its matrix gradients
 * (of a frozen group: of its weights), and in bytes of its weights. */
struct partition_group {
    int64_t *vectors, *matrices, *weights;
    char *span; /* where its weights begin; NULL: none */
};

struct partition {
    int ranks, rank, group_count;
    bool weights_only;
    const struct tower_slices *elsewhere; /* while it is made */
    struct partition_group *groups;
    int64_t *first,
        *count;       /* (parameters) this rank's elements of each; count may be 0, as of other stages' */
    int64_t *element; /* (parameters) offset of each in its group's vectors or matrices */
};

/* Returns the partition of a tower's gradients: trained parameters have parts, and those of groups without
 * gradients, unless they are resident. weights_only: of its weights instead, all but the resident ones.
 * Without adapters both divide weights alike. */
struct partition *partition_make(const struct tower *tower, int ranks, int rank, bool weights_only);
/* Returns the partition of the gradients of a tower with other slices in a pipeline of other stages: of
 * another rank of the tensor group, or of a run that wrote a checkpoint. For partition_offsets alone. */
struct partition *partition_elsewhere(const struct tower *tower, int ranks, int stages,
                                      const struct tower_slices *slices);
void partition_free(struct partition *cut);

/* Computes where in a parameter each rank's part begins: offsets[ranks + 1], in `unit` bytes per element. */
void partition_offsets(const struct partition *cut, const struct tower *tower, int parameter, int64_t unit,
                       int64_t *offsets);

/* Spreads offsets (ranks + 1) over the ranks of replicas of `each` ranks, offsets[ranks * each + 1]: rank
 * r * each + `place` has part r, other ranks have none. */
void partition_spread(int64_t *offsets, int ranks, int each, int place);

/* Return the number of elements of a group's gradients: of all, of this rank's part, of rank `rank`'s
 * part. */
int64_t partition_elements(const struct partition *cut, int group);
int64_t partition_own(const struct partition *cut, int group);
int64_t partition_of(const struct partition *cut, int group, int rank);

#endif
