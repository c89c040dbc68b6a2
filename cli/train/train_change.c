/* Changes of runs: see train_change.h. */
#include "cli/train/train_change.h"
#include "cli/run_name.h"
#include "cli/run_weights.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/config/edit.h"
#include "core/config/value.h"
#include "core/run/checkpoint.h"
#include "core/run/history.h"
#include "core/run/metric_line.h"
#include "core/run/run.h"
#include "core/run/status.h"
#include "core/experiment/experiment.h"
#include "core/train/resume_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- A new run with the weights of an earlier one (--from) ---- */

static int from_run(char **weights, bool *adapters, const struct arguments *args, struct error *err)
{
    int code;
    bool best = strcmp(argument_text(args, "checkpoint", "last"), "best") == 0;
    int64_t step;
    char *run =
        run_named(argument_text(args, "from", NULL), argument_text(args, "run-dir", NULL), &code, err);
    struct config own = {0};
    if (!code) code = config_load_below(&own, run, NULL, 0, err);
    *adapters = config_trains_adapters(&own); /* the file has these alone */
    config_free(&own);
    if (!code) code = run_weights_path(weights, run, best ? RUN_BEST : RUN_NEWEST, &step, err);
    free(run);
    return code;
}

int train_overrides(struct train_overrides *o, const struct arguments *args, struct error *err)
{
    bool resumes = argument_text(args, "resume", NULL) != NULL;
    int given = resumes ? 0 : 1, code = 0;
    bool adapters;
    char *weights = NULL;
    *o = (struct train_overrides){xcalloc((size_t)args->operand_count + 3, sizeof *o->all), 0};
    for (int i = given; i < args->operand_count; i++) o->all[o->count++] = xstrdup(args->operands[i]);
    if (!argument_text(args, "from", NULL)) return 0;
    if ((code = from_run(&weights, &adapters, args, err)) != 0) {
        train_overrides_free(o);
        return code;
    }
    o->all[o->count++] = xasprintf("%s=%s", adapters ? "lora.adapter" : "model_s.weight", weights);
    if (!adapters) o->all[o->count++] = xstrdup("model_s.init=checkpoint");
    free(weights);
    return 0;
}

void train_overrides_free(struct train_overrides *o)
{
    for (int i = 0; i < o->count; i++) free(o->all[i]);
    free(o->all);
    *o = (struct train_overrides){0};
}

/* ---- Resuming ---- */

/* Warns if the run belongs to a different user, whose config.yaml names the files to read. Links in the
 * directory are never followed (file.h). */
static void warn_foreign(const char *directory)
{
    struct stat st;
    if (stat(directory, &st) == 0 && st.st_uid != geteuid())
        log_warn("%s belongs to a different user (uid %ld), who chose the files in its config.yaml",
                 directory, (long)st.st_uid);
}

