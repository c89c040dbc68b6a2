/* Predicts memory, compute and transfers of a run before it starts. Memory comes from the trainer's own
 * allocations on the dry device, so that plan and measurement use the same code. */
#ifndef MEOPT_PLAN_PLAN_H
#define MEOPT_PLAN_PLAN_H

#include "core/config/config.h"
#include "core/comm/comm.h"
#include "core/plan/op_count.h"
#include "core/nn/nn.h"

struct trainer;

enum { PLAN_LARGEST = -1 }; /* as comm_options.rank: the rank with the most memory */

struct plan {
    int rank;              /* the rank that is planned */
    struct memory_use use; /* of its device; read the peaks */
    bool has_teacher;
    struct model_shape teachers[MOST_TEACHERS], student;
    int teacher_count;
    bool two;                                       /* the towers have different preprocessings */
    char images[MOST_TEACHERS + 1][320];            /* of each, as text (preprocess.h); the student's last */
    int64_t teacher_parameters, student_parameters; /* the student's with its head */
    int64_t trained_parameters;
    int64_t batch, micro;          /* images per step and per forward of the rank with the most */
    bool breadth, twice;           /* rounds are breadth-first; a first backward pass measures */
    int64_t wave;                  /* micro-batches of a wave (train.wave); depth-first 1 */
    bool exact;                    /* trainer_clips_exactly */
    bool libraries_assumed;        /* the card's driver is not on this machine */
    bool from_checkpoints;         /* shapes were read from the files; else from arch or keys */
    double step_flops;             /* of that rank; with a cached teacher, after the first epoch */
    double first_epoch_step_flops; /* differs with a cached teacher only */
    double coding_flops;           /* 8-bit activations, parts of logits: as GEMM operations of equal time */
    double update_bytes;           /* memory traffic of the optimizer: states, residual bits, weights */
    double update_flops;           /* of muon's matrices; not in step_flops */
    struct plan_rule {             /* by number: the tensors of each update rule */
        int64_t tensors, parameters;
        char names[600]; /* "blocks.*.attn.proj.weight, ..." */
    } rules[RULE_COUNT];
    int64_t gradient_bytes;                /* of a micro-batch, as reduced between ranks */
    int64_t reduced_bytes, gathered_bytes; /* per step: reduced gradients, gathered sums or weights */
    int stages, tensor;                    /* dist.pipeline, dist.tensor */
    int64_t tensor_bytes;                  /* per step: arrays that this rank's tensor group adds up */
    double bubble;        /* part of a step in which a stage waits for others, by formula; 1 stage: 0 */
    int64_t stream_bytes; /* per step: what a stage sends to the next one, and back */
    int64_t streamed_teacher_bytes;                    /* streamed weights: read per step */
    int64_t streamed_student_bytes;                    /* read and written per step */
    int64_t checkpoint_bytes;                          /* one checkpoint on disk */
    int64_t offload_read_bytes, offload_written_bytes; /* per step, optim.offload's file */
    int64_t knn_bytes, probe_bytes;                    /* of train.eval, class data; 0: none */
    int64_t cache_bytes_per_image; /* teacher's cached outputs; 0 without train.cache_teacher */
};

/* Plans an experiment; config is not changed. Shapes come from the checkpoints if both exist, else from arch
 * or the keys of the model shape. */
int plan_make(struct plan *plan, const struct config *config, struct error *err);
/* Plans one of several ranks; NULL: one rank. */
int plan_make_distributed(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                          struct error *err);

/* Plans, and calls `inspect` (may be NULL) with the planned trainer on its dry device, after a dry step. With
 * train.cache_teacher, also before the teacher is freed: then there is no student. */
typedef void plan_inspect(void *context, const struct trainer *trainer);
int plan_make_inspect(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                      plan_inspect *inspect, void *context, struct error *err);

/* Counts the operations of one step of the planned trainer in `inspect` (with a student): all micro-batches,
 * without the optimizer's update. count->peaks are set. */
int plan_count_operations(const struct trainer *trainer, struct op_count *count, struct error *err);

/* Plans 'meopt eval' on one rank: *peak_bytes. random: no checkpoint is read (plan.from_checkpoints). */
int plan_evaluation(const struct config *config, bool random, size_t *peak_bytes, struct error *err);

/* Returns the operations of a step with its update, and the part of them that is Newton-Schulz. */
double plan_step_operations(const struct plan *p);
double plan_update_share(const struct plan *p);
/* Returns the operations of the teacher's forward pass per image; 0 without a teacher. */
double plan_teacher_flops(const struct plan *plan);
/* Returns the bytes that one of `ranks` ranks sends per step: to each other rank its part of the
 * gradients, and the rank's own part of gathered sums or weights. */
double plan_sent_bytes(const struct plan *plan, int ranks);

/* Returns the largest micro-batch whose peak on one of these ranks (NULL: one rank) is at most limit_bytes;
 * 0: one image does not fit; -1: error. All images of a rank are one forward, unless train.global_batch
 * requires more rounds. */
int64_t plan_largest_batch(const struct config *config, const struct comm_options *ranks, size_t limit_bytes,
                           struct error *err);

/* Checks files, model shapes and images of an experiment on the dry device, without allocating its memory.
 * Resolves the configuration. */
int plan_dry_run(struct config *config, struct error *err);
/* Copies a tensor's name: "blocks.12.attn.proj.weight" -> "blocks.*.attn.proj.weight". */
void plan_without_block(char *dst, size_t size, const char *name);

#endif
