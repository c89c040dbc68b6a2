/* Simulates a step of many ranks, so that a cluster can be evaluated before it is bought (man meopt-plan,
 * SCALING). It runs the schedule of a step (schedule.h) with a clock: groups compute, gradients are reduced
 * and weights gathered (shard.h) where a trainer of step_ranks.c does so, streams travel between stages.
 *
 * All ranks make the same calls in the same order. Therefore a collective begins when the last rank has
 * called it and the one before has ended, and each rank needs one clock only. A stage has collectives of its
 * own, with the same stage of other replicas, and sends streams over the same link. Each of N ranks sends
 * (N - 1) / N of a group's bytes, evenly to all others, over a link of B bytes per second. The G ranks of a
 * node share its network of W bytes per second to other nodes. A collective takes N - 1 messages of L
 * seconds:
 *
 *     seconds = max(S / B, S (N - G) / (N - 1) G / W) + (N - 1) L,   S = bytes (N - 1) / N
 *
 * The T ranks of a tensor group are neighbours, in one node. They make the same calls, so one of them is
 * simulated: with its share of the node, of the node's network, and of the work, and with the sums of its
 * group, which send 2 bytes (T - 1) / T and are waited for.
 */
#ifndef MEOPT_PLAN_SIMULATE_H
#define MEOPT_PLAN_SIMULATE_H

#include "core/plan/plan.h"
#include "core/step/schedule.h"

struct simulated_group {
    double work;          /* share of the student's forward and backward time */
    double reduced_bytes; /* gradients of a micro-batch; 0: frozen */
    double summed_bytes;  /* sums in fp32 */
    double weight_bytes;  /* as sharding stores them; 0: in every rank */
    double changed_bytes; /* gathered after an update */
};

/* A step of a configuration, without the speeds. */
struct simulated_schedule {
    struct schedule order;
    struct simulated_group *groups;
    int64_t micro_count; /* micro-batches of all `ranks`, round-robin */
    int ranks;           /* of the plan */
    bool sharded, sharded_weights;
    bool two_gradients, two_weights; /* buffers: a reduction, or a gather, overlaps with computing */
    int stages, tensor;              /* dist.pipeline, dist.tensor; 1: none */
    double tensor_bytes;             /* per step: arrays that a tensor group adds up */
    double stream_bytes;             /* of a micro-batch, between two stages */
    int teacher_groups;              /* of a teacher that the stages divide; 0: none */
    double teacher_stream_bytes;
};
/* Reads the schedule of a planned trainer. The caller calls simulate_free. A plan_inspect. */
void simulate_inspect(void *schedule, const struct trainer *trainer);
void simulate_free(struct simulated_schedule *schedule);

struct simulated_speed {
    double step_s;    /* of one rank alone with its share of the micro-batches */
    double backward;  /* share of step_s in the student's backward passes, 0 to 1 */
    double student;   /* share in its forward passes; the rest is the teacher's */
    double bandwidth; /* B, of a rank's link, bytes/s */
    double network;   /* W, of a node's, bytes/s; 0: as much as its ranks send */
    int node_ranks;   /* G; 0: all ranks are in one node */
    double latency_s; /* L, of a message */
    /* Ranks are round-robin over the nodes, so that the stages of a replica are on different ones, and equal
     * stages on the same one; else consecutive ranks fill a node. */
    bool stages_apart;
    /* Ranks share processors: computing takes that much longer, and collectives delay it; 0: they do not. */
    double slowdown;
};

struct simulated_step {
    double step_s;
    double compute_s;  /* of the rank with the most micro-batches */
    double sums_s;     /* all collectives and streams */
    double sent_bytes; /* by each rank */
};
/* Simulates `ranks` ranks with as many micro-batches each as in the schedule. 1 rank has no collectives. */
struct simulated_step simulate_step(const struct simulated_schedule *schedule,
                                    const struct simulated_speed *speed, int ranks);

#endif
