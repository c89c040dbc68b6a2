/* See threads.h. */
#include "core/device/threads.h"
#include "core/base/processors.h"

#include <stddef.h>

#ifdef _OPENMP
#include <omp.h>
#include <stdlib.h>

static bool settled;
bool threads_settled(void) { return settled; }

void threads_settle(const char *root)
{
    if (getenv("OMP_PROC_BIND") || getenv("OMP_PLACES") || getenv("GOMP_CPU_AFFINITY")) return;
    if (processors_node_of(root, 0, 1) < 0) return;
    settled = true;
#pragma omp parallel
    processors_stay(root, processors_node_of(root, omp_get_thread_num(), omp_get_num_threads()));
}

int threads_count(int wanted) { return wanted ? wanted : omp_get_max_threads(); }
int threads_lasting(int wanted) { return wanted; }

void threads_run(int threads, void (*run)(void *context, int thread, int threads), void *context)
{
    if (threads < 2) run(context, 0, 1);
    else
#pragma omp parallel num_threads(threads)
        run(context, omp_get_thread_num(), omp_get_num_threads());
}
#else
#include <pthread.h>
#include <signal.h>

bool threads_settled(void) { return false; }
void threads_settle(const char *root) { (void)root; }

enum { MOST = 256 };

int threads_count(int wanted) { return wanted ? wanted : processors_cores(""); }
int threads_lasting(int wanted) { return threads_count(wanted); }

struct share {
    void (*run)(void *context, int thread, int threads);
    void *context;
    int thread, threads;
};

static void *share_run(void *context)
{
    const struct share *s = context;
    s->run(s->context, s->thread, s->threads);
    return NULL;
}

void threads_run(int threads, void (*run)(void *context, int thread, int threads), void *context)
{
    pthread_t started[MOST];
    struct share shares[MOST];
    bool own[MOST];
    sigset_t all, before;
    if (threads > MOST) threads = MOST;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    for (int i = 1; i < threads; i++) {
        shares[i] = (struct share){run, context, i, threads};
        own[i] = pthread_create(&started[i], NULL, share_run, &shares[i]) != 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    run(context, 0, threads);
    for (int i = 1; i < threads; i++)
        if (own[i]) share_run(&shares[i]);
        else pthread_join(started[i], NULL);
}
#endif
