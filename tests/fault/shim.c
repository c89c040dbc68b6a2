/* Selects the call that fails: see shim.h. The calls are in calls.c and memory.c. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *const kind_names[KINDS] = {"open",   "opendir", "readdir", "read", "write",    "sync",
                                              "rename", "unlink",  "mkdir",   "stat", "truncate", "allocate",
                                              "chmod",  "lock",    "close",   "mmap", "malloc",   "spawn",
                                              "thread", "pipe",    "accept"};

struct shared *shared;
bool logging, sites, on_nfs, unsynced, late, linkless;
static int call = -1, fails_with;
static bool ever, kills;
static uint64_t k;
static const char *slow, *cut;
static struct shared alone; // not counted
static const char *under;   // A:B
static char who[64];

static int kind_of(const char *name, size_t length)
{
    for (int i = 0; i < KINDS; i++)
        if (strlen(kind_names[i]) == length && memcmp(kind_names[i], name, length) == 0) return i;
    return -1;
}

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void map_shared(const char *path)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    off_t end = lseek(fd, 0, SEEK_END);
    if (end >= (off_t)sizeof *shared) {
        struct shared *map =
            (struct shared *)syscall(SYS_mmap, NULL, (size_t)end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            for (int i = 0; i < KINDS; i++)
                snprintf(map->names[i], sizeof map->names[i], "%s", kind_names[i]);
            map->log_limit = (uint64_t)end - sizeof *shared;
            shared = map;
        }
    }
    syscall(SYS_close, fd);
}

__attribute__((constructor)) static void begin(int argc, char **argv)
{
    const char *path = setting("FAULT_SHARED"), *value;
    slow = setting("FAULT_SLOW");
    cut = setting("FAULT_CUT");
    on_nfs = setting("FAULT_NFS") != NULL;
    unsynced = setting("FAULT_UNSYNCED") != NULL;
    late = setting("FAULT_LATE") != NULL;
    linkless = setting("FAULT_LINKLESS") != NULL;
    under = setting("FAULT_UNDER");
    if (!path && (slow || cut || unsynced || late)) shared = &alone;
    if (!path) return;
    snprintf(who, sizeof who, "%s%s%s", argc > 0 ? argv[0] : "?", argc > 1 ? " " : "",
             argc > 1 ? argv[1] : "");
    const char *base = strrchr(who, '/');
    if (base) memmove(who, base + 1, strlen(base));
    if ((value = setting("FAULT_CALL"))) call = kind_of(value, strlen(value));
    if ((value = setting("FAULT_K"))) k = strtoull(value, NULL, 10);
    if ((value = setting("FAULT_ERRNO"))) fails_with = atoi(value);
    ever = setting("FAULT_EVER") != NULL;
    kills = setting("FAULT_KILL") != NULL;
    logging = setting("FAULT_LOG") != NULL;
    sites = setting("FAULT_SITES") != NULL;
    map_shared(path);
}

static bool below(const char *path)
{
    if (!under) return true;
    for (const char *at = under; *at;) {
        const char *end = strchr(at, ':');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (strncmp(path, at, n) == 0 && (path[n] == 0 || path[n] == '/')) return true;
        if (!end) break;
        at = end + 1;
    }
    return false;
}

bool descriptor_met(int fd, char absolute[PATH_BYTES])
{
    int before = errno;
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = shared ? readlink(link, absolute, PATH_BYTES - 1) : -1;
    errno = before;
    if (n <= 0 || absolute[0] != '/') return false;
    absolute[n] = 0;
    return strncmp(absolute, "/memfd:", 7) != 0 && below(absolute);
}

bool path_met(int at, const char *path, char absolute[PATH_BYTES])
{
    if (!shared || !path || strlen(path) >= PATH_BYTES / 2) return false;
    int before = errno;
    size_t n = 0;
    if (path[0] != '/') {
        char directory[PATH_BYTES / 2] = "", link[40];
        if (at != AT_FDCWD) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t got = readlink(link, directory, sizeof directory - 1);
            if (got > 0) directory[got] = 0;
        } else if (!getcwd(directory, sizeof directory)) {
            directory[0] = 0;
        }
        n = (size_t)snprintf(absolute, PATH_BYTES, "%s/", directory);
    }
    snprintf(absolute + n, PATH_BYTES - n, "%s", path);
    errno = before;
    return below(absolute);
}

/* What FAULT_SLOW says of this call, through signals, as a file system is. */
static void be_slow(enum kind kind, const char *file)
{
    for (const char *at = slow; at && *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        char entry[256], *part = NULL;
        snprintf(entry, sizeof entry, "%.*s", (int)n, at);
        at += n;
        char *us = strchr(entry, ':');
        if (us && (part = strchr(us + 1, ':')) != NULL) *part++ = 0;
        if (!us || kind_of(entry, (size_t)(us - entry)) != (int)kind || (part && !strstr(file, part)))
            continue;
        long rest_us = atol(us + 1);
        struct timespec rest = {rest_us / 1000000, rest_us % 1000000 * 1000};
        while (nanosleep(&rest, &rest) != 0) {}
    }
}

void partition_mapped(const char *file)
{
    if (cut && strstr(file, cut) && syscall(SYS_truncate, file, 0) != 0) _exit(99);
}

int fault(enum kind kind, const char *file)
{
    if (!shared) return 0;
    if (slow) be_slow(kind, file);
    uint64_t n = atomic_fetch_add(&shared->calls[kind], 1) + 1;
    if (sites) log_site(kind, n);
    if ((int)kind != call || (ever ? n < k : n != k)) return 0;
    atomic_fetch_add(&shared->failed, 1);
    if (atomic_exchange(&shared->reported, 1) == 0) {
        snprintf(shared->where, sizeof shared->where, "%s: %s", who, file ? file : "");
        atomic_store(&shared->site, call_site());
    }
    if (kills) syscall(SYS_kill, getpid(), SIGKILL);
    return fails_with ? fails_with : -1;
}
