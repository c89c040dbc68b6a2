/* Reads and writes submitted to io_uring (see shim.h), counted at submission. A failing one is replaced by a
 * message to the same ring (IORING_OP_MSG_RING, Linux 5.18), whose completion is the error that a disk would
 * have given. Operations linked after it complete as the kernel completes them: cancelled. */
#include "next.h"

#include <liburing.h>
#include <string.h>

enum { MSG_RING = 40, SKIP_SUCCESS = 1 << 6 }; /* Linux's numbers: liburing before 2.2 lacks the names */

REAL(int, io_uring_submit, (struct io_uring * ring), (ring))

static void answer(struct io_uring *ring, struct io_uring_sqe *sqe, int result)
{
    struct io_uring_sqe reply = {.opcode = MSG_RING,
                                 .flags = SKIP_SUCCESS,
                                 .fd = ring->ring_fd,
                                 .len = (unsigned)result,
                                 .off = sqe->user_data};
    *sqe = reply;
}

static enum kind kind_of(const struct io_uring_sqe *sqe)
{
    bool reads = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED;
    bool writes = sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITE_FIXED;
    return reads ? CALL_READ : writes ? CALL_WRITE : KINDS;
}

/* Whether it fails, and with it the operations linked after it. */
static bool meet(struct io_uring *ring, struct io_uring_sqe *sqe)
{
    char file[PATH_BYTES];
    enum kind kind = kind_of(sqe);
    if (kind == KINDS || !descriptor_met(sqe->fd, file)) return false;
    int failed = fault(kind, file);
    if (!failed) return false;
    unsigned half = sqe->len / 2 / 4096 * 4096; // of O_DIRECT
    if (failed > 0) answer(ring, sqe, -failed);
    else if (half) sqe->len = half;
    else answer(ring, sqe, -EAGAIN);
    sqe->flags &= (uint8_t)~IOSQE_IO_LINK;
    return true;
}

int io_uring_submit(struct io_uring *ring)
{
    bool cancelled = false;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
        bool more = sqe->flags & IOSQE_IO_LINK;
        if (cancelled) answer(ring, sqe, -ECANCELED);
        cancelled = (cancelled || meet(ring, sqe)) && more;
    }
    return real_io_uring_submit(ring);
}
