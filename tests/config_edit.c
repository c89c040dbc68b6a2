/* Editing touches the target and nothing else: random documents (comments, Chinese, CRLF, BOM, anchors, flow
 * and block styles) x random set and unset. The proof here is independent of core/config: libyaml's events
 * with the target left out are the same, and bytes outside one splice are identical. 2,000 documents;
 * MEOPT_LONG=1: 100,000. */
#include "core/base/file.h"
#include "core/config/config.h"
#include "core/config/edit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>
#include <cmocka.h>

static uint64_t state_;

static uint32_t draw(uint32_t n) /* 0 .. n-1 */
{
    state_ += 0x9E3779B97F4A7C15u; /* splitmix64 */
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 16) % n;
}

static const char *pick(const char *const *words, uint32_t n) { return words[draw(n)]; }
#define PICK(words) pick(words, (uint32_t)(sizeof words / sizeof *words))

/* ---- Random documents
 * -------------------------------------------------------------------------------------------- */

enum style { PLAIN, SINGLE, DOUBLE };

struct entry {
    int key;
    const char *section, *leaf;
    size_t at, length; /* of the scalar with its quotes; length 0: an alias or a null */
    enum style style;
    char value[128];
};

struct document {
    char *text;
    size_t bytes, room;
    const char *eol;
    struct entry entries[200];
    int count;
    bool plain; /* nothing in it that an edit may refuse */
};

static struct document doc;

static void add(const char *format, ...)
{
    if (doc.room < doc.bytes + 4096) doc.text = realloc(doc.text, doc.room = 2 * doc.room + 8192);
    va_list args;
    va_start(args, format);
    doc.bytes += (size_t)vsnprintf(doc.text + doc.bytes, doc.room - doc.bytes, format, args);
    va_end(args);
}

static const char *const comments[] = {"学习率 learning rate", "see: [a, b] {c}", "'quoted' \"text\"",
                                       "- not a list",         "TODO 不要改",     "\xF0\x9F\x98\x80 ok",
                                       "key: value",           "&a *a <<: x"};
static const char *const texts[] = {"a",   "runs/第一次", "x y",  "b-1.2",  "data root",   "12:30 h",
                                    "c:d", "it's",        "q\"q", "mañana", "模型/权重.pt"};
static const char *const hard_texts[] = {" lead", "a: b", "x #y",   "[z]", "{",
                                         "- a",   "@b",   "trail:", "*no", "a, b"};

static bool plain_ok(const char *v)
{
    for (size_t i = 0; i < sizeof hard_texts / sizeof *hard_texts; i++)
        if (strcmp(v, hard_texts[i]) == 0) return false;
    return true;
}

/* A value that the key takes, as it would be typed. */
static void random_value(int key, char *value, size_t size, bool hard)
{
    const struct config_key *k = &config_keys[key];
    static const char *const numbers[] = {"%.0f", "%.0f", "%+.0f", "0x%x"};
    double u = draw(1000001) / 1e6, x = k->min + u * u * u * u * (k->max - k->min);
    const char *choice;
    uint32_t n = 0;
    switch (k->type) {
    case CONFIG_INT: {
        const char *format = draw(8) ? "%.0f" : PICK(numbers);
        if (strchr(format, 'x')) snprintf(value, size, "0x%x", (unsigned)(x > 4e9 ? 7 : x));
        else if (strchr(format, '+')) snprintf(value, size, "%+.0f", x);
        else snprintf(value, size, "%.0f", x);
        break;
    }
    case CONFIG_REAL:
        switch (draw(5)) {
        case 0: snprintf(value, size, "%.3f", x); break;
        case 1: snprintf(value, size, "%.2e", x); break;
        case 2: snprintf(value, size, "%.0e", x); break;
        default: snprintf(value, size, "%.4g", x); break;
        }
        if (strtod(value, NULL) < k->min || strtod(value, NULL) > k->max)
            snprintf(value, size, "%.3g", (k->min + (k->max < 2 ? k->max : 2)) / 2);
        break;
    case CONFIG_BYTES: snprintf(value, size, "%u%s", draw(64), draw(2) ? "G" : ""); break;
    case CONFIG_TEXT:
    case CONFIG_PATH:
        snprintf(value, size, "%s", hard && draw(4) == 0 ? PICK(hard_texts) : PICK(texts));
        break;
    default:
        while (config_choice(key, (int)n)) n++;
        choice = config_choice(key, (int)draw(n));
        snprintf(value, size, "%s", choice);
    }
}

