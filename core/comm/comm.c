/* The collectives of a run above the bytes that a back end carries: see comm.h. */
#include "core/base/file.h"
#include "core/comm/comm_internal.h"
#include "kernels/bf16.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- headers ---- */

/* A header and a short message, in which every collective of a back end that compares no headers begins: its
 * first message has one size, whatever the call, so ranks in different calls still understand each other. */
struct envelope {
    struct dist_header header;
    char message[SMALL_MESSAGE];
};

/* Checksum of `count` offsets and two other arguments. */
static uint32_t shape_of(const int64_t *offsets, int count, int a, int b)
{
    const int32_t others[] = {count, a, b};
    return crc32c(crc32c(0, others, sizeof others), offsets, (size_t)count * sizeof *offsets);
}

/* Exchanges and compares headers. A message of at most SMALL_MESSAGE bytes travels with them, to
 * window->receive, rank after rank. */
static int compare_calls(struct dist *dist, const void *message, size_t bytes, struct error *err)
{
    struct envelope own = {.header = dist->header};
    char *all = dist->window->receive;
    if (dist->ops->compares || dist->compared) return 0;
    if (bytes) memcpy(own.message, message, bytes);
    int code = dist->ops->gather(dist, &own, all, sizeof own, err);
    if (!code) code = dist_compare(dist, all, sizeof own, err);
    for (int q = 0; q < dist->size && !code; q++)
        memmove(all + (size_t)q * bytes, all + (size_t)q * sizeof own + offsetof(struct envelope, message),
                bytes);
    dist->compared = !code;
    return code;
}

/* `bytes` of every rank -> window->receive. */
static int gather_bytes(struct dist *dist, const void *send, size_t bytes, struct error *err)
{
    bool with_header = !dist->ops->compares && !dist->compared && bytes <= SMALL_MESSAGE;
    int code = compare_calls(dist, send, with_header ? bytes : 0, err);
    return code || with_header ? code : dist->ops->gather(dist, send, dist->window->receive, bytes, err);
}

/* ---- arrays through the window ---- */

size_t dist_slice_bytes(int size)
{
    size_t slice = ((size_t)DIST_WINDOW_BYTES / (size_t)size) & ~(size_t)63;
    return slice > SMALL_SLICE ? slice : SMALL_SLICE;
}

/* For a copy alone, never while others are waited for: the caller works on the device meanwhile. */
static void enter_device(struct dist *dist)
{
    if (dist->device->enter) dist->device->enter(dist->device);
}
static void leave_device(struct dist *dist)
{
    if (dist->device->leave) dist->device->leave(dist->device);
}

static void fetch(struct dist *dist, bool of_host, void *host, const void *from, size_t bytes)
{
    if (!bytes) return;
    if (of_host) memcpy(host, from, bytes);
    else {
        enter_device(dist);
        dist->device->download(dist->device, host, from, bytes);
        leave_device(dist);
    }
}

static void put(struct dist *dist, bool of_host, void *to, const void *host, size_t bytes)
{
    if (!bytes) return;
    if (of_host) memcpy(to, host, bytes);
    else {
        enter_device(dist);
        dist->device->upload(dist->device, to, host, bytes);
        leave_device(dist);
    }
}

/* to = from + value, value of one rank. `from` NULL: 0 */
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

int64_t dist_part(const int64_t *offsets, int rank, int64_t at, int64_t most)
{
    int64_t left = offsets[rank + 1] - offsets[rank] - at;
    return left < 0 ? 0 : left < most ? left : most;
}

int64_t dist_longest_part(int size, const int64_t *offsets)
{
    int64_t longest = 0;
    for (int q = 0; q < size; q++)
        if (offsets[q + 1] - offsets[q] > longest) longest = offsets[q + 1] - offsets[q];
    return longest;
}

/* What a slice wants of the device: what goes to each rank, and what was summed before. One wait for all. */
static void fetch_slice(struct dist *dist, const struct dist_sum *s, int64_t at, int64_t slice, bool gives)
{
    struct dist_window *w = dist->window;
    struct device *dev = dist->device;
    size_t size = dtype_bytes(s->type), bytes = (size_t)slice * size;
    int64_t count = dist_part(s->offsets, dist->rank, at, slice);
    enter_device(dist);
    for (int q = 0; q < dist->size && gives; q++) {
        size_t part = (size_t)dist_part(s->offsets, q, at, slice) * size;
        if (part)
            dev->queues->download(dev, NULL, w->send + (size_t)q * bytes,
                                  (const char *)s->send + (size_t)(s->offsets[q] + at) * size, part);
    }
    if (s->before && count && !dev->host_memory)
        dev->queues->download(dev, NULL, w->sum, s->before + at, (size_t)count * sizeof *w->sum);
    dev->queues->finish(dev, NULL);
    leave_device(dist);
}

