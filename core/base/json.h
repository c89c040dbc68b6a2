/* JSON that people look at, too: what would steer a terminal is written as \uXXXX. */
#ifndef MEOPT_BASE_JSON_H
#define MEOPT_BASE_JSON_H

#include "core/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* json_text's text and a newline; control characters, also those beyond ASCII, and marks
 * that turn the direction of writing are escaped. */
void json_print(FILE *out, const json_t *root, size_t flags);

/* json_loadb, but the process ends where memory is out (xmalloc): jansson 2.14 loses characters then, and
 * reads beyond its buffer. */
json_t *json_parse(const char *text, size_t bytes, size_t flags, json_error_t *why);

/* json_dumps, but NULL when any allocation failed: jansson 2.14 leaves a key out then, and returns the rest.
 */
char *json_text(const json_t *root, size_t flags);

/* A file of at most max_bytes as file_read reads it, NULL with err when it cannot be read (errno as there) or
 * is no JSON (errno 0). err may be NULL. */
json_t *json_read(const char *path, size_t max_bytes, struct error *err);

/* json_text's text as the whole of a file (file_write_atomic). root NULL: memory was out when it was made.
 */
int json_write(const char *path, const json_t *root, size_t flags, struct error *err);

/* The same of a file below a directory that others may have filled (file_read_below, file_write_below). */
json_t *json_read_below(const char *directory, const char *name, size_t max_bytes, struct error *err);
int json_write_below(const char *directory, const char *name, const json_t *root, size_t flags,
                     struct error *err);

#endif
