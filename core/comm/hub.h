/* Who is alive: the hub of a run's ranks, in the process that watches over rank 0 and trains nothing itself.
 *
 * It lets ranks in (the run's key, each rank once, the same program, configuration and number of ranks, no
 * two on one card), hands small things round (a communicator's id), hears a beat a second of each, and
 * decides when a rank is lost. It decides from beats alone, never from the collectives: those hang when a
 * rank dies.
 *
 *     gone          the connection ended without a farewell: as soon as the others, who are asked, have
 *                   told who misses it where
 *     unreachable   no beat for 10 s: stopped, its machine is down, the network is cut
 *     stuck         beats, but no progress: once steps are measured for 20 s, or 5 times the longest time
 *                   that any rank has needed in this phase; before, and elsewhere, for the phase's own limit.
 *                   Who waits in a collective waits for the others and is not the one that is stuck
 *
 * Then all others are told to end, by ABORT with the reason. Nothing in here sleeps, reads a clock or touches
 * a socket: bytes and times come from outside (serve.h does that), so tests play hours in microseconds.
 */
#ifndef MEOPT_COMM_HUB_H
#define MEOPT_COMM_HUB_H

#include "core/base/error.h"
#include "core/comm/wire.h"

enum { HUB_STRANGERS = 64, HUB_SILENT_SECONDS = 10, HUB_STUCK_SECONDS = 20, HUB_HELLO_SECONDS = 5 };

struct hub_phase {
    const char *name; /* "computing a step" */
    double seconds;   /* without progress, at most; where steps count: until two steps are made */
    bool steps;       /* from then on HUB_STUCK_SECONDS, or 5 times the longest so far */
    bool exempt;      /* saving: as long as it takes */
};

struct hub_options {
    int size;
    uint8_t key[WIRE_KEY_BYTES];
    struct rank_facts expected; /* program_crc, version and config_hash that all ranks must have */
    double join_seconds;        /* for all ranks to be there */
    int strangers;              /* connections that have not shown the key, at most */
    const struct hub_phase *phases;
    int phase_count;
    const char *log_hint; /* where messages of a rank that is gone can be read; NULL: none */
};

struct hub_rank {
    bool here, left; /* let in; said farewell */
    struct rank_facts facts;
    struct rank_beat beat; /* the last one */
    double heard_at, moved_at;
    double waiting; /* share of its last beats in which it waited for others */
    int steps;      /* that it was seen to make */
    int peer;       /* private */
    char offer_name[32];
    struct wire_bytes offer;
};

struct hub;
struct hub *hub_create(const struct hub_options *options, double now);
void hub_free(struct hub *hub);

/* Connections, by a number that this gives. Where there are too many that have not shown the key, it is that
 * of the oldest of them, which is forgotten: its connection is to be closed. */
int hub_peer(struct hub *hub, double now);
void hub_take(struct hub *hub, int peer, const void *data, size_t bytes, double now);
/* Forgets the oldest connection that has not shown the key, for want of descriptors: its number; -1: none. */
int hub_drop_stranger(struct hub *hub);
/* The connection has ended, or is to be forgotten. */
void hub_ended(struct hub *hub, int peer, double now);
/* What is to be sent to this one; the caller calls wire_drop with what has gone. */
struct wire_bytes *hub_output(struct hub *hub, int peer);
/* It is to be closed once all is sent. */
bool hub_done_with(const struct hub *hub, int peer);
/* Time has gone by: to be called a few times a second, when all that had come was taken. */
void hub_tick(struct hub *hub, double now);

/* All are there and agree. */
bool hub_complete(const struct hub *hub);
/* None is connected any more, and each has said farewell. */
bool hub_all_left(const struct hub *hub);
/* EXIT_RANK_LOST, EXIT_CONFIG or a rank's own exit code with the reason, once the ranks have been told to
 * end; 0: no rank is lost. *rank: the one, -1 several. */
int hub_diagnosis(const struct hub *hub, int *rank, struct error *err);
/* The caller knows that this rank is lost, and why: the others are told to end. Not after a verdict. */
void hub_end(struct hub *hub, int rank, const struct error *why);
/* Rank r, for the dashboard. */
const struct hub_rank *hub_rank(const struct hub *hub, int r);

/* For how long a rank may show no progress in this phase: `longest` is what any rank has needed so far, and
 * `measured` that two steps are made. */
double hub_patience(const struct hub_phase *phase, double longest, bool measured);

#endif
