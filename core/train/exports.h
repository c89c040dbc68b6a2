/* A run's numbers for other programs while it goes on: TensorBoard event files in RUN/tensorboard, and a Prometheus text file. Whoever supervises the
 * run calls refresh about once a second; everything comes from the run directory, so the trainer knows nothing of it.
 *
 *     if (tensorboard || metrics_file) code = exports_open(&e, directory, tensorboard, metrics_file, err);
 *     ...every second and once at the end:  exports_refresh(e, &err)
 *     exports_close(e);
 *
 * A resumed run goes on in a file of its own that begins some steps before the end of what was there, so that nothing is missing that an
 * earlier process did not come to write; TensorBoard replaces the overlap.
 */
#ifndef MEOPT_TRAIN_EXPORTS_H
#define MEOPT_TRAIN_EXPORTS_H

#include "core/base/error.h"

#include <stdbool.h>

struct exports;

/* tensorboard: event files, too. metrics_file: the Prometheus file, or NULL. The directory's metrics need not be there yet. */
int exports_open(struct exports **out, const char *run_directory, bool tensorboard, const char *metrics_file, struct error *err);

/* Hand on what the run has written since, at most some thousands of steps a call. A failure (full disk, a directory that has gone) is returned once, then
 * tried again silently at each call: exporting never ends a run. */
int exports_refresh(struct exports *e, struct error *err);

/* Takes what is left, then closes. NULL is nothing. */
void exports_close(struct exports *e);

#endif