static int reduce_slices(struct dist *dist, const struct dist_sum *s, struct error *err)
{
    struct dist_window *w = dist->window;
    size_t size = dtype_bytes(s->type);
    int contributors = s->contributors > 0 && s->contributors < dist->size ? s->contributors : dist->size;
    int64_t most = (int64_t)(w->slice_bytes / size), longest = dist_longest_part(dist->size, s->offsets);
    bool host = dist->device->host_memory;
    int code = compare_calls(dist, NULL, 0, err);
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most;
        size_t bytes = (size_t)slice * size;
        fetch_slice(dist, s, at, slice, dist->rank < contributors);
        if ((code = dist->ops->exchange(dist, w->send, w->receive, bytes, err)) != 0) break;
        int64_t count = dist_part(s->offsets, dist->rank, at, slice);
        float *sum = host ? s->receive + at : w->sum;
        const float *before = !s->before ? NULL : host ? s->before + at : w->sum;
        for (int r = 0; r < contributors && count; r++)
            add(sum, r ? sum : before, w->receive + (size_t)r * bytes, s->type, count);
        if (!host) put(dist, host, s->receive + at, w->sum, (size_t)count * sizeof *sum);
    }
    return code;
}

static int reduce(struct dist *dist, void *context, struct error *err)
{
    const struct dist_sum *s = context;
    bool there = !dist->device->host_memory && dist->ops->reduce_device;
    int code = dist_enter(dist, DIST_REDUCE, s->offsets[dist->size] * (int64_t)dtype_bytes(s->type),
                          shape_of(s->offsets, dist->size + 1, (int)s->type, s->contributors), err);
    if (code) return code;
    return dist_leave(dist, (there ? dist->ops->reduce_device : reduce_slices)(dist, s, err), err);
}

int dist_reduce(struct dist *dist, const struct dist_sum *sum, struct error *err)
{
    bool good = sum->offsets && sum->offsets[0] == 0 && sum->contributors >= 0 &&
                sum->contributors <= dist->size && (sum->type == DTYPE_F32 || sum->type == DTYPE_BF16);
    for (int q = 0; q < dist->size && good; q++) good = sum->offsets[q] <= sum->offsets[q + 1];
    if (!good)
        return error_set(err, EXIT_FAILED, NULL, "a sum of %s values by %d of %d ranks has no such parts",
                         dtype_name(sum->type), sum->contributors, dist->size);
    if (dist->ops && dist->size == 1 && dist->device->host_memory) {
        add(sum->receive, sum->before, sum->send, sum->type, sum->offsets[1]);
        return 0;
    }
    return dist->ops ? dist_call(dist, reduce, (void *)(uintptr_t)sum, err) : 0;
}

struct gathering {
    const char *own; /* the own part, where that is not in its place; else NULL */
    char *p;
    const int64_t *offsets;
    bool host;
};

static int gather(struct dist *dist, void *context, struct error *err)
{
    const struct gathering *g = context;
    struct dist_window *w = dist->window;
    int64_t most = (int64_t)w->slice_bytes, longest = dist_longest_part(dist->size, g->offsets);
    const char *own = g->own ? g->own : g->p + g->offsets[dist->rank];
    int code = dist_enter(dist, DIST_GATHER, g->offsets[dist->size],
                          shape_of(g->offsets, dist->size + 1, g->host, g->own != NULL), err);
    if (code) return code;
    if (!g->host && dist->ops->gather_device)
        return dist_leave(dist, dist->ops->gather_device(dist, g->own, g->p, g->offsets, err), err);
    for (int64_t at = 0; at < longest && !code; at += most) {
        int64_t slice = longest - at < most ? longest - at : most;
        fetch(dist, g->host, w->send, own + at, (size_t)dist_part(g->offsets, dist->rank, at, slice));
        if ((code = gather_bytes(dist, w->send, (size_t)slice, err)) != 0) break;
        for (int q = 0; q < dist->size; q++)
            if (q != dist->rank || g->own)
                put(dist, g->host, g->p + g->offsets[q] + at, w->receive + (int64_t)q * slice,
                    (size_t)dist_part(g->offsets, q, at, slice));
    }
    return dist_leave(dist, code, err);
}

int dist_gather(struct dist *dist, void *p, const int64_t *offsets, struct error *err)
{
    if (!dist->ops || dist->size == 1) return 0;
    return dist_call(dist, gather, &(struct gathering){NULL, p, offsets, dist->device->host_memory}, err);
}

int dist_gather_from(struct dist *dist, const void *own, void *p, const int64_t *offsets, struct error *err)
{
    struct gathering all = {own, p, offsets, dist->device->host_memory};
    return dist->ops ? dist_call(dist, gather, &all, err) : 0;
}

struct uniting {
    void *p;
    size_t bytes;
};

