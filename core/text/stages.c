/* What the readers of tokenizer.json's parts share: types, keys, flags, stages. */
#include "core/base/json_members.h"
#include "core/base/memory.h"
#include "core/text/text_internal.h"

#include <stdio.h>

int part_type(json_t *object, const char *part, const char *const *names, struct error *err)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    char known[320] = "";
    size_t n = 0;
    if (!type) return error_set(err, EXIT_INTEGRITY, NULL, "%s has no type", part), -1;
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], type) == 0) return i;
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", names[i]);
        if (n >= sizeof known) n = sizeof known - 1;
    }
    char hint[sizeof known + 16];
    snprintf(hint, sizeof hint, _("supported: %.300s"), known);
    return error_set(err, EXIT_INTEGRITY, hint, "%s '%.60s' is not supported", part, type), -1;
}

int part_keys(json_t *object, const char *part, const char *known, struct error *err)
{
    enum { MOST_KEYS = 16 };
    struct json_member rows[MOST_KEYS + 1] = {0};
    char *words = xstrdup(known), *rest = words, *word;
    for (int n = 0; n < MOST_KEYS && (word = strsep(&rest, " ")) != NULL; n++) {
        rows[n].name = strsep(&word, "=");
        rows[n].accepts = word;
    }
    int code = json_members_check(object, rows, NULL, part, N_("use a tokenizer without it"), err);
    free(words);
    return code ? err->code = EXIT_INTEGRITY : 0;
}

int part_flag(json_t *object, const char *part, const char *key, bool missing, bool *value, struct error *err)
{
    json_t *found = json_object_get(object, key);
    *value = found && !json_is_null(found) ? json_is_true(found) : missing;
    if (!found || json_is_null(found) || json_is_boolean(found)) return 0;
    return error_set(err, EXIT_INTEGRITY, NULL, "%s: %s is neither true nor false", part, key);
}

struct stage *stage_add(struct stages *s, enum stage_kind kind, struct error *err)
{
    if (s->count == MOST_STAGES) {
        error_set(err, EXIT_INTEGRITY, NULL, "a sequence has more than %d parts", MOST_STAGES);
        return NULL;
    }
    if (!s->rows) s->rows = xcalloc(MOST_STAGES, sizeof *s->rows);
    s->rows[s->count] = (struct stage){.kind = kind};
    return &s->rows[s->count++];
}
