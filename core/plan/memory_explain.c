/* Explains the memory of an experiment: see memory_explain.h. All figures are those of the plan (plan.h). */
#include "core/plan/memory_explain.h"
#include "core/base/memory.h"
#include "core/device/account.h"
#include "core/nn/tower_memory.h"
#include "core/step/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rows {
    struct explain_row *all;
    int count, capacity;
};

static struct explain_row *new_row(struct rows *rows)
{
    if (rows->count == rows->capacity)
        rows->all = xrealloc(rows->all, (size_t)(rows->capacity = rows->capacity ? 2 * rows->capacity : 64) *
                                            sizeof *rows->all);
    return &rows->all[rows->count++];
}

static void add_row(void *context, enum memory_class class, const char *name, size_t bytes)
{
    struct rows *rows = context;
    char plain[EXPLAIN_NAME];
    if (!bytes) return;
    plan_without_block(plain, sizeof plain, name);
    for (int i = 0; i < rows->count; i++) {
        struct explain_row *r = &rows->all[i];
        if (r->class != class || strcmp(r->name, plain) != 0) continue;
        r->bytes += (double)bytes;
        r->count++;
        return;
    }
    struct explain_row *r = new_row(rows);
    *r = (struct explain_row){.class = class, .count = 1, .bytes = (double)bytes, .remedy = -1};
    snprintf(r->name, sizeof r->name, "%s", plain);
}

static void add_allocation(void *context, enum memory_class class, const char *name, size_t bytes)
{
    if (!tower_explains(name) && strcmp(name, "optimizer") != 0) add_row(context, class, name, bytes);
}

static double explained_bytes(const struct rows *rows, enum memory_class class)
{
    double explained = 0;
    for (int i = 0; i < rows->count; i++)
        if (rows->all[i].class == class) explained += rows->all[i].bytes;
    return explained;
}

/* Adds rows for bytes without a tensor: padding, headers of the optimizer's blocks. */
static void add_rest(struct rows *rows, const struct memory_use *use)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        double explained = explained_bytes(rows, (enum memory_class)c);
        if ((double)use->peak_bytes[c] > explained)
            add_row(rows, (enum memory_class)c, "padding and the rest",
                    use->peak_bytes[c] - (size_t)explained);
    }
}

/* A class's peak is either in the pass of a cached teacher or in the steps: keeps the larger's rows. */
static void keep_larger(struct rows *rows, const struct rows *now)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        enum memory_class class = (enum memory_class)c;
        if (explained_bytes(now, class) <= explained_bytes(rows, class)) continue;
        int kept = 0;
        for (int i = 0; i < rows->count; i++)
            if (rows->all[i].class != class) rows->all[kept++] = rows->all[i];
        rows->count = kept;
        for (int i = 0; i < now->count; i++)
            if (now->all[i].class == class) *new_row(rows) = now->all[i];
    }
}

/* Returns the group with the most accumulators, which others share with it; -1: none are shared. */
static int accumulated_group(const struct trainer *t)
{
    size_t most = 0;
    int largest = -1;
    bool shared = t->schedule.breadth && schedule_waves(&t->schedule) == 1;
    for (int group = 0; group < t->student->group_count && shared; group++) {
        size_t bytes = 0;
        for (int i = 0; i < t->tensors.count; i++) {
            struct meopt_tensor_info info;
            if (t->student->parameters[t->tensors.parameter[i]].group == group &&
                !meopt_info(t->opt, (size_t)i, &info))
                bytes += info.bytes.accumulators;
        }
        if (bytes > most) largest = group;
        if (bytes > most) most = bytes;
    }
    return largest;
}

