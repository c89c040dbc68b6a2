/* The trainer: teacher, student, loss and optimizer of
 * one configuration on one device, and what one step does.
 *
 * trainer_create takes every byte that training will ever need, by class, before the first step; on device
 * "dry" the same calls give the plan (plan.h). One step: forward of the (frozen) teacher or its cached
 * embeddings, forward of the student, loss, backward, and the optimizer either behind it (gradients kept) or
 * inside it, group by group (released).
 *
 * How a step runs. A group is a block (or the embedding, or the end); groups
 * come last block first. Clipping needs the norm of all groups, so each way pays for it otherwise:
 *
 *   way          gradients are        norm for clipping           weights move
 *   kept         all, to the end      exact                       all, behind the backward pass
 *   released     one group's buffer   previous: the step          group by group, inside backward
 *                                     before's; block: the
 *                                     group's share
 *   twice        one group's buffer   exact: a first pass only    group by group, in the second pass
 *                                     measures
 *   accumulated  one group's buffer,  exact: of what was          all, behind the last micro-batch
 *                bf16 accumulators    accumulated
 *
 * kept: optim.gradients keep. released, twice (clip_mode exact): release, the whole batch in one forward.
 * accumulated: release with train.micro_batch below batch_size. clip_mode auto is exact but for released,
 * the one way where that would cost something. Several ranks: step_ranks.c.
 */
#ifndef MEOPT_TRAIN_TRAINER_H
#define MEOPT_TRAIN_TRAINER_H

#include "core/config/config.h"
#include "core/comm/comm.h"
#include "core/meopt.h"
#include "core/nn/nn.h"
#include "core/train/content.h"

struct trainer {
    struct config *config;
    struct device *device;
    struct model_shape teacher_shape, student_shape;
    struct tower_content teacher_content, student_content; /* as their files gave them; none in a plan */
    struct tower *teacher;                                 /* NULL once its embeddings are cached */
    struct weight_stream *teacher_stream; /* of its weights (weight_stream.h); NULL: it holds them */
    struct tower *student;
    struct weight_stream *student_stream;
    char *fallback_weights; /* file that the student was read from, model_s.weight being gone; NULL: that */
    struct meopt *opt;
    struct comm ranks; /* whose gradients, losses and images are one step's */
    struct data_parallel
        *dp;           /* of steps in micro-batches that ranks share (step_ranks.c); NULL: one rank alone */
    struct error lost; /* what failed in a sum that the optimizer asked for */
    int *tensor_of;    /* parameter index -> index in opt, -1 for one that is not trained */
    int *parameter_of; /* and back */
    int tensor_count;
    size_t *tensors; /* (tensor_count): what is given to the optimizer together */
    struct meopt_gradient *gradients;
    struct distill_options loss;
    int64_t batch, micro; /* images per step and per forward, of this rank */
    int64_t images;       /* per step, of all ranks */
    void *scratch;
    void *input; /* of a micro-batch: the teacher's and, student_at bytes behind, the student's */
    size_t student_at, chunk_bytes; /* 0: both see the same, or the teacher is gone */
    void *next_input; /* the same, filled while the card computes; NULL on a device that cannot copy beside
                         its operations */
    struct device_stream *copies;         /* on which it travels */
    struct device_event *taken, *arrived; /* nothing reads next_input any more; it is filled */
    struct batch sent;                    /* in host memory, on its way to next_input; input NULL: none */
    float *target;      /* (micro*out_rows, out_width): teacher's output, or gathered from the cache */
    float *host_target; /* (micro, out_width), host: rows of the cache on their way */
    float *dout;        /* the same shape as target */
    double *sums;       /* device (pieces, 2): loss, cosine; then struct step_squares (groups, at least 1) */
    double *host_sums;  /* the same, as read last; a card copies to it */
    float *cache;       /* host: teacher's output by image, (images, out_rows*out_width) */
    uint8_t *cached;    /* (cache_images): 1 where the row was computed; no other is ever a target */
    int64_t cache_images;
    uint32_t cache_list;   /* data_hash of the images that these are */
    double previous_norm;  /* clip_mode previous: gradient norm of the last step, 0 before the first */
    double offload_waited; /* seconds, by all steps so far */
    double student_flops;  /* of an image: forward, backward, recomputation */
    bool release, twice;   /* gradients handed out inside backward; activations kept for a second backward */
    bool diverged;         /* set by a step that met NaN or infinity */
};

