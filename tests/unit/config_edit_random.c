/* Editing changes only the target: random documents x random set and unset. The check is independent of
 * core/config: libyaml's events without the target are the same, and bytes outside one splice are
 * identical. 2,000 documents; MEOPT_LONG=1: 100,000. Chosen documents: config_edit.c. */
#include "core/base/memory.h"
#include "core/config/config.h"
#include "core/config/edit.h"
#include "tests/unit/random_document.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>
#include <cmocka.h>

/* ---- Events without the target ---- */

/* Leaves out the entry section.leaf, and a section with nothing else in it:
 * its lines are held until one more comes. */
struct filter {
    const char *section, *leaf;
    FILE *out, *section_out; /* section_out: into held, NULL outside the section */
    char *held;
    size_t held_bytes;
    int depth, skip_until,
        content; /* skip_until: -1, or the depth of the target's value; content: what is held */
    bool in_section, skip_next, hold_next;
    bool mapping[70], key_turn[70]; /* of each depth */
};

static bool opens(const yaml_event_t *e)
{
    return e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
}

static bool closes(const yaml_event_t *e)
{
    return e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
}

static bool scalar_is(const yaml_event_t *e, const char *text)
{
    return e->type == YAML_SCALAR_EVENT && strcmp((char *)e->data.scalar.value, text) == 0;
}

/* An event of a node as a line; false for the others. */
static bool event_line(const yaml_event_t *e, char *line, size_t size)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        snprintf(line, size, "=%s %s %d %.*s", e->data.scalar.anchor ? (char *)e->data.scalar.anchor : "",
                 e->data.scalar.tag ? (char *)e->data.scalar.tag : "", (int)e->data.scalar.style,
                 (int)e->data.scalar.length, e->data.scalar.value);
        return true;
    case YAML_ALIAS_EVENT: snprintf(line, size, "*%s", e->data.alias.anchor); return true;
    case YAML_MAPPING_START_EVENT:
        snprintf(line, size, "{%s %d",
                 e->data.mapping_start.anchor ? (char *)e->data.mapping_start.anchor : "",
                 (int)e->data.mapping_start.style);
        return true;
    case YAML_SEQUENCE_START_EVENT:
        snprintf(line, size, "[%d", (int)e->data.sequence_start.style);
        return true;
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT: snprintf(line, size, "}"); return true;
    default: return false;
    }
}

/* Does this event belong to the target, or is it held already? */
static bool left_out(struct filter *f, const yaml_event_t *e, const char *line, bool is_key)
{
    bool skip = f->skip_until >= 0;
    if (is_key && f->depth == 1 && scalar_is(e, f->section)) {
        f->hold_next = true;
        f->section_out = open_memstream(&f->held, &f->held_bytes);
        f->content = 0;
        fprintf(f->section_out, "%s\n", line);
        skip = true;
    } else if (is_key && f->depth == 2 && f->in_section && scalar_is(e, f->leaf)) {
        f->skip_next = true;
        skip = true;
    } else if (f->skip_next && !is_key && !closes(e) && f->depth == 2) {
        f->skip_next = false;
        skip = true;
        if (opens(e)) f->skip_until = f->depth;
    } else if (f->hold_next && !is_key && f->depth == 1) {
        f->in_section = opens(e);
        f->hold_next = false;
        if (!opens(e) && line[0] != '=') f->content++;
        if (!opens(e) && line[0] == '=' && e->data.scalar.length) f->content++;
    } else if (f->in_section && f->depth >= 2 && !closes(e)) {
        f->content++;
    }
    if (closes(e) && f->skip_until >= 0) {
        if (f->depth - 1 == f->skip_until) f->skip_until = -1;
        skip = true;
    }
    return skip;
}

