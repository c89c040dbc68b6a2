/* Partial archives: see partial.h. */
#include "fetch/partial.h"

#include "core/base/file.h"
#include "core/base/retry.h"
#include "core/base/platform.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct part_live {
    char magic[8], boot[40], id[40];
    struct {
        int64_t start, end;
        _Atomic int64_t done;
    } segments[PART_SEGMENTS];
};
static const char live_magic[8] = "meoptL1";

/* ---- state ---- */

char *part_state_text(const struct part_state *s)
{
    char *text = xasprintf("meopt part 1\nid %s\nurl %s\ntotal %lld\nvalidator %s\n", s->id, s->url_hash,
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

bool part_state_parse(struct part_state *s, const char *text, size_t bytes)
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
            ok = strcmp(line, "meopt part 1") == 0;
        } else if (strncmp(line, "id ", 3) == 0) {
            ok = strlen(line + 3) == 32 && is_hex(line + 3, 32);
            if (ok) memcpy(s->id, line + 3, 33);
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
            ok = n < PART_SEGMENTS && a == before && b >= a && c >= 0 && c <= b - a;
            if (ok) s->segments[s->segment_count++] = (struct part_segment){a, b, c};
        } else {
            ok = false;
        }
    }
    free(copy);
    if (!ok || !total || !s->id[0] || !s->url_hash[0] || s->segment_count == 0) return false;
    return s->total < 0 || s->segments[s->segment_count - 1].end == s->total;
}

int64_t part_state_frontier(const struct part_state *s)
{
    int64_t at = 0;
    for (int i = 0; i < s->segment_count; i++) {
        at = s->segments[i].start + s->segments[i].done;
        if (s->segments[i].done < s->segments[i].end - s->segments[i].start) break;
    }
    return at;
}

int64_t part_state_bytes(const struct part_state *s)
{
    int64_t sum = 0;
    for (int i = 0; i < s->segment_count; i++) sum += s->segments[i].done;
    return sum;
}

/* ---- owners ---- */

static void read_line(const char *path, char *text, size_t size) /* of /proc */
{
    text[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f) return;
    if (!fgets(text, (int)size, f)) text[0] = 0;
    text[strcspn(text, "\n")] = 0;
    fclose(f);
}

static void boot_id(char boot[40]) { read_line("/proc/sys/kernel/random/boot_id", boot, 40); }

/* Start of a process in clock ticks since boot:
 * with the pid it names a process once and for all. -1: there is none. */
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

/* ---- live ---- */

static char *beside(const struct part *part, const char *suffix)
{
    return xasprintf("%s/%s.%s", part->directory, part->name, suffix);
}

/* Map NAME.live, made anew when it is not of this boot and state. */
static void live_open(struct part *part)
{
    char *path = beside(part, "live");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    free(path);
    if (fd < 0) return;
    struct stat st;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ftruncate(fd, sizeof(struct part_live)) == 0 &&
        posix_fallocate(fd, 0, sizeof(struct part_live)) == 0)
        map = mmap(NULL, sizeof(struct part_live), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) part->live = map;
}

static void live_load(struct part *part)
{
    struct part_live *live = part->live;
    char boot[40];
    boot_id(boot);
    if (!live || memcmp(live->magic, live_magic, 8) != 0 || memchr(live->boot, 0, 40) == NULL ||
        strcmp(live->boot, boot) != 0 || !boot[0])
        return;
    if (memchr(live->id, 0, 40) == NULL || strcmp(live->id, part->state.id) != 0) return;
    for (int i = 0; i < part->state.segment_count; i++) {
        struct part_segment *s = &part->state.segments[i];
        int64_t done = atomic_load(&live->segments[i].done);
        if (live->segments[i].start == s->start && live->segments[i].end == s->end && done >= s->done &&
            done <= s->end - s->start)
            s->done = done;
    }
}

static void live_store(struct part *part)
{
    if (!part->live) return;
    memset(part->live->magic, 0, 8);
    atomic_signal_fence(memory_order_seq_cst);
    memset(part->live->boot, 0, 40);
    boot_id(part->live->boot);
    snprintf(part->live->id, sizeof part->live->id, "%s", part->state.id);
    for (int i = 0; i < PART_SEGMENTS; i++) {
        part->live->segments[i].start = part->state.segments[i].start;
        part->live->segments[i].end = part->state.segments[i].end;
        atomic_store(&part->live->segments[i].done, part->state.segments[i].done);
    }
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(part->live->magic, live_magic, 8);
}

void part_note(struct part *part, int i, int64_t done)
{
    part->state.segments[i].done = done;
    if (part->live) atomic_store_explicit(&part->live->segments[i].done, done, memory_order_release);
}

