/* One archive from its source to its place: claim, transfer, verify, unpack, publish. Restartable at
 * every point: after any death, the same call goes on where the last one was, and ends with the same tree. */
#ifndef MEOPT_FETCH_FETCH_H
#define MEOPT_FETCH_FETCH_H

#include "fetch/sources.h"

#include <signal.h>

enum fetch_phase { FETCH_WAITING, FETCH_DOWNLOAD, FETCH_UNPACK, FETCH_VERIFY, FETCH_PUBLISH };
extern const char *const fetch_phase_names[];

struct fetch_progress {
    enum fetch_phase phase;
    int64_t bytes, total; /* of the archive; total -1 unknown */
    int64_t resumed;      /* of bytes, from earlier runs */
    int tries;
    double retry_in; /* seconds of pause left, with reason */
    const char *reason;
    int64_t files, unpacked_bytes, unpack_bytes; /* written so far, and archive bytes that took */
};

struct fetch_options {
    const char *dest;
    const char *sha256; /* 64 lower-case digits that pin it, or NULL */
    bool trust;         /* accept an archive of which no checksum is known */
    bool allow_plain;   /* http:// (with a checksum only) */
    int connections;
    bool keep;     /* the archive stays next to the tree */
    bool repair;   /* of a tree that is there every file is compared by content, not by size alone */
    int64_t limit; /* bytes it may unpack to; 0: the source's unpacked_size, else free space */
    const volatile sig_atomic_t *cancel;
    void *context;
    void (*progress)(void *context, const struct fetch_progress *p); /* at most every 0.1 s */
    void (*notice)(void *context, const char *text);
};

struct fetch_result {
    bool already; /* it was there, whole: nothing was done */
    char *tree;   /* DEST/TOP */
    char sha256[65];
    bool first_use; /* nothing to compare the checksum with: it is remembered now */
    int64_t size, files, unpacked;
    int64_t received; /* over the network in this run */
    int64_t restored; /* files of a tree that was there, missing or damaged until now */
    char *archive;    /* where it was kept, or NULL */
};
void fetch_result_free(struct fetch_result *result);

/* A tree that is there and lacks files of its list gets these back from the archive, and keeps the rest.
 * `source` has urls (not includes). EXIT_INTEGRITY, EXIT_NETWORK, EXIT_DISK, EXIT_LOCKED (another machine has
 * it), 128+SIGINT (cancelled), EXIT_FAILED. The error's hint says what is left and what to type. */
int fetch_archive(const struct source *source, const struct fetch_options *options,
                  struct fetch_result *result, struct error *err);

enum fetch_state {
    FETCH_MISSING,
    FETCH_PARTIAL,
    FETCH_THERE,
    FETCH_FOREIGN /* a directory of that name that is not ours */
};
extern const char *const fetch_state_names[];
/* What is at the destination; bytes of the partial archive or of the tree. */
enum fetch_state fetch_check(const struct source *source, const char *dest, int64_t *bytes, int64_t *total);

#endif
