/* For LD_PRELOAD: a file system that is slow. SLOW_SYNC_MS: every fsync takes so much longer; SLOW_OPEN_MS:
 * every open of a path that ends in SLOW_OPEN. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
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

int fsync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    slow("SLOW_SYNC_MS");
    return next(fd);
}

static int open_with(const char *symbol, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, symbol);
    const char *end = getenv("SLOW_OPEN");
    size_t n = strlen(path), m = end ? strlen(end) : 0;
    if (end && n >= m && strcmp(path + n - m, end) == 0) slow("SLOW_OPEN_MS");
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
