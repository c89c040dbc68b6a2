/* GEMM: C = alpha op(A) op(B) + beta C + bias, in fp32, or for bf16 in block floating point (bfp.h). Shapes:
 * operations.h.
 *
 * Method: Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
 *
 *     for each block of C (one thread each):
 *         for each slice of the inner dimension, GEMM_DEPTH words:
 *             for each panel of B, PANEL columns:                           pack it
 *                 for each group of A, ROWS rows:                           pack it at the first panel
 *                     tile of the sums, ROWS x PANEL, += group x panel      (tile.h)
 *                     after the last slice: scale, round and store the tile in C
 *
 * Packing (pack.h) converts elements to words: fp32, pairs of bf16, or pairs of BFP codes. A packed slice of
 * A fits the second-level cache, a packed panel of B the first-level cache. While a tile is computed, the
 * memory that is needed next is prefetched, a few lines per step: all lines at once would stall the tile.
 *
 * One thread adds up each element in a fixed order: the bits do not depend on the number of threads. */
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
enum { USE_PAIRS = HAS_PAIRS || HAS_BFP };
enum { SLICE_BLOCKS = GEMM_DEPTH / BFP_WORDS }; /* BFP blocks of a slice, which begins with a block */
/* Words from a group of A to the next. pack_columns needs the gap of 2. */
#define GROUP_STRIDE(depth) (ROWS * (depth) + 2)

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* BFP blocks that are multiplied in fp32, because codes are not accurate enough. */
struct fallback {
    float *a, *b;           /* (ROWS, elements) or (elements, ROWS); (SLICE_BLOCKS, elements, PANEL) */
    unsigned packed, known; /* bit per block of the panel: packed in b; summed in norms */
    struct norms {
        float norm, variance;
    } norms[SLICE_BLOCKS];
    int64_t count; /* tiles */
};

/* A GEMM as one thread sees it: the partition of C and the thread's buffers. */
struct worker {
    const struct gemm *g;
    int pairs;
    int64_t blocks_m, blocks_n;
    word *a, *b;                /* packed slice of A, packed panel of B */
    float *a_scales, *b_scales; /* BFP: (groups, SLICE_BLOCKS, ROWS), (SLICE_BLOCKS, PANEL) */
    float *a_norms, *b_norms;   /* of the same shapes */
    unsigned char *coarse_a;    /* (groups): bit per block with a coarse row */
    float *sums;                /* (panels, rows, PANEL) */
    struct fallback *fallback;
};

/* A block of C. */
struct block {
    int64_t row, column, rows, columns;
};

/* A slice of the inner dimension, with its operands. */
struct slice {
    int64_t from, elements, depth; /* elements; words */
    bool first, last;
    struct source a, b; /* the block's rows of A; all of B */
};

/* A tile: a group of A (ROWS rows from `row` of the block) times a panel of B. */
struct tile_at {
    int64_t group, row, rows, column, columns; /* column: in C */
    float *sums;                               /* (rows, PANEL) */
};

/* ---- Partition of C and of the inner dimension --------------------------------------------------------- */

/* Returns where part `i` of `count` parts of n begins, a multiple of `unit`. */
static int64_t part_begin(int64_t n, int64_t unit, int64_t count, int64_t i)
{
    int64_t units = (n + unit - 1) / unit, at = units * i / count * unit;
    return at < n ? at : n;
}

/* Chooses the number of blocks: as few as the buffers allow, but at least one per thread, if possible. */
static void choose_blocks(struct worker *w, int threads)
{
    int64_t groups = (w->g->m + ROWS - 1) / ROWS, panels = (w->g->n + PANEL - 1) / PANEL;
    int64_t max_groups = GEMM_ROWS / ROWS, max_panels = GEMM_COLUMNS / PANEL;
    w->blocks_m = (groups + max_groups - 1) / max_groups;
    w->blocks_n = (panels + max_panels - 1) / max_panels;
    while (w->blocks_m * w->blocks_n < threads) {
        bool split_n = w->blocks_n * w->g->m <= w->blocks_m * w->g->n; /* repacks less */
        if (split_n && 2 * w->blocks_n <= panels) w->blocks_n *= 2;
        else if (2 * w->blocks_m <= groups) w->blocks_m *= 2;
        else break;
    }
    /* threads would idle if a few blocks did not divide evenly among them */
    while (w->blocks_m * w->blocks_n % threads && w->blocks_m * w->blocks_n < 16 * threads &&
           w->blocks_n < panels)
        w->blocks_n++;
}

