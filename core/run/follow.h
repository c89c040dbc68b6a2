/* Reading a run while it is written, or later: the data of a dashboard, in bounded memory for any length
 * of run.
 *
 * metrics.jsonl may have millions of lines. It is first sampled by seeking, its end is read completely,
 * and then each appended line. The history keeps at most FOLLOW_POINTS points; if they are full,
 * neighbours are merged. A file that became shorter (a resumed run writes its last steps again) is read
 * again from the beginning.
 */
#ifndef MEOPT_RUN_FOLLOW_H
#define MEOPT_RUN_FOLLOW_H

#include "core/base/error.h"
#include "core/comm/layout.h"
#include "core/run/many_ranks.h"
#include "core/run/memory.h"
#include "core/run/metric_line.h"
#include "core/run/status.h"
#include "core/run/tail.h"

#include <stddef.h>

enum {
    FOLLOW_POINTS = 4096,
    FOLLOW_RECENT = 2048,
    FOLLOW_LINES = 200,
    FOLLOW_CARDS = RANKS_LISTED,
    FOLLOW_READINGS = 1024,
    FOLLOW_MARKS = 64,
    FOLLOW_HOLDERS = 4
};

/* An event that changes a curve: a changed key, a resume. */
struct follow_mark {
    double step;
    char text[96];
};

enum follow_reading { READING_USED, READING_BUSY, READING_TEMP, READING_POWER, READING_COUNT };

/* The metrics of a step. */
enum follow_metric {
    METRIC_LOSS,
    METRIC_SCORES,
    METRIC_GRAD_NORM = METRIC_SCORES + SCORE_COUNT, /* after one metric per row of scores.h */
    METRIC_LR,
    METRIC_IMAGES_PER_S,
    METRIC_STEP_MS,
    METRIC_DATA_WAIT_MS,
    METRIC_COUNT
};
/* Returns the value, as a percentage if it is a share. */
double follow_metric(const struct metric_line *line, enum follow_metric metric);
/* Returns the row of a metric of the objective, NULL for other metrics. */
const struct score_row *follow_score(enum follow_metric metric);

struct follow_point {
    double first_step, last_step; /* of the lines merged into this point */
    double seconds;               /* training time up to the last of them */
    double values[METRIC_COUNT];  /* means */
    int lines;
};

/* One card, or the CPU: the trainer's own accounting and the monitor's readings. NAN: unknown. */
struct follow_card {
    int rank; /* -1: a card of the node that the run does not use */
    char device[96], pci[32];
    struct run_memory memory;
    double images_per_s;    /* of this rank */
    double waiting_percent; /* of a run with several ranks: percentage of time that it waited for others */
    bool silent;            /* no activity */
    double used_bytes, total_bytes, process_bytes, busy_percent, temp_c, power_w;
    double age_s; /* age of these readings when live.json was read */
    struct {
        int pid;
        char name[32]; /* "": unknown */
        double bytes;
    } holders[FOLLOW_HOLDERS]; /* processes of other programs, the largest first */
    int holder_count;
    unsigned sources;                 /* private: files that list this rank, of more than FOLLOW_CARDS */
    float (*readings)[READING_COUNT]; /* from cards.jsonl, at reading_times; NULL: no readings */
};

/* A host of a run with many ranks. */
struct follow_host {
    char name[64];
    int first_rank, ranks, running;
    int64_t peak_bytes; /* the largest of a rank */
};

struct follow {
    char *directory;
    bool gone;      /* the directory was removed */
    bool disk_full; /* its file system is full: the run cannot write */
    struct run_status status;

