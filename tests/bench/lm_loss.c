/* The loss of a language model's head, forward and backward (core/nn/lm_loss.h), one pass per line of input:
 *
 *   bench_lm_loss fp32|bf16 R D V CHUNK      CHUNK: bytes of logits in memory
 *
 * prints the form and the scratch's bytes, then processor seconds, wall seconds and the loss of each pass.
 * Started by lm_loss.py. */
#include "core/nn/lm_loss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *values(struct device *device, enum dtype type, int64_t n, float scale)
{
    struct error err;
    float *x = malloc((size_t)n * sizeof *x);
    void *to = device_alloc(device, MEMORY_DATA, (size_t)n * dtype_bytes(type), "values", &err);
    uint64_t state = 1;
    if (!x || !to) exit(1);
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = ((float)(state >> 40) * 0x1p-24f - 0.5f) * scale;
    }
    device->ops->cast(device, x, DTYPE_F32, to, type, n);
    free(x);
    return to;
}

int main(int argc, char **argv)
{
    struct device *device;
    struct error err;
    char line[64];
    if (argc != 6 || device_open(&device, "cpu", 0, &err)) return 1;
    struct lm_loss o = {.type = strcmp(argv[1], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32,
                        .weight = 1,
                        .R = atoll(argv[2]),
                        .D = atoll(argv[3]),
                        .V = atoll(argv[4])};
    struct lm_loss_layout layout = lm_loss_layout(o.R, o.V, (size_t)atoll(argv[5]));
    int32_t *labels = calloc((size_t)o.R, sizeof *labels);
    for (int64_t r = 0; r < o.R; r++) labels[r] = (int32_t)(r * 7919 % o.V);
    double *sums = calloc(2, sizeof *sums);
    o.x = values(device, o.type, o.R * o.D, 3);
    o.weights = values(device, o.type, o.V * o.D, 0.1f);
    o.labels = labels;
    o.sums = sums;
    o.dx = values(device, DTYPE_F32, o.R * o.D, 1);
    o.dweights = values(device, o.type, o.V * o.D, 1);
    o.dweights_type = o.type;
    o.weight = 1.0f / (float)o.R;
    o.scratch = device_alloc(device, MEMORY_WORKSPACE, layout.bytes, "logits", &err);
    if (!o.scratch) return 1;
    printf("%s %zu\n",
           layout.form == LM_LOSS_WHOLE  ? "whole"
           : layout.form == LM_LOSS_ROWS ? "rows"
                                         : "slabs",
           layout.bytes);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double processor = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
        sums[0] = 0;
        lm_loss(device, &o, &layout);
        processor = now(CLOCK_PROCESS_CPUTIME_ID) - processor;
        printf("%.6f %.6f %.7f\n", processor, now(CLOCK_MONOTONIC) - wall, sums[0]);
        fflush(stdout);
    }
    return 0;
}
