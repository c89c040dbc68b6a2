/* Runs with more than RANKS_LISTED ranks: see many_ranks.h. */
#include "core/run/many_ranks.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void many_ranks_begin(bool *listed, int size)
{
    for (int r = 0; r < size; r++) listed[r] = r == 0 || size <= RANKS_LISTED;
}

void many_ranks_mark(bool *listed, const double *values, int size, int sign)
{
    bool *seen = xcalloc((size_t)size, sizeof *seen);
    for (int n = 0; n < RANKS_WORST; n++) {
        int worst = -1;
        for (int r = 0; r < size; r++)
            if (!seen[r] && !isnan(values[r]) && (worst < 0 || sign * values[r] > sign * values[worst]))
                worst = r;
        if (worst < 0) break;
        seen[worst] = listed[worst] = true;
    }
    free(seen);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *number_json(double x)
{
    return x == floor(x) && fabs(x) < 0x1p53 ? json_integer((json_int_t)x) : json_real(x);
}

json_t *many_ranks_range(const double *values, int size)
{
    double *sorted = xmalloc((size_t)size * sizeof *sorted);
    int min = 0, max = 0;
    memcpy(sorted, values, (size_t)size * sizeof *sorted);
    qsort(sorted, (size_t)size, sizeof *sorted, by_value);
    for (int r = 1; r < size; r++) {
        if (values[r] < values[min]) min = r;
        if (values[r] > values[max]) max = r;
    }
    json_t *range = json_pack("{s:o, s:o, s:o, s:i, s:i}", "min", number_json(values[min]), "median",
                              number_json(sorted[size / 2]), "max", number_json(values[max]), "min_rank", min,
                              "max_rank", max);
    free(sorted);
    return range;
}

struct many_range many_ranks_parse(const json_t *object, const char *key)
{
    struct many_range r = {NAN, NAN, NAN, -1, -1};
    (void)json_unpack(json_object_get(object, key), "{s:F, s:F, s:F, s:i, s:i}", "min", &r.min, "median",
                      &r.median, "max", &r.max, "min_rank", &r.min_rank, "max_rank", &r.max_rank);
    return r;
}
