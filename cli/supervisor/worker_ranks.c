/* The worker as one of several ranks: see worker_ranks.h. */
#include "cli/supervisor/worker_ranks.h"
#include "core/base/log.h"
#include "core/device/driver.h"
#include "core/comm/launch.h"
#include "core/train/meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fills a heartbeat; called from its thread. */
static void beat(void *context, struct rank_beat *b)
{
    struct worker_ranks *w = context;
    struct comm_status status = comm_status();
    b->step = atomic_load(&w->report->step);
    b->marks = atomic_load(&w->report->marks);
    b->phase = atomic_load(&w->report->phase);
    b->collective = status.number;
    b->wait = status.inside ? RANK_WAITS : RANK_MOVES;
    snprintf(b->name, sizeof b->name, "%s", status.number ? comm_call_names[status.call] : "");
    snprintf(b->group, sizeof b->group, "%s", status.group);
    b->message = comm_is_message(status.call);
    b->peer = status.peer;
    b->step_ms = 1e-3 * (double)atomic_load(&w->step_us);
    b->data_wait_ms = 1e-3 * (double)atomic_load(&w->data_wait_us);
    b->stage_wait_ms = 1e-3 * (double)atomic_load(&w->stage_wait_us);
    b->mem_bytes = atomic_load(&w->mem_bytes);
    b->peak_bytes = atomic_load(&w->peak_bytes);
}

/* Called from a separate thread when a rank is lost: aborts collectives. The supervisor reports the reason.
 * */
static void lost(void *context, const struct error *why)
{
    struct worker_ranks *w = context;
    if (w->launched) log_warn("%s", why->what); /* otherwise the supervisor prints it */
    pthread_mutex_lock(&w->opening);
    if (w->opened) comm_abort(w->opened, why->code > 0 ? why->code : EXIT_RANK_LOST);
    pthread_mutex_unlock(&w->opening);
}

static void opened(void *context, struct comm *comm)
{
    struct worker_ranks *w = context;
    pthread_mutex_lock(&w->opening);
    w->opened = comm;
    pthread_mutex_unlock(&w->opening);
}

/* Reports an error at once to the supervisor and the coordinator: this process may be killed soon. */
static void failing(void *context, int code, const struct error *err)
{
    struct worker_ranks *w = context;
    w->report->code = code;
    w->report->err = *err;
    atomic_store(&w->report->ended, 1);
    if (w->launched) error_print(err);
    w->reported = true;
    worker_ranks_leave(w, code, err);
}

static int exchange(void *context, const char *name, const void *own, size_t bytes, void *all,
                    struct error *err)
{
    return heartbeat_exchange(((struct worker_ranks *)context)->heart, name, own, bytes, all, err);
}

/* Fills the PCI id and name of the card without opening the card; "": CPU. */
static void find_card(struct rank_facts *facts, const struct arguments *args)
{
    const char *named = argument_text(args, "card", "");
    const char *colon = strchr(named, ':');
    struct driver driver;
    struct card_info info;
    for (int kind = 0; kind < DRIVER_KINDS && colon; kind++) {
        size_t n = strlen(driver_names[kind]);
        if (n != (size_t)(colon - named) || strncmp(driver_names[kind], named, n) != 0) continue;
        if (driver_open(&driver, (enum driver_kind)kind, NULL) ||
            driver_card(&driver, atoi(colon + 1), &info, NULL))
            continue;
        snprintf(facts->card, sizeof facts->card, "%s", info.bus_id);
        snprintf(facts->device, sizeof facts->device, "%.90s", info.name);
    }
}

int worker_ranks_join(struct worker_ranks *w, const struct arguments *args, struct worker_report *report,
                      struct error *err)
{
    const char *file = argument_text(args, "join", NULL);
    struct launch launch = {.size = 1, .local_rank = -1};
    int code = file ? launch_read(&launch, NULL, NULL, err) : 0;
    *w = (struct worker_ranks){
        .report = report, .launched = file != NULL, .opening = PTHREAD_MUTEX_INITIALIZER};
    w->comm = (struct comm_options){.rank = (int)argument_int(args, "rank", launch.rank),
                                    .size = (int)argument_int(args, "ranks", launch.size),
                                    .local_rank = (int)argument_int(args, "local-rank", launch.local_rank),
                                    .shared = (int)argument_int(args, "shared", -1)};
    if (code || w->comm.size < 2) return code;
    setenv("HSA_FORCE_FINE_GRAIN_PCIE", "1", 0); /* without it RCCL hangs between cards on PCIe */
    struct heartbeat_options o = {
        .facts = {.rank = w->comm.rank,
                  .size = w->comm.size,
                  .pid = (int)getpid(),
                  .program_crc = meta_program_crc(),
                  .config_hash = strtoull(argument_text(args, "config-hash", "0"), NULL, 16)},
        .variable = file ? NULL : getenv(RENDEZVOUS_VARIABLE),
        .file = file ? file : "",
        .seconds = HEARTBEAT_JOIN_SECONDS,
        .beat = beat,
        .lost = lost,
        .context = w};
    snprintf(o.facts.version, sizeof o.facts.version, "%s", meta_version());
    gethostname(o.facts.host, sizeof o.facts.host - 1);
    find_card(&o.facts, args);
    if ((code = heartbeat_join(&w->heart, &o, err)) != 0) return code;
    w->comm.exchange = exchange;
    w->comm.opened = opened;
    w->comm.failing = failing;
    w->comm.context = w;
    return 0;
}

int worker_ranks_agree(struct worker_ranks *w, const struct data *data, const struct data *validation,
                       struct error *err)
{
    if (!w->heart) return 0;
    /* first, because data.root is read without the images of data.val */
    int code =
        validation ? heartbeat_agree(w->heart, "list of validation images", data_hash(validation), err) : 0;
    if (!code) code = heartbeat_agree(w->heart, "list of images", data_hash(data), err);
    if (!code && data_classes(data))
        code = heartbeat_agree(w->heart, "list of classes and labels", data_classes_hash(data), err);
    if (!code && validation)
        code = heartbeat_agree(w->heart, "labels of validation images", data_classes_hash(validation), err);
    return code;
}

void worker_ranks_step(struct worker_ranks *w, const struct train_progress *p, const struct memory_use *use)
{
    atomic_store(&w->step_us, (int64_t)(1e3 * p->step_ms));
    atomic_store(&w->data_wait_us, (int64_t)(1e3 * p->data_wait_ms));
    atomic_store(&w->stage_wait_us, p->stage_wait_ms > 0 ? (int64_t)(1e3 * p->stage_wait_ms) : 0);
    atomic_store(&w->mem_bytes, (int64_t)use->current_total_bytes);
    atomic_store(&w->peak_bytes, (int64_t)use->peak_total_bytes);
}

void worker_ranks_leave(struct worker_ranks *w, int code, const struct error *err)
{
    heartbeat_leave(w->heart, code, code ? err : NULL);
    w->heart = NULL;
}
