/* Sources of archives: see sources.h. */
#include "fetch/sources.h"

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum { SOURCES_MAX_BYTES = 1 << 20, KNOWN_MAX_BYTES = 64 << 20 };

static void source_clear(struct source *s)
{
    free(s->name);
    free(s->about);
    for (int i = 0; i < s->url_count; i++) free(s->urls[i]);
    free(s->urls);
    free(s->file);
    free(s->top);
    free(s->dest);
    for (int i = 0; i < s->include_count; i++) free(s->includes[i]);
    free(s->includes);
    memset(s, 0, sizeof *s);
}

void sources_free(struct sources *sources)
{
    for (int i = 0; i < sources->count; i++) source_clear(&sources->all[i]);
    free(sources->all);
    *sources = (struct sources){0};
}

const struct source *sources_find(const struct sources *sources, const char *name)
{
    for (int i = 0; i < sources->count; i++)
        if (strcmp(sources->all[i].name, name) == 0) return &sources->all[i];
    return NULL;
}

bool sha256_parse(char out[65], const char *text)
{
    for (int i = 0; i < 64; i++) {
        if (!isxdigit((unsigned char)text[i])) return false;
        out[i] = (char)tolower((unsigned char)text[i]);
    }
    out[64] = 0;
    return text[64] == 0;
}

/* ---- YAML ---- */

struct reading {
    yaml_document_t document;
    const char *path;
    struct error *err;
};

static int source_error(const struct reading *r, const yaml_node_t *node, const char *hint,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
static int source_error(const struct reading *r, const yaml_node_t *node, const char *hint,
                        const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    error_set(r->err, EXIT_CONFIG, hint, "%s", text);
    return error_at(r->err, r->path, (int)node->start_mark.line + 1, (int)node->start_mark.column + 1);
}

static const char *scalar(const yaml_node_t *node)
{
    return node && node->type == YAML_SCALAR_NODE &&
                   strlen((const char *)node->data.scalar.value) == node->data.scalar.length
               ? (const char *)node->data.scalar.value
               : NULL;
}

static int read_bytes(const struct reading *r, const yaml_node_t *node, int64_t *out)
{
    const char *text = scalar(node);
    char *end = NULL;
    long long n = text && *text ? strtoll(text, &end, 10) : -1;
    if (!text || !end || *end || n < 0) return source_error(r, node, NULL, "expected a whole number");
    *out = n;
    return 0;
}

/* Returns whether a name is a valid file name: one component, no control characters, no leading dot. */
static bool plain_name(const char *text)
{
    if (!*text || *text == '.' || strlen(text) > 200) return false;
    for (const char *p = text; *p; p++)
        if (*p == '/' || (unsigned char)*p < ' ' || *p == 0x7f) return false;
    return true;
}

static int read_strings(const struct reading *r, yaml_node_t *node, char ***out, int *count)
{
    yaml_document_t *d = (yaml_document_t *)(uintptr_t)&r->document;
    if (scalar(node)) {
        *out = xcalloc(1, sizeof **out);
        (*out)[(*count)++] = xstrdup(scalar(node));
        return 0;
    }
    if (node->type != YAML_SEQUENCE_NODE) return source_error(r, node, NULL, "expected text or a list of it");
    size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (n == 0 || n > 64) return source_error(r, node, NULL, "expected 1 to 64 items, found %zu", n);
    *out = xcalloc(n, sizeof **out);
    for (size_t i = 0; i < n; i++) {
        const yaml_node_t *item = yaml_document_get_node(d, node->data.sequence.items.start[i]);
        if (!scalar(item)) return source_error(r, item ? item : node, NULL, "expected text");
        (*out)[(*count)++] = xstrdup(scalar(item));
    }
    return 0;
}

/* file:relative -> file:///directory of the sources file/relative */
static int absolute_url(const struct reading *r, const yaml_node_t *node, char **url)
{
    if (strncmp(*url, "https://", 8) == 0 || strncmp(*url, "file:///", 8) == 0) return 0;
    if (strncmp(*url, "file:", 5) != 0 || (*url)[5] == '/' || (*url)[5] == 0)
        return source_error(r, node, "write https://, file:///PATH, or file:PATH relative to this file",
                            "cannot fetch from this URL");
    char *directory = path_dirname(r->path), *joined = path_join(directory, *url + 5);
    free(directory);
    free(*url);
    *url = xasprintf("file://%s", joined);
    free(joined);
    return 0;
}

static int read_source(const struct reading *r, const char *name, yaml_node_t *node, struct source *s)
{
    yaml_document_t *d = (yaml_document_t *)(uintptr_t)&r->document;
    s->name = xstrdup(name);
    s->size = s->size_about = s->unpacked_size = s->entries = -1;
    if (node->type != YAML_MAPPING_NODE) return source_error(r, node, NULL, "expected keys url, file, ...");
    int code = 0;
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top && !code;
         p++) {
        const yaml_node_t *key_node = yaml_document_get_node(d, p->key);
        yaml_node_t *value = yaml_document_get_node(d, p->value);
        const char *key = scalar(key_node), *text = scalar(value);
        char **where = NULL;
        for (yaml_node_pair_t *q = node->data.mapping.pairs.start; q < p && key; q++) {
            const char *other = scalar(yaml_document_get_node(d, q->key));
            if (other && strcmp(other, key) == 0)
                return source_error(r, key_node, "keep one of them", "duplicate key '%s'", key);
        }
        if (!key) code = source_error(r, key_node, NULL, "expected a key");
        else if (strcmp(key, "url") == 0) code = read_strings(r, value, &s->urls, &s->url_count);
        else if (strcmp(key, "includes") == 0) code = read_strings(r, value, &s->includes, &s->include_count);
        else if (strcmp(key, "about") == 0) where = &s->about;
        else if (strcmp(key, "file") == 0) where = &s->file;
        else if (strcmp(key, "top") == 0) where = &s->top;
        else if (strcmp(key, "dest") == 0) where = &s->dest;
        else if (strcmp(key, "size") == 0) code = read_bytes(r, value, &s->size);
        else if (strcmp(key, "size_about") == 0) code = read_bytes(r, value, &s->size_about);
        else if (strcmp(key, "unpacked_size") == 0) code = read_bytes(r, value, &s->unpacked_size);
        else if (strcmp(key, "entries") == 0) code = read_bytes(r, value, &s->entries);
        else if (strcmp(key, "sha256") == 0) {
            if (!text || !sha256_parse(s->sha256, text))
                code =
                    source_error(r, value, "use the output of sha256sum", "expected 64 hexadecimal digits");
        } else if (strcmp(key, "trust_first_use") == 0) {
            if (!text || (strcmp(text, "true") != 0 && strcmp(text, "false") != 0))
                code = source_error(r, value, NULL, "expected true or false");
            else s->trust_first_use = text[0] == 't';
        } else {
            code = source_error(
                r, key_node,
                "known keys: about url file top dest sha256 size size_about unpacked_size entries "
                "trust_first_use includes",
                "unknown key '%s'", key);
        }
        if (where && !code) {
            if (!text || !*text) code = source_error(r, value, NULL, "expected text");
            else *where = xstrdup(text);
            if (!code && (where == &s->file || where == &s->top) && !plain_name(text))
                code = source_error(r, value, "use a name without a slash", "invalid file name");
        }
        for (int i = 0; key && !code && strcmp(key, "url") == 0 && i < s->url_count; i++)
            code = absolute_url(r, value, &s->urls[i]);
    }
    if (code) return code;
    if ((s->url_count > 0) == (s->include_count > 0))
        return source_error(r, node, NULL, "source '%s' needs url, or includes, and not both", name);
    if (s->url_count && !s->file)
        return source_error(r, node, "add file: NAME.tar.gz", "source '%s' needs the name of its archive",
                            name);
    return 0;
}

