/* Shared by the writer and the reader of checkpoints: names on disk, verification. */
#ifndef MEOPT_RUN_CHECKPOINT_INTERNAL_H
#define MEOPT_RUN_CHECKPOINT_INTERNAL_H

#include "core/run/checkpoint.h"

extern const char checkpoint_model[], checkpoint_manifest[];
enum { CHECKPOINT_VERSION = 2, CHECKPOINT_WRITERS = 4096 /* at most */ };

/* Returns the name of the file with the records of one of `writers` ranks; the caller frees it. */
char *checkpoint_records_name(int writer, int writers);

/* Returns the path of a checkpoint; the caller frees it. */
char *checkpoint_path(const char *directory, int64_t step);
/* Calls `take` for each name in ckpt/, whose path is `all`; no call if the directory is missing. */
int checkpoint_each_name(const char *directory,
                         void (*take)(void *context, const char *all, const char *name), void *context,
                         struct error *err);

/* Opens a regular file in the directory `at` for reading (AT_FDCWD: path is complete). The caller closes
 * *fd, which is -1 if the file does not exist. */
int checkpoint_open_part(int at, const char *path, int *fd, struct error *err);
/* Opens the records of this writer, if they are not open. */
int checkpoint_open_records(const struct checkpoint *c, int writer, struct error *err);
/* Reads up to `bytes` from `offset`; *got is less only at the end of the file. */
int checkpoint_read_at(int fd, void *dst, size_t bytes, int64_t offset, size_t *got, const char *path,
                       struct error *err);

/* The manifest has, for each file, one checksum of the whole file and one per block, so that a part of the
 * file can be read and verified. */
enum { CHECKPOINT_BLOCK = 1 << 20 };
struct checkpoint_blocks { /* starts as {0}; the caller frees crcs */
    uint32_t *crcs;
    size_t count;
};
/* blocks NULL: not computed */
int checkpoint_checksum(int fd, const char *path, struct checkpoint_written *found,
                        struct checkpoint_blocks *blocks, struct error *err);

/* Reads the blocks of an open file and verifies each. */
struct checkpoint_reader {
    const char *name, *crcs; /* from the manifest, 8 hexadecimal digits each */
    char *path, *block;
    int fd;
    int64_t bytes, count, at; /* of the file; blocks; the block in memory, -1: none */
};
/* Returns false if the manifest has no checksums of the file's blocks. */
bool checkpoint_reader_open(struct checkpoint_reader *reader, const struct checkpoint *c, const char *name,
                            int fd);
void checkpoint_reader_close(struct checkpoint_reader *reader);
int checkpoint_reader_block(struct checkpoint_reader *reader, int64_t index, struct error *err);
/* Reads `bytes` from `offset`, through whole blocks. */
int checkpoint_reader_span(struct checkpoint_reader *reader, int64_t offset, void *dst, size_t bytes,
                           struct error *err);

/* How deep a checkpoint is verified, and the result. Callers handle each of the three failures
 * differently. */
enum depth { BY_SIZE, BY_CONTENT };
enum checkpoint_state { WHOLE, GONE, DAMAGED, UNREADABLE };
/* The caller closes *c in any state. */
enum checkpoint_state checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step,
                                        enum depth depth, struct error *err);
/* After a failure to read that may pass: waits (0.1, 0.2, 0.4 s) and returns true, or false after the last
 * try. *tries starts at 1. */
bool checkpoint_again(int *tries);
/* Renames a damaged checkpoint to a name that readers ignore. meopt never removes it. */
int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err);

#endif
