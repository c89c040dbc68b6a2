/* Applies changes one after another, verifies each, and writes the file. See edit.h; splice.c plans them. */
#include "core/config/edit.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/splice.h"
#include "core/config/value.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Verification ---- */

static bool same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same(const struct document *a, int x, const struct document *b, int y)
{
    const struct node *m = &a->nodes[x], *n = &b->nodes[y];
    if (m->kind != n->kind || m->style != n->style || m->text_bytes != n->text_bytes ||
        !same_text(m->anchor, n->anchor) || !same_text(m->tag, n->tag) ||
        (m->text && memcmp(m->text, n->text, m->text_bytes) != 0) ||
        (m->kind == NODE_ALIAS && !same_text(m->text, n->text)))
        return false;
    int i = m->first, j = n->first;
    for (; i >= 0 && j >= 0; i = a->nodes[i].next, j = b->nodes[j].next)
        if (!same(a, i, b, j)) return false;
    return i < 0 && j < 0;
}

static bool is_key(const struct document *d, int node, const char *name)
{
    return d->nodes[node].kind == NODE_SCALAR && d->nodes[node].text_bytes == strlen(name) &&
           strcmp(d->nodes[node].text, name) == 0;
}

/* Whether the entries of mapping x in `a` and y in `b` (-1: no mapping) are equal except for `name`.
 * Returns its values. */
static bool same_but(const struct document *a, int x, const struct document *b, int y, const char *name,
                     int *in_a, int *in_b)
{
    *in_a = *in_b = -1;
    int i = x >= 0 ? a->nodes[x].first : -1, j = y >= 0 ? b->nodes[y].first : -1;
    while (i >= 0 || j >= 0) {
        if (i >= 0 && is_key(a, i, name)) {
            *in_a = a->nodes[i].next;
            i = a->nodes[*in_a].next;
            if (j >= 0 && is_key(b, j, name)) {
                *in_b = b->nodes[j].next;
                j = b->nodes[*in_b].next;
            }
            continue;
        }
        if (j >= 0 && is_key(b, j, name)) {
            *in_b = b->nodes[j].next;
            j = b->nodes[*in_b].next;
            continue;
        }
        if (i < 0 || j < 0 || !same(a, i, b, j) || !same(a, a->nodes[i].next, b, b->nodes[j].next))
            return false;
        i = a->nodes[a->nodes[i].next].next;
        j = b->nodes[b->nodes[j].next].next;
    }
    return true;
}

static int mapping_or_none(const struct document *d, int node)
{
    return node >= 0 && d->nodes[node].kind == NODE_MAPPING ? node : -1;
}

static bool only_target_changed(const struct document *a, const struct document *b, const struct target *t)
{
    int section_a, section_b, value_a, value_b;
    if (!same_but(a, mapping_or_none(a, a->root), b, mapping_or_none(b, b->root), t->section, &section_a,
                  &section_b))
        return false;
    if (section_a >= 0 && section_b >= 0 &&
        (!same_text(a->nodes[section_a].anchor, b->nodes[section_b].anchor) ||
         !same_text(a->nodes[section_a].tag, b->nodes[section_b].tag)))
        return false;
    if (!same_but(a, mapping_or_none(a, section_a), b, mapping_or_none(b, section_b), t->leaf, &value_a,
                  &value_b))
        return false;
    if (!t->value) return value_b < 0;
    if (value_b < 0 || b->nodes[value_b].kind != NODE_SCALAR || strcmp(b->nodes[value_b].text, t->value) != 0)
        return false;
    return value_a < 0 || (same_text(a->nodes[value_a].anchor, b->nodes[value_b].anchor) &&
                           same_text(a->nodes[value_a].tag, b->nodes[value_b].tag));
}

/* ---- Applying ---- */

