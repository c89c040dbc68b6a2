/* Metrics of objectives: see scores.h. */
#include "core/run/scores.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct score_row score_rows[SCORE_COUNT] = {
#define ROW(number, key, label, in_compare, percent, rare, lower, speed, gauge, help)                        \
    [SCORE_##number] = {#key, label, gauge, help, percent, rare, lower, speed},
    SCORES(ROW)};

const struct score_row *score_named(const char *key)
{
    for (int i = 0; i < SCORE_COUNT; i++)
        if (strcmp(score_rows[i].key, key) == 0) return &score_rows[i];
    return NULL;
}

char *score_text(char *dst, size_t size, const struct score_row *row, double value, const char *format)
{
    if (isnan(value)) snprintf(dst, size, "-");
    else if (row && row->percent) snprintf(dst, size, "%.2f%%", 100 * value);
    else snprintf(dst, size, format, value);
    return dst;
}

void scores_update(double into[SCORE_COUNT], const double from[SCORE_COUNT])
{
    for (int i = 0; i < SCORE_COUNT; i++)
        if (!score_rows[i].rare || !isnan(from[i])) into[i] = from[i];
}

void scores_best(double into[SCORE_COUNT], const double from[SCORE_COUNT])
{
    for (int i = 0; i < SCORE_COUNT; i++)
        into[i] =
            score_rows[i].lower ? fmin(into[i], from[i]) : fmax(into[i], from[i]); /* of a NAN: the other */
}
