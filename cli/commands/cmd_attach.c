/* meopt attach: opens the dashboard of a run. While the run's job waits in Slurm's queue, it shows the state
 * of the queue and the plan, and then becomes the dashboard. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/dashboard/dash.h"
#include "cli/dashboard/queue_view.h"
#include "cli/dashboard/run_list.h"
#include "cli/dashboard/run_table.h"
#include "cli/run_name.h"
#include "cli/slurm/queue.h"
#include "cli/terminal/screen.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a run ---- */

static int attach_dashboard(const struct arguments *args, const char *directory, struct error *err)
{
    struct run_status s;
    int ended, code = run_status_read(&s, directory, err);
    if (code) return code;
    if (argument_flag(args, "json")) {
        print_json(json_pack("{s:o, s:s, s:I, s:I, s:n, s:n}", "run", path_json(directory), "state", s.state,
                             "step", (json_int_t)s.step, "total_steps", (json_int_t)s.total, "job", "plan"));
        return 0;
    }
    if (!screen_possible())
        return screen_refused("attach", "without a terminal: --json, or RUN/metrics.jsonl", err);
    char *baselines[DASH_BASELINES];
    code = dash_baselines_given(baselines, args, err);
    struct dash_options options = {
        .directory = directory, .baselines = baselines, .ascii = argument_flag(args, "ascii")};
    if (!code) code = dash_view(&options, &ended, err);
    dash_baselines_free(baselines);
    return code;
}

/* ---- a job in the queue ---- */

/* Prints the state and the plan, then a line for each new state, until the run has begun. */
static enum slurm_queue_state follow_queue(struct slurm_queue *q, struct error *err)
{
    enum slurm_queue_state state;
    char last[512] = "", head[512];
    bool changed = false;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        state = slurm_queue_step(q, false, &changed, err);
        slurm_queue_head(q, head, sizeof head);
        if (state == QUEUE_WAITS && !last[0] && !slurm_queue_ready(q)) continue;
        if (!last[0] && state == QUEUE_WAITS) slurm_queue_print(stdout, q);
        else if (strcmp(last, head) != 0) printf("%s\n", head);
        snprintf(last, sizeof last, "%s", head);
        fflush(stdout);
    } while (state == QUEUE_WAITS && !ferror(stdout));
    return state;
}

/* Prints one object: the job, and the plan when it is computed. */
static enum slurm_queue_state print_queue(struct slurm_queue *q, struct error *err)
{
    enum slurm_queue_state state;
    bool changed = false;
    while ((state = slurm_queue_step(q, false, &changed, err)) == QUEUE_WAITS && !slurm_queue_ready(q))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    if (state == QUEUE_WAITS) print_json(slurm_queue_json(q));
    return state;
}

static int attach_queue(const struct arguments *args, struct slurm_queue *q, struct error *err)
{
    bool json = argument_flag(args, "json"), begun = false, changed = false;
    bool lines = !json && !screen_possible();
    int code = 0;
    enum slurm_queue_state state = slurm_queue_step(q, false, &changed, err);
    if (state != QUEUE_WAITS) begun = state == QUEUE_BEGUN;
    else if (json) state = print_queue(q, err), begun = state == QUEUE_BEGUN;
    else if (lines && (state = follow_queue(q, err)) == QUEUE_BEGUN)
        log_info("%s has begun; 'meopt runs --json' has its state", q->script.run);
    else if (!lines) code = queue_view(q, argument_flag(args, "ascii"), &begun, err);
    if (state == QUEUE_FAILED) code = err->code;
    char *directory = xstrdup(q->script.run);
    slurm_queue_close(q);
    if (!code && begun) code = attach_dashboard(args, directory, err);
    free(directory);
    return code;
}

/* ---- the operand ---- */

/* Returns the directory of the newest run of the job in the directory of runs, malloc'ed; NULL: none. */
static char *run_of_job(const char *runs, const struct slurm_job *job)
{
    struct run_table t = {.directory = runs};
    char *found = NULL;
    snprintf(t.filter, sizeof t.filter, "%s", job->id);
    if (run_table_refresh(&t, INFINITY, NULL))
        for (int i = 0; i < t.shown_count && !found; i++) {
            const struct run_brief *b = &t.briefs[t.shown[i]];
            if (strcmp(b->job, job->id) == 0 &&
                (!job->cluster[0] || !b->cluster[0] || strcmp(b->cluster, job->cluster) == 0))
                found = xstrdup(b->directory);
        }
    run_table_free(&t);
    return found;
}

/* Shows a run that exists: as the queue if its job, or a new one, waits to resume it. */
static int attach_existing(const struct arguments *args, const char *directory, struct error *err)
{
    struct slurm_job job;
    struct slurm_queue q;
    struct error ignored;
    if (slurm_queue_again(&job, directory) &&
        slurm_queue_open(&q, &job, argument_flag(args, "json"), &ignored) == 0)
        return attach_queue(args, &q, err);
    return attach_dashboard(args, directory, err);
}

static int attach_job(const struct arguments *args, const struct slurm_job *job, struct error *err)
{
    struct slurm_queue q;
    char *directory = run_of_job(argument_text(args, "run-dir", "runs"), job);
    struct run_status s;
    bool active = directory && run_status_read(&s, directory, NULL) == 0 && !run_status_over(&s);
    int code = active ? -1 : slurm_queue_open(&q, job, argument_flag(args, "json"), err);
    if (!code) code = attach_queue(args, &q, err);
    else if (directory) code = attach_dashboard(args, directory, err);
    free(directory);
    return code;
}

static int attach_run(const struct arguments *args, struct error *err)
{
    const char *parent = argument_text(args, "run-dir", "runs"), *word = args->operands[0];
    struct slurm_job job;
    struct slurm_queue q;
    int code = 0;
    if (!args->operand_count && argument_flag(args, "json"))
        return error_set(err, EXIT_USAGE, "'meopt runs --json' lists all runs", "--json requires RUN");
    if (!args->operand_count) return workspace_view(parent, argument_flag(args, "ascii"), err);
    char *within = path_join(strchr(word, '/') ? "" : parent, word), *directory = NULL;
    if (!file_absent(word)) directory = xstrdup(word);
    else if (!file_absent(within)) directory = xstrdup(within);
    if (directory) code = attach_existing(args, directory, err);
    else if (slurm_job_parse_id(&job, word)) code = attach_job(args, &job, err);
    else if (slurm_queue_find(&job, within)) {
        code = slurm_queue_open(&q, &job, argument_flag(args, "json"), err);
        if (!code) code = attach_queue(args, &q, err);
    } else if ((directory = run_named(word, parent, &code, err)) != NULL)
        code = attach_existing(args, directory, err);
    free(directory);
    free(within);
    return code;
}

static const struct option attach_options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"baseline", .type = OPTION_LIST, .value = "RUN",
     .help = "draw the curves of this run below; may be repeated"},
    {"ascii", .help = "draw with ASCII characters only"},
    {"json", .help = "print one object: the state of the run, or of its job and the plan"},
    {0},
};
const struct command cmd_attach = {
    .name = "attach",
    .operands = "[RUN|JOB]",
    .summary = "open the dashboard of a run, or the list of runs",
    .details = "Examples:\n  meopt attach runs/eva\n  meopt attach 4711       a job of "
               "Slurm; while it is queued: its state "
               "and the plan\n  meopt attach 4712_3     a run of an array",
    .options = attach_options,
    .max_operands = 1,
    .run = attach_run,
};