static int apply_one(const char *path, const char *text, size_t bytes, const struct edit *edit, char **out,
                     size_t *out_bytes, struct error *err)
{
    struct target t = {.key = config_key_index(edit->key), .value = edit->value};
    if (t.key < 0)
        return error_set(err, EXIT_CONFIG, "'meopt config list' names all keys", "%s is not a key",
                         edit->key);
    struct value value;
    char message[320], hint[320];
    if (edit->value && value_read(t.key, edit->value, strlen(edit->value), false, &value, message, hint,
                                  sizeof message) == VALUE_BAD)
        return error_set(err, EXIT_CONFIG, hint, "%s", message);
    struct document d, after;
    int code = document_parse(&d, path, text, bytes, err);
    if (code) return code;
    struct splice s;
    code = splice_plan(&s, &t, edit->key, path, &d, err);
    if (code) goto done;
    if (s.nothing) {
        s.insert = xstrdup("");
        s.at = bytes;
        s.remove = 0;
    }
    size_t length = strlen(s.insert);
    *out_bytes = bytes - s.remove + length;
    *out = xmalloc(*out_bytes + 1);
    memcpy(*out, text, s.at);
    memcpy(*out + s.at, s.insert, length);
    memcpy(*out + s.at + length, text + s.at + s.remove, bytes - s.at - s.remove);
    (*out)[*out_bytes] = 0;
    struct error unreadable;
    int parsed = document_parse(&after, path, *out, *out_bytes, &unreadable);
    bool proved = parsed == 0;
    if (proved) {
        proved = s.nothing || only_target_changed(&d, &after, &t);
        document_free(&after);
    }
    if (!proved) {
        free(*out);
        *out = NULL;
        size_t at = s.at < bytes ? s.at : bytes ? bytes - 1 : 0;
        code = document_error(err, path, text, bytes, at, 1, "edit it by hand",
                              "this value cannot be changed without changing another one");
        if (parsed == EXIT_HOST_MEMORY) {
            code = parsed;
            if (err) *err = unreadable;
        }
    }
done:
    free(s.insert);
    document_free(&d);
    return code;
}

int edit_apply(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
               char **out, size_t *out_bytes, struct error *err)
{
    char *now = xmalloc(bytes + 1);
    memcpy(now, text, bytes);
    now[bytes] = 0;
    size_t now_bytes = bytes;
    for (int i = 0; i < count; i++) {
        char *next = NULL;
        size_t next_bytes = 0;
        int code = apply_one(path, now, now_bytes, &edits[i], &next, &next_bytes, err);
        if (!code && (next_bytes != now_bytes ||
                      memcmp(next, now, now_bytes) != 0)) { /* verify that the new value is read back */
            char *again = NULL;
            size_t again_bytes = 0;
            struct error why;
            int found = apply_one(path, next, next_bytes, &edits[i], &again, &again_bytes, &why);
            bool same = found == 0 && again_bytes == next_bytes && memcmp(again, next, next_bytes) == 0;
            free(again);
            if (found == EXIT_HOST_MEMORY) {
                free(next);
                code = found;
                if (err) *err = why;
            } else if (!same) {
                /* of the first byte that would change: for example a key whose value is merged through an
                 * alias (<<), too */
                int line = 1;
                for (size_t at = 0; at < now_bytes && at < next_bytes && now[at] == next[at]; at++)
                    line += now[at] == '\n';
                free(next);
                code = error_set(err, EXIT_CONFIG, "edit it by hand",
                                 "%s cannot be changed in this file without changing something else",
                                 edits[i].key);
                error_at(err, path, line, 0);
            }
        }
        free(now);
        if (code) return code;
        now = next;
        now_bytes = next_bytes;
    }
    *out = now;
    *out_bytes = now_bytes;
    return 0;
}

char *edit_current(const char *text, size_t bytes, const char *name)
{
    struct document d;
    char *value = NULL;
    int key = config_key_index(name), key_node;
    if (key < 0 || document_parse(&d, "", text, bytes, NULL)) return NULL;
    const char *spelling;
    for (int i = 0; !value && (spelling = config_key_spelling(key, i)) != NULL; i++) {
        struct target t;
        target_name(&t, spelling);
        int node = document_find(&d, document_follow(&d, document_find(&d, d.root, t.section, NULL)), t.leaf,
                                 &key_node);
        node = document_follow(&d, node);
        if (node >= 0 && d.nodes[node].kind == NODE_SCALAR) value = xstrdup(d.nodes[node].text);
    }
    document_free(&d);
    return value;
}

static void count_problem(void *context, bool fatal, const struct error *problem)
{
    (void)problem;
    *(int *)context += fatal;
}

static int problems(const char *path, const char *text, size_t bytes, struct error *err)
{
    struct config config;
    int count = 0;
    (void)config_examine(&config, path, text, bytes, NULL, 0, count_problem, &count, err);
    config_free(&config);
    return count;
}

