/* Inside kernels/cpu: packing of operands into words (tile.h), for the instruction set being compiled.
 * Tensors are float or bf16. Words are floats, or pairs of bf16 that are adjacent along the inner dimension.
 * Padding is zero.
 *
 * Each function packs rows x columns elements from element `at` of x, with `stride` elements between rows. */
#ifndef MEOPT_KERNELS_CPU_PACK_H
#define MEOPT_KERNELS_CPU_PACK_H

#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector.h"
#ifdef __AVX512F__
#include "kernels/cpu/avx512.h"
#elif defined(__SSE__)
#include <xmmintrin.h>
#endif

struct source {
    int bf16, pairs; /* the tensor's type; the words' type, only with bf16 */
    const void *x;
    int64_t at, stride, rows, columns;
};

static inline struct source source_from(struct source s, int64_t row, int64_t column, int64_t rows,
                                        int64_t columns)
{
    s.at += row * s.stride + column;
    s.rows = rows;
    s.columns = columns;
    return s;
}

/* pack_rows: the inner dimension is contiguous; `wide` words per row, ld words between rows.
 * pack_down: the inner dimension runs down the rows; each row (with pairs: two rows) becomes `wide` words.
 * pack_transposed: transposes a contiguous inner dimension to run down: `deep` rows of `tall` words, which is
 * a multiple of 16 (4 without AVX-512) and at least `rows`. Always inlined: 4 % of an AVX2 GEMM's time. */

#ifdef __AVX512F__

/* Loads 16 words from column `c` of a row. */
static inline __m512i load_words(const struct source *s, int64_t row, int64_t c)
{
    int64_t at = s->at + row * s->stride + c, left = s->columns - c;
    if (s->pairs) {
        __mmask32 mask = left >= 32 ? 0xffffffffu : left < 1 ? 0 : (1u << left) - 1;
        return _mm512_maskz_loadu_epi16(mask, (const uint16_t *)s->x + at);
    }
    return _mm512_castps_si512(load16(s->bf16, s->x, at, mask16(left)));
}

static inline void pack_rows(const struct source *s, int64_t wide, word *to, int64_t ld)
{
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t w = 0; w < wide; w += 16)
            _mm512_mask_storeu_epi32(to + r * ld + w, mask16(wide - w), load_words(s, r, w << s->pairs));
}

