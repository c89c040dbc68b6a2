/* Shared by the two writers: rows are checked, their bytes streamed. */
#ifndef MEOPT_WEIGHTS_WRITE_H
#define MEOPT_WEIGHTS_WRITE_H

#include "core/weights/weights_internal.h"

struct writer {
    struct file_atomic file;
    const char *path;
    uint64_t at;     /* bytes written so far */
    uint8_t *buffer; /* WRITE_CHUNK_BYTES */
};
enum { WRITE_CHUNK_BYTES = 4 << 20 };

/* Checks that our own readers accept names, shapes and types. */
int write_check_rows(const struct weights_row *rows, int64_t count, struct error *err);
uint64_t row_bytes(const struct weights_row *row);

/* bytes: size of the file, reserved on the disk at once so that a full disk is found before the work. */
int writer_begin(struct writer *out, const char *path, uint64_t bytes, struct error *err);
int writer_put(struct writer *out, const void *data, size_t bytes, struct error *err);
int writer_put_row(struct writer *out, const struct weights_row *row, uint32_t *crc,
                   struct error *err); /* crc may be NULL */
/* Commits after code 0, otherwise removes the file; returns the first code. */
int writer_end(struct writer *out, int code, struct error *err);

#endif
