/* Headers of collectives: ranks compare them, and the heartbeat reports the current one. */
#include "core/comm/comm_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *const comm_call_names[COMM_CALLS] = {
    [COMM_NO_CALL] = "no collective", [COMM_JOIN] = "join",           [COMM_REDUCE] = "reduce",
    [COMM_GATHER] = "gather",         [COMM_COMBINE] = "combine",     [COMM_TREE] = "tree_sum",
    [COMM_ALL_REDUCE] = "all_reduce", [COMM_BROADCAST] = "broadcast", [COMM_BARRIER] = "barrier",
    [COMM_SPLIT] = "split",           [COMM_FOLD] = "fold",           [COMM_SEND] = "send",
    [COMM_RECEIVE] = "receive",       [COMM_TRANSFER] = "transfer",
};

/* ---- what the heartbeat's thread reads ---- */

/* The fields of comm_status in one atomic word: number, peer + 1, group, call, inside. */
enum { CALL_BITS = 5, GROUP_BITS = 4, PEER_BITS = 13, NUMBER_AT = 1 + CALL_BITS + GROUP_BITS + PEER_BITS };
static _Atomic uint64_t status;
_Static_assert(COMM_CALLS <= 1 << CALL_BITS && COMM_SPLITS < 1 << GROUP_BITS &&
                   COMM_MOST_RANKS < 1 << PEER_BITS,
               "they must fit");

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static char group_names[COMM_SPLITS + 1][sizeof((struct comm *)0)->name];

int comm_world_rank(const struct comm *comm, int rank) { return comm->members ? comm->members[rank] : rank; }

void comm_name_group(const struct comm *comm)
{
    pthread_mutex_lock(&naming);
    snprintf(group_names[comm->group], sizeof *group_names, "%s", comm->name);
    pthread_mutex_unlock(&naming);
}

static void publish_status(const struct comm *comm, int group, int peer, bool inside)
{
    uint64_t number = (uint64_t)comm->header.number, who = (uint64_t)(peer + 1), where = (uint64_t)group;
    atomic_store(&status, number << NUMBER_AT | who << (1 + CALL_BITS + GROUP_BITS) |
                              where << (1 + CALL_BITS) | (uint64_t)comm->header.call << 1 |
                              (inside ? 1u : 0u));
}

static int bits_of(uint64_t word, int from, int count) { return (int)(word >> from & ((1u << count) - 1)); }

struct comm_status comm_status(void)
{
    uint64_t word = atomic_load(&status);
    struct comm_status s = {.number = (int64_t)(word >> NUMBER_AT),
                            .call = (enum comm_call)bits_of(word, 1, CALL_BITS),
                            .peer = bits_of(word, 1 + CALL_BITS + GROUP_BITS, PEER_BITS) - 1,
                            .inside = word & 1};
    pthread_mutex_lock(&naming);
    snprintf(s.group, sizeof s.group, "%s", group_names[bits_of(word, 1 + CALL_BITS, GROUP_BITS)]);
    pthread_mutex_unlock(&naming);
    return s;
}

/* ---- calls ---- */

/* Returns the first failure of any communicator of this rank. */
static int is_broken(struct comm *comm, struct error *err)
{
    const struct error *broken = &comm_whole(comm)->broken;
    if (broken->code && err) *err = *broken;
    return broken->code;
}

static int end_call(struct comm *comm, int code, const struct error *err)
{
    struct error *broken = &comm_whole(comm)->broken;
    if (code && err && !broken->code) *broken = *err;
    if (code) broken->code = code;
    return code;
}

int comm_enter(struct comm *comm, enum comm_call call, int64_t bytes, uint32_t shape, struct error *err)
{
    int code = is_broken(comm, err);
    if (code) return code;
    /* also the window's size, which decides into how many slices a call is divided */
    uint32_t window = comm->window ? (uint32_t)comm->window->slice_bytes : 0;
    comm->header = (struct comm_header){
        .number = comm->header.number + 1, .bytes = bytes, .call = call, .shape = shape ^ window};
    comm->compared = false;
    publish_status(comm, comm->group, -1, true);
    return 0;
}

int comm_leave(struct comm *comm, int code, const struct error *err)
{
    publish_status(comm, comm->group, -1, false);
    return end_call(comm, code, err);
}

