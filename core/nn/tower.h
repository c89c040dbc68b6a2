/* Internal interface of core/nn: the parts of a tower that forward.c, backward.c and load.c share with
 * tower.c. */
#ifndef MEOPT_NN_TOWER_H
#define MEOPT_NN_TOWER_H

#include "core/nn/nn.h"
#include "core/model/blocks.h"
#include "core/model/family.h"
#include "core/model/parameters.h"
#include "core/nn/lm_loss.h"
#include "kernels/codes8.h"

/* Tensors of a block that are kept between forward and backward; t is the compute type. */
struct block_activations {
    void *x_mid;     /* (R, D) input of the feed-forward, as x[l] is stored */
    void *qkv;       /* t (R, (H + 2G) dh); rotated, except with norms of heads: then as it was before them */
    void *attn;      /* t (R, H dh) attention output before its projection */
    void *h;         /* t (R, F) or (R, 2F): feed-forward before the activation */
    float *lse;      /* (B, H, N) */
    struct coded h8; /* with SAVED_8BIT: h; it and attn are decoded into scratch in turn */
    float *mean1, *rstd1, *mean2, *rstd2; /* (R), kept for each block even if the rest is recomputed */
    /* of some towers */
    float *attn_mean, *attn_rstd, *ffn_mean, *ffn_rstd; /* (R) of the norms inside the branches */
    float *head_rstd;                                   /* (R, H + G) of the norms of heads */
    /* t (R, D) inputs of post-norms: branches, or with SUM_NORM the sums; then there is no x_mid */
    void *u1, *u2;
};

/* Tensors that attention pooling keeps (attn_pool.c), O wide. */
struct attn_pool_activations {
    void *query, *query_norm; /* t (B, O): the first query, once for each image, and after its norm */
    void *qkv, *attn;         /* t (R, 3O), (R, O); only the first row of q in each image is not 0 */
    void *out;                /* (B, O) the attention output: t, input of the last norm; F32 with an mlp */
    float *lse;               /* (B, heads, N) */
    float *query_mean, *query_rstd, *key_mean, *key_rstd; /* (B), (R) */
    void *key_hat;                                        /* (R, D) of the norm of the stream */
    float *sum;                                           /* (B, O) with an mlp: its output and out */
    void *normed, *h; /* t (B, O), (B, F): its input, and that of its activation */
};

/* Adapter of the rows of a matrix from `first` on (lora.h). */
struct lora_pair {
    struct parameter *a, *b;
    int64_t first;
};

/* A distillation head, and what it keeps for backward. */
struct output_memory {
    const struct parameter *fc1_w, *fc1_b, *norm_w, *norm_b, *w, *b; /* NULL: none */
    void *mean;                                                      /* t (B, D) of OUTPUT_AVG: its input */
    void *h;                      /* t (rows, hidden): of the hidden layer before its norm */
    float *norm_mean, *norm_rstd; /* (rows) */
};

struct tower_memory {
    struct lora_pair *pairs;                 /* of all matrices */
    struct parameter *roles[ROLE_COUNT];     /* outside the blocks; NULL if the family has none */
    struct parameter *(*blocks)[ROLE_COUNT]; /* (depth) */
    void *weights, *gradients, *masters;     /* one allocation each */
    void *
        tied_gradients; /* released: (slots) of the first group, whose table the head reads; NULL: not tied */
    size_t tied_bytes;  /* of a slot */
    size_t second_gradients;              /* where the second of two buffers begins; 0: there is one */
    size_t *group_offset;                 /* of each group's gradients */
    size_t *small_bytes;                  /* its F32 part, first, zeroed before a pass */
    size_t *group_bytes;                  /* of all of it */
    size_t *weight_offset, *weight_bytes; /* of each group's weights */
    /* With RECOMPUTE_BLOCK and released gradients: the bytes of `gradients` that only the ends of the model
     * use, such as a large head. They hold those tensors of the current block whose bits `spared` has. */
    size_t spare_begin, spare_end;
    unsigned spared;

