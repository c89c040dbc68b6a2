/* Partial archives: see partial.h. */
#include "fetch/partial.h"

#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "fetch/libcrypto.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- state ---- */

void partial_hash_url(const char *url, char out[65])
{
    unsigned char digest[32];
    unsigned n = 0;
    libcrypto.digest(url, strlen(url), digest, &n, libcrypto.sha256(), NULL);
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

char *partial_state_text(const struct partial_state *s)
{
    char *text = xasprintf("meopt part 2\nboot %s\nurl %s\ntotal %lld\nvalidator %s\n", s->boot, s->url_hash,
                           (long long)s->total, s->validator);
    for (int i = 0; i < s->segment_count; i++) {
        char *longer = xasprintf("%ssegment %lld %lld %lld\n", text, (long long)s->segments[i].start,
                                 (long long)s->segments[i].end, (long long)s->segments[i].done);
        free(text);
        text = longer;
    }
    char *all = xasprintf("%scrc32c %08x\n", text, crc32c(0, text, strlen(text)));
    free(text);
    return all;
}

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)text[i])) return false;
    return text[n] == 0;
}

bool partial_state_parse(struct partial_state *s, const char *text, size_t bytes)
{
    memset(s, 0, sizeof *s);
    if (bytes < 16 || bytes > 8192 || memchr(text, 0, bytes)) return false;
    if (text[bytes - 1] != '\n') return false;
    size_t crc_at = bytes - 1;
    while (crc_at > 0 && text[crc_at - 1] != '\n') crc_at--;
    char last[32];
    if (bytes - crc_at != 16) return false;
    snprintf(last, sizeof last, "crc32c %08x\n", crc32c(0, text, crc_at));
    if (memcmp(last, text + crc_at, 16) != 0) return false;

    char *copy = xmalloc(crc_at + 1), *save = NULL;
    memcpy(copy, text, crc_at);
    copy[crc_at] = 0;
    bool ok = true, total = false;
    int number = 0;
    for (char *line = strtok_r(copy, "\n", &save); line && ok; line = strtok_r(NULL, "\n", &save), number++) {
        long long a, b, c;
        int end = 0;
        if (number == 0) {
            ok = strcmp(line, "meopt part 2") == 0;
        } else if (strncmp(line, "boot ", 5) == 0) {
            ok = strlen(line + 5) < sizeof s->boot;
            if (ok) snprintf(s->boot, sizeof s->boot, "%s", line + 5);
        } else if (strncmp(line, "url ", 4) == 0) {
            ok = strlen(line + 4) == 64 && is_hex(line + 4, 64);
            if (ok) memcpy(s->url_hash, line + 4, 65);
        } else if (strncmp(line, "validator ", 10) == 0) {
            ok = strlen(line + 10) < sizeof s->validator;
            if (ok) snprintf(s->validator, sizeof s->validator, "%s", line + 10);
        } else if (sscanf(line, "total %lld%n", &a, &end) == 1 && line[end] == 0) {
            ok = a >= -1;
            s->total = a;
            total = true;
        } else if (sscanf(line, "segment %lld %lld %lld%n", &a, &b, &c, &end) == 3 && line[end] == 0) {
            int n = s->segment_count;
            int64_t before = n ? s->segments[n - 1].end : 0;
            ok = n < PARTIAL_SEGMENTS && a == before && b >= a && c >= 0 && c <= b - a;
            if (ok) s->segments[s->segment_count++] = (struct partial_segment){a, b, c};
        } else {
            ok = false;
        }
    }
    free(copy);
    if (!ok || !total || !s->url_hash[0] || s->segment_count == 0) return false;
    return s->total < 0 || s->segments[s->segment_count - 1].end == s->total;
}

int64_t partial_contiguous_bytes(const struct partial_state *s)
{
    int64_t at = 0;
    for (int i = 0; i < s->segment_count; i++) {
        at = s->segments[i].start + s->segments[i].done;
        if (s->segments[i].done < s->segments[i].end - s->segments[i].start) break;
    }
    return at;
}

int64_t partial_bytes(const struct partial_state *s)
{
    int64_t sum = 0;
    for (int i = 0; i < s->segment_count; i++) sum += s->segments[i].done;
    return sum;
}

int partial_segments(int64_t total, int connections)
{
    static const int64_t least = 64ll << 20;
    int n = connections < PARTIAL_SEGMENTS ? connections : PARTIAL_SEGMENTS;
    while (n > 1 && total >= 0 && total / n < least) n--;
    return n < 1 ? 1 : n;
}