static void add_states(struct rows *rows, const struct trainer *t)
{
    int accumulated = accumulated_group(t);
    struct meopt_bytes held = {0};
    (void)meopt_held(t->opt, &held);
    add_row(rows, MEMORY_WORKSPACE, _("matrices of muon"), held.workspace);
    for (int i = 0; i < t->tensors.count; i++) {
        struct meopt_tensor_info info;
        char name[EXPLAIN_NAME + 32];
        if (meopt_info(t->opt, (size_t)i, &info)) continue;
        snprintf(name, sizeof name, _("residual bits of %s"), info.name);
        bool here = !meopt_tensor_offloaded(t->opt, (size_t)i);
        if (here) add_row(rows, MEMORY_WEIGHTS, name, info.bytes.correction);
        snprintf(name, sizeof name, _("fp32 copy of %s"), info.name);
        size_t own = info.bytes.weights + info.bytes.copy, callers = info.bytes.callers;
        add_row(rows, MEMORY_WEIGHTS, name, own > callers ? own - callers : 0);
        snprintf(name, sizeof name, _("moments of %s"), info.name);
        if (here) add_row(rows, MEMORY_OPTIMIZER, name, info.bytes.moments);
        snprintf(name, sizeof name, _("accumulator of %s"), info.name);
        if (accumulated < 0 || t->student->parameters[t->tensors.parameter[i]].group == accumulated)
            add_row(rows, MEMORY_GRADIENTS, name, info.bytes.accumulators);
    }
}

static void collect_rows(void *context, const struct trainer *t)
{
    struct rows *rows = context, now = {0};
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        tower_explain(t->teachers[i].tower, add_row, &now);
    if (t->student) {
        tower_explain(t->student, add_row, &now);
        add_states(&now, t);
    }
    device_each(t->device, add_allocation, &now);
    keep_larger(rows, &now);
    free(now.all);
    if (t->student) add_rest(rows, &t->device->use);
}

static int by_size(const void *a, const void *b)
{
    const struct explain_row *x = a, *y = b;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Chooses the cheapest setting that saves a tenth of the row or more; of equally cheap ones the one that
 * saves most. A setting that increases the total is not a remedy. */
static void choose_remedies(struct explanation *e, int setting, const struct rows *left)
{
    const struct memory_option *o = &e->settings.options[setting];
    if (!o->possible || !o->keys[0] || o->peak_bytes >= e->use.peak_total_bytes) return;
    for (struct explain_row *row = e->rows; row < e->rows + e->row_count; row++) {
        double bytes = 0, best = row->remedy >= 0 ? e->settings.options[row->remedy].compute : 0;
        for (int k = 0; k < left->count; k++)
            if (left->all[k].class == row->class && strcmp(left->all[k].name, row->name) == 0)
                bytes = left->all[k].bytes;
        double saved = row->bytes - bytes;
        if (saved < row->bytes / 10) continue;
        if (row->remedy >= 0 &&
            (o->compute > best + 1e-3 || (o->compute > best - 1e-3 && saved <= row->saved)))
            continue;
        row->remedy = setting;
        row->saved = saved;
    }
}

void explain(struct explanation *e, const struct memory_planner *planner, size_t limit)
{
    struct rows rows = {0};
    struct memory_option now;
    struct memory_options *l = &e->settings;
    *e = (struct explanation){.use = planner->plan.use,
                              .settings = {.limit_bytes = limit, .chosen = -1, .speed = planner->speed}};
    memory_option_plan(&now, planner, "", collect_rows, &rows);
    if (rows.count) qsort(rows.all, (size_t)rows.count, sizeof *rows.all, by_size);
    e->rows = rows.all;
    e->row_count = rows.count;
    l->options = xcalloc((size_t)memory_setting_count, sizeof *l->options);
    for (int i = 0; i < memory_setting_count; i++) {
        struct memory_option *o = &l->options[l->count];
        struct rows left = {0};
        if (!memory_option_plan_setting(o, planner, &memory_settings[i], collect_rows, &left)) continue;
        if (!memory_settings[i].combined) choose_remedies(e, l->count, &left);
        if (limit && o->possible && o->peak_bytes <= limit && !memory_settings[i].adapters &&
            (l->chosen < 0 || o->compute < l->options[l->chosen].compute - 1e-9))
            l->chosen = l->count;
        l->count++;
        free(left.all);
    }
}

void explanation_free(struct explanation *e)
{
    free(e->rows);
    memory_options_free(&e->settings);
    *e = (struct explanation){0};
}
