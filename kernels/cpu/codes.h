/* Inside kernels/cpu: products of bf16 by whole numbers, for the instruction set that is being compiled.
 *
 * A processor without a matrix unit multiplies 16-bit whole numbers at twice the rate of floats (VNNI's
 * vpdpwssd) or half as fast again (AVX2's vpmaddwd and vpaddd). So a pair of bf16 (product.h) becomes a pair
 * of codes: CODE_WORDS words of a row of A, or of a column of B, share a unit u, a power of two with 2^11 u
 * <= largest |x| < 2^12 u, and x is taken as u times the nearest whole number (ties to even). A bf16 has 8
 * bits, so what is at least a sixteenth of the largest is exact; anything else is wrong by at most u / 2,
 * largest / 4096. 128 products of codes below 2^12 have an exact sum in 32 bits. It is scaled by both units
 * and added to the sum of floats:
 *
 *     |error of c_ij| <= sum over k of (u_a |b_kj| + u_b |a_ik| + u_a u_b / 2) / 2  and fp32's of k / 128
 * sums
 *
 * (block floating point: Wilkinson, "Rounding Errors in Algebraic Processes", 1963; Drumond et al., "Training
 * DNNs with Hybrid Block Floating Point", arXiv 1804.01526). Beside what rounding the operands to bf16 cost,
 * up to largest / 512, this is small, but where one of a block is a hundred times the others in one operand
 * and little in the other: then nothing hides it (tests/bench/RESULTS.md, "What they lose"). An infinity or
 * NaN makes all sums of its block NaN. Blocks whose largest is below 2^-115 keep fewer bits. */
#ifndef MEOPT_KERNELS_CPU_CODES_H
#define MEOPT_KERNELS_CPU_CODES_H

#include "kernels/cpu/product.h"
#include "kernels/cpu/vector.h"

enum { CODE_WORDS = 64, PANEL = LANES * VECTORS };

/* CPU_FLOATS: a set without, where whole numbers are slow (select.c) */
#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__) ||                                                   \
    defined(__AVX2__) && !defined(__AVX512F__) && !defined(CPU_FLOATS)
#include <immintrin.h>
enum { HAS_CODES = 1 };

#ifdef __AVX512F__
typedef __m512i ints;
INLINE ints load_ints(const word *p) { return _mm512_loadu_si512(p); }
INLINE void store_ints(word *p, ints x) { _mm512_storeu_si512(p, x); }
INLINE ints dot(const word *a, ints b, ints sum)
{
    ints x = _mm512_set1_epi32(*(const int *)(const void *)a);
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(b)); /* gcc 12 copies the sums of the intrinsic */
    return sum;
}
INLINE lanes to_floats(ints x) { return (lanes)_mm512_cvtepi32_ps(x); }
/* the larger magnitudes, 16 bits each */
INLINE ints larger(ints top, ints x)
{
    return _mm512_max_epu16(top, _mm512_and_si512(x, _mm512_set1_epi32(0x7fff7fff)));
}
/* pairs of bf16 to pairs of codes */
INLINE ints code_pairs(ints x, lanes up)
{
    __m512 low = (__m512)_mm512_slli_epi32(x, 16),
           high = (__m512)_mm512_and_si512(x, _mm512_set1_epi32(-65536));
    ints l = _mm512_cvtps_epi32(_mm512_mul_ps(low, (__m512)up)),
         h = _mm512_cvtps_epi32(_mm512_mul_ps(high, (__m512)up));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, l, _mm512_slli_epi32(h, 16));
}
#else
typedef __m256i ints;
INLINE ints load_ints(const word *p) { return _mm256_loadu_si256((const void *)p); }
INLINE void store_ints(word *p, ints x) { _mm256_storeu_si256((void *)p, x); }
INLINE ints dot(const word *a, ints b, ints sum)
{
    ints x = _mm256_set1_epi32(*(const int *)(const void *)a);
#ifdef __AVXVNNI__
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(b));
#else
    ints product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x), "x"(b));
