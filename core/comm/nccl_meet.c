/* Agrees on RCCL or NCCL among the ranks, and describes what carries the collectives. */
#include "core/base/log.h"
#include "core/comm/nccl_internal.h"
#include "core/device/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
