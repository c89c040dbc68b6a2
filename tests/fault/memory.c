/* Allocations that fail: of the program itself and of the libraries whose failing it must bear. libc, the
 * loader, OpenMP and oneDNN are let alone: what they do then is theirs. */
#include "next.h"

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

enum { RANGES = 32 };
static struct {
    uintptr_t from, to;
} ranges[RANGES];
static int range_count;

static int add(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    static const char *const libraries[] = {"libjansson", "libyaml", "libarchive", "libjpeg", "libpng"};
    bool ours = !info->dlpi_name || !*info->dlpi_name; // the program
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !ours; i++)
        ours = strstr(info->dlpi_name, libraries[i]) != NULL;
    for (int i = 0; ours && i < info->dlpi_phnum && range_count < RANGES; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            ranges[range_count].from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ranges[range_count].to = ranges[range_count].from + info->dlpi_phdr[i].p_memsz;
            range_count++;
        }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    if (getenv("FAULT_SHARED")) dl_iterate_phdr(add, NULL);
}

bool memory_fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < range_count; i++)
        if (at >= ranges[i].from && at < ranges[i].to) return fault(CALL_MALLOC, "memory") != 0;
    return false;
}

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
    uintptr_t at = (uintptr_t)CALLER;
    for (int i = 0; i < range_count; i++)
        if (at >= ranges[i].from && at < ranges[i].to && fault(CALL_THREAD, "thread") != 0) return EAGAIN;
    return ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(
        uintptr_t)next_definition("pthread_create", &kept))(thread, attributes, start, context);
}
