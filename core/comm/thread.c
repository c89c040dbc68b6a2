/* The thread in which a back end's calls are made, one behind the other: MPI takes them from the thread that
 * initialised it alone, and a collective that is under way must not keep the next block's backward waiting.
 */
#include "core/base/file.h"
#include "core/base/platform.h"
#include "core/comm/comm_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct dist_thread {
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct dist_job *first, **last;
    bool stop;
};

static void *dist_work(void *context)
{
    struct dist *dist = context;
    struct dist_thread *t = dist->thread;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !t->stop) pthread_cond_wait(&t->changed, &t->lock);
        struct dist_job *job = t->first;
        if (!job) break;
        if (!(t->first = job->next)) t->last = &t->first;
        pthread_mutex_unlock(&t->lock);
        int code = job->mark ? dist->ops->follow(dist, job->mark, &job->err) : 0;
        if (!code) code = job->run(dist, job->context, &job->err);
        pthread_mutex_lock(&t->lock);
        job->code = code;
        job->done = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void dist_begin(struct dist *dist, struct dist_job *job)
{
    struct dist_thread *t = dist->thread;
    job->mark = !dist->ops || !dist->ops->mark ? NULL : dist->ops->mark(dist);
    if (t && !job->mark && !dist->device->host_memory && dist->device->kind != DEVICE_DRY)
        dist->device->sync(dist->device);
    job->code = 0;
    job->err = (struct error){0};
    job->next = NULL;
    job->done = !t;
    job->begun = true;
    if (!t) {
        job->code = job->run(dist, job->context, &job->err);
        return;
    }
    pthread_mutex_lock(&t->lock);
    *t->last = job;
    t->last = &job->next;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

int dist_end(struct dist *dist, struct dist_job *job, struct error *err)
{
    struct dist_thread *t = dist->thread;
    if (!job->begun) return 0;
    if (t) {
        pthread_mutex_lock(&t->lock);
        while (!job->done) pthread_cond_wait(&t->changed, &t->lock);
        pthread_mutex_unlock(&t->lock);
    }
    job->begun = false;
    if (job->code && err) *err = job->err;
    return job->code;
}

int dist_call(struct dist *dist, int (*run)(struct dist *, void *, struct error *), void *context,
              struct error *err)
{
    if (!dist->thread || pthread_equal(pthread_self(), dist->thread->id)) return run(dist, context, err);
    struct dist_job job = {.run = run, .context = context};
    dist_begin(dist, &job);
    return dist_end(dist, &job, err);
}

static int dist_call_close(struct dist *dist, void *context, struct error *err)
{
    (void)context;
    (void)err;
    if (dist->ops && dist->ops->close) dist->ops->close(dist);
    return 0;
}

void dist_thread_stop(struct dist *dist)
{
    struct dist_thread *t = dist->thread;
    if (!t) return;
    dist_call(dist, dist_call_close, NULL, NULL);
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    dist->thread = NULL;
}

int dist_thread_start(struct dist *dist, int (*open)(struct dist *, void *, struct error *), void *context,
                      struct error *err)
{
    struct dist_thread *t = xcalloc(1, sizeof *t);
    t->last = &t->first;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    dist->thread = t;
    if ((errno = thread_start(&t->id, dist_work, dist)) != 0) {
        dist->thread = NULL;
        free(t);
        return error_errno(err, EXIT_HOST_MEMORY, "raise the limits on memory and processes (ulimit -v, -u)",
                           "cannot start the thread of the collectives");
    }
    int code = dist_call(dist, open, context, err);
    if (code) dist_thread_stop(dist);
    return code;
}
