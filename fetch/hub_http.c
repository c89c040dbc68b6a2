/* Requests to a hub: see hub.h. A token is sent to the endpoint's scheme, host and port alone: redirects are
 * followed here and not by libcurl, whose versions differ in what they send to another port. */
#include "fetch/hub.h"

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "fetch/http.h"
#include "fetch/libcurl.h"
#include "fetch/sources.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { BODY_MOST = 64 << 20, HOPS = 5, TRIES = 6, PAGES = 5000 };

struct answer {
    struct http_headers headers;
    char error_code[64];
    char *next, *location; /* of the next page, of a redirect */
    char *body;
    size_t bytes;
    const atomic_int *cancel;
    bool too_large;
};

static void answer_free(struct answer *a)
{
    free(a->next);
    free(a->location);
    free(a->body);
}

static size_t on_header(char *data, size_t size, size_t n, void *context)
{
    struct answer *a = context;
    size_t bytes = size * n;
    char *line = xasprintf("%.*s", (int)bytes, data);
    http_header(&a->headers, data, bytes);
    line[strcspn(line, "\r\n")] = 0;
    if (strncasecmp(line, "x-error-code:", 13) == 0)
        snprintf(a->error_code, sizeof a->error_code, "%s", line + 13 + strspn(line + 13, " "));
    char *open = strchr(line, '<'), *close = open ? strchr(open, '>') : NULL;
    if (strncasecmp(line, "link:", 5) == 0 && close && strstr(close, "rel=\"next\"")) {
        free(a->next);
        a->next = xasprintf("%.*s", (int)(close - open - 1), open + 1);
    }
    free(line);
    return bytes;
}

static size_t on_body(char *data, size_t size, size_t n, void *context)
{
    struct answer *a = context;
    size_t bytes = size * n;
    if (bytes > BODY_MOST - a->bytes) return a->too_large = true, 0;
    a->body = xrealloc(a->body, a->bytes + bytes + 1);
    memcpy(a->body + a->bytes, data, bytes);
    a->bytes += bytes;
    a->body[a->bytes] = 0;
    return bytes;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct answer *answer = context;
    (void)a, (void)b, (void)c, (void)d;
    return answer->cancel && *answer->cancel;
}

/* Returns whether both URLs have the same scheme, host and port. */
static bool hub_same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *u = libcurl.url(), *v = libcurl.url();
    bool same =
        u && v && !libcurl.url_set(u, CURLUPART_URL, a, 0) && !libcurl.url_set(v, CURLUPART_URL, b, 0);
    for (int i = 0; i < 3 && same; i++) {
        char *x = NULL, *y = NULL;
        same = !libcurl.url_get(u, parts[i], &x, CURLU_DEFAULT_PORT) &&
               !libcurl.url_get(v, parts[i], &y, CURLU_DEFAULT_PORT) && strcasecmp(x, y) == 0;
        libcurl.free(x);
        libcurl.free(y);
    }
    libcurl.url_cleanup(u);
    libcurl.url_cleanup(v);
    return same;
}

void hub_keep_connections(struct hub *hub)
{
    if (hub->offline || libcurl_load(NULL)) return; /* the first request reports an error */
    hub->easy = libcurl.easy_init();
    hub->multi = libcurl.multi_init();
}

void hub_drop_connections(struct hub *hub)
{
    if (hub->easy) libcurl.easy_cleanup(hub->easy);
    if (hub->multi) libcurl.multi_cleanup(hub->multi);
}

