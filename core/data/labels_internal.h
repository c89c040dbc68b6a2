/* Shared by the sources of labels: directories, archives, lists. */
#ifndef MEOPT_DATA_LABELS_INTERNAL_H
#define MEOPT_DATA_LABELS_INTERNAL_H

#include "core/data/labels.h"

/* Names for a message: the first few, and their number. */
enum { LABEL_NAMES_SHOWN = 5 };
struct label_names {
    char *text;
    int64_t count;
};
void label_names_add(struct label_names *names, const char *name);
/* Appends "COUNT WHAT: names" to a text and frees the names; nothing if there are none. */
void label_names_report(struct label_names *names, const char *what, char **text);

/* Classes with larger numbers are refused. */
enum { CLASSES_MAX = 1 << 20 };
/* Parses a label that is a class index; -1: not one, or too large. */
int32_t label_number(const char *text);
/* Adds a class and returns its number. */
int32_t label_add_class(struct image_list *list, const char *name, size_t length);
/* Adds classes that are named by their numbers, up to the largest label. */
void label_add_numbers(struct image_list *list);
struct class_entry {
    char *name;
    int32_t number;
};
/* Returns the classes sorted by their names, malloc'ed. */
struct class_entry *label_sorted(const struct image_list *list);
/* Returns the number of a class; -1: none. */
int32_t label_find(const struct class_entry *sorted, int32_t count, const char *name);
/* Sorts the classes by their names, merges equal ones, and renumbers the labels. */
void label_sort_classes(struct image_list *list);

/* Numbers the classes as options->order does. */
int label_adopt_order(struct image_list *list, const struct data_options *o, struct error *err);

/* Each labels the images of a list, removes or refuses those without a class, and sets list->classes_from. */
int label_sidecars(struct image_list *list, const struct data_options *o, struct error *err);
int label_from_file(struct image_list *list, const struct data_options *o, struct error *err);
/* The documents of token files, by X.classes (token_file.h). */
int label_documents(struct image_list *list, const struct data_options *o, struct error *err);

#endif