#endif
    return sum;
}
INLINE lanes to_floats(ints x) { return (lanes)_mm256_cvtepi32_ps(x); }
INLINE ints larger(ints top, ints x)
{
    return _mm256_max_epu16(top, _mm256_and_si256(x, _mm256_set1_epi32(0x7fff7fff)));
}
INLINE ints code_pairs(ints x, lanes up)
{
    __m256 low = (__m256)_mm256_slli_epi32(x, 16),
           high = (__m256)_mm256_and_si256(x, _mm256_set1_epi32(-65536));
    ints l = _mm256_cvtps_epi32(_mm256_mul_ps(low, (__m256)up)),
         h = _mm256_cvtps_epi32(_mm256_mul_ps(high, (__m256)up));
    return _mm256_blend_epi16(l, _mm256_slli_epi32(h, 16), 0xaa);
}
#endif

/* ---- Coding -------------------------------------------------------------------------------------------- */

/* The unit of a block and its inverse, by the bits of the largest magnitude. Zeros have unit 0: the product
 * of a tiny one with another is a number without leading bit, which takes processors a hundred cycles. */
INLINE float unit_of(uint32_t top)
{
    uint32_t exponent = top >> 7;
    if (top == 0) return 0;
    if (exponent == 255) return float_one(0x7fc00000);
    return float_one((exponent < 12 ? 1 : exponent - 11) << 23);
}
INLINE float inverse_of(uint32_t top)
{
    uint32_t exponent = top >> 7;
    return float_one((265 - (exponent < 12 ? 12 : exponent)) << 23);
}

/* `count` times n vectors, all of one `count` n LANES words apart from the next: their largest magnitudes */
INLINE void find_tops(const word *x, int n, int64_t step, int64_t count, uint32_t *tops)
{
    ints top[VECTORS > 3 ? VECTORS : 3];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) top[v] = (ints){0};
    for (int64_t i = 0; i < count; i++, x += step)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) top[v] = larger(top[v], load_ints(x + v * LANES));
    for (int v = 0; v < n; v++) {
        uint32_t both[LANES];
        memcpy(both, &top[v], sizeof both);
        SIMD for (int l = 0; l < LANES; l++)
        {
            uint32_t low = both[l] & 0xffff, high = both[l] >> 16;
            tops[v * LANES + l] = low > high ? low : high;
        }
    }
}

INLINE void code_words(word *x, int n, int64_t step, int64_t count, const float *inverse)
{
    lanes up[VECTORS > 3 ? VECTORS : 3];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) up[v] = load_lanes(inverse + v * LANES);
    for (int64_t i = 0; i < count; i++, x += step)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) store_ints(x + v * LANES, code_pairs(load_ints(x + v * LANES), up[v]));
}

/* CODE_WORDS words of one row. Returns their unit. */
INLINE float code_row(word *x)
{
    uint32_t tops[LANES], top = 0;
    float inverse[LANES];
    find_tops(x, 1, LANES, CODE_WORDS / LANES, tops);
    for (int l = 0; l < LANES; l++) top = tops[l] > top ? tops[l] : top;
    for (int l = 0; l < LANES; l++) inverse[l] = inverse_of(top);
    code_words(x, 1, LANES, CODE_WORDS / LANES, inverse);
    return unit_of(top);
}

/* CODE_WORDS words of ROWS rows, word by word of depth: in three vectors each lane has its row. */
INLINE void code_group(word *x, float units[ROWS])
{
    enum { CYCLE = 3 * LANES };
    uint32_t tops[CYCLE], top[ROWS] = {0};
    float inverse[CYCLE];
    find_tops(x, 3, CYCLE, CODE_WORDS * ROWS / CYCLE, tops);
    for (int l = 0; l < CYCLE; l++) top[l % ROWS] = tops[l] > top[l % ROWS] ? tops[l] : top[l % ROWS];
    for (int r = 0; r < ROWS; r++) units[r] = unit_of(top[r]);
    for (int l = 0; l < CYCLE; l++) inverse[l] = inverse_of(top[l % ROWS]);
    code_words(x, 3, CYCLE, CODE_WORDS * ROWS / CYCLE, inverse);
}

/* A panel of B, `depth` words by PANEL columns: units (blocks, PANEL) */
static inline void code_panel(word *x, int64_t depth, float *units)
{
    for (int64_t p = 0; p < depth; p += CODE_WORDS, x += CODE_WORDS * PANEL, units += PANEL) {
        int64_t count = depth - p < CODE_WORDS ? depth - p : CODE_WORDS;
        uint32_t tops[PANEL];
        float inverse[PANEL];
        find_tops(x, VECTORS, PANEL, count, tops);
        for (int c = 0; c < PANEL; c++) {
            units[c] = unit_of(tops[c]);
            inverse[c] = inverse_of(tops[c]);
        }
        code_words(x, VECTORS, PANEL, count, inverse);
    }
}

