/* From YAML text to struct config: sections, keys, merges, overrides, and messages about invalid ones. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/config/combinations.h"
#include "core/config/document.h"
#include "core/config/value.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_MERGES = 100,
    MAX_SECTIONS = 32,
    MAX_PROBLEMS = 100 /* enough to fix; finding a line takes time */
};

struct load {
    struct config *config;
    const char *path; /* as the user wrote it */
    struct document document;
    config_report report;
    void *context;
    int errors, reported;
    struct error first; /* the first fatal one */
};

/* ---- Problems ---- */

static void report_problem(struct load *l, bool fatal, const struct error *problem)
{
    if (fatal && l->errors++ == 0) l->first = *problem;
    if (l->report) l->report(l->context, fatal, problem);
}

__attribute__((format(printf, 5, 6))) static void problem(struct load *l, bool fatal, int node,
                                                          const char *hint, const char *format, ...)
{
    char sentence[320];
    va_list args;
    if (++l->reported > MAX_PROBLEMS) {
        l->errors += fatal;
        return;
    }
    va_start(args, format);
    text_format(sentence, sizeof sentence, format, args);
    va_end(args);
    struct error e = {0};
    const struct document *d = &l->document;
    const struct node *n = node >= 0 ? &d->nodes[node] : NULL;
    size_t at = n ? n->outer_start : 0,
           length = n && n->end > at && n->style != STYLE_BLOCK ? n->end - at : 1;
    document_error(&e, l->path, d->text, d->bytes, at, length, hint, "%s", sentence);
    report_problem(l, fatal, &e);
}

/* ---- Names ---- */

static int section_names(const char **names, char storage[][32])
{
    int count = 0;
    for (int i = 0; i < config_key_count; i++) {
        size_t n = strcspn(config_keys[i].name, ".");
        if (count && strncmp(storage[count - 1], config_keys[i].name, n) == 0 && storage[count - 1][n] == 0)
            continue;
        if (count == MAX_SECTIONS) break;
        snprintf(storage[count], 32, "%.*s", (int)n, config_keys[i].name);
        names[count] = storage[count];
        count++;
    }
    return count;
}

static const char *leaf_of(const char *key) { return strchr(key, '.') + 1; }

/* Suggests a name for `leaf` in `section` ("" at the top level): a sentence, or "" */
static void suggest(char *hint, size_t size, const char *section, const char *leaf)
{
    const char *names[256], *sections[MAX_SECTIONS], *near;
    char storage[MAX_SECTIONS][32];
    int count = 0, section_count = section_names(sections, storage);
    char full[160];
    snprintf(full, sizeof full, "%s.%.100s", section, leaf);
    size_t n = strlen(section);
    const char *synonym = config_synonym(leaf);
    if (synonym && config_key_index(full) < 0) {
        snprintf(hint, size, _("did you mean %s?"), synonym);
        return;
    }
    if (n && strcmp(section, "model") == 0) {
        names[count++] = "weight_t";
        names[count++] = "weight_s";
    }
    for (int i = 0; n && i < config_key_count && count < 256; i++)
        if (strncmp(config_keys[i].name, section, n) == 0 && config_keys[i].name[n] == '.')
            names[count++] = leaf_of(config_keys[i].name);
    for (int i = 0; i < config_key_count; i++) /* a known key in the wrong section */
        if (strcmp(leaf_of(config_keys[i].name), leaf) == 0) {
            snprintf(hint, size, _("did you mean %s? it belongs under '%.*s:'"), config_keys[i].name,
                     (int)strcspn(config_keys[i].name, "."), config_keys[i].name);
            return;
        }
    if (!n) {
        const char *dot = strchr(leaf, '.');
        if (dot && config_key_index(leaf) >= 0) {
            snprintf(hint, size, _("write '%.*s:' and, indented below it, '%s:'"), (int)(dot - leaf), leaf,
                     dot + 1);
            return;
        }
        near = value_nearest(leaf, sections, section_count);
        if (near) snprintf(hint, size, _("did you mean %s? (keys that begin with x- are ignored)"), near);
        else {
            char all[160] = "";
            size_t used = 0;
            for (int i = 0; i < section_count && used < sizeof all; i++)
                if (!isdigit((unsigned char)sections[i][strlen(sections[i]) - 1]))
                    used +=
                        (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", sections[i]);
            snprintf(hint, size, _("sections are %s; keys that begin with x- are ignored"), all);
        }
        return;
    }
    near = value_nearest(leaf, names, count);
    if (near) {
        snprintf(hint, size, _("did you mean %s.%s?"), section, near);
        return;
    }
    const char **all = xcalloc((size_t)config_key_count, sizeof *all);
    for (int i = 0; i < config_key_count; i++) all[i] = leaf_of(config_keys[i].name);
    near = value_nearest(leaf, all, config_key_count);
    free(all);
    for (int i = 0; near && i < config_key_count; i++)
        if (leaf_of(config_keys[i].name) == near) {
            snprintf(hint, size, _("did you mean %s?"), config_keys[i].name);
            return;
        }
    snprintf(hint, size, _("'meopt config list' names all keys"));
}

/* ---- Values ---- */

static bool plain_tag(const char *tag)
{
    static const char *const known[] = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:int",
                                        "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool", "!"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(tag, known[i]) == 0) return true;
    return false;
}

