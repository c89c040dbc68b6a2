/* The run directory: see run.h. */
#include "core/run/run.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HELD_BYTES = 1 << 26,   /* metric lines that are kept while they cannot be written */
    EVENTS_BYTES = 1 << 30, /* of events.jsonl, at most */
    LEFT_SECONDS = 60       /* age of a side file that nobody finishes any more */
};

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

/* Side files (file.h) of killed processes. A young one may be the supervisor's, which writes beside us. */
static void remove_leftovers(const char *directory)
{
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        size_t n = strlen(entry->d_name);
        struct stat st;
        if (entry->d_name[0] != '.' || n < 9 || entry->d_name[n - 7] != '.' ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
            st.st_mtim.tv_sec + LEFT_SECONDS > time(NULL))
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0)
            log_warn("cannot remove %s/%s, left by a killed process: %s", directory, entry->d_name,
                     strerror(errno));
    }
    if (dir) closedir(dir);
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
    else remove_leftovers(directory);
    if (!code) code = append_file(run, "metrics.jsonl", &run->metrics, err);
    if (!code) code = append_file(run, "events.jsonl", &run->events, err);
    if (code) run_close(run);
    return code;
}

/* Only what run_create makes before the configuration, the first thing that nobody could make again. */
static bool is_beginning(const char *directory)
{
    DIR *dir = opendir(directory);
    bool beginning = dir != NULL;
    for (struct dirent *entry; beginning && (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name;
        struct stat st;
        bool empty = fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                     st.st_size == 0;
        beginning = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
                    strncmp(name, ".config.yaml.", 13) == 0 ||
                    (empty && (strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "events.jsonl") == 0));
    }
    if (dir) closedir(dir);
    return beginning;
}

/* Made here, and to be removed when the rest fails. */
static int make_directory(const char *parent, const char *directory, bool *made, struct error *err)
{
    int code = file_make_dirs(parent, err);
    *made = !code && mkdir(directory, 0777) == 0;
    if (code) return code;
    if (*made) return access(parent, R_OK) == 0 ? file_sync_dir(parent, err) : 0;
    if (errno == EEXIST && is_beginning(directory)) return 0;
    code = errno == EEXIST ? error_set(err, EXIT_LOCKED, "choose another --name, or --resume it",
                                       "the run directory exists already")
                           : error_errno(err, EXIT_FAILED, NULL, "cannot create the run directory");
    error_at(err, directory, 0, 0);
    return code;
}

int run_create(struct run *run, const char *parent, const char *name, const struct config *config,
               struct error *err)
{
    char *directory = path_join(parent, name), *ckpt = path_join(directory, "ckpt"),
         *path = path_join(directory, "config.yaml");
    bool made;
    *run = (struct run){.metrics = -1, .events = -1, .lock = -1};
    int code = make_directory(parent, directory, &made, err);
    if (!code) code = run_open(run, directory, err);
    if (!code && !made && access(path, F_OK) == 0) { /* another process went on with the same beginning */
        code = error_set(err, EXIT_LOCKED, "choose another --name, or --resume it",
                         "the run directory exists already");
        error_at(err, directory, 0, 0);
        run_close(run);
    } else {
        if (!code) code = config_write_resolved(config, path, err);
        if (!code) code = file_make_dirs(ckpt, err);
        if (code) run_close(run);
    }
    if (code && made) file_remove_tree(directory, NULL);
    free(path);
    free(ckpt);
    free(directory);
    return code;
}

void run_close(struct run *run)
{
    if (run->metrics >= 0) close(run->metrics);
    if (run->events >= 0) close(run->events);
    if (run->lock >= 0) close(run->lock);
    free(run->held);
    free(run->directory);
    *run = (struct run){.metrics = -1, .events = -1, .lock = -1};
}

/* Whole or not at all: half a line would spoil the next one. */
static int append(const struct run *run, int fd, const char *name, const char *text, size_t bytes,
                  struct error *err)
{
    char *path = run_path(run, name);
    off_t before = lseek(fd, 0, SEEK_END);
    int code = file_write_all(fd, text, bytes, path, err);
    if (code && before >= 0) file_shorten(fd, before, path, NULL);
    free(path);
    return code;
}

static int write_held(struct run *run, struct error *err)
{
    int code =
        run->held_bytes ? append(run, run->metrics, "metrics.jsonl", run->held, run->held_bytes, err) : 0;
    if (!code) run->held_bytes = 0;
    return code;
}

int run_metric(struct run *run, json_t *line, struct error *err)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(line);
    size_t n = text ? strlen(text) : 0;
    char *held = text && run->held_bytes < HELD_BYTES ? realloc(run->held, run->held_bytes + n + 1) : NULL;
    if (held) {
        memcpy(held + run->held_bytes, text, n);
        held[run->held_bytes + n] = '\n';
        run->held = held;
        run->held_bytes += n + 1;
    }
    free(text);
    int code = write_held(run, err);
    return held || code ? code : error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for a line of metrics");
}

int run_event(struct run *run, const char *event, json_t *fields, struct error *err)
{
    json_t *line = json_pack("{s:s, s:f}", "event", event, "time", (double)time(NULL));
    if (fields) json_object_update(line, fields);
    json_decref(fields);
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    json_decref(line);
    size_t n = text ? strlen(text) : 0;
    if (text) text[n] = '\n';
    int code = text ? append(run, run->events, "events.jsonl", text, n + 1, err) : 0;
    free(text);
    return code;
}

int run_sync(struct run *run, struct error *err)
{
    char *metrics = run_path(run, "metrics.jsonl"), *events = run_path(run, "events.jsonl");
    int code = write_held(run, err);
    if (!code) code = file_sync(run->metrics, metrics, err);
    int second = file_sync(run->events, events, code ? NULL : err);
    free(events);
    free(metrics);
    return code ? code : second;
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
    if (exit_code < 0) snprintf(s.message, sizeof s.message, "%s", run->notice);
    gethostname(s.host, sizeof s.host - 1);
    return run_status_write(&s, run->directory, err);
}

int run_last_saved(const struct run *run, int64_t *step, struct error *err)
{
    char *path = run_path(run, "events.jsonl"), *text = NULL;
    size_t bytes = 0;
    int code = file_read(path, EVENTS_BYTES, &text, &bytes, err);
    *step = -1;
    for (size_t at = 0; !code && at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        json_t *line = json_loadb(text + at, n, 0, NULL);
        const char *event = json_string_value(json_object_get(line, "event"));
        if (event && strcmp(event, "checkpoint") == 0)
            *step = json_integer_value(json_object_get(line, "step"));
        json_decref(line);
        at += n + 1;
    }
    free(text);
    free(path);
    return code;
}

/* Foreign lines before the step stay: readers pass over them. */
int run_truncate_metrics(struct run *run, int64_t step, struct error *err)
{
    char *path = run_path(run, "metrics.jsonl"), *text = NULL;
    size_t bytes = 0, keep = 0;
    int code = file_read(path, (size_t)1 << 34, &text, &bytes, err);
    for (size_t at = 0; !code && at < bytes;) {
        char *end = memchr(text + at, '\n', bytes - at);
        if (!end) break;
        json_t *line = json_loadb(text + at, (size_t)(end - text) - at, 0, NULL),
               *number = json_object_get(line, "step");
        bool counts = json_is_integer(number), behind = counts && json_integer_value(number) > step;
        json_decref(line);
        if (behind) break;
        at = (size_t)(end - text) + 1;
        if (counts) keep = at;
    }
    if (!code) code = file_shorten(run->metrics, (int64_t)keep, path, err);
    free(text);
    free(path);
    return code;
}
