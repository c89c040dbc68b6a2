/* Converts libyaml's events into a tree with byte positions. See document.h. The semantics of libyaml
 * 0.2.5's marks were measured: index counts code points, CRLF counts two, the BOM none. Scalars end
 * exactly after their last character (quotes included). An anchor or tag belongs to the start. A missing
 * value is a zero-width scalar. */
#include "core/config/document.h"
#include "core/base/memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAP_STEP = 64 }; /* code points between two entries of the offset table */

struct parser {
    struct document *document;
    const char *path;
    yaml_parser_t yaml;
    size_t base;     /* 3 after a BOM */
    size_t *offsets; /* byte of every MAP_STEPth code point */
    size_t points;   /* number of code points */
    int node_capacity;
    int anchors, aliases;
};

/* ---- Positions ---- */

static size_t point_bytes(unsigned char c) { return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4; }

void document_position(const char *text, size_t bytes, size_t at, int *line, int *column)
{
    *line = *column = 1;
    if (at > bytes) at = bytes;
    for (size_t i = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; i < at; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n' || (c == '\r' && (i + 1 == bytes || text[i + 1] != '\n'))) {
            ++*line;
            *column = 1;
        } else if ((c & 0xC0) != 0x80 && c != '\r') {
            ++*column;
        }
    }
}

static uint32_t code_point(const unsigned char *p, size_t n)
{
    uint32_t c = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (p[i] & 63);
    return c;
}

/* Returns the columns of a character on a terminal: 2 for East Asian wide ones. wcwidth would require a
 * locale. */
static int columns_of(const unsigned char *p, size_t n)
{
    if (n < 3) return 1;
    uint32_t c = code_point(p, n);
    return (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) || (c >= 0xAC00 && c <= 0xD7A3) ||
                   (c >= 0xF900 && c <= 0xFAFF) || (c >= 0xFE30 && c <= 0xFE6F) ||
                   (c >= 0xFF00 && c <= 0xFF60) || (c >= 0xFFE0 && c <= 0xFFE6) ||
                   (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD)
               ? 2
               : 1;
}

/* Writes the line around `at`, cut to a window, with tabs as spaces, and "^~~~" below it. */
static void excerpt(char *dst, size_t size, const char *text, size_t bytes, size_t at, size_t length)
{
    enum { WINDOW = 88 };
    size_t begin = at, end = at;
    while (begin > 0 && text[begin - 1] != '\n' && text[begin - 1] != '\r') begin--;
    while (end < bytes && text[end] != '\n' && text[end] != '\r') end++;
    if (begin == 0 && end >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) begin = 3;
    if (at < begin) at = begin;
    while (at - begin > WINDOW - 24) begin++;
    while (begin < at && ((unsigned char)text[begin] & 0xC0) == 0x80) begin++;
    char line[2 * WINDOW + 8], caret[2 * WINDOW + 8];
    size_t used = 0, marks = 0;
    int columns = 0;
    for (size_t i = begin; i < end && columns < WINDOW;) {
        size_t n = point_bytes((unsigned char)text[i]);
        if (i + n > end) n = 1;
        if (used + n >= 2 * WINDOW) break;
        int width = columns_of((const unsigned char *)text + i, n);
        memcpy(line + used, text + i, n);
        if (text[i] == '\t' || text[i] == 0) line[used] = ' ';
        used += n;
        if (i < at) {
            memset(caret + marks, ' ', (size_t)width);
            marks += (size_t)width;
        } else if (i < at + length) {
            for (int k = 0; k < width; k++) caret[marks++] = '~';
        }
        columns += width;
        i += n;
    }
    line[used] = 0;
    size_t blank = 0;
    while (blank < marks && caret[blank] == ' ') blank++;
    if (blank == marks) marks++;
    caret[blank] = '^';
    caret[marks] = 0;
    int row, column;
    document_position(text, bytes, at, &row, &column);
    snprintf(dst, size, "%5d | %s\n      | %s", row, line, caret);
}

/* Returns the ASCII character that this one resembles: full-width forms, blanks and quotes of input
 * methods and word processors; 0: none. */
