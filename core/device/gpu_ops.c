/* The operations of device.h on a card: each names its kernels (kernels/gpu) and their grids. */
#include "core/device/cpu.h"
#include "core/device/gpu.h"
#include "kernels/attention_shape.h"

#include <stdio.h>

#define ARGUMENTS(...)                                                                                       \
    (void *[]) { __VA_ARGS__ }

enum { SHARES = 64, MOST_SHARES = 512, ROWS_A_SHARE = 16, SQUARE_BLOCKS = 512 };
enum { SHARE_COLUMNS = 32 }; /* of a block of add_shares (kernels/gpu/rows.hip) */

/* Returns whether t is bf16. For any third type the device fails and launches nothing. */
static bool half(struct device *dev, enum dtype t) { return device_has_type(dev, t) && t == DTYPE_BF16; }
/* Name of a kernel by dtype: static text, which the function table stores. */
#define NAME(name, t) (half(dev, t) ? name "_bf16" : name "_f32")
#define NAME2(name, s, t)                                                                                    \
    (half(dev, s)   ? half(dev, t) ? name "_bf16_bf16" : name "_bf16_f32"                                    \
     : half(dev, t) ? name "_f32_bf16"                                                                       \
                    : name "_f32_f32")

/* Kernels that also exist without matrix instructions (gpu_matrix.c). */
#define MATRIX_NAME(name, t)                                                                                 \
    (half(dev, t) ? gpu_of(dev)->plain ? name "_bf16_plain" : name "_bf16" : name "_f32")
#define MATRIX_NAME2(name, s, t)                                                                             \
    (half(dev, s) && gpu_of(dev)->plain ? half(dev, t) ? name "_bf16_bf16_plain" : name "_bf16_f32_plain"    \
                                        : NAME2(name, s, t))

static int64_t shares_of(int64_t rows) { return rows < SHARES ? rows : SHARES; }
/* Number of row shares where one share is computed by one or a few blocks: more shares for more parallelism,
 * while the partial sums stay few compared with the rows. */
static int64_t row_shares_of(int64_t rows)
{
    int64_t shares = rows / ROWS_A_SHARE;
    return shares < SHARES ? shares_of(rows) : shares < MOST_SHARES ? shares : MOST_SHARES;
}
static int64_t column_blocks(int64_t D) { return (D + GPU_THREADS - 1) / GPU_THREADS; }

/* Heads wider than DH of kernels/gpu/attention.hip exceed its shared memory; grids are at most GPU_GRID_Y
 * blocks high. */
static int gpu_supports(const struct device *dev, const struct operation_shape *s, struct error *err)
{
    static const char smaller[] = N_("reduce train.micro_batch");
    if (s->type != DTYPE_F32 && s->type != DTYPE_BF16)
        return error_set(err, EXIT_CONFIG, "train.precision: fp32 or bf16",
                         "operations on %s are not supported on cards", dtype_name(s->type));
    if (s->operation == OPERATION_GEMM && s->rows > (int64_t)GPU_GRID_Y * 64)
        return error_set(err, EXIT_CONFIG, smaller, "a GEMM has %lld rows: cards (%s) support up to %lld",
                         (long long)s->rows, dev->name, (long long)GPU_GRID_Y * 64);
    if (s->operation != OPERATION_ATTENTION) return 0;
    if (s->dh > GPU_HEAD_DIM)
        return error_set(
            err, EXIT_CONFIG,
            "use more heads, so that width / heads is at most 128; or device.type: cpu, without a limit",
            "attention has %lld heads of dimension %lld (width %lld): cards (%s) support dimensions up to %d",
            (long long)s->H, (long long)s->dh, (long long)(s->H * s->dh), dev->name, GPU_HEAD_DIM);
    if (s->B * s->H > GPU_GRID_Y)
        return error_set(err, EXIT_CONFIG, smaller,
                         "attention of %lld images in %lld heads: cards (%s) support at most %d",
                         (long long)s->B, (long long)s->H, dev->name, GPU_GRID_Y);
    return 0;
}

/* The library supports no fp32 bias with bf16 results: C is filled with rows of bias, and the GEMM adds to
 * it. */
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
    return code == 0 || (code > 0 && gpu_refused(dev, g, blas_path(gpu->blas), code));
}