/* Messages have numbers of their own: meanwhile the header of the whole describes them, for its back end. */
int comm_enter_messages(struct comm_exchange *e, struct error *err)
{
    struct comm *whole = comm_whole(e->comm);
    bool sends = false, receives = false;
    int code = is_broken(whole, err);
    if (code) return code;
    for (int i = 0; i < e->count; i++) *(e->messages[i].receive ? &receives : &sends) = true;
    e->collective = whole->header;
    whole->header = (struct comm_header){.number = e->peers[0].own.number,
                                         .call = sends && receives ? COMM_TRANSFER
                                                 : sends           ? COMM_SEND
                                                                   : COMM_RECEIVE};
    publish_status(whole, e->comm->group, e->peer_count == 1 ? e->peers[0].rank : -1, true);
    return 0;
}

int comm_leave_messages(struct comm_exchange *e, int code, const struct error *err)
{
    struct comm *whole = comm_whole(e->comm);
    publish_status(whole, e->comm->group, e->peer_count == 1 ? e->peers[0].rank : -1, false);
    whole->header = e->collective;
    return end_call(whole, code, err);
}

/* ---- differences ---- */

static void describe_call(char *text, size_t size, int rank, const struct comm_header *h, bool numbered)
{
    const char *name = h->call < COMM_CALLS ? comm_call_names[h->call] : N_("an unknown collective");
    int n = snprintf(text, size, "rank %d in %s of %lld bytes", rank, name, (long long)h->bytes);
    if (numbered && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, " (#%lld)", (long long)h->number);
}

int comm_compare_two(const struct comm *comm, const struct comm_header *first, int r,
                     const struct comm_header *other, struct error *err)
{
    char sides[2][120];
    if (memcmp(first, other, sizeof *first) == 0) return 0;
    bool numbered = first->number != other->number;
    bool parts = !numbered && first->call == other->call && first->bytes == other->bytes;
    describe_call(sides[0], sizeof sides[0], comm_world_rank(comm, 0), first, false);
    describe_call(sides[1], sizeof sides[1], comm_world_rank(comm, r), other, numbered);
    return error_set(err, EXIT_RANK_LOST, "please report this defect; continue with: meopt train --resume",
                     "collective mismatch at #%lld%s%s: %s, %s%s", (long long)first->number,
                     comm->name[0] ? " of " : "", comm->name, sides[0], sides[1],
                     parts ? N_(", with different arguments") : "");
}

int comm_compare(const struct comm *comm, const void *headers, size_t stride, struct error *err)
{
    struct comm_header first, other;
    int code = 0;
    memcpy(&first, headers, sizeof first);
    for (int r = 1; r < comm->size && !code; r++) {
        memcpy(&other, (const char *)headers + (size_t)r * stride, sizeof other);
        code = comm_compare_two(comm, &first, r, &other, err);
    }
    return code;
}

/* Writes "rank 0 in send of 64 bytes with tag 3 of pipeline 0 (#5)", from the header of the rank. */
static void describe_messages(char *text, size_t size, int rank, bool lower, const struct comm_pair *p)
{
    int out = lower ? 0 : 1, in = 1 - out;
    char bytes[96], group[40] = "";
    if (p->count[out] && p->count[in])
        snprintf(bytes, sizeof bytes, "transfer of %lld bytes out and %lld in", (long long)p->bytes[out],
                 (long long)p->bytes[in]);
    else
        snprintf(bytes, sizeof bytes, "%s of %lld bytes", p->count[out] ? "send" : "receive",
                 (long long)p->bytes[p->count[out] ? out : in]);
    pthread_mutex_lock(&naming);
    if (p->group > 0 && p->group <= COMM_SPLITS)
        snprintf(group, sizeof group, " of %s", group_names[p->group]);
    pthread_mutex_unlock(&naming);
    snprintf(text, size, "rank %d in %s with tag %d%s (#%lld)", rank, bytes, p->tag, group,
             (long long)p->number);
}

int comm_compare_pair(const struct comm_exchange *e, const struct comm_peer *peer, struct error *err)
{
    const struct comm *comm = e->comm;
    int me = comm_world_rank(comm, comm->rank);
    char sides[2][200];
    if (memcmp(&peer->own, &peer->other, offsetof(struct comm_pair, slice)) == 0) return 0;
    describe_messages(sides[0], sizeof sides[0], me, me < peer->rank, &peer->own);
    describe_messages(sides[1], sizeof sides[1], peer->rank, peer->rank < me, &peer->other);
    bool lower = me < peer->rank;
    return error_set(err, EXIT_RANK_LOST, "please report this defect; continue with: meopt train --resume",
                     "message mismatch: %s, %s", sides[lower ? 0 : 1], sides[lower ? 1 : 0]);
}
