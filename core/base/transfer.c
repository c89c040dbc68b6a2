/* Transfers beside the caller: see transfer.h. The file, and who moves its bytes: io_uring where the program
 * was built with liburing and the kernel has it, else a few threads (transfer_threads.c). */
#include "core/base/transfer_engine.h"
#include "core/base/clock.h"
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef O_TMPFILE /* glibc 2.19 */
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

struct transfers {
    const struct transfer_engine *engine;
    void *state;
    char *directory;
    int fd, slots;
    size_t alignment;
    bool direct, in_memory;
    bool *busy; /* (slots) */
};

/* A file without a name in this directory. O_TMPFILE is younger than some file systems. */
static int nameless(const char *directory, int flags)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
    char *path = xasprintf("%s/.meopt-offload.XXXXXX", directory);
    fd = mkostemp(path, O_CLOEXEC | flags);
    int why = errno;
    if (fd >= 0) unlink(path);
    free(path);
    errno = why;
    return fd;
}

static int open_file(struct transfers *t, struct error *err)
{
    t->fd = nameless(t->directory, O_DIRECT);
    t->direct = t->fd >= 0;
    if (t->fd < 0 && errno == EINVAL) t->fd = nameless(t->directory, 0);
    if (t->fd >= 0) return 0;
    return error_errno(err, EXIT_FAILED, "give a directory on a local disk that may be written",
                       "cannot make a file in %s", t->directory);
}

static void look_at_file(struct transfers *t)
{
    t->alignment = TRANSFER_ALIGNMENT;
    t->in_memory = file_in_memory(t->fd);
#if defined STATX_DIOALIGN && __GLIBC_PREREQ(2, 28)
    struct statx s;
    if (!t->direct || statx(t->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) != 0 ||
        !(s.stx_mask & STATX_DIOALIGN))
        return;
    if (s.stx_dio_offset_align > t->alignment) t->alignment = s.stx_dio_offset_align;
    if (s.stx_dio_mem_align > t->alignment) t->alignment = s.stx_dio_mem_align;
#endif
}

/* All of its room, now: a disk that is too small is no news in the middle of a step. */
static int take_room(struct transfers *t, int64_t bytes, struct error *err)
{
    int failed = fallocate(t->fd, 0, 0, bytes > 0 ? bytes : 1) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS) failed = ftruncate(t->fd, bytes) == 0 ? 0 : errno;
    if (!failed) return 0;
    errno = failed;
    return error_errno(err, EXIT_FAILED, "another directory, or less of it",
                       "no room for a file of %lld bytes in %s", (long long)bytes, t->directory);
}

static void choose_engine(struct transfers *t)
{
#ifdef MEOPT_URING
    const char *wanted = getenv("MEOPT_URING"); /* 0: as where the kernel has none */
    t->engine = &transfer_uring;
    if (!(wanted && strcmp(wanted, "0") == 0) &&
        t->engine->open(&t->state, t->fd, t->alignment, t->slots) == 0)
        return;
#endif
    t->engine = &transfer_threads;
    errno = t->engine->open(&t->state, t->fd, t->alignment, t->slots);
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
    int code = file_make_dirs(directory, err);
    if (!code) code = open_file(t, err);
    if (!code) look_at_file(t);
    if (!code) code = take_room(t, bytes, err);
    if (!code) {
        choose_engine(t);
        if (!t->state)
            code =
                error_errno(err, EXIT_FAILED, NULL, "nothing can move the bytes of a file in %s", directory);
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
    const char *what = done.which ? "reading" : "writing";
    if (done.failed < 0)
        return error_set(err, EXIT_FAILED, NULL, "%s %zu bytes at %lld of the file in %s: it ends before",
                         what, op->bytes, (long long)op->offset, t->directory);
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

size_t transfers_alignment(const struct transfers *t) { return t->alignment; }
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