static inline struct slice slice_of(const struct gemm *g, int pairs, int64_t slices, int64_t i,
                                    const struct block *c)
{
    int bf16 = g->ab_type == DTYPE_BF16;
    int64_t total = (g->k + pairs) >> pairs, unit = HAS_BFP && pairs ? BFP_WORDS : 1,
            first = part_begin(total, unit, slices, i);
    struct slice s = {.from = first << pairs, .depth = part_begin(total, unit, slices, i + 1) - first};
    struct source a = {bf16, pairs, g->a, 0, g->lda, 0, 0};
    s.first = i == 0;
    s.last = i + 1 == slices;
    s.elements = min_of(g->k - s.from, s.depth << pairs);
    s.a = g->transpose_a ? source_from(a, s.from, c->row, s.elements, c->rows)
                         : source_from(a, c->row, s.from, c->rows, s.elements);
    s.b = (struct source){bf16, pairs, g->b, 0, g->ldb, 0, 0};
    return s;
}

/* Returns the slice's part of a panel of B: at most PANEL of `columns` columns from `column`. */
static inline struct source panel_of(const struct gemm *g, const struct slice *s, int64_t column,
                                     int64_t columns)
{
    columns = min_of(columns, PANEL);
    return g->transpose_b ? source_from(s->b, column, s->from, columns, s->elements)
                          : source_from(s->b, s->from, column, s->elements, columns);
}

/* Strides of the packed A: to the next row, to the next word of depth. */
INLINE int64_t a_row(const struct gemm *g, int64_t depth) { return g->transpose_a ? 1 : depth; }
INLINE int64_t a_step(const struct gemm *g) { return g->transpose_a ? ROWS : 1; }

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* Packs A stored (k, m): for each group of ROWS columns the words of all depths, GROUP_STRIDE(depth) apart.
 * Vector stores write past the group's ROWS words, into the next word of depth, which is stored later, or
 * into the gap. */
static void pack_columns(const struct source *s, int64_t depth, word *to)
{
    enum { WIDE = ROWS < LANES ? 8 : ROWS };
    int64_t groups = (s->columns + ROWS - 1) / ROWS;
    for (int64_t p = 0; p < depth; p++, to += ROWS) {
        int64_t r = p << s->pairs, at = s->at + r * s->stride;
        for (int64_t g = 0; g < groups; g++) {
            int64_t left = s->columns - g * ROWS, from = at + g * ROWS;
            word *out = to + g * GROUP_STRIDE(depth);
            if (left < WIDE) {
                struct source edge = {s->bf16, s->pairs, s->x, from, s->stride, s->rows - r, left};
                if (edge.rows > 1 << s->pairs) edge.rows = 1 << s->pairs;
                pack_down(&edge, min_of(left, ROWS), out, 0);
            } else if (s->pairs) {
                const uint16_t *x = (const uint16_t *)s->x + from;
                uint32_t pair[WIDE];
                if (r + 1 < s->rows)
                    SIMD for (int i = 0; i < WIDE; i++) pair[i] = x[i] | (uint32_t)x[s->stride + i] << 16;
                else SIMD for (int i = 0; i < WIDE; i++) pair[i] = x[i];
                memcpy(out, pair, sizeof pair);
            } else if (s->bf16) {
                const uint16_t *x = (const uint16_t *)s->x + from;
                SIMD for (int i = 0; i < WIDE; i++) out[i] = widen_one(x[i]);
            } else memcpy(out, (const float *)s->x + from, WIDE * sizeof *out);
        }
    }
}

