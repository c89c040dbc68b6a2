/* Downloads an archive with libcurl: see download.h. */
#include "fetch/download.h"

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/retry.h"
#include "fetch/http.h"
#include "fetch/libcrypto.h"
#include "fetch/libcurl.h"
#include "fetch/sources.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    TRIES = 8,
    TRIES_UNREACHED = 4, /* if no server has ever answered: a machine without a network */
    SMALL_BYTES = 1 << 20,
    COMMIT_BYTES = 64 << 20,
    PROGRESS_BYTES = 64 << 10 /* bytes that reset the count of tries; single bytes do not */
};

/* Result of comparing a response with its request, or of writing it. All but OUTCOME_OK end it. */
enum outcome {
    OUTCOME_OK,
    OUTCOME_WHOLE_FILE,
    OUTCOME_WRONG_RANGE,
    OUTCOME_CHANGED,
    OUTCOME_TOO_LONG,
    OUTCOME_REFUSED,
    OUTCOME_DISK
};

struct connection {
    struct run *run;
    CURL *easy;
    struct curl_slist *list;
    int segment; /* index in the part's state; -1: the probe, which only reads headers */
    bool busy;
    int64_t from; /* requested offset */
    int64_t at;   /* offset of the next byte */
    bool checked; /* the response has been compared with the request */
    enum outcome outcome;
    struct http_headers headers;
    char message[CURL_ERROR_SIZE];
};

struct run {
    const struct transfer *t;
    struct partial *part;
    CURLM *multi;
    struct connection connections[PARTIAL_SEGMENTS];
    int connection_count;
    int url;                /* index in t->urls */
    bool no_ranges;         /* this server does not support ranges: one connection, no resume */
    int tries;              /* without progress */
    int restarts;           /* times that this mirror invalidated the received bytes */
    int64_t progress_bytes; /* resumable bytes since `tries` was last set */
    double wake;            /* monotonic time of the next request */
    bool unreported;        /* the pause until then */
    char reason[400];
    int64_t received, uncommitted;
    int64_t most_bytes; /* of a file of unknown length: nine tenths of the free space; 0: unknown */
    double committed_at;
    struct connections own, *shared; /* own: without other transfers */
    int held;                        /* connections of this transfer */
    struct error *err;
    struct error disk;
};

/* Hash of what a part belongs to: the content's identity, or the current URL. */
static void hash_remote(const struct run *r, int url, char out[65])
{
    partial_hash_url(r->t->identity ? r->t->identity : r->t->urls[url], out);
}

static void notice(const struct run *r, const char *text)
{
    if (r->t->notice) r->t->notice(r->t->context, text);
}

/* Returns whether an interrupted download can resume from the received bytes. */
static bool can_resume(const struct run *r)
{
    return !r->no_ranges && (r->part->state.validator[0] || r->t->pinned);
}

static bool cancelled(const struct run *r) { return r->t->cancel && *r->t->cancel; }

/* ---- one request ---- */

static size_t on_header(char *data, size_t size, size_t n, void *context)
{
    http_header(&((struct connection *)context)->headers, data, size * n);
    return size * n;
}

/* Compares the response with the request, before the first byte. */
static enum outcome check_response(struct connection *s)
{
    const struct partial_state *state = &s->run->part->state;
    const struct http_headers *h = &s->headers;
    const char *validator = http_validator(h);
    if ((h->status == 200 || h->status == 206) && state->validator[0] && validator[0] &&
        strcmp(validator, state->validator) != 0)
        return OUTCOME_CHANGED;
    if (h->status == 200) {
        if (state->total >= 0 && h->length >= 0 && h->length != state->total) return OUTCOME_CHANGED;
        return s->from == 0 && state->segment_count == 1 ? OUTCOME_OK : OUTCOME_WHOLE_FILE;
    }
    if (h->status != 206) return OUTCOME_REFUSED;
    if (!h->has_range || h->bad_range || h->start != s->from) return OUTCOME_WRONG_RANGE;
    if (state->total >= 0 && h->total >= 0 && h->total != state->total) return OUTCOME_CHANGED;
    if (h->end >= state->segments[s->segment].end && state->total >= 0) return OUTCOME_WRONG_RANGE;
    return OUTCOME_OK;
}

