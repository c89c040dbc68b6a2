/* SHA-256 behind the frontier: a thread that reads what of a file is there already, the same for fresh bytes,
 * bytes of an earlier run, ranges and local files. */
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
    int reason; /* errno of the failure; 0: the file ends too early */
    pthread_mutex_t mutex;
    pthread_cond_t more;
    unsigned char digest[32];
};

/* Over the file behind `fd`, which outlives it. */
int hasher_start(struct hasher *hasher, int fd, struct error *err);
/* The first `available` bytes are there; last: the file has no more. */
void hasher_feed(struct hasher *hasher, int64_t available, bool last);
/* Wait for the end (stop: at once). digest is valid then unless failed or stopped. Nothing when not started.
 */
void hasher_end(struct hasher *hasher, bool stop);

#endif
