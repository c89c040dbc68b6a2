/* A job of Slurm that waits in the queue, the run that it will start, and the plan of that run. Nothing here
 * blocks for long: Slurm's commands and 'meopt plan' run next to the caller. */
#ifndef MEOPT_CLI_SLURM_QUEUE_H
#define MEOPT_CLI_SLURM_QUEUE_H

#include "cli/slurm/job.h"
#include "cli/slurm/script.h"

#include <jansson.h>
#include <stdio.h>

struct slurm_queue {
    struct slurm_job job;
    struct slurm_script script;
    int position, pending; /* by priority among the pending jobs of the partition; position 0: unknown */
    char *plan;            /* what 'meopt plan' prints; NULL: it still computes */
    char *plan_problem;    /* why there is no plan; NULL: there is one */
    char problem[320];     /* of the last question to Slurm; "": it answered */
    double failing_since;
    /* private */
    bool json;
    struct tool question, line, planner;
    double asked_at, lined_at;
};

enum slurm_queue_state {
    QUEUE_WAITS,  /* the run has not begun */
    QUEUE_BEGUN,  /* its directory is there, and it belongs to this start of the job */
    QUEUE_FAILED, /* err: the job has ended without a run, or Slurm does not answer */
};

/* Asks Slurm for the job, reads its script and starts 'meopt plan'; json: its --json. EXIT_FAILED: Slurm is
 * not installed or does not answer, no such job, or it starts no run. EXIT_USAGE: an array of several. */
int slurm_queue_open(struct slurm_queue *queue, const struct slurm_job *id, bool json, struct error *err);
/* Finds the user's job that starts the run in this directory. false: none, or Slurm does not answer. */
bool slurm_queue_find(struct slurm_job *id, const char *run);
/* Finds the job that will resume the run in this directory, which was part of a job and has ended early. */
bool slurm_queue_again(struct slurm_job *id, const char *run);
/* The same of a job that waits for nodes now. */
bool slurm_queue_waits(struct slurm_job *id, const char *run);
/* Takes the answers that have come, and asks Slurm again after some seconds. *changed becomes true if a shown
 * text has changed. patient: waits for Slurm for any time. */
enum slurm_queue_state slurm_queue_step(struct slurm_queue *queue, bool patient, bool *changed,
                                        struct error *err);
void slurm_queue_close(struct slurm_queue *queue);

/* Whether plan and position are there, or will not come. */
bool slurm_queue_ready(const struct slurm_queue *queue);

/* Writes one line: "job 4711: PENDING (Priority)". Returns dst. */
char *slurm_queue_head(const struct slurm_queue *queue, char *dst, size_t size);
/* Prints the state in the queue, and the plan, as translated lines. */
void slurm_queue_print(FILE *out, const struct slurm_queue *queue);
json_t *slurm_queue_json(const struct slurm_queue *queue);

#endif
