/* Inside the supervisor: what supervise.c (the worker's life), supervise_live.c (what is told meanwhile) and
 * supervise_end.c (why it died) share. */
#ifndef MEOPT_CLI_SUPERVISOR_SUPERVISE_INTERNAL_H
#define MEOPT_CLI_SUPERVISOR_SUPERVISE_INTERNAL_H

#include "cli/supervisor/hooks.h"
#include "cli/supervisor/metric_export.h"
#include "cli/supervisor/supervise.h"
#include "cli/supervisor/worker.h"
#include "core/comm/serve.h"
#include "core/monitor/monitor.h"
#include "core/run/run.h"
#include "core/train/signals.h"

#include <jansson.h>
#include <sys/types.h>

enum { TICK_MS = 500, RANKS_TICK_MS = 100 }; /* a launcher that saw a rank die leaves us a second */

/* How far the supervisor has gone with stopping its worker. */
enum asked { ASKED_NOTHING, ASKED_TO_SAVE, ASKED_NOW };

/* One process of ours. */
struct watched {
    pid_t pid; /* 0: has ended, with `status` */
    int status;
    bool stopped; /* by SIGSTOP or the like */
};

struct supervisor {
    const struct supervision *s;
    struct run home;                 /* directory and lock alone: the run's, wherever it has been moved to */
    bool strayed;                    /* it is not there any more: nothing is written */
    int restarts;                    /* that are left */
    double pause_s;                  /* before the next one */
    bool resumed_by_us, stop_wanted; /* an attempt after the first; a worker has heard a request to stop */
    struct worker_report *report;    /* (count), the first is rank 0's */
    struct watched *workers;         /* (count) */
    int count, signals;
    pid_t pid;                       /* of rank 0's, also when it has ended */
    struct hub_server *hub;          /* of several ranks, else NULL */
    int shared;                      /* memory of ranks of this host; -1 */
    int verdict, lost;               /* exit code once a rank is lost, and which; -1 several */
    double bottleneck_at, bad_since; /* clock_seconds() */
    struct error why;                /* of the verdict */
    bool resume;                     /* as s->resume, and from the second attempt on */
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
    struct hooks *hooks; /* of all attempts */
    bool begun;
    double cards_noted_at; /* when cards.jsonl had its last line; 0: never */
    bool cards_refused;    /* it could not be written: said once */
};

/* ---- supervise.c ---- */

bool worker_lives(const struct supervisor *v, int i);
/* Whether the run's directory is there, and at which path: it may be moved while it trains, and another run
 * may take its old path, into which nothing is written. */
bool supervisor_at_home(struct supervisor *v);
/* Whether an attempt that ended like this is followed by another. */
bool supervisor_restarts(const struct supervisor *v, int code);
/* To all of ours that live. */
void workers_signal(const struct supervisor *v, int number);

/* ---- supervise_ranks.c ---- */

/* In the order of enum train_phase. A load, a pass of the teacher and the end have no pace to measure; a
 * save, and a file system that stands still while images are read, take as long as they take, as with one
 * rank alone. */
extern const struct hub_phase rank_phases[PHASE_COUNT];

/* The hub, and what the workers share; nothing for one rank alone. */
int ranks_open(struct supervisor *v, struct error *err);
void ranks_close(struct supervisor *v);
/* Has a rank been lost, or one of our workers ended badly? Who is left a few seconds later is killed by pid.
 */
void ranks_judge(struct supervisor *v);
/* Ranks of other processes have still to say farewell. */
bool ranks_wait(const struct supervisor *v);
/* Why the ranks ended. */
int ranks_cause(struct supervisor *v, struct error *err);
/* Of all ranks, for live.json; NULL for one alone. */
json_t *ranks_json(struct supervisor *v);

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
void live_report(struct supervisor *v);
/* live.json between two attempts. */
void live_report_pause(struct supervisor *v, int64_t step);
/* To the outlets alone. */
void live_hand_on(struct supervisor *v, const char *state, bool end);

/* ---- supervise_cards.c ---- */

/* The node's cards (core/run/telemetry.h); with the age of each reading, as live.json has it. */
json_t *cards_json(const struct supervisor *v, bool age);
/* Percent of the last seconds in which something waited for a disk; NULL: not known. */
json_t *io_pressure(const struct supervisor *v);
/* A line of cards.jsonl when the last is some seconds old, or it ends. */
void cards_note(struct supervisor *v, bool end);

/* ---- supervise_end.c ---- */

/* How many processes of a control group the kernel has killed for memory: from the text of its memory.events
 * or memory.oom_control. -1: not there. */
int64_t oom_kills(const char *text);
/* Of our own control group: what happens elsewhere on the machine says nothing of this worker. */
int64_t oom_kills_here(void);

/* Why worker i ended, from its status of wait() and its report. */
int end_cause(struct supervisor *v, int i, struct error *err);
/* state.json and events.jsonl, where the worker could not do it. again: the run is started again soon, so it
 * has not ended. */
void end_last_word(struct supervisor *v, int code, const struct error *err, bool again);
/* The same of a run that was asked to stop between two attempts: EXIT_STOPPED. */
int end_between(struct supervisor *v, struct error *err);

#endif
