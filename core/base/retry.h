/* Calls on a file that are repeated when a signal interrupts them (EINTR), as on network file systems and
 * FUSE. After RETRY_TIMES interruptions in a row the call fails with EINTR. */
#ifndef MEOPT_BASE_RETRY_H
#define MEOPT_BASE_RETRY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RETRY_TIMES = 10000 };

/* Reads or writes at `offset`, or at the descriptor's position (-1). Like pread and pwrite, may transfer
 * fewer bytes. */
ssize_t retry_read(int fd, void *to, size_t bytes, int64_t offset);
ssize_t retry_write(int fd, const void *from, size_t bytes, int64_t offset);

/* sync: fsync, fdatasync or syncfs. */
int retry_sync(int (*sync)(int fd), int fd);
int retry_truncate(int fd, int64_t bytes);

#endif
