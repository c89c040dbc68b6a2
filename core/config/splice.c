/* Plans the bytes of one change. See splice.h. */
#include "core/config/splice.h"
#include "core/base/memory.h"
#include "core/config/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct editor {
    const char *path;
    const struct document *d;
    struct error *err;
};

static int refuse(const struct editor *e, size_t at, const char *hint, const char *sentence)
{
    return document_error(e->err, e->path, e->d->text, e->d->bytes, at, 1, hint, "%s", sentence);
}

/* ---- Lines ---- */

static size_t line_start(const struct document *d, size_t at)
{
    size_t first = d->bom ? 3 : 0;
    while (at > first && d->text[at - 1] != '\n' && d->text[at - 1] != '\r') at--;
    return at;
}

static size_t line_end(const struct document *d, size_t at)
{
    while (at < d->bytes && d->text[at] != '\n' && d->text[at] != '\r') at++;
    return at;
}

static size_t next_line(const struct document *d, size_t at)
{
    at = line_end(d, at);
    if (at < d->bytes && d->text[at] == '\r') at++;
    if (at < d->bytes && d->text[at] == '\n' && (at == 0 || d->text[at - 1] == '\r' || d->text[at] == '\n'))
        at++;
    return at;
}

/* Returns the line ending at `at`: of that line, or of the first one. */
static const char *ending(const struct document *d, size_t at)
{
    size_t end = line_end(d, at);
    if (end < d->bytes)
        return d->text[end] == '\n' ? "\n" : end + 1 < d->bytes && d->text[end + 1] == '\n' ? "\r\n" : "\r";
    return d->crlf ? "\r\n" : "\n";
}

/* Returns the number of blanks before `at` on its line, -1 if there is other text. */
static int indentation(const struct document *d, size_t at)
{
    size_t start = line_start(d, at);
    for (size_t i = start; i < at; i++)
        if (d->text[i] != ' ') return -1;
    return (int)(at - start);
}

/* ---- Finding ---- */

void target_name(struct target *t, const char *name)
{
    size_t n = strcspn(name, ".");
    snprintf(t->section, sizeof t->section, "%.*s", (int)n, name);
    snprintf(t->leaf, sizeof t->leaf, "%s", name + n + 1);
}

static int find(const struct editor *e, struct target *t, const char *typed)
{
    const struct document *d = e->d;
    t->section_node = t->mapping = t->key_node = t->node = -1;
    const char *spelling;
    for (int i = 0; (spelling = config_key_spelling(t->key, i)) != NULL; i++) {
        target_name(t, spelling);
        int section = document_find(d, d->root, t->section, NULL);
        int node = section >= 0 ? document_find(d, section, t->leaf, &t->key_node) : -1;
        if (node >= 0) {
            t->section_node = t->mapping = section;
            t->node = node;
            return 0;
        }
    }
    target_name(t, typed);
    t->section_node = document_find(d, d->root, t->section, NULL);
    if (t->section_node < 0 && config_key_repeats(t->key)) { /* an item of a list */
        char list[sizeof t->section];
        snprintf(list, sizeof list, "%.*s", (int)strcspn(t->section, "0123456789"), t->section);
        int node = document_find(d, d->root, list, NULL);
        if (node >= 0 && d->nodes[document_follow(d, node)].kind == NODE_SEQUENCE) t->section_node = node;
    }
    if (t->section_node < 0) return 0;
    const struct node *s = &d->nodes[t->section_node];
    if (s->kind == NODE_MAPPING) t->mapping = t->section_node;
    else if (s->kind == NODE_ALIAS)
        return refuse(e, s->outer_start, "write the section out, or edit the place that it refers to",
                      "this section is an alias");
    else if (s->kind != NODE_SCALAR || s->style != STYLE_PLAIN || s->text[0] || s->tag || s->anchor)
        return refuse(e, s->outer_start,
                      s->kind == NODE_SEQUENCE ? N_("edit the item of the list") : N_("write keys below it"),
                      "this section is not a group of keys");
    return 0;
}

/* ---- Scalars ---- */

static bool textual(int key)
{
    return config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH ||
           config_keys[key].type == CONFIG_CHOICE;
}