static void add_scalar(struct entry *e)
{
    const struct config_key *k = &config_keys[e->key];
    bool text = k->type == CONFIG_TEXT || k->type == CONFIG_PATH || k->type == CONFIG_CHOICE;
    e->style = !text ? PLAIN : !plain_ok(e->value) ? SINGLE + (enum style)draw(2) : (enum style)draw(3);
    e->at = doc.bytes;
    if (e->style == PLAIN) {
        add("%s", e->value);
    } else {
        add(e->style == SINGLE ? "'" : "\"");
        for (const char *p = e->value; *p; p++) {
            if (e->style == SINGLE && *p == '\'') add("''");
            else if (e->style == DOUBLE && *p == '"') add("\\\"");
            else add("%c", *p);
        }
        add(e->style == SINGLE ? "'" : "\"");
    }
    e->length = doc.bytes - e->at;
}

static void maybe_comment(bool line, int indent)
{
    if (draw(4)) return;
    if (line)
        add("%*s#%s%s%s", draw(3) ? indent : (int)draw(9), "", draw(2) ? " " : "", PICK(comments), doc.eol);
    else add("%*s# %s", 1 + (int)draw(4), "", PICK(comments));
}

static void maybe_blank(void)
{
    if (draw(6) == 0) add("%s%s", draw(3) ? "" : "   ", doc.eol);
}

static int anchors, last_base, last_value; /* the newest &base and &v, -1: none */

static void extension(void)
{
    doc.plain = false;
    switch (draw(6)) {
    case 0:
        last_base = anchors;
        add("x-base%d: &base%d {lr: 0.5, beta1: 0.8, '名': [1, 2, {a: b}]}%s", anchors, anchors, doc.eol);
        break;
    case 1:
        last_value = anchors;
        add("x-list%d:%s- &v%d 5%s- [a, *v%d]%s-%s  k: v%s", anchors, doc.eol, anchors, doc.eol, anchors,
            doc.eol, doc.eol, doc.eol);
        break;
    case 2:
        add("x-text%d: |%s  literal: text%s  # not a comment%s%s", anchors, doc.eol, doc.eol, doc.eol,
            doc.eol);
        break;
    case 3:
        add("x-fold%d: &v%d >-%s    folded%s    文字%s", anchors, anchors, doc.eol, doc.eol, doc.eol);
        break;
    case 4: add("\"x-q%d\": 'multi%s   line'%s", anchors, doc.eol, doc.eol); break;
    default: add("x-tag%d: !!map {? a : b, c}%s", anchors, doc.eol); break;
    }
    anchors++;
}

static struct entry *new_entry(int key, const char *section, const char *leaf)
{
    struct entry *e = &doc.entries[doc.count++];
    *e = (struct entry){.key = key, .section = section, .leaf = leaf};
    random_value(key, e->value, sizeof e->value, true);
    return e;
}

