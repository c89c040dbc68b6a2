/* Training, validation and test: see list.h. */
#include "core/base/memory.h"
#include "core/data/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const part_names[IMAGE_PARTS] = {N_("elsewhere"), N_("for training"), N_("for validation"),
                                                    N_("for test"), N_("without labels")};

static const struct {
    const char *directory;
    enum image_part part;
} parts[] = {{"train2014", PART_TRAIN},
             {"train2017", PART_TRAIN},
             {"train", PART_TRAIN},
             {"training", PART_TRAIN},
             {"val2014", PART_VAL},
             {"val2017", PART_VAL},
             {"val", PART_VAL},
             {"valid", PART_VAL},
             {"validation", PART_VAL},
             {"dev", PART_VAL},
             {"test2014", PART_TEST},
             {"test2015", PART_TEST},
             {"test2017", PART_TEST},
             {"test", PART_TEST},
             {"testing", PART_TEST},
             {"unlabeled", PART_UNLABELLED},
             {"unlabelled", PART_UNLABELLED},
             {"unlabeled2017", PART_UNLABELLED},
             {"unsup", PART_UNLABELLED}};

static enum image_part part_named(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i].directory) == bytes && strncasecmp(parts[i].directory, name, bytes) == 0)
            return parts[i].part;
    return PART_NONE;
}

enum image_part image_part_word(const char *name, size_t bytes, const char **word, size_t *length)
{
    enum image_part part = PART_NONE;
    for (size_t at = 0, n; at < bytes; at += n + 1) {
        n = 0;
        while (at + n < bytes && !strchr("-_. ", name[at + n])) n++;
        enum image_part found = part_named(name + at, n);
        if (!found) continue;
        if (part && part != found) return PART_NONE;
        part = found;
        if (word) *word = name + at;
        if (length) *length = n;
    }
    return part;
}

/* ---- Directories whose names differ by a part alone ---- */

struct twin {
    const char *name, *word; /* of the directory, not NUL-terminated; its word */
    size_t bytes, length;
    enum image_part part;
};
enum { TWINS = 64 };
struct twins {
    struct twin rows[TWINS];
    size_t base; /* bytes of a name before the directory */
    int count;   /* only those with a twin stay */
};

static bool same_but_for_word(const struct twin *a, const struct twin *b)
{
    size_t before = (size_t)(a->word - a->name), after = a->bytes - before - a->length;
    return before == (size_t)(b->word - b->name) && after == b->bytes - before - b->length &&
           strncasecmp(a->name, b->name, before) == 0 &&
           strncasecmp(a->word + a->length, b->word + b->length, after) == 0;
}

/* Finds the directories on the first level where the sorted list has several. */
static void find_twins(struct twins *t, const struct image_list *list)
{
    const char *first = list->names[0], *last = list->names[list->count - 1];
    bool known[TWINS] = {false};
    t->count = 0;
    t->base = 0;
    for (size_t i = 0; first[i] && first[i] == last[i]; i++)
        if (first[i] == '/') t->base = i + 1;
    for (int64_t i = 0; i < list->count; i++) {
        const char *name = list->names[i] + t->base, *slash = strchr(name, '/');
        struct twin *before = t->count ? &t->rows[t->count - 1] : NULL;
        if (image_place(list->names[i]).archive_length || !slash) continue;
        if (before && before->bytes == (size_t)(slash - name) &&
            memcmp(before->name, name, before->bytes) == 0)
            continue;
        if (t->count == TWINS) {
            t->count = 0; /* TWINS directories and more are classes */
            return;
        }
        struct twin *row = &t->rows[t->count++];
        *row = (struct twin){.name = name, .bytes = (size_t)(slash - name)};
        row->part = image_part_word(name, row->bytes, &row->word, &row->length);
    }
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < t->count && t->rows[i].part; k++)
            known[i] |= t->rows[k].part && t->rows[k].part != t->rows[i].part &&
                        same_but_for_word(&t->rows[i], &t->rows[k]);
    int kept = 0;
    for (int i = 0; i < t->count; i++)
        if (known[i]) t->rows[kept++] = t->rows[i];
    t->count = kept;
}