/* Joins the scalars of a list with commas; NULL: it has other elements. The caller frees the text. */
static char *list_text(const struct document *d, int sequence)
{
    char *text = xstrdup("");
    for (int k = d->nodes[sequence].first; k >= 0 && text; k = d->nodes[k].next) {
        const struct node *v = &d->nodes[document_follow(d, k)];
        bool scalar = v->kind == NODE_SCALAR && strlen(v->text) == v->text_bytes;
        char *longer = scalar ? xasprintf("%s%s%s", text, *text ? "," : "", v->text) : NULL;
        free(text);
        text = longer;
    }
    return text;
}

/* by_merge: the value comes through "<<"; an explicit key overrides it */
static void read_value(struct load *l, int key, int key_node, int value_node, bool by_merge)
{
    struct document *d = &l->document;
    struct config_origin *origin = &l->config->origins[key];
    if (by_merge && origin->from == ORIGIN_FILE) return;
    const char *name = config_keys[key].name;
    int followed = document_follow(d, value_node);
    const struct node *v = &d->nodes[followed];
    bool listed = v->kind == NODE_SEQUENCE && value_takes_list(key);
    if (v->kind != NODE_SCALAR && !listed) {
        char *expected = value_expected(key);
        problem(l, true, value_node, "one value on the key's line", "%s is a %s, expected %s", name,
                v->kind == NODE_SEQUENCE ? "list" : _("group of keys"), expected);
        free(expected);
        return;
    }
    if (origin->from == ORIGIN_FILE) {
        problem(l, true, key_node,
                "model.weight_t is model_t.weight, model.weight_s is model_s.weight: keep one",
                "%s was given before, in line %d", name, origin->line);
        return;
    }
    if (v->tag && !plain_tag(v->tag)) {
        problem(l, true, followed, "remove it", "tag %.60s is not known", v->tag);
        return;
    }
    char *list = listed ? list_text(d, followed) : NULL;
    if (listed && !list) {
        problem(l, true, value_node, "as in [0, 1, 2, 3]", "%s: the list has an element that is not a number",
                name);
        return;
    }
    const char *read = listed ? list : v->text;
    bool text = listed || v->style != STYLE_PLAIN ||
                (v->tag && (strcmp(v->tag, "tag:yaml.org,2002:str") == 0 || strcmp(v->tag, "!") == 0));
    struct value value;
    char message[320], hint[320];
    enum value_status status = value_read(key, read, listed ? strlen(list) : v->text_bytes, text, &value,
                                          message, hint, sizeof message);
    if (status != VALUE_GOOD) problem(l, status == VALUE_BAD, value_node, hint, "%s", message);
    origin->from = ORIGIN_FILE;
    document_position(d->text, d->bytes, d->nodes[key_node].start, &origin->line, &origin->column);
    if (status != VALUE_BAD) value_store(l->config, key, &value, read);
    free(list);
}

