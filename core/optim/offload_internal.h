/* Inside offload*.c: pieces, stages and the ring. */
#ifndef MEOPT_OPTIM_OFFLOAD_INTERNAL_H
#define MEOPT_OPTIM_OFFLOAD_INTERNAL_H

#include "core/base/transfer.h"
#include "core/optim/offload.h"

#include <pthread.h>

enum { NONE = -1 };

struct piece {
    int32_t tensor;
    int64_t group, groups; /* of the tensor */
    int64_t offset;        /* in the file */
    size_t bytes;          /* there, padded to the alignment */
    uint32_t crc;
    bool written; /* false: all zeros, never stored */
    int stage;    /* the stage that holds it, or will after its transfer; or NONE */
    int writer;   /* the stage whose unfinished transfer writes it; or NONE */
};

struct stage {
    uint8_t *memory; /* the memory in which a piece steps */
    uint8_t *host;   /* the buffer of file transfers: `memory`, or for a card pinned memory */
    int piece;       /* its present or next piece; NONE: it is free */
    int writes;      /* the piece that its transfer writes, or NONE */
    bool unread;     /* its piece was requested, but its checksum is not yet compared */
    /* for a card (offload_card.c): events, and the state of the copy to `host` */
    struct device_event *stepped, *downloaded, *uploaded;
    int reads;        /* the piece that its transfer reads next, or NONE */
    bool downloading; /* on its way to `host`; the file transfer starts after it */
};

struct offload {
    pthread_mutex_t lock; /* threads may step different tensors */
    struct piece *pieces;
    int piece_count;
    int *first;           /* (tensors + 1): a tensor's first piece */
    struct stage *stages; /* stage_count + 1: the extra one is for access between steps */
    int stage_count;
    size_t stage_bytes, block_bytes;
    void *block;                 /* the memory of all stages */
    struct transfers *transfers; /* NULL: states are in host memory */
    struct copier *copier;       /* for a card, else NULL */
    /* The order of pieces in a step. repeats: it is the order of the previous step, and the next steps repeat
     * it. In this endless sequence, `due` is the next piece to step, and `next` the first without a stage. */
    int *order;
    int64_t order_count, due, next;
    bool repeats;
    int *current; /* of this step so far */
    int64_t current_count, current_capacity, step;
    int64_t offloaded_bytes[2]; /* moments, corrections */
    int64_t file_bytes, bytes_read, bytes_written;
    double wait_seconds;
    bool accounted; /* counted in the device's account */
    int failed;     /* status of the failed transfer, after which no transfer starts */
    char why[252];
};

/* Returns the layout of a piece in its stage: `groups` groups, the residual bits after the state. */
struct layout piece_layout(const struct tensor *t, int64_t groups);

/* Waits for all transfers and frees every stage, so that the storage is complete. */
int ring_empty(const struct meopt *opt, struct meopt_error *err);
/* Waits for the transfer of one stage, and compares the checksum of a piece that was read. */
int ring_settle(const struct meopt *opt, int stage, struct meopt_error *err);
/* The copies of a card. copier_storage returns a piece's address if states are stored in host memory, else
 * NULL. copier_exchange starts copying piece `out` from the stage, then piece `in` to it (NONE: no piece).
 * copier_start_file starts the file transfer of a stage, after its copy to the host. copier_deliver makes the
 * card's next work wait for the stage's piece. copier_finish waits for all copies. */
bool offload_on_card(const struct meopt *opt);
int copier_create(struct meopt *opt, struct offload *o, struct meopt_error *err);
void copier_destroy(struct meopt *opt, struct offload *o);
uint8_t *copier_storage(const struct offload *o, const struct piece *p);
void copier_exchange(struct offload *o, int stage, int out, int in);
void copier_start_file(struct offload *o, int stage);
void copier_deliver(struct offload *o, int stage);
void copier_finish(struct offload *o);

#endif
