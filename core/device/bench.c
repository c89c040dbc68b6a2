/* Peak of the matrix product: see bench.h. */
#include "core/device/bench.h"
#include "core/base/clock.h"
#include "kernels/cpu/gemm_onednn.h"

#include <string.h>
#include <time.h>

static const struct {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
} shapes[] = {{4096, 4096, 4096, false, false}, {2048, 6144, 1408, false, true}, {2048, 1408, 6144, false, false}, {1408, 6144, 2048, true, false}};

struct product {
    struct device *device;
    struct gemm gemm;
    struct onednn *onednn; /* NULL: the device's own */
    void *scratch;
};

static void run(const struct product *p)
{
    const struct gemm *g = &p->gemm;
    if (!p->onednn) {
        p->device->ops->gemm(p->device, g);
        p->device->sync(p->device);
        return;
    }
    struct matmul m = {.m = g->m, .n = g->n, .k = g->k, .transpose_a = g->transpose_a, .transpose_b = g->transpose_b,
                       .ab_bf16 = g->ab_type == DTYPE_BF16, .c_bf16 = g->c_type == DTYPE_BF16, .a = g->a, .b = g->b, .c = g->c,
                       .lda = g->lda, .ldb = g->ldb, .ldc = g->ldc, .alpha = 1};
    if (onednn_supports(p->onednn, &m)) onednn_run(p->onednn, &m, p->scratch);
}

/* Best of at least 3 runs, as many as go in 0.15 s. */
static double rate(const struct product *p)
{
    double best = 1e30, began = clock_seconds();
    run(p);
    for (int n = 0; n < 3 || (n < 30 && clock_seconds() - began < 0.15); n++) {
        double t = clock_seconds();
        run(p);
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    return 2.0 * (double)p->gemm.m * (double)p->gemm.n * (double)p->gemm.k / best * 1e-9;
}

int device_gemm_peak(struct device *device, enum dtype type, struct gemm_peak *peak, struct error *err)
{
    enum { ELEMENTS = 4096 * 4096 };
    struct memory_use before = device->use;
    size_t bytes = ELEMENTS * dtype_bytes(type), scratch_bytes = (size_t)64 << 20;
    bool cpu = strcmp(device->kind, "cpu") == 0;
    struct onednn *onednn = cpu ? onednn_open() : NULL;
    char *block = device_alloc(device, MEMORY_WORKSPACE, 3 * bytes + scratch_bytes, "operands of the peak measurement", err);
    *peak = (struct gemm_peak){0};
    if (block) {
        device->ops->fill(device, block, 0x3C, 3 * bytes); /* 0.01 and the like in either type */
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct gemm g = {.m = shapes[i].m, .n = shapes[i].n, .k = shapes[i].k, .transpose_a = shapes[i].transpose_a,
                             .transpose_b = shapes[i].transpose_b, .a = block, .b = block + bytes, .c = block + 2 * bytes,
                             .lda = shapes[i].transpose_a ? shapes[i].m : shapes[i].k, .ldb = shapes[i].transpose_b ? shapes[i].k : shapes[i].n,
                             .ldc = shapes[i].n, .ab_type = type, .c_type = type, .alpha = 1};
            struct product p = {device, g, NULL, block + 3 * bytes};
            double own = rate(&p);
            if (own > peak->own_gflops) peak->own_gflops = own;
            if (!cpu) continue;
            p.onednn = onednn;
            double library = rate(&p);
            if (library > peak->library_gflops) peak->library_gflops = library;
        }
    }
    int code = block ? device_check(device, err) : err ? err->code : EXIT_HOST_MEMORY;
    device_free(device, block);
    onednn_close(onednn);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) device->use.peak_bytes[c] = before.peak_bytes[c];
    device->use.peak_total_bytes = before.peak_total_bytes;
    return code;
}

double device_gemm_peak_gflops(struct device *device, enum dtype type)
{
    struct gemm_peak peak;
    struct error err;
    if (device_gemm_peak(device, type, &peak, &err)) return 0;
    return peak.own_gflops > peak.library_gflops ? peak.own_gflops : peak.library_gflops;
}