static int combine(struct dist *dist, void *context, struct error *err)
{
    const struct uniting *u = context;
    int code = dist_enter(dist, DIST_UNITE, (int64_t)u->bytes, 0, err);
    return code ? code : dist_leave(dist, dist->ops->combine_device(dist, u->p, u->bytes, err), err);
}

int dist_combine(struct dist *dist, void *p, size_t bytes, struct error *err)
{
    if (!dist->ops || !dist->ops->combine_device) return 0;
    return dist_call(dist, combine, &(struct uniting){p, bytes}, err);
}

int dist_gather_host(struct dist *dist, void *p, const int64_t *offsets, struct error *err)
{
    if (!dist->ops || dist->size == 1) return 0;
    return dist_call(dist, gather, &(struct gathering){NULL, p, offsets, true}, err);
}

int dist_gather_each(struct dist *dist, void *p, size_t bytes, struct error *err)
{
    int64_t *offsets = xcalloc((size_t)dist->size + 1, sizeof *offsets);
    for (int r = 0; r <= dist->size; r++) offsets[r] = r * (int64_t)bytes;
    int code = dist_gather_host(dist, p, offsets, err);
    free(offsets);
    return code;
}

/* ---- few values ---- */

struct reduction {
    enum dist_operation operation;
    double *values;
    int64_t count;
};

static int all_reduce(struct dist *dist, void *context, struct error *err)
{
    const struct reduction *r = context;
    struct dist_window *w = dist->window;
    int64_t most = (int64_t)(w->slice_bytes / sizeof(double));
    int code = dist_enter(dist, DIST_ALL_REDUCE, r->count * (int64_t)sizeof(double), r->operation, err);
    if (code) return code;
    for (int64_t at = 0; at < r->count && !code; at += most) {
        int64_t count = r->count - at < most ? r->count - at : most;
        code = gather_bytes(dist, r->values + at, (size_t)count * sizeof(double), err);
        const double *given = (const double *)(const void *)w->receive;
        for (int64_t i = 0; i < count && !code; i++) {
            double v = given[i];
            for (int q = 1; q < dist->size; q++) {
                double x = given[q * count + i];
                if (r->operation == DIST_SUM) v += x;
                else if (r->operation == DIST_MIN ? x < v : x > v) v = x;
            }
            r->values[at + i] = v;
        }
    }
    return dist_leave(dist, code, err);
}

int dist_all_reduce(struct dist *dist, enum dist_operation operation, double *values, int64_t count,
                    struct error *err)
{
    if (!dist->ops || dist->size == 1) return 0;
    return dist_call(dist, all_reduce, &(struct reduction){operation, values, count}, err);
}

struct casting {
    char *p;
    size_t bytes;
    int root;
};

static int broadcast(struct dist *dist, void *context, struct error *err)
{
    const struct casting *c = context;
    size_t most = dist->window->slice_bytes * (size_t)dist->size;
    int code = dist_enter(dist, DIST_BROADCAST, (int64_t)c->bytes, (uint32_t)c->root, err);
    if (code) return code;
    code = compare_calls(dist, NULL, 0, err);
    for (size_t at = 0; at < c->bytes && !code; at += most)
        code =
            dist->ops->broadcast(dist, c->p + at, c->bytes - at < most ? c->bytes - at : most, c->root, err);
    return dist_leave(dist, code, err);
}

int dist_broadcast(struct dist *dist, void *p, size_t bytes, int root, struct error *err)
{
    if (root < 0 || root >= dist->size)
        return error_set(err, EXIT_FAILED, NULL, "broadcast from rank %d of %d", root, dist->size);
    if (!dist->ops || dist->size == 1) return 0;
    return dist_call(dist, broadcast, &(struct casting){p, bytes, root}, err);
}

static int barrier(struct dist *dist, void *context, struct error *err)
{
    int64_t here = dist->rank;
    (void)context;
    int code = dist_enter(dist, DIST_BARRIER, 0, 0, err);
    return code ? code : dist_leave(dist, gather_bytes(dist, &here, sizeof here, err), err);
}

int dist_barrier(struct dist *dist, struct error *err)
{
    return dist->ops && dist->size > 1 ? dist_call(dist, barrier, NULL, err) : 0;
}

/* ---- opening ---- */

/* Is this machine's memory what the device's accounts are of? */
static bool counted(const struct dist *dist)
{
    const struct device *device = dist->device;
    return device->kind == DEVICE_CPU || (device->kind == DEVICE_DRY && !device->queues->overlap);
}

/* Of ranks that are planned, too. */
bool dist_combines(const struct dist *dist) { return dist->size > 1 && dist->overlaps && !counted(dist); }

