/* Groups of ranks: comm_split of comm.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void comm_share_window(struct comm *part)
{
    const struct comm_window *whole = part->whole->window;
    if (!part->window) return; /* of a single rank */
    size_t all = whole->slice_bytes * (size_t)part->whole->size;
    *part->window = (struct comm_window){.slice_bytes = all / (size_t)part->size & ~(size_t)63,
                                         .send = whole->send,
                                         .receive = whole->receive,
                                         .sum = whole->sum,
                                         .sum_bytes = whole->sum_bytes};
}

void comm_leave_whole(struct comm *part)
{
    struct comm **at = &part->whole->parts;
    while (*at && *at != part) at = &(*at)->next;
    if (*at) *at = part->next;
    free(part->window);
    free(part->members);
}

struct splitting {
    struct comm *part;
    const int *colors;
};

static int open_part(struct comm *whole, void *context, struct error *err)
{
    const struct splitting *s = context;
    size_t bytes = (size_t)whole->size * sizeof *s->colors;
    int64_t here = whole->rank;
    int code = comm_enter(whole, COMM_SPLIT, (int64_t)bytes, crc32c(0, s->colors, bytes), err);
    if (code) return code;
    code = comm_gather_bytes(whole, &here, sizeof here, err);
    if (!code) code = whole->ops->split(whole, s->part, s->part->size > 1, err);
    return comm_leave(whole, code, err);
}

int comm_split(struct comm *comm, const int *colors, const char *name, struct comm *part, struct error *err)
{
    struct error unused;
    if (!err) err = &unused;
    if (comm->whole || comm->splits == COMM_SPLITS)
        return error_set(err, EXIT_FAILED, NULL, "communicator %s: %s", name,
                         comm->whole ? _("a part cannot be split") : _("too many splits"));
    *part = (struct comm){.whole = comm, .device = comm->device, .group = ++comm->splits};
    part->members = xcalloc((size_t)comm->size, sizeof *part->members);
    for (int q = 0; q < comm->size; q++) {
        if (colors[q] != colors[comm->rank]) continue;
        if (q == comm->rank) part->rank = part->size;
        part->members[part->size++] = q;
    }
    snprintf(part->name, sizeof part->name, "%.12s %d", name, colors[comm->rank]);
    comm_name_group(part);
    if (part->size > 1) {
        part->overlaps = comm->overlaps;
        part->thread = comm->thread;
        part->window = xcalloc(1, sizeof *part->window);
        comm_share_window(part);
    } else if (comm->ops) part->ops = &comm_self_ops;
    part->next = comm->parts;
    comm->parts = part;
    struct splitting s = {part, colors};
    int code = comm->ops && comm->size > 1 ? comm_call(comm, open_part, &s, err) : 0;
    if (code) {
        comm_leave_whole(part);
        memset(part, 0, sizeof *part);
    }
    return code;
}