static void read_section(struct load *l, const char *section, int mapping, int *merges, bool by_merge);

/* "<<: *a" or "<<: [*a, *b]" */
static void read_merge(struct load *l, const char *section, int node, int *merges)
{
    struct document *d = &l->document;
    if (++*merges > MAX_MERGES) {
        if (*merges == MAX_MERGES + 1)
            problem(l, true, node, "write the values out", "more than %d merges", MAX_MERGES);
        return;
    }
    int target = document_follow(d, node);
    if (d->nodes[target].kind == NODE_MAPPING) {
        read_section(l, section, target, merges, true);
    } else if (d->nodes[target].kind == NODE_SEQUENCE) {
        for (int k = d->nodes[target].first; k >= 0; k = d->nodes[k].next)
            if (d->nodes[document_follow(d, k)].kind == NODE_MAPPING)
                read_section(l, section, document_follow(d, k), merges, true);
            else problem(l, true, k, "merge sections: <<: *name", "'<<' requires groups of keys");
    } else {
        problem(l, true, node, "merge a section: <<: *name", "'<<' requires a group of keys");
    }
}

static void read_section(struct load *l, const char *section, int mapping, int *merges, bool by_merge)
{
    struct document *d = &l->document;
    if (*merges > MAX_MERGES) return;
    for (int pass = 0; pass < 2; pass++) /* explicit keys first */
        for (int k = d->nodes[mapping].first; k >= 0; k = d->nodes[d->nodes[k].next].next) {
            const struct node *n = &d->nodes[k];
            if (l->reported > MAX_PROBLEMS) return;
            bool merge = n->kind == NODE_SCALAR && n->style == STYLE_PLAIN && strcmp(n->text, "<<") == 0;
            if (merge != (pass == 1)) continue;
            if (merge) {
                read_merge(l, section, n->next, merges);
                continue;
            }
            if (n->kind != NODE_SCALAR) {
                problem(l, true, k, "keys are words", "a key of %s is not a word", section);
                continue;
            }
            char full[160], hint[320];
            snprintf(full, sizeof full, "%s.%.100s", section, n->text);
            int key = strlen(n->text) > 100 || n->text_bytes != strlen(n->text) ? -1 : config_key_index(full);
            if (key < 0) {
                suggest(hint, sizeof hint, section, n->text);
                problem(l, true, k, hint, "%.100s is not a key", full);
            } else {
                read_value(l, key, k, n->next, by_merge);
                l->config->origins[key].of_model |= config_key_of_model(full);
            }
        }
}

/* Returns the index of `section` with a number, of its item in a list; -1: there is none. */
static int numbered(const char **sections, int count, const char *section, int item)
{
    char name[32];
    snprintf(name, sizeof name, item > 1 ? "%s%d" : "%s", section, item);
    for (int i = 0; i < count; i++)
        if (strcmp(sections[i], name) == 0) return i;
    return -1;
}

/* "model_t: [{...}, {...}]": the keys of the first item are those of model_t, of the second of model_t2 */
static void read_items(struct load *l, const char **sections, int count, int section, int list, int *merges,
                       bool by_merge)
{
    struct document *d = &l->document;
    int item = 0;
    for (int k = d->nodes[list].first; k >= 0; k = d->nodes[k].next) {
        int value = document_follow(d, k), of = numbered(sections, count, sections[section], ++item);
        if (of < 0) {
            problem(l, true, k, NULL, "%s has more than %d items", sections[section], item - 1);
            return;
        }
        if (d->nodes[value].kind != NODE_MAPPING || d->nodes[value].first < 0)
            problem(l, true, k, "as in - weight: PATH", "item %d of %s has no keys", item, sections[section]);
        else read_section(l, sections[of], value, merges, by_merge);
    }
    if (!item) problem(l, true, list, "leave it out", "%s is an empty list", sections[section]);
}