static bool own_gemm(struct device *dev, const struct gemm *g)
{
    struct gemm h = *g;
    int ta = h.transpose_a, tb = h.transpose_b;
    gpu_launch(dev, MATRIX_NAME2("gemm", h.ab_type, h.c_type), (h.n + 63) / 64, (h.m + 63) / 64,
               ARGUMENTS(&h.a, &h.b, &h.c, &h.bias, &h.m, &h.n, &h.k, &h.lda, &h.ldb, &h.ldc, &ta, &tb,
                         &h.alpha, &h.beta));
    return true;
}

bool gpu_gemm_by(struct device *dev, enum gpu_gemms by, const struct gemm *g)
{
    static bool (*const ways[GPU_GEMM_COUNT])(struct device *, const struct gemm *) = {lt_gemm, library_gemm,
                                                                                       own_gemm};
    gpu_current(dev);
    if (!device_has_type(dev, g->ab_type) || !device_has_type(dev, g->c_type)) return true;
    return dev->pending.code || ways[by](dev, g);
}

static void gpu_gemm(struct device *dev, const struct gemm *g)
{
    for (int by = 0; by < GPU_GEMM_COUNT && !gpu_gemm_by(dev, (enum gpu_gemms)by, g); by++) continue;
}

static void gpu_patchify(struct device *dev, enum dtype t, const float *images, void *patches, int64_t B,
                         int64_t S, int64_t p)
{
    gpu_launch(dev, NAME("patchify", t), gpu_blocks(dev, B * 3 * S * S), 1,
               ARGUMENTS(&images, &patches, &B, &S, &p));
}
static void gpu_embed_forward(struct device *dev, const struct embedding *given)
{
    struct embedding o = *given;
    gpu_launch(
        dev, NAME("embed_forward", o.type), gpu_blocks(dev, o.B * o.N * o.D), 1,
        ARGUMENTS(&o.patches, &o.bias, &o.cls, &o.pos, &o.registers, &o.tokens, &o.B, &o.N, &o.D, &o.Q));
}
static void gpu_embed_backward(struct device *dev, const struct embedding_gradient *given)
{
    struct embedding_gradient o = *given;
    gpu_launch(dev, NAME("embed_backward", o.type), gpu_blocks(dev, o.N * o.D), 1,
               ARGUMENTS(&o.dtokens, &o.dpatches, &o.dcls, &o.dpos, &o.dregisters, &o.B, &o.N, &o.D, &o.Q));
}
static void gpu_resize_rows(struct device *dev, const float *w, const float *in, float *out, int64_t n_out,
                            int64_t n_in, int64_t D, bool transpose)
{
    gpu_launch(dev, transpose ? "resize_rows_transposed" : "resize_rows",
               gpu_blocks(dev, (transpose ? n_in : n_out) * D), 1,
               ARGUMENTS(&w, &in, &out, &n_out, &n_in, &D));
}

/* Kernels of a norm by types (kernels/gpu/rows.hip): F32, bf16, and fp16 for the stored stream. */
static const char *const norm_forward[2][2][2] = {
    {{"layernorm_forward_f32_f32_f32", "layernorm_forward_f32_f32_f16"},
     {"layernorm_forward_f32_bf16_f32", "layernorm_forward_f32_bf16_f16"}},
    {{NULL, NULL}, {"layernorm_forward_bf16_bf16_f32", NULL}}};
static const char *const norm_apply[3][2] = {{"layernorm_apply_f32_f32", NULL},
                                             {NULL, "layernorm_apply_bf16_bf16"},
                                             {NULL, "layernorm_apply_f16_bf16"}};
static const char *const norm_backward[2][3] = {
    {"layernorm_backward_f32_f32", "layernorm_backward_f32_bf16", "layernorm_backward_f32_f16"},
    {"layernorm_backward_bf16_f32", "layernorm_backward_bf16_bf16", "layernorm_backward_bf16_f16"}};

static int storage(struct device *dev, enum dtype t) { return t == DTYPE_F16 ? 2 : half(dev, t); }