static char ascii_of(uint32_t c)
{
    if (c >= 0xFF01 && c <= 0xFF5E) return (char)(c - 0xFEE0);
    if (c == 0xA0 || c == 0x3000 || c == 0x202F || (c >= 0x2000 && c <= 0x200B)) return ' ';
    if (c == 0x201C || c == 0x201D) return '"';
    return c == 0x2018 || c == 0x2019 ? '\'' : 0;
}

bool document_lookalike(char *hint, size_t size, const char *text, size_t bytes, size_t at)
{
    size_t begin = at < bytes ? at : bytes, end;
    while (begin > 0 && text[begin - 1] != '\n') begin--;
    for (*hint = 0; begin < bytes && text[begin] != '\n' && text[begin] != '#'; begin = end) {
        const unsigned char *p = (const unsigned char *)text + begin;
        end = begin + point_bytes(*p);
        if (*p < 0x80 || (begin == 0 && memcmp(text, "\xEF\xBB\xBF", bytes < 3 ? bytes : 3) == 0)) continue;
        char ascii = end <= bytes ? ascii_of(code_point(p, end - begin)) : 0;
        if (!ascii) return false; /* text in another alphabet */
        int line, column;
        document_position(text, bytes, begin, &line, &column);
        if (!*hint)
            snprintf(hint, size, _("replace U+%04X by '%c' in line %d, column %d: it only resembles it"),
                     code_point(p, end - begin), ascii, line, column);
    }
    return *hint;
}

int document_error(struct error *err, const char *path, const char *text, size_t bytes, size_t at,
                   size_t length, const char *hint, const char *format, ...)
{
    char sentence[320], shown[480], named[96];
    va_list args;
    va_start(args, format);
    text_format(sentence, sizeof sentence, format, args);
    va_end(args);
    int line, column;
    document_position(text, bytes, at, &line, &column);
    excerpt(shown, sizeof shown, text, bytes, at, length);
    if (document_lookalike(named, sizeof named, text, bytes, at)) hint = named;
    error_set(err, EXIT_CONFIG, hint, "%s\n%s", sentence, shown);
    return error_at(err, path, line, column) ? EXIT_CONFIG : EXIT_CONFIG;
}

static size_t byte_of(const struct parser *p, size_t index)
{
    if (index > p->points) index = p->points;
    size_t at = p->offsets[index / MAP_STEP];
    for (size_t k = index % MAP_STEP; k; k--) at += point_bytes((unsigned char)p->document->text[at]);
    return at;
}

/* ---- Checks before libyaml ---- */

static int check_bytes(struct parser *p, struct error *err)
{
    struct document *d = p->document;
    size_t points = 0;
    for (size_t i = p->base; i < d->bytes;) {
        const unsigned char *c = (const unsigned char *)d->text + i;
        size_t n = *c < 0x80                 ? 1
                   : *c >= 0xC2 && *c < 0xE0 ? 2
                   : *c >= 0xE0 && *c < 0xF0 ? 3
                   : *c >= 0xF0 && *c < 0xF5 ? 4
                                             : 0;
        for (size_t k = 1; n && k < n; k++)
            if (i + k >= d->bytes || (c[k] & 0xC0) != 0x80) n = 0;
        if (n == 0 || (*c == 0xE0 && c[1] < 0xA0) || (*c == 0xED && c[1] > 0x9F) ||
            (*c == 0xF0 && c[1] < 0x90) || (*c == 0xF4 && c[1] > 0x8F))
            return document_error(err, p->path, d->text, d->bytes, i, 1, "save the file as UTF-8",
                                  "byte 0x%02x is not UTF-8", *c);
        if (*c == 0 || (*c < 0x20 && *c != '\t' && *c != '\n' && *c != '\r') || *c == 0x7F)
            return document_error(err, p->path, d->text, d->bytes, i, 1,
                                  "remove it, and check that this is a text file", "control character 0x%02x",
                                  *c);
        if (points % MAP_STEP == 0) p->offsets[points / MAP_STEP] = i;
        points++;
        i += n;
    }
    if (points % MAP_STEP == 0) p->offsets[points / MAP_STEP] = d->bytes;
    p->points = points;
    const char *line = memchr(d->text, '\n', d->bytes);
    d->crlf = line && line > d->text && line[-1] == '\r';
    return 0;
}

/* ---- Tree ---- */

