/* What a file has: a text, or records as JSON. */
#ifndef MEOPT_TEXT_CONTAINER_H
#define MEOPT_TEXT_CONTAINER_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum text_container {
    CONTAINER_TEXT,
    CONTAINER_LINES, /* one JSON object per line */
    CONTAINER_VALUES /* JSON objects one after the other, or one array of them */
};

/* Decides by the content, and where that leaves it open by the name. Files that are neither a text nor
 * records are an error (EXIT_FAILED); the caller names the file. text: without a byte order mark. */
int text_container(enum text_container *container, const char *path, const char *text, size_t bytes,
                   struct error *err);

/* Returns whether the first `bytes` bytes of a longer text are enough for text_container. */
bool text_container_decides(const char *text, size_t bytes);

/* Finds the next object of CONTAINER_VALUES from `at` on, which is the begin of the file (first) or the end
 * of an object. Returns 1, *begin and *end; 0: there is none; -1 with an error at *begin. */
int text_container_next(const char *text, size_t bytes, size_t at, bool array, bool first, size_t *begin,
                        size_t *end, struct error *err);

#endif
