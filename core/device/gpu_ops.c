/* The operations of device.h on a card: each names its kernels (kernels/gpu) and their grids. */
#include "core/device/gpu.h"

#include <assert.h>
#include <stdio.h>

#define ARGUMENTS(...)                                                                                       \
    (void *[]) { __VA_ARGS__ }

enum { SHARES = 64, SQUARE_BLOCKS = 512 };

static bool half(enum dtype t)
{
    assert(t == DTYPE_F32 || t == DTYPE_BF16);
    return t == DTYPE_BF16;
}
/* Name of a kernel by dtype: static text, which the table of functions keeps. */
#define NAME(name, t) (half(t) ? name "_bf16" : name "_f32")
#define NAME2(name, s, t)                                                                                    \
    (half(s) ? half(t) ? name "_bf16_bf16" : name "_bf16_f32" : half(t) ? name "_f32_bf16" : name "_f32_f32")

static int64_t shares_of(int64_t rows) { return rows < SHARES ? rows : SHARES; }
static int64_t column_blocks(int64_t D) { return (D + GPU_THREADS - 1) / GPU_THREADS; }

/* The library's product takes no fp32 bias beside bf16 results: C begins as rows of bias, and the product is
 * added. */
static bool library_gemm(struct device *dev, const struct gemm *g)
{
    struct gpu *gpu = gpu_of(dev);
    struct gemm plain = *g;
    if (!gpu->blas || g->m <= 0 || g->n <= 0 || g->k <= 0 || (g->bias && g->beta != 0)) return false;
    if (g->bias) {
        int64_t m = g->m, n = g->n, ldc = g->ldc;
        const float *bias = g->bias;
        void *c = g->c;
        gpu_launch(dev, NAME("bias_rows", g->c_type), gpu_blocks(dev, m * n), 1,
                   ARGUMENTS(&bias, &c, &m, &n, &ldc));
        plain.beta = 1;
        plain.bias = NULL;
    }
    int code = blas_gemm(gpu->blas, &plain);
    return code == 0 || (code > 0 && gpu_unrecordable(dev));
}

static void gemm(struct device *dev, const struct gemm *g)
{
    if (dev->pending.code || lt_gemm(dev, g) || library_gemm(dev, g)) return;
    struct gemm h = *g;
    int ta = h.transpose_a, tb = h.transpose_b;
    gpu_launch(dev, NAME2("gemm", h.ab_type, h.c_type), (h.n + 63) / 64, (h.m + 63) / 64,
               ARGUMENTS(&h.a, &h.b, &h.c, &h.bias, &h.m, &h.n, &h.k, &h.lda, &h.ldb, &h.ldc, &ta, &tb,
                         &h.alpha, &h.beta));
}

static void patchify(struct device *dev, enum dtype t, const float *images, void *patches, int64_t B,
                     int64_t S, int64_t p)
{
    gpu_launch(dev, NAME("patchify", t), gpu_blocks(dev, B * 3 * S * S), 1,
               ARGUMENTS(&images, &patches, &B, &S, &p));
}
static void embed_forward(struct device *dev, enum dtype t, const void *patch_out, const float *cls,
                          const float *pos, void *tokens, int64_t B, int64_t N, int64_t D)
{
    gpu_launch(dev, NAME("embed_forward", t), gpu_blocks(dev, B * N * D), 1,
               ARGUMENTS(&patch_out, &cls, &pos, &tokens, &B, &N, &D));
}
static void embed_backward(struct device *dev, enum dtype t, const float *dtokens, void *dpatch_out,
                           float *dcls, float *dpos, int64_t B, int64_t N, int64_t D)
{
    gpu_launch(dev, NAME("embed_backward", t), gpu_blocks(dev, N * D), 1,
               ARGUMENTS(&dtokens, &dpatch_out, &dcls, &dpos, &B, &N, &D));
}
static void resize_rows(struct device *dev, const float *w, const float *in, float *out, int64_t n_out,
                        int64_t n_in, int64_t D, bool transpose)
{
    gpu_launch(dev, transpose ? "resize_rows_transposed" : "resize_rows",
               gpu_blocks(dev, (transpose ? n_in : n_out) * D), 1,
               ARGUMENTS(&w, &in, &out, &n_out, &n_in, &D));
}