int edit_checked(const char *path, const char *text, size_t bytes, const struct edit *edits, int count,
                 char **out, size_t *out_bytes, struct error *err)
{
    int code = edit_apply(path, text, bytes, edits, count, out, out_bytes, err);
    if (code) return code;
    struct error found = {0};
    int after = problems(path, *out, *out_bytes, &found);
    if (after == 0 || after <= problems(path, text, bytes, NULL)) return 0;
    free(*out);
    *out = NULL;
    if (err) *err = found;
    return found.code ? found.code : EXIT_CONFIG; /* lack of memory is no error of the file */
}

/* ---- Files: directory and name as in file.h, path is both joined ---- */

struct edited {
    const char *directory, *name;
    char *path;
};

static struct edited edited_file(const char *directory, const char *name)
{
    return (struct edited){directory, name, directory ? path_join(directory, name) : xstrdup(name)};
}

static int read_text(const struct edited *f, char **text, size_t *bytes, struct error *err)
{
    return f->directory ? config_read_below(f->directory, f->name, text, bytes, err)
                        : config_read_file(f->name, text, bytes, err);
}

/* Replaces the file unless it has changed since it was read: an editor does not take the lock. */
static int replace_unchanged(const struct edited *f, const char *old, size_t old_bytes, const char *new,
                             size_t new_bytes, struct error *err)
{
    char *now = NULL;
    size_t now_bytes = 0;
    int code = read_text(f, &now, &now_bytes, err);
    if (!code && (now_bytes != old_bytes || memcmp(now, old, old_bytes) != 0)) {
        code = error_set(err, EXIT_LOCKED, "try again", "another program changed it at the same time");
        error_at(err, f->path, 0, 0);
    }
    free(now);
    if (code) return code;
    return f->directory ? file_write_below(f->directory, f->name, new, new_bytes, err)
                        : file_write_atomic(f->name, new, new_bytes, err);
}

int edit_replace(const char *path, const char *old, size_t old_bytes, const char *new, size_t new_bytes,
                 struct error *err)
{
    struct edited f = edited_file(NULL, path);
    int lock, code = file_lock(NULL, path, &lock, err);
    if (!code) {
        code = replace_unchanged(&f, old, old_bytes, new, new_bytes, err);
        close(lock);
    }
    free(f.path);
    return code;
}

static int edit_any(const struct edited *f, const struct edit *edits, int count, int dry, char **before,
                    size_t *before_bytes, char **after, size_t *after_bytes, struct error *err)
{
    char *old = NULL, *new = NULL;
    size_t old_bytes = 0, new_bytes = 0;
    int lock = -1, held = dry ? 0 : file_lock(f->directory, f->name, &lock, err), code = held;
    if (held == 0 || held == EXIT_FAILED) code = read_text(f, &old, &old_bytes, err);
    if (!code) code = held; /* a read error is reported as such */
    if (!code) code = edit_checked(f->path, old, old_bytes, edits, count, &new, &new_bytes, err);
    if (!code && !dry && (old_bytes != new_bytes || memcmp(old, new, old_bytes) != 0))
        code = replace_unchanged(f, old, old_bytes, new, new_bytes, err);
    if (lock >= 0) close(lock);
    if (code) {
        free(old);
        free(new);
        return code;
    }
    if (before) {
        *before = old;
        *before_bytes = old_bytes;
    } else {
        free(old);
    }
    if (after) {
        *after = new;
        *after_bytes = new_bytes;
    } else {
        free(new);
    }
    return 0;
}

int edit_file(const char *path, const struct edit *edits, int count, int dry, char **before,
              size_t *before_bytes, char **after, size_t *after_bytes, struct error *err)
{
    struct edited f = edited_file(NULL, path);
    int code = edit_any(&f, edits, count, dry, before, before_bytes, after, after_bytes, err);
    free(f.path);
    return code;
}

int edit_below(const char *directory, const char *name, const struct edit *edits, int count, int dry,
               char **after, size_t *after_bytes, struct error *err)
{
    struct edited f = edited_file(directory, name);
    int code = edit_any(&f, edits, count, dry, NULL, NULL, after, after_bytes, err);
    free(f.path);
    return code;
}
