/* The rows of a comparison and their texts: see table.h. */
#include "core/compare/table.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row *table_add_row(struct table *t, enum section section, const char *key, const char *label,
                          const char *unit, int better)
{
    if ((t->row_count & (t->row_count - 1)) == 0)
        t->rows = xrealloc(t->rows, (t->row_count ? 2 * (size_t)t->row_count : 1) * sizeof *t->rows);
    struct row *row = &t->rows[t->row_count++];
    *row = (struct row){.section = section,
                        .key = xstrdup(key),
                        .label = xstrdup(label),
                        .unit = unit,
                        .better = better,
                        .cells = xcalloc((size_t)t->column_count, sizeof *row->cells)};
    for (int c = 0; c < t->column_count; c++)
        row->cells[c] =
            (struct cell){.mean = NAN, .sd = NAN, .ratio = NAN, .ratio_sd = NAN, .p = NAN, .text = NULL};
    return row;
}

char *table_join(const struct column *column, const char *(*text)(const struct record *run, const void *what),
                 const void *what)
{
    char *all = xstrdup(""), **texts = xcalloc((size_t)column->run_count, sizeof *texts);
    for (int i = 0; i < column->run_count; i++) {
        bool seen = false;
        texts[i] = xstrdup(text(&column->runs[i], what)); /* text may reuse one buffer */
        for (int j = 0; j < i && !seen; j++) seen = strcmp(texts[i], texts[j]) == 0;
        if (seen || !texts[i][0]) continue;
        char *longer = xasprintf("%s%s%s", all, all[0] ? ", " : "", texts[i]);
        free(all);
        all = longer;
    }
    for (int i = 0; i < column->run_count; i++) free(texts[i]);
    free(texts);
    return all;
}

const char *table_setting(const struct record *run, const void *key)
{
    const char *value = record_setting(run, key);
    return value ? value : "";
}

void table_free(struct table *t)
{
    if (!t) return;
    for (int r = 0; r < t->row_count; r++) {
        for (int c = 0; c < t->column_count; c++) {
            free(t->rows[r].cells[c].text);
            free(t->rows[r].cells[c].history);
        }
        free(t->rows[r].cells);
        free(t->rows[r].key);
        free(t->rows[r].label);
    }
    for (int c = 0; c < t->column_count; c++) {
        for (int i = 0; i < t->columns[c].run_count; i++) record_free(&t->columns[c].runs[i]);
        free(t->columns[c].runs);
        free(t->columns[c].name);
    }
    for (int i = 0; i < t->warning_count; i++) free(t->warnings[i]);
    free(t->warnings);
    free(t->rows);
    free(t->columns);
    free(t);
}

const struct row *table_row(const struct table *t, const char *key)
{
    for (int r = 0; r < t->row_count; r++)
        if (t->rows[r].section == SECTION_FACTS && strcmp(t->rows[r].key, key) == 0) return &t->rows[r];
    return NULL;
}

void table_warn(struct table *t, const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    t->warnings = xrealloc(t->warnings, (size_t)(t->warning_count + 1) * sizeof *t->warnings);
    t->warnings[t->warning_count++] = xstrdup(text);
}

/* ---- Formatting ---- */

struct scale {
    double factor;
    const char *unit;
    int decimals;
};

static struct scale scale_of(const struct row *row, double value)
{
    double size = fabs(value);
    if (strcmp(row->unit, "bytes") == 0) {
        if (size >= 128.0 * (1 << 30)) return (struct scale){1.0 / (1 << 30), " GiB", 2};
        if (size >= 1 << 20) return (struct scale){1.0 / (1 << 20), " MiB", 1};
        if (size >= 1 << 10) return (struct scale){1.0 / (1 << 10), " KiB", 1};
        return (struct scale){1, " B", 0};
    }
    if (strcmp(row->unit, "s") == 0)
        return size >= 3600 ? (struct scale){1.0 / 3600, " h", 2}
                            : (struct scale){1, " s",
                                             size >= 1000  ? 0
                                             : size >= 100 ? 1
                                                           : 2};
    if (strcmp(row->unit, "ms") == 0) return (struct scale){1, " ms", size >= 1000 ? 0 : size >= 100 ? 1 : 2};
    if (strcmp(row->unit, "%") == 0) return (struct scale){1, " %", 1};
    return (struct scale){1, "", -1};
}

static void number_text(char *dst, size_t size, const struct scale *scale, double value)
{
    if (scale->decimals >= 0) snprintf(dst, size, "%.*f", scale->decimals, value * scale->factor);
    else if (value == floor(value) && fabs(value) < 1e15) snprintf(dst, size, "%.0f", value);
    else snprintf(dst, size, "%.5g", value);
}

const char *cell_shown(const struct cell *cell)
{
    return cell->history ? cell->history : cell->text ? cell->text : "";
}

char *cell_text(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus)
{
    if (!cell->number) {
        snprintf(dst, CELL_TEXT, "%s", cell_shown(cell)[0] ? cell_shown(cell) : "-");
        return dst;
    }
    if (isnan(cell->mean)) {
        snprintf(dst, CELL_TEXT, "%s",
                 strstr(row->key, "_loss") && !strstr(row->key, "gap") && cell->n ? "NaN" : "-");
        return dst;
    }
    struct scale scale = scale_of(row, cell->mean);
    char mean[64], sd[64];
    number_text(mean, sizeof mean, &scale, cell->mean);
    if (isnan(cell->sd) || cell->sd == 0) snprintf(dst, CELL_TEXT, "%s%s", mean, scale.unit);
    else {
        struct scale two = scale;
        if (two.decimals < 0) snprintf(sd, sizeof sd, "%.2g", cell->sd);
        else number_text(sd, sizeof sd, &two, cell->sd);
        snprintf(dst, CELL_TEXT, "%s %s %s%s", mean, plus_minus, sd, scale.unit);
    }
    return dst;
}

char *cell_words(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus)
{
    cell_text(dst, row, cell, plus_minus);
    if (strcmp(row->key, "state") == 0 && cell_shown(cell)[0])
        snprintf(dst, CELL_TEXT, "%s", _(cell_shown(cell)));
    return dst;
}

void markdown_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\`*_[]<>|#&", *text)) fputc('\\', out);
        fputc(*text, out);
    }
}

char *cell_change(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus)
{
    (void)row;
    dst[0] = 0;
    if (isnan(cell->ratio) || cell->ratio == 1) return dst;
    double change = 100 * (cell->ratio - 1);
    int decimals = fabs(change) < 0.095 ? 3 : fabs(change) < 9.95 ? 2 : 1;
    if (isnan(cell->ratio_sd) || cell->ratio_sd == 0) snprintf(dst, CELL_TEXT, "%+.*f %%", decimals, change);
    else
        snprintf(dst, CELL_TEXT, "%+.*f %s %.*f %%", decimals, change, plus_minus, decimals,
                 100 * cell->ratio_sd);
    return dst;
}
