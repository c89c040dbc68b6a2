/* A partial archive: the process that owns it, the bytes that have arrived, and the server's description of
 * it.
 *
 * Files in DEST/.meopt-fetch, a private directory next to the destination, for the archive of a source NAME
 * (several sources may use the same file name for their archives):
 *
 *     NAME.part.OWNER   the bytes, while process OWNER (HOST.PIDNAMESPACE.PID.START) writes them
 *     NAME.part         the bytes, without an owner
 *     NAME.state        the byte ranges that are on disk, also after a power cut
 *     NAME.live         newer counters, in a shared mapping; valid until the machine restarts
 *     NAME.staging/     the archive being unpacked
 *
 * The owner is part of the file name because a rename has exactly one winner on every file system, whereas
 * flock() succeeds without locking on some. NAME.state is written after fdatasync() of the part, replaced by
 * rename(), and ends with its own CRC-32C. NAME.live survives SIGKILL, because the page cache does; a power
 * cut loses it. Losing either costs time, never correctness: the checksum of the whole archive decides.
 */
#ifndef MEOPT_FETCH_PARTIAL_H
#define MEOPT_FETCH_PARTIAL_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { PART_SEGMENTS = 8, PART_VALIDATOR_BYTES = 512 };

/* Bytes [start, start+done) of [start, end) are in the file. */
struct part_segment {
    int64_t start, end, done;
};

struct part_state {
    char id[33];                          /* random: ties live to state */
    char url_hash[65];                    /* SHA-256 of the URL, which may hold a secret itself */
    int64_t total;                        /* bytes of the whole archive; -1 unknown */
    char validator[PART_VALIDATOR_BYTES]; /* for If-Range: strong ETag in quotes, or Last-Modified; "" none */
    int segment_count;
    struct part_segment segments[PART_SEGMENTS]; /* ascending, without gaps or overlap, from 0 to total */
};

/* Text of a state; the caller frees. And back: false when it is damaged or says what cannot be. */
char *part_state_text(const struct part_state *state);
bool part_state_parse(struct part_state *state, const char *text, size_t bytes);
/* Bytes from 0 on without a gap. */
int64_t part_state_frontier(const struct part_state *state);
int64_t part_state_bytes(const struct part_state *state); /* all, gaps or not */

struct part {
    char *directory; /* DEST/.meopt-fetch */
    char *name;
    char *path; /* of the claimed file */
    int fd;
    struct part_state state;
    struct part_live *live; /* NULL when the file system has no shared mappings */
};

/* Claim NAME in `directory`, which is made when it is not there. EXIT_LOCKED when another process has it:
 * *owner_here says whether it runs on this machine (and may be waited for); the error names it. A dead
 * owner's part is taken over. A directory that is a link, or another user's, is refused: what lies in it is
 * removed, renamed and believed. What state and live say is loaded, and checked against the file's length. */
int part_claim(struct part *part, const char *directory, const char *name, bool *owner_here,
               struct error *err);
/* Begin anew: no bytes, no state. */
int part_reset(struct part *part, struct error *err);
/* Remember `done` bytes of segment i in live (cheap: after each write). */
void part_note(struct part *part, int i, int64_t done);
/* After the segments have been cut otherwise, and now and then: sync the bytes, then the state. */
int part_commit(struct part *part, struct error *err);
/* Give the claim back: the bytes stay for the next (keep), or nothing does.
 * The private directory goes when empty. What cannot be removed or renamed is the error. */
int part_release(struct part *part, bool keep, struct error *err);
/* Move the whole file to `target` (same file system): state and claim go with part_release. */
int part_finish(struct part *part, const char *target, struct error *err);

/* What lies there for `meopt fetch --list`, without claiming: bytes (0 none) and total (-1 unknown). */
void part_peek(const char *directory, const char *name, int64_t *bytes, int64_t *total);

/* NAME.staging. */
char *part_staging(const struct part *part);

#endif
