/* The communication of a run: collectives, messages between two ranks, and groups of ranks.
 *
 *     struct comm_options o = {.rank = r, .size = n, .shared = fd};  // fd: comm_local_create, in the
 *     parent code = comm_open(&comm, &o, device, &err);                     // joins the others
 *     ... comm_reduce, comm_gather, comm_all_reduce, comm_broadcast, comm_barrier, comm_transfer ...
 *     comm_close(&comm);
 *
 * A back end only transfers bytes (struct comm_ops). comm.c and one kernel compute the sums, in fp32 and
 * rank order: ((r0 + r1) + r2) + ... The result is therefore bit-identical for all back ends and on all
 * ranks. "self" is the back end of a single rank and computes the same sums. comm_reduce may use the sums of
 * the library instead (comm_options.library), whose order is its own. comm_tree_sum adds in the order of a
 * balanced binary tree, always: ((r0 + r1) + (r2 + r3)) + ...
 *
 *   - All ranks make the same calls in the same order with the same sizes. Every collective first sends a
 *     header (struct comm_header). Each rank compares the headers of all ranks before it uses received
 *     data; on a mismatch, all ranks return an error that names both calls.
 *   - Arrays of comm_reduce and comm_gather are in memory of the run's device and complete on return.
 *     comm_all_reduce and comm_broadcast use host memory.
 *   - A failure returns EXIT_RANK_LOST with the collective and the missing rank. Every later call returns
 *     the same error. A call does not hang after the heartbeat or a back end has detected a lost rank.
 *   - comm_reduce and comm_gather run after all work that the device's stream has queued when they are
 *     called or begun.
 *   - Back ends of several ranks work in one thread, the one that opened the library (MPI requires this).
 *     Calls are queued to it: comm_begin starts one, comm_end waits for it.
 *
 * One order. All communicators of a rank (comm_split) share that thread. It makes their calls in the order in
 * which they were called or begun, and finishes one before the next. A call waits for all its ranks: those
 * of a collective's communicator, the two ends of a message. Therefore all calls of the run must have one
 * order that contains the calls of every rank in that rank's order; for a pipeline: by the time slot in
 * which the block before was computed. Otherwise ranks wait for one another, with every back end. A message
 * is not buffered: comm_transfer returns when the peer has received. The messages of one call have no order
 * among themselves, so two ranks that send to each other do both in one call.
 *
 * Threads: one caller at a time, except for comm_abort and comm_status.
 */
#ifndef MEOPT_COMM_COMM_H
#define MEOPT_COMM_COMM_H

#include "core/base/error.h"
#include "core/comm/layout.h"
#include "core/device/device.h"

enum { COMM_MOST_RANKS = 4096 };

enum comm_kind {
    COMM_AUTO,  /* self for one rank; nccl if every rank has a card and its library; local if `shared` is
                   given; otherwise mpi */
    COMM_LOCAL, /* ranks of one host, through shared memory */
    COMM_MPI,   /* the module libmeopt_mpi.so, built if MPI is installed */
    COMM_NCCL   /* RCCL or NCCL */
};

struct comm;

/* How this process joins the ranks. Rank and size come from its launcher (core/comm/launch.h). */
struct comm_options {
    enum comm_kind kind;
    int rank, size;
    int local_rank; /* on its host */
    int shared;     /* descriptor of comm_local_create, the same memory in every rank; -1: none */
    bool library;   /* comm_reduce as comm_sums_by_library says; the same on all ranks */
    /* All-gathers `bytes` of each rank under this name into all (size * bytes), in rank order
     * (heartbeat_exchange). NULL: nccl is not available. */
    int (*exchange)(void *context, const char *name, const void *own, size_t bytes, void *all,
                    struct error *err);
    /* Optional. `opened`: comm_abort may be called from another thread until `opened` is called with NULL.
     * `failing`: comm_fail calls it before it ends the other ranks (and, with MPI, this process). */
    void (*opened)(void *context, struct comm *comm);
    void (*failing)(void *context, int code, const struct error *err);
    void *context;
};

/* Creates the shared memory of `size` ranks of one host, a memfd that the ranks inherit. The kernel frees
 * it after the last rank exits. */
int comm_local_create(int size, int *shared, struct error *err);

enum comm_operation { COMM_SUM, COMM_MIN, COMM_MAX };

/* The call that a rank is in. The headers of a collective must be equal on all ranks. */
enum comm_call {
    COMM_NO_CALL,
    COMM_JOIN,
    COMM_REDUCE,
    COMM_GATHER,
    COMM_COMBINE,
    COMM_TREE,
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_FOLD,
    COMM_BARRIER,
    COMM_SPLIT,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_TRANSFER,
    COMM_CALLS
};
extern const char *const comm_call_names[COMM_CALLS];
static inline bool comm_is_message(enum comm_call call)
{
    return call == COMM_SEND || call == COMM_RECEIVE || call == COMM_TRANSFER;
}
struct comm_header {
    int64_t number; /* of the collective, from 1 */
    int64_t bytes;  /* of its array */
    uint32_t call;
    uint32_t shape; /* checksum of its other arguments: offsets, type, operation, root */
};

