/* A run in a few figures, for lists of hundreds of them: read from the ends of its files, in about a dozen
 * short reads, whatever its length.
 */
#ifndef MEOPT_RUN_RUN_SUMMARY_H
#define MEOPT_RUN_RUN_SUMMARY_H

#include "core/run/memory.h"
#include "core/run/metric_line.h"
#include "core/run/status.h"
#include "core/run/bottleneck.h"

enum { BRIEF_LOSSES = 16 };

struct run_brief {
    char *name, *directory; /* owned */
    struct run_status status;
    bool damaged;              /* state.json cannot be read */
    bool foreign;              /* there is no run; looked at again each time */
    struct metric_line last;   /* step -1: no step yet */
    int64_t step;              /* the later of both */
    double started, last_sign; /* seconds since 1970; 0 unknown */
    double silent_s;           /* it should live, and nothing was heard of it for so long; 0: all is well */
    double left_s;             /* NAN: not known */
    int64_t peak_bytes, without_bytes; /* planned; and without meopt; -1 unknown */
    enum bottleneck_kind bound_by;     /* of one that trains, half a minute old at most */
    char device[96];
    float
        losses[BRIEF_LOSSES]; /* from its first step to its last, evenly; NAN: none; see run_briefs_losses */
    /* private: what was there when it was read */
    bool checked;
    int64_t state_mark, metrics_mark, losses_mark;
    double bottleneck_at; /* clock_seconds() */
};

/* Read it, or what has changed of it since; true when something has. An ended run costs two stats. */
bool run_brief_read(struct run_brief *brief);
/* The same for many, several at a time: a shared file system answers each of them late. Those that were
 * written last come first; from the moment `until` of clock_seconds() on the rest is left for the next time:
 * *unread (may be NULL) counts those of which nothing is known yet but last_sign. Returns how many changed.
 */
int run_briefs_read(struct run_brief *briefs, int count, double until, int *unread);
/* losses of these, where they are not known or have changed. */
void run_briefs_losses(struct run_brief **briefs, int count);
void run_brief_free(struct run_brief *brief);

/* "silent 2:00:31" of one that should live, else the state. */
const char *run_brief_state(const struct run_brief *brief, char *dst, size_t size);

#endif
