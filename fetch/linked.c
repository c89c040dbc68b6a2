/* The functions of libcurl, libarchive and libcrypto for programs that these are in (static_link.sh). Linked
 * as libmeopt_linked.so, which nothing loads, this file says to packagers which libraries meopt loads. */
#include "fetch/libarchive.h"
#include "fetch/libcrypto.h"
#include "fetch/libcurl.h"

#define LINKED(field, function) .field = (function),
const struct libcurl libcurl_linked = {LIBCURL_FUNCTIONS(LINKED)};
const struct libarchive libarchive_linked = {LIBARCHIVE_FUNCTIONS(LINKED)};
const struct libcrypto libcrypto_linked = {LIBCRYPTO_FUNCTIONS(LINKED)};
