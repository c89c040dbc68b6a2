/* Providers rsmi and nvml: the monitor's side of the helper process (helper.c).
 *
 * When a call does not return within the deadline, the helper is killed, started again, and asked to skip
 * that field for a while. All other fields stay current and this field is shown as old. The same happens when
 * a helper dies. After three failures to load the library, the monitor falls back to the kernel's files
 * (sysfs), or to the CPU alone. */
#include "core/monitor/helper.h"
#include "core/base/clock.h"
#include "core/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    INIT_SLOWER = 10,
    FAILURES_MAX = 3
}; /* loading a driver's state takes seconds on an idle machine with many cards */
static const double skip_first_s = 30, skip_most_s = 1800;

extern char **environ;

struct watch {
    pid_t pid;   /* 0: not running */
    pid_t stuck; /* killed, but blocked in the kernel; no new helper is started until it is gone */
    int fd, log; /* socket to the helper; its stderr */
    bool ready;
    bool noted;      /* this sample has set a note */
    int failures;    /* failed starts in a row */
    int card, field; /* the call in progress */
    double heard_s;
    char said[160]; /* the last line of its stderr */
    double skip_until_s[MONITOR_CARDS][MONITOR_FIELDS], skip_s[MONITOR_CARDS][MONITOR_FIELDS];
};

static const char *const field_names[MONITOR_FIELDS] = {[MONITOR_MEM_USED] = N_("memory in use"),
                                                        [MONITOR_MEM_TOTAL] = N_("memory size"),
                                                        [MONITOR_BUSY] = "busy",
                                                        [MONITOR_TEMP] = "temperature",
                                                        [MONITOR_POWER] = "power",
                                                        [MONITOR_PROCESS] = N_("process memory"),
                                                        [MONITOR_ECC_ERRORS] = N_("ECC errors"),
                                                        [MONITOR_CLOCK] = "clock",
                                                        [MONITOR_THROTTLE] = N_("throttling"),
                                                        [MONITOR_ECC] = "ECC",
                                                        [MONITOR_CLOCK_MOST] = N_("highest clock"),
                                                        [MONITOR_CAP] = N_("power cap"),
                                                        [MONITOR_CAP_DEFAULT] = N_("default power cap"),
                                                        [MONITOR_MIG] = "MIG",
                                                        [MONITOR_INDEX] = "index"};

static bool stopping(struct monitor *m)
{
    pthread_mutex_lock(&m->mutex);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->mutex);
    return stop;
}

/* The library reads debug variables, one of which makes it loop for ever. */
static char **helper_environment(void)
{
    size_t n = 0, k = 0;
    while (environ && environ[n]) n++;
    char **e = xcalloc(n + 1, sizeof *e);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "RSMI_DEBUG", 10) != 0) e[k++] = environ[i];
    return e;
}

/* Moves a descriptor above 0 to 3, which the helper uses. */
static int moved_up(int fd)
{
    int up = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    if (up < 0) return fd;
    close(fd);
    return up;
}