static void read_root(struct load *l, int mapping, int *merges, bool by_merge)
{
    struct document *d = &l->document;
    const char *sections[MAX_SECTIONS];
    char storage[MAX_SECTIONS][32];
    int section_count = section_names(sections, storage);
    for (int pass = 0; pass < 2; pass++)
        for (int k = d->nodes[mapping].first; k >= 0; k = d->nodes[d->nodes[k].next].next) {
            const struct node *n = &d->nodes[k];
            if (l->reported > MAX_PROBLEMS) return;
            if (n->kind != NODE_SCALAR) {
                if (pass == 0) problem(l, true, k, "sections are words", "a key is not a word");
                continue;
            }
            bool merge = n->style == STYLE_PLAIN && strcmp(n->text, "<<") == 0;
            if (merge != (pass == 1) || strncmp(n->text, "x-", 2) == 0) continue;
            int value = document_follow(d, n->next);
            if (merge) {
                if (++*merges > MAX_MERGES || d->nodes[value].kind != NODE_MAPPING)
                    problem(l, true, n->next, "merge a group of sections: <<: *name",
                            "'<<' cannot merge this");
                else read_root(l, value, merges, true);
                continue;
            }
            int section = -1;
            for (int i = 0; i < section_count; i++)
                if (n->text_bytes == strlen(sections[i]) && strcmp(sections[i], n->text) == 0) section = i;
            if (section < 0) {
                char hint[320];
                suggest(hint, sizeof hint, "", n->text);
                problem(l, true, k, hint, "%.100s is not a section", n->text);
            } else if (d->nodes[value].kind == NODE_MAPPING) {
                read_section(l, sections[section], value, merges, by_merge);
            } else if (d->nodes[value].kind == NODE_SEQUENCE &&
                       numbered(sections, section_count, sections[section], 2) >= 0) {
                read_items(l, sections, section_count, section, value, merges, by_merge);
            } else if (d->nodes[value].kind != NODE_SCALAR || d->nodes[value].style != STYLE_PLAIN ||
                       d->nodes[value].text[0]) {
                problem(l, true, n->next, "write its keys below it, indented",
                        "section %s has no keys but a %s", n->text,
                        d->nodes[value].kind == NODE_SEQUENCE ? "list" : "value");
            }
        }
}

/* Returns "[0, 1]" of a key that takes a list as "0,1". The caller frees it. */
static char *without_brackets(int key, const char *text)
{
    size_t n = strlen(text);
    char *out = xstrdup(text), *to = out;
    if (!value_takes_list(key) || n < 2 || text[0] != '[' || text[n - 1] != ']') return out;
    for (size_t i = 1; i + 1 < n; i++)
        if (text[i] != ' ') *to++ = text[i];
    *to = 0;
    return out;
}

