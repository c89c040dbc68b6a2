/* Inside core/dist: what the back ends and the arithmetic above them share. */
#ifndef MEOPT_DIST_PARTS_H
#define MEOPT_DIST_PARTS_H

#include "core/dist/dist.h"

enum { DIST_WINDOW_BYTES = 8 << 20 }; /* of one direction, all ranks together */

/* Through which arrays travel: slices of equal size for each rank. Host memory. */
struct dist_window {
    size_t slice_bytes;   /* at most of one call; a multiple of 64 */
    char *send, *receive; /* (size * slice_bytes) */
    float *sum;           /* (slice_bytes / 2): of a device whose memory is not this machine's */
};

/* At most slice bytes for each rank of so many. */
size_t dist_slice_bytes(int size);

/* The thread that makes the back end's calls. `open` and, at the end, ops->close are called in it. */
int dist_thread_start(struct dist *dist, int (*open)(struct dist *, void *context, struct error *err),
                      void *context, struct error *err);
void dist_thread_stop(struct dist *dist);

/* In the thread, waited for. */
int dist_call(struct dist *dist, int (*run)(struct dist *, void *context, struct error *err), void *context,
              struct error *err);

/* Back ends, opened in their thread. */
int dist_local_open(struct dist *dist, void *options, struct error *err);
int dist_mpi_open(struct dist *dist, void *options, struct error *err);

/* A collective begins and ends: dist_told. */
void dist_enter(const char *name, int64_t bytes);
void dist_leave(void);

#endif