void partial_split(struct partial_state *state, int n)
{
    int64_t each = state->total >= 0 ? state->total / n : 0;
    for (int i = 0; i < n; i++)
        state->segments[i] = (struct partial_segment){
            i * each, i == n - 1 ? state->total >= 0 ? state->total : 0 : (i + 1) * each, 0};
    state->segment_count = n;
}

/* ---- owners ---- */

/* Reads the first line of a file of /proc. */
static void read_line(const char *path, char *text, size_t size)
{
    text[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f) return;
    if (!fgets(text, (int)size, f)) text[0] = 0;
    text[strcspn(text, "\n")] = 0;
    fclose(f);
}

static void boot_id(char boot[40]) { read_line("/proc/sys/kernel/random/boot_id", boot, 40); }

/* Returns the start time of a process, in clock ticks since boot; -1: no such process. Pid and start time
 * identify a process uniquely. */
static long long process_start(long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_line(path, text, sizeof text);
    char *p = strrchr(text, ')');
    if (!p) return -1;
    char state = 0;
    long long start = -1;
    if (sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
               &state, &start) != 2)
        return -1;
    return state == 'Z' || state == 'X' ? -1 : start;
}

struct owner {
    char host[160]; /* HOST.PIDNAMESPACE */
    long pid;
    long long start;
};

static void owner_self(struct owner *o)
{
    char host[128];
    if (gethostname(host, sizeof host) != 0) snprintf(host, sizeof host, "unknown");
    host[sizeof host - 1] = 0;
    for (char *p = host; *p; p++)
        if (*p == '/' || (unsigned char)*p <= ' ') *p = '_';
    struct stat st = {0};
    if (stat("/proc/self/ns/pid", &st) != 0) st.st_ino = 0;
    snprintf(o->host, sizeof o->host, "%s.%llu", host, (unsigned long long)st.st_ino);
    o->pid = (long)getpid();
    o->start = process_start(o->pid);
}

static bool owner_parse(struct owner *o, const char *text)
{
    char *copy = xstrdup(text), *start = strrchr(copy, '.'), *pid = NULL;
    if (start) {
        *start++ = 0;
        pid = strrchr(copy, '.');
        if (pid) *pid++ = 0;
    }
    bool ok = pid && *pid && *start && strlen(copy) < sizeof o->host;
    if (ok) {
        char *end1, *end2;
        o->pid = strtol(pid, &end1, 10);
        o->start = strtoll(start, &end2, 10);
        ok = *end1 == 0 && *end2 == 0 && o->pid > 0;
        snprintf(o->host, sizeof o->host, "%s", copy);
    }
    free(copy);
    return ok;
}

static bool owner_alive(const struct owner *o, const struct owner *self)
{
    return strcmp(o->host, self->host) != 0 || process_start(o->pid) == o->start;
}

static char *file_path(const struct partial *part, const char *suffix)
{
    return xasprintf("%s/%s.%s", part->directory, part->name, suffix);
}

/* Opens a regular file without other names, whose bytes would be written through; replaces any other by an
 * empty one. */
static int open_alone(const char *path, mode_t mode)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1)) return fd;
    close(fd);
    return unlink(path) == 0 ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode) : -1;
}

/* ---- the part ---- */

static int io_error(const char *what, const char *path, struct error *err)
{
    int code = error_errno(err, EXIT_FAILED,
                           "free some space or check the permissions, then run the same command again",
                           "cannot %s", _(what));
    error_at(err, path, 0, 0);
    return code;
}

/* Finds the current name of NAME.part or NAME.part.OWNER, but not `except`. *found: NULL if there is none.
 * */
static int find_part(const char *directory, const char *name, const char *except, char **found,
                     struct error *err)
{
    *found = NULL;
    DIR *dir = opendir(directory);
    int problem = dir || errno == ENOENT ? 0 : errno;
    char *prefix = xasprintf("%s.part", name);
    size_t n = strlen(prefix);
    for (struct dirent *e; dir && !*found && (errno = 0, e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, prefix, n) == 0 && (e->d_name[n] == 0 || e->d_name[n] == '.') &&
            (!except || strcmp(e->d_name, except) != 0))
            *found = xstrdup(e->d_name);
    if (dir && !*found) problem = errno;
    if (dir) closedir(dir);
    free(prefix);
    errno = problem;
    return problem ? io_error("read the directory", directory, err) : 0;
}