/* Packs a panel of B. Returns its coarse blocks (bfp.h), a bit for each. */
INLINE unsigned pack_panel(const struct worker *w, int pairs, const struct slice *s, const struct source *b)
{
    if (w->g->transpose_b) pack_transposed(b, s->depth, PANEL, w->b, PANEL);
    else pack_down(b, PANEL, w->b, PANEL);
    if (!HAS_BFP || !pairs) return 0;
    w->fallback->packed = w->fallback->known = 0;
    return bfp_panel(w->b, s->depth, w->b_scales, w->b_norms);
}

/* Packs a group of A. A transposed A is already packed and is only quantized. */
INLINE void pack_group(const struct worker *w, int pairs, const struct slice *s, const struct tile_at *t)
{
    word *a = w->a + t->group * GROUP_STRIDE(s->depth);
    if (!w->g->transpose_a) {
        struct source rows = source_from(s->a, t->row, 0, t->rows, s->a.columns);
        pack_rows(&rows, s->depth, a, s->depth);
    }
    if (HAS_BFP && pairs)
        w->coarse_a[t->group] = (unsigned char)bfp_rows(a, t->rows, s->depth, w->g->transpose_a,
                                                        w->a_scales + t->group * SLICE_BLOCKS * ROWS,
                                                        w->a_norms + t->group * SLICE_BLOCKS * ROWS);
}

/* ---- Prefetching --------------------------------------------------------------------------------------- */

/* Adds share `i` of `count` of an operand's rows to the lines to fetch. */
INLINE void fetch_share(struct fetch *f, const struct source *s, int64_t i, int64_t count)
{
    int64_t size = s->bf16 ? 2 : 4;
    for (int64_t r = s->rows * i / count; r < s->rows * (i + 1) / count; r++) {
        const char *row = (const char *)s->x + (s->at + r * s->stride) * size;
        for (int64_t at = 0; at < s->columns * size; at += 64) fetch_line(f, row + at);
    }
}

/* Prefetches a tile of C for writing. */
INLINE void prefetch_c(const struct gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    int64_t size = g->c_type == DTYPE_BF16 ? 2 : 4;
    for (int64_t r = row; r < row + rows; r++) {
        const char *to = (const char *)g->c + (r * g->ldc + column) * size;
        for (int64_t at = 0; at < columns * size; at += 64) __builtin_prefetch(to + at, 1);
    }
}

/* ---- Storing ------------------------------------------------------------------------------------------- */

INLINE void store_rows(const struct gemm *g, const float *sums, int64_t row, int64_t column, int64_t rows,
                       int64_t columns)
{
    int bf16 = g->c_type == DTYPE_BF16;
    const float *bias = g->bias ? g->bias + column : NULL;
    float alpha = g->alpha, beta = g->beta, old[PANEL], out[PANEL];
    for (int64_t r = 0; r < rows; r++, sums += PANEL) {
        int64_t at = (row + r) * g->ldc + column;
        float *y = piece_for(bf16, g->c, at, out);
        if (beta != 0) {
            const float *c = read_piece(bf16, g->c, at, columns, old);
            SIMD for (int64_t i = 0; i < columns; i++) y[i] = alpha * sums[i] + beta * c[i];
        } else SIMD for (int64_t i = 0; i < columns; i++) y[i] = alpha * sums[i];
        if (bias) SIMD for (int64_t i = 0; i < columns; i++) y[i] += bias[i];
        write_piece(bf16, g->c, at, columns, y);
    }
}

/* Stores alpha sums + beta C + bias in C. A whole panel has a constant width. */
static void store_tile(const struct gemm *g, const float *sums, int64_t row, int64_t column, int64_t rows,
                       int64_t columns)
{
    if (columns == PANEL) store_rows(g, sums, row, column, rows, PANEL);
    else store_rows(g, sums, row, column, rows, columns);
}

