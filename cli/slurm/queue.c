/* Jobs in the queue: see queue.h. */
#include "cli/slurm/queue.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/device/device.h"
#include "core/run/run_summary.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    META_BYTES = 16 << 20,
    PLAN_SECONDS = 600,
    CANDIDATES = 16,
    ASK_SECONDS = 5,   /* between two questions for the job */
    LINE_SECONDS = 60, /* for the position: an answer has all pending jobs of the partition */
    GIVE_UP_SECONDS = 300,
};

/* ---- the run ---- */

/* Returns whether the run was started by the job; `restarted`: by its start after the last requeue. */
static bool belongs(const char *run, const struct slurm_job *job, bool restarted)
{
    json_t *meta = json_read_below(run, "meta.json", META_BYTES, NULL), *own = json_object_get(meta, "job");
    const char *restarts = json_word(own, "restarts");
    bool same = own && (job->task[0] ? strcmp(json_word(own, "array"), job->number) == 0 &&
                                           strcmp(json_word(own, "task"), job->task) == 0
                                     : strcmp(json_word(own, "id"), job->number) == 0);
    if (job->cluster[0] && *json_word(own, "cluster"))
        same = same && strcmp(json_word(own, "cluster"), job->cluster) == 0;
    if (restarted) same = same && atoi(restarts) == atoi(job->restarts);
    json_decref(meta);
    return same;
}

/* ---- the plan ---- */

/* Returns the type of the job's cards if this machine has none to find it by; NULL: the configuration
 * settles it. */
static const char *card_type(const struct slurm_queue *q)
{
    struct config config;
    struct error ignored;
    if (!q->job.gres[0] || device_is_card("auto")) return NULL;
    if (config_load(&config, q->script.config, q->script.overrides, q->script.override_count, &ignored))
        return NULL;
    bool automatic = config.device.type == DEVICE_TYPE_AUTO;
    config_free(&config);
    return !automatic ? NULL : strstr(q->job.gres, "dcu") ? "device.type=hip" : "device.type=cuda";
}

static void start_plan(struct slurm_queue *q)
{
    struct error err;
    const struct slurm_script *s = &q->script;
    const char **words = xcalloc((size_t)s->override_count + 9, sizeof *words), *type = card_type(q);
    int n = 0, tasks = atoi(q->job.task_count);
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", tasks > 0 && tasks <= 65536 ? tasks : 1);
    words[n++] = "/proc/self/exe";
    words[n++] = "plan";
    words[n++] = "--ranks";
    words[n++] = ranks;
    if (q->json) words[n++] = "--json";
    words[n++] = "--";
    words[n++] = s->config;
    for (int i = 0; i < s->override_count; i++) words[n++] = s->overrides[i];
    if (type) words[n++] = type;
    if (tool_start(&q->planner, words, PLAN_SECONDS, &err)) q->plan_problem = xstrdup(err.what);
    free(words);
}

/* Takes the text of a plan. It also exits with EXIT_CONFIG after a plan that does not fit. */
static bool take_plan(struct slurm_queue *q)
{
    static const char program[] = "meopt: ";
    char reason[400];
    if (!q->planner.text[0] || !tool_ended(&q->planner, 0)) return false;
    const char *said = strstr(q->planner.text[1], program);
    if (q->planner.bytes[0]) q->plan = xstrdup(q->planner.text[0]);
    else if (said) q->plan_problem = strndup(said + strlen(program), strcspn(said + strlen(program), "\n"));
    else q->plan_problem = xstrdup(tool_reason(&q->planner, reason, sizeof reason));
    tool_close(&q->planner);
    return true;
}

/* ---- questions to Slurm ---- */

static void start_line(struct slurm_queue *q)
{
    struct error ignored;
    const char *words[16] = {"squeue", "-h", "-t", "PENDING",       "--sort=-p",
                             "-o",     "%F", "-p", q->job.partition};
    if (q->job.cluster[0]) words[9] = "-M", words[10] = q->job.cluster;
    q->lined_at = clock_seconds();
    if (q->job.partition[0] && slurm_job_pending(&q->job))
        (void)tool_start(&q->line, words, SLURM_SECONDS, &ignored);
}

