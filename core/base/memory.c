/* Memory for small objects: see memory.h. */
#include "core/base/error.h"
#include "core/base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void (*leave)(void);

void memory_out_calls(void (*last)(void)) { leave = last; }

static void *or_die(void *p)
{
    if (p) return p;
    if (leave) leave();
    static const char text[] = "meopt: out of memory\n";
    ssize_t ignored = write(2, text, sizeof text - 1);
    (void)ignored;
    _exit(EXIT_HOST_MEMORY);
}

void memory_large_pages(void *p, size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    uintptr_t from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + bytes) & ~(page - 1);
    if (p && from < to) madvise((void *)from, to - from, MADV_HUGEPAGE); /* advice to the kernel */
}

void *xmalloc(size_t bytes) { return or_die(malloc(bytes ? bytes : 1)); }
void *xcalloc(size_t count, size_t bytes) { return or_die(calloc(count ? count : 1, bytes ? bytes : 1)); }
void *xrealloc(void *p, size_t bytes) { return or_die(realloc(p, bytes ? bytes : 1)); }
char *xstrdup(const char *text) { return or_die(strdup(text)); }

char *xasprintf(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = xmalloc((size_t)(n < 0 ? 0 : n) + 1);
    text[0] = 0;
    if (n >= 0) vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}