static void read_override(struct load *l, const char *text)
{
    struct error e = {0};
    const char *equals = strchr(text, '=');
    char name[160];
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - text) : (int)strlen(text), text);
    int key = equals ? config_key_index(name) : -1;
    if (!equals) {
        char named[96];
        bool other = document_lookalike(named, sizeof named, text, strlen(text), 0);
        error_set(&e, EXIT_USAGE, other ? named : N_("write key=value, as in train.batch_size=16"),
                  "'%.100s' is not key=value", text);
        report_problem(l, true, &e);
        return;
    }
    char message[320], hint[320];
    if (key < 0) {
        char section[64];
        snprintf(section, sizeof section, "%.*s", (int)strcspn(name, "."), name);
        suggest(hint, sizeof hint, strchr(name, '.') ? section : "",
                strchr(name, '.') ? strchr(name, '.') + 1 : name);
        error_set(&e, EXIT_CONFIG, hint, "%.100s is not a key", name);
        report_problem(l, true, &e);
        return;
    }
    struct value value;
    char *given = without_brackets(key, equals + 1);
    enum value_status status =
        value_read(key, given, strlen(given), false, &value, message, hint, sizeof message);
    if (status == VALUE_BAD) {
        error_set(&e, EXIT_CONFIG, hint, "%s", message);
        report_problem(l, true, &e);
    } else {
        bool of_model = l->config->origins[key].of_model || config_key_of_model(name);
        l->config->origins[key] = (struct config_origin){.from = ORIGIN_OVERRIDE, .of_model = of_model};
        char *path = value_from_here(key, given);
        value_store(l->config, key, &value, path);
        free(path);
    }
    free(given);
}

/* ---- Loading ---- */

static void bad_combination(void *context, const char *key, bool fatal, const char *hint,
                            const char *sentence)
{
    struct load *l = context;
    const struct config_origin *origin = &l->config->origins[config_key_index(key)];
    const struct document *d = &l->document;
    struct error e = {0};
    size_t at = 0;
    if (origin->from == ORIGIN_FILE && d->text) {
        for (int line = 1; line < origin->line && at < d->bytes; at++)
            if (d->text[at] == '\n' ||
                (d->text[at] == '\r' && (at + 1 == d->bytes || d->text[at + 1] != '\n')))
                line++;
        if (at == 0 && d->bom) at = 3;
        for (int column = 1; column < origin->column && at < d->bytes; column++) {
            at++;
            while (at < d->bytes && ((unsigned char)d->text[at] & 0xC0) == 0x80) at++;
        }
        document_error(&e, l->path, d->text, d->bytes, at, strlen(strchr(key, '.') + 1), hint, "%s",
                       sentence);
    } else {
        error_set(&e, EXIT_CONFIG, hint, "%s", sentence);
    }
    report_problem(l, fatal, &e);
}

static void locate(struct config *config, const char *path)
{
    char *real = realpath(path, NULL);
    char *directory = path_dirname(path); /* of the given name, before links are resolved */
    char *real_directory = realpath(directory, NULL);
    config->directory = real_directory ? real_directory : xstrdup(directory);
    config->path = path_join(config->directory, path_basename(path));
    config->stem = xstrdup(path_basename(path));
    char *dot = strrchr(config->stem, '.');
    if (dot && dot > config->stem && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0)) *dot = 0;
    free(directory);
    free(real);
}

int config_examine(struct config *config, const char *path, const char *text, size_t bytes, char **overrides,
                   int override_count, config_report report, void *context, struct error *err)
{
    *config = (struct config){0};
    locate(config, path);
    config->origins = xcalloc((size_t)config_key_count, sizeof *config->origins);
    for (int key = 0; key < config_key_count; key++) {
        struct value value;
        char message[320], hint[320];
        (void)value_read(key, config_keys[key].standard, strlen(config_keys[key].standard), false, &value,
                         message, hint, sizeof message);
        value_store(config, key, &value, config_keys[key].standard);
    }
    struct load l = {.config = config, .path = path, .report = report, .context = context};
    int code = document_parse(&l.document, path, text, bytes, &l.first);
    if (code) {
        struct error unreadable = l.first;
        report_problem(&l, true, &unreadable);
    } else {
        int root = l.document.root, merges = 0;
        const struct node *n = root >= 0 ? &l.document.nodes[root] : NULL;
        bool nothing = !n || (n->kind == NODE_SCALAR && n->style == STYLE_PLAIN && !n->text[0]);
        if (n && n->kind == NODE_MAPPING) read_root(&l, root, &merges, false);
        else if (!nothing)
            problem(&l, true, root, "start with a section, as in 'data:'",
                    "expected sections of keys, found %s", n->kind == NODE_SEQUENCE ? _("a list") : "text");
        for (int i = 0; i < override_count; i++) read_override(&l, overrides[i]);
        if (l.errors == 0) {
            resolve_defaults(config);
            config_combinations(
                &(struct combinations){.config = config, .bad = bad_combination, .context = &l});
        }
        document_free(&l.document);
    }
    if (l.errors == 0) return 0;
    if (err) *err = l.first;
    return l.first.code ? l.first.code : EXIT_CONFIG;
}

