/* Private to the hub: hub.c (connections and messages) and failure_diagnosis.c (lost ranks). */
#ifndef MEOPT_COMM_HUB_INTERNAL_H
#define MEOPT_COMM_HUB_INTERNAL_H

#include "core/comm/hub.h"

struct hub_peer {
    bool used, closing;
    bool gathered; /* hub->gathered is to be sent */
    int rank;      /* -1: it has not sent the key */
    double since;
    struct wire_bytes in, out;
};

struct hub {
    struct hub_options options;
    double since, ticked;
    bool complete;
    struct hub_rank *ranks;
    struct hub_peer *peers;
    int peer_count;
    struct wire_bytes gathered;      /* the last ALL, once for all ranks: of N ranks it has O(N) bytes */
    double *longest, longest_inside; /* without progress, by phase; inside a collective */
    struct error why;                /* the diagnosis; code 0: none yet */
    int lost;
    int disconnected; /* the first rank whose connection ended without an exit message; -1: none */
    double disconnected_at;
    double loss_reported_at; /* when `reporter` exited with EXIT_RANK_LOST and `report`; 0: none has */
    int reporter;
    struct rank_bye report;
};

/* Writes "rank 2 (host n1, pid 41, card 0000:41:00.0, stage 0 of replica 1)". */
void describe_rank(const struct hub *hub, char *dst, size_t size, int r, const struct rank_facts *facts);

/* ---- failure_diagnosis.c ---- */

/* Calls hub_end with an error of this exit code, message and hint. */
void hub_fail(struct hub *hub, int code, int rank, const char *what, const char *hint);
/* Records that the connection of this rank ended without an exit message. */
void diagnose_disconnect(struct hub *hub, int rank, double now);
/* Handles the exit message of a rank that failed (bye->code is neither 0 nor EXIT_STOPPED). */
void diagnose_exit_message(struct hub *hub, int rank, const struct rank_bye *bye, double now);
/* Ends the run if a rank is disconnected, absent, silent or stuck. */
void diagnose_ranks(struct hub *hub, double now);

#endif
