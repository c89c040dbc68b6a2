/* C = alpha op(A) op(B) + beta C + bias, in fp32 or for bf16 as an integer GEMM (bfp.h): see operations.h,
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

#include "kernels/cpu/bfp.h"
#include "kernels/cpu/pack.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __AVX512BF16__
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif
enum { PAIRS_PAY = HAS_PAIRS || HAS_BFP };
/* blocks of codes in a part of the inner dimension, which begins with a block */
enum { BLOCKS = GEMM_DEPTH / BFP_WORDS };
/* words from group to group of ROWS rows of A; two are a gap: pack_groups */
#define GROUP(depth) (ROWS * (depth) + 2)

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct blocks {
    const struct gemm *g;
    int pairs;
    int64_t count_m, count_n;
    word *a, *b;
    float *a_units, *b_units; /* of codes: (groups, blocks, ROWS), (blocks, PANEL) */
    float *a_norms, *b_norms; /* as the units */
    unsigned char *a_coarse;  /* (groups): which blocks have a coarse row, a bit for each */
    float *c;
    struct exact *exact;
};

/* Blocks that are multiplied as floats, because codes are not exact enough. */
struct exact {
    float *a, *b;    /* (ROWS, elements) or (elements, ROWS); (blocks, elements, PANEL) */
    unsigned packed; /* which blocks are in b, a bit for each */
    unsigned known;  /* of which blocks the panel's norms are added up */
    struct norms {
        float norm, variance;
    } norms[BLOCKS];
    int64_t count; /* of tiles so multiplied */
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
    int64_t deep = (g->k + pairs) >> pairs, unit = HAS_BFP && pairs ? BFP_WORDS : 1,
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

/* ---- Outliers ------------------------------------------------------------------------------------------ */

/* Rounding a block to codes gives each a variance of at most 1/12, or 1/48 where the block is not coarse
 * (bfp.h): divided by e^2 for e = 5e-4. norm: as in bfp.h. */
INLINE float variance_of(float norm) { return norm < 0 ? 0x1.45855p18f : norm > 0 ? 0x1.45855p16f : 0; }

/* Sums over the rows or the columns of a tile. */
INLINE struct norms add_norms(const float *norms, int64_t count)
{
    lanes norm = {0}, variance = {0};
    float all[LANES], varied[LANES];
    struct norms sums = {0, 0};
    for (int64_t at = 0; at < count; at += LANES) {
        SIMD for (int l = 0; l < LANES; l++)
        {
            float x = at + l < count ? norms[at + l] : 0;
            all[l] = fabsf(x);
            varied[l] = variance_of(x);
        }
        norm += load_lanes(all);
        variance += load_lanes(varied);
    }
    for (int l = 0; l < LANES; l++) sums.norm += norm[l], sums.variance += variance[l];
    return sums;
}

/* Whether the rounding errors of codes are at most e of their sums of products s, by rows and by columns of a
 * tile that are coarse. Rounding a gives s a variance of that of a's codes times |b|^2, and the other way:
 *
 *     sum of s^2 >= sum of (variance of a's |b|^2 + variance of b's |a|^2) / e^2 */
static bool codes_suffice(int64_t rows, const float *sums, const float *a_norms, const float *b_norms,
                          struct norms b)
{
    lanes column[VECTORS], row[ROWS];
    for (int v = 0; v < VECTORS; v++) column[v] = (lanes){0};
    for (int64_t i = 0; i < rows; i++) {
        row[i] = (lanes){0};
        for (int v = 0; v < VECTORS; v++) {
            lanes s = load_lanes(sums + i * PANEL + v * LANES);
            row[i] += s * s;
            column[v] += s * s;
        }
    }
    for (int64_t i = 0; i < rows; i++)
        if (a_norms[i] < 0 && !(sum_of(row[i]) >= variance_of(a_norms[i]) * b.norm - a_norms[i] * b.variance))
            return false;
    struct norms a = add_norms(a_norms, rows);
    int failed = 0;
    float found[PANEL];
    memcpy(found, column, sizeof found);
    SIMD for (int j = 0; j < PANEL; j++) failed |=
        b_norms[j] < 0 && !(found[j] >= variance_of(b_norms[j]) * a.norm - b_norms[j] * a.variance);
    return !failed;
}

/* Of a group's rows and a panel's columns, a block's product in floats: its elements once more from the
 * tensors. `at`: the block's first element in the part. */
static __attribute__((noinline)) void exact_tile(const struct blocks *k, const struct part *now, int64_t at,
                                                 int64_t row, int64_t rows, int64_t column, int64_t columns,
                                                 float *sums)
{
    const struct gemm *g = k->g;
    int64_t depth = least(2 * BFP_WORDS, now->inner - at), block = at / (2 * BFP_WORDS);
    struct source a = g->transpose_a ? source_from(now->a, at, row, depth, rows)
                                     : source_from(now->a, row, at, rows, depth),
                  b = g->transpose_b ? source_from(now->b, column, now->from + at, columns, depth)
                                     : source_from(now->b, now->from + at, column, depth, columns);
    float *b_words = k->exact->b + block * 2 * BFP_WORDS * PANEL;
    a.pairs = b.pairs = 0;
    if (g->transpose_a) pack_groups(&a, depth, k->exact->a);
    else pack_rows(&a, depth, k->exact->a, depth);
    if (!(k->exact->packed >> block & 1)) {
        if (g->transpose_b) pack_transposed(&b, depth, PANEL, b_words, PANEL);
        else pack_down(&b, PANEL, b_words, PANEL);
        k->exact->packed |= 1u << block;
    }
    tile_of_rows(0, (int)rows, VECTORS, k->exact->a, g->transpose_a ? 1 : depth, g->transpose_a ? ROWS : 1,
                 b_words, PANEL, sums, PANEL, depth, 0, NULL);
    k->exact->count++;
}

/* As coded_tile_of_rows, block by block; `coarse`: those with a coarse row or column, a bit for each. `row`
 * within the block of C, `column` within C. */
static __attribute__((noinline)) void careful_tile(const struct blocks *k, const struct part *now,
                                                   unsigned coarse, int64_t row, int64_t rows, int64_t column,
                                                   int64_t columns, float *c, int add,
                                                   const struct fetch *fetch)
{
    static const struct fetch nothing;
    float sums[ROWS * PANEL], ones[PANEL];
    int64_t group = row / ROWS, a_row = k->g->transpose_a ? 1 : now->depth,
            a_step = k->g->transpose_a ? ROWS : 1;
    for (int j = 0; j < PANEL; j++) ones[j] = 1;
    for (int64_t p = 0, block = 0; p < now->depth; p += BFP_WORDS, block++, add = 1, fetch = &nothing) {
        const float *units = k->a_units + (group * BLOCKS + block) * ROWS,
                    *b_units = k->b_units + block * PANEL,
                    *norms = k->a_norms + (group * BLOCKS + block) * ROWS,
                    *b_norms = k->b_norms + block * PANEL;
        const word *a = k->a + group * GROUP(now->depth) + p * a_step, *b = k->b + p * PANEL;
        int64_t depth = least(BFP_WORDS, now->depth - p);
        bool check = coarse >> block & 1, exact = false;
        coded_tile_of_rows((int)rows, a, a_row, a_step, check ? ones : units, b, check ? ones : b_units,
                           check ? sums : c, depth, check ? 0 : add, fetch);
        if (!check) continue;
        if (!(k->exact->known >> block & 1)) k->exact->norms[block] = add_norms(b_norms, PANEL);
        k->exact->known |= 1u << block;
        if (!codes_suffice(rows, sums, norms, b_norms, k->exact->norms[block])) {
            exact_tile(k, now, 2 * p, row, rows, column, columns, sums);
            exact = true;
        }
        for (int64_t i = 0; i < rows; i++)
            for (int v = 0; v < VECTORS; v++) {
                float *to = c + i * PANEL + v * LANES;
                lanes s = load_lanes(sums + i * PANEL + v * LANES),
                      before = add ? load_lanes(to) : (lanes){0};
                if (!exact) s *= units[i] * load_lanes(b_units + v * LANES);
                *(words *)(void *)to = (words)(before + s);
            }
    }
}

/* ---- Blocks of C --------------------------------------------------------------------------------------- */

/* rows x columns of C from (row, column) */
static inline __attribute__((always_inline)) void
multiply_block(const struct blocks *k, int pairs, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct gemm *g = k->g;
    int64_t panels = (columns + PANEL - 1) / PANEL, groups = (rows + ROWS - 1) / ROWS;
    int64_t deep = (g->k + pairs) >> pairs, parts = deep > 0 ? (deep + GEMM_DEPTH - 1) / GEMM_DEPTH : 1;
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
            unsigned coarse = 0;
            if (HAS_BFP && pairs) {
                coarse = bfp_panel(k->b, depth, k->b_units, k->b_norms);
                k->exact->packed = k->exact->known = 0;
            }
            for (int64_t i = 0; i < groups; i++) {
                int64_t r = i * ROWS, high = least(ROWS, rows - r);
                word *a = k->a + i * GROUP(depth);
                struct fetch fetch;
                if (j == 0 && !g->transpose_a) { /* just before its first use */
                    struct source s = source_from(now.a, r, 0, high, now.a.columns);
                    pack_rows(&s, depth, a, depth);
                }
                if (HAS_BFP && pairs && j == 0)
                    k->a_coarse[i] = (unsigned char)bfp_rows(a, high, depth, g->transpose_a,
                                                             k->a_units + i * BLOCKS * ROWS,
                                                             k->a_norms + i * BLOCKS * ROWS);
                fetch.count = 0;
                if (p + 1 == parts)
                    expect_rows(g, row + r + ROWS, least(ROWS, rows - r - ROWS), column + at, count);
                for (int64_t v = 0; v < ROWS * PANEL; v += 16) /* the next tile's sums */
                    fetch_line(&fetch, c + (r + ROWS) * PANEL + v);
                if (!last) fetch_share(&fetch, &next, i, groups);
                if (p + 1 < parts) fetch_share(&fetch, &later.a, j * groups + i, panels * groups);
                if (HAS_BFP && pairs && (coarse | k->a_coarse[i]))
                    careful_tile(k, &now, coarse | k->a_coarse[i], r, high, column + at, count, c + r * PANEL,
                                 p > 0, &fetch);
                else if (HAS_BFP && pairs)
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

int64_t NAME(gemm)(const struct gemm *g, void *scratch, int threads)
{
    struct blocks shared = {
        .g = g, .pairs = PAIRS_PAY && g->ab_type == DTYPE_BF16 && g->k > 0 && !(HAS_BFP && g->floats)};
    int64_t exact_tiles = 0;
    divide(&shared, threads);
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : exact_tiles)
    {
        struct blocks own = shared;
        struct exact exact = {0};
        unsigned char a_coarse[GEMM_ROWS / ROWS];
#ifdef _OPENMP
        size_t thread = threads > 1 ? (size_t)omp_get_thread_num() : 0;
#else
        size_t thread = 0;
#endif
        own.a = (float *)(void *)((char *)scratch + thread * gemm_scratch(1));
        own.b = own.a + GEMM_ROWS * GEMM_DEPTH + GEMM_GAPS;
        own.a_units = own.b + GEMM_DEPTH * GEMM_PANEL;
        own.b_units = own.a_units + GEMM_ROWS * BLOCKS;
        own.a_norms = own.a_units + GEMM_UNITS;
        own.b_norms = own.b_units + GEMM_UNITS;
        own.a_coarse = a_coarse;
        exact.a = own.a_norms + GEMM_UNITS;
        exact.b = exact.a + GEMM_EXACT;
        own.exact = &exact;
        own.c = exact.b + 2 * GEMM_DEPTH * GEMM_PANEL;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < own.count_m * own.count_n; i++) multiply(&own, i);
        exact_tiles += exact.count;
    }
    return exact_tiles;
}
