/* Makes the comparison: its facts, settings and warnings. See table.h. */
#include "core/compare/table.h"
#include "core/base/memory.h"
#include "core/compare/gap.h"
#include "core/compare/statistics.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The facts ---- */

enum kind { REAL, INTEGER, TEXT, GAP, DROP, EPOCHS, SHARE };

/* SAMPLES, TOKENS: a fact of runs that count these; its label begins with what is counted. RESULT: of the
 * training, and for a different objective a different quantity. HIDDEN: row.hidden. */
enum scope { ALL, SAMPLES, TOKENS, RESULT, HIDDEN };

struct fact {
    const char *key, *label, *unit;
    int better;
    enum kind kind;
    size_t offset; /* in struct record, or in struct gap */
    enum scope scope;
};

#define FIELD(name) offsetof(struct record, name)
#define CLASS(name, label, i)                                                                                \
    {                                                                                                        \
        name "_bytes", label, "bytes", -1, REAL, FIELD(class_bytes) + (i) * sizeof(double), ALL              \
    }

// clang-format off
#define SCORE_FACT(of, number, key, label, percent, lower, speed) \
    {#of "_" #key, label ", " #of, (percent) ? "%" : "", (lower) ? -1 : 1, (percent) ? SHARE : REAL, \
     FIELD(of##_scores) + SCORE_##number * sizeof(double), (speed) ? HIDDEN : RESULT}
// clang-format on

#define SCORE(number, key, text, label, percent, rare, lower, speed, ...)                                    \
    SCORE_FACT(final, number, key, label, percent, lower, speed),                                            \
        SCORE_FACT(best, number, key, label, percent, lower, speed),

#define OFFLOADED(place, key, name, i)                                                                       \
    {                                                                                                        \
        key "_" name "_bytes", "  " name, "bytes", 0, REAL,                                                  \
            FIELD(offloaded_class_bytes) + ((place)*MEMORY_CLASS_COUNT + (i)) * sizeof(double), ALL          \
    }
#define OFFLOADED_BY_CLASS(place, key)                                                                       \
    OFFLOADED(place, key, "weights", MEMORY_WEIGHTS), OFFLOADED(place, key, "gradients", MEMORY_GRADIENTS),  \
        OFFLOADED(place, key, "optimizer", MEMORY_OPTIMIZER),                                                \
        OFFLOADED(place, key, "activations", MEMORY_ACTIVATIONS),                                            \
        OFFLOADED(place, key, "teacher", MEMORY_TEACHER),                                                    \
        OFFLOADED(place, key, "workspace", MEMORY_WORKSPACE), OFFLOADED(place, key, "comm", MEMORY_COMM),    \
        OFFLOADED(place, key, "data", MEMORY_DATA)

static const struct fact facts[] = {
    {"state", N_("state"), "", 0, TEXT, FIELD(state), ALL},
    {"source", N_("source"), "", 0, TEXT, FIELD(source), ALL},
    {"device", N_("device"), "", 0, TEXT, FIELD(device), ALL},
    {"batch_images", N_("batch size of one rank"), "", 0, INTEGER, FIELD(batch), ALL},
    {"ranks", N_("ranks (cards)"), "", 0, INTEGER, FIELD(ranks), ALL},
    {"threads", N_("threads"), "", 0, INTEGER, FIELD(threads), ALL},
    {"epochs", N_("epochs"), "", 0, EPOCHS, 0, ALL},
    {"steps", N_("steps"), "", 0, INTEGER, FIELD(count), ALL},
    {"images", " in the dataset", "", 0, INTEGER, FIELD(images), SAMPLES},
    {"tokens", " in the dataset", "", 0, INTEGER, FIELD(tokens), TOKENS},
    {"student_parameters", N_("parameters of the trained model"), "", 0, INTEGER, FIELD(student_parameters),
     ALL},
    {"peak_bytes", N_("peak memory of one card"), "bytes", -1, REAL, FIELD(peak_bytes), ALL},
    {"peak_drop_percent", N_("  less than the reference"), "%", 1, DROP, 0, HIDDEN},
    CLASS("weights", "  weights", MEMORY_WEIGHTS),
    CLASS("gradients", "  gradients", MEMORY_GRADIENTS),
    CLASS("optimizer", "  optimizer", MEMORY_OPTIMIZER),
    CLASS("activations", "  activations", MEMORY_ACTIVATIONS),
    CLASS("teacher", "  teacher", MEMORY_TEACHER),
    CLASS("workspace", "  workspace", MEMORY_WORKSPACE),
    CLASS("comm", "  communication", MEMORY_COMM),
    CLASS("data", "  data", MEMORY_DATA),
    {"host_bytes", N_("offloaded to host memory"), "bytes", 0, REAL,
     FIELD(offloaded_bytes) + PLACE_HOST * sizeof(double), ALL},
    OFFLOADED_BY_CLASS(PLACE_HOST, "host"),
    {"file_bytes", N_("offloaded to scratch files"), "bytes", 0, REAL,
     FIELD(offloaded_bytes) + PLACE_FILE * sizeof(double), ALL},
    OFFLOADED_BY_CLASS(PLACE_FILE, "file"),
    {"optimizer_bytes_per_param", N_("optimizer bytes per parameter"), "", -1, REAL,
     FIELD(optimizer_bytes_per_param), ALL},
    {"checkpoint_bytes", N_("checkpoint"), "bytes", -1, REAL, FIELD(checkpoint_bytes), ALL},
    {"time_s", N_("training time"), "s", -1, REAL, FIELD(time_s), ALL},
    {"images_per_s", "/s (median step)", "", 1, REAL, FIELD(median_sample_rate), SAMPLES},
    {"tokens_per_s", "/s (median step)", "", 1, REAL, FIELD(median_rate), TOKENS},
    {"mfu_percent", N_("MFU, mean"), "%", 1, SHARE, FIELD(mfu), ALL},
    {"step_ms", N_("step (median)"), "ms", -1, REAL, FIELD(median_step_ms), ALL},
    {"data_wait_percent", N_("waiting for data"), "%", 0, SHARE, FIELD(wait_share), ALL},
    {"stream_wait_percent", N_("waiting for streamed weights"), "%", 0, SHARE, FIELD(stream_share), ALL},
    {"bubble_percent", N_("waiting for other stages"), "%", 0, SHARE, FIELD(bubble), ALL},
    {"offload_wait_percent", N_("waiting for offloaded states"), "%", 0, SHARE, FIELD(offload_share), ALL},
    {"card_busy_percent", N_("cards busy, mean"), "%", 0, REAL, FIELD(card_busy), ALL},
    {"card_power_w", N_("power of all cards, mean"), "W", 0, REAL, FIELD(card_power_w), ALL},
    {"card_energy_wh", N_("energy of all cards"), "Wh", -1, REAL, FIELD(card_energy_wh), ALL},
    {"card_temp_c", N_("hottest card"), "C", 0, REAL, FIELD(card_temp_c), ALL},
    {"first_loss", N_("first loss"), "", 0, REAL, FIELD(first_loss), ALL},
    {"final_loss", N_("final loss"), "", -1, REAL, FIELD(final_loss), RESULT},
    /* xgettext:no-c-format */
    {"converged_loss", N_("converged loss (last 10 % of steps)"), "", -1, REAL, FIELD(tail_loss), RESULT},
    {"best_loss", N_("best loss"), "", -1, REAL, FIELD(best_loss), RESULT},
    SCORES(SCORE) /* two rows each */
    {"max_loss_gap", N_("loss gap at equal step, largest"), "", 0, GAP, offsetof(struct gap, max), ALL},
    {"final_loss_gap", N_("loss gap at equal step, final"), "", 0, GAP, offsetof(struct gap, final), ALL},
    {"max_loss_gap_equal_time", N_("loss gap at equal time, largest"), "", 0, GAP,
     offsetof(struct gap, time_max), ALL},
    {"final_loss_gap_equal_time", N_("loss gap at equal time, final"), "", 0, GAP,
     offsetof(struct gap, time_final), ALL},
    {"nan_steps", N_("steps with NaN loss"), "", 0, INTEGER, FIELD(nan_steps), ALL},
};

static double integer(int64_t value) { return value < 0 ? NAN : (double)value; }

static double number_of(const struct fact *fact, const struct record *run, const struct gap *gap,
                        const struct record *reference)
{
    const char *at = (const char *)run + fact->offset;
    switch (fact->kind) {
    case REAL: return *(const double *)at;
    case SHARE: return 100 * *(const double *)at;
    case INTEGER:
        if (run->published && (fact->offset == FIELD(count) || fact->offset == FIELD(nan_steps))) return NAN;
        return integer(*(const int64_t *)at);
    case GAP: return *(const double *)((const char *)gap + fact->offset);
    case DROP: return 100 * (1 - run->peak_bytes / reference->peak_bytes);
    case EPOCHS:
        if (run->published || run->epoch_steps <= 0) return NAN;
        return (double)(run->count ? run->step[run->count - 1] : 0) / (double)run->epoch_steps;
    case TEXT: break;
    }
    return NAN;
}

/* Whether a run has the fact: samples next to tokens only where no run counts images. */
static bool has_fact(const struct table *t, const struct fact *fact, const struct record *run)
{
    bool tokens = record_unit(run) == unit_of(true);
    return fact->scope == TOKENS ? tokens : fact->scope == SAMPLES ? !tokens || t->only_tokens : true;
}

/* Adds the row of a fact, with its label. */
static struct row *add_fact(struct table *t, const struct fact *fact)
{
    const char *counted = fact->scope == TOKENS    ? unit_of(true)->counted
                          : fact->scope == SAMPLES ? unit_of(t->only_tokens)->samples
                                                   : "";
    char *label = xasprintf("%s%s", counted, fact->label);
    struct row *row = table_add_row(t, SECTION_FACTS, fact->key, label, fact->unit, fact->better);
    row->hidden = fact->scope == HIDDEN || (fact->scope == SAMPLES && t->only_tokens);
    free(label);
    return row;
}

static const char *fact_text(const struct record *run, const void *what)
{
    return (const char *)run + ((const struct fact *)what)->offset;
}

/* Returns the column to compare with: the reference; for published figures, which have a different model
 * and machine, the first published column. */
static int base_of(const struct table *t, int c)
{
    if (!t->columns[c].runs[0].published || t->columns[t->reference].runs[0].published) return t->reference;
    int first = 0;
    while (!t->columns[first].runs[0].published) first++;
    return first;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void relate(struct table *t, struct row *row, bool result)
{
    for (int c = 0; c < t->column_count; c++) {
        int base = base_of(t, c);
        const struct cell *ref = &row->cells[base];
        struct cell *cell = &row->cells[c];
        bool numbers = cell->number && ref->number;
        if (numbers ? !same(cell->mean, ref->mean)
                    : strcmp(cell->text ? cell->text : "", ref->text ? ref->text : "") != 0 ||
                          cell->number != ref->number)
            row->changed = true;
        if (c == base || !numbers || !row->better || strcmp(row->unit, "%") == 0) continue;
        if (result && !record_same_objective(&t->columns[c].runs[0], &t->columns[base].runs[0])) continue;
        cell->ratio = cell->mean / ref->mean;
        if (!isfinite(cell->ratio)) cell->ratio = NAN;
        cell->ratio_sd = statistics_ratio_sd(cell->mean, cell->sd, ref->mean, ref->sd);
        if (!isfinite(cell->ratio_sd)) cell->ratio_sd = NAN;
        if (strcmp(row->unit, "bytes") != 0) /* bytes are counted exactly: they have no random error */
            cell->p = statistics_welch(cell->mean, cell->sd, cell->n, ref->mean, ref->sd, ref->n).p;
    }
}

static void warn_outliers(struct table *t, const struct row *row, const struct column *column,
                          const double *values, int n)
{
    for (int i = 0; i < n; i++)
        if (row->better && !row->hidden && statistics_outlier(values, n, i))
            table_warn(t,
                       "%s: %s of %s is %.6g, far from the other repeats (median %.6g): repeat it on an "
                       "idle machine",
                       column->name, row->label + strspn(row->label, " "), column->runs[i].name, values[i],
                       statistics_median(values, n));
}

static void add_facts(struct table *t, struct gap **gaps)
{
    for (size_t f = 0; f < sizeof facts / sizeof *facts; f++) {
        const struct fact *fact = &facts[f];
        struct row *row = add_fact(t, fact);
        bool any = false;
        for (int c = 0; c < t->column_count; c++) {
            struct column *column = &t->columns[c];
            struct cell *cell = &row->cells[c];
            if (fact->kind == TEXT) {
                cell->text = table_join(column, fact_text, fact);
                any |= cell->text[0] != 0;
                continue;
            }
            const struct column *base = &t->columns[base_of(t, c)];
            if ((fact->kind == GAP || fact->kind == DROP) && base == column) continue;
            double *values = xcalloc((size_t)column->run_count, sizeof *values);
            for (int i = 0; i < column->run_count; i++)
                values[i] =
                    !has_fact(t, fact, &column->runs[i])
                        ? NAN
                        : number_of(fact, &column->runs[i], &gaps[c][i], &base->runs[i % base->run_count]);
            bool there = false; /* a NaN loss is a value; a loss that no step has is none */
            for (int i = 0; i < column->run_count; i++)
                there |= column->runs[i].count > 0 || isfinite(values[i]);
            cell->number = true;
            cell->mean = statistics_mean(values, column->run_count);
            cell->sd = statistics_sd(values, column->run_count);
            cell->n = there ? column->run_count : 0;
            any |=
                isfinite(cell->mean) || (strcmp(fact->key, "final_loss") == 0 && column->runs[0].count > 0);
            warn_outliers(t, row, column, values, column->run_count);
            free(values);
        }
        if (!any) { /* rows without values are omitted */
            free(row->key);
            free(row->label);
            for (int c = 0; c < t->column_count; c++) free(row->cells[c].text);
            free(row->cells);
            t->row_count--;
        } else relate(t, row, fact->scope == RESULT);
    }
}

/* ---- The configuration ---- */

/* Returns the value with its changes during the run. */
static const char *setting_history(const struct record *run, const void *key)
{
    const char *history = record_setting_history(run, key);
    return history ? history : table_setting(run, key);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void add_config(struct table *t)
{
    char **keys = NULL;
    size_t count = 0, capacity = 0;
    for (int c = 0; c < t->column_count; c++)
        for (int i = 0; i < t->columns[c].run_count; i++)
            for (int s = 0; s < t->columns[c].runs[i].setting_count; s++) {
                if (count == capacity)
                    keys = xrealloc(keys, (capacity = capacity ? 2 * capacity : 64) * sizeof *keys);
                keys[count++] = t->columns[c].runs[i].settings[s].key;
            }
    if (count) qsort(keys, count, sizeof *keys, by_text);
    for (size_t k = 0; k < count; k++) {
        if (k && strcmp(keys[k], keys[k - 1]) == 0) continue;
        if (strncmp(keys[k], "run.", 4) == 0) continue; /* the run's location does not matter */
        struct row *row = table_add_row(t, SECTION_CONFIG, keys[k], keys[k], "", 0);
        for (int c = 0; c < t->column_count; c++) {
            row->cells[c].text = table_join(&t->columns[c], table_setting, keys[k]);
            row->cells[c].history = table_join(&t->columns[c], setting_history, keys[k]);
        }
        for (int c = 0; c < t->column_count; c++) /* a published column has no configuration */
            if (!t->columns[c].runs[0].published && !t->columns[t->reference].runs[0].published)
                row->changed |= strcmp(row->cells[c].history, row->cells[t->reference].history) != 0;
        if (t->column_count == 1) row->changed |= strcmp(row->cells[0].text, row->cells[0].history) != 0;
    }
    free(keys);
}

/* ---- Warnings ---- */

static void add_warnings(struct table *t)
{
    for (int c = 0; c < t->column_count; c++)
        for (int i = 0; i < t->columns[c].run_count; i++) {
            const struct record *r = &t->columns[c].runs[i];
            if (r->published) {
                table_warn(t, "%s: published figures, not measured here", r->name);
                continue;
            }
            if (strcmp(r->state, "running") == 0)
                table_warn(t, "%s: is still running, at step %lld", r->name,
                           (long long)(r->count ? r->step[r->count - 1] : 0));
            if (strcmp(r->state, "broken off") == 0)
                table_warn(t,
                           "%s: was interrupted: its process is gone (continue with 'meopt train --resume')",
                           r->name);
            if (r->count == 0) table_warn(t, "%s: has no step yet", r->name);
            if (r->torn && strcmp(r->state, "running") != 0)
                table_warn(t, "%s: the last line of metrics.jsonl is torn and was skipped", r->name);
            if (r->bad_lines)
                table_warn(t, "%s: %lld lines of metrics.jsonl are invalid and were skipped", r->name,
                           (long long)r->bad_lines);
            if (r->nan_steps)
                table_warn(t, "%s: the loss is not a number at %lld steps, first at step %lld", r->name,
                           (long long)r->nan_steps, (long long)r->first_nan_step);
            if (r->edited[0]) table_warn(t, "%s: %s", r->name, r->edited);
            if (!r->setting_count)
                table_warn(t, "%s: config.yaml is missing or cannot be read: settings are not compared",
                           r->name);
        }
}

/* Sets what the runs count. */
static void set_units(struct table *t)
{
    bool images = false;
    t->unit = record_unit(&t->columns[t->reference].runs[0]);
    for (int c = t->column_count - 1; c >= 0; c--) {
        const struct record *r = &t->columns[c].runs[0];
        if (r->published) continue;
        images |= record_unit(r) == unit_of(false);
        if (t->columns[t->reference].runs[0].published) t->unit = record_unit(r);
    }
    t->only_tokens = t->unit == unit_of(true) && !images;
}

struct table *table_make(struct column *columns, int count, int reference)
{
    struct table *t = xcalloc(1, sizeof *t);
    t->columns = columns;
    t->column_count = count;
    t->reference = reference;
    set_units(t);
    struct gap **gaps = xcalloc((size_t)count, sizeof *gaps);
    const struct column *ref = &columns[reference];
    for (int c = 0; c < count; c++) {
        gaps[c] = xcalloc((size_t)columns[c].run_count, sizeof **gaps);
        for (int i = 0; i < columns[c].run_count; i++)
            gaps[c][i] = gap_measure(&columns[c].runs[i], &ref->runs[i % ref->run_count]);
    }
    add_warnings(t);
    checks_warn(t);
    add_facts(t, gaps);
    add_config(t);
    checks_add(t);
    for (int c = 0; c < count; c++) free(gaps[c]);
    free(gaps);
    return t;
}
