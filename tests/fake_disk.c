/* For LD_PRELOAD: a file system that is slow, or loses a file. SLOW_SYNC_MS: every fsync takes so much
 * longer, of a path with SLOW_SYNC in it where that is set; SLOW_OPEN_MS: every open of a path that ends in
 * SLOW_OPEN; SLOW_WRITE_MS: every write to one that ends in SLOW_WRITE. CUT_MAP: a file whose path ends so is
 * cut off as soon as it is mapped. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void slow(const char *name)
{
    const char *text = getenv(name);
    long ms = text ? strtol(text, NULL, 10) : 0;
    struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&rest, &rest) != 0) /* through signals, as a file system is */
        ;
}

static int ends_in(const char *path, const char *name)
{
    const char *end = getenv(name);
    size_t n = strlen(path), m = end ? strlen(end) : 0;
    return end && n >= m && strcmp(path + n - m, end) == 0;
}

static int path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, size - 1);
    path[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* Whether the path of an open file, which is told, ends in what the variable says. */
static int is_of(int fd, const char *name, char *path, size_t size)
{
    return getenv(name) && path_of(fd, path, size) && ends_in(path, name);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    ssize_t (*next)(int, const void *, size_t) =
        (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    char path[4096];
    if (is_of(fd, "SLOW_WRITE", path, sizeof path)) slow("SLOW_WRITE_MS");
    return next(fd, data, bytes);
}

int fsync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    const char *part = getenv("SLOW_SYNC");
    char path[4096];
    if (!part || (path_of(fd, path, sizeof path) && strstr(path, part))) slow("SLOW_SYNC_MS");
    return next(fd);
}

/* By the system call: the loader maps before there is a next mmap to ask for. */
static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *p = (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset); /* sets errno */
    char path[4096];
    if (p != MAP_FAILED && fd >= 0 && is_of(fd, "CUT_MAP", path, sizeof path) && truncate(path, 0) != 0)
        _exit(99);
    return p;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}

static int open_with(const char *symbol, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, symbol);
    if (ends_in(path, "SLOW_OPEN")) slow("SLOW_OPEN_MS");
    return next(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_with("open", path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_with("open64", path, flags, mode);
}
