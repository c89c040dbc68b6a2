/* Shared by the files that replace calls of the C library. */
#ifndef MEOPT_TESTS_FAULT_NEXT_H
#define MEOPT_TESTS_FAULT_NEXT_H

#include "shim.h"

#include <dlfcn.h>
#include <errno.h>

static inline void *next_definition(const char *name, void **kept)
{
    if (!*kept) *kept = dlsym(RTLD_NEXT, name);
    return *kept;
}

/* Defines real_NAME, which is the C library's NAME. */
#define REAL(type, name, parameters, arguments)                                                              \
    static type real_##name parameters                                                                       \
    {                                                                                                        \
        static void *kept;                                                                                   \
        return ((type(*) parameters)(uintptr_t)next_definition(#name, &kept))arguments;                      \
    }

/* Leaves the function with `value` and errno where this call's turn has come. */
#define MAY_FAIL(kind, file, value)                                                                          \
    do {                                                                                                     \
        int fault_ = fault(kind, file);                                                                      \
        if (fault_) {                                                                                        \
            errno = fault_ > 0 ? fault_ : EIO;                                                               \
            return value;                                                                                    \
        }                                                                                                    \
    } while (0)

#endif
