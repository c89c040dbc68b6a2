/* libFuzzer: any bytes as a line of metrics.jsonl. A line that jansson parses as an object with an integer
 * step is accepted, with jansson's values of all fields. Every number has the value of strtod. */
#include "core/run/metric_line.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void same(const json_t *object, const char *key, double found)
{
    const json_t *value = json_object_get(object, key);
    double expected = json_is_number(value) ? json_number_value(value) : NAN;
    if (json_is_integer(value) && llabs(json_integer_value(value)) > 1ll << 53)
        return; /* rounded on the way through int64 */
    if (!(found == expected || (isnan(found) && isnan(expected)))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct metric_line line;
    const char *text = (const char *)data, *after;
    bool read = metric_line_parse(&line, text, size);
    if (read && (line.cards_at > size || line.cards_bytes > size - line.cards_at || line.step < 0)) abort();
    char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    copy[size] = 0;
    double mine = metric_number(copy, copy + size, &after);
    if (after != copy && size < 400 && copy[strspn(copy, "0123456789.eE+-")] == 0 && copy[0] != '+') {
        char *end;
        double theirs = strtod(copy, &end);
        if (end == after && memcmp(&mine, &theirs, sizeof mine) != 0) abort();
    }
    /* escaped names are other names to this reader; jansson overlooks a NUL */
    json_t *object = memchr(data, '\\', size) || memchr(data, 0, size)
                         ? NULL
                         : json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *step = json_object_get(object, "step");
    if (json_is_object(object) && json_is_integer(step) && json_integer_value(step) >= 0 &&
        json_integer_value(step) < 1ll << 53) {
        if (!read || line.step != json_integer_value(step)) abort();
        same(object, "loss", line.loss);
        for (int i = 0; i < SCORE_COUNT; i++) same(object, score_rows[i].key, line.scores[i]);
        same(object, "lr", line.lr);
        same(object, "grad_norm", line.grad_norm);
        same(object, "images_per_s", line.images_per_s);
        same(object, "step_ms", line.step_ms);
        same(object, "data_wait_ms", line.data_wait_ms);
        if (json_is_array(json_object_get(object, "cards")) != (line.cards_bytes > 0)) abort();
    }
    json_decref(object);
    free(copy);
    return 0;
}
