/* The run directory: see run.h. */
#include "core/run/run.h"
#include "core/base/file.h"
#include "core/run/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

char *run_path(const struct run *run, const char *name) { return path_join(run->directory, name); }

static int append_file(const struct run *run, const char *name, int *fd, struct error *err)
{
    char *path = run_path(run, name);
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int code = *fd < 0 ? error_errno(err, EXIT_FAILED, "may you write there?", "cannot open") : 0;
    if (code) error_at(err, path, 0, 0);
    free(path);
    return code;
}

int run_open(struct run *run, const char *directory, struct error *err)
{
    *run = (struct run){.directory = xstrdup(directory), .metrics = -1, .events = -1, .lock = -1};
    int code = 0;
    run->lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->lock < 0)
        code = error_errno(err, EXIT_FAILED, "name the directory of a run", "cannot open the run");
    else if (flock(run->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        code = error_set(err, EXIT_LOCKED, "wait for it, or stop it",
                         "another process trains in this run directory");
    if (code) error_at(err, directory, 0, 0);
    if (!code) code = append_file(run, "metrics.jsonl", &run->metrics, err);
    if (!code) code = append_file(run, "events.jsonl", &run->events, err);
    if (code) run_close(run);
    return code;
}

int run_create(struct run *run, const char *parent, const char *name, const struct config *config,
               struct error *err)
{
    char shown[256], *directory = path_join(parent, name);
    bool plain = name[0] && name[0] != '.' && !strchr(name, '/') &&
                 strcmp(name_printable(shown, sizeof shown, name), name) == 0;
    int code = plain
                   ? file_make_dirs(parent, err)
                   : error_set(err, EXIT_USAGE, "give a --name without '/', control characters, '.' in front",
                               "'%s' cannot be the name of a run", name);
    if (!code && mkdir(directory, 0777) != 0) {
        code = errno == EEXIST ? error_set(err, EXIT_LOCKED, "choose another --name, or --resume it",
                                           "the run directory exists already")
                               : error_errno(err, EXIT_FAILED, NULL, "cannot create the run directory");
        error_at(err, directory, 0, 0);
    }
    if (!code) code = run_open(run, directory, err);
    if (!code) {
        char *path = run_path(run, "config.yaml");
        code = config_write_resolved(config, path, err);
        free(path);
        path = run_path(run, "ckpt");
        if (!code) code = file_make_dirs(path, err);
        free(path);
        if (code) {
            run_close(run);
            file_remove_tree(directory, NULL);
        }
    }
    free(directory);
    return code;
}

void run_close(struct run *run)
{
    if (run->metrics >= 0) close(run->metrics);
    if (run->events >= 0) close(run->events);
    if (run->lock >= 0) close(run->lock);
    free(run->directory);
    *run = (struct run){.metrics = -1, .events = -1, .lock = -1};
}

static int write_line(struct run *run, int fd, const char *name, json_t *line, struct error *err)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9)),
         *path = run_path(run, name);
    json_decref(line);
    size_t n = text ? strlen(text) : 0;
    int code = 0;
    if (text) {
        text[n] = '\n';
        code = file_write_all(fd, text, n + 1, path, err);
    }
    free(text);
    free(path);
    return code;
}

int run_metric(struct run *run, json_t *line, struct error *err)
{
    return write_line(run, run->metrics, "metrics.jsonl", line, err);
}

int run_event(struct run *run, const char *event, json_t *fields, struct error *err)
{
    json_t *line = json_pack("{s:s, s:f}", "event", event, "time", (double)time(NULL));
    if (fields) json_object_update(line, fields);
    json_decref(fields);
    return write_line(run, run->events, "events.jsonl", line, err);
}

int run_state(struct run *run, const char *state, int64_t step, int64_t total, int64_t epoch, int exit_code,
              struct error *err)
{
    struct run_status s = {.step = step,
                           .total = total,
                           .epoch = epoch,
                           .pid = (int)getpid(),
                           .time = (double)time(NULL),
                           .exit_code = exit_code};
    snprintf(s.state, sizeof s.state, "%s", state);
    gethostname(s.host, sizeof s.host - 1);
    return run_status_write(&s, run->directory, err);
}

int run_truncate_metrics(struct run *run, int64_t step, struct error *err)
{
    char *path = run_path(run, "metrics.jsonl"), *text = NULL;
    size_t bytes = 0, keep = 0;
    int code = file_read(path, (size_t)1 << 34, &text, &bytes, err);
    for (size_t at = 0; !code && at < bytes;) {
        char *end = memchr(text + at, '\n', bytes - at);
        if (!end) break;
        json_t *line = json_loadb(text + at, (size_t)(end - text) - at, 0, NULL);
        bool good = line && json_integer_value(json_object_get(line, "step")) <= step;
        json_decref(line);
        if (!good) break;
        at = keep = (size_t)(end - text) + 1;
    }
    if (!code && ftruncate(run->metrics, (off_t)keep) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot shorten metrics.jsonl");
    free(text);
    free(path);
    return code;
}
