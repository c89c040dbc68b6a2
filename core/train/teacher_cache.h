/* The teacher's outputs, computed once (train.cache_teacher) and stored in the run's directory.
 *
 * The file is written while the outputs are computed, so that a killed run resumes from it. Its first line
 * identifies the input of the rows: the list of images, the teachers' weights, the preprocessing. A slot for
 * each image follows (core/weights/cached_rows.h). Of rows in memory a damaged slot is computed again; with
 * train.cache_place: disk all ranks read the file in each step.
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
