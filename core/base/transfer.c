/* Asynchronous transfers: see transfer.h. Four threads read and write: a disk reaches its bandwidth with a
 * few requests of a megabyte each. */
#include "core/base/transfer.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/platform.h"
#include "core/base/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    THREADS = 4,
    TRIES = 100 /* attempts for a piece without progress */
};

struct slot {
    struct transfer op[2]; /* a write (0) and a read (1); 0 bytes: none */
    int failed;            /* errno of the first failure; -1: end of file; 0: none */
    int which;             /* the one that failed: 0 or 1 */
    int next;              /* the next slot in the queue, -1: last */
    bool busy, done;       /* busy: until the caller has waited for it */
};

struct transfers {
    char *directory;
    int fd, slot_count;
    bool direct, in_memory;
    struct slot *slots;
    int first, last; /* of the queue; -1: empty */
    bool ending;
    pthread_t threads[THREADS];
    int thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

/* ---- the scratch file ---- */

static int open_file(struct transfers *t, struct error *err)
{
    t->fd = file_nameless(t->directory, O_DIRECT);
    t->direct = t->fd >= 0;
    if (t->fd < 0 && errno == EINVAL) t->fd = file_nameless(t->directory, 0);
    if (t->fd >= 0) return 0;
    return error_errno(err, EXIT_FAILED,
                       errno == ENOENT ? "create the directory, or mount its disk"
                                       : N_("use a writable directory on a local disk"),
                       "cannot create a file in %s", t->directory);
}

/* Tests whether the file accepts O_DIRECT with pieces of TRANSFER_ALIGNMENT bytes: writes one at an odd
 * multiple of it, from a buffer with no larger alignment. A file system that requires more uses the page
 * cache. */
static int try_direct(struct transfers *t, struct error *err)
{
    char *buffer;
    t->in_memory = file_in_memory(t->fd);
    if (!t->direct) return 0;
    if (posix_memalign((void **)&buffer, 2 * TRANSFER_ALIGNMENT, 2 * TRANSFER_ALIGNMENT))
        return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory to test the file in %s", t->directory);
    memset(buffer, 0, 2 * TRANSFER_ALIGNMENT);
    ssize_t n =
        retry_write(t->fd, buffer + TRANSFER_ALIGNMENT, TRANSFER_ALIGNMENT, (int64_t)TRANSFER_ALIGNMENT);
    int failed = n < 0 ? errno : 0;
    free(buffer);
    if (failed == EINVAL) {
        int flags = fcntl(t->fd, F_GETFL);
        t->direct = flags < 0 || fcntl(t->fd, F_SETFL, flags & ~O_DIRECT) != 0;
    }
    return file_shorten(t->fd, 0, t->directory, err); /* any other failure is reported by the transfers */
}

/* Allocates the file's whole space now, so that a full disk is not discovered in the middle of a step. */
static int reserve_space(struct transfers *t, int64_t bytes, struct error *err)
{
    int failed = fallocate(t->fd, 0, 0, bytes > 0 ? bytes : 1) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS) failed = ftruncate(t->fd, bytes) == 0 ? 0 : errno;
    if (!failed) return 0;
    errno = failed;
    return error_errno(err, EXIT_FAILED, "use another directory, or offload less",
                       "no space for a file of %lld bytes in %s", (long long)bytes, t->directory);
}

/* ---- the threads ---- */

/* Transfers all bytes: 0, an errno, or -1 at the end of the file. A short transfer is continued from the last
 * whole multiple of the alignment, unless it repeatedly moves less than that. */
