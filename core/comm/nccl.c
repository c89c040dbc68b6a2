/* The back end for ranks with one card each, all of one vendor, through RCCL or NCCL. Data goes from card
 * to card on a side stream, in parallel with computing.
 *
 * The library only transfers bytes, by send, receive, broadcast and all-gather, so its algorithms do not
 * affect rounding. A kernel of MEOpt computes the sums in rank order or by a tree
 * (kernels/gpu/elementwise.hip, sum_ranks, sum_tree); they are bit-identical to those of the other back
 * ends. Only with comm_options.library do the library's own sums replace those in rank order.
 *
 * The headers of a collective (comm.h) are sent on the same stream before its arrays. The card does not
 * wait for the host, which compares the headers during the transfer and before the collective returns.
 *
 * The communicator is nonblocking. While a call is in progress, this thread polls its state and the abort
 * flag that the heartbeat's thread sets (nccl_abort), and aborts the communicator itself. The library does
 * not notice that a rank of the same host has died; the heartbeat does.
 */
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/comm/comm_internal.h"
#include "core/comm/nccl_api.h"
#include "core/device/facts.h"
#include "core/device/side_stream.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NCCL_JOIN_SECONDS = 120,
    HEADERS_BYTES = (COMM_MOST_RANKS + 1) * sizeof(struct comm_header),
    PARTS_BYTES = (NCCL_CARD_BYTES - HEADERS_BYTES) & ~255
};

/* The communicators of a rank differ in comm, comparing, exchange and open. */
struct nccl {
    const struct nccl_api *api;
    void *comm;
    struct side_stream *lane;       /* the side stream of the collectives */
    void *stream;                   /* its handle */
    char *parts;                    /* (PARTS_BYTES) on the card: data received from other ranks */
    char *headers;                  /* on the card, after `parts`: headers of all ranks, then this rank's */
    bool comparing;                 /* headers are being transferred */
    struct comm_exchange *exchange; /* those of messages; NULL: of a collective */
    bool open;
    atomic_int *aborted, abort_flag; /* exit code; 0: not aborted. aborted: the flag of comm_open's */
};
static struct nccl *nccl_of(const struct comm *comm) { return comm->state; }

/* Collects the results of the calls in a group: the first failure counts. */
struct nccl_group {
    struct nccl *n;
    int result;
};

enum { SHORT_NS = 10000, LONG_NS = 500000, LEAVE_SECONDS = 5 };
enum { HEADERS_SECONDS = 3 }; /* after a failure: longest wait for the headers that explain it */

/* ---- waiting, unless the run is aborted ---- */

static void backoff(long *ns)
{
    nanosleep(&(struct timespec){.tv_nsec = *ns}, NULL);
    if (*ns < LONG_NS) *ns *= 2;
}

/* Aborts the communicator and its pending work on the card. */
static void nccl_drop(struct nccl *n)
{
    if (n->comm) n->api->abort(n->comm);
    n->comm = NULL;
}

/* Returns the communicator's state, or the error of asking for it. */
static int library_state(const struct nccl *n)
{
    int result = NCCL_SUCCESS, asked = n->api->state(n->comm, &result);
    return asked ? asked : result;
}

/* Returns whether a header is missing because the library failed: the failure ends the queued work, and a
 * header that has not arrived still has the zeros of send_headers. */
static bool headers_lost(const struct comm *comm)
{
    const struct nccl *n = nccl_of(comm);
    int64_t number; /* the first member of a header */
    size_t stride = n->exchange ? sizeof(struct comm_pair) : sizeof(struct comm_header);
    int missing = 0, count = n->exchange ? n->exchange->peer_count : comm->size;
    for (int r = 0; r < count; r++) {
        memcpy(&number, comm->window->receive + (size_t)r * stride, sizeof number);
        missing += number == 0;
    }
    if (!missing || !n->comm) return false;
    int result = library_state(n);
    return result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS;
}

