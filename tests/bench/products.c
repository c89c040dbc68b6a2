/* GFLOP/s of the GEMMs of training with one thread: processor time, the best of many repeats, at the
 * widths of the three towers, in bf16 and fp32. Also the best square GEMM of each type in the same run.
 * Other load on the machine affects single repeats, but not the best of many. See products.sh. */
#include "core/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WAYS = 2 };
static const char *const ways[WAYS] = {"bf16", "fp32"};

struct bench {
    struct device *device;
    char *a, *b, *c;
    size_t bytes;
    double seconds; /* for one way of one product */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* GFLOP/s of each way. In turn, so that all see the same machine. */
static void rates(const struct bench *s, struct gemm g, double gflops[WAYS])
{
    double best[WAYS] = {0};
    for (double spent = 0; spent < s->seconds * WAYS;)
        for (int way = 0; way < WAYS; way++) {
            g.ab_type = g.c_type = way ? DTYPE_F32 : DTYPE_BF16;
            double t = now();
            s->device->ops->gemm(s->device, &g);
            t = now() - t;
            spent += t > 1e-4 ? t : s->seconds / 100;
            if (best[way] == 0 || t < best[way]) best[way] = t;
        }
    for (int way = 0; way < WAYS; way++)
        gflops[way] = best[way] > 0 ? 2.0 * (double)g.m * (double)g.n * (double)g.k / best[way] * 1e-9 : 0.0;
}

/* y = x W^T, dx = dy W, dW = dy^T x, of W (out, in) */
static struct gemm product(const struct bench *s, int kind, int64_t rows, int64_t out, int64_t in)
{
    struct gemm g = {.a = s->a, .b = s->b, .c = s->c, .alpha = 1};
    g.m = kind == 2 ? out : rows;
    g.n = kind == 0 ? out : in;
    g.k = kind == 0 ? in : kind == 1 ? out : rows;
    g.transpose_a = kind == 2;
    g.transpose_b = kind == 0;
    g.lda = kind == 2 ? g.m : g.k;
    g.ldb = kind == 0 ? g.k : g.n;
    g.ldc = g.n;
    return g;
}

static void line(const char *name, const struct gemm *g, const double gflops[WAYS], double peak)
{
    printf("%-8s %5lld %5lld %5lld", name, (long long)g->m, (long long)g->n, (long long)g->k);
    for (int way = 0; way < WAYS; way++) printf(" %12.1f", gflops[way]);
    printf(" %8.2f\n", gflops[0] / peak);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    static const char *const kinds[] = {"x W^T", "dy W", "dy^T x"};
    /* out, in: MLP and attention of eva_clip, open_clip's student, dinov2's teacher and student */
    static const int64_t widths[][2] = {{6144, 1408}, {4224, 1408}, {1408, 6144}, {5120, 1280}, {8192, 1536},
                                        {1536, 4096}, {8192, 1024}, {3072, 1024}, {1024, 4096}, {1024, 1024}};
    struct bench s = {.bytes = (size_t)256 << 20, .seconds = count > 1 ? atof(arguments[1]) : 0.3};
    struct error err;
    if (device_open(&s.device, "cpu", 0, &err)) return error_print(&err), 1;
    char *block = device_alloc(s.device, MEMORY_WORKSPACE, 3 * s.bytes, "operands", &err);
    if (!block) return 1;
    s.device->ops->fill(s.device, block, 0x3C, 3 * s.bytes); /* 0.01 and the like in either type */
    s.a = block;
    s.b = block + s.bytes;
    s.c = block + 2 * s.bytes;
    printf("%-8s %5s %5s %5s", "product", "m", "n", "k");
    for (int way = 0; way < WAYS; way++) printf(" %12s", ways[way]);
    printf(" %8s\n", "of peak");
    double gflops[WAYS], peak = 0;
    struct gemm square = product(&s, 1, 2048, 2048, 2048);
    rates(&s, square, gflops);
    for (int way = 0; way < WAYS; way++) peak = gflops[way] > peak ? gflops[way] : peak;
    line("square", &square, gflops, peak);
    for (int i = 2; i < count || i == 2; i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int kind = 0; kind < 3; kind++) {
                int64_t rows = i < count ? atoll(arguments[i]) : 514;
                struct gemm g = product(&s, kind, rows, widths[w][0], widths[w][1]);
                rates(&s, g, gflops);
                line(kinds[kind], &g, gflops, peak);
            }
    device_free(s.device, block);
    device_close(s.device);
    return 0;
}
