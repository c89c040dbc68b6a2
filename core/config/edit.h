/* Changing a YAML file without touching a byte too many.
 *
 * The target's scalar is replaced, or a line is inserted or removed; every other byte
 * (comments, blank lines, quotes, spelling of numbers, CRLF, BOM) stays. After each change
 * the text is parsed again and compared with the old one: all must be equal but the
 * target, else the change is refused. Refused as well, with the position: aliases, anchors
 * that aliases refer to, merged keys, block scalars, values that are no single scalar.
 */
#ifndef MEOPT_CONFIG_EDIT_H
#define MEOPT_CONFIG_EDIT_H

#include "core/base/error.h"

#include <stddef.h>

struct edit {
    const char *key;
    const char *value; /* as it would be typed in YAML, without quotes; NULL: remove the key */
};

/* *out is malloc'ed and NUL-terminated. Values are checked against the table of keys. Removing a key that is
 * not there changes nothing. `path` is for messages. */
int edit_apply(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
               char **out, size_t *out_bytes, struct error *err);

/* The same, and refuse a result with more problems than
 * the text had before (values that cannot stand together). */
int edit_checked(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
                 char **out, size_t *out_bytes, struct error *err);

/* Put `new` in the place of `old`, which the file must hold still (EXIT_LOCKED). */
int edit_replace(const char *path, const char *old, size_t old_bytes, const char *new, size_t new_bytes,
                 struct error *err);

/* Read, edit, and replace the file atomically, under its lock, so that of two at once neither is lost; unless
 * somebody else changed it meanwhile (EXIT_LOCKED). Mode and symbolic link are kept. *before and
 * *after (may be NULL) receive both texts, malloc'ed. dry: do not write. */
int edit_file(const char *path, const struct edit *edits, int count, int dry, char **before,
              size_t *before_bytes, char **after, size_t *after_bytes, struct error *err);

/* The same of a file below a directory that others may have filled, whose links are not followed
 * (file_read_below). */
int edit_below(const char *directory, const char *name, const struct edit *edits, int count, int dry,
               char **after, size_t *after_bytes, struct error *err);

/* The value of a key as the file has it (without quotes), malloc'ed; NULL when it has none of its own. */
char *edit_current(const char *text, size_t bytes, const char *key);

/* Unified diff with three lines of context, malloc'ed; "" when both are the same. */
char *diff_unified(const char *name_a, const char *a, size_t a_bytes, const char *name_b, const char *b,
                   size_t b_bytes);

#endif
