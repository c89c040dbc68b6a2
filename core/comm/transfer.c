/* Messages between two ranks: comm_transfer of comm.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/comm/comm_internal.h"

#include <string.h>

struct comm_peer *comm_peer_of(struct comm_exchange *e, const struct comm_message *message)
{
    for (int i = 0; i < e->peer_count; i++)
        if (e->peers[i].rank == message->peer) return &e->peers[i];
    return NULL;
}

/* Adds a message to the header of its peer. */
static void add_message(struct comm_exchange *e, const struct comm_message *m)
{
    struct comm *whole = comm_whole(e->comm);
    struct comm_peer *peer = comm_peer_of(e, m);
    if (!peer) {
        peer = &e->peers[e->peer_count++];
        *peer = (struct comm_peer){
            .rank = m->peer, .own = {.number = ++whole->met[m->peer], .tag = -1, .group = e->comm->group}};
    }
    struct comm_pair *own = &peer->own;
    int from = m->receive == (whole->rank < m->peer); /* 0: the lower rank */
    own->bytes[from] += (int64_t)m->bytes;
    own->count[from]++;
}

/* Completes the headers: the lower rank's messages come first, so that both ends compute the same. */
static void describe_messages(struct comm_exchange *e)
{
    struct comm *whole = comm_whole(e->comm);
    for (int i = 0; i < 2 * e->count; i++) {
        const struct comm_message *m = &e->messages[i % e->count];
        struct comm_pair *own = &comm_peer_of(e, m)->own;
        int from = m->receive == (whole->rank < m->peer);
        if (from != i / e->count) continue;
        const int64_t words[] = {from, (int64_t)m->bytes, m->tag};
        if (own->tag < 0) own->tag = m->tag;
        own->shape = crc32c(own->shape, words, sizeof words);
    }
}

static int transfer(struct comm *comm, void *context, struct error *err)
{
    struct comm_exchange *e = context;
    struct comm *whole = comm_whole(comm);
    for (int i = 0; i < e->count; i++) add_message(e, &e->messages[i]);
    describe_messages(e);
    int code = comm_enter_messages(e, err);
    return code ? code : comm_leave_messages(e, whole->ops->transfer(whole, e, err), err);
}

/* The messages of a single rank: the n-th that it sends is the n-th that it receives. */
static int copy_own(struct comm *comm, const struct comm_message *messages, int count, struct error *err)
{
    int s = 0, r = 0;
    for (;; s++, r++) {
        while (s < count && messages[s].receive) s++;
        while (r < count && !messages[r].receive) r++;
        if (s == count && r == count) return 0;
        if (s == count || r == count || messages[s].bytes != messages[r].bytes ||
            messages[s].tag != messages[r].tag)
            break;
        comm->device->ops->copy(comm->device, messages[r].p, messages[s].p, messages[s].bytes);
    }
    const struct comm_message *sent = s < count ? &messages[s] : NULL, *got = r < count ? &messages[r] : NULL;
    return error_set(err, EXIT_FAILED, NULL,
                     "message mismatch: rank %d sends itself %lld bytes with tag %d, and receives %lld with "
                     "tag %d",
                     comm_world_rank(comm, comm->rank), sent ? (long long)sent->bytes : 0LL,
                     sent ? sent->tag : -1, got ? (long long)got->bytes : 0LL, got ? got->tag : -1);
}

int comm_transfer(struct comm *comm, const struct comm_message *messages, int count, struct error *err)
{
    struct comm_message own[COMM_MOST_MESSAGES];
    struct comm_exchange e = {.comm = comm, .messages = own, .count = count};
    bool good = count >= 0 && count <= COMM_MOST_MESSAGES;
    for (int i = 0; i < count && good; i++) {
        const struct comm_message *m = &messages[i];
        good = m->bytes > 0 && m->tag >= 0 && m->peer >= 0 && m->peer < comm->size &&
               (m->peer != comm->rank || comm->size == 1);
        if (!good)
            return error_set(err, EXIT_FAILED, NULL,
                             "invalid message of %zu bytes, tag %d, rank %d to rank %d of %d", m->bytes,
                             m->tag, comm->rank, m->peer, comm->size);
        own[i] = *m;
        own[i].peer = comm_world_rank(comm, m->peer);
    }
    if (!good) return error_set(err, EXIT_FAILED, NULL, "%d messages in a call", count);
    if (!comm->ops || count == 0) return 0;
    if (comm->size == 1) return copy_own(comm, messages, count, err);
    struct comm *whole = comm_whole(comm);
    if (!whole->met) whole->met = xcalloc((size_t)whole->size, sizeof *whole->met);
    return comm_call(comm, transfer, &e, err);
}