    /* meta.json, plan.json */
    char family[32], device[96];
    double started;
    int64_t student_parameters, teacher_parameters, epoch_steps; /* epoch_steps: -1 unknown */
    struct run_memory plan, baseline;                            /* of the rank with the most memory */
    struct run_memory rank_plans[FOLLOW_CARDS]; /* of each rank, if they differ: see follow_plan */
    int rank_plan_count;
    struct comm_layout layout; /* of the ranks; stages 0: no pipeline */
    double planned_bubble;     /* share of a step in which a stage waits for others; stages 0: undefined */
    bool has_meta, has_plan, use_meopt;
    char teacher[96], student[96]; /* names of the weight files, from config.yaml; " +1": another teacher */
    bool has_teacher;              /* the objective has a teacher */
    int64_t batch, data_workers;   /* data_workers 0: one per processor */

    /* metrics.jsonl */
    struct metric_line last;    /* step -1: none yet */
    double scores[SCORE_COUNT]; /* the newest */
    bool scored[SCORE_COUNT];   /* a line has it */
    double bubble;              /* the newest, with stages; NAN: none yet */
    struct follow_point *points;
    int point_count, stride;    /* lines per point from now on */
    struct metric_line *recent; /* ring of the last lines */
    int64_t recent_count;       /* total number added; index modulo FOLLOW_RECENT */
    double seconds;             /* training time: the sum of step_ms, estimated where lines were skipped */
    double best_loss;
    int64_t gaps; /* lines that are no metrics */

    /* live.json */
    char worker[32], phase[48];
    double silent_s, live_time; /* live_time 0: there is no live.json */
    /* percentage of time that a process of that host waited for a disk; NAN: unknown */
    double io_percent;
    int slowest_rank; /* the rank that others wait for; -1: none */
    char slowest_host[64];
    double slowest_costs;                   /* percentage of time that they wait */
    char fallback[200];                     /* a slower alternative in use since the start; "": none */
    struct follow_card cards[FOLLOW_CARDS]; /* by rank; of more ranks the listed ones, the worst first */
    int card_count;
    int rank_count, running_count, host_count; /* of more than FOLLOW_CARDS ranks; 0: fewer, or unknown */
    struct many_range now_bytes, peak_bytes;   /* over all of these ranks */
    struct follow_host hosts[HOSTS_LISTED];    /* the worst first */
    int hosts_listed;
    struct follow_card others[FOLLOW_CARDS]; /* the node's other cards */
    int other_count;

    /* cards.jsonl: at most FOLLOW_READINGS; if they are full, neighbours are merged */
    double *reading_times, *reading_steps;
    int reading_count, reading_stride, reading_lines; /* lines in the last one */

    char *events[FOLLOW_LINES], *log[FOLLOW_LINES]; /* rings of printable lines */
    int64_t event_count, log_count;

    struct follow_mark marks[FOLLOW_MARKS]; /* ring of the last marks */
    int mark_count;                         /* total number added */

    /* private */
    struct tail metrics, event_tail, log_tail, card_tail;
    int places;        /* offsets at which a long file is sampled */
    int64_t end_bytes; /* bytes at its end that are read completely */
    bool replay;
    double replay_seconds; /* training time up to which the replay shows the run */
    bool replay_end;       /* the replay has reached the end */
};

/* EXIT_FAILED if the directory is no run. replay: reads nothing until follow_replay sets the clock. */
int follow_open(struct follow **follow, const char *directory, bool replay, struct error *err);
/* Opens and reads the run once, for a list of many runs: long files at a few offsets and their last 64
 * KiB. */
int follow_glance(struct follow **follow, const char *directory, struct error *err);
/* Reads the data written since the last call, in bounded time. */
void follow_refresh(struct follow *follow);
void follow_replay(struct follow *follow, double seconds);
/* Opens the run as it was at a step: the last line, cards, events and log up to that step, without curves.
 * Bounded time for any length of run. The caller closes it like the run. */
int follow_at(struct follow **past, const struct follow *now, double step, struct error *err);
void follow_close(struct follow *follow);

/* Returns the planned memory of a rank; the largest for -1 and for a rank without a plan of its own. */
const struct run_memory *follow_plan(const struct follow *follow, int rank);

#endif
