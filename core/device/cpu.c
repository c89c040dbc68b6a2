/* The CPU back end: host memory (host.c), operations from kernels/cpu, GEMMs of bf16 on AMX tiles where the
 * processor has them, all others by gemm.c.
 *
 * The dry device is the same code with `dry` set. Every operation reserves its scratch and returns, so that
 * one dry step gives the memory plan. Its addresses are those of no process: a stray read faults.
 */
#include "core/device/cpu.h"
#include "core/base/log.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"

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
    int64_t float_tiles; /* tiles of integer GEMMs computed as floats because of outliers */
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

/* Scratch of `bytes` for one operation. NULL: skip the operation (a dry device, or a failure that
 * device_check reports). */
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

static int cpu_supports(const struct device *dev, const struct operation_shape *shape, struct error *err)
{
    (void)dev;
    if (shape->type == DTYPE_F32 || shape->type == DTYPE_BF16) return 0;
    return error_set(err, EXIT_CONFIG, "train.precision: fp32 or bf16", "operations on %s are not supported",
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

/* Returns scratch memory, NULL if there is none, or no such type; *tiles: for AMX. */
static void *attention_memory(struct device *dev, const struct attention *o, bool *tiles)
{
    int threads = thread_count();
    *tiles = is_bf16(o->type) && !o->floats && !o->block && gemm_amx_available();
    if (!device_has_type(dev, o->type)) return NULL;
    return reserve(dev, *tiles ? attention_amx_scratch(o->N, o->H, o->G, o->dh) * (size_t)threads
                               : attention_scratch(o->N, o->dh, o->block, threads));
}
static void cpu_attention_forward(struct device *dev, const struct attention *o)
{
    bool tiles;
    void *scratch = attention_memory(dev, o, &tiles);
    if (scratch)
        (tiles ? attention_amx_forward : cpu_of(dev)->ops->attention_forward)(o, scratch, thread_count());
}
static void cpu_attention_backward(struct device *dev, const struct attention_gradient *g)
{
    bool tiles;
    void *scratch = attention_memory(dev, &g->forward, &tiles);
    if (scratch)
        (tiles ? attention_amx_backward : cpu_of(dev)->ops->attention_backward)(g, scratch, thread_count());
}
enum { STRETCH = 1 << 18 }; /* bytes that one thread fills or copies at a time */
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

/* Returns whether the device has all those types; if not, the device fails. */
static bool has_types(struct device *dev, const enum dtype *types, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!device_has_type(dev, types[i])) return false;
    return true;
}
#define HAS_TYPES(types)                                                                                     \
    has_types(dev, (const enum dtype[]){OPERATION_LIST types},                                               \
              sizeof(const enum dtype[]){OPERATION_LIST types} / sizeof(enum dtype))
#define CPU_KERNEL(name, kind, parameters, arguments, types)                                                 \
    static void cpu_##name(struct device *dev, OPERATION_LIST parameters)                                    \
    {                                                                                                        \
        if (HAS_TYPES(types) && !idle(dev)) cpu_of(dev)->ops->name arguments;                                \
    }
#define CPU_SCRATCH(name, kind, parameters, arguments, types, bytes)                                         \
    static void cpu_##name(struct device *dev, OPERATION_LIST parameters)                                    \
    {                                                                                                        \
        void *scratch = HAS_TYPES(types) ? reserve(dev, bytes) : NULL;                                       \
        if (scratch) cpu_of(dev)->ops->name(OPERATION_LIST arguments, scratch);                              \
    }
#define CPU_DEVICE(...)
OPERATION_ROWS(CPU_KERNEL, CPU_SCRATCH, CPU_DEVICE)

#define ROW(name, ...) .name = cpu_##name,
static const struct device_ops operations = {.supports = cpu_supports, OPERATIONS(ROW)};

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
    if (cpu_isa_refused(gemm_amx_available(), &refusal))
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