static size_t on_data(char *data, size_t size, size_t n, void *context)
{
    struct connection *s = context;
    struct run *r = s->run;
    size_t bytes = size * n;
    if (s->segment < 0 || s->headers.status >= 400) return 0; /* the probe, or an error's page */
    if (!s->checked) {
        s->checked = true;
        s->outcome = check_response(s);
    }
    if (s->outcome != OUTCOME_OK) return 0;
    const struct partial_segment *segment = &r->part->state.segments[s->segment];
    if (r->part->state.total >= 0 && (int64_t)bytes > segment->end - s->at) {
        s->outcome = OUTCOME_TOO_LONG;
        return 0;
    }
    if (r->part->state.total < 0 && r->most_bytes && s->at + (int64_t)bytes > r->most_bytes) {
        s->outcome = OUTCOME_DISK;
        error_set(&r->disk, EXIT_DISK, "choose another --dest, or a mirror that sends Content-Length",
                  "the server does not say how long the file is, and it fills the disk: %lld bytes so far",
                  (long long)s->at);
        error_at(&r->disk, r->part->path, 0, 0);
        return 0;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t put = retry_write(r->part->fd, data + done, bytes - done, s->at);
        if (put < 0) {
            s->outcome = OUTCOME_DISK;
            error_errno(&r->disk, EXIT_FAILED, "free some space, then run the same command again to resume",
                        "cannot write at byte %lld", (long long)s->at);
            error_at(&r->disk, r->part->path, 0, 0);
            return 0;
        }
        done += (size_t)put;
        s->at += put;
        r->received += put;
        r->uncommitted += put;
        if (r->part->state.total < 0 && s->at > segment->end)
            r->part->state.segments[s->segment].end = s->at; /* total unknown: the segment grows */
        r->part->state.segments[s->segment].done = s->at - segment->start;
    }
    if (can_resume(r) && (r->progress_bytes += (int64_t)bytes) >= PROGRESS_BYTES) r->tries = 0;
    return bytes;
}

static void request(struct connection *s, int segment)
{
    struct run *r = s->run;
    struct partial_state *state = &r->part->state;
    const char *url = r->t->urls[r->url];
    CURL *c = s->easy;
    libcurl.easy_reset(c);
    libcurl.slist_free_all(s->list);
    s->list = NULL;
    s->segment = segment;
    s->busy = true;
    s->checked = false;
    s->outcome = OUTCOME_OK;
    s->headers = (struct http_headers){.length = -1, .start = -1, .end = -1, .total = -1, .retry_after = -1};
    s->message[0] = 0;
    http_prepare(c, url);
    libcurl.easy_setopt(c, CURLOPT_PRIVATE, s);
    libcurl.easy_setopt(c, CURLOPT_ERRORBUFFER, s->message);
    http_protocols(c, r->t->allow_plain, r->t->allow_plain && strncmp(url, "https:", 6) != 0);
    libcurl.easy_setopt(c, CURLOPT_FOLLOWLOCATION, r->t->authorization ? 0L : 1L);
    libcurl.easy_setopt(c, CURLOPT_MAXREDIRS, 5L);
    const char *stall = getenv("MEOPT_FETCH_STALL_SECONDS"); /* for tests; default 30 s */
    libcurl.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    libcurl.easy_setopt(c, CURLOPT_LOW_SPEED_TIME, stall && atol(stall) > 0 ? atol(stall) : 30L);
    libcurl.easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    libcurl.easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    libcurl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    libcurl.easy_setopt(c, CURLOPT_HEADERDATA, s);
    libcurl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    libcurl.easy_setopt(c, CURLOPT_WRITEDATA, s);
    char range[64], *if_range = NULL;
    if (r->t->authorization) s->list = http_authorize(c, url, r->t->authorization);
    if (segment < 0) {
        libcurl.easy_setopt(c, CURLOPT_RANGE, "0-0");
    } else {
        const struct partial_segment *g = &state->segments[segment];
        s->from = s->at = g->start + g->done;
        bool last = segment == state->segment_count - 1;
        if (s->from > 0 || !last) {
            if (last) snprintf(range, sizeof range, "%lld-", (long long)s->from);
            else snprintf(range, sizeof range, "%lld-%lld", (long long)s->from, (long long)g->end - 1);
            libcurl.easy_setopt(c, CURLOPT_RANGE, range);
            if (state->validator[0]) {
                if_range = xasprintf("If-Range: %s", state->validator);
                s->list = libcurl.slist_append(s->list, if_range);
            }
        }
    }
    libcurl.easy_setopt(c, CURLOPT_HTTPHEADER, s->list);
    free(if_range);
    libcurl.multi_add_handle(r->multi, c);
}

