/* Threads for the optimizers' work on the host. If the program is built with OpenMP they are OpenMP's; else
 * they live as long as a call, so that libmeopt brings no second OpenMP runtime to its host program. */
#ifndef MEOPT_DEVICE_THREADS_H
#define MEOPT_DEVICE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* Number of threads; wanted 0: as OpenMP decides, or the number of available cores. At least 1. */
int threads_count(int wanted);
/* The value that a long-lived object passes to threads_count. Without OpenMP the cores are counted here,
 * once, because counting reads a hundred files of /sys. With OpenMP it is `wanted` itself. */
int threads_lasting(int wanted);
/* Pins OpenMP's threads, the caller included, to NUMA nodes, neighbours on the same node, so that memory that
 * a thread wrote first is local to it. Does nothing if the user has set OMP_PROC_BIND, OMP_PLACES or
 * GOMP_CPU_AFFINITY, and nothing without OpenMP. root: "". */
void threads_settle(const char *root);
/* Returns whether they are pinned. Then memory should be first written by all of them, each its share. */
bool threads_settled(void);
/* Runs run(context, thread, threads) for each thread 0..threads-1, in parallel, or on fewer threads if the
 * system starts fewer. */
void threads_run(int threads, void (*run)(void *context, int thread, int threads), void *context);
/* Share of a thread: `count` divided as evenly as possible, in rising order. */
static inline int64_t threads_share(int64_t count, int thread, int threads)
{
    return count / threads * thread + (count % threads < thread ? count % threads : thread);
}

#endif
