/* Private to the supervisor: supervise.c (starts and stops workers), supervise_live.c (live.json),
 * supervise_workers.c (their processes), supervise_ranks.c (several ranks), supervise_cards.c (cards.jsonl),
 * supervise_end.c (final status). */
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

enum { TICK_MS = 500, RANKS_TICK_MS = 100 }; /* some launchers kill this process a second after a rank died */

/* How the supervisor has requested its workers to stop. */
enum stop_request { ASKED_NOTHING, ASKED_TO_SAVE, ASKED_NOW };

/* One worker process. */
struct watched {
    pid_t pid; /* 0: has ended, with `status` */
    int status;
    bool stopped; /* by SIGSTOP or the like */
};

struct supervisor {
    const struct supervision *s;
    struct run home;                 /* directory and lock only; follows a moved directory */
    bool directory_lost;             /* missing or another run's: nothing is written */
    int restarts;                    /* remaining */
    double pause_s;                  /* before the next restart */
    bool resumed_by_us, stop_wanted; /* not the first attempt; a worker received a stop request */
    bool accepted;                   /* the ranks have begun the run, or resumed it */
    struct worker_report *report;    /* (count), the first is rank 0's */
    struct watched *workers;         /* (count) */
    int count, signals;
    pid_t pid;                    /* of the worker of rank 0, also after it has ended */
    struct hub_server *hub;       /* NULL: a single rank */
    int shared;                   /* memory of ranks of this host; -1 */
    int lost_code, lost;          /* exit code after a rank is lost, 0: none; the lost rank, -1: several */
    double lost_at, failed_since; /* clock_seconds() */
    struct error why;             /* reason of lost_code */
    bool resume;                  /* s->resume, or not the first attempt */
    enum stop_request stop_request;
    int asked_by; /* the signal, SIGTERM for a request */
    double asked_at;
    struct signal_interrupts interrupts;
    int64_t marks; /* the last value of the workers' progress counters, and the time of the last change */
    double progress_at, longest_gap;
    int64_t oom_before;
    struct monitor *monitor;      /* opened after the worker has reported its card */
    struct monitor_snapshot seen; /* the last sample */
    struct metric_export *metric_export;
    struct hooks *hooks; /* of all attempts */
    bool begun;
    double cards_recorded_at; /* time of the last line of cards.jsonl; 0: none */
    bool cards_warned;        /* warned that it could not be written */
};

/* ---- supervise_workers.c ---- */

bool worker_running(const struct supervisor *v, int i);
/* Updates the path of the run directory, which may be moved during training. Returns false if it is
 * missing (errno 0; another run may use its old path) or cannot be read (errno): nothing is written then. */
bool supervisor_follow(struct supervisor *v);
/* Sends a signal to all running workers. */
void workers_signal(const struct supervisor *v, int number);

/* ---- supervise_ranks.c ---- */

/* Time limits without progress, indexed by enum train_phase. Only steps are measured. Saving and waiting
 * for images have no limit, as with a single rank: a slow file system is not a lost rank. */
extern const struct hub_phase rank_phases[PHASE_COUNT];

/* Start and stop the coordinator and the ranks' shared memory; no-ops for a single rank. */
int ranks_open(struct supervisor *v, struct error *err);
void ranks_close(struct supervisor *v);
/* Checks for a lost rank or a failed worker. Workers that still run RANKS_GRACE_SECONDS later are killed.
 * */
void ranks_check(struct supervisor *v);
/* Returns whether to keep running: launched ranks have not sent their exit messages, or the cause of a
 * failure is not known. */
bool ranks_wait(const struct supervisor *v);
/* Returns the exit code of the run and its reason. */
int ranks_cause(struct supervisor *v, struct error *err);
/* Adds the ranks to live.json: "ranks", and of more than RANKS_LISTED also "ranks_summary" and "hosts". */
void ranks_report(struct supervisor *v, json_t *live);
struct rank_now {
    struct hub_rank rank;
    bool joined;
    double silent; /* seconds since its last heartbeat */
};
void ranks_list(json_t *live, const struct rank_now *all, int size, struct comm_layout layout);

/* ---- supervise_live.c ---- */

/* Returns the longest allowed time without progress after a stop request: 20 minutes, or 10 times the
 * longest earlier gap. Saving adds the time for saving_bytes at 1 MB/s: one fsync, without visible
 * progress, may write them all. */
double silence_limit_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes);
/* Returns the time without progress after which the worker is reported as hung: after the first steps 5
 * times the longest gap, at least a minute; in other phases silence_limit_seconds. */
double hung_seconds(enum train_phase phase, double longest_gap, int64_t saving_bytes, bool measured);

/* Records progress of the workers. */
void live_watch(struct supervisor *v);
/* Opens telemetry and metric exports, after the worker has reported its card. */
void live_begin(struct supervisor *v);
/* Writes live.json, cards.jsonl and metric exports. */
void live_report(struct supervisor *v);
/* Writes live.json between two attempts. */
void live_report_pause(struct supervisor *v, int64_t step);
/* Updates the metric exports only. */
void live_export(struct supervisor *v, const char *state, bool end);

/* ---- supervise_cards.c ---- */

/* Returns the node's cards (core/run/telemetry.h); age: with the age of the readings, for live.json. */
json_t *cards_json(const struct supervisor *v, bool age);
/* Returns the percentage of the last 10 s in which a process waited for a disk; NULL: unknown. */
json_t *io_pressure(const struct supervisor *v);
/* Appends a line to cards.jsonl every few seconds, and at the end. */
void cards_record(struct supervisor *v, bool end);

/* ---- supervise_end.c ---- */

/* Parses the number of OOM kills from memory.events or memory.oom_control of a control group. -1: not
 * found. */
int64_t oom_kills(const char *text);
/* Returns the number of OOM kills in this process's control group. */
int64_t oom_kills_here(void);

/* Returns the exit code of worker i and the reason, from its wait() status and its report. */
int end_cause(struct supervisor *v, int i, struct error *err);
/* Writes the final status to state.json and events.jsonl, unless the worker has. again: a restart follows,
 * so the run has not ended. */
void end_write_status(struct supervisor *v, int code, const struct error *err, bool again);
/* Writes the final status of a run that was stopped between two attempts. Returns EXIT_STOPPED. */
int end_in_pause(struct supervisor *v, struct error *err);

#endif
