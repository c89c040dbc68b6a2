/* The optimizer alone with the shapes of GPT2-S (124,439,808 parameters), with resident states and with
 * states in a file. Prints the seconds of three steps and the peak memory, for comparison with
 * TensorNVMe's table.
 *
 *     cc -O2 -I. tests/bench/offload_states.c -o /tmp/offload_states build/libmeopt-optim.so \
 *         -Wl,-rpath,$PWD/build
 *     /tmp/offload_states DIRECTORY-OF-THE-FILE */
#include "core/meopt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 12, WIDTH = 768, MOST = 160 };

static struct meopt_tensor table[MOST];
static size_t count;
static int64_t parameters;

static void add(int block, const char *name, int64_t rows, int64_t columns)
{
    char *full = malloc(64);
    snprintf(full, 64, "h.%d.%s", block, name);
    table[count++] = (struct meopt_tensor){.name = full, .ndim = 2, .shape = {rows, columns}};
    parameters += rows * columns;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(const char *preset, const char *directory, double fraction)
{
    struct meopt_options o;
    struct meopt_error err = {0};
    struct meopt_offload_info info = {.size = sizeof info};
    struct meopt *opt;
    float *gradient = calloc((size_t)50257 * WIDTH, sizeof *gradient);
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    meopt_options_preset(&o, preset, &err);
    o.offload = fraction > 0 ? MEOPT_OFFLOAD_FILE : MEOPT_OFFLOAD_NONE;
    o.offload_fraction = fraction;
    o.offload_dir = directory;
    o.offload_ring_bytes = 32 << 20;
    if (!gradient || meopt_create(&opt, &o, table, count, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int64_t i = 0; i < (int64_t)50257 * WIDTH; i++) gradient[i] = (float)(i % 97 - 48) * 1e-3f;
    double begin = 0;
    for (int step = 0; step <= 3; step++) { /* the first: memory is touched, the order is learnt */
        if (step == 1) begin = now();
        if (meopt_step_begin(opt, step + 1, 1e-3, 0, &err)) return 1;
        for (size_t i = count; i-- > 0;)
            if (meopt_step_tensor(opt, i, gradient, MEOPT_F32, 1, &err)) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
            }
        if (meopt_step_end(opt, NULL, &err)) return 1;
    }
    double seconds = now() - begin;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    meopt_offloaded(opt, &info, &err);
    printf("%-9s %3.0f %% in the file  %7.3f s for 3 steps  %7.1f MB resident at most  %s, %.2f GB/s moved, "
           "waited %.3f s of 4\n",
           preset, 100 * fraction, seconds, (double)use.ru_maxrss * 1024 / 1e6, info.how ? info.how : "held",
           (double)(info.read + info.written) / 4 * 3 / seconds / 1e9, info.wait_seconds);
    meopt_destroy(opt);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const presets[] = {"fp32", "balanced"};
    static const double fractions[] = {0, 0.5, 1};
    add(0, "wte", 50257, WIDTH);
    add(0, "wpe", 1024, WIDTH);
    for (int b = 0; b < BLOCKS; b++) {
        add(b, "ln_1", 2, WIDTH);
        add(b, "attn.c_attn", 3 * WIDTH, WIDTH + 1);
        add(b, "attn.c_proj", WIDTH, WIDTH + 1);
        add(b, "ln_2", 2, WIDTH);
        add(b, "mlp.c_fc", 4 * WIDTH, WIDTH + 1);
        add(b, "mlp.c_proj", WIDTH, 4 * WIDTH + 1);
    }
    add(0, "ln_f", 2, WIDTH);
    printf("%lld parameters\n", (long long)parameters);
    fflush(stdout);
    for (int p = 0; p < 2; p++)
        for (int f = 0; f < 3; f++) {
            pid_t child = fork(); /* its own memory */
            if (child == 0) {
                int failed = run(presets[p], argc > 1 ? argv[1] : ".", fractions[f]);
                fflush(stdout);
                _exit(failed);
            }
            int status;
            if (child < 0 || waitpid(child, &status, 0) < 0 || status) return 1;
        }
    return 0;
}
