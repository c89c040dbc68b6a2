/* Random documents as people write them: sections in any order, flow and
 * block, comments, Chinese, CRLF, BOM, quotes, anchors and merges. One at a
 * time, in `doc`, with the place of every value; the same for the same state_. */
#ifndef MEOPT_TESTS_UNIT_RANDOM_DOCUMENT_H
#define MEOPT_TESTS_UNIT_RANDOM_DOCUMENT_H

#include "core/config/config.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state_;

static inline uint32_t draw(uint32_t n) /* 0 .. n-1 */
{
    state_ += 0x9E3779B97F4A7C15u; /* splitmix64 */
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 16) % n;
}

static inline const char *pick(const char *const *words, uint32_t n) { return words[draw(n)]; }
#define PICK(words) pick(words, (uint32_t)(sizeof words / sizeof *words))

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
    size_t bytes, capacity;
    const char *eol;
    struct entry entries[200];
    int count;
    bool plain; /* nothing in it that an edit may refuse */
};

static struct document doc;

static inline void add(const char *format, ...)
{
    if (doc.capacity < doc.bytes + 4096) doc.text = realloc(doc.text, doc.capacity = 2 * doc.capacity + 8192);
    va_list args;
    va_start(args, format);
    doc.bytes += (size_t)vsnprintf(doc.text + doc.bytes, doc.capacity - doc.bytes, format, args);
    va_end(args);
}

static const char *const comments[] = {"学习率 learning rate", "see: [a, b] {c}", "'quoted' \"text\"",
                                       "- not a list",         "TODO 不要改",     "\xF0\x9F\x98\x80 ok",
                                       "key: value",           "&a *a <<: x"};
static const char *const texts[] = {"a",   "runs/第一次", "x y",  "b-1.2",  "data root",   "12:30 h",
                                    "c:d", "it's",        "q\"q", "mañana", "模型/权重.pt"};
static const char *const hard_texts[] = {" lead", "a: b", "x #y",   "[z]", "{",
                                         "- a",   "@b",   "trail:", "*no", "a, b"};

static inline bool plain_ok(const char *v)
{
    for (size_t i = 0; i < sizeof hard_texts / sizeof *hard_texts; i++)
        if (strcmp(v, hard_texts[i]) == 0) return false;
    return true;
}

/* A value that the key takes, as it would be typed. */
static inline void random_value(int key, char *value, size_t size, bool hard)
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
    case CONFIG_BYTES:
        snprintf(value, size, "%u%s", draw(64) + (k->min > 0), draw(2) || k->min > 0 ? "G" : "");
        break;
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

static inline void add_scalar(struct entry *e)
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

static inline void maybe_comment(bool line, int indent)
{
    if (draw(4)) return;
    if (line)
        add("%*s#%s%s%s", draw(3) ? indent : (int)draw(9), "", draw(2) ? " " : "", PICK(comments), doc.eol);
    else add("%*s# %s", 1 + (int)draw(4), "", PICK(comments));
}

static inline void maybe_blank(void)
{
    if (draw(6) == 0) add("%s%s", draw(3) ? "" : "   ", doc.eol);
}

static int anchors, last_base, last_value; /* the newest &base and &v, -1: none */

static inline void extension(void)
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

static inline struct entry *new_entry(int key, const char *section, const char *leaf)
{
    struct entry *e = &doc.entries[doc.count++];
    *e = (struct entry){.key = key, .section = section, .leaf = leaf};
    random_value(key, e->value, sizeof e->value, true);
    return e;
}

/* The sections that keys have, in random order. */
static inline int shuffled_sections(char names[][16])
{
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
    return sections;
}

/* How a document is written, drawn once for each. */
struct layout {
    bool flow; /* the root is {...} */
    int indent;
    bool original; /* model.weight_t rather than model_t.weight */
};

static inline void random_entry(int key, const char *section, const char *leaf, bool flow, bool first,
                                int indent)
{
    if (flow) {
        if (!first) add(",%s", draw(3) ? " " : draw(2) ? "" : doc.eol);
        if (!first && doc.text[doc.bytes - 1] == '\n') add("   ");
    } else {
        add("%s", doc.eol);
        maybe_blank();
        maybe_comment(true, indent);
        add("%*s", indent, "");
    }
    if (!flow && last_base >= 0 && first && strcmp(section, "optim") == 0)
        add("<<: *base%d%s%*s", last_base, doc.eol, indent, "");
    struct entry *e = new_entry(key, section, leaf);
    add(draw(8) ? "%s:" : "\"%s\":", e->leaf);
    if (!flow && draw(40) == 0 &&
        (config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH)) {
        e->value[0] = 0; /* null */
        e->at = doc.bytes;
        maybe_comment(false, 0);
        return;
    }
    add("%*s", 1 + (draw(4) ? 0 : (int)draw(6)), "");
    if (last_value >= 0 && draw(10) == 0) {
        add("*v%d ", last_value);
        e->at = doc.bytes;
        return;
    }
    if (draw(30) == 0) add("&n%d ", anchors++);
    add_scalar(e);
    if (!flow) maybe_comment(false, 0);
}

static inline void random_section(const char *section, const struct layout *root, bool first)
{
    if (!root->flow && root->indent == 0 && draw(8) == 0) extension();
    maybe_blank();
    if (!root->flow) maybe_comment(true, root->indent);
    bool flow = root->flow || draw(5) == 0;
    if (root->flow && !first) add(",%s", draw(2) ? " " : doc.eol);
    add("%*s%s:", root->indent, "", section);
    int indent = root->indent + 1 + (int)draw(6), entries = 0;
    if (flow) add(" {");
    else maybe_comment(false, 0);
    for (int key = 0; key < config_key_count; key++) {
        const char *spelled = config_keys[key].name;
        if (root->original && config_key_spelling(key, 1)) spelled = config_key_spelling(key, 1);
        size_t n = strlen(section);
        if (strncmp(spelled, section, n) != 0 || spelled[n] != '.' || draw(4)) continue;
        random_entry(key, section, spelled + n + 1, flow, entries++ == 0, indent);
    }
    if (flow) add("%s}", draw(4) ? "" : " ");
    if (flow && !root->flow) maybe_comment(false, 0);
    if (!root->flow) add("%s", doc.eol);
}

static inline void random_document(void)
{
    static char names[32][16];
    doc.bytes = 0;
    doc.count = 0;
    doc.plain = true;
    doc.eol = draw(3) ? "\n" : "\r\n";
    anchors = 0;
    last_base = last_value = -1;
    if (draw(5) == 0) add("\xEF\xBB\xBF");
    maybe_comment(true, 0);
    if (draw(6) == 0) add("---%s", doc.eol);
    int sections = shuffled_sections(names);
    struct layout root = {.flow = draw(12) == 0};
    root.indent = root.flow || draw(10) ? 0 : (int)draw(4);
    sections = (int)draw((uint32_t)sections + 1);
    root.original = draw(2);
    if (root.flow) add("{");
    for (int s = 0; s < sections; s++) random_section(names[s], &root, s == 0);
    if (root.flow) add("}%s", doc.eol);
    maybe_comment(true, 0);
    if (doc.count && draw(8) == 0) add("...%s", doc.eol); /* libyaml knows no document of "..." alone */
    else if (draw(6) == 0 && doc.bytes > 2) {
        doc.bytes -= doc.text[doc.bytes - 1] == '\n';
        doc.bytes -= doc.bytes && doc.text[doc.bytes - 1] == '\r';
    }
    add("");
}

#endif
