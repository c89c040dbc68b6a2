/* Measures the bandwidth for streamed weights and offloaded states ('meopt plan --fit --measure'). */
#ifndef MEOPT_CLI_PLAN_LINK_RATES_H
#define MEOPT_CLI_PLAN_LINK_RATES_H

#include "core/plan/memory_options.h"

/* On a card, measures its link: pinned memory sent in both directions. On a CPU, measures the disk of
 * train.scratch_dir; if optim.offload_dir is on a different disk, the slower of the two. */
int carry_measure(struct memory_options_speed *speed, const struct config *config, struct error *err);

#endif
