/* libcurl, loaded on first use: most commands need none of the libraries that are loaded with it (32 on
 * Debian 12). Programs that it is linked into call it directly (linked.c). */
#ifndef MEOPT_FETCH_LIBCURL_H
#define MEOPT_FETCH_LIBCURL_H

#include "core/base/error.h"

#include <curl/curl.h>

/* X(field, function) */
#define LIBCURL_FUNCTIONS(X)                                                                                 \
    X(global_init, curl_global_init)                                                                         \
    X(global_cleanup, curl_global_cleanup)                                                                   \
    X(version_info, curl_version_info)                                                                       \
    X(free, curl_free)                                                                                       \
    X(easy_init, curl_easy_init)                                                                             \
    X(easy_reset, curl_easy_reset)                                                                           \
    X(easy_setopt, curl_easy_setopt)                                                                         \
    X(easy_perform, curl_easy_perform)                                                                       \
    X(easy_getinfo, curl_easy_getinfo)                                                                       \
    X(easy_strerror, curl_easy_strerror)                                                                     \
    X(easy_cleanup, curl_easy_cleanup)                                                                       \
    X(multi_init, curl_multi_init)                                                                           \
    X(multi_setopt, curl_multi_setopt)                                                                       \
    X(multi_add_handle, curl_multi_add_handle)                                                               \
    X(multi_perform, curl_multi_perform)                                                                     \
    X(multi_poll, curl_multi_poll)                                                                           \
    X(multi_info_read, curl_multi_info_read)                                                                 \
    X(multi_remove_handle, curl_multi_remove_handle)                                                         \
    X(multi_cleanup, curl_multi_cleanup)                                                                     \
    X(slist_append, curl_slist_append)                                                                       \
    X(slist_free_all, curl_slist_free_all)                                                                   \
    X(url, curl_url)                                                                                         \
    X(url_set, curl_url_set)                                                                                 \
    X(url_get, curl_url_get)                                                                                 \
    X(url_cleanup, curl_url_cleanup)

struct libcurl {
#define LIBCURL_FIELD(field, function) __typeof__(function) *field;
    LIBCURL_FUNCTIONS(LIBCURL_FIELD)
#undef LIBCURL_FIELD
};

/* Fills `libcurl`, whose functions cannot be called before. Returns 0 or EXIT_FAILED. */
int libcurl_load(struct error *err);
extern struct libcurl libcurl;

/* NULL in programs that libcurl is not linked into. */
extern const struct libcurl libcurl_linked __attribute__((weak));

#endif