    /* One allocation: shared tensors, and from slots_at those of the slots. The pointers below to tensors of
     * a slot (activations.c) are those of the selected one. */
    void *activations;
    char *cache; /* t (depth, N, (H + 2G) dh): q, k, v of each block, with tower_options.cache */
    size_t slots_at, slot_bytes;
    int64_t slot;  /* the selected one */
    float *stream; /* F32 (R, D): the residual stream, and its gradient dx; of one slot in scratch */
    /* The stream is stored as xhat of the norm that reads it, in fp16 or F32 (operations.h), or post-norm in
     * the compute type. A frozen tower stores only the input of the current block. */
    enum dtype stored;
    void *tokens; /* stored (R, D), an encoder's (R, E): input of the norm before the blocks; or NULL */
    float *pre_mean, *pre_rstd;
    void **x;                       /* (depth) of stored (R, D): input of each block */
    struct block_activations *kept; /* (depth) with RECOMPUTE_NONE, otherwise all equal except the moments */
    float *norm_mean, *norm_rstd;   /* (B*out_rows) */
    enum dtype norm_type;           /* stored type for many rows, F32 for few */
    size_t norm_hat_bytes;
    void *norm_hat;         /* norm_type (B*out_rows, D) of the final norm; NULL: frozen, or no norm */
    bool pooled_apart;      /* false: pooled is the output */
    int64_t pooled_rows;    /* per image: 1, and the patches if an output reads them */
    enum dtype pooled_type; /* t; F32 where it is the output */
    void *pooled;           /* pooled_type (B*pooled_rows, D or head_width) after the final norm */
    bool projects;          /* the projection has another reader than the output */
    void *projected;        /* t (B, O): the projected embedding; NULL without `projects` */
    struct output_memory outputs[MOST_OUTPUTS];
    float *unit;             /* (D) of 1: the weights of norms that have none */
    void *picked, *picked_h; /* t (B*out_rows, D), (B*out_rows, head_width): input of an encoder's head, and
                                of its activation */
    void *embedded;          /* t (R, E) with ROLE_EMBED_W: its input */
    int32_t *lists;          /* with blocks: tower_lists */
    int32_t *numbers;        /* (2, B*out_rows) of an encoder: from 0 on; the first token of each sample */
    int32_t *types;          /* (N) token types: 0, with ROLE_TYPES; pos then has the sum of the first type */
    void *ones;              /* t (B*out_rows) of 1, with ROLE_LM_BIAS */
    float *pos;      /* (1 + P, D), classless (P, D): resized position embedding, if it is resized; (N, E) */
    float *dpos;     /* its gradient */
    float *resize;   /* (1 + P, 1+pos_grid^2), classless (P, pos_grid^2) */
    float *rotation; /* (rotated, 2, dh/2) cosines and sines, if queries and keys are rotated */
    struct attn_pool_activations attn_pool;
    float *mean; /* (B, D) averaged tokens, with any POOL_AVG... */

    /* scratch, bound by the caller; offsets set by tower.c */
    char *scratch;
    size_t dx_at, td_at, t1_at, region_at, dh_at, cast_at; /* dh_at: with SAVED_8BIT attn, h */
    size_t heads_at;                                       /* q, k, v with norms of heads */
    size_t lora_at;                                        /* t (R, rank) */
    struct lm_loss_layout loss;                            /* of a language model, at region_at */
    size_t frozen_at;                                      /* a block that keeps nothing */
    size_t sums_at,
        norms_at; /* with slices: buffers of `sums`; gradients of the norms of heads, of each slice */
    struct slice_sums sums;                 /* with slices */
    struct lm_loss_head heads[MOST_SLICES]; /* of the loss that is computed */
};

/* The block keeps activations for backward. */
static inline bool tower_block_kept(const struct tower *tower, int64_t block)
{
    return tower->options.gradients != GRADIENTS_NONE && block + 1 >= tower->lowest;
}

/* The gradients of the head overwrite tensors of the last block. */
static inline bool tower_head_overwrites(const struct tower *tower)
{
    const struct tower_memory *m = tower->memory;
    return m->spared && m->group_bytes[tower->group_count - 1] > m->spare_begin;
}

/* The stream is the slot's, not in scratch: it stays between two calls of other slots or other stages. */
static inline bool tower_keeps_streams(const struct tower *tower)
{
    return tower->options.slots > 1 || tower->options.stages > 1;
}
/* This stage has the layers before the first block and after the last one. */
static inline bool tower_has_ends(const struct tower *tower) { return tower->options.stage == 0; }
/* Number of this stage's groups before `group`, one of them. */
static inline int tower_own_index(const struct tower *tower, int group)
{
    int stages = tower->options.stages, last = tower->group_count - 1;
    if (stages <= 1) return group;
    return group == last ? (last - 1) / stages + 1 : group / stages;
}

