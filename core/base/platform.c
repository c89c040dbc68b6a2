/* See platform.h. */
#include "core/base/platform.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __GLIBC_PREREQ(2, 25)
#include <sys/random.h>
#endif

/* Calls the function of glibc if there is one, else the system call by number; fails if neither exists. */
static int new_memory_file(const char *name, unsigned flags)
{
#if __GLIBC_PREREQ(2, 27)
    return memfd_create(name, flags);
#elif defined(SYS_memfd_create)
    return (int)syscall(SYS_memfd_create, name, flags);
#else
    (void)name, (void)flags;
    errno = ENOSYS;
    return -1;
#endif
}
static ssize_t kernel_random(void *p, size_t bytes)
{
#if __GLIBC_PREREQ(2, 25)
    return getrandom(p, bytes, 0);
#elif defined(SYS_getrandom)
    return syscall(SYS_getrandom, p, bytes, 0);
#else
    (void)p, (void)bytes;
    errno = ENOSYS;
    return -1;
#endif
}
static int rename_as(const char *from, const char *to, unsigned flags)
{
#if __GLIBC_PREREQ(2, 28)
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
#elif defined(SYS_renameat2)
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
#else
    (void)from, (void)to, (void)flags;
    errno = ENOSYS;
    return -1;
#endif
}

int memory_file(const char *name)
{
    enum { CLOSE_ON_EXEC = 1 };
    static const char *const places[] = {"/dev/shm", "/tmp"};
    int fd = new_memory_file(name, CLOSE_ON_EXEC);
    if (fd >= 0 || errno != ENOSYS) return fd;
    for (int i = 0; i < 2 && fd < 0; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%.30s-XXXXXX", places[i], name);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) unlink(path);
    }
    return fd;
}

int random_bytes(void *p, size_t bytes)
{
    char *to = p;
    for (size_t at = 0; at < bytes;) {
        ssize_t n = kernel_random(to + at, bytes - at);
        if (n < 0 && errno == ENOSYS) break;
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) at += (size_t)n;
        if (at == bytes) return 0;
    }
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool whole = fd >= 0 && read(fd, p, bytes) == (ssize_t)bytes;
    if (fd >= 0) close(fd);
    return whole ? 0 : -1;
}

enum { NO_REPLACE = 1, EXCHANGE = 2 };
int rename_new(const char *from, const char *to) { return rename_as(from, to, NO_REPLACE); }
int rename_exchange(const char *from, const char *to) { return rename_as(from, to, EXCHANGE); }

int process_open(int pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    errno = ENOSYS;
    return -1;
#endif
}
int process_signal(int descriptor, int signal)
{
#ifdef SYS_pidfd_send_signal
    return (int)syscall(SYS_pidfd_send_signal, descriptor, signal, NULL, 0);
#else
    (void)descriptor, (void)signal;
    errno = ENOSYS;
    return -1;
#endif
}

#ifndef F_OFD_GETLK /* glibc 2.20 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif
static int lock_byte(int descriptor, int of_file, int of_process, struct flock *lock)
{
    int code = fcntl(descriptor, of_file, lock);
    return code != 0 && errno == EINVAL ? fcntl(descriptor, of_process, lock) : code;
}
int byte_lock(int descriptor, int64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return lock_byte(descriptor, F_OFD_SETLK, F_SETLK, &lock);
}
bool byte_is_free(int descriptor, int64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return lock_byte(descriptor, F_OFD_GETLK, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void close_from(int descriptor)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)descriptor, ~0u, 0) == 0) return;
#endif
    DIR *dir = opendir("/proc/self/fd");
    int own = dir ? dirfd(dir) : -1;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] != '.' && fd >= descriptor && fd != own) close(fd);
    }
    if (dir) closedir(dir);
}

int thread_start(pthread_t *thread, void *(*run)(void *), void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

int descriptors_allow(int count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return count;
    if (limit.rlim_cur < (rlim_t)count && limit.rlim_cur < limit.rlim_max) {
        rlim_t wanted = (rlim_t)count < limit.rlim_max ? (rlim_t)count : limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){wanted, limit.rlim_max}) == 0) limit.rlim_cur = wanted;
    }
    return limit.rlim_cur > INT_MAX ? INT_MAX : (int)limit.rlim_cur;
}
