/* Classes of the documents of token files: see labels.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/labels_internal.h"
#include "core/data/token_loader.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CLASSES_HEAD = 24 };

static uint64_t number(const uint8_t *p, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value |= (uint64_t)p[i] << 8 * i;
    return value;
}

int32_t document_class(const struct document_classes *c, int64_t document)
{
    return (int32_t)number(c->of + 4 * document, 4);
}

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY, "copy it again, or run meopt tokenize again", "%s", _(what));
}

/* Sets the names, each of which ends with a NUL. */
static int parse_names(struct document_classes *c, const char *text, size_t bytes, struct error *err)
{
    const char *at = text, *end = text + bytes;
    int64_t found = 0;
    c->names = xcalloc((size_t)c->classes, sizeof *c->names);
    for (; at < end && found < c->classes; at += strlen(at) + 1) {
        if (!memchr(at, 0, (size_t)(end - at)) || !*at) break;
        c->names[found++] = at;
    }
    if (found == c->classes && at == end) return 0;
    free(c->names);
    c->names = NULL;
    return damaged(err, "has other names than those of its classes");
}

int document_classes_parse(struct document_classes *c, const uint8_t *data, size_t bytes, struct error *err)
{
    *c = (struct document_classes){0};
    if (bytes < CLASSES_HEAD || memcmp(data, "MEOPTCLS", 8) != 0)
        return damaged(err, "is no file of classes: byte 0 is not MEOPTCLS");
    uint64_t documents = number(data + 8, 8), classes = number(data + 16, 8), rest = bytes - CLASSES_HEAD;
    if (documents > rest / 4 || classes < 1 || classes > CLASSES_MAX || classes > rest)
        return damaged(err, "is shorter than its documents and classes");
    c->documents = (int64_t)documents;
    c->classes = (int64_t)classes;
    c->of = data + CLASSES_HEAD;
    for (int64_t i = 0; i < c->documents; i++)
        if (document_class(c, i) < 0 || document_class(c, i) >= c->classes)
            return damaged(err, "has a document whose class is none of its classes");
    return parse_names(c, (const char *)c->of + 4 * documents, (size_t)(rest - 4 * documents), err);
}

/* Adds the classes of one file, numbered after those before. */
static int add_file(struct image_list *list, const struct document_classes *c, int64_t documents,
                    struct error *err)
{
    if (c->documents != documents)
        return error_set(err, EXIT_INTEGRITY, "copy all files again, or run meopt tokenize again",
                         "has the classes of %lld documents, but the index has %lld", (long long)c->documents,
                         (long long)documents);
    int32_t first = list->class_count;
    if (c->classes > CLASSES_MAX - first)
        return error_set(err, EXIT_FAILED, NULL, "the token files have more than %d classes", CLASSES_MAX);
    for (int64_t i = 0; i < c->classes; i++) label_add_class(list, c->names[i], strlen(c->names[i]));
    list->labels = xrealloc(list->labels, (size_t)(list->documents + documents + 1) * sizeof *list->labels);
    for (int64_t i = 0; i < documents; i++) list->labels[list->documents++] = first + document_class(c, i);
    return 0;
}

static int read_file(struct image_list *list, const char *path, enum token_form form, struct error *err)
{
    struct token_file file;
    struct file_map map;
    struct document_classes classes;
    char *name = token_file_classes(path);
    if (!name || file_absent(name)) {
        error_set(err, EXIT_CONFIG, "meopt tokenize FILE.jsonl --label KEY writes them",
                  "has no classes of its documents next to it%s%s", name ? ": " : "", name ? name : "");
        free(name);
        return error_at(err, path, 0, 0);
    }
    int code = token_file_open(&file, path, form, err);
    if (!code && (code = file_map_open(&map, name, err)) == 0) {
        code = document_classes_parse(&classes, map.data, map.bytes, err);
        if (!code) code = add_file(list, &classes, token_file_documents(&file), err);
        if (code) error_at(err, name, 0, 0);
        free(classes.names);
        file_map_close(&map);
    }
    token_file_close(&file);
    free(name);
    return code;
}

/* Uses the labels as numbers if all names are. */
static void use_numbers(struct image_list *list)
{
    for (int64_t i = 0; i < list->documents; i++)
        list->labels[i] = label_number(list->classes[list->labels[i]]);
    for (int32_t i = 0; i < list->class_count; i++) free(list->classes[i]);
    list->class_count = 0;
    label_add_numbers(list);
}

int label_documents(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct stat st = {0};
    int code = token_root(o->root, &st, err);
    bool single = S_ISREG(st.st_mode), numbers = true;
    for (int64_t i = 0; i < list->count && !code; i++) {
        if (token_list_part(list->names[i])) continue;
        char *path = single ? xstrdup(o->root) : path_join(o->root, list->names[i]);
        code = read_file(list, path, o->tokens, err);
        free(path);
    }
    if (!code && !list->documents)
        code = error_set(err, EXIT_FAILED, NULL, "the token files have no documents");
    if (code) return code;
    for (int32_t i = 0; i < list->class_count; i++) numbers &= label_number(list->classes[i]) >= 0;
    if (numbers) use_numbers(list);
    else label_sort_classes(list);
    list->classes_from = xasprintf(_("%d classes of %lld documents: labels are %s"), list->class_count,
                                   (long long)list->documents, numbers ? "numbers" : N_("names"));
    return 0;
}
