/* Parses response headers and decides which failures to retry. Pure functions, used by download.c. */
#ifndef MEOPT_FETCH_HTTP_H
#define MEOPT_FETCH_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_headers {
    int status;     /* of the last response; 0 before any */
    int64_t length; /* Content-Length; -1 none */
    int64_t start, end,
        total; /* Content-Range "bytes start-end/total", end inclusive; -1 unknown. 416 has total alone */
    bool has_range, bad_range; /* Content-Range is present; it is invalid */
    int64_t retry_after;       /* seconds; -1: none. libcurl parses dates */
    char etag[512], modified[64];
};

/* Parses one header line, with or without CR LF. A status line resets all fields (redirects, 100). */
void http_header(struct http_headers *h, const char *line, size_t bytes);

/* Returns the value for If-Range: a strong ETag, or Last-Modified, or "". */
const char *http_validator(const struct http_headers *h);

/* Return whether a request that ended with this status or CURLcode should be retried. */
bool http_status_retry(int status);
bool http_curl_retry(int code);
/* Returns whether no server answered. */
bool http_curl_unreached(int code);

/* Returns the pause in seconds before try `number` (from 1): u, in [0,1), times 1, 2, 4, ... at most 60. */
double http_backoff(int number, double u);

/* Makes a list of header lines, which are separated by newlines. */
struct curl_slist *http_lines(const char *lines);

#endif
