/* Private to the back end of shared memory: local.c (collectives) and local_transfer.c (messages). */
#ifndef MEOPT_COMM_LOCAL_INTERNAL_H
#define MEOPT_COMM_LOCAL_INTERNAL_H

#include "core/comm/comm_internal.h"

#include <stdatomic.h>

struct local_header {
    char magic[8];
    _Atomic int32_t aborted; /* exit code; 0: not aborted */
    int32_t size;
    _Atomic uint32_t joined[COMM_MOST_RANKS]; /* 1: the rank has joined, and holds its lock while it lives */
    _Atomic uint32_t bells[COMM_MOST_RANKS];  /* grows when a rank's messages may have moved */
};

/* The barrier of a communicator: its words at the meeting of the communicator's first rank. */
struct local_meeting {
    _Alignas(64) _Atomic uint32_t generation; /* number of completed barriers */
    _Atomic uint32_t waiting;
    _Atomic uint32_t first;  /* 1 + the first rank to come to the current call; 0: none */
    _Atomic uint32_t differ; /* 1: headers differ */
    _Atomic uint32_t met;    /* barriers that this rank has entered */
    struct comm_header call;
};

/* Messages from one rank to another. The sender writes pieces to two slots of its area alternately. */
struct local_channel {
    _Alignas(64) struct comm_pair pair; /* of the sender's current call with the receiver */
    uint64_t slots_at, slot_bytes;      /* in the sender's area */
    _Atomic uint32_t calls;             /* low bits of the number of `pair` */
    uint32_t met;                       /* the sender's own: `calls` of the receiver's last call with it */
    _Atomic uint32_t sent, taken;       /* pieces */
};

struct local {
    int fd;
    size_t bytes, area_bytes;
    struct local_header *header;
    uint32_t barriers; /* entered by this rank */
};

char *local_area_of(const struct local *l, int rank);
struct local_channel *local_channel(const struct local *l, int from, int to);
/* Waits until the word differs from `value`, at most a fifth of a second. */
void local_wait(_Atomic uint32_t *word, uint32_t value);
void local_wake(_Atomic uint32_t *word);
/* Returns whether a rank has joined and then released its lock. */
bool local_is_lost(const struct local *l, int rank);
/* Returns EXIT_RANK_LOST if ranks are lost ("": none) or a rank has ended the run. */
int local_check(const struct comm *comm, const char *lost, struct error *err);

/* struct comm_ops */
int local_transfer(struct comm *comm, struct comm_exchange *e, struct error *err);

#endif
