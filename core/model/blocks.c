/* Lists of BigBird's attention: see blocks.h. The generator is numpy's legacy one: MT19937 (Matsumoto and
 * Nishimura 1998) with init_genrand, and the shuffle of RandomState.permutation. */
#include "core/model/blocks.h"
#include "core/base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 624, SHIFT = 397, PAPER = 1024 /* tokens among which the paper's lists draw */ };
struct generator {
    uint32_t words[WORDS];
    int at;
};

static void seed(struct generator *g, uint32_t value)
{
    for (int i = 0; i < WORDS; i++) {
        g->words[i] = value;
        value = 1812433253u * (value ^ value >> 30) + (uint32_t)i + 1;
    }
    g->at = WORDS;
}

static uint32_t next_word(struct generator *g)
{
    uint32_t *w = g->words;
    if (g->at == WORDS) {
        for (int i = 0; i < WORDS; i++) {
            uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % WORDS] & 0x7fffffffu);
            w[i] = w[(i + SHIFT) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        g->at = 0;
    }
    uint32_t y = w[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static uint32_t draw_to(struct generator *g, uint32_t most)
{
    uint32_t mask = most, value;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    while ((value = next_word(g) & mask) > most) {}
    return value;
}

static void shuffle(struct generator *g, int32_t *x, int64_t count)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = draw_to(g, (uint32_t)i);
        int32_t other = x[j];
        x[j] = x[i];
        x[i] = other;
    }
}

static int64_t count_of(const struct model_shape *g) { return (g->context + g->block - 1) / g->block; }

int64_t blocks_dense_context(const struct model_shape *g)
{
    return g->block > 0 ? (5 + 2 * g->random) * g->block : 0;
}
bool blocks_used(const struct model_shape *g) { return g->block > 0 && g->context > blocks_dense_context(g); }

static bool as_in_paper(const struct model_shape *g)
{
    int64_t tokens = count_of(g) * g->block;
    return tokens == PAPER || tokens == 3072 || tokens == 4096;
}

/* Writes the blocks among which row i of a sequence of `most` blocks draws in the paper's lists; returns how
 * many. As in the class, the last rows may draw their neighbours, and any row the last block of a shorter
 * sequence. */
static int64_t candidates(const struct model_shape *g, int64_t i, int64_t most, int32_t *to)
{
    int64_t last = PAPER > 2 * g->block ? PAPER / g->block - 1 : most - 1, n = 0;
    for (int64_t b = 1; b <= last && b <= most - 2; b++)
        if (b <= i - 2 || b >= i + 2 || (i > 2 && i >= most - 3)) to[n++] = (int32_t)b;
    return n;
}

/* Draws the random blocks (heads, nb - 2, r) as the class does in training. */
static void draw_paper(const struct model_shape *g, struct generator *numbers, int32_t *drawn, int32_t *work)
{
    int64_t most = g->positions / g->block, rows = count_of(g) - 2, r = g->random;
    for (int64_t h = 0; h < g->heads; h++)
        for (int64_t i = 1; i < most - 1; i++) {
            int64_t n = candidates(g, i, most, work);
            shuffle(numbers, work, n);
            for (int64_t k = 0; k < r && i <= rows; k++)
                drawn[(h * rows + i - 1) * r + k] = work[n > 1 ? k : 0];
        }
}
static void draw_plan(const struct model_shape *g, struct generator *numbers, int32_t *drawn, int32_t *work)
{
    int64_t r = g->random, nb = count_of(g), end = 2 * r + 5;
    for (int64_t i = 1; i < nb; i++)
        for (int64_t h = 0; h < g->heads && r; h++) {
            for (int64_t b = 0; b < end; b++) work[b] = (int32_t)b;
            shuffle(numbers, work, end);
            for (int64_t k = 0, n = 0; k < end && n < r && i < nb - 1; k++) {
                int64_t b = work[k];
                bool window = b >= i - 1 && b <= i + 1, edge = b == 0 || b == end - 1,
                     other = (i == 1 && b == end - 2) || (i == end - 2 && b == 1);
                if (!window && !edge && !other) drawn[(h * (nb - 2) + i - 1) * r + n++] = (int32_t)b;
            }
        }
}