static int next_segment(const struct run *r)
{
    const struct partial_state *state = &r->part->state;
    for (int i = 0; i < state->segment_count; i++) {
        const struct partial_segment *g = &state->segments[i];
        bool taken = false;
        for (int k = 0; k < r->connection_count; k++)
            taken |= r->connections[k].busy && r->connections[k].segment == i;
        if (!taken && (g->start + g->done < g->end || state->total < 0)) return i;
    }
    return -1;
}

static int count_busy(const struct run *r)
{
    int busy = 0;
    for (int i = 0; i < r->connection_count; i++) busy += r->connections[i].busy;
    return busy;
}

/* Returns whether one more request may begin. */
static bool take_connection(struct run *r)
{
    if (count_busy(r) < r->held) return true;
    if (!connections_take(r->shared)) return false;
    r->held++;
    return true;
}

static void return_idle(struct run *r)
{
    int busy = count_busy(r), idle = r->held - (busy ? busy : 1);
    if (idle > 0) connections_return(r->shared, idle);
    r->held -= idle;
}

static void cancel_requests(struct run *r)
{
    for (int i = 0; i < r->connection_count; i++)
        if (r->connections[i].busy) {
            libcurl.multi_remove_handle(r->multi, r->connections[i].easy);
            r->connections[i].busy = false;
        }
}

/* Empties the part and forgets the remote file. */
static int restart_part(struct run *r, const char *why)
{
    bool had = r->part->state.segment_count > 0 && partial_bytes(&r->part->state) > 0;
    cancel_requests(r);
    int code = partial_reset(r->part, r->err);
    if (!code && had) code = r->t->restarted(r->t->context, why, r->err);
    r->uncommitted = 0;
    return code;
}

/* Records the received bytes. A small file that is named by its checksum is rather received again. */
static int commit(struct run *r)
{
    r->uncommitted = 0;
    r->committed_at = clock_seconds();
    bool small = r->t->identity && r->t->size < SMALL_BYTES;
    return small ? 0 : partial_commit(r->part, r->err);
}

/* Stores total (-1: unknown) and validator of the remote file, and splits it into segments. */
static int set_total(struct run *r, int64_t total, const char *validator)
{
    struct partial_state *state = &r->part->state;
    char shown[300];
    url_printable(shown, sizeof shown, r->t->urls[r->url]);
    if (r->t->size >= 0 && total >= 0 && total != r->t->size)
        return error_set(r->err, EXIT_INTEGRITY,
                         "the server has a different file; check the source's size and checksum",
                         "%s has %lld bytes, expected %lld", shown, (long long)total, (long long)r->t->size);
    if (total < 0) total = r->t->size; /* the server does not say it */
    struct statvfs fs;
    if (fstatvfs(r->part->fd, &fs) == 0) r->most_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize / 10 * 9;
    state->total = total;
    snprintf(state->validator, sizeof state->validator, "%s", validator);
    hash_remote(r, r->url, state->url_hash);
    partial_split(state, r->no_ranges || total < 0 ? 1 : partial_segments(total, r->t->connections));
    int code = r->t->sized(r->t->context, total, r->err);
    if (!code && total > 0) {
        if (fallocate(r->part->fd, FALLOC_FL_KEEP_SIZE, 0, total) != 0 &&
            (errno == ENOSPC || errno == EDQUOT)) {
            code = error_errno(r->err, EXIT_DISK, "free some space, then run the same command again",
                               "not enough space for the %lld bytes of %s", (long long)total, shown);
            error_at(r->err, r->part->path, 0, 0);
        }
    }
    return code ? code : commit(r);
}

