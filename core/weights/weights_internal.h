/* Shared by the readers of the formats: the table that they fill in, and the parts of a file that have a
 * checksum.
 *
 * Bounds. A hostile file must be refused in little time and memory: the constants below limit every size that
 * the file itself gives.
 */
#ifndef MEOPT_WEIGHTS_WEIGHTS_INTERNAL_H
#define MEOPT_WEIGHTS_WEIGHTS_INTERNAL_H

#include "core/base/file.h"
#include "core/weights/weights.h"

#include <jansson.h>
#include <stdbool.h>

#define WEIGHTS_MAX_TENSORS    (1 << 18)
#define WEIGHTS_MAX_NAME_BYTES 1024
/* For a view larger than the whole file (stride 0). */
#define WEIGHTS_MAX_EXPANDED_BYTES ((uint64_t)64 << 20)
/* 30000 tensors; the parsed form takes up to 50 times as much. */
#define SAFETENSORS_MAX_HEADER_BYTES ((size_t)4 << 20)
#define PICKLE_MAX_BYTES             ((size_t)32 << 20) /* 300000 tensors */
#define PICKLE_MAX_MEMORY_BYTES      ((size_t)96 << 20) /* all memory of the pickle parser */
#define ZIP_MAX_MEMBERS              (1 << 19)

/* A storage: a range of bytes in the file that contains tensors, with the file's checksum of it. */
struct payload {
    uint64_t offset, bytes; /* in the file */
    uint32_t crc;           /* CRC-32 of zip; 0: not recorded (optional in torch) */
    int checked;            /* atomic: 1 after a successful check */
};

/* A file that contains tensors: the only one, or one shard of a sharded checkpoint. */
struct source {
    char *path;
    int fd; /* whole tensors are read through it: no page faults, and an error instead of a SIGBUS */
    struct file_map map; /* headers and views */
};

struct row {
    struct weights_tensor tensor;
    int source;                       /* index */
    int64_t stride[WEIGHTS_MAX_DIMS]; /* in elements */
    uint64_t offset;                  /* of the first element in the file, in bytes */
    int64_t payload;                  /* index, -1: no checksum */
    int64_t first_piece, piece_count; /* of a tensor stored in several boxes; else 0 */
};

/* A box of a tensor: its offset in the tensor, and the location of its values. */
struct piece {
    int64_t at[WEIGHTS_MAX_DIMS];
    struct row row; /* without a name and without pieces */
};

struct weights {
    char *path;
    int shares; /* atomic: users besides the one that opened it */
    const char *format;
    struct source *sources;
    int source_count;
    uint64_t bytes; /* of all sources */
    struct row *rows;
    int64_t count, rows_capacity;
    struct piece *pieces;
    int64_t piece_count, pieces_capacity;
    struct unread *unread;
    int64_t unread_count, unread_capacity;
    char entry[128], others[256]; /* of a PyTorch file: "teacher.backbone", and others that match */
    bool sharded;                 /* an index is being followed: its shards cannot be indices */
    uint32_t *by_name;            /* indices of rows, sorted by name */
    struct payload *payloads;
    int64_t payload_count, payloads_capacity;
    char **metadata;          /* key, value, ..., NULL; or NULL */
    struct weights_row *made; /* (count) of weights_open_rows; NULL: tensors of files */
    void (*close_made)(void *context);
    void *made_context;
};

/* A tensor of an unsupported kind; owns both texts. */
struct unread {
    char *name, *kind;
};

/* The file that is being opened: the last source. */
static inline const struct file_map *weights_map(const struct weights *w)
{
    return &w->sources[w->source_count - 1].map;
}

/* Adds the file as a source and its tensors to the table. The content determines the format. */
int weights_add_file(struct weights *w, const char *path, struct error *err);
/* Opens a file as a source, without reading its content. */
int weights_add_source(struct weights *w, const char *path, struct error *err);
/* The same for an open file: the source takes ownership of the descriptor. */
int weights_add_descriptor(struct weights *w, int fd, const char *path, struct error *err);
/* Builds the index by name; a duplicate name (also after removing a prefix) is refused. */
int weights_index_names(struct weights *w, struct error *err);
/* weights_add_file for a directory that is a checkpoint, and for a JSON file that may be an index of
 * shards. */
int weights_add_directory(struct weights *w, const char *path, struct error *err);
int weights_add_index(struct weights *w, const char *path, struct error *err);
/* The same for a directory of torch.distributed.checkpoint: distributed.c. */
int weights_add_distributed(struct weights *w, const char *path, struct error *err);
/* Refuses a path that is one of several parts: "...-00001-of-00004.safetensors", "__0_0.distcp", ".metadata".
 * 0 for any other name. */
int weights_refuse_part(const char *path, struct error *err);
/* Refuses a file that no reader supports, with its format and a hint. */
int weights_refuse_foreign(const struct file_map *map, struct error *err);

/* Each fills w from weights_map(w); on failure the caller closes w. */
int pytorch_zip_open(struct weights *w, struct error *err);
/* Reads the tensor that torch.save wrote at that offset of a source: `row` without a name. *kind is set for
 * an unsupported tensor (malloc'ed). */
int pytorch_zip_tensor(struct weights *w, int source, uint64_t offset, uint64_t bytes, struct row *row,
                       char **kind, struct error *err);
int pytorch_legacy_open(struct weights *w, struct error *err);
int safetensors_open(struct weights *w, struct error *err);

/* Appends a row: row->tensor.name is ignored, the name is copied from (name, name_bytes) after a check. */
int weights_add_row(struct weights *w, const struct row *row, const char *name, size_t name_bytes,
                    struct error *err);
/* Records a tensor of an unsupported kind; `kind` is copied. */
int weights_add_unread(struct weights *w, const char *name, size_t name_bytes, const char *kind,
                       struct error *err);
/* Keeps an object of strings for weights_metadata, the first file's; NULL is none. false: not an object of
 * strings. */
bool weights_take_metadata(struct weights *w, const json_t *object);
/* Index of the payload at that offset, appended unless it is the last one added. */
int64_t weights_add_payload(struct weights *w, uint64_t offset, uint64_t bytes, uint32_t crc);

/* Number of elements of a shape, -1 if a dimension is negative or the product exceeds 63 bits. 1 if ndim is
 * 0. */
int64_t shape_count(const int64_t *shape, int ndim);
bool text_is_utf8(const char *text, size_t bytes); /* and without NUL */

/* CRC-32 as in zip (polynomial 0xEDB88320), continuing from `crc` (0 to begin). */
uint32_t crc32_zip(uint32_t crc, const void *data, size_t bytes);

/* Copies text of any length and content into a small ring of buffers, printable and shortened, for
 * messages. */
const char *quote(const char *text, size_t bytes);

#endif
