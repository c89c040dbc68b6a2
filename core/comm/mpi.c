/* The back end of MPI, through a separate module: see mpi_module.h. */
#include "core/base/library.h"
#include "core/base/memory.h"
#include "core/comm/comm_internal.h"
#include "core/comm/mpi_module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mpi {
    void *library;
    const struct meopt_mpi *module;
    int part; /* its communicator */
};

static int failed(struct comm *comm, const char *why, struct error *err)
{
    return error_set(err, EXIT_RANK_LOST, "see the logs of the other ranks",
                     "MPI on rank %d of %d, in %s %lld: %s", comm->rank, comm->size,
                     comm_call_names[comm->header.call], (long long)comm->header.number, why);
}

/* ---- collectives ---- */

static int mpi_exchange(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    struct mpi *m = comm->state;
    char why[256];
    comm_count(comm, bytes * (size_t)(comm->size - 1), bytes * (size_t)(comm->size - 1));
    return m->module->exchange(m->part, send, receive, bytes, why, sizeof why) ? failed(comm, why, err) : 0;
}

static int mpi_gather(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    struct mpi *m = comm->state;
    char why[256];
    comm_count(comm, bytes, bytes * (size_t)(comm->size - 1));
    return m->module->gather(m->part, send, receive, bytes, why, sizeof why) ? failed(comm, why, err) : 0;
}

static int mpi_collect(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    struct mpi *m = comm->state;
    char why[256];
    comm_count(comm, comm->rank ? bytes : 0, comm->rank ? 0 : bytes * (size_t)(comm->size - 1));
    return m->module->collect(m->part, send, receive, bytes, why, sizeof why) ? failed(comm, why, err) : 0;
}

static int mpi_scatter_sums(struct comm *comm, const float *send, float *receive, int64_t count,
                            struct error *err)
{
    struct mpi *m = comm->state;
    char why[256];
    size_t moved = (size_t)count * sizeof *send * (size_t)(comm->size - 1);
    comm_count(comm, moved, moved); /* as a ring does */
    return m->module->scatter_sums(m->part, send, receive, (size_t)count, why, sizeof why)
               ? failed(comm, why, err)
               : 0;
}

static int mpi_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err)
{
    struct mpi *m = comm->state;
    char why[256];
    comm_count(comm, comm->rank == root ? bytes : 0, comm->rank == root ? 0 : bytes);
    return m->module->broadcast(m->part, p, bytes, root, why, sizeof why) ? failed(comm, why, err) : 0;
}

/* The headers of the ranks below one of a binary tree, or of all: rank -1: they are equal to `top`. */
struct comparison {
    struct comm_header top, other;
    int64_t rank; /* whose header is `other` */
};

/* Compares up a binary tree of ranks, and sends the result down: three messages of each rank, and of each
 * size. Afterwards all ranks know rank 0's header and one that differs. */
static int mpi_compare(struct comm *comm, struct error *err)
{
    const struct mpi *m = comm->state;
    struct comparison own = {.top = comm->header, .rank = -1}, found[2], all;
    struct meopt_mpi_message below[2], above[2];
    char why[256];
    int count = 0, child = 2 * comm->rank + 1;
    for (; count < 2 && child + count < comm->size; count++)
        below[count] = (struct meopt_mpi_message){&found[count], sizeof *found,
                                                  comm_world_rank(comm, child + count), true};
    if (m->module->transfer(below, count, why, sizeof why)) return failed(comm, why, err);
    for (int i = 0; i < count && own.rank < 0; i++) {
        bool same = memcmp(&found[i].top, &own.top, sizeof own.top) == 0;
        own.rank = same ? found[i].rank : child + i;
        own.other = same ? found[i].other : found[i].top;
    }
    all = own;
    if (comm->rank) {
        int parent = comm_world_rank(comm, (comm->rank - 1) / 2);
        above[0] = (struct meopt_mpi_message){&own, sizeof own, parent, false};
        above[1] = (struct meopt_mpi_message){&all, sizeof all, parent, true};
        if (m->module->transfer(above, 2, why, sizeof why)) return failed(comm, why, err);
    }
    for (int i = 0; i < count; i++) below[i].p = &all, below[i].receive = false;
    if (m->module->transfer(below, count, why, sizeof why)) return failed(comm, why, err);
    size_t messages = (size_t)count + (comm->rank > 0);
    comm_count(comm, messages * sizeof all, messages * sizeof all);
    return all.rank < 0 ? 0 : comm_compare_two(comm, &all.top, (int)all.rank, &all.other, err);
}

/* ---- messages ---- */

/* Sends the headers of a call to its peers, and compares theirs. */
static int swap_headers(struct comm *comm, struct comm_exchange *e, int64_t slice, struct error *err)
{
    const struct mpi *m = comm->state;
    struct meopt_mpi_message headers[2 * COMM_MOST_MESSAGES];
    char why[256];
    int code = 0;
    for (int i = 0; i < e->peer_count; i++) {
        struct comm_peer *p = &e->peers[i];
        p->own.slice = slice;
        headers[2 * i] = (struct meopt_mpi_message){&p->own, sizeof p->own, p->rank, false};
        headers[2 * i + 1] = (struct meopt_mpi_message){&p->other, sizeof p->other, p->rank, true};
    }
    if (m->module->transfer(headers, 2 * e->peer_count, why, sizeof why)) code = failed(comm, why, err);
    for (int i = 0; i < e->peer_count && !code; i++) code = comm_compare_pair(e, &e->peers[i], err);
    return code;
}