static void load_state(struct partial *part)
{
    char *path = file_path(part, "state"), *text = NULL;
    size_t bytes = 0;
    struct stat st;
    bool ok =
        file_read(path, 8192, &text, &bytes, NULL) == 0 && partial_state_parse(&part->state, text, bytes);
    free(text);
    free(path);
    if (ok && fstat(part->fd, &st) == 0) {
        struct partial_segment *only = part->state.segments;
        char boot[40];
        boot_id(boot);
        if (part->state.segment_count == 1 && part->state.total >= 0 && boot[0] &&
            strcmp(boot, part->state.boot) == 0 && st.st_size > only->done)
            only->done = st.st_size < only->end ? st.st_size : only->end;
        for (int i = 0; i < part->state.segment_count; i++) { /* the file may be shorter */
            struct partial_segment *s = &part->state.segments[i];
            if (s->start + s->done > st.st_size) s->done = st.st_size > s->start ? st.st_size - s->start : 0;
        }
    } else {
        memset(&part->state, 0, sizeof part->state);
        part->state.total = -1;
    }
}

/* What partial_claim needs in each attempt. */
struct claimant {
    const char *directory, *name;
    struct owner self;
    char *own_path; /* NAME.part.OWNER of this process */
};

/* Creates NAME.part. It is no error if another process has created it, or has removed the directory. */
static int create_unowned(const struct claimant *c, struct error *err)
{
    char *path = xasprintf("%s/%s.part", c->directory, c->name);
    int code = 0, fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 && errno == ENOENT) code = file_own_directory(c->directory, 0700, NULL, err);
    else if (fd < 0 && errno != EEXIST) code = io_error("create the file", path, err);
    if (fd >= 0) close(fd);
    free(path);
    return code;
}

/* Returns EXIT_LOCKED if the file `found` has a live owner. */
static int check_owner(const struct claimant *c, const char *found, bool *owner_here, struct error *err)
{
    struct owner other;
    const char *suffix = found + strlen(c->name) + strlen(".part");
    if (*suffix != '.' || !owner_parse(&other, suffix + 1) || !owner_alive(&other, &c->self)) return 0;
    *owner_here = strcmp(other.host, c->self.host) == 0;
    int code =
        error_set(err, EXIT_LOCKED,
                  *owner_here ? "wait for it, or stop it"
                              : N_("if that process is dead, remove the file and run the same command again"),
                  "%s is being fetched by process %ld on %s", c->name, other.pid, other.host);
    char *path = path_join(c->directory, found);
    error_at(err, path, 0, 0);
    free(path);
    return code;
}

/* Renames `found` to the own name. *claimed stays false if another process was faster.
 *
 * Between find_part and create_unowned another process may have created, claimed and renamed NAME.part:
 * then two parts exist, and at least one is empty. The owner of an empty part that sees a second one gives
 * up its own and retries after a pause that depends on the pid. */
static int take_over(const struct claimant *c, const char *found, bool *claimed, struct error *err)
{
    char *path = path_join(c->directory, found), *second = NULL;
    struct stat st;
    int moved = rename(path, c->own_path), problem = errno, code = 0;
    free(path);
    if (moved != 0) {
        errno = problem;
        return problem == ENOENT ? 0 : io_error("claim", c->own_path, err);
    }
    if (stat(c->own_path, &st) == 0 && st.st_size == 0)
        code = find_part(c->directory, c->name, path_basename(c->own_path), &second, err);
    *claimed = !code && !second;
    if (!*claimed) unlink(c->own_path);
    if (second) usleep(1000 + (unsigned)(c->self.pid % 97) * 200);
    free(second);
    return code;
}

int partial_claim(struct partial *part, const char *directory, const char *name, bool *owner_here,
                  struct error *err)
{
    struct claimant c = {.directory = directory, .name = name};
    bool claimed = false;
    *part = (struct partial){.fd = -1};
    *owner_here = false;
    int code = file_own_directory(directory, 0700, NULL, err);
    if (code) return code;
    owner_self(&c.self);
    c.own_path = xasprintf("%s/%s.part.%s.%ld.%lld", directory, name, c.self.host, c.self.pid, c.self.start);
    for (int attempt = 0; !code && !claimed; attempt++) {
        char *found;
        code = find_part(directory, name, NULL, &found, err);
        if (!code && !found) {
            code = create_unowned(&c, err);
            if (!code && attempt > 1000)
                code = error_set(err, EXIT_FAILED, NULL, "cannot claim %s in %s", name, directory);
        } else if (!code && (code = check_owner(&c, found, owner_here, err)) == 0) {
            code = take_over(&c, found, &claimed, err);
        }
        free(found);
    }
    if (code) {
        free(c.own_path);
        return code;
    }
    part->directory = xstrdup(directory);
    part->name = xstrdup(name);
    part->path = c.own_path;
    part->fd = open_alone(part->path, 0644);
    if (part->fd < 0) {
        code = io_error("open", part->path, err);
        partial_release(part, true, NULL);
    } else {
        load_state(part);
    }
    return code;
}

