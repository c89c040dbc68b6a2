/* The collectives, on top of a back end that transfers bytes: see comm.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/comm/comm_internal.h"
#include "kernels/bf16.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- headers ---- */

/* The first message of every collective, for back ends that do not compare headers themselves. It has the
 * same size for all calls, so ranks that are in different calls can still compare headers. */
struct envelope {
    struct comm_header header;
    char message[SMALL_MESSAGE];
};

/* Returns a checksum of `count` offsets and two more arguments. */
static uint32_t checksum_arguments(const int64_t *offsets, int count, int a, int b)
{
    const int32_t others[] = {count, a, b};
    return crc32c(crc32c(0, others, sizeof others), offsets, (size_t)count * sizeof *offsets);
}

/* Exchanges and compares headers, for back ends that do not do it themselves, with a message of `bytes`, at
 * most SMALL_MESSAGE; window->receive gets those of all ranks, in rank order. */
static int comm_compare_calls(struct comm *comm, const void *message, size_t bytes, struct error *err)
{
    struct envelope own = {.header = comm->header};
    char *all = comm->window->receive;
    if (comm->ops->compares || comm->compared) return 0;
    if (comm->ops->compare) {
        int differs = comm->ops->compare(comm, err);
        comm->compared = !differs;
        return differs;
    }
    if (bytes) memcpy(own.message, message, bytes);
    int code = comm->ops->gather(comm, &own, all, sizeof own, err);
    if (!code) code = comm_compare(comm, all, sizeof own, err);
    for (int q = 0; q < comm->size && !code; q++)
        memmove(all + (size_t)q * bytes, all + (size_t)q * sizeof own + offsetof(struct envelope, message),
                bytes);
    comm->compared = !code;
    return code;
}

int comm_gather_bytes(struct comm *comm, const void *send, size_t bytes, struct error *err)
{
    bool with_header =
        !comm->ops->compares && !comm->ops->compare && !comm->compared && bytes <= SMALL_MESSAGE;
    int code = comm_compare_calls(comm, send, with_header ? bytes : 0, err);
    return code || with_header ? code : comm->ops->gather(comm, send, comm->window->receive, bytes, err);
}

/* ---- arrays through the window ---- */

/* Locks the device for a copy, never while waiting for other ranks: the caller's thread uses the device. */
static void enter_device(struct comm *comm)
{
    if (comm->device->enter) comm->device->enter(comm->device);
}
static void leave_device(struct comm *comm)
{
    if (comm->device->leave) comm->device->leave(comm->device);
}

void comm_download(struct comm *comm, bool of_host, void *host, const void *from, size_t bytes)
{
    if (!bytes) return;
    if (of_host) memcpy(host, from, bytes);
    else {
        enter_device(comm);
        comm->device->download(comm->device, host, from, bytes);
        leave_device(comm);
    }
}

void comm_upload(struct comm *comm, bool of_host, void *to, const void *host, size_t bytes)
{
    if (!bytes) return;
    if (of_host) memcpy(to, host, bytes);
    else {
        enter_device(comm);
        comm->device->upload(comm->device, to, host, bytes);
        leave_device(comm);
    }
}

/* to = from + value, the contribution of one rank. `from` NULL: 0 */
static void add(float *to, const float *from, const void *value, enum dtype type, int64_t count)
{
    const float *f = value;
    const uint16_t *b = value;
    if (type == DTYPE_F32) {
        for (int64_t i = 0; i < count; i++) to[i] = (from ? from[i] : 0.0f) + f[i];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)b[i] << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        to[i] = (from ? from[i] : 0.0f) + x;
    }
}

/* Downloads the slice for each rank to `to`, and the earlier sum, with one wait for all copies. */
static void fetch_slice(struct comm *comm, const struct comm_sum *s, int64_t at, int64_t slice, char *to,
                        bool contributes)
{
    struct comm_window *w = comm->window;
    struct device *dev = comm->device;
    size_t size = dtype_bytes(s->type), bytes = (size_t)slice * size;
    int64_t count = comm_part(s->offsets, comm->rank, at, slice);
    enter_device(comm);
    for (int q = 0; q < comm->size && contributes; q++) {
        size_t part = (size_t)comm_part(s->offsets, q, at, slice) * size;
        if (part)
            dev->streams->download(dev, NULL, to + (size_t)q * bytes,
                                   (const char *)s->send + (size_t)(s->offsets[q] + at) * size, part);
    }
    if (s->before && count && !dev->host_memory)
        dev->streams->download(dev, NULL, w->sum, s->before + at, (size_t)count * sizeof *w->sum);
    dev->streams->finish(dev, NULL);
    leave_device(comm);
}