int train_reopen(const char *directory, struct config *config, int *lock, struct error *err)
{
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    int code = EXIT_LOCKED;
    for (int i = 0; i < 30 && code == EXIT_LOCKED; i++) {
        code = run_open(&run, directory, err);
        if (code == EXIT_LOCKED) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    if (code) return code;
    warn_foreign(directory);
    run_tidy(&run);
    *lock = run_release(&run);
    return config_load_below(config, directory, NULL, 0, err);
}

/* ---- Number of steps ---- */

int train_resumed_step(const struct arguments *args, const char *directory, int64_t *step, struct error *err)
{
    int64_t at = argument_int(args, "at", -1);
    int code = checkpoint_before(directory, at < 0 ? INT64_MAX : at, step, err);
    if (*step < 0) *step = 0;
    return code;
}

int train_steps_asked(const struct arguments *args, int64_t from, int64_t *steps, struct error *err)
{
    static const char key[] = "train.steps=";
    static const int64_t most = 1000000000000;
    const char *text = argument_text(args, "steps", NULL), *digits = text && *text == '+' ? text + 1 : text;
    char *end = NULL;
    long long n = digits && *digits >= '0' && *digits <= '9' ? strtoll(digits, &end, 10) : 0;
    *steps = 0;
    if (text && (!end || *end || n < 1 || n > most))
        return error_set(err, EXIT_USAGE, "for example --steps 2000, or with --resume --steps +500",
                         "--steps must be 1 to 1e12, found '%.60s'", text);
    if (text && digits > text && from < 0)
        return error_set(err, EXIT_USAGE, "remove the +", "--steps +N requires --resume");
    if (text) *steps = digits > text ? from + n : n;
    for (int i = 0; i < args->operand_count && !text && from >= 0; i++)
        if (strncmp(args->operands[i], key, sizeof key - 1) == 0)
            *steps = strtoll(args->operands[i] + sizeof key - 1, NULL, 10);
    if (*steps <= 0 || *steps >= from) return 0;
    char hint[160];
    snprintf(hint, sizeof hint, _("to add steps: --steps +%lld; to branch: --at %lld --steps %lld"),
             (long long)*steps, (long long)*steps, (long long)*steps);
    return error_set(err, EXIT_USAGE, hint, "--steps %lld is less than the run's %lld steps",
                     (long long)*steps, (long long)from);
}

/* ---- Changed keys ---- */

enum { OPTION_EDITS = 3 };

/* Returns the first key that the edit changes although it cannot change on resume; -1: none. */
static int refused_key(const struct config *own, const struct config *edited, const char *directory,
                       const char *force)
{
    char *meta = path_join(directory, "meta.json");
    bool begun = !file_absent(meta);
    int refused = -1;
    free(meta);
    for (int key = 0; key < config_key_count && begun && refused < 0; key++) {
        if (resume_check_may_change(config_keys[key].name, force)) continue;
        char *was = config_value_text(own, key), *is = config_value_text(edited, key);
        if (strcmp(was, is) != 0) refused = key;
        free(was);
        free(is);
    }
    return refused;
}

/* Refuses a changed file that does not exist. */
static int check_files(const struct config *edited, const struct edit *edits, int count, struct error *err)
{
    static const char *const names[] = {"model_t.weight", "model_s.weight", "data.root", "data.val"};
    int code = 0;
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names && !code; k++)
            if (config_key_index(edits[i].key) == config_key_index(names[k]))
                code = experiment_check_file(edited, names[k], err);
    return code;
}

/* Checks the edit before the file is written. */
static int check_edit(const char *path, const struct edit *edits, int count, const char *directory,
                      const char *force, const struct config *own, struct error *err)
{
    char *after = NULL, hint[320], word[200];
    size_t bytes = 0;
    struct config edited;
    int code = edit_below(directory, "config.yaml", edits, count, 1, &after, &bytes, err);
    if (!code && (code = config_load_text(&edited, path, after, bytes, NULL, 0, err)) == 0) {
        int key = refused_key(own, &edited, directory, force);
        if (key >= 0) {
            const char *name = config_keys[key].name;
            char *was = config_value_text(own, key);
            snprintf(
                hint, sizeof hint,
                _("use --force-resume %s, or start a run with its weights: meopt train CONFIG --from %s"),
                name, run_word(word, sizeof word, directory));
            code = error_set(err, EXIT_CONFIG, hint, "cannot change %s on resume (the run has %.120s)", name,
                             was);
            free(was);
        }
        if (!code) code = check_files(&edited, edits, count, err);
        config_free(&edited);
    }
    free(after);
    return code;
}

