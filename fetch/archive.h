/* Reading an archive that may be hostile, and may still be growing:
 * tar (plain, gzip, zstd, xz) and zip, nothing else.
 *
 * libarchive reads the formats; what it does not check is checked here: CRC and length of gzip members
 * (libarchive skips them), checksums behind the end of the tar (the stream is read to its end), NUL in pax
 * and zip names, zip entries whose two names differ, encryption. Only files and directories pass; names are
 * valid UTF-8 without control characters, relative, without "..", no component above 255 bytes, no path above
 * 4096, at most 32 levels, none twice, none beginning with ".meopt-". Anything that libarchive calls a
 * warning is an error.
 */
#ifndef MEOPT_FETCH_ARCHIVE_H
#define MEOPT_FETCH_ARCHIVE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct archive_input {
    int fd;
    const char *path; /* for messages */
    /* Blocks until at least `bytes` of the file (from its start) are there, or no more will come; returns how
     * many there are then, or -1 to give up. */
    int64_t (*wait)(void *context, int64_t bytes);
    void *context;
};

struct archive_limits {
    int64_t bytes;   /* of all files together */
    int64_t entries; /* files and directories */
    double ratio;    /* unpacked / packed, looked at once more than ratio_from bytes came out */
    int64_t ratio_from;
};
extern const struct archive_limits
    archive_limits_default; /* no byte limit, 2,000,000 entries, 50 behind 1 GiB */

struct archive_counts {
    int64_t in, out, entries, files;
};

/* Called in order for each entry; a non-zero return ends the walk with it. Paths are clean: "a/b/c". */
struct archive_sink {
    void *context;
    int (*directory)(void *context, const char *path, struct error *err);
    int (*file)(void *context, const char *path, int64_t bytes, int64_t mtime, struct error *err);
    int (*data)(void *context, const void *data, size_t bytes, int64_t offset, struct error *err);
    int (*file_end)(void *context, struct error *err);
    void (*progress)(void *context, const struct archive_counts *counts); /* may be NULL */
};

/* EXIT_INTEGRITY for anything wrong with the archive. counts may be NULL. */
int archive_walk(const struct archive_input *input, const struct archive_limits *limits,
                 const struct archive_sink *sink, struct archive_counts *counts, struct error *err);

/* Sets err to errno as the reason for which the archive cannot be read. */
int archive_unreadable(const struct archive_input *input, struct error *err);

/* A zip cannot be read while it grows (its directory is at the end). `head`: the first bytes of the file. */
bool archive_is_zip(const void *head, size_t bytes);

#endif
