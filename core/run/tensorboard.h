/* Event files that TensorBoard opens: `tensorboard --logdir RUN/tensorboard`.
 *
 * One file per trainer process, appended to with one write(2) per step, so that
 * TensorBoard may read it at any time and a process that is killed leaves at most one
 * torn record, at which readers stop. A file continued after step N first says so, and
 * TensorBoard then drops what an earlier file of the directory says of later steps.
 *
 * Tags: loss, cosine, lr, grad_norm, epoch, throughput/images_per_s,
 * time/step_ms, time/data_wait_ms, memory/CLASS (bytes).
 */
#ifndef MEOPT_RUN_TENSORBOARD_H
#define MEOPT_RUN_TENSORBOARD_H

#include "core/base/error.h"
#include "core/run/scalars.h"

struct tensorboard;

/* A new file in the directory, which is made when missing.
 * next_step: the first step to come; above 1 when a run is resumed. */
int tensorboard_open(struct tensorboard **out, const char *directory, int64_t next_step, struct error *err);

/* Append one step. After a failed write (full disk) the file
 * ends with the record before, and the next call tries again. */
int tensorboard_write(struct tensorboard *t, const struct scalars *s, struct error *err);

/* The file's path, until close. */
const char *tensorboard_path(const struct tensorboard *t);

void tensorboard_close(struct tensorboard *t); /* NULL is nothing */

#endif