static size_t piece_of(struct comm_exchange *e, const struct comm_message *message, size_t at)
{
    const struct comm_peer *p = comm_peer_of(e, message);
    int64_t slice = p->own.slice < p->other.slice ? p->own.slice : p->other.slice,
            left = (int64_t)(message->bytes - at);
    return (size_t)(left < slice ? left : slice);
}

/* Transfers in rounds of one piece of each message, directly from the host's memory or through the window. */
static int mpi_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
{
    const struct mpi *m = comm->state;
    struct comm_window *w = comm->window;
    bool host = comm->device->host_memory;
    size_t share = w->slice_bytes * (size_t)comm->size / COMM_MOST_MESSAGES & ~(size_t)63;
    size_t at[COMM_MOST_MESSAGES] = {0}, bytes[COMM_MOST_MESSAGES];
    char why[256];
    int code = swap_headers(comm, e, host ? 1 << 30 : (int64_t)share, err);
    for (;;) {
        struct meopt_mpi_message pieces[COMM_MOST_MESSAGES];
        int count = 0;
        for (int i = 0; i < e->count && !code; i++) {
            struct comm_message *message = &e->messages[i];
            if ((bytes[i] = piece_of(e, message, at[i])) == 0) continue;
            char *own = (char *)message->p + at[i], *slot = message->receive ? w->receive : w->send;
            if (!host && !message->receive)
                comm_download(comm, false, slot + (size_t)i * share, own, bytes[i]);
            pieces[count++] = (struct meopt_mpi_message){host ? own : slot + (size_t)i * share, bytes[i],
                                                         message->peer, message->receive};
        }
        if (code || !count) return code;
        if (m->module->transfer(pieces, count, why, sizeof why)) return failed(comm, why, err);
        for (int i = 0; i < e->count; i++) {
            struct comm_message *message = &e->messages[i];
            if (!host && message->receive)
                comm_upload(comm, false, (char *)message->p + at[i], w->receive + (size_t)i * share,
                            bytes[i]);
            at[i] += bytes[i];
        }
    }
}

/* ---- opening and closing ---- */

static int mpi_split(struct comm *comm, struct comm *part, bool open, struct error *err)
{
    const struct mpi *whole = comm->state;
    struct mpi *m = xcalloc(1, sizeof *m);
    char why[256];
    *m = *whole;
    if (whole->module->split(open ? part->members[0] : -1, &m->part, why, sizeof why)) {
        free(m);
        return failed(comm, why, err);
    }
    if (open) part->state = m, part->ops = comm->ops;
    else free(m);
    return 0;
}

static void mpi_abort(struct comm *comm, int exit_code)
{
    struct mpi *m = comm->state;
    if (m->module) m->module->abort(exit_code);
}

static void mpi_close(struct comm *comm)
{
    struct mpi *m = comm->state;
    if (m->module && !comm->whole) m->module->close();
    else if (m->module && !comm->whole->broken.code) m->module->release(m->part);
    free(m); /* the library stays: Open MPI cannot be unloaded */
    comm->state = NULL;
}

int comm_mpi_open(struct comm *comm, void *options, struct error *err)
{
    static const struct comm_ops mpi = {.name = "mpi",
                                        .exchange = mpi_exchange,
                                        .gather = mpi_gather,
                                        .broadcast = mpi_broadcast,
                                        .collect = mpi_collect,
                                        .scatter_sums = mpi_scatter_sums,
                                        .sums = true,
                                        .compare = mpi_compare,
                                        .transfer = mpi_transfer,
                                        .split = mpi_split,
                                        .abort = mpi_abort,
                                        .close = mpi_close};
    struct mpi *m = calloc(1, sizeof *m);
    char why[512];
    (void)options;
    if (!m) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    comm->ops = &mpi;
    comm->state = m;
    struct library library;
    if (!(m->library = library_open_mpi(&library)))
        return error_set(err, EXIT_FAILED,
                         "install MPI's development files (Debian: libopenmpi-dev) and rebuild MEOpt; ranks "
                         "on one host need no MPI",
                         "no MPI: %s: %s", library.path, library.why);
    const struct meopt_mpi *module = dlsym(m->library, "meopt_mpi");
    if (!module || module->version != MEOPT_MPI_VERSION)
        return error_set(err, EXIT_FAILED, "install both from one build",
                         "libmeopt_mpi.so belongs to a different version of MEOpt");
    comm_enter(comm, COMM_JOIN, 0, 0, err);
    int rank = -1, size = 0, code = module->open(&rank, &size, why, sizeof why);
    if (!code) m->module = module;
    if (code) code = failed(comm, why, err);
    else if (size != comm->size || rank != comm->rank)
        code = error_set(
            err, EXIT_RANK_LOST,
            "start all ranks with one mpirun, or srun --mpi=pmix, of the MPI that MEOpt was built with",
            "this is rank %d of %d, and MPI says %d of %d", comm->rank, comm->size, rank, size);
    return comm_leave(comm, code, err);
}