static inline struct parameter *block_role(const struct tower *tower, int64_t block, enum role role)
{
    return tower->memory->blocks[block][role];
}

/* Slices (core/model/parameters.h): of a model, of this tower, and its first one. Without slices there is
 * one, of which each parameter is the whole. */
static inline int tower_slices(const struct tower *t)
{
    return t->model_shape.slices > 1 ? t->model_shape.slices : 1;
}
static inline int tower_own_slices(const struct tower *t)
{
    return t->options.slices_own ? t->options.slices_own : tower_slices(t);
}
/* The i-th slice of this tower. */
static inline const struct parameter *own_slice(const struct tower *t, const struct parameter *p, int i)
{
    return p && p->slices > 1 ? p + t->options.slices_first + i : p;
}
/* A block's parameter; of a sliced one the i-th slice of this tower. */
static inline const struct parameter *block_slice(const struct tower *t, int64_t block, enum role role, int i)
{
    return own_slice(t, block_role(t, block, role), i);
}
/* The passes call the other ranks that have slices (struct slice_ranks): such calls are not recorded. */
static inline bool tower_calls_ranks(const struct tower *t) { return t->memory->sums.ranks.begin; }
/* Part of `size`, a size of the model's that is divided by slices, that this tower has. */
static inline int64_t tower_share(const struct tower *t, int64_t size)
{
    return size / tower_slices(t) * tower_own_slices(t);
}
/* Widths of one slice. */
static inline int64_t slice_attn(const struct tower *t)
{
    return model_shape_attn_width(&t->model_shape) / tower_slices(t);
}
static inline int64_t slice_qkv(const struct tower *t)
{
    return model_shape_qkv_width(&t->model_shape) / tower_slices(t);
}
static inline int64_t slice_hidden(const struct tower *t) { return t->model_shape.hidden / tower_slices(t); }
/* Values before the activation of one slice. */
static inline int64_t slice_gated(const struct tower *t)
{
    return slice_hidden(t) * (t->model_shape.ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1);
}
/* The tensors of the i-th slice. */
struct block_activations block_slice_view(const struct tower *tower, const struct block_activations *kept,
                                          int i);

static inline const float *f32(const struct parameter *p) { return p ? p->weight : NULL; }

/* The bias of a GEMM whose result is read next by an operation with a bias argument. Either the GEMM gets it
 * or that operation (device.h: biases_apart); the other gets NULL. So h is kept without the later terms. */
static inline const float *bias_at_once(const struct tower *t, const struct parameter *p)
{
    return t->device->biases_apart ? NULL : f32(p);
}
static inline const float *bias_later(const struct tower *t, const struct parameter *p)
{
    return t->device->biases_apart ? f32(p) : NULL;
}

/* The first block whose input is kept. */
static inline int64_t tower_first_kept(const struct tower *tower)
{
    return tower->lowest > 0 ? tower->lowest - 1 : 0;
}
/* A backward pass leaves the input of the feed-forward's activation for a second pass. */
static inline bool tower_saves_h(const struct tower *tower)
{
    return tower->options.backward_twice && tower->options.slots == 1;
}
/* Values of the stream, where outputs of a distillation are also added up. */
static inline size_t tower_stream_values(const struct tower *tower)
{
    const struct model_shape *g = &tower->model_shape;
    int64_t B = tower->options.batch, values = B * tower->tokens * g->width,
            sums = tower->options.outputs.count > 1 ? B * g->out : 0;
    return (size_t)(values > sums ? values : sums);
}
static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t tower_out_bytes(const struct tower *tower)
{
    return (size_t)(tower->options.batch * tower->out_values) * sizeof(float);
}

/* activations.c: allocates the activations, binds those of the selected slot, lays out scratch. */
int activations_alloc(struct tower *tower, struct error *err);
void activations_select(struct tower *tower);
void activations_lay_scratch(struct tower *tower);

/* Selects the buffer of a group's gradients, if there are two and several slots: `turn` modulo 2. */
void tower_select_gradients(struct tower *tower, int group, int64_t turn);
/* device_work.flags of one group of a slot; other flags are below 8. */
static inline int32_t tower_slot_flags(int64_t slot) { return (int32_t)(8 | slot << 4); }

/* One backward pass, or the part of it from group `from` down to group `to`. */
struct pass {
    struct tower *tower;
    const struct batch *batch;
    const float *dout;
    bool first, last;
    int from, to;
};

