/* Members of JSON objects from outside: see json_members.h. */
#include "core/base/json_members.h"

#include <stdlib.h>
#include <string.h>

static const struct json_member *find_row(const struct json_member *rows, const char *name)
{
    for (; rows && rows->name; rows++) {
        size_t n = strlen(rows->name);
        bool all = rows->name[n - 1] == '*';
        if (all ? strncmp(name, rows->name, n - 1) == 0 : strcmp(name, rows->name) == 0) return rows;
    }
    return NULL;
}

/* Compares numbers by value, 1 and 1.0 alike. */
static bool is_equal(const json_t *a, const json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b)) return json_equal(a, b);
    double difference = json_number_value(a) - json_number_value(b);
    return !(difference > 0) && !(difference < 0);
}

static bool accepts(const char *values, const json_t *value)
{
    for (const char *at = values; *at;) {
        size_t n = strcspn(at, "|");
        json_t *one = json_loadb(at, n, JSON_DECODE_ANY, NULL);
        bool same = one && is_equal(one, value);
        json_decref(one);
        if (same) return true;
        at += n + (at[n] == '|');
    }
    return false;
}

int json_members_check(const json_t *object, const struct json_member *rows, const struct json_member *others,
                       const char *what, const char *hint, struct error *err)
{
    const char *name;
    json_t *value;
    if (object && !json_is_object(object) && !json_is_null(object))
        return error_set(err, EXIT_CONFIG, hint, "%s is no object", what);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        const struct json_member *row = find_row(rows, name);
        char printed[64];
        if (!row) row = find_row(others, name);
        if (json_is_null(value) || (row && (!row->accepts || accepts(row->accepts, value)))) continue;
        name_printable(printed, sizeof printed, name);
        char *text = json_text(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
        int code = row ? error_set(err, EXIT_CONFIG, hint, "%s: %s is %.60s, supported: %s", what, printed,
                                   text ? text : "", row->accepts)
                       : error_set(err, EXIT_CONFIG, hint, "%s: member %s (%.60s) is not known", what,
                                   printed, text ? text : "");
        free(text);
        return code;
    }
    return 0;
}
