/* The name of the best checkpoint: see checkpoint.h. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/run/checkpoint_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "ckpt/best.json";

static json_t *entry_json(const struct checkpoint_best *best)
{
    return json_pack("{s:I, s:s, s:f}", "step", (json_int_t)best->step, "metric", best->metric, "value",
                     best->value);
}

int checkpoint_best_write(const char *directory, const struct checkpoint_best *best,
                          const struct checkpoint_best *before, struct error *err)
{
    json_t *object = entry_json(best);
    if (object && before && before->step >= 0 && before->step != best->step)
        json_object_set_new(object, "before", entry_json(before));
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    int code = text ? file_make_dirs_below(directory, "ckpt", err) : 0;
    if (!code)
        code = text ? file_write_below(directory, name, text, strlen(text), err)
                    : error_set(err, EXIT_FAILED, NULL, "%s is no number", best->metric);
    free(text);
    json_decref(object);
    return code;
}

/* Reads an entry. best->step stays -1 if it names no complete checkpoint. */
static int read_entry(const char *directory, const json_t *object, struct checkpoint_best *best,
                      struct error *err)
{
    const json_t *step = json_object_get(object, "step"), *value = json_object_get(object, "value");
    const char *metric = json_string_value(json_object_get(object, "metric"));
    struct checkpoint c = {0};
    if (!json_is_integer(step) || !json_is_number(value) || json_integer_value(step) < 0) return 0;
    enum checkpoint_state state = checkpoint_verify(&c, directory, json_integer_value(step), BY_SIZE, err);
    if (state == WHOLE)
        *best = (struct checkpoint_best){.step = json_integer_value(step), .value = json_number_value(value)};
    if (state == WHOLE && metric) snprintf(best->metric, sizeof best->metric, "%s", metric);
    checkpoint_close(&c);
    return state == UNREADABLE ? err->code : 0;
}

int checkpoint_best_read(const char *directory, struct checkpoint_best *best, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    struct error own;
    if (!err) err = &own;
    *best = (struct checkpoint_best){.step = -1};
    int code = file_read_below(directory, name, 4096, &text, &bytes, err);
    if (code) return errno == ENOENT ? 0 : code;
    json_t *object = json_loadb(text, bytes, 0, NULL);
    if (!object) {
        code = error_set(err, EXIT_INTEGRITY, "remove it: the next evaluation names the best anew",
                         "is not the name of the best checkpoint");
        char *path = path_join(directory, name);
        error_at(err, path, 0, 0);
        free(path);
    }
    if (!code) code = read_entry(directory, object, best, err);
    if (!code && best->step < 0) code = read_entry(directory, json_object_get(object, "before"), best, err);
    json_decref(object);
    free(text);
    return code;
}

int checkpoint_best_find(const char *directory, struct checkpoint_best *best, struct error *err)
{
    int code, tries = 1;
    while ((code = checkpoint_best_read(directory, best, err)) != 0 && checkpoint_again(&tries)) continue;
    return code;
}

void checkpoint_best_settle(const char *directory, const struct checkpoint_best *best)
{
    struct error err = {0};
    if (best->step >= 0) checkpoint_best_write(directory, best, NULL, &err);
    else if (!file_absent_below(directory, name) && file_unlink_below(directory, name, 0) != 0)
        file_below_error(directory, name, "remove", &err);
    if (err.code) log_warn("%s: %s", err.file, err.what);
}
