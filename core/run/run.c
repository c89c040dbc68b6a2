/* The run directory: see run.h. */
#include "core/run/run.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "core/base/platform.h"
#include "core/run/metric_line.h"
#include "core/run/status.h"
#include "core/run/tail.h"

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
    HELD_BYTES = 1 << 26,  /* metric lines that are kept while they cannot be written */
    EVENTS_BYTES = 1 << 30 /* of events.jsonl, at most */
};

char *run_path(const struct run *run, const char *name) { return path_join(run->directory, name); }

int run_check_layout(const json_t *meta, const char *hint, struct error *err)
{
    const json_t *given = json_object_get(meta, "version");
    json_int_t version = given ? json_integer_value(given) : RUN_LAYOUT;
    if (version == RUN_LAYOUT) return 0;
    return error_set(err, EXIT_INTEGRITY, hint, "this run has layout %lld, this program reads layout %d",
                     (long long)version, RUN_LAYOUT);
}

int run_append(const char *directory, const char *name, int *fd, struct error *err)
{
    int code = file_unshare(directory, name, err);
    *fd = -1;
    return code ? code : file_open_below(directory, name, O_WRONLY | O_CREAT | O_APPEND, fd, NULL, err);
}

/* The lock is a file opened for writing: only such a lock is shared by all machines over NFS. The lock of
 * a directory is local to one machine (flock(2), NOTES). */
static char *lock_path(const char *directory) { return path_join(directory, RUN_LOCK); }

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* `inherited` is the same open file in another process, so locking it again succeeds; any other descriptor
 * is no lock of this run. */
static int is_lock_of(int inherited, const char *path, struct error *err)
{
    struct stat theirs, ours;
    if (fstat(inherited, &theirs) != 0 || stat(path, &ours) != 0)
        return error_errno(err, EXIT_FAILED, NULL, "cannot examine the run's lock");
    if (same_file(&theirs, &ours)) return 0;
    return error_set(err, EXIT_LOCKED, NULL, "the inherited lock does not belong to this run");
}

/* A reader that checks whether the run is held (run_held) holds the lock for a moment. */
static int lock_file(int fd, struct error *err)
{
    int result = flock(fd, LOCK_EX | LOCK_NB);
    for (int i = 0; i < 5 && result != 0 && (errno == EWOULDBLOCK || errno == EINTR); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        result = flock(fd, LOCK_EX | LOCK_NB);
    }
    if (result == 0) return 0;
    if (errno == EWOULDBLOCK)
        return error_set(err, EXIT_LOCKED, "wait for it, or stop it",
                         "another process trains in this run directory");
    log_warn("the run cannot be locked (%s): a second process could train in it", strerror(errno));
    return 0;
}

static int open_lock(const char *directory, int *fd, struct error *err)
{
    int code = file_open_below(directory, RUN_LOCK, O_RDWR | O_CREAT, fd, NULL, err);
    if (code && errno)
        snprintf(err->hint, sizeof err->hint, _("name the directory of a run that you may write to"));
    return code;
}

int run_open_held(struct run *run, const char *directory, int lock, struct error *err)
{
    *run = (struct run){.directory = xstrdup(directory), .metrics = -1, .events = -1, .lock = lock};
    char *path = lock_path(directory);
    int code = lock < 0 ? open_lock(directory, &run->lock, err) : is_lock_of(lock, path, err);
    if (!code && lock >= 0) fcntl(lock, F_SETFD, FD_CLOEXEC);
    if (!code) code = lock_file(run->lock, err);
    if (code) error_at(err, code == EXIT_LOCKED ? directory : path, 0, 0);
    if (!code) code = run_append(directory, "metrics.jsonl", &run->metrics, err);
    if (!code) code = run_append(directory, "events.jsonl", &run->events, err);
    if (code) run_close(run);
    free(path);
    return code;
}

int run_open(struct run *run, const char *directory, struct error *err)
{
    return run_open_held(run, directory, -1, err);
}

