/* The screen of a job that waits in Slurm's queue. */
#ifndef MEOPT_CLI_DASHBOARD_QUEUE_VIEW_H
#define MEOPT_CLI_DASHBOARD_QUEUE_VIEW_H

#include "cli/slurm/queue.h"

/* Shows the job until the user leaves it, the run has begun (*begun), or the job has ended (an error). */
int queue_view(struct slurm_queue *queue, bool ascii, bool *begun, struct error *err);

#endif
