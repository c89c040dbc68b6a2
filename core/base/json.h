/* JSON that is safe on a terminal: control characters are written as \uXXXX. */
#ifndef MEOPT_BASE_JSON_H
#define MEOPT_BASE_JSON_H

#include "core/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Prints json_text's text and a newline. Control characters, also those beyond ASCII, and bidirectional
 * controls are escaped. */
void json_print(FILE *out, const json_t *root, size_t flags);

/* json_loadb, but the process ends when memory is exhausted (xmalloc): jansson 2.14 then loses characters and
 * reads beyond its buffer. Integers that json_int_t cannot hold are real numbers. */
json_t *json_parse(const char *text, size_t bytes, size_t flags, json_error_t *why);

/* Returns a member that is a text; "" if it is absent or of another type. */
static inline const char *json_word(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

/* json_dumps, but NULL when an allocation failed: jansson 2.14 then omits a key and returns the rest. */
char *json_text(const json_t *root, size_t flags);

/* Reads a file of at most max_bytes as file_read does. NULL with err if it cannot be read (errno as there) or
 * is not JSON (errno 0). err may be NULL. */
json_t *json_read(const char *path, size_t max_bytes, struct error *err);

/* The same of a file that may be absent, then *root is NULL; returns 0 or an exit code. err: not NULL. */
int json_read_optional(const char *path, size_t max_bytes, json_t **root, struct error *err);

/* Replaces a file by json_text's text (file_write_atomic). root NULL: memory was exhausted when it was
 * built. */
int json_write(const char *path, const json_t *root, size_t flags, struct error *err);

/* Members of an object from outside: NAN, -1 (also for a negative one) and "" if there is none of the type.
 * Names are printable (name_printable). */
double json_member_number(const json_t *object, const char *key);
int64_t json_member_count(const json_t *object, const char *key);
void json_member_name(char *dst, size_t size, const json_t *object, const char *key);

/* Like json_read and json_write, below a directory that others may have filled (file_read_below,
 * file_write_below). */
json_t *json_read_below(const char *directory, const char *name, size_t max_bytes, struct error *err);
int json_write_below(const char *directory, const char *name, const json_t *root, size_t flags,
                     struct error *err);

#endif
