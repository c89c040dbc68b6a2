/* The operations of a device: their arguments, and the list OPERATIONS of all of them at the end.
 *
 * An operation with many arguments takes one struct of named fields, the same for every device
 * (core/device/device.h, kernels/cpu). Named fields prevent swapped pointers.
 *
 * Shapes: R rows of D columns; B images, N tokens, H heads of dh columns. `type` is the dtype of activations
 * (F32 or BF16); tensors without a dtype are float. Gradients of parameters are ADDED to their buffers.
 */
#ifndef MEOPT_KERNELS_OPERATIONS_H
#define MEOPT_KERNELS_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_BOOL
};
/* Activation function of a feed-forward network. F outputs from F inputs; SWIGLU: from 2F. */
enum activation {
    ACTIVATION_GELU,
    ACTIVATION_SWIGLU,
    ACTIVATION_QUICK_GELU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_TANH, /* of poolers, which are small; RELU too */
    ACTIVATION_RELU,
    ACTIVATION_COUNT
};
enum loss_kind { LOSS_MSE, LOSS_COSINE, LOSS_SMOOTH_L1 };

/* C = alpha op(A) op(B) + beta C (+ bias), op(X) = X or X^T; sums in fp32 for all dtypes.
 * op(A) is (m, k), op(B) (k, n), C (m, n); A, B one dtype (F32 or BF16), C F32 or BF16.
 * lda, ldb, ldc: elements between stored rows. bias F32 (n) or NULL.
 * floats: no integer GEMM (kernels/cpu/bfp.h), which is less accurate if many elements are outliers.
 */
struct gemm {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    enum dtype ab_type, c_type;
    float alpha, beta;
    const float *bias;
    bool floats;
};

/* tokens (B, N, D): row 0 = cls + pos[0], then Q registers, then row 1+Q+i = patches[i] + pos[1+i].
 * Without position embeddings (pos, dpos NULL) nothing is added. Without a class token (cls, dcls NULL) row
 * q = register q, row Q+i = patches[i] + pos[i]. Below, C is 1 with a class token, else 0. */
struct embedding {
    enum dtype type;
    const void *patches;    /* type (B*(N-Q-C), D) */
    const float *bias;      /* (D) to add to the patches (device.h: biases_apart). NULL: none */
    const float *cls, *pos; /* (D), (N-Q, D) */
    const float *registers; /* (Q, D); NULL with Q 0 */
    float *tokens;          /* (B, N, D): the residual stream */
    int64_t B, N, D, Q;
};
struct embedding_gradient {
    enum dtype type;
    const float *dtokens; /* (B, N, D) */
    void *dpatches;       /* type (B*(N-Q-C), D) */
    float *dcls, *dpos;   /* (D), (N-Q, D), both += */
    float *dregisters;    /* (Q, D), += */
    int64_t B, N, D, Q;
};

/* y = xhat * weight + bias over rows of D, xhat = (x - mean) * rstd rounded to hat_type. `forward` computes
 * and stores mean, rstd and xhat. `apply` recomputes y in the backward pass, from the stored xhat, or from x
 * if xhat was not stored. rms (RMSNorm, Zhang and Sennrich, arXiv 1910.07467): xhat = x * rstd,
 * rstd = 1 / sqrt(mean(x^2) + eps); the member `mean` is neither read nor written. */
struct layernorm {
    enum dtype type, x_type; /* of y; of x */
    const void *x;
    int64_t x_stride;           /* elements between rows of x: pooling normalizes only the cls rows */
    const float *weight, *bias; /* (D); bias NULL: 0 */
    void *y;                    /* type (R, D), may be x */
    float *mean, *rstd;         /* (R) */
    int64_t R, D;
    float eps;
    enum dtype hat_type; /* F32: not rounded */
    void *hat;           /* hat_type (R, D). NULL: not stored */
    bool rms;
};
struct branch_gradient;
struct layernorm_gradient {
    enum dtype type, x_type; /* of dy and to; of x */
    const void *dy, *x;      /* (R, D); x as in forward */
    int64_t x_stride;
    const float *weight, *mean, *rstd; /* mean NULL: x is xhat */
    float *dx;                         /* += */
    int64_t dx_stride;
    float *dweight, *dbias; /* (D) +=; NULL: not computed */
    int64_t R, D;
    void *to; /* not NULL: write the gradient of x here, type (R, D), may be dy; dx is unchanged */
    const struct branch_gradient *then; /* not NULL: also apply this operation to the complete dx */
    bool rms;                           /* x is xhat; mean is not read */
};