static void filter_event(struct filter *f, const yaml_event_t *e, const char *line)
{
    bool is_key = !closes(e) && !opens(e) && f->depth > 0 && f->mapping[f->depth] && f->key_turn[f->depth];
    if (!left_out(f, e, line, is_key)) fprintf(f->section_out ? f->section_out : f->out, "%s\n", line);
    if (closes(e)) f->depth--;
    if (!opens(e) && f->depth > 0 && f->mapping[f->depth]) f->key_turn[f->depth] = !f->key_turn[f->depth];
    if (opens(e)) {
        f->depth++;
        f->mapping[f->depth] = e->type == YAML_MAPPING_START_EVENT;
        f->key_turn[f->depth] = true;
    }
    if (f->section_out && f->depth == 1 && !f->hold_next && !is_key) { /* the section's end */
        fclose(f->section_out);
        f->section_out = NULL;
        if (f->content) fputs(f->held, f->out);
        free(f->held);
        f->held = NULL;
        f->in_section = false;
    }
}

/* All events as lines; the entry section.leaf is left out, and so is a section with nothing else in it. */
static char *events(const char *text, size_t bytes, const char *section, const char *leaf)
{
    yaml_parser_t p;
    yaml_parser_initialize(&p);
    yaml_parser_set_input_string(&p, (const unsigned char *)text, bytes);
    char *result = NULL;
    size_t result_bytes = 0;
    struct filter f = {.section = section, .leaf = leaf, .skip_until = -1};
    f.out = open_memstream(&result, &result_bytes);
    for (bool more = true; more;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&p, &e)) {
            fprintf(stderr, "%s at %zu in:\n%.*s\n", p.problem, p.problem_mark.index, (int)bytes, text);
            assert_true(0);
        }
        char line[1024] = "";
        if (event_line(&e, line, sizeof line)) filter_event(&f, &e, line);
        more = e.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&p);
    fclose(f.out);
    /* a root that lost its only section, or never had one */
    if (strcmp(result, "{ 1\n}\n") == 0 || strcmp(result, "{ 2\n}\n") == 0 || strcmp(result, "=  1 \n") == 0)
        result[0] = 0;
    return result;
}

/* ---- One change ---- */

struct change {
    int key;
    const struct entry *entry; /* as it stands, NULL: it does not */
    char section[32];
    const char *leaf;
    char value[128];
    bool unset;
    struct edit edit;
    char *after;
    size_t after_bytes;
};

static struct {
    int refused, replaced, inserted, removed, loaded, undone;
} seen;

static size_t shared_front(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;
    while (i < n && i < m && a[i] == b[i]) i++;
    return i;
}

static size_t shared_back(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;
    while (i < n && i < m && a[n - 1 - i] == b[m - 1 - i]) i++;
    return i;
}

static void show(const char *what, const struct change *c)
{
    fprintf(stderr, "%s: %s=%s\n--- before\n%.*s\n--- after\n%.*s\n---\n", what, c->edit.key,
            c->unset ? "(unset)" : c->value, (int)doc.bytes, doc.text, (int)c->after_bytes,
            c->after ? c->after : "");
    abort();
}

/* Of a key that the document has, rather than of any. */
static void random_change(struct change *c)
{
    *c = (struct change){.key = (int)draw((uint32_t)config_key_count)};
    if (doc.count && draw(3)) c->key = doc.entries[draw((uint32_t)doc.count)].key;
    for (int i = 0; i < doc.count; i++)
        if (doc.entries[i].key == c->key) c->entry = &doc.entries[i];
    const char *name = config_key_spelling(c->key, draw(2) && config_key_spelling(c->key, 1) ? 1 : 0);
    snprintf(c->section, sizeof c->section, "%.*s", (int)strcspn(name, "."), name);
    c->leaf = strchr(name, '.') + 1;
    if (c->entry) {
        snprintf(c->section, sizeof c->section, "%s", c->entry->section);
        c->leaf = c->entry->leaf;
    }
    random_value(c->key, c->value, sizeof c->value, true);
    c->unset = draw(4) == 0;
    c->edit = (struct edit){name, c->unset ? NULL : c->value};
}

