/* The average of a run's weights (train.ema), from a checkpoint's optimizer states. */
#ifndef MEOPT_CLI_COMMANDS_EXPORT_AVERAGE_H
#define MEOPT_CLI_COMMANDS_EXPORT_AVERAGE_H

#include "core/run/checkpoint.h"

/* Opens the student of the checkpoint with averages in place of its trained weights, through a temporary file
 * next to `path`, which is removed. EXIT_CONFIG: the checkpoint has no averages. The caller closes it. */
int export_average_open(struct weights **average, const struct checkpoint *c, const char *path,
                        struct error *err);

#endif