/* Sends one request and follows nothing. Returns the CURLcode. */
static int request_once(const struct hub *hub, const char *url, bool head, struct answer *a)
{
    CURL *c = hub->easy ? hub->easy : libcurl.easy_init();
    if (!c) return CURLE_OUT_OF_MEMORY;
    libcurl.easy_reset(c);
    struct curl_slist *list = NULL;
    *a = (struct answer){.headers = {.length = -1, .start = -1, .end = -1, .total = -1, .retry_after = -1},
                         .cancel = hub->cancel};
    http_prepare(c, url);
    if (hub->authorization && hub_same_origin(url, hub->endpoint))
        list = http_authorize(c, url, hub->authorization);
    http_protocols(c, true, true);
    libcurl.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 100L); /* of a list, or of nothing */
    libcurl.easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);
    libcurl.easy_setopt(c, CURLOPT_NOBODY, head ? 1L : 0L);
    libcurl.easy_setopt(c, CURLOPT_HTTPHEADER, list);
    libcurl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    libcurl.easy_setopt(c, CURLOPT_HEADERDATA, a);
    libcurl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    libcurl.easy_setopt(c, CURLOPT_WRITEDATA, a);
    libcurl.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    libcurl.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    libcurl.easy_setopt(c, CURLOPT_XFERINFODATA, a);
    int rc = (int)libcurl.easy_perform(c);
    char *to = NULL;
    curl_off_t after = 0;
    libcurl.easy_getinfo(c, CURLINFO_REDIRECT_URL, &to);
    if (to) a->location = xstrdup(to);
    if (a->headers.retry_after < 0 && libcurl.easy_getinfo(c, CURLINFO_RETRY_AFTER, &after) == CURLE_OK &&
        after > 0)
        a->headers.retry_after = after; /* a date */
    libcurl.slist_free_all(list);
    if (!hub->easy) libcurl.easy_cleanup(c);
    return rc;
}

/* Reports an answer that is neither a file nor a redirect. */
static int refused(const struct hub_name *name, const char *path, const struct hub *hub,
                   const struct answer *a, struct error *err)
{
    int status = a->headers.status;
    char hint[320], token[120];
    const char *variable = hub_rows[hub->kind].token;
    snprintf(token, sizeof token, hub->authorization ? _("%s has no access") : _("set %s"), variable);
    if (strcmp(a->error_code, "GatedRepo") == 0) {
        snprintf(hint, sizeof hint, _("accept its terms at %.100s/%.120s, and set %s"), hub->endpoint,
                 name->repo, variable);
        return error_set(err, EXIT_NETWORK, hint, "the repository %s is gated", name->repo);
    }
    if (strcmp(a->error_code, "RevisionNotFound") == 0)
        return error_set(err, EXIT_NETWORK, "give a branch, a tag or a commit after @",
                         "the repository %s has no revision '%s'", name->repo, name->revision);
    if (strcmp(a->error_code, "EntryNotFound") == 0 || (status == 404 && *path))
        return error_set(err, EXIT_NETWORK, "run the same command again",
                         "the repository %s has no file '%s'", name->repo, path);
    if (status == 401 || status == 403 || status == 404) {
        snprintf(hint, sizeof hint, _("check the name; if the repository is private: %s"), token);
        return error_set(err, EXIT_NETWORK, hint, "no repository %s, or no access to it (the hub answers %d)",
                         name->repo, status);
    }
    return error_set(err, EXIT_NETWORK, "run the same command again later to resume",
                     "%s: the hub answers %d", name->repo, status);
}

