/* Libraries that may be there or not. */
#ifndef MEOPT_BASE_LIBRARY_H
#define MEOPT_BASE_LIBRARY_H

#include <stddef.h>

/* dlopen the first of `names` (ends with NULL) that loads; $variable before them. path: which. */
void *library_open(const char *const *names, const char *variable, char *path, size_t size);

#endif
