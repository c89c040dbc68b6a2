/* Going on otherwise: see train_change.h. */
#include "cli/train_change.h"
#include "cli/run_name.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/config/edit.h"
#include "core/config/value.h"
#include "core/run/checkpoint.h"
#include "core/run/metric_line.h"
#include "core/run/run.h"
#include "core/run/status.h"
#include "core/train/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- a new run from another's weights ---- */

static int from_run(char **weights, const struct arguments *args, struct error *err)
{
    int code;
    int64_t step = -1;
    char *run =
        run_named(argument_text(args, "from", NULL), argument_text(args, "run-dir", NULL), &code, err);
    if (!code) code = checkpoint_before(run, INT64_MAX, &step, err);
    if (!code && step < 0) {
        code = error_set(err, EXIT_FAILED, "it must have saved: meopt checkpoint RUN",
                         "--from: the run has no checkpoint that is whole");
        error_at(err, run, 0, 0);
    }
    char *real = code ? NULL : realpath(run, NULL);
    if (!code)
        *weights = xasprintf("%s/ckpt/step-%08lld/model.safetensors", real ? real : run, (long long)step);
    free(real);
    free(run);
    return code;
}

int train_overrides(struct train_overrides *o, const struct arguments *args, struct error *err)
{
    bool goes_on = argument_text(args, "resume", NULL) != NULL;
    int given = goes_on ? 0 : 1, code = 0;
    char *weights = NULL;
    *o = (struct train_overrides){xcalloc((size_t)args->operand_count + 3, sizeof *o->all), 0};
    for (int i = given; i < args->operand_count; i++) o->all[o->count++] = xstrdup(args->operands[i]);
    if (!argument_text(args, "from", NULL)) return 0;
    if ((code = from_run(&weights, args, err)) != 0) {
        train_overrides_free(o);
        return code;
    }
    o->all[o->count++] = xasprintf("model_s.weight=%s", weights);
    o->all[o->count++] = xstrdup("model_s.init=checkpoint");
    free(weights);
    return 0;
}

void train_overrides_free(struct train_overrides *o)
{
    for (int i = 0; i < o->count; i++) free(o->all[i]);
    free(o->all);
    *o = (struct train_overrides){0};
}

/* ---- a run that goes on ---- */

