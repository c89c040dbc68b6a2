/* The functions of libarchive: see libarchive.h. */
#include "fetch/libarchive.h"
#include "core/base/library.h"

struct libarchive libarchive;

int libarchive_load(struct error *err)
{
#define NAME(field, function) #function,
    static const char *const names[] = {LIBARCHIVE_FUNCTIONS(NAME) NULL};
#undef NAME
    return library_load_functions(LIBRARY_ARCHIVE, names, &libarchive_linked, &libarchive, err);
}
