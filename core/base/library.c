/* See library.h. */
#include "core/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *library_open(const char *const *names, const char *variable, char *path, size_t size)
{
    const char *own = variable ? getenv(variable) : NULL;
    if (own && *own) {
        snprintf(path, size, "%s", own);
        return dlopen(own, RTLD_NOW | RTLD_LOCAL);
    }
    for (int i = 0; names[i]; i++) {
        void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        snprintf(path, size, "%s", names[i]);
        if (handle) return handle;
    }
    return NULL;
}
