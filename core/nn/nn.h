/* Towers of images and language models (core/model/shape.h): forward and hand-written backward (no autograd).
 *
 * Shapes in comments: B images of a micro-batch, N tokens (1 cls, or none, + registers + P patches), R = B*N
 * rows, D width, F hidden width of the feed-forward, O output width of the tower, T target width (the
 * teacher's O).
 *
 * Use:
 *   model_shape_preset / model_shape_infer       what the tower is
 *   tower_create                           every byte it will ever need, by class (works on device "dry" too)
 *   tower_bind_scratch                     one scratch for all towers: they run one after another
 *   tower_load / tower_init_random         values in
 *   tower_forward                          batch -> out
 *   distill_loss                           out, teacher's out -> loss, cosine, gradient of out
 *   tower_backward                         gradient of out -> gradients, group by group, last block first
 *
 * Threads: one caller at a time per device.
 */
#ifndef MEOPT_NN_H
#define MEOPT_NN_H

#include "core/model/lora.h"
#include "core/model/outputs.h"
#include "core/nn/slices.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_BLOCK };
/* MINIMAL: every tensor that is not cheap to recompute. 8BIT: the same, but the feed-forward's pre-activation
 * in 8 bits, and no attention output: it is recomputed from queries, keys and values. */
enum saved { SAVED_MINIMAL, SAVED_8BIT };
enum gradient_storage {
    GRADIENTS_NONE,   /* frozen: a teacher */
    GRADIENTS_KEEP,   /* all at once */
    GRADIENTS_RELEASE /* a buffer of the largest group's size, valid group by group */
};

struct tower_options {
    int64_t batch;          /* B, the largest micro-batch */
    enum dtype compute;     /* activations: F32 or BF16 */
    enum dtype weight_type; /* matrices: F32 or BF16. F32 with BF16 compute: cast into scratch at each use */
    bool master;            /* weight_type BF16 only: keep F32 masters too */
    enum dtype grad_type;   /* of matrices */
    enum gradient_storage gradients;
    /* 0: all weights are in memory. 1, 2: only those of that many groups, in turn; the owner of the tower's
     * weights loads them (tower_bind_weights) */
    int weight_buffers;
    /* released: 2 keep a group's gradients until those of the next group are done, for work that runs in
     * parallel; 0 as 1 */
    int gradient_buffers;
    /* Groups without gradients, from the embedding on; at most depth + 1. Blocks among them keep no
     * activations. frozen_end: also the last group, except its head. */
    int frozen;
    bool frozen_end;
    struct lora_options lora;
    enum recompute recompute;
    enum saved saved;    /* 8BIT cannot be used with RECOMPUTE_BLOCK, which keeps one block */
    bool backward_twice; /* exact clipping with released gradients: activations survive a backward pass */
    /* Micro-batches whose activations are kept at once (tower_forward_group); 0 as 1. Above 1 a tower that is
     * trained needs GRADIENTS_RELEASE and RECOMPUTE_BLOCK */
    int64_t slots;
    /* Above 1: the tower is that stage of a pipeline, and has weights, gradients and activations of its own
     * groups only (stage_of_group). It runs group by group, and needs what slots need. */
    int stages, stage;
    /* The slices of sliced parameters (model_s.slices) that this rank of a tensor group has: slices_own of
     * them, from slices_first on; 0, 0: all (tower_owns_parameter) */
    int slices_first, slices_own;
    struct outputs outputs; /* of a distillation (outputs.h); count 0: the embedding. Not of a classifier */
    bool head_loaded;       /* tower_load refuses a file without the head or classifier (EXIT_USAGE) */
    size_t loss_chunk;      /* of a language model: bytes of logits at once; 0: LM_LOSS_CHUNK (lm_loss.h) */
    /* Each block keeps queries, keys and values of its tokens, for batch.rows. batch 1, GRADIENTS_NONE */
    bool cache;
    enum memory_class weights_class, activations_class; /* a teacher's are MEMORY_TEACHER, twice */
};

/* Makes the weights of `group` available before a pass reads them; `next` follows, -1: none in this pass. It
 * is called between issued operations, which a card may not have finished. */
typedef int (*group_needed)(void *context, int group, int next, struct error *err);

