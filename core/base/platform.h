/* What Linux has had since 3.15 and glibc 2.17 has no functions for; and what is done on older kernels
 * (CentOS 7: 3.10), which say ENOSYS. */
#ifndef MEOPT_BASE_PLATFORM_H
#define MEOPT_BASE_PLATFORM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file of memory without a name, at least in directories: a descriptor, or -1 with errno. Else in /dev/shm,
 * or /tmp. It is closed in children that run another program. */
int memory_file(const char *name);
/* From the kernel: 0, or -1 with errno. */
int random_bytes(void *p, size_t bytes);
/* rename to a name that must not be there; or in exchange with what is there. -1 with errno: ENOSYS or EINVAL
 * where kernel or file system cannot promise that. */
int rename_new(const char *from, const char *to);
int rename_exchange(const char *from, const char *to);
/* A descriptor of a process, which stays that one's when its number is used again; -1 with errno. */
int process_open(int pid);
int process_signal(int descriptor, int signal);
/* A lock on a byte of a file, which ends with the descriptor's open file; before Linux 3.15 with the process,
 * so that several of one process do not see each other's. -1 with errno: EAGAIN or EACCES where another has
 * it. */
int byte_lock(int descriptor, int64_t at);
bool byte_is_free(int descriptor, int64_t at); /* false where that cannot be known */
/* Raises the soft limit of descriptors towards `count`, as far as the hard one goes; how many there may be.
 */
int descriptors_allow(int count);
/* This and all higher descriptors. */
void close_from(int descriptor);
/* A thread that takes no signals: those are for the threads of the program. 0, or an error number. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *context);

#endif
