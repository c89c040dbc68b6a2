/* bf16 GEMM on Intel AMX tiles (TDPBF16PS), fp32 accumulation.
 *
 * Rates in bf16 GFLOP/s of two Sapphire Rapids threads, for m, n, k = 2056, 6144, 1408 and the two gradients:
 * the best of two rounds (test_ops --time gemm, also with oneDNN instead). Tiles from the first-level cache
 * reach about 2200 with one thread, but only about 1900 with two: the machine was shared.
 *                                    here    oneDNN 2.6.3    torch 2.15
 *     y = x W^T    (B transposed)    2041        1536           2052
 *     dx = dy W    (k = 6144)        1717        1022           1951
 *     dW = dy^T x  (A transposed)    1809         901            946
 *
 * Method (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008): both operands are
 * packed once into panels of whole tiles, with zeros at the edges. 32 x 32 blocks of C stay in four tiles,
 * while two tiles of A and two of B are loaded per step. The inner dimension is divided so that a panel of B
 * stays in the first-level cache, a block of A in the second. One thread computes each block of C in a fixed
 * order, so the result does not depend on the number of threads.
 *
 * Tile layouts: A 16 rows x 32 columns of bf16.
 * B 16 rows of pairs: row r holds (b[2r][j], b[2r+1][j]) for 16 columns j.
 */
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/select.h"

#if MEOPT_HAS_AMX && defined(__linux__)

#include "kernels/cpu/amx_tiles.h"

#include <stdbool.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KC = 512, MC = 256, NC = 512 };

static int machine_has_tiles(void)
{
    /* Linux provides the 8 KiB of tile state only on request: ARCH_REQ_XCOMP_PERM, XTILEDATA. */
    return cpu_can(CAN_AMX) && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

int gemm_amx_available(void)
{
    static int known = -1;
    if (known < 0) known = machine_has_tiles();
    return known && cpu_tiles_wanted();
}

/* Returns an even block size, at most `most`, a multiple of PANEL. */
static int64_t block_size(int64_t n, int64_t most, int64_t parts)
{
    int64_t count = up(n, most) / most;
    if (count < parts) count = parts;
    return up((n + count - 1) / count, PANEL);
}

/* With few rows (small batches), moving B, the weights, takes longer than multiplying. Each thread then packs
 * only the next part of B, which stays in its second-level cache with all rows of a block of C. Returns the
 * columns of such a block; 0: pack all of B. */
static int64_t few_rows_columns(int64_t m, int64_t n, int64_t threads)
{
    enum { MOST_ROWS = 768, LEAST = 4, MOST = 11 }; /* panels: with 514 rows all of it is in 2 MiB */
    if (m > MOST_ROWS || n < m) return 0;
    int64_t panels = up(n, PANEL) / PANEL, best = LEAST, shortest = INT64_MAX;
    for (int64_t p = LEAST; p <= MOST;
         p++) { /* the widest that balances the threads; two blocks per thread, since speeds differ */
        int64_t whole = panels / p, last = panels % p,
                longest = (whole + threads - 1) / threads * p + (whole % threads ? 0 : last);
        if (longest <= shortest && (p == LEAST || whole + (last > 0) >= 2 * threads)) {
            best = p;
            shortest = longest;
        }
    }
    return best * PANEL;
}
static size_t few_rows_bytes(int64_t m) /* of a thread */
{
    int64_t mc = block_size(m, MC, 1);
    return (size_t)((m + mc - 1) / mc) * (MC * NC * sizeof(float)) + KC * NC * 2;
}

/* Returns the bytes for packed A and B (or each thread's part of B), and a block of C per thread, for up to
 * GEMM_AMX_THREADS threads. */
size_t gemm_amx_workspace(int64_t m, int64_t n, int64_t k, int threads)
{
    size_t row = (size_t)up(k, 32) * 2;
    if (few_rows_columns(m, n, threads))
        return (size_t)up(m, PANEL) * row + (size_t)threads * few_rows_bytes(m);
    return (size_t)(up(m, PANEL) + up(n, PANEL)) * row + (size_t)threads * (MC * NC * sizeof(float));
}

/* Returns the offset of the four tiles of row i, column j in a block. */
static inline int64_t tiles_at(int64_t i, int64_t j)
{
    return (j / PANEL * (MC / PANEL) + i / PANEL) * (PANEL * PANEL);
}

/* Returns 16 results at element `at` of a row of C, where `mask` has bits. */
TARGET static inline __m512 finished(const struct gemm_bf16 *g, __m512 x, int64_t at, const float *bias,
                                     __mmask16 mask)
{
    if (g->alpha != 1.0f) x = _mm512_mul_ps(_mm512_set1_ps(g->alpha), x);
    if (g->beta != 0.0f) {
        __m512 old =
            g->c_bf16
                ? _mm512_castsi512_ps(_mm512_slli_epi32(
                      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)g->c + at)), 16))
                : _mm512_maskz_loadu_ps(mask, (const float *)g->c + at);
        x = _mm512_fmadd_ps(_mm512_set1_ps(g->beta), old, x);
    }
    return bias ? _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, bias)) : x;
}

