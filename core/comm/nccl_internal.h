/* Private to the back end of RCCL and NCCL: nccl.c (collectives), nccl_transfer.c (messages and groups) and
 * nccl_meet.c. */
#ifndef MEOPT_COMM_NCCL_INTERNAL_H
#define MEOPT_COMM_NCCL_INTERNAL_H

#include "core/comm/comm_internal.h"
#include "core/comm/nccl_api.h"
#include "core/device/side_stream.h"

#include <stdatomic.h>

enum {
    NCCL_JOIN_SECONDS = 120,
    HEADERS_BYTES = (COMM_MOST_RANKS + 1) * sizeof(struct comm_header),
    PARTS_BYTES = (NCCL_CARD_BYTES - HEADERS_BYTES) & ~255
};

/* The communicators of a rank differ in comm, comparing, exchange and open. */
struct nccl {
    const struct nccl_api *api;
    void *comm;
    struct side_stream *lane;       /* the side stream of the collectives */
    void *stream;                   /* its handle */
    char *parts;                    /* (PARTS_BYTES) on the card: data received from other ranks */
    char *headers;                  /* on the card, after `parts`: headers of all ranks, then this rank's */
    bool comparing;                 /* headers are being transferred */
    struct comm_exchange *exchange; /* those of messages; NULL: of a collective */
    bool open;
    atomic_int *aborted, abort_flag; /* exit code; 0: not aborted. aborted: the flag of comm_open's */
};
static inline struct nccl *nccl_of(const struct comm *comm) { return comm->state; }

/* Collects the results of the calls in a group: the first failure counts. */
struct nccl_group {
    struct nccl *n;
    int result;
};
int nccl_group_begin(struct comm *comm, struct nccl_group *g, struct error *err);
void nccl_group_add(struct nccl_group *g, int result);
int nccl_group_end(struct comm *comm, struct nccl_group *g, struct error *err);

/* Aborts the communicator and its pending work on the card. */
void nccl_drop(struct nccl *n);
/* Waits until the library has finished the call that returned `result`. seconds 0: without a limit */
int nccl_done(struct comm *comm, int result, double seconds, struct error *err);
/* Waits for the headers, compares them and waits for the queued work. Finished work may still have failed,
 * so it checks the communicator's state last. */
int nccl_finish(struct comm *comm, struct error *err);
int nccl_card_failed(struct comm *comm, int code, struct error *err);

/* struct comm_ops */
int nccl_transfer(struct comm *comm, struct comm_exchange *e, struct error *err);
int nccl_split(struct comm *comm, struct comm *part, bool open, struct error *err);

#endif
