/* Settings of a run: see settings.h. */
#include "core/compare/settings.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/config/document.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SMALL_FILE = 4 << 20, META_BYTES = 1 << 24, MOST_SETTINGS = 10000 };

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct setting *)a)->key, ((const struct setting *)b)->key);
}

/* Adds the keys below a node. *left: remaining number of keys, because aliases can expand a page of text
 * without limit. */
static void flatten(struct record *r, const struct document *d, int node, const char *prefix, int depth,
                    int *left)
{
    for (int key = d->nodes[node].first; key >= 0 && d->nodes[key].next >= 0 && depth < 8 && --*left >= 0;
         key = d->nodes[d->nodes[key].next].next) {
        int value = document_follow(d, d->nodes[key].next);
        if (value < 0 || d->nodes[key].kind != NODE_SCALAR) continue;
        char *name = xasprintf("%s%s%s", prefix, prefix[0] ? "." : "", d->nodes[key].text);
        if (d->nodes[value].kind == NODE_MAPPING) flatten(r, d, value, name, depth + 1, left);
        if (d->nodes[value].kind == NODE_SCALAR) {
            char printable[512];
            if ((r->setting_count & (r->setting_count - 1)) == 0)
                r->settings = xrealloc(r->settings, (r->setting_count ? 2 * (size_t)r->setting_count : 1) *
                                                        sizeof *r->settings);
            name_printable(printable, sizeof printable, name);
            r->settings[r->setting_count].key = xstrdup(printable);
            r->settings[r->setting_count].value =
                xstrdup(name_printable(printable, sizeof printable, d->nodes[value].text));
            r->settings[r->setting_count++].history = NULL;
        }
        free(name);
    }
}

/* Reads keys as written in the file, so that runs of other versions can be compared, too. */
static int read_config(struct record *r, struct error *err)
{
    char *path = path_join(r->path, "config.yaml"), *text = NULL;
    size_t bytes = 0;
    int left = MOST_SETTINGS, code = file_read_below(r->path, "config.yaml", SMALL_FILE, &text, &bytes, err);
    if (code && errno == ENOENT) code = 0;
    struct document d;
    struct error why;
    int parsed = text ? document_parse(&d, path, text, bytes, &why) : EXIT_FAILED;
    if (text && parsed == EXIT_HOST_MEMORY) {
        code = parsed;
        if (err) *err = why;
    } else if (parsed == 0) {
        if (d.root >= 0 && d.nodes[d.root].kind == NODE_MAPPING) flatten(r, &d, d.root, "", 0, &left);
        if (r->setting_count) qsort(r->settings, (size_t)r->setting_count, sizeof *r->settings, by_key);
        document_free(&d);
    }
    if (left < 0) {
        code = error_set(err, EXIT_INTEGRITY, "check that meopt wrote this file",
                         "has more than %d keys, with its aliases", MOST_SETTINGS);
        error_at(err, path, 0, 0);
    }
    free(text);
    free(path);
    return code;
}

static const struct setting *find(const struct record *r, const char *key)
{
    struct setting wanted = {.key = (char *)(uintptr_t)key};
    return r->setting_count
               ? bsearch(&wanted, r->settings, (size_t)r->setting_count, sizeof *r->settings, by_key)
               : NULL;
}

const char *record_setting(const struct record *r, const char *key)
{
    const struct setting *found = find(r, key);
    return found ? found->value : NULL;
}

const char *record_setting_history(const struct record *r, const char *key)
{
    const struct setting *found = find(r, key);
    return found ? found->history : NULL;
}

/* Whether two values of a key differ, regardless of spelling; strings that may be paths are not compared. */
static bool differ(const char *a, const char *b)
{
    char *a_end, *b_end;
    double x = strtod(a, &a_end), y = strtod(b, &b_end);
    bool a_number = *a && !*a_end, b_number = *b && !*b_end;
    if (a_number && b_number) return x != y;
    if (a_number || b_number || strpbrk(a, "/\"[,") || strpbrk(b, "/\"[,")) return false;
    return strcasecmp(a, b) != 0;
}

/* Uses the value of the training if config.yaml differs: the file was edited after the last step, or a
 * change came too late. */
static void use(struct record *r, struct setting *s, const char *used)
{
    char shown[512];
    name_printable(shown, sizeof shown, used);
    if (!differ(s->value, shown)) return;
    if (!r->edited[0])
        snprintf(r->edited, sizeof r->edited, _("%.60s is %.40s in config.yaml, but the run used %.40s"),
                 s->key, s->value, shown);
    free(s->value);
    s->value = xstrdup(shown);
}

static int apply_used(struct record *r, struct error *err)
{
    int code = run_history_read(&r->history, r->path, err);
    if (code) return code;
    json_t *meta = json_read_below(r->path, "meta.json", META_BYTES, NULL),
           *config = json_object_get(meta, "config");
    char **firsts = xcalloc((size_t)r->setting_count + 1, sizeof *firsts);
    for (int i = 0; i < r->setting_count; i++) {
        const char *first = run_history_value(&r->history, r->settings[i].key, false);
        firsts[i] = first ? xstrdup(first) : NULL;
    }
    run_history_cut(&r->history, r->count ? r->step[r->count - 1] : 0);
    for (int i = 0; i < r->setting_count; i++) {
        struct setting *s = &r->settings[i];
        const char *used = run_history_value(&r->history, s->key, true);
        if (!used) used = firsts[i];
        if (!used) used = json_string_value(json_object_get(config, s->key));
        if (used && r->count) use(r, s, used);
        s->history = run_history_text(&r->history, s->key);
        free(firsts[i]);
    }
    free(firsts);
    json_decref(meta);
    return 0;
}

int settings_read(struct record *r, struct error *err)
{
    int code = read_config(r, err);
    return code ? code : apply_used(r, err);
}

void settings_free(struct record *r)
{
    for (int i = 0; i < r->setting_count; i++) {
        free(r->settings[i].key);
        free(r->settings[i].value);
        free(r->settings[i].history);
    }
    free(r->settings);
    run_history_free(&r->history);
}