static char *single_quoted(const char *text)
{
    char *quoted = xmalloc(2 * strlen(text) + 3), *q = quoted;
    *q++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') *q++ = '\'';
        *q++ = *text;
    }
    *q++ = '\'';
    *q = 0;
    return quoted;
}

/* Whether the text has no line breaks or control characters: it fits in single quotes on one line. */
static bool one_line(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7F || (*p == 0xC2 && p[1] < 0xA0) ||
            (*p == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9)) ||
            (*p == 0xEF && p[1] == 0xBB && p[2] == 0xBF))
            return false;
    return true;
}

static char *spell(int key, const char *value, enum node_style style, bool flow)
{
    if (!textual(key)) return xstrdup(value);
    if (style == STYLE_DOUBLE) return value_quoted(value);
    if (style == STYLE_SINGLE && one_line(value)) return single_quoted(value);
    return style == STYLE_PLAIN && value_plain_safe(value, flow) ? xstrdup(value) : value_quoted(value);
}

static int plan_replace(const struct editor *e, const struct target *t, struct splice *s)
{
    const struct node *n = &e->d->nodes[t->node];
    if (n->kind == NODE_ALIAS)
        return refuse(e, n->outer_start, "edit the place that it refers to, or write the value out",
                      "the value is an alias");
    if (n->kind != NODE_SCALAR)
        return refuse(e, n->outer_start, "edit it by hand", "the value is not a single word or number");
    if (n->uses)
        return refuse(e, n->outer_start, "edit it by hand if all of them are meant",
                      "aliases elsewhere refer to this value");
    if (n->style == STYLE_LITERAL || n->style == STYLE_FOLDED)
        return refuse(e, n->outer_start, "write it on the key's line", "the value is a block of text");
    for (size_t i = n->outer_start; i < n->start; i++)
        if (e->d->text[i] == '\n' || e->d->text[i] == '\r')
            return refuse(e, n->outer_start, "write it on the key's line",
                          "the value's anchor or tag is on its own line");
    bool flow = e->d->nodes[t->mapping].style == STYLE_FLOW || e->d->nodes[e->d->root].style == STYLE_FLOW;
    s->at = n->start;
    s->remove = n->end - n->start;
    s->insert = spell(t->key, t->value, n->style, flow);
    if (s->remove) return 0;
    /* there was no value: "key:" or "key: # comment" */
    if (s->at == 0 || (e->d->text[s->at - 1] != ':' && !(n->anchor || n->tag)))
        return refuse(e, n->outer_start, "write 'key: value'", "the key has no ':'");
    char *blank = xasprintf(" %s", s->insert);
    free(s->insert);
    s->insert = blank;
    return 0;
}

/* ---- Inserting ---- */

static int plan_flow(const struct editor *e, int mapping, const char *entry, struct splice *s)
{
    const struct document *d = e->d;
    int last = d->nodes[mapping].first;
    if (last < 0) {
        s->at = d->nodes[mapping].start + 1;
        s->insert = xstrdup(entry);
        return 0;
    }
    while (d->nodes[last].next >= 0) last = d->nodes[last].next;
    s->at = d->nodes[last].end;
    s->insert = xasprintf(", %s", entry);
    return 0;
}

/* Inserts lines below the last line of the node that ends at `at`; `lines` has its own indentation, and no
 * line ending. */
static void plan_below(const struct document *d, size_t at, const char *lines, struct splice *s)
{
    const char *eol = ending(d, at);
    bool fresh = at == 0 || (d->bom && at == 3) || d->text[at - 1] == '\n' || d->text[at - 1] == '\r';
    if (fresh) {
        s->at = at;
        s->insert = xasprintf("%s%s", lines, eol);
    } else {
        s->at = line_end(d, at);
        s->insert = xasprintf("%s%s", eol, lines);
    }
}

/* Returns the indentation of keys in sections: that of the first block section, else 2. */
static int step_width(const struct document *d)
{
    for (int k = d->root >= 0 && d->nodes[d->root].kind == NODE_MAPPING ? d->nodes[d->root].first : -1;
         k >= 0; k = d->nodes[d->nodes[k].next].next) {
        const struct node *v = &d->nodes[d->nodes[k].next];
        if (v->kind != NODE_MAPPING || v->style != STYLE_BLOCK || v->first < 0) continue;
        int outer = indentation(d, d->nodes[k].outer_start),
            inner = indentation(d, d->nodes[v->first].outer_start);
        if (outer >= 0 && inner > outer && inner - outer <= 8) return inner - outer;
    }
    return 2;
}