/* ---- Outliers: fp32 where codes are not accurate enough ------------------------------------------------ */

/* Returns the variance of a block's rounding errors, divided by e^2 for e = 5e-4: at most 1/12 per code, or
 * 1/48 if the block is not coarse (bfp.h; norm < 0: coarse, 0: all zeros). */
INLINE float rounding_variance(float norm) { return norm < 0 ? 0x1.45855p18f : norm > 0 ? 0x1.45855p16f : 0; }

/* Adds up |norm| and variance over the rows or the columns of a tile. */
INLINE struct norms sum_norms(const float *norms, int64_t count)
{
    lanes norm = {0}, variance = {0};
    float all[LANES], varied[LANES];
    struct norms sums = {0, 0};
    for (int64_t at = 0; at < count; at += LANES) {
        SIMD for (int l = 0; l < LANES; l++)
        {
            float x = at + l < count ? norms[at + l] : 0;
            all[l] = fabsf(x);
            varied[l] = rounding_variance(x);
        }
        norm += load_lanes(all);
        variance += load_lanes(varied);
    }
    for (int l = 0; l < LANES; l++) sums.norm += norm[l], sums.variance += variance[l];
    return sums;
}

/* Returns whether the rounding errors are at most e of the results s, for each coarse row and column of a
 * tile. Rounding a gives s a variance of (variance of a) |b|^2, and vice versa:
 *
 *     sum of s^2 >= sum of (variance of a |b|^2 + variance of b |a|^2) / e^2 */
static bool codes_accurate(int64_t rows, const float *sums, const float *a_norms, const float *b_norms,
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
        if (a_norms[i] < 0 &&
            !(sum_of(row[i]) >= rounding_variance(a_norms[i]) * b.norm - a_norms[i] * b.variance))
            return false;
    struct norms a = sum_norms(a_norms, rows);
    int failed = 0;
    float found[PANEL];
    memcpy(found, column, sizeof found);
    SIMD for (int j = 0; j < PANEL; j++) failed |=
        b_norms[j] < 0 && !(found[j] >= rounding_variance(b_norms[j]) * a.norm - b_norms[j] * a.variance);
    return !failed;
}

/* Multiplies one block of a tile in fp32, from the tensors. */
static __attribute__((noinline)) void fp32_block(const struct worker *w, const struct slice *s, int64_t block,
                                                 const struct tile_at *t, float *sums)
{
    const struct gemm *g = w->g;
    struct fallback *f = w->fallback;
    int64_t at = block * 2 * BFP_WORDS, depth = min_of(2 * BFP_WORDS, s->elements - at);
    struct source a = g->transpose_a ? source_from(s->a, at, t->row, depth, t->rows)
                                     : source_from(s->a, t->row, at, t->rows, depth),
                  b = g->transpose_b ? source_from(s->b, t->column, s->from + at, t->columns, depth)
                                     : source_from(s->b, s->from + at, t->column, depth, t->columns);
    float *b_words = f->b + block * 2 * BFP_WORDS * PANEL;
    a.pairs = b.pairs = 0;
    if (g->transpose_a) pack_columns(&a, depth, f->a);
    else pack_rows(&a, depth, f->a, depth);
    if (!(f->packed >> block & 1)) {
        if (g->transpose_b) pack_transposed(&b, depth, PANEL, b_words, PANEL);
        else pack_down(&b, PANEL, b_words, PANEL);
        f->packed |= 1u << block;
    }
    tile_of_rows(0, (int)t->rows, VECTORS, f->a, a_row(g, depth), a_step(g), b_words, PANEL, sums, PANEL,
                 depth, 0, NULL);
    f->count++;
}

/* Multiplies a tile block by block. Each `coarse` block is multiplied without scales first; if its codes are
 * not accurate, it is multiplied again in fp32. */
