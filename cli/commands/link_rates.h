/* What streamed weights and offloaded states come with, measured: 'meopt plan --fit --measure'. */
#ifndef MEOPT_CLI_COMMANDS_LINK_RATES_H
#define MEOPT_CLI_COMMANDS_LINK_RATES_H

#include "core/train/memory_options.h"

/* Of an experiment on a card: its link, pinned memory sent there and back. On a CPU: the disk of
 * train.scratch_dir, or, where optim.offload_dir names another one, the slower of the two. */
int carry_measure(struct memory_options_speed *speed, const struct config *config, struct error *err);

#endif