static int node_error(struct parser *p, size_t at, struct error *err, const char *hint, const char *sentence)
{
    return document_error(err, p->path, p->document->text, p->document->bytes, at, 1, hint, "%s", sentence);
}

static int yaml_failed(struct parser *p, struct error *err)
{
    const yaml_parser_t *y = &p->yaml;
    if (y->error == YAML_MEMORY_ERROR)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", p->path);
    size_t at =
        y->error == YAML_READER_ERROR ? y->problem_offset + p->base : byte_of(p, y->problem_mark.index);
    const char *hint = _("indent with spaces, close quotes and brackets, put a blank after ':'");
    if (y->problem && strstr(y->problem, "cannot start any token")) {
        if (at < p->document->bytes && p->document->text[at] == '\t')
            hint = _("YAML indents with spaces, never with tabs");
        else hint = _("put the value in quotes");
    } else if (y->problem && strstr(y->problem, "mapping values are not allowed")) {
        hint = _("put a value that contains ': ' in quotes; check the indentation");
    }
    char named[96];
    size_t above = at; /* the cause may be in the line above */
    while (above > 0 && p->document->text[above - 1] != '\n') above--;
    if (above > 0 &&
        document_lookalike(named, sizeof named, p->document->text, p->document->bytes, above - 1))
        hint = named;
    return document_error(err, p->path, p->document->text, p->document->bytes, at, 1, hint,
                          "not valid YAML: %s%s%s", y->problem ? y->problem : "unreadable",
                          y->context ? ", " : "", y->context ? y->context : "");
}

static char *text_copy(const yaml_char_t *text, size_t bytes)
{
    char *copy = xmalloc(bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}

static char *name_copy(const yaml_char_t *text) { return text ? xstrdup((const char *)text) : NULL; }

/* Returns the bytes of anchor and tag, in either order, with the blanks and comments after them. */
static size_t skip_properties(const struct document *d, size_t at, size_t end, int properties)
{
    for (; properties > 0; properties--) {
        while (at < end && !strchr(" \t\r\n", d->text[at])) at++;
        for (;;) {
            while (at < end && strchr(" \t\r\n", d->text[at])) at++;
            if (at >= end || d->text[at] != '#') break;
            while (at < end && d->text[at] != '\n') at++;
        }
    }
    return at;
}

static int node_add(struct parser *p, const yaml_event_t *event, struct error *err)
{
    struct document *d = p->document;
    p->anchors += (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor) ||
                  (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor) ||
                  (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor);
    p->aliases += event->type == YAML_ALIAS_EVENT;
    if (d->count >= DOCUMENT_MAX_NODES || p->anchors > DOCUMENT_MAX_ALIASES ||
        p->aliases > DOCUMENT_MAX_ALIASES) {
        node_error(p, byte_of(p, event->start_mark.index), err, "a configuration is a page of text",
                   "more nodes, anchors or aliases than a configuration may have");
        return -1;
    }
    if (d->count == p->node_capacity) {
        p->node_capacity = p->node_capacity ? 2 * p->node_capacity : 64;
        d->nodes = xrealloc(d->nodes, (size_t)p->node_capacity * sizeof *d->nodes);
    }
    struct node *n = &d->nodes[d->count];
    *n = (struct node){.first = -1, .next = -1, .target = -1};
    n->outer_start = byte_of(p, event->start_mark.index);
    n->end = byte_of(p, event->end_mark.index);
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        n->kind = NODE_SCALAR;
        n->text = text_copy(event->data.scalar.value, event->data.scalar.length);
        n->text_bytes = event->data.scalar.length;
        n->anchor = name_copy(event->data.scalar.anchor);
        n->tag = name_copy(event->data.scalar.tag);
        n->style = event->data.scalar.style == YAML_SINGLE_QUOTED_SCALAR_STYLE   ? STYLE_SINGLE
                   : event->data.scalar.style == YAML_DOUBLE_QUOTED_SCALAR_STYLE ? STYLE_DOUBLE
                   : event->data.scalar.style == YAML_LITERAL_SCALAR_STYLE       ? STYLE_LITERAL
                   : event->data.scalar.style == YAML_FOLDED_SCALAR_STYLE        ? STYLE_FOLDED
                                                                                 : STYLE_PLAIN;
        break;
    case YAML_ALIAS_EVENT:
        n->kind = NODE_ALIAS;
        n->text = name_copy(event->data.alias.anchor);
        break;
    case YAML_MAPPING_START_EVENT:
        n->kind = NODE_MAPPING;
        n->anchor = name_copy(event->data.mapping_start.anchor);
        n->tag = name_copy(event->data.mapping_start.tag);
        n->style = event->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE ? STYLE_FLOW : STYLE_BLOCK;
        break;
    default:
        n->kind = NODE_SEQUENCE;
        n->anchor = name_copy(event->data.sequence_start.anchor);
        n->tag = name_copy(event->data.sequence_start.tag);
        n->style = event->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE ? STYLE_FLOW : STYLE_BLOCK;
        break;
    }
    n->start = skip_properties(d, n->outer_start, n->kind == NODE_SCALAR ? n->end : d->bytes,
                               n->kind == NODE_ALIAS ? 0 : (n->anchor != NULL) + (n->tag != NULL));
    return d->count++;
}