/* Adds the parts of 2, 4 or 8 ranks by a balanced tree, to the first one. */
static const float *add_by_tree(char *parts, size_t bytes, int ranks, int64_t count)
{
    for (int gap = 1; gap < ranks; gap *= 2)
        for (int r = 0; r < ranks; r += 2 * gap) {
            float *a = (float *)(void *)(parts + (size_t)r * bytes);
            const float *b = (const float *)(const void *)(parts + (size_t)(r + gap) * bytes);
            for (int64_t i = 0; i < count; i++) a[i] += b[i];
        }
    return (const float *)(const void *)parts;
}

static int reduce_slices(struct comm *comm, const struct comm_sum *s, struct error *err)
{
    struct comm_window *w = comm->window;
    size_t size = dtype_bytes(s->type);
    int contributors = s->contributors > 0 && s->contributors < comm->size ? s->contributors : comm->size;
    int64_t most = (int64_t)(w->slice_bytes / size), longest = comm_longest_part(comm->size, s->offsets);
    bool host = comm->device->host_memory;
    if (most > (int64_t)(w->sum_bytes / sizeof *w->sum)) most = (int64_t)(w->sum_bytes / sizeof *w->sum);
    int code = comm_compare_calls(comm, NULL, 0, err);
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most;
        size_t bytes = (size_t)slice * size;
        fetch_slice(comm, s, at, slice, w->send, comm->rank < contributors);
        if ((code = comm->ops->exchange(comm, w->send, w->receive, bytes, err)) != 0) break;
        int64_t count = comm_part(s->offsets, comm->rank, at, slice);
        float *sum = host ? s->receive + at : w->sum;
        const float *before = !s->before ? NULL : host ? s->before + at : w->sum, *made = sum;
        for (int r = 0; r < contributors && count && !s->tree; r++)
            add(sum, r ? sum : before, w->receive + (size_t)r * bytes, s->type, count);
        if (s->tree) made = add_by_tree(w->receive, bytes, contributors, count);
        if (!host || s->tree) comm_upload(comm, host, s->receive + at, made, (size_t)count * sizeof *sum);
    }
    return code;
}

/* The same by the library, whose reduce-scatter has parts of equal size, in fp32. */
static int scatter_sums(struct comm *comm, const struct comm_sum *s, struct error *err)
{
    struct comm_window *w = comm->window;
    bool host = comm->device->host_memory, widen = s->type != DTYPE_F32,
         contributes = !s->contributors || comm->rank < s->contributors;
    int64_t most = (int64_t)(w->slice_bytes / sizeof(float)),
            longest = comm_longest_part(comm->size, s->offsets);
    float *send = (float *)(void *)w->send, *received = (float *)(void *)w->receive;
    int code = comm_compare_calls(comm, NULL, 0, err);
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most,
                count = comm_part(s->offsets, comm->rank, at, slice);
        size_t each = (size_t)slice * dtype_bytes(s->type);
        fetch_slice(comm, s, at, slice, widen ? w->receive : w->send, contributes);
        for (int q = 0; q < comm->size; q++) {
            int64_t part = contributes ? comm_part(s->offsets, q, at, slice) : 0;
            if (widen) add(send + q * slice, NULL, w->receive + (size_t)q * each, s->type, part);
            memset(send + q * slice + part, 0, (size_t)(slice - part) * sizeof *send);
        }
        if ((code = comm->ops->scatter_sums(comm, send, received, slice, err)) != 0) break;
        float *sum = host ? s->receive + at : w->sum;
        add(sum, !s->before ? NULL : host ? s->before + at : w->sum, received, DTYPE_F32, count);
        if (!host) comm_upload(comm, host, s->receive + at, w->sum, (size_t)count * sizeof *sum);
    }
    return code;
}

