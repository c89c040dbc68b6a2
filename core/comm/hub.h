/* The coordinator of a run's ranks. It runs in the supervisor of rank 0, which does not train.
 *
 * The hub admits ranks: each must send the run's key, join once, and have the program, configuration and
 * number of ranks of rank 0; two ranks cannot share a card. It all-gathers small values (the id of an NCCL
 * communicator), receives one heartbeat per second from each rank, and detects lost ranks. Detection uses
 * heartbeats only, because collectives hang after a rank dies:
 *
 *     disconnected   the connection ended without an exit message
 *     silent         no heartbeat for 10 s: the process is stopped, its host is down or the network is cut
 *     stuck          heartbeats without progress. Limit after two steps: 20 s, or 5 times the longest time
 *                    that any rank has needed in this phase. Limit before that, and in phases without
 *                    steps: the limit of the phase. A rank that waits in a collective is not stuck.
 *
 * failure_diagnosis.c holds the complete rules. The hub then sends ABORT with the reason to the other
 * ranks. It does not sleep, read a clock or use a socket: serve.h passes bytes and times in, so tests
 * simulate hours in microseconds.
 */
#ifndef MEOPT_COMM_HUB_H
#define MEOPT_COMM_HUB_H

#include "core/base/error.h"
#include "core/comm/layout.h"
#include "core/comm/wire.h"

enum { HUB_STRANGERS = 64, HUB_SILENT_SECONDS = 10, HUB_STUCK_SECONDS = 20, HUB_HELLO_SECONDS = 5 };

struct hub_phase {
    const char *name; /* "computing a step" */
    double seconds;   /* longest time without progress; with `steps`: before two steps are made */
    bool steps;       /* after two steps the limit is HUB_STUCK_SECONDS, or 5 times the longest so far */
    bool exempt;      /* no limit: saving */
};

struct hub_options {
    int size;
    struct comm_layout layout; /* which messages name (comm_place_text) */
    uint8_t key[WIRE_KEY_BYTES];
    struct rank_facts expected; /* program_crc, version and config_hash that all ranks must have */
    double join_seconds;        /* for all ranks to join */
    int strangers;              /* most connections that have not sent the key; 0: HUB_STRANGERS + size */
    const struct hub_phase *phases;
    int phase_count;
    const char *log_hint; /* where to read the log of a lost rank; NULL: none */
};

struct hub_rank {
    bool joined, left; /* left: has sent its exit message */
    struct rank_facts facts;
    struct rank_beat beat;       /* the last one */
    double beat_at, progress_at; /* times of its last heartbeat and of the last one with progress */
    double waiting;              /* moving average over its heartbeats: share in which it waited for others */
    int steps;                   /* heartbeats with a larger step than the one before */
    int peer;                    /* private */
    char offer_name[32];
    struct wire_bytes offer;
};

struct hub;
struct hub *hub_create(const struct hub_options *options, double now);
void hub_free(struct hub *hub);

/* Adds a connection and returns its number. With too many connections that have not sent the key, it reuses
 * the number of the oldest of them; the caller closes that connection. */
int hub_peer(struct hub *hub, double now);
/* Parses received bytes and handles the complete messages. */
void hub_receive(struct hub *hub, int peer, const void *data, size_t bytes, double now);
/* Removes the oldest connection that has not sent the key and returns its number; -1: none. For a process
 * that is out of file descriptors. */
int hub_drop_stranger(struct hub *hub);
/* Removes a connection that has ended. */
void hub_ended(struct hub *hub, int peer, double now);
/* Returns the bytes to send to this connection; the caller removes sent bytes with wire_drop. */
struct wire_bytes *hub_output(struct hub *hub, int peer);
/* Returns whether hub_output would return any. */
bool hub_pending(const struct hub *hub, int peer);
/* Returns whether the caller should close the connection: all output is sent. */
bool hub_closing(const struct hub *hub, int peer);
/* Checks timeouts. The caller calls it a few times per second, after hub_receive of all received bytes. */
void hub_tick(struct hub *hub, double now);

/* Returns whether all ranks have joined. */
bool hub_complete(const struct hub *hub);
/* Returns whether every rank has sent its exit message and disconnected. */
bool hub_all_left(const struct hub *hub);
/* Returns EXIT_RANK_LOST, EXIT_CONFIG or a rank's own exit code, with the reason, after the hub has sent
 * ABORT; 0: no rank is lost. *rank: the lost rank, -1: several. */
int hub_diagnosis(const struct hub *hub, int *rank, struct error *err);
/* Ends the run because this rank is lost: sends ABORT with `why` to all ranks. Only the first call counts.
 * */
void hub_end(struct hub *hub, int rank, const struct error *why);
/* State of rank r, for the dashboard. */
const struct hub_rank *hub_rank(const struct hub *hub, int r);

#endif