/* Resolves aliases. An anchor may be redefined; an alias refers to the nearest one before it. */
static int resolve_aliases(struct parser *p, struct error *err)
{
    struct document *d = p->document;
    int anchors = 0;
    int *anchored = xmalloc((size_t)(d->count + 1) * sizeof *anchored);
    int code = 0;
    for (int i = 0; i < d->count && code == 0; i++) {
        if (d->nodes[i].anchor) anchored[anchors++] = i;
        if (d->nodes[i].kind != NODE_ALIAS) continue;
        int found = -1;
        for (int k = anchors - 1; k >= 0 && found < 0; k--)
            if (strcmp(d->nodes[anchored[k]].anchor, d->nodes[i].text) == 0) found = anchored[k];
        if (found < 0) {
            code = document_error(err, p->path, d->text, d->bytes, d->nodes[i].outer_start,
                                  strlen(d->nodes[i].text) + 1,
                                  "define it above as &name, or put the value in quotes",
                                  "no anchor &%s before this alias", d->nodes[i].text);
            break;
        }
        d->nodes[i].target = found;
        d->nodes[found].uses++;
    }
    free(anchored);
    return code;
}

struct key_order {
    const struct document *document;
    int node;
};

static int key_compare(const void *a, const void *b)
{
    const struct key_order *x = a, *y = b;
    const struct node *m = &x->document->nodes[x->node], *n = &y->document->nodes[y->node];
    size_t bytes = m->text_bytes < n->text_bytes ? m->text_bytes : n->text_bytes;
    int c = memcmp(m->text, n->text, bytes);
    if (c) return c;
    if (m->text_bytes != n->text_bytes) return m->text_bytes < n->text_bytes ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static int check_duplicates(struct parser *p, struct error *err)
{
    struct document *d = p->document;
    struct key_order *keys = xmalloc((size_t)(d->count + 1) * sizeof *keys);
    int code = 0;
    for (int i = 0; i < d->count && code == 0; i++) {
        if (d->nodes[i].kind != NODE_MAPPING) continue;
        size_t count = 0;
        for (int k = d->nodes[i].first; k >= 0; k = d->nodes[d->nodes[k].next].next)
            if (d->nodes[k].kind == NODE_SCALAR) keys[count++] = (struct key_order){d, k};
        qsort(keys, count, sizeof *keys, key_compare);
        for (size_t k = 1; k < count && code == 0; k++) {
            const struct node *a = &d->nodes[keys[k - 1].node], *b = &d->nodes[keys[k].node];
            if (a->text_bytes != b->text_bytes || memcmp(a->text, b->text, a->text_bytes) != 0) continue;
            int line, column;
            document_position(d->text, d->bytes, a->start, &line, &column);
            code =
                document_error(err, p->path, d->text, d->bytes, b->start, b->end - b->start,
                               "keep one of the two", "key '%s' was given before, in line %d", b->text, line);
        }
    }
    free(keys);
    return code;
}

static int build(struct parser *p, struct error *err)
{
    struct document *d = p->document;
    int stack[DOCUMENT_MAX_DEPTH], last[DOCUMENT_MAX_DEPTH], depth = 0, documents = 0;
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&p->yaml, &event)) return yaml_failed(p, err);
        int code = 0, node = -1;
        switch (event.type) {
        case YAML_DOCUMENT_START_EVENT:
            if (documents++)
                code = node_error(p, byte_of(p, event.start_mark.index), err, "keep one document per file",
                                  "a second document");
            break;
        case YAML_DOCUMENT_END_EVENT:
            if (!event.data.document_end.implicit) d->end = byte_of(p, event.start_mark.index);
            break;
        case YAML_STREAM_END_EVENT: more = false; break;
        case YAML_MAPPING_END_EVENT:
        case YAML_SEQUENCE_END_EVENT: d->nodes[stack[--depth]].end = byte_of(p, event.end_mark.index); break;
        case YAML_SCALAR_EVENT:
        case YAML_ALIAS_EVENT:
        case YAML_MAPPING_START_EVENT:
        case YAML_SEQUENCE_START_EVENT:
            node = node_add(p, &event, err);
            if (node < 0) code = EXIT_CONFIG;
            break;
        default: break;
        }
        bool opens = event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT;
        yaml_event_delete(&event);
        if (code) return code;
        if (node < 0) continue;
        if (depth == 0) d->root = node;
        else if (d->nodes[stack[depth - 1]].first < 0) d->nodes[stack[depth - 1]].first = node;
        else d->nodes[last[depth - 1]].next = node;
        if (depth) last[depth - 1] = node;
        if (!opens) continue;
        if (depth == DOCUMENT_MAX_DEPTH)
            return node_error(p, d->nodes[node].start, err, "a configuration consists of sections of keys",
                              "nested deeper than 64 levels");
        stack[depth++] = node;
    }
    return 0;
}

