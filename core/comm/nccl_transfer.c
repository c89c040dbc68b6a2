/* Messages and groups of ranks through RCCL or NCCL: see nccl.c. Messages go through the communicator of all
 * ranks, so that two ends in different groups compare their headers too. */
#include "core/base/file.h"
#include "core/comm/nccl_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

/* Sends this rank's headers to its peers, before their messages, and receives theirs. */
static int send_pair_headers(struct comm *comm, struct comm_exchange *e, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct comm_window *w = comm->window;
    size_t bytes = sizeof(struct comm_pair), all = bytes * (size_t)e->peer_count;
    struct nccl_group g;
    memset(w->send, 0, all);
    for (int i = 0; i < e->peer_count; i++)
        memcpy(w->send + all + (size_t)i * bytes, &e->peers[i].own, bytes);
    int failed = side_stream_upload(n->lane, n->headers, w->send, 2 * all);
    if (failed) return nccl_card_failed(comm, failed, err);
    int code = nccl_group_begin(comm, &g, err);
    if (code) return code;
    for (int i = 0; i < e->peer_count; i++) {
        int peer = e->peers[i].rank;
        char *other = n->headers + (size_t)i * bytes;
        nccl_group_add(&g, n->api->send(other + all, bytes, NCCL_UINT8, peer, n->comm, n->stream));
        nccl_group_add(&g, n->api->receive(other, bytes, NCCL_UINT8, peer, n->comm, n->stream));
    }
    if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
    failed = side_stream_download(n->lane, w->receive, n->headers, all);
    if (!failed) failed = side_stream_end(n->lane);
    n->comparing = !failed;
    return failed ? nccl_card_failed(comm, failed, err) : 0;
}

static int send_messages(struct comm *comm, const struct comm_exchange *e, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct nccl_group g;
    int code = nccl_group_begin(comm, &g, err);
    if (code) return code;
    for (int i = 0; i < e->count; i++) {
        const struct comm_message *m = &e->messages[i];
        nccl_group_add(&g, m->receive
                               ? n->api->receive(m->p, m->bytes, NCCL_UINT8, m->peer, n->comm, n->stream)
                               : n->api->send(m->p, m->bytes, NCCL_UINT8, m->peer, n->comm, n->stream));
    }
    return nccl_group_end(comm, &g, err);
}

int nccl_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    n->exchange = e;
    int code = send_pair_headers(comm, e, err);
    if (!code) code = send_messages(comm, e, err);
    if (!code) code = nccl_finish(comm, err);
    n->exchange = NULL;
    return code;
}

/* ---- groups ---- */

/* Every rank calls it; those of one rank get no communicator. */
static int split_by_library(struct comm *comm, struct comm *part, bool open, struct error *err)
{
    struct nccl *whole = nccl_of(comm), *n = part->state;
    struct nccl_config config = NCCL_CONFIG;
    int color = open ? part->members[0] : NCCL_NO_COLOR;
    int result = whole->api->split(whole->comm, color, comm->rank, &n->comm, &config);
    return nccl_done(comm, result, NCCL_JOIN_SECONDS, err); /* the library sets n->comm until then */
}

/* For releases without ncclCommSplit: the first rank of each part gives an id. */
static int join_by_id(struct comm *comm, struct comm *part, bool open, struct error *err)
{
    struct nccl *n = part->state;
    struct nccl_config config = NCCL_CONFIG;
    struct nccl_id id = {{0}};
    int failed = open && part->rank == 0 ? n->api->new_id(&id) : 0;
    if (failed)
        return error_set(err, EXIT_FAILED, "set NCCL_DEBUG=INFO in the environment for details",
                         "%s could not create a communicator id: %s (%d)", n->api->path, n->api->text(failed),
                         failed);
    int code = comm_gather_bytes(comm, &id, sizeof id, err);
    if (code || !open) return code;
    memcpy(&id, comm->window->receive + (size_t)part->members[0] * sizeof id, sizeof id);
    return nccl_done(part, n->api->init(&n->comm, part->size, id, part->rank, &config), NCCL_JOIN_SECONDS,
                     err);
}

int nccl_split(struct comm *comm, struct comm *part, bool open, struct error *err)
{
    const struct nccl *whole = nccl_of(comm);
    struct nccl *n = part->state = xcalloc(1, sizeof *n);
    *n = (struct nccl){.api = whole->api,
                       .lane = whole->lane,
                       .stream = whole->stream,
                       .parts = whole->parts,
                       .headers = whole->headers,
                       .aborted = whole->aborted};
    int code = (n->api->split ? split_by_library : join_by_id)(comm, part, open, err);
    if (!code && open && n->api->split) code = nccl_done(part, NCCL_IN_PROGRESS, NCCL_JOIN_SECONDS, err);
    n->open = !code;
    if (open && !code) {
        part->ops = comm->ops;
        return 0;
    }
    if (code) nccl_drop(n);
    free(n);
    part->state = NULL;
    return code;
}
