/* A run: one directory, shared by the trainer and readers (dashboard, compare, export).
 *
 *   config.yaml     the resolved configuration; a resume must agree with its numbers
 *   meta.json       version, host, pid, start, model shape, memory plan; the values that a resume compares
 *   data.list       the images: names and sizes, in the form that image_list_hash reads
 *   metrics.jsonl   one object per optimizer step, one write(2) each; readers ignore a torn last line
 *   events.jsonl    events: started, resumed, changed, checkpoint, saving_paused, stopped, diverged
 *   cards.jsonl     card readings, one line every few seconds (telemetry.h), from the supervisor
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
    char *directory, *was; /* was: the path before the directory was moved, else NULL */
    int metrics, events;   /* file descriptors, append only */
    int lock;              /* of the file .lock: one trainer at a time, on any machine */
    char notice[256];      /* the message of state.json while the run is active; "": none */
    char ranks[64];        /* run_set_ranks */
    char *held;            /* metric lines that could not be written yet */
    size_t held_bytes;
};

/* Sets how the ranks of a run are started, for run_resume_words. cards: config.yaml names them. */
void run_set_ranks(struct run *run, int ranks, bool launched, bool cards);
/* Formats what follows "meopt train --resume": the directory, and --workers N of a run on CPUs. */
const char *run_resume_words(const struct run *run, char *text, size_t size);

/* Creates the directory parent/name; EXIT_LOCKED if it exists. It is created as parent/.name.new and
 * renamed when complete: after an error or a kill there is no run. */
int run_create(struct run *run, const char *parent, const char *name, const struct config *config,
               struct error *err);
/* The same, with more files before the rename: `fill` writes into run->directory, and its files are
 * synced. NULL: none. */
typedef int run_fill(struct run *run, void *context, struct error *err);
int run_create_filled(struct run *run, const char *parent, const char *name, const struct config *config,
                      run_fill *fill, void *context, struct error *err);
/* Opens an existing run, to resume it: EXIT_LOCKED if another trainer holds it. */
int run_open(struct run *run, const char *directory, struct error *err);
/* The same with a lock that another process passed on: an inherited descriptor, closed with the run; -1:
 * none. */
int run_open_held(struct run *run, const char *directory, int lock, struct error *err);
/* Finds the run after its directory was moved: logs the move and updates run->directory (the first path
 * stays valid until the run is closed). An error: the run was removed. */
int run_follow(struct run *run, struct error *err);
/* Whether the run is at run->directory: the lock file there is the one that this process holds. If not, errno
 * is 0 where the run is known to be elsewhere, and else the reason why it is unknown. */
bool run_is_here(const struct run *run);
/* Closes all but the lock, which now belongs to the caller: the run stays locked until the descriptor and
 * every copy in a child are closed. */
int run_release(struct run *run);
void run_close(struct run *run);
/* Removes side files (file.h) from killed processes; to be called before this process writes any. */
void run_tidy(const struct run *run);

char *run_path(const struct run *run, const char *name);

enum { RUN_LAYOUT = 1 }; /* meta.json's version */
/* Refuses the meta.json of another layout with EXIT_INTEGRITY and the hint. One that says none is of this. */
int run_check_layout(const json_t *meta, const char *hint, struct error *err);

/* Opens one of its files, a regular one, for appending: no pipe or link in a run's directory can block or
 * redirect a writer. */
int run_append(const char *directory, const char *name, int *fd, struct error *err);

/* Writes one line with one write; steals the reference to the object. A metric line that cannot be written
 * is held and precedes the next one; no part of it stays in the file. */
int run_metric(struct run *run, json_t *line, struct error *err);
int run_event(struct run *run, const char *event, json_t *fields, struct error *err);
int run_state(struct run *run, const char *state, int64_t step, int64_t total, int64_t epoch, int exit_code,
              struct error *err);
/* Syncs metrics and events to disk, before the checkpoint that follows them. */
int run_sync(struct run *run, struct error *err);
/* Finds the step of the last checkpoint in the run's events; -1 if it never saved. */
int run_last_saved(const struct run *run, int64_t *step, struct error *err);
/* Drops metric lines after `step`, and a torn last line: a resumed run writes each step once. */
int run_truncate_metrics(struct run *run, int64_t step, struct error *err);

#endif