struct tower {
    struct device *device;
    struct model_shape model_shape;
    const struct model *model;       /* of the family: with its classifier, or without */
    const struct family_row *family; /* the row of model_shape.family (family.h) */
    struct tower_options options;
    int64_t tokens;  /* N */
    int64_t patches; /* P */
    int64_t rotated; /* tokens with rotary positions, the last ones of a sample */
    bool resized;    /* positions pass through a resize matrix */
    /* of the first output: rows per image, of a language model head_rows; values of a row: the head's, the
     * classes of a classifier, else O */
    int64_t out_rows, out_width;
    int64_t out_values; /* of all outputs, per image */
    /* A language model: out_width is the vocabulary, there is no out. The head's backward computes the loss
     * and its gradient together, because logits are never stored as a whole. */
    bool owns_loss;
    bool picks; /* an encoder: the head computes the rows batch.picked */
    /* F32 of the selected slot, valid until its next forward: the outputs one after the other, each
     * options.batch times its values per image (tower_output_at). In an output the class rows of all images
     * are first, then the patch rows image by image */
    float *out;
    struct parameter *parameters;
    int parameter_count;
    int group_count; /* depth + 2 */
    int lowest;      /* the first group that is trained, where backward ends */
    size_t scratch_bytes;
    group_needed needed; /* tower_bind_weights */
    void *needed_by;
    struct tower_memory *memory;
};

/* A group's gradients as one span: F32 ones (vectors) first, then its matrices, all of options.grad_type. The
 * gaps between them are unused. */
struct gradient_span {
    void *p; /* NULL for a frozen tower, and for another stage's group */
    size_t bytes, f32_bytes;
};

/* Outputs of a tower of images; a tower without a list has one. */
static inline int tower_outputs(const struct tower *t)
{
    return t->options.outputs.count ? t->options.outputs.count : 1;
}
/* Where an output begins in `out`, and its gradient in an array of the same layout. */
int64_t tower_output_at(const struct tower *tower, int output);

/* The stage of a group: groups go round the stages, so each has a share of them. Both ends of the model are
 * on stage 0, because they may share a table. */
static inline int stage_of_group(int stages, int groups, int group)
{
    return stages <= 1 || group == groups - 1 ? 0 : group % stages;
}
static inline bool tower_owns(const struct tower *tower, int group)
{
    const struct tower_options *o = &tower->options;
    return stage_of_group(o->stages, tower->group_count, group) == o->stage;
}
/* Whether a rank with these slices has a parameter: one of them, or a tensor that is not sliced, which every
 * rank of a tensor group has. own 0: all slices. */
struct tower_slices {
    int first, own;
};
static inline bool tower_slices_have(struct tower_slices s, const struct parameter *p)
{
    return p->slice < 0 || s.own == 0 || (p->slice >= s.first && p->slice < s.first + s.own);
}
static inline bool tower_owns_slice(const struct tower *tower, const struct parameter *p)
{
    const struct tower_options *o = &tower->options;
    return tower_slices_have((struct tower_slices){o->slices_first, o->slices_own}, p);
}
/* Whether this rank has it: the same, of a group of its stage. */
static inline bool tower_owns_parameter(const struct tower *tower, const struct parameter *p)
{
    return tower_owns_slice(tower, p) && tower_owns(tower, p->group);
}

int tower_create(struct tower **tower, struct device *device, const struct model_shape *model_shape,
                 const struct tower_options *options, struct error *err);
void tower_close(struct tower *tower);

/* Valid as long as parameter.grad (group_done). */
struct gradient_span tower_group_gradients(const struct tower *tower, int group);

/* A group's weights: F32 vectors first, then its matrices, in the order of its gradients. With
 * weight_buffers: its part of the buffers, without resident parameters. */
struct weight_span {
    char *p; /* not set for another stage's group */
    size_t bytes;
};
struct weight_span tower_group_weights(const struct tower *tower, int group);
/* The buffer of a group with weight_buffers: 0 or 1 in turn; 2: its own, for the table that the first and the
 * last group share. */
enum { WEIGHT_BUFFERS = 3 };
int tower_weight_buffer(const struct tower *tower, int group);

/* With slices_own: the ranks that have the others. */
void tower_bind_ranks(struct tower *tower, const struct slice_ranks *ranks);
/* After a pass: returns the error of these ranks, whose sums were not computed since. */
int tower_failed(const struct tower *tower, struct error *err);