static void pause_for(struct run *r, const struct connection *s, const char *what)
{
    const char *scale = getenv("MEOPT_FETCH_PAUSE_SCALE"); /* for tests */
    r->tries++;
    r->progress_bytes = 0;
    double wait = http_backoff(r->tries, http_random()) * (scale ? atof(scale) : 1);
    if (s->headers.status == 429 || s->headers.status == 503) {
        int64_t after = s->headers.retry_after;
        curl_off_t date = 0;
        if (after < 0 && libcurl.easy_getinfo(s->easy, CURLINFO_RETRY_AFTER, &date) == CURLE_OK && date > 0)
            after = date;
        if (after >= 0) wait = (double)(after < HTTP_PAUSE_MOST ? after : HTTP_PAUSE_MOST);
    }
    snprintf(r->reason, sizeof r->reason, "%s", what);
    r->wake = clock_seconds() + wait;
    r->unreported = true;
    if (s->headers.status == 429) connections_pause(r->shared, r->wake); /* for all connections */
}

/* Begins no request while another transfer's server asks for a pause. */
static void join_pause(struct run *r)
{
    double resume = connections_resume(r->shared);
    if (resume <= r->wake || resume <= clock_seconds()) return;
    r->wake = resume + http_random(); /* not all at once */
    snprintf(r->reason, sizeof r->reason, "%s", _("too many requests"));
}

/* Switches to the next mirror; fails after the last one. */
static int next_mirror(struct run *r, int code, const char *hint, const char *what)
{
    char shown[300], text[640];
    url_printable(shown, sizeof shown, r->t->urls[r->url]);
    if (r->url + 1 >= r->t->url_count) return error_set(r->err, code, hint, "%s: %s", shown, what);
    snprintf(text, sizeof text, _("%s: %s; trying the next mirror"), shown, what);
    notice(r, text);
    cancel_requests(r);
    r->url++;
    r->tries = r->restarts = 0;
    r->progress_bytes = 0;
    r->wake = 0;
    r->no_ranges = false;
    if (r->part->state.segment_count == 0) return 0;
    /* another server has another validator: resume only if the archive's checksum is known */
    if (!r->t->pinned || r->part->state.total < 0)
        return restart_part(r, "the next mirror may have a different file");
    r->part->state.validator[0] = 0;
    hash_remote(r, r->url, r->part->state.url_hash);
    return commit(r);
}

static const char offline_hint[] = "without a network: set https_proxy=http://HOST:PORT, or copy "
                                   "the archives here and use --from FILE|DIR";

static int handle_failure(struct run *r, struct connection *s, int rc)
{
    char what[400];
    int status = s->headers.status;
    if (rc == CURLE_HTTP_RETURNED_ERROR || status >= 400)
        snprintf(what, sizeof what, _("the server answers %d"), status);
    else name_printable(what, sizeof what, s->message[0] ? s->message : libcurl.easy_strerror((CURLcode)rc));
    bool again = status >= 400 ? http_status_retry(status) : http_curl_retry(rc),
         unreached = status == 0 && http_curl_unreached(rc) && partial_bytes(&r->part->state) == 0;
    if (unreached && r->tries == 0) {
        char text[640];
        snprintf(text, sizeof text, _("%s; trying again. %s"), what, offline_hint);
        notice(r, text);
    }
    if (again && r->tries + 1 < (unreached ? TRIES_UNREACHED : TRIES)) {
        pause_for(r, s, what);
        return 0;
    }
    if (again)
        return next_mirror(r, EXIT_NETWORK,
                           unreached ? offline_hint : N_("run the same command again later to resume"), what);
    return next_mirror(r, EXIT_NETWORK, http_hint(status, rc), what);
}

