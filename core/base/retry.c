/* See retry.h. */
#include "core/base/retry.h"

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

static bool again(int *times) { return errno == EINTR && ++*times < RETRY_TIMES; }

ssize_t retry_read(int fd, void *to, size_t bytes, int64_t offset)
{
    ssize_t n;
    int times = 0;
    do n = offset < 0 ? read(fd, to, bytes) : pread(fd, to, bytes, (off_t)offset);
    while (n < 0 && again(&times));
    return n;
}

ssize_t retry_write(int fd, const void *from, size_t bytes, int64_t offset)
{
    ssize_t n;
    int times = 0;
    do n = offset < 0 ? write(fd, from, bytes) : pwrite(fd, from, bytes, (off_t)offset);
    while (n < 0 && again(&times));
    return n;
}

int retry_sync(int (*sync)(int fd), int fd)
{
    int failed, times = 0;
    do failed = sync(fd);
    while (failed && again(&times));
    return failed;
}

int retry_truncate(int fd, int64_t bytes)
{
    int failed, times = 0;
    do failed = ftruncate(fd, (off_t)bytes);
    while (failed && again(&times));
    return failed;
}