int blocks_check(const struct model_shape *g, struct error *err)
{
    if (!blocks_used(g)) return 0;
    int64_t most = g->positions / g->block;
    if (count_of(g) * g->block > g->positions)
        return error_set(err, EXIT_CONFIG, "set model.context to a multiple of the block",
                         "a context of %lld is %lld in blocks of %lld, but the model has %lld positions",
                         (long long)g->context, (long long)(count_of(g) * g->block), (long long)g->block,
                         (long long)g->positions);
    int32_t *work = xcalloc((size_t)most, sizeof *work);
    int64_t least = INT64_MAX;
    for (int64_t i = 1; i < most - 1 && as_in_paper(g) && g->random; i++) {
        int64_t n = candidates(g, i, most, work);
        if (n != 1 && n < least) least = n; /* of one, the class takes it r times */
    }
    free(work);
    if (least >= g->random) return 0;
    return error_set(
        err, EXIT_CONFIG, "set another model.context",
        "%lld random blocks of %lld tokens, but at a context of %lld a row has %lld to draw from",
        (long long)g->random, (long long)g->block, (long long)g->context, (long long)least);
}

/* Lists of the rows 0 and nb - 1: nb. Of the second and the last but one: 4 + r; of the others 5 + r. */
int64_t blocks_listed(const struct model_shape *g)
{
    int64_t nb = count_of(g), r = g->random;
    return g->heads * (2 * nb + 2 * (4 + r) + (nb - 4) * (5 + r));
}
int64_t blocks_list_numbers(const struct model_shape *g)
{
    return g->heads * count_of(g) + 1 + blocks_listed(g);
}

/* Writes a row of a head's lists, returns its length. */
static int64_t write_row(const struct model_shape *g, int64_t i, const int32_t *random, int32_t *to)
{
    int64_t nb = count_of(g), n = 0;
    if (i == 0 || i == nb - 1) {
        for (; n < nb; n++) to[n] = (int32_t)n;
        return n;
    }
    to[n++] = 0;
    for (int64_t b = i - 1; b <= i + 1; b++)
        if (b > 0 && b < nb - 1) to[n++] = (int32_t)b;
    for (int64_t k = 0; k < g->random; k++) to[n++] = random[k];
    to[n++] = (int32_t)(nb - 1);
    return n;
}

/* The other way round: for each block those whose lists have it, in ascending order. */
static void invert(const struct model_shape *g, const int32_t *keys, int32_t *queries)
{
    int64_t nb = count_of(g), lists = g->heads * nb;
    memset(queries, 0, (size_t)(lists + 1) * sizeof *queries);
    for (int64_t l = 0; l < lists; l++)
        for (int32_t k = keys[l]; k < keys[l + 1]; k++) queries[l / nb * nb + keys[k] + 1]++;
    queries[0] = (int32_t)(lists + 1);
    for (int64_t l = 0; l < lists; l++) queries[l + 1] += queries[l];
    int32_t *next = xcalloc((size_t)lists, sizeof *next);
    memcpy(next, queries, (size_t)lists * sizeof *next);
    for (int64_t l = 0; l < lists; l++)
        for (int32_t k = keys[l]; k < keys[l + 1]; k++)
            queries[next[l / nb * nb + keys[k]]++] = (int32_t)(l % nb);
    free(next);
}

void blocks_lists(const struct model_shape *g, int64_t layer, bool training, int32_t *keys, int32_t *queries)
{
    int64_t nb = count_of(g), r = g->random, most = g->positions / g->block, rows = g->heads * (nb - 2);
    int64_t at = g->heads * nb + 1;
    int32_t *drawn = xcalloc((size_t)(rows * r + 1), sizeof *drawn),
            *work = xcalloc((size_t)(most + 2 * r + 5), sizeof *work);
    struct generator numbers;
    seed(&numbers, (uint32_t)layer);
    if (training && as_in_paper(g)) draw_paper(g, &numbers, drawn, work);
    else if (training) draw_plan(g, &numbers, drawn, work);
    for (int64_t l = 0; l < g->heads * nb; l++) {
        int64_t h = l / nb, i = l % nb, row = i > 0 && i < nb - 1 ? h * (nb - 2) + i - 1 : 0;
        keys[l] = (int32_t)at;
        at += write_row(g, i, drawn + row * r, keys + at);
    }
    keys[g->heads * nb] = (int32_t)at;
    if (queries) invert(g, keys, queries);
    free(work);
    free(drawn);
}
