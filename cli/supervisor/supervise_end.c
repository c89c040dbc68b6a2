/* Exit code and reason of a worker, and the final status of a run whose worker could not write it. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "core/run/run.h"
#include "core/run/status.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- memory kills ---- */

int64_t oom_kills(const char *text)
{
    for (const char *p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, "oom_kill ", 9) == 0) return strtoll(p + 9, NULL, 10);
    return -1;
}

static int64_t oom_kills_in(const char *path)
{
    char *text = NULL;
    size_t bytes;
    if (file_read(path, 1 << 20, &text, &bytes, NULL) != 0) return -1;
    int64_t n = oom_kills(text);
    free(text);
    return n;
}

/* Counts the group's own processes, if the kernel counts them separately from those of child groups. */
int64_t oom_kills_here(void)
{
    static const struct {
        const char *kind, *mount, *file;
    } places[] = {{"0::", "/sys/fs/cgroup", "memory.events.local"},
                  {"0::", "/sys/fs/cgroup", "memory.events"},
                  {":memory:", "/sys/fs/cgroup/memory", "memory.oom_control"}};
    char *text = NULL;
    size_t bytes;
    int64_t count = -1;
    if (file_read("/proc/self/cgroup", 1 << 16, &text, &bytes, NULL) != 0) return -1;
    for (size_t i = 0; i < sizeof places / sizeof *places && count < 0; i++) {
        const char *at = strstr(text, places[i].kind);
        if (!at) continue;
        at += strlen(places[i].kind);
        char *path = xasprintf("%s%.*s/%s", places[i].mount, (int)strcspn(at, "\n"), at, places[i].file);
        count = oom_kills_in(path);
        free(path);
    }
    free(text);
    return count;
}

/* ---- the end ---- */

static char *last_checkpoint(const char *directory)
{
    char *text = NULL;
    size_t bytes;
    if (file_read_below(directory, "ckpt/LATEST", 4096, &text, &bytes, NULL) == 0)
        text[strcspn(text, "\n")] = 0;
    return text;
}

int end_cause(struct supervisor *v, int i, struct error *err)
{
    char hint[320], again[200];
    struct worker_report *report = &v->report[i];
    int status = v->workers[i].status;
    int64_t step = atomic_load(&report->step);
    int phase = atomic_load(&report->phase);
    const char *at = phase >= 0 && phase < PHASE_COUNT ? train_phase_names[phase] : "starting";
    char *saved = last_checkpoint(v->home.directory);
    if (saved)
        snprintf(hint, sizeof hint, _("the last checkpoint is %s; continue with: meopt train --resume %s"),
                 saved, run_resume_words(&v->home, again, sizeof again));
    else snprintf(hint, sizeof hint, _("there is no checkpoint yet; start again"));
    free(saved);
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        bool memory = number == SIGKILL && v->stop_request != ASKED_NOW && v->oom_before >= 0 &&
                      oom_kills_here() > v->oom_before;
        if (memory)
            return error_set(err, EXIT_HOST_MEMORY, hint,
                             "the kernel killed the worker, host memory was exhausted, at step %lld while "
                             "%s; 'meopt plan' shows the memory that it needs",
                             (long long)step, at);
        if (v->stop_request == ASKED_NOW)
            return error_set(err, EXIT_SIGNAL + v->asked_by, hint, "stopped at once, at step %lld",
                             (long long)step);
        return error_set(err, EXIT_SIGNAL + number, hint,
                         "the worker was ended by signal %d (%s) at step %lld, while %s", number,
                         strsignal(number), (long long)step, at);
    }
    if (atomic_load(&report->ended)) {
        if (report->code) *err = report->err;
        if (report->code) return report->code;
        return WEXITSTATUS(status) == EXIT_DISK ? EXIT_DISK
                                                : 0; /* it has reported that writing to stdout failed */
    }
    int code = WEXITSTATUS(status);
    if (code == EXIT_SIGNAL + SIGINT) { /* a second Ctrl-C, sent to the worker itself */
        v->stop_request = ASKED_NOW;
        return error_set(err, code, hint, "stopped at once, at step %lld", (long long)step);
    }
    if (code == 127) return error_set(err, EXIT_FAILED, NULL, "the worker could not be started");
    return error_set(err, code ? code : EXIT_FAILED, hint,
                     "the worker ended with status %d at step %lld, while %s", code, (long long)step, at);
}

/* Appends the final event to events.jsonl; ignores errors. */
static void add_event(const struct supervisor *v, const struct run_status *s)
{
    struct run run = {.directory = v->home.directory};
    struct error ignored;
    if (run_append(v->home.directory, "events.jsonl", &run.events, &ignored)) return;
    run_event(&run, s->state,
              json_pack("{s:I, s:i, s:s}", "step", (json_int_t)s->step, "exit_code", s->exit_code, "message",
                        s->message),
              &ignored);
    close(run.events);
}

void end_write_status(struct supervisor *v, int code, const struct error *err, bool again)
{
    struct run_status s;
    struct error ignored;
    if (!supervisor_follow(v) || run_status_read(&s, v->home.directory, NULL) != 0) return;
    bool said = s.ended;
    if (code && err->what[0]) { /* rank 0 may know only that another rank is lost */
        if (said && s.exit_code) s.exit_code = code;
        message_english(s.message, sizeof s.message, err->what);
        message_english(s.hint, sizeof s.hint, err->hint);
    }
    if (!said) {
        s.step = atomic_load(&v->report->step);
        if (atomic_load(&v->report->total)) s.total = atomic_load(&v->report->total);
        snprintf(s.state, sizeof s.state, "%s",
                 v->stop_request == ASKED_NOW ? "stopped"
                 : code                       ? "failed"
                                              : "done");
        s.exit_code = code;
        s.time = (double)time(NULL);
    }
    if (said && !again && (code == 0 || s.exit_code == 0)) return;
    if (!said) add_event(v, &s);
    if (again) {
        snprintf(s.state, sizeof s.state, "starting");
        snprintf(s.hint, sizeof s.hint, _("starting again in %.0f s at most; 'meopt stop' ends it"),
                 v->pause_s);
        s.exit_code = -1;
        s.ended = false;
        s.pid = (int)getpid();
        s.time = (double)time(NULL);
    }
    run_status_write(&s, v->home.directory, &ignored);
}

int end_in_pause(struct supervisor *v, struct error *err)
{
    struct run_status s;
    struct error ignored;
    char again[240];
    *err = (struct error){0};
    if (!supervisor_follow(v) || run_status_read(&s, v->home.directory, NULL) != 0) return EXIT_STOPPED;
    snprintf(s.state, sizeof s.state, N_("stopped"));
    snprintf(s.message, sizeof s.message, _("stopped before it was started again"));
    snprintf(s.hint, sizeof s.hint, _("continue with: meopt train --resume %.200s"),
             run_resume_words(&v->home, again, sizeof again));
    s.exit_code = EXIT_STOPPED;
    s.time = (double)time(NULL);
    run_status_write(&s, v->home.directory, &ignored);
    add_event(v, &s);
    log_info("%s; %s", s.message, s.hint);
    return EXIT_STOPPED;
}