/* Checks limits of depth, events and aliases, because libyaml's document tree has none. The loader reports
 * invalid YAML. */
static bool within_limits(const char *text, size_t bytes)
{
    enum { DEPTH = 16, EVENTS = 100000, ALIASES = 1000 };
    yaml_parser_t parser;
    int depth = 0, events = 0, aliases = 0;
    bool more = yaml_parser_initialize(&parser), fine = true;
    if (!more) return true;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    while (more && fine) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) break;
        yaml_event_type_t type = event.type;
        yaml_event_delete(&event);
        depth += (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT) -
                 (type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT);
        aliases += type == YAML_ALIAS_EVENT;
        fine = depth <= DEPTH && ++events <= EVENTS && aliases <= ALIASES;
        more = type != YAML_STREAM_END_EVENT;
    }
    yaml_parser_delete(&parser);
    return fine;
}

int sources_add(struct sources *sources, const char *text, size_t bytes, const char *path, struct error *err)
{
    struct reading r = {.path = path, .err = err};
    yaml_parser_t parser;
    int code = 0;
    if (bytes > SOURCES_MAX_BYTES)
        return error_set(err, EXIT_CONFIG, NULL, "%s is larger than %d bytes", path, SOURCES_MAX_BYTES);
    if (!within_limits(text, bytes)) {
        error_set(err, EXIT_CONFIG, "see man meopt-sources",
                  "nests or repeats more than any list of sources");
        return error_at(err, path, 0, 0);
    }
    if (!yaml_parser_initialize(&parser)) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    if (!yaml_parser_load(&parser, &r.document)) {
        if (parser.error == YAML_MEMORY_ERROR)
            error_set(err, EXIT_HOST_MEMORY, "close other programs", "out of memory");
        else
            error_set(err, EXIT_CONFIG, "see man meopt-sources", "not YAML: %s",
                      parser.problem ? parser.problem : "unreadable");
        code = error_at(err, path, (int)parser.problem_mark.line + 1, (int)parser.problem_mark.column + 1);
        yaml_parser_delete(&parser);
        return code;
    }
    yaml_node_t *root = yaml_document_get_root_node(&r.document), *list = NULL;
    if (root && root->type == YAML_MAPPING_NODE &&
        root->data.mapping.pairs.top - root->data.mapping.pairs.start == 1) {
        const char *key = scalar(yaml_document_get_node(&r.document, root->data.mapping.pairs.start->key));
        if (key && strcmp(key, "sources") == 0)
            list = yaml_document_get_node(&r.document, root->data.mapping.pairs.start->value);
    }
    if (!list || list->type != YAML_MAPPING_NODE) {
        if (root)
            code =
                source_error(&r, root, "see man meopt-sources", "expected one key, sources:, with a mapping");
        else code = error_set(err, EXIT_CONFIG, "see man meopt-sources", "%s is empty", path);
    }
    for (yaml_node_pair_t *p = code ? NULL : list->data.mapping.pairs.start;
         p && p < list->data.mapping.pairs.top && !code; p++) {
        const yaml_node_t *key = yaml_document_get_node(&r.document, p->key);
        const char *name = scalar(key);
        struct source s = {0};
        if (!name || !plain_name(name)) code = source_error(&r, key, NULL, "expected the name of a source");
        else code = read_source(&r, name, yaml_document_get_node(&r.document, p->value), &s);
        if (code) {
            source_clear(&s);
            break;
        }
        struct source *old = (struct source *)(uintptr_t)sources_find(sources, name);
        if (old) {
            source_clear(old);
            *old = s;
        } else {
            sources->all = xrealloc(sources->all, (size_t)(sources->count + 1) * sizeof *sources->all);
            sources->all[sources->count++] = s;
        }
    }
    yaml_document_delete(&r.document);
    yaml_parser_delete(&parser);
    return code;
}