static void random_document(void)
{
    static char names[16][16];
    doc.bytes = 0;
    doc.count = 0;
    doc.plain = true;
    doc.eol = draw(3) ? "\n" : "\r\n";
    anchors = 0;
    last_base = last_value = -1;
    if (draw(5) == 0) add("\xEF\xBB\xBF");
    maybe_comment(true, 0);
    if (draw(6) == 0) add("---%s", doc.eol);
    int sections = 0;
    for (int key = 0; key < config_key_count; key++) {
        size_t n = strcspn(config_keys[key].name, ".");
        if (sections && strncmp(names[sections - 1], config_keys[key].name, n) == 0 &&
            !names[sections - 1][n])
            continue;
        snprintf(names[sections++], 16, "%.*s", (int)n, config_keys[key].name);
    }
    for (int i = sections - 1; i > 0; i--) {
        int j = (int)draw((uint32_t)i + 1);
        char spare[16];
        memcpy(spare, names[i], 16);
        memcpy(names[i], names[j], 16);
        memcpy(names[j], spare, 16);
    }
    bool flow_root = draw(12) == 0;
    int root_indent = flow_root || draw(10) ? 0 : (int)draw(4);
    sections = (int)draw((uint32_t)sections + 1);
    bool original = draw(2); /* model.weight_t rather than model_t.weight */
    if (flow_root) add("{");
    int written = 0;
    for (int s = 0; s < sections; s++) {
        if (!flow_root && root_indent == 0 && draw(8) == 0) extension();
        maybe_blank();
        if (!flow_root) maybe_comment(true, root_indent);
        bool flow = flow_root || draw(5) == 0;
        if (flow_root && written++) add(",%s", draw(2) ? " " : doc.eol);
        add("%*s%s:", root_indent, "", names[s]);
        int indent = root_indent + 1 + (int)draw(6), entries = 0;
        if (flow) add(" {");
        else maybe_comment(false, 0);
        for (int key = 0; key < config_key_count; key++) {
            const char *spelled = config_keys[key].name;
            if (original && config_key_spelling(key, 1)) spelled = config_key_spelling(key, 1);
            size_t n = strlen(names[s]);
            if (strncmp(spelled, names[s], n) != 0 || spelled[n] != '.' || draw(4)) continue;
            if (flow) {
                if (entries) add(",%s", draw(3) ? " " : draw(2) ? "" : doc.eol);
                if (entries && doc.text[doc.bytes - 1] == '\n') add("   ");
            } else {
                add("%s", doc.eol);
                maybe_blank();
                maybe_comment(true, indent);
                add("%*s", indent, "");
            }
            if (!flow && last_base >= 0 && entries == 0 && strcmp(names[s], "optim") == 0)
                add("<<: *base%d%s%*s", last_base, doc.eol, indent, "");
            entries++;
            struct entry *e = new_entry(key, names[s], spelled + n + 1);
            add(draw(8) ? "%s:" : "\"%s\":", e->leaf);
            if (!flow && draw(40) == 0 &&
                (config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH)) {
                e->value[0] = 0; /* null */
                e->at = doc.bytes;
                maybe_comment(false, 0);
                continue;
            }
            add("%*s", 1 + (draw(4) ? 0 : (int)draw(6)), "");
            if (last_value >= 0 && draw(10) == 0) {
                add("*v%d ", last_value);
                e->at = doc.bytes;
                continue;
            }
            if (draw(30) == 0) add("&n%d ", anchors++);
            add_scalar(e);
            if (!flow) maybe_comment(false, 0);
        }
        if (flow) add("%s}", draw(4) ? "" : " ");
        if (flow && !flow_root) maybe_comment(false, 0);
        if (!flow_root) add("%s", doc.eol);
    }
    if (flow_root) add("}%s", doc.eol);
    maybe_comment(true, 0);
    if (doc.count && draw(8) == 0) add("...%s", doc.eol); /* libyaml knows no document of "..." alone */
    else if (draw(6) == 0 && doc.bytes > 2) {
        doc.bytes -= doc.text[doc.bytes - 1] == '\n';
        doc.bytes -= doc.bytes && doc.text[doc.bytes - 1] == '\r';
    }
    add("");
}

/* ---- Events without the target
 * --------------------------------------------------------------------------------- */

struct flat {
    char *text;
    size_t bytes;
    FILE *out;
};

