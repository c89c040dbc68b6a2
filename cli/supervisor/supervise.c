/* Starts, restarts and stops the workers of a run: see supervise.h. */
#include "cli/supervisor/supervise.h"
#include "cli/supervisor/supervise_internal.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/processors.h"
#include "core/base/platform.h"
#include "core/data/unpacked.h"
#include "core/run/request.h"
#include "core/run/status.h"

#include <errno.h>
#include <fcntl.h>
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

/* Signals that the supervisor handles. The worker handles all but the last (core/train/signals.h): it
 * starts with them blocked, so that pending ones are handled after its setup. */
static const int handled_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPWR, SIGCHLD};
enum {
    HANDLED_SIGNALS = sizeof handled_signals / sizeof *handled_signals,
    FIRST_PAUSE_SECONDS = 5 /* doubles each time */
};

static sigset_t signal_set(int count)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < count; i++) sigaddset(&set, handled_signals[i]);
    return set;
}

/* ---- the workers ---- */

/* Builds argv of a worker. */
struct words {
    int count;
    const char *all[48];
    char text[16][32];
    int texts;
};

static void add_word(struct words *w, const char *word) { w->all[w->count++] = word; }

static void add_number(struct words *w, const char *option, int64_t number)
{
    snprintf(w->text[w->texts], sizeof w->text[0], "%lld", (long long)number);
    add_word(w, option);
    add_word(w, w->text[w->texts++]);
}

static void add_rank(struct words *w, const struct supervisor *v, int i)
{
    const struct supervised_ranks *r = &v->s->ranks;
    if (r->cards && r->cards[i]) {
        add_word(w, "--card");
        add_word(w, r->cards[i]);
    }
    if (r->size < 2) return;
    add_number(w, "--rank", i);
    add_number(w, "--ranks", r->size);
    add_number(w, "--local-rank", r->launched ? r->local_rank : i);
    if (v->shared >= 0) add_number(w, "--shared", v->shared);
    snprintf(w->text[w->texts], sizeof w->text[0], "%016llx", (unsigned long long)r->config_hash);
    add_word(w, "--config-hash");
    add_word(w, w->text[w->texts++]);
}

/* Returns the number of threads per worker. By default the workers of this host share its cores equally. */
static int64_t threads_of(const struct supervisor *v)
{
    if (v->s->threads || v->count < 2 || getenv("OMP_NUM_THREADS")) return v->s->threads;
    int cores = processors_cores("");
    return cores > v->count ? cores / v->count : 1;
}

static void child(const struct supervisor *v, int i, int report, pid_t parent)
{
    const struct supervision *s = v->s;
    struct words w = {.count = 0};
    char rendezvous[RENDEZVOUS_TEXT];
    int64_t threads = threads_of(v);
    sigset_t later = signal_set(HANDLED_SIGNALS - 1);
    sigprocmask(SIG_SETMASK, &later, NULL);
    setsid();
    if (s->foreground) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(EXIT_SIGNAL + SIGKILL);
        if (s->brief) dup2(2, 1);
    } else {
        int log;
        if (run_append(v->home.directory, "worker.log", &log, NULL) == 0) {
            dup2(log, 1);
            dup2(log, 2);
        }
    }
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, 0);
    int inherited[] = {s->lock, report, v->shared};
    for (size_t k = 0; k < sizeof inherited / sizeof *inherited; k++)
        if (inherited[k] >= 0) fcntl(inherited[k], F_SETFD, 0);
    unpacked_inherit();
    add_word(&w, "meopt");
    add_word(&w, "worker");
    add_number(&w, "--report", report);
    add_number(&w, "--report-number", i);
    if (i == 0) add_number(&w, "--lock", s->lock);
    add_rank(&w, v, i);
    if (v->hub) {
        rendezvous_text(hub_server_rendezvous(v->hub), rendezvous);
        setenv(RENDEZVOUS_VARIABLE, rendezvous, 1);
    }
    if (v->resume) add_word(&w, "--resume");
    if (s->force_resume) {
        add_word(&w, "--force-resume");
        add_word(&w, s->force_resume);
    }
    if (s->json) add_word(&w, "--json");
    if (s->brief) add_word(&w, "--brief");
    if (s->stop_after) add_number(&w, "--stop-after", s->stop_after);
    if (threads) add_number(&w, "--threads", threads);
    add_word(&w, "--");
    add_word(&w, v->home.directory);
    add_word(&w, NULL);
    execv("/proc/self/exe", (char *const *)(uintptr_t)w.all);
    struct worker_report *own = &v->report[i];
    own->code = error_errno(&own->err, EXIT_FAILED, "check that /proc is mounted and the program exists",
                            "cannot start a worker from /proc/self/exe");
    atomic_store(&own->ended, 1);
    _exit(127);
}