/* Counts the lines before that of the job. Returns whether the position has changed. */
static bool take_line(struct slurm_queue *q)
{
    int before = q->position, total = q->pending, count = 0;
    if (!q->line.text[0] || !tool_ended(&q->line, 0)) return false;
    q->position = 0;
    for (const char *p = q->line.text[0]; *p && q->line.status == 0; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t n = strspn(p, "0123456789");
        count += n > 0;
        if (n == strlen(q->job.number) && strncmp(p, q->job.number, n) == 0 && !q->position)
            q->position = count;
    }
    q->pending = count;
    tool_close(&q->line);
    return q->position != before || q->pending != total;
}

/* Reads the answer; keeps the old state if Slurm fails for now. Returns whether the job is unknown. */
static bool take_answer(struct slurm_queue *q, bool *changed, struct error *err)
{
    bool unknown;
    struct slurm_job before = q->job;
    int code = slurm_job_read(&q->job, &q->question, &unknown, err);
    tool_close(&q->question);
    if (code) q->job = before;
    if (!code) q->failing_since = 0;
    else if (!(q->failing_since > 0)) q->failing_since = clock_seconds();
    snprintf(q->problem, sizeof q->problem, "%.300s", code ? err->what : "");
    *changed |= code || memcmp(&before, &q->job, sizeof before) != 0;
    return unknown;
}

static int ask(struct slurm_queue *q, struct error *err)
{
    struct slurm_command question = slurm_job_question(&q->job);
    q->asked_at = clock_seconds();
    return tool_start(&q->question, question.words, SLURM_SECONDS, err);
}

int slurm_queue_open(struct slurm_queue *q, const struct slurm_job *id, bool json, struct error *err)
{
    bool unknown;
    *q = (struct slurm_queue){.job = *id, .json = json};
    int code = ask(q, err);
    if (code)
        return error_set(err, EXIT_FAILED,
                         "run it on a login node of the cluster, or name the run's directory",
                         "%s is a job of Slurm, and scontrol is not installed here", id->id);
    while (!tool_ended(&q->question, 1000))
        ;
    code = slurm_job_read(&q->job, &q->question, &unknown, err);
    tool_close(&q->question);
    char *text = code ? NULL : slurm_job_script(&q->job, err);
    if (!code && !text) code = err->code;
    if (!code) code = slurm_script_read(&q->script, text, q->job.number, q->job.task, err);
    free(text);
    if (!code && !slurm_job_over(&q->job) && !belongs(q->script.run, &q->job, true)) {
        start_plan(q);
        start_line(q);
    }
    if (code) slurm_queue_close(q);
    return code;
}

bool slurm_queue_find(struct slurm_job *id, const char *run)
{
    char user[24], tasks[16], reason[300];
    const char *base = path_basename(run), *words[] = {"squeue", "-h", "-u", user, "-o", "%F %j", NULL};
    struct tool t;
    struct error ignored;
    bool found = false, unknown;
    int tried = 0;
    snprintf(user, sizeof user, "%lld", (long long)getuid());
    if (tool_run(&t, words, SLURM_SECONDS, &ignored)) return false;
    if (t.status != 0)
        log_warn("cannot ask Slurm for queued jobs: %s", tool_reason(&t, reason, sizeof reason));
    for (const char *p = t.text[0]; *p && !found && t.status == 0; p += strcspn(p, "\n"), p += *p == '\n') {
        struct slurm_job job = {0};
        size_t n = strspn(p, "0123456789"), name = p[n] == ' ' ? strcspn(p + n + 1, "\n") : 0;
        if (!n || n >= sizeof job.number || !name || strncmp(p + n + 1, base, name) != 0 ||
            (base[name] && base[name] != '-') || tried++ == CANDIDATES)
            continue;
        snprintf(job.number, sizeof job.number, "%.*s", (int)n, p);
        snprintf(job.id, sizeof job.id, "%s", job.number);
        struct slurm_command question = slurm_job_question(&job);
        struct tool answer;
        if (tool_run(&answer, question.words, SLURM_SECONDS, &ignored)) break;
        (void)slurm_job_read(&job, &answer, &unknown, &ignored); /* of an array, any task */
        tool_close(&answer);
        char *text = slurm_job_script(&job, &ignored);
        found = text && slurm_script_find(text, run, tasks);
        free(text);
        *id = (struct slurm_job){0};
        snprintf(id->number, sizeof id->number, "%s", job.number);
        snprintf(id->task, sizeof id->task, "%s", tasks);
        snprintf(id->id, sizeof id->id, "%s%s%s", job.number, tasks[0] ? "_" : "", tasks);
    }
    tool_close(&t);
    return found;
}

