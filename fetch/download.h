/* Downloads the bytes of an archive into a claimed part and resumes after a lost connection.
 *
 *   - One GET at a time, or several ranges in parallel. Each requests exactly the missing bytes, with
 *     If-Range when the server gave a validator.
 *   - No byte is written before status and Content-Range of the response have been compared with the
 *   request.
 *   - If the server sends the whole file, or a different one, the download restarts from byte 0; `notice`
 *     reports it once.
 *   - Stalls, lost connections and busy servers are retried: 8 times without a new byte, with growing
 *     random pauses. Retry-After takes precedence.
 */
#ifndef MEOPT_FETCH_DOWNLOAD_H
#define MEOPT_FETCH_DOWNLOAD_H

#include "fetch/connections.h"
#include "fetch/partial.h"

#include <stdatomic.h>

struct transfer_progress {
    int64_t bytes, total; /* in the part; total -1 unknown */
    int64_t received;     /* in this process */
    int tries;            /* without progress, from 1 */
    double retry_in;      /* seconds until the next try; 0: not pausing */
    bool pause_begins;    /* its first report */
    const char *reason;   /* of the pause */
};

struct transfer {
    char *const *urls; /* mirrors in order */
    int url_count;
    int64_t size;     /* published size; -1 unknown */
    bool pinned;      /* a checksum is known, so a part can be resumed without a validator */
    bool allow_plain; /* allow http:// */
    /* header lines with a secret, with which no redirect is followed; NULL: none */
    const char *authorization;
    /* checksum that names the content if its URL differs between runs; NULL: the URL names it */
    const char *identity;
    int connections;            /* most of them: one range of a file each */
    struct connections *shared; /* with other transfers; NULL: all connections are its own */
    void *multi;                /* CURLM whose open connections are reused; NULL: none */
    const atomic_int *cancel;   /* may be NULL */
    void *context;
    int (*sized)(void *context, int64_t total,
                 struct error *err); /* called before the first byte; checks free space. total -1: unknown */
    int (*arrived)(void *context, int64_t contiguous,
                   struct error *err); /* the first `contiguous` bytes are in the file */
    int (*restarted)(void *context, const char *why, struct error *err); /* the part was emptied */
    void (*progress)(void *context,
                     const struct transfer_progress *p); /* at least every 0.1 s; may be NULL */
    void (*notice)(void *context, const char *text);     /* a message for the user; may be NULL */
};

/* Returns 0 if the file is complete and synced; state.total is set. EXIT_NETWORK: out of retries;
 * EXIT_DISK; 128+SIGINT: cancelled. The part keeps the received bytes. *used: index of the last URL. */
int transfer_run(const struct transfer *t, struct partial *part, int *used, struct error *err);

#endif