/* ---- the part ---- */

static int io_error(const char *what, const char *path, struct error *err)
{
    int code = error_errno(err, EXIT_FAILED,
                           "free some space or check the permissions, then run the same command again",
                           "cannot %s", what);
    error_at(err, path, 0, 0);
    return code;
}

/* The name of NAME.part or NAME.part.OWNER as it is now, other than `except`, into *found; NULL when there is
 * none. */
static int find(const char *directory, const char *name, const char *except, char **found, struct error *err)
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

static void load_state(struct part *part)
{
    char *path = beside(part, "state"), *text = NULL;
    size_t bytes = 0;
    struct stat st;
    bool ok = file_read(path, 8192, &text, &bytes, NULL) == 0 && part_state_parse(&part->state, text, bytes);
    free(text);
    free(path);
    live_open(part);
    if (ok && fstat(part->fd, &st) == 0) {
        live_load(part);
        for (int i = 0; i < part->state.segment_count; i++) { /* the file may be shorter than it should be */
            struct part_segment *s = &part->state.segments[i];
            if (s->start + s->done > st.st_size) s->done = st.st_size > s->start ? st.st_size - s->start : 0;
        }
    } else {
        memset(&part->state, 0, sizeof part->state);
        part->state.total = -1;
    }
    if (part->state.segment_count) live_store(part);
}

/* Whether what `uid` made is ours. On a file system that knows users by other names (NFS without root, FUSE)
 * it is the user whom a directory that we make beside it belongs to. */
static bool is_ours(const char *directory, uid_t uid)
{
    struct stat st;
    if (uid == geteuid()) return true;
    char *trial = xasprintf("%s.XXXXXX", directory);
    bool ours = mkdtemp(trial) && lstat(trial, &st) == 0 && st.st_uid == uid;
    rmdir(trial);
    free(trial);
    return ours;
}

/* A directory of ours, made when it is not there; no link, which would lead to somebody's files. */
static int make_private(const char *directory, struct error *err)
{
    struct stat st;
    int code, there = -1;
    for (int i = 0; i < 100 && there != 0; i++) { /* its last owner may take it away meanwhile */
        if (mkdir(directory, 0700) == 0) return 0;
        if (errno != EEXIST || ((there = lstat(directory, &st)) != 0 && errno != ENOENT)) break;
    }
    if (there != 0) return io_error("make the directory", directory, err);
    if (S_ISDIR(st.st_mode) && is_ours(directory, st.st_uid)) return 0;
    if (!S_ISDIR(st.st_mode))
        code = error_set(err, EXIT_FAILED, "remove it, or fetch into another --dest", "is not a directory");
    else
        code = error_set(err, EXIT_FAILED, "fetch into another --dest", "belongs to another user (%ld)",
                         (long)st.st_uid);
    error_at(err, directory, 0, 0);
    return code;
}

