/* A rank's side of the hub (hub.h): it joins, beats once a second from a thread that touches neither card nor
 * MPI, hands small things round, and hears when the run is over.
 *
 *     struct heartbeat_options o = {.facts = me, .variable = getenv(PLACE_VARIABLE), .file = path, .seconds =
 * 120, .beat = tell, .lost = end_it, .context = c}; code = heartbeat_join(&h, &o, &err); // all ranks are
 * there, alike code = heartbeat_agree(h, "list of images", hash, &err);       // and have the same images
 *     ... training ...
 *     heartbeat_leave(h, code, what);                                // says farewell
 *
 * When the hub says that a rank is lost, or is gone itself, `lost` is called in a thread of its own, to tear
 * down what may hang (dist_abort); a process that has not ended HEARTBEAT_GRACE_SECONDS later is killed by
 * its own hand. Training therefore never waits for a rank that will not come.
 */
#ifndef MEOPT_DIST_HEARTBEAT_H
#define MEOPT_DIST_HEARTBEAT_H

#include "core/dist/rendezvous.h"

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
void heartbeat_leave(struct heartbeat *h, int code, const char *what);

#endif