static int plan_section(const struct editor *e, const struct target *t, struct splice *s)
{
    const struct document *d = e->d;
    const struct node *root = d->root >= 0 ? &d->nodes[d->root] : NULL;
    if (root && root->kind == NODE_MAPPING && root->style == STYLE_FLOW) {
        char *value = spell(t->key, t->value, STYLE_PLAIN, true);
        char *entry = xasprintf("%s: {%s: %s}", t->section, t->leaf, value);
        int code = plan_flow(e, d->root, entry, s);
        free(entry);
        free(value);
        return code;
    }
    int indent = 0;
    if (root && root->kind == NODE_MAPPING) indent = indentation(d, d->nodes[root->first].outer_start);
    else if (root && (root->kind != NODE_SCALAR || root->text[0] || root->style != STYLE_PLAIN ||
                      root->anchor || root->tag))
        return refuse(e, root->outer_start, "start with a section, as in 'data:'",
                      "expected sections of keys");
    if (indent < 0)
        return refuse(e, d->nodes[root->first].outer_start, "put each section on a line of its own",
                      "cannot see how sections are indented");
    char *value = spell(t->key, t->value, STYLE_PLAIN, false);
    const char *eol = ending(d, d->bom ? 3 : 0);
    char *lines = xasprintf("%*s%s:%s%*s%s: %s", indent, "", t->section, eol, indent + step_width(d), "",
                            t->leaf, value);
    size_t at = d->end;
    bool fresh = at == 0 || (d->bom && at == 3) || d->text[at - 1] == '\n' || d->text[at - 1] == '\r';
    s->at = at;
    s->insert = fresh ? xasprintf("%s%s", lines, eol) : xasprintf("%s%s", eol, lines);
    free(lines);
    free(value);
    return 0;
}

static int plan_insert(const struct editor *e, const struct target *t, struct splice *s)
{
    const struct document *d = e->d;
    if (t->section_node < 0) return plan_section(e, t, s);
    bool flow_root = d->nodes[d->root].style == STYLE_FLOW;
    char *value = NULL, *line = NULL;
    int code = 0;
    if (t->mapping < 0) { /* "section:" without keys */
        const struct node *n = &d->nodes[t->section_node];
        int key_node, indent;
        (void)document_find(d, d->root, t->section, &key_node);
        indent = indentation(d, d->nodes[key_node].outer_start);
        if (flow_root || indent < 0 || n->start == 0 || d->text[n->start - 1] != ':')
            return refuse(e, n->outer_start, "write the key by hand", "this empty section cannot be filled");
        value = spell(t->key, t->value, STYLE_PLAIN, false);
        line = xasprintf("%*s%s: %s", indent + step_width(d), "", t->leaf, value);
        plan_below(d, n->start, line, s);
    } else if (d->nodes[t->mapping].style == STYLE_FLOW) {
        value = spell(t->key, t->value, STYLE_PLAIN, true);
        line = xasprintf("%s: %s", t->leaf, value);
        code = plan_flow(e, t->mapping, line, s);
    } else {
        int first = d->nodes[t->mapping].first;
        int indent = indentation(d, d->nodes[first].outer_start);
        if (indent < 0)
            return refuse(e, d->nodes[first].outer_start, "put each key on a line of its own",
                          "cannot see how keys are indented here");
        value = spell(t->key, t->value, STYLE_PLAIN, false);
        line = xasprintf("%*s%s: %s", indent, "", t->leaf, value);
        plan_below(d, document_leaf_end(d, t->mapping), line, s);
    }
    free(line);
    free(value);
    return code;
}

/* ---- Removing ---- */

/* Whether the range has a '#' outside the key and the value. */
static bool has_comment(const struct document *d, size_t from, size_t to, int key_node, int node)
{
    for (size_t i = from; i < to; i++) {
        for (int k = 0; k < 2; k++) {
            const struct node *n = &d->nodes[k ? node : key_node];
            if (i >= n->outer_start && i < n->end) i = n->end;
        }
        if (i < to && d->text[i] == '#') return true;
    }
    return false;
}

