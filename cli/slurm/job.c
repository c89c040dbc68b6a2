/* Jobs of Slurm: see job.h. */
#include "cli/slurm/job.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SCRIPT_BYTES = 4 << 20 };

bool slurm_job_parse_id(struct slurm_job *job, const char *word)
{
    size_t number = strspn(word, "0123456789"), at = number, task = 0, cluster = 0;
    *job = (struct slurm_job){0};
    if (word[at] == '_') {
        task = strspn(word + at + 1, "0123456789");
        if (!task) return false;
        at += 1 + task;
    }
    if (word[at] == '@') {
        for (const char *p = word + at + 1; isalnum((unsigned char)*p) || strchr("._-", *p ? *p : '/'); p++)
            cluster++;
        if (!cluster || word[at + 1] == '-') return false;
        snprintf(job->cluster, sizeof job->cluster, "%.*s", (int)cluster, word + at + 1);
        cluster++;
    }
    if (!number || number > 10 || task > 10 || cluster > 64 || word[at + cluster]) return false;
    snprintf(job->number, sizeof job->number, "%.*s", (int)number, word);
    if (task) snprintf(job->task, sizeof job->task, "%.*s", (int)task, word + number + 1);
    snprintf(job->id, sizeof job->id, "%.*s", (int)at, word);
    return true;
}

struct slurm_command slurm_job_question(const struct slurm_job *job)
{
    struct slurm_command with = {{"scontrol", "-o", "-M", job->cluster, "show", "job", job->id}},
                         without = {{"scontrol", "-o", "show", "job", job->id}};
    return job->cluster[0] ? with : without;
}

/* Returns the length of a field's name at p, as "Name=" after a blank; 0: there is none. */
static size_t field_name(const char *p)
{
    size_t n = strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz/:");
    return p[n] == '=' && isupper((unsigned char)*p) ? n : 0;
}

/* Copies the value of the first field of that name in a record, which ends before the next field. */
static void read_field(char *dst, size_t size, const char *record, const char *name)
{
    size_t n = strlen(name), line = strcspn(record, "\n");
    char *value = NULL;
    dst[0] = 0;
    for (const char *p = record; p < record + line && !value; p++) {
        if ((p > record && p[-1] != ' ') || field_name(p) != n || strncmp(p, name, n) != 0) continue;
        const char *begin = p + n + 1, *end = begin;
        while (end < record + line && !(*end == ' ' && field_name(end + 1))) end++;
        value = strndup(begin, (size_t)(end - begin));
    }
    if (value && strcmp(value, "(null)") != 0 && strcmp(value, "Unknown") != 0 && strcmp(value, "N/A") != 0)
        name_printable(dst, size, value);
    free(value);
}

#define JOB_FIELD(name, field)                                                                               \
    {                                                                                                        \
        name, offsetof(struct slurm_job, field), sizeof((struct slurm_job *)0)->field                        \
    }
static const struct job_field {
    const char *name;
    size_t offset, size;
} job_fields[] = {
    JOB_FIELD("JobName", name),        JOB_FIELD("UserId", user),         JOB_FIELD("JobState", state),
    JOB_FIELD("Reason", reason),       JOB_FIELD("Partition", partition), JOB_FIELD("NodeList", nodes),
    JOB_FIELD("NumNodes", node_count), JOB_FIELD("NumTasks", task_count), JOB_FIELD("SubmitTime", submitted),
    JOB_FIELD("StartTime", start),     JOB_FIELD("Restarts", restarts),   JOB_FIELD("TresPerNode", gres),
    JOB_FIELD("Command", command),     JOB_FIELD("StdOut", output),
};

