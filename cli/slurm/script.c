/* The runs of a job script: see script.h. */
#include "cli/slurm/script.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char mark[] = "\n#MEOPT ";

void slurm_script_add(struct slurm_script *s, const char *override)
{
    s->overrides = xrealloc(s->overrides, (size_t)(s->override_count + 1) * sizeof *s->overrides);
    s->overrides[s->override_count++] = xstrdup(override);
}

void slurm_script_free(struct slurm_script *s)
{
    for (int i = 0; i < s->override_count; i++) free(s->overrides[i]);
    free(s->overrides);
    free(s->run);
    free(s->config);
    *s = (struct slurm_script){0};
}

/* ---- writing ---- */

static void write_field(FILE *out, const char *name, const char *value)
{
    fprintf(out, " %s=", name);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if (*p <= ' ' || *p == '%' || *p == 127) fprintf(out, "%%%02X", *p);
        else fputc(*p, out);
}

void slurm_script_write_line(FILE *out, const struct slurm_script *s)
{
    fputs("#MEOPT", out);
    if (s->task[0]) write_field(out, "task", s->task);
    write_field(out, "run", s->run);
    write_field(out, "config", s->config);
    for (int i = 0; i < s->override_count; i++)
        write_field(out, i < s->override_count - s->value_count ? "override" : "value", s->overrides[i]);
    fputc('\n', out);
}

void slurm_script_write_word(FILE *out, const char *text, bool array)
{
    fputc('\'', out);
    for (; *text; text++)
        if (array && text[0] == '%' && text[1] == 'a') fputs("'\"$SLURM_ARRAY_TASK_ID\"'", out), text++;
        else if (*text == '\'') fputs("'\\''", out);
        else fputc(*text, out);
    fputc('\'', out);
}

void slurm_script_write_command(FILE *out, const struct slurm_script *s)
{
    bool array = strcmp(s->task, "*") == 0;
    char *parent = path_dirname(s->run);
    fputs("train --resume-if-exists --no-dashboard --run-dir ", out);
    slurm_script_write_word(out, parent, false);
    fputs(" --name ", out);
    if (s->value_count) fputs("\"$name\"", out);
    else slurm_script_write_word(out, path_basename(s->run), false);
    fputs(array ? "-\"$SLURM_ARRAY_TASK_ID\" -- " : " -- ", out);
    slurm_script_write_word(out, s->config, false);
    for (int i = 0; i < s->override_count - s->value_count; i++) {
        fputc(' ', out);
        slurm_script_write_word(out, s->overrides[i], array);
    }
    fputs(s->value_count ? " \"${values[@]}\"\n" : "\n", out);
    free(parent);
}

void slurm_script_write_case(FILE *out, const struct slurm_script *s)
{
    fprintf(out, "%s) name=", s->task);
    slurm_script_write_word(out, path_basename(s->run), false);
    for (int i = s->override_count - s->value_count, first = i; i < s->override_count; i++) {
        fputs(i == first ? " values=(" : " ", out);
        slurm_script_write_word(out, s->overrides[i], false);
    }
    fputs(") ;;\n", out);
}

/* ---- reading ---- */

/* Returns the value of a field of n bytes, malloc'ed. */
static char *read_value(const char *p, size_t n)
{
    char *text = xcalloc(n + 1, 1), *to = text;
    for (const char *end = p + n; p < end; p++) {
        char digits[3] = {0};
        bool coded =
            *p == '%' && end - p > 2 && isxdigit((unsigned char)p[1]) && isxdigit((unsigned char)p[2]);
        if (coded) memcpy(digits, p + 1, 2), p += 2;
        *to++ = coded ? (char)strtoul(digits, NULL, 16) : *p;
    }
    return text;
}

