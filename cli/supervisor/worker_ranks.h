/* The worker as one of several ranks: who it is, its heartbeat, and its farewell. */
#ifndef MEOPT_CLI_SUPERVISOR_WORKER_RANKS_H
#define MEOPT_CLI_SUPERVISOR_WORKER_RANKS_H

#include "cli/command.h"
#include "cli/supervisor/worker.h"
#include "core/data/data.h"
#include "core/comm/comm.h"
#include "core/comm/heartbeat.h"

#include <pthread.h>

struct worker_ranks {
    struct comm_options comm; /* size 1: alone */
    struct heartbeat *heart;  /* NULL: alone */
    struct worker_report *report;
    bool launched; /* not by a supervisor of this host */
    bool reported; /* how it ends */
    pthread_mutex_t opening;
    struct comm *opened; /* what a lost rank ends; NULL: not yet, or no longer */
    _Atomic int64_t step_us, data_wait_us, mem_bytes, peak_bytes;
};

/* From --rank, --ranks, --local-rank, --shared of the supervisor, or with --join from a launcher's variables;
 * then waits for the others. Alone nothing happens. */
int worker_ranks_join(struct worker_ranks *w, const struct arguments *args, struct worker_report *report,
                      struct error *err);
/* All have these images. */
int worker_ranks_agree(struct worker_ranks *w, const struct data *data, struct error *err);
/* What the heartbeat tells of a step. */
void worker_ranks_step(struct worker_ranks *w, const struct train_progress *progress,
                       const struct memory_use *use);
void worker_ranks_leave(struct worker_ranks *w, int code, const struct error *err);

#endif