static void gpu_layernorm_forward(struct device *dev, const struct layernorm *given)
{
    struct layernorm o = *given;
    int rms = o.rms;
    gpu_launch(
        dev, norm_forward[half(dev, o.x_type)][half(dev, o.type)][o.hat_type == DTYPE_F16], o.R, 1,
        ARGUMENTS(&o.x, &o.x_stride, &o.weight, &o.bias, &o.y, &o.mean, &o.rstd, &o.hat, &o.D, &o.eps, &rms));
}
static void gpu_layernorm_apply(struct device *dev, const struct layernorm *given)
{
    struct layernorm o = *given;
    if (o.hat) {
        o.x = o.hat;
        o.x_type = o.hat_type;
        o.x_stride = o.D;
        o.rstd = NULL;
    }
    if (o.hat || o.rms) o.mean = NULL;
    gpu_launch(dev, norm_apply[storage(dev, o.x_type)][half(dev, o.type)], o.R, 1,
               ARGUMENTS(&o.x, &o.x_stride, &o.weight, &o.bias, &o.mean, &o.rstd, &o.y, &o.D));
}
/* sums, more and most (D) += the three parts of partial (shares, D); those that are NULL are skipped */
static void add_shares(struct device *dev, float *partial, float *sums, float *more, float *most,
                       int64_t shares, int64_t D)
{
    gpu_launch(dev, "add_shares", (D + SHARE_COLUMNS - 1) / SHARE_COLUMNS,
               most   ? 3
               : more ? 2
                      : 1,
               ARGUMENTS(&partial, &sums, &more, &most, &shares, &D));
}
static void gpu_layernorm_backward(struct device *dev, const struct layernorm_gradient *given)
{
    struct layernorm_gradient o = *given;
    struct branch_gradient then = o.then ? *o.then : (struct branch_gradient){.plain = NULL};
    int rms = o.rms;
    if (rms) o.mean = NULL;
    int64_t shares = row_shares_of(o.R);
    float *partial = gpu_reserve(dev, (size_t)((then.plain ? 3 : 2) * shares * o.D) * sizeof *partial);
    if (!partial || o.R <= 0) return;
    gpu_launch(dev, norm_backward[half(dev, o.type)][storage(dev, o.x_type)], shares, 1,
               ARGUMENTS(&o.dy, &o.x, &o.x_stride, &o.weight, &o.mean, &o.rstd, &o.dx, &o.dx_stride, &o.to,
                         &then.plain, &then.scaled, &then.gamma, &partial, &o.R, &o.D, &then.drop.keep,
                         &then.drop.rows, &rms));
    add_shares(dev, partial, o.dweight, o.dbias, then.sums, shares, o.D);
}
static void gpu_branch_gradient(struct device *dev, const struct branch_gradient *given)
{
    struct branch_gradient o = *given;
    int64_t shares = row_shares_of(o.R);
    float *partial = gpu_reserve(dev, (size_t)(shares * o.D) * sizeof *partial);
    if (!partial || o.R <= 0) return;
    gpu_launch(
        dev, NAME("branch_gradient", o.type), column_blocks(o.D), shares,
        ARGUMENTS(&o.dx, &o.gamma, &o.plain, &o.scaled, &partial, &o.R, &o.D, &o.drop.keep, &o.drop.rows));
    if (o.sums) add_shares(dev, partial, o.sums, NULL, NULL, shares, o.D);
}

static void gpu_rotate(struct device *dev, const struct rotation *given)
{
    struct rotation o = *given;
    int apart = o.half, inverse = o.inverse;
    if (!o.dims) o.dims = o.dh;
    gpu_launch(dev, NAME("rotate", o.type), gpu_blocks(dev, o.B * (o.N - o.skip) * (o.H + o.G) * o.dims / 2),
               1,
               ARGUMENTS(&o.qkv, &o.table, &o.begins, &o.B, &o.N, &o.H, &o.G, &o.dh, &o.dims, &o.skip, &apart,
                         &inverse));
}
static void gpu_row_mean_forward(struct device *dev, const struct row_mean *given)
{
    struct row_mean o = *given;
    gpu_launch(dev, NAME("row_mean_forward", o.type), gpu_blocks(dev, o.B * o.D), 1,
               ARGUMENTS(&o.x, &o.y, &o.B, &o.N, &o.D, &o.skip));
}
static void gpu_row_mean_backward(struct device *dev, const struct row_mean_gradient *given)
{
    struct row_mean_gradient o = *given;
    gpu_launch(dev, NAME("row_mean_backward", o.type), gpu_blocks(dev, o.B * (o.N - o.skip) * o.D), 1,
               ARGUMENTS(&o.dy, &o.dx, &o.B, &o.N, &o.D, &o.skip));
}

