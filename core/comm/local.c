/* The back end for ranks of one host, through a memfd that their parent creates (comm_local_create). It
 * needs no library. Its layout may change between versions: all ranks run the same program.
 *
 * In each collective a rank writes its data into its own area, waits at a barrier, reads the other areas,
 * and waits at a second barrier. The barrier is a futex. A waiting rank checks five times per second
 * whether the missing ranks are alive: each rank holds a file lock on the byte at its number, and the
 * kernel releases it when the process ends. */
#include "core/base/clock.h"
#include "core/base/memory.h"
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

enum { CHECK_MS = 200, JOIN_SECONDS = 120 };
static const char local_magic[8] = "MEOPTRK";

static size_t local_area(int size) { return (comm_slice_bytes(size) * (size_t)size + 4095) & ~(size_t)4095; }

/* The memory: the header, the meetings of each split (COMM_SPLITS + 1, size), the channels from each rank to
 * each (size, size), the areas. */
static size_t meetings_at(void) { return (sizeof(struct local_header) + 63) & ~(size_t)63; }
static size_t channels_at(int size)
{
    return meetings_at() + (size_t)(COMM_SPLITS + 1) * (size_t)size * sizeof(struct local_meeting);
}
static size_t areas_at(int size)
{
    size_t end = channels_at(size) + (size_t)size * (size_t)size * sizeof(struct local_channel);
    return (end + 4095) & ~(size_t)4095;
}
static size_t memory_bytes(int size) { return areas_at(size) + local_area(size) * (size_t)size; }

