/* Milliseconds of attention forward and backward, full and causal, with one thread: processor time, the best
 * of many calls in turn, and the causal one's share. See attention.sh. */
#include "core/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WAYS = 4 }; /* bit 0: causal, bit 1: backward */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Fills with 0.01 and the like in either type. */
static void *operand(struct device *device, size_t bytes)
{
    struct error err;
    void *p = device_alloc(device, MEMORY_WORKSPACE, bytes, "operands", &err);
    if (!p) {
        error_print(&err);
        exit(1);
    }
    device->ops->fill(device, p, 0x3C, bytes);
    return p;
}

static void time_shape(struct device *device, enum dtype type, const int64_t s[5], double seconds)
{
    int64_t B = s[0], N = s[1], H = s[2], G = s[3], dh = s[4];
    size_t out_bytes = (size_t)(B * N * H * dh) * dtype_bytes(type),
           bytes = (size_t)(B * N * (H + 2 * G) * dh) * dtype_bytes(type);
    void *qkv = operand(device, bytes), *dqkv = operand(device, bytes), *out = operand(device, out_bytes),
         *dout = operand(device, out_bytes);
    float *lse = operand(device, (size_t)(B * H * N) * sizeof *lse);
    double best[WAYS] = {0};
    for (double spent = 0; spent < seconds * WAYS;)
        for (int way = 0; way < WAYS; way++) {
            struct attention f = {type, qkv, out, lse, B, N, H, G, dh, .causal = way & 1};
            struct attention_gradient g = {f, dout, dqkv};
            double t = now();
            if (way & 2) device->ops->attention_backward(device, &g);
            else device->ops->attention_forward(device, &f);
            t = now() - t;
            spent += t > 1e-4 ? t : seconds / 100;
            if (best[way] == 0 || t < best[way]) best[way] = t;
        }
    printf("%-5s %3lld %5lld %3lld %3lld %4lld", dtype_name(type), (long long)B, (long long)N, (long long)H,
           (long long)G, (long long)dh);
    for (int way = 0; way < WAYS; way += 2)
        printf(" %9.2f %9.2f %6.3f", best[way] * 1e3, best[way + 1] * 1e3, best[way + 1] / best[way]);
    printf("\n");
    fflush(stdout);
    void *all[] = {qkv, dqkv, out, dout, lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device_free(device, all[i]);
}

int main(int count, char **arguments)
{
    /* B, N, H, G, dh; the same as in attention.py */
    static const int64_t shapes[][5] = {{1, 1024, 2, 2, 64},
                                        {1, 1024, 2, 2, 96},
                                        {1, 1024, 4, 1, 128},
                                        {4, 256, 4, 4, 64},
                                        {1, 4096, 2, 1, 64}};
    struct device *device;
    struct error err;
    if (device_open(&device, "cpu", 0, &err)) return error_print(&err), 1;
    printf("%-5s %3s %5s %3s %3s %4s %9s %9s %6s %9s %9s %6s\n", "type", "B", "N", "H", "G", "dh", "forward",
           "causal", "ratio", "backward", "causal", "ratio");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            time_shape(device, bf16 ? DTYPE_BF16 : DTYPE_F32, shapes[i],
                       count > 1 ? atof(arguments[1]) : 0.5);
    device_close(device);
    return 0;
}