/* `rows` rows of `depth` words: word (r, p) at x[r * row + p * step], either step or row is 1 and the other
 * `depth` or ROWS. Units (blocks, ROWS). */
static inline void code_rows(word *x, int64_t rows, int64_t depth, int grouped, float *units)
{
    word few[CODE_WORDS * ROWS] = {0};
    for (int64_t p = 0; p < depth; p += CODE_WORDS, units += ROWS) {
        int64_t count = depth - p < CODE_WORDS ? depth - p : CODE_WORDS;
        bool whole = count == CODE_WORDS;
        if (grouped) {
            word *at = x + p * ROWS;
            size_t bytes = (size_t)(count * ROWS) * sizeof *few;
            if (!whole) memcpy(few, at, bytes);
            code_group(whole ? at : few, units);
            if (!whole) memcpy(at, few, bytes);
        } else
            for (int64_t r = 0; r < rows; r++) {
                word *at = x + r * depth + p;
                size_t bytes = (size_t)count * sizeof *few;
                if (!whole) memcpy(few, at, bytes);
                units[r] = code_row(whole ? at : few);
                if (!whole) memcpy(at, few, bytes);
            }
    }
}

/* ---- The product --------------------------------------------------------------------------------------- */

/* As tile of product.h; units of A (blocks, ROWS), of B (blocks, PANEL). */
INLINE void coded_tile(int rows, const word *a, int64_t row, int64_t step, const float *a_units,
                       const word *b, const float *b_units, float *c, int64_t depth, int add,
                       const struct fetch *fetch)
{
    for (int64_t p = 0, stop, at = 0; p < depth; p = stop, a_units += ROWS, b_units += PANEL, add = 1) {
        ints sum[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) sum[i][j] = (ints){0};
        stop = p + CODE_WORDS < depth ? p + CODE_WORDS : depth;
        for (int64_t q = p, until; q < stop; q = until, at += FETCH) {
            until = FETCH_INSIDE && q + FETCH_EVERY < stop ? q + FETCH_EVERY : stop;
            if (FETCH_INSIDE && at + FETCH <= fetch->count)
                for (int i = 0; i < FETCH; i++) __builtin_prefetch(fetch->lines[at + i], 0, 2);
            for (int64_t w = q; w < until; w++, a += step, b += PANEL) {
                ints v[VECTORS];
#pragma GCC unroll 8
                for (int j = 0; j < VECTORS; j++) v[j] = load_ints(b + j * LANES);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
                    for (int j = 0; j < VECTORS; j++) sum[i][j] = dot(a + i * row, v[j], sum[i][j]);
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            lanes unit = load_lanes(b_units + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                float *to = c + i * PANEL + j * LANES;
                lanes before = add ? load_lanes(to) : (lanes){0};
                *(words *)(void *)to = (words)(before + to_floats(sum[i][j]) * (a_units[i] * unit));
            }
        }
    }
}

INLINE void coded_tile_of_rows(int rows, const word *a, int64_t row, int64_t step, const float *a_units,
                               const word *b, const float *b_units, float *c, int64_t depth, int add,
                               const struct fetch *fetch)
{
#define TILE(r) coded_tile(r, a, row, step, a_units, b, b_units, c, depth, add, fetch)
    switch (rows) {
    case 1: TILE(1); break;
    case 2: TILE(2); break;
    case 3: TILE(3); break;
    case 4: TILE(4); break;
    case 5: TILE(5); break;
    default: TILE(ROWS);
    }
#undef TILE
}

#else
enum { HAS_CODES = 0 };
static inline void code_panel(word *x, int64_t depth, float *units) { (void)x, (void)depth, (void)units; }
static inline void code_rows(word *x, int64_t rows, int64_t depth, int grouped, float *units)
{
    (void)rows, (void)grouped;
    code_panel(x, depth, units);
}
INLINE void coded_tile_of_rows(int rows, const word *a, int64_t row, int64_t step, const float *a_units,
                               const word *b, const float *b_units, float *c, int64_t depth, int add,
                               const struct fetch *fetch)
{
    (void)rows, (void)a, (void)row, (void)step, (void)a_units, (void)b, (void)b_units, (void)c, (void)depth,
        (void)add, (void)fetch;
}
#endif

#endif
