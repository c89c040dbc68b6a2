/* Inside the hub: what hub.c (who says what) and failure_diagnosis.c (who is lost) share. */
#ifndef MEOPT_COMM_HUB_INTERNAL_H
#define MEOPT_COMM_HUB_INTERNAL_H

#include "core/comm/hub.h"

struct hub_peer {
    bool used, closing;
    int rank; /* -1: a stranger yet */
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
    double *longest, longest_inside; /* without progress, by phase; inside a collective */
    struct error why;                /* the verdict; code 0: none yet */
    int lost;
    int gone; /* whose connection ended, at gone_at; -1: none */
    double gone_at;
    double heard_at; /* a rank says that another one is lost; 0: none has */
    int told_by;
    struct rank_bye told;
};

/* "rank 2 (host n1, pid 41, card 0000:41:00.0)" */
void rank_name(char *dst, size_t size, int r, const struct rank_facts *facts);

/* ---- failure_diagnosis.c ---- */

/* The run is over: told once, to all ranks. */
void judge_verdict(struct hub *hub, int rank, const struct error *why);
void judge_end(struct hub *hub, int code, int rank, const char *why, const char *hint);
void judge_gone(struct hub *hub, int rank, double now);
void diagnose_exit_message(struct hub *hub, int rank, const struct rank_bye *bye, double now);
/* Is a rank missing, silent or stuck? */
void judge(struct hub *hub, double now);

#endif