/* Compares the headers if they have arrived. */
static int compare_headers(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    if (!n->comparing || side_stream_ended(n->lane) != 0)
        return 0; /* wait_for_card reports an error of the card */
    n->comparing = false;
    if (headers_lost(comm)) return 0; /* comm_state reports the library's failure */
    int code = 0;
    if (!n->exchange) code = comm_compare(comm, comm->window->receive, sizeof comm->header, err);
    for (int i = 0; n->exchange && i < n->exchange->peer_count && !code; i++) {
        struct comm_peer *p = &n->exchange->peers[i];
        memcpy(&p->other, comm->window->receive + (size_t)i * sizeof p->other, sizeof p->other);
        code = comm_compare_pair(n->exchange, p, err);
    }
    if (code) nccl_drop(n);
    return code;
}

/* Waits briefly for the headers: ranks in different calls also make the library fail. Returns the mismatch.
 * */
static int explain_by_headers(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    double until = clock_seconds() + HEADERS_SECONDS;
    long ns = SHORT_NS;
    int code = compare_headers(comm, err);
    for (; !code && n->comparing && clock_seconds() < until; code = compare_headers(comm, err)) backoff(&ns);
    return code;
}

static int nccl_failed(struct comm *comm, int result, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    int code = explain_by_headers(comm, err);
    if (code) return code;
    const char *more = n->api->last_error && n->comm ? n->api->last_error(n->comm) : NULL;
    error_set(err, EXIT_RANK_LOST,
              "see the logs of the other ranks; for details set NCCL_DEBUG=INFO in the environment",
              "%s on rank %d of %d, in %s %lld: %s (%d)%s%.200s", n->api->path, comm->rank, comm->size,
              comm_call_names[comm->header.call], (long long)comm->header.number, n->api->text(result),
              result, more && *more ? ": " : "", more ? more : "");
    nccl_drop(n);
    return EXIT_RANK_LOST;
}

static int nccl_card_failed(struct comm *comm, int code, struct error *err)
{
    char text[160];
    struct nccl *n = nccl_of(comm);
    nccl_drop(n);
    return error_set(err, EXIT_FAILED, "see 'meopt doctor'", "collective on %s failed: %s",
                     comm->device->name, side_stream_text(n->lane, code, text, sizeof text));
}

/* Returns EXIT_RANK_LOST if the run is being aborted, or the error of mismatched headers. */
static int torn_down(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    int code = atomic_load(n->aborted);
    if (!code && n->comm) return compare_headers(comm, err);
    nccl_drop(n);
    return error_set(err, EXIT_RANK_LOST, "see the log of that rank",
                     "another rank failed or is lost, in %s %lld", comm_call_names[comm->header.call],
                     (long long)comm->header.number);
}

/* Waits until the library has finished the call that returned `result`. seconds 0: without a limit */
static int nccl_done(struct comm *comm, int result, double seconds, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    double until = clock_seconds() + seconds;
    long ns = SHORT_NS;
    int code;
    while (result == NCCL_IN_PROGRESS) {
        if ((code = torn_down(comm, err)) != 0) return code;
        if (seconds > 0 && clock_seconds() > until)
            return error_set(err, EXIT_RANK_LOST,
                             "set NCCL_DEBUG=INFO to see where it waits, NCCL_SOCKET_IFNAME to select the "
                             "network",
                             "%s: the ranks did not connect within %.0f s", n->api->path, seconds);
        backoff(&ns);
        result = library_state(n);
    }
    return result ? nccl_failed(comm, result, err) : 0;
}

/* Returns the communicator's error; 0: none. */
static int comm_state(struct comm *comm, struct error *err)
{
    int lost = torn_down(comm, err);
    if (lost) return lost;
    int result = library_state(nccl_of(comm));
    return result && result != NCCL_IN_PROGRESS ? nccl_failed(comm, result, err) : 0;
}

/* Waits until the card has reached side_stream_end. */
static int wait_for_card(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    long ns = SHORT_NS;
    int code, lost = 0;
    while ((code = side_stream_ended(n->lane)) == SIDE_STREAM_BUSY && (lost = comm_state(comm, err)) == 0)
        backoff(&ns);
    return lost ? lost : code ? nccl_card_failed(comm, code, err) : 0;
}

/* Waits for the headers, compares them and waits for the queued work. Finished work may still have failed,
 * so it checks the communicator's state last. */