/* If not, errno is 0 where another file or none is there, and else the reason why it is unknown. */
static bool is_locked_at(const struct run *run, const char *directory)
{
    char *path = lock_path(directory);
    struct stat ours, there;
    bool read = fstat(run->lock, &ours) == 0 && stat(path, &there) == 0;
    int reason = read || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    free(path);
    errno = reason;
    return read && same_file(&ours, &there);
}

bool run_is_here(const struct run *run)
{
    errno = 0;
    return run->lock >= 0 && is_locked_at(run, run->directory);
}

int run_follow(struct run *run, struct error *err)
{
    char link[64], now[4096];
    if (run->lock < 0 || is_locked_at(run, run->directory)) return 0;
    if (errno) return 0; /* temporarily inaccessible: writing there reports the reason */
    snprintf(link, sizeof link, "/proc/self/fd/%d", run->lock);
    ssize_t n = readlink(link, now, sizeof now - 1);
    now[n > 0 ? n : 0] = 0;
    char *name = strrchr(now, '/');
    if (!name) return 0; /* unknown */
    *name = 0;
    if (!is_locked_at(run, now)) {
        if (errno) return 0; /* likewise */
        int code = error_set(err, EXIT_FAILED, "start a run with a different --name",
                             "the run's directory was removed while it trained");
        error_at(err, run->directory, 0, 0);
        return code;
    }
    log_warn("%s was moved while it trained: training continues in %s", run->directory, now);
    if (run->was) free(run->directory);
    else run->was = run->directory;
    run->directory = xstrdup(now);
    return 0;
}

int run_release(struct run *run)
{
    int lock = run->lock;
    run->lock = -1;
    run_close(run);
    return lock;
}

static int exists_already(const char *directory, struct error *err)
{
    error_set(err, EXIT_LOCKED, "use a different --name, or --resume it", "the run directory already exists");
    error_at(err, directory, 0, 0);
    return EXIT_LOCKED;
}

/* Renames the side directory to the run's name, which must not exist; atomically if the file system
 * supports it. Over NFS a rename may report failure although it was done: the reply was lost, and the
 * retry found it done. */
static int rename_into_place(const struct run *run, const char *directory, struct error *err)
{
    const char *side = run->directory;
    int code = 0, failed = rename_new(side, directory);
    if (failed && (errno == EINVAL || errno == ENOSYS)) failed = rename(side, directory);
    int reason = errno;
    if (failed && is_locked_at(run, directory)) failed = 0;
    errno = reason;
    if (failed && (errno == EEXIST || errno == ENOTEMPTY)) code = exists_already(directory, err);
    else if (failed) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s", side);
        error_at(err, directory, 0, 0);
    }
    if (!code) code = file_sync_name(directory, err);
    return code;
}

/* Returns whether `fd` is the file of this name in the directory. */
static bool is_file_of(int fd, int directory, const char *name)
{
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && fstatat(directory, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           same_file(&ours, &there);
}

/* Empties a locked side directory from a killed process, below the descriptor: a link that took its
 * place meanwhile is not followed. */
static int empty_side(const struct run *run, struct error *err)
{
    int fd = open(run->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), failed = fd < 0 ? -1 : 0;
    DIR *dir = failed ? NULL : fdopendir(fd);
    if (!failed && !dir) {
        failed = -1;
        close(fd);
    }
    if (!failed && !(is_file_of(run->lock, fd, RUN_LOCK) && is_file_of(run->metrics, fd, "metrics.jsonl") &&
                     is_file_of(run->events, fd, "events.jsonl"))) {
        failed = -1;
        errno = ESTALE;
    }
    for (const struct dirent *entry; !failed && (errno = 0, entry = readdir(dir)) != NULL;) {
        static const char *const kept[] = {".", "..", RUN_LOCK, "metrics.jsonl", "events.jsonl"};
        bool keep = false;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) keep |= strcmp(entry->d_name, kept[i]) == 0;
        if (!keep) failed = file_remove_at(fd, entry->d_name);
    }
    int code = 0;
    if (failed || errno) {
        code = error_errno(err, EXIT_FAILED, "remove it, or use a different --name",
                           "cannot empty the directory of a start that was killed");
        error_at(err, run->directory, 0, 0);
    }
    if (dir) closedir(dir);
    if (!code) code = file_shorten(run->metrics, 0, "metrics.jsonl", err);
    return code ? code : file_shorten(run->events, 0, "events.jsonl", err);
}

