/* The collectives of a run.
 *
 *     struct comm_options o = {.rank = r, .size = n, .shared = fd};  // fd: comm_local_create, in the parent
 *     code = comm_open(&comm, &o, device, &err);                     // joins the others
 *     ... comm_reduce, comm_gather, comm_all_reduce, comm_broadcast, comm_barrier ...
 *     comm_close(&comm);
 *
 * A back end only carries bytes (struct comm_ops); what is added up is added up here, in rank order,
 * ((r0 + r1) + r2) + ..., in fp32, so its bits depend neither on the algorithm of a library nor on which rank
 * asks. "self" is the back end of a single rank, and makes the same sums.
 *
 *   - All ranks make the same calls in the same order with the same sizes. Every collective sends a header
 *     (struct comm_header) first, and each rank compares all of them before it reads a byte of the others':
 *     ranks in different calls get an error that names both calls.
 *   - Arrays of comm_reduce and comm_gather are memory of the run's device, and complete when the call
 *     returns. comm_all_reduce and comm_broadcast take and give host memory.
 *   - A failure is an error with the collective and the rank that is missing (EXIT_RANK_LOST), never a hang
 *     while somebody knows that a rank is gone; after one, every further call returns the same error.
 *   - comm_reduce and comm_gather see what the device's own queue was given before they were called or
 *     begun.
 *   - Back ends of many ranks do their work in a thread of their own, the one that opened the library (MPI
 *     asks for that); calls are queued to it, so one can be begun and waited for later (comm_begin).
 *
 * Threads: one caller at a time, but for comm_abort and comm_status.
 */
#ifndef MEOPT_COMM_COMM_H
#define MEOPT_COMM_COMM_H

#include "core/base/error.h"
#include "core/device/device.h"

enum { COMM_MOST_RANKS = 4096 };

enum comm_kind {
    COMM_AUTO,  /* self for one rank; nccl where every rank has a card and its library; local where `shared`
                   is given, else mpi */
    COMM_LOCAL, /* ranks of one host, which share memory */
    COMM_MPI,   /* the module libmeopt_mpi.so, built where MPI is */
    COMM_NCCL   /* the library of the cards: RCCL, NCCL */
};

struct comm;

/* How a process becomes a rank. Whoever launches it (core/comm/launch.h) says so. */
struct comm_options {
    enum comm_kind kind;
    int rank, size;
    int local_rank; /* on its host */
    int shared;     /* descriptor of comm_local_create, the same memory in every rank; -1: none */
    /* all (size * bytes): what each rank gave under this name, in rank order (heartbeat_exchange). NULL:
     * ranks cannot meet in the cards' library. */
    int (*exchange)(void *context, const char *name, const void *own, size_t bytes, void *all,
                    struct error *err);
    /* Optional. `opened`: from now on `comm` can be aborted from another thread; NULL: no longer. `failing`:
     * comm_fail, before it ends the other ranks, and this process where MPI does so. */
    void (*opened)(void *context, struct comm *comm);
    void (*failing)(void *context, int code, const struct error *err);
    void *context;
};

/* Memory for `size` ranks of one host, as a descriptor without a name: it is gone when the last rank is,
 * however that ends. Inherited by the ranks. */
int comm_local_create(int size, int *shared, struct error *err);

enum comm_operation { COMM_SUM, COMM_MIN, COMM_MAX };

/* Which collective a rank is in. Headers of all ranks must be equal. */
enum comm_call {
    COMM_NO_CALL,
    COMM_JOIN,
    COMM_REDUCE,
    COMM_GATHER,
    COMM_UNITE,
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_CALLS
};
extern const char *const comm_call_names[COMM_CALLS];
struct comm_header {
    int64_t number; /* of the collective, from 1 */
    int64_t bytes;  /* of its array */
    uint32_t call;
    uint32_t shape; /* checksum of its other arguments: offsets, type, operation, root */
};

struct comm_sum;
struct comm_ops {
    const char *name; /* "self", "local", "mpi", "nccl" */
    /* Host memory. bytes of send + to * bytes go to each rank; what the others have for this one comes to
     * receive + from * bytes. */
    int (*exchange)(struct comm *, const void *send, void *receive, size_t bytes, struct error *err);
    /* bytes at send of every rank -> receive + from * bytes, on every rank */
    int (*gather)(struct comm *, const void *send, void *receive, size_t bytes, struct error *err);
    /* bytes at p of rank `root` -> p on every rank; at most slice_bytes * size */
    int (*broadcast)(struct comm *, void *p, size_t bytes, int root, struct error *err);
    bool compares; /* exchange, gather and broadcast compare headers themselves */
    /* comm_reduce and comm_gather of a card's memory, where the back end reaches it itself. (optional) */
    int (*reduce_device)(struct comm *, const struct comm_sum *, struct error *err);
    int (*gather_device)(struct comm *, const void *own, void *p, const int64_t *offsets, struct error *err);
    /* comm_combine; with reduce_device. These three compare headers themselves. */
    int (*combine_device)(struct comm *, void *p, size_t bytes, struct error *err);
    /* What the device's own queue was given so far, told by who begins a job; and in the back end's thread:
     * what follows comes behind that. (optional, both or none: without, the device is waited for) */
    void *(*mark)(struct comm *);
    int (*follow)(struct comm *, void *mark, struct error *err);
    /* Tear the ranks down, from any thread; the others' calls fail. (optional) */
    void (*abort)(struct comm *, int exit_code);
    void (*close)(struct comm *); /* (optional) */
};