static int nccl_finish(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    int code = n->comparing ? wait_for_card(comm, err) : 0;
    if (!code) code = compare_headers(comm, err);
    if (code) return code;
    int failed = side_stream_end(n->lane);
    if (failed) return nccl_card_failed(comm, failed, err);
    code = wait_for_card(comm, err);
    return code ? code : comm_state(comm, err);
}

/* ---- ordering after the device's stream ---- */

static void *nccl_mark(struct comm *comm)
{
    struct nccl *n = nccl_of(comm);
    return n->open ? side_stream_mark(n->lane) : NULL;
}

static int nccl_follow(struct comm *comm, void *mark, struct error *err)
{
    int code = side_stream_follow(nccl_of(comm)->lane, mark);
    return code ? nccl_card_failed(comm, code, err) : 0;
}

/* ---- transfers ---- */

static int nccl_group_begin(struct comm *comm, struct nccl_group *g, struct error *err)
{
    *g = (struct nccl_group){.n = nccl_of(comm)};
    int code = torn_down(comm, err);
    if (!code) g->result = g->n->api->group_start();
    return code;
}
static void nccl_group_add(struct nccl_group *g, int result)
{
    if (!g->result || g->result == NCCL_IN_PROGRESS) g->result = result;
}
static int nccl_group_end(struct comm *comm, struct nccl_group *g, struct error *err)
{
    int result = g->n->api->group_end();
    if (g->result && g->result != NCCL_IN_PROGRESS) result = g->result;
    return nccl_done(comm, result, 0, err);
}

/* All-gathers the headers of this collective, before its arrays. */
static int send_headers(struct comm *comm, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct comm_window *w = comm->window;
    size_t bytes = sizeof comm->header, all = bytes * (size_t)comm->size;
    struct nccl_group g;
    memset(w->send, 0, all); /* no header of an earlier collective remains */
    memcpy(w->send + all, &comm->header, bytes);
    int failed = side_stream_upload(n->lane, n->headers, w->send, all + bytes);
    if (failed) return nccl_card_failed(comm, failed, err);
    int code = nccl_group_begin(comm, &g, err);
    if (code) return code;
    nccl_group_add(&g,
                   n->api->all_gather(n->headers + all, n->headers, bytes, NCCL_UINT8, n->comm, n->stream));
    if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
    failed = side_stream_download(n->lane, w->receive, n->headers, all);
    if (!failed) failed = side_stream_end(n->lane);
    n->comparing = !failed;
    return failed ? nccl_card_failed(comm, failed, err) : 0;
}

/* Sums by the library's reduce-scatter, which has parts of equal size: a kernel copies them to `parts`, in
 * fp32. */
static int nccl_scatter_sums(struct comm *comm, const struct comm_sum *s, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    size_t size = dtype_bytes(s->type);
    bool contributes = !s->contributors || comm->rank < s->contributors;
    int code = send_headers(comm, err);
    int64_t most = (int64_t)((size_t)PARTS_BYTES / (size_t)comm->size / sizeof(float)) & ~(int64_t)63,
            longest = comm_longest_part(comm->size, s->offsets);
    float *parts = (float *)(void *)n->parts;
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most,
                own = comm_part(s->offsets, comm->rank, at, slice);
        float *sum = parts + comm->rank * slice;
        struct nccl_group g;
        int launched = 0;
        for (int q = 0; q < comm->size && !launched; q++) {
            struct side_stream_sum part = {.type = s->type,
                                           .own = (const char *)s->send + (size_t)(s->offsets[q] + at) * size,
                                           .contributors = contributes,
                                           .out = parts + q * slice,
                                           .count = comm_part(s->offsets, q, at, slice)};
            if (part.count) launched = side_stream_sum(n->lane, &part);
        }
        if (launched) return nccl_card_failed(comm, launched, err);
        if ((code = nccl_group_begin(comm, &g, err)) != 0) return code;
        nccl_group_add(&g, n->api->reduce_scatter(parts, sum, (size_t)slice, NCCL_FLOAT32, NCCL_SUM, n->comm,
                                                  n->stream));
        if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
        struct side_stream_sum all = {.type = DTYPE_F32,
                                      .before = s->before ? s->before + at : NULL,
                                      .own = sum,
                                      .contributors = 1,
                                      .out = s->receive + at,
                                      .count = own};
        if (own && (launched = side_stream_sum(n->lane, &all)) != 0)
            return nccl_card_failed(comm, launched, err);
    }
    return code ? code : nccl_finish(comm, err);
}

