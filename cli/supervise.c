/* The supervisor: see supervise.h. */
#include "cli/supervise.h"
#include "cli/outlets.h"
#include "cli/worker.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/monitor/monitor.h"
#include "core/run/request.h"
#include "core/run/run.h"
#include "core/run/status.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 500, HUNG_SECONDS = 60, STOP_SECONDS = 120 };

struct supervisor {
    const struct supervision *s;
    struct worker_report *report;
    pid_t pid;
    bool stopped;        /* by SIGSTOP or the like */
    int asked, asked_by; /* 1: save and stop, 2: stop now; the signal, SIGTERM for a request */
    double asked_at;
    int64_t marks; /* last seen, and when they moved */
    double moved_at, step_seconds;
    int64_t oom_before[2];
    struct monitor *monitor;      /* opened once the worker has said where it trains */
    struct monitor_snapshot seen; /* what it said last */
    struct outlets *outlets;
    bool begun;
};

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

/* Of our control group (version 2, else 1), and of the whole machine. */
static void oom_look(int64_t counts[2])
{
    static const char *const kinds[] = {"0::", ":memory:"};
    char *text = NULL;
    size_t bytes;
    counts[0] = -1;
    if (file_read("/proc/self/cgroup", 1 << 16, &text, &bytes, NULL) == 0) {
        for (int i = 0; i < 2 && counts[0] < 0; i++) {
            const char *at = strstr(text, kinds[i]);
            if (!at) continue;
            at += strlen(kinds[i]);
            char *group = xasprintf("%.*s", (int)strcspn(at, "\n"), at),
                 *path = xasprintf(i ? "/sys/fs/cgroup/memory%s/memory.oom_control"
                                     : "/sys/fs/cgroup%s/memory.events",
                                   group);
            counts[0] = oom_kills_in(path);
            free(path);
            free(group);
        }
    }
    counts[1] = oom_kills_in("/proc/vmstat");
    free(text);
}

/* ---- the worker ---- */

static void child(const struct supervision *s, int report, pid_t parent)
{
    char fd[16], stop_after[32], threads[32];
    const char *argv[16] = {"meopt", "worker", "--report", fd};
    int n = 4;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (s->foreground) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(EXIT_SIGNAL + SIGKILL);
    } else {
        char *path = path_join(s->directory, "worker.log");
        int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (log >= 0) {
            dup2(log, 1);
            dup2(log, 2);
        }
        free(path);
    }
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, 0);
    snprintf(fd, sizeof fd, "%d", report);
    if (s->resume) argv[n++] = "--resume";
    if (s->force_resume) {
        argv[n++] = "--force-resume";
        argv[n++] = s->force_resume;
    }
    if (s->json) argv[n++] = "--json";
    if (s->stop_after) {
        snprintf(stop_after, sizeof stop_after, "--stop-after=%lld", (long long)s->stop_after);
        argv[n++] = stop_after;
    }
    if (s->threads) {
        snprintf(threads, sizeof threads, "--threads=%lld", (long long)s->threads);
        argv[n++] = threads;
    }
    argv[n++] = "--";
    argv[n++] = s->directory;
    /* Threads that spin for long at the end of a parallel loop starve each other where others compute too. */
    if (!getenv("OMP_WAIT_POLICY")) setenv("GOMP_SPINCOUNT", "1000", 0);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int start(struct supervisor *v, struct error *err)
{
    int fd = memfd_create("meopt-report", 0); /* inherited */
    if (fd < 0 || ftruncate(fd, sizeof *v->report) != 0)
        return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
    v->report = mmap(NULL, sizeof *v->report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (v->report == MAP_FAILED) {
        v->report = NULL;
        close(fd);
        return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
    }
    run_requested(v->s->directory, "stop-now"); /* of an earlier process */
    oom_look(v->oom_before);
    pid_t own = getpid();
    v->pid = fork();
    if (v->pid == 0) child(v->s, fd, own);
    close(fd);
    if (v->pid < 0) return error_errno(err, EXIT_FAILED, NULL, "cannot start the worker");
    struct run_status status;
    int64_t step = 0;
    if (run_status_read(&status, v->s->directory, NULL) == 0) step = status.step;
    status = (struct run_status){
        .state = "starting", .step = step, .pid = v->pid, .time = (double)time(NULL), .exit_code = -1};
    gethostname(status.host, sizeof status.host - 1);
    int code = run_status_write(&status, v->s->directory, err);
    v->moved_at = clock_seconds();
    return code;
}

/* ---- what the cards say ---- */

/* Once the worker has said where it trains. The processor is sampled as a card when it trains on it. */
static void begin(struct supervisor *v)
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
        monitor_watch(v->monitor, &v->pid, 1);
        if ((code = monitor_start(v->monitor, TICK_MS * 1e-3, &err)) != 0) {
            monitor_close(v->monitor);
            v->monitor = NULL;
        }
    }
    if (code) log_warn("no card telemetry: %s", err.what);
    if ((v->s->tensorboard || v->s->metrics_file) &&
        outlets_open(&v->outlets, v->s->directory, v->report->from, v->s->tensorboard, v->s->metrics_file,
                     &err) != 0)
        log_warn("%s", err.what);
}