/* Stochastic depth (Huang et al., arXiv 1603.09382, as timm's DropPath): row r of a branch is multiplied by
 * keep[r / rows], a factor per image: 0, or 1 / (1 - p). keep NULL: off, which equals factors of 1. */
struct drop_path {
    const float *keep; /* (ceil(R / rows)) */
    int64_t rows;      /* of an image; below 2^32 */
};

/* The gradient of a residual stream at the input of a branch: plain = dx, scaled = gamma dx, sums += column
 * sums of dx. plain and scaled may be dy of the layernorm_gradient before it. */
struct branch_gradient {
    enum dtype type;
    const float *dx;      /* (R, D) */
    const float *gamma;   /* (D), NULL: scaled is not written */
    void *plain, *scaled; /* type (R, D) */
    float *sums;          /* (D), +=; NULL: not computed */
    int64_t R, D;
    struct drop_path drop; /* dx is multiplied by its factors */
};

/* GELU (erf, tanh, quick), tanh, ReLU: h (R, F) -> y (R, F). SwiGLU: h (R, 2F) = [x1 | x2] -> y = silu(x1) *
 * x2 (R, F). */
struct activation_value {
    enum dtype type;
    enum activation kind;
    const void *h;     /* type */
    const float *bias; /* (F or 2F) to add to h (device.h: biases_apart). NULL: none */
    void *y;           /* type */
    int64_t R, F;
};
/* dh = dy f'(h), in the shape of h: (R, F), SWIGLU (R, 2F). Optionally recomputes f(h), and adds the column
 * sums of the rounded dh. */
struct activation_gradient {
    enum dtype type;
    enum activation kind;
    const void *dy, *h; /* type (R, F); as in forward */
    const float *bias;  /* as in forward */
    void *dh;           /* type, may be h */
    void *act;          /* type (R, F): f(h); may be dy; or NULL */
    float *sums;        /* (F or 2F), +=; or NULL */
    int64_t R, F;
};

/* Rotary position embedding of q and k, in place, for tokens from `skip` on. Each pair (a, b) of a head
 * becomes (a c - b s, a s + b c), with the cosine c and sine s of its position and pair. Pairs are elements
 * 2i and 2i+1, or with `half` i and i + dims/2; elements from `dims` on stay. The position of token i is
 * i - skip - begins[i]. inverse: rotates by the negative angle, for gradients. */
struct rotation {
    enum dtype type;
    void *qkv;          /* type (B, N, H + 2G, dh), as in struct attention */
    const float *table; /* (positions, 2, dims/2): cosines, then sines */
    int64_t B, N, H, G, dh, skip;
    bool half, inverse;
    const int32_t *begins; /* (B, N), as in struct attention. NULL: zeros */
    int64_t dims;          /* 0: dh */
};

/* y (B, D) = the mean of x's rows (B, N, D) from `skip` on. Backward: dx of these rows += dy / (N - skip). */
struct row_mean {
    enum dtype type;
    const void *x; /* type */
    float *y;
    int64_t B, N, D, skip;
};
struct row_mean_gradient {
    enum dtype type;
    const void *dy; /* type */
    float *dx;
    int64_t B, N, D, skip;
};

/* out = softmax(q k^T / sqrt(dh)) v, statistics in fp32. Memory: at most N x N of one head.
 * H query heads share G key and value heads (H % G = 0, G > 0): head h has those of h / (H / G).
 *
 * Query i sees the keys j of its segment [begins[i], ends[i]), of these with causal j <= i, and with a window
 * j > i - window. Segments are contiguous: begins and ends are constant inside one, and ends[i] begins the
 * next. Packed documents, padding and sliding windows are segments and windows.
 *
 * floats: on a CPU, keeps probabilities and dS in fp32, also with instructions for bf16.
 * first: forward computes only queries from that token of each sample on; earlier rows of out and lse stay.
 * 0 for backward.
 *
 * block > 0: block-sparse attention. Samples have nb = ceil(N / block) blocks of that many tokens, the last
 * one perhaps fewer. A query sees, in its segment, the keys of the blocks in the list of its head and block;
 * a block that is n times in the list counts n times. Each list has the block itself, and at most N keys.
 * Without causal, window and first. List r of the H * nb lists is keys[keys[r]] to keys[keys[r + 1] - 1], and
 * these H * nb + 1 numbers come first. `queries` has the same pairs the other way round, the blocks that see
 * each block. */
