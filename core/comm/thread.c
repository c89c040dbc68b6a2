/* The communication thread, which makes a back end's calls in order. MPI allows calls only from the thread
 * that initialised it, and the next block's backward must not wait for a collective. */
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/platform.h"
#include "core/comm/comm_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct comm_thread {
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct comm_job *first, **last;
    bool stop;
};

static void *comm_work(void *context)
{
    struct comm *comm = context;
    struct comm_thread *t = comm->thread;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !t->stop) pthread_cond_wait(&t->changed, &t->lock);
        struct comm_job *job = t->first;
        if (!job) break;
        if (!(t->first = job->next)) t->last = &t->first;
        pthread_mutex_unlock(&t->lock);
        int code =
            job->mark ? comm->ops->follow(comm, job->mark, &job->err) : 0; /* on the whole's side stream */
        if (!code) code = job->run(job->comm, job->context, &job->err);
        pthread_mutex_lock(&t->lock);
        job->code = code;
        job->done = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void comm_begin(struct comm *comm, struct comm_job *job)
{
    struct comm_thread *t = comm->thread;
    struct comm *whole = comm_whole(comm);
    job->comm = comm;
    job->mark = !t || !whole->ops || !whole->ops->mark ? NULL : whole->ops->mark(whole);
    if (t && !job->mark && !comm->device->host_memory && comm->device->kind != DEVICE_DRY)
        comm->device->sync(comm->device);
    job->code = 0;
    job->err = (struct error){0};
    job->next = NULL;
    job->done = !t;
    job->begun = true;
    if (!t) {
        job->code = job->run(comm, job->context, &job->err);
        return;
    }
    pthread_mutex_lock(&t->lock);
    *t->last = job;
    t->last = &job->next;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

int comm_end(struct comm *comm, struct comm_job *job, struct error *err)
{
    struct comm_thread *t = comm->thread;
    if (!job->begun) return 0;
    if (t) {
        double begin = clock_seconds();
        pthread_mutex_lock(&t->lock);
        while (!job->done) pthread_cond_wait(&t->changed, &t->lock);
        pthread_mutex_unlock(&t->lock);
        comm->waited += clock_seconds() - begin;
    }
    job->begun = false;
    if (job->code && err) *err = job->err;
    return job->code;
}

int comm_call(struct comm *comm, int (*run)(struct comm *, void *, struct error *), void *context,
              struct error *err)
{
    if (!comm->thread || pthread_equal(pthread_self(), comm->thread->id)) return run(comm, context, err);
    struct comm_job job = {.run = run, .context = context};
    comm_begin(comm, &job);
    return comm_end(comm, &job, err);
}

static int comm_call_close(struct comm *comm, void *context, struct error *err)
{
    (void)context;
    (void)err;
    if (comm->ops && comm->ops->close) comm->ops->close(comm);
    return 0;
}

void comm_thread_stop(struct comm *comm)
{
    struct comm_thread *t = comm->thread;
    if (!t) return;
    comm_call(comm, comm_call_close, NULL, NULL);
    if (comm->whole) return; /* whose thread it is */
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    comm->thread = NULL;
}

int comm_thread_start(struct comm *comm, int (*open)(struct comm *, void *, struct error *), void *context,
                      struct error *err)
{
    struct comm_thread *t = xcalloc(1, sizeof *t);
    t->last = &t->first;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    comm->thread = t;
    if ((errno = thread_start(&t->id, comm_work, comm)) != 0) {
        comm->thread = NULL;
        free(t);
        return error_errno(err, EXIT_HOST_MEMORY, "raise the limits on memory and processes (ulimit -v, -u)",
                           "cannot start the communication thread");
    }
    int code = comm_call(comm, open, context, err);
    if (code) comm_thread_stop(comm);
    return code;
}