/* With weight_buffers: sets the function that loads weights, called before each group of a pass. */
void tower_bind_weights(struct tower *tower, group_needed needed, void *context);

/* Sets the scratch: at least the largest scratch_bytes among the towers that share it (64-byte aligned). */
void tower_bind_scratch(struct tower *tower, void *scratch);

/* Called for each loaded parameter with the exact F32 values (host memory), from which the optimizer keeps
 * the bits that bf16 cannot represent. */
typedef int (*parameter_values)(void *context, int index, const float *values, struct error *err);

/* With weight_buffers, values of parameters that are not resident go to `loaded` only.
 *
 * tower_load reads values from a checkpoint: every parameter must exist with its shape, and be finite. The
 * distillation heads (distill_head....) are loaded if present, otherwise unchanged: call
 * tower_init_random(head_only) first. So is the pooler of an encoder's classifier. A classifier is loaded if
 * the file has one of its shape, under the key of any library (names.h), and tower_load logs which it is.
 * `loaded` may be NULL.
 */
int tower_load(struct tower *tower, const struct weights *weights, parameter_values loaded, void *context,
               struct error *err);
/* Reads the values of one parameter from a checkpoint that tower_load would read; it is not an adapter. */
int tower_read(const struct tower *tower, const struct weights *weights, int parameter, float *values,
               struct error *err);
/* Whether adapters are trained in place of the weights of its blocks. */
static inline bool tower_has_adapters(const struct tower *t) { return t->options.lora.rank > 0; }
/* Reads the values of adapters (tower_options.lora) from a file of PEFT or of meopt: each must exist with
 * its shape and be finite, and there must be no others. */
int tower_load_adapters(struct tower *tower, const struct weights *weights, parameter_values loaded,
                        void *context, struct error *err);
/* Seeded random values, the same on every machine, as in timm and in language models (enum initial,
 * core/model/shape.h); norms 1, biases and a classifier 0; only what may be new when head_only. */
int tower_init_random(struct tower *tower, uint64_t seed, bool head_only, parameter_values loaded,
                      void *context, struct error *err);

/* Input of a tower: device memory, unchanged until tower_backward has read it again. NULL: none. */
struct batch {
    const void *input; /* images F32 (count, 3, S, S), or tokens i32 (count, N) */
    int64_t count;     /* at most options.batch */
    /* (count) class of each image, or (count, out_rows) next or masked token; -1: no label */
    const int32_t *labels;
    const int32_t *labels2; /* (count) second class of mixed images */
    const float *share;     /* (count) share of the first class, 0 to 1; with labels2 */
    const float *keep;      /* (2 depth, count) factors of drop path, of both passes; or NULL */
    /* Tokens: */
    const int32_t *begins, *ends; /* (count, N) of each token's document in its sample; NULL: one document */
    const int32_t *order;         /* (count * N) numbers of the tokens, stably sorted by token */
    const int32_t *picked;        /* (count * out_rows) an encoder's rows that labels belong to, ascending */
    /* With tower.owns_loss, device memory: the head's backward adds the loss times `weight`, and the number
     * of labels that have the largest logit. */
    double *sums;
    float weight;    /* 1 / labels of the global batch */
    float smoothing; /* of labels */
    bool evaluates;  /* not a training step: block-sparse attention has other lists (blocks.h) */
    /* With tower_options.cache: `input` is `rows` tokens, the first of which is number `first` of the sample;
     * those before it were in earlier passes. rows 0: all tokens of all samples */
    int64_t first, rows;
};
/* Draws the factors of drop path (operations.h) for both branches of each block and `count` images, which are
 * rows `first` on of the step's global batch: keep (2 depth, count), 0 or 1 / (1 - p). p grows linearly from
 * 0 in the first block to `rate` in the last one, as in timm. Philox by seed, step, row, block and branch, so
 * the same on any number of ranks and in any micro-batch. */
void drop_path_factors(double rate, int64_t depth, uint64_t seed, int64_t step, int64_t first, int64_t count,
                       float *keep);

void tower_forward(struct tower *tower, const struct batch *batch);
/* tower_forward with weights that may have to be waited for. */
int tower_forward_bound(struct tower *tower, const struct batch *batch, struct error *err);