struct comm_sum;
struct comm_exchange;
struct comm_ops {
    const char *name; /* "self", "local", "mpi", "nccl" */
    /* All-to-all in host memory: sends `bytes` at send + q * bytes to each rank q, and receives the bytes
     * of rank q at receive + q * bytes. */
    int (*exchange)(struct comm *, const void *send, void *receive, size_t bytes, struct error *err);
    /* All-gather: bytes at send of each rank q -> receive + q * bytes, on every rank */
    int (*gather)(struct comm *, const void *send, void *receive, size_t bytes, struct error *err);
    /* bytes at p of rank `root` -> p on every rank; at most slice_bytes * size */
    int (*broadcast)(struct comm *, void *p, size_t bytes, int root, struct error *err);
    /* bytes at send of each rank q -> receive + q * bytes, on rank 0 only */
    int (*collect)(struct comm *, const void *send, void *receive, size_t bytes, struct error *err);
    /* Compares the headers of all ranks, with a number of bytes per rank that does not depend on their
     * number. NULL: the first message of a call carries the header, and all ranks get those of all.
     * (optional) */
    int (*compare)(struct comm *, struct error *err);
    bool compares; /* exchange, gather, broadcast and collect compare headers themselves */
    /* comm_reduce and comm_gather directly on a card's memory. (optional) */
    int (*reduce_device)(struct comm *, const struct comm_sum *, struct error *err);
    int (*gather_device)(struct comm *, const void *own, void *p, const int64_t *offsets, struct error *err);
    /* Reduce-scatter of the library, in host memory: the values of all ranks at send + q * count are added
     * up, in its order, to receive (count) of rank q. (optional: mpi; nccl has it in reduce_device) */
    int (*scatter_sums)(struct comm *, const float *send, float *receive, int64_t count, struct error *err);
    bool sums; /* has such a reduce-scatter */
    /* comm_combine, and comm_tree_sum of an array in parts of these offsets in bytes; with reduce_device.
     * These four compare headers themselves. */
    int (*combine_device)(struct comm *, void *p, size_t bytes, struct error *err);
    int (*tree_device)(struct comm *, const struct comm_sum *, const int64_t *bytes, struct error *err);
    /* comm_transfer, on the communicator of comm_open: compares the headers of both ends (comm_internal.h) */
    int (*transfer)(struct comm *, struct comm_exchange *, struct error *err);
    /* Opens `part`, of more than one rank (comm_split); `open` false: of one, which needs nothing. Every rank
     * of the communicator calls it. */
    int (*split)(struct comm *, struct comm *part, bool open, struct error *err);
    /* comm_begin calls `mark`, which records the work queued on the device's stream so far. The back end's
     * thread calls `follow`: its later work waits for the mark. (optional, both or neither; without them
     * comm_begin waits for the device) */
    void *(*mark)(struct comm *);
    int (*follow)(struct comm *, void *mark, struct error *err);
    /* Ends all ranks, from any thread: their calls fail. (optional) */
    void (*abort)(struct comm *, int exit_code);
    void (*close)(struct comm *); /* (optional) */
};

struct comm {
    const struct comm_ops *ops;
    int rank, size;
    bool overlaps; /* collectives run in parallel with the device's computing; false: one after the other */
    struct device *device;
    struct comm_window *window;  /* staging buffers in host memory */
    struct comm_thread *thread;  /* makes the back end's calls; NULL: the caller does */
    struct comm_header header;   /* of the current or last collective */
    bool compared;               /* its headers have been compared */
    struct comm_options options; /* of comm_open */
    struct error broken;         /* the first failure of a collective: every later call returns it */
    double waited;               /* seconds in which callers waited for its calls and jobs, so far */
    struct comm_layout layout;   /* of the ranks, which messages name (comm_place_text) */
    int64_t tree_bytes;          /* of arrays that comm_tree_sum has added up so far, also on "dry" */
    char host_why[128];          /* reason why ranks with cards do not use nccl; "": none */
    void *state;
    /* comm_open's: */
    /* Bytes that this rank has sent to others and received, with local and mpi, in all communicators. One
     * broadcast counts once for its root, however many ranks receive. */
    int64_t sent, received;
    int splits;         /* communicators that comm_split has made */
    int64_t *met;       /* (size) calls of comm_transfer with each rank */
    struct comm *parts; /* the open ones of comm_split */
    /* of comm_split: */
    struct comm *whole, *next; /* that of comm_open; the next part of it */
    int *members;              /* (size) ranks in `whole`, ascending */
    int group;                 /* number of the split, from 1; 0: comm_open */
    char name[24];             /* "data 1": name and color; "": comm_open */
};

