/* The worker: the hidden command `meopt worker RUN`, the process that trains. The supervisor (supervise.h)
 * starts it in its own session. It reports its phase, progress and final error in shared memory. */
#ifndef MEOPT_CLI_SUPERVISOR_WORKER_H
#define MEOPT_CLI_SUPERVISOR_WORKER_H

#include "core/base/error.h"
#include "core/train/loop.h"

#include <stdatomic.h>

struct worker_report {
    _Atomic int64_t step, total;
    _Atomic int phase;     /* enum train_phase */
    _Atomic int64_t marks; /* counter that grows with each change of phase and each progress in a phase */
    _Atomic int64_t saving_bytes; /* of one checkpoint; 0: unknown yet */
    int64_t from;                 /* the last step of the loaded checkpoint; set before total, like pci */
    char pci[16];                 /* of its card; "": CPU */
    _Atomic int stop_wanted;      /* it was asked to save and stop */
    _Atomic int ended;            /* code and err are valid */
    int code;
    struct error err;
};

/* Installs handlers: a crash caused by a limit of the address space (ulimit -v) ends with EXIT_HOST_MEMORY
 * and an error in the report. */
void worker_watch_limit(struct worker_report *report);

#endif
