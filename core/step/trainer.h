/* The trainer: teacher, student, loss and optimizer of one configuration on one device, and its step.
 *
 * trainer_create allocates all memory of training, by class, before the first step. On device "dry" the same
 * calls compute the plan (plan.h). A step: forward of the (frozen) teacher or its cached embeddings, forward
 * of the student, loss, backward, and the optimizer, either after backward (gradients kept) or inside it,
 * group by group (gradients released).
 *
 * A parameter group is a block, the embedding or the head; backward visits the last block first. schedule.c
 * has the order of a step, and its modes.
 */
#ifndef MEOPT_STEP_TRAINER_H
#define MEOPT_STEP_TRAINER_H

#include "core/config/config.h"
#include "core/comm/comm.h"
#include "core/meopt.h"
#include "core/nn/nn.h"
#include "core/step/content.h"
#include "core/experiment/objective.h"
#include "core/experiment/targets.h"
#include "core/step/schedule.h"

/* Micro-batches in device memory, of the current wave (step_batch.c). `slot` is the one whose input, labels,
 * keep, target and dout are bound (step_select). */
struct inputs {
    int64_t slot;
    size_t student_at, chunk_bytes; /* 0: one input for all towers */
    void *next_input; /* double buffer, filled while the card computes; NULL: the device cannot overlap */
    struct device_stream *copies;         /* side stream of these copies */
    struct device_event *taken, *arrived; /* next_input may be overwritten; it is filled */
    struct batch sent;                    /* host memory being copied to next_input; input NULL: none */
    int64_t values_each;                  /* values of a sample in `labels`: 1, or its tokens */
    /* device (arrays, micro, values_each) of a micro-batch: labels, then second labels and shares F32, or
     * begins, ends and order of tokens (struct batch); NULL: not read */
    int32_t *labels;
    int64_t label_arrays;
    bool labels_more;     /* second labels, or begins and ends, are set */
    bool *more_labels;    /* (slots) labels_more of the others */
    int32_t *host_picked; /* (2, micro, labels_each) of an encoder: labelled rows, and their labels */
    int32_t *host_order;  /* (2, micro, values_each), where the order of tokens is made; NULL: not read */
    float *keep;          /* device (2 depth, micro): drop path's factors of a micro-batch; NULL: off */
    float *host_keep;     /* where they are drawn */
    float *target;        /* in the layout of the student's outputs; NULL: the only teacher's are used */
    float *host_target;   /* (micro, target_values), host: staging of cached rows */
};

/* One teacher. */
struct teacher {
    struct model_shape shape;
    struct tower_content content; /* as loaded from its file; empty in a plan */
    struct tower *tower;          /* NULL once its outputs are cached */
    struct weight_stream *stream; /* of its weights (weight_stream.h); NULL: resident */
    size_t input_at;              /* bytes from t->input to its images */
};

/* The targets of each image (train.cache_teacher, cached_rows.h): of each target its class row, then its
 * patch rows. */
struct teacher_outputs {
    void *rows;     /* (images), in host memory; NULL: in the file */
    int file;       /* descriptor, with rows NULL */
    void *row;      /* room for one of the file */
    uint8_t *known; /* (images): 1 if the row was computed; other rows are not used */
    int64_t images;
    uint32_t list; /* data_hash of these images */
};

/* The student's parameters in the optimizer. */
struct tensor_map {
    int *of;        /* parameter index -> index in opt, -1 for one that is not trained */
    int *parameter; /* the inverse, (count) */
    int count;
    size_t *given; /* (count), as gradients: arguments of one call of the optimizer */
    struct meopt_gradient *gradients;
};

