/* Runs hooks: see hooks.h. */
#include "cli/supervisor/hooks.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "core/base/platform.h"
#include "core/run/run_summary.h"
#include "core/run/run.h"
#include "core/run/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAITING_MOST = 64, HOOK_SECONDS = 60, KEEPER_SECONDS = 5 };
extern char **environ;

struct hooks {
    const char *on_event, *on_end;
    char *directory, *whole, *name; /* whole: absolute */
    struct tail events;
    json_t *waiting; /* events of queued hooks */
    pid_t pid;       /* of the keeper of the running hook; 0: none */
    double begun, seconds;
    bool failed, dropped; /* warned once */
    bool nowhere;         /* the run directory is missing */
};

static void set_directory(struct hooks *h, const char *directory)
{
    free(h->directory);
    free(h->whole);
    free(h->name);
    h->directory = xstrdup(directory);
    while (strlen(h->directory) > 1 && h->directory[strlen(h->directory) - 1] == '/')
        h->directory[strlen(h->directory) - 1] = 0;
    h->whole = realpath(directory, NULL);
    if (!h->whole) h->whole = xstrdup(h->directory);
    h->name = xstrdup(path_basename(h->whole));
}

struct hooks *hooks_open(const char *directory, const char *on_event, const char *on_end)
{
    if (!on_event && !on_end) return NULL;
    const char *seconds = getenv("MEOPT_HOOK_SECONDS"); /* for tests */
    struct hooks *h = xcalloc(1, sizeof *h);
    h->on_event = on_event;
    h->on_end = on_end;
    set_directory(h, directory);
    h->waiting = json_array();
    h->seconds = seconds && atof(seconds) > 0 ? atof(seconds) : HOOK_SECONDS;
    tail_init(&h->events, directory, "events.jsonl");
    if (on_event && tail_poll(&h->events, NULL) >= 0)
        for (size_t bytes; tail_line(&h->events, &bytes);) {}
    return h;
}

void hooks_moved(struct hooks *h, const char *directory)
{
    if (!h) return;
    h->nowhere = !directory;
    if (!directory) return;
    set_directory(h, directory);
    tail_moved(&h->events, directory);
}

/* ---- the facts ---- */

static void add_common(const struct hooks *h, json_t *facts)
{
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    json_object_set_new(facts, "run", json_string(h->name));
    json_object_set_new(facts, "directory", json_string(h->whole));
    json_object_set_new(facts, "host", json_string(host));
}

static void enqueue(struct hooks *h, json_t *facts)
{
    if (json_array_size(h->waiting) < WAITING_MOST) json_array_append_new(h->waiting, facts);
    else {
        if (!h->dropped) log_warn("--on-event is too slow for the events: some are skipped");
        h->dropped = true;
        json_decref(facts);
    }
}

static void read_events(struct hooks *h)
{
    size_t bytes;
    if (!h->on_event || tail_poll(&h->events, NULL) < 0) return;
    for (const char *line; (line = tail_line(&h->events, &bytes)) != NULL;) {
        json_t *facts = json_loadb(line, bytes, 0, NULL);
        if (json_is_object(facts)) {
            add_common(h, facts);
            enqueue(h, facts);
        } else json_decref(facts);
    }
}

static json_t *known(double x) { return isfinite(x) ? json_real(x) : json_null(); }

void hooks_ended(struct hooks *h, int exit_code, const struct error *err)
{
    if (!h) return;
    read_events(h);
    if (!h->on_end) return;
    struct run_brief b = {.name = xstrdup(h->name), .directory = xstrdup(h->directory)};
    run_brief_read(&b);
    bool has_error = exit_code && err->what[0];
    char message[sizeof err->what], hint[sizeof err->hint];
    json_t *facts =
        json_pack("{s:s, s:s, s:I, s:I, s:i, s:s, s:s}", "event", "end", "state", b.status.state, "step",
                  (json_int_t)b.step, "total_steps", (json_int_t)b.status.total, "exit_code", exit_code,
                  "message", message_english(message, sizeof message, has_error ? err->what : ""), "hint",
                  message_english(hint, sizeof hint, has_error ? err->hint : ""));
    if (!facts) facts = json_pack("{s:s, s:i}", "event", "end", "exit_code", exit_code); /* no UTF-8 */
    json_object_set_new(facts, "loss", known(b.last.step >= 0 ? b.last.loss : NAN));
    json_object_set_new(facts, "peak_bytes",
                        b.peak_bytes >= 0 ? json_integer((json_int_t)b.peak_bytes) : json_null());
    add_common(h, facts);
    json_array_append_new(h->waiting, facts);
    run_brief_free(&b);
}

