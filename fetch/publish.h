/* Publishing of an unpacked tree, and checks of a published one. A tree is at its destination completely, or
 * not at all.
 *
 * staging/TOP is renamed to DEST/TOP after everything is on the disk; the rename replaces nothing. The marker
 * TOP/.meopt-complete identifies the archive; a directory without it is never used as a dataset. The marker
 * has one line of JSON,
 *
 *     {"format":1,"source":NAME,"archive":FILE,"sha256":HEX,"size_bytes":N,"files":N,"unpacked_bytes":N}
 *
 * and one line "CRC32C SIZE PATH" per file, with PATH relative to TOP.
 */
#ifndef MEOPT_FETCH_PUBLISH_H
#define MEOPT_FETCH_PUBLISH_H

#include "core/base/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define PUBLISH_MARKER ".meopt-complete"

struct published {
    char source[256], archive[256], sha256[65];
    int64_t size, files, unpacked;
};

/* The single directory that staging holds, malloc'ed; NULL with err when it holds something else. `wanted`
 * may be NULL; when it is not, the name must be that. */
char *publish_top(const char *staging, const char *wanted, struct error *err);

/* EXIT_FAILED when DEST/TOP is there already. staging keeps nothing of value afterwards. */
int publish(const char *staging, const char *dest, const char *top, const struct published *what,
            struct error *err);

/* Whether `tree` carries a whole marker. */
bool published_read(const char *tree, struct published *what);

/* Compares every file of the marker's list with the tree: by presence and size, with `content` by CRC-32C
 * too. restore_from: a tree of the same archive, from which each damaged file is moved into place; NULL:
 * none. */
struct published_pass {
    bool content;
    const char *restore_from;
    const volatile sig_atomic_t *cancel;                           /* ends it with 128+SIGINT; may be NULL */
    void (*progress)(void *context, int64_t files, int64_t bytes); /* may be NULL */
    void *context;
};
struct published_damage {
    int64_t files, wrong; /* in the list; of these missing or damaged (before restoring) */
    char first[300];      /* printable name of the first one */
    const char *why;      /* "is missing", static; NULL: none is damaged */
};
/* Damage is no error: see damage->wrong. EXIT_INTEGRITY where the marker itself is damaged, or the other tree
 * does not hold a file as listed. */
int published_check(const char *tree, const struct published_pass *pass, struct published_damage *damage,
                    struct error *err);

#endif
