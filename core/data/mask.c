/* Masked tokens of a sample: see mask.h. */
#include "core/data/mask.h"
#include "kernels/philox.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MASK_STREAM = 0x6d61736b }; /* separates these numbers from others of the same seed */

static void draw(const struct mask *m, int64_t place, uint32_t words[4])
{
    const uint32_t key[2] = {(uint32_t)m->seed, (uint32_t)(m->seed >> 32) ^ MASK_STREAM},
                   counter[4] = {(uint32_t)m->sample, (uint32_t)((uint64_t)m->sample >> 32), (uint32_t)place,
                                 (uint32_t)m->epoch};
    philox4x32_10(counter, key, words);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Returns the number of tokens apart that are less than one. */
static int64_t apart_below(const struct mask *m, int64_t token)
{
    int64_t from = 0, to = m->apart_count;
    while (from < to) {
        int64_t middle = (from + to) / 2;
        if (m->apart[middle] < token) from = middle + 1;
        else to = middle;
    }
    return from;
}

/* Returns what a chosen token becomes. */
static int32_t replaced(const struct mask *m, int32_t token, const uint32_t words[4])
{
    int64_t first = apart_below(m, m->special), left = m->vocabulary - m->special - (m->apart_count - first);
    uint64_t others = left > 0 ? (uint64_t)left : 1;
    double part = words[1] * 0x1p-32;
    if (part < 0.8) return (int32_t)m->token;
    if (part >= 0.9) return token;
    int64_t other = m->special + (int64_t)((words[2] * others) >> 32);
    while (first < m->apart_count && m->apart[first] <= other) first++, other++;
    return (int32_t)other;
}

/* The chosen places are those with the smallest numbers: each has the same chance, their count is fixed. */
void mask_sample(const struct mask *m, int32_t *tokens, int32_t *labels, int64_t count, uint64_t *order)
{
    int64_t possible = 0;
    uint32_t words[4];
    for (int64_t i = 0; i < count; i++) {
        labels[i] = -1;
        int64_t below = apart_below(m, tokens[i]);
        bool apart = below < m->apart_count && m->apart[below] == tokens[i];
        if (tokens[i] < m->special || tokens[i] == m->token || apart) continue;
        draw(m, i, words);
        order[possible++] = (uint64_t)words[0] << 32 | (uint64_t)i;
    }
    int64_t chosen = (possible * m->chosen + m->context / 2) / m->context;
    if (chosen < 1) chosen = possible > 0;
    qsort(order, (size_t)possible, sizeof *order, by_number);
    for (int64_t k = 0; k < chosen; k++) {
        int64_t i = (int64_t)(order[k] & UINT32_MAX);
        draw(m, i, words);
        labels[i] = tokens[i];
        tokens[i] = replaced(m, tokens[i], words);
    }
}
