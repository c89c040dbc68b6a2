/* Shared by what writes checkpoints and what finds them: names on disk, and what is wrong with one. */
#ifndef MEOPT_RUN_CHECKPOINT_PARTS_H
#define MEOPT_RUN_CHECKPOINT_PARTS_H

#include "core/run/checkpoint.h"

enum checkpoint_part { PART_TENSORS, PART_RECORDS, PARTS };
extern const char *const checkpoint_parts[PARTS];
extern const char checkpoint_manifest[];

/* The caller frees. */
char *checkpoint_path(const char *directory, int64_t step);
/* Each name in ckpt/, which is `all`; none where the directory is missing. */
int checkpoint_each_name(const char *directory,
                         void (*take)(void *context, const char *all, const char *name), void *context,
                         struct error *err);

/* A regular file, for reading; the caller closes *fd, which is -1 when there is none. */
int checkpoint_open_part(const char *path, int *fd, struct error *err);
int checkpoint_checksum(int fd, const char *path, json_int_t *bytes, json_int_t *crc, struct error *err);

/* How much of a checkpoint is looked at, and what it is. The three kinds of failure are met in three ways. */
enum depth { BY_SIZE, BY_CONTENT };
enum verdict { WHOLE, GONE, DAMAGED, UNREADABLE };
/* Whatever the verdict, *c is to be closed. */
enum verdict checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step, enum depth depth,
                               struct error *err);
/* A damaged one out of the way, under a name that counts for nothing. Nobody removes it but a person. */
int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err);

#endif