static void hand_on(struct supervisor *v, const char *state, bool end)
{
    if (v->outlets)
        outlets_update(v->outlets, state, atomic_load(&v->report->total), v->monitor ? &v->seen : NULL, end);
}

static json_t *reading(const struct monitor_value *m, double *age)
{
    if (!m->valid) return json_null();
    if (m->age_s > *age) *age = m->age_s;
    return json_real(m->value);
}

/* The card that the worker trains on, as rank 0; every card of a provider that tests have named. */
static json_t *cards_json(const struct supervisor *v)
{
    json_t *cards = json_array();
    if (!v->monitor) return cards;
    const struct monitor_snapshot *seen = &v->seen;
    int found = monitor_find(seen, v->report->pci), first = v->report->pci[0] ? found : 0,
        last = v->s->monitor && found < 0 ? seen->card_count : first + 1;
    for (int i = first < 0 ? 0 : first, rank = 0; first >= 0 && i < last && i < seen->card_count;
         i++, rank++) {
        const struct monitor_card *c = &seen->cards[i];
        double age = 0;
        json_t *card = json_pack("{s:i, s:s, s:s}", "rank", rank, "name", c->name, "pci", c->pci);
        json_object_set_new(card, "mem_used_bytes", reading(&c->mem_used_bytes, &age));
        json_object_set_new(card, "mem_total_bytes", reading(&c->mem_total_bytes, &age));
        json_object_set_new(card, "process_bytes", reading(&c->process_bytes, &age));
        json_object_set_new(card, "busy_percent", reading(&c->busy_percent, &age));
        json_object_set_new(card, "temp_c", reading(&c->temp_c, &age));
        json_object_set_new(card, "power_w", reading(&c->power_w, &age));
        json_object_set_new(card, "age_s", json_real(age));
        json_array_append_new(cards, card);
    }
    return cards;
}

static void live(struct supervisor *v)
{
    char *path = path_join(v->s->directory, "live.json");
    double silent = clock_seconds() - v->moved_at;
    double limit = 5 * v->step_seconds > HUNG_SECONDS ? 5 * v->step_seconds : HUNG_SECONDS;
    int phase = atomic_load(&v->report->phase);
    const char *state = v->stopped ? "stopped by a signal"
                        : silent > limit && phase != PHASE_LOAD && phase != PHASE_TEACHER ? "hung"
                                                                                          : "running";
    json_t *object = json_pack("{s:f, s:i, s:{s:i, s:s, s:s, s:f, s:I}}", "time", (double)time(NULL),
                               "supervisor_pid", (int)getpid(), "worker", "pid", (int)v->pid, "state", state,
                               "phase", phase >= 0 && phase < PHASE_COUNT ? train_phase_names[phase] : "",
                               "silent_s", silent, "step", (json_int_t)atomic_load(&v->report->step));
    json_object_set_new(object, "cards", cards_json(v));
    char *text = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    struct error ignored;
    if (text) file_replace(path, text, strlen(text), &ignored);
    free(text);
    json_decref(object);
    free(path);
}