bool comm_sums_by_library(const struct comm *comm)
{
    const struct comm *whole = comm->whole ? comm->whole : comm;
    return comm->size > 1 && whole->options.library && comm->ops && comm->ops->sums;
}

static int reduce(struct comm *comm, void *context, struct error *err)
{
    const struct comm_sum *s = context;
    bool on_device = !comm->device->host_memory && comm->ops->reduce_device;
    int code = comm_enter(
        comm, COMM_REDUCE, s->offsets[comm->size] * (int64_t)dtype_bytes(s->type),
        checksum_arguments(s->offsets, comm->size + 1,
                           (int)s->type | comm_whole(comm)->options.library << 8 | (s->tree ? 1 << 9 : 0),
                           s->contributors),
        err);
    if (code) return code;
    return comm_leave(comm,
                      (on_device                                ? comm->ops->reduce_device
                       : comm_sums_by_library(comm) && !s->tree ? scatter_sums
                                                                : reduce_slices)(comm, s, err),
                      err);
}

int comm_reduce(struct comm *comm, const struct comm_sum *sum, struct error *err)
{
    bool good = sum->offsets && sum->offsets[0] == 0 && sum->contributors >= 0 &&
                sum->contributors <= comm->size && (sum->type == DTYPE_F32 || sum->type == DTYPE_BF16);
    if (good && sum->tree)
        good = comm_adds_by_tree(comm->size) && sum->type == DTYPE_F32 && !sum->before &&
               (!sum->contributors || sum->contributors == comm->size);
    for (int q = 0; q < comm->size && good; q++) good = sum->offsets[q] <= sum->offsets[q + 1];
    if (!good)
        return error_set(err, EXIT_FAILED, NULL, "invalid partition of a sum of %s values by %d of %d ranks",
                         dtype_name(sum->type), sum->contributors, comm->size);
    if (comm->ops && comm->size == 1 && sum->tree) {
        if (sum->receive != sum->send)
            comm->device->ops->copy(comm->device, sum->receive, sum->send,
                                    (size_t)sum->offsets[1] * sizeof(float));
        return 0;
    }
    if (comm->ops && comm->size == 1 && comm->device->host_memory) {
        add(sum->receive, sum->before, sum->send, sum->type, sum->offsets[1]);
        return 0;
    }
    return comm->ops ? comm_call(comm, reduce, (void *)(uintptr_t)sum, err) : 0;
}

struct gathering {
    const char *own; /* the own part; NULL: it is in place, in p */
    char *p;
    const int64_t *offsets;
    bool host;
};

static int gather_slices(struct comm *comm, const struct gathering *g, struct error *err)
{
    struct comm_window *w = comm->window;
    int64_t most = (int64_t)w->slice_bytes, longest = comm_longest_part(comm->size, g->offsets);
    const char *own = g->own ? g->own : g->p + g->offsets[comm->rank];
    int code = 0;
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most;
        comm_download(comm, g->host, w->send, own + at, (size_t)comm_part(g->offsets, comm->rank, at, slice));
        if ((code = comm_gather_bytes(comm, w->send, (size_t)slice, err)) != 0) break;
        for (int q = 0; q < comm->size; q++)
            if (q != comm->rank || g->own)
                comm_upload(comm, g->host, g->p + g->offsets[q] + at, w->receive + (int64_t)q * slice,
                            (size_t)comm_part(g->offsets, q, at, slice));
    }
    return code;
}

static int gather(struct comm *comm, void *context, struct error *err)
{
    const struct gathering *g = context;
    int code = comm_enter(comm, COMM_GATHER, g->offsets[comm->size],
                          checksum_arguments(g->offsets, comm->size + 1, g->host, g->own != NULL), err);
    if (code) return code;
    if (!g->host && comm->ops->gather_device)
        return comm_leave(comm, comm->ops->gather_device(comm, g->own, g->p, g->offsets, err), err);
    return comm_leave(comm, gather_slices(comm, g, err), err);
}

int comm_gather(struct comm *comm, void *p, const int64_t *offsets, struct error *err)
{
    if (!comm->ops || comm->size == 1) return 0;
    return comm_call(comm, gather, &(struct gathering){NULL, p, offsets, comm->device->host_memory}, err);
}

