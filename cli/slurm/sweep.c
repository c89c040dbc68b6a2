/* Runs of a sweep without a directory: see sweep.h. */
#include "cli/slurm/sweep.h"
#include "cli/slurm/job.h"
#include "cli/slurm/script.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void add(struct sweep_tasks *tasks, const char *name, const char *job, const char *task,
                const char *state)
{
    tasks->all = xrealloc(tasks->all, (size_t)(tasks->count + 1) * sizeof *tasks->all);
    tasks->all[tasks->count++] = (struct sweep_task){
        .name = xstrdup(name), .job = xasprintf("%s_%s", job, task), .state = xstrdup(state)};
}

static bool is_listed(const struct sweep_tasks *tasks, const char *name)
{
    int i = 0;
    while (i < tasks->count && strcmp(tasks->all[i].name, name) != 0) i++;
    return i < tasks->count;
}

/* Adds the run of a task below parent: to the missing ones if it has no directory, else to the queued ones if
 * the task waits. Returns whether the script is a sweep with that task. */
static bool add_task(struct sweep *s, const char *parent, const char *script, const char *job,
                     const char *task, const char *state)
{
    static const char pending[] = "PENDING";
    struct slurm_script run;
    struct error ignored;
    if (slurm_script_read(&run, script, job, task, &ignored)) return false;
    char *expected = path_join(parent, path_basename(run.run)), *wanted = slurm_run_path(expected),
         *made = slurm_run_path(run.run), shown[256];
    bool sweep = run.value_count > 0, absent = file_absent(made),
         waits = strncmp(state, pending, strlen(pending)) == 0;
    name_printable(shown, sizeof shown, path_basename(made));
    if (strcmp(wanted, made) == 0 && (absent || waits) && !is_listed(&s->missing, shown) &&
        !is_listed(&s->queued, shown))
        add(absent ? &s->missing : &s->queued, shown, job, task, state);
    free(expected);
    free(wanted);
    free(made);
    slurm_script_free(&run);
    return sweep;
}

/* Adds the task of a line of squeue, "JOB|TASK|STATE|NAME|REASON". Keeps the script of the job for its other
 * lines. */
static void add_line(struct sweep *s, const char *parent, char *line, struct slurm_job *job, char **script)
{
    char *words[5] = {line}, state[200];
    struct error ignored;
    for (int i = 1; i < 5 && words[i - 1]; i++)
        if ((words[i] = strchr(words[i - 1], '|')) != NULL) *words[i]++ = 0;
    if (!words[4] || strcmp(words[3], s->name) != 0 || words[1][strspn(words[1], "0123456789")]) return;
    if (strcmp(job->number, words[0]) != 0) {
        *job = (struct slurm_job){0};
        snprintf(job->number, sizeof job->number, "%.20s", words[0]);
        snprintf(job->id, sizeof job->id, "%.20s", words[0]);
        free(*script);
        *script = slurm_job_script(job, &ignored);
    }
    char plain[160];
    bool reason = strcmp(words[4], "None") != 0 && words[4][0];
    snprintf(state, sizeof state, reason ? "%.40s (%.150s)" : "%.40s", words[2],
             name_printable(plain, sizeof plain, words[4]));
    if (*script) add_task(s, parent, *script, job->number, words[1], state);
}

/* Adds the tasks that left the queue without a directory. */
static void add_gone(struct sweep *s, const char *parent, const char *script, const char *job)
{
    char task[16] = "0";
    for (int i = 1; add_task(s, parent, script, job, task, _("not queued any more")); i++)
        snprintf(task, sizeof task, "%d", i);
}

void slurm_sweep_read(struct sweep *s, const char *parent)
{
    char user[24], *script = NULL, *save = NULL;
    const char *words[] = {"squeue", "-h", "-r", "-u", user, "-o", "%F|%K|%T|%j|%r", NULL};
    struct tool t;
    struct error ignored;
    struct slurm_job job = {0};
    snprintf(user, sizeof user, "%lld", (long long)getuid());
    if (tool_run(&t, words, SLURM_SECONDS, &ignored)) return;
    for (char *line = t.status == 0 ? strtok_r(t.text[0], "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        add_line(s, parent, line, &job, &script);
    if (script) add_gone(s, parent, script, job.number);
    free(script);
    tool_close(&t);
}
