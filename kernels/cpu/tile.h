/* Inside kernels/cpu: GEMM of small matrices that fit the first two cache levels, for the instruction set
 * being compiled.
 *
 * Matrices consist of 32-bit words. A word is a float, or with `pairs` (AVX512-BF16) two bf16 that are
 * adjacent along the inner dimension, which then has half as many words. C is float. A tile of C, ROWS x
 * VECTORS vectors, stays in registers over the inner dimension: each word of A is broadcast, each vector of B
 * is read once for all rows (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
 */
#ifndef MEOPT_KERNELS_CPU_TILE_H
#define MEOPT_KERNELS_CPU_TILE_H

#include <stddef.h>
#include <stdint.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 6, VECTORS = 4 }; /* 24 sums and 4 vectors of B in 32 registers */
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 6, VECTORS = 2 }; /* 12 and 2 in 16 */
#else
enum { LANES = 4, ROWS = 4, VECTORS = 2 };
#endif
enum { DEPTH = 256 }; /* words of the inner dimension per pass; B's part stays in the first-level cache */

typedef float lanes __attribute__((vector_size(LANES * 4)));
typedef float word __attribute__((may_alias));
typedef float words __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE lanes multiply_add(int pairs, const word *a, lanes b, lanes sum)
{
#ifdef __AVX512BF16__
    if (pairs)
        return (lanes)_mm512_dpbf16_ps(
            (__m512)sum, (__m512bh)_mm512_set1_epi32(*(const int *)(const void *)a), (__m512bh)b);
#endif
    (void)pairs;
    return sum + (*a - (lanes){0}) * b;
}

/* Memory lines to prefetch: FETCH lines after every FETCH_EVERY words of depth, because many at once would
 * stall the tile's own loads. Instruction sets with too few registers for this prefetch each line when it is
 * added. */
#ifdef __AVX512F__
enum { FETCH_INSIDE = 1 };
#else
enum { FETCH_INSIDE = 0 };
#endif
enum { FETCH = 2, FETCH_EVERY = 4, FETCH_LINES = 64 };
struct fetch {
    int64_t count;
    const void *lines[FETCH_LINES + 1];
};

INLINE void fetch_line(struct fetch *f, const void *line)
{
    if (!FETCH_INSIDE) {
        __builtin_prefetch(line, 0, 2);
        return;
    }
    f->lines[f->count] = line; /* excess lines overwrite the last entry */
    f->count += f->count < FETCH_LINES;
}

INLINE lanes load_lanes(const void *p) { return (lanes) * (const words *)p; }

/* Computes rows x vectors of C = or += A B. Word (i, p) of A is a[i * row + p * step]. fetch: may be NULL. */
INLINE void tile(int pairs, int rows, int vectors, const word *a, int64_t row, int64_t step, const word *b,
                 int64_t ldb, float *c, int64_t ldc, int64_t depth, int add, const struct fetch *fetch)
{
    lanes sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sum[i][j] = add ? load_lanes(c + i * ldc + j * LANES) : (lanes){0};
    for (int64_t p = 0, at = 0, stop; p < depth; p = stop, at += FETCH) {
        stop = FETCH_INSIDE && fetch && p + FETCH_EVERY < depth ? p + FETCH_EVERY : depth;
        if (FETCH_INSIDE && fetch && at + FETCH <= fetch->count)
            for (int i = 0; i < FETCH; i++) __builtin_prefetch(fetch->lines[at + i], 0, 2);
        for (int64_t q = p; q < stop; q++, a += step, b += ldb) {
            lanes v[VECTORS];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) v[j] = load_lanes(b + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
                for (int j = 0; j < vectors; j++)
                    sum[i][j] = multiply_add(pairs, a + i * row, v[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) *(words *)(void *)(c + i * ldc + j * LANES) = (words)sum[i][j];
}

INLINE void tile_of_rows(int pairs, int rows, int vectors, const word *a, int64_t row, int64_t step,
                         const word *b, int64_t ldb, float *c, int64_t ldc, int64_t depth, int add,
                         const struct fetch *fetch)
{
#define TILE(r, v) tile(pairs, r, v, a, row, step, b, ldb, c, ldc, depth, add, fetch)
#define TILES(v)                                                                                             \
    switch (rows) {                                                                                          \
    case 1: TILE(1, v); break;                                                                               \
    case 2: TILE(2, v); break;                                                                               \
    case 3: TILE(3, v); break;                                                                               \
    case 4: TILE(4, v); break;                                                                               \
    case 5: TILE((5 < ROWS ? 5 : ROWS), v); break;                                                           \
    default: TILE(ROWS, v);                                                                                  \
    }
    switch (vectors) {
    case 1: TILES(1); break;
    case 2: TILES(2); break;
#ifdef __AVX512F__
    case 3: TILES(3); break;
#endif
    default: TILES(VECTORS);
    }
#undef TILES
#undef TILE
}

/* Computes C (m, n) = or += A B over `depth` words. n: whole vectors of LANES. */
INLINE void small_gemm(int pairs, const word *a, int64_t row, int64_t step, const word *b, int64_t ldb,
                       float *c, int64_t ldc, int64_t m, int64_t n, int64_t depth, int add)
{
    int64_t parts = (depth + DEPTH - 1) / DEPTH, vectors = n / LANES;
    int64_t panels = (vectors + VECTORS - 1) / VECTORS, groups = (m + ROWS - 1) / ROWS;
    for (int64_t p = 0; p < parts; p++) {
        int64_t from = depth * p / parts, count = depth * (p + 1) / parts - from;
        for (int64_t j = 0; j < panels; j++) {
            int64_t v = vectors * j / panels, wide = vectors * (j + 1) / panels - v;
            for (int64_t g = 0; g < groups; g++) {
                int64_t i = m * g / groups, rows = m * (g + 1) / groups - i;
                tile_of_rows(pairs, (int)rows, (int)wide, a + i * row + from * step, row, step,
                             b + from * ldb + v * LANES, ldb, c + i * ldc + v * LANES, ldc, count, add || p,
                             NULL);
            }
        }
    }
}

#endif
