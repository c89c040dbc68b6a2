/* Inside transfer*.c: how transfers are made. */
#ifndef MEOPT_BASE_TRANSFER_ENGINE_H
#define MEOPT_BASE_TRANSFER_ENGINE_H

#include "core/base/transfer.h"

/* A write (0) and a read (1) of a slot, of 0 bytes where there is none. */
struct transfer_pair {
    struct transfer op[2];
    int failed; /* errno of the first that failed, -1: the file ended; 0 */
    int which;  /* 0 or 1: which one */
};

enum { TRANSFER_TRIES = 100 }; /* of a piece that gets no further */

/* Of the rest, behind `done` bytes: from the last whole multiple of the alignment on. */
static inline struct transfer transfer_rest(struct transfer op, size_t done, size_t alignment)
{
    done -= done % alignment;
    return (struct transfer){(char *)op.buffer + done, op.bytes - done, op.offset + (int64_t)done};
}

struct transfer_engine {
    const char *name;
    /* 0 or an errno: not here. *state is then NULL. */
    int (*open)(void **state, int fd, size_t alignment, int slots);
    void (*buffers)(void *state, const struct iovec *buffers, int count); /* optional */
    void (*start)(void *state, int slot, const struct transfer_pair *pair);
    bool (*idle)(void *state, int slot);
    /* Waits; the pair with what failed. */
    struct transfer_pair (*wait)(void *state, int slot);
    void (*close)(void *state); /* nothing is under way */
};

extern const struct transfer_engine transfer_threads;
#ifdef MEOPT_URING
extern const struct transfer_engine transfer_uring;
#endif

#endif
