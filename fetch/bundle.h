/* Several archives in one file, to be carried to a machine without a network: a plain tar whose first entry,
 * meopt-bundle.json, names them with their sizes and checksums; then the archives as they are. */
#ifndef MEOPT_FETCH_BUNDLE_H
#define MEOPT_FETCH_BUNDLE_H

#include "core/base/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct bundle_entry {
    char *name, *file, *top, sha256[65]; /* of the source; top may be NULL */
    char *path;                          /* where the archive lies, for bundle_write */
    int64_t size;
};

struct bundle {
    struct bundle_entry *entries;
    int count;
};
void bundle_free(struct bundle *bundle);

/* The whole file, or none. *cancel ends it with 128+SIGINT. */
int bundle_write(const char *path, const struct bundle *bundle, const volatile sig_atomic_t *cancel,
                 struct error *err);
/* Whether the file begins as a bundle does. */
bool bundle_is(const char *path);
/* What is in it; nothing of it is trusted further than its form (EXIT_INTEGRITY). */
int bundle_read(struct bundle *bundle, const char *path, struct error *err);
/* Copy one archive out, to a file that appears whole; its checksum is for whoever unpacks it. */
int bundle_take(const char *path, const struct bundle_entry *entry, const char *to,
                const volatile sig_atomic_t *cancel, struct error *err);

#endif
