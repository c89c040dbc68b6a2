/* GEMMs at an experiment's shapes: each is computed twice by every library that supports it, and by MEOpt's
 * own kernel. Some libraries return success although the second call fails, parts of the result are
 * unwritten, or one shape takes half a second. So results are initialized to NaN, and each call is timed. */
#include "core/doctor/work.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/device/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 2, SAMPLES = 256, ROWS = 64 };
static const char *const by_names[2][GPU_GEMM_COUNT] = {{"cuBLASLt", "cuBLAS", "MEOpt"},
                                                        {"hipBLASLt", "rocBLAS", "MEOpt"}};
static const char *const by_variables[2][GPU_GEMM_COUNT] = {
    {"MEOPT_CUBLASLT_LIBRARY", "MEOPT_CUBLAS_LIBRARY", ""},
    {"MEOPT_HIPBLASLT_LIBRARY", "MEOPT_ROCBLAS_LIBRARY", ""}};

struct trial {
    struct work *work;
    const struct doctor_shape *shape;
    const char *name;
    struct gemm g;
    size_t c_bytes;
};

/* The exact element of C: sums of multiples of 1/64 below 2^18 are exact in fp32. */
static float exact(const struct gemm *g, int64_t i, int64_t j)
{
    double sum = g->bias ? (double)work_value(3, j) : 0;
    for (int64_t l = 0; l < g->k; l++)
        sum += (double)work_value(1, g->transpose_a ? l * g->lda + i : i * g->lda + l) *
               (double)work_value(2, g->transpose_b ? j * g->ldb + l : l * g->ldb + j);
    return (float)sum;
}

/* bf16: one unit in the last place, for libraries that round twice (a bias that is added after rounding). */
static bool close_to(float x, float want, enum dtype type)
{
    float tolerance = type == DTYPE_BF16 ? ldexpf(fabsf(want), -7) + 0x1p-20f : 0;
    return fabsf(x - want) <= tolerance;
}

static bool samples_match(const struct trial *m)
{
    const struct gemm *g = &m->g;
    for (int64_t p = 0; p < SAMPLES; p++) {
        int64_t i = p ? (int64_t)((uint64_t)p * 0x9E3779B97F4A7C15u >> 20) % g->m : g->m - 1,
                j = p ? (int64_t)((uint64_t)p * 0xD1B54A32D192ED03u >> 20) % g->n : g->n - 1;
        float x;
        work_fetch(m->work->device, (char *)g->c + (size_t)(i * g->ldc + j) * dtype_bytes(g->c_type),
                   g->c_type, 1, &x);
        if (!close_to(x, exact(g, i, j), g->c_type)) return false;
    }
    return true;
}

/* Compares up to ROWS rows, first to last, with `kept`. keep: stores the rows in `kept` instead. */
static bool rows_match(const struct trial *m, float *kept, bool keep)
{
    const struct gemm *g = &m->g;
    int64_t rows = g->m < ROWS ? g->m : ROWS;
    float *x = xmalloc((size_t)g->n * sizeof *x);
    bool right = true;
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = rows > 1 ? r * (g->m - 1) / (rows - 1) : 0;
        work_fetch(m->work->device, (char *)g->c + (size_t)(i * g->ldc) * dtype_bytes(g->c_type), g->c_type,
                   g->n, x);
        for (int64_t j = 0; j < g->n; j++) {
            if (keep) kept[r * g->n + j] = x[j];
            else right = right && close_to(x[j], kept[r * g->n + j], g->c_type);
        }
    }
    free(x);
    return right;
}

struct result {
    bool available, right;
    int wrong_call;
    double ms[CALLS];
};

static bool multiply(const struct trial *m, enum gpu_gemms by)
{
    struct device *dev = m->work->device;
    if (m->work->card) return gpu_gemm_by(dev, by, &m->g);
    if (by == GPU_OWN) dev->ops->gemm(dev, &m->g);
    return by == GPU_OWN;
}

static struct result run(const struct trial *m, enum gpu_gemms by, float *own)
{
    struct device *dev = m->work->device;
    struct result r = {.right = true};
    for (int call = 0; call < CALLS; call++) {
        dev->ops->fill(dev, m->g.c, 0xFF, m->c_bytes);
        dev->sync(dev);
        double t = clock_seconds();
        if (!multiply(m, by)) return r;
        dev->sync(dev);
        r.ms[call] = (clock_seconds() - t) * 1e3;
        r.available = true;
        bool right = !dev->pending.code && samples_match(m) && rows_match(m, own, by == GPU_OWN && !call);
        if (!right && r.right) r.wrong_call = call + 1;
        r.right = r.right && right;
    }
    return r;
}

static double best(const struct result *r) { return r->ms[0] < r->ms[1] ? r->ms[0] : r->ms[1]; }

