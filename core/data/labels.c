/* The class of each image of a list: see labels.h. */
#include "core/data/labels.h"
#include "core/base/file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Appends to a list of names for a message: at most SHOWN of them, then the number of the others. */
enum { SHOWN = 5 };
struct names {
    char *text;
    int64_t count;
};

static void names_add(struct names *names, const char *name)
{
    if (names->count++ >= SHOWN) return;
    char *longer = xasprintf("%s%s%s", names->text ? names->text : "", names->text ? ", " : "", name);
    free(names->text);
    names->text = longer;
}

/* Adds a sentence "COUNT WHAT: names" to a text and frees the names. */
static void names_report(struct names *names, const char *what, char **text)
{
    if (names->count) {
        char *longer =
            xasprintf("%s%s%lld %s: %s%s", *text ? *text : "", *text ? "; " : "", (long long)names->count,
                      what, names->text, names->count > SHOWN ? ", ..." : "");
        free(*text);
        *text = longer;
    }
    free(names->text);
    *names = (struct names){0};
}

/* ---- Numbers of classes ---- */

struct class_entry {
    char *name;
    int32_t first; /* its number before sorting */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct class_entry *)a)->name, ((const struct class_entry *)b)->name);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts the classes by their names and renumbers the labels. */
static void sort_classes(struct image_list *list)
{
    size_t count = (size_t)list->class_count;
    struct class_entry *entries = xcalloc(count, sizeof *entries);
    int32_t *number = xcalloc(count, sizeof *number);
    for (size_t i = 0; i < count; i++) entries[i] = (struct class_entry){list->classes[i], (int32_t)i};
    qsort(entries, count, sizeof *entries, by_name);
    for (size_t i = 0; i < count; i++) {
        list->classes[i] = entries[i].name;
        number[entries[i].first] = (int32_t)i;
    }
    for (int64_t i = 0; i < list->count; i++) list->labels[i] = number[list->labels[i]];
    free(number);
    free(entries);
}

/* Returns the number of a class name; -1: none. */
static int32_t class_number(const struct image_list *list, const char *name)
{
    char **found = bsearch(&name, list->classes, (size_t)list->class_count, sizeof name, by_text);
    return found ? (int32_t)(found - list->classes) : -1;
}

static int32_t add_class(struct image_list *list, const char *name, size_t length)
{
    int32_t n = list->class_count;
    if ((n & (n - 1)) == 0)
        list->classes = xrealloc(list->classes, (size_t)(n ? 2 * n : 1) * sizeof *list->classes);
    list->classes[n] = xasprintf("%.*s", (int)length, name);
    return list->class_count++;
}

/* ---- Directories ---- */

/* Lists directories that are no class, because they have no image. */
static void find_empty(struct image_list *list, const char *directory)
{
    DIR *dir = opendir(directory);
    struct names empty = {0};
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char *path = path_join(directory, entry->d_name);
        struct stat st;
        if (entry->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
            class_number(list, entry->d_name) < 0)
            names_add(&empty, entry->d_name);
        free(path);
    }
    if (dir) closedir(dir);
    names_report(&empty, "directories without images are no classes", &list->outside);
}

/* Labels the images by directories and removes those that are in none. */
static int label_directories(struct image_list *list, const char *root, struct error *err)
{
    size_t skip = image_list_part_length(list), length = 0;
    int64_t kept = 0;
    struct names outside = {0};
    const char *last = NULL; /* the list is sorted: images of one directory are adjacent */
    for (int64_t i = 0; i < list->count; i++) {
        char *name = list->names[i];
        const char *class = name + skip, *slash = strchr(class, '/');
        if (!slash) {
            names_add(&outside, name);
            free(name);
            continue;
        }
        if (!last || length != (size_t)(slash - class) || memcmp(last, class, length) != 0) {
            last = class;
            length = (size_t)(slash - class);
            add_class(list, class, length);
        }
        list->labels[kept] = list->class_count - 1;
        list->names[kept++] = name;
    }
    list->count = kept;
    names_report(&outside, "images outside of a class directory are left out", &list->outside);
    if (!kept)
        return error_set(err, EXIT_FAILED, "expected root/CLASS/IMAGE; or name the classes with data.labels",
                         "the images are in no class directories: %s", list->outside);
    sort_classes(list);
    char *directory = xasprintf("%s/%.*s", root, (int)skip, list->names[0]);
    find_empty(list, directory);
    free(directory);
    list->classes_from = xasprintf("%d classes, the directories below %s%.*s", list->class_count,
                                   skip ? "" : "the root", (int)skip, list->names[0]);
    return 0;
}

/* ---- The classes of other images ---- */

/* Renumbers the classes by those of the training images. */
static int adopt_classes(struct image_list *list, const struct image_list *train, struct error *err)
{
    int32_t *number = xcalloc((size_t)list->class_count, sizeof *number);
    uint8_t *used = xcalloc((size_t)train->class_count, 1);
    struct names unknown = {0}, empty = {0};
    for (int32_t i = 0; i < list->class_count; i++) {
        number[i] = class_number(train, list->classes[i]);
        if (number[i] < 0) names_add(&unknown, list->classes[i]);
        else used[number[i]] = 1;
        free(list->classes[i]);
    }
    for (int64_t i = 0; i < list->count && !unknown.count; i++) list->labels[i] = number[list->labels[i]];
    list->class_count = 0;
    list->classes = xrealloc(list->classes, (size_t)train->class_count * sizeof *list->classes);
    for (; list->class_count < train->class_count; list->class_count++) {
        list->classes[list->class_count] = xstrdup(train->classes[list->class_count]);
        if (!used[list->class_count]) names_add(&empty, list->classes[list->class_count]);
    }
    int code = 0;
    if (unknown.count)
        code = error_set(err, EXIT_FAILED, "exclude them with data.exclude, or add training images of them",
                         "%lld classes have validation images, but no training images: %s",
                         (long long)unknown.count, unknown.text);
    free(unknown.text);
    names_report(&empty, "classes have no validation images", &list->outside);
    free(number);
    free(used);
    return code;
}

static int read_labels(struct image_list *list, const struct data_options *o, struct error *err)
{
    list->labels = xcalloc((size_t)list->count, sizeof *list->labels);
    int code = label_directories(list, o->root, err);
    if (!code && o->classes) code = adopt_classes(list, data_list(o->classes), err);
    else if (!code && list->class_count < 2)
        code = error_set(err, EXIT_FAILED, "expected root/CLASS/IMAGE with at least two classes",
                         "all %lld images are of one class, %s", (long long)list->count, list->classes[0]);
    return code ? error_at(err, o->root, 0, 0), code : 0;
}

int image_list_open(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct image_search search = {
        .root = o->root, .include = o->include, .exclude = o->exclude, .validation = o->validation};
    int code = image_list_search(list, &search, err);
    if (!code && o->labels && (code = read_labels(list, o, err)) != 0) image_list_free(list);
    return code;
}

uint32_t image_list_classes_hash(const struct image_list *list)
{
    uint32_t crc = 0;
    for (int32_t i = 0; i < list->class_count; i++)
        crc = crc32c(crc, list->classes[i], strlen(list->classes[i]) + 1);
    return list->labels ? crc32c(crc, list->labels, (size_t)list->count * sizeof *list->labels) : 0;
}