/* Describes the back end, for the table at the start of a run (core/device/facts.h). */
struct device_fact;
void comm_fact(const struct comm *comm, struct device_fact *fact);

/* Opens the back end of a single rank. */
void comm_self(struct comm *comm, struct device *device);
/* Opens a rank on device "dry" for `meopt plan`: counts memory, transfers nothing. */
int comm_dry(struct comm *comm, int rank, int size, struct device *device, struct error *err);
/* Joins the other ranks. On an error there is nothing to close. Memory class: comm. */
int comm_open(struct comm *comm, const struct comm_options *options, struct device *device,
              struct error *err);
void comm_close(struct comm *comm);

/* Splits the communicator of comm_open: `part` has the ranks q of equal colors[q] (size), in their order.
 * All ranks call it with the same colors, at most COMM_SPLITS times, while no call is pending. The part
 * shares the thread, the window and the failures of `comm`, and is closed before it. name: "data", for
 * messages and heartbeats. On "dry" it transfers nothing. On an error there is nothing to close. */
enum { COMM_SPLITS = 8 };
int comm_split(struct comm *comm, const int *colors, const char *name, struct comm *part, struct error *err);
/* The rank in the communicator of comm_open. */
int comm_world_rank(const struct comm *comm, int rank);

/* Sizes the staging window for calls of up to `longest` bytes per rank, at most 8 MiB per direction for all
 * ranks together. Longer arrays are transferred in slices. Before this call the window only holds small
 * messages. All ranks call it with the same size while no collective is pending. Of a part: the window of
 * the whole grows if it is too small. */
int comm_reserve(struct comm *comm, int64_t longest, struct error *err);
/* Ends all ranks, from any thread: their calls and this rank's fail with EXIT_RANK_LOST. */
void comm_abort(struct comm *comm, int exit_code);
/* Reports an error that only this rank has (comm_options.failing), then calls comm_abort. */
void comm_fail(struct comm *comm, int code, const struct error *err);

/* A reduce-scatter with sum. offsets (size + 1), in values, ascending from 0, partition the array: rank q
 * receives the sum of values offsets[q] to offsets[q + 1]. */
struct comm_sum {
    const void *send; /* (offsets[size]) of `type`: F32 or BF16; not read on ranks >= `contributors` */
    enum dtype type;
    const int64_t *offsets;
    int contributors;    /* only ranks below it contribute; 0: all */
    const float *before; /* own part of an earlier sum, or NULL: ((before + r0) + r1) + ... */
    float *receive;      /* own part of the sum; may be `before`; with `tree`, the own part of `send` */
    /* Adds by a balanced binary tree, ((r0 + r1) + (r2 + r3)) + ..., also if comm_options.library is set: the
     * sum of 2^k slices that are distributed over ranks then does not depend on the number of ranks. F32 from
     * all of 1, 2, 4 or 8 ranks (comm_adds_by_tree), `before` NULL. */
    bool tree;
};
int comm_reduce(struct comm *comm, const struct comm_sum *sum, struct error *err);
/* Returns whether comm_reduce takes the sums of MPI, NCCL or RCCL (comm_options.library): before + S, where S
 * is the fp32 sum of all contributions in the order of the library, which may depend on the number of ranks,
 * their network and its version. Memory and messages of a rank then depend less on the number of ranks. Ranks
 * of one host, and single ranks, add in rank order in either case. */
bool comm_sums_by_library(const struct comm *comm);

/* An all-reduce with sum, in place and in device memory: every rank gets the sum by a balanced tree of the
 * `count` values at p of all ranks (comm_sum.tree). A reduce-scatter and an all-gather in one call. In
 * parallel with computing: a job whose `run` is comm_tree_job and whose context is a struct comm_tree, which
 * the caller keeps until comm_end. Reserve (comm_reserve) comm_tree_part bytes. */
enum { COMM_TREE_RANKS = 8 };
struct comm_tree {
    float *p;
    int64_t count;
};
int comm_tree_job(struct comm *comm, void *tree, struct error *err);
static inline int comm_tree_sum(struct comm *comm, float *p, int64_t count, struct error *err)
{
    return comm_tree_job(comm, &(struct comm_tree){p, count}, err);
}
/* Returns the bytes of the largest part of a rank. */
int64_t comm_tree_part(int size, int64_t count);
/* Returns whether a tree of this number of ranks exists. */
static inline bool comm_adds_by_tree(int size)
{
    return size > 0 && size <= COMM_TREE_RANKS && (size & (size - 1)) == 0;
}