/* bf16 on cards with matrix instructions has a kernel for each width of heads, of which four waves make a
 * block for 64 rows or more (kernels/gpu/attention_matrix.hip). It needs rows that 16-byte accesses can read:
 * other widths and addresses, and other cards, have the kernels of attention.hip. */
enum attention_way { ATTENTION_FORWARD, ATTENTION_BACKWARD_Q, ATTENTION_BACKWARD_KV };
#define ATTENTION_KERNELS(way)                                                                               \
    {                                                                                                        \
        way "_f32", way "_bf16_plain", way "_sparse_f32", way "_sparse_bf16", way "_bf16_32",                \
            way "_bf16_64", way "_bf16_80", way "_bf16_96", way "_bf16_128"                                  \
    }
static void launch_attention(struct device *dev, enum attention_way way, const struct attention *o,
                             uintptr_t addresses, int64_t rows, int64_t heads, void **arguments)
{
    enum { SPARSE = 2, MATRIX = 4, KERNELS = 9 };
    static const char *const kernels[][KERNELS] = {ATTENTION_KERNELS("attention_forward"),
                                                   ATTENTION_KERNELS("attention_backward_q"),
                                                   ATTENTION_KERNELS("attention_backward_kv")};
    static const int64_t widths[] = {32, 64, 80, 96, GPU_HEAD_DIM};
    const struct gpu *gpu = gpu_of(dev);
    bool bf16 = half(dev, o->type);
    int at = 0;
    if (o->block) {
        int64_t blocks = (o->N + o->block - 1) / o->block, tiles = (o->block + 31) / 32;
        gpu_launch(dev, kernels[way][SPARSE + bf16], blocks * tiles, heads, arguments);
        return;
    }
    if (!bf16 || gpu->plain || o->dh % 8 || addresses % 16) {
        gpu_launch(dev, kernels[way][bf16], (rows + 31) / 32, heads, arguments);
        return;
    }
    while (widths[at] < o->dh) at++;
    gpu_launch_block(dev, kernels[way][MATRIX + at], 4 * gpu->wave, (rows + 63) / 64, heads, arguments);
}
static void gpu_attention_forward(struct device *dev, const struct attention *given)
{
    struct attention o = *given;
    struct attention_shape shape = ATTENTION_SHAPE(given);
    launch_attention(dev, ATTENTION_FORWARD, &o, (uintptr_t)o.qkv | (uintptr_t)o.out, o.N - o.first,
                     o.B * o.H, ARGUMENTS(&o.qkv, &o.out, &o.lse, &shape));
}
static void gpu_attention_backward(struct device *dev, const struct attention_gradient *given)
{
    struct attention o = given->forward;
    struct attention_shape shape = ATTENTION_SHAPE(&o);
    const void *dout = given->dout;
    void *dqkv = given->dqkv, **arguments;
    uintptr_t addresses = (uintptr_t)o.qkv | (uintptr_t)dout | (uintptr_t)dqkv;
    float *delta = gpu_reserve(dev, (size_t)(o.B * o.H * o.N) * sizeof *delta);
    if (!delta) return;
    gpu_launch(dev, NAME("attention_delta", o.type), gpu_blocks(dev, o.B * o.H * o.N), 1,
               ARGUMENTS(&o.out, &dout, &delta, &o.B, &o.N, &o.H, &o.dh));
    arguments = ARGUMENTS(&o.qkv, &o.lse, &delta, &dout, &dqkv, &shape);
    launch_attention(dev, ATTENTION_BACKWARD_Q, &o, addresses, o.N, o.B * o.H, arguments);
    launch_attention(dev, ATTENTION_BACKWARD_KV, &o, addresses, o.N, o.B * o.G, arguments);
}

