/* Private to core/comm: shared by comm.c and the back ends. */
#ifndef MEOPT_COMM_COMM_INTERNAL_H
#define MEOPT_COMM_COMM_INTERNAL_H

#include "core/comm/comm.h"
#include "core/comm/nccl_api.h"

enum {
    COMM_WINDOW_BYTES = 8 << 20, /* largest window of one direction, for all ranks together */
    SMALL_SLICE = 4096,          /* smallest slice of a rank, and the one before comm_reserve */
    SMALL_MESSAGE = 232          /* largest message in an envelope with the header */
};

/* Staging buffers in host memory: one slice per rank, of equal size. */
struct comm_window {
    size_t slice_bytes;   /* largest slice of one call; a multiple of 64 */
    char *send, *receive; /* (size * slice_bytes) */
    float *sum;           /* (sum_bytes); only for devices with their own memory */
    size_t sum_bytes;
    void *planned; /* "dry" card: the memory that comm_nccl_open would allocate */
};

/* Returns the largest slice per rank, in bytes, with `size` ranks. */
size_t comm_slice_bytes(int size);

/* Starts and stops the thread that makes the back end's calls. It also calls `open` and ops->close. */
int comm_thread_start(struct comm *comm, int (*open)(struct comm *, void *context, struct error *err),
                      void *context, struct error *err);
void comm_thread_stop(struct comm *comm);

/* Runs a function in that thread and waits for it. */
int comm_call(struct comm *comm, int (*run)(struct comm *, void *context, struct error *err), void *context,
              struct error *err);

/* Open a back end, in the thread. */
int comm_local_open(struct comm *comm, void *options, struct error *err);
int comm_mpi_open(struct comm *comm, void *options, struct error *err);

/* Loads the library for cards of this kind (DEVICE_HIP, DEVICE_CUDA), or returns NULL with `why` (size
 * bytes). $MEOPT_RCCL_LIBRARY and $MEOPT_NCCL_LIBRARY override its path; "none" disables it. */
const struct nccl_api *nccl_load(enum device_kind kind, char *why, size_t size);
extern const char *const nccl_names[DEVICE_KIND_COUNT]; /* "RCCL", "NCCL" */

/* nccl_meet all-gathers the libraries of all ranks and the id of rank 0. `together`: all ranks can use
 * nccl; the caller passes the meeting to comm_nccl_open. */
enum { NCCL_CARD_BYTES = 32 << 20 }; /* per card, memory class comm */
extern const char nccl_parts_name[];
struct nccl_meeting {
    const struct nccl_api *api;
    struct nccl_id id;
    bool together;
};
int nccl_meet(struct comm *comm, const struct comm_options *options, struct nccl_meeting *meeting,
              struct error *err);
int comm_nccl_open(struct comm *comm, void *meeting, struct error *err);
/* Returns whether ranks on this "dry" card would use nccl. */
bool nccl_planned(const struct device *device);

/* Of an array partitioned at offsets: the number of values in a rank's part from index `at` on, at most
 * `most`; and the length of the longest part. */
int64_t comm_part(const int64_t *offsets, int rank, int64_t at, int64_t most);
int64_t comm_longest_part(int size, const int64_t *offsets);

/* comm_enter begins a collective: it sets comm->header and comm_status, or returns the error of an earlier
 * collective. comm_leave ends it, stores a failure for later calls and returns `code`. */
/* The communicator of comm_open. */
static inline struct comm *comm_whole(struct comm *comm) { return comm->whole ? comm->whole : comm; }

/* Gives the name of a part to comm_status. */
void comm_name_group(const struct comm *comm);
int comm_enter(struct comm *comm, enum comm_call call, int64_t bytes, uint32_t shape, struct error *err);
int comm_leave(struct comm *comm, int code, const struct error *err);

/* Compares the headers of all ranks, `stride` bytes apart. Returns EXIT_RANK_LOST if one differs from rank
 * 0's. */
int comm_compare(const struct comm *comm, const void *headers, size_t stride, struct error *err);

/* The same for the headers of ranks 0 and r. */
int comm_compare_two(const struct comm *comm, const struct comm_header *first, int r,
                     const struct comm_header *other, struct error *err);

/* Adds bytes that this rank has sent and received. */
static inline void comm_count(struct comm *comm, size_t sent, size_t received)
{
    struct comm *whole = comm_whole(comm);
    whole->sent += (int64_t)sent;
    whole->received += (int64_t)received;
}

/* All-gathers `bytes` of every rank to window->receive; the first one of a call compares headers. */
int comm_gather_bytes(struct comm *comm, const void *send, size_t bytes, struct error *err);

/* Copy between the host and the device's memory, from the back end's thread. of_host: both are the host's */
void comm_download(struct comm *comm, bool of_host, void *host, const void *from, size_t bytes);
void comm_upload(struct comm *comm, bool of_host, void *to, const void *host, size_t bytes);

/* Removes a part from the whole, and frees what comm_split allocated. */
void comm_leave_whole(struct comm *part);
/* Shows the window of the whole to a part. */
void comm_share_window(struct comm *part);
/* The operations of a single rank. */
extern const struct comm_ops comm_self_ops;

/* ---- messages: comm_transfer.c ---- */

/* The header of a call with one peer. Both ends send theirs; the first members, up to `slice`, are equal. */
struct comm_pair {
    int64_t number;    /* of the calls of these two ranks, from 1 */
    int64_t bytes[2];  /* all that the lower rank sends; the higher */
    int32_t count[2];  /* of those messages */
    int32_t tag;       /* of the first */
    int32_t group;     /* of the communicator */
    uint32_t shape;    /* checksum of all sizes and tags */
    uint32_t reserved; /* 0 */
    int64_t slice;     /* largest piece that this end can transfer at once */
};
struct comm_peer {
    int rank;
    struct comm_pair own, other; /* other: filled by the back end */
};
struct comm_exchange {
    struct comm *comm;             /* of the call */
    struct comm_message *messages; /* (count) with peers as ranks of comm_open's communicator */
    int count;
    struct comm_peer peers[COMM_MOST_MESSAGES]; /* (peer_count) each peer once */
    int peer_count;
    struct comm_header collective; /* of the whole, before the call */
};
/* Returns EXIT_RANK_LOST, with both ends' calls, if the headers of this peer differ. */
int comm_compare_pair(const struct comm_exchange *e, const struct comm_peer *peer, struct error *err);
struct comm_peer *comm_peer_of(struct comm_exchange *e, const struct comm_message *message);
/* Begins and ends a call of messages, as comm_enter and comm_leave. */
int comm_enter_messages(struct comm_exchange *e, struct error *err);
int comm_leave_messages(struct comm_exchange *e, int code, const struct error *err);

#endif
