/* A device: memory by class, and the operations of a transformer on it.
 *
 * Every byte has a class (design D2): all device memory comes from device_alloc, current and peak per class
 * are counted there and nowhere else. The device "dry" counts and hands out addresses without memory behind
 * them: `meopt plan` runs the same allocations on it as `meopt train` on a real device, so the plan equals
 * the measurement because it is the same code.
 *
 * Operations are slots of one table, filled by each back end (cpu.c from kernels/cpu, gpu.c from
 * kernels/gpu), same names and contracts. Pointers in their arguments are device memory, tensors are
 * row-major and contiguous, operations run in issue order (a card may return before they are done:
 * device->sync waits). Failures surface in device_check; an impossible
 * shape is a programming error (assert).
 */
#ifndef MEOPT_DEVICE_H
#define MEOPT_DEVICE_H

#include "core/base/error.h"

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
size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* safetensors' spelling: "F32", "BF16", ... */

enum memory_class {
    MEMORY_WEIGHTS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_TEACHER,
    MEMORY_WORKSPACE,
    MEMORY_COMM,
    MEMORY_DATA,
    MEMORY_CLASS_COUNT
};
/* "weights", "gradients", ...: the keys of "classes" in every JSON output. */
extern const char *const memory_class_names[MEMORY_CLASS_COUNT];

struct memory_use {
    size_t current_bytes[MEMORY_CLASS_COUNT];
    size_t peak_bytes[MEMORY_CLASS_COUNT];        /* of each class by itself */
    size_t current_total_bytes, peak_total_bytes; /* the peak of the sum: at most the sum of the peaks */
};

enum activation { ACTIVATION_GELU, ACTIVATION_SWIGLU };
enum loss_kind { LOSS_MSE, LOSS_COSINE, LOSS_SMOOTH_L1 };

/* C = alpha op(A) op(B) + beta C (+ bias), op(X) = X or X^T; accumulation in fp32 whatever the dtypes.
 * op(A) is (m, k), op(B) (k, n), C (m, n); A, B one dtype (F32 or BF16), C F32 or BF16.
 * Row strides lda, ldb, ldc in elements, of the matrices as stored. bias F32 (n) or NULL. */
struct gemm {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    enum dtype ab_type, c_type;
    float alpha, beta;
    const float *bias;
};

/* Shapes in comments: B images, N tokens, D width, H heads, dh head dimension, R rows = B*N, F hidden.
 * `t` is the dtype of activations (F32 or BF16); parameters of norms, biases, gammas and tokens are F32,
 * so are their gradients, which are ADDED to what is there. */
struct device;
struct device_ops {
    void (*gemm)(struct device *, const struct gemm *);

    /* images F32 (B, 3, S, S) -> patches t (B*(S/p)^2, 3*p*p), columns in (channel, row, column) order */
    void (*patchify)(struct device *, enum dtype t, const float *images, void *patches, int64_t B, int64_t S,
                     int64_t p);
    /* tokens (B, N, D): row 0 = cls + pos[0], row 1+i = patch_out[i] + pos[1+i]; patch_out t (B*(N-1), D) */
    void (*embed_forward)(struct device *, enum dtype t, const void *patch_out, const float *cls,
                          const float *pos, void *tokens, int64_t B, int64_t N, int64_t D);
    /* dtokens F32 (B, N, D) -> dpatch_out t (B*(N-1), D), dcls (D) +=, dpos (N, D) += */
    void (*embed_backward)(struct device *, enum dtype t, const float *dtokens, void *dpatch_out, float *dcls,
                           float *dpos, int64_t B, int64_t N, int64_t D);
    /* out (n_out, D) = w (n_out, n_in) @ in (n_in, D), all F32; transpose: out (n_in, D) += w^T @ in (n_out,
     * D). The bicubic resize of a position embedding and its gradient (models.md 1c). */
    void (*resize_rows)(struct device *, const float *w, const float *in, float *out, int64_t n_out,
                        int64_t n_in, int64_t D, bool transpose);