#define ACTIVATION_KERNELS(way)                                                                              \
    {                                                                                                        \
        [ACTIVATION_GELU] = {"gelu_" way "_f32", "gelu_" way "_bf16"},                                       \
        [ACTIVATION_SWIGLU] = {"swiglu_" way "_f32", "swiglu_" way "_bf16"},                                 \
        [ACTIVATION_QUICK_GELU] = {"quick_gelu_" way "_f32", "quick_gelu_" way "_bf16"},                     \
        [ACTIVATION_GELU_TANH] = {"gelu_tanh_" way "_f32", "gelu_tanh_" way "_bf16"},                        \
        [ACTIVATION_TANH] = {"tanh_" way "_f32", "tanh_" way "_bf16"},                                       \
        [ACTIVATION_RELU] = {"relu_" way "_f32", "relu_" way "_bf16"},                                       \
    }
static const char *const activation_kernels[2][ACTIVATION_COUNT][2] = {ACTIVATION_KERNELS("forward"),
                                                                       ACTIVATION_KERNELS("backward")};
static void gpu_activation_forward(struct device *dev, const struct activation_value *given)
{
    struct activation_value o = *given;
    gpu_launch(dev, activation_kernels[0][o.kind][half(dev, o.type)], gpu_blocks(dev, o.R * o.F), 1,
               ARGUMENTS(&o.h, &o.bias, &o.y, &o.R, &o.F));
}
static void gpu_activation_backward(struct device *dev, const struct activation_gradient *given)
{
    struct activation_gradient o = *given;
    int64_t shares = shares_of(o.R), columns = o.kind == ACTIVATION_SWIGLU ? 2 * o.F : o.F;
    float *partial = o.sums ? gpu_reserve(dev, (size_t)(shares * columns) * sizeof *partial) : NULL;
    if ((o.sums && !partial) || o.R <= 0) return;
    gpu_launch(dev, activation_kernels[1][o.kind][half(dev, o.type)], column_blocks(o.F), shares,
               ARGUMENTS(&o.dy, &o.h, &o.bias, &o.dh, &o.act, &partial, &o.R, &o.F));
    if (o.sums) add_shares(dev, partial, o.sums, NULL, NULL, shares, columns);
}
static void gpu_residual_forward(struct device *dev, const struct residual *given)
{
    struct residual o = *given;
    struct second_input s = o.second ? *o.second : (struct second_input){.z = NULL};
    if (!s.norm) {
        gpu_launch(dev, NAME("residual_forward", o.type), gpu_blocks(dev, o.R * o.D), 1,
                   ARGUMENTS(&o.x, &o.branch, &o.bias, &o.gamma, &o.y, &s.from.x, &s.z, &o.R, &o.D,
                             &o.drop.keep, &o.drop.rows));
        return;
    }
    struct layernorm n = *s.norm;
    int rms = n.rms;
    gpu_launch(dev, NAME("residual_norm", o.type), o.R, 1,
               ARGUMENTS(&o.x, &o.branch, &o.bias, &o.gamma, &o.y, &s.from.x, &s.from.mean, &s.from.rstd,
                         &n.weight, &n.bias, &n.y, &n.hat, &n.mean, &n.rstd, &o.D, &n.eps, &o.drop.keep,
                         &o.drop.rows, &rms));
}
/* A group is computed by 16 threads (kernels/gpu/elementwise.hip). */
static void launch_coded(struct device *dev, const char *kernel, const struct coded *given)
{
    struct coded o = *given;
    int64_t threads = o.R * ((o.D + 63) / 64) * 16;
    gpu_launch(dev, kernel, gpu_blocks(dev, threads), 1,
               ARGUMENTS(&o.x, &o.codes, &o.words, &o.tops, &o.R, &o.D));
}
static void gpu_encode(struct device *dev, const struct coded *o)
{
    launch_coded(dev, NAME("encode", o->type), o);
}
static void gpu_decode(struct device *dev, const struct coded *o)
{
    launch_coded(dev, NAME("decode", o->type), o);
}
static void gpu_column_sums(struct device *dev, enum dtype t, const void *x, float *sums, int64_t R,
                            int64_t D)
{
    int64_t shares = shares_of(R);
    float *partial = gpu_reserve(dev, (size_t)(shares * D) * sizeof *partial);
    if (!partial || R <= 0) return;
    gpu_launch(dev, NAME("column_sums", t), column_blocks(D), shares, ARGUMENTS(&x, &partial, &R, &D));
    add_shares(dev, partial, sums, NULL, NULL, shares, D);
}
static void gpu_layerscale_backward(struct device *dev, const struct layerscale_gradient *given)
{
    struct layerscale_gradient o = *given;
    gpu_launch(dev, NAME2("layerscale_backward", o.weight_type, o.gradient_type), o.D, 1,
               ARGUMENTS(&o.weights, &o.gradient, &o.bias, &o.sums, &o.gamma, &o.dgamma, &o.dbias, &o.K));
}