int comm_gather_from(struct comm *comm, const void *own, void *p, const int64_t *offsets, struct error *err)
{
    struct gathering all = {own, p, offsets, comm->device->host_memory};
    return comm->ops ? comm_call(comm, gather, &all, err) : 0;
}

int64_t comm_tree_part(int size, int64_t count)
{
    int64_t part = ((count + size - 1) / size + 15) & ~(int64_t)15; /* aligned for the kernel */
    return (part < count ? part : count) * (int64_t)sizeof(float);
}

/* An array that is added up, in parts of these offsets in bytes. */
struct adding {
    struct comm_sum sum;
    struct gathering all;
};

static int add_and_gather(struct comm *comm, void *context, struct error *err)
{
    const struct adding *a = context;
    int code = comm_enter(comm, COMM_TREE, a->all.offsets[comm->size], 0, err);
    if (code) return code;
    if (!a->all.host && comm->ops->tree_device)
        return comm_leave(comm, comm->ops->tree_device(comm, &a->sum, a->all.offsets, err), err);
    code = reduce_slices(comm, &a->sum, err);
    return comm_leave(comm, code ? code : gather_slices(comm, &a->all, err), err);
}

int comm_tree_job(struct comm *comm, void *tree, struct error *err)
{
    const struct comm_tree *t = tree;
    int64_t offsets[COMM_TREE_RANKS + 1] = {0}, bytes[COMM_TREE_RANKS + 1] = {0}, part;
    if (!comm_adds_by_tree(comm->size))
        return error_set(err, EXIT_FAILED, NULL, "a tree of %d ranks; expected 1, 2, 4 or 8", comm->size);
    comm->tree_bytes += t->count * (int64_t)sizeof(float);
    if (!comm->ops || comm->size == 1) return 0;
    part = comm_tree_part(comm->size, t->count) / (int64_t)sizeof(float);
    for (int q = 1; q <= comm->size; q++) {
        offsets[q] = q * part < t->count ? q * part : t->count;
        bytes[q] = offsets[q] * (int64_t)sizeof(float);
    }
    struct adding adding = {.sum = {.send = t->p,
                                    .type = DTYPE_F32,
                                    .offsets = offsets,
                                    .receive = t->p + offsets[comm->rank],
                                    .tree = true},
                            .all = {NULL, (char *)t->p, bytes, comm->device->host_memory}};
    return comm_call(comm, add_and_gather, &adding, err);
}

struct combining {
    void *p;
    size_t bytes;
};

static int combine(struct comm *comm, void *context, struct error *err)
{
    const struct combining *u = context;
    int code = comm_enter(comm, COMM_COMBINE, (int64_t)u->bytes, 0, err);
    return code ? code : comm_leave(comm, comm->ops->combine_device(comm, u->p, u->bytes, err), err);
}

int comm_combine(struct comm *comm, void *p, size_t bytes, struct error *err)
{
    if (!comm->ops || !comm->ops->combine_device) return 0;
    return comm_call(comm, combine, &(struct combining){p, bytes}, err);
}

int comm_gather_host(struct comm *comm, void *p, const int64_t *offsets, struct error *err)
{
    if (!comm->ops || comm->size == 1) return 0;
    return comm_call(comm, gather, &(struct gathering){NULL, p, offsets, true}, err);
}

int comm_gather_each(struct comm *comm, void *p, size_t bytes, struct error *err)
{
    int64_t *offsets = xcalloc((size_t)comm->size + 1, sizeof *offsets);
    for (int r = 0; r <= comm->size; r++) offsets[r] = r * (int64_t)bytes;
    int code = comm_gather_host(comm, p, offsets, err);
    free(offsets);
    return code;
}

/* ---- small collectives ---- */

struct reduction {
    enum comm_operation operation;
    double *values;
    int64_t count;
};

