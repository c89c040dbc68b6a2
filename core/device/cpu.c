/* The CPU back end: memory of this machine (host.c),
 * operations from kernels/cpu, GEMMs of bf16 on AMX tiles where the processor has them, all others by gemm.c.
 *
 * The dry device is the same code with `dry` set: every operation reserves the
 * scratch that it would use and returns, so that running one step on it gives the
 * memory plan. Its addresses are reserved without access: a stray read faults. */
#include "core/device/cpu.h"
#include "core/base/log.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct cpu {
    const struct cpu_ops *ops;
    void *workspace;
    size_t workspace_bytes;
    bool dry;
    int64_t float_tiles; /* of integer GEMMs, beside outliers */
};

static struct cpu *cpu_of(struct device *dev) { return dev->state; }
static int is_bf16(enum dtype t) { return t == DTYPE_BF16; }

static int thread_count(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* Scratch of `bytes` for one operation. NULL: do nothing (dry, or a failure that device_check will tell). */
static void *reserve(struct device *dev, size_t bytes)
{
    struct cpu *cpu = cpu_of(dev);
    if (dev->pending.code) return NULL;
    if (bytes > cpu->workspace_bytes) {
        device_free(dev, cpu->workspace);
        cpu->workspace_bytes = 0;
        cpu->workspace = device_alloc(dev, MEMORY_WORKSPACE, bytes, "scratch of operations", &dev->pending);
        if (!cpu->workspace) return NULL;
        cpu->workspace_bytes = bytes;
    }
    return cpu->dry ? NULL : cpu->workspace;
}

static bool idle(struct device *dev) { return cpu_of(dev)->dry || dev->pending.code; }
/* Does an operation on elements of that type have anything to do? */
static bool ready(struct device *dev, enum dtype t) { return device_has_type(dev, t) && !idle(dev); }

static int cpu_supports(const struct device *dev, const struct operation_shape *shape, struct error *err)
{
    (void)dev;
    if (shape->type == DTYPE_F32 || shape->type == DTYPE_BF16) return 0;
    return error_set(err, EXIT_CONFIG, "train.precision: fp32 or bf16", "operations on %s are not there",
                     dtype_name(shape->type));
}

static void cpu_gemm(struct device *dev, const struct gemm *g)
{
    if (!device_has_type(dev, g->ab_type) || !device_has_type(dev, g->c_type) || dev->pending.code) return;
    if (g->m == 0 || g->n == 0) return;
    if (g->ab_type == DTYPE_BF16 && g->k > 0 && gemm_amx_available()) {
        int threads = thread_count();
        void *scratch = reserve(dev, gemm_amx_workspace(g->m, g->n, g->k, threads));
        struct gemm_bf16 product = {
            g->m,   g->n,   g->k,   g->transpose_a,     g->transpose_b, g->a,    g->b,   g->c,
            g->lda, g->ldb, g->ldc, is_bf16(g->c_type), g->alpha,       g->beta, g->bias};
        if (scratch) gemm_amx(&product, scratch, threads);
        return;
    }
    void *scratch = reserve(dev, gemm_scratch(thread_count()));
    int64_t tiles = scratch ? cpu_of(dev)->ops->gemm(g, scratch, thread_count()) : 0;
    if (tiles && !cpu_of(dev)->float_tiles)
        log_debug("kernels: outliers in a GEMM of %lld x %lld x %lld: %lld tiles of it multiplied as floats",
                  (long long)g->m, (long long)g->n, (long long)g->k, (long long)tiles);
    cpu_of(dev)->float_tiles += tiles;
}

static void cpu_patchify(struct device *dev, enum dtype t, const float *images, void *patches, int64_t B,
                         int64_t S, int64_t p)
{
    if (ready(dev, t)) cpu_of(dev)->ops->patchify(is_bf16(t), images, patches, B, S, p);
}
static void cpu_embed_forward(struct device *dev, const struct embedding *o)
{
    assert(!o->bias);
    if (ready(dev, o->type)) cpu_of(dev)->ops->embed_forward(o);
}
static void cpu_embed_backward(struct device *dev, const struct embedding_gradient *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->embed_backward(o);
}
static void cpu_resize_rows(struct device *dev, const float *w, const float *in, float *out, int64_t n_out,
                            int64_t n_in, int64_t D, bool transpose)
{
    if (!idle(dev)) cpu_of(dev)->ops->resize_rows(w, in, out, n_out, n_in, D, transpose);
}
static void cpu_layernorm_forward(struct device *dev, const struct layernorm *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->layernorm_forward(o);
}
static void cpu_layernorm_apply(struct device *dev, const struct layernorm *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->layernorm_apply(o);
}
static void cpu_layernorm_backward(struct device *dev, const struct layernorm_gradient *o)
{
    if (!device_has_type(dev, o->type)) return;
    void *scratch = reserve(dev, row_shares_bytes((o->then ? 3 : 2) * o->D));
    if (scratch) cpu_of(dev)->ops->layernorm_backward(o, scratch);
}
static void cpu_rotate(struct device *dev, const struct rotation *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->rotate(o);
}
static void cpu_row_mean_forward(struct device *dev, const struct row_mean *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->row_mean_forward(o);
}
static void cpu_row_mean_backward(struct device *dev, const struct row_mean_gradient *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->row_mean_backward(o);
}
static void cpu_attention_forward(struct device *dev, const struct attention *o)
{
    if (!device_has_type(dev, o->type)) return;
    int threads = thread_count();
    if (is_bf16(o->type) && !o->floats && gemm_amx_available()) {
        void *tiles = reserve(dev, attention_amx_scratch(o->N, o->dh) * (size_t)threads);
        if (tiles) attention_amx_forward(o, tiles, threads);
        return;
    }
    void *scratch = reserve(dev, attention_scratch(o->N, o->dh, threads));
    if (scratch) cpu_of(dev)->ops->attention_forward(o, scratch, threads);
}
static void cpu_attention_backward(struct device *dev, const struct attention_gradient *o)
{
    if (!device_has_type(dev, o->type)) return;
    int threads = thread_count();
    if (is_bf16(o->type) && !o->floats && gemm_amx_available()) {
        void *tiles = reserve(dev, attention_amx_scratch(o->N, o->dh) * (size_t)threads);
        if (tiles) attention_amx_backward(o, tiles, threads);
        return;
    }
    void *scratch = reserve(dev, attention_scratch(o->N, o->dh, threads));
    if (scratch) cpu_of(dev)->ops->attention_backward(o, scratch, threads);
}
static void cpu_activation_forward(struct device *dev, const struct activation_value *o)
{
    assert(!o->bias);
    if (!ready(dev, o->type)) return;
    const struct cpu_ops *ops = cpu_of(dev)->ops;
    int half = is_bf16(o->type);
    if (o->kind == ACTIVATION_SWIGLU) ops->swiglu_forward(half, o->h, o->y, o->R, o->F);
    else
        (o->kind == ACTIVATION_GELU ? ops->gelu_forward : ops->quick_gelu_forward)(half, o->h, o->y,
                                                                                   o->R * o->F);
}
static void cpu_activation_backward(struct device *dev, const struct activation_gradient *o)
{
    assert(!o->bias);
    if (!device_has_type(dev, o->type)) return;
    int64_t columns = o->kind == ACTIVATION_SWIGLU ? 2 * o->F : o->F;
    void *scratch = reserve(dev, o->sums ? row_shares_bytes(columns) : 64);
    if (scratch) cpu_of(dev)->ops->activation_backward(o, scratch);
}
static void cpu_residual_forward(struct device *dev, const struct residual *o)
{
    assert(!o->bias);
    if (ready(dev, o->type)) cpu_of(dev)->ops->residual_forward(o);
}
static void cpu_encode(struct device *dev, const struct coded *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->encode(o);
}
static void cpu_decode(struct device *dev, const struct coded *o)
{
    if (ready(dev, o->type)) cpu_of(dev)->ops->decode(o);
}
static void cpu_branch_gradient(struct device *dev, const struct branch_gradient *o)
{
    if (!device_has_type(dev, o->type)) return;
    void *scratch = reserve(dev, row_shares_bytes(o->D));
    if (scratch) cpu_of(dev)->ops->branch_gradient(o, scratch);
}
static void cpu_column_sums(struct device *dev, enum dtype t, const void *x, float *sums, int64_t R,
                            int64_t D)
{
    if (!device_has_type(dev, t)) return;
    void *scratch = reserve(dev, row_shares_bytes(D));
    if (scratch) cpu_of(dev)->ops->column_sums(is_bf16(t), x, sums, R, D, scratch);
}
static void cpu_layerscale_backward(struct device *dev, const struct layerscale_gradient *o)
{
    if (ready(dev, o->weight_type) && ready(dev, o->gradient_type)) cpu_of(dev)->ops->layerscale_backward(o);
}
static void cpu_distill_loss(struct device *dev, const struct distillation *o)
{
    void *scratch = reserve(dev, (size_t)o->R * 2 * sizeof(double));
    if (scratch) cpu_of(dev)->ops->distill_loss(o, scratch);
}
static void cpu_cast(struct device *dev, const void *src, enum dtype src_type, void *dst, enum dtype dst_type,
                     int64_t n)
{
    if (ready(dev, src_type) && ready(dev, dst_type))
        cpu_of(dev)->ops->cast(src, is_bf16(src_type), dst, is_bf16(dst_type), n);
}
enum { STRETCH = 1 << 18 }; /* bytes that a thread fills or copies at a time */
static size_t stretch(size_t bytes, size_t at) { return bytes - at < STRETCH ? bytes - at : STRETCH; }

static void cpu_fill(struct device *dev, void *p, int byte, size_t bytes)
{
    if (idle(dev)) return;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += STRETCH) memset((char *)p + at, byte, stretch(bytes, at));
}
static void cpu_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    if (idle(dev)) return;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += STRETCH)
        memcpy((char *)dst + at, (const char *)src + at, stretch(bytes, at));
}
static void cpu_sum_squares(struct device *dev, const void *x, enum dtype t, int64_t n, double *sum,
                            int *finite)
{
    if (!device_has_type(dev, t)) return;
    void *scratch = reserve(dev, SUM_SHARES * sizeof(double));
    if (scratch && !cpu_of(dev)->ops->sum_squares(x, is_bf16(t), n, sum, scratch)) *finite = 0;
}

