/* The client of the coordinator (hub.h) in each rank. It joins, sends a heartbeat once a second from a thread
 * that uses neither the card nor MPI, exchanges small values, and receives the notice that the run is over.
 *
 *     struct heartbeat_options o = {.facts = facts, .variable = getenv(PLACE_VARIABLE), .file = path,
 *                                   .seconds = 120, .beat = fill_beat, .lost = abort_run, .context = c};
 *     code = heartbeat_join(&h, &o, &err);                         // returns when all ranks have joined
 *     code = heartbeat_agree(h, "list of images", hash, &err);     // fails unless all ranks have this value
 *     ... training ...
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
    const char *variable;                                /* text of a place; NULL: the file */
    const char *file;                                    /* of a place (rendezvous.h), may come later */
    double seconds;                                      /* until all ranks are there */
    void (*beat)(void *context, struct rank_beat *beat); /* fill it; any time, from another thread */
    void (*lost)(void *context, const struct error *why);
    void *context;
};

struct heartbeat;

int heartbeat_join(struct heartbeat **h, const struct heartbeat_options *options, struct error *err);
/* all (size * bytes): what each rank gave under this name, in rank order. bytes is at most WIRE_OFFER_BYTES
 * and the same on all ranks. */
int heartbeat_exchange(struct heartbeat *h, const char *name, const void *own, size_t bytes, void *all,
                       struct error *err);
/* EXIT_CONFIG, with the rank that differs from rank 0, on every rank. */
int heartbeat_agree(struct heartbeat *h, const char *name, uint64_t value, struct error *err);
/* Directory of the run, and whether it goes on, where the place was read from a file. */
const char *heartbeat_run(const struct heartbeat *h);
bool heartbeat_resumes(const struct heartbeat *h);
/* why: NULL where the code is 0 */
void heartbeat_leave(struct heartbeat *h, int code, const struct error *why);

#endif
