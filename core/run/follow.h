/* Reading a run while it is written, or long after:
 * what a dashboard shows, in bounded memory whatever the run's length.
 *
 * metrics.jsonl may have millions of lines: at first it is sampled by seeking, its end
 * is read whole, and from then on what is appended. The history keeps at most
 * FOLLOW_POINTS points; when they are full, neighbours are merged. A file that became
 * shorter (a resumed run writes its last steps anew) is read again from the beginning.
 */
#ifndef MEOPT_RUN_FOLLOW_H
#define MEOPT_RUN_FOLLOW_H

#include "core/base/error.h"
#include "core/run/memory.h"
#include "core/run/metric_line.h"
#include "core/run/status.h"
#include "core/run/tail.h"

#include <stddef.h>

enum {
    FOLLOW_POINTS = 4096,
    FOLLOW_RECENT = 2048,
    FOLLOW_LINES = 200,
    FOLLOW_CARDS = 64,
    FOLLOW_READINGS = 1024,
    FOLLOW_MARKS = 64,
    FOLLOW_HOLDERS = 4
};

/* An event that bends a curve: a changed key, a resume. */
struct follow_mark {
    double step;
    char text[96];
};

enum follow_reading { READING_USED, READING_BUSY, READING_TEMP, READING_POWER, READING_COUNT };

/* What a metric line says of a step. */
enum follow_metric {
    METRIC_LOSS,
    METRIC_COSINE,
    METRIC_GRAD_NORM,
    METRIC_LR,
    METRIC_IMAGES_PER_S,
    METRIC_STEP_MS,
    METRIC_DATA_WAIT_MS,
    METRIC_COUNT
};
double follow_metric(const struct metric_line *line, enum follow_metric metric);

struct follow_point {
    double first_step, last_step; /* of the lines it stands for */
    double seconds;               /* trained, behind the last of them */
    double values[METRIC_COUNT];  /* means */
    int lines;
};

/* One card, or the processor: the trainer's own account,
 * and what the monitor says of the device. NAN: not known. */
struct follow_card {
    int rank; /* -1: of the node, but not of the run */
    char device[96], pci[32];
    struct run_memory memory;
    double images_per_s;    /* of this rank */
    double waiting_percent; /* of several ranks: in which it waited for the others; 0 to 100 */
    bool silent;            /* it gives no sign */
    double used_bytes, total_bytes, process_bytes, busy_percent, temp_c, power_w;
    double age_s; /* of these, when live.json was read */
    struct {
        int pid;
        char name[32]; /* "": not known */
        double bytes;
    } holders[FOLLOW_HOLDERS]; /* processes that are not the run's, the largest first */
    int holder_count;
    float (*readings)[READING_COUNT]; /* of cards.jsonl, at reading_times; NULL: never told */
};

struct follow {
    char *directory;
    bool gone;      /* the directory */
    bool disk_full; /* its file system has no room left: what the run writes does not arrive */
    struct run_status status;

    /* meta.json, plan.json */
    char family[32], device[96];
    double started;
    int64_t student_parameters, teacher_parameters, epoch_steps; /* epoch_steps: -1 not known */
    struct run_memory plan, baseline;                            /* of the rank that holds the most */
    struct run_memory rank_plans[FOLLOW_CARDS]; /* of each rank, where they differ: follow_plan */
    int rank_plan_count;
    bool has_meta, has_plan, use_meopt;
    char teacher[96], student[96]; /* names of the weight files, from config.yaml */
    int64_t batch, data_workers;   /* data_workers 0: one per processor */

    /* metrics.jsonl */
    struct metric_line last; /* step -1: none yet */
    struct follow_point *points;
    int point_count, stride;    /* lines per point from now on */
    struct metric_line *recent; /* ring of the last lines */
    int64_t recent_count;       /* ever put in; index modulo FOLLOW_RECENT */
    double seconds;             /* trained: the sum of step_ms, estimated where lines were skipped */
    double best_loss;
    int64_t gaps; /* foreign lines */

    /* live.json */
    char worker[32], phase[48];
    double silent_s, live_time; /* live_time 0: there is none */
    double io_percent;          /* of the time something on that host waited for a disk; NAN: not known */
    int slowest_rank;           /* that the others wait for, -1: none stands out */
    char slowest_host[64];
    double slowest_costs; /* percent of the time that they wait */
    char fallback[200];   /* of the start: a slower way that was taken; "": none */
    struct follow_card cards[FOLLOW_CARDS];
    int card_count;
    struct follow_card others[FOLLOW_CARDS]; /* the node's other cards */
    int other_count;

    /* cards.jsonl: at most FOLLOW_READINGS, neighbours merged when they are full */
    double *reading_times, *reading_steps;
    int reading_count, reading_stride, reading_lines; /* lines in the last one */

    char *events[FOLLOW_LINES], *log[FOLLOW_LINES]; /* rings of lines fit to be shown */
    int64_t event_count, log_count;

    struct follow_mark marks[FOLLOW_MARKS]; /* ring of the last ones */
    int mark_count;                         /* ever put in */

    /* private */
    struct tail metrics, event_tail, log_tail, card_tail;
    int places;        /* at which a long file is sampled */
    int64_t end_bytes; /* of it that are read whole */
    bool replay;
    double replay_seconds; /* training time that may be shown */
    bool replay_end;       /* the whole run has been shown */
};

/* EXIT_FAILED when the directory is no run. replay: nothing is read until follow_replay has set the clock. */
int follow_open(struct follow **follow, const char *directory, bool replay, struct error *err);
/* Opened and read once, for a list of many: long files at a few places and their last 64 KiB. */
int follow_glance(struct follow **follow, const char *directory, struct error *err);
/* Take in what has been written since; bounded time. */
void follow_refresh(struct follow *follow);
void follow_replay(struct follow *follow, double seconds);
/* The run as it was at a step: its last line, cards, events and log up to there; no curves. Bounded time,
 * whatever its length. To be closed like the run itself. */
int follow_at(struct follow **past, const struct follow *now, double step, struct error *err);
void follow_close(struct follow *follow);

/* What that rank is planned to hold; of one that is not told apart, and of -1, what the most is. */
const struct run_memory *follow_plan(const struct follow *follow, int rank);

/* The newest whole line of a run's metrics; false when there is none. */
bool follow_last(const char *directory, struct metric_line *line);

#endif