/* Creates and locks the side directory of a new run; it may exist from a killed process of this user. One
 * that another start renames meanwhile is made anew: that start has the name, or has given it up. */
static int lock_side_directory(struct run *run, const char *side, bool *ours, struct error *err)
{
    bool made, gone = true;
    int code = 0;
    for (int i = 0; i < 100 && gone; i++) {
        struct stat st;
        code = file_own_directory(side, 0777, &made, err);
        *ours = made;
        if (code) return code;
        code = run_open(run, side, err);
        gone = !made && (code ? lstat(side, &st) != 0 && errno == ENOENT : !run_is_here(run) && !errno);
        if (gone && !code) run_close(run);
    }
    *ours = !code || (made && code != EXIT_LOCKED); /* remove it if a later step fails */
    if (!code && !made) code = empty_side(run, err);
    return code;
}

int run_create_filled(struct run *run, const char *parent, const char *name, const struct config *config,
                      run_fill *fill, void *context, struct error *err)
{
    char *directory = path_join(parent, name), *within = path_dirname(directory),
         *side = xasprintf("%s/.%s.new", within, path_basename(directory));
    char shown[256];
    struct stat st;
    name_printable(shown, sizeof shown, name);
    bool ours = false, plain = name[0] && name[0] != '.' && !strchr(name, '/') && strcmp(shown, name) == 0;
    *run = (struct run){.metrics = -1, .events = -1, .lock = -1};
    int code =
        !plain ? error_set(err, EXIT_USAGE, "use a --name without '/', control characters or a leading '.'",
                           "'%s' is not a valid name of a run", shown)
        : lstat(directory, &st) == 0 ? exists_already(directory, err)
                                     : file_make_dirs(within, err);
    if (!code) code = lock_side_directory(run, side, &ours, err);
    if (!code) code = config_write_resolved(config, side, err);
    if (!code) run_tidy(run);
    if (!code) code = file_make_dirs_below(side, "ckpt", err);
    if (!code && fill && (code = fill(run, context, err)) == 0) code = run_sync(run, err);
    if (!code && fill) code = file_sync_dir(side, err);
    if (!code) code = rename_into_place(run, directory, err);
    if (!code) {
        free(run->directory);
        run->directory = xstrdup(directory);
    } else {
        if (ours) file_remove_tree(side, NULL);
        run_close(run);
    }
    free(side);
    free(within);
    free(directory);
    return code;
}

int run_create(struct run *run, const char *parent, const char *name, const struct config *config,
               struct error *err)
{
    return run_create_filled(run, parent, name, config, NULL, NULL, err);
}

void run_close(struct run *run)
{
    if (run->metrics >= 0) close(run->metrics);
    if (run->events >= 0) close(run->events);
    if (run->lock >= 0) close(run->lock);
    free(run->held);
    free(run->was);
    free(run->directory);
    *run = (struct run){.metrics = -1, .events = -1, .lock = -1};
}

/* Writes all of the text or nothing: half a line would corrupt the next one. */
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

/* Returns whether this is the name of the side file (file.h) of a file that this program replaces in a run.
 * */
static bool is_side_file(const char *name)
{
    static const char *const replaced[] = {"config.yaml", "meta.json", "plan.json", "data.list",
                                           "state.json",  "live.json", "gemm.json"};
    size_t n = strlen(name);
    if (n < 9 || name[0] != '.' || name[n - 7] != '.') return false;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (strlen(replaced[i]) == n - 8 && memcmp(name + 1, replaced[i], n - 8) == 0) return true;
    return false;
}

