/* The supervisor: see supervise.h. */
#include "cli/supervisor/supervise.h"
#include "cli/supervisor/supervise_internal.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/processors.h"
#include "core/base/platform.h"
#include "core/run/request.h"
#include "core/run/status.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the supervisor hears, and, but for the last, the worker too (core/train/signals.h): it is started with
 * them blocked and takes what came meanwhile once it can. */
static const int heard[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPWR, SIGCHLD};
enum { HEARD = sizeof heard / sizeof *heard, FIRST_PAUSE_SECONDS = 5 /* then twice as long each time */ };

static sigset_t heard_set(int count)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < count; i++) sigaddset(&set, heard[i]);
    return set;
}

/* ---- the workers ---- */

bool worker_lives(const struct supervisor *v, int i) { return v->workers[i].pid > 0; }

void workers_signal(const struct supervisor *v, int number)
{
    for (int i = 0; i < v->count; i++)
        if (worker_lives(v, i)) kill(v->workers[i].pid, number);
}

bool supervisor_at_home(struct supervisor *v)
{
    const char *before = v->home.directory;
    struct error why = {0};
    bool here = run_follow(&v->home, &why) == 0 && run_is_here(&v->home);
    if (v->home.directory != before || here == v->strayed)
        hooks_moved(v->hooks, here ? v->home.directory : NULL);
    if (!here && !v->strayed)
        log_warn("the directory %s is not this run's any more: nothing is written there", v->home.directory);
    v->strayed = !here;
    return here;
}

/* argv of a worker, growing. */
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

/* The cores are shared by the workers of this host where nobody says how. */
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
    char place[PLACE_TEXT];
    int64_t threads = threads_of(v);
    sigset_t later = heard_set(HEARD - 1);
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
    add_word(&w, "meopt");
    add_word(&w, "worker");
    add_number(&w, "--report", report);
    add_number(&w, "--report-number", i);
    if (i == 0) add_number(&w, "--lock", s->lock);
    add_rank(&w, v, i);
    if (v->hub) {
        place_text(hub_server_place(v->hub), place);
        setenv(PLACE_VARIABLE, place, 1);
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
    own->code = error_errno(&own->err, EXIT_FAILED, "is /proc mounted, and the program still there?",
                            "cannot start a worker from /proc/self/exe");
    atomic_store(&own->ended, 1);
    _exit(127);
}

static int report_open(struct supervisor *v, int *fd, struct error *err)
{
    size_t bytes = (size_t)v->count * sizeof *v->report;
    *fd = memory_file("meopt-report");
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) != 0)
        return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
    v->report = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (v->report != MAP_FAILED) return 0;
    v->report = NULL;
    return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
}

static int report_start(const struct supervisor *v, int64_t step, struct error *err)
{
    struct run_status status = {
        .state = "starting", .step = step, .pid = v->pid, .time = (double)time(NULL), .exit_code = -1};
    gethostname(status.host, sizeof status.host - 1);
    return run_status_write(&status, v->home.directory, err);
}

/* Killed and reaped. */
static void workers_end(struct supervisor *v)
{
    workers_signal(v, SIGKILL);
    for (int i = 0; i < v->count; i++) {
        while (worker_lives(v, i) && waitpid(v->workers[i].pid, &v->workers[i].status, 0) < 0 &&
               errno == EINTR)
            ;
        v->workers[i].pid = 0;
    }
}

static int gone(const struct supervisor *v, struct error *err)
{
    error_set(err, EXIT_FAILED, NULL, "the run's directory is not there any more");
    return error_at(err, v->home.directory, 0, 0);
}

