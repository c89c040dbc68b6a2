/* The places of ranks in a run: replicas, stages of a pipeline and tensor groups. */
#ifndef MEOPT_COMM_LAYOUT_H
#define MEOPT_COMM_LAYOUT_H

/* How the ranks of a run are divided: rank (replica * stages + stage) * tensor + index has that index in its
 * tensor group (dist.tensor), which has one stage of a pipeline (dist.pipeline). 0 as 1. */
struct comm_layout {
    int stages, tensor;
};
struct comm_place {
    int replica, stage, tensor;
};
static inline int comm_layout_stages(struct comm_layout l) { return l.stages > 1 ? l.stages : 1; }
static inline int comm_layout_tensor(struct comm_layout l) { return l.tensor > 1 ? l.tensor : 1; }
/* Returns the ranks of a replica. */
static inline int comm_layout_ranks(struct comm_layout l)
{
    return comm_layout_stages(l) * comm_layout_tensor(l);
}
static inline struct comm_place comm_place_of(struct comm_layout l, int rank)
{
    int stages = comm_layout_stages(l), tensor = comm_layout_tensor(l);
    return (struct comm_place){rank / tensor / stages, rank / tensor % stages, rank % tensor};
}

/* Writes ", stage 1 of replica 0" or ", tensor 1 of stage 0 of replica 2", the place of a rank; "" without
 * pipelines and tensor groups. */
enum { COMM_PLACE_TEXT = 96 };
void comm_place_text(char text[COMM_PLACE_TEXT], int rank, struct comm_layout layout);

#endif
