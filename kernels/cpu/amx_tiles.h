/* Inside kernels/cpu: Intel AMX tiles for bf16 GEMM. Packs operands into tiles, and multiplies two panels.
 *
 * Tile layouts: A 16 rows x 32 columns of bf16. B 16 rows of pairs: row r holds (b[2r][j], b[2r+1][j]) for 16
 * columns j. A panel is PANEL rows of op(A) or columns of op(B); it is stored as two tiles for each 32 of the
 * inner dimension (a step), zeros after the edges. */
#ifndef MEOPT_KERNELS_CPU_AMX_TILES_H
#define MEOPT_KERNELS_CPU_AMX_TILES_H

#include "kernels/cpu/avx512.h"

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

enum { PANEL = 32, TILE_BYTES = 1024, STEP_BYTES = 2 * TILE_BYTES };

static inline int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* Loads 16 rows of 32 bf16 with a contiguous inner dimension as tile rows. Prefetches the line of each row
 * that is needed AHEAD steps later: the hardware prefetcher does not follow 16 streams. */
enum { AHEAD = 8 };
TARGET static inline void read_rows(const uint16_t *p, int64_t stride, int64_t rows, int64_t columns,
                                    __m512i r[16])
{
    __mmask32 mask = columns >= 32 ? 0xffffffffu : (1u << columns) - 1;
    for (int i = 0; i < 16; i++) {
        r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, p + i * stride) : _mm512_setzero_si512();
        if (i < rows) _mm_prefetch((const char *)(p + i * stride + 32 * AHEAD), _MM_HINT_T0);
    }
}

/* Loads 32 rows of 32 bf16 with the inner dimension down the rows. Interleaves two rows to 32 pairs, the
 * first 16 in r[0..15], the others in r[16..31]. */
TARGET static inline void read_pairs(const uint16_t *p, int64_t stride, int64_t rows, int64_t columns,
                                     __m512i r[32])
{
    __mmask32 mask = columns >= 32 ? 0xffffffffu : (1u << columns) - 1;
    /* unpack works within 128 bits: permute the quarters so that its results are in order */
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (int i = 0; i < 16; i++) {
        __m512i lo =
            2 * i < rows ? _mm512_maskz_loadu_epi16(mask, p + 2 * i * stride) : _mm512_setzero_si512();
        __m512i hi = 2 * i + 1 < rows ? _mm512_maskz_loadu_epi16(mask, p + (2 * i + 1) * stride)
                                      : _mm512_setzero_si512();
        lo = _mm512_permutexvar_epi64(order, lo);
        hi = _mm512_permutexvar_epi64(order, hi);
        r[i] = _mm512_unpacklo_epi16(lo, hi);
        r[16 + i] = _mm512_unpackhi_epi16(lo, hi);
    }
}

/* Packs one step of a panel: PANEL rows of op(A), or columns of op(B), by 32 of the inner dimension, as two
 * tiles. `along`: the inner dimension runs along memory (A plain, B transposed). b: pair layout. */
TARGET static inline void pack_step(const uint16_t *p, int64_t stride, int along, int b, int64_t outer,
                                    int64_t depth, uint8_t *to)
{
    __m512i r[32];
    if (!along) {
        read_pairs(p, stride, depth, outer, r);
        if (!b) {
            transpose16(r);
            transpose16(r + 16);
        }
        for (int i = 0; i < 32; i++) _mm512_store_si512((void *)(to + 64 * i), r[i]);
        return;
    }
    for (int half = 0; half < 2; half++) {
        read_rows(p + 16 * half * stride, stride, outer - 16 * half, depth, r);
        if (b) transpose16(r);
        for (int i = 0; i < 16; i++) _mm512_store_si512((void *)(to + TILE_BYTES * half + 64 * i), r[i]);
    }
}

/* Packs panels from `first` to `last` and steps from `k0` to `k1` of an operand, in the order of memory. */
TARGET static inline void pack(const uint16_t *p, int64_t stride, int along, int b, int64_t outer, int64_t k,
                               int64_t panel_bytes, int64_t first, int64_t last, int64_t k0, int64_t k1,
                               uint8_t *to)
{
    int64_t panel_stride = along ? PANEL * stride : PANEL, k_stride = along ? 1 : stride;
    for (int64_t at = k0; at < k1; at += 32)
        for (int64_t i = first; i < last; i++) {
            const uint16_t *from = p + i * panel_stride + at * k_stride;
            uint8_t *out = to + i * panel_bytes + at / 32 * STEP_BYTES;
            if (outer - i * PANEL >= PANEL && k - at >= 32) {
                if (along) pack_step(from, stride, 1, b, PANEL, 32, out);
                else pack_step(from, stride, 0, b, PANEL, 32, out);
            } else pack_step(from, stride, along, b, outer - i * PANEL, k - at, out);
        }
}

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

TARGET static inline void tiles_on(void)
{
    static const struct tile_config config = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

/* c, four tiles of 16 x 16 floats (upper left, upper right, lower left, lower right): = or += the product of
 * two panels over `steps` times 32. */
TARGET static inline void micro(const uint8_t *a, const uint8_t *b, float *c, int64_t steps, int add)
{
    enum { bytes = 64 };
    __asm__ volatile("" ::: "memory"); /* gcc 12 does not know that tile loads read memory */
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

#endif