/* Stores the block's tiles in C, whole rows at a time, in the order of memory. Whole lines use non-temporal
 * stores: a training step of eva_clip at batch 2 takes 4 % less time. vcvtne2ps2bf16 rounds to nearest even
 * and keeps NaN; denormals become 0, as inside the tiles. */
TARGET static void write_block(const struct gemm_bf16 *g, const float *block, int64_t row0, int64_t column0,
                               int64_t rows, int64_t columns)
{
    bool whole = g->beta == 0.0f;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += PANEL) {
            __mmask32 mask = columns - j >= 32 ? 0xffffffffu : (1u << (columns - j)) - 1;
            __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> 16);
            int64_t at = (row0 + i) * g->ldc + column0 + j;
            const float *bias = g->bias ? g->bias + column0 + j : NULL;
            const float *t = block + tiles_at(i, j) + i % PANEL / 16 * 512 + i % 16 * 16;
            __m512 x0 = finished(g, _mm512_load_ps(t), at, bias, left);
            __m512 x1 = finished(g, _mm512_load_ps(t + 256), at + 16, bias ? bias + 16 : NULL, right);
            if (g->c_bf16) {
                uint16_t *c = (uint16_t *)g->c + at;
                __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(x1, x0);
                if (whole && mask == 0xffffffffu && (uintptr_t)c % 64 == 0)
                    _mm512_stream_si512((void *)c, rounded);
                else _mm512_mask_storeu_epi16(c, mask, rounded);
            } else {
                float *c = (float *)g->c + at;
                _mm512_mask_storeu_ps(c, left, x0);
                _mm512_mask_storeu_ps(c + 16, right, x1);
            }
        }
}

/* Computes rows x columns of C from (row0, column0). Partial sums stay in `block` until the end of the inner
 * dimension. pb: the panels of these columns. */
TARGET static void multiply_block(const struct gemm_bf16 *g, const uint8_t *pa, const uint8_t *pb,
                                  float *block, int64_t row0, int64_t column0, int64_t rows, int64_t columns)
{
    int64_t k32 = up(g->k, 32), panel = k32 * PANEL * 2, parts = (k32 + KC - 1) / KC,
            kc = up((k32 + parts - 1) / parts, 32);
    for (int64_t k0 = 0; k0 < k32; k0 += kc) {
        int64_t steps = (k32 - k0 < kc ? k32 - k0 : kc) / 32, at = k0 / 32 * STEP_BYTES;
        for (int64_t j = 0; j < columns; j += PANEL)
            for (int64_t i = 0; i < rows; i += PANEL)
                micro(pa + (row0 + i) / PANEL * panel + at, pb + j / PANEL * panel + at,
                      block + tiles_at(i, j), steps, k0 > 0);
    }
    write_block(g, block, row0, column0, rows, columns);
}

/* Packs one thread's share of an operand: panels, or steps if these are rows in memory. */
TARGET static void pack_share(const uint16_t *p, int64_t stride, int along, int b, int64_t outer, int64_t k,
                              uint8_t *to, int64_t share, int64_t shares)
{
    int64_t panels = up(outer, PANEL) / PANEL, steps = up(k, 32) / 32, panel_bytes = up(k, 32) * PANEL * 2;
    if (along)
        for (int64_t i = panels * share / shares; i < panels * (share + 1) / shares; i++)
            pack(p, stride, 1, b, outer, k, panel_bytes, i, i + 1, 0, steps * 32, to);
    else
        pack(p, stride, 0, b, outer, k, panel_bytes, 0, panels, steps * share / shares * 32,
             steps * (share + 1) / shares * 32, to);
}

/* One thread of a team (share of shares): packs its share, then computes blocks of C. A separate function,
 * because compilers do not apply the target attribute of a function to its parallel regions. */