    /* y = (x - mean) * rstd * weight + bias over rows of D; mean, rstd F32 (R) kept for backward.
     * row_stride_x in elements (D when contiguous): pooling normalises only the cls rows. y may be x. */
    void (*layernorm_forward)(struct device *, enum dtype t, const void *x, int64_t row_stride_x,
                              const float *weight, const float *bias, void *y, float *mean, float *rstd,
                              int64_t R, int64_t D, float eps);
    /* the normalised output again from kept statistics (recomputed instead of stored) */
    void (*layernorm_apply)(struct device *, enum dtype t, const void *x, int64_t row_stride_x,
                            const float *weight, const float *bias, const float *mean, const float *rstd,
                            void *y, int64_t R, int64_t D);
    /* dx F32 (row stride row_stride_dx) += gradient to x; dweight, dbias (D) += ; dy t (R, D) */
    void (*layernorm_backward)(struct device *, enum dtype t, const void *dy, const void *x,
                               int64_t row_stride_x, const float *weight, const float *mean,
                               const float *rstd, float *dx, int64_t row_stride_dx, float *dweight,
                               float *dbias, int64_t R, int64_t D);

    /* qkv t (B, N, 3, H, dh) -> out t (B, N, H, dh); softmax(q k^T / sqrt(dh)) v, statistics fp32.
     * lse F32 (B, H, N): log-sum-exp of each row, kept for backward. Never holds more than one head's N x N.
     */
    void (*attention_forward)(struct device *, enum dtype t, const void *qkv, void *out, float *lse,
                              int64_t B, int64_t N, int64_t H, int64_t dh);
    void (*attention_backward)(struct device *, enum dtype t, const void *qkv, const void *out,
                               const float *lse, const void *dout, void *dqkv, int64_t B, int64_t N,
                               int64_t H, int64_t dh);

    /* GELU (exact, erf): h (R, F) -> y (R, F). SwiGLU: h (R, 2F) = [x1 | x2] -> y = silu(x1) * x2 (R, F). */
    void (*activation_forward)(struct device *, enum dtype t, enum activation, const void *h, void *y,
                               int64_t R, int64_t F);
    /* dh in the shape of h; may be h itself */
    void (*activation_backward)(struct device *, enum dtype t, enum activation, const void *dy, const void *h,
                                void *dh, int64_t R, int64_t F);

    /* y = x + gamma * branch (gamma F32 (D), NULL for 1); y may be x */
    void (*residual_forward)(struct device *, enum dtype t, const void *x, const void *branch,
                             const float *gamma, void *y, int64_t R, int64_t D);
    /* out t (R, D) = gamma * dx (dx F32); the gradient entering a branch */
    void (*scale_columns)(struct device *, enum dtype t, const float *dx, const float *gamma, void *out,
                          int64_t R, int64_t D);
    /* sums F32 (D) += column sums of x (R, D) */
    void (*column_sums)(struct device *, enum dtype t, const void *x, float *sums, int64_t R, int64_t D);
    /* LayerScale without storing the branch: with G = dx^T a (D, K) (the weight gradient before gamma) and s
     * the column sums of dx: dgamma_j += sum_k W_jk G_jk + b_j s_j; then G_jk *= gamma_j, db_j = gamma_j s_j
     * (db may be s). Exact; a = branch input. */
    void (*layerscale_backward)(struct device *, const void *W, enum dtype w_type, void *G, enum dtype g_type,
                                const float *b, const float *s, const float *gamma, float *dgamma, float *db,
                                int64_t D, int64_t K);

    /* y (rows, D) student, target (rows, D), both F32. loss[0] += weight * loss, dy (rows, D) += weight *
     * dloss/dy (dy NULL: value only), cosine[0] += sum of row cosines (cosine may be NULL). normalize: both
     * L2-normalised first (eps 1e-12). Reduction: mean over rows, and over D (sum_dim false) or summed over
     * D. */
    void (*distill_loss)(struct device *, enum loss_kind, bool normalize, bool sum_dim, const float *y,
                         const float *target, float *dy, double *loss, double *cosine, float weight,
                         int64_t rows, int64_t D);