/* Lists of block-sparse attention (blocks.h): keys in evaluation, then of each block of this stage keys and
 * queries in training, which a frozen tower has not. */
static inline int64_t tower_lists(const struct tower *t)
{
    int64_t count = 0;
    if (!blocks_used(&t->model_shape)) return 0;
    for (int l = 0; l < t->model_shape.depth && t->options.gradients != GRADIENTS_NONE; l++)
        count += 2 * tower_owns(t, l + 1);
    return 1 + count;
}
static inline size_t tower_lists_bytes(const struct tower *t)
{
    int64_t lists = tower_lists(t);
    return lists ? (size_t)(lists * blocks_list_numbers(&t->model_shape)) * sizeof(int32_t) : 0;
}

/* The rows of a pass, and how many each sample has. */
static inline int64_t tower_rows(const struct tower *t, const struct batch *in)
{
    return in->rows ? in->rows : in->count * t->tokens;
}
static inline int64_t tower_sample_rows(const struct tower *t, const struct batch *in)
{
    return in->rows ? in->rows : t->tokens;
}

/* Reserves `bytes` at *at, 64-byte aligned, and advances *at. */
static inline size_t tower_place(size_t *at, size_t bytes)
{
    size_t begin = *at;
    *at = (begin + bytes + 63) & ~(size_t)63;
    return begin;
}

/* Bytes of the moments of a block's norms of heads. */
static inline size_t tower_head_moments(const struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    if (!(model_shape_parts(g) & PART_QK_NORM)) return 0;
    int64_t heads = tower_share(t, g->heads + model_shape_kv_heads(g));
    return (size_t)(t->options.batch * t->tokens * heads) * sizeof(float);
}

/* Quantization groups of (R, D) in 8 bits. */
static inline size_t tower_groups(size_t R, size_t D) { return R * ((D + CODES8_GROUP - 1) / CODES8_GROUP); }

/* A model has three parts, forward and backward. They only issue operations, always the same ones for the
 * same count (device_issue). The residual stream x connects the parts, and in backward its gradient dx, both
 * F32 (R, D) (tower_stream). The backward functions complete the gradients of their
 * group. */
struct model {
    void (*embed)(struct tower *, const struct batch *);            /* input -> x */
    void (*block)(struct tower *, const struct batch *, int64_t l); /* x -> x */
    void (*head)(struct tower *, const struct batch *);             /* x -> out */
    void (*head_backward)(const struct pass *);                     /* dout -> dx */
    void (*block_backward)(const struct pass *, int64_t l);         /* dx -> dx */
    void (*embed_backward)(const struct pass *);                    /* dx -> nothing */
    bool owns_loss; /* head_backward also computes the loss: labels -> sums, dx (struct tower) */
};
const struct model *model_of(const struct model_shape *shape);
void image_embed(struct tower *tower, const struct batch *batch);
void image_head(struct tower *tower, const struct batch *batch);
void image_head_backward(const struct pass *pass);
void image_embed_backward(const struct pass *pass);
void encoder_embed(struct tower *tower, const struct batch *batch);
void encoder_head(struct tower *tower, const struct batch *batch);
void encoder_head_backward(const struct pass *pass);
void encoder_classify(struct tower *tower, const struct batch *batch);
void encoder_classify_backward(const struct pass *pass);
void encoder_embed_backward(const struct pass *pass);
/* Bytes of scratch of an encoder's head, in addition to those of the loss, at region_at. */
size_t encoder_scratch(const struct tower *tower);
/* The same transformer block for every model. */
void tower_block(struct tower *tower, const struct batch *batch, int64_t block);
void tower_block_backward(const struct pass *pass, int64_t block);

/* The token_embed of a model's table: y = the rows of the tokens, of all slices. type, table, first and rows
 * are not read. */
void tower_token_embed(struct tower *tower, const struct token_embedding *o);
void language_embed(struct tower *tower, const struct batch *batch);
void language_head(struct tower *tower, const struct batch *batch);
void language_head_backward(const struct pass *pass);
void language_embed_backward(const struct pass *pass);
/* Adds the gradients of the token table and of the positions, from dx (R, E) of the embedding. */
void language_table_backward(const struct pass *pass, const float *dx);
/* Computes the loss of the normalized rows in memory->pooled, and the gradients of the head's matrix and of
 * dx, at the beginning of the stream. */
void language_loss_backward(const struct pass *pass);