struct trainer {
    struct config *config;
    const struct objective *objective;
    struct device *device;
    struct teacher teachers[MOST_TEACHERS];
    int teacher_count;
    struct targets targets;
    struct target_map { /* device: y = matrix x + shift of a row; NULL: none */
        float *matrix, *shift;
    } maps[MOST_OUTPUTS];
    float *unmapped;            /* device: rows of a target before its grid is resized */
    float *grids[MOST_OUTPUTS]; /* device (rows_s, rows_t) of a target whose patches are resized; else NULL */
    struct model_shape student_shape;
    struct tower_content student_content;
    struct tower *student;
    struct weight_stream *student_stream;
    char *fallback_weights; /* file that the student was read from, model_s.weight being gone; NULL: that */
    struct meopt *opt;
    struct comm ranks;               /* the ranks that train this student together */
    struct comm *data;               /* the ranks with the same parameters (layout.c) */
    struct comm *stages;             /* the stages of this replica (dist.pipeline); NULL: no pipeline */
    struct comm *tensor;             /* the ranks that divide this stage's slices (dist.tensor); NULL: none */
    struct slice_calls *slice_calls; /* their calls (slice_ranks.c) */
    struct comm *plane;              /* the ranks with this rank's tensor index; without tensor groups all */
    struct rank_groups *groups;
    struct pipeline *pipeline; /* step_pipeline.c */
    struct data_parallel *dp;  /* steps of micro-batches that ranks share (step_ranks.c); NULL: one rank */
    struct {
        bool of_all;       /* sums are over all groups, else over groups of this rank */
        struct error lost; /* error of an all-reduce */
    } reduce;              /* inside the optimizer (optimizer_reduce.c) */
    struct tensor_map tensors;
    int *saved, saved_count; /* parameters that checkpoints have */
    int64_t batch, micro;    /* images per step and per forward, of this rank */
    struct schedule schedule;
    int64_t images; /* per step, of all ranks */
    double units;   /* of the current step, of all ranks (objective.h) */
    void *scratch;
    void *input; /* of a micro-batch: the first teacher's; student_at bytes after it, the student's */
    struct inputs in;
    int64_t labels_each; /* labels of a sample: 1, or one for each token */
    struct knn *knn;     /* train.eval: features of images (knn.h); NULL: loss */
    struct probe *probe; /* train.eval probe (probe.h), else NULL */
    int64_t step;        /* the current step; 0 between steps */
    float *dout;         /* as tower.out */
    double *sums;        /* device (micro-batches, step_sums); then struct meopt_grad_stats (groups) */
    double *host_sums;   /* host copy of sums, pinned for a card */
    struct teacher_outputs cache;
    enum { FILL_MAPS, FILL_CACHE } filling;
    double previous_norm;  /* clip_mode previous: gradient norm of the last step, 0 before the first */
    double offload_waited; /* seconds so far */
    double student_flops;  /* per image: forward, backward, recomputation */
    double update_flops;   /* per step: Newton-Schulz of muon's matrices */
    double model_flops;    /* per image: student without recomputation, and the teacher unless it is cached */
    bool release;          /* gradients are released inside backward */
    bool diverged;         /* a step met NaN or infinity */
    bool evaluates;        /* trainer_create_evaluation: there is no optimizer */
};

struct step_result {
    double loss, grad_norm;
    struct metric metrics[OBJECTIVE_METRICS]; /* of the objective */
    int64_t wide_groups;                      /* meopt_wide_groups */
    double offload_wait_ms;                   /* -1: nothing is offloaded */
    double stream_wait_ms;                    /* -1: no weights are streamed */
    double stage_wait_ms;                     /* for other stages; -1: no pipeline */
};

/* Called with t->filling:
 *
 * FILL_MAPS, with loss.standardize: computes mean and covariance of the targets (core/train/target_maps.h),
 * before they are cached, else after all is created.
 *
 * FILL_CACHE, with train.cache_teacher: called after the teachers are created and before the student is.
 * Computes the targets of every image (trainer_embed_teacher) into trainer->cache. The teachers are freed
 * afterwards, so they are never in memory together with the student. */
typedef int (*fill_cache)(void *context, struct trainer *trainer, struct error *err);

/* Creates a trainer. random: no checkpoint is read and all values are seeded random numbers (meopt bench
 * train, plans without files). On device "dry" checkpoints are opened for their shapes only, and not at
 * all if random, or if they are missing and an arch is given. */
int trainer_create(struct trainer **trainer, struct config *config, struct device *device, bool random,
                   fill_cache cache, void *context, struct error *err);
/* Creates the trainer of one of several ranks, which train one student together (step_ranks.c); NULL: one
 * rank. Collective call. On device "dry" there is no communication: it plans rank `ranks->rank`. */