static void report(const struct trial *m, const struct result results[GPU_GEMM_COUNT])
{
    struct work *w = m->work;
    const struct gemm *g = &m->g;
    bool hip = w->card && gpu_of(w->device)->driver.kind == DRIVER_HIP;
    const struct result *own = &results[GPU_OWN];
    for (int by = 0; by < GPU_GEMM_COUNT; by++) {
        const struct result *r = &results[by];
        if (!r->available) continue;
        const char *name = w->card ? by_names[hip][by] : _("this machine");
        double rate = 2.0 * (double)g->m * (double)g->n * (double)g->k / best(r) * 1e-9;
        char wrong[64] = "", remedy[200];
        if (!r->right) snprintf(wrong, sizeof wrong, _(": WRONG at call %d"), r->wrong_call);
        struct line *l = work_add(
            w, "products", FINDING_OK, "%s %s, %lld x %lld x %lld %s by %s: %.3f and %.3f ms, %.3g TFLOP/s%s",
            _(m->shape->of), _(m->name), (long long)g->m, (long long)g->n, (long long)g->k,
            dtype_name(g->ab_type), name, r->ms[0], r->ms[1], rate, wrong);
        line_text(l, "product", m->name);
        line_text(l, "by", w->card ? name : "this machine");
        line_text(l, "dtype", dtype_name(g->ab_type));
        line_real(l, "first_ms", r->ms[0]);
        line_real(l, "ms", r->ms[1]);
        line_real(l, "tflop_per_s", rate);
        snprintf(remedy, sizeof remedy, _("train without that library: %s=none"), by_variables[hip][by]);
        if (r->right && by != GPU_OWN && best(r) > 1.5 * best(own) && !w->slow) {
            l->finding = FINDING_WARNING;
            line_advise(l, "slower than MEOpt's own kernel", remedy);
        }
        work_result(w, l, r->right, by == GPU_OWN ? NULL : remedy);
    }
}

static void try_gemm(struct work *w, const struct doctor_shape *shape, const char *name, struct gemm g,
                     bool biased)
{
    size_t ab = dtype_bytes(g.ab_type), a = (size_t)(g.m * g.k) * ab, b = (size_t)(g.n * g.k) * ab;
    struct trial m = {w, shape, name, g, (size_t)(g.m * g.n) * dtype_bytes(g.c_type)};
    size_t gap = 255;
    a = (a + gap) & ~gap, b = (b + gap) & ~gap;
    size_t c = (m.c_bytes + gap) & ~gap;
    char *block = work_memory(w, "products", a + b + c + (size_t)g.n * 4);
    if (!block) return;
    m.g.a = block;
    m.g.b = block + a;
    m.g.c = block + a + b;
    m.g.alpha = 1;
    m.g.lda = g.transpose_a ? g.m : g.k;
    m.g.ldb = g.transpose_b ? g.k : g.n;
    m.g.ldc = g.n;
    work_fill(w->device, block, g.ab_type, g.m * g.k, 1);
    work_fill(w->device, block + a, g.ab_type, g.n * g.k, 2);
    if (biased) {
        m.g.bias = (float *)(void *)(block + a + b + c);
        work_fill(w->device, block + a + b + c, DTYPE_F32, g.n, 3);
    }
    float *own = xmalloc((size_t)((g.m < ROWS ? g.m : ROWS) * g.n) * sizeof *own);
    struct result results[GPU_GEMM_COUNT] = {{0}};
    results[GPU_OWN] = run(&m, GPU_OWN, own); /* first: the reference for the others */
    for (int by = 0; by < GPU_OWN; by++) results[by] = run(&m, (enum gpu_gemms)by, own);
    report(&m, results);
    free(own);
    device_free(w->device, block);
}

/* Tries a block's four linear layers: y = x W^T + b, and for a trained tower dx = dy W and dW = dy^T x. */
void work_gemms(struct work *w, const struct doctor_shape *s)
{
    int64_t R = s->images * s->tokens, D = s->width, F = s->hidden;
    const struct {
        const char *names[3];
        int64_t out, in;
    } layers[] = {{{"qkv", N_("qkv, dx"), N_("qkv, dW")}, 3 * D, D},
                  {{N_("attention out"), N_("attention out, dx"), N_("attention out, dW")}, D, D},
                  {{N_("mlp in"), N_("mlp in, dx"), N_("mlp in, dW")}, s->gated ? 2 * F : F, D},
                  {{N_("mlp out"), N_("mlp out, dx"), N_("mlp out, dW")}, D, F}};
    enum dtype t = s->type;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        int64_t out = layers[i].out, in = layers[i].in;
        const char *const *names = layers[i].names;
        try_gemm(w, s, names[0],
                 (struct gemm){.m = R, .n = out, .k = in, .transpose_b = true, .ab_type = t, .c_type = t},
                 true);
        if (!s->trained) continue;
        try_gemm(w, s, names[1], (struct gemm){.m = R, .n = in, .k = out, .ab_type = t, .c_type = t}, false);
        try_gemm(
            w, s, names[2],
            (struct gemm){.m = out, .n = in, .k = R, .transpose_a = true, .ab_type = t, .c_type = DTYPE_F32},
            false);
    }
}
