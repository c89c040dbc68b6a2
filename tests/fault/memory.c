/* Allocations and threads that fail: libfault_memory.so, preloaded after libfault.so. A library of its own,
 * so that a program with another allocation checker can be tested with disk faults, too. */
#include "next.h"

#include <pthread.h>
#include <stdlib.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes)
{
    if (!memory_fails(CALLER)) return __libc_malloc(bytes);
    errno = ENOMEM;
    return NULL;
}

void *calloc(size_t count, size_t bytes)
{
    if (!memory_fails(CALLER)) return __libc_calloc(count, bytes);
    errno = ENOMEM;
    return NULL;
}

void *realloc(void *p, size_t bytes)
{
    if (!memory_fails(CALLER)) return __libc_realloc(p, bytes);
    errno = ENOMEM;
    return NULL;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (!memory_fails(CALLER)) return __libc_memalign(alignment, bytes);
    errno = ENOMEM;
    return NULL;
}

int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    if (memory_fails(CALLER)) return ENOMEM;
    void *got = __libc_memalign(alignment, bytes);
    if (!got) return ENOMEM;
    *p = got;
    return 0;
}

/* Threads of the program; OpenMP's own are let alone. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context)
{
    static void *kept;
    if (of_the_program(CALLER) && fault(CALL_THREAD, "thread") != 0) return EAGAIN;
    return ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(
        uintptr_t)next_definition("pthread_create", &kept))(thread, attributes, start, context);
}