/* Waits until a time of clock_seconds, or until the fetch is cancelled. */
static void wait_until(const struct hub *hub, double end)
{
    while (clock_seconds() < end && !(hub->cancel && *hub->cancel))
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

/* Pauses before the next try: as long as a busy hub asks for, and then for all downloads. */
static void pause_for(const struct hub *hub, int try, int status, int64_t after)
{
    const char *scale = getenv("MEOPT_FETCH_PAUSE_SCALE"); /* for tests */
    double wait = http_backoff(try, http_random()) * (scale ? atof(scale) : 1);
    char text[160];
    if ((status == 429 || status == 503) && after >= 0)
        wait = (double)(after < HTTP_PAUSE_MOST ? after : HTTP_PAUSE_MOST);
    if (status == 429 && hub->shared) connections_pause(hub->shared, clock_seconds() + wait);
    if (wait >= 2 && status && hub->notice) {
        snprintf(text, sizeof text, _("the hub answers %d; trying again in %.0f s"), status, wait);
        hub->notice(hub->context, text);
    }
    wait_until(hub, clock_seconds() + wait);
}

/* Sends a request until it is answered with less than 400. path: of a file of the repository, for errors. */
static int request(const struct hub *hub, const struct hub_name *name, const char *path, const char *url,
                   bool head, struct answer *a, struct error *err)
{
    char shown[300], network[120];
    int loaded = libcurl_load(err);
    if (loaded) return loaded;
    url_printable(shown, sizeof shown, url);
    snprintf(network, sizeof network, _("check the network, https_proxy and %s"),
             hub_rows[hub->kind].endpoint);
    for (int try = 1;; try++) {
        double resume = hub->shared ? connections_resume(hub->shared) : 0;
        if (resume > clock_seconds()) wait_until(hub, resume + http_random()); /* not all at once */
        int rc = request_once(hub, url, head, a), status = a->headers.status;
        if (hub->cancel && *hub->cancel) {
            answer_free(a);
            return error_set(err, EXIT_SIGNAL + SIGINT, "run the same command again to resume", "stopped");
        }
        if (rc == CURLE_OK && status >= 200 && status < 400) return 0;
        bool again = rc == CURLE_OK ? http_status_retry(status) : http_curl_retry(rc);
        int code = rc == CURLE_OK ? refused(name, path, hub, a, err)
                   : a->too_large ? error_set(err, EXIT_INTEGRITY, NULL, "%s: answer too long", shown)
                                  : error_set(err, EXIT_NETWORK, network, "%s: %s", shown,
                                              libcurl.easy_strerror((CURLcode)rc));
        int64_t after = a->headers.retry_after;
        answer_free(a);
        if (!again || try >= TRIES) return code;
        pause_for(hub, try, rc == CURLE_OK ? status : 0, after);
    }
}

static int redirected(const char *from, const char *to, struct error *err)
{
    char shown[300];
    if (to && (strncasecmp(to, "https://", 8) == 0 ||
               (strncasecmp(to, "http://", 7) == 0 && strncasecmp(from, "http://", 7) == 0)))
        return 0;
    return error_set(err, EXIT_NETWORK, NULL, "%s: meopt does not follow this redirect",
                     url_printable(shown, sizeof shown, from));
}

/* Gets a JSON text; *next (may be NULL): the next page, or NULL. */
static int get_json(const struct hub *hub, const struct hub_name *name, const char *url, struct answer *a,
                    struct error *err)
{
    char *at = xstrdup(url);
    int code = 0;
    for (int hop = 0; !code; hop++) {
        if ((code = request(hub, name, "", at, false, a, err)) != 0 || a->headers.status < 300) break;
        code = redirected(at, hop < HOPS ? a->location : NULL, err);
        free(at);
        at = code ? NULL : xstrdup(a->location);
        answer_free(a);
    }
    free(at);
    return code;
}

/* Escapes all of a revision, or a path without its slashes. */
static char *escape(const char *text, bool slashes)
{
    char *out = xmalloc(3 * strlen(text) + 1), *p = out;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c) || (c == '/' && !slashes);
        if (plain) *p++ = (char)c;
        else p += sprintf(p, "%%%02X", c);
    }
    *p = 0;
    return out;
}

/* Lists the files at ModelScope: of a model in one answer, which ends after 3,000 entries; of a dataset in
 * numbered pages. */
static int list_modelscope(const struct hub *hub, const struct hub_name *name, struct hub_files *files,
                           struct error *err)
{
    enum { MOST = 3000, PAGE = 200 };
    char *revision = escape(name->revision, true);
    int code = 0, entries = PAGE;
    for (int page = 1; !code && entries == PAGE && page <= PAGES; page++) {
        char *url = name->dataset ? xasprintf("%s/api/v1/datasets/%s/repo/tree?Revision=%s&Recursive=True"
                                              "&PageNumber=%d&PageSize=%d",
                                              hub->endpoint, name->repo, revision, page, PAGE)
                                  : xasprintf("%s/api/v1/models/%s/repo/files?Revision=%s&Recursive=True",
                                              hub->endpoint, name->repo, revision);
        struct answer a;
        code = get_json(hub, name, url, &a, err);
        free(url);
        if (code) break;
        code = hub_files_add(files, hub->kind, a.body ? a.body : "", a.bytes, &entries, err);
        answer_free(&a);
        if (!name->dataset) break;
    }
    if (!code && !name->dataset && entries >= MOST)
        code = error_set(err, EXIT_NETWORK, NULL, "ModelScope lists only the first 3,000 files of %s",
                         name->repo);
    free(revision);
    return code;
}