static bool watch_start(struct monitor *m, struct watch *w)
{
    int pair[2], log[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
    if (pipe2(log, O_CLOEXEC | O_NONBLOCK) != 0) {
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    pair[1] = moved_up(pair[1]);
    log[1] = moved_up(log[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, log[1], STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pair[1], HELPER_FD);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const char *library = m->provider == &monitor_nvml ? m->options.nvml_library : m->options.rsmi_library;
    char *argv[] = {"meopt", MONITOR_HELPER, (char *)m->provider->name, (char *)(library ? library : ""),
                    NULL},
         **environment = helper_environment();
    int code = posix_spawn(&w->pid, m->options.helper, &actions, &attributes, argv, environment);
    free(environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    close(log[1]);
    w->fd = pair[0], w->log = log[0];
    w->ready = false, w->card = -1, w->said[0] = 0, w->heard_s = clock_seconds();
    if (code == 0) return true;
    monitor_note(m, "cannot start %s: %s", m->options.helper, strerror(code));
    w->failures++;
    close(w->fd);
    close(w->log);
    w->pid = 0;
    return false;
}

static void watch_listen(struct watch *w)
{
    char text[4096];
    ssize_t n;
    while ((n = read(w->log, text, sizeof text - 1)) > 0) {
        while (n > 0 && text[n - 1] == '\n') n--;
        text[n] = 0;
        char *line = strrchr(text, '\n');
        if (n > 0) snprintf(w->said, sizeof w->said, "%.*s", (int)sizeof w->said - 1, line ? line + 1 : text);
    }
}

/* Waits for the end of the helper. Returns its wait status, or -1 when it had to be killed. */
static int watch_end(struct watch *w)
{
    int status = -1;
    watch_listen(w);
    close(w->fd);
    close(w->log);
    bool went = waitpid(w->pid, &status, WNOHANG) == w->pid;
    for (int i = 0; i < 20 && !went; i++) { /* it may be about to end */
        if (i == 2) kill(w->pid, SIGKILL);
        monitor_sleep(i < 2 ? 0.005 : 0.02);
        went = waitpid(w->pid, &status, WNOHANG) == w->pid;
    }
    if (!went) w->stuck = w->pid;
    w->pid = 0;
    return went ? status : -1;
}

static void watch_lost(struct monitor *m, struct watch *w, const char *how)
{
    bool late = how != NULL;
    w->noted = true;
    if (late) kill(w->pid, SIGKILL);
    int status = watch_end(w);
    char death[64];
    if (!late) {
        if (status > 0 && WIFSIGNALED(status))
            snprintf(death, sizeof death, _("the helper died of signal %d"), WTERMSIG(status));
        else snprintf(death, sizeof death, _("the helper ended"));
        how = death;
    }
    const char *name = m->provider->name, *said = w->said;
    if (w->card < 0 || w->card >= MONITOR_CARDS) {
        if (!w->ready) w->failures++;
        monitor_note(m, "%s: %s while it loaded the library%s%s", name, how, said[0] ? ": " : "", said);
        return;
    }
    double *skip = &w->skip_s[w->card][w->field];
    *skip = *skip > 0 ? (*skip * 4 > skip_most_s ? skip_most_s : *skip * 4) : skip_first_s;
    w->skip_until_s[w->card][w->field] = clock_seconds() + *skip;
    monitor_note(m, "%s: %s at %s of card %d%s%s", name, how, field_names[w->field], w->card,
                 said[0] ? ": " : "", said);
}

/* Handles one record. Returns false when the helper reported a fatal error. */
static bool watch_take(struct monitor *m, struct watch *w, const struct helper_record *r)
{
    struct monitor_card *card = r->card >= 0 && r->card < MONITOR_CARDS ? &m->work.cards[r->card] : NULL;
    bool field = r->field >= 0 && r->field < MONITOR_FIELDS;
    switch (r->kind) {
    case HELPER_BEGIN:
        w->card = r->card, w->field = field ? r->field : 0;
        if (card && r->field == MONITOR_PROCESS && m->provider == &monitor_nvml) card->holder_count = 0;
        break;
    case HELPER_HOLDER:
        if (card) card_holder(m, card, r->result, r->value, NULL);
        break;
    case HELPER_VALUE:
        if (!card || !field) break;
        card_take(card, r->field, r->result, r->value);
        if (r->result > 0) w->skip_s[r->card][r->field] = 0;
        break;
    case HELPER_LIBRARY: name_printable(m->work.library, sizeof m->work.library, r->text); break;
    case HELPER_NAME:
        if (card) card_name(card, r->text);
        break;
    case HELPER_PCI:
        if (card) monitor_pci(card->pci, r->text);
        break;
    case HELPER_NOTE:
        w->noted = true;
        monitor_note(m, "%s: card %d, %s: %s", m->provider->name, r->card, field ? field_names[r->field] : "",
                     r->text);
        break;
    case HELPER_READY:
        for (int i = r->card; i < m->work.card_count; i++)
            memset(&m->work.cards[i], 0, sizeof m->work.cards[i]);
        m->work.card_count = r->card < 0 ? 0 : r->card > MONITOR_CARDS ? MONITOR_CARDS : r->card;
        w->ready = true, w->failures = 0, w->card = -1;
        if (m->work.card_count == 0)
            monitor_note(m, "%s: %s finds no card", m->provider->name, m->work.library);
        break;
    case HELPER_FAILED:
        w->failures++;
        monitor_note(m, "%s: %s", m->provider->name, r->text);
        return false;
    }
    return true;
}

/* Reads records until one of this kind, the end, or the deadline. */
static bool watch_until(struct monitor *m, struct watch *w, enum helper_kind last)
{
    double deadline = m->options.deadline_s * (last == HELPER_READY ? INIT_SLOWER : 1);
    w->heard_s = clock_seconds();
    while (!stopping(m)) {
        struct helper_record r = {0};
        struct pollfd p = {w->fd, POLLIN, 0};
        int n = poll(&p, 1, 50);
        watch_listen(w);
        if (n <= 0) {
            if (clock_seconds() - w->heard_s < deadline) continue;
            char how[64];
            snprintf(how, sizeof how, _("no answer within %.3g s"), deadline);
            watch_lost(m, w, how);
            return false;
        }
        ssize_t size = recv(w->fd, &r, sizeof r, MSG_DONTWAIT);
        if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (size < (ssize_t)offsetof(struct helper_record, text)) {
            watch_lost(m, w, NULL);
            return false;
        }
        r.text[sizeof r.text - 1] = 0;
        w->heard_s = clock_seconds();
        if (!watch_take(m, w, &r)) {
            watch_end(w);
            return false;
        }
        if (r.kind == (int)last) return true;
    }
    return false;
}

/* Switches to another provider; the note with the reason stays. */
static void watch_give_up(struct monitor *m, struct watch *w)
{
    static const struct monitor_provider *const others[] = {&monitor_sysfs, &monitor_proc};
    struct monitor_snapshot before = m->work;
    const struct monitor_provider *self = m->provider;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct error err;
        if (others[i] == &monitor_proc && !m->chosen)
            break; /* an explicit request for cards never falls back to the CPU */
        memset(m->work.cards, 0, sizeof m->work.cards);
        m->work.card_count = 0;
        if (others[i]->open(m, &err) != 0) continue;
        m->provider = others[i];
        snprintf(m->work.provider, sizeof m->work.provider, "%s", others[i]->name);
        if (w->pid) watch_end(w);
        free(w);
        m->provider->sample(m);
        return;
    }
    m->work = before;
    m->state = w, m->provider = self;
    w->failures = FAILURES_MAX; /* sysfs is tried again at every sample, which is cheap: no library, and it
                                 * cannot hang */
}

static void watch_sample(struct monitor *m)
{
    struct watch *w = m->state;
    if (w->stuck && waitpid(w->stuck, NULL, WNOHANG) == 0) return;
    w->stuck = 0;
    if (w->failures >= FAILURES_MAX) {
        watch_give_up(m, w);
        if (m->state != w) return;
    }
    if (!w->pid && (!watch_start(m, w) || !watch_until(m, w, HELPER_READY))) return;
    struct helper_request request = {0};
    w->noted = false;
    pid_t pids[MONITOR_PIDS];
    request.pid_count = watched_pids(m, pids);
    for (int i = 0; i < request.pid_count; i++) request.pids[i] = pids[i];
    double now = clock_seconds();
    for (int i = 0; i < MONITOR_CARDS; i++)
        for (int f = 0; f < MONITOR_FIELDS; f++)
            if (f >= MONITOR_HEALTH && !m->options.health) request.skip[i] |= 1u << f;
            else if (now < w->skip_until_s[i][f]) {
                request.skip[i] |= 1u << f;
                w->noted = true; /* (the note gives the reason) */
            }
    w->card = -1;
    if (send(w->fd, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) watch_lost(m, w, NULL);
    else if (watch_until(m, w, HELPER_END) && !w->noted && m->work.card_count > 0)
        m->work.note[0] = 0; /* recovered */
    if (m->provider == &monitor_rsmi) kfd_process_bytes(m);
}

static int watch_open(struct monitor *m, struct error *err)
{
    (void)err;
    m->state = xcalloc(1, sizeof(struct watch));
    return 0;
}

static void watch_close(struct monitor *m)
{
    struct watch *w = m->state;
    if (w->pid) watch_end(w);
    free(w);
}

const struct monitor_provider monitor_rsmi = {"rsmi", watch_open, watch_sample, watch_close};
const struct monitor_provider monitor_nvml = {"nvml", watch_open, watch_sample, watch_close};