/* ---- Group by group ----
 *
 * For a caller that runs several micro-batches through one group before the next group: breadth-first rounds,
 * stages of a pipeline. A slot holds the activations of one micro-batch. There are options.slots of them, and
 * each call selects its slot. The results are those of tower_forward and tower_backward, bit for bit.
 *
 *     for each group from 0 up to group_count - 1:
 *         tower_need(tower, group, group + 1, err)                weights are loaded once for all slots
 *         for each slot: tower_forward_group(tower, &batch[slot], slot, group)
 *     the last group writes tower->out: it is that slot's until another slot is selected
 *     for each group from group_count - 1 down to tower->lowest:
 *         tower_need(tower, group, group - 1, err)
 *         for each slot: tower_backward_group(tower, &batch[slot], dout[slot], slot, group)
 *                        parameter.grad of that group is the gradient of this micro-batch alone
 *
 * Between two groups a slot consists of its stream: x after a forward group, dx after a backward group. A
 * stage of a pipeline receives it before its group and sends it afterwards; both ends of the model are on
 * stage 0, which alone reads input and labels, and writes tower->out. A backward group needs its own
 * forward group and no other. With two gradient_buffers, a gradient is valid until the second next call. */

/* Makes a group's weights available, as a pass does (group_needed). */
int tower_need(struct tower *tower, int group, int next, struct error *err);
void tower_forward_group(struct tower *tower, const struct batch *batch, int64_t slot, int group);
void tower_backward_group(struct tower *tower, const struct batch *batch, const float *dout, int64_t slot,
                          int group);
/* Binds the activations of a slot: tower->out, the gradients of a tied table, tower_slot_stream. */
void tower_select(struct tower *tower, int64_t slot);
/* F32 (count * N, D), device memory: the residual stream between two groups of a slot, or its gradient. */
float *tower_slot_stream(struct tower *tower, int64_t slot);

/* Copies the pooled rows of the last forward, before projection and head: features F32 (count,
 * model_shape_pooled), device memory. */
void tower_pooled(struct tower *tower, int64_t count, float *features);

/* Called when the gradients of `group` are complete (groups depth+1, depth, ..., lowest), only in the last
 * micro-batch. With GRADIENTS_RELEASE parameter.grad of that group is valid until it returns; with two
 * gradient_buffers, until the call for the following group returns. Non-zero stops the pass. */
typedef int (*group_done)(void *context, int group, struct error *err);

/* dout F32 as out. first: gradients are overwritten, else added to (GRADIENTS_KEEP only). last: the gradients
 * are completed (LayerScale) and passed to `done` (may be NULL). */
int tower_backward(struct tower *tower, const struct batch *batch, const float *dout, bool first, bool last,
                   group_done done, void *context, struct error *err);

/* Blocks that the backward passes of a step compute again; 0 without RECOMPUTE_BLOCK. */
int64_t tower_recomputed_blocks(const struct tower *tower);
/* With owns_loss: GEMMs of the head in the backward passes of a step, beyond the three that forward and
 * backward have. A second pass computes the logits again, and so does the second sweep of slabs. */
int tower_repeated_logits(const struct tower *tower);
/* With owns_loss: parts of rows whose logits one pass of the loss computes in turn; 1: whole, or slabs. */
int64_t tower_logit_row_parts(const struct tower *tower);

/* With owns_loss, after a forward pass: adds the loss times `weight` and the number of correct labels to
 * batch->sums, without gradients. */
void tower_evaluate(struct tower *tower, const struct batch *batch);
/* With owns_loss, after a forward pass: logits F32 (count, vocabulary), device memory, of the rows
 * `rows` (count), host memory, of the micro-batch. */
void tower_logits(struct tower *tower, const int64_t *rows, int64_t count, float *logits);

struct distill_options {
    enum loss_kind kind;
    bool normalize;
    bool sum_dim; /* reduction: sum over the output width instead of mean */
};
/* Adds to *loss (device memory, F64) scale * (mean loss of the cls rows + mean loss of the patch rows), to
 * *cosine the sum of the cls rows' cosines, to dout (may be NULL) scale * gradient. out, target F32
 * (batch*out_rows, width). out_rows 1: no patch rows. */
void distill_loss(struct device *device, const struct distill_options *options, const float *out,
                  const float *target, float *dout, double *loss, double *cosine, float scale, int64_t batch,
                  int64_t out_rows, int64_t width);

#endif
