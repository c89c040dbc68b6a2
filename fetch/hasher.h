/* A thread that computes the SHA-256 of a file while it grows. It reads the contiguous bytes back from the
 * file, so it works for downloads, resumed downloads, parallel ranges and local files alike. */
#ifndef MEOPT_FETCH_HASHER_H
#define MEOPT_FETCH_HASHER_H

#include "core/base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct hasher {
    pthread_t thread;
    bool started;
    int fd;
    _Atomic int64_t available, done;
    _Atomic bool last, stop, failed;
    int reason; /* errno of the failure; 0: the file is truncated */
    pthread_mutex_t mutex;
    pthread_cond_t more;
    unsigned char digest[32];
};

/* Starts the thread; `fd` stays open until hasher_end. */
int hasher_start(struct hasher *hasher, int fd, struct error *err);
/* Reports that the first `available` bytes are in the file; last: the file is complete. */
void hasher_feed(struct hasher *hasher, int64_t available, bool last);
/* Waits for the digest; with `stop`, ends at once. `digest` is valid unless failed or stopped. No-op if not
 * started. */
void hasher_end(struct hasher *hasher, bool stop);

#endif