int trainer_create_distributed(struct trainer **trainer, struct config *config, struct device *device,
                               bool random, const struct comm_options *ranks, fill_cache cache, void *context,
                               struct error *err);
/* Creates a trainer for trainer_evaluate alone, on one rank: without optimizer states, gradients and the
 * activations of a backward pass. The weights are those of trainer_create, bit for bit. */
int trainer_create_evaluation(struct trainer **trainer, struct config *config, struct device *device,
                              bool random, struct error *err);
void trainer_close(struct trainer *trainer);
/* Sets the options of the trainer's optimizer, except its device and offloading. */
int trainer_optimizer(const struct trainer *trainer, struct meopt_options *options, struct error *err);

/* A source of micro-batches. */
struct batch_source {
    /* Fetches micro-batch `index` of the step, of batch->count rows: sets batch->input and, if the objective
     * reads them, the labels, in host memory, and *ids, the index of each row in the dataset (for cached
     * targets). All remain valid until the next call. */
    int (*fetch)(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err);
    /* Optional: returns the input that `fetch` will set for micro-batch 0 of the next step if it is already
     * loaded, else NULL. */
    const void *(*peek)(void *context);
    void *context;
};

/* Return the size of batch->input for `count` images in bytes (with two preprocessings always a whole chunk,
 * data_chunk), and the student's images on the device. */
size_t trainer_input_bytes(const struct trainer *trainer, int64_t count);
const void *trainer_student_input(const struct trainer *trainer);

/* Runs one optimizer step, counted from 1. Returns EXIT_DIVERGED when loss or gradient is not finite. With
 * gradients kept, or released with clip_mode exact, no weight has changed then. */
int trainer_step(struct trainer *trainer, int64_t step, double lr, const struct batch_source *source,
                 struct step_result *result, struct error *err);

/* Computes the loss of the batch for every variant (kind x normalize x reduction), without training; of a
 * pipeline on stage 0, else 0. Collective call. */
struct loss_variant {
    const char *name;
    double value;
};
enum { LOSS_VARIANTS = 7 };
int trainer_loss_variants(struct trainer *trainer, const struct batch_source *source,
                          struct loss_variant variants[LOSS_VARIANTS], struct error *err);

/* Whether a step computes the teachers' outputs: there are teachers, and their outputs are not cached. */
static inline bool trainer_teaches(const struct trainer *t) { return t->teachers[0].tower; }
/* Returns the FLOPs of the teachers per image, 0 where a step does not compute their outputs. */
double trainer_teacher_flops(const struct trainer *trainer);
/* Computes the targets of a batch in host memory (at most micro images) to host memory
 * (count, target_values). */
int trainer_embed_teacher(struct trainer *trainer, const struct batch *host, float *out, struct error *err);
/* Moves the weights to those of evaluation and back (meopt_set_point), where they differ. Collective call. */
int trainer_set_point(struct trainer *trainer, enum meopt_point point, struct error *err);
/* Copies the exact fp32 values of a student's parameter to `out` (count), host memory; for trained parameters
 * from the optimizer, those of evaluation. A collective call with sharded states (dist.shard). */
int trainer_export(const struct trainer *trainer, int parameter, float *out, struct error *err);
/* Loads a parameter's weights where its optimizer record has them: before the record is saved, or, with
 * `changed`, loaded. */
int trainer_hold_trained(const struct trainer *trainer, int parameter, bool changed, struct error *err);
/* The same for `count` values from `first` on, a multiple of 64, of this rank's part. Not collective. */
int trainer_export_range(const struct trainer *trainer, int parameter, int64_t first, int64_t count,
                         float *out, struct error *err);
/* Sets a parameter to such values, bit-identical in every format. */
int trainer_import(struct trainer *trainer, int parameter, const float *values, struct error *err);

/* Describes the order of `count` micro-batches, `wave` of them in a wave. twice: there are two backward
 * passes. */
void trainer_rounds(bool breadth, bool twice, int64_t count, int64_t wave, char *text, size_t size);
/* Returns whether gradients are clipped by this step's norm of all groups. */
bool trainer_clips_exactly(const struct trainer *trainer);
/* Describes the norm by which gradients are clipped; exact, twice: as in the trainer or its plan. */
void trainer_clipping(const struct config *config, bool exact, bool twice, char *text, size_t size);

#endif