static int all_reduce(struct comm *comm, void *context, struct error *err)
{
    const struct reduction *r = context;
    struct comm_window *w = comm->window;
    int64_t most = (int64_t)(w->slice_bytes / sizeof(double));
    int code = comm_enter(comm, COMM_ALL_REDUCE, r->count * (int64_t)sizeof(double), r->operation, err);
    if (code) return code;
    for (int64_t at = 0; at < r->count && !code; at += most) {
        int64_t count = r->count - at < most ? r->count - at : most;
        code = comm_gather_bytes(comm, r->values + at, (size_t)count * sizeof(double), err);
        const double *all = (const double *)(const void *)w->receive;
        for (int64_t i = 0; i < count && !code; i++) {
            double v = all[i];
            for (int q = 1; q < comm->size; q++) {
                double x = all[q * count + i];
                if (r->operation == COMM_SUM) v += x;
                else if (r->operation == COMM_MIN ? x < v : x > v) v = x;
            }
            r->values[at + i] = v;
        }
    }
    return comm_leave(comm, code, err);
}

int comm_all_reduce(struct comm *comm, enum comm_operation operation, double *values, int64_t count,
                    struct error *err)
{
    if (!comm->ops || comm->size == 1) return 0;
    return comm_call(comm, all_reduce, &(struct reduction){operation, values, count}, err);
}

struct casting {
    char *p;
    size_t bytes;
    int root;
};

static int broadcast(struct comm *comm, void *context, struct error *err)
{
    const struct casting *c = context;
    size_t most = comm->window->slice_bytes * (size_t)comm->size;
    int code = comm_enter(comm, COMM_BROADCAST, (int64_t)c->bytes, (uint32_t)c->root, err);
    if (code) return code;
    code = comm_compare_calls(comm, NULL, 0, err);
    for (size_t at = 0; at < c->bytes && !code; at += most)
        code =
            comm->ops->broadcast(comm, c->p + at, c->bytes - at < most ? c->bytes - at : most, c->root, err);
    return comm_leave(comm, code, err);
}

int comm_broadcast(struct comm *comm, void *p, size_t bytes, int root, struct error *err)
{
    if (root < 0 || root >= comm->size)
        return error_set(err, EXIT_FAILED, NULL, "broadcast from rank %d of %d", root, comm->size);
    if (!comm->ops || comm->size == 1) return 0;
    return comm_call(comm, broadcast, &(struct casting){p, bytes, root}, err);
}

static int fold(struct comm *comm, void *context, struct error *err)
{
    const struct comm_fold *f = context;
    struct comm_window *w = comm->window;
    size_t ranks = (size_t)comm->size;
    int code = comm_enter(comm, COMM_FOLD, (int64_t)f->bytes, (uint32_t)f->result_bytes, err);
    if (code) return code;
    char *all = comm->rank == 0 ? xmalloc(f->bytes * ranks) : NULL;
    code = comm_compare_calls(comm, NULL, 0, err);
    for (size_t at = 0, slice = w->slice_bytes; at < f->bytes && !code; at += slice) {
        slice = f->bytes - at < slice ? f->bytes - at : slice;
        code = comm->ops->collect(comm, (const char *)f->own + at, w->receive, slice, err);
        for (size_t q = 0; q < ranks && all && !code; q++)
            memcpy(all + q * f->bytes + at, w->receive + q * slice, slice);
    }
    if (all && !code) f->fold(f->context, all, f->result);
    free(all);
    if (!code) code = comm->ops->broadcast(comm, f->result, f->result_bytes, 0, err);
    return comm_leave(comm, code, err);
}

int comm_fold(struct comm *comm, const struct comm_fold *f, struct error *err)
{
    if (comm->ops && comm->size > 1 && f->result_bytes > SMALL_SLICE)
        return error_set(err, EXIT_FAILED, NULL, "a fold to %zu bytes", f->result_bytes);
    if (comm->ops && comm->size > 1) return comm_call(comm, fold, (void *)(uintptr_t)f, err);
    if (comm->size == 1) f->fold(f->context, f->own, f->result);
    else memset(f->result, 0, f->result_bytes); /* dry */
    return 0;
}

static int barrier(struct comm *comm, void *context, struct error *err)
{
    int64_t here = comm->rank;
    (void)context;
    int code = comm_enter(comm, COMM_BARRIER, 0, 0, err);
    return code ? code : comm_leave(comm, comm_gather_bytes(comm, &here, sizeof here, err), err);
}

int comm_barrier(struct comm *comm, struct error *err)
{
    return comm->ops && comm->size > 1 ? comm_call(comm, barrier, NULL, err) : 0;
}
