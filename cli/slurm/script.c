/* The run of a job script: see script.h. */
#include "cli/slurm/script.h"
#include "cli/command.h"
#include "core/base/file.h"
#include "core/config/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct words {
    char **all;
    int count;
};

static void add_word(struct words *w, char *word)
{
    w->all = xrealloc(w->all, (size_t)(w->count + 2) * sizeof *w->all);
    w->all[w->count++] = word;
    w->all[w->count] = NULL;
}

static void free_words(struct words *w)
{
    for (int i = 0; i < w->count; i++) free(w->all[i]);
    free(w->all);
    *w = (struct words){0};
}

/* Values of the shell's variables, and the words of the array `values` of a sweep. */
struct scope {
    const char *job, *task;
    char *name; /* NULL: unset */
    struct words values;
    bool unknown; /* a word has a different variable */
};

/* A word while it is read. */
struct reader {
    struct words *words;
    struct scope *scope;
    char *text;
    size_t bytes;
    bool begun;
};

static void put(struct reader *r, const char *text, size_t bytes)
{
    r->text = xrealloc(r->text, r->bytes + bytes + 1);
    memcpy(r->text + r->bytes, text, bytes);
    r->bytes += bytes;
    r->text[r->bytes] = 0;
    r->begun = true;
}

static void end_word(struct reader *r)
{
    if (r->begun) add_word(r->words, r->text);
    else free(r->text);
    r->text = NULL;
    r->bytes = 0;
    r->begun = false;
}

/* Reads a variable after its '$' and returns the position after it. */
static const char *read_variable(struct reader *r, const char *p)
{
    const struct scope *s = r->scope;
    const struct {
        const char *name, *value;
    } variables[] = {{"SLURM_ARRAY_TASK_ID", s->task && *s->task ? s->task : NULL},
                     {"SLURM_JOB_ID", s->job},
                     {"name", s->name},
                     {"HOME", getenv("HOME")}};
    bool braces = *p == '{';
    const char *name = p + braces;
    size_t n = braces ? strcspn(name, "}\n") : 0;
    while (!braces && (isalnum((unsigned char)name[n]) || name[n] == '_')) n++;
    const char *after = name + n + (braces && name[n] == '}');
    if (n == 9 && strncmp(name, "values[@]", n) == 0) {
        for (int i = 0; i < s->values.count; i++) {
            if (i) end_word(r);
            put(r, s->values.all[i], strlen(s->values.all[i]));
        }
        return after;
    }
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (strlen(variables[i].name) == n && strncmp(name, variables[i].name, n) == 0 &&
            variables[i].value) {
            put(r, variables[i].value, strlen(variables[i].value));
            return after;
        }
    r->scope->unknown = true;
    put(r, "", 0);
    return after;
}

/* Reads the words of one command of the shell: quotes, backslashes, variables. Returns the position of the
 * character that ends it. */
static const char *read_words(struct words *words, const char *p, struct scope *scope)
{
    struct reader r = {.words = words, .scope = scope};
    char quote = 0;
    for (; *p && (quote || !strchr("\n;&|()<>", *p)); p++) {
        if (quote == '\'' ? *p == '\'' : quote && *p == '"') quote = 0;
        else if (quote == '\'') put(&r, p, 1);
        else if (*p == '\\' && p[1]) {
            p++;
            if (*p != '\n') put(&r, p, 1);
        } else if (*p == '$') p = read_variable(&r, p + 1) - 1;
        else if (!quote && (*p == '\'' || *p == '"')) {
            quote = *p;
            put(&r, "", 0);
        } else if (!quote && (*p == ' ' || *p == '\t')) end_word(&r);
        else if (!quote && *p == '#' && !r.begun) break;
        else put(&r, p, 1);
    }
    end_word(&r);
    return p;
}

/* Reads name and values of a task from its line "N) name='...' values=('...' ...) ;;". */
static void read_sweep(struct scope *s, const char *text)
{
    char begin[48];
    struct words name = {0};
    snprintf(begin, sizeof begin, "\n%s) name=", s->task);
    const char *p = *s->task ? strstr(text, begin) : NULL;
    if (!p) return;
    p = read_words(&name, p + strlen(begin), s);
    if (name.count) s->name = xstrdup(name.all[0]);
    if (*p == '(') read_words(&s->values, p + 1, s);
    free_words(&name);
}

