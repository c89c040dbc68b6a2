/* The average of a run's weights (train.ema), from a checkpoint's optimizer states. */
#ifndef MEOPT_CLI_RUN_AVERAGE_H
#define MEOPT_CLI_RUN_AVERAGE_H

#include "core/run/checkpoint.h"

/* Calls `take` for each tensor of the checkpoint's model (c->model) that has an average, with its fp32 values
 * (malloc'ed, to be freed by `take`). EXIT_CONFIG: the checkpoint has no averages. */
int run_average_each(const struct checkpoint *c,
                     int (*take)(void *context, int64_t tensor, float *values, struct error *err),
                     void *context, struct error *err);

/* Opens the student of the checkpoint with averages in place of its trained weights. EXIT_CONFIG: the
 * checkpoint has no averages. The caller closes it, before the checkpoint. */
int run_average_open(struct weights **average, const struct checkpoint *c, struct error *err);

#endif