static void watch(struct supervisor *v)
{
    int64_t marks = atomic_load(&v->report->marks);
    double t = clock_seconds();
    if (marks != v->marks) {
        double took = t - v->moved_at;
        if (took > v->step_seconds) v->step_seconds = took;
        v->marks = marks;
        v->moved_at = t;
    }
}

/* ---- the end ---- */

static char *last_checkpoint(const char *directory)
{
    char *path = path_join(directory, "ckpt/LATEST"), *text = NULL;
    size_t bytes;
    if (file_read(path, 4096, &text, &bytes, NULL) == 0) text[strcspn(text, "\n")] = 0;
    free(path);
    return text;
}

static int cause(struct supervisor *v, int status, struct error *err)
{
    char hint[320];
    int64_t step = atomic_load(&v->report->step), after[2];
    int phase = atomic_load(&v->report->phase);
    const char *at = phase >= 0 && phase < PHASE_COUNT ? train_phase_names[phase] : "starting";
    char *saved = last_checkpoint(v->s->directory);
    if (saved)
        snprintf(hint, sizeof hint, "the last checkpoint is %s; go on with: meopt train --resume %s", saved,
                 v->s->directory);
    else snprintf(hint, sizeof hint, "there is no checkpoint yet: start again");
    free(saved);
    if (WIFSIGNALED(status)) {
        int number = WTERMSIG(status);
        oom_look(after);
        bool memory = number == SIGKILL && v->asked < 2 &&
                      ((after[0] >= 0 && after[0] > v->oom_before[0]) ||
                       (after[1] >= 0 && after[1] > v->oom_before[1]));
        if (memory)
            return error_set(err, EXIT_HOST_MEMORY, hint,
                             "the kernel killed the worker, host memory was exhausted, at step %lld while "
                             "%s; 'meopt plan' tells what it needs",
                             (long long)step, at);
        if (v->asked == 2)
            return error_set(err, EXIT_SIGNAL + v->asked_by, hint, "stopped at once, at step %lld",
                             (long long)step);
        return error_set(err, EXIT_SIGNAL + number, hint,
                         "the worker was ended by signal %d (%s) at step %lld, while %s", number,
                         strsignal(number), (long long)step, at);
    }
    if (atomic_load(&v->report->ended)) {
        if (v->report->code) *err = v->report->err;
        return v->report->code;
    }
    int code = WEXITSTATUS(status);
    if (code == 127) return error_set(err, EXIT_FAILED, NULL, "the worker could not be started");
    return error_set(err, code ? code : EXIT_FAILED, hint,
                     "the worker ended with status %d at step %lld, while %s", code, (long long)step, at);
}

/* state.json and events.jsonl, where the worker could not do it. */
static void last_word(struct supervisor *v, int code, const struct error *err)
{
    struct run_status s;
    if (run_status_read(&s, v->s->directory, NULL) != 0) return;
    bool said = s.ended;
    if (code && err->what[0]) {
        snprintf(s.message, sizeof s.message, "%.400s", err->what);
        snprintf(s.hint, sizeof s.hint, "%.250s", err->hint);
    }
    if (!said) {
        s.step = atomic_load(&v->report->step);
        if (atomic_load(&v->report->total)) s.total = atomic_load(&v->report->total);
        snprintf(s.state, sizeof s.state, "%s", v->asked == 2 ? "stopped" : code ? "failed" : "done");
        s.exit_code = code;
        s.time = (double)time(NULL);
    }
    if (said && code == 0) return;
    struct error ignored;
    run_status_write(&s, v->s->directory, &ignored);
    if (said) return;
    char *path = path_join(v->s->directory, "events.jsonl");
    struct run run = {.directory = (char *)(uintptr_t)v->s->directory,
                      .events = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)};
    free(path);
    if (run.events < 0) return;
    run_event(
        &run, s.state,
        json_pack("{s:I, s:i, s:s}", "step", (json_int_t)s.step, "exit_code", code, "message", s.message),
        &ignored);
    close(run.events);
}

