/* The job in the queue and its plan, as text and as JSON: see queue.h. */
#include "cli/slurm/queue.h"
#include "cli/config/cmd_config.h"
#include "cli/dashboard/dash_layout.h"
#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/run/status.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

char *slurm_queue_head(const struct slurm_queue *q, char *dst, size_t size)
{
    const struct slurm_job *job = &q->job;
    snprintf(dst, size, job->reason[0] ? _("job %s%s%s: %s (%s)") : _("job %s%s%s: %s"), job->id,
             job->cluster[0] ? "@" : "", job->cluster, job->state, job->reason);
    return dst;
}

static void print_field(FILE *out, const char *label, const char *value)
{
    if (value[0]) fprintf(out, "%*s %s\n", PAD(-16, label), value);
}

/* Writes "2026-11-27T15:04:00 (in 1:02:03)". */
static void describe_start(const struct slurm_job *job, char *dst, size_t size)
{
    char left[24];
    double seconds = slurm_time(job->start) - (double)time(NULL);
    if (!job->start[0]) snprintf(dst, size, "%s", _("unknown to Slurm"));
    else if (seconds <= 0) snprintf(dst, size, "%s", job->start);
    else snprintf(dst, size, _("%s (in %s)"), job->start, dash_duration(left, sizeof left, seconds));
}

static void print_job(FILE *out, const struct slurm_queue *q)
{
    const struct slurm_job *job = &q->job;
    struct run_status saved;
    char text[400], waited[24], shown[4096];
    double submitted = slurm_time(job->submitted);
    print_field(out, _("run"), name_printable(shown, sizeof shown, q->script.run));
    print_field(out, _("configuration"), name_printable(shown, sizeof shown, q->script.config));
    print_field(out, _("job name"), job->name);
    print_field(out, _("partition"), job->partition);
    snprintf(text, sizeof text, _("%s, tasks: %s"), job->nodes[0] ? job->nodes : job->node_count,
             job->task_count[0] ? job->task_count : "1");
    print_field(out, _("nodes"), text);
    text[0] = 0;
    if (submitted > 0)
        snprintf(text, sizeof text, "%s (%s)", job->submitted,
                 dash_duration(waited, sizeof waited, (double)time(NULL) - submitted));
    print_field(out, _("queued since"), text);
    if (slurm_job_pending(job)) {
        snprintf(text, sizeof text, _("%d of %d pending in the partition, by priority"), q->position,
                 q->pending);
        print_field(out, _("position"), q->position ? text : "");
        describe_start(job, text, sizeof text);
        print_field(out, _("expected start"), text);
    } else print_field(out, _("started"), job->start);
    if (run_status_read(&saved, q->script.run, NULL) == 0) {
        snprintf(text, sizeof text, _("step %lld of %lld, %s; restarts: %s"), (long long)saved.step,
                 (long long)saved.total, _(saved.state), job->restarts[0] ? job->restarts : "0");
        print_field(out, _("so far"), text);
    }
    if (!q->problem[0]) return;
    snprintf(text, sizeof text, "%.300s (%s)", q->problem,
             dash_duration(waited, sizeof waited, clock_seconds() - q->failing_since));
    print_field(out, "Slurm", text);
}

void slurm_queue_print(FILE *out, const struct slurm_queue *q)
{
    char head[512], problem[600];
    fprintf(out, "%s\n\n", slurm_queue_head(q, head, sizeof head));
    print_job(out, q);
    fputc('\n', out);
    if (q->plan) fputs(q->plan, out);
    else if (q->plan_problem)
        fprintf(out, _("no plan: %s\n"), name_printable(problem, sizeof problem, q->plan_problem));
    else if (q->planner.text[0]) fprintf(out, "%s\n", _("computing the plan"));
}

static json_t *text_or_null(const char *text) { return text[0] ? json_string(text) : json_null(); }
static json_t *time_or_null(const char *text)
{
    double seconds = slurm_time(text);
    return seconds > 0 ? json_integer((json_int_t)seconds) : json_null();
}
static json_t *count_or_null(int64_t count)
{
    return count > 0 ? json_integer((json_int_t)count) : json_null();
}

json_t *slurm_queue_json(const struct slurm_queue *q)
{
    const struct slurm_job *job = &q->job;
    json_t *object = json_object(), *overrides = json_array();
    const struct {
        const char *key;
        json_t *value;
    } rows[] = {{"id", json_string(job->id)},
                {"cluster", text_or_null(job->cluster)},
                {"name", text_or_null(job->name)},
                {"state", json_string(job->state)},
                {"reason", text_or_null(job->reason)},
                {"partition", text_or_null(job->partition)},
                {"nodes", text_or_null(job->nodes)},
                {"node_count", count_or_null(atoi(job->node_count))},
                {"tasks", count_or_null(atoi(job->task_count))},
                {"submitted", time_or_null(job->submitted)},
                {"start", time_or_null(job->start)},
                {"restarts", json_integer(atoi(job->restarts))},
                {"position", count_or_null(q->position)},
                {"pending", count_or_null(q->pending)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(object, rows[i].key, rows[i].value);
    for (int i = 0; i < q->script.override_count; i++)
        json_array_append_new(overrides, path_json(q->script.overrides[i]));
    json_t *plan = q->plan ? json_parse(q->plan, strlen(q->plan), 0, NULL) : NULL;
    char problem[600] = "";
    if (q->plan_problem) name_printable(problem, sizeof problem, q->plan_problem);
    json_t *root =
        json_pack("{s:o, s:s, s:o}", "run", path_json(q->script.run), "state", "queued", "job", object);
    json_object_set_new(root, "config", path_json(q->script.config));
    json_object_set_new(root, "overrides", overrides);
    json_object_set_new(root, "plan", plan ? plan : json_null());
    json_object_set_new(root, "plan_problem", text_or_null(problem));
    return root;
}
