/* Edits a YAML file and keeps every other byte.
 *
 * The target's scalar is replaced, or a line is inserted or removed; every other byte (comments, blank
 * lines, quotes, spelling of numbers, CRLF, BOM) stays. After each change the text is parsed again and
 * compared with the old one: everything except the target must be equal, else the change is refused. Also
 * refused, with the position: aliases, anchors with aliases, merged keys, block scalars, values that are
 * no single scalar.
 */
#ifndef MEOPT_CONFIG_EDIT_H
#define MEOPT_CONFIG_EDIT_H

#include "core/base/error.h"

#include <stddef.h>

struct edit {
    const char *key;
    const char *value; /* as typed in YAML, without quotes; NULL: remove the key */
};

/* Applies edits to a text. *out is malloc'ed and NUL-terminated. Values are checked against the table of
 * keys. Removing a missing key changes nothing. `path` is for messages. */
int edit_apply(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
               char **out, size_t *out_bytes, struct error *err);

/* The same, and refuses a result with more problems than the text had before (incompatible values). */
int edit_checked(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
                 char **out, size_t *out_bytes, struct error *err);

/* Replaces the content `old` of the file with `new`; EXIT_LOCKED if the content differs from `old`. */
int edit_replace(const char *path, const char *old, size_t old_bytes, const char *new, size_t new_bytes,
                 struct error *err);

/* Reads, edits and atomically replaces the file, under its lock, so that of two concurrent edits neither
 * is lost; EXIT_LOCKED if another program changed it meanwhile. Mode and symbolic link are kept. *before
 * and *after (may be NULL) receive both texts, malloc'ed. dry: do not write. */
int edit_file(const char *path, const struct edit *edits, int count, int dry, char **before,
              size_t *before_bytes, char **after, size_t *after_bytes, struct error *err);

/* The same for a file in a directory that other users can write to: symbolic links are not followed
 * (file_read_below). */
int edit_below(const char *directory, const char *name, const struct edit *edits, int count, int dry,
               char **after, size_t *after_bytes, struct error *err);

/* Returns the value of a key in the file (without quotes), malloc'ed; NULL if the file does not set it. */
char *edit_current(const char *text, size_t bytes, const char *key);

#endif
