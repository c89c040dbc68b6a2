/* Inside offload*.c: pieces, stages and the ring. */
#ifndef MEOPT_OPTIM_OFFLOAD_INTERNAL_H
#define MEOPT_OPTIM_OFFLOAD_INTERNAL_H

#include "core/base/transfer.h"
#include "core/optim/offload.h"

#include <pthread.h>

enum { NOWHERE = -1 };

struct piece {
    int32_t tensor;
    int64_t group, groups; /* of the tensor */
    int64_t offset;        /* in the file */
    size_t bytes;          /* there, padded to the alignment */
    uint32_t crc;
    bool written; /* else it is all zeros, and nowhere */
    int stage;    /* that holds it, or will when its transfer is done; or NOWHERE */
    int writer;   /* whose transfer writes it, if that is not known to be done; or NOWHERE */
};

struct stage {
    uint8_t *memory; /* where it is stepped */
    uint8_t *host;   /* what the file is read into and written from: the same, but of a card */
    int piece;       /* that it is for; NOWHERE: it is free */
    int writes;      /* the piece that its transfer writes, or NOWHERE */
    bool unread;     /* its piece was asked for and not yet looked at */
    /* of a card (offload_card.c) */
    struct device_event *stepped, *left, *arrived;
    int reads;    /* what its transfer is to read, or NOWHERE */
    bool leaving; /* on its way to `host`; the transfer begins when it is there */
};

struct offload {
    pthread_mutex_t lock; /* threads may step different tensors */
    struct piece *pieces;
    int piece_count;
    int *first;           /* (tensors + 1): of a tensor's pieces */
    struct stage *stages; /* one more than stage_count: for what is read and written between steps */
    int stage_count;
    size_t stage_bytes, block_bytes;
    void *block;                 /* of all stages */
    struct transfers *transfers; /* NULL: in this machine's memory */
    struct carrier *carrier;     /* of a card, else NULL */
    /* Pieces in the order in which a step comes to them; round: those of the step before, which the next one
     * repeats. Of the endless sequence that this gives, `due` is the place that the sweep has come to and
     * `next` the first that has no stage yet. */
    int *order;
    int64_t order_count, due, next;
    bool round;
    int *seen; /* of this step so far */
    int64_t seen_count, seen_capacity, step;
    int64_t home_bytes[2]; /* moments, corrections */
    int64_t file_bytes, bytes_read, bytes_written;
    double wait_seconds;
    bool accounted; /* to the device's account */
    int failed;     /* status of a transfer that went wrong: nothing is moved any more */
    char why[252];
};

/* Returns the layout of a piece in its stage: a tensor of `groups` groups, the residual bits after its state.
 */
struct layout piece_layout(const struct tensor *t, int64_t groups);

/* All transfers are done, and every stage is free: the file holds everything. */
int ring_empty(const struct meopt *opt, struct meopt_error *err);
/* The transfer of one stage. */
int ring_settle(const struct meopt *opt, int stage, struct meopt_error *err);
/* Of a card: is it one? The queues and pinned memory; where a piece lives, where it lives in memory; a
 * stage's piece goes, and the next one comes, NOWHERE: none; hand to the file what has left the card; the
 * card's work from here on finds the stage's piece there; all copies are done. */
bool offload_on_card(const struct meopt *opt);
int carrier_create(struct meopt *opt, struct offload *o, struct meopt_error *err);
void carrier_destroy(struct meopt *opt, struct offload *o);
uint8_t *carrier_home(const struct offload *o, const struct piece *p);
void carrier_turn(struct offload *o, int stage, int out, int in);
void carrier_push(struct offload *o, int stage);
void carrier_arrive(struct offload *o, int stage);
void carrier_finish(struct offload *o);

/* A failed transfer, for ever. */
int offload_failed(struct offload *o, int status, struct meopt_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
