/* Shared by what writes checkpoints and what finds them: names on disk, and what is wrong with one. */
#ifndef MEOPT_RUN_CHECKPOINT_PARTS_H
#define MEOPT_RUN_CHECKPOINT_PARTS_H

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

/* A regular file, for reading; the caller closes *fd, which is -1 when there is none. */
int checkpoint_open_part(const char *path, int *fd, struct error *err);
int checkpoint_checksum(int fd, const char *path, struct checkpoint_written *found, struct error *err);

/* How much of a checkpoint is looked at, and what it is. The three kinds of failure are met in three ways. */
enum depth { BY_SIZE, BY_CONTENT };
enum verdict { WHOLE, GONE, DAMAGED, UNREADABLE };
/* Whatever the verdict, *c is to be closed. */
enum verdict checkpoint_verify(struct checkpoint *c, const char *directory, int64_t step, enum depth depth,
                               struct error *err);
/* A damaged one out of the way, under a name that counts for nothing. Nobody removes it but a person. */
int checkpoint_set_aside(const char *directory, int64_t step, const char *why, struct error *err);

#endif