void run_tidy(const struct run *run)
{
    DIR *dir = opendir(run->directory);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (!is_side_file(entry->d_name) ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0)
            log_warn("cannot remove %s/%s, left by a killed process: %s", run->directory, entry->d_name,
                     strerror(errno));
    }
    if (dir) closedir(dir);
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
    char *text = json_text(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
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
    return held || code ? code
                        : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a line of metrics");
}

void run_set_ranks(struct run *run, int ranks, bool launched, bool cards)
{
    if (ranks < 2 || (cards && !launched)) run->ranks[0] = 0;
    else if (launched) snprintf(run->ranks, sizeof run->ranks, _(" (with the launcher, %d ranks)"), ranks);
    else snprintf(run->ranks, sizeof run->ranks, " --workers %d", ranks);
}

const char *run_resume_words(const struct run *run, char *text, size_t size)
{
    snprintf(text, size, "%s%s", run->directory, run->ranks);
    return text;
}

int run_event(struct run *run, const char *event, json_t *fields, struct error *err)
{
    struct timespec now;
    const char *message = json_string_value(json_object_get(fields, "message"));
    char english[512];
    if (message)
        json_object_set_new(fields, "message",
                            json_string(message_english(english, sizeof english, message)));
    char *more = fields && json_object_size(fields)
                     ? json_text(fields, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))
                     : NULL,
         *text = NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    int n = asprintf(&text, "{\"event\":\"%s\",\"time\":%lld.%03ld%s%s\n", event, (long long)now.tv_sec,
                     now.tv_nsec / 1000000, more ? "," : "}", more ? more + 1 : "");
    json_decref(fields);
    int code = n > 0 ? append(run, run->events, "events.jsonl", text, (size_t)n, err) : 0;
    if (n > 0) free(text);
    free(more);
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
    int code = run_follow(run, err); /* another run may have its old path now */
    if (!code && run->lock >= 0 && !run_is_here(run)) {
        code = error_set(err, EXIT_FAILED, NULL, "the run's directory no longer exists");
        error_at(err, run->directory, 0, 0);
    }
    return code ? code : run_status_write(&s, run->directory, err);
}

/* Scans for our own lines without a JSON library, so that it needs no memory for them. */
int run_last_saved(const struct run *run, int64_t *step, struct error *err)
{
    static const char event[] = "\"event\":\"checkpoint\"";
    char *text = NULL;
    size_t bytes = 0;
    int code = file_read_below(run->directory, "events.jsonl", EVENTS_BYTES, &text, &bytes, err);
    *step = -1;
    for (char *line = text, *end; !code && line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', bytes - (size_t)(line - text));
        if (!end) end = text + bytes;
        if (!memmem(line, (size_t)(end - line), event, sizeof event - 1)) continue;
        double at = metric_step(line, (size_t)(end - line));
        if (at >= 0 && at < 0x1p53) *step = (int64_t)at;
    }
    free(text);
    return code;
}

/* Lines of other formats before the step stay: readers skip them. Reads one line at a time: there may be
 * many. */
int run_truncate_metrics(struct run *run, int64_t step, struct error *err)
{
    static const char name[] = "metrics.jsonl";
    struct tail t;
    size_t bytes;
    int64_t keep = 0;
    int code = 0;
    char *path = run_path(run, name);
    tail_init(&t, run->directory, name);
    if (tail_poll(&t, NULL) < 0) code = file_below_error(run->directory, name, "read the metrics", err);
    for (const char *text; !code && (text = tail_line(&t, &bytes)) != NULL;) {
        struct metric_line line;
        bool counts = metric_line_parse(&line, text, bytes);
        if (counts && line.step > step) break;
        if (counts) keep = tail_offset(&t);
    }
    if (!code && t.failed) {
        errno = t.failed;
        code = error_errno(err, EXIT_FAILED, NULL, "cannot read the metrics");
        error_at(err, path, 0, 0);
    }
    if (!code) code = file_shorten(run->metrics, keep, path, err);
    tail_free(&t);
    free(path);
    return code;
}