/* Sets the run and its configuration from the words after "train". */
static int read_command(struct slurm_script *script, struct words *w, const char *directory,
                        struct error *err)
{
    struct arguments args = {0};
    struct config config = {0};
    int taken, code = arguments_parse(&args, command_find(w->all, 1, &taken), w->count, w->all, err);
    const char *parent = code ? NULL : argument_text(&args, "run-dir", NULL),
               *name = code ? NULL : argument_text(&args, "name", NULL),
               *resumed = code ? NULL : argument_text(&args, "resume", NULL);
    if (!code && resumed) {
        char *within = path_join(directory, strchr(resumed, '/') ? "" : parent ? parent : "runs");
        script->run = path_join(within, resumed);
        free(within);
        script->config = path_join(script->run, "config.yaml");
    } else if (!code && !args.operand_count) code = -1;
    int first = resumed ? 0 : 1;
    for (int i = first; !code && i < args.operand_count; i++) {
        script->overrides = xrealloc(script->overrides, (size_t)(i + 1) * sizeof *script->overrides);
        script->overrides[script->override_count++] = xstrdup(args.operands[i]);
    }
    if (!code && !resumed) {
        script->config = path_join(directory, args.operands[0]);
        bool loads = !parent || !name;
        if (loads)
            code = config_load(&config, script->config, script->overrides, script->override_count, err);
        if (!code) {
            char *within = path_join(directory, parent              ? parent
                                                : config.run.dir[0] ? config.run.dir
                                                                    : "runs");
            script->run = path_join(within, name ? name : config.run.name[0] ? config.run.name : config.stem);
            free(within);
        }
        if (loads && !code) config_free(&config);
    }
    arguments_free(&args);
    return code;
}

int slurm_script_read(struct slurm_script *script, const char *text, const char *job, const char *task,
                      const char *directory, struct error *err)
{
    static const char word[] = " train ";
    struct scope scope = {.job = job, .task = task};
    int code = -1;
    *script = (struct slurm_script){0};
    read_sweep(&scope, text);
    for (const char *p = text; code && (p = strstr(p, word)) != NULL; p++) {
        const char *line = p;
        struct words words = {0};
        while (line > text && line[-1] != '\n') line--;
        if (line[strspn(line, " \t")] == '#') continue;
        scope.unknown = false;
        read_words(&words, p + 1, &scope);
        code = scope.unknown ? -1 : read_command(script, &words, directory, err);
        if (code) slurm_script_free(script);
        free_words(&words);
    }
    free(scope.name);
    free_words(&scope.values);
    return !code ? 0
                 : error_set(err, EXIT_FAILED, "'meopt sbatch' writes scripts that it can read",
                             "the script of job %s has no 'meopt train' that meopt can read", job);
}

void slurm_script_free(struct slurm_script *s)
{
    for (int i = 0; i < s->override_count; i++) free(s->overrides[i]);
    free(s->overrides);
    free(s->run);
    free(s->config);
    *s = (struct slurm_script){0};
}

char *slurm_script_sweep_name(const char *text, int task)
{
    char number[16];
    struct scope scope = {.task = number};
    snprintf(number, sizeof number, "%d", task);
    read_sweep(&scope, text);
    free_words(&scope.values);
    return scope.name;
}

char *slurm_run_path(const char *run)
{
    size_t n = strlen(run);
    while (n > 1 && run[n - 1] == '/') n--;
    char *bare = strndup(run, n), *parent = path_dirname(bare), *here = realpath(".", NULL),
         *whole = path_join(here ? here : "", parent), *real = realpath(whole, NULL); /* NULL: not made yet */
    char *path = path_join(real ? real : whole, path_basename(bare));
    free(bare);
    free(parent);
    free(here);
    free(whole);
    free(real);
    return path;
}

static bool makes(const char *text, const char *job, const char *task, const char *directory, const char *run)
{
    struct slurm_script script;
    struct error ignored;
    if (slurm_script_read(&script, text, job, task, directory, &ignored)) return false;
    char *made = slurm_run_path(script.run), *wanted = slurm_run_path(run);
    bool same = strcmp(made, wanted) == 0;
    free(made);
    free(wanted);
    slurm_script_free(&script);
    return same;
}

bool slurm_script_find(const char *text, const char *job, const char *directory, const char *run,
                       char task[16])
{
    const char *base = path_basename(run), *suffix = strrchr(base, '-');
    task[0] = 0;
    if (makes(text, job, task, directory, run)) return true;
    for (int i = 0;; i++) { /* a sweep: its tasks are numbered from 0 */
        char *name = slurm_script_sweep_name(text, i);
        bool same = name && strcmp(name, base) == 0, last = !name;
        free(name);
        if (same || last) snprintf(task, 16, "%d", i);
        if (same) return makes(text, job, task, directory, run);
        if (last) break;
    }
    if (!suffix || !suffix[1] || suffix[1 + strspn(suffix + 1, "0123456789")]) return false;
    snprintf(task, 16, "%.15s", suffix + 1);
    return makes(text, job, task, directory, run);
}