/* On an error there is no worker. */
static int start(struct supervisor *v, struct error *err)
{
    struct run_status before;
    int fd = -1, code = supervisor_at_home(v) ? report_open(v, &fd, err) : gone(v, err);
    if (!code) code = ranks_open(v, err);
    if (!code) {
        /* of an earlier process; what has come since the first attempt is for the worker */
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
    v->moved_at = clock_seconds();
    return code;
}

/* ---- stopping them ---- */

static void ask(struct supervisor *v, enum asked how, int by)
{
    if (how <= v->asked) return;
    v->asked = how;
    v->asked_by = by;
    v->asked_at = clock_seconds();
    if (how == ASKED_TO_SAVE) {
        workers_signal(v, SIGTERM);
        workers_signal(v, SIGCONT); /* a stopped worker must hear it */
        if (by == SIGINT) log_info("saving, then stopping; Ctrl-C once more stops at once");
        else if (v->s->ranks.hasty && by == SIGTERM)
            log_info(
                "saving, then stopping; Ctrl-C has mpirun kill its ranks in a second, saved or not: next "
                "time 'meopt stop %s'",
                v->home.directory);
        else log_info("saving, then stopping; 'meopt stop --now %s' stops at once", v->home.directory);
    } else {
        workers_signal(v, SIGKILL);
        log_info("stopping at once");
    }
}

static void obey(struct supervisor *v, int number)
{
    switch (signals_request(number)) {
    case REQUEST_STOP: {
        bool haste = number == SIGINT && signals_force_quit(&v->interrupts, clock_seconds());
        ask(v, haste ? ASKED_NOW : ASKED_TO_SAVE, number);
        break;
    }
    case REQUEST_SAVE: workers_signal(v, number); break;
    default: break;
    }
}

/* Asked to stop, it has given no sign for so long that it is taken for dead. */
static void lose_patience(struct supervisor *v)
{
    double since = v->asked_at > v->moved_at ? v->asked_at : v->moved_at,
           patience = patience_seconds((enum train_phase)atomic_load(&v->report->phase), v->longest_gap,
                                       atomic_load(&v->report->saving_bytes));
    if (v->asked != ASKED_TO_SAVE || clock_seconds() - since <= patience) return;
    log_warn("the worker was asked to stop and has not moved for %.0f s", patience);
    ask(v, ASKED_NOW, SIGTERM);
}

/* Whether all have ended. */
static bool reap(struct supervisor *v)
{
    bool all = true;
    for (int i = 0; i < v->count; i++) {
        struct watched *w = &v->workers[i];
        int status;
        while (worker_lives(v, i) && waitpid(w->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
            if (WIFSTOPPED(status)) w->stopped = true;
            else if (WIFCONTINUED(status)) w->stopped = false;
            else {
                w->status = status;
                w->pid = 0;
            }
        }
        all = all && !worker_lives(v, i);
    }
    return all;
}

/* A rank has written that the run failed, while the others still end and it is to be started again. */
static void end_correct(struct supervisor *v)
{
    struct run_status s;
    if (v->strayed || run_status_read(&s, v->home.directory, NULL) != 0 || !s.ended) return;
    end_last_word(v, v->verdict, &v->why, true);
}

/* Until the workers have ended; a number is not used again before it is reaped, so they are signalled in here
 * alone. */
static void attend(struct supervisor *v)
{
    double told = 0;
    for (bool ended = false; !ended;) {
        struct pollfd wait = {v->signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, v->hub ? RANKS_TICK_MS : TICK_MS);
        while (read(v->signals, &info, sizeof info) == (ssize_t)sizeof info) obey(v, (int)info.ssi_signo);
        bool home = supervisor_at_home(v);
        ended = reap(v);
        ranks_judge(v);
        ended = ended && !ranks_wait(v);
        if (v->verdict && !ended && supervisor_restarts(v, v->verdict)) end_correct(v);
        live_watch(v);
        live_begin(v);
        hooks_update(v->hooks);
        if (!ended && home && run_requested(v->home.directory, "stop-now")) ask(v, ASKED_NOW, SIGTERM);
        if (!ended) lose_patience(v);
        if (home && (ended || clock_seconds() - told >= 1)) {
            live_report(v);
            told = clock_seconds();
        }
    }
}

/* ---- from the beginning to the end ---- */

/* A restart may cure a lost rank, or a worker that was killed by something else than us. */
bool supervisor_restarts(const struct supervisor *v, int code)
{
    return v->restarts > 0 && !v->stop_wanted && v->asked == ASKED_NOTHING && !v->strayed &&
           (code == EXIT_RANK_LOST || code > EXIT_SIGNAL);
}

/* The pause before the next attempt, which signals and requests end; false: asked to stop. */
static bool pause_between(struct supervisor *v)
{
    struct run_status s = {0};
    double until = clock_seconds() + v->pause_s, told = 0;
    bool stop = false;
    run_status_read(&s, v->home.directory, NULL);
    while (!stop && clock_seconds() < until) {
        struct pollfd wait = {v->signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, TICK_MS);
        while (read(v->signals, &info, sizeof info) == (ssize_t)sizeof info)
            stop |= signals_request((int)info.ssi_signo) == REQUEST_STOP;
        bool home = supervisor_at_home(v);
        hooks_update(v->hooks);
        if (!home) continue;
        stop |= run_requested(v->home.directory, "stop");
        stop |= run_requested(v->home.directory, "stop-now");
        if (clock_seconds() - told >= 1) {
            live_report_pause(v, s.step);
            told = clock_seconds();
        }
    }
    return !stop;
}

/* One attempt. */
static int attempt(struct supervisor *v, struct error *err)
{
    struct run_status last;
    v->verdict = 0;
    v->bad_since = 0;
    v->marks = 0;
    int code = start(v, err);
    if (!code) {
        attend(v);
        code = v->count > 1 || v->hub ? ranks_cause(v, err) : end_cause(v, 0, err);
        for (int i = 0; i < v->count; i++) v->stop_wanted |= atomic_load(&v->report[i].stop_wanted) != 0;
        end_last_word(v, code, err, supervisor_restarts(v, code));
        if (run_status_read(&last, v->home.directory, NULL) == 0) live_hand_on(v, last.state, true);
    }
    ranks_close(v);
    outlets_close(v->outlets);
    v->outlets = NULL;
    monitor_close(v->monitor);
    v->monitor = NULL;
    v->begun = false;
    if (v->report) munmap(v->report, (size_t)v->count * sizeof *v->report);
    v->report = NULL;
    return code;
}

/* The ranks that are left, with their cards; the numbers behind the lost one's move up. Whatever their
 * number, the images of a step are the same and are cut alike. */
static void go_on_without(struct supervisor *v, struct supervision *s)
{
    struct supervised_ranks *r = &s->ranks;
    const char *card = r->cards ? r->cards[v->lost] : NULL;
    for (int i = v->lost; r->cards && i + 1 < r->size; i++) r->cards[i] = r->cards[i + 1];
    if (card) r->cards[r->size - 1] = card; /* kept for its owner */
    r->size--;
    v->count--;
    log_info("rank %d is left out%s%s: %d rank%s from now on", v->lost, card ? ", with card " : "",
             card ? card : "", r->size, r->size == 1 ? "" : "s");
}

/* Until the last hook has ended, or somebody wants us gone. */
static void attend_hooks(struct supervisor *v, int code, const struct error *err)
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

/* Who is to pass signals on does not wait for a reader. */
static bool at_once(void) { return true; }

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
    log_hurry = at_once;
    v.count = s->ranks.size > 1 && !s->ranks.launched ? s->ranks.size : 1;
    v.workers = xcalloc((size_t)v.count, sizeof *v.workers);
    sigset_t set = heard_set(HEARD);
    sigprocmask(SIG_BLOCK, &set,
                NULL); /* for good: what comes when all is over must not change how it ended */
    v.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    v.hooks = hooks_open(s->directory, s->on_event, s->on_end);
    int code = v.signals < 0 ? error_errno(err, EXIT_FAILED, NULL, "no signals") : attempt(&v, err);
    while (supervisor_restarts(&v, code)) {
        log_warn("%s", err->what);
        v.restarts--;
        log_info("going on from the last checkpoint in %.0f s; %d more restart%s", v.pause_s, v.restarts,
                 v.restarts == 1 ? "" : "s");
        if (!pause_between(&v)) {
            code = end_between(&v, err);
            break;
        }
        if (s->elastic && v.count > 1 && v.lost >= 0 && v.lost < v.count) go_on_without(&v, &now);
        v.lost = -1;
        v.resume = v.resumed_by_us = true;
        v.pause_s *= 2;
        err->what[0] = 0;
        code = attempt(&v, err);
    }
    if (supervisor_at_home(&v)) file_unlink_below(v.home.directory, "live.json", 0);
    attend_hooks(&v, code, err);
    if (v.signals >= 0) close(v.signals);
    v.home.lock = -1; /* the caller's */
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
    for (int i = 0; i < 500; i++) { /* until it has said that it starts */
        struct run_status said;
        if (run_status_read(&said, s->directory, NULL) == 0 && said.pid > 0 && said.pid != pid_before)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return error_set(err, EXIT_FAILED, "see worker.log in the run directory",
                     "the worker did not start within 5 s");
}
