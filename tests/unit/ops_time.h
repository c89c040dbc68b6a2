/* test_ops --time: the operations at the size of a real tower, and a triad of the same run. */
#ifndef MEOPT_TESTS_UNIT_OPS_TIME_H
#define MEOPT_TESTS_UNIT_OPS_TIME_H

#include "tests/unit/ops_trial.h"

#include <stdio.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Measures processor time where one thread computes: wall time means little under other load. */
static double now(bool clock)
{
    struct timespec t;
    clock_gettime(clock ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes a second of a = b + 3 c, arrays as large as those of an operation of a real tower. */
static double triad_rate(bool clock)
{
    enum { COUNT = 6 << 20 };
    static float *a, *b, *c;
    double best = 1e30;
    if (!a) {
        a = calloc(COUNT, sizeof *a);
        b = calloc(COUNT, sizeof *b);
        c = calloc(COUNT, sizeof *c);
    }
    assert_true(a && b && c);
    for (int n = 0; n < 5; n++) {
        double t = now(clock);
#pragma omp parallel for simd schedule(static)
        for (int i = 0; i < COUNT; i++) a[i] = b[i] + 3 * c[i];
        t = now(clock) - t;
        if (t < best) best = t;
    }
    return 3.0 * COUNT * sizeof *a / best;
}

/* Seconds of the best of at least 5 calls, as many as go in 0.7 s. */
static double best_call(struct trial *T, const struct operation *op, bool clock)
{
    double best = 1e30, began = now(clock);
    op->call(T);
    for (int n = 0; n < 5 || (n < 100 && now(clock) - began < 0.7); n++) {
        double t = now(clock);
        op->call(T);
        T->device->sync(T->device);
        t = now(clock) - t;
        if (t < best) best = t;
    }
    return best;
}

static void time_operations(const char *spec, const char *filter, const struct operation *operations,
                            int count)
{
    struct device *device;
    struct error err;
    bool clock = true;
#ifdef _OPENMP
    clock = omp_get_max_threads() > 1 || strcmp(spec, "cpu") != 0;
#endif
    if (device_open(&device, spec, 0, &err)) {
        error_print(&err);
        return;
    }
    printf("%-20s %-4s %-24s %9s %9s %9s %9s\n", "operation", "type", "sizes", "ms", "GB/s", "of triad",
           "GFLOP/s");
    for (int k = 0; k < count; k++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const struct operation *op = &operations[k];
            if (filter && !strstr(op->name, filter)) continue;
            struct trial T;
            trial_open(&T, op, device, bf16 ? DTYPE_BF16 : F32, op->timed);
            trial_upload(&T);
            double triad = triad_rate(clock), best = best_call(&T, op, clock), bytes = 0;
            for (int i = 0; i < T.count; i++)
                bytes += (double)operand_bytes(&T.o[i]) * (T.o[i].role == ADD ? 2 : 1);
            double again = triad_rate(clock);
            if (again > triad) triad = again;
            char sizes[64];
            snprintf(sizes, sizeof sizes, "%lld,%lld,%lld,%lld", (long long)T.s[0], (long long)T.s[1],
                     (long long)T.s[2], (long long)T.s[3]);
            printf("%-20s %-4s %-24s %9.3f %9.1f %9.2f %9.1f\n", op->name, dtype_name(T.t), sizes, best * 1e3,
                   bytes / best * 1e-9, bytes / best / triad,
                   op->flops ? op->flops(op->timed) / best * 1e-9 : 0.0);
            trial_close(&T);
        }
    device_close(device);
}

#endif