static const struct device_ops operations = {
    .supports = cpu_supports,
    .gemm = cpu_gemm,
    .patchify = cpu_patchify,
    .embed_forward = cpu_embed_forward,
    .embed_backward = cpu_embed_backward,
    .resize_rows = cpu_resize_rows,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_apply = cpu_layernorm_apply,
    .layernorm_backward = cpu_layernorm_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .rotate = cpu_rotate,
    .row_mean_forward = cpu_row_mean_forward,
    .row_mean_backward = cpu_row_mean_backward,
    .activation_forward = cpu_activation_forward,
    .activation_backward = cpu_activation_backward,
    .residual_forward = cpu_residual_forward,
    .branch_gradient = cpu_branch_gradient,
    .column_sums = cpu_column_sums,
    .layerscale_backward = cpu_layerscale_backward,
    .encode = cpu_encode,
    .decode = cpu_decode,
    .distill_loss = cpu_distill_loss,
    .cast = cpu_cast,
    .fill = cpu_fill,
    .copy = cpu_copy,
    .sum_squares = cpu_sum_squares,
};

static void cpu_close(struct device *dev)
{
    if (cpu_of(dev)->float_tiles)
        log_debug("kernels: %lld tiles of GEMMs multiplied as floats because of outliers",
                  (long long)cpu_of(dev)->float_tiles);
    free(dev->state);
}

int cpu_device_open(struct device **device, bool dry, size_t limit_bytes, struct error *err)
{
    struct cpu_refusal refusal;
    if (cpu_set_refused(gemm_amx_available(), &refusal))
        return error_set(err, EXIT_USAGE, refusal.hint, "%s", refusal.why);
    int code = host_device_open(device, dry, limit_bytes, sizeof(struct cpu), err);
    if (code) return code;
    struct device *dev = *device;
    struct cpu *cpu = cpu_of(dev);
    cpu->ops = cpu_ops_select();
    cpu->dry = dry;
    dev->ops = &operations;
    dev->close = cpu_close;
    return 0;
}
