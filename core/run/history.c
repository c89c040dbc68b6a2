/* Changes during a run: see history.h. */
#include "core/run/history.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_BYTES = 1 << 26, SHOWN = 6 /* changes of a key in one text */ };

static void drop(struct run_history *h, int i)
{
    free(h->changes[i].key);
    free(h->changes[i].before);
    free(h->changes[i].after);
    memmove(&h->changes[i], &h->changes[i + 1], (size_t)(--h->count - i) * sizeof *h->changes);
}

/* Adds a change. Two changes of a key at the same step are merged; one that restores the value is removed. */
static void add(struct run_history *h, const char *key, const char *before, const char *after, int64_t step)
{
    int i = h->count - 1;
    while (i >= 0 && strcmp(h->changes[i].key, key) != 0) i--;
    if (i < 0 && h->keys >= HISTORY_KEYS) return;
    h->keys += i < 0;
    if (i >= 0 && h->changes[i].step == step) {
        struct run_change *c = &h->changes[i];
        free(c->after);
        c->after = xstrdup(after);
        if (strcmp(c->before, c->after) == 0) drop(h, i);
        return;
    }
    if ((h->count & (h->count - 1)) == 0)
        h->changes = xrealloc(h->changes, (h->count ? 2 * (size_t)h->count : 1) * sizeof *h->changes);
    h->changes[h->count++] = (struct run_change){xstrdup(key), xstrdup(before), xstrdup(after), step};
}

/* Drops later changes: the run resumed from this step. */
static void drop_after(struct run_history *h, int64_t step)
{
    struct run_history old = *h;
    *h = (struct run_history){0};
    for (int i = 0; i < old.count; i++) {
        const struct run_change *c = &old.changes[i];
        add(h, c->key, c->before, c->after, c->step < step ? c->step : step);
    }
    run_history_free(&old);
}

static void add_event(struct run_history *h, const char *line, size_t bytes)
{
    json_t *event = json_loadb(line, bytes, 0, NULL), *values;
    const char *name = json_string_value(json_object_get(event, "event")), *key;
    int64_t step = json_integer_value(json_object_get(event, "step"));
    if (name && (strcmp(name, "resumed") == 0 || strcmp(name, "started") == 0)) drop_after(h, step);
    json_object_foreach(json_object_get(event, "changed"), key, values)
    {
        const char *before = json_string_value(json_array_get(values, 0)),
                   *after = json_string_value(json_array_get(values, 1));
        char shown[3][512]; /* the file may come from a different machine */
        if (before && after && strcmp(before, after) != 0)
            add(h, name_printable(shown[0], sizeof shown[0], key),
                name_printable(shown[1], sizeof shown[1], before),
                name_printable(shown[2], sizeof shown[2], after), step);
    }
    json_decref(event);
}

int run_history_read(struct run_history *h, const char *directory, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    *h = (struct run_history){0};
    int code = file_read_below(directory, "events.jsonl", EVENT_BYTES, &text, &bytes, err);
    if (code && errno == ENOENT) code = 0;
    const char *line = text, *end;
    for (; text && (end = memchr(line, '\n', bytes - (size_t)(line - text))) != NULL; line = end + 1)
        add_event(h, line, (size_t)(end - line));
    free(text);
    return code;
}

void run_history_cut(struct run_history *h, int64_t last_step)
{
    for (int i = h->count - 1; i >= 0; i--)
        if (h->changes[i].step >= last_step) drop(h, i);
}

void run_history_free(struct run_history *h)
{
    while (h->count > 0) drop(h, h->count - 1);
    free(h->changes);
    *h = (struct run_history){0};
}

char *run_history_text(const struct run_history *h, const char *key)
{
    char *text = NULL;
    int count = 0, nth = 0;
    for (int i = 0; i < h->count; i++) count += strcmp(h->changes[i].key, key) == 0 && h->changes[i].step > 0;
    for (int i = 0; i < h->count; i++) {
        const struct run_change *c = &h->changes[i];
        if (strcmp(c->key, key) != 0 || c->step <= 0) continue;
        nth++;
        if (count > SHOWN && nth > SHOWN / 2 && nth < count) {
            if (nth > SHOWN / 2 + 1) continue;
            char *longer = xasprintf("%s -> ...", text);
            free(text);
            text = longer;
            continue;
        }
        char *longer = xasprintf("%s -> %s @%lld", text ? text : c->before, c->after, (long long)c->step);
        free(text);
        text = longer;
    }
    return text;
}

const char *run_history_value(const struct run_history *h, const char *key, bool last)
{
    const char *value = NULL;
    for (int i = 0; i < h->count && (last || !value); i++)
        if (strcmp(h->changes[i].key, key) == 0) value = last ? h->changes[i].after : h->changes[i].before;
    return value;
}

json_t *run_history_after(const struct run_history *h, int64_t step)
{
    json_t *changed = NULL;
    for (int i = 0; i < h->count; i++) {
        const struct run_change *c = &h->changes[i];
        if (c->step <= step || json_object_get(changed, c->key)) continue;
        const char *now = run_history_value(h, c->key, true);
        if (strcmp(c->before, now) == 0) continue;
        if (!changed) changed = json_object();
        json_object_set_new(changed, c->key, json_pack("[s, s]", c->before, now));
    }
    return changed;
}
