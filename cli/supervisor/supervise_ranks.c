/* Several ranks under one supervisor: runs their coordinator and handles a lost rank. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/run/many_ranks.h"
#include "core/train/meta.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* RANKS_GRACE_SECONDS after a rank is lost, workers that still run are killed: longer than
 * HEARTBEAT_GRACE_SECONDS. */
enum { RANKS_GRACE_SECONDS = 8, RANKS_JOIN_SECONDS = 120, RANKS_KNOWN_SECONDS = 3 };

const struct hub_phase rank_phases[PHASE_COUNT] = {
    [PHASE_LOAD] = {N_("loading weights"), 600, false, false},
    [PHASE_TEACHER] = {N_("computing the teacher's outputs"), 600, false, false},
    [PHASE_DATA] = {N_("waiting for data"), 0, false, true},
    [PHASE_STEP] = {N_("computing a step"), 600, true, false},
    [PHASE_SAVE] = {N_("saving a checkpoint"), 0, false, true},
    [PHASE_END] = {"ending", 600, false, false},
    [PHASE_EVALUATE] = {"evaluating", 600, false, false},
};

int ranks_open(struct supervisor *v, struct error *err)
{
    const struct supervised_ranks *r = &v->s->ranks;
    if (r->size < 2) return 0;
    const char *log_hint = r->launched ? _("its messages are in the output of the launcher (srun, mpirun)")
                           : v->s->foreground ? _("its messages are above")
                                              : _("see worker.log in the run directory");
    struct hub_options o = {.size = r->size,
                            .layout = r->layout,
                            .log_hint = log_hint,
                            .expected = {.program_crc = meta_program_crc(), .config_hash = r->config_hash},
                            .join_seconds = RANKS_JOIN_SECONDS,
                            .phases = rank_phases,
                            .phase_count = PHASE_COUNT};
    snprintf(o.expected.version, sizeof o.expected.version, "%s", meta_version());
    int code = r->launched ? 0 : comm_local_create(r->size, &v->shared, err);
    char *directory = code ? NULL : realpath(v->home.directory, NULL);
    if (!code) code = hub_server_start(&v->hub, &o, r->one_host, r->file, directory, v->resume, err);
    free(directory);
    if (code) ranks_close(v);
    return code;
}

void ranks_close(struct supervisor *v)
{
    hub_server_stop(v->hub);
    v->hub = NULL;
    if (v->shared >= 0) close(v->shared);
    v->shared = -1;
}

static bool ended_well(int status)
{
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EXIT_STOPPED);
}

/* Returns a worker that failed, perhaps without an exit message or before it joined; -1: none. */
static int find_failed(const struct supervisor *v)
{
    for (int i = 0; i < v->count; i++)
        if (!worker_running(v, i) && !ended_well(v->workers[i].status)) return i;
    return -1;
}

static bool has_joined(struct supervisor *v, int i)
{
    struct hub_rank rank;
    double silent, still;
    return hub_server_rank(v->hub, i, &rank, &silent, &still);
}

