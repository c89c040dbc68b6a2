/* Downloads the bytes of an archive into a claimed part and resumes after a lost connection.
 *
 *   - One GET at a time, or several ranges in parallel. Each requests exactly the missing bytes, with
 *     If-Range when the server gave a validator.
 *   - No byte is written before status and Content-Range of the response have been compared with the request.
 *   - A server that sends the whole file, or a different one, makes the part begin again; this is reported
 *     once.
 *   - Stalls, lost connections and busy servers are retried: 8 times without a new byte, with growing random
 *     pauses. Retry-After takes precedence.
 */
#ifndef MEOPT_FETCH_DOWNLOAD_H
#define MEOPT_FETCH_DOWNLOAD_H

#include "fetch/partial.h"

#include <signal.h>

struct transfer_progress {
    int64_t bytes, total; /* in the part; total -1 unknown */
    int64_t received;     /* in this process */
    int tries;            /* of the current gap without a byte, from 1 */
    double retry_in;      /* seconds to the next try when pausing, else 0 */
    const char *reason;   /* of the pause */
};

struct transfer {
    char *const *urls; /* mirrors in order */
    int url_count;
    int64_t size;     /* published size; -1 unknown */
    bool pinned;      /* a checksum is known, so a part may be continued without a validator */
    bool allow_plain; /* http:// as well as https:// */
    int connections;
    int64_t commit_bytes;                /* sync at least this often; 0: 64 MiB */
    const volatile sig_atomic_t *cancel; /* may be NULL */
    void *context;
    int (*sized)(void *context, int64_t total,
                 struct error *err); /* the total is known (or -1) before the first byte: is there room? */
    int (*arrived)(void *context, int64_t frontier,
                   struct error *err); /* so many bytes from 0 on are there */
    int (*restarted)(void *context, const char *why, struct error *err); /* the part is empty again */
    void (*progress)(void *context,
                     const struct transfer_progress *p); /* at least every 0.1 s; may be NULL */
    void (*notice)(void *context, const char *text);     /* something a person wants to know; may be NULL */
};

/* 0: every byte is there, synced, state.total is right. EXIT_NETWORK: gave up; EXIT_DISK; 128+SIGINT:
 * cancelled. The part keeps what arrived. *used gets the index of the URL that served the last byte. */
int transfer_run(const struct transfer *t, struct part *part, int *used, struct error *err);

#endif