/* The rows of this pass in (N, width) of the compute type. */
static inline void *tower_new_rows(const struct tower *t, const struct batch *in, void *x, int64_t width)
{
    return (char *)x + (size_t)(in->first * width) * dtype_bytes(t->options.compute);
}
/* Returns a block's attention of the kept q, k, v, or with norms of heads of a normalized and rotated copy,
 * which it computes in scratch. */
struct attention tower_attention(struct tower *tower, const struct batch *batch, int64_t block,
                                 const struct block_activations *kept);
/* act (R, F) = the activation of h of the i-th slice of that block. */
void tower_activation(struct tower *tower, int64_t block, int i, const void *h, void *act, int64_t R);
/* Decodes the tensors that are kept in 8 bits into scratch; no effect on other tensors. */
void tower_decode(struct tower *tower, const struct coded *kept, int64_t R);

/* The matrix as GEMM operand: itself, or cast into scratch. */
const void *tower_matrix(struct tower *tower, const struct parameter *p);

/* The residual stream in a forward pass, its gradient dx in a backward pass. */
float *tower_stream(const struct tower *tower);
/* Normalizes the whole stream into t1, stored in `hat`. */
struct layernorm tower_stream_norm(const struct tower *tower, const struct parameter *w,
                                   const struct parameter *b, void *hat, float *mean, float *rstd, int64_t R);
/* y = norm(x), rows of D of the compute type; stores mean and rstd (R) */
void tower_norm(struct tower *tower, const void *x, const struct parameter *w, const struct parameter *b,
                void *y, float *mean, float *rstd, int64_t R, int64_t D);
/* Applies rotary positions to q and k in place, or the inverse to their gradients; no effect without rotary
 * positions. */
void tower_rotate(struct tower *tower, const struct batch *batch, void *qkv, bool inverse);
static inline bool tower_tied(const struct tower *tower)
{
    return tower->owns_loss && tower->model_shape.tied;
}
static inline bool tower_post_norm(const struct tower *tower)
{
    return tower->model_shape.norms == POST_NORM;
}
/* Columns of the rows that a language model's logits, or a classifier's, are computed from. */
static inline int64_t tower_head_width(const struct tower *tower)
{
    return tower->owns_loss ? model_shape_embedding(&tower->model_shape)
                            : model_shape_pooled(&tower->model_shape);
}
/* The head computes some rows of the stream. */
static inline bool tower_picks_rows(const struct tower *tower)
{
    return tower->memory->roles[ROLE_MLM_W] || tower->memory->roles[ROLE_POOLER_W];
}
static inline bool tower_sum_norm(const struct tower *tower) { return tower->model_shape.norms == SUM_NORM; }
/* A norm ends a branch, and reads a tensor that is kept (u1, u2). */
static inline bool tower_norms_end(const struct tower *tower)
{
    return tower_post_norm(tower) || tower_sum_norm(tower);
}

/* outputs.c: the distillation heads, after the last group's pooling and before block `block`. Lays out what
 * they keep, from `base` at *at; NULL base only counts. */
void outputs_lay(struct tower *tower, char *base, size_t *at);
/* Bytes that they keep for `batch` images. */
size_t outputs_bytes(const struct tower *tower);
/* pooled, projected -> out; the stream before a block -> out */
void outputs_forward(struct tower *tower, const struct batch *batch);
void outputs_of_block(struct tower *tower, const struct batch *batch, int64_t block);
/* dout -> the gradients of the pooled rows and, with a projection, of the projected ones, in scratch; after a
 * block's backward pass, what is added to the gradient of the stream before it. */
struct output_gradients {
    char *pooled, *projected; /* t, as tower_memory's; pooled is of pooled_type */
};
struct output_gradients tower_output_gradients_at(const struct tower *tower);
void outputs_backward(const struct pass *pass);
void outputs_of_block_backward(const struct pass *pass, int64_t block);
/* Bytes of scratch at region_at: of the gradients of all outputs (image_head_backward), and of the outputs of
 * blocks. */
size_t tower_output_gradients(const struct tower *tower);
size_t outputs_scratch(const struct tower *tower);
/* There is one output, the embedding or it and the patches, without a head. */
bool outputs_headless(const struct tower *tower);
/* Some output is that of a block. */
bool outputs_of_blocks(const struct tower *tower);
/* attn_pool.c: x -> pooled, and its gradient dy (B, O), overwritten, -> dx; bytes of scratch after those of
 * the output's gradients. */
