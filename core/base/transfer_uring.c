/* Transfers by io_uring: see transfer.h. A write and the read after it are linked, so that the kernel starts
 * the read without a call of the program. */
#include "core/base/transfer_engine.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

struct slot {
    struct transfer_pair pair;
    size_t done[2]; /* bytes */
    int waiting;    /* pending completions */
    int stuck;      /* completions without progress */
};

struct uring {
    struct io_uring ring;
    int fd, failed; /* failed: errno of the ring itself; no completion can be waited for any more */
    size_t alignment;
    struct slot *slots;
    struct iovec *buffers; /* (buffer_count): registered */
    int buffer_count;
};

static int buffer_of(const struct uring *u, const struct transfer *op)
{
    for (int i = 0; i < u->buffer_count; i++) {
        const char *from = u->buffers[i].iov_base, *at = op->buffer;
        if (at >= from && at + op->bytes <= from + u->buffers[i].iov_len) return i;
    }
    return -1;
}

static bool queue(struct uring *u, int slot, int which, bool linked)
{
    struct slot *s = &u->slots[slot];
    struct transfer rest = transfer_rest(s->pair.op[which], s->done[which], u->alignment);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) return false;
    int buffer = buffer_of(u, &rest);
    unsigned bytes = (unsigned)rest.bytes;
    uint64_t at = (uint64_t)rest.offset;
    if (which == 0 && buffer >= 0) io_uring_prep_write_fixed(sqe, u->fd, rest.buffer, bytes, at, buffer);
    else if (which == 0) io_uring_prep_write(sqe, u->fd, rest.buffer, bytes, at);
    else if (buffer >= 0) io_uring_prep_read_fixed(sqe, u->fd, rest.buffer, bytes, at, buffer);
    else io_uring_prep_read(sqe, u->fd, rest.buffer, bytes, at);
    if (linked) sqe->flags |= IOSQE_IO_LINK;
    sqe->user_data = (uint64_t)slot * 2 + (uint64_t)which;
    s->waiting++;
    return true;
}

static void submit(struct uring *u)
{
    int n;
    while ((n = io_uring_submit(&u->ring)) == -EINTR || n == -EAGAIN) continue;
    if (n < 0 && !u->failed) u->failed = -n;
}

/* Submits the unfinished part of a slot that has no pending completion. */
static void submit_rest(struct uring *u, int slot)
{
    struct slot *s = &u->slots[slot];
    bool write = s->done[0] < s->pair.op[0].bytes, read = s->done[1] < s->pair.op[1].bytes;
    if (s->pair.failed || u->failed || !(write || read)) return;
    bool queued = true;
    if (write) queued = queue(u, slot, 0, read);
    if (read && queued) queued = queue(u, slot, 1, false);
    if (!queued) u->failed = EBUSY; /* the ring has entries for all slots */
    submit(u);
}

static void answer(struct uring *u, const struct io_uring_cqe *cqe)
{
    int slot = (int)(cqe->user_data / 2), which = (int)(cqe->user_data % 2), n = cqe->res;
    struct slot *s = &u->slots[slot];
    struct transfer op = s->pair.op[which];
    s->waiting--;
    if (n > 0) {
        struct transfer rest = transfer_rest(op, s->done[which], u->alignment);
        size_t done = op.bytes - rest.bytes + (size_t)n;
        s->stuck = done > s->done[which] ? 0 : s->stuck + 1;
        s->done[which] = done;
        if (s->stuck == TRANSFER_TRIES) s->pair.failed = EIO, s->pair.which = which;
    } else if (n == -EINTR || n == -EAGAIN) {
        if (++s->stuck == TRANSFER_TRIES && !s->pair.failed) s->pair.failed = -n, s->pair.which = which;
    } else if (n != -ECANCELED && !s->pair.failed) {
        s->pair.failed = n == 0 ? (which ? -1 : ENOSPC) : -n;
        s->pair.which = which;
    }
    if (!s->waiting) submit_rest(u, slot); /* a short write has cancelled the read that was linked to it */
}

/* Processes the available completions, or waits for one. */
static void reap(struct uring *u, bool wait)
{
    struct io_uring_cqe *cqe;
    int n = wait ? io_uring_wait_cqe(&u->ring, &cqe) : io_uring_peek_cqe(&u->ring, &cqe);
    if (wait && n < 0 && n != -EINTR && n != -EAGAIN && !u->failed) u->failed = -n;
    while (n == 0) {
        struct io_uring_cqe copy = *cqe;
        io_uring_cqe_seen(&u->ring, cqe);
        answer(u, &copy);
        n = io_uring_peek_cqe(&u->ring, &cqe);
    }
}

static void uring_close(void *state)
{
    struct uring *u = state;
    io_uring_queue_exit(&u->ring);
    free(u->buffers);
    free(u->slots);
    free(u);
}

static int uring_open(void **state, int fd, size_t alignment, int slots)
{
    *state = NULL;
    struct uring *u = calloc(1, sizeof *u);
    if (!u || !(u->slots = calloc((size_t)slots, sizeof *u->slots))) {
        free(u);
        return ENOMEM;
    }
    u->fd = fd;
    u->alignment = alignment;
    int failed = io_uring_queue_init((unsigned)slots * 2, &u->ring, 0);
    if (failed) {
        free(u->slots);
        free(u);
        return -failed;
    }
    *state = u;
    return 0;
}

/* Buffers beyond the process's lock limit are not registered: the kernel then looks the pages up each
 * time. */
static void uring_buffers(void *state, const struct iovec *buffers, int count)
{
    struct uring *u = state;
    u->buffers = malloc((size_t)count * sizeof *buffers);
    if (!u->buffers || io_uring_register_buffers(&u->ring, buffers, (unsigned)count) != 0) return;
    for (int i = 0; i < count; i++) u->buffers[i] = buffers[i];
    u->buffer_count = count;
}

static void uring_start(void *state, int slot, const struct transfer_pair *pair)
{
    struct uring *u = state;
    u->slots[slot] = (struct slot){.pair = *pair};
    submit_rest(u, slot);
}

static bool idle(const struct uring *u, int slot)
{
    const struct slot *s = &u->slots[slot];
    return u->failed ||
           (!s->waiting &&
            (s->pair.failed || (s->done[0] >= s->pair.op[0].bytes && s->done[1] >= s->pair.op[1].bytes)));
}

static bool uring_idle(void *state, int slot)
{
    reap(state, false);
    return idle(state, slot);
}

static struct transfer_pair uring_wait(void *state, int slot)
{
    struct uring *u = state;
    while (!idle(u, slot)) reap(u, true);
    struct transfer_pair pair = u->slots[slot].pair;
    if (u->failed && !pair.failed) pair.failed = u->failed;
    return pair;
}

const struct transfer_engine transfer_uring = {
    .name = "io_uring",
    .open = uring_open,
    .buffers = uring_buffers,
    .start = uring_start,
    .idle = uring_idle,
    .wait = uring_wait,
    .close = uring_close,
};