/* Returns the exit code of worker i and its reason, which the coordinator does not know. */
static int describe_failed(struct supervisor *v, int i, struct error *err)
{
    struct error how;
    int status = v->workers[i].status, code = end_cause(v, i, &how);
    if (!WIFSIGNALED(status) || code == EXIT_HOST_MEMORY || v->stop_request == ASKED_NOW)
        return error_set(err, code, how.hint, "rank %d: %s", i, how.what);
    return error_set(err, EXIT_RANK_LOST, how.hint,
                     "rank %d was ended by signal %d (%s) before it joined the others", i, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
}

void ranks_check(struct supervisor *v)
{
    if (!v->hub) return;
    int bad;
    if (!v->lost_code) {
        v->lost_code = hub_server_diagnosis(v->hub, &v->lost, &v->why);
        if (!v->lost_code &&
            (bad = find_failed(v)) >= 0) { /* the coordinator will report it, unless it never joined */
            if (v->failed_since <= 0) v->failed_since = clock_seconds();
            if (has_joined(v, bad) && clock_seconds() - v->failed_since < RANKS_KNOWN_SECONDS) return;
            v->lost_code = describe_failed(v, bad, &v->why);
            v->lost = bad;
            hub_server_end(v->hub, bad, &v->why);
        }
        if (!v->lost_code) return;
        v->lost_at = clock_seconds();
        if (v->s->ranks.launched)
            end_write_status(v, v->lost_code, &v->why, false); /* the launcher may kill this process soon */
    }
    double since = clock_seconds() - v->lost_at;
    if (v->lost_code == EXIT_RANK_LOST && v->lost >= 0 && v->lost < v->count && worker_running(v, v->lost))
        kill(v->workers[v->lost].pid, SIGKILL); /* stopped or stuck: handles no other signal */
    if (since > RANKS_GRACE_SECONDS) workers_signal(v, SIGKILL);
}

bool ranks_wait(const struct supervisor *v)
{
    if (v->hub && !v->lost_code && v->stop_request != ASKED_NOW && find_failed(v) >= 0)
        return true; /* until the cause is known */
    return v->hub && v->s->ranks.launched && !v->lost_code && v->stop_request != ASKED_NOW &&
           !hub_server_all_left(v->hub);
}

/* Returns whether rank r is a worker of this process that a signal killed. */
static bool killed(const struct supervisor *v, int r, int *number)
{
    if (r < 0 || r >= v->count || worker_running(v, r) || !WIFSIGNALED(v->workers[r].status)) return false;
    *number = WTERMSIG(v->workers[r].status);
    return true;
}

/* Returns whether rank r is a worker of this process that ran out of memory (xmalloc) and could not report
 * it. */
static bool ran_out_of_memory(const struct supervisor *v, int r)
{
    return r >= 0 && r < v->count && !worker_running(v, r) && WIFEXITED(v->workers[r].status) &&
           WEXITSTATUS(v->workers[r].status) == EXIT_HOST_MEMORY;
}

int ranks_cause(struct supervisor *v, struct error *err)
{
    struct error how;
    int number, code;
    if (v->stop_request == ASKED_NOW) return end_cause(v, 0, err);
    if (!v->lost_code) { /* all ended by themselves: the report of rank 0 counts */
        for (int i = 1; i < v->count; i++)
            if (!ended_well(v->workers[i].status)) return end_cause(v, i, err);
        return end_cause(v, 0, err);
    }
    *err = v->why;
    if (v->lost_code == EXIT_RANK_LOST && ran_out_of_memory(v, v->lost)) {
        end_cause(v, v->lost, &how);
        return error_set(err, EXIT_HOST_MEMORY, how.hint, "rank %d ran out of memory: %s", v->lost, how.what);
    }
    if (v->lost_code != EXIT_RANK_LOST || !killed(v, v->lost, &number)) return v->lost_code;
    code = end_cause(v, v->lost, &how);
    if (code == EXIT_HOST_MEMORY) { /* killed by the kernel */
        *err = how;
        return code;
    }
    const char *ended = _("its connection ended"), *lost = strstr(v->why.what, _("is gone")),
               *gone = strstr(v->why.what, ended);
    if (gone && lost)
        error_set(err, EXIT_RANK_LOST, how.hint, "%.*swas ended by signal %d (%s)%s",
                  (int)(lost - v->why.what), v->why.what, number, strsignal(number), gone + strlen(ended));
    else snprintf(err->hint, sizeof err->hint, "%s", how.hint);
    return v->lost_code;
}

/* ---- live.json ---- */

static const char *state_of(const struct rank_now *now)
{
    return !now->joined ? "missing" : now->rank.left ? "ended" : now->silent > 3 ? "silent" : "running";
}

static bool runs(const struct rank_now *now) { return now->joined && !now->rank.left && now->silent <= 3; }

/* Returns the slowest rank: it waits least for others. -1: the ranks are balanced. */
static int slowest(const struct rank_now *all, int size)
{
    double least = 2, most = -1;
    int found = -1;
    for (int r = 0; r < size; r++) {
        if (!all[r].joined) return -1;
        if (all[r].rank.waiting < least) least = all[r].rank.waiting, found = r;
        if (all[r].rank.waiting > most) most = all[r].rank.waiting;
    }
    return most - least > 0.2 ? found : -1;
}

static json_t *rank_json(const struct rank_now *now, int r, bool slow, struct comm_layout layout)
{
    const struct hub_rank *rank = &now->rank;
    const char *phase = rank->beat.phase < PHASE_COUNT ? rank_phases[rank->beat.phase].name : "";
    json_t *rank_object = json_pack(
        "{s:i, s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:I, s:I, s:b}", "rank", r, "host",
        rank->facts.host, "pid", rank->facts.pid, "card", rank->facts.card, "device", rank->facts.device,
        "state", state_of(now), "phase", phase, "step", (json_int_t)rank->beat.step, "step_ms",
        rank->beat.step_ms, "data_wait_ms", rank->beat.data_wait_ms, "waiting_percent", 100 * rank->waiting,
        "mem_bytes", (json_int_t)rank->beat.mem_bytes, "peak_bytes", (json_int_t)rank->beat.peak_bytes,
        "slowest", slow);
    double bubble = rank->beat.step_ms > 0 ? rank->beat.stage_wait_ms / rank->beat.step_ms : 0;
    struct comm_place at = comm_place_of(layout, r);
    if (layout.tensor > 1) json_object_set_new(rank_object, "tensor", json_integer(at.tensor));
    if (layout.stages > 1) json_object_set_new(rank_object, "stage", json_integer(at.stage));
    if (comm_layout_ranks(layout) > 1) json_object_set_new(rank_object, "replica", json_integer(at.replica));
    if (layout.stages > 1) json_object_set_new(rank_object, "bubble", json_real(bubble));
    return rank_object;
}

struct host {
    const char *name; /* "": of ranks that have not joined */
    int first_rank, ranks, running;
    int64_t peak_bytes; /* the largest of a rank */
};

/* Hosts with ranks that do not run first, then those with the highest peak. */
static int by_trouble(const void *a, const void *b)
{
    const struct host *x = a, *y = b;
    int lost = (y->ranks - y->running) - (x->ranks - x->running);
    if (lost) return lost;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? 1 : -1;
    return x->first_rank - y->first_rank;
}

/* Returns at most HOSTS_LISTED hosts, the worst first; *count: of all. */
static json_t *hosts_json(const struct rank_now *all, int size, int *count)
{
    struct host *hosts = xcalloc((size_t)size, sizeof *hosts);
    json_t *list = json_array();
    *count = 0;
    for (int r = 0, at = 0; r < size; r++) {
        const char *name = all[r].rank.facts.host;
        if (at >= *count || strcmp(hosts[at].name, name) != 0) /* ranks of a host are usually neighbours */
            for (at = 0; at < *count && strcmp(hosts[at].name, name) != 0;) at++;
        if (at == *count) hosts[(*count)++] = (struct host){.name = name, .first_rank = r};
        hosts[at].ranks++;
        hosts[at].running += runs(&all[r]);
        if (all[r].rank.beat.peak_bytes > hosts[at].peak_bytes)
            hosts[at].peak_bytes = all[r].rank.beat.peak_bytes;
    }
    qsort(hosts, (size_t)*count, sizeof *hosts, by_trouble);
    for (int i = 0; i < *count && i < HOSTS_LISTED; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:i, s:I}", "host", hosts[i].name, "first_rank",
                                        hosts[i].first_rank, "ranks", hosts[i].ranks, "running",
                                        hosts[i].running, "peak_bytes", (json_int_t)hosts[i].peak_bytes));
    free(hosts);
    return list;
}

