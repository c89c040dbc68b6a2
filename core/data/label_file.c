/* Labels from a list of images (CSV): see labels.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/data/csv.h"
#include "core/data/labels_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const size_t LIST_BYTES = (size_t)2 << 30;

struct entry {
    const char *path, *label; /* in the text of the file */
    int64_t line;
    bool used;
};

struct label_list {
    const char *file;
    struct entry *entries;
    int64_t count;
    int path, label;       /* columns */
    const char *header[2]; /* names of the columns; NULL: none */
};

/* Adds the file and the line to an error, and returns its code. */
static int at_line(const struct label_list *l, int64_t line, int code, struct error *err)
{
    error_at(err, l->file, (int)(line > INT32_MAX ? INT32_MAX : line), 0);
    return code;
}

/* Returns the column with one of these names, separated by blanks; -1: none. */
static int column_named(const struct csv *csv, const char *names)
{
    for (int i = 0; i < csv->count; i++) {
        size_t n = strlen(csv->fields[i]);
        for (const char *at = names; n && *at; at += strspn(at, " ")) {
            size_t length = strcspn(at, " ");
            if (length == n && strncasecmp(at, csv->fields[i], n) == 0) return i;
            at += length;
        }
    }
    return -1;
}

/* Determines the columns from the first row, and whether it is a header: it names no image. */
static bool read_header(struct label_list *l, const struct csv *csv)
{
    bool header = !image_name(csv->fields[0]) && !(csv->count > 1 && image_name(csv->fields[1]));
    l->path = header ? column_named(csv, "path file filename file_name image image_id img name id") : 0;
    l->label = header ? column_named(csv, "label class category target class_id label_id species breed") : 1;
    if (l->path < 0 && l->label != 0) l->path = 0;
    if (l->label < 0 && l->path != 1) l->label = 1;
    if (l->path < 0 || l->label < 0 || l->path == l->label) {
        l->path = 0;
        l->label = 1;
    }
    return header;
}

static const char *without_dots(const char *path)
{
    while (strncmp(path, "./", 2) == 0) path += 2;
    return path;
}

static int read_rows(struct label_list *l, struct csv *csv, struct error *err)
{
    int more = 1, columns = 0;
    int64_t capacity = 0;
    for (bool first = true;; first = false) {
        int code = csv_row(csv, &more, err);
        if (code) return at_line(l, csv->line, code, err);
        if (!more) break;
        if (first) columns = csv->count;
        if (csv->count < 2)
            return at_line(l, csv->begin,
                           error_set(err, EXIT_FAILED, "separate path and label by a comma",
                                     "expected PATH,LABEL, found one field%s",
                                     strchr(csv->fields[0], ';')    ? _(" (with a semicolon)")
                                     : strchr(csv->fields[0], '\t') ? _(" (with a tab)")
                                                                    : ""),
                           err);
        if (csv->count != columns)
            return at_line(l, csv->begin,
                           error_set(err, EXIT_FAILED, "quote a field that contains a comma",
                                     "%d fields, expected %d as in the first line", csv->count, columns),
                           err);
        if (first && read_header(l, csv)) {
            l->header[0] = csv->fields[l->path];
            l->header[1] = csv->fields[l->label];
            continue;
        }
        if (l->count == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            l->entries = xrealloc(l->entries, (size_t)capacity * sizeof *l->entries);
        }
        l->entries[l->count++] = (struct entry){
            .path = without_dots(csv->fields[l->path]), .label = csv->fields[l->label], .line = csv->begin};
    }
    return l->count
               ? 0
               : at_line(l, 1, error_set(err, EXIT_FAILED, NULL, "has no image, expected PATH,LABEL"), err);
}

static int by_path(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order ? order : x->line < y->line ? -1 : x->line > y->line;
}

static int check_entries(struct label_list *l, struct error *err)
{
    for (int64_t i = 0; i < l->count; i++) {
        const struct entry *e = &l->entries[i], *before = i ? e - 1 : NULL;
        if (!e->label[0])
            return at_line(l, e->line, error_set(err, EXIT_FAILED, NULL, "%s has an empty label", e->path),
                           err);
        if (before && strcmp(before->path, e->path) == 0 && strcmp(before->label, e->label) != 0)
            return at_line(l, e->line,
                           error_set(err, EXIT_FAILED, "keep one of them",
                                     "%s has label %s here and %s in line %lld", e->path, e->label,
                                     before->label, (long long)before->line),
                           err);
    }
    return 0;
}