/* All-gather in place: bytes offsets[q] to offsets[q + 1] of p, from rank q to every rank. */
int comm_gather(struct comm *comm, void *p, const int64_t *offsets, struct error *err);

/* comm_gather with the own part at `own` instead of in p. Requires at least two ranks. */
int comm_gather_from(struct comm *comm, const void *own, void *p, const int64_t *offsets, struct error *err);

/* Combines `bytes` (a multiple of 8) at p, memory of the run's card, in place: each byte is nonzero on at
 * most one rank, and all ranks receive that value. Only with nccl (comm_combines); others leave p
 * unchanged. */
bool comm_combines(const struct comm *comm);
int comm_combine(struct comm *comm, void *p, size_t bytes, struct error *err);

/* comm_gather in host memory. */
int comm_gather_host(struct comm *comm, void *p, const int64_t *offsets, struct error *err);
/* comm_gather_host of `bytes` from each rank, in rank order. */
int comm_gather_each(struct comm *comm, void *p, size_t bytes, struct error *err);

/* values (count), host memory: reduced over all ranks, in rank order, on every rank */
int comm_all_reduce(struct comm *comm, enum comm_operation operation, double *values, int64_t count,
                    struct error *err);
/* Gathers `bytes` of each rank on rank 0, whose `fold` computes `result` (result_bytes) from them, in rank
 * order; then every rank has that result; on "dry" zeros. Host memory. Each rank sends and receives a number
 * of bytes that does not depend on the number of ranks, except that rank 0 receives those of all. */
struct comm_fold {
    const void *own;
    size_t bytes;
    void (*fold)(void *context, const void *all, void *result);
    void *context;
    void *result;
    size_t result_bytes;
};
int comm_fold(struct comm *comm, const struct comm_fold *fold, struct error *err);

/* bytes at p, host memory, from rank `root` to all others */
int comm_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err);
int comm_barrier(struct comm *comm, struct error *err);

/* A message between two ranks of a communicator, in memory of their devices. Both ends name the same bytes
 * (at least 1) and tag. */
struct comm_message {
    void *p; /* bytes to send, or memory for those to receive */
    size_t bytes;
    int peer;
    int tag;      /* chosen by the caller: the micro-batch */
    bool receive; /* else it is sent */
};
/* Transfers all messages at once. The calls of two ranks with each other meet in order, the first with the
 * first. Two calls that meet have the same messages of each direction in the same order; otherwise both
 * ends return EXIT_RANK_LOST, with both calls, and received memory is undefined. At most COMM_MOST_MESSAGES.
 * A message to the own rank requires a communicator of one rank, and meets the next of the same call. */
enum { COMM_MOST_MESSAGES = 16 };
int comm_transfer(struct comm *comm, const struct comm_message *messages, int count, struct error *err);

/* Agrees on the result of a task that every rank has done; `code` and `own` are this rank's result. Returns
 * 0 if all succeeded. Otherwise all ranks return the error of the lowest failed rank, as "rank R (host H)
 * WHAT: ...". A rank that fails calls it too and skips no collective, so the others do not hang. */
int comm_agree(struct comm *comm, int code, const struct error *own, const char *what, struct error *err);

/* The result of one rank, for callers that gather results themselves. */
struct comm_report {
    int code;
    struct comm_layout layout;
    char host[65];
    struct error err;
};
void comm_report(struct comm_report *report, const struct comm *comm, int code, const struct error *own);
/* Sets the error "rank R (host H) WHAT: ..." and returns `code`. */
int comm_name_rank(const struct comm_report *report, int rank, int code, const char *hint, const char *what,
                   struct error *err);

/* An asynchronous task. The communication thread calls `run` after all tasks begun before; `run` may call
 * any collective. comm_end waits for it and returns its code and error. A job is begun once at a time. */
struct comm_job {
    int (*run)(struct comm *comm, void *context, struct error *err);
    void *context;
    /* set by comm_begin: */
    struct error err;
    int code;
    bool done, begun;
    void *mark;
    struct comm *comm;
    struct comm_job *next;
};
void comm_begin(struct comm *comm, struct comm_job *job);
int comm_end(struct comm *comm, struct comm_job *job, struct error *err);

/* The last call that this process began. Callable from any thread; the fields are consistent. */
struct comm_status {
    int64_t number; /* of the communicator's collectives, or of the calls with `peer`; 0 before the first */
    enum comm_call call;
    int peer;       /* of a message: its rank in comm_open's communicator; -1: several, or a collective */
    bool inside;    /* it has not finished */
    char group[24]; /* name of its communicator: "pipeline 0"; "": comm_open's */
};
struct comm_status comm_status(void);

#endif