struct attention {
    enum dtype type;
    const void *qkv; /* type (B, N, H + 2G, dh): queries, then keys, then values of each token */
    void *out;       /* type (B, N, H, dh) */
    float *lse;      /* (B, H, N): log-sum-exp of each row, for backward */
    int64_t B, N, H, G, dh;
    bool floats, causal;
    int64_t window;               /* 0: none */
    const int32_t *begins, *ends; /* (B, N), both or neither. NULL: one segment per sample */
    int64_t first;
    int64_t block;          /* 0: none */
    int64_t listed;         /* with block: members of the lists of keys, for the plan */
    const int32_t *keys;    /* with block: lists of blocks */
    const int32_t *queries; /* backward */
};
struct attention_gradient {
    struct attention forward; /* of which out and lse are read */
    const void *dout;         /* type (B, N, H, dh) */
    void *dqkv;               /* type (B, N, H + 2G, dh) */
};

/* The forward pass computes the residual stream in fp32. Backward and recomputation read a stored form: xhat
 * of the norm that reads the stream (fp16 in a bf16 tower), with mean and rstd in fp32. A post-norm block
 * stores the stream rounded to the compute type. stored(x) is the value read back: xhat / rstd + mean. */
struct stored_stream {
    enum dtype type;
    const void *x;            /* type (R, D) */
    const float *mean, *rstd; /* (R); both NULL: x is the stream itself. mean NULL: 0 (rms) */
};
/* The input of a block's second branch, which can be recomputed from the stored input x of the block:
 * z = stored(x) + gamma * (branch + bias), normalized by mean and rstd of x + gamma * (branch + bias). */
struct second_input {
    struct stored_stream from;
    const struct layernorm *norm; /* normalizes z; its x and x_type are unused, its y may be `branch` */
    void *z;                      /* without norm: z, from.type (R, D), may be `branch` */
};
/* y = x + gamma * (branch + bias), and optionally the input of the block's second branch */
struct residual {
    enum dtype type;
    const float *x;     /* (R, D). NULL: recomputation, without y, from the stored mean and rstd */
    const void *branch; /* type (R, D) */
    const float *bias;  /* (D) to add to branch (device.h: biases_apart). NULL: none */
    const float *gamma; /* (D), NULL: 1 */
    float *y;           /* may be x; x with `second` */
    int64_t R, D;
    const struct second_input *second; /* or NULL */
    struct drop_path drop;             /* gamma (branch + bias) is multiplied by its factors */
};

/* x (R, D) in 8 bits (kernels/codes8.h): encode reads x, decode writes it. */
struct coded {
    enum dtype type;
    void *x;         /* type (R, D) */
    int8_t *codes;   /* (R, D) */
    uint32_t *words; /* (R, ceil(D / 64)): scales and seeds */
    uint16_t *tops;  /* (R, ceil(D / 64)): the largest value of each group, bf16 */
    int64_t R, D;
};

/* Gradient of LayerScale without storing the branch. a: input of the branch; G = dx^T a (D, K): weight
 * gradient before gamma; s: column sums of dx. dgamma_j += sum_k W_jk G_jk + b_j s_j; then G_jk *= gamma_j,
 * db_j = gamma_j s_j. Exact. */
struct layerscale_gradient {
    const void *weights; /* W */
    enum dtype weight_type;
    void *gradient; /* G */
    enum dtype gradient_type;
    const float *bias, *sums, *gamma; /* b, s, gamma (D) */
    float *dgamma, *dbias;            /* dbias may be sums */
    int64_t D, K;
};

/* loss[0] += weight * loss, dy (R, D) += weight * dloss/dy (NULL: value only), cosine[0] += sum of row
 * cosines (may be NULL). normalize: both L2-normalised first (eps 1e-12). Reduction: mean over rows, and over
 * D, or with sum_dim summed over D. */
