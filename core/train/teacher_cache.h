/* The teacher's outputs, computed once (train.cache_teacher) and kept beside the run.
 *
 * The file is written while they are computed, so that a run which is killed goes on where it was. It is a
 * line of text, which says what the rows were made of (the list of images, the teacher's weights, how both
 * are used), and then records in the machine's byte order: int64 image, uint32 CRC-32C of the rest, uint32 1
 * and the row's floats; or 0, for an image that could not be decoded. The last record of an image counts;
 * behind the first one that is damaged or cut off the file is written anew.
 */
#ifndef MEOPT_TRAIN_TEACHER_CACHE_H
#define MEOPT_TRAIN_TEACHER_CACHE_H

#include "core/train/trainer.h"

/* Asked now and then; what is not 0 ends the pass and is returned. What was computed is kept. */
typedef int (*teacher_cache_tick)(void *context, int64_t done, int64_t images, struct error *err);

/* Ranks make this call together: rank 0 has the file, and each computes its part of what is not in it, which
 * all are given.
 *
 * trainer->cache and ->cached: from the file `path` what it has of these images and this teacher, the rest
 * computed from the images of the configuration, one forward each. An image that cannot be decoded has no
 * row; it is tried again by the next call. tick may be NULL. */
int teacher_cache_fill(struct trainer *trainer, const char *path, teacher_cache_tick tick, void *context,
                       struct error *err);

#endif
