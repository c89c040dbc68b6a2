/* live.json, and the time limits of a worker without progress. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_SECONDS = 1200, HUNG_SECONDS = 60 };
#define SLOWEST_BYTES_PER_S 1e6

static double larger(double a, double b) { return a > b ? a : b; }

double silence_limit_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes)
{
    double seconds = larger(PATIENCE_SECONDS, 10 * longest_gap);
    return phase == PHASE_SAVE ? seconds + (double)saving_bytes / SLOWEST_BYTES_PER_S : seconds;
}

double hung_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes, bool measured)
{
    if (measured && (phase == PHASE_DATA || phase == PHASE_STEP))
        return larger(HUNG_SECONDS, 5 * longest_gap);
    return silence_limit_seconds(phase, longest_gap, saving_bytes);
}

/* A run on the CPU samples the CPU as a card. */
void live_begin(struct supervisor *v)
{
    if (v->begun || !atomic_load(&v->report->total)) return;
    v->begun = true;
    struct error err = {0};
    struct monitor_options options = {.provider = v->s->monitor       ? v->s->monitor
                                                  : v->report->pci[0] ? "auto"
                                                                      : "proc",
                                      .root = v->s->monitor_root};
    int code = monitor_open(&v->monitor, &options, &err);
    if (!code) {
        pid_t pids[64];
        int watched = 0;
        for (int i = 0; i < v->count && watched < 64; i++)
            if (worker_running(v, i)) pids[watched++] = v->workers[i].pid;
        monitor_watch(v->monitor, pids, watched);
        if ((code = monitor_start(v->monitor, TICK_MS * 1e-3, &err)) != 0) {
            monitor_close(v->monitor);
            v->monitor = NULL;
        }
    }
    if (code) log_warn("no card telemetry: %s", err.what);
    if ((v->s->tensorboard || v->s->metrics_file) &&
        metric_export_open(&v->metric_export, v->home.directory, v->report->from, v->s->tensorboard,
                           v->s->metrics_file, &err) != 0)
        log_warn("%s", err.what);
}

void live_export(struct supervisor *v, const char *state, bool end)
{
    if (v->metric_export)
        metric_export_update(v->metric_export, state, atomic_load(&v->report->total),
                             v->monitor ? &v->seen : NULL, end);
}

static void replace_live(const struct supervisor *v, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    struct error ignored;
    if (text) file_replace_below(v->home.directory, "live.json", text, strlen(text), &ignored);
    free(text);
    json_decref(object);
}

static json_t *live_json(int pid, const char *state, const char *phase, double silent, int64_t step)
{
    return json_pack("{s:f, s:i, s:{s:i, s:s, s:s, s:f, s:I}}", "time", (double)time(NULL), "supervisor_pid",
                     (int)getpid(), "worker", "pid", pid, "state", state, "phase", phase, "silent_s", silent,
                     "step", (json_int_t)step);
}

void live_report_pause(struct supervisor *v, int64_t step)
{
    replace_live(v, live_json((int)getpid(), N_("restarting"), "", 0, step));
}

static void write_live(struct supervisor *v)
{
    double silent = clock_seconds() - v->progress_at;
    int phase = atomic_load(&v->report->phase);
    double limit =
        hung_seconds((enum train_phase)phase, v->longest_gap, atomic_load(&v->report->saving_bytes),
                     atomic_load(&v->report->step) > v->report->from);
    bool stopped = false;
    for (int i = 0; i < v->count; i++) stopped |= v->workers[i].stopped && worker_running(v, i);
    const char *state = stopped ? N_("stopped by a signal") : silent > limit ? N_("hung") : "running";
    json_t *object =
        live_json((int)v->pid, state, phase >= 0 && phase < PHASE_COUNT ? train_phase_names[phase] : "",
                  silent, atomic_load(&v->report->step));
    json_object_set_new(object, "cards", cards_json(v, true));
    json_t *pressure = io_pressure(v);
    if (pressure) json_object_set_new(object, "io_pressure_percent", pressure);
    ranks_report(v, object);
    replace_live(v, object);
}

void live_watch(struct supervisor *v)
{
    int64_t marks = 0;
    for (int i = 0; i < v->count; i++) marks += atomic_load(&v->report[i].marks);
    double t = clock_seconds();
    if (marks != v->marks) {
        double took = t - v->progress_at;
        if (took > v->longest_gap) v->longest_gap = took;
        v->marks = marks;
        v->progress_at = t;
    }
}

void live_report(struct supervisor *v)
{
    if (v->monitor) monitor_read(v->monitor, &v->seen);
    write_live(v);
    cards_record(v, false);
    live_export(v, "training", false);
}
