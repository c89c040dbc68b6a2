/* Optimal string alignment: see nearest.h. */
#include "core/base/nearest.h"

#include <ctype.h>
#include <string.h>

enum { NEAREST_LONGEST = 60, NEAREST_NEVER = 99 };

static int lower(char c) { return tolower((unsigned char)c); }

/* Edit distance of two names, ignoring case: inserted, missing or wrong letters, and swapped neighbours
 * (optimal string alignment). 99 if one is longer than 60 bytes. */
static int distance(const char *a, const char *b)
{
    size_t m = strlen(a), n = strlen(b);
    int row[3][NEAREST_LONGEST + 1], *before = row[1], *above = row[0], *here = row[2];
    if (m > NEAREST_LONGEST || n > NEAREST_LONGEST) return NEAREST_NEVER;
    for (size_t j = 0; j <= n; j++) above[j] = before[j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        here[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int d = above[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            if (above[j] + 1 < d) d = above[j] + 1;
            if (here[j - 1] + 1 < d) d = here[j - 1] + 1;
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]) &&
                before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            here[j] = d;
        }
        int *spare = before;
        before = above;
        above = here;
        here = spare;
    }
    return above[n];
}

const char *nearest_name(const char *word, const char *(*next)(const void *table, int i), const void *table)
{
    const char *name;
    int limit = (int)strlen(word) / 3 + 1, nearest = -1;
    for (int i = 0; (name = next(table, i)) != NULL; i++) {
        int d = distance(word, name);
        if (d <= limit) limit = d - 1, nearest = i;
    }
    return nearest < 0 ? NULL : next(table, nearest);
}
