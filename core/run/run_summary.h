/* Summaries of runs, for lists of hundreds of them: read from the ends of their files, in about a dozen
 * short reads for any length of run. */
#ifndef MEOPT_RUN_RUN_SUMMARY_H
#define MEOPT_RUN_RUN_SUMMARY_H

#include "core/run/checkpoint.h"
#include "core/run/memory.h"
#include "core/run/metric_line.h"
#include "core/run/status.h"
#include "core/run/bottleneck.h"

enum { BRIEF_LOSSES = 16 };

struct run_brief {
    char *name, *directory; /* owned */
    struct run_status status;
    bool damaged;                /* state.json cannot be read */
    bool foreign;                /* no run; checked again each time */
    struct metric_line last;     /* step -1: no step yet */
    struct checkpoint_best best; /* metric "": no evaluation, or no checkpoint of it */
    int64_t step;                /* the later of state.json's and the last metric line's */
    double started, last_sign;   /* seconds since 1970; 0: unknown */
    double silent_s;             /* no activity of a run that should be active, for this time; 0: normal */
    double left_s;               /* NAN: unknown */
    int64_t peak_bytes, without_bytes; /* planned; and without meopt; -1: unknown */
    enum bottleneck_kind bound_by;     /* of a run in training, at most half a minute old */
    char device[96];
    char job[48];     /* of Slurm: "123", or "120_3" of an array; "": none */
    char cluster[96]; /* of the job; "": unknown */
    float
        losses[BRIEF_LOSSES]; /* from its first step to its last, evenly; NAN: none; see run_briefs_losses */
    /* private: state of the files when they were read */
    bool checked;
    int64_t state_mark, metrics_mark, losses_mark, meta_mark;
    double bottleneck_at; /* clock_seconds() */
};

/* Reads the run, or its changes since; returns whether any changed. An ended run costs two stats. */
bool run_brief_read(struct run_brief *brief);
/* Reads many runs in parallel, because each read from a shared file system has latency. Runs written last
 * are read first. From `until` (clock_seconds()) on, the rest is left for the next call: *unread (may be
 * NULL) counts those with only last_sign known. Returns the number of changed runs. */
int run_briefs_read(struct run_brief *briefs, int count, double until, int *unread);
/* Reads the losses that are unknown or have changed. */
void run_briefs_losses(struct run_brief **briefs, int count);
void run_brief_free(struct run_brief *brief);

/* Writes "silent 2:00:31" for a run that should be active, else its state. */
const char *run_brief_state(const struct run_brief *brief, char *dst, size_t size);

#endif
