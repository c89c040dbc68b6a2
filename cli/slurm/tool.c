/* Runs another program: see tool.h. */
#include "cli/slurm/tool.h"
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
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { TOOL_BYTES = 16 << 20 }; /* of each stream; the rest is read and dropped */

/* Returns the environment without variables that filter or format the output of Slurm's commands. */
static char **tool_environment(void)
{
    static const char *const dropped[] = {"SQUEUE_", "SLURM_TIME_FORMAT=", "SCONTROL_"};
    int count = 0, kept = 0;
    while (environ[count]) count++;
    char **all = xcalloc((size_t)count + 1, sizeof *all);
    for (int i = 0; i < count; i++) {
        bool drops = false;
        for (int d = 0; d < 3; d++) drops |= strncmp(environ[i], dropped[d], strlen(dropped[d])) == 0;
        if (!drops) all[kept++] = environ[i];
    }
    return all;
}

static int spawn(struct tool *t, const char *const argv[], const int ends[2])
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char **environment = tool_environment();
    int problem =
        posix_spawnp(&t->pid, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv, environment);
    free(environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (problem) t->pid = 0;
    return problem;
}

int tool_start(struct tool *t, const char *const argv[], double seconds, struct error *err)
{
    int pipes[2][2];
    *t = (struct tool){.fd = {-1, -1}, .until = clock_seconds() + seconds};
    if (pipe2(pipes[0], O_CLOEXEC) != 0) return error_errno(err, EXIT_FAILED, NULL, "cannot make a pipe");
    if (pipe2(pipes[1], O_CLOEXEC) != 0) {
        close(pipes[0][0]);
        close(pipes[0][1]);
        return error_errno(err, EXIT_FAILED, NULL, "cannot make a pipe");
    }
    for (int i = 0; i < 2; i++) {
        t->fd[i] = pipes[i][0];
        t->text[i] = xcalloc(1, 1);
        fcntl(t->fd[i], F_SETFL, O_NONBLOCK);
    }
    const int ends[2] = {pipes[0][1], pipes[1][1]};
    int problem = spawn(t, argv, ends);
    close(ends[0]);
    close(ends[1]);
    if (!problem) return 0;
    tool_close(t);
    errno = problem;
    return error_errno(err, EXIT_FAILED, NULL, "cannot run %s", argv[0]);
}

static void close_stream(struct tool *t, int i)
{
    if (t->fd[i] >= 0) close(t->fd[i]);
    t->fd[i] = -1;
}

static void read_stream(struct tool *t, int i)
{
    char part[16384];
    for (;;) {
        ssize_t n = read(t->fd[i], part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || (n < 0 && errno != EAGAIN)) close_stream(t, i);
        if (n <= 0) return;
        if (t->bytes[i] + (size_t)n > TOOL_BYTES) continue;
        t->text[i] = xrealloc(t->text[i], t->bytes[i] + (size_t)n + 1);
        memcpy(t->text[i] + t->bytes[i], part, (size_t)n);
        t->bytes[i] += (size_t)n;
        t->text[i][t->bytes[i]] = 0;
    }
}

/* Reaps the program if it has ended; with `kills`, kills its process group first. */
static void reap(struct tool *t, bool kills)
{
    int status = 0;
    pid_t reaped;
    if (kills) kill(-t->pid, SIGKILL);
    while ((reaped = waitpid(t->pid, &status, kills ? 0 : WNOHANG)) < 0 && errno == EINTR)
        ;
    if (!reaped) return;
    t->pid = 0;
    t->status = kills ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
    close_stream(t, 0);
    close_stream(t, 1);
}

bool tool_ended(struct tool *t, int wait_ms)
{
    enum { REAP_MS = 10 };
    for (double end = clock_seconds() + wait_ms * 1e-3; t->pid;) {
        double now = clock_seconds(), left = (end < t->until ? end : t->until) - now;
        bool closed = t->fd[0] < 0 && t->fd[1] < 0;
        struct pollfd streams[2] = {{t->fd[0], POLLIN, 0}, {t->fd[1], POLLIN, 0}};
        int wait = left > 0 ? (int)(left * 1e3) + 1 : 0;
        int ready = poll(streams, 2, closed && wait > REAP_MS ? REAP_MS : wait);
        for (int i = 0; i < 2 && ready > 0; i++)
            if (streams[i].revents) read_stream(t, i);
        if (t->fd[0] < 0 && t->fd[1] < 0) reap(t, false);
        if (t->pid && now >= t->until) reap(t, true);
        if (now >= end) break;
    }
    return !t->pid;
}

int tool_run(struct tool *t, const char *const argv[], double seconds, struct error *err)
{
    int code = tool_start(t, argv, seconds, err);
    while (!code && !tool_ended(t, 1000))
        ;
    return code;
}

char *tool_reason(const struct tool *t, char *dst, size_t size)
{
    const char *end = t->text[1] + t->bytes[1], *begin;
    while (end > t->text[1] && strchr("\r\n ", end[-1])) end--;
    for (begin = end; begin > t->text[1] && begin[-1] != '\n';) begin--;
    char *line = strndup(begin, (size_t)(end - begin));
    if (t->status < 0) snprintf(dst, size, "%s", _("no answer in time"));
    else if (line && *line) name_printable(dst, size, line);
    else snprintf(dst, size, _("exit code %d"), t->status);
    free(line);
    return dst;
}

void tool_close(struct tool *t)
{
    if (t->pid) reap(t, true);
    for (int i = 0; i < 2; i++) {
        if (t->text[i]) close_stream(t, i);
        free(t->text[i]);
    }
    *t = (struct tool){.fd = {-1, -1}};
}
