/* Internal interface of transfer*.c: the engines that run transfers. */
#ifndef MEOPT_BASE_TRANSFER_ENGINE_H
#define MEOPT_BASE_TRANSFER_ENGINE_H

#include "core/base/transfer.h"

/* A write (0) and a read (1) of a slot; 0 bytes: none. */
struct transfer_pair {
    struct transfer op[2];
    int failed; /* errno of the first failure; -1: end of file; 0: none */
    int which;  /* the one that failed: 0 or 1 */
};

enum { TRANSFER_TRIES = 100 }; /* attempts for a piece without progress */

/* The rest of a transfer after `done` bytes, from the last whole multiple of the alignment. */
static inline struct transfer transfer_rest(struct transfer op, size_t done, size_t alignment)
{
    done -= done % alignment;
    return (struct transfer){(char *)op.buffer + done, op.bytes - done, op.offset + (int64_t)done};
}

struct transfer_engine {
    const char *name;
    /* 0, or an errno if not available; *state is then NULL */
    int (*open)(void **state, int fd, size_t alignment, int slots);
    void (*buffers)(void *state, const struct iovec *buffers, int count); /* optional */
    void (*start)(void *state, int slot, const struct transfer_pair *pair);
    bool (*idle)(void *state, int slot);
    /* Waits; returns the pair and its failure. */
    struct transfer_pair (*wait)(void *state, int slot);
    void (*close)(void *state); /* requires that no transfer is in progress */
};

extern const struct transfer_engine transfer_threads;
#ifdef MEOPT_URING
extern const struct transfer_engine transfer_uring;
#endif

#endif