int part_claim(struct part *part, const char *directory, const char *name, bool *owner_here,
               struct error *err)
{
    *part = (struct part){.fd = -1};
    *owner_here = false;
    int unsafe = make_private(directory, err);
    if (unsafe) return unsafe;
    struct owner self, other;
    owner_self(&self);
    char *mine = xasprintf("%s/%s.part.%s.%ld.%lld", directory, name, self.host, self.pid, self.start);
    int code = 0;
    for (int attempt = 0;; attempt++) {
        char *found;
        if ((code = find(directory, name, NULL, &found, err))) break;
        if (!found) {
            char *fresh = xasprintf("%s/%s.part", directory, name);
            int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
            if (fd < 0 && errno == ENOENT)
                code = make_private(directory, err); /* the last owner just took the directory away */
            else if (fd < 0 && errno != EEXIST) code = io_error("make the file", fresh, err);
            free(fresh);
            if (fd >= 0) close(fd);
            if (code) break;
            if (attempt > 1000) {
                code = error_set(err, EXIT_FAILED, NULL, "cannot claim %s in %s", name, directory);
                break;
            }
            continue;
        }
        const char *owner = found + strlen(name) + 5; /* behind ".part" */
        if (*owner == '.' && owner_parse(&other, owner + 1) && owner_alive(&other, &self)) {
            *owner_here = strcmp(other.host, self.host) == 0;
            code = error_set(err, EXIT_LOCKED,
                             *owner_here
                                 ? "wait for it, or stop it"
                                 : "if that process is dead, remove the file and run the same command again",
                             "%s is being fetched by process %ld on %s", name, other.pid, other.host);
            char *path = path_join(directory, found);
            error_at(err, path, 0, 0);
            free(path);
            free(found);
            break;
        }
        char *path = path_join(directory, found);
        free(found);
        int moved = rename(path, mine);
        int problem = errno;
        free(path);
        if (moved == 0) {
            /* Between our look and our O_EXCL another may have made and claimed one: whoever holds an empty
             * part and sees a second one steps back. */
            struct stat st;
            char *second = NULL;
            if (stat(mine, &st) == 0 && st.st_size == 0)
                code = find(directory, name, path_basename(mine), &second, err);
            if (code) unlink(mine); /* it is empty */
            if (!second) break;
            free(second);
            unlink(mine);
            usleep(1000 + (unsigned)(self.pid % 97) * 200);
            continue;
        }
        errno = problem;
        if (problem != ENOENT) {
            code = io_error("claim", mine, err);
            break;
        }
    }
    if (!code) {
        part->directory = xstrdup(directory);
        part->name = xstrdup(name);
        part->path = mine;
        mine = NULL;
        part->fd = open(part->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (part->fd < 0) {
            code = io_error("open", part->path, err);
            part_release(part, true, NULL);
        } else {
            load_state(part);
        }
    }
    free(mine);
    return code;
}

int part_reset(struct part *part, struct error *err)
{
    uint8_t random[16];
    if (random_bytes(random, sizeof random) != 0) memset(random, 0, sizeof random);
    memset(&part->state, 0, sizeof part->state);
    part->state.total = -1;
    for (int i = 0; i < 16; i++) snprintf(part->state.id + 2 * i, 3, "%02x", random[i]);
    char *path = beside(part, "state");
    int gone = unlink(path);
    free(path);
    if ((gone != 0 && errno != ENOENT) || retry_truncate(part->fd, 0) != 0)
        return io_error("empty", part->path, err);
    live_store(part);
    return 0;
}

int part_commit(struct part *part, struct error *err)
{
    struct part_state now = part->state; /* what is written now; more may arrive in the meantime */
    if (retry_sync(fdatasync, part->fd) != 0) return io_error("sync", part->path, err);
    char *text = part_state_text(&now), *path = beside(part, "state");
    int code = file_write_atomic(path, text, strlen(text), err);
    free(text);
    free(path);
    if (!code) live_store(part);
    return code;
}

/* True when it is gone; else errno. */
static bool gone(char *path, int (*removed)(const char *))
{
    bool is_gone = removed(path) == 0 || errno == ENOENT;
    free(path);
    return is_gone;
}

static void part_free(struct part *part)
{
    if (part->live) munmap(part->live, sizeof *part->live);
    if (part->fd >= 0) close(part->fd);
    free(part->directory);
    free(part->name);
    free(part->path);
    *part = (struct part){.fd = -1};
}

int part_release(struct part *part, bool keep, struct error *err)
{
    int code = 0;
    if (!part->path) return 0;
    if (keep) {
        char *unowned = beside(part, "part");
        if (rename(part->path, unowned) != 0) code = io_error("give back", part->path, err);
        free(unowned);
    } else {
        if (!gone(beside(part, "state"), unlink) || !gone(beside(part, "live"), unlink) ||
            !gone(xstrdup(part->path), unlink) ||
            (rmdir(part->directory) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST))
            code = error_errno(err, EXIT_FAILED, "remove it", "cannot remove all of %s", part->directory);
    }
    part_free(part);
    return code;
}

int part_finish(struct part *part, const char *target, struct error *err)
{
    if (retry_sync(fsync, part->fd) != 0) return io_error("sync", part->path, err);
    if (rename(part->path, target) != 0) return io_error("rename to its place", target, err);
    char *directory = path_dirname(target);
    int code = file_sync_dir(directory, err);
    free(directory);
    return code;
}

void part_peek(const char *directory, const char *name, int64_t *bytes, int64_t *total)
{
    *bytes = 0;
    *total = -1;
    char *found;
    if (find(directory, name, NULL, &found, NULL) || !found) return;
    struct part look = {.directory = (char *)(uintptr_t)directory, .name = (char *)(uintptr_t)name, .fd = -1};
    char *path = beside(&look, "state"), *text = NULL, *file = path_join(directory, found);
    size_t size = 0;
    struct stat st;
    if (file_read(path, 8192, &text, &size, NULL) == 0 && part_state_parse(&look.state, text, size)) {
        *bytes = part_state_bytes(&look.state);
        *total = look.state.total;
        if (look.state.segment_count == 1 && stat(file, &st) == 0 && st.st_size > *bytes) *bytes = st.st_size;
    }
    free(text);
    free(path);
    free(file);
    free(found);
}

char *part_staging(const struct part *part) { return beside(part, "staging"); }