/* Queues the sums of this rank's part, after the headers. */
static int reduce_parts(struct comm *comm, const struct comm_sum *s, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    size_t size = dtype_bytes(s->type);
    int contributors = s->contributors > 0 && s->contributors < comm->size ? s->contributors : comm->size;
    int code = 0;
    int64_t most = (int64_t)((size_t)PARTS_BYTES / (size_t)comm->size / size) & ~(int64_t)63,
            longest = comm_longest_part(comm->size, s->offsets);
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t own = comm_part(s->offsets, comm->rank, at, most), stride = most * (int64_t)size;
        struct nccl_group g;
        if ((code = nccl_group_begin(comm, &g, err)) != 0) return code;
        for (int q = 0; q < comm->size; q++) {
            int64_t count = comm_part(s->offsets, q, at, most);
            if (q == comm->rank) continue;
            if (count && comm->rank < contributors)
                nccl_group_add(&g, n->api->send((const char *)s->send + (size_t)(s->offsets[q] + at) * size,
                                                (size_t)count * size, NCCL_UINT8, q, n->comm, n->stream));
            if (own && q < contributors)
                nccl_group_add(&g, n->api->receive(n->parts + q * stride, (size_t)own * size, NCCL_UINT8, q,
                                                   n->comm, n->stream));
        }
        if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
        struct side_stream_sum sum = {.type = s->type,
                                      .before = s->before ? s->before + at : NULL,
                                      .received = n->parts,
                                      .own = (const char *)s->send +
                                             (size_t)(s->offsets[comm->rank] + at) * size,
                                      .stride = stride,
                                      .me = comm->rank,
                                      .contributors = contributors,
                                      .out = s->receive + at,
                                      .count = own,
                                      .tree = s->tree};
        int launched = own ? side_stream_sum(n->lane, &sum) : 0;
        if (launched) return nccl_card_failed(comm, launched, err);
    }
    return code;
}

static int nccl_reduce(struct comm *comm, const struct comm_sum *s, struct error *err)
{
    if (comm_sums_by_library(comm) && !s->tree) return nccl_scatter_sums(comm, s, err);
    int code = send_headers(comm, err);
    if (!code) code = reduce_parts(comm, s, err);
    return code ? code : nccl_finish(comm, err);
}

/* Queues the broadcasts of all parts. */
static int gather_parts(struct comm *comm, const void *own, void *p, const int64_t *offsets,
                        struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct nccl_group g;
    int code = nccl_group_begin(comm, &g, err);
    if (code) return code;
    for (int q = 0; q < comm->size; q++) {
        char *part = (char *)p + offsets[q];
        if (offsets[q + 1] > offsets[q])
            nccl_group_add(&g, n->api->broadcast(own && q == comm->rank ? own : part, part,
                                                 (size_t)(offsets[q + 1] - offsets[q]), NCCL_UINT8, q,
                                                 n->comm, n->stream));
    }
    return nccl_group_end(comm, &g, err);
}

static int nccl_gather(struct comm *comm, const void *own, void *p, const int64_t *offsets, struct error *err)
{
    int code = send_headers(comm, err);
    if (!code) code = gather_parts(comm, own, p, offsets, err);
    return code ? code : nccl_finish(comm, err);
}

/* The gather follows the sums on the card; the host waits once. */
static int nccl_tree(struct comm *comm, const struct comm_sum *s, const int64_t *bytes, struct error *err)
{
    int code = send_headers(comm, err);
    if (!code) code = reduce_parts(comm, s, err);
    if (!code) code = gather_parts(comm, NULL, (void *)(uintptr_t)s->send, bytes, err);
    return code ? code : nccl_finish(comm, err);
}

