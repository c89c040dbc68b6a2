/* The worker: `meopt worker RUN`, hidden, the process that trains. It is started by the supervisor
 * (supervise.h), in a session of its own, and tells through a shared page what it is at and why it ended. */
#ifndef MEOPT_CLI_SUPERVISOR_WORKER_H
#define MEOPT_CLI_SUPERVISOR_WORKER_H

#include "core/base/error.h"
#include "core/train/loop.h"

#include <stdatomic.h>

struct worker_report {
    _Atomic int64_t step, total;
    _Atomic int phase; /* enum train_phase */
    _Atomic int64_t
        marks; /* grows with every change of phase and with all progress inside: the worker moves */
    _Atomic int64_t saving_bytes; /* of one checkpoint; 0: not known yet */
    int64_t from;                 /* the step that it begins behind; set before total, like pci */
    char pci[16];                 /* of the card it trains on; "" for the processor */
    _Atomic int stop_wanted;      /* it was asked to save and stop */
    _Atomic int ended;            /* code and err are valid */
    int code;
    struct error err;
};

/* A crash for want of address space (ulimit -v) ends with EXIT_HOST_MEMORY and says so in the report. */
void worker_watch_limit(struct worker_report *report);

#endif