int train_change_run(const struct arguments *args, const char *directory, const char *force,
                     struct config *config, char **before, struct error *err)
{
    struct edit *edits = xcalloc((size_t)args->operand_count + OPTION_EDITS, sizeof *edits);
    char steps[32], *path = path_join(directory, "config.yaml"), **keys = NULL, **values = NULL;
    int count = 0, code = 0;
    int64_t from = 0, asked = 0;
    const char *cards = argument_text(args, "cards", NULL);
    keys = xcalloc((size_t)args->operand_count + 1, sizeof *keys);
    values = xcalloc((size_t)args->operand_count + 1, sizeof *values);
    for (int i = 0; i < args->operand_count && !code; i++) {
        const char *text = args->operands[i], *equals = strchr(text, '=');
        if (!equals)
            code = error_set(err, EXIT_USAGE, "a resumed run has its own configuration; give key=value",
                             "'%s' is not key=value", text);
        else keys[i] = strndup(text, (size_t)(equals - text));
        if (!code && strcmp(keys[i], "train.memory") == 0)
            code = error_set(err, EXIT_USAGE, "to list keys: meopt plan RUN/config.yaml --fit BYTES",
                             "train.memory cannot be used with --resume");
        if (code) break;
        int key = config_key_index(keys[i]);
        char *typed = value_typed(key, equals + 1);
        values[i] = value_from_here(key, typed);
        free(typed);
        edits[count++] = (struct edit){keys[i], values[i]};
    }
    if (!code) code = train_resumed_step(args, directory, &from, err);
    if (!code) code = train_steps_asked(args, from, &asked, err);
    if (!code && argument_text(args, "steps", NULL)) {
        snprintf(steps, sizeof steps, "%lld", (long long)asked);
        edits[count++] = (struct edit){"train.steps", steps};
    }
    if (cards) edits[count++] = (struct edit){"device.cards", cards};
    if (cards && config->device.type == DEVICE_TYPE_CPU)
        edits[count++] = (struct edit){"device.type", "auto"};
    if (argument_int(args, "workers", 0)) edits[count++] = (struct edit){"device.type", "cpu"};
    if (!code && count) code = check_edit(path, edits, count, directory, force, config, err);
    *before = NULL;
    size_t bytes;
    if (!code && count) code = file_read_below(directory, "config.yaml", 1 << 20, before, &bytes, err);
    if (!code && count) code = edit_below(directory, "config.yaml", edits, count, 0, NULL, NULL, err);
    if (!code && count) {
        config_free(config);
        code = config_load_below(config, directory, NULL, 0, err);
    }
    for (int i = 0; i < args->operand_count; i++) {
        free(keys[i]);
        free(values[i]);
    }
    free(values);
    free(keys);
    free(edits);
    free(path);
    return code;
}

/* ---- Branches (--at) ---- */

/* The origin of a branch: a run and the step of one of its checkpoints. */
struct branch_point {
    const char *directory, *whole; /* as given; without trailing slashes */
    int64_t step;
};

/* Copies a file into the new run; may_link: as a hard link if possible, for files that are never written
 * again. */
static int copy_file(const char *directory, const char *name, const struct run *run, bool may_link,
                     struct error *err)
{
    struct file_map map;
    if (may_link) {
        char *from = path_join(directory, name), *to = run_path(run, name);
        bool linked = link(from, to) == 0;
        free(to);
        free(from);
        if (linked) return 0;
    }
    int code = file_map_below(&map, directory, name, err);
    if (code) return code;
    code = file_write_below(run->directory, name, map.data, map.bytes, err);
    file_map_close(&map);
    return code;
}

/* Copies the lines of a run's file up to the branch's step to fd; does nothing if there is no file. */
static int copy_lines(const struct branch_point *p, const char *name, int fd, struct error *err)
{
    struct file_map map;
    int code = 0;
    if (file_absent_below(p->directory, name)) return 0;
    if ((code = file_map_below(&map, p->directory, name, err)) != 0) return code;
    const char *text = (const char *)map.data, *end = text + map.bytes;
    for (const char *line = text, *stop; line < end && !code; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) break;
        if (metric_step(line, (size_t)(stop - line)) > (double)p->step) continue;
        code = file_write_all(fd, line, (size_t)(stop + 1 - line), name, err);
    }
    file_map_close(&map);
    return code;
}

/* Copies the lines of a run's file up to the branch's step into a file of the new run. */
static int copy_lines_to_run(const struct branch_point *p, const struct run *run, const char *name,
                             struct error *err)
{
    int fd;
    if (file_absent_below(p->directory, name)) return 0;
    int code = run_append(run->directory, name, &fd, err);
    if (code) return code;
    code = copy_lines(p, name, fd, err);
    if (!code) code = file_sync(fd, name, err);
    close(fd);
    return code;
}

static int copy_checkpoint(const struct branch_point *p, const struct run *run, struct error *err)
{
    static const char latest[] = "ckpt/LATEST";
    char *ckpt = xasprintf("ckpt/step-%08lld", (long long)p->step), *path = run_path(run, ckpt),
         **parts = checkpoint_files(p->directory, p->step, err);
    int code = parts ? file_make_dirs_below(run->directory, ckpt, err) : err->code;
    for (size_t i = 0; parts && parts[i]; i++) {
        char *name = path_join(ckpt, parts[i]);
        if (!code) code = copy_file(p->directory, name, run, true, err);
        free(name);
        free(parts[i]);
    }
    free(parts);
    if (!code) code = file_sync_dir(path, err);
    if (!code)
        code =
            file_write_below(run->directory, latest, path_basename(ckpt), strlen(path_basename(ckpt)), err);
    free(path);
    free(ckpt);
    return code;
}

