/* Failing calls on descriptors and processes, defined under the names of the C library: see shim.h. */
#include "next.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- bytes ---- */

REAL(ssize_t, read, (int fd, void *to, size_t bytes), (fd, to, bytes))
REAL(ssize_t, pread, (int fd, void *to, size_t bytes, off_t at), (fd, to, bytes, at))
REAL(ssize_t, write, (int fd, const void *from, size_t bytes), (fd, from, bytes))
REAL(ssize_t, pwrite, (int fd, const void *from, size_t bytes, off_t at), (fd, from, bytes, at))

/* What of `bytes` this call may move: all, the half, or nothing (-1, errno). */
static ssize_t moved(enum kind kind, size_t bytes, char file[PATH_BYTES])
{
    int failed = fault(kind, file);
    if (failed > 0) {
        errno = failed;
        return -1;
    }
    return (ssize_t)(failed && bytes > 1 ? bytes / 2 : bytes);
}

ssize_t read(int fd, void *to, size_t bytes)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_read(fd, to, bytes);
    ssize_t n = moved(CALL_READ, bytes, file);
    return n < 0 ? n : real_read(fd, to, (size_t)n);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_pread(fd, to, bytes, at);
    ssize_t n = moved(CALL_READ, bytes, file);
    return n < 0 ? n : real_pread(fd, to, (size_t)n, at);
}
ssize_t pread64(int fd, void *to, size_t bytes, off64_t at) { return pread(fd, to, bytes, at); }

/* at < 0: where the descriptor stands */
static ssize_t write_file(int fd, const void *from, size_t bytes, off_t at, const char *file)
{
    if (!logging) return at < 0 ? real_write(fd, from, bytes) : real_pwrite(fd, from, bytes, at);
    log_begin();
    ssize_t n = at < 0 ? real_write(fd, from, bytes) : real_pwrite(fd, from, bytes, at);
    if (n <= 0) {
        log_nothing();
        return n;
    }
    off_t begun = at < 0 ? lseek(fd, 0, SEEK_CUR) - n : at; // O_APPEND: the descriptor stands at the end now
    struct record r = {
        .change = LOG_WRITE, .inode = log_inode(fd), .offset = (uint64_t)begun, .data_bytes = (uint32_t)n};
    log_end(&r, file, NULL, from);
    return n;
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_write(fd, from, bytes);
    ssize_t n = moved(CALL_WRITE, bytes, file);
    return n < 0 ? n : write_file(fd, from, (size_t)n, -1, file);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_pwrite(fd, from, bytes, at);
    ssize_t n = moved(CALL_WRITE, bytes, file);
    return n < 0 ? n : write_file(fd, from, (size_t)n, at, file);
}
ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at) { return pwrite(fd, from, bytes, at); }

/* ---- syncs ---- */

/* A file that is written through a shared mapping: its bytes are in no write; they are taken when it is
 * synced. */
static void log_mapped(int fd, const char *file)
{
    struct statx s;
    if (!S_ISREG((statx(fd, "", AT_EMPTY_PATH, STATX_MODE | STATX_SIZE, &s) == 0 ? s.stx_mode : 0))) return;
    if (!s.stx_size || s.stx_size > 1 << 16) return;
    void *bytes = malloc(s.stx_size);
    ssize_t n = bytes ? real_pread(fd, bytes, s.stx_size, 0) : -1;
    struct record r = {.change = LOG_MAPPED, .inode = log_inode(fd), .data_bytes = n > 0 ? (uint32_t)n : 0};
    if (n > 0) {
        log_begin();
        log_end(&r, file, NULL, bytes);
    }
    free(bytes);
}

static int sync_with(int fd, int (*real)(int fd), enum change change)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real(fd);
    MAY_FAIL(CALL_SYNC, file, -1);
    if (!logging) return unsynced ? 0 : real(fd);
    if (change == LOG_SYNC) log_mapped(fd, file);
    log_begin(); // nothing is really synced: the replay says what that would have kept
    log_end(&(struct record){.change = change, .inode = log_inode(fd)}, file, NULL, NULL);
    return 0;
}
REAL(int, fsync, (int fd), (fd))
REAL(int, fdatasync, (int fd), (fd))
REAL(int, syncfs, (int fd), (fd))
int fsync(int fd) { return sync_with(fd, real_fsync, LOG_SYNC); }
int fdatasync(int fd) { return sync_with(fd, real_fdatasync, LOG_SYNC); }
int syncfs(int fd) { return sync_with(fd, real_syncfs, LOG_SYNCFS); }

/* ---- sizes, modes, locks ---- */