/* Returns the address of the next page at the endpoint, malloc'ed: a mirror may pass on the hub's own one.
 * NULL: it is none. */
static char *page_at_endpoint(const struct hub *hub, const char *next)
{
    const char *api = strstr(next, "/api/");
    if (hub_same_origin(next, hub->endpoint)) return xstrdup(next);
    return api ? xasprintf("%s%s", hub->endpoint, api) : NULL;
}

int hub_list(const struct hub *hub, const struct hub_name *name, char commit[HUB_REVISION],
             struct hub_files *files, struct error *err)
{
    if (hub->kind == HUB_MODELSCOPE) {
        strcpy(commit, name->revision);
        return list_modelscope(hub, name, files, err);
    }
    const char *kind = name->dataset ? "datasets" : "models";
    int entries;
    char *revision = escape(name->revision, true);
    char *url = xasprintf("%s/api/%s/%s/revision/%s", hub->endpoint, kind, name->repo, revision);
    struct answer a;
    int code = get_json(hub, name, url, &a, err);
    free(revision);
    free(url);
    if (code) return code;
    code = hub_commit_parse(commit, a.body ? a.body : "", a.bytes, err);
    answer_free(&a);
    url = xasprintf("%s/api/%s/%s/tree/%s?recursive=true&expand=false", hub->endpoint, kind, name->repo,
                    commit);
    for (int page = 1; !code && url; page++) {
        if ((code = get_json(hub, name, url, &a, err)) != 0) break;
        code = hub_files_add(files, hub->kind, a.body ? a.body : "", a.bytes, &entries, err);
        char *next = a.next ? page_at_endpoint(hub, a.next) : NULL;
        if (!code && a.next && (!next || strcmp(next, url) == 0 || entries == 0 || page == PAGES))
            code = error_set(err, EXIT_INTEGRITY, "check HF_ENDPOINT",
                             "the hub's list of files has no next page or no end (page %d, %d entries)", page,
                             entries);
        free(url);
        url = next;
        answer_free(&a);
    }
    free(url);
    return code;
}

int hub_locate(const struct hub *hub, const struct hub_name *name, const char *commit, const char *path,
               char **url, bool *authorized, struct error *err)
{
    int code = libcurl_load(err);
    if (code) return code;
    bool modelscope = hub->kind == HUB_MODELSCOPE;
    char *escaped = escape(path, modelscope), *revision = escape(commit, true);
    char *at = modelscope ? xasprintf("%s/api/v1/%s/%s/repo?Revision=%s&FilePath=%s", hub->endpoint,
                                      name->dataset ? "datasets" : "models", name->repo, revision, escaped)
                          : xasprintf("%s/%s%s/resolve/%s/%s", hub->endpoint,
                                      name->dataset ? "datasets/" : "", name->repo, commit, escaped);
    free(revision);
    free(escaped);
    for (int hop = 0; !code && hub_same_origin(at, hub->endpoint); hop++) {
        struct answer a;
        if ((code = request(hub, name, path, at, true, &a, err)) != 0) break;
        bool last = a.headers.status < 300;
        if (!last && (code = redirected(at, hop < HOPS ? a.location : NULL, err)) == 0) {
            free(at);
            at = xstrdup(a.location);
        }
        answer_free(&a);
        if (last) break;
    }
    *authorized = !code && hub_same_origin(at, hub->endpoint);
    *url = at;
    if (code) free(at), *url = NULL;
    return code;
}