static void gpu_distill_loss(struct device *dev, const struct distillation *given)
{
    struct distillation o = *given;
    int kind = (int)o.kind, normalize = o.normalize, sum_dim = o.sum_dim;
    double *values = gpu_reserve(dev, (size_t)o.R * 2 * sizeof *values),
           *cosines = values ? values + o.R : NULL;
    if (!values) return;
    gpu_launch(
        dev, "distill_rows", o.R, 1,
        ARGUMENTS(&kind, &normalize, &sum_dim, &o.y, &o.target, &o.dy, &values, &o.weight, &o.R, &o.D));
    gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&values, &o.loss, &o.R));
    if (o.cosine) gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&cosines, &o.cosine, &o.R));
}

static void gpu_cross_entropy(struct device *dev, const struct cross_entropy *given)
{
    struct cross_entropy o = *given;
    double *values = gpu_reserve(dev, (size_t)o.R * 3 * sizeof *values), *sums[] = {o.loss, o.top1, o.top5};
    if (!values || o.R <= 0) return;
    gpu_launch(dev, "cross_entropy_rows", o.R, 1,
               ARGUMENTS(&o.logits, &o.label, &o.label2, &o.share, &o.dlogits, &values, &o.smoothing,
                         &o.weight, &o.R, &o.C));
    for (int i = 0; i < 3; i++) {
        double *of = values + i * o.R;
        gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&of, &sums[i], &o.R));
    }
}

static void gpu_fill(struct device *dev, void *p, int byte, size_t bytes);

