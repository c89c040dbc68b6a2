/* Checks whether runs are comparable: finds differences that the comparison is not about. See table.h. */
#include "core/compare/table.h"
#include "core/base/memory.h"
#include "core/config/config.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(struct record, name)

struct check {
    const char *key, *label, *why;
    enum { BY_STEPS, BY_STATE, BY_INTEGER, BY_TEXT, BY_SETTING, BY_PROGRAM } by;
    size_t offset;
    bool optional;       /* runs that do not record it are comparable */
    const char *changed; /* its key in events.jsonl, where it can change during a run */
};

/* Settings that define the loss: if a run does not record one, it has the default. */
#define SEEN(key)                                                                                            \
    {                                                                                                        \
        key, "evaluation: " key, "losses are not the same quantity", BY_SETTING, 0, false, NULL              \
    }
#define SEEN_IMAGES(section)                                                                                 \
    SEEN(section ".mean"), SEEN(section ".std"), SEEN(section ".interpolation"), SEEN(section ".resize"),    \
        SEEN(section ".crop_pct"), SEEN(section ".resize_as")

static const struct check checks[] = {
    {"steps", N_("steps"), N_("curves have different lengths: final values are from different steps"),
     BY_STEPS, 0, false, NULL},
    {"finished", N_("finished"), N_("the run is not finished"), BY_STATE, 0, false, NULL},
    {"seed", N_("seed"), N_("different initial values, data order and rounding"), BY_INTEGER, FIELD(seed),
     false, NULL},
    {"data_crc32c", N_("data hash"), N_("different data, or a different version of it"), BY_TEXT, FIELD(data),
     false, "data_crc32c"},
    {"device", N_("device"), N_("times and memory were measured on different machines"), BY_TEXT,
     FIELD(device), false, "device"},
    {"threads", N_("threads"), N_("each thread has its own memory and a share of the work"), BY_INTEGER,
     FIELD(threads), true, NULL},
    {"kernels", N_("kernels"), N_("time, memory and rounding depend on them"), BY_TEXT, FIELD(kernels), true,
     "kernels"},
    {"products", N_("GEMM library"), N_("time, memory and rounding depend on it"), BY_TEXT, FIELD(products),
     true, "products"},
    {"attention", N_("attention kernels"), N_("time, memory and rounding depend on them"), BY_TEXT,
     FIELD(attention), true, "attention"},
    {"code_version", N_("code version"), N_("different version or build of the program"), BY_PROGRAM, 0,
     false, "program"},
    {"objective", N_("objective"), N_("losses are not the same quantity"), BY_TEXT, FIELD(objective), true,
     NULL},
    {"batch_images", N_("samples per step"), N_("a step is not the same amount of work"), BY_INTEGER,
     FIELD(step_images), false, NULL},
    {"ranks", N_("ranks"), N_("memory belongs to a different share of the work"), BY_INTEGER, FIELD(ranks),
     false, "ranks"},
    {"student_parameters", N_("trained model"), N_("different model"), BY_INTEGER, FIELD(student_parameters),
     false, NULL},
    {"teacher_parameters", N_("teacher"), N_("different target"), BY_INTEGER, FIELD(teacher_parameters),
     false, NULL},
    {"teacher_crc32c", N_("teacher weights"), N_("different target"), BY_TEXT, FIELD(teacher_weights), true,
     "teacher_crc32c"},
    {"student_crc32c", N_("initial weights"), N_("different weights at the start"), BY_TEXT,
     FIELD(student_weights), true, "student_crc32c"},
    SEEN("loss.type"),
    SEEN("loss.normalize"),
    SEEN("loss.reduction"),
    SEEN("loss.tokens"),
    SEEN("loss.head"),
    SEEN("data.image_size"),
    SEEN("data.pipeline"),
    SEEN_IMAGES("data"),
    SEEN("data_s.image_size"),
    SEEN_IMAGES("data_s"),
    {"train.precision", "train.precision", N_("time, memory and rounding depend on it"), BY_SETTING, 0, false,
     NULL},
    {"dist.reduce", N_("sums over ranks"), N_("rounding depends on the number of ranks and the library"),
     BY_SETTING, 0, false, NULL},
    {"data.workers", "data.workers", N_("each worker has its own memory and a share of the work"), BY_SETTING,
     0, false, NULL},
    SEEN("data.augment"),
    SEEN("data.crops"),
    SEEN("data.local_crops"),
};

static const char *check_text(const struct record *r, const void *what)
{
    static _Thread_local char text[600];
    const struct check *check = what;
    const char *key = check->by == BY_SETTING ? check->key : check->changed;
    char *history = key ? run_history_text(&r->history, key) : NULL;
    snprintf(text, sizeof text, "%s", history ? history : "");
    free(history);
    if (text[0]) return text;
    switch (check->by) {
    case BY_STEPS:
        snprintf(text, sizeof text, "%lld", (long long)(r->count ? r->step[r->count - 1] : 0));
        break;
    case BY_STATE: return strcmp(r->state, "done") == 0 ? "yes" : r->state;
    case BY_INTEGER: {
        int64_t value = *(const int64_t *)((const char *)r + check->offset);
        if (value >= 0) snprintf(text, sizeof text, "%lld", (long long)value);
        break;
    }
    case BY_TEXT: return (const char *)r + check->offset;
    case BY_SETTING: {
        const char *is = table_setting(r, check->key);
        return is[0] ? is : config_keys[config_key_index(check->key)].standard;
    }
    case BY_PROGRAM:
        snprintf(text, sizeof text, "%s%s%s", r->version, r->program[0] ? " " : "", r->program);
        break;
    }
    return text;
}

