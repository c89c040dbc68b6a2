/* Response headers: see http.h. RFC 9110 sections 8.8.3 (ETag), 13.1.5 (If-Range), 14.4 (Content-Range),
 * 10.2.3 (Retry-After). */
#include "fetch/http.h"

#include "core/base/translate.h"
#include "core/base/memory.h"
#include "core/base/platform.h"
#include "fetch/libcurl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parses digits at *p up to `end`. Returns false without a digit or with more than 18. */
static bool number(const char **p, const char *end, int64_t *out)
{
    int64_t v = 0;
    const char *begin = *p;
    while (*p < end && isdigit((unsigned char)**p)) {
        if (*p - begin >= 18) return false;
        v = v * 10 + (*(*p)++ - '0');
    }
    *out = v;
    return *p > begin;
}

static void content_range(struct http_headers *h, const char *p, const char *end)
{
    h->has_range = true;
    h->bad_range = true;
    if (end - p < 6 || strncasecmp(p, "bytes", 5) != 0 || (p[5] != ' ' && p[5] != '\t')) return;
    for (p += 5; p < end && (*p == ' ' || *p == '\t'); p++)
        ;
    int64_t start = -1, last = -1, total = -1;
    if (p < end && *p == '*') {
        p++;
    } else {
        if (!number(&p, end, &start) || p >= end || *p++ != '-' || !number(&p, end, &last) || last < start)
            return;
    }
    if (p >= end || *p++ != '/') return;
    if (p < end && *p == '*') p++;
    else if (!number(&p, end, &total)) return;
    if (p != end || (total >= 0 && last >= total)) return;
    h->start = start;
    h->end = last;
    h->total = total;
    h->bad_range = false;
}

void http_header(struct http_headers *h, const char *line, size_t bytes)
{
    while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r' || line[bytes - 1] == ' ')) bytes--;
    const char *end = line + bytes;
    if (bytes >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        *h = (struct http_headers){.length = -1, .start = -1, .end = -1, .total = -1, .retry_after = -1};
        const char *p = memchr(line, ' ', bytes);
        int64_t status = 0;
        while (p && p < end && *p == ' ') p++;
        if (p && number(&p, end, &status) && status < 1000) h->status = (int)status;
        return;
    }
    const char *colon = memchr(line, ':', bytes);
    if (!colon) return;
    size_t name = (size_t)(colon - line);
    const char *value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    size_t value_bytes = (size_t)(end - value);
#define IS(text) (name == sizeof text - 1 && strncasecmp(line, text, name) == 0)
    if (IS("content-length")) {
        const char *p = value;
        int64_t v;
        h->length = number(&p, end, &v) && p == end ? v : -1;
    } else if (IS("content-range")) {
        content_range(h, value, end);
    } else if (IS("retry-after")) {
        const char *p = value;
        int64_t v;
        h->retry_after = number(&p, end, &v) && p == end ? v : -1;
    } else if (IS("ratelimit") && h->status == 429 && h->retry_after < 0) { /* "api";r=0;t=SECONDS */
        const char *p = memmem(value, value_bytes, ";t=", 3);
        int64_t v;
        if (p && (p += 3, number(&p, end, &v))) h->retry_after = v;
    } else if (IS("etag")) {
        if (value_bytes < sizeof h->etag) snprintf(h->etag, sizeof h->etag, "%.*s", (int)value_bytes, value);
    } else if (IS("last-modified")) {
        if (value_bytes < sizeof h->modified)
            snprintf(h->modified, sizeof h->modified, "%.*s", (int)value_bytes, value);
    }
#undef IS
}

static bool printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || (unsigned char)*text == 0x7f) return false;
    return true;
}

const char *http_validator(const struct http_headers *h)
{
    size_t n = strlen(h->etag);
    if (n >= 2 && h->etag[0] == '"' && h->etag[n - 1] == '"' && printable(h->etag)) return h->etag;
    return printable(h->modified) ? h->modified : "";
}

bool http_status_retry(int status)
{
    static const int retry[] = {408, 429, 500, 502, 503, 504, 522, 524};
    for (size_t i = 0; i < sizeof retry / sizeof retry[0]; i++)
        if (retry[i] == status) return true;
    return false;
}

