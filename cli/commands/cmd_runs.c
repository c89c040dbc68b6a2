/* meopt runs, stop, checkpoint: commands that read a run directory and send requests to its run. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/dashboard/dash_layout.h"
#include "cli/run_name.h"
#include "cli/slurm/queue.h"
#include "cli/dashboard/run_table.h"
#include "cli/terminal/screen.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/platform.h"
#include "core/run/follow.h"
#include "core/run/request.h"
#include "core/run/run.h"
#include "core/run/status.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <langinfo.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- runs ---- */

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }
static json_t *count_or_null(int64_t n) { return n > 0 ? json_integer((json_int_t)n) : json_null(); }

static json_t *row_json(const struct run_brief *b)
{
    const struct run_status *s = &b->status;
    char shown[4 * 256 + 1], place[4 * 1024];
    json_t *row = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:i}", "name",
                            name_printable(shown, sizeof shown, b->name), "directory",
                            name_printable(place, sizeof place, b->directory), "state", s->state, "step",
                            (json_int_t)b->step, "total_steps", (json_int_t)s->total, "epoch",
                            (json_int_t)s->epoch, "host", s->host, "pid", s->pid);
    if (!row) row = json_object();
    json_object_set_new(row, "loss", b->last.step >= 0 ? number_or_null(b->last.loss) : json_null());
    json_object_set_new(row, "images_per_s",
                        b->last.step >= 0 ? number_or_null(b->last.images_per_s) : json_null());
    json_object_set_new(row, "tokens_per_s", number_or_null(b->last.scores[SCORE_TOKENS_PER_S]));
    json_object_set_new(row, "mfu", number_or_null(b->last.scores[SCORE_MFU]));
    json_object_set_new(row, "best",
                        b->best.metric[0] ? json_pack("{s:I, s:s, s:f}", "step", (json_int_t)b->best.step,
                                                      "metric", b->best.metric, "value", b->best.value)
                                          : json_null());
    json_object_set_new(row, "left_s", number_or_null(b->left_s));
    json_object_set_new(row, "planned_peak_bytes", count_or_null(b->peak_bytes));
    json_object_set_new(row, "planned_baseline_peak_bytes", count_or_null(b->without_bytes));
    json_object_set_new(row, "device", b->device[0] ? json_string(b->device) : json_null());
    json_object_set_new(row, "job", b->job[0] ? json_string(b->job) : json_null());
    json_object_set_new(row, "cluster", b->cluster[0] ? json_string(b->cluster) : json_null());
    json_object_set_new(row, "bound_by",
                        b->bound_by ? json_string(bottleneck_names[b->bound_by]) : json_null());
    json_object_set_new(row, "started", b->started > 0 ? json_real(b->started) : json_null());
    json_object_set_new(row, "silent_s", b->silent_s > 0 ? json_real(b->silent_s) : json_null());
    json_object_set_new(row, "time", s->time > 0 ? json_real(s->time) : json_null());
    json_object_set_new(row, "exit_code", s->exit_code < 0 ? json_null() : json_integer(s->exit_code));
    json_object_set_new(row, "message", s->message[0] ? json_string(s->message) : json_null());
    return row;
}