/* All events as lines; the entry section.leaf is left out, and so is a section with nothing else in it. */
static char *events(const char *text, size_t bytes, const char *section, const char *leaf)
{
    yaml_parser_t p;
    yaml_parser_initialize(&p);
    yaml_parser_set_input_string(&p, (const unsigned char *)text, bytes);
    char *result = NULL, *held = NULL;
    size_t result_bytes = 0, held_bytes = 0;
    FILE *out = open_memstream(&result, &result_bytes), *section_out = NULL;
    int depth = 0, skip_until = -1, content = 0;
    bool in_section = false, key_turn[70] = {true};
    bool mapping[70] = {false}, skip_next = false, hold_next = false;
    for (bool more = true; more;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&p, &e)) {
            fprintf(stderr, "%s at %zu in:\n%.*s\n", p.problem, p.problem_mark.index, (int)bytes, text);
            assert_true(0);
        }
        FILE *to = section_out ? section_out : out;
        char line[1024] = "";
        bool node = true;
        switch (e.type) {
        case YAML_SCALAR_EVENT:
            snprintf(line, sizeof line, "=%s %s %d %.*s",
                     e.data.scalar.anchor ? (char *)e.data.scalar.anchor : "",
                     e.data.scalar.tag ? (char *)e.data.scalar.tag : "", (int)e.data.scalar.style,
                     (int)e.data.scalar.length, e.data.scalar.value);
            break;
        case YAML_ALIAS_EVENT: snprintf(line, sizeof line, "*%s", e.data.alias.anchor); break;
        case YAML_MAPPING_START_EVENT:
            snprintf(line, sizeof line, "{%s %d",
                     e.data.mapping_start.anchor ? (char *)e.data.mapping_start.anchor : "",
                     (int)e.data.mapping_start.style);
            break;
        case YAML_SEQUENCE_START_EVENT:
            snprintf(line, sizeof line, "[%d", (int)e.data.sequence_start.style);
            break;
        case YAML_MAPPING_END_EVENT:
        case YAML_SEQUENCE_END_EVENT: snprintf(line, sizeof line, "}"); break;
        case YAML_DOCUMENT_END_EVENT: node = false; break;
        case YAML_STREAM_END_EVENT: more = false; /* fall through */
        default: node = false; break;
        }
        bool opens = e.type == YAML_MAPPING_START_EVENT || e.type == YAML_SEQUENCE_START_EVENT;
        bool closes = e.type == YAML_MAPPING_END_EVENT || e.type == YAML_SEQUENCE_END_EVENT;
        if (node) {
            bool is_key = !closes && !opens && depth > 0 && mapping[depth] && key_turn[depth];
            bool skip = skip_until >= 0;
            if (is_key && depth == 1 && e.type == YAML_SCALAR_EVENT &&
                strcmp((char *)e.data.scalar.value, section) == 0) {
                hold_next = true;
                section_out = open_memstream(&held, &held_bytes);
                content = 0;
                fprintf(section_out, "%s\n", line);
                skip = true; /* written already */
            } else if (is_key && depth == 2 && in_section && e.type == YAML_SCALAR_EVENT &&
                       strcmp((char *)e.data.scalar.value, leaf) == 0) {
                skip_next = true;
                skip = true;
            } else if (skip_next && !is_key && !closes && depth == 2) {
                skip_next = false;
                skip = true;
                if (opens) skip_until = depth;
            } else if (hold_next && !is_key && depth == 1) {
                in_section = opens;
                hold_next = false;
                if (!opens && line[0] != '=') content++;
                if (!opens && line[0] == '=' && e.data.scalar.length) content++;
            } else if (in_section && depth >= 2 && !closes) {
                content++;
            }
            if (closes) {
                depth--;
                if (skip_until >= 0) {
                    if (depth == skip_until) skip_until = -1;
                    skip = true;
                }
            }
            if (!skip) fprintf(to, "%s\n", line);
            if (!opens && depth > 0 && mapping[depth]) key_turn[depth] = !key_turn[depth];
            if (opens) {
                depth++;
                mapping[depth] = e.type == YAML_MAPPING_START_EVENT;
                key_turn[depth] = true;
            }
            if (section_out && depth == 1 && !hold_next && !(is_key)) {
                fclose(section_out);
                section_out = NULL;
                if (content) fputs(held, out);
                free(held);
                held = NULL;
                in_section = false;
            }
        }
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&p);
    fclose(out);
    /* a root that lost its only section, or never had one */
    if (strcmp(result, "{ 1\n}\n") == 0 || strcmp(result, "{ 2\n}\n") == 0 || strcmp(result, "=  1 \n") == 0)
        result[0] = 0;
    return result;
}

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

static void show(const char *what, const char *key, const char *value, const char *after, size_t after_bytes)
{
    fprintf(stderr, "%s: %s=%s\n--- before\n%.*s\n--- after\n%.*s\n---\n", what, key,
            value ? value : "(unset)", (int)doc.bytes, doc.text, (int)after_bytes, after);
    abort();
}

