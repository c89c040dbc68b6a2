/* Publishing of an unpacked tree, and checks of a published one. A tree is at its destination completely,
 * or not at all.
 *
 * staging/TOP is renamed to DEST/TOP after everything is on the disk; the rename replaces nothing. The
 * marker TOP/.meopt-complete identifies the archive; a directory without it is never used as a dataset. The
 * marker has one line of JSON,
 *
 *     {"format":1,"source":NAME,"archive":FILE,"sha256":HEX,"size_bytes":N,"files":N,"unpacked_bytes":N}
 *
 * and one line "CRC32C SIZE PATH" per file, with PATH relative to TOP.
 */
#ifndef MEOPT_FETCH_PUBLISH_H
#define MEOPT_FETCH_PUBLISH_H

#include "core/base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PUBLISH_MARKER ".meopt-complete"

struct published {
    char source[256], archive[256], sha256[65];
    int64_t size, files, unpacked;
};

/* Returns the name of the only directory in staging (the caller frees it), or NULL with err if there is
 * anything else. wanted: required name, or NULL. */
char *publish_top(const char *staging, const char *wanted, struct error *err);

/* Publishes staging/TOP. EXIT_FAILED if DEST/TOP exists. Afterwards staging can be removed. */
int publish(const char *staging, const char *dest, const char *top, const struct published *what,
            struct error *err);

/* Reads the marker of `tree`. Returns false if it is missing or invalid. */
bool published_read(const char *tree, struct published *what);

/* Options of published_check. content: also compare CRC-32C. restore_from: a tree of the same archive, from
 * which damaged files are restored by rename; NULL: none. */
struct published_pass {
    bool content;
    const char *restore_from;
    const atomic_int *cancel;                                      /* ends it with 128+SIGINT; may be NULL */
    void (*progress)(void *context, int64_t files, int64_t bytes); /* may be NULL */
    void *context;
};
struct published_damage {
    int64_t files, wrong; /* files in the list; missing or damaged ones, before restoring */
    char first[300];      /* printable name of the first one */
    const char *why;      /* of the first one: "is missing", static; NULL: none is damaged */
};
/* Compares the files of the marker's list with the tree, by existence and size. Damaged files are not an
 * error: see damage->wrong. EXIT_INTEGRITY if the marker is damaged, or if restore_from lacks a file. */
int published_check(const char *tree, const struct published_pass *pass, struct published_damage *damage,
                    struct error *err);

#endif
