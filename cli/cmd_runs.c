/* meopt runs, stop, checkpoint, attach: what readers of run directories can do. */
#include "cli/command.h"
#include "cli/dash.h"
#include "cli/run_name.h"
#include "cli/screen.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/run/follow.h"
#include "core/run/request.h"
#include "core/run/status.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- runs ---- */

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static int runs_run(const struct arguments *args, struct error *err)
{
    const char *directory = argument_text(args, "run-dir", "runs");
    int count;
    char **names = run_names(directory, &count);
    if (count < 0 && errno == ENOENT && strcmp(directory, "runs") == 0)
        count = 0; /* nobody trained here yet */
    if (count < 0)
        return error_errno(err, EXIT_FAILED, "name it with --run-dir", "cannot list the runs in '%s'",
                           directory);
    json_t *all = json_array();
    bool json = argument_flag(args, "json");
    if (!json && count)
        printf("%-40s %-9s %13s %6s %12s  %s\n", "run", "state", "step", "epoch", "loss", "last sign");
    for (int i = 0; i < count; i++) {
        char *run = path_join(directory, names[i]), shown[4 * 256 + 1], when[32], steps[32], loss[24] = "-";
        struct run_status s;
        struct metric_line last;
        struct error problem;
        if (run_status_read(&s, run, &problem) != 0) {
            snprintf(s.state, sizeof s.state, "damaged");
            s.exit_code = -1;
        }
        bool has = follow_last(run, &last);
        run_time_text(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", s.time);
        int64_t step = has && last.step > s.step ? last.step : s.step;
        if (s.total) snprintf(steps, sizeof steps, "%lld/%lld", (long long)step, (long long)s.total);
        else snprintf(steps, sizeof steps, "%lld", (long long)step);
        if (has && isfinite(last.loss)) snprintf(loss, sizeof loss, "%.6g", last.loss);
        if (json) {
            char place[4 * 1024];
            json_t *row = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:i}", "name",
                                    name_printable(shown, sizeof shown, names[i]), "directory",
                                    name_printable(place, sizeof place, run), "state", s.state, "step",
                                    (json_int_t)step, "total_steps", (json_int_t)s.total, "epoch",
                                    (json_int_t)s.epoch, "host", s.host, "pid", s.pid);
            if (!row) row = json_object();
            json_object_set_new(row, "loss", has ? number_or_null(last.loss) : json_null());
            json_object_set_new(row, "time", s.time > 0 ? json_real(s.time) : json_null());
            json_object_set_new(row, "exit_code", s.exit_code < 0 ? json_null() : json_integer(s.exit_code));
            json_object_set_new(row, "message", s.message[0] ? json_string(s.message) : json_null());
            json_array_append_new(all, row);
        } else {
            printf("%-40s %-9s %13s %6lld %12s  %s\n", name_printable(shown, sizeof shown, names[i]), s.state,
                   steps, (long long)s.epoch, loss, when);
        }
        free(run);
    }
    run_names_free(names, count);
    if (json) json_print(stdout, all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    else if (!count) log_info("no runs in %s yet: 'meopt train CONFIG' makes one", directory);
    json_decref(all);
    return 0;
}

static const struct option runs_options[] = {
    {"run-dir", 0, OPTION_TEXT, "DIR", NULL, 0, 0, "directory of runs (default runs)"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "one array on stdout"},
    {0},
};
const struct command cmd_runs = {
    "runs", "", "list runs and what has become of them", NULL, runs_options, 0, 0, false, runs_run};

/* ---- stop, checkpoint ---- */

/* The process that state.json names is a worker of meopt's and has this very directory open, as the lock that
 * it holds: numbers are used again, and anybody may have written that file. */
static bool is_worker_of(int pid, const char *directory)
{
    char path[64], *text = NULL;
    size_t bytes = 0;
    struct stat run, open_one;
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    bool is_worker = file_read(path, 1 << 16, &text, &bytes, NULL) == 0 && bytes > 7 &&
                     memcmp(text, "meopt", 6) == 0 && strcmp(text + 6, "worker") == 0,
         holds = false;
    free(text);
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = is_worker && stat(directory, &run) == 0 ? opendir(path) : NULL;
    for (struct dirent *e; dir && !holds && (e = readdir(dir)) != NULL;)
        holds = fstatat(dirfd(dir), e->d_name, &open_one, 0) == 0 && S_ISDIR(open_one.st_mode) &&
                open_one.st_dev == run.st_dev && open_one.st_ino == run.st_ino;
    if (dir) closedir(dir);
    return holds;
}

/* Ends the worker of this run: the process that is looked at is the one that is signalled, also when it ends
 * in between and its number is used again (before Linux 5.3 the moment between the two stays). */
