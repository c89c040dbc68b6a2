/* Published figures: see published.h. */
#include "core/compare/published.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/config/document.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key;
    bool integer;
    double factor;
    size_t offset;
} figures[] = {
    {"batch_images", true, 1, offsetof(struct record, batch)},
    {"ranks", true, 1, offsetof(struct record, ranks)},
    {"peak_mib", false, 1048576, offsetof(struct record, peak_bytes)},
    {"time_s", false, 1, offsetof(struct record, time_s)},
    {"images_per_s", false, 1, offsetof(struct record, median_sample_rate)},
    {"final_loss", false, 1, offsetof(struct record, final_loss)},
    {"converged_loss", false, 1, offsetof(struct record, tail_loss)},
    {"optimizer_bytes_per_param", false, 1, offsetof(struct record, optimizer_bytes_per_param)},
};

static int fill(struct record *r, const struct document *d, int node, const char *path, struct error *err)
{
    int code = 0;
    for (int key = d->nodes[node].first; key >= 0 && !code; key = d->nodes[d->nodes[key].next].next) {
        const struct node *value = &d->nodes[d->nodes[key].next];
        const char *name = d->nodes[key].text, *text = value->kind == NODE_SCALAR ? value->text : "";
        size_t f = 0;
        if (strcmp(name, "device") == 0) {
            name_printable(r->device, sizeof r->device, text);
            continue;
        }
        while (f < sizeof figures / sizeof *figures && strcmp(figures[f].key, name) != 0) f++;
        char *end;
        double number = strtod(text, &end);
        if (f == sizeof figures / sizeof *figures || !text[0] || *end || !(number >= 0) ||
            !isfinite(number) || number > 9e15)
            return document_error(err, path, d->text, d->bytes, d->nodes[key].start,
                                  d->nodes[key].end - d->nodes[key].start,
                                  "keys are device batch_images ranks peak_mib time_s images_per_s "
                                  "final_loss converged_loss optimizer_bytes_per_param",
                                  "not a known key of published figures, or not a number");
        if (figures[f].integer) *(int64_t *)((char *)r + figures[f].offset) = (int64_t)number;
        else *(double *)((char *)r + figures[f].offset) = number * figures[f].factor;
    }
    return 0;
}

static int add(struct column **columns, int *count, const char *name, const char *which, const char *source,
               const struct document *d, int node, const char *path, struct error *err)
{
    struct record *r = xcalloc(1, sizeof *r);
    record_unknown(r);
    r->published = true;
    snprintf(r->state, sizeof r->state, N_("published"));
    r->started = NAN;
    r->images = r->total_steps = r->student_parameters = r->teacher_parameters = r->seed = -1;
    r->batch = r->step_images = r->ranks = r->epoch_steps = -1;
    r->path = xstrdup(path);
    r->name = xasprintf("%s %s (published)", name, which);
    name_printable(r->source, sizeof r->source, source);
    *columns = xrealloc(*columns, (size_t)(*count + 1) * sizeof **columns);
    (*columns)[(*count)++] = (struct column){.name = xstrdup(r->name), .runs = r, .run_count = 1};
    int code = fill(r, d, node, path, err);
    if (r->batch > 0) r->step_images = r->batch * (r->ranks > 1 ? r->ranks : 1);
    return code;
}

/* Returns the mapping of all names; -1 if there is none. The caller frees *text, too. */
static int all_of(struct document *d, char **text, const char *path, int *code, struct error *err)
{
    size_t bytes = 0;
    *text = NULL;
    *code = file_read(path, DOCUMENT_MAX_BYTES, text, &bytes, err);
    if (!*code) *code = document_parse(d, path, *text, bytes, err);
    if (*code) {
        free(*text);
        return -1;
    }
    int all = d->root >= 0 && d->nodes[d->root].kind == NODE_MAPPING
                  ? document_find(d, d->root, "published", NULL)
                  : -1;
    return all >= 0 && d->nodes[all].kind == NODE_MAPPING ? all : -1;
}

void published_names(const char *path, void (*take)(void *context, const char *name), void *context)
{
    char *text;
    struct document d;
    struct error ignored;
    int code, all = all_of(&d, &text, path, &code, &ignored);
    if (code) return;
    for (int key = all >= 0 ? d.nodes[all].first : -1; key >= 0; key = d.nodes[d.nodes[key].next].next)
        take(context, d.nodes[key].text);
    document_free(&d);
    free(text);
}

int published_add(struct column **columns, int *count, const char *path, const char *name, struct error *err)
{
    char *text, names[256] = "";
    struct document d;
    int code, all = all_of(&d, &text, path, &code, err);
    if (code) return code;
    int found = all >= 0 ? document_find(&d, all, name, NULL) : -1;
    if (found < 0 || d.nodes[found].kind != NODE_MAPPING) {
        for (int key = all >= 0 ? d.nodes[all].first : -1; key >= 0; key = d.nodes[d.nodes[key].next].next) {
            size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "available: ", d.nodes[key].text);
        }
        code = error_set(err, EXIT_USAGE, names, "no published figures are named '%s'", name);
    } else {
        int source = document_find(&d, found, "source", NULL);
        for (int key = d.nodes[found].first; key >= 0 && !code; key = d.nodes[d.nodes[key].next].next) {
            int value = d.nodes[key].next;
            if (d.nodes[value].kind != NODE_MAPPING) continue;
            code = add(columns, count, name, d.nodes[key].text,
                       source >= 0 && d.nodes[source].text ? d.nodes[source].text : "", &d, value, path, err);
        }
    }
    document_free(&d);
    free(text);
    return code;
}