static void log_note(void *context, bool fatal, const struct error *e)
{
    (void)context;
    if (!fatal && e->line <= 0) /* of an option */
        log_warn("%.*s; %s", (int)strcspn(e->what, "\n"), e->what, e->hint);
    else if (!fatal)
        log_warn("%s:%d:%d: %.*s; %s", e->file, e->line, e->column, (int)strcspn(e->what, "\n"), e->what,
                 e->hint);
}

int config_load_text(struct config *config, const char *path, const char *text, size_t bytes,
                     char **overrides, int override_count, struct error *err)
{
    int code = config_examine(config, path, text, bytes, overrides, override_count, log_note, NULL, err);
    if (code) config_free(config);
    return code;
}

void config_free(struct config *config)
{
    for (int key = 0; key < config_key_count; key++)
        if (config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH)
            free(*(char **)((char *)config + config_keys[key].offset));
    free(config->path);
    free(config->directory);
    free(config->stem);
    free(config->origins);
    *config = (struct config){0};
}

void config_copy(struct config *to, const struct config *from)
{
    *to = *from;
    for (int key = 0; key < config_key_count; key++)
        if (config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH) {
            char **field = (char **)((char *)to + config_keys[key].offset);
            *field = xstrdup(*field ? *field : "");
        }
    to->path = xstrdup(from->path);
    to->directory = xstrdup(from->directory);
    to->stem = xstrdup(from->stem);
    to->origins = xmalloc((size_t)config_key_count * sizeof *to->origins);
    memcpy(to->origins, from->origins, (size_t)config_key_count * sizeof *to->origins);
}

int config_assign(struct config *config, const char *name, const char *text, struct error *err)
{
    struct load l = {.config = config};
    char *override = xasprintf("%s=%s", name, text);
    read_override(&l, override);
    free(override);
    if (l.errors) {
        if (err) *err = l.first;
        return l.first.code;
    }
    config->origins[config_key_index(name)].from = ORIGIN_RESOLVED;
    return 0;
}

static void first_combination(void *context, const char *key, bool fatal, const char *hint,
                              const char *sentence)
{
    struct load *l = context;
    const struct config_origin *origin = &l->config->origins[config_key_index(key)];
    struct error e = {0};
    error_set(&e, EXIT_CONFIG, hint, "%s", sentence);
    if (origin->from == ORIGIN_FILE) error_at(&e, l->config->path, origin->line, origin->column);
    report_problem(l, fatal, &e);
}

int config_resolve(struct config *config, enum family family, struct error *err)
{
    int key = config_key_index("model.family");
    if (config->model.family == FAMILY_UNKNOWN) {
        config->model.family = family;
        config->origins[key] = (struct config_origin){.from = ORIGIN_RESOLVED};
    }
    if (config->model.family != family) {
        error_set(err, EXIT_CONFIG, "remove model.family, or name the right checkpoint",
                  "model.family is %s, but the checkpoint is of family %s",
                  family_names[config->model.family], family_names[family]);
        error_at(err, config->path, config->origins[key].line, config->origins[key].column);
        return EXIT_CONFIG;
    }
    struct load l = {.config = config};
    resolve_defaults(config);
    config_combinations(&(struct combinations){.config = config, .bad = first_combination, .context = &l});
    if (l.errors && err) *err = l.first;
    return l.errors ? EXIT_CONFIG : 0;
}
