/* bf16 matrix product on Intel AMX tiles (TDPBF16PS), fp32 accumulation.
 *
 * Why not oneDNN: the version that Debian 12 ships (2.6) reaches about a fifth of what the tiles can do on the shapes of
 * a transformer, and less where an operand is transposed (tests/bench/RESULTS.md has both, measured in one run).
 *
 * Method (Goto, van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008): both operands are packed once
 * into panels of whole tiles, zeros at the edges; 32 x 32 blocks of C are kept in four tiles while two tiles of A and two
 * of B stream by; the inner dimension is cut so that a panel of B stays in the first-level cache while a block of A
 * passes over it from the second level. Threads take blocks of C; each block is computed by one thread in one order, so
 * the result does not depend on the number of threads.
 *
 * Tile layouts: A 16 rows x 32 columns of bf16. B 16 rows of pairs: row r holds (b[2r][j], b[2r+1][j]) for 16 columns j.
 */
#include "kernels/cpu/gemm_amx.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq")))

enum { PANEL = 32, TILE_BYTES = 1024, STEP_BYTES = 2 * TILE_BYTES, KC = 512, MC = 256, NC = 512 };

static int machine_has_tiles(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    /* amx-bf16, amx-tile; avx512 f, bw, vl, dq through the compiler's check, which also looks at the OS */
    int cpu = (d >> 22 & 1) && (d >> 24 & 1) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    /* Linux hands out the 8 KiB of tile state on request only: ARCH_REQ_XCOMP_PERM, XTILEDATA. */
    return cpu && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

int gemm_amx_available(void)
{
    static int known = -1;
    if (known < 0) known = machine_has_tiles();
    const char *wanted = getenv("MEOPT_CPU_ISA");
    return known && (!wanted || !*wanted || strcmp(wanted, "amx") == 0);
}

static int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* Packed A and B, and a block of C for each of up to GEMM_AMX_THREADS threads. */
size_t gemm_amx_workspace(int64_t m, int64_t n, int64_t k, int threads)
{
    return (size_t)(up(m, PANEL) + up(n, PANEL)) * (size_t)up(k, 32) * 2 + (size_t)threads * (MC * NC * sizeof(float));
}

/* 16 x 16 transpose of 32-bit elements. */
TARGET static inline void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* 16 rows of 32 bf16 from a matrix whose tile rows lie along memory; rows and columns that exist, zeros behind. */
TARGET static inline void read_rows(const uint16_t *p, int64_t stride, int64_t rows, int64_t columns, __m512i r[16])
{
    __mmask32 mask = columns >= 32 ? 0xffffffffu : (1u << columns) - 1;
    for (int i = 0; i < 16; i++) r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, p + i * stride) : _mm512_setzero_si512();
}

/* 32 rows of 16 bf16 (a tile's inner dimension down the rows): row pairs interleaved, 16 rows of 16 pairs. */
TARGET static inline void read_pairs(const uint16_t *p, int64_t stride, int64_t rows, int64_t columns, __m512i r[16])
{
    __mmask16 mask = columns >= 16 ? 0xffff : (__mmask16)((1u << columns) - 1);
    for (int i = 0; i < 16; i++) {
        __m256i lo = 2 * i < rows ? _mm256_maskz_loadu_epi16(mask, p + 2 * i * stride) : _mm256_setzero_si256();
        __m256i hi = 2 * i + 1 < rows ? _mm256_maskz_loadu_epi16(mask, p + (2 * i + 1) * stride) : _mm256_setzero_si256();
        r[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
    }
}

/* One panel of PANEL rows of op(A), or columns of op(B): for each 32 of the inner dimension, two tiles.
 * `along` : the inner dimension runs along memory (A plain, B transposed). b: pair layout. */
TARGET static void pack_panel(const uint16_t *p, int64_t stride, int along, int b, int64_t outer, int64_t k, uint8_t *to)
{
    __m512i r[16];
    for (int64_t k0 = 0; k0 < k; k0 += 32)
        for (int half = 0; half < 2; half++, to += TILE_BYTES) {
            int64_t left = outer - 16 * half, depth = k - k0 < 32 ? k - k0 : 32;
            if (left < 0) left = 0;
            if (along) read_rows(p + 16 * half * stride + k0, stride, left, depth, r);
            else read_pairs(p + k0 * stride + 16 * half, stride, left ? depth : 0, left, r);
            if (along == b) transpose16(r);
            for (int i = 0; i < 16; i++) _mm512_store_si512((void *)(to + 64 * i), r[i]);
        }
}

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

TARGET static void tiles_on(void)
{
    static const struct tile_config config = {.palette = 1,
                                              .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                              .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

/* c, four tiles of 16 x 16 floats (upper left, upper right, lower left, lower right): = or += the product of two
 * panels over `steps` times 32. */
TARGET static inline void micro(const uint8_t *a, const uint8_t *b, float *c, int64_t steps, int add)
{
    enum { bytes = 64 };
    if (add) {
        _tile_loadd(0, c, bytes);
        _tile_loadd(1, c + 256, bytes);
        _tile_loadd(2, c + 512, bytes);
        _tile_loadd(3, c + 768, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, a += STEP_BYTES, b += STEP_BYTES) {
        _tile_stream_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE_BYTES, 64);
        _tile_stream_loadd(5, a + TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, bytes);
    _tile_stored(1, c + 256, bytes);
    _tile_stored(2, c + 512, bytes);
    _tile_stored(3, c + 768, bytes);
}

/* 16 floats to bf16, nearest even, NaN kept quiet */
TARGET static inline __m256i to_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet));
}

TARGET static void write_block(const struct gemm_bf16 *g, const float *block, int64_t row0, int64_t column0, int64_t rows, int64_t columns)
{
    __m512 alpha = _mm512_set1_ps(g->alpha), beta = _mm512_set1_ps(g->beta);
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (row0 + i) * g->ldc + column0;
        for (int64_t j = 0; j < columns; j += 16) {
            __mmask16 mask = columns - j >= 16 ? 0xffff : (__mmask16)((1u << (columns - j)) - 1);
            __m512 x = _mm512_mul_ps(alpha, _mm512_load_ps(block + (j / PANEL * (MC / PANEL) + i / PANEL) * (PANEL * PANEL) + (i / 16 % 2 * 2 + j / 16 % 2) * 256 + i % 16 * 16));
            if (g->beta != 0) {
                __m512 old = g->c_bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                             mask, (const uint16_t *)g->c + at + j)), 16))
                                       : _mm512_maskz_loadu_ps(mask, (const float *)g->c + at + j);
                x = _mm512_fmadd_ps(beta, old, x);
            }
            if (g->bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, g->bias + column0 + j));
            if (g->c_bf16) _mm256_mask_storeu_epi16((uint16_t *)g->c + at + j, mask, to_bf16(x));
            else _mm512_mask_storeu_ps((float *)g->c + at + j, mask, x);
        }
    }
}

