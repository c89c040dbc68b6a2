/* The class of each image of a list: see labels.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/labels_internal.h"
#include "core/data/token_loader.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Directories ---- */

/* Lists directories that are no class, because they have no image. */
static void find_empty(struct image_list *list, const char *directory)
{
    DIR *dir = opendir(directory);
    struct class_entry *sorted = label_sorted(list);
    struct label_names empty = {0};
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char *path = path_join(directory, entry->d_name);
        struct stat st;
        if (!image_list_foreign(entry->d_name, strlen(entry->d_name)) && stat(path, &st) == 0 &&
            S_ISDIR(st.st_mode) && label_find(sorted, list->class_count, entry->d_name) < 0)
            label_names_add(&empty, entry->d_name);
        free(path);
    }
    if (dir) closedir(dir);
    free(sorted);
    label_names_report(&empty, "directories without images are no classes", &list->outside);
}

/* Returns whether `class` is one of the training images. */
static bool is_trained(const struct image_list *train, const char *class, size_t bytes)
{
    for (int32_t i = 0; train && i < train->class_count; i++)
        if (strlen(train->classes[i]) == bytes && memcmp(train->classes[i], class, bytes) == 0) return true;
    return false;
}

/* Returns the length of the directories above those of the classes: that of the part, and further ones that
 * contain all images in directories, for a single class is none (seg_train/seg_train/CLASS). */
static size_t above_classes(const struct image_list *list, const struct data_options *o)
{
    size_t skip = image_list_part_length(list);
    if (image_place(list->names[0]).archive_length) return skip;
    for (;;) {
        const char *first = list->names[0] + skip, *slash = strchr(first, '/');
        size_t bytes = slash ? (size_t)(slash - first) + 1 : 0;
        for (int64_t i = 0; i < list->count && bytes; i++) {
            const char *name = list->names[i] + skip;
            if (strncmp(name, first, bytes) != 0 || !strchr(name + bytes, '/')) bytes = 0;
        }
        if (!bytes || is_trained(o->classes, first, bytes - 1)) return skip;
        skip += bytes;
    }
}

/* Labels the images by directories and removes those that are in none. */
static int label_directories(struct image_list *list, const struct data_options *o, struct error *err)
{
    size_t skip = above_classes(list, o), length = 0;
    const char *root = o->root;
    bool archives = image_place(list->names[0]).archive_length > 0;
    int64_t kept = 0;
    struct label_names outside = {0};
    const char *last = NULL; /* the list is sorted: images of one directory are adjacent */
    for (int64_t i = 0; i < list->count; i++) {
        char *name = list->names[i];
        size_t archive = (size_t)image_place(name).archive_length;
        const char *class = name + (archive ? archive + 1 : skip), *slash = strchr(class, '/');
        if (!slash) {
            label_names_add(&outside, name);
            free(name);
            continue;
        }
        if (!last || length != (size_t)(slash - class) || memcmp(last, class, length) != 0) {
            last = class;
            length = (size_t)(slash - class);
            label_add_class(list, class, length);
        }
        list->labels[kept] = list->class_count - 1;
        list->names[kept++] = name;
    }
    list->count = kept;
    label_names_report(&outside, "images outside of a class directory are left out", &list->outside);
    if (!kept)
        return error_set(err, EXIT_FAILED,
                         archives ? N_("expected CLASS/IMAGE in the archives, or KEY.cls for each KEY.jpg")
                                  : N_("expected root/CLASS/IMAGE; or name the classes with data.labels"),
                         "the images are in no class directories: %s", list->outside);
    label_sort_classes(list);
    if (archives) {
        list->classes_from = xasprintf(_("%d classes, the directories in the archives"), list->class_count);
        return 0;
    }
    char *directory = xasprintf("%s/%.*s", root, (int)skip, list->names[0]);
    find_empty(list, directory);
    free(directory);
    list->classes_from = xasprintf(_("%d classes, the directories below %s%.*s"), list->class_count,
                                   skip ? "" : _("the root"), (int)skip, list->names[0]);
    return 0;
}

/* ---- CIFAR ---- */

static int label_cifar(struct image_list *list)
{
    for (int64_t i = 0; i < list->count; i++) list->labels[i] = image_place(list->names[i]).label;
    list->classes_from = xasprintf(_("%d classes of CIFAR"), list->class_count);
    return 0;
}

/* ---- The classes of other images ---- */

/* Marks the classes that have images. */
static uint8_t *used_classes(const struct image_list *list)
{
    uint8_t *used = xcalloc((size_t)list->class_count + 1, 1);
    for (int64_t i = 0; i < image_list_labels(list); i++) used[list->labels[i]] = 1;
    return used;
}

static void report_empty(struct image_list *list, const char *what)
{
    struct label_names empty = {0};
    uint8_t *used = used_classes(list);
    for (int32_t i = 0; i < list->class_count; i++)
        if (!used[i]) label_names_add(&empty, list->classes[i]);
    label_names_report(&empty, what, &list->outside);
    free(used);
}

static const char *noun(const struct image_list *list)
{
    return list->documents ? _("documents") : _("images");
}