static int report_open(struct supervisor *v, int *fd, struct error *err)
{
    size_t bytes = (size_t)v->count * sizeof *v->report;
    *fd = memory_file("meopt-report");
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) != 0)
        return error_errno(err, EXIT_FAILED, NULL, "cannot create shared memory for the worker");
    v->report = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (v->report != MAP_FAILED) return 0;
    v->report = NULL;
    return error_errno(err, EXIT_FAILED, NULL, "cannot create shared memory for the worker");
}

static int report_start(const struct supervisor *v, int64_t step, struct error *err)
{
    struct run_status status = {
        .state = "starting", .step = step, .pid = v->pid, .time = (double)time(NULL), .exit_code = -1};
    gethostname(status.host, sizeof status.host - 1);
    return run_status_write(&status, v->home.directory, err);
}

/* Kills and reaps all workers. */
static void workers_end(struct supervisor *v)
{
    workers_signal(v, SIGKILL);
    for (int i = 0; i < v->count; i++) {
        while (worker_running(v, i) && waitpid(v->workers[i].pid, &v->workers[i].status, 0) < 0 &&
               errno == EINTR)
            ;
        v->workers[i].pid = 0;
    }
}

static int directory_missing(const struct supervisor *v, struct error *err)
{
    if (errno) error_errno(err, EXIT_FAILED, NULL, "cannot read the run directory");
    else error_set(err, EXIT_FAILED, NULL, "the run directory is missing");
    return error_at(err, v->home.directory, 0, 0);
}