struct distillation {
    enum loss_kind kind;
    bool normalize, sum_dim;
    const float *y, *target; /* student and target (R, D) */
    float *dy;
    double *loss, *cosine;
    float weight;
    int64_t R, D;
};

/* Cross entropy of R rows of C logits with the distribution of their labels,
 *
 *   q_j = (1 - smoothing) (share [j = label] + (1 - share) [j = label2]) + smoothing / C
 *   loss[0] += weight * sum over rows of -sum_j q_j log p_j, dlogits = weight (p - q), p = softmax(logits)
 *
 * Labels are -1 to C - 1. A row of label -1 adds nothing, and its gradient is zero. label2 -1: as if share
 * were 1. top1[0] and top5[0] += the share of each label that is among the 1 or 5 largest logits of its row.
 * A class is ahead of a label if its logit is larger, or equal with a smaller index, or NaN. */
struct cross_entropy {
    const float *logits;           /* (R, C) */
    const int32_t *label, *label2; /* (R); label2 NULL: share is 1 */
    const float *share;            /* (R): 0 to 1; unused without label2 */
    float smoothing, weight;
    float *dlogits; /* (R, C), written. NULL: values only */
    double *loss, *top1, *top5;
    int64_t R, C;
};

/* RMS norm of each query and key head (Qwen3): y = xhat * weight, xhat = x * rstd,
 * rstd = 1 / sqrt(mean(x^2) + eps) over the dh values of a head. Value heads are copied if y is not x. The
 * gradient reads x as it was before the norm: keep it, and write y to a buffer of its own. */
struct head_norm {
    enum dtype type;
    const void *x;          /* type (R, H + 2G, dh): H query heads, G key heads, G value heads */
    void *y;                /* type (R, H + 2G, dh), may be x */
    const float *weight[2]; /* (dh): of queries, of keys */
    float *rstd;            /* (R, H + G) */
    int64_t R, H, G, dh;
    float eps;
};
struct head_norm_gradient {
    enum dtype type;
    const void *x;          /* as in forward */
    void *dqkv;             /* type (R, H + 2G, dh): the gradient of y, which becomes that of x */
    const float *weight[2]; /* (dh) */
    const float *rstd;      /* (R, H + G) */
    float *dweight[2];      /* (dh), +=; NULL: not computed */
    int64_t R, H, G, dh;
};

/* y row r = table row tokens[r] - first (+ positions row of its place in its document). Rows of tokens that
 * are not in the table are not written. */
struct token_embedding {
    enum dtype type;        /* of the table */
    const int32_t *tokens;  /* (R) */
    const void *table;      /* type (rows, D): rows `first` on of the vocabulary */
    const float *positions; /* (N, D), or NULL */
    const int32_t *begins;  /* (R): token i of its sample has position i - begins. NULL: 0 */
    float *y;               /* (R, D) */
    int64_t R, N, D;        /* N tokens of a sample; R is a multiple of N */
    int64_t first, rows;
};
/* dtable row t = sum of dx over the rows r with tokens[r] = first + t, in ascending order in F32; 0 without
 * such a row. dpositions row p += sum of dx over the rows of position p, in ascending order. */
struct token_embedding_gradient {
    enum dtype type;       /* of dtable */
    const int32_t *tokens; /* (R) */
    const int32_t *order;  /* (R): row numbers, stably sorted by token */
    const int32_t *begins; /* as in forward */
    const float *dx;       /* (R, D) */
    void *dtable;          /* type (rows, D), written, or with `add` added to; NULL: not computed */
    float *dpositions;     /* (N, D), +=; NULL: not computed */
    int64_t R, N, D;
    int64_t first, rows;
    bool add;
};

/* Cross entropy of rows of logits that are computed in parts: `logits` has C of the `classes`, from column
 * `first` on. logit_sums visits the parts of a row in ascending order and keeps their state; with `loss`,
 * which belongs to the last part, it also adds, with q_j = (1 - smoothing) [j = label] + smoothing / classes,
 *
 *   loss[0] += weight * sum over rows of -sum_j q_j log p_j
 *   correct[0] += number of rows whose label is the first index of the largest logit
 *
 * Rows of label -1 add nothing, and their state is not computed; a label beyond the classes gives NaN. */
