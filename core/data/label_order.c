/* The order of classes that a classifier has: see labels.h. */
#include "core/base/memory.h"
#include "core/data/labels_internal.h"

#include <stdlib.h>
#include <string.h>

struct place {
    const char *name;
    int64_t number;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

static bool repeats(const struct place *sorted, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0) return true;
    return false;
}

/* The names of the data, compared with those of the order. */
struct comparison {
    int32_t *number;                    /* (class_count) of each class in the order; -1: not there */
    struct label_names unknown, absent; /* used classes that are not in the order; the other way round */
};

static void compare(struct comparison *c, const struct image_list *list, const struct class_names *order,
                    const struct place *sorted)
{
    uint8_t *used = xcalloc((size_t)list->class_count + 1, 1), *seen = xcalloc((size_t)order->count + 1, 1);
    c->number = xcalloc((size_t)list->class_count + 1, sizeof *c->number);
    for (int64_t i = 0; i < image_list_labels(list); i++) used[list->labels[i]] = 1;
    for (int32_t i = 0; i < list->class_count; i++) {
        struct place key = {list->classes[i], 0}, *found;
        found = bsearch(&key, sorted, (size_t)order->count, sizeof key, by_name);
        c->number[i] = found ? (int32_t)found->number : -1;
        if (found) seen[found->number] = 1;
        else if (used[i]) label_names_add(&c->unknown, list->classes[i]);
    }
    for (int64_t i = 0; i < order->count; i++)
        if (!seen[i]) label_names_add(&c->absent, order->names[i]);
    free(used);
    free(seen);
}

static void renumber(struct image_list *list, const struct class_names *order, const int32_t *number)
{
    for (int64_t i = 0; i < image_list_labels(list); i++) list->labels[i] = number[list->labels[i]];
    for (int32_t i = 0; i < list->class_count; i++) free(list->classes[i]);
    list->class_count = 0;
    list->numbered = false;
    for (int64_t i = 0; i < order->count; i++)
        label_add_class(list, order->names[i], strlen(order->names[i]));
    list->ordered_by = xasprintf(_("in the order of %s"), order->from);
}

int label_adopt_order(struct image_list *list, const struct data_options *o, struct error *err)
{
    const struct class_names *order = o->order;
    struct comparison c = {0};
    int code = 0;
    if (!order || !order->count || order->count >= CLASSES_MAX) return 0;
    struct place *sorted = xcalloc((size_t)order->count, sizeof *sorted);
    for (int64_t i = 0; i < order->count; i++) sorted[i] = (struct place){order->names[i], i};
    qsort(sorted, (size_t)order->count, sizeof *sorted, by_name);
    compare(&c, list, order, sorted);
    bool same = !c.unknown.count && !repeats(sorted, order->count),
         apart = o->partly || (order->classifier && list->class_count == order->count);
    if (same && (o->partly || !c.absent.count)) renumber(list, order, c.number);
    else if (apart && !list->numbered)
        code = error_set(err, order->classifier ? EXIT_CONFIG : EXIT_FAILED,
                         order->classifier
                             ? N_("rename the classes, or accept their order with data.class_order: sorted")
                             : N_("move them away, or evaluate a model of these classes"),
                         "the classes are not those of %s: %s%s here, %s%s there", order->from,
                         c.unknown.count ? c.unknown.text : list->classes[0],
                         c.unknown.count > LABEL_NAMES_SHOWN ? ", ..." : "",
                         c.absent.count ? c.absent.text : order->names[0],
                         c.absent.count > LABEL_NAMES_SHOWN ? ", ..." : "");
    free(c.unknown.text);
    free(c.absent.text);
    free(c.number);
    free(sorted);
    return code;
}
