/* Unpacks an archive in a child process: see unpack.h. */
#include "fetch/unpack.h"

#include "core/base/crc32c.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "fetch/libarchive.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct unpack_shared {
    _Atomic int64_t available;
    _Atomic bool last, ended;
    _Atomic int64_t in, out, entries, files;
    int code;
    struct error err;
};

/* ---- writing ---- */

struct writer {
    int staging;
    int parent; /* directory of the last file */
    char parent_path[4097];
    int fd;
    bool comparing; /* the existing file is equal so far */
    int64_t size, mtime, old_size;
    uint32_t crc;
    int64_t crc_at; /* bytes in crc; holes count as zeros */
    char path[4097];
    FILE *manifest;
    uint8_t *compare;
    struct unpack_shared *shared;
};

enum { COMPARE_BYTES = 1 << 20 };

static int write_error(const struct writer *w, const char *what, struct error *err)
{
    char shown[300];
    name_printable(shown, sizeof shown, w->path);
    return error_errno(err, EXIT_FAILED, "free some space, then run the same command again", "cannot %s '%s'",
                       _(what), shown);
}

/* Opens the directory `path` under staging and creates missing components; follows no links. */
static int open_directory(struct writer *w, const char *path, struct error *err)
{
    int at = w->staging;
    char component[256];
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        memcpy(component, p, n);
        component[n] = 0;
        int next = openat(at, component, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 && errno == ENOENT) {
            if (mkdirat(at, component, 0755) != 0 && errno != EEXIST) next = -1;
            else next = openat(at, component, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        int problem = errno;
        if (at != w->staging) close(at);
        if (next < 0) {
            errno = problem;
            if (problem == ENOTDIR || problem == ELOOP) {
                char shown[300];
                name_printable(shown, sizeof shown, path);
                error_set(err, EXIT_INTEGRITY, NULL, "the archive has '%s' both as a file and as a directory",
                          shown);
            } else {
                write_error(w, "make the directory of", err);
            }
            return -1;
        }
        at = next;
        p += n;
        if (*p == '/') p++;
    }
    return at == w->staging ? dup(at) : at;
}

static int on_directory(void *context, const char *path, struct error *err)
{
    struct writer *w = context;
    snprintf(w->path, sizeof w->path, "%s", path);
    int fd = open_directory(w, path, err);
    if (fd < 0) return err->code;
    close(fd);
    return 0;
}

static int on_file(void *context, const char *path, int64_t bytes, int64_t mtime, struct error *err)
{
    struct writer *w = context;
    const char *name = path_basename(path);
    size_t directory = name == path ? 0 : (size_t)(name - path - 1);
    snprintf(w->path, sizeof w->path, "%s", path);
    if (w->parent < 0 || strlen(w->parent_path) != directory ||
        strncmp(w->parent_path, path, directory) != 0) {
        if (w->parent >= 0) close(w->parent);
        memcpy(w->parent_path, path, directory);
        w->parent_path[directory] = 0;
        if ((w->parent = open_directory(w, w->parent_path, err)) < 0) {
            w->parent_path[0] = 0;
            return err->code;
        }
    }
    w->fd = openat(w->parent, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    struct stat st;
    if (w->fd < 0 && (errno == EISDIR || errno == ELOOP)) {
        char shown[300];
        name_printable(shown, sizeof shown, path);
        return error_set(err, EXIT_INTEGRITY, NULL, "the archive has '%s' both as a file and as a directory",
                         shown);
    }
    if (w->fd < 0 || fstat(w->fd, &st) != 0 || !S_ISREG(st.st_mode)) return write_error(w, "make", err);
    w->old_size = st.st_size;
    w->comparing = st.st_size > 0;
    w->size = bytes;
    w->mtime = mtime;
    w->crc = 0;
    w->crc_at = 0;
    return 0;
}

static void crc_zeros(struct writer *w, int64_t until)
{
    static const uint8_t zeros[4096];
    while (w->crc_at < until) {
        size_t n = until - w->crc_at < (int64_t)sizeof zeros ? (size_t)(until - w->crc_at) : sizeof zeros;
        w->crc = crc32c(w->crc, zeros, n);
        w->crc_at += (int64_t)n;
    }
}

static int on_data(void *context, const void *data, size_t bytes, int64_t offset, struct error *err)
{
    struct writer *w = context;
    if (offset < w->crc_at)
        return error_set(err, EXIT_INTEGRITY, NULL, "the archive's sparse map is not ascending");
    crc_zeros(w, offset);
    w->crc = crc32c(w->crc, data, bytes);
    w->crc_at += (int64_t)bytes;
    const uint8_t *p = data;
    while (bytes) {
        size_t n = bytes < COMPARE_BYTES ? bytes : COMPARE_BYTES;
        if (w->comparing && pread(w->fd, w->compare, n, offset) == (ssize_t)n &&
            memcmp(w->compare, p, n) == 0) {
            p += n;
            offset += (int64_t)n;
            bytes -= n;
            continue;
        }
        w->comparing = false;
        ssize_t put = retry_write(w->fd, p, n, offset);
        if (put < 0) return write_error(w, "write", err);
        p += put;
        offset += put;
        bytes -= (size_t)put;
    }
    return 0;
}

static int on_file_end(void *context, struct error *err)
{
    struct writer *w = context;
    crc_zeros(w, w->size);
    if ((w->old_size != w->size || w->size != w->crc_at) && retry_truncate(w->fd, w->size) != 0)
        return write_error(w, "write", err);
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = w->mtime}};
    if (w->mtime > 0) futimens(w->fd, times);
    int failed = close(w->fd);
    w->fd = -1;
    if (failed) return write_error(w, "write", err);
    if (fprintf(w->manifest, "%08x %lld %s\n", w->crc, (long long)w->size, w->path) >= 0) return 0;
    snprintf(w->path, sizeof w->path, "%s", UNPACK_MANIFEST);
    return write_error(w, "write", err);
}