enum { LOGIT_TOP, LOGIT_SUM, LOGIT_TARGET, LOGIT_TOTAL, LOGIT_BEST, LOGIT_STATE };
struct logit_sums {
    const float *logits;   /* (R, C) */
    int64_t stride;        /* floats between rows */
    const int32_t *labels; /* (R) */
    /* (R, LOGIT_STATE): largest logit, sum of exp(logit - largest), logit of the label, sum of the logits,
     * index of the largest logit; written with `begin`, else updated */
    double *state;
    bool begin;
    double *loss, *correct; /* NULL: not the last part */
    float smoothing, weight;
    int64_t R, C, first, classes;
};
/* The state of whole rows, and their loss as logit_sums adds it, from the states of S slices of the
 * vocabulary: each of ceil(classes / S) columns, the last one of the rest. Sums are in the order of the
 * slices. */
struct logit_merge {
    const double *states;  /* (S, R, LOGIT_STATE) */
    const int32_t *labels; /* (R) */
    double *state;         /* (R, LOGIT_STATE) */
    double *loss, *correct;
    float smoothing, weight;
    int64_t R, S, classes;
};
/* dlogits = weight (p - q), in place of the logits: row r begins where its logits do. Rows of bf16 are thus
 * 2 stride elements apart. */
struct logit_gradient {
    enum dtype type; /* F32 or BF16 */
    void *logits;    /* F32 (R, C) -> type (R, C) */
    int64_t stride;  /* floats between rows */
    const int32_t *labels;
    const double *state; /* complete */
    float smoothing, weight;
    int64_t R, C, first, classes;
};

/* ---- The list ------------------------------------------------------------------------------------------
 * One row per operation. From it follow the slots of a device (core/device/device.h), the CPU's functions and
 * their table (core/device/cpu.c, kernels/cpu), the cards' table (core/device/gpu_ops.c) and the timers of
 * the profile (core/device/profile.c). A row is
 *
 *   FORM(name, kind of work, (parameters), (arguments), (types), scratch)
 *
 * kind of work: enum work_kind (core/device/profile.h) without WORK_. types: element types that the device
 * must support. scratch: bytes of scratch memory of the CPU kernel. The forms differ only on the CPU:
 *   KERNEL   calls the kernel `name` of the instruction set (kernels/cpu)
 *   SCRATCH  also passes void *scratch
 *   DEVICE   calls a function of core/device/cpu.c, which chooses among several kernels or needs none
 *
 * Arguments that are not in a struct:
 *   patchify      images F32 (B, 3, S, S) -> patches t (B*(S/p)^2, 3*p*p), columns in (channel, row, column)
 *                 order
 *   resize_rows   out (n_out, D) = w (n_out, n_in) @ in (n_in, D), all F32; transpose: out (n_in, D) += w^T
 *                 @ in (n_out, D). The bicubic resize of a position embedding and its gradient
 *                 (core/model/positions.h).
 *   column_sums   sums F32 (D) += column sums of x (R, D)
 *   sum_squares   sum of squares in double, and whether all are finite: sum[0] +=, finite[0] &=. The profile
 *                 counts it as optimizer work, because it serves only clipping.
 */