int train_reopen(const char *directory, struct config *config, int *lock, struct error *err)
{
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    int code = EXIT_LOCKED;
    for (int i = 0; i < 30 && code == EXIT_LOCKED; i++) {
        code = run_open(&run, directory, err);
        if (code == EXIT_LOCKED) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    if (code) return code;
    run_tidy(&run);
    *lock = run_release(&run);
    char *path = path_join(directory, "config.yaml");
    code = config_load(config, path, NULL, 0, err);
    free(path);
    return code;
}

/* ---- a run with other keys ---- */

enum { OPTION_EDITS = 3 };

/* Which key of the run the edited text changes that may not be another now; -1: none. */
static int refused_key(const struct config *own, const struct config *edited, const char *directory,
                       const char *force)
{
    char *meta = path_join(directory, "meta.json");
    bool begun = !file_absent(meta);
    int refused = -1;
    free(meta);
    for (int key = 0; key < config_key_count && begun && refused < 0; key++) {
        if (identity_may_change(config_keys[key].name, force)) continue;
        char *was = config_value_text(own, key), *is = config_value_text(edited, key);
        if (strcmp(was, is) != 0) refused = key;
        free(was);
        free(is);
    }
    return refused;
}

/* Before the file is touched. */
static int rehearse(const char *path, const struct edit *edits, int count, const char *directory,
                    const char *force, const struct config *own, struct error *err)
{
    char *after = NULL, hint[320], word[200];
    size_t bytes = 0;
    struct config edited;
    int code = edit_file(path, edits, count, 1, NULL, NULL, &after, &bytes, err);
    if (!code && (code = config_load_text(&edited, path, after, bytes, NULL, 0, err)) == 0) {
        int key = refused_key(own, &edited, directory, force);
        if (key >= 0) {
            const char *name = config_keys[key].name;
            char *was = config_value_text(own, key);
            snprintf(hint, sizeof hint,
                     "insist with --force-resume %s, or begin a run with its weights: meopt train CONFIG "
                     "--from %s",
                     name, run_word(word, sizeof word, directory));
            code = error_set(err, EXIT_CONFIG, hint,
                             "%s cannot be another when the run goes on; it is %.120s", name, was);
            free(was);
        }
        config_free(&edited);
    }
    free(after);
    return code;
}

int train_change_run(const struct arguments *args, const char *directory, const char *force,
                     struct config *config, struct error *err)
{
    struct edit *edits = xcalloc((size_t)args->operand_count + OPTION_EDITS, sizeof *edits);
    char steps[32], *path = path_join(directory, "config.yaml"), **keys = NULL, **values = NULL;
    int count = 0, code = 0;
    const char *cards = argument_text(args, "cards", NULL);
    keys = xcalloc((size_t)args->operand_count + 1, sizeof *keys);
    values = xcalloc((size_t)args->operand_count + 1, sizeof *values);
    for (int i = 0; i < args->operand_count && !code; i++) {
        const char *text = args->operands[i], *equals = strchr(text, '=');
        if (!equals)
            code = error_set(err, EXIT_USAGE, "leave CONFIG out: a resumed run has its own; give key=value",
                             "'%s' is no key=value", text);
        else keys[i] = strndup(text, (size_t)(equals - text));
        if (!code && strcmp(keys[i], "train.memory") == 0)
            code =
                error_set(err, EXIT_USAGE, "meopt plan RUN/config.yaml --fit BYTES tells keys to go on with",
                          "train.memory is of a new run");
        if (code) break;
        values[i] = value_typed(config_key_index(keys[i]), equals + 1);
        edits[count++] = (struct edit){keys[i], values[i]};
    }
    if (argument_int(args, "steps", 0) > 0) {
        snprintf(steps, sizeof steps, "%lld", (long long)argument_int(args, "steps", 0));
        edits[count++] = (struct edit){"train.steps", steps};
    }
    if (cards) edits[count++] = (struct edit){"device.cards", cards};
    if (cards && config->device.type == DEVICE_TYPE_CPU)
        edits[count++] = (struct edit){"device.type", "auto"};
    if (argument_int(args, "workers", 0)) edits[count++] = (struct edit){"device.type", "cpu"};
    if (!code && count) code = rehearse(path, edits, count, directory, force, config, err);
    if (!code && count) code = edit_file(path, edits, count, 0, NULL, NULL, NULL, NULL, err);
    if (!code && count) {
        config_free(config);
        code = config_load(config, path, NULL, 0, err);
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

/* ---- a branch ---- */

/* The same bytes under another name: a link where the file system has them, for what is never written again.
 */
static int carry(const char *from, const char *to, bool may_link, struct error *err)
{
    struct file_map map;
    if (may_link && link(from, to) == 0) return 0;
    int code = file_map_open(&map, from, err);
    if (code) return code;
    code = file_write_atomic(to, map.data, map.bytes, err);
    file_map_close(&map);
    return code;
}

/* Lines of a run's file that are of `step` or before it; none where there is no file. */
static int carry_lines(const char *from, int fd, const char *to, int64_t step, struct error *err)
{
    struct file_map map;
    int code = 0;
    if (file_absent(from)) return 0;
    if ((code = file_map_open(&map, from, err)) != 0) return code;
    const char *text = (const char *)map.data, *end = text + map.bytes;
    for (const char *line = text, *stop; line < end && !code; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) break;
        if (metric_step(line, (size_t)(stop - line)) > (double)step) continue;
        code = file_write_all(fd, line, (size_t)(stop + 1 - line), to, err);
    }
    file_map_close(&map);
    return code;
}

/* The same into a file of the new run. */
static int carry_file(const char *directory, const struct run *run, const char *name, int64_t step,
                      struct error *err)
{
    char *from = path_join(directory, name), *to = run_path(run, name);
    int code = 0, fd = file_absent(from) ? -1 : open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) {
        code = carry_lines(from, fd, to, step, err);
        close(fd);
    }
    free(to);
    free(from);
    return code;
}

static int carry_all(const char *directory, const struct run *run, int64_t step, struct error *err)
{
    static const char *const whole[] = {"meta.json", "data.list", "plan.json"};
    char *metrics = path_join(directory, "metrics.jsonl"), *events = path_join(directory, "events.jsonl"),
         *name = xasprintf("ckpt/step-%08lld", (long long)step), *ckpt = run_path(run, name);
    char *latest = run_path(run, "ckpt/LATEST"), **parts = checkpoint_files(directory, step, err);
    int code = parts ? carry_lines(metrics, run->metrics, "metrics.jsonl", step, err) : err->code;
    if (!code) code = carry_lines(events, run->events, "events.jsonl", step, err);
    if (!code) code = carry_file(directory, run, "cards.jsonl", step, err);
    if (!code) code = file_make_dirs(ckpt, err);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && !code; i++) {
        char *from = path_join(directory, whole[i]), *to = run_path(run, whole[i]);
        if (!file_absent(from)) code = carry(from, to, false, err);
        free(from);
        free(to);
    }
    for (size_t i = 0; parts && parts[i]; i++) {
        char *from = xasprintf("%s/%s/%s", directory, name, parts[i]), *to = path_join(ckpt, parts[i]);
        if (!code) code = carry(from, to, true, err);
        free(from);
        free(to);
        free(parts[i]);
    }
    free(parts);
    if (!code) code = file_sync_dir(ckpt, err);
    if (!code) code = file_write_atomic(latest, path_basename(ckpt), strlen(path_basename(ckpt)), err);
    free(latest);
    free(ckpt);
    free(name);
    free(events);
    free(metrics);
    return code;
}