static void layernorm_forward(struct device *dev, enum dtype t, const void *x, int64_t stride,
                              const float *weight, const float *bias, void *y, float *mean, float *rstd,
                              int64_t R, int64_t D, float eps)
{
    gpu_launch(dev, NAME("layernorm_forward", t), R, 1,
               ARGUMENTS(&x, &stride, &weight, &bias, &y, &mean, &rstd, &D, &eps));
}
static void layernorm_apply(struct device *dev, enum dtype t, const void *x, int64_t stride,
                            const float *weight, const float *bias, const float *mean, const float *rstd,
                            void *y, int64_t R, int64_t D)
{
    gpu_launch(dev, NAME("layernorm_apply", t), R, 1,
               ARGUMENTS(&x, &stride, &weight, &bias, &mean, &rstd, &y, &D));
}
static void add_shares(struct device *dev, float *partial, float *sums, int64_t shares, int64_t D)
{
    gpu_launch(dev, "add_shares", column_blocks(D), 1, ARGUMENTS(&partial, &sums, &shares, &D));
}
static void layernorm_backward(struct device *dev, enum dtype t, const void *dy, const void *x,
                               int64_t stride, const float *weight, const float *mean, const float *rstd,
                               float *dx, int64_t dx_stride, float *dweight, float *dbias, int64_t R,
                               int64_t D)
{
    int64_t shares = shares_of(R);
    float *partial = gpu_reserve(dev, (size_t)(2 * shares * D) * sizeof *partial);
    if (!partial || R <= 0) return;
    gpu_launch(dev, NAME("layernorm_backward_input", t), R, 1,
               ARGUMENTS(&dy, &x, &stride, &weight, &mean, &rstd, &dx, &dx_stride, &D));
    gpu_launch(dev, NAME("layernorm_backward_weight", t), column_blocks(D), shares,
               ARGUMENTS(&dy, &x, &stride, &mean, &rstd, &partial, &R, &D));
    add_shares(dev, partial, dweight, shares, D);
    add_shares(dev, partial + shares * D, dbias, shares, D);
}

static void attention_forward(struct device *dev, enum dtype t, const void *qkv, void *out, float *lse,
                              int64_t B, int64_t N, int64_t H, int64_t dh)
{
    int head = (int)dh;
    gpu_launch(dev, NAME("attention_forward", t), (N + 15) / 16, B * H,
               ARGUMENTS(&qkv, &out, &lse, &N, &H, &head));
}
static void attention_backward(struct device *dev, enum dtype t, const void *qkv, const void *out,
                               const float *lse, const void *dout, void *dqkv, int64_t B, int64_t N,
                               int64_t H, int64_t dh)
{
    int head = (int)dh;
    float *delta = gpu_reserve(dev, (size_t)(B * H * N) * sizeof *delta);
    if (!delta) return;
    gpu_launch(dev, NAME("attention_delta", t), gpu_blocks(dev, B * H * N), 1,
               ARGUMENTS(&out, &dout, &delta, &B, &N, &H, &dh));
    gpu_launch(dev, NAME("attention_backward_q", t), (N + 15) / 16, B * H,
               ARGUMENTS(&qkv, &lse, &delta, &dout, &dqkv, &N, &H, &head));
    gpu_launch(dev, NAME("attention_backward_kv", t), (N + 15) / 16, B * H,
               ARGUMENTS(&qkv, &lse, &delta, &dout, &dqkv, &N, &H, &head));
}