/* Handles the end of a request; rc: its CURLcode. */
static int handle_end(struct run *r, struct connection *s, int rc)
{
    struct partial_state *state = &r->part->state;
    s->busy = false;
    int status = s->headers.status;
    /* CURLOPT_FAILONERROR before 7.75 hides the headers of an error: its status and when to try again */
    if (status >= 400 && (rc == CURLE_OK || rc == CURLE_WRITE_ERROR)) rc = CURLE_HTTP_RETURNED_ERROR;
    if (s->segment < 0) { /* the probe */
        if (rc == CURLE_OK || rc == CURLE_WRITE_ERROR) {
            if (status == 206 && s->headers.has_range && !s->headers.bad_range && s->headers.start == 0 &&
                s->headers.total >= 0)
                return set_total(r, s->headers.total, http_validator(&s->headers));
            if (status == 200 || status == 206) {
                r->no_ranges = true;
                return set_total(r, status == 200 ? s->headers.length : -1, "");
            }
        }
        if (status == 416) { /* an empty file, or a server without ranges */
            r->no_ranges = true;
            return set_total(r, s->headers.total, "");
        }
        return handle_failure(r, s, rc);
    }
    if (!s->checked && (rc == CURLE_OK) && (status == 200 || status == 206))
        s->outcome = check_response(s); /* an empty body */
    struct partial_segment *g = &state->segments[s->segment];
    bool whole = state->total >= 0 && g->start + g->done >= g->end;
    switch (s->outcome) {
    case OUTCOME_DISK: *r->err = r->disk; return r->disk.code;
    case OUTCOME_CHANGED:
        if (++r->restarts >= TRIES)
            return next_mirror(r, EXIT_NETWORK, NULL, "the file on the server keeps changing");
        return restart_part(r, "the file on the server has changed");
    case OUTCOME_WHOLE_FILE:
        if (++r->restarts >= TRIES)
            return next_mirror(r, EXIT_NETWORK, NULL, "the server sends the whole file instead of a range");
        if (state->validator[0] == 0 || r->restarts >= TRIES / 2) r->no_ranges = true;
        return restart_part(r, state->validator[0]
                                   ? "the file on the server changed, or the server stopped supporting ranges"
                                   : N_("the server does not support ranges"));
    case OUTCOME_WRONG_RANGE:
        return next_mirror(r, EXIT_NETWORK, "try another network or mirror",
                           "the server sends a different range from the requested one");
    case OUTCOME_TOO_LONG:
        return next_mirror(r, EXIT_NETWORK, "try another network or mirror",
                           "the server sends more bytes than the file has");
    default: break;
    }
    if (rc == CURLE_OK && state->total < 0) { /* no length until now */
        state->total = s->at;
        g->end = s->at;
        return commit(r);
    }
    if (status == 416) {
        if (++r->restarts >= TRIES)
            return next_mirror(r, EXIT_NETWORK, NULL, "the server answers 416 to every range");
        return restart_part(r, "the file on the server is shorter now");
    }
    if (whole) return 0;
    if (rc == CURLE_OK) rc = CURLE_PARTIAL_FILE; /* the response was too short */
    if (!can_resume(r)) {
        int code = handle_failure(r, s, rc);
        return code || state->segment_count == 0 ? code
                                                 : restart_part(r, "the server cannot resume a transfer");
    }
    return handle_failure(r, s, rc);
}

/* ---- the loop ---- */

static void report_progress(struct run *r)
{
    if (!r->t->progress) return;
    double left = count_busy(r) ? 0 : r->wake - clock_seconds();
    struct transfer_progress p = {partial_bytes(&r->part->state),
                                  r->part->state.total,
                                  r->received,
                                  r->tries + 1,
                                  left > 0 ? left : 0,
                                  left > 0 && r->unreported,
                                  r->reason};
    if (left > 0) r->unreported = false;
    r->t->progress(r->t->context, &p);
}

static bool complete(const struct run *r)
{
    const struct partial_state *state = &r->part->state;
    return state->segment_count > 0 && state->total >= 0 && partial_bytes(state) == state->total;
}

/* Begins a request for each segment that has none. The first one of a file asks for its size and validator;
 * a small file that is named by its checksum needs neither. */
static int begin_requests(struct run *r)
{
    const struct transfer *t = r->t;
    bool known =
        t->identity && t->size >= 0 && r->restarts == 0 && partial_segments(t->size, t->connections) == 1;
    int code = r->part->state.segment_count == 0 && known ? set_total(r, t->size, "") : 0, segment;
    for (int i = 0; i < r->connection_count && !code; i++) {
        struct connection *s = &r->connections[i];
        if (s->busy) continue;
        if (r->part->state.segment_count == 0) {
            if (!count_busy(r)) request(s, -1);
            break;
        }
        if ((segment = next_segment(r)) < 0 || !take_connection(r)) break;
        request(s, segment);
    }
    return code;
}