/* Sets number, task and id of a record. Several waiting tasks share one, with a list as ArrayTaskId. */
static int read_task(struct slurm_job *job, const char *record, struct error *err)
{
    char number[24], array[24], task[64];
    const char *second = strstr(record, "\nJobId=");
    read_field(number, sizeof number, record, "JobId");
    read_field(array, sizeof array, record, "ArrayJobId");
    read_field(task, sizeof task, record, "ArrayTaskId");
    if (array[0] && !job->task[0] && strcmp(array, job->number) == 0 &&
        (second || task[strspn(task, "0123456789")])) {
        char hint[160];
        snprintf(hint, sizeof hint, _("for example: meopt attach %.20s_0"), array);
        return error_set(err, EXIT_USAGE, hint, "job %s is an array of several runs", array);
    }
    snprintf(job->number, sizeof job->number, "%s", array[0] ? array : number);
    if (array[0] && !task[strspn(task, "0123456789")]) snprintf(job->task, sizeof job->task, "%.15s", task);
    snprintf(job->id, sizeof job->id, "%s%s%s", job->number, job->task[0] ? "_" : "", job->task);
    return 0;
}

int slurm_job_read(struct slurm_job *job, const struct tool *answer, bool *unknown, struct error *err)
{
    char reason[300];
    const char *record = strstr(answer->text[0], "JobId=");
    *unknown = answer->status > 0 && (strstr(answer->text[1], "Invalid job id") ||
                                      strstr(answer->text[0], " not found")); /* of an array */
    if (*unknown)
        return error_set(err, EXIT_FAILED, "ended jobs are forgotten after some minutes: sacct lists them",
                         "Slurm does not know the job %s%s%s", job->id, job->cluster[0] ? "@" : "",
                         job->cluster);
    if (answer->status != 0 || !record)
        return error_set(err, EXIT_FAILED, "'scontrol ping' shows whether slurmctld answers",
                         "cannot read job %s from Slurm: %s", job->id,
                         tool_reason(answer, reason, sizeof reason));
    int code = read_task(job, record, err);
    for (size_t i = 0; i < sizeof job_fields / sizeof *job_fields; i++)
        read_field((char *)job + job_fields[i].offset, job_fields[i].size, record, job_fields[i].name);
    if (strcmp(job->reason, "None") == 0) job->reason[0] = 0;
    char *dash = strchr(job->node_count, '-'); /* "2-2": at least and at most */
    if (dash && strncmp(job->node_count, dash + 1, (size_t)(dash - job->node_count)) == 0) *dash = 0;
    return code;
}

static bool is_listed(const char *const *list, const char *word)
{
    while (*list && strcmp(*list, word) != 0) list++;
    return *list;
}

bool slurm_job_over(const struct slurm_job *job)
{
    static const char *const over[] = {"BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE", "FAILED",
                                       "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",  "TIMEOUT",
                                       NULL};
    return is_listed(over, job->state);
}

bool slurm_job_pending(const struct slurm_job *job)
{
    static const char *const waits[] = {"PENDING",     "REQUEUED",     "REQUEUE_HOLD",
                                        "REQUEUE_FED", "SPECIAL_EXIT", NULL};
    return is_listed(waits, job->state);
}

double slurm_time(const char *text)
{
    struct tm tm = {.tm_isdst = -1};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    time_t seconds = end && !*end ? mktime(&tm) : -1;
    return seconds > 0 ? (double)seconds : 0;
}

char *slurm_job_script(const struct slurm_job *job, struct error *err)
{
    struct slurm_command with = {{"scontrol", "-M", job->cluster, "write", "batch_script", job->number, "-"}},
                         without = {{"scontrol", "write", "batch_script", job->number, "-"}};
    struct tool t;
    char *text = NULL, reason[300];
    size_t bytes = 0;
    int code = tool_run(&t, job->cluster[0] ? with.words : without.words, SLURM_SECONDS, err);
    if (code) return NULL;
    if (t.status == 0 && t.bytes[0]) text = xstrdup(t.text[0]);
    else if (job->command[0] == '/') (void)file_read(job->command, SCRIPT_BYTES, &text, &bytes, NULL);
    if (!text)
        error_set(err, EXIT_FAILED, "give the directory of its run, once it has begun",
                  "cannot read the script of job %s: %s", job->id, tool_reason(&t, reason, sizeof reason));
    tool_close(&t);
    return text;
}
