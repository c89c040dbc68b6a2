/* Opens communicators with one of the back ends: see comm.h. */
#include "core/comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

/* Also valid for planned ranks (comm_dry). */
bool comm_combines(const struct comm *comm)
{
    return comm->size > 1 && comm->overlaps && !device_counts_host_memory(comm->device);
}

static void *host_block(struct comm *comm, size_t bytes, const char *name, struct error *err)
{
    if (device_counts_host_memory(comm->device))
        return device_alloc(comm->device, MEMORY_COMM, bytes, name, err);
    void *p = comm->device->streams->host_allocate(comm->device, bytes);
    if (!p) error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of %s", bytes, name);
    return p;
}

static void host_release(struct comm *comm, void *p)
{
    if (device_counts_host_memory(comm->device)) device_free(comm->device, p);
    else comm->device->streams->host_free(comm->device, p);
}

static void window_close(struct comm *comm)
{
    if (!comm->window) return;
    host_release(comm, comm->window->send);
    host_release(comm, comm->window->receive);
    host_release(comm, comm->window->sum);
    device_free(comm->device, comm->window->planned);
    free(comm->window);
    comm->window = NULL;
}

static int window_open(struct comm *comm, size_t slice, struct error *err)
{
    size_t all = slice * (size_t)comm->size;
    struct comm_window *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory");
    comm->window = w;
    w->slice_bytes = slice;
    w->sum_bytes = 2 * slice;
    if (!(w->send = host_block(comm, all, "send buffer to other ranks", err)) ||
        !(w->receive = host_block(comm, all, "receive buffer from other ranks", err)) ||
        (!device_counts_host_memory(comm->device) &&
         !(w->sum = host_block(comm, w->sum_bytes, "sums over ranks", err)))) {
        window_close(comm);
        return err->code;
    }
    return 0;
}

/* Reserves in the whole what a part needs. */
static int reserve_part(struct comm *part, int64_t longest, struct error *err)
{
    struct comm *whole = part->whole;
    int64_t most = (int64_t)comm_slice_bytes(part->size), bytes = longest < most ? longest : most;
    int64_t each = (bytes * part->size + whole->size - 1) / whole->size;
    return !whole->window || (int64_t)whole->window->slice_bytes >= each ? 0 : comm_reserve(whole, each, err);
}

int comm_reserve(struct comm *comm, int64_t longest, struct error *err)
{
    if (comm->whole) return reserve_part(comm, longest, err);
    size_t most = comm_slice_bytes(comm->size), slice = ((size_t)longest + 63) & ~(size_t)63;
    if (!comm->window) return 0; /* a single rank */
    void *planned = comm->window->planned;
    comm->window->planned = NULL;
    window_close(comm);
    int code = window_open(comm, slice > most ? most : slice < SMALL_SLICE ? SMALL_SLICE : slice, err);
    if (code) device_free(comm->device, planned);
    else comm->window->planned = planned;
    for (struct comm *part = comm->parts; part && !code; part = part->next) comm_share_window(part);
    return code;
}

int comm_dry(struct comm *comm, int rank, int size, struct device *device, struct error *err)
{
    struct error own;
    *comm = (struct comm){.rank = rank, .size = size, .device = device};
    comm->overlaps = device_counts_host_memory(comm->device);
    if (!err) err = &own;
    int code = size > 1 ? window_open(comm, SMALL_SLICE, err) : 0;
    if (code || size == 1 || !nccl_planned(device)) return code;
    comm->overlaps = true;
    comm->window->planned = device_alloc(device, MEMORY_COMM, NCCL_CARD_BYTES, nccl_parts_name, err);
    return comm->window->planned ? 0 : err->code;
}

/* Decides whether the ranks use nccl (meeting->together). */
static int meet_in_nccl(struct comm *comm, const struct comm_options *o, struct nccl_meeting *meeting,
                        struct error *err)
{
    if (o->exchange) return nccl_meet(comm, o, meeting, err);
    if (o->kind == COMM_AUTO) return 0;
    return error_set(err, EXIT_CONFIG, "start the ranks with 'meopt train'",
                     "dist.backend is nccl, but the ranks have no coordinator");
}

int comm_open(struct comm *comm, const struct comm_options *o, struct device *device, struct error *err)
{
    struct error own;
    if (!err) err = &own;
    if (o->size < 1 || o->size > COMM_MOST_RANKS || o->rank < 0 || o->rank >= o->size)
        return error_set(err, EXIT_FAILED, NULL, "invalid rank %d of %d", o->rank, o->size);
    if (o->size == 1) {
        comm_self(comm, device);
        return 0;
    }
    *comm = (struct comm){.rank = o->rank, .size = o->size, .device = device, .options = *o};
    struct nccl_meeting meeting = {.together = false};
    int code = window_open(comm, SMALL_SLICE, err);
    if (!code && (o->kind == COMM_AUTO || o->kind == COMM_NCCL)) code = meet_in_nccl(comm, o, &meeting, err);
    bool local = o->kind == COMM_LOCAL || (o->kind == COMM_AUTO && o->shared >= 0);
    comm->overlaps = meeting.together || device_counts_host_memory(comm->device);
    if (!code)
        code = comm_thread_start(comm,
                                 meeting.together ? comm_nccl_open
                                 : local          ? comm_local_open
                                                  : comm_mpi_open,
                                 meeting.together ? (void *)&meeting : (void *)(uintptr_t)o, err);
    if (code) comm_close(comm);
    else if (o->opened) o->opened(o->context, comm);
    return code;
}

void comm_abort(struct comm *comm, int exit_code)
{
    comm = comm_whole(comm);
    if (comm->ops && comm->ops->abort) comm->ops->abort(comm, exit_code);
}

void comm_fail(struct comm *comm, int code, const struct error *err)
{
    const struct comm_options *o = &comm_whole(comm)->options;
    if (o->failing) o->failing(o->context, code, err);
    comm_abort(comm, code);
}

void comm_close(struct comm *comm)
{
    if (comm->options.opened) comm->options.opened(comm->options.context, NULL);
    comm_thread_stop(comm);
    if (comm->whole) comm_leave_whole(comm);
    else if (comm->device) window_close(comm);
    free(comm->met);
    memset(comm, 0, sizeof *comm);
}