static void only_the_target_changes(void **unused)
{
    (void)unused;
    int rounds = getenv("MEOPT_LONG") ? 100000 : 2000, refused = 0, undone = 0, replaced = 0, loaded = 0,
        inserted = 0, removed = 0;
    for (int round = 0; round < rounds; round++) {
        state_ = (uint64_t)round * 1000003;
        random_document();
        int key = (int)draw((uint32_t)config_key_count);
        if (doc.count && draw(3)) key = doc.entries[draw((uint32_t)doc.count)].key;
        struct entry *e = NULL;
        for (int i = 0; i < doc.count; i++)
            if (doc.entries[i].key == key) e = &doc.entries[i];
        const char *name = config_key_spelling(key, draw(2) && config_key_spelling(key, 1) ? 1 : 0);
        char section[32], value[128];
        snprintf(section, sizeof section, "%.*s", (int)strcspn(name, "."), name);
        const char *leaf = strchr(name, '.') + 1;
        if (e) {
            snprintf(section, sizeof section, "%s", e->section);
            leaf = e->leaf;
        }
        random_value(key, value, sizeof value, true);
        bool unset = draw(4) == 0;
        struct edit edit = {name, unset ? NULL : value};
        struct error err = {0};
        char *after = NULL;
        size_t after_bytes = 0;
        if (edit_apply("x.yaml", doc.text, doc.bytes, &edit, 1, &after, &after_bytes, &err)) {
            if (doc.plain || err.line == 0) {
                fprintf(stderr, "%s\n", err.what);
                show("refused", name, edit.value, "", 0);
            }
            assert_true(err.line > 0);
            refused++;
            continue;
        }
        size_t front = shared_front(doc.text, doc.bytes, after, after_bytes),
               back = shared_back(doc.text, doc.bytes, after, after_bytes);
        if (!unset && e && e->length) {
            if (front < e->at || back < doc.bytes - e->at - e->length)
                show("bytes outside the scalar", name, value, after, after_bytes);
            replaced++;
        } else if (!unset) {
            if (front + back < doc.bytes) show("more than one insertion", name, value, after, after_bytes);
            inserted++;
        } else if (e) {
            if (front + back < after_bytes) show("more than one removal", name, NULL, after, after_bytes);
            removed++;
        } else if (front != doc.bytes || after_bytes != doc.bytes) {
            show("nothing to unset", name, NULL, after, after_bytes);
        }
        char *old_events = events(doc.text, doc.bytes, section, leaf),
             *new_events = events(after, after_bytes, section, leaf);
        if (strcmp(old_events, new_events) != 0) {
            fprintf(stderr, "%s\n===\n%s\n", old_events, new_events);
            show("events differ", name, edit.value, after, after_bytes);
        }
        free(old_events);
        free(new_events);
        /* the file now says what the same override would have said */
        struct config by_override, by_file;
        char *override = xasprintf("%s=%s", name, value);
        if (!unset &&
            config_load_text(&by_override, "/d/x.yaml", doc.text, doc.bytes, &override, 1, NULL) == 0) {
            if (config_load_text(&by_file, "/d/x.yaml", after, after_bytes, NULL, 0, &err)) {
                fprintf(stderr, "%s\n", err.what);
                show("does not load", name, value, after, after_bytes);
            }
            char *a = config_value_text(&by_override, key), *b = config_value_text(&by_file, key);
            if (strcmp(a, b) != 0) show("another value", name, value, after, after_bytes);
            free(a);
            free(b);
            config_free(&by_override);
            config_free(&by_file);
            loaded++;
        }
        free(override);
        if (!unset && e && e->length && (e->style != PLAIN || plain_ok(value))) {
            struct edit back_edit = {name, e->value};
            char *undo = NULL;
            size_t undo_bytes = 0;
            if (edit_apply("x.yaml", after, after_bytes, &back_edit, 1, &undo, &undo_bytes, &err) ||
                undo_bytes != doc.bytes || memcmp(undo, doc.text, undo_bytes) != 0)
                show("undo", name, value, undo ? undo : "", undo_bytes);
            free(undo);
            undone++;
        }
        free(after);
    }
    printf("%d documents: %d replaced, %d inserted, %d removed, %d undone, %d loaded, %d refused\n", rounds,
           replaced, inserted, removed, undone, loaded, refused);
    assert_true(refused < rounds / 20 && replaced > rounds / 4 && undone > replaced * 9 / 10 &&
                inserted > rounds / 20 && removed > rounds / 20);
    free(doc.text);
    memset(&doc, 0, sizeof doc);
}