static void ask(struct supervisor *v, int how, int by)
{
    if (how <= v->asked || how > 2) return;
    v->asked = how;
    v->asked_by = by;
    v->asked_at = clock_seconds();
    if (how == 1) {
        kill(v->pid, SIGTERM);
        kill(v->pid, SIGCONT); /* a stopped worker must hear it */
        log_info("saving, then stopping; once more stops at once");
    } else {
        kill(v->pid, SIGKILL);
        log_info("stopping at once");
    }
}

int supervise(const struct supervision *s, struct error *err)
{
    struct supervisor v = {.s = s};
    struct error own = {0};
    if (!err) err = &own;
    const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t set, before;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), status = 0, code = start(&v, err);
    bool ended = code != 0;
    double told = 0;
    if (signals < 0 && !code) code = error_errno(err, EXIT_FAILED, NULL, "no signals");
    while (!ended && !code) {
        struct pollfd wait = {signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, TICK_MS);
        while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM)
                ask(&v, v.asked + 1, (int)info.ssi_signo);
            if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) kill(v.pid, (int)info.ssi_signo);
        }
        for (pid_t pid; (pid = waitpid(v.pid, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0 && !ended;) {
            if (WIFSTOPPED(status)) v.stopped = true;
            else if (WIFCONTINUED(status)) v.stopped = false;
            else ended = true;
        }
        watch(&v);
        begin(&v);
        if (run_requested(s->directory, "stop-now")) ask(&v, 2, SIGTERM);
        if (v.asked == 1 && clock_seconds() - v.asked_at > STOP_SECONDS &&
            clock_seconds() - v.moved_at > STOP_SECONDS)
            ask(&v, 2, SIGTERM); /* it does not hear */
        if (ended || clock_seconds() - told >= 1) {
            if (v.monitor) monitor_read(v.monitor, &v.seen);
            live(&v);
            hand_on(&v, "training", false);
            told = clock_seconds();
        }
    }
    if (!code) {
        code = cause(&v, status, err);
        last_word(&v, code, err);
        struct run_status last;
        if (run_status_read(&last, s->directory, NULL) == 0) hand_on(&v, last.state, true);
    }
    outlets_close(v.outlets);
    char *path = path_join(s->directory, "live.json");
    unlink(path);
    free(path);
    monitor_close(v.monitor);
    if (signals >= 0) close(signals);
    if (v.report) munmap(v.report, sizeof *v.report);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}

int supervise_detached(const struct supervision *s, struct error *err)
{
    struct run_status earlier;
    int pid_before = run_status_read(&earlier, s->directory, NULL) == 0 ? earlier.pid : 0;
    pid_t pid = fork();
    if (pid < 0) return error_errno(err, EXIT_FAILED, NULL, "cannot start the supervisor");
    if (pid == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        char *path = path_join(s->directory, "worker.log");
        int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666),
            null = open("/dev/null", O_RDWR | O_CLOEXEC);
        free(path);
        dup2(null, 0);
        dup2(log >= 0 ? log : null, 1);
        dup2(log >= 0 ? log : null, 2);
        struct error own = {0};
        int code = supervise(s, &own);
        if (code && own.what[0]) error_print(&own);
        _exit(code);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    for (int i = 0; i < 500; i++) { /* until it has said that it starts */
        struct run_status said;
        if (run_status_read(&said, s->directory, NULL) == 0 && said.pid > 0 && said.pid != pid_before)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return error_set(err, EXIT_FAILED, "see worker.log in the run directory",
                     "the worker did not start within 5 s");
}