size_t attn_pool_lay(const struct tower *tower, struct attn_pool_activations *kept, char *base, size_t at);
size_t attn_pool_scratch(const struct tower *tower);
void attn_pool_forward(struct tower *tower, int64_t batch);
void attn_pool_backward(const struct pass *pass, void *dy);
/* The embedding is the norm of a mean; false: it is the mean of norms. */
static inline bool tower_averages_first(const struct tower *tower)
{
    enum pool pool = tower->model_shape.pool;
    return pool == POOL_AVG_FIRST || pool == POOL_AVG_ALL || pool == POOL_AVG_RAW;
}
static inline bool tower_averages_last(const struct tower *tower)
{
    return tower->model_shape.pool == POOL_AVG || tower->model_shape.pool >= POOL_CLS_DIST;
}
/* With POOL_CLS_AVG the class tokens of all images are normalized first, then the averaged tokens. */
static inline int64_t tower_class_rows(const struct tower *tower, int64_t batch)
{
    return tower->model_shape.pool == POOL_CLS_AVG ? batch : 0;
}
/* Rows that the last norm normalizes. */
static inline int64_t tower_normed_rows(const struct tower *tower)
{
    int64_t first, count;
    model_shape_averaged(&tower->model_shape, &first, &count);
    int64_t batch = tower->options.batch, pooled = batch * tower->memory->pooled_rows,
            normed = tower_class_rows(tower, batch) + batch * (tower_averages_last(tower) ? count : 1);
    return normed > pooled ? normed : pooled;
}
static inline bool tower_pools_by_attention(const struct tower *tower)
{
    return tower->memory->roles[ROLE_POOL_QUERY] != NULL;
}

/* lora_pass.c, for a matrix with adapters: adds their part to y of tower_linear_apart; computes their
 * gradients; and adds their part to dx of tower_input_gradient. */
void lora_forward(struct tower *tower, const void *x, int64_t ldx, const struct parameter *w, void *y,
                  int64_t ldy, enum dtype y_type, int64_t rows);
void lora_gradients(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                    const struct parameter *w, int64_t rows);
void lora_input_gradient(struct tower *tower, const void *dy, int64_t ldy, const struct parameter *w,
                         void *dx, int64_t lddx, enum dtype dx_type, int64_t rows);

/* y (rows, out) = x W^T + b, W (out, in); rows of x and y are ldx and ldy elements apart */
void tower_linear_apart(struct tower *tower, const void *x, int64_t ldx, const struct parameter *w,
                        const float *bias, void *y, int64_t ldy, enum dtype y_type, int64_t rows);
/* The same for dense rows */
void tower_linear(struct tower *tower, const void *x, const struct parameter *w, const float *bias, void *y,
                  enum dtype y_type, int64_t rows);
/* y_rj = sum_k x_rk W_jk, so dW_jk = sum_r dy_rj x_rk: dW (out, in) = dy^T x, dy (rows, out), x (rows, in).
 * Later micro-batches add to it. */
void tower_weight_gradient(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                           const struct parameter *w, int64_t rows);
/* dx_rk = sum_j dy_rj W_jk: dx (rows, in) = or, add, += dy (rows, out) W (out, in) */
void tower_input_gradient(const struct pass *pass, const void *dy, int64_t ldy, const struct parameter *w,
                          void *dx, int64_t lddx, bool add, int64_t rows);
/* y = x W^T + b: dW, db_j = sum_r dy_rj, and dx unless NULL (may be x: dW has read it) */
void tower_linear_backward(const struct pass *pass, const void *dy, const void *x, const struct parameter *w,
                           const struct parameter *b, void *dx, int64_t rows);
/* Backward through y = norm(x) outside the residual stream: dx overwrites dy. */
void tower_norm_backward(const struct pass *pass, void *dy, const void *x, const struct parameter *w,
                         const struct parameter *b, const float *mean, const float *rstd, int64_t R,
                         int64_t D);
/* The forward pass of one block. again: recomputes, from the stored input, only the tensors that backward
 * needs. */
void tower_block_forward(struct tower *tower, const struct batch *batch, int64_t block, bool again);
/* Drop path of a block's branch: 0 attention, 1 feed-forward */
static inline struct drop_path tower_drop(const struct tower *tower, const struct batch *batch, int64_t block,
                                          int branch)
{
    const float *keep = batch->keep ? batch->keep + (2 * block + branch) * batch->count : NULL;
    return (struct drop_path){keep, tower->tokens};
}

#endif
