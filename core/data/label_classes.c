/* Names and numbers of classes: see labels_internal.h. */
#include "core/base/memory.h"
#include "core/data/labels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void label_names_add(struct label_names *names, const char *name)
{
    if (names->count++ >= LABEL_NAMES_SHOWN) return;
    char *longer = xasprintf("%s%s%s", names->text ? names->text : "", names->text ? ", " : "", name);
    free(names->text);
    names->text = longer;
}

void label_names_report(struct label_names *names, const char *what, char **text)
{
    if (names->count) {
        char *longer =
            xasprintf("%s%s%lld %s: %s%s", *text ? *text : "", *text ? "; " : "", (long long)names->count,
                      what, names->text, names->count > LABEL_NAMES_SHOWN ? ", ..." : "");
        free(*text);
        *text = longer;
    }
    free(names->text);
    *names = (struct label_names){0};
}

/* ---- Numbers of classes ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct class_entry *)a)->name, ((const struct class_entry *)b)->name);
}

struct class_entry *label_sorted(const struct image_list *list)
{
    size_t count = (size_t)list->class_count;
    struct class_entry *entries = xcalloc(count + 1, sizeof *entries);
    for (size_t i = 0; i < count; i++) entries[i] = (struct class_entry){list->classes[i], (int32_t)i};
    qsort(entries, count, sizeof *entries, by_name);
    return entries;
}

int32_t label_find(const struct class_entry *sorted, int32_t count, const char *name)
{
    struct class_entry key = {(char *)(uintptr_t)name, 0}, *found;
    found = bsearch(&key, sorted, (size_t)count, sizeof key, by_name);
    return found ? found->number : -1;
}

void label_sort_classes(struct image_list *list)
{
    struct class_entry *entries = label_sorted(list);
    int32_t *number = xcalloc((size_t)list->class_count, sizeof *number), kept = 0;
    for (int32_t i = 0; i < list->class_count; i++) {
        bool again = kept && strcmp(list->classes[kept - 1], entries[i].name) == 0;
        if (again) free(entries[i].name);
        else list->classes[kept++] = entries[i].name;
        number[entries[i].number] = kept - 1;
    }
    list->class_count = kept;
    for (int64_t i = 0; i < image_list_labels(list); i++) list->labels[i] = number[list->labels[i]];
    free(number);
    free(entries);
}

int32_t label_add_class(struct image_list *list, const char *name, size_t length)
{
    int32_t n = list->class_count;
    if ((n & (n - 1)) == 0)
        list->classes = xrealloc(list->classes, (size_t)(n ? 2 * n : 1) * sizeof *list->classes);
    list->classes[n] = xasprintf("%.*s", (int)length, name);
    return list->class_count++;
}

int32_t label_number(const char *text)
{
    int32_t value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9' && value < CLASSES_MAX; c++) value = 10 * value + (*c - '0');
    return c == text || *c || value >= CLASSES_MAX ? -1 : value;
}

void label_add_numbers(struct image_list *list)
{
    int32_t most = 0;
    for (int64_t i = 0; i < image_list_labels(list); i++)
        most = list->labels[i] > most ? list->labels[i] : most;
    for (int32_t i = 0; i <= most; i++) {
        char name[16];
        label_add_class(list, name, (size_t)snprintf(name, sizeof name, "%d", i));
    }
    list->numbered = true;
}