static void kill_worker(int pid, const char *directory)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool old_kernel = fd < 0 && errno == ENOSYS;
    if (is_worker_of(pid, directory)) {
        if (fd >= 0) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
        else if (old_kernel) kill(pid, SIGKILL);
    }
    if (fd >= 0) close(fd);
}

static int stop_in(const struct arguments *args, const char *directory, struct error *err)
{
    bool at_once = argument_flag(args, "now");
    struct run_status s;
    int code = run_status_read(&s, directory, err);
    if (code) return code;
    if (run_status_over(&s)) {
        log_info("%s has ended already: %s", directory, s.state);
        return 0;
    }
    code = run_request(directory, at_once ? "stop-now" : "stop", err);
    if (code) return code;
    for (int i = 0; i < (at_once ? 50 : 0); i++) {
        if (run_status_read(&s, directory, NULL) == 0 && run_status_over(&s)) break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    if (at_once && !run_status_over(&s) && s.here && s.pid > 0)
        kill_worker(s.pid, directory); /* its supervisor is gone */
    log_info("%s: asked to %s at step %lld", directory, at_once ? "stop at once" : "save and stop",
             (long long)s.step);
    return 0;
}

/* In the run that the first operand means. */
static int in_run(const struct arguments *args,
                  int (*what)(const struct arguments *, const char *directory, struct error *),
                  struct error *err)
{
    int code;
    char *directory = run_named(args->operands[0], argument_text(args, "run-dir", NULL), &code, err);
    if (!code) code = what(args, directory, err);
    free(directory);
    return code;
}

static int stop_run(const struct arguments *args, struct error *err) { return in_run(args, stop_in, err); }

static const struct option stop_options[] = {
    {"run-dir", 0, OPTION_TEXT, "DIR", NULL, 0, 0, "directory of runs (default runs)"},
    {"now", 0, OPTION_FLAG, NULL, NULL, 0, 0, "at once, without saving"},
    {0},
};
const struct command cmd_stop = {"stop", "RUN",   "ask a run to save and stop", NULL, stop_options, 1, 1,
                                 false,  stop_run};

static int checkpoint_in(const struct arguments *args, const char *directory, struct error *err)
{
    struct run_status s;
    int code = run_status_read(&s, directory, err);
    (void)args;
    if (code) return code;
    if (run_status_over(&s))
        return error_set(err, EXIT_FAILED, NULL, "%s does not run: %s", directory, s.state);
    code = run_request(directory, "checkpoint", err);
    if (!code) log_info("%s: asked to save behind the step in progress", directory);
    return code;
}

static int checkpoint_run(const struct arguments *args, struct error *err)
{
    return in_run(args, checkpoint_in, err);
}

static const struct option checkpoint_options[] = {
    {"run-dir", 0, OPTION_TEXT, "DIR", NULL, 0, 0, "directory of runs (default runs)"},
    {0},
};
const struct command cmd_checkpoint = {
    "checkpoint", "RUN",         "ask a run to save and go on", NULL, checkpoint_options, 1, 1,
    false,        checkpoint_run};

/* ---- attach ---- */

static int attach_in(const struct arguments *args, const char *directory, struct error *err)
{
    struct run_status s;
    int ended, code = run_status_read(&s, directory, err);
    if (code) return code;
    if (!screen_possible())
        return error_set(err, EXIT_USAGE, "elsewhere 'meopt runs --json' and metrics.jsonl tell the same",
                         "attach needs a terminal");
    const char *other = argument_text(args, "baseline", NULL);
    char *baseline = other ? run_named(other, argument_text(args, "run-dir", NULL), &code, err) : NULL;
    struct dash_options options = {
        .directory = directory, .baseline = baseline, .ascii = argument_flag(args, "ascii")};
    if (!code) code = dash_view(&options, &ended, err);
    free(baseline);
    return code;
}

static int attach_run(const struct arguments *args, struct error *err)
{
    return in_run(args, attach_in, err);
}

static const struct option attach_options[] = {
    {"run-dir", 0, OPTION_TEXT, "DIR", NULL, 0, 0, "directory of runs (default runs)"},
    {"baseline", 0, OPTION_TEXT, "RUN", NULL, 0, 0, "overlay the loss of this run"},
    {"ascii", 0, OPTION_FLAG, NULL, NULL, 0, 0, "draw with ASCII characters only"},
    {0},
};
const struct command cmd_attach = {
    "attach", "RUN",          "open the dashboard of a run, running or not, from anywhere",
    NULL,     attach_options, 1,
    1,        false,          attach_run};