// clang-format off
#define OPERATION_ROWS(KERNEL, SCRATCH, DEVICE) \
    DEVICE(gemm, PRODUCTS, (const struct gemm *o), (o)) \
    KERNEL(patchify, ELEMENTWISE, \
           (enum dtype t, const float *images, void *patches, int64_t B, int64_t S, int64_t p), \
           (t, images, patches, B, S, p), (t)) \
    KERNEL(embed_forward, ELEMENTWISE, (const struct embedding *o), (o), (o->type)) \
    KERNEL(embed_backward, ELEMENTWISE, (const struct embedding_gradient *o), (o), (o->type)) \
    KERNEL(resize_rows, ELEMENTWISE, \
           (const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D, \
            bool transpose), \
           (w, in, out, n_out, n_in, D, transpose), (DTYPE_F32)) \
    KERNEL(layernorm_forward, ELEMENTWISE, (const struct layernorm *o), (o), (o->type)) \
    KERNEL(layernorm_apply, ELEMENTWISE, (const struct layernorm *o), (o), (o->type)) \
    SCRATCH(layernorm_backward, ELEMENTWISE, (const struct layernorm_gradient *o), (o), (o->type), \
            row_shares_bytes((o->then ? 3 : 2) * o->D)) \
    DEVICE(attention_forward, ATTENTION, (const struct attention *o), (o)) \
    DEVICE(attention_backward, ATTENTION, (const struct attention_gradient *o), (o)) \
    KERNEL(rotate, ELEMENTWISE, (const struct rotation *o), (o), (o->type)) \
    KERNEL(row_mean_forward, ELEMENTWISE, (const struct row_mean *o), (o), (o->type)) \
    KERNEL(row_mean_backward, ELEMENTWISE, (const struct row_mean_gradient *o), (o), (o->type)) \
    KERNEL(activation_forward, ELEMENTWISE, (const struct activation_value *o), (o), (o->type)) \
    SCRATCH(activation_backward, ELEMENTWISE, (const struct activation_gradient *o), (o), (o->type), \
            o->sums ? row_shares_bytes(o->kind == ACTIVATION_SWIGLU ? 2 * o->F : o->F) : 64) \
    KERNEL(residual_forward, ELEMENTWISE, (const struct residual *o), (o), (o->type)) \
    SCRATCH(branch_gradient, ELEMENTWISE, (const struct branch_gradient *o), (o), (o->type), \
            row_shares_bytes(o->D)) \
    SCRATCH(column_sums, ELEMENTWISE, (enum dtype t, const void *x, float *sums, int64_t R, int64_t D), \
            (t, x, sums, R, D), (t), row_shares_bytes(D)) \
    KERNEL(layerscale_backward, ELEMENTWISE, (const struct layerscale_gradient *o), (o), \
           (o->weight_type, o->gradient_type)) \
    KERNEL(encode, ELEMENTWISE, (const struct coded *o), (o), (o->type)) \
    KERNEL(decode, ELEMENTWISE, (const struct coded *o), (o), (o->type)) \
    SCRATCH(distill_loss, ELEMENTWISE, (const struct distillation *o), (o), (DTYPE_F32), \
            (size_t)o->R * 2 * sizeof(double)) \
    SCRATCH(cross_entropy, ELEMENTWISE, (const struct cross_entropy *o), (o), (DTYPE_F32), \
            (size_t)o->R * 3 * sizeof(double)) \
    KERNEL(head_norm, ELEMENTWISE, (const struct head_norm *o), (o), (o->type)) \
    SCRATCH(head_norm_gradient, ELEMENTWISE, (const struct head_norm_gradient *o), (o), (o->type), \
            row_shares_bytes(2 * o->dh)) \
    KERNEL(token_embed, ELEMENTWISE, (const struct token_embedding *o), (o), (o->type)) \
    KERNEL(token_embed_gradient, ELEMENTWISE, (const struct token_embedding_gradient *o), (o), (o->type)) \
    SCRATCH(logit_sums, ELEMENTWISE, (const struct logit_sums *o), (o), (DTYPE_F32), \
            (size_t)o->R * 2 * sizeof(double)) \
    SCRATCH(logit_merge, ELEMENTWISE, (const struct logit_merge *o), (o), (DTYPE_F32), \
            (size_t)o->R * 2 * sizeof(double)) \
    KERNEL(logit_gradient, ELEMENTWISE, (const struct logit_gradient *o), (o), (o->type)) \
    KERNEL(cast, ELEMENTWISE, \
           (const void *src, enum dtype src_type, void *dst, enum dtype dst_type, int64_t n), \
           (src, src_type, dst, dst_type, n), (src_type, dst_type)) \
    DEVICE(fill, ELEMENTWISE, (void *p, int byte, size_t bytes), (p, byte, bytes)) \
    DEVICE(copy, ELEMENTWISE, (void *dst, const void *src, size_t bytes), (dst, src, bytes)) \
    SCRATCH(sum_squares, OPTIMIZER, (const void *x, enum dtype t, int64_t n, double *sum, int *finite), \
            (x, t, n, sum, finite), (t), SUM_SHARES * sizeof(double))
// clang-format on
/* X(name, kind, (parameters), (arguments), ...) for each */
#define OPERATIONS(X) OPERATION_ROWS(X, X, X)
/* Removes the parentheses of parameters or arguments. */
#define OPERATION_LIST(...) __VA_ARGS__

#endif
