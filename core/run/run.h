/* A run: one directory that readers (dashboard, compare, export) and the trainer share.
 *
 *   config.yaml     the resolved configuration; a resumed run must have the same numbers
 *   meta.json       version, host, pid, start, geometry, memory plan; what a resume compares
 *   data.list       the images: names and sizes, as image_list_hash counts them
 *   metrics.jsonl   one object per optimizer step, one write(2) each: a reader ignores a torn tail
 *   events.jsonl    what happened: started, resumed, changed, checkpoint, saving_paused, stopped, diverged
 *   cards.jsonl     what the cards did, a line every few seconds (telemetry.h), by the supervisor
 *   state.json      replaced atomically: {state, step, total_steps, epoch, pid, host, exit_code}
 *   ckpt/step-N/    checkpoint.h
 *   request/NAME    request.h
 */
#ifndef MEOPT_RUN_H
#define MEOPT_RUN_H

#include "core/config/config.h"

#include <jansson.h>
#include <stdbool.h>

struct run {
    char *directory, *was; /* was: before it was moved, else NULL */
    int metrics, events;   /* file descriptors, append only */
    int lock;              /* of the file .lock: one trainer at a time, on whatever machine */
    char notice[256];      /* what state.json says beside the state while the run lives; "": nothing */
    char *held;            /* metric lines that could not be written yet */
    size_t held_bytes;
};

/* A new directory parent/name; EXIT_LOCKED when it is there already. It is made beside, as parent/.name.new,
 * and has its name once it is a run: on an error, or a kill, there is none. */
int run_create(struct run *run, const char *parent, const char *name, const struct config *config,
               struct error *err);
/* The same with more in it before it has its name: `fill` writes into run->directory, and what it writes is
 * synced. NULL: nothing. */
typedef int run_fill(struct run *run, void *context, struct error *err);
int run_create_filled(struct run *run, const char *parent, const char *name, const struct config *config,
                      run_fill *fill, void *context, struct error *err);
/* An existing one, to resume: EXIT_LOCKED when another trainer holds it. */
int run_open(struct run *run, const char *directory, struct error *err);
/* The same with the lock that another process took and handed on: an inherited descriptor, closed with the
 * run; -1: none. */
int run_open_held(struct run *run, const char *directory, int lock, struct error *err);
/* Where the run is now: its directory may have been moved meanwhile, which is told, and then run->directory
 * is another (the first one stays valid until the run is closed). An error: it was removed. */
int run_follow(struct run *run, struct error *err);
/* Whether the run is at run->directory: its lock, which this process has, is the one that lies there. */
bool run_is_here(const struct run *run);
/* Close all but the lock, which is the caller's now: the run stays held until the descriptor, and every copy
 * that a child has of it, is closed. */
int run_release(struct run *run);
/* Whether a process holds the lock of this run. Where that cannot be asked, it may. */
bool run_held(const char *directory);
void run_close(struct run *run);
/* Remove the side files (file.h) that killed processes have left: before anything of this one writes there.
 */
void run_tidy(const struct run *run);

char *run_path(const struct run *run, const char *name);

/* Opens one of its files to be written at its end, a regular one: nothing that lies in a run's directory
 * holds a writer up or leads it elsewhere. */
int run_append(const char *directory, const char *name, int *fd, struct error *err);

/* One line, one write. Takes the object over. A metric line that cannot be written is held and goes before
 * the next one; nothing of it is left in the file. */
int run_metric(struct run *run, json_t *line, struct error *err);
int run_event(struct run *run, const char *event, json_t *fields, struct error *err);
int run_state(struct run *run, const char *state, int64_t step, int64_t total, int64_t epoch, int exit_code,
              struct error *err);
/* What was told is on the disk: before the checkpoint that stands behind it. */
int run_sync(struct run *run, struct error *err);
/* Step of the last checkpoint that the run has told of, -1 when it never saved. */
int run_last_saved(const struct run *run, int64_t *step, struct error *err);
/* Drop metric lines behind `step` (and a torn tail): a resumed run writes each step once. */
int run_truncate_metrics(struct run *run, int64_t step, struct error *err);

#endif
