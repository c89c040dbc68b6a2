/* The supervisor of a run: starts the worker, forwards signals and requests, samples the cards, and reports
 * why the worker ended.
 *
 * It writes live.json in the run directory: processes, phase, seconds without activity, cards. If the
 * worker could not write the final status, the supervisor writes it to state.json and events.jsonl.
 * Attached viewers read only these files.
 */
#ifndef MEOPT_CLI_SUPERVISOR_SUPERVISE_H
#define MEOPT_CLI_SUPERVISOR_SUPERVISE_H

#include "core/base/error.h"
#include "core/comm/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* The ranks of a run. Either the supervisor starts them all on this host, or a launcher starts one process
 * per rank: then this is the process of rank 0, and it supervises only the worker of rank 0. */
struct supervised_ranks {
    int size; /* of the run; 0 or 1: a single process */
    struct comm_layout layout;
    bool launched;        /* by srun, mpirun, torchrun */
    bool hasty;           /* the launcher kills them a second after Ctrl-C: Open MPI's mpirun */
    int local_rank;       /* of a launched rank */
    bool one_host;        /* all ranks are on this host */
    const char *file;     /* where launched ranks find the coordinator (core/comm/rendezvous.h) */
    const char **cards;   /* "hip:0" of each worker; NULL: CPU */
    uint64_t config_hash; /* of the configuration with the command line's changes */
};

struct supervision {
    const char *directory; /* of the run */
    int lock;              /* of the run directory (run_release); the worker inherits it */
    bool resume, json;
    bool brief;                  /* stdout belongs to the caller: workers print only their steps, to stderr */
    const char *config_before;   /* text of config.yaml before the resume changed it, or NULL: it is written
                                    again if the changes are refused */
    const char *force_resume;    /* keys between commas (core/train/loop.h), or NULL */
    int64_t stop_after, threads; /* 0: not set */
    bool foreground; /* the worker shares stdout and stderr, and dies with the supervisor, as batch systems
                        expect. Otherwise it writes RUN/worker.log and survives the supervisor */
    const char *monitor, *monitor_root; /* provider of card telemetry ("auto") and where its files are ("") */
    const char *metrics_file;           /* Prometheus text, or NULL */
    bool tensorboard;                   /* event files in RUN/tensorboard */
    const char *on_event, *on_end;      /* commands (cli/supervisor/hooks.h), or NULL */
    struct supervised_ranks ranks;
    int restarts; /* from the last checkpoint, after a lost rank or a killed worker */
    bool elastic; /* restart with the remaining ranks */
};

/* Runs until the workers have ended. Leaves its handled signals blocked: the process should exit. Returns
 * the worker's exit code, or 128 + signal, EXIT_HOST_MEMORY if the kernel killed it for memory, EXIT_DISK
 * if only writing to stdout failed. */
int supervise(const struct supervision *s, struct error *err);
/* Runs supervise() in a daemon with its own copy of the lock. Returns after the worker has started. */
int supervise_detached(const struct supervision *s, struct error *err);

#endif