    void (*cast)(struct device *, const void *src, enum dtype src_type, void *dst, enum dtype dst_type,
                 int64_t n);
    void (*fill)(struct device *, void *p, int byte, size_t bytes);
    void (*copy)(struct device *, void *dst, const void *src, size_t bytes);
    /* sum of squares in double, and whether all are finite: sums[0] += , finite[0] &= */
    void (*sum_squares)(struct device *, const void *x, enum dtype t, int64_t n, double *sum, int *finite);
};

/* Operations that are issued again and again with the same arguments. Two with equal bytes here are the same.
 */
struct device_work {
    const void *owner, *inputs[2]; /* whose they are, and what they read that may change places */
    int64_t count;
    int32_t part, flags;
};

struct device {
    const struct device_ops *ops;
    const char *kind; /* "cpu", "dry", "hip", "cuda" */
    char name[128];   /* what the maker calls it */
    struct memory_use use;
    size_t limit_bytes; /* 0: what the machine has */
    struct allocation *allocations;
    char memory_note[256];     /* what the driver says when it has no more memory */
    struct error memory_error; /* of the last device_alloc that failed */
    struct error pending;      /* the first failure inside an operation (see device_check) */
    int (*allocate)(struct device *, enum memory_class, size_t bytes, void **p); /* 0 or an exit code */
    void (*release)(struct device *, void *p, size_t bytes);
    void (*upload)(struct device *, void *device_dst, const void *host_src, size_t bytes);
    void (*download)(struct device *, void *host_dst, const void *device_src, size_t bytes);
    /* Optional, all three or none: copies to the device beside its operations, on a stream of their own. A
     * copy begins when the operations issued before the last beside_mark are done, whatever was issued since;
     * its source may be overwritten when beside_upload returns. Operations issued behind beside_join begin
     * when all such copies are done; without it neither they nor sync wait for them. */
    void (*beside_mark)(struct device *);
    void (*beside_upload)(struct device *, void *device_dst, const void *host_src, size_t bytes);
    void (*beside_join)(struct device *);
    /* Optional: run(context), which only issues operations, always the same for the same work; a card may
     * keep them as one graph and start that in place of run. */
    void (*issue)(struct device *, const struct device_work *work, void (*run)(void *context), void *context);
    void (*sync)(struct device *);
    void (*close)(struct device *);
    void *state;
};

/* "cpu", "dry" (what the CPU would take; "dry:hip", "dry:cuda", "dry:auto": what that would on this machine),
 * "hip:N", "cuda:N" (N may be left out: 0), or "auto"
 * ("auto:N"): that card of the first driver whose kernels work on it, else the CPU. limit_bytes 0 = no limit
 * of ours. */
int device_open(struct device **device, const char *spec, size_t limit_bytes, struct error *err);
/* Would device.type "cpu", "hip", "cuda" or "auto" mean a card here? auto: when a driver sees one. */
bool device_is_card(const char *type);
void device_close(struct device *device);

/* 64-byte aligned, contents undefined. NULL and err (EXIT_CARD_MEMORY or EXIT_HOST_MEMORY, with the table by
 * class in the message) when there is not enough. name: static text, said in the out-of-memory table. */
void *device_alloc(struct device *device, enum memory_class class, size_t bytes, const char *name,
                   struct error *err);
void device_free(struct device *device, void *p); /* NULL is fine */

static inline void device_issue(struct device *device, const struct device_work *work, void (*run)(void *),
                                void *context)
{
    if (device->issue) device->issue(device, work, run, context);
    else run(context);
}

/* Operations take their scratch from one growing block of MEMORY_WORKSPACE, sized at the first pass. When
 * that or a card fails, the operation and all behind it do nothing, and this returns the error: call it once
 * a step, before results are used. 0 when all is well. */
int device_check(struct device *device, struct error *err);

#endif
