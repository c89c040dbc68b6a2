/* The status of a run: see status.h. */
#include "core/run/status.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/message.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

bool run_held(const char *directory)
{
    int fd = file_at(directory, RUN_LOCK, O_RDONLY);
    bool held =
        fd < 0 ? errno != ENOENT : flock(fd, LOCK_SH | LOCK_NB) != 0; /* fails like a trainer's open */
    if (fd >= 0) close(fd);
    return held;
}

static void copy_message(char *dst, size_t size, const json_t *object, const char *key)
{
    message_translated(dst, size, json_word(object, key)); /* the file may belong to another user */
}

/* After a reboot the pid may belong to a different process, which does not hold the run's lock. */
static bool is_gone(int pid, const char *directory)
{
    return (kill(pid, 0) != 0 && errno == ESRCH) || !run_held(directory);
}

int run_status_read(struct run_status *s, const char *directory, struct error *err)
{
    *s = (struct run_status){.exit_code = -1};
    static const char name[] = "state.json";
    char *config = path_join(directory, "config.yaml"), *text = NULL, host[128] = "";
    size_t bytes = 0;
    int code = 0;
    if (access(config, R_OK) != 0) {
        code = error_errno(err, EXIT_FAILED, "name the directory of a run: 'meopt runs' lists them",
                           "not a run");
        error_at(err, directory, 0, 0);
    } else if (file_absent_below(directory, name)) {
        snprintf(s->state, sizeof s->state, N_("starting"));
    } else if ((code = file_read_below(directory, name, 1 << 20, &text, &bytes, err)) == 0) {
        json_t *object = json_loadb(text, bytes, 0, NULL), *exit_code = json_object_get(object, "exit_code");
        if (!json_is_object(object)) {
            char *path = path_join(directory, name);
            code = error_set(err, EXIT_FAILED, "check that meopt wrote this file", "expected a JSON object");
            error_at(err, path, 0, 0);
            free(path);
        }
        json_member_name(s->state, sizeof s->state, object, "state");
        json_member_name(s->host, sizeof s->host, object, "host");
        copy_message(s->message, sizeof s->message, object, "message");
        copy_message(s->hint, sizeof s->hint, object, "hint");
        s->step = json_integer_value(json_object_get(object, "step"));
        s->total = json_integer_value(json_object_get(object, "total_steps"));
        s->epoch = json_integer_value(json_object_get(object, "epoch"));
        s->pid = (int)json_integer_value(json_object_get(object, "pid"));
        s->time = json_number_value(json_object_get(object, "time"));
        s->exit_code = json_is_integer(exit_code) ? (int)json_integer_value(exit_code) : -1;
        s->ended = s->exit_code >= 0;
        json_decref(object);
    }
    gethostname(host, sizeof host - 1);
    s->here = strcmp(host, s->host) == 0;
    if (!code && !s->ended && s->here && s->pid > 0 && is_gone(s->pid, directory)) {
        snprintf(s->state, sizeof s->state, N_("lost"));
        snprintf(s->message, sizeof s->message, _("process %d ended without a message"), s->pid);
        snprintf(s->hint, sizeof s->hint, _("resume with: meopt train --resume"));
    }
    free(text);
    free(config);
    return code;
}

bool run_status_over(const struct run_status *s) { return s->ended || strcmp(s->state, "lost") == 0; }

int run_status_write(const struct run_status *s, const char *directory, struct error *err)
{
    static const char name[] = "state.json";
    json_t *object = json_pack("{s:s, s:I, s:I, s:I, s:i, s:s, s:f}", "state", s->state, "step",
                               (json_int_t)s->step, "total_steps", (json_int_t)s->total, "epoch",
                               (json_int_t)s->epoch, "pid", s->pid, "host", s->host, "time", s->time);
    json_object_set_new(object, "exit_code", s->exit_code < 0 ? json_null() : json_integer(s->exit_code));
    char message[sizeof s->message], hint[sizeof s->hint];
    message_english(message, sizeof message, s->message);
    message_english(hint, sizeof hint, s->hint);
    if (message[0]) json_object_set_new(object, "message", json_string(message));
    if (hint[0]) json_object_set_new(object, "hint", json_string(hint));
    char *text = json_text(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    int code = !text ? error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for state.json")
               : s->ended || s->exit_code >= 0 ? file_write_below(directory, name, text, strlen(text), err)
                                               : file_replace_below(directory, name, text, strlen(text), err);
    free(text);
    json_decref(object);
    return code;
}

char *run_time_text(char *dst, size_t size, const char *format, double seconds)
{
    struct tm utc;
    time_t t = seconds > 0 && seconds < 1e11 ? (time_t)seconds : 0;
    if (t == 0 || !gmtime_r(&t, &utc) || strftime(dst, size, format, &utc) == 0) snprintf(dst, size, "-");
    return dst;
}

char *run_word(char *dst, size_t size, const char *directory)
{
    size_t n = strspn(directory, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,:@%=-");
    if (directory[0] && !directory[n]) {
        snprintf(dst, size, "%s", directory);
        return dst;
    }
    n = 0;
    if (size > 2) dst[n++] = '\'';
    for (const char *p = directory; *p && n + 6 < size; p++)
        n += (size_t)snprintf(dst + n, size - n, *p == '\'' ? "'\\''" : "%c", *p);
    snprintf(dst + n, size - n, "'");
    return dst;
}