/* Returns a value as text; "" if missing. */
static char *text_of(const json_t *facts, const char *key)
{
    const json_t *value = json_object_get(facts, key);
    if (json_is_string(value)) return xstrdup(json_string_value(value));
    if (json_is_integer(value)) return xasprintf("%lld", (long long)json_integer_value(value));
    if (json_is_real(value)) return xasprintf("%.6g", json_real_value(value));
    return xstrdup("");
}

/* Returns a text with characters escaped or replaced for a JSON string. */
static char *summary_of(const json_t *facts)
{
    char *run = text_of(facts, "run"), *event = text_of(facts, "event"), *state = text_of(facts, "state"),
         *step = text_of(facts, "step"), *total = text_of(facts, "total_steps"),
         *loss = text_of(facts, "loss"), *message = text_of(facts, "message");
    char *text =
        xasprintf("meopt %s: %s%s%s%s%s%s%s%s%s", run, strcmp(event, "end") == 0 && state[0] ? state : event,
                  step[0] ? " at step " : "", step, total[0] ? "/" : "", total, loss[0] ? ", loss " : "",
                  loss, message[0] ? ": " : "", message);
    for (char *c = text; *c; c++) {
        if (*c == '"') *c = '\'';
        else if (*c == '\\') *c = '/';
        else if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    }
    char *all[] = {run, event, state, step, total, loss, message};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return text;
}

/* ---- running a hook ---- */

static const char *const variables[][2] = {
    {"MEOPT_RUN", "run"},         {"MEOPT_RUN_DIRECTORY", "directory"},
    {"MEOPT_EVENT", "event"},     {"MEOPT_STATE", "state"},
    {"MEOPT_STEP", "step"},       {"MEOPT_TOTAL_STEPS", "total_steps"},
    {"MEOPT_LOSS", "loss"},       {"MEOPT_EXIT_CODE", "exit_code"},
    {"MEOPT_MESSAGE", "message"}, {"MEOPT_SUMMARY", "summary"},
};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* Returns the environment: the hook's variables, then those of this process except the same names. The
 * first VARIABLES strings are owned. */
static char **environment(const json_t *facts)
{
    size_t count = 0, n = 0;
    while (environ[count]) count++;
    char **all = xcalloc(count + VARIABLES + 1, sizeof *all);
    for (; n < VARIABLES; n++) {
        char *value = text_of(facts, variables[n][1]);
        all[n] = xasprintf("%s=%s", variables[n][0], value);
        free(value);
    }
    for (size_t i = 0; i < count; i++) {
        bool ours = false;
        for (size_t k = 0; k < VARIABLES; k++) {
            size_t length = strlen(variables[k][0]);
            ours |= strncmp(environ[i], variables[k][0], length) == 0 && environ[i][length] == '=';
        }
        if (!ours) all[n++] = environ[i];
    }
    return all;
}

/* All that a hook starts, in whatever session, is a descendant of its keeper, which runs in a process of
 * its own: what loses its parent becomes the keeper's child. A hook that ends by itself may leave
 * processes. */

static void kill_children(void)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    char *end = strrchr(text, ' '); /* a truncated number is read next time */
    if (end) *end = 0;
    for (char *p = text; end && *p; p += strspn(p, " ")) kill((pid_t)strtol(p, &p, 10), SIGKILL);
}