static void check_bytes(const struct change *c)
{
    const struct entry *e = c->entry;
    size_t front = shared_front(doc.text, doc.bytes, c->after, c->after_bytes),
           back = shared_back(doc.text, doc.bytes, c->after, c->after_bytes);
    if (!c->unset && e && e->length) {
        if (front < e->at || back < doc.bytes - e->at - e->length) show("bytes outside the scalar", c);
        seen.replaced++;
    } else if (!c->unset) {
        if (front + back < doc.bytes) show("more than one insertion", c);
        seen.inserted++;
    } else if (e) {
        if (front + back < c->after_bytes) show("more than one removal", c);
        seen.removed++;
    } else if (front != doc.bytes || c->after_bytes != doc.bytes) {
        show("nothing to unset", c);
    }
}

static void check_events(const struct change *c)
{
    char *old_events = events(doc.text, doc.bytes, c->section, c->leaf),
         *new_events = events(c->after, c->after_bytes, c->section, c->leaf);
    if (strcmp(old_events, new_events) != 0) {
        fprintf(stderr, "%s\n===\n%s\n", old_events, new_events);
        show("events differ", c);
    }
    free(old_events);
    free(new_events);
}

/* The file now says what the same override would have said. */
static void check_meaning(const struct change *c)
{
    if (c->unset) return;
    struct error err = {0};
    struct config by_override, by_file;
    char *override = xasprintf("%s=%s", c->edit.key, c->value), here[512];
    assert_non_null(getcwd(here, sizeof here)); /* where paths of overrides begin */
    char *path = xasprintf("%s/x.yaml", here);
    /* an override may settle two keys of the file that contradict each other, and an edit does not */
    bool sound = config_load_text(&by_file, path, doc.text, doc.bytes, NULL, 0, NULL) == 0;
    if (sound) config_free(&by_file);
    if (sound && config_load_text(&by_override, path, doc.text, doc.bytes, &override, 1, NULL) == 0) {
        if (config_load_text(&by_file, path, c->after, c->after_bytes, NULL, 0, &err)) {
            fprintf(stderr, "%s\n", err.what);
            show("does not load", c);
        }
        char *a = config_value_text(&by_override, c->key), *b = config_value_text(&by_file, c->key);
        if (strcmp(a, b) != 0) show("another value", c);
        free(a);
        free(b);
        config_free(&by_override);
        config_free(&by_file);
        seen.loaded++;
    }
    free(path);
    free(override);
}

/* The value from before, set again, gives the bytes from before. */
static void check_undo(const struct change *c)
{
    const struct entry *e = c->entry;
    if (c->unset || !e || !e->length || (e->style == PLAIN && !plain_ok(c->value))) return;
    struct edit back = {c->edit.key, e->value};
    char *undo = NULL;
    size_t undo_bytes = 0;
    struct error err;
    if (edit_apply("x.yaml", c->after, c->after_bytes, &back, 1, &undo, &undo_bytes, &err) ||
        undo_bytes != doc.bytes || memcmp(undo, doc.text, undo_bytes) != 0)
        show("undo", c);
    free(undo);
    seen.undone++;
}

static void only_the_target_changes(void **unused)
{
    (void)unused;
    int rounds = getenv("MEOPT_LONG") ? 100000 : 2000;
    for (int round = 0; round < rounds; round++) {
        state_ = (uint64_t)round * 1000003;
        random_document();
        struct change c;
        random_change(&c);
        struct error err = {0};
        if (edit_apply("x.yaml", doc.text, doc.bytes, &c.edit, 1, &c.after, &c.after_bytes, &err)) {
            if (doc.plain || err.line == 0) {
                fprintf(stderr, "%s\n", err.what);
                show("refused", &c);
            }
            assert_true(err.line > 0);
            seen.refused++;
            continue;
        }
        check_bytes(&c);
        check_events(&c);
        check_meaning(&c);
        check_undo(&c);
        free(c.after);
    }
    printf("%d documents: %d replaced, %d inserted, %d removed, %d undone, %d loaded, %d refused\n", rounds,
           seen.replaced, seen.inserted, seen.removed, seen.undone, seen.loaded, seen.refused);
    assert_true(seen.refused < rounds / 20 && seen.replaced > rounds / 4 &&
                seen.undone > seen.replaced * 9 / 10 && seen.inserted > rounds / 20 &&
                seen.removed > rounds / 20);
    free(doc.text);
    memset(&doc, 0, sizeof doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_the_target_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
