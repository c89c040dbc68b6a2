/* The client of the coordinator (hub.h) in each rank. It joins, sends a heartbeat once a second from a
 * thread that uses neither the card nor MPI, exchanges small values, and receives the notice that the run
 * is over.
 *
 *     struct heartbeat_options o = {.facts = facts, .variable = getenv(RENDEZVOUS_VARIABLE), .file = path,
 *                                   .seconds = 120, .beat = fill_beat, .lost = abort_run, .context = c};
 *     code = heartbeat_join(&h, &o, &err);                         // returns when all ranks have joined
 *     code = heartbeat_agree(h, "list of images", hash, &err);     // fails unless all ranks have this
 *     value ... training ...
 *     heartbeat_leave(h, code, why);                               // reports the exit code
 *
 * When the coordinator reports a lost rank, or the connection to it ends, a separate thread calls `lost`,
 * which aborts operations that may hang (comm_abort). A process that is still running
 * HEARTBEAT_GRACE_SECONDS later kills itself. Training therefore never waits for a rank that will not come.
 */
#ifndef MEOPT_COMM_HEARTBEAT_H
#define MEOPT_COMM_HEARTBEAT_H

#include "core/comm/rendezvous.h"

enum { HEARTBEAT_GRACE_SECONDS = 5, HEARTBEAT_JOIN_SECONDS = 120 };

struct heartbeat_options {
    struct rank_facts facts;
    const char *variable; /* a rendezvous as text; NULL: read the file */
    const char *file;     /* with a rendezvous (rendezvous.h); may appear later */
    double seconds;       /* for all ranks to join */
    void (*beat)(void *context, struct rank_beat *beat); /* fills the heartbeat, from another thread */
    void (*lost)(void *context, const struct error *why);
    void *context;
};

struct heartbeat;

int heartbeat_join(struct heartbeat **h, const struct heartbeat_options *options, struct error *err);
/* All-gathers `bytes` of each rank under this name into all (size * bytes), in rank order. bytes is at most
 * WIRE_OFFER_BYTES and equal on all ranks. */
int heartbeat_exchange(struct heartbeat *h, const char *name, const void *own, size_t bytes, void *all,
                       struct error *err);
/* Compares a value. Returns EXIT_CONFIG on every rank, with a rank that differs from rank 0. */
int heartbeat_agree(struct heartbeat *h, const char *name, uint64_t value, struct error *err);
/* The run directory, and whether the run is resumed, if the rendezvous was read from a file. */
const char *heartbeat_run(const struct heartbeat *h);
bool heartbeat_resumes(const struct heartbeat *h);
/* Sends the exit message, waits for `lost` if it was called, and frees. why: NULL if code is 0. */
void heartbeat_leave(struct heartbeat *h, int code, const struct error *why);

#endif