struct step_result {
    double loss, cosine, grad_norm;
    int64_t wide_groups;    /* meopt_wide_groups */
    double offload_wait_ms; /* for offloaded states; -1: none are */
    double stream_wait_ms;  /* for streamed weights; -1: none are */
};

/* Called with train.cache_teacher when the teacher is there and the student is not yet: compute the teacher's
 * output of every image (trainer_embed_teacher) into trainer->cache, and say so in ->cached. The teacher is
 * freed afterwards, so the two never share memory. */
typedef int (*fill_cache)(void *context, struct trainer *trainer, struct error *err);

/* random: no checkpoint is read, every value is seeded random (meopt bench
 * train, plans without files). On device "dry" checkpoints are opened for
 * their shapes only, and not at all when random or missing with an arch given. */
int trainer_create(struct trainer **trainer, struct config *config, struct device *device, bool random,
                   fill_cache cache, void *context, struct error *err);
/* The same as one of several ranks, which train one student together (step_ranks.c); NULL: alone. Every
 * rank makes this call. On device "dry" nobody is joined: what rank `ranks->rank` would hold. */
int trainer_create_distributed(struct trainer **trainer, struct config *config, struct device *device,
                               bool random, const struct comm_options *ranks, fill_cache cache, void *context,
                               struct error *err);
void trainer_close(struct trainer *trainer);
/* What the optimizer of its configuration is made with, but for where it works. */
int trainer_optimizer(const struct trainer *trainer, struct meopt_options *options, struct error *err);

/* Where micro-batches come from. */
struct batch_source {
    /* Micro-batch `index` of the step, of batch->count rows: set batch->input, in host memory, and the number
     * of each row in the dataset (for cached targets); both stay valid until the next call. */
    int (*fetch)(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err);
    /* Optional: the input that `give` will set for micro-batch 0 of the next step,
     * when it is there already, else NULL. */
    const void *(*peek)(void *context);
    void *context;
};

/* What batch->input of `count` images is read as, in bytes: with two preprocessings always a whole chunk
 * (data_chunk). And where the student's images are in it. */
size_t trainer_input_bytes(const struct trainer *trainer, int64_t count);
const void *trainer_student_input(const struct trainer *trainer);

/* One optimizer step, counted from 1. EXIT_DIVERGED when loss or gradient is not finite: with gradients kept,
 * or released with clip_mode exact, no weight has changed then. */
int trainer_step(struct trainer *trainer, int64_t step, double lr, const struct batch_source *source,
                 struct step_result *result, struct error *err);

/* Losses of the batch for every variant (kind x normalize x reduction),
 * name and value, without training: printed once. */
struct loss_variant {
    const char *name;
    double value;
};
enum { LOSS_VARIANTS = 7 };
int trainer_loss_variants(struct trainer *trainer, const struct batch_source *source,
                          struct loss_variant variants[LOSS_VARIANTS], struct error *err);

/* The teacher's output for a batch in host memory
 * (at most micro) into host memory (count, out_rows*out_width). */
int trainer_embed_teacher(struct trainer *trainer, const struct batch *host, float *out, struct error *err);
/* Exact F32 values of a student's parameter: from the optimizer for trained ones. out (count), host memory.
 * Ranks that hold parts (dist.shard) make this call together. */
int trainer_export(const struct trainer *trainer, int parameter, float *out, struct error *err);
/* And back, bits restored in every format. */
int trainer_import(struct trainer *trainer, int parameter, const float *values, struct error *err);

/* By which norm the gradients are clipped, and why, in words. */
void trainer_clipping(const struct config *config, char *text, size_t size);

/* What a tower computes in. */
enum dtype trainer_tower_type(const struct config_tower *tower);

/* Names, shapes and settings of one tower's checkpoint, which is there: would it be taken? */
int trainer_check_checkpoint(struct config *config, bool student, struct error *err);
/* The towers as the configuration and their checkpoints say; also resolves the configuration's family. NULL
 * weights are not returned. */
int trainer_shapes(struct config *config, bool random, struct model_shape *teacher,
                   struct model_shape *student, struct weights **teacher_weights,
                   struct weights **student_weights, struct error *err);
/* One tower with its checkpoint; of the other one only what is needed: the student's image size is the
 * teacher's where data.image_size is not given and there is a teacher. */
int trainer_tower_shape(struct config *config, bool student, struct model_shape *model_shape,
                        struct weights **weights, struct error *err);

#endif