/* Blocks as even as possible, at most `most`, a multiple of PANEL. */
static int64_t block_size(int64_t n, int64_t most, int64_t parts)
{
    int64_t count = up(n, most) / most;
    if (count < parts) count = parts;
    return up((n + count - 1) / count, PANEL);
}

TARGET static void multiply_block(const struct gemm_bf16 *g, const uint8_t *pa, const uint8_t *pb, float *block, int64_t row0,
                                  int64_t column0, int64_t rows, int64_t columns)
{
    int64_t k32 = up(g->k, 32), panel = k32 * PANEL * 2, parts = (k32 + KC - 1) / KC, kc = up((k32 + parts - 1) / parts, 32);
    for (int64_t k0 = 0; k0 < k32; k0 += kc) {
        int64_t steps = (k32 - k0 < kc ? k32 - k0 : kc) / 32, at = k0 / 32 * STEP_BYTES;
        for (int64_t j = 0; j < columns; j += PANEL)
            for (int64_t i = 0; i < rows; i += PANEL)
                micro(pa + (row0 + i) / PANEL * panel + at, pb + (column0 + j) / PANEL * panel + at, block + (j / PANEL * (MC / PANEL) + i / PANEL) * (PANEL * PANEL), steps, k0 > 0);
    }
    write_block(g, block, row0, column0, rows, columns);
}

TARGET void gemm_amx(const struct gemm_bf16 *g, void *workspace, int threads)
{
    int64_t k32 = up(g->k, 32), panel = k32 * PANEL * 2, panels_a = up(g->m, PANEL) / PANEL, panels_b = up(g->n, PANEL) / PANEL;
    uint8_t *pa = workspace, *pb = pa + panels_a * panel;
    float *blocks = (float *)(void *)(pb + panels_b * panel);
    int64_t mc = block_size(g->m, MC, threads > 1 && g->m > 4 * PANEL ? 2 : 1), nc = block_size(g->n, NC, 1);
    int64_t grid_m = (g->m + mc - 1) / mc, grid_n = (g->n + nc - 1) / nc;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < panels_a; i++)
            pack_panel(g->transpose_a ? g->a + i * PANEL : g->a + i * PANEL * g->lda, g->lda, !g->transpose_a, 0,
                       g->m - i * PANEL < PANEL ? g->m - i * PANEL : PANEL, g->k, pa + i * panel);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < panels_b; j++)
            pack_panel(g->transpose_b ? g->b + j * PANEL * g->ldb : g->b + j * PANEL, g->ldb, g->transpose_b, 1,
                       g->n - j * PANEL < PANEL ? g->n - j * PANEL : PANEL, g->k, pb + j * panel);
        tiles_on();
#ifdef _OPENMP
        float *block = blocks + (int64_t)omp_get_thread_num() * MC * NC;
#else
        float *block = blocks;
#endif
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < grid_m * grid_n; b++) {
            int64_t row0 = b % grid_m * mc, column0 = b / grid_m * nc;
            multiply_block(g, pa, pb, block, row0, column0, g->m - row0 < mc ? g->m - row0 : mc, g->n - column0 < nc ? g->n - column0 : nc);
        }
        _tile_release();
    }
}

#else

int gemm_amx_available(void) { return 0; }
size_t gemm_amx_workspace(int64_t m, int64_t n, int64_t k, int threads)
{
    (void)m, (void)n, (void)k, (void)threads;
    return 0;
}
void gemm_amx(const struct gemm_bf16 *g, void *workspace, int threads) { (void)g, (void)workspace, (void)threads; }

#endif
