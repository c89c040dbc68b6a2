/* C = alpha op(A) op(B) + beta C + bias, in fp32 or of bf16 by whole numbers (codes.h): see operations.h,
 * ops.h.
 *
 * Method (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). A thread takes a
 * block of C and keeps its sums in scratch, panel by panel; for each GEMM_DEPTH of the inner dimension its
 * parts of A and B are packed into words (pack.h: bf16 is widened here, once, or becomes pairs or codes), A
 * for the second-level cache, B in panels that the registers take whole; then tiles of C stay in registers
 * (product.h). What will be packed, added to or written next is fetched meanwhile, a line every few words of
 * depth: tensors come from far, and asked for all at once they hold up the tile. With the last part of the
 * inner dimension a tile is scaled, rounded and written at once, while it is near. Each element is summed by
 * one thread in one order: bits do not depend on the number of threads. */
#include "kernels/cpu/table.h"

#include "kernels/cpu/codes.h"
#include "kernels/cpu/pack.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __AVX512BF16__
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif
enum { PAIRS_PAY = HAS_PAIRS || HAS_CODES };
/* blocks of codes in a part of the inner dimension, which begins with a block */
enum { BLOCKS = GEMM_DEPTH / CODE_WORDS };
/* words from group to group of ROWS rows of A; two are a gap: pack_groups */
#define GROUP(depth) (ROWS * (depth) + 2)

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct blocks {
    const struct gemm *g;
    int pairs;
    int64_t count_m, count_n;
    word *a, *b;
    float *a_units, *b_units; /* of codes: (groups, blocks, ROWS), (blocks, PANEL) */
    float *c;
};

/* Of block `i` of `count` over n in units: where it begins. */
static int64_t begin_of(int64_t n, int64_t unit, int64_t count, int64_t i)
{
    int64_t units = (n + unit - 1) / unit, at = units * i / count * unit;
    return at < n ? at : n;
}

/* Blocks within the scratch, at least one for each thread where there is enough to share. */
static void divide(struct blocks *k, int threads)
{
    int64_t m = (k->g->m + ROWS - 1) / ROWS, n = (k->g->n + PANEL - 1) / PANEL;
    int64_t most_m = GEMM_ROWS / ROWS, most_n = GEMM_COLUMNS / PANEL;
    k->count_m = (m + most_m - 1) / most_m;
    k->count_n = (n + most_n - 1) / most_n;
    while (k->count_m * k->count_n < threads) {
        bool by_n = k->count_n * k->g->m <= k->count_m * k->g->n; /* what is packed once more is less */
        if (by_n && 2 * k->count_n <= n) k->count_n *= 2;
        else if (2 * k->count_m <= m) k->count_m *= 2;
        else break;
    }
    /* few blocks that do not divide evenly leave threads waiting */
    while (k->count_m * k->count_n % threads && k->count_m * k->count_n < 16 * threads && k->count_n < n)
        k->count_n++;
}

INLINE void write_columns(const struct gemm *g, const float *from, int64_t row, int64_t column, int64_t rows,
                          int64_t columns)
{
    int bf16 = g->c_type == DTYPE_BF16;
    const float *bias = g->bias ? g->bias + column : NULL;
    float alpha = g->alpha, beta = g->beta, old[PANEL], out[PANEL];
    for (int64_t r = 0; r < rows; r++, from += PANEL) {
        int64_t at = (row + r) * g->ldc + column;
        float *y = piece_for(bf16, g->c, at, out);
        if (beta != 0) {
            const float *before = read_piece(bf16, g->c, at, columns, old);
            SIMD for (int64_t i = 0; i < columns; i++) y[i] = alpha * from[i] + beta * before[i];
        } else SIMD for (int64_t i = 0; i < columns; i++) y[i] = alpha * from[i];
        if (bias) SIMD for (int64_t i = 0; i < columns; i++) y[i] += bias[i];
        write_piece(bf16, g->c, at, columns, y);
    }
}

/* rows x columns of sums, PANEL apart, to C */
static void write_panel(const struct gemm *g, const float *from, int64_t row, int64_t column, int64_t rows,
                        int64_t columns)
{
    if (columns == PANEL) write_columns(g, from, row, column, rows, PANEL);
    else write_columns(g, from, row, column, rows, columns);
}

/* A stored (k, m): for each group of ROWS columns their words of all depth, GROUP(depth) from group to group.
 * What a store writes behind its group's ROWS words is the next word of depth, written after it, or the gap.
 */
