/* Requests over HTTP, as download.c and hub_http.c make them: common options, response headers, and which
 * failures to retry. */
#ifndef MEOPT_FETCH_HTTP_H
#define MEOPT_FETCH_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_PAUSE_MOST = 600 }; /* seconds of Retry-After that are respected */

struct http_headers {
    int status;     /* of the last response; 0 before any */
    int64_t length; /* Content-Length; -1 none */
    int64_t start, end,
        total; /* Content-Range "bytes start-end/total", end inclusive; -1 unknown. 416 has total alone */
    bool has_range, bad_range; /* Content-Range is present; it is invalid */
    int64_t retry_after;       /* seconds, of Retry-After or RateLimit; -1: none. libcurl parses dates */
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
/* Returns the hint about a failed request that is not retried. */
const char *http_hint(int status, int code);

/* Returns the pause in seconds before try `number` (from 1): u, in [0,1), times 1, 2, 4, ... at most 60. */
double http_backoff(int number, double u);

/* Random number in [0,1). */
double http_random(void);

/* Sets the address and what all requests have: TLS 1.2 or newer, the certificates that the environment names.
 * easy: a CURL. */
void http_prepare(void *easy, const char *url);
/* Allows HTTPS to a CURL handle, and HTTP with `plain`; with `plain_redirects`, redirects to HTTP. */
void http_protocols(void *curl, bool plain, bool plain_redirects);
/* Makes a list of header lines with a secret, which are separated by newlines, for a request to `url`. Over
 * http:// that is this machine: no proxy may read them. */
struct curl_slist *http_authorize(void *easy, const char *url, const char *lines);

#endif
