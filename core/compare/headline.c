/* The comparison as a sentence: the memory saved, the change of loss and time, and their significance. See
 * table.h. */
#include "core/compare/table.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 4 }; /* number of reasons named in the sentence */

struct sentence {
    const struct table *table;
    int column;
    char *text;
    int clauses;
};

static void add(struct sentence *s, const char *words)
{
    char *longer = xasprintf("%s%s%s", s->text, s->clauses++ ? _(", ") : _(": "), words);
    free(s->text);
    s->text = longer;
}

/* Returns the row's cell of this column if both it and the reference's are known, else NULL. */
static const struct cell *cell_of(const struct sentence *s, const char *key, const struct cell **reference)
{
    const struct row *row = table_row(s->table, key);
    if (!row) return NULL;
    *reference = &row->cells[s->table->reference];
    const struct cell *cell = &row->cells[s->column];
    bool known = cell->number && (*reference)->number && isfinite(cell->mean) && isfinite((*reference)->mean);
    return known && (*reference)->mean > 0 ? cell : NULL;
}

static void add_memory(struct sentence *s)
{
    const struct cell *before, *now = cell_of(s, "peak_bytes", &before);
    char words[200];
    double mib = 1048576, change = now ? 100 * (now->mean / before->mean - 1) : 0;
    if (!now) return;
    if (fabs(change) < 0.05) snprintf(words, sizeof words, _("the same memory (%.1f MiB)"), now->mean / mib);
    else
        snprintf(words, sizeof words,
                 change < 0 ? _("%.1f %% less memory (%.1f MiB instead of %.1f)")
                            : _("%.1f %% more memory (%.1f MiB instead of %.1f)"),
                 fabs(change), now->mean / mib, before->mean / mib);
    add(s, words);
}

static void add_time(struct sentence *s)
{
    const struct cell *before, *now = cell_of(s, "step_ms", &before);
    char words[120];
    if (!now) return;
    double ratio = now->mean / before->mean;
    if (fabs(ratio - 1) < 0.005) snprintf(words, sizeof words, _("the same time per step"));
    else
        snprintf(words, sizeof words,
                 ratio < 1 ? _("a step takes %.1f %% less") : _("a step takes %.1f %% longer"),
                 100 * fabs(ratio - 1));
    add(s, words);
}

static void add_loss(struct sentence *s)
{
    const struct cell *before, *now = cell_of(s, "converged_loss", &before);
    char words[200];
    if (!now || isnan(now->ratio)) return; /* of a different objective */
    double change = 100 * (now->mean / before->mean - 1);
    if (now->mean >= 10 * before->mean)
        snprintf(words, sizeof words, _("%.3g times the converged loss (%.5g instead of %.5g)"),
                 now->mean / before->mean, now->mean, before->mean);
    else if (fabs(change) < 0.0005)
        snprintf(words, sizeof words, _("the same converged loss (%.4g)"), now->mean);
    else {
        char percent[16];
        snprintf(percent, sizeof percent, fabs(change) < 9.95 ? "%+.2g" : "%+.0f", change);
        snprintf(words, sizeof words, _("converged loss %s %% (%.5g instead of %.5g)"), percent, now->mean,
                 before->mean);
    }
    add(s, words);
}

static void add_certainty(struct sentence *s)
{
    const struct cell *before, *now = cell_of(s, "converged_loss", &before);
    char words[200], *longer;
    if (now && isfinite(now->p))
        snprintf(words, sizeof words,
                 now->p < 0.05 ? _("%d and %d runs: the loss differs (p = %.2g)")
                               : _("%d and %d runs: the loss does not differ significantly (p = %.2g)"),
                 before->n, now->n, now->p);
    else if (now && isnan(now->ratio))
        snprintf(words, sizeof words, _("the losses are of different objectives"));
    else snprintf(words, sizeof words, _("one run each, so the significance is unknown"));
    longer = xasprintf(_("%s; %s."), s->text, words);
    for (int r = 0, n = 0; r < s->table->row_count; r++) {
        const struct row *row = &s->table->rows[r];
        if (row->section != SECTION_COMPARABLE || n++ > NAMED) continue;
        char *more = xasprintf("%s%s%s", longer, n == 1 ? _(" NOT COMPARABLE (") : _(", "),
                               n <= NAMED ? _(row->label) : "...");
        free(longer);
        longer = more;
    }
    if (!s->table->comparable) {
        char *more = xasprintf(_("%s), see the reasons below."), longer);
        free(longer);
        longer = more;
    }
    free(s->text);
    s->text = longer;
}

char *table_headline(const struct table *t, int column)
{
    struct sentence s = {t, column, NULL, 0};
    if (column == t->reference || t->columns[column].runs[0].published ||
        t->columns[t->reference].runs[0].published)
        return NULL;
    s.text = xasprintf(_("%s against %s"), t->columns[column].name, t->columns[t->reference].name);
    add_memory(&s);
    add_time(&s);
    add_loss(&s);
    if (!s.clauses) {
        free(s.text);
        return NULL;
    }
    add_certainty(&s);
    return s.text;
}