static enum image_part twin_part(const struct twins *t, const char *name)
{
    if (image_place(name).archive_length) return PART_NONE;
    for (int i = 0; i < t->count; i++)
        if (strncmp(t->rows[i].name, name + t->base, t->rows[i].bytes + 1) == 0) return t->rows[i].part;
    return PART_NONE;
}

/* ---- The part of an image ---- */

/* Returns the part by the outermost directory with a known name: under val/ there may be a class "train".
 * For an archive, by a word of its name: imagenet-train-000000.tar. */
static enum image_part part_of(const char *name)
{
    size_t archive = (size_t)image_place(name).archive_length;
    enum image_part part = PART_NONE;
    const char *at = name;
    for (const char *slash; !part && (slash = strchr(at, '/')) != NULL; at = slash + 1) {
        part = part_named(at, (size_t)(slash - at));
        for (size_t n; (size_t)(slash - name) == archive && !part && at < slash; at += n + 1) {
            n = strcspn(at, "-_./");
            part = part_named(at, n);
        }
    }
    return part;
}

static bool in_train2014(const char *name)
{
    return strncmp(name, "train2014/", 10) == 0 || strstr(name, "/train2014/") != NULL;
}

static enum image_part part_at(const char *name, bool coco2014, const struct twins *twins)
{
    enum image_part part = twin_part(twins, name);
    if (!part) part = part_of(name);
    if (!coco2014) return part;
    return in_train2014(name) ? PART_TRAIN : part == PART_TRAIN ? PART_NONE : part;
}

size_t image_list_part_length(const struct image_list *list)
{
    const char *first = list->names[0], *last = list->names[list->count - 1];
    size_t begin = 0;
    for (size_t i = 0; first[i] && first[i] == last[i]; i++) {
        if (first[i] != '/') continue;
        if (part_named(first + begin, i - begin)) return i + 1;
        begin = i + 1;
    }
    return 0;
}

void image_list_select_part(struct image_list *list, const struct image_search *search)
{
    int64_t counts[IMAGE_PARTS] = {0}, kept = 0;
    bool coco2014 = false;
    struct twins twins;
    find_twins(&twins, list);
    for (int64_t i = 0; i < list->count && !coco2014; i++) coco2014 = in_train2014(list->names[i]);
    uint8_t *part = xcalloc((size_t)list->count + 1, 1);
    for (int64_t i = 0; i < list->count; i++) {
        part[i] = (uint8_t)part_at(list->names[i], coco2014, &twins);
        counts[part[i]]++;
    }
    bool held_out = counts[PART_VAL] || counts[PART_TEST];
    if (!search->labels) { /* images without labels are as good as others */
        counts[PART_NONE] += counts[PART_UNLABELLED];
        counts[PART_UNLABELLED] = 0;
    }
    enum image_part wanted_part = !search->validation ? PART_TRAIN : counts[PART_VAL] ? PART_VAL : PART_TEST;
    bool choose = (coco2014 && !search->validation) || (counts[PART_TRAIN] && held_out) ||
                  (counts[PART_TRAIN] && counts[PART_UNLABELLED] && !search->validation);
    int kinds = 0;
    for (int k = 0; k < IMAGE_PARTS; k++) kinds += counts[k] > 0;
    for (int64_t i = 0; i < list->count && choose; i++) {
        if (part[i] == wanted_part) list->names[kept++] = list->names[i];
        else free(list->names[i]);
    }
    free(part);
    if (choose) list->count = kept;
    if (kinds < 2 || !(held_out || choose)) return;
    char text[256] = "";
    size_t used = 0;
    for (int k = 0; k < IMAGE_PARTS; k++) {
        if (!counts[k] || (choose && k == (int)wanted_part)) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld %s", used ? _(", ") : "",
                                 (long long)counts[k], _(part_names[k]));
    }
    list->chosen = choose ? xasprintf(_("using %lld images %s; skipped: %s"), (long long)kept,
                                      coco2014 && !search->validation ? _("under train2014")
                                                                      : _(part_names[wanted_part]),
                                      text)
                          : xasprintf(_("using all images: %s"), text);
}
