/* Threads for the optimizers' work on this machine: OpenMP's where the program is built with it, else threads
 * that live as long as a call, so that the library of the optimizers alone brings no OpenMP to a host that
 * has one of its own. */
#ifndef MEOPT_DEVICE_THREADS_H
#define MEOPT_DEVICE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* wanted 0: as many as OpenMP decides, or as there are cores to run on. At least 1. */
int threads_count(int wanted);
/* What an object that lasts hands to threads_count: without OpenMP the cores are counted here, once, because
 * counting reads a hundred files of /sys. With OpenMP `wanted` itself, which costs nothing to ask. */
int threads_lasting(int wanted);
/* On a machine of several NUMA nodes: each of OpenMP's threads, the caller's among them, stays on one node
 * from here on, neighbours on the same, so that what a thread wrote first it finds near itself. Not where the
 * user has said otherwise (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), and not without OpenMP. root: "".
 */
void threads_settle(const char *root);
/* Did they? Then memory is first written by all of them, each a share. */
bool threads_settled(void);
/* run(context, thread, threads) for each thread 0..threads-1, on that many at once, or on fewer when the
 * system gives no more. */
void threads_run(int threads, void (*run)(void *context, int thread, int threads), void *context);
/* The share of a thread: count in pieces as even as they can be, in rising order. */
static inline int64_t threads_share(int64_t count, int thread, int threads)
{
    return count / threads * thread + (count % threads < thread ? count % threads : thread);
}

#endif
