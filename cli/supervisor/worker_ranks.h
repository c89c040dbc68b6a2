/* The worker as one of several ranks: its rank, heartbeat and exit message. */
#ifndef MEOPT_CLI_SUPERVISOR_WORKER_RANKS_H
#define MEOPT_CLI_SUPERVISOR_WORKER_RANKS_H

#include "cli/command.h"
#include "cli/supervisor/worker.h"
#include "core/data/data.h"
#include "core/comm/comm.h"
#include "core/comm/heartbeat.h"

#include <pthread.h>

struct worker_ranks {
    struct comm_options comm; /* size 1: a single rank */
    struct heartbeat *heart;  /* NULL: a single rank */
    struct worker_report *report;
    bool launched; /* by a launcher, not by a supervisor */
    bool reported; /* the exit message was sent */
    pthread_mutex_t opening;
    struct comm *opened; /* aborted if a rank is lost; NULL: not open */
    _Atomic int64_t step_us, data_wait_us, stage_wait_us, mem_bytes, peak_bytes;
};

/* Reads rank and size from the supervisor's options (--rank, --ranks, --local-rank, --shared) or, with
 * --join, from the launcher's variables, then waits for the other ranks. No-op for a single rank. */
int worker_ranks_join(struct worker_ranks *w, const struct arguments *args, struct worker_report *report,
                      struct error *err);
/* Fails unless all ranks have the same images, labels and validation images (NULL: none). */
int worker_ranks_agree(struct worker_ranks *w, const struct data *data, const struct data *validation,
                       struct error *err);
/* Updates the values of the heartbeat after a step. */
void worker_ranks_step(struct worker_ranks *w, const struct train_progress *progress,
                       const struct memory_use *use);
void worker_ranks_leave(struct worker_ranks *w, int code, const struct error *err);

#endif