static void gpu_head_norm(struct device *dev, const struct head_norm *given)
{
    struct head_norm o = *given;
    gpu_launch(dev, NAME("head_norm", o.type), o.R, 1,
               ARGUMENTS(&o.x, &o.y, &o.weight[0], &o.weight[1], &o.rstd, &o.H, &o.G, &o.dh, &o.eps));
}
static void gpu_head_norm_gradient(struct device *dev, const struct head_norm_gradient *given)
{
    struct head_norm_gradient o = *given;
    int64_t shares = row_shares_of(o.R);
    float *partial = gpu_reserve(dev, (size_t)(2 * shares * o.dh) * sizeof *partial);
    if (!partial || o.R <= 0) return;
    gpu_launch(
        dev, NAME("head_norm_gradient", o.type), shares, 1,
        ARGUMENTS(&o.x, &o.dqkv, &o.weight[0], &o.weight[1], &o.rstd, &partial, &o.R, &o.H, &o.G, &o.dh));
    add_shares(dev, partial, o.dweight[0], o.dweight[1], NULL, shares, o.dh);
}
static void gpu_token_embed(struct device *dev, const struct token_embedding *given)
{
    struct token_embedding o = *given;
    gpu_launch(dev, NAME("token_embed", o.type), o.R, 1,
               ARGUMENTS(&o.tokens, &o.table, &o.positions, &o.begins, &o.y, &o.N, &o.D, &o.first, &o.rows));
}
static void gpu_token_embed_gradient(struct device *dev, const struct token_embedding_gradient *given)
{
    struct token_embedding_gradient o = *given;
    int add = o.add;
    size_t element = half(dev, o.type) ? 2 : 4;
    if (o.dtable && !o.add) gpu_fill(dev, o.dtable, 0, (size_t)(o.rows * o.D) * element);
    if (o.dtable)
        gpu_launch(dev, NAME("token_embed_gradient", o.type), o.R, 1,
                   ARGUMENTS(&o.tokens, &o.order, &o.dx, &o.dtable, &o.R, &o.D, &o.first, &o.rows, &add));
    if (o.dpositions)
        gpu_launch(dev, "position_gradient", o.N, 1,
                   ARGUMENTS(&o.begins, &o.dx, &o.dpositions, &o.R, &o.N, &o.D));
}
static void gpu_logit_sums(struct device *dev, const struct logit_sums *given)
{
    struct logit_sums o = *given;
    int continued = !o.begin;
    double *values = gpu_reserve(dev, (size_t)o.R * 2 * sizeof *values), *sums[] = {o.loss, o.correct};
    if (!values || o.R <= 0) return;
    gpu_launch(dev, "logit_sums", o.R, 1,
               ARGUMENTS(&o.logits, &o.stride, &o.labels, &o.state, &values, &o.smoothing, &o.weight, &o.R,
                         &o.C, &o.first, &o.classes, &continued));
    for (int i = 0; i < (o.loss ? 2 : 0); i++) {
        double *of = values + i * o.R;
        gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&of, &sums[i], &o.R));
    }
}
static void gpu_logit_merge(struct device *dev, const struct logit_merge *given)
{
    struct logit_merge o = *given;
    double *values = gpu_reserve(dev, (size_t)o.R * 2 * sizeof *values), *sums[] = {o.loss, o.correct};
    int64_t each = (o.classes + o.S - 1) / o.S;
    if (!values || o.R <= 0) return;
    gpu_launch(dev, "logit_merge", gpu_blocks(dev, o.R), 1,
               ARGUMENTS(&o.states, &o.labels, &o.state, &values, &o.smoothing, &o.weight, &o.R, &o.S, &each,
                         &o.classes));
    for (int i = 0; i < 2; i++) {
        double *of = values + i * o.R;
        gpu_launch(dev, "add_values", 1, 1, ARGUMENTS(&of, &sums[i], &o.R));
    }
}
static void gpu_logit_gradient(struct device *dev, const struct logit_gradient *given)
{
    struct logit_gradient o = *given;
    gpu_launch(dev, NAME("logit_gradient", o.type), o.R, 1,
               ARGUMENTS(&o.logits, &o.stride, &o.labels, &o.state, &o.smoothing, &o.weight, &o.C, &o.first,
                         &o.classes));
}

static void gpu_cast(struct device *dev, const void *src, enum dtype src_type, void *dst, enum dtype dst_type,
                     int64_t n)
{
    gpu_launch(dev, NAME2("cast", src_type, dst_type), gpu_blocks(dev, n), 1, ARGUMENTS(&src, &dst, &n));
}
static void gpu_fill(struct device *dev, void *p, int byte, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!dev->pending.code && !gpu->dry && bytes && !gpu_current(dev))
        gpu_fail(dev, gpu->driver.fill(p, (unsigned char)byte, bytes, gpu->stream), "filling");
}
static void gpu_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    struct gpu *gpu = gpu_of(dev);
    if (!dev->pending.code && !gpu->dry && bytes && !gpu_current(dev))
        gpu_fail(dev, gpu->driver.copy(dst, src, bytes, gpu->stream), "copying");
}
static void gpu_sum_squares(struct device *dev, const void *x, enum dtype t, int64_t n, double *sum,
                            int *finite)
{
    int64_t blocks = (n + GPU_THREADS - 1) / GPU_THREADS;
    if (blocks > SQUARE_BLOCKS) blocks = SQUARE_BLOCKS;
    double *partial = gpu_reserve(dev, SQUARE_BLOCKS * 2 * sizeof *partial);
    if (!partial || n <= 0) return;
    gpu_launch(dev, NAME("sum_squares", t), blocks, 1, ARGUMENTS(&x, &n, &partial));
    gpu_launch(dev, "add_squares", 1, 1, ARGUMENTS(&partial, &blocks, &sum, &finite));
}

#define ROW(name, ...) .name = gpu_##name,
const struct device_ops gpu_operations = {.supports = gpu_supports, OPERATIONS(ROW)};
