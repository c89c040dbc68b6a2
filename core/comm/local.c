/* The back end for ranks of one host, through a memfd that their parent creates (comm_local_create). It
 * needs no library. Its layout may change between versions: all ranks run the same program.
 *
 * In each collective a rank writes its data into its own area, waits at a barrier, reads the other areas,
 * and waits at a second barrier. The barrier is a futex. A waiting rank checks five times per second
 * whether the missing ranks are alive: each rank holds a file lock on the byte at its number, and the
 * kernel releases it when the process ends. */
#include "core/base/clock.h"
#include "core/base/platform.h"
#include "core/comm/comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_MS = 200, JOIN_SECONDS = 120, HEADER_BYTES = 1 << 17 };
static const char local_magic[8] = "MEOPTRK";

struct local_header {
    char magic[8];
    _Atomic uint32_t generation; /* number of completed barriers */
    _Atomic uint32_t waiting;
    _Atomic int32_t aborted; /* exit code; 0: not aborted */
    int32_t size;
    _Atomic uint32_t met[COMM_MOST_RANKS]; /* barriers that each rank has entered; 0: it has not joined */
    struct comm_header calls[COMM_MOST_RANKS];
};
_Static_assert(sizeof(struct local_header) <= HEADER_BYTES, "the areas start after the header");

struct local {
    int fd;
    size_t bytes, area_bytes;
    struct local_header *header;
    uint32_t barriers; /* entered by this rank */
};

static size_t local_area(int size) { return (comm_slice_bytes(size) * (size_t)size + 4095) & ~(size_t)4095; }
static char *area_of(const struct local *l, int rank)
{
    return (char *)l->header + HEADER_BYTES + l->area_bytes * (size_t)rank;
}

int comm_local_create(int size, int *shared, struct error *err)
{
    struct local_header head = {.size = size};
    memcpy(head.magic, local_magic, sizeof head.magic);
    *shared = -1;
    if (size < 1 || size > COMM_MOST_RANKS)
        return error_set(err, EXIT_CONFIG, NULL, "%d ranks on one host; the maximum is %d", size,
                         COMM_MOST_RANKS);
    int fd = memory_file("meopt-ranks");
    if (fd < 0 || ftruncate(fd, (off_t)(HEADER_BYTES + local_area(size) * (size_t)size)) != 0 ||
        pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
        int code = error_errno(err, EXIT_HOST_MEMORY, NULL, "cannot create shared memory for %d ranks", size);
        if (fd >= 0) close(fd);
        return code;
    }
    *shared = fd;
    return 0;
}

/* ---- meeting ---- */

static long local_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

/* Returns whether a rank has joined and then released its lock. */
static bool is_lost(const struct local *l, int rank)
{
    return atomic_load(&l->header->met[rank]) > 0 && byte_is_free(l->fd, rank);
}

/* Who has not come to the meeting, for people: "rank 2", "ranks 1, 3". */
static void list_missing(const struct comm *comm, bool lost, char *text, size_t size)
{
    const struct local *l = comm->state;
    int count = 0;
    size_t at = 0;
    text[0] = 0;
    for (int q = 0; q < comm->size && at < size; q++) {
        if (q == comm->rank || atomic_load(&l->header->met[q]) >= l->barriers || (lost && !is_lost(l, q)))
            continue;
        if (count < 8) at += (size_t)snprintf(text + at, size - at, "%s%d", count ? ", " : "rank ", q);
        count++;
    }
}

static int check_peers(const struct comm *comm, double since, struct error *err)
{
    const struct local *l = comm->state;
    const char *call = comm_call_names[comm->header.call];
    long long number = (long long)comm->header.number;
    char who[128];
    int aborted = atomic_load(&l->header->aborted);
    list_missing(comm, true, who, sizeof who);
    if (who[0])
        return error_set(err, EXIT_RANK_LOST, "see its log; then resume with: meopt train --resume",
                         "%s is gone, and is missing in %s %lld", who, call, number);
    if (aborted)
        return error_set(err, EXIT_RANK_LOST, "see the log of that rank",
                         "another rank failed with exit code %d, in %s %lld", aborted, call, number);
    if (l->barriers == 1 && clock_seconds() - since > JOIN_SECONDS) {
        list_missing(comm, false, who, sizeof who);
        return error_set(err, EXIT_RANK_LOST, "check that it was started",
                         "%s of %d did not join within %d s", who, comm->size, JOIN_SECONDS);
    }
    return 0;
}

