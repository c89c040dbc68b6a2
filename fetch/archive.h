/* Reads an untrusted archive, which may still be growing: tar (plain, gzip, zstd, xz) or zip.
 *
 * libarchive parses the formats. MEOpt checks what libarchive does not: CRC and length of gzip members,
 * checksums after the end of the tar (it reads the stream to its end), NUL in pax and zip names, zip
 * entries with two different names, and encryption.
 *
 * Only files and directories are allowed. Names must be valid UTF-8 without control characters, relative,
 * unique and without "..". Limits: 255 bytes per component, 4096 bytes per path, 32 levels. No component
 * may start with ".meopt-". A warning of libarchive is an error.
 */
#ifndef MEOPT_FETCH_ARCHIVE_H
#define MEOPT_FETCH_ARCHIVE_H

#include "fetch/archive_input.h"

#include <stdbool.h>
#include <stdint.h>

struct archive_limits {
    int64_t bytes;   /* of all files together */
    int64_t entries; /* files and directories */
    double ratio;    /* unpacked / packed size, checked after ratio_from unpacked bytes */
    int64_t ratio_from;
};
extern const struct archive_limits
    archive_limits_default; /* no byte limit, 2,000,000 entries, ratio 50 after 1 GiB */

struct archive_counts {
    int64_t in, out, entries, files;
};

/* Called in order for each entry. A nonzero return ends the walk with that code. Paths are normalized:
 * "a/b/c". */
struct archive_sink {
    void *context;
    int (*directory)(void *context, const char *path, struct error *err);
    int (*file)(void *context, const char *path, int64_t bytes, int64_t mtime, struct error *err);
    int (*data)(void *context, const void *data, size_t bytes, int64_t offset, struct error *err);
    int (*file_end)(void *context, struct error *err);
    void (*progress)(void *context, const struct archive_counts *counts); /* may be NULL */
};

/* Reads all entries. EXIT_INTEGRITY if the archive is damaged or not allowed. counts may be NULL. */
int archive_walk(const struct archive_input *input, const struct archive_limits *limits,
                 const struct archive_sink *sink, struct archive_counts *counts, struct error *err);

/* Returns whether `head`, the first bytes of a file, is that of a zip. A zip cannot be read while it grows:
 * its directory is at the end. */
bool archive_is_zip(const void *head, size_t bytes);

#endif
