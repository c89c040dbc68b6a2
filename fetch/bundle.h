/* A bundle: several archives in one file, for a machine without a network. It is an uncompressed tar. The
 * first entry, meopt-bundle.json, lists the archives with sizes and checksums; the unchanged archives
 * follow. */
#ifndef MEOPT_FETCH_BUNDLE_H
#define MEOPT_FETCH_BUNDLE_H

#include "core/base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bundle_entry {
    char *name, *file, *top, sha256[65]; /* of the source; top may be NULL */
    char *path;                          /* of the archive, for bundle_write */
    int64_t size;
};

struct bundle {
    struct bundle_entry *entries;
    int count;
};
void bundle_free(struct bundle *bundle);

/* Writes the bundle atomically. *cancel ends it with 128+SIGINT. */
int bundle_write(const char *path, const struct bundle *bundle, const atomic_int *cancel, struct error *err);
/* Returns whether the first entry of the file is the list of a bundle. */
bool bundle_is(const char *path);
/* Reads the list. Checks its form only (EXIT_INTEGRITY); the contents are untrusted. */
int bundle_read(struct bundle *bundle, const char *path, struct error *err);
/* Extracts one archive to a file, atomically. The caller checks its checksum. */
int bundle_extract(const char *path, const struct bundle_entry *entry, const char *to,
                   const atomic_int *cancel, struct error *err);

#endif