static int add_file(struct sources *sources, const char *path, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = file_read(path, SOURCES_MAX_BYTES, &text, &bytes, err);
    if (!code) code = sources_add(sources, text, bytes, path, err);
    free(text);
    return code;
}

int sources_load(struct sources *sources, struct error *err)
{
    *sources = (struct sources){0};
    char *shipped = path_shipped("sources.yaml");
    int code = shipped ? add_file(sources, shipped, err)
                       : error_set(err, EXIT_FAILED, "install meopt again",
                                   "sources.yaml is missing from the installation");
    free(shipped);
    char *own = path_xdg("XDG_CONFIG_HOME", ".config", "sources.yaml");
    if (!code && own && !file_absent(own)) code = add_file(sources, own, err);
    free(own);
    if (code) sources_free(sources);
    return code;
}

/* ---- known archives ---- */

bool known_archive(const char *url, char sha256[65], int64_t *size)
{
    char *path = path_xdg("XDG_STATE_HOME", ".local/state", "known_archives.json");
    json_t *all = path ? json_read(path, KNOWN_MAX_BYTES, NULL) : NULL;
    const json_t *one = json_object_get(all, url);
    const char *hex = json_string_value(json_object_get(one, "sha256"));
    bool known = hex && sha256_parse(sha256, hex);
    if (known)
        *size = json_is_integer(json_object_get(one, "size_bytes"))
                    ? json_integer_value(json_object_get(one, "size_bytes"))
                    : -1;
    json_decref(all);
    free(path);
    return known;
}

int known_archive_add(const char *url, const char *sha256, int64_t size, struct error *err)
{
    char *path = path_xdg("XDG_STATE_HOME", ".local/state", "known_archives.json");
    if (!path) return error_set(err, EXIT_FAILED, "set HOME", "no directory to store the checksum");
    json_t *all = json_read(path, KNOWN_MAX_BYTES, err);
    if (!all && errno && errno != ENOENT) { /* do not overwrite stored checksums */
        free(path);
        return EXIT_FAILED;
    }
    if (!json_is_object(all)) {
        json_decref(all);
        all = json_object();
    }
    json_object_set_new(all, url, json_pack("{s:s, s:I}", "sha256", sha256, "size_bytes", (json_int_t)size));
    char *directory = path_dirname(path);
    int code = file_make_dirs(directory, err);
    if (!code) code = json_write(path, all, JSON_INDENT(1) | JSON_SORT_KEYS, err);
    free(directory);
    json_decref(all);
    free(path);
    return code;
}

char *url_printable(char *dst, size_t size, const char *url)
{
    char *copy = xstrdup(url);
    copy[strcspn(copy, "?#")] = 0;
    char *host = strstr(copy, "://");
    if (host) {
        host += 3;
        size_t authority = strcspn(host, "/");
        for (size_t i = authority; i-- > 0;)
            if (host[i] == '@') {
                memmove(host, host + i + 1, strlen(host + i + 1) + 1);
                break;
            }
    }
    name_printable(dst, size, copy);
    free(copy);
    return dst;
}