int partial_reset(struct partial *part, struct error *err)
{
    memset(&part->state, 0, sizeof part->state);
    part->state.total = -1;
    char *path = file_path(part, "state");
    int remove_path = unlink(path);
    free(path);
    if ((remove_path != 0 && errno != ENOENT) || retry_truncate(part->fd, 0) != 0)
        return io_error("empty", part->path, err);
    return 0;
}

int partial_commit(struct partial *part, struct error *err)
{
    if (retry_sync(fdatasync, part->fd) != 0) return io_error("sync", part->path, err);
    boot_id(part->state.boot);
    char *text = partial_state_text(&part->state), *path = file_path(part, "state");
    int code = file_write_atomic(path, text, strlen(text), err);
    free(text);
    free(path);
    return code;
}

/* Removes and frees a path. Returns false with errno if it still exists. */
static bool remove_path(char *path, int (*removed)(const char *))
{
    bool is_gone = removed(path) == 0 || errno == ENOENT;
    free(path);
    return is_gone;
}

/* Removes the files with which a killed process was replacing NAME.state (file_write_atomic). */
static void remove_unfinished(const struct partial *part)
{
    char *prefix = xasprintf(".%s.state.", part->name);
    DIR *dir = opendir(part->directory);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
    free(prefix);
}

static void partial_free(struct partial *part)
{
    if (part->fd >= 0) close(part->fd);
    free(part->directory);
    free(part->name);
    free(part->path);
    *part = (struct partial){.fd = -1};
}

int partial_release(struct partial *part, bool keep, struct error *err)
{
    int code = 0;
    if (!part->path) return 0;
    if (keep) {
        char *unowned = file_path(part, "part");
        if (rename(part->path, unowned) != 0) code = io_error("release", part->path, err);
        free(unowned);
    } else {
        remove_unfinished(part);
        if (!remove_path(file_path(part, "state"), unlink) || !remove_path(xstrdup(part->path), unlink) ||
            (rmdir(part->directory) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST))
            code =
                error_errno(err, EXIT_FAILED, "remove it", "cannot remove all files of %s", part->directory);
    }
    partial_free(part);
    return code;
}

int partial_move(struct partial *part, const char *target, struct error *err)
{
    if (retry_sync(fsync, part->fd) != 0) return io_error("sync", part->path, err);
    if (rename(part->path, target) != 0) return io_error("move the archive to", target, err);
    char *directory = path_dirname(target);
    int code = file_sync_dir(directory, err);
    free(directory);
    return code;
}

void partial_status(const char *directory, const char *name, int64_t *bytes, int64_t *total)
{
    *bytes = 0;
    *total = -1;
    char *found;
    if (find_part(directory, name, NULL, &found, NULL) || !found) return;
    struct partial part = {
        .directory = (char *)(uintptr_t)directory, .name = (char *)(uintptr_t)name, .fd = -1};
    char *path = file_path(&part, "state"), *text = NULL, *file = path_join(directory, found);
    size_t size = 0;
    struct stat st;
    if (file_read(path, 8192, &text, &size, NULL) == 0 && partial_state_parse(&part.state, text, size)) {
        *bytes = partial_bytes(&part.state);
        *total = part.state.total;
        if (part.state.segment_count == 1 && stat(file, &st) == 0 && st.st_size > *bytes) *bytes = st.st_size;
    }
    free(text);
    free(path);
    free(file);
    free(found);
}

int64_t partial_allocated(const char *directory, const char *name)
{
    char *found;
    struct stat st = {0};
    if (find_part(directory, name, NULL, &found, NULL) || !found) return 0;
    char *path = path_join(directory, found);
    if (stat(path, &st) != 0) st.st_blocks = 0;
    free(path);
    free(found);
    return (int64_t)st.st_blocks * 512;
}

char *partial_staging(const struct partial *part) { return file_path(part, "staging"); }
