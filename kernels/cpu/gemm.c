/* C = alpha op(A) op(B) + beta C + bias, in fp32 whatever the types: see operations.h and ops.h.
 *
 * Method (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). A thread takes a
 * block of C and keeps its sums in scratch; for each KC of the inner dimension its parts of A and B are
 * packed into words (pack.h: bf16 is widened here, once, or becomes pairs), B in panels that the registers
 * take whole; then tiles of C stay in registers (product.h). Results are scaled, rounded and written at the
 * end. Each element is summed by one thread in one order: bits do not depend on the number of threads. */
#include "kernels/cpu/table.h"

#ifdef __AVX512F__ /* elsewhere oneDNN is faster: core/device/cpu.c */

#include "kernels/cpu/pack.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __AVX512BF16__
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif
enum { PANEL = LANES * VECTORS };

struct blocks {
    const struct gemm *g;
    int pairs;
    int64_t count_m, count_n;
    word *a, *b;
    float *c;
};

/* Of block `i` of `count` over n in units: where it begins. */
static int64_t begin_of(int64_t n, int64_t unit, int64_t count, int64_t i)
{
    int64_t units = (n + unit - 1) / unit, at = units * i / count * unit;
    return at < n ? at : n;
}

/* Blocks within the scratch, at least two for each thread where there is enough to share. */
static void divide(struct blocks *k, int threads)
{
    int64_t m = (k->g->m + ROWS - 1) / ROWS, n = (k->g->n + PANEL - 1) / PANEL;
    int64_t most_m = GEMM_ROWS / ROWS, most_n = GEMM_COLUMNS / PANEL;
    k->count_m = (m + most_m - 1) / most_m;
    k->count_n = (n + most_n - 1) / most_n;
    while (k->count_m * k->count_n < 2 * threads) {
        bool by_n = n / k->count_n * PANEL >= m / k->count_m * ROWS;
        if (by_n && 2 * k->count_n <= n) k->count_n *= 2;
        else if (2 * k->count_m <= m) k->count_m *= 2;
        else break;
    }
}

/* rows of C's block to C */
static void write_block(const struct gemm *g, const float *from, int64_t ld, int64_t row, int64_t column,
                        int64_t rows, int64_t columns)
{
    int bf16 = g->c_type == DTYPE_BF16;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += PIECE) {
            float old[PIECE], out[PIECE];
            int64_t count = piece(columns, c), at = (row + r) * g->ldc + column + c;
            const float *in = from + r * ld + c, *bias = g->bias ? g->bias + column + c : NULL;
            float *y = piece_for(bf16, g->c, at, out), alpha = g->alpha, beta = g->beta;
            if (beta != 0) {
                const float *before = read_piece(bf16, g->c, at, count, old);
                SIMD for (int64_t i = 0; i < count; i++) y[i] = alpha * in[i] + beta * before[i];
            } else SIMD for (int64_t i = 0; i < count; i++) y[i] = alpha * in[i];
            if (bias) SIMD for (int64_t i = 0; i < count; i++) y[i] += bias[i];
            write_piece(bf16, g->c, at, count, y);
        }
}

/* rows x columns of C from (row, column) */
static inline __attribute__((always_inline)) void
multiply_block(const struct blocks *k, int pairs, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
    const struct gemm *g = k->g;
    int64_t panels = (columns + PANEL - 1) / PANEL, ld = panels * PANEL, groups = (rows + ROWS - 1) / ROWS;
    int bf16 = g->ab_type == DTYPE_BF16;
    struct source a = {bf16, pairs, g->a, 0, g->lda, 0, 0}, b = {bf16, pairs, g->b, 0, g->ldb, 0, 0};
    int64_t deep = (g->k + pairs) >> pairs, parts = (deep + GEMM_DEPTH - 1) / GEMM_DEPTH;
    for (int64_t p = 0; p < parts; p++) {
        int64_t first = deep * p / parts, depth = deep * (p + 1) / parts - first, from = first << pairs;
        int64_t inner = g->k - from < depth << pairs ? g->k - from : depth << pairs;
        int64_t a_row = g->transpose_a ? 1 : depth, a_step = g->transpose_a ? rows : 1;
        if (g->transpose_a) {
            struct source s = source_from(a, from, row, inner, rows);
            pack_down(&s, rows, k->a, rows);
        } else {
            struct source s = source_from(a, row, from, rows, inner);
            pack_rows(&s, depth, k->a, depth);
        }
        for (int64_t j = 0; j < panels; j++) {
            int64_t at = column + j * PANEL,
                    count = columns - j * PANEL < PANEL ? columns - j * PANEL : PANEL;
            struct source s = g->transpose_b ? source_from(b, at, from, count, inner)
                                             : source_from(b, from, at, inner, count);
            if (g->transpose_b) pack_transposed(&s, depth, PANEL, k->b, PANEL);
            else pack_down(&s, PANEL, k->b, PANEL);
            for (int64_t i = 0; i < groups; i++) {
                int64_t r = rows * i / groups;
                tile_of_rows(pairs, (int)(rows * (i + 1) / groups - r), VECTORS, k->a + r * a_row, a_row,
                             a_step, k->b, PANEL, k->c + r * ld + j * PANEL, ld, depth, p > 0);
            }
        }
    }
    write_block(g, k->c, ld, row, column, rows, columns);
}

static __attribute__((noinline)) void multiply(const struct blocks *k, int64_t i)
{
    int64_t m = k->g->m, n = k->g->n, in_m = i % k->count_m, in_n = i / k->count_m;
    int64_t row = begin_of(m, ROWS, k->count_m, in_m), column = begin_of(n, PANEL, k->count_n, in_n);
    int64_t rows = begin_of(m, ROWS, k->count_m, in_m + 1) - row,
            columns = begin_of(n, PANEL, k->count_n, in_n + 1) - column;
    if (HAS_PAIRS && k->pairs) multiply_block(k, 1, row, column, rows, columns);
    else multiply_block(k, 0, row, column, rows, columns);
}

void NAME(gemm)(const struct gemm *g, void *scratch, int threads)
{
    struct blocks shared = {.g = g, .pairs = HAS_PAIRS && g->ab_type == DTYPE_BF16};
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
        own.b = own.a + GEMM_ROWS * GEMM_DEPTH;
        own.c = own.b + GEMM_DEPTH * GEMM_PANEL;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < own.count_m * own.count_n; i++) multiply(&own, i);
    }
}

#endif