/* Renumbers the classes by those of the training images. */
static int adopt_classes(struct image_list *list, const struct image_list *train, struct error *err)
{
    const char *samples = noun(list);
    int32_t *number = xcalloc((size_t)list->class_count, sizeof *number), count = train->class_count;
    struct class_entry *sorted = label_sorted(train);
    uint8_t *trained = used_classes(train), *used = used_classes(list);
    struct label_names unknown = {0};
    for (int32_t i = 0; i < list->class_count; i++) {
        number[i] = label_find(sorted, count, list->classes[i]);
        if (used[i] && (number[i] < 0 || !trained[number[i]])) label_names_add(&unknown, list->classes[i]);
        free(list->classes[i]);
    }
    for (int64_t i = 0; i < image_list_labels(list) && !unknown.count; i++)
        list->labels[i] = number[list->labels[i]];
    list->class_count = 0;
    list->numbered = train->numbered;
    if (train->ordered_by) list->ordered_by = xstrdup(train->ordered_by);
    for (int32_t i = 0; i < count; i++) label_add_class(list, train->classes[i], strlen(train->classes[i]));
    int code = 0;
    if (unknown.count)
        code = error_set(err, EXIT_FAILED, "exclude them with data.exclude, or add such ones for training",
                         "%lld classes have validation %s, but no training %s: %s", (long long)unknown.count,
                         samples, samples, unknown.text);
    else
        report_empty(list, list->documents ? N_("classes have no validation documents")
                                           : N_("classes have no validation images"));
    free(unknown.text);
    free(trained);
    free(used);
    free(sorted);
    free(number);
    return code;
}

bool data_labels_coarse(const struct data_options *o)
{
    return o->label_file && strcmp(path_basename(o->label_file), "coarse") == 0;
}

static bool has_file(const struct data_options *o)
{
    return o->labels && o->label_file && o->label_file[0] && !data_labels_coarse(o);
}

static int read_labels(struct image_list *list, const struct data_options *o, struct error *err)
{
    if (data_labels_coarse(o) && !list->class_count) {
        error_set(err, EXIT_CONFIG, "leave it out, or name a CSV list",
                  "data.labels coarse requires CIFAR-100, found other images");
        return error_at(err, o->root, 0, 0);
    }
    if (!o->tokens) list->labels = xcalloc((size_t)list->count, sizeof *list->labels);
    int code = o->tokens             ? label_documents(list, o, err)
               : has_file(o)         ? label_from_file(list, o, err)
               : list->class_count   ? label_cifar(list)
               : list->sidecar_count ? label_sidecars(list, o, err)
                                     : label_directories(list, o, err);
    if (code) return err->file[0] ? code : (error_at(err, o->root, 0, 0), code);
    if (o->classes) code = adopt_classes(list, o->classes, err);
    else if ((code = label_adopt_order(list, o, err)) == 0 && !o->validation) {
        uint8_t *used = used_classes(list);
        int32_t kinds = 0, last = 0;
        for (int32_t i = 0; i < list->class_count; i++)
            if (used[i]) kinds++, last = i;
        free(used);
        if (kinds < 2)
            code = error_set(err, EXIT_FAILED, "classification requires at least two classes",
                             "all %lld %s are of one class, %s", (long long)image_list_labels(list),
                             noun(list), list->classes[last]);
        else
            report_empty(list, list->documents ? N_("classes have no training documents")
                                               : N_("classes have no training images"));
    }
    return code ? error_at(err, o->root, 0, 0), code : 0;
}

/* Removes the images that the list data.val names, from the sorted ones. */
static int remove_validation(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct data_options held_out = *o;
    struct image_list val;
    struct stat st;
    int64_t kept = 0, left = 0, count = list->count;
    if (o->tokens || o->validation) return 0;
    int code = image_list_apart(o->apart, &st, err);
    if (code || !S_ISREG(st.st_mode)) return code;
    held_out.label_file = o->apart;
    held_out.include = held_out.apart = NULL;
    held_out.order = NULL;
    held_out.labels = held_out.validation = true;
    code = image_list_open(&val, &held_out, err);
    if (code) return code;
    uint8_t *named = xcalloc((size_t)count + 1, 1);
    for (int64_t i = 0, k = 0; i < count; i++) {
        while (k < val.count && strcmp(val.names[k], list->names[i]) < 0) k++;
        named[i] = k < val.count && strcmp(val.names[k], list->names[i]) == 0;
        left += !named[i];
    }
    image_list_free(&val);
    for (int64_t i = 0; i < count && left; i++) { /* all are named: experiment_open_validation warns */
        if (named[i]) {
            free(list->names[i]);
            continue;
        }
        if (list->labels) list->labels[kept] = list->labels[i];
        list->names[kept++] = list->names[i];
    }
    free(named);
    if (left) list->count = kept;
    if (list->count < count) list->apart = xasprintf(_("%lld images"), (long long)(count - kept));
    return 0;
}

int image_list_open(struct image_list *list, const struct data_options *o, struct error *err)
{
    bool given = o->include && o->include[0];
    struct image_search search = {.root = o->root,
                                  .include = has_file(o) && !given ? "*" : o->include, /* the file chooses */
                                  .exclude = o->exclude,
                                  .validation = o->validation,
                                  .apart = o->apart,
                                  .labels = o->labels,
                                  .coarse = data_labels_coarse(o)};
    int code = o->tokens ? token_list_open(list, o, err) : image_list_search(list, &search, err);
    if (code) return code;
    if (o->labels) code = read_labels(list, o, err);
    if (!code) code = remove_validation(list, o, err);
    if (code) image_list_free(list);
    return code;
}

uint32_t image_list_classes_hash(const struct image_list *list)
{
    uint32_t crc = 0;
    for (int32_t i = 0; i < list->class_count; i++)
        crc = crc32c(crc, list->classes[i], strlen(list->classes[i]) + 1);
    return list->labels ? crc32c(crc, list->labels, (size_t)image_list_labels(list) * sizeof *list->labels)
                        : 0;
}