static void pack_groups(const struct source *s, int64_t depth, word *to)
{
    enum { WIDE = ROWS < LANES ? 8 : ROWS };
    int64_t groups = (s->columns + ROWS - 1) / ROWS;
    for (int64_t p = 0; p < depth; p++, to += ROWS) {
        int64_t r = p << s->pairs, at = s->at + r * s->stride;
        for (int64_t g = 0; g < groups; g++) {
            int64_t left = s->columns - g * ROWS, from = at + g * ROWS;
            word *out = to + g * GROUP(depth);
            if (left < WIDE) {
                struct source edge = {s->bf16, s->pairs, s->x, from, s->stride, s->rows - r, left};
                if (edge.rows > 1 << s->pairs) edge.rows = 1 << s->pairs;
                pack_down(&edge, left < ROWS ? left : ROWS, out, 0);
            } else if (s->pairs) {
                const uint16_t *x = (const uint16_t *)s->x + from;
                uint32_t both[WIDE];
                if (r + 1 < s->rows)
                    SIMD for (int i = 0; i < WIDE; i++) both[i] = x[i] | (uint32_t)x[s->stride + i] << 16;
                else SIMD for (int i = 0; i < WIDE; i++) both[i] = x[i];
                memcpy(out, both, sizeof both);
            } else if (s->bf16) {
                const uint16_t *x = (const uint16_t *)s->x + from;
                SIMD for (int i = 0; i < WIDE; i++) out[i] = widen_one(x[i]);
            } else memcpy(out, (const float *)s->x + from, WIDE * sizeof *out);
        }
    }
}

/* Rows of a tensor's part, to come to the second-level cache while tiles are multiplied. */
INLINE void fetch_rows(struct fetch *f, const struct source *s, int64_t from, int64_t to)
{
    int64_t size = s->bf16 ? 2 : 4;
    for (int64_t r = from; r < to; r++) {
        const char *row = (const char *)s->x + (s->at + r * s->stride) * size;
        for (int64_t at = 0; at < s->columns * size; at += 64) fetch_line(f, row + at);
    }
}

/* Rows of C that are written next. */
INLINE void expect_rows(const struct gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    int64_t size = g->c_type == DTYPE_BF16 ? 2 : 4;
    for (int64_t r = row; r < row + rows; r++) {
        const char *to = (const char *)g->c + (r * g->ldc + column) * size;
        for (int64_t at = 0; at < columns * size; at += 64) __builtin_prefetch(to + at, 1);
    }
}

/* The `i`th of `count` shares. */
INLINE void fetch_share(struct fetch *f, const struct source *s, int64_t i, int64_t count)
{
    fetch_rows(f, s, s->rows * i / count, s->rows * (i + 1) / count);
}

/* The `p`th of `parts` of the inner dimension. */
struct part {
    int64_t from, depth, inner; /* elements; words; elements */
    struct source a;            /* its part of the block's rows of A */
    struct source b;            /* all of B */
};

static inline struct part part_of(const struct gemm *g, int pairs, int64_t parts, int64_t p, int64_t row,
                                  int64_t rows)
{
    int bf16 = g->ab_type == DTYPE_BF16;
    int64_t deep = (g->k + pairs) >> pairs, unit = HAS_CODES && pairs ? CODE_WORDS : 1,
            first = begin_of(deep, unit, parts, p);
    struct part part = {.from = first << pairs, .depth = begin_of(deep, unit, parts, p + 1) - first};
    struct source a = {bf16, pairs, g->a, 0, g->lda, 0, 0};
    part.b = (struct source){bf16, pairs, g->b, 0, g->ldb, 0, 0};
    part.inner = least(g->k - part.from, part.depth << pairs);
    part.a = g->transpose_a ? source_from(a, part.from, row, part.inner, rows)
                            : source_from(a, row, part.from, rows, part.inner);
    return part;
}

/* A panel of B, at most `columns` of it, from `column`. */
static inline struct source panel_of(const struct gemm *g, const struct part *p, int64_t column,
                                     int64_t columns)
{
    columns = least(columns, PANEL);
    return g->transpose_b ? source_from(p->b, column, p->from, columns, p->inner)
                          : source_from(p->b, p->from, column, p->inner, columns);
}

