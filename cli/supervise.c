/* The supervisor: see supervise.h. */
#include "cli/supervise.h"
#include "cli/supervisor.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
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
static const int heard[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
enum { HEARD = sizeof heard / sizeof *heard };

static sigset_t heard_set(int count)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < count; i++) sigaddset(&set, heard[i]);
    return set;
}

/* ---- the worker ---- */

static void child(const struct supervision *s, int report, pid_t parent)
{
    char fd[16], lock[16], stop_after[32], threads[32];
    const char *argv[16] = {"meopt", "worker", "--report", fd, "--lock", lock};
    int n = 6;
    sigset_t later = heard_set(HEARD - 1);
    sigprocmask(SIG_SETMASK, &later, NULL);
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
    snprintf(lock, sizeof lock, "%d", s->lock);
    fcntl(s->lock, F_SETFD, 0);
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
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int report_open(struct supervisor *v, int *fd, struct error *err)
{
    *fd = memfd_create("meopt-report", 0); /* inherited */
    if (*fd < 0 || ftruncate(*fd, sizeof *v->report) != 0)
        return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
    v->report = mmap(NULL, sizeof *v->report, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (v->report != MAP_FAILED) return 0;
    v->report = NULL;
    return error_errno(err, EXIT_FAILED, NULL, "no memory to share with the worker");
}

static int tell_start(const struct supervisor *v, int64_t step, struct error *err)
{
    struct run_status status = {
        .state = "starting", .step = step, .pid = v->pid, .time = (double)time(NULL), .exit_code = -1};
    gethostname(status.host, sizeof status.host - 1);
    return run_status_write(&status, v->s->directory, err);
}

/* On an error there is no worker. */
static int start(struct supervisor *v, struct error *err)
{
    int fd = -1, code = report_open(v, &fd, err), status;
    struct run_status before;
    if (!code) {
        if (v->s->resume) run_requests_forget(v->s->directory);
        v->oom_before = oom_kills_here();
        int64_t step = run_status_read(&before, v->s->directory, NULL) == 0 ? before.step : 0;
        pid_t own = getpid();
        v->pid = fork();
        if (v->pid == 0) child(v->s, fd, own);
        if (v->pid < 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot start the worker");
        else if ((code = tell_start(v, step, err)) != 0) {
            kill(v->pid, SIGKILL);
            while (waitpid(v->pid, &status, 0) < 0 && errno == EINTR)
                ;
        }
    }
    if (fd >= 0) close(fd);
    v->moved_at = clock_seconds();
    return code;
}

/* ---- stopping it ---- */

static void ask(struct supervisor *v, enum asked how, int by)
{
    if (how <= v->asked) return;
    v->asked = how;
    v->asked_by = by;
    v->asked_at = clock_seconds();
    if (how == ASKED_TO_SAVE) {
        kill(v->pid, SIGTERM);
        kill(v->pid, SIGCONT); /* a stopped worker must hear it */
        if (by == SIGINT) log_info("saving, then stopping; Ctrl-C once more stops at once");
        else log_info("saving, then stopping; 'meopt stop --now %s' stops at once", v->s->directory);
    } else {
        kill(v->pid, SIGKILL);
        log_info("stopping at once");
    }
}

static void obey(struct supervisor *v, int number)
{
    switch (signals_wish(number)) {
    case WISH_STOP: {
        bool haste = number == SIGINT && signals_haste(&v->interrupts, clock_seconds());
        ask(v, haste ? ASKED_NOW : ASKED_TO_SAVE, number);
        break;
    }
    case WISH_SAVE: kill(v->pid, number); break;
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

/* Whether it has ended, and then how. */
static bool reap(struct supervisor *v, int *status)
{
    pid_t pid;
    while ((pid = waitpid(v->pid, status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
        if (WIFSTOPPED(*status)) v->stopped = true;
        else if (WIFCONTINUED(*status)) v->stopped = false;
        else return true;
    }
    return false;
}

/* Until the worker has ended; its number is not used again before it is reaped, so it is signalled in here
 * alone. Returns its status. */
static int attend(struct supervisor *v, int signals)
{
    int status = 0;
    double told = 0;
    for (bool ended = false; !ended;) {
        struct pollfd wait = {signals, POLLIN, 0};
        struct signalfd_siginfo info;
        poll(&wait, 1, TICK_MS);
        while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) obey(v, (int)info.ssi_signo);
        ended = reap(v, &status);
        live_watch(v);
        live_begin(v);
        if (!ended && run_requested(v->s->directory, "stop-now")) ask(v, ASKED_NOW, SIGTERM);
        if (!ended) lose_patience(v);
        if (ended || clock_seconds() - told >= 1) {
            live_tell(v);
            told = clock_seconds();
        }
    }
    return status;
}

int supervise(const struct supervision *s, struct error *err)
{
    struct supervisor v = {.s = s};
    struct error own = {0};
    if (!err) err = &own;
    sigset_t set = heard_set(HEARD);
    sigprocmask(SIG_BLOCK, &set,
                NULL); /* for good: what comes when all is over must not change how it ended */
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK),
        code = signals < 0 ? error_errno(err, EXIT_FAILED, NULL, "no signals") : start(&v, err);
    if (!code) {
        int status = attend(&v, signals);
        cards_note(&v, true);
        code = end_cause(&v, status, err);
        end_last_word(&v, code, err);
        struct run_status last;
        if (run_status_read(&last, s->directory, NULL) == 0) live_hand_on(&v, last.state, true);
    }
    outlets_close(v.outlets);
    char *path = path_join(s->directory, "live.json");
    unlink(path);
    free(path);
    monitor_close(v.monitor);
    if (signals >= 0) close(signals);
    if (v.report) munmap(v.report, sizeof *v.report);
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