static char *local_area_of(const struct local *l, int rank)
{
    return (char *)l->header + areas_at(l->header->size) + l->area_bytes * (size_t)rank;
}
static struct local_channel *local_channel(const struct local *l, int from, int to)
{
    int size = l->header->size;
    char *first = (char *)l->header + channels_at(size);
    return (struct local_channel *)(void *)first + (size_t)from * (size_t)size + to;
}
static struct local_meeting *local_meeting(const struct local *l, int group, int rank)
{
    char *first = (char *)l->header + meetings_at();
    return (struct local_meeting *)(void *)first + (size_t)group * (size_t)l->header->size + rank;
}
/* Of the rank with this number in the communicator. */
static struct local_meeting *meeting_of(const struct comm *comm, int rank)
{
    return local_meeting(comm->state, comm->group, comm_world_rank(comm, rank));
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
    if (fd < 0 || ftruncate(fd, (off_t)memory_bytes(size)) != 0 ||
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

/* Waits until the word differs from `value`, at most a fifth of a second. */
static void local_wait(_Atomic uint32_t *word, uint32_t value)
{
    local_futex(word, FUTEX_WAIT, value, &(struct timespec){0, CHECK_MS * 1000000L});
}
static void local_wake(_Atomic uint32_t *word) { local_futex(word, FUTEX_WAKE, INT_MAX, NULL); }

/* Returns whether a rank has joined and then released its lock. */
static bool local_is_lost(const struct local *l, int rank)
{
    return atomic_load(&l->header->joined[rank]) && byte_is_free(l->fd, rank);
}

/* Returns EXIT_RANK_LOST if ranks are lost ("": none) or a rank has ended the run. */
static int local_check(const struct comm *comm, const char *lost, struct error *err)
{
    const struct local *l = comm->state;
    const char *call = comm_call_names[comm->header.call];
    long long number = (long long)comm->header.number;
    int aborted = atomic_load(&l->header->aborted);
    if (lost[0])
        return error_set(err, EXIT_RANK_LOST, "see its log; then resume with: meopt train --resume",
                         "%s is gone, and is missing in %s %lld%s%s", lost, call, number,
                         comm->name[0] ? " of " : "", comm->name);
    if (aborted)
        return error_set(err, EXIT_RANK_LOST, "see the log of that rank",
                         "another rank failed with exit code %d, in %s %lld", aborted, call, number);
    return 0;
}

/* Who has not come to the meeting, for people: "rank 2", "ranks 1, 3". */
static void list_missing(const struct comm *comm, bool lost, char *text, size_t size)
{
    const struct local *l = comm->state;
    int count = 0;
    size_t at = 0;
    text[0] = 0;
    for (int q = 0; q < comm->size && at < size; q++) {
        int rank = comm_world_rank(comm, q);
        if (q == comm->rank || atomic_load(&meeting_of(comm, q)->met) >= l->barriers ||
            (lost && !local_is_lost(l, rank)))
            continue;
        if (count < 8) at += (size_t)snprintf(text + at, size - at, "%s%d", count ? ", " : "rank ", rank);
        count++;
    }
}

static int check_peers(const struct comm *comm, double since, struct error *err)
{
    char who[128];
    list_missing(comm, true, who, sizeof who);
    int code = local_check(comm, who, err);
    if (!code && comm->header.call == COMM_JOIN && clock_seconds() - since > JOIN_SECONDS) {
        list_missing(comm, false, who, sizeof who);
        return error_set(err, EXIT_RANK_LOST, "check that it was started",
                         "%s of %d did not join within %d s", who, comm->size, JOIN_SECONDS);
    }
    return code;
}

/* end: of a call, whose headers have been compared */
static int local_barrier(struct comm *comm, bool end, struct error *err)
{
    struct local *l = comm->state;
    struct local_meeting *m = meeting_of(comm, 0);
    uint32_t generation = atomic_load(&m->generation);
    double since = clock_seconds();
    l->barriers++;
    atomic_store(&meeting_of(comm, comm->rank)->met, l->barriers);
    if (atomic_fetch_add(&m->waiting, 1) + 1 == (uint32_t)comm->size) {
        atomic_store(&m->waiting, 0);
        if (end) atomic_store(&m->first, 0);
        atomic_fetch_add(&m->generation, 1);
        local_wake(&m->generation);
        return 0;
    }
    while (atomic_load(&m->generation) == generation) {
        local_wait(&m->generation, generation);
        if (atomic_load(&m->generation) != generation) break; /* complete, even if a rank was lost since */
        int code = check_peers(comm, since, err);
        if (code) return code;
    }
    return 0;
}

/* Compares headers and waits for all ranks. Each compares its own with that of the first one to come; only
 * after a difference do all ranks read all headers. */
static int local_barrier_for_call(struct comm *comm, struct error *err)
{
    struct local_meeting *m = meeting_of(comm, 0), *own = meeting_of(comm, comm->rank);
    uint32_t first = 0;
    own->call = comm->header;
    if (!atomic_compare_exchange_strong(&m->first, &first, (uint32_t)comm->rank + 1) &&
        memcmp(&meeting_of(comm, (int)first - 1)->call, &own->call, sizeof own->call) != 0)
        atomic_store(&m->differ, 1);
    comm_count(comm, sizeof own->call, sizeof own->call);
    int code = local_barrier(comm, false, err);
    if (code || !atomic_load(&m->differ)) return code;
    char *headers = comm->window->receive;
    for (int q = 0; q < comm->size; q++)
        memcpy(headers + (size_t)q * sizeof own->call, &meeting_of(comm, q)->call, sizeof own->call);
    return comm_compare(comm, headers, sizeof own->call, err);
}

/* ---- the back end ---- */

static char *own_area(const struct comm *comm)
{
    return local_area_of(comm->state, comm_world_rank(comm, comm->rank));
}
static const char *area_of(const struct comm *comm, int rank)
{
    return local_area_of(comm->state, comm_world_rank(comm, rank));
}

static int local_exchange(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    size_t others = bytes * (size_t)(comm->size - 1);
    memcpy(own_area(comm), send, bytes * (size_t)comm->size);
    int code = local_barrier_for_call(comm, err);
    for (int q = 0; q < comm->size && !code; q++)
        memcpy((char *)receive + (size_t)q * bytes, area_of(comm, q) + (size_t)comm->rank * bytes, bytes);
    comm_count(comm, others, others);
    return code ? code : local_barrier(comm, true, err);
}

/* The ranks from 0 to `takers` receive. */
static int gather_to(struct comm *comm, int takers, const void *send, void *receive, size_t bytes,
                     struct error *err)
{
    bool takes = comm->rank < takers;
    memcpy(own_area(comm), send, bytes);
    int code = local_barrier_for_call(comm, err);
    for (int q = 0; q < comm->size && takes && !code; q++)
        memcpy((char *)receive + (size_t)q * bytes, area_of(comm, q), bytes);
    comm_count(comm, takers == 1 && takes ? 0 : bytes, takes ? bytes * (size_t)(comm->size - 1) : 0);
    return code ? code : local_barrier(comm, true, err);
}

static int local_gather(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    return gather_to(comm, comm->size, send, receive, bytes, err);
}

static int local_collect(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    return gather_to(comm, 1, send, receive, bytes, err);
}

static int local_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err)
{
    bool sends = comm->rank == root;
    if (sends) memcpy(own_area(comm), p, bytes);
    int code = local_barrier_for_call(comm, err);
    if (!code && !sends) memcpy(p, area_of(comm, root), bytes);
    comm_count(comm, sends ? bytes : 0, sends ? 0 : bytes);
    return code ? code : local_barrier(comm, true, err);
}

/* ---- Messages ---- */

/* Both ends of a message show the header of their call first, and move
 * data only after comparing. A sender writes pieces into its area; the receiver copies them out. All
 * messages of a call move in any order; those from one rank to another, one after the other. */
enum { PIECE_BYTES = 512 << 10 };

static void ring(const struct local *l, int rank)
{
    atomic_fetch_add(&l->header->bells[rank], 1);
    local_wake(&l->header->bells[rank]);
}

static void show_headers(const struct comm *comm, const struct comm_exchange *e)
{
    const struct local *l = comm->state;
    size_t share = l->area_bytes / (size_t)e->peer_count & ~(size_t)127;
    size_t slot = share / 2 < PIECE_BYTES ? share / 2 : PIECE_BYTES;
    for (int i = 0; i < e->peer_count; i++) {
        const struct comm_peer *p = &e->peers[i];
        struct local_channel *out = local_channel(l, comm->rank, p->rank);
        out->pair = p->own;
        out->slots_at = share * (size_t)i;
        out->slot_bytes = slot;
        atomic_store(&out->calls, (uint32_t)p->own.number);
        ring(l, p->rank);
    }
}

/* The progress of a call. */
struct progress {
    bool compared[COMM_MOST_MESSAGES]; /* (peers) */
    size_t at[COMM_MOST_MESSAGES];     /* (messages) bytes moved */
};

/* Compares the headers of a peer that has come. */
static int compare_peer(const struct comm *comm, struct comm_exchange *e, int i, struct progress *g,
                        bool *moved, struct error *err)
{
    struct comm_peer *p = &e->peers[i];
    struct local_channel *in = local_channel(comm->state, p->rank, comm->rank),
                         *out = local_channel(comm->state, comm->rank, p->rank);
    uint32_t calls = atomic_load(&in->calls);
    if (g->compared[i] || calls == out->met) return 0;
    out->met = calls;
    p->other = in->pair;
    *moved = g->compared[i] = true;
    return comm_compare_pair(e, p, err);
}

/* Moves one piece of a message, if a slot is free or a piece has come. */
static bool move_piece(struct comm *comm, const struct comm_message *m, size_t *at)
{
    const struct local *l = comm->state;
    int from = m->receive ? m->peer : comm->rank, to = m->receive ? comm->rank : m->peer;
    struct local_channel *c = local_channel(l, from, to);
    uint32_t sent = atomic_load(&c->sent), taken = atomic_load(&c->taken);
    size_t left = m->bytes - *at, piece = left < c->slot_bytes ? left : c->slot_bytes;
    if (m->receive ? sent == taken : sent - taken > 1) return false;
    char *slot = local_area_of(l, from) + c->slots_at + (m->receive ? taken % 2 : sent % 2) * c->slot_bytes;
    bool host = comm->device->host_memory;
    if (m->receive) {
        comm_upload(comm, host, (char *)m->p + *at, slot, piece);
        atomic_fetch_add(&c->taken, 1);
    } else {
        comm_download(comm, host, slot, (const char *)m->p + *at, piece);
        atomic_fetch_add(&c->sent, 1);
    }
    *at += piece;
    comm_count(comm, m->receive ? 0 : piece, m->receive ? piece : 0);
    ring(l, m->peer);
    return true;
}

/* Moves what can be moved. Returns whether messages are left. */
static bool move_messages(struct comm *comm, struct comm_exchange *e, struct progress *g, bool *moved)
{
    const struct local *l = comm->state;
    bool busy[2][COMM_MOST_MESSAGES] = {{false}}, left = false;
    for (int i = 0; i < e->count; i++) {
        const struct comm_message *m = &e->messages[i];
        int p = (int)(comm_peer_of(e, m) - e->peers);
        bool *before = &busy[m->receive][p]; /* an earlier message has not been moved */
        if (g->at[i] < m->bytes && g->compared[p] && !*before) *moved |= move_piece(comm, m, &g->at[i]);
        *before |= g->at[i] < m->bytes;
        left |= g->at[i] < m->bytes;
    }
    for (int p = 0; p < e->peer_count && !left; p++) {
        struct local_channel *out = local_channel(l, comm->rank, e->peers[p].rank);
        left = !g->compared[p] || atomic_load(&out->sent) != atomic_load(&out->taken);
    }
    return left;
}

/* Names a lost peer. */
static int check_transfer(const struct comm *comm, const struct comm_exchange *e, struct error *err)
{
    char lost[64] = "";
    for (int p = 0; p < e->peer_count && !lost[0]; p++)
        if (local_is_lost(comm->state, e->peers[p].rank))
            snprintf(lost, sizeof lost, "rank %d", e->peers[p].rank);
    return local_check(comm, lost, err);
}

static int local_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
{
    const struct local *l = comm->state;
    _Atomic uint32_t *bell = &l->header->bells[comm->rank];
    struct progress g = {{false}, {0}};
    show_headers(comm, e);
    for (;;) {
        uint32_t seen = atomic_load(bell);
        bool moved = false;
        int code = 0;
        for (int i = 0; i < e->peer_count && !code; i++) code = compare_peer(comm, e, i, &g, &moved, err);
        if (code) return code;
        if (!move_messages(comm, e, &g, &moved)) return 0;
        if (moved) continue;
        local_wait(bell, seen);
        if (atomic_load(bell) != seen) continue;
        code = check_transfer(comm, e, err);
        if (code && atomic_load(bell) == seen) return code; /* else a peer has come before it ended */
    }
}

/* ---- Opening and closing ---- */

static void local_abort(struct comm *comm, int exit_code)
{
    struct local *l = comm->state;
    int none = 0;
    atomic_compare_exchange_strong(&l->header->aborted, &none, exit_code ? exit_code : EXIT_FAILED);
    for (int q = 0; q < comm->size; q++) {
        local_wake(&l->header->bells[q]);
        for (int group = 0; group <= COMM_SPLITS; group++)
            local_wake(&local_meeting(l, group, q)->generation);
    }
}

static void local_close(struct comm *comm)
{
    struct local *l = comm->state;
    if (l->header && !comm->whole) munmap(l->header, l->bytes);
    if (l->fd >= 0 && !comm->whole) close(l->fd); /* releases the lock */
    free(l);
    comm->state = NULL;
}

static int local_attach(struct comm *comm, struct local *l, int shared, struct error *err)
{
    char path[64];
    l->area_bytes = local_area(comm->size);
    l->bytes = memory_bytes(comm->size);
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
    if (byte_lock(l->fd, comm->rank) == 0) {
        atomic_store(&l->header->joined[comm->rank], 1);
        return 0;
    }
    if (errno == EAGAIN || errno == EACCES)
        return error_set(err, EXIT_RANK_LOST, NULL, "rank %d of %d was started twice", comm->rank,
                         comm->size);
    return error_errno(err, EXIT_FAILED, NULL, "cannot lock the byte of rank %d", comm->rank);
}

static int local_split(struct comm *comm, struct comm *part, bool open, struct error *err)
{
    (void)err;
    if (!open) return 0;
    struct local *l = xcalloc(1, sizeof *l);
    *l = *(const struct local *)comm->state;
    l->barriers = 0;
    part->state = l;
    part->ops = comm->ops;
    return 0;
}

int comm_local_open(struct comm *comm, void *options, struct error *err)
{
    static const struct comm_ops local = {.name = "local",
                                          .exchange = local_exchange,
                                          .gather = local_gather,
                                          .broadcast = local_broadcast,
                                          .collect = local_collect,
                                          .compares = true,
                                          .transfer = local_transfer,
                                          .split = local_split,
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
    if (!code) code = local_barrier(comm, true, err);
    return comm_leave(comm, code, err); /* closed by the caller */
}