static void print_json_rows(const struct run_table *t, int count)
{
    json_t *all = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(all, row_json(&t->briefs[t->shown[i]]));
    json_print(stdout, all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(all);
}

/* Prints the list: on a terminal in its width, else with every column and whole names. */
static void print_rows(const struct run_table *t, int count, int most)
{
    struct winsize size;
    char line[RUN_LINE];
    bool terminal = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20,
         ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    int width = terminal ? size.ws_col : RUN_LINE / 2, names = 0;
    for (int i = 0; i < count && !terminal; i++) {
        char shown[4 * 256 + 1];
        int w = screen_width(name_printable(shown, sizeof shown, t->briefs[t->shown[i]].name));
        if (w > names) names = w < 200 ? w : 200;
    }
    if (!terminal && names < 24) names = 24;
    run_table_head(line, width, names);
    run_table_ready(t, 0, count < most ? count : most, width, names);
    if (count) screen_line(line);
    for (int i = 0; i < count && i < most; i++) {
        run_table_line(line, &t->briefs[t->shown[i]], width, names, ascii);
        screen_line(line);
    }
    if (count > most) printf(_("+%d more\n"), count - most);
}

/* Prints the list every two seconds until Ctrl-C; on a terminal in place. */
static void watch(struct run_table *t, int limit)
{
    struct winsize size;
    bool terminal = isatty(STDOUT_FILENO), changed = true;
    while (!ferror(stdout)) {
        int most = terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 3
                       ? size.ws_row - 3
                       : t->shown_count;
        if (terminal) printf("\033[H\033[J");
        if (changed) print_rows(t, limit < t->shown_count ? limit : t->shown_count, most);
        fflush(stdout);
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        bool differs;
        if (run_table_refresh(t, INFINITY, &differs)) changed = differs || terminal;
    }
}

static int runs_run(const struct arguments *args, struct error *err)
{
    struct run_table t = {.directory = argument_text(args, "run-dir", "runs"),
                          .state = argument_text(args, "state", NULL),
                          .reversed = argument_flag(args, "reverse")};
    const char *order = argument_text(args, "sort", "age");
    int limit = (int)argument_int(args, "limit", 1 << 30);
    while (strcmp(run_order_names[t.order], order) != 0) t.order++;
    snprintf(t.filter, sizeof t.filter, "%s", argument_text(args, "filter", ""));
    bool there = run_table_refresh(&t, INFINITY, NULL);
    if (!there && !(errno == ENOENT && strcmp(t.directory, "runs") == 0)) /* no run was started here yet */
        return error_errno(err, EXIT_FAILED, "give the directory with --run-dir",
                           "cannot list the runs in '%s'", t.directory);
    int count = limit < t.shown_count ? limit : t.shown_count;
    if (argument_flag(args, "json")) print_json_rows(&t, count);
    else if (there && argument_flag(args, "watch")) watch(&t, limit);
    else if (count) print_rows(&t, count, count);
    else if (t.count) log_info("no run in %s matches the filter (%d runs)", t.directory, t.count);
    else log_info("no runs in %s; to start one: meopt train CONFIG", t.directory);
    run_table_free(&t);
    return 0;
}

static const struct option runs_options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"state", .type = OPTION_TEXT, .value = "STATE",
     .choices = "starting|training|silent|done|stopped|diverged|failed|lost|damaged",
     .help = "only runs in this state"},
    {"filter", .type = OPTION_TEXT, .value = "WORDS",
     .help = "only runs whose name, state, job, device or bottleneck contains each of the words"},
    {"sort", .type = OPTION_TEXT, .value = "BY", .choices = "age|name|state|step|loss|peak",
     .help = "sort order (default age: newest first)"},
    {"reverse", .letter = 'r', .help = "reverse the order"},
    {"limit", .letter = 'n', .type = OPTION_INT, .value = "N", .min = 1, .max = 1e9,
     .help = "only the first N runs"},
    {"watch", .letter = 'w', .help = "repeat every two seconds, until Ctrl-C"},
    {"json", .help = "print one array"},
    {0},
};
const struct command cmd_runs = {
    .name = "runs",
    .operands = "",
    .summary = "list runs and their status",
    .details =
        "Examples:\n  meopt runs --state training\n  meopt runs --filter 'eva lr=1e-4' --sort loss -n 5\n"
        "  meopt runs --filter 4711@hefei\n\n"
        "'meopt' without arguments, on a terminal, opens the same list.",
    .options = runs_options,
    .run = runs_run,
};

/* ---- stop, checkpoint ---- */

/* Returns whether process `pid` is a worker of meopt that has the lock of this run open. The pid in
 * state.json is not sufficient: pids are reused, and any user of the directory can write that file. */
static bool is_worker_of(int pid, const char *directory)
{
    char path[64], *text = NULL;
    size_t bytes = 0;
    struct stat lock, open_one;
    char *held = path_join(directory, ".lock");
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    bool is_worker = file_read(path, 1 << 16, &text, &bytes, NULL) == 0 && bytes > 7 &&
                     memcmp(text, "meopt", 6) == 0 && strcmp(text + 6, "worker") == 0,
         holds = false;
    free(text);
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = is_worker && lstat(held, &lock) == 0 ? opendir(path) : NULL;
    for (struct dirent *e; dir && !holds && (e = readdir(dir)) != NULL;)
        holds = fstatat(dirfd(dir), e->d_name, &open_one, 0) == 0 && S_ISREG(open_one.st_mode) &&
                open_one.st_dev == lock.st_dev && open_one.st_ino == lock.st_ino;
    if (dir) closedir(dir);
    free(held);
    return holds;
}

/* Kills the worker of this run. A pidfd ensures that the checked process is the signalled one, also if its
 * pid is reused in between. Before Linux 5.3 there are no pidfds, and a short race remains. */
static void kill_worker(int pid, const char *directory)
{
    int fd = process_open(pid);
    bool old_kernel = fd < 0 && errno == ENOSYS;
    if (is_worker_of(pid, directory)) {
        if (fd >= 0) process_signal(fd, SIGKILL);
        else if (old_kernel) kill(pid, SIGKILL);
    }
    if (fd >= 0) close(fd);
}