/* A name that can be longer: without slashes behind it, "." and ".." by their own. */
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

int train_branch(const char *directory, int64_t step, const char *parent, const char *name, char **branch,
                 int *lock, struct error *err)
{
    struct config config;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    int64_t from = -1;
    char *path = path_join(directory, "config.yaml"), *whole = plain_path(directory),
         *within = parent ? xstrdup(parent) : path_dirname(whole), *own = NULL;
    int code = checkpoint_before(directory, step, &from, err);
    if (!code && from < 0) {
        code = error_set(err, EXIT_FAILED, "its ckpt/ has those that are there",
                         "there is no whole checkpoint of step %lld or before it", (long long)step);
        error_at(err, directory, 0, 0);
    }
    if (!code) code = config_load(&config, path, NULL, 0, err);
    if (code) goto done;
    for (int i = 1; i < 100; i++) {
        own = name    ? xstrdup(name)
              : i > 1 ? xasprintf("%s-step-%lld-%d", path_basename(whole), (long long)from, i)
                      : xasprintf("%s-step-%lld", path_basename(whole), (long long)from);
        code = run_create(&run, within, own, &config, err);
        free(own);
        if (!code || name || code != EXIT_LOCKED) break;
    }
    if (!code && (code = carry_all(directory, &run, from, err)) != 0) file_remove_tree(run.directory, NULL);
    if (!code) {
        struct error ignored;
        char text[300];
        snprintf(text, sizeof text, "of %.200s at step %lld", whole, (long long)from);
        run_event(&run, "branched", json_pack("{s:I, s:s}", "step", (json_int_t)from, "message", text),
                  &ignored);
        log_info("%s goes on from step %lld of %s, which stays as it is", run.directory, (long long)from,
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
    free(path);
    return code;
}
