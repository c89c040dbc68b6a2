/* The file of an archive, which may still be growing. */
#ifndef MEOPT_FETCH_ARCHIVE_INPUT_H
#define MEOPT_FETCH_ARCHIVE_INPUT_H

#include "core/base/error.h"

#include <stdint.h>

struct archive_input {
    int fd;
    const char *path; /* for messages */
    /* Blocks until the file has at least `bytes` bytes or is complete. Returns its current size, or -1 to
     * cancel. */
    int64_t (*wait)(void *context, int64_t bytes);
    void *context;
};

/* Sets an error with errno: the archive cannot be read. */
int archive_unreadable(const struct archive_input *input, struct error *err);

#endif
