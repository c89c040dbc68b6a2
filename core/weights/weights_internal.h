/* What the readers of the formats share:
 * the table that they fill in, the parts of a file that carry a checksum.
 *
 * Bounds. A hostile file must be refused in little time and memory whatever it claims: the constants below
 * hold everything that is sized by the file's own words. */
#ifndef MEOPT_WEIGHTS_WEIGHTS_INTERNAL_H
#define MEOPT_WEIGHTS_WEIGHTS_INTERNAL_H

#include "core/base/file.h"
#include "core/weights/weights.h"

#include <jansson.h>
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

/* A file that tensors lie in: one, or each shard of a checkpoint that comes in several. */
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
    int64_t first_piece, piece_count; /* of a tensor that lies in several places, each a box of it; else 0 */
};

/* A box of a tensor: where it begins in it, and where its values are. */
struct piece {
    int64_t at[WEIGHTS_MAX_DIMS];
    struct row row; /* without a name and without pieces */
};

struct weights {
    char *path;
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
    char entry[128], others[256]; /* weights_entry, weights_other_entries */
    bool sharded;                 /* an index is being followed: its shards are no indices */
    uint32_t *by_name;            /* indices of rows, sorted by name */
    struct payload *payloads;
    int64_t payload_count, payloads_capacity;
    char **metadata; /* key, value, ..., NULL; or NULL */
};

/* A tensor that is there, of a kind that is not read: both texts are owned. */
struct unread {
    char *name, *kind;
};

/* The file that is being opened: the last source. */
static inline const struct file_map *weights_map(const struct weights *w)
{
    return &w->sources[w->source_count - 1].map;
}

/* Add the file of that path as a source and its tensors to the table. What it is, its content tells. */
int weights_add_file(struct weights *w, const char *path, struct error *err);
/* Open a file as a source, without a look at what it holds. */
int weights_add_source(struct weights *w, const char *path, struct error *err);
/* weights_add_file for a directory that holds a checkpoint, and for the index of shards that JSON may be. */
int weights_add_directory(struct weights *w, const char *path, struct error *err);
int weights_add_index(struct weights *w, const char *path, struct error *err);
/* The same for the directory of torch.distributed.checkpoint: distributed.c. */
int weights_add_distributed(struct weights *w, const char *path, struct error *err);
/* Refuse one part of several that is named alone: "...-00001-of-00004.safetensors", "__0_0.distcp",
 * ".metadata". 0 for any other name. */
int weights_refuse_part(const char *path, struct error *err);
/* Why a file that no reader takes is none, and what to do. */
int weights_refuse_foreign(const struct file_map *map, struct error *err);

/* Each fills w from weights_map(w); on failure w is closed by the caller. */
int pytorch_zip_open(struct weights *w, struct error *err);
/* The one tensor that torch.save wrote at that place of a source: `row` without a name. *kind is set to
 * what it is when it is one that is not read (malloc'ed). */
int pytorch_zip_tensor(struct weights *w, int source, uint64_t offset, uint64_t bytes, struct row *row,
                       char **kind, struct error *err);
int pytorch_legacy_open(struct weights *w, struct error *err);
int safetensors_open(struct weights *w, struct error *err);

/* Append a row: row->tensor.name is ignored, the name is copied from (name, name_bytes) after checking it. */
int weights_add_row(struct weights *w, const struct row *row, const char *name, size_t name_bytes,
                    struct error *err);
/* Note a tensor of a kind that is not read; `kind` is copied. */
int weights_add_unread(struct weights *w, const char *name, size_t name_bytes, const char *kind,
                       struct error *err);
/* Keep an object of strings for weights_metadata, the first file's; NULL is none. false: it is another. */
bool weights_take_metadata(struct weights *w, const json_t *object);
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
