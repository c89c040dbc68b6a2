/* What a run's steps are bound by, in one word, with what was measured and the command that mends it. */
#ifndef MEOPT_RUN_VERDICT_H
#define MEOPT_RUN_VERDICT_H

#include "core/run/follow.h"

enum verdict_kind {
    VERDICT_UNKNOWN, /* too few steps, no readings */
    VERDICT_FALLBACK,
    VERDICT_STRAGGLER,
    VERDICT_DISK,
    VERDICT_DATA,
    VERDICT_THROTTLED,
    VERDICT_COMPUTE, /* nothing to mend */
    VERDICT_KINDS
};
extern const char *const verdict_words[VERDICT_KINDS]; /* "data-bound", ... */

struct verdict {
    enum verdict_kind kind;
    char cause[200]; /* what was measured */
    char mend[280];  /* what to type; "" where nothing is to be done */
};

/* Of its last steps and readings. */
void verdict_of(struct verdict *verdict, const struct follow *run);

#endif