static int nccl_combine(struct comm *comm, void *p, size_t bytes, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    size_t most = PARTS_BYTES / (size_t)comm->size & ~(size_t)63;
    int code = send_headers(comm, err);
    for (size_t at = 0; at < bytes && !code; at += most) {
        size_t slice = bytes - at < most ? bytes - at : most;
        struct nccl_group g;
        if ((code = nccl_group_begin(comm, &g, err)) != 0) return code;
        nccl_group_add(&g,
                       n->api->all_gather((char *)p + at, n->parts, slice, NCCL_UINT8, n->comm, n->stream));
        if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
        if ((code = side_stream_combine(n->lane, n->parts, comm->size, (char *)p + at, slice)) != 0)
            return nccl_card_failed(comm, code, err);
    }
    return code ? code : nccl_finish(comm, err);
}

enum kind { ALL_TO_ALL, ALL_GATHER, TO_RANK_0 };

/* Moves host memory through the card: sent from the first half of `parts`, received in the second half. */
static int exchange_via_card(struct comm *comm, const void *send, void *receive, size_t bytes, enum kind kind,
                             struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct comm_window *w = comm->window;
    size_t all = bytes * (size_t)comm->size, sent = kind == ALL_TO_ALL ? all : bytes;
    bool takes = kind != TO_RANK_0 || comm->rank == 0;
    char *from = n->parts, *to = n->parts + PARTS_BYTES / 2;
    struct nccl_group g;
    const void *pinned = send;
    if (send != w->send) pinned = memcpy(w->receive, send, sent); /* memory that the card can read */
    int code = side_stream_upload(n->lane, from, pinned, sent);
    if (code) return nccl_card_failed(comm, code, err);
    if ((code = nccl_group_begin(comm, &g, err)) != 0) return code;
    if (kind == ALL_GATHER)
        nccl_group_add(&g, n->api->all_gather(from, to, bytes, NCCL_UINT8, n->comm, n->stream));
    for (int q = 0; q < comm->size && kind != ALL_GATHER; q++) {
        size_t at = (size_t)q * bytes;
        const char *part = kind == ALL_TO_ALL ? from + at : from;
        if (kind == ALL_TO_ALL || q == 0) /* rank 0 sends to itself, too */
            nccl_group_add(&g, n->api->send(part, bytes, NCCL_UINT8, q, n->comm, n->stream));
        if (takes) nccl_group_add(&g, n->api->receive(to + at, bytes, NCCL_UINT8, q, n->comm, n->stream));
    }
    if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
    if (takes && (code = side_stream_download(n->lane, w->receive, to, all)) != 0)
        return nccl_card_failed(comm, code, err);
    if ((code = nccl_finish(comm, err)) == 0 && takes && receive != w->receive)
        memcpy(receive, w->receive, all);
    return code;
}

static int nccl_exchange(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    return exchange_via_card(comm, send, receive, bytes, ALL_TO_ALL, err);
}

static int nccl_gather_host(struct comm *comm, const void *send, void *receive, size_t bytes,
                            struct error *err)
{
    return exchange_via_card(comm, send, receive, bytes, ALL_GATHER, err);
}

static int nccl_collect(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    return exchange_via_card(comm, send, receive, bytes, TO_RANK_0, err);
}

static int nccl_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err)
{
    struct nccl *n = nccl_of(comm);
    struct comm_window *w = comm->window;
    struct nccl_group g;
    int failed = 0;
    if (comm->rank == root) failed = side_stream_upload(n->lane, n->parts, memcpy(w->send, p, bytes), bytes);
    if (failed) return nccl_card_failed(comm, failed, err);
    int code = nccl_group_begin(comm, &g, err);
    if (code) return code;
    nccl_group_add(&g, n->api->broadcast(n->parts, n->parts, bytes, NCCL_UINT8, root, n->comm, n->stream));
    if ((code = nccl_group_end(comm, &g, err)) != 0) return code;
    if ((failed = side_stream_download(n->lane, w->receive, n->parts, bytes)) != 0)
        return nccl_card_failed(comm, failed, err);
    if ((code = nccl_finish(comm, err)) == 0 && comm->rank != root) memcpy(p, w->receive, bytes);
    return code;
}

/* ---- messages: through the communicator of all ranks, so that two ends in different groups compare their
 * headers too ---- */

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

static int nccl_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
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

static int nccl_split(struct comm *comm, struct comm *part, bool open, struct error *err)
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