static inline void pack_down(const struct source *s, int64_t wide, word *to, int64_t ld)
{
    if (!s->pairs) {
        pack_rows(s, wide, to, ld);
        return;
    }
    for (int64_t r = 0; r < s->rows; r += 2)
        for (int64_t c = 0; c < wide; c += 16) {
            __mmask16 mask = mask16(s->columns - c), other = r + 1 < s->rows ? mask : 0;
            const uint16_t *from = (const uint16_t *)s->x + s->at + r * s->stride + c;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)),
                    high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(other, from + s->stride));
            _mm512_mask_storeu_epi32(to + r / 2 * ld + c, mask16(wide - c),
                                     _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

/* Loads and transposes 16 columns of 16 words. Missing rows are 0. */
static inline void load_columns(const struct source *s, int64_t r, int64_t c, __m512i block[16])
{
    for (int64_t i = 0; i < 16; i++)
        block[i] = r + i < s->rows ? load_words(s, r + i, c) : _mm512_setzero_si512();
    transpose16(block);
}

/* Transposes bf16 in pairs and widens afterwards: half the exchanges. */
INLINE void pack_transposed(const struct source *s, int64_t deep, int64_t tall, word *to, int64_t ld)
{
    int widen = s->bf16 && !s->pairs;
    struct source both = *s;
    both.pairs = s->bf16;
    for (int64_t r = 0; r < tall; r += 16)
        for (int64_t w = 0; w < deep; w += 16 << widen) {
            __m512i block[16];
            word *out = to + w * ld + r;
            load_columns(&both, r, w << s->pairs, block);
            if (widen)
                for (int64_t i = 0; i < 16 && w + 2 * i < deep; i++, out += 2 * ld) {
                    _mm512_storeu_si512(out, _mm512_slli_epi32(block[i], 16));
                    if (w + 2 * i + 1 < deep)
                        _mm512_storeu_si512(out + ld, _mm512_and_si512(block[i], _mm512_set1_epi32(-65536)));
                }
            else
                for (int64_t i = 0; i < 16 && w + i < deep; i++) _mm512_storeu_si512(out + i * ld, block[i]);
        }
}

#else

static inline void pack_rows(const struct source *s, int64_t wide, word *to, int64_t ld)
{
    for (int64_t r = 0; r < s->rows; r++, to += ld) {
        int64_t at = s->at + r * s->stride,
                count = s->columns < wide << s->pairs ? s->columns : wide << s->pairs;
        if (s->pairs) {
            memset(to, 0, (size_t)wide * sizeof *to);
            memcpy(to, (const uint16_t *)s->x + at, (size_t)count * sizeof(uint16_t));
            continue;
        }
        if (s->bf16) {
            const uint16_t *from = (const uint16_t *)s->x + at;
            float *out = to;
            SIMD for (int64_t c = 0; c < count; c++) out[c] = widen_one(from[c]);
        } else memcpy(to, (const float *)s->x + at, (size_t)count * sizeof *to);
        memset(to + count, 0, (size_t)(wide - count) * sizeof *to);
    }
}

static inline void pack_down(const struct source *s, int64_t wide, word *to, int64_t ld)
{
    if (!s->pairs) {
        pack_rows(s, wide, to, ld);
        return;
    }
    int64_t count = s->columns < wide ? s->columns : wide;
    for (int64_t r = 0; r < s->rows; r += 2, to += ld) {
        const uint16_t *upper = (const uint16_t *)s->x + s->at + r * s->stride, *lower = upper + s->stride;
        uint32_t *out = (uint32_t *)(void *)to;
        if (r + 1 < s->rows)
            SIMD for (int64_t c = 0; c < count; c++) out[c] = upper[c] | (uint32_t)lower[c] << 16;
        else SIMD for (int64_t c = 0; c < count; c++) out[c] = upper[c];
        memset(to + count, 0, (size_t)(wide - count) * sizeof *to);
    }
}

INLINE void pack_transposed(const struct source *s, int64_t deep, int64_t tall, word *to, int64_t ld)
{
    enum { SPAN = 64 };
    word four[4][SPAN];
    for (int64_t r = 0; r < tall; r += 4)
        for (int64_t w = 0; w < deep; w += SPAN) {
            int64_t left = s->rows - r,
                    rows = left < 0   ? 0
                           : left < 4 ? left
                                      : 4,
                    all = s->columns - (w << s->pairs),
                    columns = all < SPAN << s->pairs ? all : SPAN << s->pairs,
                    wide = deep - w < SPAN ? deep - w : SPAN;
            struct source part = source_from(*s, r, w << s->pairs, rows, columns < 0 ? 0 : columns);
            if (rows < 4) memset(four, 0, sizeof four);
            pack_rows(&part, (wide + 3) & ~(int64_t)3, four[0], SPAN);
#ifdef __SSE__
            for (int64_t c = 0; c + 4 <= wide; c += 4) {
                __m128 x0 = _mm_loadu_ps(four[0] + c), x1 = _mm_loadu_ps(four[1] + c),
                       x2 = _mm_loadu_ps(four[2] + c), x3 = _mm_loadu_ps(four[3] + c);
                float *out = to + (w + c) * ld + r;
                _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
                _mm_storeu_ps(out, x0);
                _mm_storeu_ps(out + ld, x1);
                _mm_storeu_ps(out + 2 * ld, x2);
                _mm_storeu_ps(out + 3 * ld, x3);
            }
            for (int64_t c = wide & ~(int64_t)3; c < wide; c++)
#else
            for (int64_t c = 0; c < wide; c++)
#endif
                for (int64_t i = 0; i < 4; i++) to[(w + c) * ld + r + i] = four[i][c];
        }
}

#endif

#endif