static int move(const struct transfers *t, const struct transfer *op, bool writes)
{
    for (size_t done = 0, before = 0, stuck = 0; done < op->bytes; before = done) {
        size_t from = done - done % TRANSFER_ALIGNMENT, left = op->bytes - from;
        char *buffer = (char *)op->buffer + from;
        off_t offset = op->offset + (off_t)from;
        ssize_t n = writes ? pwrite(t->fd, buffer, left, offset) : pread(t->fd, buffer, left, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return writes ? ENOSPC : -1;
        done = from + (size_t)n;
        stuck = done > before ? 0 : stuck + 1;
        if (stuck == TRIES) return EIO;
    }
    return 0;
}

static void *run_thread(void *context)
{
    struct transfers *t = context;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->first < 0 && !t->ending) pthread_cond_wait(&t->work, &t->lock);
        if (t->first < 0) break;
        struct slot *s = &t->slots[t->first];
        t->first = s->next;
        if (t->first < 0) t->last = -1;
        pthread_mutex_unlock(&t->lock);
        for (int i = 0; i < 2 && !s->failed; i++) {
            s->failed = move(t, &s->op[i], i == 0);
            s->which = i;
        }
        pthread_mutex_lock(&t->lock);
        s->done = true;
        pthread_cond_broadcast(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int start_threads(struct transfers *t, struct error *err)
{
    int failed = 0;
    for (; t->thread_count < THREADS && !failed; t->thread_count += !failed)
        failed = thread_start(&t->threads[t->thread_count], run_thread, t);
    if (t->thread_count) return 0; /* one is enough */
    errno = failed;
    return error_errno(err, EXIT_FAILED, NULL, "no thread to transfer the bytes of a file in %s",
                       t->directory);
}

/* ---- the interface ---- */

int transfers_open(struct transfers **out, const char *directory, int64_t bytes, int slots, struct error *err)
{
    *out = NULL;
    struct transfers *t = calloc(1, sizeof *t);
    struct slot *all = calloc((size_t)slots, sizeof *all);
    if (!t || !all) {
        free(t);
        free(all);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %d transfers", slots);
    }
    *t = (struct transfers){.directory = xstrdup(directory),
                            .fd = -1,
                            .slots = all,
                            .slot_count = slots,
                            .first = -1,
                            .last = -1};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    int code = open_file(t, err);
    if (!code) code = try_direct(t, err);
    if (!code) code = reserve_space(t, bytes, err);
    if (!code) code = start_threads(t, err);
    if (code) transfers_close(t);
    else *out = t;
    return code;
}

void transfers_start(struct transfers *t, int slot, const struct transfer *write, const struct transfer *read)
{
    struct slot next = {.next = -1, .busy = true};
    if (write) next.op[0] = *write;
    if (read) next.op[1] = *read;
    pthread_mutex_lock(&t->lock);
    t->slots[slot] = next;
    if (t->last >= 0) t->slots[t->last].next = slot;
    else t->first = slot;
    t->last = slot;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

bool transfers_idle(struct transfers *t, int slot)
{
    pthread_mutex_lock(&t->lock);
    bool idle = !t->slots[slot].busy || t->slots[slot].done;
    pthread_mutex_unlock(&t->lock);
    return idle;
}

int transfers_wait(struct transfers *t, int slot, double *seconds, struct error *err)
{
    struct slot *s = &t->slots[slot];
    if (!s->busy) return 0;
    double before = clock_seconds();
    pthread_mutex_lock(&t->lock);
    while (!s->done) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
    if (seconds) *seconds += clock_seconds() - before;
    s->busy = false;
    if (!s->failed) return 0;
    const struct transfer *op = &s->op[s->which];
    const char *what = s->which ? _("reading") : _("writing");
    if (s->failed < 0)
        return error_set(err, EXIT_FAILED, NULL,
                         "%s %zu bytes at %lld of the file in %s: the file ends before that", what, op->bytes,
                         (long long)op->offset, t->directory);
    errno = s->failed;
    return error_errno(err, EXIT_FAILED, NULL, "%s %zu bytes at %lld of the file in %s", what, op->bytes,
                       (long long)op->offset, t->directory);
}

void transfers_close(struct transfers *t)
{
    if (!t) return;
    for (int i = 0; i < t->slot_count; i++) transfers_wait(t, i, NULL, NULL);
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->thread_count; i++) pthread_join(t->threads[i], NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->done);
    if (t->fd >= 0) close(t->fd);
    free(t->directory);
    free(t->slots);
    free(t);
}

bool transfers_direct(const struct transfers *t) { return t->direct; }
bool transfers_in_memory(const struct transfers *t) { return t->in_memory; }