static void keeper_kill(pid_t hook)
{
    for (int i = 0; i < 100 * KEEPER_SECONDS; i++) {
        kill(-hook, SIGKILL); /* its session, if the kernel does not list children */
        kill_children();
        for (pid_t gone; (gone = waitpid(-1, NULL, WNOHANG)) != 0;)
            if (gone < 0 && errno != EINTR) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Ends as the hook does; with all that it has started on SIGTERM. */
static void keeper_wait(pid_t hook, const sigset_t *handled_signals)
{
    for (int number = 0, status;;) {
        for (pid_t gone; (gone = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (gone != hook) continue;
            if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
            sigprocmask(SIG_UNBLOCK, handled_signals, NULL);
            raise(WTERMSIG(status));
            _exit(EXIT_SIGNAL + WTERMSIG(status));
        }
        if (sigwait(handled_signals, &number) == 0 && number == SIGTERM) break;
    }
    keeper_kill(hook);
    _exit(EXIT_SIGNAL + SIGKILL);
}

static void child(const char *command, int input, int output, char **env)
{
    sigset_t handled_signals, none;
    sigemptyset(&none);
    sigemptyset(&handled_signals);
    sigaddset(&handled_signals, SIGCHLD);
    sigaddset(&handled_signals, SIGTERM);
    setsid();
    sigprocmask(SIG_SETMASK, &handled_signals, NULL);
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    dup2(input, 0);
    dup2(output, 1);
    dup2(output, 2);
    close_from(3); /* the ranks' shared memory belongs to the workers */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t hook = fork();
    if (hook > 0) keeper_wait(hook, &handled_signals);
    setsid();
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (hook == 0) execle("/bin/sh", "sh", "-c", command, (char *)NULL, env);
    _exit(127);
}

static void run(struct hooks *h, json_t *facts)
{
    const char *event = json_string_value(json_object_get(facts, "event"));
    const char *command = event && strcmp(event, "end") == 0 ? h->on_end : h->on_event;
    char *summary = summary_of(facts);
    json_object_set_new(facts, "summary", json_string(summary));
    char *text = json_dumps(facts, JSON_COMPACT | JSON_PRESERVE_ORDER), **env = environment(facts);
    /* a memfd, not a pipe: a hook need not read it */
    struct error err = {0};
    int input = memory_file("meopt-hook"), output;
    if (h->nowhere) output = -1;
    else if (run_append(h->directory, "hooks.log", &output, &err) && !h->failed)
        log_warn("cannot save output of hooks: %s: %s", err.file, err.what);
    if (output < 0) output = open("/dev/null", O_WRONLY | O_CLOEXEC);
    bool ready = text && input >= 0 && output >= 0 && write(input, text, strlen(text)) >= 0 &&
                 write(input, "\n", 1) == 1 && lseek(input, 0, SEEK_SET) == 0;
    if (ready) h->pid = fork();
    if (ready && h->pid == 0) child(command, input, output, env);
    if (!ready || h->pid < 0) {
        if (!h->failed) log_warn("cannot run %s: %s", command, strerror(errno));
        h->failed = true;
        h->pid = 0;
    }
    h->begun = clock_seconds();
    if (input >= 0) close(input);
    if (output >= 0) close(output);
    for (int i = 0; i < VARIABLES; i++) free(env[i]);
    free(env);
    free(text);
    free(summary);
}

static void keeper_stop(const struct hooks *h)
{
    bool stuck = clock_seconds() - h->begun > h->seconds + 2 * KEEPER_SECONDS;
    kill(h->pid, stuck ? SIGKILL : SIGTERM);
}

static void look(struct hooks *h)
{
    int status;
    if (!h->pid) return;
    if (waitpid(h->pid, &status, WNOHANG) == h->pid) {
        h->pid = 0;
        if (status && !h->failed) {
            log_warn("a hook ended with %s %d; see %s/hooks.log",
                     WIFSIGNALED(status) ? _("signal") : _("status"),
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), h->directory);
            h->failed = true;
        }
    } else if (clock_seconds() - h->begun > h->seconds) {
        keeper_stop(h);
        if (!h->failed) log_warn("killing a hook after %.0f s", h->seconds);
        h->failed = true;
    }
}

void hooks_update(struct hooks *h)
{
    if (!h) return;
    read_events(h);
    look(h);
    if (h->pid || json_array_size(h->waiting) == 0) return;
    json_t *facts = json_incref(json_array_get(h->waiting, 0));
    json_array_remove(h->waiting, 0);
    run(h, facts);
    json_decref(facts);
}

bool hooks_busy(const struct hooks *h) { return h && (h->pid || json_array_size(h->waiting) > 0); }

void hooks_close(struct hooks *h)
{
    if (!h) return;
    if (h->pid) {
        keeper_stop(h);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    tail_free(&h->events);
    json_decref(h->waiting);
    free(h->directory);
    free(h->whole);
    free(h->name);
    free(h);
}