/* Removes whole lines from the key's to the end of its value. */
static int plan_remove_lines(const struct editor *e, int key_node, int node, struct splice *s)
{
    const struct document *d = e->d;
    size_t from = d->nodes[key_node].outer_start;
    if (indentation(d, from) < 0)
        return refuse(e, from, "put each key on a line of its own", "this line has other content");
    from = line_start(d, from);
    size_t end = document_leaf_end(d, node);
    bool fresh = end > from && (d->text[end - 1] == '\n' || d->text[end - 1] == '\r');
    size_t to = fresh ? end : next_line(d, end);
    if (!fresh && to == d->bytes && line_end(d, end) == d->bytes && from > (d->bom ? 3u : 0u)) {
        /* the last line has no line ending: remove the previous one instead */
        from--;
        if (from > 0 && d->text[from] == '\n' && d->text[from - 1] == '\r') from--;
    }
    s->at = from;
    s->remove = to - from;
    s->insert = xstrdup("");
    return 0;
}

static int plan_remove_flow(const struct editor *e, int mapping, int key_node, int node, struct splice *s)
{
    const struct document *d = e->d;
    size_t from = d->nodes[key_node].outer_start, to = d->nodes[node].end;
    int before = -1; /* value of the previous entry */
    for (int k = d->nodes[mapping].first; k != key_node; k = d->nodes[d->nodes[k].next].next)
        before = d->nodes[k].next;
    if (d->nodes[node].next >= 0) to = d->nodes[d->nodes[node].next].outer_start;
    else if (before >= 0) from = d->nodes[before].end;
    if (has_comment(d, from, to, key_node, node))
        return refuse(e, from, "edit it by hand", "a comment would be lost");
    s->at = from;
    s->remove = to - from;
    s->insert = xstrdup("");
    return 0;
}

static int plan_remove(const struct editor *e, const struct target *t, struct splice *s)
{
    const struct document *d = e->d;
    if (t->node < 0) {
        s->nothing = true;
        int merge = t->mapping >= 0 ? document_find(d, t->mapping, "<<", NULL) : -1;
        if (merge >= 0) {
            int from = document_follow(d, merge);
            if (document_find(d, from, t->leaf, NULL) >= 0)
                return refuse(e, d->nodes[merge].outer_start, "edit the place that it refers to",
                              "the key comes from this merge");
        }
        return 0;
    }
    const struct node *n = &d->nodes[t->node];
    if (n->kind == NODE_ALIAS)
        return refuse(e, n->outer_start, "remove the line by hand", "the value is an alias");
    if (n->uses) return refuse(e, n->outer_start, "edit it by hand", "aliases elsewhere refer to this value");
    const struct node *section = &d->nodes[t->section_node];
    if (section->style == STYLE_FLOW) return plan_remove_flow(e, t->section_node, t->key_node, t->node, s);
    bool alone = section->first == t->key_node && n->next < 0;
    if (alone && (section->anchor || section->tag))
        return refuse(e, section->outer_start, "remove the section by hand",
                      section->anchor ? "this section has an anchor, and would be left without keys"
                                      : N_("this section has a tag, and would be left without keys"));
    if (alone && d->nodes[d->root].style == STYLE_BLOCK) {
        int key_node;
        (void)document_find(d, d->root, t->section, &key_node);
        bool last_section = d->nodes[d->root].first == key_node && d->nodes[t->section_node].next < 0;
        size_t from = d->nodes[key_node].outer_start;
        if (!last_section &&
            !has_comment(d, from, line_end(d, document_leaf_end(d, t->node)), t->key_node, t->node))
            return plan_remove_lines(e, key_node, t->section_node, s);
    }
    return plan_remove_lines(e, t->key_node, t->node, s);
}

int splice_plan(struct splice *s, struct target *t, const char *typed, const char *path,
                const struct document *d, struct error *err)
{
    struct editor e = {path, d, err};
    *s = (struct splice){0};
    int code = find(&e, t, typed);
    if (code) return code;
    if (!t->value) return plan_remove(&e, t, s);
    return t->node >= 0 ? plan_replace(&e, t, s) : plan_insert(&e, t, s);
}