/* Returns whether all labels are integers. *bad: one that is negative or too large; NULL: none. */
static bool all_numbers(const struct label_list *l, const struct entry **bad)
{
    bool numbers = true;
    *bad = NULL;
    for (int64_t i = 0; i < l->count; i++) {
        const char *text = l->entries[i].label;
        size_t sign = text[0] == '-' || text[0] == '+', digits = strspn(text + sign, "0123456789");
        if (!digits || text[sign + digits]) numbers = false;
        else if (label_number(text) < 0 && !*bad) *bad = &l->entries[i];
    }
    return numbers;
}

/* Keeps the images that the file names, with their labels. */
static void match_images(struct image_list *list, struct label_list *l, bool numbers,
                         struct label_names *left)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < list->count; i++) {
        struct entry key = {.path = list->names[i], .line = INT64_MAX}, *e;
        /* the last line of this path: the entries are sorted, and none has this line */
        int64_t low = 0, high = l->count;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (by_path(&l->entries[middle], &key) < 0) low = middle + 1;
            else high = middle;
        }
        e = low ? &l->entries[low - 1] : NULL;
        if (!e || strcmp(e->path, key.path) != 0) {
            label_names_add(left, list->names[i]);
            free(list->names[i]);
            continue;
        }
        e->used = true;
        list->labels[kept] =
            numbers ? label_number(e->label) : label_add_class(list, e->label, strlen(e->label));
        list->names[kept++] = list->names[i];
    }
    list->count = kept;
}

/* Refuses a file that names images which are not there. */
static int check_used(const struct label_list *l, const struct data_options *o, struct error *err)
{
    bool patterns = (o->include && o->include[0]) || (o->exclude && o->exclude[0]);
    for (int64_t i = 0; i < l->count && !patterns; i++) {
        const struct entry *e = &l->entries[i];
        if (e->used || (i + 1 < l->count && strcmp(e->path, e[1].path) == 0)) continue;
        return at_line(l, e->line,
                       error_set(err, EXIT_FAILED, "write paths relative to data.root, with their endings",
                                 "%s is no image below %s", e->path, o->root),
                       err);
    }
    return 0;
}

static int label_images(struct image_list *list, struct label_list *l, const struct data_options *o,
                        struct error *err)
{
    const struct entry *bad;
    struct label_names left = {0};
    qsort(l->entries, (size_t)l->count, sizeof *l->entries, by_path);
    int code = check_entries(l, err);
    bool numbers = !code && all_numbers(l, &bad);
    if (numbers && bad)
        code = at_line(l, bad->line,
                       error_set(err, EXIT_FAILED, "number the classes from 0",
                                 "%s has label %s, expected 0 to %d", bad->path, bad->label, CLASSES_MAX - 1),
                       err);
    if (!code) {
        match_images(list, l, numbers, &left);
        label_names_report(&left, "images are not in the list of labels and left out", &list->outside);
        code = check_used(l, o, err);
    }
    if (!code && !list->count)
        code = at_line(l, 1,
                       error_set(err, EXIT_FAILED, "paths are relative to data.root",
                                 "names no image below %s", o->root),
                       err);
    if (code) return code;
    if (numbers) label_add_numbers(list);
    else label_sort_classes(list);
    char *columns =
        l->header[0] ? xasprintf(_(", columns %s and %s"), l->header[0], l->header[1]) : xstrdup("");
    list->classes_from = xasprintf(_("%d classes from %s: labels are %s%s"), list->class_count, l->file,
                                   numbers ? "numbers" : N_("names"), columns);
    free(columns);
    return 0;
}

int label_from_file(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct label_list l = {.file = o->label_file};
    struct csv csv = {0};
    char *text = NULL;
    size_t bytes;
    int code = file_read(o->label_file, LIST_BYTES, &text, &bytes, err);
    if (code) error_at(err, o->label_file, 0, 0);
    else if ((code = csv_open(&csv, text, bytes, err)) != 0) at_line(&l, csv.line, code, err);
    if (!code) code = read_rows(&l, &csv, err);
    if (!code) code = label_images(list, &l, o, err);
    csv_close(&csv);
    free(l.entries);
    free(text);
    return code;
}