static __attribute__((noinline)) void checked_tile(const struct worker *w, const struct slice *s,
                                                   unsigned coarse, const struct tile_at *t,
                                                   const struct fetch *fetch)
{
    static const struct fetch none;
    struct fallback *f = w->fallback;
    float sums[ROWS * PANEL], ones[PANEL];
    int add = !s->first;
    int64_t row = a_row(w->g, s->depth), step = a_step(w->g);
    for (int j = 0; j < PANEL; j++) ones[j] = 1;
    for (int64_t p = 0, block = 0; p < s->depth; p += BFP_WORDS, block++, add = 1, fetch = &none) {
        int64_t of_a = (t->group * SLICE_BLOCKS + block) * ROWS, of_b = block * PANEL;
        const float *a_scales = w->a_scales + of_a, *b_scales = w->b_scales + of_b,
                    *b_norms = w->b_norms + of_b;
        const word *a = w->a + t->group * GROUP_STRIDE(s->depth) + p * step, *b = w->b + p * PANEL;
        int64_t depth = min_of(BFP_WORDS, s->depth - p);
        if (!(coarse >> block & 1)) {
            bfp_tile_of_rows((int)t->rows, a, row, step, a_scales, b, b_scales, t->sums, depth, add, fetch);
            continue;
        }
        bfp_tile_of_rows((int)t->rows, a, row, step, ones, b, ones, sums, depth, 0, fetch);
        if (!(f->known >> block & 1)) f->norms[block] = sum_norms(b_norms, PANEL);
        f->known |= 1u << block;
        bool accurate = codes_accurate(t->rows, sums, w->a_norms + of_a, b_norms, f->norms[block]);
        if (!accurate) fp32_block(w, s, block, t, sums);
        for (int64_t i = 0; i < t->rows; i++)
            for (int v = 0; v < VECTORS; v++) {
                float *to = t->sums + i * PANEL + v * LANES;
                lanes x = load_lanes(sums + i * PANEL + v * LANES),
                      before = add ? load_lanes(to) : (lanes){0};
                if (accurate) x *= a_scales[i] * load_lanes(b_scales + v * LANES);
                *(words *)(void *)to = (words)(before + x);
            }
    }
}

/* ---- Blocks of C --------------------------------------------------------------------------------------- */

/* tile of the sums = or += group of A x panel of B */
INLINE void multiply_tile(const struct worker *w, int pairs, const struct slice *s, unsigned coarse_b,
                          const struct tile_at *t, const struct fetch *fetch)
{
    const word *a = w->a + t->group * GROUP_STRIDE(s->depth);
    int64_t row = a_row(w->g, s->depth), step = a_step(w->g);
    int add = !s->first;
    if (HAS_BFP && pairs && (coarse_b | w->coarse_a[t->group]))
        checked_tile(w, s, coarse_b | w->coarse_a[t->group], t, fetch);
    else if (HAS_BFP && pairs)
        bfp_tile_of_rows((int)t->rows, a, row, step, w->a_scales + t->group * SLICE_BLOCKS * ROWS, w->b,
                         w->b_scales, t->sums, s->depth, add, fetch);
    else
        tile_of_rows(pairs, (int)t->rows, VECTORS, a, row, step, w->b, PANEL, t->sums, PANEL, s->depth, add,
                     fetch);
}

