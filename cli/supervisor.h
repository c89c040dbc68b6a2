/* Inside the supervisor: what supervise.c (the worker's life), supervise_live.c (what is told meanwhile) and
 * supervise_end.c (why it died) share. */
#ifndef MEOPT_CLI_SUPERVISOR_H
#define MEOPT_CLI_SUPERVISOR_H

#include "cli/outlets.h"
#include "cli/supervise.h"
#include "cli/worker.h"
#include "core/monitor/monitor.h"
#include "core/train/signals.h"

#include <jansson.h>
#include <sys/types.h>

enum { TICK_MS = 500 };

/* How far the supervisor has gone with stopping its worker. */
enum asked { ASKED_NOTHING, ASKED_TO_SAVE, ASKED_NOW };

struct supervisor {
    const struct supervision *s;
    struct worker_report *report;
    pid_t pid;
    bool stopped; /* by SIGSTOP or the like */
    enum asked asked;
    int asked_by; /* the signal, SIGTERM for a request */
    double asked_at;
    struct signal_interrupts interrupts;
    int64_t marks; /* last seen, and when they moved */
    double moved_at, longest_gap;
    int64_t oom_before;
    struct monitor *monitor;      /* opened once the worker has said where it trains */
    struct monitor_snapshot seen; /* what it said last */
    struct outlets *outlets;
    bool begun;
    double cards_noted_at; /* when cards.jsonl had its last line; 0: never */
    bool cards_refused;    /* it could not be written: said once */
};

/* ---- supervise_live.c ---- */

/* For how long a worker may be silent before it is taken for dead: 20 minutes, ten times the longest silence
 * behind which it has moved before, and while it saves what a file system of 1 MB/s would take (an fsync,
 * which nothing can be seen of, may have all of it to write). */
double patience_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes);
/* And before people are told that it hangs: 5 times the longest silence once steps have been made, at least a
 * minute; in every other phase the patience. */
double hung_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes, bool measured);

/* Has it moved? */
void live_watch(struct supervisor *v);
/* Telemetry and outlets, once the worker has said where it trains. */
void live_begin(struct supervisor *v);
/* live.json and the outlets. */
void live_tell(struct supervisor *v);
/* To the outlets alone. */
void live_hand_on(struct supervisor *v, const char *state, bool end);

/* ---- supervise_cards.c ---- */

/* The node's cards (core/run/telemetry.h); with the age of each reading, as live.json has it. */
json_t *cards_json(const struct supervisor *v, bool age);
/* A line of cards.jsonl when the last is some seconds old, or it ends. */
void cards_note(struct supervisor *v, bool end);

/* ---- supervise_end.c ---- */

/* How many processes of a control group the kernel has killed for memory: from the text of its memory.events
 * or memory.oom_control. -1: not there. */
int64_t oom_kills(const char *text);
/* Of our own control group: what happens elsewhere on the machine says nothing of this worker. */
int64_t oom_kills_here(void);

/* Why the worker ended, from its status of wait(). */
int end_cause(struct supervisor *v, int status, struct error *err);
/* state.json and events.jsonl, where the worker could not do it. */
void end_last_word(struct supervisor *v, int code, const struct error *err);

#endif
