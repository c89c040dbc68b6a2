/* The process beside the worker: starts it, passes signals and requests on,
 * samples the cards, and when it dies says why.
 *
 * It writes live.json in the run directory (who trains, in what phase, for how long without a sign, the
 * cards) and, when the worker has not done so itself, the last word in state.json and events.jsonl. Attached
 * viewers need nothing else.
 */
#ifndef MEOPT_CLI_SUPERVISE_H
#define MEOPT_CLI_SUPERVISE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct supervision {
    const char *directory; /* of the run */
    int lock;              /* of it (run_release): held from before the first byte, and by the worker too */
    bool resume, json;
    const char *force_resume;    /* keys between commas (core/train/loop.h), or NULL */
    int64_t stop_after, threads; /* 0: not given */
    bool foreground; /* the worker writes to our stdout and stderr, and dies with us as batch systems expect;
                        else it writes RUN/worker.log and outlives us */
    const char *monitor, *monitor_root; /* provider of card telemetry ("auto") and where its files are ("") */
    const char *metrics_file;           /* Prometheus text, or NULL */
    bool tensorboard;                   /* event files in RUN/tensorboard */
};

/* Blocks until the worker has ended, and leaves the signals that it hears blocked: the process is to end,
 * too. The worker's exit code, or 128 + signal, EXIT_HOST_MEMORY when the kernel killed
 * it for memory, EXIT_DISK when all went well but for what it had to say on stdout. */
int supervise(const struct supervision *s, struct error *err);
/* The same in a daemon of its own, which has its own copy of the lock; returns once the worker is started. */
int supervise_detached(const struct supervision *s, struct error *err);

#endif