/* Starts the workers. After an error no worker runs. */
static int start(struct supervisor *v, struct error *err)
{
    struct run_status before;
    int fd = -1, code = supervisor_follow(v) ? report_open(v, &fd, err) : directory_missing(v, err);
    if (!code) code = ranks_open(v, err);
    if (!code) {
        /* requests before the first attempt are stale; later ones are for the worker */
        if (v->resume && !v->resumed_by_us) run_requests_forget(v->home.directory);
        v->oom_before = oom_kills_here();
        int64_t step = run_status_read(&before, v->home.directory, NULL) == 0 ? before.step : 0;
        pid_t own = getpid();
        for (int i = 0; i < v->count && !code; i++) {
            v->workers[i] = (struct watched){.pid = fork()};
            if (v->workers[i].pid == 0) child(v, i, fd, own);
            if (v->workers[i].pid < 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot start a worker");
        }
        v->pid = v->workers[0].pid;
        if (!code) code = report_start(v, step, err);
        if (code) workers_end(v);
    }
    if (fd >= 0) close(fd);
    v->progress_at = clock_seconds();
    return code;
}

/* ---- stopping them ---- */

static void request_stop(struct supervisor *v, enum stop_request how, int by)
{
    if (how <= v->stop_request) return;
    v->stop_request = how;
    v->asked_by = by;
    v->asked_at = clock_seconds();
    if (how == ASKED_TO_SAVE) {
        workers_signal(v, SIGTERM);
        workers_signal(v, SIGCONT); /* a stopped process handles SIGTERM only after SIGCONT */
        if (by == SIGINT) log_info("saving, then stopping; Ctrl-C once more stops at once");
        else if (v->s->ranks.hasty && by == SIGTERM)
            log_info("saving, then stopping; after Ctrl-C mpirun kills its ranks within a second: next "
                     "time use 'meopt stop %s'",
                     v->home.directory);
        else log_info("saving, then stopping; 'meopt stop --now %s' stops at once", v->home.directory);
    } else {
        workers_signal(v, SIGKILL);
        log_info("stopping at once");
    }
}

static void handle_signal(struct supervisor *v, int number)
{
    switch (signals_request(number)) {
    case REQUEST_STOP: {
        bool haste = number == SIGINT && signals_force_quit(&v->interrupts, clock_seconds());
        request_stop(v, haste ? ASKED_NOW : ASKED_TO_SAVE, number);
        break;
    }
    case REQUEST_SAVE: workers_signal(v, number); break;
    default: break;
    }
}

/* Kills workers that made no progress for too long after a stop request. */
static void kill_unresponsive(struct supervisor *v)
{
    double since = v->asked_at > v->progress_at ? v->asked_at : v->progress_at,
           patience = silence_limit_seconds((enum train_phase)atomic_load(&v->report->phase), v->longest_gap,
                                            atomic_load(&v->report->saving_bytes));
    if (v->stop_request != ASKED_TO_SAVE || clock_seconds() - since <= patience) return;
    log_warn("the worker was asked to stop and made no progress for %.0f s", patience);
    request_stop(v, ASKED_NOW, SIGTERM);
}

/* Reaps workers. Returns whether all have ended. */
static bool reap(struct supervisor *v)
{
    bool all = true;
    for (int i = 0; i < v->count; i++) {
        struct watched *w = &v->workers[i];
        int status;
        while (worker_running(v, i) && waitpid(w->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
            if (WIFSTOPPED(status)) w->stopped = true;
            else if (WIFCONTINUED(status)) w->stopped = false;
            else {
                w->status = status;
                w->pid = 0;
            }
        }
        all = all && !worker_running(v, i);
    }
    return all;
}

/* Replaces a "failed" status that one rank wrote while the others still exit: the run will be restarted. */
static void correct_status(struct supervisor *v)
{
    struct run_status s;
    if (v->directory_lost || run_status_read(&s, v->home.directory, NULL) != 0 || !s.ended) return;
    end_write_status(v, v->lost_code, &v->why, true);
}

/* Returns whether a run that ended with this code is restarted. */
static bool restarts_after(const struct supervisor *v, int code)
{
    return v->restarts > 0 && !v->stop_wanted && v->stop_request == ASKED_NOTHING && !v->directory_lost &&
           (code == EXIT_RANK_LOST || code > EXIT_SIGNAL);
}

/* Supervises until all workers have ended. A pid is not reused before it is reaped, so only this loop,
 * which reaps, sends signals. */
static void supervise_workers(struct supervisor *v)
{
    double reported_at = 0;
    for (bool ended = false; !ended;) {
        struct pollfd wait = {v->signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, v->hub ? RANKS_TICK_MS : TICK_MS);
        while (read(v->signals, &info, sizeof info) == (ssize_t)sizeof info)
            handle_signal(v, (int)info.ssi_signo);
        bool home = supervisor_follow(v);
        ended = reap(v);
        ranks_check(v);
        ended = ended && !ranks_wait(v);
        if (v->lost_code && !ended && restarts_after(v, v->lost_code)) correct_status(v);
        live_watch(v);
        live_begin(v);
        hooks_update(v->hooks);
        if (!ended && home && run_requested(v->home.directory, "stop-now"))
            request_stop(v, ASKED_NOW, SIGTERM);
        if (!ended) kill_unresponsive(v);
        if (home && (ended || clock_seconds() - reported_at >= 1)) {
            live_report(v);
            reported_at = clock_seconds();
        }
    }
}

/* ---- attempts ---- */

/* Restarts after a lost rank, or a worker that was killed by a signal not sent from here. */
/* Pauses before the next attempt. Signals and requests end the pause; returns false for a stop request. */
static bool pause_before_restart(struct supervisor *v)
{
    struct run_status s = {0};
    double until = clock_seconds() + v->pause_s, reported_at = 0;
    bool stop = false;
    run_status_read(&s, v->home.directory, NULL);
    while (!stop && clock_seconds() < until) {
        struct pollfd wait = {v->signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, TICK_MS);
        while (read(v->signals, &info, sizeof info) == (ssize_t)sizeof info)
            stop |= signals_request((int)info.ssi_signo) == REQUEST_STOP;
        bool home = supervisor_follow(v);
        hooks_update(v->hooks);
        if (!home) continue;
        stop |= run_requested(v->home.directory, "stop");
        stop |= run_requested(v->home.directory, "stop-now");
        if (clock_seconds() - reported_at >= 1) {
            live_report_pause(v, s.step);
            reported_at = clock_seconds();
        }
    }
    return !stop;
}

/* Names the run in a hint of the ranks, which do not know its directory. */
static void complete_hint(const struct supervisor *v, struct error *err)
{
    static const char command[] = "meopt train --resume";
    size_t n = strlen(err->hint), own = sizeof command - 1;
    char again[200];
    if (n < own || strcmp(err->hint + n - own, command) != 0) return;
    snprintf(err->hint + n, sizeof err->hint - n, " %s", run_resume_words(&v->home, again, sizeof again));
}

/* Writes config.yaml as it was before a resume whose changes were refused. A lost rank is no refusal. */
static void restore_config(const struct supervisor *v, int code)
{
    const char *before = v->s->config_before;
    struct error why;
    if (!before || v->accepted || code == 0 || code == EXIT_STOPPED || code == EXIT_RANK_LOST ||
        code >= EXIT_SIGNAL)
        return;
    if (file_write_below(v->s->directory, "config.yaml", before, strlen(before), &why) != 0)
        log_warn("%s: %s", why.file, why.what);
}

/* Runs the workers once. */
static int attempt(struct supervisor *v, struct error *err)
{
    struct run_status last;
    v->lost_code = 0;
    v->failed_since = 0;
    v->marks = 0;
    int code = start(v, err);
    if (!code) {
        supervise_workers(v);
        code = v->count > 1 || v->hub ? ranks_cause(v, err) : end_cause(v, 0, err);
        for (int i = 0; i < v->count; i++) v->stop_wanted |= atomic_load(&v->report[i].stop_wanted) != 0;
        v->accepted |= atomic_load(&v->report->total) != 0;
        complete_hint(v, err);
        end_write_status(v, code, err, restarts_after(v, code));
        if (run_status_read(&last, v->home.directory, NULL) == 0) live_export(v, last.state, true);
    }
    ranks_close(v);
    metric_export_close(v->metric_export);
    v->metric_export = NULL;
    monitor_close(v->monitor);
    v->monitor = NULL;
    v->begun = false;
    if (v->report) munmap(v->report, (size_t)v->count * sizeof *v->report);
    v->report = NULL;
    return code;
}

/* Removes the lost rank with its replica, and their cards; higher ranks are renumbered. The global batch
 * and its images do not change. The last replica is started again as it is. */
static void remove_lost_rank(struct supervisor *v, struct supervision *s)
{
    struct supervised_ranks *r = &s->ranks;
    int each = comm_layout_ranks(r->layout), first = v->lost / each * each;
    if (r->size <= each) {
        if (r->layout.tensor > 1) log_info("no rank is left out: the only replica needs all %d ranks", each);
        else log_info("no rank is left out: a pipeline of %d stages needs all of them", each);
        return;
    }
    for (int k = 0; k < each; k++) {
        const char *card = r->cards ? r->cards[first] : NULL;
        for (int i = first; r->cards && i + 1 < r->size; i++) r->cards[i] = r->cards[i + 1];
        if (card) r->cards[r->size - 1] = card; /* kept for the owner of the array */
        log_info("rank %d is left out%s%s: %d rank%s from now on", first + k, card ? _(", with card ") : "",
                 card ? card : "", r->size - 1, r->size == 2 ? "" : "s");
        r->size--;
        v->count--;
    }
}

/* Waits until the last hook has ended or a stop signal arrives. */
static void wait_for_hooks(struct supervisor *v, int code, const struct error *err)
{
    bool hurry = false;
    hooks_ended(v->hooks, code, err);
    while (hooks_busy(v->hooks) && !hurry) {
        struct pollfd wait = {v->signals, POLLIN, 0};
        struct signalfd_siginfo info;
        hooks_update(v->hooks);
        if (hooks_busy(v->hooks)) poll(&wait, 1, TICK_MS);
        while (read(v->signals, &info, sizeof info) == (ssize_t)sizeof info)
            hurry |= signals_request((int)info.ssi_signo) == REQUEST_STOP;
    }
    hooks_close(v->hooks);
    v->hooks = NULL;
}

/* log_hurry: the supervisor must forward signals, so it does not wait for a slow reader of its output. */
static bool skip_waiting(void) { return true; }

int supervise(const struct supervision *s, struct error *err)
{
    struct supervision now = *s;
    struct supervisor v = {
        .s = &now,
        .home = {.directory = xstrdup(s->directory), .metrics = -1, .events = -1, .lock = s->lock},
        .restarts = s->restarts,
        .pause_s = FIRST_PAUSE_SECONDS,
        .shared = -1,
        .resume = s->resume,
        .lost = -1};
    struct error own = {0};
    if (!err) err = &own;
    log_hurry = skip_waiting;
    v.count = s->ranks.size > 1 && !s->ranks.launched ? s->ranks.size : 1;
    run_set_ranks(&v.home, s->ranks.size, s->ranks.launched, s->ranks.cards != NULL);
    v.workers = xcalloc((size_t)v.count, sizeof *v.workers);
    sigset_t set = signal_set(HANDLED_SIGNALS);
    sigprocmask(SIG_BLOCK, &set, NULL); /* never unblocked: a late signal must not change the exit code */
    v.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    v.hooks = hooks_open(s->directory, s->on_event, s->on_end);
    int code =
        v.signals < 0 ? error_errno(err, EXIT_FAILED, NULL, "cannot create a signalfd") : attempt(&v, err);
    while (restarts_after(&v, code)) {
        log_warn("%s", err->what);
        v.restarts--;
        log_info("resuming from the last checkpoint in %.0f s; %d more restart%s", v.pause_s, v.restarts,
                 v.restarts == 1 ? "" : "s");
        if (!pause_before_restart(&v)) {
            code = end_in_pause(&v, err);
            break;
        }
        if (s->elastic && v.count > 1 && v.lost >= 0 && v.lost < v.count) remove_lost_rank(&v, &now);
        v.lost = -1;
        v.resume = v.resumed_by_us = true;
        v.pause_s *= 2;
        err->what[0] = 0;
        code = attempt(&v, err);
    }
    restore_config(&v, code);
    if (supervisor_follow(&v)) file_unlink_below(v.home.directory, "live.json", 0);
    wait_for_hooks(&v, code, err);
    if (v.signals >= 0) close(v.signals);
    v.home.lock = -1; /* owned by the caller */
    run_close(&v.home);
    free(v.workers);
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
        int log, null = open("/dev/null", O_RDWR | O_CLOEXEC);
        run_append(s->directory, "worker.log", &log, NULL);
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
    for (int i = 0; i < 500; i++) { /* until it has written state.json */
        struct run_status said;
        if (run_status_read(&said, s->directory, NULL) == 0 && said.pid > 0 && said.pid != pid_before)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return error_set(err, EXIT_FAILED, "see worker.log in the run directory",
                     "the worker did not start within 5 s");
}