REAL(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
int ftruncate(int fd, off_t bytes)
{
    char file[PATH_BYTES];
    if (!descriptor_met(fd, file)) return real_ftruncate(fd, bytes);
    MAY_FAIL(CALL_TRUNCATE, file, -1);
    if (!logging) return real_ftruncate(fd, bytes);
    log_begin();
    int code = real_ftruncate(fd, bytes);
    struct record r = {.change = LOG_TRUNCATE, .inode = log_inode(fd), .offset = (uint64_t)bytes};
    if (code == 0) log_end(&r, file, NULL, NULL);
    else log_nothing();
    return code;
}
int ftruncate64(int fd, off64_t bytes) { return ftruncate(fd, bytes); }

REAL(int, posix_fallocate, (int fd, off_t at, off_t bytes), (fd, at, bytes))
int posix_fallocate(int fd, off_t at, off_t bytes)
{
    char file[PATH_BYTES];
    int failed = descriptor_met(fd, file) ? fault(CALL_ALLOCATE, file) : 0;
    return failed ? (failed > 0 ? failed : EIO) : real_posix_fallocate(fd, at, bytes);
}

REAL(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    char file[PATH_BYTES];
    if (descriptor_met(fd, file)) MAY_FAIL(CALL_ALLOCATE, file, -1);
    return real_fallocate(fd, mode, at, bytes);
}

REAL(int, fchmod, (int fd, mode_t mode), (fd, mode))
int fchmod(int fd, mode_t mode)
{
    char file[PATH_BYTES];
    if (descriptor_met(fd, file)) MAY_FAIL(CALL_CHMOD, file, -1);
    return real_fchmod(fd, mode);
}

REAL(int, flock, (int fd, int operation), (fd, operation))
int flock(int fd, int operation)
{
    char file[PATH_BYTES];
    if (descriptor_met(fd, file)) MAY_FAIL(CALL_LOCK, file, -1);
    struct statx s;
    if (on_nfs && statx(fd, "", AT_EMPTY_PATH, STATX_MODE, &s) == 0) {
        if (S_ISDIR(s.stx_mode)) return 0;
        if ((operation & LOCK_EX) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
            errno = EBADF;
            return -1;
        }
    }
    return real_flock(fd, operation);
}

REAL(int, close, (int fd), (fd))
int close(int fd)
{
    char file[PATH_BYTES];
    int failed = descriptor_met(fd, file) ? fault(CALL_CLOSE, file) : 0;
    int code = real_close(fd); // Linux closes it whatever the answer is
    if (!failed) return code;
    errno = failed > 0 ? failed : EIO;
    return -1;
}

static void *map(void *to, size_t bytes, int protection, int flags, int fd, off_t at, const void *caller)
{
    char file[PATH_BYTES];
    if (fd < 0 && memory_fails(caller)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    bool met = fd >= 0 && descriptor_met(fd, file);
    if (met) MAY_FAIL(CALL_MMAP, file, MAP_FAILED);
    // by the system call: the loader maps before there is a next mmap to ask for
    void *p = (void *)syscall(SYS_mmap, to, bytes, protection, flags, fd, at);
    if (met && p != MAP_FAILED) partition_mapped(file);
    return p;
}
void *mmap(void *to, size_t bytes, int protection, int flags, int fd, off_t at)
{
    return map(to, bytes, protection, flags, fd, at, CALLER);
}
void *mmap64(void *to, size_t bytes, int protection, int flags, int fd, off64_t at)
{
    return map(to, bytes, protection, flags, fd, at, CALLER);
}

/* ---- processes, threads, pipes ---- */

REAL(pid_t, fork, (void), ())
pid_t fork(void)
{
    MAY_FAIL(CALL_SPAWN, "fork", -1);
    return real_fork();
}

REAL(int, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *attributes, char *const *argv, char *const *environment),
     (pid, path, actions, attributes, argv, environment))
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const *argv, char *const *environment)
{
    int failed = fault(CALL_SPAWN, path);
    return failed ? (failed > 0 ? failed : EAGAIN)
                  : real_posix_spawn(pid, path, actions, attributes, argv, environment);
}

REAL(int, pipe2, (int ends[2], int flags), (ends, flags))
int pipe2(int ends[2], int flags)
{
    MAY_FAIL(CALL_PIPE, "pipe", -1);
    return real_pipe2(ends, flags);
}

REAL(int, socketpair, (int domain, int type, int protocol, int ends[2]), (domain, type, protocol, ends))
int socketpair(int domain, int type, int protocol, int ends[2])
{
    MAY_FAIL(CALL_PIPE, "socketpair", -1);
    return real_socketpair(domain, type, protocol, ends);
}

REAL(int, memfd_create, (const char *name, unsigned flags), (name, flags))
int memfd_create(const char *name, unsigned flags)
{
    MAY_FAIL(CALL_PIPE, "memfd_create", -1);
    return real_memfd_create(name, flags);
}

REAL(int, accept4, (int fd, struct sockaddr *to, socklen_t *bytes, int flags), (fd, to, bytes, flags))
int accept4(int fd, struct sockaddr *to, socklen_t *bytes, int flags)
{
    MAY_FAIL(CALL_ACCEPT, "accept", -1);
    return real_accept4(fd, to, bytes, flags);
}
int accept(int fd, struct sockaddr *to, socklen_t *bytes) { return accept4(fd, to, bytes, 0); }
