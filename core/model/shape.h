/* What a model is: an image tower (EVA01- and EVA02-CLIP, OpenCLIP, DINOv2, DINOv3, SigLIP, PE) or a language
 * model (GPT-2, the kin of Llama and of BERT), as rows of one description: its shape, from a preset, a
 * checkpoint's tensors or its sidecar config, and its parameters with their names.
 *
 * Letters of shapes as in core/nn/nn.h.
 */
#ifndef MEOPT_MODEL_SHAPE_H
#define MEOPT_MODEL_SHAPE_H

#include "core/model/choices.h"
#include "core/model/facts.h"
#include "core/base/error.h"
#include "core/device/device.h"
#include "core/weights/weights.h"

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

enum { BLOCK_NONE = -1 }; /* of a family that may have blocks */

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
    int64_t embedding;  /* its columns; 0: width */
    int64_t types;      /* rows of the table of token types */
    int64_t context;    /* N, tokens of a sample */
    int64_t positions;  /* rows of the position embedding (GPT-2), or the longest context it is made for */
    int64_t kv_heads;   /* each for heads / kv_heads query heads; 0: heads */
    int64_t head_dim;   /* 0: width / heads */
    int64_t window;     /* a token sees this many, itself included; 0: all before it */
    int64_t block;      /* tokens of a block of block-sparse attention (blocks.h); BLOCK_NONE: all see all */
    int64_t random;     /* with block: random blocks of a list */
    bool tied;          /* the head's matrix is the token table */
    int slices;         /* of each sliced parameter (parameters.h); 0: none is */
    struct rope_of_tokens rope;
    bool classifier; /* the file has a classifier instead of a projection */
    struct model_facts facts;
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

/* Completes *model_shape from a checkpoint's names and shapes; fields that are set already are compared with
 * it. Refuses a tensor of the tower that meopt does not read (checkpoint_fit.h). A checkpoint has no heads: 0
 * becomes width / head_dim, and head_dim 0 the value of published towers of that width. image 0 becomes
 * pos_grid * patch (DINOv2: 16 patches). */
int model_shape_infer(struct model_shape *model_shape, const struct weights *weights, int64_t head_dim,
                      struct error *err);
/* The subset that names and shapes determine. */
int model_shape_dims(struct model_shape *model_shape, const struct weights *weights, struct error *err);
struct outputs;
/* Returns whether the checkpoint has every parameter of such a tower in its shape, as tower_load requires.
 * Reads names and shapes only. outputs: those of a student, with heads; NULL: none. */
int model_shape_fits(const struct model_shape *model_shape, const struct outputs *outputs,
                     const struct weights *weights, struct error *err);
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
int64_t model_shape_embedding(const struct model_shape *model_shape); /* columns of the token table */
int64_t masked_rows(int64_t context); /* tokens of a sample that an encoder predicts in training */
int64_t model_shape_kv_heads(const struct model_shape *model_shape);   /* resolved: G */
int64_t model_shape_head_dim(const struct model_shape *model_shape);   /* resolved: dh */
int64_t model_shape_attn_width(const struct model_shape *model_shape); /* H * dh, the input of proj */
int64_t model_shape_qkv_width(const struct model_shape *model_shape);  /* (H + 2 G) * dh */
size_t model_shape_input_bytes(const struct model_shape *model_shape,
                               int64_t count);                   /* of struct batch.input (core/nn/nn.h) */
bool model_shape_resizes(const struct model_shape *model_shape); /* positions pass through a resize matrix */
int64_t model_shape_parameters(
    const struct model_shape *model_shape); /* of the visual tower, without a distillation head */
double model_shape_forward_flops(const struct model_shape *model_shape);   /* per image, 2 per multiply-add */
double model_shape_attention_flops(const struct model_shape *model_shape); /* of it, attention's two GEMMs */
/* FLOPs of recomputing `blocks` blocks, each up to the feed-forward's activation. */
double model_shape_recompute_flops(const struct model_shape *model_shape, int64_t blocks);

/* Initial value of a parameter (tower_init_random). Towers of images begin as in timm: VisionTransformer with
 * init_weights_vit_timm, Eva for the family eva, and DINOv3's own class. Their trunc_normal_ has the bounds
 * -2 and 2, 100 standard deviations, which no value reaches; trunc_normal_tf_ has 2 standard deviations. */
enum initial {
    INITIAL_NORMAL, /* standard deviation 0.02 */
    INITIAL_BRANCH, /* the output of a residual branch: 0.02 / sqrt(2*depth); of images, as in the family */
    INITIAL_BLOCK,  /* the same, in block l from 0: 0.02 / sqrt(2*(l + 1)), Eva's fix_init_weight */
    INITIAL_TOKEN,  /* of the class token and registers: as in the family */
    INITIAL_TINY,   /* standard deviation 1e-6 */
    INITIAL_QUERY,  /* of a pooling: 1 / sqrt(columns), redrawn above 2 (AttentionPoolLatent) */
    INITIAL_ZERO,
    INITIAL_ONE,
    INITIAL_SCALE,   /* LayerScale: 1e-5 */
    INITIAL_UNIFORM, /* within 1 / sqrt(columns): kaiming_uniform_ with a = sqrt(5) */
    INITIAL_PATCH    /* Conv2d's default, matrix and bias: uniform within 1 / sqrt(3 * patch^2) */
};

/* One tensor of a tower. */
struct parameter {
    char name[80]; /* key in the checkpoint, without the family's prefix */
    int ndim;
    int64_t shape[4];
    int64_t count;
    int role;          /* enum role (family.h) */
    int group;         /* 0 embedding, 1..depth blocks, depth+1 final norm, projection and head */
    int slice, slices; /* it is the slice-th of `slices` parts of a tensor (parameters.h); else -1 of 1 */
    bool matrix;       /* GEMM operand: stored in weight_type; all other parameters are F32 */
    bool trained;      /* has a gradient; false: mask_token, and frozen parameters (tower_options.frozen) */
    /* stays in memory with weight_buffers: mask_token, and what is frozen in a group that is trained */
    bool resident;
    bool decay;      /* ndim >= 2 after removing dimensions of size 1 */
    bool small;      /* norm, bias, LayerScale, token, position embedding: residual bits do not pay */
    bool hidden;     /* a matrix between activations: muon orthogonalizes it */
    bool owned;      /* ranks do not divide it (dist.shard) */
    int64_t rows[3]; /* of the matrices of which it consists: queries, keys, values; gate, value. 0: one */
    bool head;       /* distillation head or classifier: lr scaled by optim.head_lr_scale */
    int output;      /* of a head: the number of its output (outputs.h) */
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

#endif
