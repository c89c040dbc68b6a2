/* Downloads several files of a repository at a time: see hub.h, hub_fetch_files. Each thread takes the next
 * file. A thread without one gives its connection to the large files of the others, which split them. */
#include "fetch/hub.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

struct pool;

struct worker {
    struct pool *pool;
    pthread_t thread;
    struct hub hub; /* whose cancel is the pool's */
    int file;       /* index; -1: none */
    int64_t bytes, received;
};

struct pool {
    const struct hub_name *name;
    const char *commit;
    const struct hub_files *files;
    int connections;
    const struct hub_progress *progress;
    atomic_int stop;
    struct connections shared;
    pthread_mutex_t lock;   /* of all below, and of the calls of `progress` */
    pthread_cond_t changed; /* a file ended */
    int next, done, running;
    int64_t bytes, received; /* of the files that ended */
    int failed;              /* the first file in order that failed; -1: none */
    int code;                /* its error */
    struct error err;
    int worker_count;
    struct worker workers[HUB_CONNECTIONS];
};

/* ---- reports of a download; they lock the pool ---- */

static void on_progress(void *context, const struct transfer_progress *p)
{
    struct worker *w = context;
    struct pool *pool = w->pool;
    pthread_mutex_lock(&pool->lock);
    w->bytes = p->bytes;
    w->received = p->received;
    struct hub_state state = {.file = &pool->files->all[w->file],
                              .file_bytes = p->bytes,
                              .bytes = pool->bytes,
                              .received = pool->received,
                              .done = pool->done,
                              .tries = p->tries,
                              .retry_in = p->retry_in,
                              .pause_begins = p->pause_begins,
                              .reason = p->reason};
    for (int i = 0; i < pool->worker_count; i++) {
        state.bytes += pool->workers[i].bytes;
        state.received += pool->workers[i].received;
    }
    pool->progress->progress(pool->progress->context, &state);
    pthread_mutex_unlock(&pool->lock);
}

static void on_notice(void *context, const char *text)
{
    struct worker *w = context;
    struct pool *pool = w->pool;
    pthread_mutex_lock(&pool->lock);
    pool->progress->notice(pool->progress->context, &pool->files->all[w->file], text);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- threads ---- */

/* Returns whether another thread has an earlier file with the same content: its partial file is the same. */
static bool same_content(const struct pool *pool, const struct worker *w)
{
    const struct hub_file *all = pool->files->all;
    for (int i = 0; i < pool->worker_count; i++) {
        int other = pool->workers[i].file;
        if (other >= 0 && other < w->file && strcmp(all[other].id, all[w->file].id) == 0) return true;
    }
    return false;
}

/* Takes the next file. Returns false if there is none, or after an error. */
static bool take_file(struct worker *w)
{
    struct pool *pool = w->pool;
    pthread_mutex_lock(&pool->lock);
    w->file = pool->next < pool->files->count ? pool->next++ : -1;
    while (w->file >= 0 && !pool->stop && same_content(pool, w))
        pthread_cond_wait(&pool->changed, &pool->lock);
    if (pool->stop) w->file = -1;
    bool taken = w->file >= 0;
    if (!taken) {
        pool->running--;
        pthread_cond_broadcast(&pool->changed);
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

static void end_file(struct worker *w, int code, const struct error *err)
{
    struct pool *pool = w->pool;
    const struct hub_file *file = &pool->files->all[w->file];
    pthread_mutex_lock(&pool->lock);
    bool stopped = code == EXIT_SIGNAL + SIGINT && pool->stop; /* because of another file, or of the user */
    pool->received += w->received;
    if (!code) {
        pool->done++;
        pool->bytes += file->size;
        pool->progress->ended(pool->progress->context, file, 0, err);
    } else if (!stopped && (pool->failed < 0 || w->file < pool->failed)) {
        pool->failed = w->file;
        pool->code = code;
        pool->err = *err;
    }
    if (code) pool->stop = 1;
    w->file = -1;
    w->bytes = w->received = 0;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *context)
{
    struct worker *w = context;
    struct pool *pool = w->pool;
    hub_keep_connections(&w->hub);
    while (take_file(w)) {
        struct error err = {0};
        struct hub_download d = {.hub = &w->hub,
                                 .name = pool->name,
                                 .commit = pool->commit,
                                 .file = &pool->files->all[w->file],
                                 .connections = pool->connections,
                                 .context = w,
                                 .progress = on_progress,
                                 .notice = on_notice};
        int code = hub_fetch_file(&d, &err);
        end_file(w, code, &err);
    }
    hub_drop_connections(&w->hub);
    connections_return(&pool->shared, 1);
    return NULL;
}

/* Starts the threads. Returns 0, or the system's error if not even one starts. */
static int start_workers(struct pool *pool, const struct hub *hub, int count)
{
    int problem = 0;
    pthread_mutex_lock(&pool->lock);
    for (int i = 0; i < count && !problem; i++) {
        struct worker *w = &pool->workers[i];
        *w = (struct worker){.pool = pool, .hub = *hub, .file = -1};
        w->hub.cancel = &pool->stop;
        w->hub.shared = &pool->shared;
        w->hub.context = w;
        w->hub.notice = on_notice;
        problem = pthread_create(&w->thread, NULL, work, w);
        if (!problem) pool->running = pool->worker_count = i + 1;
    }
    atomic_store(&pool->shared.spare, pool->connections - pool->worker_count);
    pthread_mutex_unlock(&pool->lock);
    return pool->worker_count ? 0 : problem;
}

/* Waits for the end of the threads, and passes the user's wish to stop on. */
static void wait_for_workers(struct pool *pool, const atomic_int *cancel)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->running > 0) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += 100000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&pool->changed, &pool->lock, &t);
        if (cancel && *cancel && !pool->stop) {
            pool->stop = 1;
            pthread_cond_broadcast(&pool->changed);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->worker_count; i++) pthread_join(pool->workers[i].thread, NULL);
}

int hub_fetch_files(const struct hub *hub, const struct hub_name *name, const char *commit,
                    const struct hub_files *files, int connections, const struct hub_progress *progress,
                    int64_t *received, struct error *err)
{
    struct pool pool = {.name = name,
                        .commit = commit,
                        .files = files,
                        .connections = connections < HUB_CONNECTIONS ? connections : HUB_CONNECTIONS,
                        .progress = progress,
                        .failed = -1};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.changed, &monotonic);
    int code = 0, problem = start_workers(&pool, hub,
                                          files->count < pool.connections ? files->count : pool.connections);
    if (problem) {
        errno = problem;
        code = error_errno(err, EXIT_FAILED, "raise ulimit -u", "cannot start a thread");
    } else wait_for_workers(&pool, hub->cancel);
    if (pool.failed >= 0) {
        code = pool.code;
        if (err) *err = pool.err;
        progress->ended(progress->context, &files->all[pool.failed], code, &pool.err);
    } else if (!code && pool.stop)
        code = error_set(err, EXIT_SIGNAL + SIGINT, "run the same command again to resume", "stopped");
    *received = pool.received;
    pthread_condattr_destroy(&monotonic);
    pthread_cond_destroy(&pool.changed);
    pthread_mutex_destroy(&pool.lock);
    return code;
}
