/* Vision transformer towers: EVA01- and EVA02-CLIP, OpenCLIP, DINOv2, DINOv3 and SigLIP, and language models:
 * GPT-2, the kin of Llama, and BERT; as rows of one description, forward and hand-written backward (no
 * autograd).
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

#include "core/nn/families.h"
#include "core/base/error.h"
#include "core/device/device.h"
#include "core/weights/weights.h"

#define FAMILY_NUMBER(c, number, ...) FAMILY_##number,
enum family { FAMILY_UNKNOWN, FAMILIES(FAMILY_NUMBER, ) LANGUAGE_FAMILIES(FAMILY_NUMBER, ) FAMILY_COUNT };
const char *family_name(enum family family); /* as in model.family; "unknown" */
const char *family_noun(enum family family); /* for people: "tower" of images, or "model" */
const char *
family_prefix(enum family family); /* prefix of the keys in a published checkpoint: "visual." or "" */
bool family_stores_positions(enum family family); /* for one image size, whatever the image */
double family_rope_theta(enum family family); /* base of the frequencies of its rotary positions; 0: none */
int family_ffn(enum family family);           /* default activation of an mlp, 1 + enum activation */
/* Default heads of attention pooling; 0: as many as the blocks'. */
int64_t family_pool_heads(enum family family);
bool family_has_variants(enum family family); /* of activation and pooling, with the same names and shapes */

enum layerscale { LAYERSCALE_USUAL, LAYERSCALE_WITHOUT, LAYERSCALE_WITH };

/* Bicubic interpolation of the patches' positions, which differs between libraries. */
enum pos_resize {
    POS_RESIZE_USUAL,  /* of the family, and of towers with registers */
    POS_RESIZE_DINOV2, /* the hub without registers: source = (d + .5) grid / (side + .1) - .5, A = -.75 */
    POS_RESIZE_HF,     /* transformers' Dinov2Model, EVA: (d + .5) grid / side - .5, A = -.75 */
    POS_RESIZE_TIMM    /* timm, open_clip, the hub with registers: the same with antialias, A = -.5 */
};

/* Order of a block's norms: pre-norm, x + f(norm(x)), the default, or post-norm, x + norm(f(x))
 * (EVA02-CLIP-E), or the norm of the sum, norm(x + f(x)) (BERT). */
enum norms { NORMS_USUAL, NORMS_BEFORE, POST_NORM, SUM_NORM };

/* Pooling: the input of the embedding. */
enum pool {
    POOL_USUAL,     /* the class token; POOL_AVG of a tower without one */
    POOL_CLS,       /* the class token after the last norm */
    POOL_AVG,       /* the mean of the patches after the last norm */
    POOL_AVG_FIRST, /* the last norm of the patches' mean (CLIPA, timm's fc_norm) */
    POOL_AVG_ALL,   /* the last norm of the mean of all tokens (EVA-CLIP's use_mean_pooling) */
    POOL_AVG_RAW,   /* the mean of the patches without the last norm (CLIPForImageClassification) */
    POOL_CLS_DIST,  /* the mean of the first two tokens after the last norm: class and distillation (DeiT) */
    POOL_CLS_AVG    /* both POOL_CLS and POOL_AVG, 2 * width (linear heads of DINOv2) */
};

/* Optional parameters of a family's towers. */
enum {
    PARTS_KNOWN = 1,
    PART_PRE_NORM = 2,  /* a norm between the embedding and the first block */
    PART_ATTN_NORM = 4, /* sub-LN: a norm between the attention and its projection */
    PART_FFN_NORM = 8,  /* and one between the activation and the second matrix of the feed-forward */
    PART_QKV_BIAS = 16,
    PART_ATTN_POOL = 32, /* the embedding is the first query's attention output */
    PART_QK_NORM = 64    /* an RMS norm of each head's query and key (Qwen3) */
};

enum { ROPE_MAX_PERIODS = 64 }; /* heads of up to 256 values */

enum { CLASSES_UNKNOWN = -1 };

/* How the frequencies of a language model's rotary positions differ from theta^(-2i/head_dim), as in
 * transformers' modeling_rope_utils.py. */