/* *same: the job is the one that the run was part of. */
static bool find_again(struct slurm_job *id, const char *run, bool *same)
{
    struct run_brief b = {.name = xstrdup(""), .directory = xstrdup(run)};
    struct slurm_job job;
    char word[160];
    run_brief_read(&b);
    snprintf(word, sizeof word, "%s%s%s", b.job, b.cluster[0] ? "@" : "", b.cluster);
    bool may =
        run_status_over(&b.status) && strcmp(b.status.state, "done") != 0 && slurm_job_parse_id(&job, word);
    run_brief_free(&b);
    if (!may || !slurm_queue_find(id, run)) return false;
    *same = strcmp(id->number, job.number) == 0;
    if (*same) *id = job;
    return true;
}

bool slurm_queue_again(struct slurm_job *id, const char *run)
{
    bool same;
    return find_again(id, run, &same);
}

bool slurm_queue_waits(struct slurm_job *id, const char *run)
{
    bool same, unknown;
    struct tool answer;
    struct error ignored;
    if (!find_again(id, run, &same)) return false;
    struct slurm_job job = *id;
    struct slurm_command question = slurm_job_question(id);
    if (tool_run(&answer, question.words, SLURM_SECONDS, &ignored)) return false;
    int code = slurm_job_read(&job, &answer, &unknown, &ignored);
    tool_close(&answer);
    return !code && slurm_job_pending(&job) && (!same || atoi(job.restarts) > 0);
}

enum slurm_queue_state slurm_queue_step(struct slurm_queue *q, bool patient, bool *changed, struct error *err)
{
    bool unknown = false, asked = q->question.text[0] != NULL;
    if (asked && tool_ended(&q->question, 0)) unknown = take_answer(q, changed, err);
    else if (!asked && clock_seconds() - q->asked_at >= ASK_SECONDS && ask(q, err)) return QUEUE_FAILED;
    *changed |= take_plan(q);
    *changed |= take_line(q);
    if (!q->line.text[0] && clock_seconds() - q->lined_at >= LINE_SECONDS) start_line(q);
    bool over = slurm_job_over(&q->job) || unknown;
    if (belongs(q->script.run, &q->job, !over)) return QUEUE_BEGUN;
    if (over) {
        char hint[320] = N_("'sacct -j JOBID' shows how it ended");
        if (q->job.output[0]) snprintf(hint, sizeof hint, _("its output: %.290s"), q->job.output);
        error_set(err, EXIT_FAILED, hint, "job %s has ended without a run: %s%s%s", q->job.id,
                  unknown ? _("unknown to Slurm") : q->job.state, q->job.reason[0] ? ", " : "",
                  q->job.reason);
        return QUEUE_FAILED;
    }
    if (!patient && q->failing_since > 0 && clock_seconds() - q->failing_since > GIVE_UP_SECONDS) {
        error_set(err, EXIT_FAILED, "'scontrol ping' shows whether slurmctld answers", "%s", q->problem);
        return QUEUE_FAILED;
    }
    return QUEUE_WAITS;
}

bool slurm_queue_ready(const struct slurm_queue *q) { return !q->planner.text[0] && !q->line.text[0]; }

void slurm_queue_close(struct slurm_queue *q)
{
    tool_close(&q->question);
    tool_close(&q->line);
    tool_close(&q->planner);
    slurm_script_free(&q->script);
    free(q->plan);
    free(q->plan_problem);
    q->plan = q->plan_problem = NULL;
}
