/* The bottleneck of a run's steps: its kind, the measured cause, and the command that removes it. */
#ifndef MEOPT_RUN_BOTTLENECK_H
#define MEOPT_RUN_BOTTLENECK_H

#include "core/run/follow.h"

enum bottleneck_kind {
    BOTTLENECK_UNKNOWN, /* too few steps, or no readings */
    BOTTLENECK_FALLBACK,
    BOTTLENECK_STRAGGLER,
    BOTTLENECK_DISK,
    BOTTLENECK_DATA,
    BOTTLENECK_THROTTLED,
    BOTTLENECK_COMPUTE, /* no remedy required */
    BOTTLENECK_KINDS
};
extern const char *const bottleneck_names[BOTTLENECK_KINDS]; /* "data-bound", ... */

struct bottleneck {
    enum bottleneck_kind kind;
    char cause[200];  /* the measured values */
    char remedy[280]; /* the command to run; "": none */
};

/* Finds the bottleneck from the run's last steps and readings. */
void bottleneck_find(struct bottleneck *bottleneck, const struct follow *run);

#endif