enum rope_scaling { ROPE_UNSCALED, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
struct rope_of_tokens {
    double theta; /* 0: the family's */
    enum rope_scaling scaling;
    double factor;
    double original;  /* original_max_position_embeddings: llama3, yarn */
    double low, high; /* low_freq_factor, high_freq_factor: llama3; beta_slow, beta_fast: yarn */
    double attention; /* yarn's factor of cosines and sines */
};

/* 0 in any field: not known yet. */
struct model_shape {
    enum family family;
    int64_t image;    /* input side in pixels */
    int64_t patch;    /* patch side in pixels */
    int64_t pos_grid; /* side of the stored position embedding: image/patch unless positions are resized */
    int64_t width, depth, heads, hidden;
    int64_t out;       /* after the projection; without one the width of the pooled row */
    int64_t classes;   /* outputs of a linear classifier after it; CLASSES_UNKNOWN: known later; 0: none */
    int ffn;           /* 1 + enum activation */
    bool unprojected;  /* saved without the family's projection: out is width */
    bool projected;    /* with a projection, in a family that usually has none */
    bool out_biasless; /* the projection lacks the family's bias */
    bool classless;    /* no class token, and no position for one */
    int64_t registers; /* tokens between class and patches, without position */
    enum layerscale layerscale;
    enum pos_resize pos_resize; /* interpolation of positions from pos_grid to image / patch */
    enum norms norms;
    enum pool pool;
    int64_t pool_queries, pool_heads; /* with PART_ATTN_POOL */
    int parts;                        /* PARTS_KNOWN | PART_...; 0: the family's default */
    float norm_eps;                   /* of all norms; 0: the family's */
    /* Periods of the rotary positions, one per frequency (DINOv3); count 0: those of rope_period */
    int rope_count;
    float rope_periods[ROPE_MAX_PERIODS];
    /* Of a language model, which has no image, patch and pos_grid. */
    int64_t vocabulary; /* rows of the token table */
    int64_t context;    /* N, tokens of a sample */
    int64_t positions;  /* rows of the position embedding (GPT-2), or the longest context it is made for */
    int64_t kv_heads;   /* each for heads / kv_heads query heads; 0: heads */
    int64_t head_dim;   /* 0: width / heads */
    int64_t window;     /* a token sees this many, itself included; 0: all before it */
    bool tied;          /* the head's matrix is the token table */
    struct rope_of_tokens rope;
    /* What the checkpoint's config.json or metadata say, where keys may say something else; heads 0: there is
     * none. model_shape_text has the differences. */
    struct said_of_tokens {
        int64_t heads, window;
        int ffn;
        float norm_eps, dropout; /* of config.json: no training here has one */
        double theta;
    } said;
    bool classifier; /* the file has a classifier instead of a projection */
    int assumed;     /* ASSUMED_... */
};

/* Properties that no tensor shows: neither a key, nor the file's metadata, nor a sidecar config gave them, so
 * the usual value was taken. model_shape_text marks each with "(assumed)". */
enum {
    ASSUMED_HEADS = 1,
    ASSUMED_ACTIVATION = 2,
    ASSUMED_POOL = 4,
    ASSUMED_NORMS = 8,
    ASSUMED_NORM_EPS = 16,
    ASSUMED_POSITIONS = 32, /* frequencies of rotary positions; how positions are resized */
    ASSUMED_OUT = 64,       /* whether the last matrix is a projection or a classifier */
    ASSUMED_ALL = 127
};

const char *model_shape_activation(const struct model_shape *model_shape); /* "gelu", "quick_gelu", ... */
/* 1 + enum activation of an mlp by that name, transformers' names too; 0: unknown */
int activation_named(const char *name);
const char *pos_resize_name(enum pos_resize resize);                  /* "dinov2", "hf", "timm"; USUAL: "" */
const char *model_shape_pool(const struct model_shape *model_shape);  /* "cls", "avg", "avg_first", ... */
const char *model_shape_norms(const struct model_shape *model_shape); /* "pre", "post", "sum" */
float model_shape_norm_eps(const struct model_shape *model_shape);    /* resolved */
/* Heads of published towers of that family and width; 0: unknown. */
int64_t model_shape_usual_heads(enum family family, int64_t width);
/* Writes one line of text: the tower, and its assumed properties. */
void model_shape_text(const struct model_shape *model_shape, char *text, size_t size);
/* Logs that line if a property is assumed. */
void model_shape_log_assumed(const struct model_shape *model_shape);

/* "eva01_g14", "eva01_g14_plus", "openclip_vit_g14", "openclip_vit_h14", "dinov2_vitg14", "dinov2_vitl14". */
int model_shape_preset(const char *name, struct model_shape *model_shape, struct error *err);
const char *model_shape_preset_name(int i); /* NULL after the last */

/* Completes *model_shape from a checkpoint's names and shapes; fields that are set already are compared with
 * it. Refuses a tensor of the tower that meopt does not read (checkpoint_fit.h). A checkpoint has no heads: 0
 * becomes width / head_dim, and head_dim 0 the value of published towers of that width. image 0 becomes
 * pos_grid * patch (DINOv2: 16 patches). */
int model_shape_infer(struct model_shape *model_shape, const struct weights *weights, int64_t head_dim,
                      struct error *err);
/* The subset that names and shapes determine. */
int model_shape_dims(struct model_shape *model_shape, const struct weights *weights, struct error *err);
/* Returns whether the checkpoint has every parameter of such a tower in its shape, as tower_load requires.
 * Reads names and shapes only. target: of a distillation head, 0 for none. */
int model_shape_fits(const struct model_shape *model_shape, int64_t target, const struct weights *weights,
                     struct error *err);
/* Applies the defaults without a checkpoint, then checks that everything is set and valid. */
int model_shape_check(struct model_shape *model_shape, int64_t head_dim, struct error *err);

bool model_shape_projects(const struct model_shape *model_shape);   /* the pooled row passes a projection */
int64_t model_shape_patches(const struct model_shape *model_shape); /* P = (image / patch)^2 */
int64_t model_shape_tokens(
    const struct model_shape *model_shape); /* N = 1 + registers + P; classless without the 1 */
/* Rows of a position embedding of side * side patches. */
int64_t model_shape_position_rows(const struct model_shape *model_shape, int64_t side);
/* The tokens that POOL_AVG..., POOL_CLS_AVG and POOL_CLS_DIST average: `count` of them from `first` on. */
void model_shape_averaged(const struct model_shape *model_shape, int64_t *first, int64_t *count);
int model_shape_parts(const struct model_shape *model_shape); /* resolved: PARTS_KNOWN | PART_... */
/* Width of the pooled row, before its projection; and of the rows that the last norm normalizes. */
int64_t model_shape_pooled(const struct model_shape *model_shape);
int64_t model_shape_normed(const struct model_shape *model_shape);
bool model_shape_rotates(const struct model_shape *model_shape);  /* queries and keys have rotary positions */
bool model_shape_language(const struct model_shape *model_shape); /* reads tokens, not images */
/* Rows per sample whose logits the head of a language model computes: every token, or those that an encoder
 * predicts, 15 % of its tokens. */
int64_t model_shape_head_rows(const struct model_shape *model_shape);
int64_t masked_rows(int64_t context); /* tokens of a sample that an encoder predicts in training */
int64_t model_shape_kv_heads(const struct model_shape *model_shape);   /* resolved: G */
int64_t model_shape_head_dim(const struct model_shape *model_shape);   /* resolved: dh */
int64_t model_shape_attn_width(const struct model_shape *model_shape); /* H * dh, the input of proj */
int64_t model_shape_qkv_width(const struct model_shape *model_shape);  /* (H + 2 G) * dh */
bool model_shape_resizes(const struct model_shape *model_shape); /* positions pass through a resize matrix */
int64_t model_shape_parameters(
    const struct model_shape *model_shape); /* of the visual tower, without a distillation head */
double model_shape_forward_flops(const struct model_shape *model_shape);   /* per image, 2 per multiply-add */
double model_shape_attention_flops(const struct model_shape *model_shape); /* of it, attention's two GEMMs */
/* FLOPs of recomputing `blocks` blocks, each up to the feed-forward's activation. */
double model_shape_recompute_flops(const struct model_shape *model_shape, int64_t blocks);

/* Initial value of a parameter (tower_init_random). */
enum initial {
    INITIAL_NORMAL, /* standard deviation 0.02 */
    INITIAL_BRANCH, /* the output of a residual branch: 0.02 / sqrt(2*depth) */
    INITIAL_ZERO,
    INITIAL_ONE,
    INITIAL_UNIFORM /* within 1 / sqrt(columns): kaiming_uniform_ with a = sqrt(5) */
};

/* One tensor of a tower. */
struct parameter {
    char name[80]; /* key in the checkpoint, without the family's prefix */
    int ndim;
    int64_t shape[4];
    int64_t count;
    int role;     /* enum role (family.h) */
    int group;    /* 0 embedding, 1..depth blocks, depth+1 final norm, projection and head */
    bool matrix;  /* GEMM operand: stored in weight_type; all other parameters are F32 */
    bool trained; /* has a gradient; false: mask_token, and frozen parameters (tower_options.frozen) */
    /* stays in memory with weight_buffers: mask_token, and what is frozen in a group that is trained */
    bool resident;
    bool decay;      /* ndim >= 2 after removing dimensions of size 1 */
    bool small;      /* norm, bias, LayerScale, token, position embedding: residual bits do not pay */
    bool hidden;     /* a matrix between activations: muon orthogonalizes it */
    bool owned;      /* ranks do not divide it (dist.shard) */
    int64_t rows[3]; /* of the matrices of which it consists: queries, keys, values; gate, value. 0: one */
    bool head;       /* distillation head or classifier: lr scaled by optim.head_lr_scale */
    bool may_be_new; /* of a head: random if a checkpoint lacks it */
    bool adapter; /* A or B of an adapter (lora.h): role is its matrix's, of which it changes the rows from */
    int64_t first;           /* `first` on */
    struct lora_pair *pairs; /* the adapters of this matrix (tower.h), (pair_count) */
    int pair_count;
    enum initial initial;
    void *weight; /* read by forward and backward; NULL: another stage has it */
    enum dtype weight_type;
    size_t weight_at, grad_at; /* bytes from the beginning of its group's weights and gradients */
    float *master;             /* F32 values next to bf16 weights (the AMP-like baseline), else NULL */
    void *grad; /* NULL for a frozen tower; with released gradients valid only inside group_done */
    enum dtype grad_type;
};

enum recompute { RECOMPUTE_NONE, RECOMPUTE_BLOCK };
/* MINIMAL: every tensor that is not cheap to recompute. 8BIT: the same, but the feed-forward's pre-activation
 * in 8 bits, and no attention output: it is recomputed from queries, keys and values. */
enum saved { SAVED_MINIMAL, SAVED_8BIT };
enum gradient_storage {
    GRADIENTS_NONE,   /* frozen: a teacher */
    GRADIENTS_KEEP,   /* all at once */
    GRADIENTS_RELEASE /* a buffer of the largest group's size, valid group by group */
};

/* Adapters (lora.h). Everything else is frozen. */
struct lora_options {
    int64_t rank; /* 0: none */
    float scale;
    unsigned targets; /* bits of the modules (lora_modules) */
    bool resident;    /* with weight_buffers: adapters stay in memory */
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
    bool patch_tokens; /* out also holds the patch tokens (loss tokens cls+patch) */
    bool head_loaded;  /* tower_load refuses a file without the head or classifier (EXIT_USAGE) */
    int64_t target;    /* T of a linear distillation head, 0: none. model_shape.classes replaces it */
    size_t loss_chunk; /* of a language model: bytes of logits at once; 0: LM_LOSS_CHUNK (lm_loss.h) */
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
    /* rows of out per image: 1 (cls), or 1 + P with patch_tokens; of a language model head_rows */
    int64_t out_rows;
    int64_t out_width; /* T with a distillation head, the classes with a classifier, else O */
    /* A language model: out_width is the vocabulary, there is no out. The head's backward computes the loss
     * and its gradient together, because logits are never stored as a whole. */
    bool owns_loss;
    bool picks; /* an encoder: the head computes the rows batch.picked */
    float *out; /* F32 (batch*out_rows, out_width) of the selected slot, valid until its next forward: the cls
                   rows of all images first, then the patch rows image by image */
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
 * distillation head (distill_head.weight, .bias) is loaded if present, otherwise unchanged: call
 * tower_init_random(head_only) first. So is the pooler of an encoder's classifier. A classifier is loaded if
 * the file has one of its shape, under the key of any library (names.h), and tower_load logs which it is.
 * `loaded` may be NULL.
 */
int tower_load(struct tower *tower, const struct weights *weights, parameter_values loaded, void *context,
               struct error *err);
/* Reads the values of one parameter from a checkpoint that tower_load would read; it is not an adapter. */
int tower_read(const struct tower *tower, const struct weights *weights, int parameter, float *values,
               struct error *err);
/* Reads the values of adapters (tower_options.lora) from a file of PEFT or of meopt: each must exist with
 * its shape and be finite, and there must be no others. */
int tower_load_adapters(struct tower *tower, const struct weights *weights, parameter_values loaded,
                        void *context, struct error *err);
/* Seeded random values, the same on every machine: normal 0.02 (outputs of residual branches /
 * sqrt(2*depth)), norms and LayerScale 1, biases and a classifier 0; only what may be new when head_only. */
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
size_t model_shape_input_bytes(const struct model_shape *model_shape, int64_t count);

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