static int local_barrier(struct comm *comm, struct error *err)
{
    struct local *l = comm->state;
    struct local_header *h = l->header;
    uint32_t generation = atomic_load(&h->generation);
    double since = clock_seconds();
    l->barriers++;
    atomic_store(&h->met[comm->rank], l->barriers);
    if (atomic_fetch_add(&h->waiting, 1) + 1 == (uint32_t)comm->size) {
        atomic_store(&h->waiting, 0);
        atomic_fetch_add(&h->generation, 1);
        local_futex(&h->generation, FUTEX_WAKE, INT_MAX, NULL);
        return 0;
    }
    while (atomic_load(&h->generation) == generation) {
        local_futex(&h->generation, FUTEX_WAIT, generation, &(struct timespec){0, CHECK_MS * 1000000L});
        if (atomic_load(&h->generation) != generation) break; /* complete, even if a rank was lost since */
        int code = check_peers(comm, since, err);
        if (code) return code;
    }
    return 0;
}

/* Waits at the barrier, then compares the headers of all ranks. */
static int local_barrier_for_call(struct comm *comm, struct error *err)
{
    struct local_header *h = ((struct local *)comm->state)->header;
    h->calls[comm->rank] = comm->header;
    int code = local_barrier(comm, err);
    return code ? code : comm_compare(comm, h->calls, sizeof *h->calls, err);
}

/* ---- the back end ---- */

static int local_exchange(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    struct local *l = comm->state;
    memcpy(area_of(l, comm->rank), send, bytes * (size_t)comm->size);
    int code = local_barrier_for_call(comm, err);
    for (int q = 0; q < comm->size && !code; q++)
        memcpy((char *)receive + (size_t)q * bytes, area_of(l, q) + (size_t)comm->rank * bytes, bytes);
    return code ? code : local_barrier(comm, err);
}

static int local_gather(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    struct local *l = comm->state;
    memcpy(area_of(l, comm->rank), send, bytes);
    int code = local_barrier_for_call(comm, err);
    for (int q = 0; q < comm->size && !code; q++)
        memcpy((char *)receive + (size_t)q * bytes, area_of(l, q), bytes);
    return code ? code : local_barrier(comm, err);
}

static int local_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err)
{
    struct local *l = comm->state;
    if (comm->rank == root) memcpy(area_of(l, root), p, bytes);
    int code = local_barrier_for_call(comm, err);
    if (!code && comm->rank != root) memcpy(p, area_of(l, root), bytes);
    return code ? code : local_barrier(comm, err);
}

static void local_abort(struct comm *comm, int exit_code)
{
    struct local *l = comm->state;
    int none = 0;
    atomic_compare_exchange_strong(&l->header->aborted, &none, exit_code ? exit_code : EXIT_FAILED);
    local_futex(&l->header->generation, FUTEX_WAKE, INT_MAX, NULL);
}

static void local_close(struct comm *comm)
{
    struct local *l = comm->state;
    if (l->header) munmap(l->header, l->bytes);
    if (l->fd >= 0) close(l->fd); /* releases the lock */
    free(l);
    comm->state = NULL;
}

static int local_attach(struct comm *comm, struct local *l, int shared, struct error *err)
{
    char path[64];
    l->area_bytes = local_area(comm->size);
    l->bytes = HEADER_BYTES + l->area_bytes * (size_t)comm->size;
    snprintf(path, sizeof path, "/proc/self/fd/%d", shared); /* a lock needs its own open file */
    l->fd = open(path, O_RDWR | O_CLOEXEC);
    fcntl(shared, F_SETFD, FD_CLOEXEC); /* only this process inherits it */
    off_t end = l->fd < 0 ? -1 : lseek(l->fd, 0, SEEK_END);
    if (end < 0) return error_errno(err, EXIT_FAILED, NULL, "cannot open the memory of the ranks");
    void *p =
        end == (off_t)l->bytes ? mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0) : NULL;
    if (p == MAP_FAILED) return error_errno(err, EXIT_HOST_MEMORY, NULL, "cannot map the ranks' memory");
    l->header = p;
    if (!p || memcmp(l->header->magic, local_magic, sizeof local_magic) != 0 || l->header->size != comm->size)
        return error_set(err, EXIT_FAILED, NULL, "the shared memory is not that of %d ranks", comm->size);
    if (byte_lock(l->fd, comm->rank) == 0) return 0;
    if (errno == EAGAIN || errno == EACCES)
        return error_set(err, EXIT_RANK_LOST, NULL, "rank %d of %d was started twice", comm->rank,
                         comm->size);
    return error_errno(err, EXIT_FAILED, NULL, "cannot lock the byte of rank %d", comm->rank);
}

int comm_local_open(struct comm *comm, void *options, struct error *err)
{
    static const struct comm_ops local = {.name = "local",
                                          .exchange = local_exchange,
                                          .gather = local_gather,
                                          .broadcast = local_broadcast,
                                          .compares = true,
                                          .abort = local_abort,
                                          .close = local_close};
    const struct comm_options *o = options;
    struct local *l = calloc(1, sizeof *l);
    if (!l) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    comm->ops = &local;
    comm->state = l;
    l->fd = -1;
    comm_enter(comm, COMM_JOIN, 0, 0, err);
    int code = local_attach(comm, l, o->shared, err);
    if (!code) code = local_barrier(comm, err);
    return comm_leave(comm, code, err); /* closed by the caller */
}
