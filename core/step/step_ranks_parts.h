/* Inside data-parallel steps (step_ranks.c, step_ranks_buffers.c). */
#ifndef MEOPT_STEP_STEP_RANKS_PARTS_H
#define MEOPT_STEP_STEP_RANKS_PARTS_H

#include "core/step/partition.h"
#include "core/step/step.h"
#include "core/step/shard.h"

struct data_parallel {
    bool sharded;                    /* states are sharded (dist.shard) */
    int64_t micro_count;             /* micro-batches of a step, of all ranks */
    struct partition *partition;     /* of what is trained */
    struct partition *base;          /* with `shard` and adapters: of the frozen weights; else NULL */
    struct shard *shard;             /* sharded weights (dist.shard parameters); else NULL */
    float *group_sums[2];            /* sums of two groups, round-robin, for updates inside backward */
    float *all_sums;                 /* sums of all groups, of several waves or at_end; else NULL */
    int64_t *all_sums_at;            /* (groups) offsets in all_sums */
    struct group *jobs;              /* (groups) */
    struct meopt_gradient *measured; /* (tensors) arguments of the optimizer's norms */
    int *group_of;                   /* (tensors) */
    double *norms;                   /* (groups) */
    int *finite;                     /* (groups) */
};

/* The communication of one group in one round. */
struct group {
    struct trainer *t;
    int number, contributors; /* contributors: ranks with a micro-batch in this round */
    bool first, last;         /* round */
    struct gradient_span span;
    const float *before; /* sum of the rounds before; the first one has none */
    float *sum;
    struct comm_job reduce, gather;
};

/* Returns whether this rank has a part of a parameter only. Frozen weights are divided with the weights. */
bool dp_divides(const struct trainer *t, int parameter);
/* The same among the ranks with its group. */
bool dp_cut_among_data(const struct trainer *t, int parameter);
/* Returns the partition that has the parts of a parameter. */
const struct partition *dp_partition_of(const struct trainer *t, int parameter);
/* Return where this rank's vectors and matrices begin in a group's sums. */
int64_t dp_own_vectors(const struct trainer *t, int group);
int64_t dp_own_matrices(const struct trainer *t, int group);
/* Returns where a parameter's gradient begins in a group's sums: of this rank's part, or of all of it. */
const float *dp_gradient_in(const struct trainer *t, const float *sums, int parameter);

/* Returns which of two buffers of sums a group has. */
int dp_turn(const struct trainer *t, int group);

#endif