/* ---- Chosen cases
 * ------------------------------------------------------------------------------------------------ */

static void expect(const char *before, const char *key, const char *value, const char *expected)
{
    struct edit edit = {key, value};
    struct error err = {0};
    char *after = NULL;
    size_t bytes = 0;
    int code = edit_apply("x.yaml", before, strlen(before), &edit, 1, &after, &bytes, &err);
    if (!expected) {
        assert_int_equal(code, EXIT_CONFIG);
        assert_true(err.line > 0 && err.column > 0);
        return;
    }
    if (code) fprintf(stderr, "%s\n", err.what);
    assert_int_equal(code, 0);
    assert_string_equal(after, expected);
    free(after);
}

static void every_byte_but_the_scalar_survives(void **state)
{
    (void)state;
    expect("optim:\r\n  # 学习率\r\n  lr: 1.0e-3   # 不要改\r\n", "optim.lr", "2.0e-5",
           "optim:\r\n  # 学习率\r\n  lr: 2.0e-5   # 不要改\r\n");
    expect("\xEF\xBB\xBFmodel: {weight_t: '中.pt' , weight_s: \"b\"}", "model_t.weight", "it's",
           "\xEF\xBB\xBFmodel: {weight_t: 'it''s' , weight_s: \"b\"}");
    expect("data:\n  root: /a\n", "data.root", "/a: b", "data:\n  root: \"/a: b\"\n");
    expect("data:\n  root:   # nothing yet\n", "data.root", "/a", "data:\n  root: /a   # nothing yet\n");
    expect("optim:\n  lr: &x 1.0 # c\n", "optim.lr", "2.0", "optim:\n  lr: &x 2.0 # c\n");
    expect("optim:\n  lr: !!float 1.0 # c\n", "optim.lr", "2.0", "optim:\n  lr: !!float 2.0 # c\n");
    expect("optim:\n    lr: 1.0 # c\n# end\n", "optim.name", "lion",
           "optim:\n    lr: 1.0 # c\n    name: lion\n# end\n");
    expect("optim:\n    lr: 1.0", "optim.name", "lion", "optim:\n    lr: 1.0\n    name: lion");
    expect("optim: {lr: 1.0}\n", "optim.name", "lion", "optim: {lr: 1.0, name: lion}\n");
    expect("optim: {}\n", "optim.name", "lion", "optim: {name: lion}\n");
    expect("optim:  # later\ndata:\n   root: a\n", "optim.name", "lion",
           "optim:  # later\n   name: lion\ndata:\n   root: a\n");
    expect("optim:\n   lr: 1.0\n\n# end\n", "data.root", "x",
           "optim:\n   lr: 1.0\n\n# end\ndata:\n   root: x\n");
    expect("---\noptim:\n  lr: 1.0\n...\n", "data.root", "x",
           "---\noptim:\n  lr: 1.0\ndata:\n  root: x\n...\n");
    expect("", "data.root", "x", "data:\n  root: x\n");
    expect("# 只有注释\n", "data.root", "x", "# 只有注释\ndata:\n  root: x\n");
    expect("{optim: {lr: 1.0}}\n", "data.root", "a,b", "{optim: {lr: 1.0}, data: {root: \"a,b\"}}\n");
}