void ranks_list(json_t *live, const struct rank_now *all, int size, struct comm_layout layout)
{
    int slow = slowest(all, size), hosts, running = 0;
    bool *listed = xcalloc((size_t)size, sizeof *listed);
    double *lost = xcalloc((size_t)size, sizeof *lost), *waiting = xcalloc((size_t)size, sizeof *waiting),
           *peaks = xcalloc((size_t)size, sizeof *peaks);
    json_t *list = json_array();
    for (int r = 0; r < size; r++) {
        running += runs(&all[r]);
        lost[r] = runs(&all[r]) ? NAN : all[r].joined ? all[r].silent : INFINITY;
        waiting[r] = 100 * all[r].rank.waiting;
        peaks[r] = (double)all[r].rank.beat.peak_bytes;
    }
    many_ranks_begin(listed, size);
    if (size > RANKS_LISTED) {
        many_ranks_mark(listed, lost, size, 1);
        many_ranks_mark(listed, waiting, size, -1);
        many_ranks_mark(listed, peaks, size, 1);
        json_object_set_new(live, "hosts", hosts_json(all, size, &hosts));
        json_object_set_new(live, "ranks_summary",
                            json_pack("{s:i, s:i, s:i, s:o, s:o}", "ranks", size, "running", running, "hosts",
                                      hosts, "waiting_percent", many_ranks_range(waiting, size), "peak_bytes",
                                      many_ranks_range(peaks, size)));
    }
    for (int r = 0; r < size; r++)
        if (listed[r]) json_array_append_new(list, rank_json(&all[r], r, r == slow, layout));
    json_object_set_new(live, "ranks", list);
    free(listed);
    free(lost);
    free(waiting);
    free(peaks);
}

void ranks_report(struct supervisor *v, json_t *live)
{
    if (!v->hub) return;
    int size = v->s->ranks.size;
    double still;
    struct rank_now *all = xcalloc((size_t)size, sizeof *all);
    for (int r = 0; r < size; r++)
        all[r].joined = hub_server_rank(v->hub, r, &all[r].rank, &all[r].silent, &still);
    ranks_list(live, all, size, v->s->ranks.layout);
    free(all);
}