struct comm {
    const struct comm_ops *ops;
    int rank, size;
    bool overlaps; /* what is begun goes on beside the device's computing; else it is waited for at once */
    struct device *device;
    struct comm_window *window;  /* through which arrays travel */
    struct comm_thread *thread;  /* that makes the back end's calls; NULL: the caller */
    struct comm_header header;   /* of the collective that is under way, or the last one */
    bool compared;               /* the headers of all ranks for it */
    struct comm_options options; /* as it was opened with */
    struct error broken;         /* the first failure of a collective: every later call returns it */
    char host_why[128];          /* why not the cards' library, where some rank has a card; "" */
    void *state;
};

/* By what the ranks exchange, for the table at a run's start (core/device/facts.h). */
struct device_fact;
void comm_fact(const struct comm *comm, struct device_fact *fact);

/* One rank alone. */
void comm_self(struct comm *comm, struct device *device);
/* A rank that plans: on device "dry", memory is counted and nothing is carried. */
int comm_dry(struct comm *comm, int rank, int size, struct device *device, struct error *err);
/* Join the others; on an error there is nothing to close. Memory by class comm. */
int comm_open(struct comm *comm, const struct comm_options *options, struct device *device,
              struct error *err);
void comm_close(struct comm *comm);
/* How many bytes of one rank the largest call will carry: the window through which they travel gets that
 * size, up to 8 MiB of each direction, all ranks together; what is longer goes in slices. At first there is
 * room for small messages alone. All ranks make this call, with the same size and nothing under way. */
int comm_reserve(struct comm *comm, int64_t longest, struct error *err);
/* Tear the ranks down, from any thread: this rank's calls and the others' fail with EXIT_RANK_LOST. */
void comm_abort(struct comm *comm, int exit_code);
/* The same for an error that this rank alone has met: reported first, comm_options.failing. */
void comm_fail(struct comm *comm, int code, const struct error *err);

/* Sum over ranks of parts of an array that is cut among them at offsets (size + 1), in values, rising from
 * 0: rank q gets values offsets[q] to offsets[q + 1]. */
struct comm_sum {
    const void *send; /* (offsets[size]) of `type`: F32 or BF16; not looked at from `givers` on */
    enum dtype type;
    const int64_t *offsets;
    int contributors;    /* ranks below it have something to add; 0: all */
    const float *before; /* own part of what was summed so far, or NULL: ((before + r0) + r1) + ... */
    float *receive;      /* own part of the sum; may be `before` */
};
int comm_reduce(struct comm *comm, const struct comm_sum *sum, struct error *err);

/* Bytes offsets[q] to offsets[q + 1] of p, which rank q has -> on every rank, in place. */
int comm_gather(struct comm *comm, void *p, const int64_t *offsets, struct error *err);

/* The same; the own part lies at `own`, not yet in its place. Of at least two ranks. */
int comm_gather_from(struct comm *comm, const void *own, void *p, const int64_t *offsets, struct error *err);

/* `bytes` (a multiple of 8) at p, memory of the run's card, of which each is zero on all ranks but one: that
 * one's on all. Where the ranks meet in the cards' library (comm_combines); p is what it was elsewhere. */
bool comm_combines(const struct comm *comm);
int comm_combine(struct comm *comm, void *p, size_t bytes, struct error *err);

/* The same as comm_gather of host memory. */
int comm_gather_host(struct comm *comm, void *p, const int64_t *offsets, struct error *err);
/* The same of `bytes` from each rank, in their order. */
int comm_gather_each(struct comm *comm, void *p, size_t bytes, struct error *err);

/* values (count), host memory: over all ranks, in rank order, on every rank */
int comm_all_reduce(struct comm *comm, enum comm_operation operation, double *values, int64_t count,
                    struct error *err);
/* bytes at p, host memory, of rank `root` to all others */
int comm_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err);
int comm_barrier(struct comm *comm, struct error *err);

/* Whether every rank has done its part of something, of which `code` and `own` are this rank's result: 0, or
 * on all ranks the error of the first one that failed, as "rank R (host H) WHAT: ...". A rank that fails
 * calls it like the others, so nobody waits for a collective that it has left out. */
int comm_agree(struct comm *comm, int code, const struct error *own, const char *what, struct error *err);

/* The result of one rank, for those that gather results themselves. */
struct comm_report {
    int code;
    char host[65];
    struct error err;
};
void comm_report(struct comm_report *report, int code, const struct error *own);
/* Returns `code` with "rank R (host H) WHAT: ..." */
int comm_name_rank(const struct comm_report *report, int rank, int code, const char *hint, const char *what,
                   struct error *err);

/* The same calls without waiting: `run` is called by the comm's thread behind all that was begun before, and
 * may make any of them; comm_end waits for it and gives its code and error. One at a time for each job. */
struct comm_job {
    int (*run)(struct comm *comm, void *context, struct error *err);
    void *context;
    /* of comm_begin: */
    struct error err;
    int code;
    bool done, begun;
    void *mark;
    struct comm_job *next;
};
void comm_begin(struct comm *comm, struct comm_job *job);
int comm_end(struct comm *comm, struct comm_job *job, struct error *err);

/* The last collective that this process began, from any thread (a heartbeat's); its fields are of one moment.
 */
struct comm_status {
    int64_t number; /* 0 before the first */
    enum comm_call call;
    bool inside; /* it has not ended yet */
};
struct comm_status comm_status(void);

#endif
