/* What a run will need, before it starts: the trainer's own allocations made on the dry device,
 * so that plan and measurement are the same code, and arithmetic for the rest. */
#ifndef MEOPT_TRAIN_PLAN_H
#define MEOPT_TRAIN_PLAN_H

#include "core/config/config.h"
#include "core/comm/comm.h"
#include "core/nn/nn.h"

struct trainer;

enum { PLAN_LARGEST = -1 }; /* as comm_options.rank: the one of the ranks that holds the most */

struct plan {
    int rank;              /* of which this is the plan */
    struct memory_use use; /* of its device; peaks are what counts */
    struct model_shape teacher, student;
    bool two;            /* preprocessings, else the student's is the teacher's */
    char images[2][320]; /* the teacher's and the student's, for people (preprocess.h) */
    int64_t teacher_parameters, student_parameters; /* the student's with its head */
    int64_t trained_parameters;
    int64_t batch, micro;          /* images per step and per forward, of one rank */
    bool libraries_assumed;        /* of a card whose driver is not on this machine */
    bool from_checkpoints;         /* shapes were read from the files; else from arch or keys */
    double step_flops;             /* of one rank; with a cached teacher, steps behind the first epoch */
    double first_epoch_step_flops; /* the same but for a cached teacher */
    double coding_flops;           /* what values that are kept in 8 bits cost, as operations of products */
    double update_bytes; /* memory traffic of the optimizer: states, corrections, weights read and written */
    int64_t gradient_bytes;                /* of a micro-batch, as they are added up between ranks */
    int64_t reduced_bytes, gathered_bytes; /* of a step: gradients added up, sums or weights handed round */
    int64_t streamed_teacher_bytes;        /* read in a step, of weights that come block by block, */
    int64_t streamed_student_bytes;        /* read and written */
    int64_t checkpoint_bytes;              /* one checkpoint on disk */
    int64_t offload_read_bytes, offload_written_bytes; /* of a step, from and to optim.offload's file */
    int64_t cache_bytes_per_image; /* teacher's outputs beside the run; 0 without train.cache_teacher */
};

/* config is not changed. Checkpoints are opened for their shapes when both are there; else arch or the
 * geometry keys must say everything. */
int plan_make(struct plan *plan, const struct config *config, struct error *err);
/* The same for one of several ranks; NULL: one alone. */
int plan_make_distributed(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                          struct error *err);

/* The same; `look` (may be NULL) sees the trainer that was planned, on its dry device, behind a rehearsed
 * step. */
int plan_make_inspect(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                      void (*look)(void *context, const struct trainer *trainer), void *context,
                      struct error *err);

/* Bytes that one of `ranks` sends in a step: to each other rank its part of the gradients, and its own part
 * of what is handed round. */
double plan_sent_bytes(const struct plan *plan, int ranks);

/* Largest micro-batch whose peak on one of these ranks (NULL: one alone) is at most limit_bytes, all images
 * of a rank in one forward unless train.global_batch asks for more; 0: not even one image. */
int64_t plan_largest_batch(const struct config *config, const struct comm_options *ranks, size_t limit_bytes,
                           struct error *err);

#endif