bool http_curl_retry(int code)
{
    static const int retry[] = {CURLE_COULDNT_RESOLVE_PROXY,
                                CURLE_COULDNT_RESOLVE_HOST,
                                CURLE_COULDNT_CONNECT,
                                CURLE_HTTP2,
                                CURLE_PARTIAL_FILE,
                                CURLE_OPERATION_TIMEDOUT,
                                CURLE_SSL_CONNECT_ERROR,
                                CURLE_GOT_NOTHING,
                                CURLE_SEND_ERROR,
                                CURLE_RECV_ERROR,
                                CURLE_HTTP2_STREAM};
    for (size_t i = 0; i < sizeof retry / sizeof retry[0]; i++)
        if (retry[i] == code) return true;
    return false;
}

bool http_curl_unreached(int code)
{
    return code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_RESOLVE_HOST ||
           code == CURLE_COULDNT_CONNECT;
}

const char *http_hint(int status, int code)
{
    switch (status) {
    case 401:
    case 403: return _("the server requires authorization");
    case 404:
    case 410: return _("the file was removed; use a new address (--from URL)");
    default: break;
    }
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return _("with a TLS-inspecting proxy, set its CA in CURL_CA_BUNDLE; otherwise do not trust this "
                 "connection");
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS: return _("meopt does not follow this redirect");
    default: return _("run the same command again to resume");
    }
}

double http_backoff(int number, double u)
{
    double most = 1;
    for (int i = 1; i < number && most < 60; i++) most *= 2;
    return u * (most < 60 ? most : 60);
}

double http_random(void)
{
    uint32_t r = 0;
    if (random_bytes(&r, sizeof r) != 0) return 0.5;
    return r / 4294967296.0;
}

/* Returns the certificates of this machine's distribution, for a libcurl that was built for another. NULL:
 * libcurl has its own, or there are none. */
static const char *system_certificates(void)
{
#if LIBCURL_VERSION_NUM >= 0x074600
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch */
                                         "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, Rocky, CentOS */
                                         "/etc/ssl/ca-bundle.pem",             /* openSUSE */
                                         "/etc/ssl/cert.pem"};
    const curl_version_info_data *own = libcurl.version_info(CURLVERSION_NOW);
    bool has_file = own->cainfo && access(own->cainfo, R_OK) == 0,
         has_directory = own->capath && access(own->capath, R_OK) == 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !has_file && !has_directory; i++)
        if (access(places[i], R_OK) == 0) return places[i];
#endif
    return NULL;
}

void http_prepare(void *easy, const char *url)
{
    /* curl(1) and, since repositories of hubs are fetched, Python's requests */
    static const char *const variables[] = {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"};
    const char *bundle = NULL, *directory = getenv("SSL_CERT_DIR");
    struct stat st;
    libcurl.easy_setopt(easy, CURLOPT_URL, url);
    libcurl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    libcurl.easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    libcurl.easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    libcurl.easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    libcurl.easy_setopt(easy, CURLOPT_USERAGENT, "meopt");
    libcurl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 20L);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0] && !(bundle && *bundle); i++)
        bundle = getenv(variables[i]);
    if (bundle && *bundle && stat(bundle, &st) == 0 && S_ISDIR(st.st_mode)) directory = bundle, bundle = NULL;
    if (bundle && *bundle) libcurl.easy_setopt(easy, CURLOPT_CAINFO, bundle);
    if (directory && *directory) libcurl.easy_setopt(easy, CURLOPT_CAPATH, directory);
    if (!(bundle && *bundle) && !(directory && *directory) && (bundle = system_certificates()))
        libcurl.easy_setopt(easy, CURLOPT_CAINFO, bundle);
}

void http_protocols(void *curl, bool plain, bool plain_redirects)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    libcurl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, plain ? "http,https" : "https");
    libcurl.easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, plain_redirects ? "http,https" : "https");
#else
    const long both = CURLPROTO_HTTP | CURLPROTO_HTTPS, one = CURLPROTO_HTTPS;
    libcurl.easy_setopt(curl, CURLOPT_PROTOCOLS, plain ? both : one);
    libcurl.easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS, plain_redirects ? both : one);
#endif
}

struct curl_slist *http_authorize(void *easy, const char *url, const char *lines)
{
    struct curl_slist *list = NULL;
    if (strncasecmp(url, "http://", 7) == 0) libcurl.easy_setopt(easy, CURLOPT_PROXY, "");
    for (const char *p = lines; *p;) {
        size_t n = strcspn(p, "\n");
        char *line = xasprintf("%.*s", (int)n, p);
        list = libcurl.slist_append(list, line);
        free(line);
        p += n + (p[n] != 0);
    }
    return list;
}
