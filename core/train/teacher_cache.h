/* The teacher's outputs, computed once (train.cache_teacher) and stored in the run's directory.
 *
 * The file is written while the outputs are computed, so that a killed run resumes from it. Its first line
 * identifies the input of the rows: the list of images, the teacher's weights, the preprocessing. Records
 * follow, in the machine's byte order: int64 image, uint32 CRC-32C of the rest, uint32 1 and the floats of
 * the row; or uint32 0 for an image that could not be decoded. The last record of an image counts. From the
 * first damaged or truncated record on the file is rewritten.
 */
#ifndef MEOPT_TRAIN_TEACHER_CACHE_H
#define MEOPT_TRAIN_TEACHER_CACHE_H

#include "core/step/trainer.h"

/* Called regularly; a nonzero result ends the pass and is returned. Computed rows are kept. */
typedef int (*teacher_cache_tick)(void *context, int64_t done, int64_t images, struct error *err);

/* Fills trainer->cache (collective call). Rows of these images and this teacher are read from
 * the file `path` by rank 0. Each rank computes its share of the missing rows, which are all-gathered. An
 * image that cannot be decoded has no row; the next call retries it. tick may be NULL. */
int teacher_cache_fill(struct trainer *trainer, const char *path, teacher_cache_tick tick, void *context,
                       struct error *err);

#endif
