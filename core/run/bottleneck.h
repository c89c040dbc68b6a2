/* What a run's steps are bound by, in one word, with what was measured and the command that mends it. */
#ifndef MEOPT_RUN_BOTTLENECK_H
#define MEOPT_RUN_BOTTLENECK_H

#include "core/run/follow.h"

enum bottleneck_kind {
    BOTTLENECK_UNKNOWN, /* too few steps, no readings */
    BOTTLENECK_FALLBACK,
    BOTTLENECK_STRAGGLER,
    BOTTLENECK_DISK,
    BOTTLENECK_DATA,
    BOTTLENECK_THROTTLED,
    BOTTLENECK_COMPUTE, /* nothing to mend */
    BOTTLENECK_KINDS
};
extern const char *const bottleneck_names[BOTTLENECK_KINDS]; /* "data-bound", ... */

struct bottleneck {
    enum bottleneck_kind kind;
    char cause[200];  /* what was measured */
    char remedy[280]; /* what to type; "" where nothing is to be done */
};

/* Of its last steps and readings. */
void bottleneck_find(struct bottleneck *bottleneck, const struct follow *run);

#endif
