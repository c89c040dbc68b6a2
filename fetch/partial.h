/* A partial archive: the bytes received so far, and the process that owns them.
 *
 * Files in DEST/.meopt-fetch, a private directory next to the destination, for the archive of source NAME
 * (several sources may use the same archive file name):
 *
 *     NAME.part          the bytes; no process owns them
 *     NAME.part.OWNER    the bytes; process OWNER (HOST.PIDNAMESPACE.PID.START) owns and writes them
 *     NAME.state         text: the byte ranges that are on disk, even after a power failure
 *     NAME.staging/      the unpacked files
 *
 * Ownership is a file name, because a rename has exactly one winner on every file system, while flock()
 * does not lock on some. NAME.state ends with its own CRC-32C; it is replaced by rename after fdatasync of
 * the bytes, every 64 MiB or 10 s. Until the host restarts, the length of a file with one segment counts too;
 * of several segments, SIGKILL loses what came since. If the state is lost or damaged, the download repeats
 * bytes; a wrong byte is detected by the checksum of the whole archive.
 */
#ifndef MEOPT_FETCH_PARTIAL_H
#define MEOPT_FETCH_PARTIAL_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { PARTIAL_SEGMENTS = 8, PARTIAL_VALIDATOR_BYTES = 512 };
#define PARTIAL_DIRECTORY ".meopt-fetch"

/* Of bytes [start, end), the first `done` are in the file. */
struct partial_segment {
    int64_t start, end, done;
};

/* The contents of NAME.state. */
struct partial_state {
    char boot[40];                           /* of the host: its boot_id; set by partial_commit */
    char url_hash[65];                       /* SHA-256 of the URL, which may contain a secret */
    int64_t total;                           /* bytes of the whole archive; -1: unknown */
    char validator[PARTIAL_VALIDATOR_BYTES]; /* for If-Range: strong ETag or Last-Modified; "": none */
    int segment_count;
    struct partial_segment
        segments[PARTIAL_SEGMENTS]; /* ascending from 0 to total, without gaps or overlap */
};

/* Hashes what a part belongs to, for url_hash. */
void partial_hash_url(const char *url, char out[65]);
/* Formats a state; the caller frees the text. */
char *partial_state_text(const struct partial_state *state);
/* Parses a state. Returns false if it is damaged or inconsistent. */
bool partial_state_parse(struct partial_state *state, const char *text, size_t bytes);
/* Number of bytes from 0 to the first gap. */
int64_t partial_contiguous_bytes(const struct partial_state *state);
/* Number of bytes in all segments. */
int64_t partial_bytes(const struct partial_state *state);
/* Number of segments of a file, of at least 64 MiB each. total -1: unknown, as many as possible. */
int partial_segments(int64_t total, int connections);
/* Splits state->total (-1: unknown; n is 1) into n segments without bytes. */
void partial_split(struct partial_state *state, int n);

struct partial {
    char *directory; /* DEST/.meopt-fetch */
    char *name;
    char *path; /* of NAME.part.OWNER */
    int fd;
    struct partial_state state;
};

/* Makes this process the owner of NAME in `directory`, loads the state and limits it to the file's length.
 * Creates the directory if necessary; refuses a symbolic link or another user's directory, because the
 * program trusts and removes files there. A part of a dead owner is taken over. EXIT_LOCKED: a live process
 * owns it, and the error names it. *owner_here: it runs on this host, so the caller can wait for it. */
int partial_claim(struct partial *part, const char *directory, const char *name, bool *owner_here,
                  struct error *err);
/* Removes all bytes and the state. */
int partial_reset(struct partial *part, struct error *err);
/* Syncs the bytes, then writes NAME.state. Required after the segments change. */
int partial_commit(struct partial *part, struct error *err);
/* Ends the ownership. keep: the bytes remain as NAME.part. Otherwise removes all files, and the private
 * directory if it is empty. */
int partial_release(struct partial *part, bool keep, struct error *err);
/* Syncs the complete file and renames it to `target`, on the same file system. partial_release removes the
 * rest. */
int partial_move(struct partial *part, const char *target, struct error *err);

/* Reads the size of a part without claiming it, for `meopt fetch --list`: *bytes (0: none) and *total (-1:
 * unknown). */
void partial_status(const char *directory, const char *name, int64_t *bytes, int64_t *total);

/* Bytes of the disk that a part occupies; space is reserved when a download begins. */
int64_t partial_allocated(const char *directory, const char *name);

/* Path of NAME.staging; the caller frees it. */
char *partial_staging(const struct partial *part);

#endif
