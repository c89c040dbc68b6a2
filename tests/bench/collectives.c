/* The rate of collectives of ranks on this host, for the simulation of their steps (simulate.sh): reductions
 * of bf16, and gathers, as step_ranks.c makes them.
 *
 *   collectives RANKS [MIB]    GB/s that a rank sends, of an array of MIB (8): by the clock, the best of 20,
 *                              and by the processor time of all ranks */
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 20 };

static double sent_gb(int64_t values, int size) { return 6e-9 * (double)values * (size - 1) / size; }

static double processor_seconds(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int run(int rank, int size, int shared, int64_t values, struct error *err)
{
    struct comm_options options = {.rank = rank, .size = size, .local_rank = rank, .shared = shared};
    struct device *device;
    struct comm comm;
    int64_t *parts = xcalloc((size_t)size + 1, sizeof *parts),
            *bytes = xcalloc((size_t)size + 1, sizeof *bytes);
    uint16_t *send = xcalloc((size_t)values, sizeof *send);
    float *sum = xcalloc((size_t)values, sizeof *sum);
    double best = 1e9;
    int code = device_open(&device, "cpu", 0, err);
    if (!code) code = comm_open(&comm, &options, device, err);
    for (int q = 1; q <= size; q++) parts[q] = values * q / size, bytes[q] = 4 * parts[q];
    if (!code) code = comm_reserve(&comm, (values / size + 1) * 4, err);
    for (int i = 0; i < ROUNDS && !code; i++) {
        code = comm_barrier(&comm, err);
        double start = clock_seconds();
        if (!code)
            code = comm_reduce(&comm, &(struct comm_sum){send, DTYPE_BF16, parts, 0, NULL, sum + parts[rank]},
                               err);
        if (!code) code = comm_gather(&comm, sum, bytes, err);
        if (!code) code = comm_barrier(&comm, err);
        if (clock_seconds() - start < best) best = clock_seconds() - start;
    }
    if (!code && rank == 0) printf("%.3f ", sent_gb(values, size) / best);
    return code;
}

int main(int argc, char **argv)
{
    int size = argc > 1 ? atoi(argv[1]) : 2, shared, bad = 0, status;
    int64_t values = (int64_t)(argc > 2 ? atoi(argv[2]) : 8) << 19;
    struct error err = {0};
    if (comm_local_create(size, &shared, &err)) return error_print(&err), 1;
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) {
            int code = run(rank, size, shared, values, &err);
            if (code) error_print(&err);
            fflush(stdout);
            _exit(code);
        }
    while (wait(&status) > 0) bad |= status;
    printf("%.3f\n", sent_gb(values, size) * ROUNDS * (double)sysconf(_SC_NPROCESSORS_ONLN) /
                         processor_seconds(RUSAGE_CHILDREN));
    return bad != 0;
}