/* Reads a line after its mark. false: it names no run, or has a field that is unknown or there twice. */
static bool read_line(struct slurm_script *s, const char *p)
{
    bool known = true;
    *s = (struct slurm_script){0};
    for (size_t n; *p && *p != '\n'; p += n + (p[n] == ' ')) {
        n = strcspn(p, " \n");
        size_t name = strcspn(p, "=");
        char *value = name < n ? read_value(p + name + 1, n - name - 1) : xstrdup("");
        if (name == 4 && memcmp(p, "task", 4) == 0 && !s->task[0])
            known &= (size_t)snprintf(s->task, sizeof s->task, "%s", value) < sizeof s->task;
        else if (name == 3 && memcmp(p, "run", 3) == 0 && !s->run) s->run = xstrdup(value);
        else if (name == 6 && memcmp(p, "config", 6) == 0 && !s->config) s->config = xstrdup(value);
        else if (name == 8 && memcmp(p, "override", 8) == 0) slurm_script_add(s, value);
        else if (name == 5 && memcmp(p, "value", 5) == 0) slurm_script_add(s, value), s->value_count++;
        else known &= n == 0;
        free(value);
    }
    if (known && s->run && s->run[0] == '/' && s->config && s->config[0] == '/') return true;
    slurm_script_free(s);
    return false;
}

/* Returns whether the script has this text outside of comments. */
static bool has_text(const char *text, void write(FILE *, const struct slurm_script *),
                     const struct slurm_script *s)
{
    char *wanted = NULL;
    size_t bytes;
    bool found = false;
    FILE *out = open_memstream(&wanted, &bytes);
    if (!out) return false;
    write(out, s);
    if (fclose(out) == 0)
        for (const char *p = text; !found && (p = strstr(p, wanted)) != NULL; p++) {
            const char *line = p;
            while (line > text && line[-1] != '\n') line--;
            found = line[strspn(line, " \t")] != '#';
        }
    free(wanted);
    return found;
}

static bool has_command(const char *text, const struct slurm_script *s)
{
    return has_text(text, slurm_script_write_command, s) &&
           (!s->value_count || has_text(text, slurm_script_write_case, s));
}

/* Replaces "*" by the number of a task: in the name of the run and for every %a. */
static void set_task(struct slurm_script *s, const char *task)
{
    if (strcmp(s->task, "*") != 0) return;
    char *run = xasprintf("%s-%s", s->run, task);
    free(s->run);
    s->run = run;
    for (int i = 0; i < s->override_count; i++)
        for (char *at; (at = strstr(s->overrides[i], "%a")) != NULL;) {
            char *whole = xasprintf("%.*s%s%s", (int)(at - s->overrides[i]), s->overrides[i], task, at + 2);
            free(s->overrides[i]);
            s->overrides[i] = whole;
        }
}

int slurm_script_read(struct slurm_script *s, const char *text, const char *job, const char *task,
                      struct error *err)
{
    for (const char *p = text; (p = strstr(p, mark)) != NULL;) {
        if (!read_line(s, p += strlen(mark))) continue;
        if (!s->task[0] || strcmp(s->task, task) == 0 || (*s->task == '*' && *task)) {
            bool same = has_command(text, s);
            if (same) set_task(s, task);
            else slurm_script_free(s);
            return same ? 0
                        : error_set(err, EXIT_FAILED, "change both alike, or write it again: 'meopt sbatch'",
                                    "the command in the script of job %s differs from its #MEOPT line", job);
        }
        slurm_script_free(s);
    }
    return error_set(err, EXIT_FAILED, "'meopt sbatch' writes scripts with such lines",
                     "the script of job %s has no #MEOPT line that names its run", job);
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

bool slurm_script_find(const char *text, const char *run, char task[16])
{
    const char *suffix = strrchr(path_basename(run), '-');
    char *wanted = slurm_run_path(run);
    bool found = false, number = suffix && suffix[1] && !suffix[1 + strspn(suffix + 1, "0123456789")];
    for (const char *p = text; !found && (p = strstr(p, mark)) != NULL;) {
        struct slurm_script s;
        if (!read_line(&s, p += strlen(mark))) continue;
        bool any = strcmp(s.task, "*") == 0, written = (!any || number) && has_command(text, &s);
        snprintf(task, 16, "%.15s", any && number ? suffix + 1 : s.task);
        set_task(&s, task);
        char *made = slurm_run_path(s.run);
        found = written && strcmp(made, wanted) == 0;
        free(made);
        slurm_script_free(&s);
    }
    free(wanted);
    return found;
}