static void activation_forward(struct device *dev, enum dtype t, enum activation kind, const void *h, void *y,
                               int64_t R, int64_t F)
{
    int64_t n = R * F;
    if (kind == ACTIVATION_GELU)
        gpu_launch(dev, NAME("gelu_forward", t), gpu_blocks(dev, n), 1, ARGUMENTS(&h, &y, &n));
    else gpu_launch(dev, NAME("swiglu_forward", t), gpu_blocks(dev, n), 1, ARGUMENTS(&h, &y, &R, &F));
}
static void activation_backward(struct device *dev, enum dtype t, enum activation kind, const void *dy,
                                const void *h, void *dh, int64_t R, int64_t F)
{
    int64_t n = R * F;
    if (kind == ACTIVATION_GELU)
        gpu_launch(dev, NAME("gelu_backward", t), gpu_blocks(dev, n), 1, ARGUMENTS(&dy, &h, &dh, &n));
    else gpu_launch(dev, NAME("swiglu_backward", t), gpu_blocks(dev, n), 1, ARGUMENTS(&dy, &h, &dh, &R, &F));
}
static void residual_forward(struct device *dev, enum dtype t, const void *x, const void *branch,
                             const float *gamma, void *y, int64_t R, int64_t D)
{
    gpu_launch(dev, NAME("residual_forward", t), gpu_blocks(dev, R * D), 1,
               ARGUMENTS(&x, &branch, &gamma, &y, &R, &D));
}
static void scale_columns(struct device *dev, enum dtype t, const float *dx, const float *gamma, void *out,
                          int64_t R, int64_t D)
{
    gpu_launch(dev, NAME("scale_columns", t), gpu_blocks(dev, R * D), 1,
               ARGUMENTS(&dx, &gamma, &out, &R, &D));
}
static void column_sums(struct device *dev, enum dtype t, const void *x, float *sums, int64_t R, int64_t D)
{
    int64_t shares = shares_of(R);
    float *partial = gpu_reserve(dev, (size_t)(shares * D) * sizeof *partial);
    if (!partial || R <= 0) return;
    gpu_launch(dev, NAME("column_sums", t), column_blocks(D), shares, ARGUMENTS(&x, &partial, &R, &D));
    add_shares(dev, partial, sums, shares, D);
}
static void layerscale_backward(struct device *dev, const void *W, enum dtype w_type, void *G,
                                enum dtype g_type, const float *b, const float *s, const float *gamma,
                                float *dgamma, float *db, int64_t D, int64_t K)
{
    gpu_launch(dev, NAME2("layerscale_backward", w_type, g_type), D, 1,
               ARGUMENTS(&W, &G, &b, &s, &gamma, &dgamma, &db, &K));
}

static void distill(struct device *dev, enum loss_kind kind, bool normalize, bool sum_dim, const float *y,
                    const float *target, float *dy, double *loss, double *cosine, float weight, int64_t rows,
                    int64_t D)
{
    int k = (int)kind, n = normalize, s = sum_dim;
    double *values = gpu_reserve(dev, (size_t)rows * 2 * sizeof *values),
           *cosines = values ? values + rows : NULL;
    if (!values) return;
    gpu_launch(dev, "distill_rows", rows, 1,
               ARGUMENTS(&k, &n, &s, &y, &target, &dy, &values, &weight, &rows, &D));
    gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&values, &loss, &rows));
    if (cosine) gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&cosines, &cosine, &rows));
}

static void cast(struct device *dev, const void *src, enum dtype src_type, void *dst, enum dtype dst_type,
                 int64_t n)
{
    gpu_launch(dev, NAME2("cast", src_type, dst_type), gpu_blocks(dev, n), 1, ARGUMENTS(&src, &dst, &n));
}
static void fill(struct device *dev, void *p, int byte, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!dev->pending.code && !gpu->dry && bytes)
        gpu_fail(dev, gpu->driver.fill(p, (unsigned char)byte, bytes, gpu->stream), "filling");
}
static void copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!dev->pending.code && !gpu->dry && bytes)
        gpu_fail(dev, gpu->driver.copy(dst, src, bytes, gpu->stream), "copying");
}
static void sum_squares(struct device *dev, const void *x, enum dtype t, int64_t n, double *sum, int *finite)
{
    int64_t blocks = (n + GPU_THREADS - 1) / GPU_THREADS;
    if (blocks > SQUARE_BLOCKS) blocks = SQUARE_BLOCKS;
    double *partial = gpu_reserve(dev, SQUARE_BLOCKS * 2 * sizeof *partial);
    if (!partial || n <= 0) return;
    gpu_launch(dev, NAME("sum_squares", t), blocks, 1, ARGUMENTS(&x, &n, &partial));
    gpu_launch(dev, "add_squares", 1, 1, ARGUMENTS(&partial, &blocks, &sum, &finite));
}

const struct device_ops gpu_operations = {
    .gemm = gemm,
    .patchify = patchify,
    .embed_forward = embed_forward,
    .embed_backward = embed_backward,
    .resize_rows = resize_rows,
    .layernorm_forward = layernorm_forward,
    .layernorm_apply = layernorm_apply,
    .layernorm_backward = layernorm_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .residual_forward = residual_forward,
    .scale_columns = scale_columns,
    .column_sums = column_sums,
    .layerscale_backward = layerscale_backward,
    .distill_loss = distill,
    .cast = cast,
    .fill = fill,
    .copy = copy,
    .sum_squares = sum_squares,
};
