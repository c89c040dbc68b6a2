/* The functions of libcrypto: see libcrypto.h. */
#include "fetch/libcrypto.h"
#include "core/base/library.h"

struct libcrypto libcrypto;

int libcrypto_load(struct error *err)
{
#define NAME(field, function) #function,
    static const char *const names[] = {LIBCRYPTO_FUNCTIONS(NAME) NULL};
#undef NAME
    return library_load_functions(LIBRARY_CRYPTO, names, &libcrypto_linked, &libcrypto, err);
}