static void *host_block(struct dist *dist, size_t bytes, const char *name, struct error *err)
{
    if (counted(dist)) return device_alloc(dist->device, MEMORY_COMM, bytes, name, err);
    void *p = dist->device->queues->host_allocate(dist->device, bytes);
    if (!p) error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of %s", bytes, name);
    return p;
}

static void host_release(struct dist *dist, void *p)
{
    if (counted(dist)) device_free(dist->device, p);
    else dist->device->queues->host_free(dist->device, p);
}

static void window_close(struct dist *dist)
{
    if (!dist->window) return;
    host_release(dist, dist->window->send);
    host_release(dist, dist->window->receive);
    host_release(dist, dist->window->sum);
    device_free(dist->device, dist->window->planned);
    free(dist->window);
    dist->window = NULL;
}

static int window_open(struct dist *dist, size_t slice, struct error *err)
{
    size_t all = slice * (size_t)dist->size;
    struct dist_window *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    dist->window = w;
    w->slice_bytes = slice;
    if (!(w->send = host_block(dist, all, "what goes to other ranks", err)) ||
        !(w->receive = host_block(dist, all, "what comes from other ranks", err)) ||
        (!counted(dist) && !(w->sum = host_block(dist, 2 * slice, "sums over ranks", err)))) {
        window_close(dist);
        return err->code;
    }
    return 0;
}

int dist_reserve(struct dist *dist, int64_t longest, struct error *err)
{
    size_t most = dist_slice_bytes(dist->size), slice = ((size_t)longest + 63) & ~(size_t)63;
    if (!dist->window) return 0; /* alone: nothing is carried */
    void *planned = dist->window->planned;
    dist->window->planned = NULL;
    window_close(dist);
    int code = window_open(dist, slice > most ? most : slice < SMALL_SLICE ? SMALL_SLICE : slice, err);
    if (code) device_free(dist->device, planned);
    else dist->window->planned = planned;
    return code;
}

int dist_dry(struct dist *dist, int rank, int size, struct device *device, struct error *err)
{
    struct error own;
    *dist = (struct dist){.rank = rank, .size = size, .device = device};
    dist->overlaps = counted(dist);
    if (!err) err = &own;
    int code = size > 1 ? window_open(dist, SMALL_SLICE, err) : 0;
    if (code || size == 1 || !nccl_planned(device)) return code;
    dist->overlaps = true;
    dist->window->planned = device_alloc(device, MEMORY_COMM, NCCL_CARD_BYTES, nccl_parts_name, err);
    return dist->window->planned ? 0 : err->code;
}

/* Do the ranks meet in the library of their cards? */
static int meet(struct dist *dist, const struct dist_options *o, struct nccl_meeting *meeting,
                struct error *err)
{
    if (o->exchange) return nccl_meet(dist, o, meeting, err);
    if (o->kind == DIST_AUTO) return 0;
    return error_set(err, EXIT_CONFIG, "start them with 'meopt train'",
                     "dist.backend is nccl, but nothing joins the ranks");
}

int dist_open(struct dist *dist, const struct dist_options *o, struct device *device, struct error *err)
{
    struct error own;
    if (!err) err = &own;
    if (o->size < 1 || o->size > DIST_MOST_RANKS || o->rank < 0 || o->rank >= o->size)
        return error_set(err, EXIT_FAILED, NULL, "rank %d of %d is impossible", o->rank, o->size);
    if (o->size == 1) {
        dist_self(dist, device);
        return 0;
    }
    *dist = (struct dist){.rank = o->rank, .size = o->size, .device = device, .options = *o};
    struct nccl_meeting meeting = {.together = false};
    int code = window_open(dist, SMALL_SLICE, err);
    if (!code && (o->kind == DIST_AUTO || o->kind == DIST_NCCL)) code = meet(dist, o, &meeting, err);
    bool local = o->kind == DIST_LOCAL || (o->kind == DIST_AUTO && o->shared >= 0);
    dist->overlaps = meeting.together || counted(dist);
    if (!code)
        code = dist_thread_start(dist,
                                 meeting.together ? dist_nccl_open
                                 : local          ? dist_local_open
                                                  : dist_mpi_open,
                                 meeting.together ? (void *)&meeting : (void *)(uintptr_t)o, err);
    if (code) dist_close(dist);
    else if (o->opened) o->opened(o->context, dist);
    return code;
}

void dist_abort(struct dist *dist, int exit_code)
{
    if (dist->ops && dist->ops->abort) dist->ops->abort(dist, exit_code);
}

void dist_fail(struct dist *dist, int code, const struct error *err)
{
    if (dist->options.failing) dist->options.failing(dist->options.context, code, err);
    dist_abort(dist, code);
}

void dist_close(struct dist *dist)
{
    if (dist->options.opened) dist->options.opened(dist->options.context, NULL);
    dist_thread_stop(dist);
    if (dist->device) window_close(dist);
    memset(dist, 0, sizeof *dist);
}
