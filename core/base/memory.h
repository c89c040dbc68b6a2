/* Memory for small objects. */
#ifndef MEOPT_BASE_MEMORY_H
#define MEOPT_BASE_MEMORY_H

#include <stddef.h>

/* strdup, malloc, calloc and realloc that end the process with a message when memory is exhausted. They are
 * for small objects only (names, tables). Sizes that depend on data or models use device_alloc or a checked
 * malloc. */
char *xstrdup(const char *text);
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t bytes);
void *xrealloc(void *p, size_t bytes);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Sets a function that runs before that message, from any thread, for example to restore the terminal. NULL:
 * none. */
void memory_out_calls(void (*last)(void));

/* Requests large pages for the large pages that lie inside the block: for arrays of many megabytes that are
 * read sequentially. */
void memory_large_pages(void *p, size_t bytes);

#endif