static int run_loop(struct run *r)
{
    int code = 0;
    int64_t frontier = -1;
    while (!code && !complete(r)) {
        if (cancelled(r))
            return error_set(r->err, EXIT_SIGNAL + SIGINT, "run the same command again to resume", "stopped");
        join_pause(r);
        if (clock_seconds() >= r->wake) code = begin_requests(r);
        return_idle(r);
        int running = 0, left = 0;
        libcurl.multi_perform(r->multi, &running);
        for (CURLMsg *m; !code && (m = libcurl.multi_info_read(r->multi, &left));) {
            if (m->msg != CURLMSG_DONE) continue;
            struct connection *s = NULL;
            int rc = (int)m->data.result;
            libcurl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &s);
            libcurl.multi_remove_handle(r->multi, s->easy);
            code = handle_end(r, s, rc);
        }
        if (!code && r->part->state.segment_count) {
            int64_t f = partial_contiguous_bytes(&r->part->state);
            if (f != frontier) code = r->t->arrived(r->t->context, frontier = f, r->err);
            if (!code && r->uncommitted > 0 &&
                (r->uncommitted >= COMMIT_BYTES || clock_seconds() - r->committed_at > 10))
                code = commit(r);
        }
        report_progress(r);
        if (code || complete(r)) break;
        libcurl.multi_poll(r->multi, NULL, 0, 100, NULL);
    }
    return code;
}

int transfer_run(const struct transfer *t, struct partial *part, int *used, struct error *err)
{
    struct error local = {0};
    struct run r = {.t = t, .part = part, .err = err ? err : &local, .committed_at = clock_seconds()};
    int code = libcurl_load(r.err);
    if (!code) code = libcrypto_load(r.err);
    if (code) return code;
    if (libcurl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK ||
        !(r.multi = t->multi ? t->multi : libcurl.multi_init()))
        return error_set(err, EXIT_FAILED, NULL, "cannot initialize libcurl");
    libcurl.multi_setopt(r.multi, CURLMOPT_PIPELINING,
                         (long)CURLPIPE_NOTHING); /* each segment has its own connection */
    r.connection_count = partial_segments(t->size, t->connections);
    r.shared = t->shared ? t->shared : &r.own;
    r.held = 1;
    atomic_init(&r.own.spare, r.connection_count - 1);
    for (int i = 0; i < r.connection_count; i++) {
        r.connections[i].run = &r;
        if (!(r.connections[i].easy = libcurl.easy_init()))
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    }
    if (!code && part->state.segment_count) { /* from an earlier run: the same URL? */
        char hash[65];
        int same = -1;
        for (int i = 0; i < t->url_count && same < 0; i++) {
            hash_remote(&r, i, hash);
            if (strcmp(hash, part->state.url_hash) == 0) same = i;
        }
        if (same >= 0 && part->state.total >= 0 && (part->state.validator[0] || t->pinned) &&
            (t->size < 0 || t->size == part->state.total)) {
            r.url = same;
            code = t->sized(t->context, part->state.total, r.err);
        } else {
            code = restart_part(&r, same < 0 ? "the part belongs to a different URL"
                                             : N_("the server sent no ETag or Last-Modified"));
        }
    } else if (!code) {
        code = restart_part(&r, "");
    }
    if (!code) code = run_loop(&r);
    cancel_requests(&r);
    return_idle(&r);
    for (int i = 0; i < r.connection_count; i++) {
        libcurl.easy_cleanup(r.connections[i].easy);
        libcurl.slist_free_all(r.connections[i].list);
    }
    if (!t->multi) libcurl.multi_cleanup(r.multi);
    libcurl.global_cleanup();
    *used = r.url;
    if (code) r.err = NULL; /* the received bytes are kept, also after an error */
    int synced = part->state.segment_count && part->state.total >= 0 ? commit(&r) : 0;
    if (!code) code = synced;
    if (!code) code = t->arrived(t->context, part->state.total, r.err);
    return code;
}