/* Warns if the run has shown no activity, because its node may be down. */
static void warn_silent(const char *directory)
{
    struct run_brief b = {.name = xstrdup(""), .directory = xstrdup(directory)};
    char since[24];
    run_brief_read(&b);
    if (b.silent_s > 0)
        log_warn("no activity from %s for %s; the request takes effect only if it is still running",
                 directory, dash_duration(since, sizeof since, b.silent_s));
    run_brief_free(&b);
}

static bool may_be_restarted(const struct run_status *s)
{
    return run_status_over(s) && (!s->ended || s->exit_code == EXIT_RANK_LOST || s->exit_code > EXIT_SIGNAL);
}

static void print_stop(const char *directory, const char *asked, const struct run_status *s)
{
    print_json(json_pack("{s:o, s:s?, s:s, s:I}", "run", path_json(directory), "asked", asked, "state",
                         s->state, "step", (json_int_t)s->step));
}

static int stop_in(const struct arguments *args, const char *directory, struct error *err)
{
    bool at_once = argument_flag(args, "now");
    struct run_status s;
    int code = run_status_read(&s, directory, err);
    if (code) return code;
    /* the state of a killed worker or a lost rank is temporary if a supervisor restarts the run */
    for (int i = 0; i < 20 && may_be_restarted(&s) && run_held(directory); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        if ((code = run_status_read(&s, directory, err)) != 0) return code;
    }
    struct slurm_job job;
    bool json = argument_flag(args, "json"), over = run_status_over(&s);
    if (over && slurm_queue_waits(&job, directory))
        return error_set(err, EXIT_FAILED, "take the job out of the queue: scancel JOB",
                         "%s has ended (%s), but job %s of Slurm will resume it", directory, _(s.state),
                         job.id);
    if (over && !json) log_info("%s has already ended: %s", directory, _(s.state));
    if (over && json) print_stop(directory, NULL, &s);
    if (over) return 0;
    code = run_request(directory, at_once ? "stop-now" : "stop", err);
    if (code) return code;
    warn_silent(directory);
    for (int i = 0; i < (at_once ? 50 : 0); i++) {
        if (run_status_read(&s, directory, NULL) == 0 && run_status_over(&s)) break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    if (at_once && !run_status_over(&s) && s.here && s.pid > 0)
        kill_worker(s.pid, directory); /* its supervisor has ended */
    if (json) print_stop(directory, at_once ? "stop-now" : "stop", &s);
    else
        log_info("%s: requested to %s at step %lld", directory,
                 at_once ? _("stop immediately") : _("save and stop"), (long long)s.step);
    return 0;
}

/* Calls `what` with the directory of the run that the first operand names. */
static int call_in_run(const struct arguments *args,
                       int (*what)(const struct arguments *, const char *directory, struct error *),
                       struct error *err)
{
    int code;
    char *directory = run_named(args->operands[0], argument_text(args, "run-dir", NULL), &code, err);
    if (!code) code = what(args, directory, err);
    free(directory);
    return code;
}

static int stop_run(const struct arguments *args, struct error *err)
{
    return call_in_run(args, stop_in, err);
}

static const struct option stop_options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"now", .help = "stop immediately, without saving"},
    {"json", .help = "machine-readable output"},
    {0},
};
const struct command cmd_stop = {
    .name = "stop",
    .operands = "RUN",
    .summary = "ask a run to save and stop",
    .options = stop_options,
    .min_operands = 1,
    .max_operands = 1,
    .run = stop_run,
};

static int checkpoint_in(const struct arguments *args, const char *directory, struct error *err)
{
    struct run_status s;
    int code = run_status_read(&s, directory, err);
    (void)args;
    if (code) return code;
    if (run_status_over(&s))
        return error_set(err, EXIT_FAILED, NULL, "%s is not running: %s", directory, _(s.state));
    code = run_request(directory, "checkpoint", err);
    if (!code) log_info("%s: requested a checkpoint after the current step", directory);
    return code;
}

static int checkpoint_run(const struct arguments *args, struct error *err)
{
    return call_in_run(args, checkpoint_in, err);
}

static const struct option checkpoint_options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {0},
};
const struct command cmd_checkpoint = {
    .name = "checkpoint",
    .operands = "RUN",
    .summary = "ask a run to save and continue",
    .options = checkpoint_options,
    .min_operands = 1,
    .max_operands = 1,
    .run = checkpoint_run,
};