/* rows x columns of C from (row, column) */
static inline __attribute__((always_inline)) void
multiply_block(const struct blocks *k, int pairs, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct gemm *g = k->g;
    int64_t panels = (columns + PANEL - 1) / PANEL, groups = (rows + ROWS - 1) / ROWS;
    int64_t parts = (((g->k + pairs) >> pairs) + GEMM_DEPTH - 1) / GEMM_DEPTH;
    struct part now = part_of(g, pairs, parts, 0, row, rows);
    for (int64_t p = 0; p < parts; p++) {
        struct part later = p + 1 < parts ? part_of(g, pairs, parts, p + 1, row, rows) : now;
        int64_t depth = now.depth, a_row = g->transpose_a ? 1 : depth, a_step = g->transpose_a ? ROWS : 1;
        if (g->transpose_a) pack_groups(&now.a, depth, k->a);
        for (int64_t j = 0; j < panels; j++) {
            int64_t at = j * PANEL, count = least(PANEL, columns - at);
            bool last = j + 1 == panels;
            struct source b = panel_of(g, &now, column + at, count);
            struct source next = last ? b : panel_of(g, &now, column + at + PANEL, columns - at - PANEL);
            float *c = k->c + at * rows; /* (rows, PANEL) */
            if (g->transpose_b) pack_transposed(&b, depth, PANEL, k->b, PANEL);
            else pack_down(&b, PANEL, k->b, PANEL);
            if (HAS_CODES && pairs) code_panel(k->b, depth, k->b_units);
            for (int64_t i = 0; i < groups; i++) {
                int64_t r = i * ROWS, high = least(ROWS, rows - r);
                word *a = k->a + i * GROUP(depth);
                struct fetch fetch;
                if (j == 0 && !g->transpose_a) { /* just before its first use */
                    struct source s = source_from(now.a, r, 0, high, now.a.columns);
                    pack_rows(&s, depth, a, depth);
                }
                if (HAS_CODES && pairs && j == 0)
                    code_rows(a, high, depth, g->transpose_a, k->a_units + i * BLOCKS * ROWS);
                fetch.count = 0;
                if (p + 1 == parts)
                    expect_rows(g, row + r + ROWS, least(ROWS, rows - r - ROWS), column + at, count);
                for (int64_t v = 0; v < ROWS * PANEL; v += 16) /* the next tile's sums */
                    fetch_line(&fetch, c + (r + ROWS) * PANEL + v);
                if (!last) fetch_share(&fetch, &next, i, groups);
                if (p + 1 < parts) fetch_share(&fetch, &later.a, j * groups + i, panels * groups);
                if (HAS_CODES && pairs)
                    coded_tile_of_rows((int)high, a, a_row, a_step, k->a_units + i * BLOCKS * ROWS, k->b,
                                       k->b_units, c + r * PANEL, depth, p > 0, &fetch);
                else
                    tile_of_rows(pairs, (int)high, VECTORS, a, a_row, a_step, k->b, PANEL, c + r * PANEL,
                                 PANEL, depth, p > 0, &fetch);
                if (p + 1 == parts) write_panel(g, c + r * PANEL, row + r, column + at, high, count);
            }
        }
        now = later;
    }
}

static __attribute__((noinline)) void multiply(const struct blocks *k, int64_t i)
{
    int64_t m = k->g->m, n = k->g->n, in_m = i % k->count_m, in_n = i / k->count_m;
    int64_t row = begin_of(m, ROWS, k->count_m, in_m), column = begin_of(n, PANEL, k->count_n, in_n);
    int64_t rows = begin_of(m, ROWS, k->count_m, in_m + 1) - row,
            columns = begin_of(n, PANEL, k->count_n, in_n + 1) - column;
    if (PAIRS_PAY && k->pairs) multiply_block(k, 1, row, column, rows, columns);
    else multiply_block(k, 0, row, column, rows, columns);
}

void NAME(gemm)(const struct gemm *g, void *scratch, int threads)
{
    struct blocks shared = {.g = g, .pairs = PAIRS_PAY && g->ab_type == DTYPE_BF16};
    divide(&shared, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct blocks own = shared;
#ifdef _OPENMP
        size_t thread = threads > 1 ? (size_t)omp_get_thread_num() : 0;
#else
        size_t thread = 0;
#endif
        own.a = (float *)(void *)((char *)scratch + thread * gemm_scratch(1));
        own.b = own.a + GEMM_ROWS * GEMM_DEPTH + GEMM_GAPS;
        own.a_units = own.b + GEMM_DEPTH * GEMM_PANEL;
        own.b_units = own.a_units + GEMM_ROWS * BLOCKS;
        own.c = own.a_units + GEMM_UNITS;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < own.count_m * own.count_n; i++) multiply(&own, i);
    }
}
