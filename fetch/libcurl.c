/* The functions of libcurl: see libcurl.h. */
#include "fetch/libcurl.h"
#include "core/base/library.h"

struct libcurl libcurl;

int libcurl_load(struct error *err)
{
#define NAME(field, function) #function,
    static const char *const names[] = {LIBCURL_FUNCTIONS(NAME) NULL};
#undef NAME
    return library_load_functions(LIBRARY_CURL, names, &libcurl_linked, &libcurl, err);
}
