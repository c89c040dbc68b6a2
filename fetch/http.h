/* What a server said: response headers, and which answers are worth another try.
 * Pure functions; download.c drives. */
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
    bool has_range, bad_range; /* there was a Content-Range; it cannot be understood */
    int64_t retry_after;       /* seconds; -1 none. A date is left to libcurl */
    char etag[512], modified[64];
};

/* One header line as libcurl gives it, with or without CR LF. A status line begins anew (redirects, 100). */
void http_header(struct http_headers *h, const char *line, size_t bytes);

/* What If-Range may carry: a strong ETag, else Last-Modified, else "". */
const char *http_validator(const struct http_headers *h);

bool http_status_retry(int status);
/* CURLcode. */
bool http_curl_retry(int code);
/* No server answered at all. */
bool http_curl_unreached(int code);

/* Seconds before try `number` (from 1): 1 doubling to 60, a random part of it; u in [0,1). */
double http_backoff(int number, double u);

#endif
