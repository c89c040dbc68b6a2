/* The process beside the worker: starts it, passes signals and requests on,
 * samples the cards, and when it dies says why.
 *
 * It writes live.json in the run directory (who trains, in what phase, for how long without a sign, the
 * cards) and, when the worker has not done so itself, the last word in state.json and events.jsonl. Attached
 * viewers need nothing else.
 */
#ifndef MEOPT_CLI_SUPERVISOR_SUPERVISE_H
#define MEOPT_CLI_SUPERVISOR_SUPERVISE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Several ranks. All are started here, on this host; or a launcher has started one process for each, of which
 * this is rank 0's, and its worker is the only one of ours. */
struct supervised_ranks {
    int size;             /* of the run; 0 or 1: one alone */
    bool launched;        /* by srun, mpirun, torchrun */
    bool hasty;           /* it kills them a second behind Ctrl-C: Open MPI's mpirun */
    int local_rank;       /* of a launched one */
    bool one_host;        /* all ranks are on this one */
    const char *file;     /* where the launched ones find us (core/comm/rendezvous.h) */
    const char **cards;   /* "hip:0" of each worker of ours, NULL: the processor */
    uint64_t config_hash; /* of the experiment as the command line has it */
};

struct supervision {
    const char *directory; /* of the run */
    int lock;              /* of it (run_release): held from before the first byte, and by the worker too */
    bool resume, json;
    bool brief;               /* stdout is the caller's: workers tell their steps, and no more, on stderr */
    const char *force_resume; /* keys between commas (core/train/loop.h), or NULL */
    int64_t stop_after, threads; /* 0: not given */
    bool foreground; /* the worker writes to our stdout and stderr, and dies with us as batch systems expect;
                        else it writes RUN/worker.log and outlives us */
    const char *monitor, *monitor_root; /* provider of card telemetry ("auto") and where its files are ("") */
    const char *metrics_file;           /* Prometheus text, or NULL */
    bool tensorboard;                   /* event files in RUN/tensorboard */
    const char *on_event, *on_end;      /* commands (cli/supervisor/hooks.h), or NULL */
    struct supervised_ranks ranks;
    int restarts; /* from the last checkpoint, when a rank is lost or a worker is killed */
    bool elastic; /* with the ranks that are left */
};

/* Blocks until the workers have ended, and leaves the signals that it hears blocked: the process is to end,
 * too. The worker's exit code, or 128 + signal, EXIT_HOST_MEMORY when the kernel killed
 * it for memory, EXIT_DISK when all went well but for what it had to say on stdout. */
int supervise(const struct supervision *s, struct error *err);
/* The same in a daemon of its own, which has its own copy of the lock; returns once the worker is started. */
int supervise_detached(const struct supervision *s, struct error *err);

#endif
