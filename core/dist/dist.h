/* Ranks as one: the collectives of a run (design D7).
 *
 * A back end is one table of six functions; "self" is the back end of a single rank, and every run goes
 * through the same calls. Rules that each back end keeps:
 *
 *   - All ranks make the same calls in the same order with the same counts and types.
 *   - A sum is made in rank order, r0 + r1 + ... + r(size-1), bf16 in fp32 and rounded once: its bits depend
 *     neither on the algorithm of a library nor on which rank asks.
 *   - Arrays of reduce_scatter, all_gather and broadcast are memory of the run's device and the work is
 *     issued in order with the device's other work (the device's sync waits for it). all_reduce takes and
 *     gives host memory and is done when it returns: its values are few (norms, losses, counts).
 *   - A failure is an error with the collective and the rank that is missing (EXIT_RANK_LOST), never a hang;
 *     after one, abort is the only call that is left.
 *
 * Threads: one caller at a time.
 */
#ifndef MEOPT_DIST_H
#define MEOPT_DIST_H

#include "core/base/error.h"
#include "core/device/device.h"

enum dist_operation { DIST_SUM, DIST_MIN, DIST_MAX };

struct dist;
struct dist_ops {
    const char *name; /* "self" */
    /* send (size * count) -> receive (count): the sum over ranks of part `rank`. In place when receive is
     * send's own part. type DTYPE_F32 or DTYPE_BF16. */
    int (*reduce_scatter)(struct dist *, const void *send, void *receive, int64_t count, enum dtype type,
                          struct error *err);
    /* send (count) -> receive (size * count), parts in rank order. In place when send is receive's own part.
     */
    int (*all_gather)(struct dist *, const void *send, void *receive, int64_t count, enum dtype type,
                      struct error *err);
    /* values (count), host memory: over all ranks, in rank order, on every rank */
    int (*all_reduce)(struct dist *, enum dist_operation, double *values, int64_t count, struct error *err);
    /* bytes at p of rank `root` to all others */
    int (*broadcast)(struct dist *, void *p, size_t bytes, int root, struct error *err);
    int (*barrier)(struct dist *, struct error *err);
    /* Tear the ranks down, from any thread; the others' calls fail. NULL err: nobody is left to tell. */
    void (*abort)(struct dist *, int exit_code);
    void (*close)(struct dist *); /* (optional) */
};

struct dist {
    const struct dist_ops *ops;
    int rank, size;
    struct device *device;
    void *state;
};

/* One rank alone. */
void dist_self(struct dist *dist, struct device *device);
void dist_close(struct dist *dist);

/* Sum over ranks of (count) values that lie in `p` on every rank, in place, on every rank: reduce_scatter and
 * all_gather of count / size each. count is a multiple of size. */
int dist_sum(struct dist *dist, void *p, int64_t count, enum dtype type, struct error *err);

#endif