TARGET static __attribute__((noinline)) void multiply(const struct gemm_bf16 *g, uint8_t *pa, int64_t threads,
                                                      int64_t share, int64_t shares)
{
    int64_t panel = up(g->k, 32) * PANEL * 2;
    uint8_t *pb = pa + up(g->m, PANEL) / PANEL * panel;
    float *block = (float *)(void *)(pb + up(g->n, PANEL) / PANEL * panel) + share * MC * NC;
    int64_t mc = block_size(g->m, MC, threads > 1 && g->m > 4 * PANEL ? 2 : 1), nc = block_size(g->n, NC, 1);
    int64_t grid_m = (g->m + mc - 1) / mc, grid_n = (g->n + nc - 1) / nc;
    pack_share(g->a, g->lda, !g->transpose_a, 0, g->m, g->k, pa, share, shares);
    pack_share(g->b, g->ldb, g->transpose_b, 1, g->n, g->k, pb, share, shares);
    tiles_on();
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < grid_m * grid_n; b++) {
        int64_t row0 = b % grid_m * mc, column0 = b / grid_m * nc;
        multiply_block(g, pa, pb + column0 / PANEL * panel, block, row0, column0,
                       g->m - row0 < mc ? g->m - row0 : mc, g->n - column0 < nc ? g->n - column0 : nc);
    }
    _tile_release();
    _mm_sfence(); /* stores past the caches are seen before the team parts */
}

/* The same for few rows. The inner dimension is divided as above, so results are bit-identical. */
TARGET static __attribute__((noinline)) void multiply_few(const struct gemm_bf16 *g, uint8_t *pa, int64_t nc,
                                                          int64_t share, int64_t shares)
{
    int64_t k32 = up(g->k, 32), panel = k32 * PANEL * 2, parts = (k32 + KC - 1) / KC,
            kc = up((k32 + parts - 1) / parts, 32);
    int64_t mc = block_size(g->m, MC, 1);
    uint8_t *pb = pa + up(g->m, PANEL) / PANEL * panel + (size_t)share * few_rows_bytes(g->m);
    float *blocks = (float *)(void *)(pb + KC * NC * 2);
    pack_share(g->a, g->lda, !g->transpose_a, 0, g->m, g->k, pa, share, shares);
    tiles_on();
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
    for (int64_t column0 = 0; column0 < g->n; column0 += nc) {
        int64_t columns = g->n - column0 < nc ? g->n - column0 : nc;
        for (int64_t k0 = 0; k0 < k32; k0 += kc) {
            int64_t depth = k32 - k0 < kc ? k32 - k0 : kc, b_panel = depth * PANEL * 2;
            const uint16_t *b = g->b + (g->transpose_b ? column0 * g->ldb + k0 : k0 * g->ldb + column0);
            pack_share(b, g->ldb, g->transpose_b, 1, columns, g->k - k0 < depth ? g->k - k0 : depth, pb, 0,
                       1);
            for (int64_t row0 = 0; row0 < g->m; row0 += mc)
                for (int64_t j = 0; j < columns; j += PANEL)
                    for (int64_t i = 0; i < mc && row0 + i < g->m; i += PANEL)
                        micro(pa + (row0 + i) / PANEL * panel + k0 / 32 * STEP_BYTES,
                              pb + j / PANEL * b_panel, blocks + row0 / mc * (MC * NC) + tiles_at(i, j),
                              depth / 32, k0 > 0);
        }
        for (int64_t row0 = 0; row0 < g->m; row0 += mc)
            write_block(g, blocks + row0 / mc * (MC * NC), row0, column0, g->m - row0 < mc ? g->m - row0 : mc,
                        columns);
    }
    _tile_release();
    _mm_sfence(); /* stores past the caches are seen before the team parts */
}

static void multiply_share(const struct gemm_bf16 *g, void *workspace, int64_t threads, int64_t share,
                           int64_t shares)
{
    int64_t few = few_rows_columns(g->m, g->n, threads);
    if (few) multiply_few(g, workspace, few, share, shares);
    else multiply(g, workspace, threads, share, shares);
}

void gemm_amx(const struct gemm_bf16 *g, void *workspace, int threads)
{
#pragma omp parallel num_threads(threads) if (threads > 1)
#ifdef _OPENMP
    /* a single thread may belong to a different team */
    multiply_share(g, workspace, threads, threads == 1 ? 0 : omp_get_thread_num(),
                   threads == 1 ? 1 : omp_get_num_threads());
#else
    multiply_share(g, workspace, threads, 0, 1);
#endif
}

#else

int gemm_amx_available(void) { return 0; }
size_t gemm_amx_workspace(int64_t m, int64_t n, int64_t k, int threads)
{
    (void)m, (void)n, (void)k, (void)threads;
    return 0;
}
void gemm_amx(const struct gemm_bf16 *g, void *workspace, int threads)
{
    (void)g, (void)workspace, (void)threads;
}

#endif