static void unset_takes_the_line_and_nothing_more(void **state)
{
    (void)state;
    expect("optim:\n  lr: 1.0 # c\n  # d\n  name: lion\n", "optim.lr", NULL, "optim:\n  # d\n  name: lion\n");
    expect("optim:\n  lr: 1.0\n  name: lion", "optim.name", NULL, "optim:\n  lr: 1.0");
    expect("optim:\n  lr: 1.0\ndata:\n  root: a\n", "data.root", NULL, "optim:\n  lr: 1.0\n");
    expect("optim:\n  lr: 1.0\ndata: # keep\n  root: a\n", "data.root", NULL,
           "optim:\n  lr: 1.0\ndata: # keep\n");
    expect("optim: {lr: 1.0, name: lion, beta1: 0.5}", "optim.name", NULL, "optim: {lr: 1.0, beta1: 0.5}");
    expect("optim: {lr: 1.0, name: lion}", "optim.name", NULL, "optim: {lr: 1.0}");
    expect("optim: {lr: 1.0}", "optim.lr", NULL, "optim: {}");
    expect("optim:\n  lr: 1.0\n", "optim.name", NULL, "optim:\n  lr: 1.0\n");
}

static void what_is_not_safe_is_refused_with_its_place(void **state)
{
    (void)state;
    expect("x-a: &a 1.0\noptim:\n  lr: *a\n", "optim.lr", "2.0", NULL);
    expect("optim:\n  lr: &a 1.0\n  min_lr: *a\n", "optim.lr", "2.0", NULL);
    expect("x-a: &a {lr: 1.0}\noptim: *a\n", "optim.lr", "2.0", NULL);
    expect("x-a: &a {lr: 1.0}\noptim:\n  <<: *a\n", "optim.lr", NULL, NULL);
    expect("data:\n  root: |\n    /a\n", "data.root", "/b", NULL);
    expect("data:\n  root: [a]\n", "data.root", "/b", NULL);
    expect("a: 1\n---\nb: 2\n", "data.root", "/b", NULL);
    expect("data:\n\troot: a\n", "data.root", "/b", NULL);
    expect("data:\n  root: a\n  root: b\n", "data.root", "/b", NULL);
    expect("optim: {lr: 1.0, # why\n  name: lion}", "optim.name", "apsgd",
           "optim: {lr: 1.0, # why\n  name: apsgd}");
    expect("optim: {lr: 1.0, # why\n  name: lion}", "optim.name", NULL, NULL);
}

static void several_changes_are_one_atomic_write(void **state)
{
    (void)state;
    char dir[] = "/tmp/meopt-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    static const char original[] = "# 注释\ntrain:\n  batch_size: 32\n";
    char *file = path_join(dir, "real.yaml"), *link = path_join(dir, "link.yaml");
    assert_int_equal(file_write_atomic(file, original, strlen(original), NULL), 0);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(symlink("real.yaml", link), 0);
    struct edit edits[] = {{"train.batch_size", "16"}, {"optim.lr", "1.0e-3"}, {"train.micro_batch", "4"}};
    struct error err = {0};
    char *before, *after, *text;
    size_t before_bytes, after_bytes, bytes;
    assert_int_equal(edit_file(link, edits, 3, 0, &before, &before_bytes, &after, &after_bytes, &err), 0);
    assert_int_equal(file_read(file, 1000, &text, &bytes, &err), 0);
    assert_string_equal(text, "# 注释\ntrain:\n  batch_size: 16\n  micro_batch: 4\noptim:\n  lr: 1.0e-3\n");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    char *diff = diff_unified("a", before, before_bytes, "b", after, after_bytes);
    assert_string_equal(diff, "--- a\n+++ b\n@@ -1,3 +1,6 @@\n # 注释\n train:\n-  batch_size: 32\n+  "
                              "batch_size: 16\n+  micro_batch: 4\n+optim:\n+  lr: 1.0e-3\n");
    struct edit bad[] = {{"train.batch_size", "8"}, {"train.micro_batch", "3"}};
    assert_int_equal(edit_file(link, bad, 2, 0, NULL, NULL, NULL, NULL, &err),
                     EXIT_CONFIG); /* 3 does not divide 8 */
    free(diff);
    free(before);
    free(after);
    free(text);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    free(file);
    free(link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_but_the_scalar_survives),
        cmocka_unit_test(unset_takes_the_line_and_nothing_more),
        cmocka_unit_test(what_is_not_safe_is_refused_with_its_place),
        cmocka_unit_test(several_changes_are_one_atomic_write),
        cmocka_unit_test(only_the_target_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