bool table_harmless(const char *key)
{
    static const char *const keys[] = {"train.log_every", "train.eval_every", "train.checkpoint_", "run.",
                                       "device.cards"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(key, keys[i], strlen(keys[i])) == 0) return true;
    return false;
}

/* Adds settings that changed during a run, unless they changed in all runs. */
static void add_changed(struct table *t)
{
    int count = t->row_count;
    for (int r = 0; r < count; r++) {
        const struct row *from = &t->rows[r];
        bool differs = false, listed = false;
        for (int c = 0; c < t->column_count && from->section == SECTION_CONFIG; c++)
            differs |= strcmp(from->cells[c].text, from->cells[c].history) != 0;
        for (int k = 0; k < count; k++)
            listed |= t->rows[k].section == SECTION_COMPARABLE && strcmp(t->rows[k].key, from->key) == 0;
        if (!differs || listed || !from->changed || t->column_count < 2 || table_harmless(from->key))
            continue;
        struct row *row = table_add_row(t, SECTION_COMPARABLE, from->key, from->key, "", 0);
        row->why = N_("changed during a run (@: after that step): parts of its curve have different values");
        row->changed = true;
        for (int c = 0; c < t->column_count; c++)
            row->cells[c].text = xstrdup(cell_shown(&t->rows[r].cells[c]));
        t->comparable = false;
    }
}

void checks_add(struct table *t)
{
    t->comparable = true;
    for (size_t k = 0; k < sizeof checks / sizeof *checks; k++) {
        char **texts = xcalloc((size_t)t->column_count, sizeof *texts);
        const char *expected = NULL;
        bool differ = false, known = true;
        for (int c = 0; c < t->column_count; c++) {
            const struct column *column = &t->columns[c];
            if (column->runs[0].published) {
                texts[c] = xstrdup("");
                continue;
            }
            texts[c] = table_join(column, check_text, &checks[k]);
            known &= texts[c][0] != 0;
            if (checks[k].optional && !texts[c][0]) continue;
            differ |= expected && strcmp(expected, texts[c]) != 0;
            if (!expected) expected = texts[c];
            if (checks[k].by == BY_STATE) differ |= strcmp(texts[c], "yes") != 0;
        }
        bool unknown = !known && checks[k].by != BY_SETTING && !checks[k].optional;
        if (expected && (differ || unknown)) {
            struct row *row = table_add_row(t, SECTION_COMPARABLE, checks[k].key, checks[k].label, "", 0);
            row->why = unknown ? N_("not recorded: cannot be checked") : checks[k].why;
            row->changed = true;
            for (int c = 0; c < t->column_count; c++)
                row->cells[c].text = xstrdup(t->columns[c].runs[0].published ? ""
                                             : texts[c][0]                   ? texts[c]
                                             : checks[k].by == BY_SETTING    ? _("not set")
                                                                             : "?");
            t->comparable = false;
        }
        for (int c = 0; c < t->column_count; c++) free(texts[c]);
        free(texts);
    }
    add_changed(t);
}

/* Returns the norm used for clipping: that of the step if gradients were kept or accumulated, regardless
 * of the key. */
static const char *clip_text(const struct record *r, const void *key)
{
    int64_t batch = strtoll(table_setting(r, "train.batch_size"), NULL, 10),
            micro = strtoll(table_setting(r, "train.micro_batch"), NULL, 10);
    const char *mode = table_setting(r, key);
    bool known = strcmp(table_setting(r, "optim.gradients"), "keep") == 0 || (micro > 0 && micro < batch);
    return mode[0] && known ? "exact" : mode;
}

/* Whether optim.clip_mode affected this run: the norm of a step exceeded the limit, or each block had its
 * own limit. */
static bool was_clipped(const struct record *r)
{
    double limit = strtod(table_setting(r, "optim.clip_grad_norm"), NULL);
    if (strcmp(table_setting(r, "optim.name"), "lamb") == 0) {
        double lamb = strtod(table_setting(r, "optim.max_grad_norm"), NULL);
        if (lamb > 0 && !(limit > 0 && limit < lamb)) limit = lamb;
    }
    return limit > 0 && (r->largest_norm > limit || strcmp(clip_text(r, "optim.clip_mode"), "block") == 0);
}

/* Warns if one run released its gradients and the other kept them: by default these are clipped by
 * different norms. That changed the loss of 30 steps by 4 %, with any formats (tests/bench/RESULTS.md,
 * "Equal loss of the three pairs"). */
void checks_warn(struct table *t)
{
    static const char key[] = "optim.clip_mode";
    const struct column *base = &t->columns[t->reference];
    for (int c = 0; c < t->column_count; c++) {
        const struct column *column = &t->columns[c];
        bool clipped = was_clipped(&base->runs[0]) || was_clipped(&column->runs[0]);
        char *here = table_join(column, clip_text, key), *there = table_join(base, clip_text, key);
        if (clipped && here[0] && there[0] && strcmp(here, there) != 0)
            table_warn(t,
                       "%s used optim.clip_mode %s, %s used %s: this alone changes the loss of a "
                       "short run; train both with optim.clip_mode=exact to compare the optimizers",
                       column->name, here, base->name, there);
        free(here);
        free(there);
    }
}
