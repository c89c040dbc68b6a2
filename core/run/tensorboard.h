/* Event files for TensorBoard: `tensorboard --logdir RUN/tensorboard`.
 *
 * Each trainer process appends to its own file, with one write(2) per step, so that TensorBoard may read
 * it at any time. A killed process leaves at most one torn record, at which readers stop. A file that
 * continues after step N begins with a session start, after which TensorBoard drops later steps of earlier
 * files.
 *
 * Tags: loss, lr, grad_norm, epoch, throughput/images_per_s, time/step_ms, time/data_wait_ms, memory/CLASS
 * (bytes), and the keys of scores.h, shares as percentages.
 */
#ifndef MEOPT_RUN_TENSORBOARD_H
#define MEOPT_RUN_TENSORBOARD_H

#include "core/base/error.h"
#include "core/run/scalars.h"

struct tensorboard;

/* Creates a file in the directory, which is created if missing. next_step: the first step to write; above
 * 1 on resume. */
int tensorboard_open(struct tensorboard **out, const char *directory, int64_t next_step, struct error *err);

/* Sets the last step that the files of the directory have; 0: none. An error: one cannot be read, and its
 * steps would be written twice. */
int tensorboard_last_step(const char *directory, int64_t *last, struct error *err);

/* Appends one step. After a failed write (full disk) the file ends with the previous record, and the next
 * call writes again. */
int tensorboard_write(struct tensorboard *t, const struct scalars *s, struct error *err);

void tensorboard_close(struct tensorboard *t); /* NULL is allowed */

#endif
