/* Transfers by threads that read and write: see transfer.h. For kernels without io_uring, and for builds
 * without liburing. */
#include "core/base/transfer_engine.h"
#include "core/base/platform.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4 }; /* a disk reaches its bandwidth with a few requests of a megabyte each */

struct slot {
    struct transfer_pair pair;
    int next; /* the next slot in the queue, -1: last */
    bool done;
};

struct pool {
    int fd;
    size_t alignment;
    struct slot *slots;
    int first, last; /* of the queue; -1: empty */
    bool ending;
    pthread_t threads[THREADS];
    int count;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

/* Transfers all bytes: 0, an errno, or -1 at the end of the file. A short transfer is continued, unless it
 * repeatedly moves less than one unit of the alignment. */
static int whole(const struct pool *p, const struct transfer *op, bool writes)
{
    for (size_t done = 0, before = 0, stuck = 0; done < op->bytes; before = done) {
        struct transfer rest = transfer_rest(*op, done, p->alignment);
        ssize_t n = writes ? pwrite(p->fd, rest.buffer, rest.bytes, rest.offset)
                           : pread(p->fd, rest.buffer, rest.bytes, rest.offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return writes ? ENOSPC : -1;
        done = op->bytes - rest.bytes + (size_t)n;
        stuck = done > before ? 0 : stuck + 1;
        if (stuck == TRANSFER_TRIES) return EIO;
    }
    return 0;
}

static void make(const struct pool *p, struct transfer_pair *pair)
{
    for (int i = 0; i < 2 && !pair->failed; i++) {
        pair->failed = whole(p, &pair->op[i], i == 0);
        pair->which = i;
    }
}

static void *pool_run(void *context)
{
    struct pool *p = context;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->first < 0 && !p->ending) pthread_cond_wait(&p->work, &p->lock);
        if (p->first < 0) break;
        struct slot *s = &p->slots[p->first];
        p->first = s->next;
        if (p->first < 0) p->last = -1;
        pthread_mutex_unlock(&p->lock);
        make(p, &s->pair);
        pthread_mutex_lock(&p->lock);
        s->done = true;
        pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_close(void *state)
{
    struct pool *p = state;
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->count; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p->slots);
    free(p);
}

static int pool_open(void **state, int fd, size_t alignment, int slots)
{
    struct pool *p = calloc(1, sizeof *p);
    *state = NULL;
    if (!p || !(p->slots = calloc((size_t)slots, sizeof *p->slots))) {
        free(p);
        return ENOMEM;
    }
    p->fd = fd;
    p->alignment = alignment;
    p->first = p->last = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    int failed = 0;
    for (; p->count < THREADS && !failed; p->count += !failed)
        failed = thread_start(&p->threads[p->count], pool_run, p);
    if (!p->count) { /* one is enough */
        pool_close(p);
        return failed;
    }
    *state = p;
    return 0;
}

static void pool_start(void *state, int slot, const struct transfer_pair *pair)
{
    struct pool *p = state;
    pthread_mutex_lock(&p->lock);
    p->slots[slot] = (struct slot){*pair, -1, false};
    if (p->last >= 0) p->slots[p->last].next = slot;
    else p->first = slot;
    p->last = slot;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static bool pool_idle(void *state, int slot)
{
    struct pool *p = state;
    pthread_mutex_lock(&p->lock);
    bool done = p->slots[slot].done;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static struct transfer_pair pool_wait(void *state, int slot)
{
    struct pool *p = state;
    pthread_mutex_lock(&p->lock);
    while (!p->slots[slot].done) pthread_cond_wait(&p->done, &p->lock);
    struct transfer_pair pair = p->slots[slot].pair;
    pthread_mutex_unlock(&p->lock);
    return pair;
}

const struct transfer_engine transfer_threads = {
    .name = "threads",
    .open = pool_open,
    .start = pool_start,
    .idle = pool_idle,
    .wait = pool_wait,
    .close = pool_close,
};
