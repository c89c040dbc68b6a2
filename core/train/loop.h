/* Training from start to end in this process: data, steps, metrics, checkpoints, requests. */
#ifndef MEOPT_TRAIN_LOOP_H
#define MEOPT_TRAIN_LOOP_H

#include "core/data/data.h"
#include "core/run/run.h"
#include "core/train/start_table.h"
#include "core/step/trainer.h"

struct train_progress {
    int64_t step, total, epoch;
    double loss, lr, grad_norm, images_per_s, step_ms, data_wait_ms;
    double tokens_per_s;                          /* 0: the samples are images */
    double mfu;                                   /* model FLOPs utilization; 0: the peak is unknown */
    struct metric metrics[OBJECTIVE_METRICS];     /* of the objective */
    struct metric evaluation[EVALUATION_METRICS]; /* of this step; no names: there was none */
    int64_t wide_groups;
    double offload_wait_ms;       /* -1: nothing is offloaded */
    double stream_wait_ms;        /* -1: no weights are streamed */
    double stage_wait_ms;         /* for other stages; -1: no pipeline */
    double waited_ms, stepped_ms; /* sums of stage_wait_ms and step_ms since the last gathering */
    int peak_rank;                /* the rank with the most memory at its peak, as of the last gathering */
    struct memory_use peak;
};

/* Phases of training, with names for display. */
enum train_phase {
    PHASE_LOAD,
    PHASE_TEACHER,
    PHASE_DATA,
    PHASE_STEP,
    PHASE_SAVE,
    PHASE_END,
    PHASE_EVALUATE,
    PHASE_COUNT
};
extern const char *const train_phase_names[PHASE_COUNT];

/* Callbacks of a caller; each may be NULL. */
struct train_listener {
    void *context;
    void (*phase)(void *context, enum train_phase phase);
    /* start: the table of start_table.h */
    void (*started)(void *context, const struct trainer *trainer, const struct device_fact start[START_ROWS],
                    const struct data *data, int64_t from_step, int64_t total);
    void (*variants)(void *context, const struct loss_variant *variants, int count);
    void (*step)(void *context, const struct train_progress *progress);
    void (*saved)(void *context, int64_t step);
    /* Returns the provider of monitor.h that measures the cards, "" for none; static text. */
    const char *(*telemetry)(void *context, const struct device *device);
    /* Called when the images are listed, before the run's files change: checks that all ranks have the
     * same. */
    int (*ready)(void *context, const struct data *data, const struct data *validation, struct error *err);
};

/* Returns the learning rate of a step, 1 to total. */
double schedule_lr(const struct config *config, int64_t step, int64_t total);

/* Options of a resumed run. */
struct train_resume {
    bool resume;       /* from the newest checkpoint; else from the beginning */
    const char *force; /* comma-separated keys that may differ from the run's (resume_check.h) */
};

/* Trains in `run`, alone (ranks NULL) or as one of several ranks. Of several ranks only rank 0 writes to the
 * run; the others need its directory only (descriptors -1). stop_after: last step of this process, which is
 * then saved; 0: to the end. Handles signals and requests (signals.h).
 *
 *   - Returns 0, EXIT_STOPPED (stopped on request and saved), EXIT_DIVERGED, or another error.
 *   - A failure to write metrics, events or state.json is logged once and does not end the run.
 *   - A checkpoint that cannot be written, as on a full disk, pauses saving until it can be. State and events
 *     report the pause. Only at the end is it an error. */
int train_loop(struct run *run, struct config *config, struct train_resume how, int64_t stop_after,
               const struct comm_options *ranks, const struct train_listener *listener, struct error *err);

#endif
