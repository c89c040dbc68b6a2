/* Linux features since 3.15 for which glibc 2.17 has no functions, with fallbacks for older kernels (CentOS
 * 7: 3.10), which return ENOSYS. */
#ifndef MEOPT_BASE_PLATFORM_H
#define MEOPT_BASE_PLATFORM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Creates an unnamed file in memory, else in /dev/shm or /tmp: a descriptor, or -1 with errno. It is closed
 * on exec. */
int memory_file(const char *name);
/* Reads random bytes from the kernel: 0, or -1 with errno. */
int random_bytes(void *p, size_t bytes);
/* rename_new renames to a name that must not exist; rename_exchange swaps two names. -1 with errno: ENOSYS or
 * EINVAL if kernel or file system cannot guarantee that. */
int rename_new(const char *from, const char *to);
int rename_exchange(const char *from, const char *to);
/* Opens a descriptor of a process, which stays valid for that process when its number is reused; -1 with
 * errno. */
int process_open(int pid);
int process_signal(int descriptor, int signal);
/* Locks one byte of a file until the open file is closed. Before Linux 3.15 the lock ends with the process,
 * and locks of one process do not exclude each other. -1 with errno: EAGAIN or EACCES if another holder has
 * it. */
int byte_lock(int descriptor, int64_t at);
bool byte_is_free(int descriptor, int64_t at); /* false if unknown */
/* Raises the soft limit of descriptors towards `count`, at most to the hard limit. Returns the limit. */
int descriptors_allow(int count);
/* Closes this and all higher descriptors. */
void close_from(int descriptor);
/* Starts a thread with all signals blocked: signals are for the program's own threads. 0, or an error
 * number. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *context);

#endif