int document_parse(struct document *document, const char *path, const char *text, size_t bytes,
                   struct error *err)
{
    *document = (struct document){.text = text, .bytes = bytes, .root = -1, .end = bytes};
    if (bytes > DOCUMENT_MAX_BYTES) {
        error_set(err, EXIT_CONFIG, "check the name of the file", "has %zu bytes, a configuration at most %d",
                  bytes, DOCUMENT_MAX_BYTES);
        error_at(err, path, 0, 0);
        return EXIT_CONFIG;
    }
    struct parser p = {.document = document, .path = path};
    document->bom = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0;
    p.base = document->bom ? 3 : 0;
    p.offsets = xmalloc((bytes / MAP_STEP + 2) * sizeof *p.offsets);
    int code = check_bytes(&p, err);
    if (code == 0 && !yaml_parser_initialize(&p.yaml))
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
    else if (code == 0) {
        yaml_parser_set_encoding(&p.yaml, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&p.yaml, (const unsigned char *)text + p.base, bytes - p.base);
        code = build(&p, err);
        if (code == 0) code = resolve_aliases(&p, err);
        if (code == 0) code = check_duplicates(&p, err);
        yaml_parser_delete(&p.yaml);
    }
    free(p.offsets);
    if (code) document_free(document);
    return code;
}

void document_free(struct document *document)
{
    for (int i = 0; i < document->count; i++) {
        free(document->nodes[i].text);
        free(document->nodes[i].anchor);
        free(document->nodes[i].tag);
    }
    free(document->nodes);
    document->nodes = NULL;
    document->count = 0;
    document->root = -1;
}

int document_find(const struct document *d, int mapping, const char *key, int *key_node)
{
    if (mapping < 0 || d->nodes[mapping].kind != NODE_MAPPING) return -1;
    for (int k = d->nodes[mapping].first; k >= 0; k = d->nodes[d->nodes[k].next].next)
        if (d->nodes[k].kind == NODE_SCALAR && d->nodes[k].text_bytes == strlen(key) &&
            strcmp(d->nodes[k].text, key) == 0) {
            if (key_node) *key_node = k;
            return d->nodes[k].next;
        }
    return -1;
}

int document_follow(const struct document *d, int node)
{
    return node >= 0 && d->nodes[node].kind == NODE_ALIAS ? d->nodes[node].target : node;
}

size_t document_leaf_end(const struct document *d, int node)
{
    while (d->nodes[node].style == STYLE_BLOCK && d->nodes[node].first >= 0) {
        int child = d->nodes[node].first;
        while (d->nodes[child].next >= 0) child = d->nodes[child].next;
        node = child;
    }
    return d->nodes[node].style == STYLE_BLOCK ? d->nodes[node].start : d->nodes[node].end;
}
