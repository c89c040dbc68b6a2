/* Messages between ranks of one host: see local.c. Both ends show the header of their call first, and move
 * data only after comparing. A sender writes pieces into its area; the receiver copies them out. All
 * messages of a call move in any order; those from one rank to another, one after the other. */
#include "core/comm/local_internal.h"

#include <stdio.h>
#include <string.h>

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

int local_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
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
