/* The name of the best checkpoint: see checkpoint.h. */
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/run/checkpoint_internal.h"

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

/* Reads an entry whose checkpoint is complete. */
static bool read_entry(const char *directory, const json_t *object, struct checkpoint_best *best)
{
    const json_t *step = json_object_get(object, "step"), *value = json_object_get(object, "value");
    const char *metric = json_string_value(json_object_get(object, "metric"));
    struct checkpoint c = {0};
    bool whole =
        json_is_integer(step) && json_is_number(value) && json_integer_value(step) >= 0 &&
        checkpoint_verify(&c, directory, json_integer_value(step), BY_SIZE, &(struct error){0}) == WHOLE;
    if (whole)
        *best = (struct checkpoint_best){.step = json_integer_value(step), .value = json_number_value(value)};
    if (whole && metric) snprintf(best->metric, sizeof best->metric, "%s", metric);
    checkpoint_close(&c);
    return whole;
}

void checkpoint_best_read(const char *directory, struct checkpoint_best *best)
{
    char *text = NULL;
    size_t bytes = 0;
    *best = (struct checkpoint_best){.step = -1};
    if (file_read_below(directory, name, 4096, &text, &bytes, NULL)) return;
    json_t *object = json_loadb(text, bytes, 0, NULL);
    if (!read_entry(directory, object, best)) read_entry(directory, json_object_get(object, "before"), best);
    json_decref(object);
    free(text);
}

void checkpoint_best_settle(const char *directory, const struct checkpoint_best *best)
{
    struct error err = {0};
    if (best->step >= 0) checkpoint_best_write(directory, best, NULL, &err);
    else if (!file_absent_below(directory, name) && file_unlink_below(directory, name, 0) != 0)
        file_below_error(directory, name, "remove", &err);
    if (err.code) log_warn("%s: %s", err.file, err.what);
}
