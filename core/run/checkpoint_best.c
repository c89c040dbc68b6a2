/* The name of the best checkpoint: see checkpoint.h. */
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/run/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "ckpt/best.json";

int checkpoint_best_write(const char *directory, const struct checkpoint_best *best, struct error *err)
{
    json_t *object = json_pack("{s:I, s:s, s:f}", "step", (json_int_t)best->step, "metric", best->metric,
                               "value", best->value);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    int code = text ? file_write_below(directory, name, text, strlen(text), err)
                    : error_set(err, EXIT_FAILED, NULL, "%s is no number", best->metric);
    free(text);
    json_decref(object);
    return code;
}

void checkpoint_best_read(const char *directory, struct checkpoint_best *best)
{
    char *text = NULL;
    size_t bytes = 0;
    *best = (struct checkpoint_best){.step = -1};
    if (file_read_below(directory, name, 4096, &text, &bytes, NULL)) return;
    json_t *object = json_loadb(text, bytes, 0, NULL);
    const json_t *step = json_object_get(object, "step"), *value = json_object_get(object, "value");
    struct checkpoint c = {0};
    if (json_is_integer(step) && json_is_number(value) && json_integer_value(step) >= 0 &&
        checkpoint_verify(&c, directory, json_integer_value(step), BY_SIZE, &(struct error){0}) == WHOLE)
        *best = (struct checkpoint_best){.step = json_integer_value(step), .value = json_number_value(value)};
    checkpoint_close(&c);
    json_decref(object);
    free(text);
}