/* Computes a block of C: the loops of the comment above. */
static inline __attribute__((always_inline)) void multiply_block(const struct worker *w, int pairs,
                                                                 const struct block *c)
{
    const struct gemm *g = w->g;
    int64_t panels = (c->columns + PANEL - 1) / PANEL, groups = (c->rows + ROWS - 1) / ROWS;
    int64_t total = (g->k + pairs) >> pairs, slices = total > 0 ? (total + GEMM_DEPTH - 1) / GEMM_DEPTH : 1;
    struct slice now = slice_of(g, pairs, slices, 0, c);
    for (int64_t i = 0; i < slices; i++) {
        struct slice next = now.last ? now : slice_of(g, pairs, slices, i + 1, c);
        if (g->transpose_a) pack_columns(&now.a, now.depth, w->a);
        for (int64_t j = 0; j < panels; j++) {
            int64_t column = j * PANEL, left = c->columns - column;
            bool last_panel = j + 1 == panels;
            struct source b = panel_of(g, &now, c->column + column, left), next_b = b;
            if (!last_panel) next_b = panel_of(g, &now, c->column + column + PANEL, left - PANEL);
            unsigned coarse_b = pack_panel(w, pairs, &now, &b);
            for (int64_t group = 0; group < groups; group++) {
                int64_t row = group * ROWS;
                struct tile_at t = {group,
                                    row,
                                    min_of(ROWS, c->rows - row),
                                    c->column + column,
                                    min_of(PANEL, left),
                                    w->sums + column * c->rows + row * PANEL};
                struct fetch fetch;
                if (j == 0) pack_group(w, pairs, &now, &t);
                fetch.count = 0;
                if (now.last)
                    prefetch_c(g, c->row + row + ROWS, min_of(ROWS, c->rows - row - ROWS), t.column,
                               t.columns);
                for (int64_t v = 0; v < ROWS * PANEL; v += 16) fetch_line(&fetch, t.sums + ROWS * PANEL + v);
                if (!last_panel) fetch_share(&fetch, &next_b, group, groups);
                if (!now.last) fetch_share(&fetch, &next.a, j * groups + group, panels * groups);
                multiply_tile(w, pairs, &now, coarse_b, &t, &fetch);
                if (now.last) store_tile(g, t.sums, c->row + row, t.column, t.rows, t.columns);
            }
        }
        now = next;
    }
}

/* Computes block `i` of C, with a constant word format. */
static __attribute__((noinline)) void multiply(const struct worker *w, int64_t i)
{
    int64_t m = w->g->m, n = w->g->n, i_m = i % w->blocks_m, i_n = i / w->blocks_m;
    struct block c = {.row = part_begin(m, ROWS, w->blocks_m, i_m),
                      .column = part_begin(n, PANEL, w->blocks_n, i_n)};
    c.rows = part_begin(m, ROWS, w->blocks_m, i_m + 1) - c.row;
    c.columns = part_begin(n, PANEL, w->blocks_n, i_n + 1) - c.column;
    if (USE_PAIRS && w->pairs) multiply_block(w, 1, &c);
    else multiply_block(w, 0, &c);
}

int64_t NAME(gemm)(const struct gemm *g, void *scratch, int threads)
{
    struct worker shared = {
        .g = g, .pairs = USE_PAIRS && g->ab_type == DTYPE_BF16 && g->k > 0 && !(HAS_BFP && g->floats)};
    int64_t fallback_tiles = 0;
    choose_blocks(&shared, threads);
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : fallback_tiles)
    {
        struct worker w = shared;
        struct fallback fallback = {0};
        unsigned char coarse_a[GEMM_ROWS / ROWS];
#ifdef _OPENMP
        size_t thread = threads > 1 ? (size_t)omp_get_thread_num() : 0;
#else
        size_t thread = 0;
#endif
        w.a = (float *)(void *)((char *)scratch + thread * gemm_scratch(1));
        w.b = w.a + GEMM_ROWS * GEMM_DEPTH + GEMM_GAPS;
        w.a_scales = w.b + GEMM_DEPTH * GEMM_PANEL;
        w.b_scales = w.a_scales + GEMM_ROWS * SLICE_BLOCKS;
        w.a_norms = w.a_scales + GEMM_SCALES;
        w.b_norms = w.b_scales + GEMM_SCALES;
        w.coarse_a = coarse_a;
        fallback.a = w.a_norms + GEMM_SCALES;
        fallback.b = fallback.a + GEMM_FALLBACK;
        w.fallback = &fallback;
        w.sums = fallback.b + 2 * GEMM_DEPTH * GEMM_PANEL;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < w.blocks_m * w.blocks_n; i++) multiply(&w, i);
        fallback_tiles += fallback.count;
    }
    return fallback_tiles;
}
