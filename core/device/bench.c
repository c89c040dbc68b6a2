/* Peak GEMM rate: see bench.h. */
#include "core/device/bench.h"
#include "core/base/clock.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
} shapes[] = {{2048, 2048, 2048, false, false},
              {2048, 6144, 1408, false, true},
              {2048, 1408, 6144, false, false},
              {1408, 6144, 2048, true, false}};

static bool run(struct device *device, const struct gemm *g)
{
    device->ops->gemm(device, g);
    device->sync(device);
    return !device->pending.code;
}

/* Rate of the best of at least 3 runs, as many as fit into 0.15 s; 0 if the library has no such GEMM. */
static double rate(struct device *device, const struct gemm *g)
{
    double best = 1e30, began = clock_seconds();
    if (!run(device, g)) return 0;
    for (int n = 0; n < 3 || (n < 30 && clock_seconds() - began < 0.15); n++) {
        double t = clock_seconds();
        if (!run(device, g)) return 0;
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    return 2.0 * (double)g->m * (double)g->n * (double)g->k / best * 1e-9;
}

/* Divisor of the shapes, so that a GEMM on emulated kernels does not take minutes: 1 on every real device. */
static int64_t divisor(struct device *device, enum dtype type, char *block)
{
    enum { SIDE = 128 };
    struct gemm g = {.m = SIDE,
                     .n = SIDE,
                     .k = SIDE,
                     .a = block,
                     .b = block,
                     .c = block + SIDE * SIDE * 4,
                     .lda = SIDE,
                     .ldb = SIDE,
                     .ldc = SIDE,
                     .ab_type = type,
                     .c_type = type,
                     .alpha = 1};
    double largest_s = 2.0 * 2048 * 6144 * 1408 / (rate(device, &g) * 1e9);
    int64_t by = 1;
    while (by < 32 && largest_s > 0.5 * (double)(by * by * by)) by *= 2;
    return largest_s < 30 ? 1 : by;
}

/* Writes which implementation computes the device's own GEMMs: "own, avx512_vnni (whole numbers)". */
static void own_name(const struct device *device, enum dtype type, char *name, size_t size)
{
    const struct cpu_ops *ops = cpu_ops_select();
    bool bf16 = type == DTYPE_BF16;
    if (device->kind != DEVICE_CPU) snprintf(name, size, "own");
    else if (bf16 && gemm_amx_available()) snprintf(name, size, "own, AMX tiles");
    else snprintf(name, size, "own, %s%s", ops->isa, bf16 && ops->gemm_bfp ? " (whole numbers)" : "");
}

/* Fills `bytes` with numbers between -1 and 1. Constants would need less power than real operands, and the
 * processor would then run at a higher clock. */
static void fill_operands(struct device *device, enum dtype type, char *block, size_t bytes)
{
    enum { COUNT = 1 << 14 };
    float values[COUNT];
    uint16_t halves[COUNT];
    uint32_t x = 1;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;
        x = x * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)x * 0x1p-31f;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    size_t done = COUNT * dtype_bytes(type);
    device->upload(device, block, type == DTYPE_BF16 ? (void *)halves : values, done);
    for (; done < bytes; done *= 2)
        device->ops->copy(device, block + done, block, bytes - done < done ? bytes - done : done);
}

int device_gemm_peak(struct device *device, enum dtype type, int64_t by, struct gemm_peak *peak,
                     struct error *err)
{
    enum { ELEMENTS = 2048 * 6144 };
    struct memory_use before = device->use;
    size_t bytes = ELEMENTS * dtype_bytes(type);
    bool cpu = device->kind == DEVICE_CPU;
    char *block = device_alloc(device, MEMORY_WORKSPACE, 3 * bytes, "operands of the peak measurement", err);
    char own[48];
    own_name(device, type, own, sizeof own);
    *peak = (struct gemm_peak){0};
    if (block) {
        fill_operands(device, type, block, 2 * bytes);
        if (by == 0) by = cpu ? 1 : divisor(device, type, block);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            int64_t m = shapes[i].m / by, n = shapes[i].n / by, k = shapes[i].k / by;
            struct gemm g = {.m = m,
                             .n = n,
                             .k = k,
                             .transpose_a = shapes[i].transpose_a,
                             .transpose_b = shapes[i].transpose_b,
                             .a = block,
                             .b = block + bytes,
                             .c = block + 2 * bytes,
                             .lda = shapes[i].transpose_a ? m : k,
                             .ldb = shapes[i].transpose_b ? k : n,
                             .ldc = n,
                             .ab_type = type,
                             .c_type = type,
                             .alpha = 1};
            double gflops = rate(device, &g);
            if (gflops <= peak->gflops) continue;
            peak->gflops = gflops;
            snprintf(peak->of, sizeof peak->of, "%s, %lld x %lld x %lld", own, (long long)m, (long long)n,
                     (long long)k);
        }
    }
    int code = block ? device_check(device, err) : err ? err->code : EXIT_HOST_MEMORY;
    device_free(device, block);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) device->use.peak_bytes[c] = before.peak_bytes[c];
    device->use.peak_total_bytes = before.peak_total_bytes;
    return code;
}

double device_gemm_peak_gflops(struct device *device, enum dtype type)
{
    struct gemm_peak peak;
    struct error err;
    if (device_gemm_peak(device, type, 0, &peak, &err)) return 0;
    return peak.gflops;
}

double device_copy_rate(struct device *device, char *block, size_t bytes)
{
    double best = 1e30;
    for (int run = 0; run < 6; run++) {
        double t = clock_seconds();
        device->ops->copy(device, block, block + bytes, bytes);
        device->sync(device);
        t = clock_seconds() - t;
        if (run && t < best) best = t;
    }
    return 2 * (double)bytes / best;
}

double device_call_seconds(struct device *device)
{
    struct memory_use before = device->use;
    double best = 1e30;
    char *place = device_alloc(device, MEMORY_WORKSPACE, 64, "a measured call", NULL);
    for (int run = 0; place && run < 200; run++) {
        double t = clock_seconds();
        device->ops->fill(device, place, 0, 64);
        device->sync(device);
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    bool done = place && device_check(device, NULL) == 0;
    device_free(device, place);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) device->use.peak_bytes[c] = before.peak_bytes[c];
    device->use.peak_total_bytes = before.peak_total_bytes;
    return done ? best : 0;
}
