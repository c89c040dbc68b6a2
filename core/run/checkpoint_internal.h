/* Shared by what writes checkpoints and what finds them: names on disk, and what is wrong with one. */
#ifndef MEOPT_RUN_CHECKPOINT_INTERNAL_H
#define MEOPT_RUN_CHECKPOINT_INTERNAL_H

#include "core/run/checkpoint.h"

extern const char checkpoint_model[], checkpoint_manifest[];
enum { CHECKPOINT_VERSION = 2, CHECKPOINT_WRITERS = 4096 /* at most */ };

/* Of the records of one of so many writers; the caller frees. */
char *checkpoint_records_name(int writer, int writers);

/* The caller frees. */
char *checkpoint_path(const char *directory, int64_t step);
/* Each name in ckpt/, which is `all`; none where the directory is missing. */
int checkpoint_each_name(const char *directory,
                         void (*take)(void *context, const char *all, const char *name), void *context,
                         struct error *err);

/* A regular file in the directory `at` (AT_FDCWD: path is all of its name), for reading; the caller closes
 * *fd, which is -1 when there is none. */
int checkpoint_open_part(int at, const char *path, int *fd, struct error *err);
/* The records of this writer, if they are not open yet. */
int checkpoint_open_records(const struct checkpoint *c, int writer, struct error *err);
/* Up to `bytes` from `offset`; *got less only at the end of the file. */
int checkpoint_read_at(int fd, void *dst, size_t bytes, int64_t offset, size_t *got, const char *path,
                       struct error *err);

/* A file's manifest entry has beside its whole checksum one of each block, so that a part of it can be read
 * and be known to be what was written. */
enum { CHECKPOINT_BLOCK = 1 << 20 };
struct checkpoint_blocks { /* {0}, then growing; crcs: the caller frees */
    uint32_t *crcs;
    size_t count;
};
/* blocks NULL: not wanted */
int checkpoint_checksum(int fd, const char *path, struct checkpoint_written *found,
                        struct checkpoint_blocks *blocks, struct error *err);

/* Blocks of an open file, each checked as it is read. */
struct checkpoint_reader {
    const char *name, *crcs; /* in hexadecimal, 8 digits each: the manifest's */
    char *path, *block;
    int fd;
    int64_t bytes, count, at; /* of the file; blocks; the one that is held, -1: none */
};
/* false: the manifest does not tell its blocks. */
bool checkpoint_reader_open(struct checkpoint_reader *reader, const struct checkpoint *c, const char *name,
                            int fd);
void checkpoint_reader_close(struct checkpoint_reader *reader);
int checkpoint_reader_block(struct checkpoint_reader *reader, int64_t index, struct error *err);
/* `bytes` from `offset`, of whole blocks */
int checkpoint_reader_span(struct checkpoint_reader *reader, int64_t offset, void *dst, size_t bytes,
                           struct error *err);

/* How much of a checkpoint is looked at, and what it is. The three kinds of failure are met in three ways. */
enum depth { BY_SIZE, BY_CONTENT };
enum checkpoint_state { WHOLE, GONE, DAMAGED, UNREADABLE };
/* Whatever the verdict, *c is to be closed. */
enum checkpoint_state checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step,
                                        enum depth depth, struct error *err);
/* A damaged one out of the way, under a name that counts for nothing. Nobody removes it but a person. */
int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err);

#endif
