/* Asynchronous transfers: see transfer.h. This file has the scratch file and the choice of the engine:
 * io_uring if the program was built with liburing and the kernel supports it, else a few threads
 * (transfer_threads.c). */
#include "core/base/transfer_engine.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct transfers {
    const struct transfer_engine *engine;
    void *state;
    char *directory;
    int fd, slots;
    bool direct, in_memory;
    bool *busy; /* (slots) */
};

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

static void choose_engine(struct transfers *t)
{
#ifdef MEOPT_URING
    const char *wanted = getenv("MEOPT_URING"); /* 0: as on a kernel without io_uring */
    t->engine = &transfer_uring;
    if (!(wanted && strcmp(wanted, "0") == 0) &&
        t->engine->open(&t->state, t->fd, TRANSFER_ALIGNMENT, t->slots) == 0)
        return;
#endif
    t->engine = &transfer_threads;
    errno = t->engine->open(&t->state, t->fd, TRANSFER_ALIGNMENT, t->slots);
}

int transfers_open(struct transfers **out, const char *directory, int64_t bytes, int slots, struct error *err)
{
    *out = NULL;
    struct transfers *t = calloc(1, sizeof *t);
    bool *busy = calloc((size_t)slots, sizeof *busy);
    if (!t || !busy) {
        free(t);
        free(busy);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %d transfers", slots);
    }
    t->directory = xstrdup(directory);
    t->busy = busy;
    t->slots = slots;
    t->fd = -1;
    int code = open_file(t, err);
    if (!code) code = try_direct(t, err);
    if (!code) code = reserve_space(t, bytes, err);
    if (!code) {
        choose_engine(t);
        if (!t->state)
            code = error_errno(err, EXIT_FAILED, NULL, "no method to transfer the bytes of a file in %s",
                               directory);
    }
    if (code) transfers_close(t);
    else *out = t;
    return code;
}

void transfers_register(struct transfers *t, const struct iovec *buffers, int count)
{
    if (t->engine->buffers) t->engine->buffers(t->state, buffers, count);
}

void transfers_start(struct transfers *t, int slot, const struct transfer *write, const struct transfer *read)
{
    struct transfer_pair pair = {0};
    if (write) pair.op[0] = *write;
    if (read) pair.op[1] = *read;
    t->busy[slot] = true;
    t->engine->start(t->state, slot, &pair);
}

bool transfers_idle(struct transfers *t, int slot)
{
    return !t->busy[slot] || t->engine->idle(t->state, slot);
}

int transfers_wait(struct transfers *t, int slot, double *seconds, struct error *err)
{
    if (!t->busy[slot]) return 0;
    double before = clock_seconds();
    struct transfer_pair done = t->engine->wait(t->state, slot);
    if (seconds) *seconds += clock_seconds() - before;
    t->busy[slot] = false;
    if (!done.failed) return 0;
    const struct transfer *op = &done.op[done.which];
    const char *what = done.which ? _("reading") : _("writing");
    if (done.failed < 0)
        return error_set(err, EXIT_FAILED, NULL,
                         "%s %zu bytes at %lld of the file in %s: the file ends before that", what, op->bytes,
                         (long long)op->offset, t->directory);
    errno = done.failed;
    return error_errno(err, EXIT_FAILED, NULL, "%s %zu bytes at %lld of the file in %s", what, op->bytes,
                       (long long)op->offset, t->directory);
}

void transfers_close(struct transfers *t)
{
    if (!t) return;
    for (int i = 0; i < t->slots && t->state; i++) transfers_wait(t, i, NULL, NULL);
    if (t->state) t->engine->close(t->state);
    if (t->fd >= 0) close(t->fd);
    free(t->directory);
    free(t->busy);
    free(t);
}

const char *transfers_how(const struct transfers *t) { return t->engine->name; }
bool transfers_direct(const struct transfers *t) { return t->direct; }
bool transfers_in_memory(const struct transfers *t) { return t->in_memory; }

const char *transfers_uring(void)
{
#ifdef MEOPT_URING
    void *state;
    int failed = transfer_uring.open(&state, -1, TRANSFER_ALIGNMENT, 1);
    if (failed) return strerror(failed);
    transfer_uring.close(state);
    return "io_uring";
#else
    return "built without liburing";
#endif
}
