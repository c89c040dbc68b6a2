/* What the readers of the formats share:
 * the table that they fill in, the parts of a file that carry a checksum.
 *
 * Bounds. A hostile file must be refused in little time and memory whatever it claims: the constants below
 * hold everything that is sized by the file's own words. */
#ifndef MEOPT_WEIGHTS_INTERNAL_H
#define MEOPT_WEIGHTS_INTERNAL_H

#include "core/base/file.h"
#include "core/weights/weights.h"

#include <stdbool.h>

#define WEIGHTS_MAX_TENSORS    (1 << 18)
#define WEIGHTS_MAX_NAME_BYTES 1024
/* Of a view larger than the whole file (stride 0). */
#define WEIGHTS_MAX_EXPANDED_BYTES ((uint64_t)64 << 20)
/* 30000 tensors; the parsed form takes up to 50 times as much. */
#define SAFETENSORS_MAX_HEADER_BYTES ((size_t)4 << 20)
#define PICKLE_MAX_BYTES             ((size_t)32 << 20) /* 300000 tensors */
#define PICKLE_MAX_MEMORY_BYTES      ((size_t)96 << 20) /* everything that the pickle machine holds */
#define ZIP_MAX_MEMBERS              (1 << 19)

/* A storage: a run of bytes of the file that tensors lie in, with the checksum that the file has for it. */
struct payload {
    uint64_t offset, bytes; /* in the file */
    uint32_t crc;           /* CRC-32 of zip; 0: not recorded (torch can be told not to) */
    int checked;            /* atomic: 1 when it was found right */
};

struct row {
    struct weights_tensor tensor;
    int64_t stride[WEIGHTS_MAX_DIMS]; /* in elements */
    uint64_t offset;                  /* of the first element in the file, in bytes */
    int64_t payload;                  /* index, -1: no checksum */
};

struct weights {
    char *path;
    const char *format;
    int fd; /* whole tensors are read through it: no page faults, and an error instead of a SIGBUS */
    struct file_map map; /* headers and views */
    struct row *rows;
    int64_t count, rows_room;
    uint32_t *by_name; /* indices of rows, sorted by name */
    struct payload *payloads;
    int64_t payload_count, payloads_room;
    char **metadata; /* key, value, ..., NULL; or NULL */
};

/* Each fills w from w->map; on failure w is closed by the caller. */
int pytorch_zip_open(struct weights *w, struct error *err);
int pytorch_legacy_open(struct weights *w, struct error *err);
int safetensors_open(struct weights *w, struct error *err);

/* Append a row: row->tensor.name is ignored, the name is copied from (name, name_bytes) after checking it. */
int weights_add_row(struct weights *w, const struct row *row, const char *name, size_t name_bytes,
                    struct error *err);
/* Index of the payload at that place, appended when it is not the one added last. */
int64_t weights_add_payload(struct weights *w, uint64_t offset, uint64_t bytes, uint32_t crc);

/* Elements of a shape, -1 when a dimension is negative or the product exceeds 63 bits. 1 when ndim is 0. */
int64_t shape_count(const int64_t *shape, int ndim);
bool text_is_utf8(const char *text, size_t bytes); /* and without NUL */

/* CRC-32 as in zip (polynomial 0xEDB88320), continuing from `crc` (0 to begin). */
uint32_t crc32_zip(uint32_t crc, const void *data, size_t bytes);

/* Copies text of any length and content into a small ring of buffers,
 * printable and shortened, for messages. */
const char *quote(const char *text, size_t bytes);

#endif
