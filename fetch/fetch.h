/* Fetches one archive: claim, download, verify, unpack, publish. After an interruption at any point, the
 * same call resumes and produces the same tree. */
#ifndef MEOPT_FETCH_FETCH_H
#define MEOPT_FETCH_FETCH_H

#include "fetch/sources.h"

#include <stdatomic.h>

enum fetch_phase { FETCH_WAITING, FETCH_DOWNLOAD, FETCH_UNPACK, FETCH_VERIFY, FETCH_PUBLISH };
extern const char *const fetch_phase_names[];

struct fetch_progress {
    enum fetch_phase phase;
    int64_t bytes, total; /* of the archive; total -1 unknown */
    int64_t resumed;      /* of bytes, from earlier runs */
    int tries;
    double retry_in;   /* seconds of pause left; `reason` says why */
    bool pause_begins; /* its first report */
    const char *reason;
    int64_t files, unpacked_bytes, unpack_bytes; /* written so far; archive bytes read for them */
    struct {                                     /* of a repository; NULL: an archive */
        const char *name;                        /* of the file that is reported */
        int64_t bytes, total;
        int count; /* of the files; `files` of them are complete */
    } file;
};

struct fetch_options {
    const char *dest;
    const char *sha256; /* expected checksum, 64 lower-case digits, or NULL */
    bool trust;         /* accept an archive without a known checksum */
    bool allow_plain;   /* allow http://, only with a checksum */
    int connections;
    bool keep;     /* keep the archive next to the tree */
    bool repair;   /* compare the files of an existing tree by content, not only by size */
    int64_t limit; /* most unpacked bytes; 0: the source's unpacked_size, or free space */
    const atomic_int *cancel;
    void *context;
    void (*progress)(void *context,
                     const struct fetch_progress *p); /* at most every 0.1 s, and of each pause */
    void (*notice)(void *context, const char *text);
};

struct fetch_result {
    bool already; /* the complete tree existed: nothing was done */
    char *tree;   /* DEST/TOP */
    char sha256[65];
    bool first_use; /* no checksum was known; this one is now stored */
    int64_t size, files, unpacked;
    int64_t received; /* over the network in this run */
    int64_t restored; /* files of an existing tree that were missing or damaged */
    char *archive;    /* path of the kept archive, or NULL */
};
void fetch_result_free(struct fetch_result *result);

/* Fetches `source`, which has urls, not includes. Restores missing files of an existing tree. Errors:
 * EXIT_INTEGRITY, EXIT_NETWORK, EXIT_DISK, EXIT_LOCKED (a process on another host fetches it), 128+SIGINT
 * (cancelled), EXIT_FAILED. The hint says what remains and which command to run. */
int fetch_archive(const struct source *source, const struct fetch_options *options,
                  struct fetch_result *result, struct error *err);

enum fetch_state {
    FETCH_MISSING,
    FETCH_PARTIAL,
    FETCH_THERE,
    FETCH_FOREIGN /* a directory of that name without meopt's marker */
};
extern const char *const fetch_state_names[];
/* Returns the state of the destination, and the bytes of the partial archive or of the tree. */
enum fetch_state fetch_check(const struct source *source, const char *dest, int64_t *bytes, int64_t *total);

#endif