/* ---- RCCL or NCCL: agreed among the ranks, and described ---- */

/* The card and library of a rank. */
struct nccl_offer {
    int32_t kind, version; /* enum device_kind; release of the library, 0: none */
    struct nccl_id id;     /* set by rank 0 */
};

static void version_text(char text[24], int version)
{
    if (version < 10000) snprintf(text, 24, "%d.%d", version / 1000, version / 100 % 10);
    else snprintf(text, 24, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* Writes the reason why these ranks cannot use nccl, "" if they can. */
static void compare_offers(const struct nccl_offer *all, int size, char *why, size_t bytes)
{
    char ours[24], theirs[24];
    why[0] = 0;
    version_text(ours, all[0].version);
    for (int r = 0; r < size && !why[0]; r++) {
        const struct nccl_offer *o = &all[r];
        version_text(theirs, o->version);
        if (o->kind == DEVICE_CPU) snprintf(why, bytes, N_("rank %d computes on the CPU"), r);
        else if (o->kind != all[0].kind)
            snprintf(why, bytes, N_("rank 0 has a %s card, rank %d a %s one"), device_kind_names[all[0].kind],
                     r, device_kind_names[o->kind]);
        else if (!o->version) snprintf(why, bytes, N_("rank %d finds no usable %s"), r, nccl_names[o->kind]);
        else if (o->version != all[0].version)
            snprintf(why, bytes, N_("rank 0 has %s %s, rank %d %s"), nccl_names[o->kind], ours, r, theirs);
    }
}

static bool some_cards(const struct nccl_offer *all, int size)
{
    for (int r = 0; r < size; r++)
        if (all[r].kind != DEVICE_CPU) return true;
    return false;
}

static int offer_own(const struct comm *comm, struct nccl_meeting *m, struct nccl_offer *own,
                     struct error *err)
{
    char why[320] = "";
    enum device_kind kind = side_stream_kind(comm->device);
    *own = (struct nccl_offer){.kind = (int32_t)kind};
    m->api = NULL;
    if (kind == DEVICE_CPU) return 0;
    m->api = nccl_load(kind, why, sizeof why);
    if (!m->api) log_debug("rank %d: no %s: %s", comm->rank, nccl_names[kind], why);
    int code = m->api && comm->rank == 0 ? m->api->new_id(&own->id) : 0;
    if (code)
        return error_set(err, EXIT_FAILED, "set NCCL_DEBUG=INFO in the environment for details",
                         "%s (%s) could not create a communicator id: %s (%d)", nccl_names[kind],
                         m->api->path, m->api->text(code), code);
    own->version = m->api ? m->api->number : 0;
    return 0;
}

int nccl_meet(struct comm *comm, const struct comm_options *o, struct nccl_meeting *m, struct error *err)
{
    struct nccl_offer own, *all = calloc((size_t)o->size, sizeof *all);
    char why[sizeof comm->host_why];
    m->together = false;
    if (!all) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    int code = offer_own(comm, m, &own, err);
    if (!code) code = o->exchange(o->context, "library of the cards", &own, sizeof own, all, err);
    if (!code) {
        compare_offers(all, o->size, why, sizeof why);
        m->id = all[0].id;
        m->together = !why[0];
        if (why[0] && o->kind == COMM_NCCL)
            code = error_set(err, EXIT_CONFIG, "dist.backend=auto falls back to host memory",
                             "dist.backend is nccl, and %s", why);
        else if (some_cards(all, o->size)) snprintf(comm->host_why, sizeof comm->host_why, "%s", why);
    }
    free(all);
    return code;
}

void comm_fact(const struct comm *comm, struct device_fact *fact)
{
    static const char *const words[][2] = {{"self", N_("none: one rank")},
                                           {"local", N_("shared memory of this host")},
                                           {"mpi", N_("MPI, through host memory")}};
    char version[24], why[320];
    enum device_kind kind = side_stream_kind(comm->device);
    const struct nccl_api *api =
        strcmp(comm->ops->name, "nccl") == 0 ? nccl_load(kind, why, sizeof why) : NULL;
    *fact = (struct device_fact){.name = N_("collectives")};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(comm->ops->name, words[i][0]) == 0) snprintf(fact->is, sizeof fact->is, "%s", words[i][1]);
    if (api) {
        version_text(version, api->number);
        snprintf(fact->is, sizeof fact->is, N_("from card to card by %s %s (%.200s)"), nccl_names[kind],
                 version, api->path);
    } else if (comm->host_why[0]) {
        snprintf(fact->cost, sizeof fact->cost,
                 N_("computing waits while gradients go through the host's memory"));
        snprintf(fact->remedy, sizeof fact->remedy, "%s", comm->host_why);
    } else if (kind != DEVICE_CPU && comm->size > 1)
        snprintf(fact->cost, sizeof fact->cost,
                 N_("computing waits while gradients go through the host's memory"));
    const struct comm *whole = comm->whole ? comm->whole : comm;
    size_t length = strlen(fact->is);
    if (comm->size > 1 && whole->options.library)
        snprintf(fact->is + length, sizeof fact->is - length, "; %s",
                 comm_sums_by_library(comm) ? N_("its own sums, whose rounding depends on the ranks")
                                            : N_("sums in rank order"));
}

bool nccl_planned(const struct device *device)
{
    char why[320];
    enum device_kind kind = side_stream_kind(device);
    return kind != DEVICE_CPU && (device_assumed(device) || nccl_load(kind, why, sizeof why));
}

/* ---- opening and closing ---- */

static void nccl_abort(struct comm *comm, int exit_code)
{
    struct nccl *n = nccl_of(comm);
    int none = 0;
    atomic_compare_exchange_strong(n->aborted, &none, exit_code ? exit_code : EXIT_FAILED);
}

/* Destroys the communicator; after a failure, aborts it. */
static void leave_comm(struct comm *comm)
{
    struct nccl *n = nccl_of(comm);
    struct error ignored;
    if (!n->comm) return;
    if (!n->open || comm_whole(comm)->broken.code || atomic_load(n->aborted) ||
        nccl_done(comm, n->api->finalize(n->comm), LEAVE_SECONDS, &ignored))
        nccl_drop(n);
    else n->api->destroy(n->comm);
    n->comm = NULL;
}

static void nccl_close(struct comm *comm)
{
    struct nccl *n = nccl_of(comm);
    leave_comm(comm);
    if (!comm->whole) side_stream_close(n->lane);
    if (!comm->whole) device_free(comm->device, n->parts);
    free(n);
    comm->state = NULL;
}

const char nccl_parts_name[] = "receive buffer from other ranks";

int comm_nccl_open(struct comm *comm, void *meeting, struct error *err)
{
    static const struct comm_ops nccl = {.name = "nccl",
                                         .exchange = nccl_exchange,
                                         .gather = nccl_gather_host,
                                         .broadcast = nccl_broadcast,
                                         .collect = nccl_collect,
                                         .reduce_device = nccl_reduce,
                                         .sums = true,
                                         .gather_device = nccl_gather,
                                         .combine_device = nccl_combine,
                                         .tree_device = nccl_tree,
                                         .transfer = nccl_transfer,
                                         .split = nccl_split,
                                         .mark = nccl_mark,
                                         .follow = nccl_follow,
                                         .abort = nccl_abort,
                                         .close = nccl_close};
    const struct nccl_meeting *m = meeting;
    struct nccl *n = calloc(1, sizeof *n);
    struct nccl_config config = NCCL_CONFIG;
    if (!n) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    n->api = m->api;
    n->aborted = &n->abort_flag;
    comm->ops = &nccl;
    comm->state = n;
    comm_enter(comm, COMM_JOIN, 0, 0, err);
    int code = side_stream_open(&n->lane, comm->device, err);
    if (!code) {
        n->stream = side_stream_handle(n->lane);
        n->parts = device_alloc(comm->device, MEMORY_COMM, NCCL_CARD_BYTES, nccl_parts_name, err);
        if (!n->parts) code = err->code;
        n->headers = n->parts + PARTS_BYTES;
    }
    if (!code)
        code = nccl_done(comm, n->api->init(&n->comm, comm->size, m->id, comm->rank, &config),
                         NCCL_JOIN_SECONDS, err);
    n->open = !code;
    return comm_leave(comm, code, err); /* closed by the caller */
}
