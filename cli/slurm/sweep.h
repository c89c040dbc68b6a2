/* The runs of a sweep or an array that have no directory yet or wait to be resumed, by the queue of Slurm. */
#ifndef MEOPT_CLI_SLURM_SWEEP_H
#define MEOPT_CLI_SLURM_SWEEP_H

#include "core/compare/sweep.h"

/* Adds the runs of the user's queued jobs of that name below `parent`. Does nothing where Slurm is not
 * installed or does not answer. */
void slurm_sweep_read(struct sweep *sweep, const char *parent);

#endif
