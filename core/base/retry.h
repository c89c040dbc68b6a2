/* Calls on a file that a signal may interrupt, which happens on a network's or a process's file system:
 * each is made again. One that is interrupted each time would never end: after RETRY_TIMES in a row it has
 * failed, with EINTR. */
#ifndef MEOPT_BASE_RETRY_H
#define MEOPT_BASE_RETRY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RETRY_TIMES = 10000 };

/* At `offset`, or where the descriptor stands (-1). As pread and pwrite answer: maybe less than was asked. */
ssize_t retry_read(int fd, void *to, size_t bytes, int64_t offset);
ssize_t retry_write(int fd, const void *from, size_t bytes, int64_t offset);

/* sync: fsync, fdatasync or syncfs. */
int retry_sync(int (*sync)(int fd), int fd);
int retry_truncate(int fd, int64_t bytes);

#endif
