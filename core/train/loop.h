/* Training from start to end in this process: data, steps, metrics, checkpoints, requests. */
#ifndef MEOPT_TRAIN_LOOP_H
#define MEOPT_TRAIN_LOOP_H

#include "core/data/data.h"
#include "core/run/run.h"
#include "core/train/start_table.h"
#include "core/train/trainer.h"

struct train_progress {
    int64_t step, total, epoch;
    double loss, cosine, lr, grad_norm, images_per_s, step_ms, data_wait_ms;
    int64_t wide_groups;
    double offload_wait_ms; /* -1: nothing is offloaded */
    double stream_wait_ms;  /* for streamed weights; -1: none are */
    int peak_rank;          /* that held the most when the ranks told it last, and what it held */
    struct memory_use peak;
};

/* What the trainer is at; names for people. */
enum train_phase { PHASE_LOAD, PHASE_TEACHER, PHASE_DATA, PHASE_STEP, PHASE_SAVE, PHASE_END, PHASE_COUNT };
extern const char *const train_phase_names[PHASE_COUNT];

/* What a caller hears; any may be NULL. */
struct train_listener {
    void *context;
    void (*phase)(void *context, enum train_phase phase);
    /* start: what computes the run (start_table.h) */
    void (*started)(void *context, const struct trainer *trainer, const struct device_fact start[START_ROWS],
                    const struct data *data, int64_t from_step, int64_t total);
    void (*variants)(void *context, const struct loss_variant *variants, int count);
    void (*step)(void *context, const struct train_progress *progress);
    void (*saved)(void *context, int64_t step);
    /* Who watches the cards (a provider of monitor.h), "" for nobody; static text. */
    const char *(*telemetry)(void *context, const struct device *device);
    /* The images are listed, nothing of the run is touched yet: whether all ranks have the same. */
    int (*ready)(void *context, const struct data *data, struct error *err);
};

/* Learning rate of step 1..total. */
double schedule_lr(const struct config *config, int64_t step, int64_t total);

/* How a run goes on. */
struct train_resume {
    bool resume;       /* from its newest checkpoint; else from the beginning */
    const char *force; /* keys between commas that may be others than the run began with (resume_check.h) */
};

/* Train in `run`, alone (ranks NULL) or as one of several ranks; then only rank 0 writes there, and the
 * others need no more of the run than its directory: descriptors -1. stop_after 0: to the end; else up to
 * that step and save. Returns 0, EXIT_STOPPED (asked to stop, saved), EXIT_DIVERGED, or another error. What
 * the run tells of itself (metrics, events, state.json) is never worth the run: a failure is told once. A
 * checkpoint that cannot be written, as on a full disk, pauses saving, which the state and the events say,
 * until it can; at the end it is the error. Signals are caught: see signals.h. */
int train_loop(struct run *run, struct config *config, struct train_resume how, int64_t stop_after,
               const struct comm_options *ranks, const struct train_listener *listener, struct error *err);

#endif
