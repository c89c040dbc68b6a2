/* Thresholds for scripts: see table.h. */
#include "core/compare/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int threshold_parse(struct threshold *threshold, const struct table *table, const char *expression,
                    struct error *err)
{
    const char *colon = strchr(expression, ':');
    char key[64] = "", *end = NULL;
    *threshold = (struct threshold){.expression = expression};
    if (!colon || (size_t)(colon - expression) >= sizeof key || colon == expression)
        return error_set(err, EXIT_USAGE, "for example 'peak_bytes:-20%' or 'final_loss:+1%'",
                         "--threshold '%s' is not KEY:LIMIT", expression);
    memcpy(key, expression, (size_t)(colon - expression));
    threshold->limit = strtod(colon + 1, &end);
    threshold->relative = end && *end == '%';
    if (end == colon + 1 || !isfinite(threshold->limit) || end[threshold->relative])
        return error_set(err, EXIT_USAGE, "for example 'peak_bytes:-20%' or 'final_loss:+1%'",
                         "'%s' in --threshold '%s' is no number", colon + 1, expression);
    threshold->row = table_row(table, key);
    if (!threshold->row || !threshold->row->cells[table->column_count > 1 ? !table->reference : 0].number)
        return error_set(err, EXIT_USAGE, "--json lists the keys",
                         "--threshold '%s': no such number in this comparison", key);
    return 0;
}

bool threshold_passed(const struct threshold *threshold, const struct cell *reference,
                      const struct cell *cell, double *change)
{
    *change = cell->mean - (reference->number ? reference->mean : 0);
    if (threshold->relative) *change = 100 * (cell->mean / reference->mean - 1);
    if (!isfinite(*change)) return false;
    if (threshold->row->better < 0) return *change <= threshold->limit;
    if (threshold->row->better > 0) return *change >= threshold->limit;
    return fabs(*change) <= fabs(threshold->limit);
}