static void on_progress(void *context, const struct archive_counts *c)
{
    struct unpack_shared *s = ((struct writer *)context)->shared;
    if (!s) return;
    atomic_store_explicit(&s->in, c->in, memory_order_relaxed);
    atomic_store_explicit(&s->out, c->out, memory_order_relaxed);
    atomic_store_explicit(&s->entries, c->entries, memory_order_relaxed);
    atomic_store_explicit(&s->files, c->files, memory_order_relaxed);
}

static int unpack_all(const struct archive_input *input, int staging, const struct archive_limits *limits,
                      struct unpack_shared *shared, struct archive_counts *counts, struct error *err)
{
    struct writer w = {.staging = staging, .parent = -1, .fd = -1, .shared = shared, .path = UNPACK_MANIFEST};
    int list = openat(staging, UNPACK_MANIFEST, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    w.manifest = list >= 0 ? fdopen(list, "w") : NULL;
    if (!w.manifest) {
        if (list >= 0) close(list);
        return write_error(&w, "make", err);
    }
    w.compare = malloc(COMPARE_BYTES);
    int code = w.compare ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    struct archive_sink sink = {&w, on_directory, on_file, on_data, on_file_end, on_progress};
    if (!code) code = archive_walk(input, limits, &sink, counts, err);
    if (w.fd >= 0) close(w.fd);
    if (w.parent >= 0) close(w.parent);
    free(w.compare);
    if (fclose(w.manifest) != 0 && !code) {
        snprintf(w.path, sizeof w.path, "%s", UNPACK_MANIFEST);
        code = write_error(&w, "write", err);
    }
    return code;
}

/* ---- the child ---- */

struct waiting {
    struct unpack_shared *shared;
    int wake;
};

static int64_t wait_bytes(void *context, int64_t bytes)
{
    struct waiting *w = context;
    for (;;) {
        bool last = atomic_load(&w->shared->last);
        int64_t there = atomic_load(&w->shared->available);
        if (there >= bytes || last) return there;
        char drop[4096];
        ssize_t n = read(w->wake, drop, sizeof drop);
        if (n == 0) return -1; /* the parent has exited */
        if (n < 0 && errno != EINTR) return -1;
    }
}

/* Restricts writes to staging, if the kernel supports Landlock (5.13). ABI 1, by numeric constants: headers
 * older than Debian 12's lack the names. */
static void landlock(int staging)
{
#if defined(__NR_landlock_create_ruleset)
    struct {
        uint64_t handled;
    } rules = {0x1fff & ~(uint64_t)0x0d}; /* all of ABI 1 except execute, read file, read directory */
    struct __attribute__((packed)) {
        uint64_t allowed;
        int32_t parent;
    } beneath = {rules.handled, staging};
    int fd = (int)syscall(__NR_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (fd < 0) return;
    if (syscall(__NR_landlock_add_rule, fd, 1, &beneath, 0) == 0) syscall(__NR_landlock_restrict_self, fd, 0);
    close(fd);
#else
    (void)staging;
#endif
}

static void child(struct unpack_shared *shared, int wake, int archive, const char *path, int staging,
                  const struct archive_limits *limits)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
#if !defined(__SANITIZE_ADDRESS__)
    struct rlimit memory = {1ull << 30, 1ull << 30}; /* limits a malicious dictionary size */
    setrlimit(RLIMIT_AS, &memory);
#endif
    landlock(staging);
    struct waiting waiting = {shared, wake};
    struct archive_input input = {archive, path, wait_bytes, &waiting};
    struct archive_counts counts;
    shared->code = unpack_all(&input, staging, limits, shared, &counts, &shared->err);
    atomic_store(&shared->ended, true);
    _exit(0);
}

int unpack_start(struct unpack *u, int archive, const char *path, const char *staging,
                 const struct archive_limits *limits, struct error *err)
{
    *u = (struct unpack){.wake = -1};
    int loaded = libarchive_load(err); /* here and not in the child of a process that may have threads */
    if (loaded) return loaded;
    int ends[2] = {-1, -1}, directory = open(staging, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    u->shared = mmap(NULL, sizeof *u->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (u->shared == MAP_FAILED) u->shared = NULL;
    if (directory < 0 || !u->shared || pipe2(ends, O_CLOEXEC) != 0) {
        int code = error_errno(err, EXIT_FAILED, NULL, "cannot unpack into %s", staging);
        if (directory >= 0) close(directory);
        if (u->shared) munmap(u->shared, sizeof *u->shared);
        *u = (struct unpack){.wake = -1};
        return code;
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    u->pid = fork();
    if (u->pid == 0) {
        close(ends[1]);
        child(u->shared, ends[0], archive, path, directory, limits);
    }
    int problem = errno;
    close(directory);
    close(ends[0]);
    u->wake = ends[1];
    if (u->pid < 0) {
        u->pid = 0;
        unpack_kill(u);
        errno = problem;
        return error_errno(err, EXIT_FAILED, NULL, "cannot start the unpacking process");
    }
    return 0;
}

void unpack_feed(struct unpack *u, int64_t available, bool last)
{
    if (!u->shared) return;
    atomic_store(&u->shared->available, available);
    if (last) atomic_store(&u->shared->last, true);
    ssize_t ignored = write(u->wake, "", 1); /* a full pipe wakes the child too */
    (void)ignored;
}

void unpack_counts(const struct unpack *u, struct archive_counts *counts)
{
    *counts = (struct archive_counts){0};
    if (u->shared)
        *counts =
            (struct archive_counts){u->shared->in, u->shared->out, u->shared->entries, u->shared->files};
}

bool unpack_ended(struct unpack *u)
{
    siginfo_t info = {0};
    if (!u->pid || atomic_load(&u->shared->ended)) return true;
    return waitid(P_PID, (id_t)u->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == u->pid;
}

int unpack_wait(struct unpack *u, struct error *err)
{
    int status = 0, code;
    while (waitpid(u->pid, &status, 0) < 0 && errno == EINTR)
        ;
    u->pid = 0;
    /* the child exits with 0, or EXIT_HOST_MEMORY if out of memory; libarchive calls exit(1) then */
    bool memory = WIFEXITED(status) && WEXITSTATUS(status) != 0;
    if (!atomic_load(&u->shared->ended) && memory)
        code = error_set(err, EXIT_HOST_MEMORY, "close other programs, then run the same command again",
                         "out of memory in the unpacking process");
    else if (!atomic_load(&u->shared->ended))
        code = error_set(err, EXIT_FAILED, "run the same command again",
                         "the unpacking process ended with %s %d",
                         WIFSIGNALED(status) ? _("signal") : _("status"),
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    else {
        code = u->shared->code;
        if (code && err) *err = u->shared->err;
    }
    unpack_kill(u);
    return code;
}

void unpack_kill(struct unpack *u)
{
    if (u->pid > 0) {
        kill(u->pid, SIGKILL);
        while (waitpid(u->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (u->wake > 0) close(u->wake);
    if (u->shared) munmap(u->shared, sizeof *u->shared);
    *u = (struct unpack){.wake = -1};
}