/* A run_fill: copies everything that the branch needs, before the run gets its name. */
static int copy_run(struct run *run, void *context, struct error *err)
{
    static const char *const whole[] = {"meta.json", "data.list", "plan.json", "gemm.json"};
    const struct branch_point *p = context;
    char text[300];
    int code = copy_lines(p, "metrics.jsonl", run->metrics, err);
    if (!code) code = copy_lines(p, "events.jsonl", run->events, err);
    if (!code) code = copy_lines_to_run(p, run, "cards.jsonl", err);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && !code; i++)
        if (!file_absent_below(p->directory, whole[i]))
            code = copy_file(p->directory, whole[i], run, false, err);
    if (!code) code = copy_checkpoint(p, run, err);
    snprintf(text, sizeof text, _("of %.200s at step %lld"), p->whole, (long long)p->step);
    if (code) return code;
    json_t *fields = json_pack("{s:I, s:s}", "step", (json_int_t)p->step, "message", text), *changed = NULL;
    struct run_history
        history; /* the branch has the current settings, which may have changed after that step */
    if ((code = run_history_read(&history, p->directory, err)) == 0)
        changed = run_history_after(&history, p->step);
    if (changed) json_object_set_new(fields, "changed", changed);
    run_history_free(&history);
    if (code) json_decref(fields);
    return code ? code : run_event(run, N_("branched"), fields, err);
}

/* Returns the path without trailing slashes, "." and ".." as absolute paths; malloc'ed. A suffix can be
 * added. */
static char *plain_path(const char *directory)
{
    size_t n = strlen(directory);
    while (n > 1 && directory[n - 1] == '/') n--;
    char *plain = strndup(directory, n), *real = NULL;
    const char *name = path_basename(plain);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) real = realpath(plain, NULL);
    if (!real) return plain;
    free(plain);
    return real;
}

char *train_branch_parent(const char *directory, const char *parent)
{
    char *whole = plain_path(directory), *within = parent ? xstrdup(parent) : path_dirname(whole);
    free(whole);
    return within;
}

/* Names the steps of a run's checkpoints, the oldest ones. */
static void name_checkpoints(char *hint, size_t size, const char *directory)
{
    enum { NAMED = 8 };
    int64_t *steps = NULL;
    int count = 0;
    size_t used = (size_t)snprintf(hint, size, _("its checkpoints are of step "));
    if (checkpoint_steps(directory, &steps, &count, NULL) || !count)
        used = (size_t)snprintf(hint, size, _("the run has no checkpoint"));
    for (int i = 0; i < count && i < NAMED && used < size; i++)
        used += (size_t)snprintf(hint + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)steps[count - 1 - i]);
    if (count > NAMED && used < size) snprintf(hint + used, size - used, ", ...");
    free(steps);
}

int train_branch(const char *directory, int64_t step, const char *parent, const char *name, char **branch,
                 int *lock, struct error *err)
{
    struct config config;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    int64_t from = -1;
    char *whole = plain_path(directory), *within = train_branch_parent(directory, parent), *own = NULL;
    int code = checkpoint_before(directory, step, &from, err);
    if (!code && from < 0) {
        char hint[200];
        name_checkpoints(hint, sizeof hint, directory);
        code = error_set(err, EXIT_FAILED, hint, "no complete checkpoint at or before step %lld",
                         (long long)step);
        error_at(err, directory, 0, 0);
    }
    if (!code) code = config_load_below(&config, directory, NULL, 0, err);
    if (code) goto done;
    struct branch_point point = {directory, whole, from};
    for (int i = 1; i < 100; i++) {
        own = name    ? xstrdup(name)
              : i > 1 ? xasprintf("%s-step-%lld-%d", path_basename(whole), (long long)from, i)
                      : xasprintf("%s-step-%lld", path_basename(whole), (long long)from);
        code = run_create_filled(&run, within, own, &config, copy_run, &point, err);
        free(own);
        if (!code || name || code != EXIT_LOCKED) break;
    }
    if (!code) {
        log_info("%s continues from step %lld of %s, which is not changed", run.directory, (long long)from,
                 directory);
        *branch = xstrdup(run.directory);
        *lock = run_release(&run);
    } else {
        run_close(&run);
    }
    config_free(&config);
done:
    free(within);
    free(whole);
    return code;
}
