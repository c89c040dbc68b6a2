/* Inside kernels/cpu: the integer GEMM of bf16 operands (block floating point), for the instruction set
 * that is being compiled.
 *
 * A CPU without a matrix unit multiplies 16-bit integers at twice the rate of floats (VNNI: vpdpwssd) or at
 * 1.5 times that rate (AVX2: vpmaddwd and vpaddd). So each pair of bf16 (tile.h) becomes a pair of
 * 16-bit integers, called codes. BFP_WORDS pairs of a row of A, or of a column of B, are a block x with
 * one scale u. x_k is replaced by u times the nearest integer (ties to even), with an error of at most u /
 * 2. The scale is the smallest power of two with
 *
 *     |x|^2 = sum over k of x_k^2 < 2^30 u^2
 *
 * By Cauchy and Schwarz every sum of products of codes then fits in 32 bits, and is exact. It is multiplied
 * by both scales and added to the fp32 sum:
 *
 *     |error of c_ij| <= sum over k of (u_a |b_kj| + u_b |a_ik| + u_a u_b / 2) / 2
 *                        and the rounding of k / 128 sums in fp32
 *
 * Sources: Wilkinson, "Rounding Errors in Algebraic Processes", 1963; Drumond et al., "Training DNNs with
 * Hybrid Block Floating Point", arXiv 1804.01526.
 *
 *   - A bf16 has 8 bits, so elements of at least 2^7 u are exact.
 *   - If all elements of a block have the same magnitude, u is at most largest / 1448. Normal numbers: about
 *     largest / 5000. One element much larger than the others: largest / 16384.
 *   - A scale from the largest element alone would have to fit a block full of such elements. Next to one
 *     channel or token of 5,000 times the others, the 127 others were lost, all in the same direction.
 *   - The error is small next to that of rounding the operands to bf16 (up to largest / 512), unless A is
 *     large at a k where B is small. Tiles where that happens are multiplied as floats (Outliers, below;
 *     gemm.c).
 *   - An infinity or NaN makes all sums of its block NaN.
 *   - A block with |x| below 2^-60, or from 2^60 on, has 2^11 u <= largest < 2^12 u, and fewer bits below
 *     2^-115. */
#ifndef MEOPT_KERNELS_CPU_BFP_H
#define MEOPT_KERNELS_CPU_BFP_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector.h"

enum { BFP_WORDS = GEMM_BLOCK, PANEL = LANES * VECTORS };

enum { HAS_BFP = CPU_BFP };
#if CPU_BFP
#include <immintrin.h>

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
/* Returns the larger magnitudes, 16 bits each. */
INLINE ints larger(ints top, ints x)
{
    return _mm512_max_epu16(top, _mm512_and_si512(x, _mm512_set1_epi32(0x7fff7fff)));
}
INLINE __m128i largest_eight(ints top)
{
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
    return _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
INLINE float sum_of(lanes x) { return _mm512_reduce_add_ps((__m512)x); }
/* Adds lane l + 8 to lane l. */
INLINE void eight_sums(lanes x, float *sums)
{
    _mm256_storeu_ps(sums,
                     _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1)));
}
INLINE bool any_outside(lanes x, float least, float end)
{
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NGE_UQ) |
           _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(end), _CMP_NLT_UQ);
}
INLINE lanes first_of(ints pairs) { return (lanes)_mm512_slli_epi32(pairs, 16); }
INLINE lanes second_of(ints pairs) { return (lanes)_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)); }
/* Converts pairs of bf16 to pairs of codes. */
INLINE ints bfp_pairs(ints x, lanes up)
{
    ints l = _mm512_cvtps_epi32((__m512)(first_of(x) * up)),
         h = _mm512_cvtps_epi32((__m512)(second_of(x) * up));
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
INLINE __m128i largest_eight(ints top)
{
    return _mm_max_epu16(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}
INLINE float sum_of(lanes x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1)),
           two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE void eight_sums(lanes x, float *sums) { _mm256_storeu_ps(sums, (__m256)x); }
INLINE bool any_outside(lanes x, float least, float end)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(least), _CMP_NGE_UQ),
                                           _mm256_cmp_ps((__m256)x, _mm256_set1_ps(end), _CMP_NLT_UQ)));
}
INLINE lanes first_of(ints pairs) { return (lanes)_mm256_slli_epi32(pairs, 16); }
INLINE lanes second_of(ints pairs) { return (lanes)_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)); }
INLINE ints bfp_pairs(ints x, lanes up)
{
    ints l = _mm256_cvtps_epi32((__m256)(first_of(x) * up)),
         h = _mm256_cvtps_epi32((__m256)(second_of(x) * up));
    return _mm256_blend_epi16(l, _mm256_slli_epi32(h, 16), 0xaa);
}
#endif

/* ---- Quantization -------------------------------------------------------------------------------------- */

/* Returns the biased exponent of the scale, from the sum of squares, or from the largest magnitude's bits if
 * the sum is outside fp32's range. Blocks of zeros have scale 0: a scale that makes denormal products would
 * cost a hundred cycles each. */
INLINE uint32_t scale_exponent(uint32_t top, float squares)
{
    uint32_t exponent = top >> 7, size = bits_one(squares) >> 23 & 255;
    return size >= 8 && size < 253 ? (size + 99) >> 1 : exponent < 12 ? top > 0 : exponent - 11;
}
INLINE float scale_of(uint32_t top, float squares)
{
    return float_one(top >> 7 == 255 ? 0x7fc00000 : scale_exponent(top, squares) << 23);
}
INLINE float inverse_scale(uint32_t top, float squares)
{
    return float_one((254 - scale_exponent(top, squares)) << 23);
}

/* Sums of squares from here to there determine the scale; others may contain underflow or overflow. */
static const float LEAST_SQUARES = 0x1p-119f, END_OF_SQUARES = 0x1p120f;

/* Returns the sum of squares of each lane, for n series of `count` vectors: `next` words from series to
 * series and `step` from vector to vector. */
INLINE void add_squares(const word *x, int n, int64_t next, int64_t step, int64_t count, lanes *squares)
{
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) squares[v] = (lanes){0};
    for (int64_t i = 0; i < count; i++, x += step)
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) {
            ints pairs = load_ints(x + v * next);
            squares[v] += first_of(pairs) * first_of(pairs);
            squares[v] += second_of(pairs) * second_of(pairs);
        }
}

/* Finds the largest magnitudes of each lane, for sums of squares that are out of range. */
static __attribute__((noinline, cold)) void find_tops(const word *x, int n, int64_t next, int64_t step,
                                                      int64_t count, ints *top)
{
    for (int v = 0; v < n; v++)
        for (int64_t i = 0; i < count; i++) top[v] = larger(top[v], load_ints(x + i * step + v * next));
}
INLINE void tops_where_needed(const word *x, int n, int64_t next, int64_t step, int64_t count,
                              const lanes *squares, ints *top)
{
    bool outside = false;
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) {
        top[v] = (ints){0};
        outside |= any_outside(squares[v], LEAST_SQUARES, END_OF_SQUARES);
    }
    if (outside) find_tops(x, n, next, step, count, top);
}

INLINE void bfp_words(word *x, int n, int64_t next, int64_t step, int64_t count, const lanes *up)
{
    for (int64_t i = 0; i < count; i++, x += step)
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) store_ints(x + v * next, bfp_pairs(load_ints(x + v * next), up[v]));
}

/* Returns the larger of each pair. */
INLINE void tops_of(ints pairs, uint32_t *tops)
{
    uint32_t both[LANES];
    memcpy(both, &pairs, sizeof both);
    SIMD for (int l = 0; l < LANES; l++)
    {
        uint32_t low = both[l] & 0xffff, high = both[l] >> 16;
        tops[l] = low > high ? low : high;
    }
}

/* Outliers. A block is coarse if its scale may be too large for its other elements. It is divided into
 * CLASSES classes of 16 elements, and is coarse if a quarter or more of its nonzero classes have
 *
 *     sum of squares < 16 (512 u)^2
 *
 * Codes of 2^7 and more are exact, so rounding normal numbers of 512 u to codes has a variance of P(|z| < 2^7
 * / 512) / 12 = 1 / 60, an error of 2.5e-4. The effect of a coarse block depends on the other operand, so
 * gemm.c checks the result (codes_accurate). Up to 6 outliers in a block are found at any position. */
enum { CLASSES = 8 };
static const float COARSE = 0x1p22f;

/* Returns the squared norm of a block's codes, negative if the block is coarse. */
INLINE float norm_of(uint32_t top, float squares, float inverse, int coarse)
{
    bool outside = !(squares >= LEAST_SQUARES && squares < END_OF_SQUARES) && top;
    float norm = outside ? 0x1p30f : squares * inverse * inverse;
    return coarse || outside ? -norm : norm;
}
/* Sets coarse[i] for n blocks with scales `scale`; `stride` from class to class. */
INLINE void find_coarse(int n, const float *classes, int stride, const float *scale, int *coarse)
{
    SIMD for (int i = 0; i < n; i++)
    {
        float least = COARSE * scale[i] * scale[i];
        int small = 0, seen = 0;
#pragma GCC unroll 8
        for (int c = 0; c < CLASSES; c++) {
            float sum = classes[c * stride + i];
            seen += sum > 0;
            small += sum > 0 && sum < least;
        }
        coarse[i] = small > 0 && 4 * small >= seen;
    }
}

enum { ROWS_WIDE = 8 }; /* ROWS, rounded up */
/* Computes the scales of rows. Returns whether a row is coarse. */
INLINE bool scale_rows(const uint32_t top[ROWS_WIDE], const float squares[ROWS_WIDE],
                       const float classes[CLASSES * ROWS_WIDE], float scales[ROWS], float norms[ROWS],
                       float inverse[ROWS_WIDE])
{
    float scale[ROWS_WIDE], norm[ROWS_WIDE];
    int coarse[ROWS_WIDE], any = 0;
    SIMD for (int r = 0; r < ROWS_WIDE; r++)
    {
        scale[r] = scale_of(top[r], squares[r]);
        inverse[r] = inverse_scale(top[r], squares[r]);
    }
    find_coarse(ROWS_WIDE, classes, ROWS_WIDE, scale, coarse);
    SIMD for (int r = 0; r < ROWS_WIDE; r++) norm[r] = norm_of(top[r], squares[r], inverse[r], coarse[r]);
    for (int r = 0; r < ROWS; r++) any |= norm[r] < 0;
    memcpy(scales, scale, ROWS * sizeof *scales);
    memcpy(norms, norm, ROWS * sizeof *norms);
    return any;
}

/* Quantizes BFP_WORDS words of ROWS rows, `row` words apart. A word's class is its index modulo 8. */
INLINE bool bfp_separate(word *x, int64_t row, float scales[ROWS], float norms[ROWS])
{
    ints top[ROWS];
    lanes squares[ROWS];
    uint32_t largest[ROWS_WIDE] = {0};
    float sum[ROWS_WIDE] = {0}, inverse[ROWS_WIDE], eight[ROWS_WIDE][CLASSES] = {{0}},
          classes[CLASSES * ROWS_WIDE];
    add_squares(x, ROWS, row, LANES, BFP_WORDS / LANES, squares);
    tops_where_needed(x, ROWS, row, LANES, BFP_WORDS / LANES, squares, top);
    for (int r = 0; r < ROWS; r++) {
        __m128i rest =
            _mm_xor_si128(largest_eight(top[r]), _mm_set1_epi16(-1)); /* minpos finds the minimum */
        largest[r] = 0xffff - (uint32_t)_mm_extract_epi16(_mm_minpos_epu16(rest), 0);
        sum[r] = sum_of(squares[r]);
        eight_sums(squares[r], eight[r]);
    }
    for (int c = 0; c < CLASSES; c++)
        for (int r = 0; r < ROWS_WIDE; r++) classes[c * ROWS_WIDE + r] = eight[r][c];
    bool coarse = scale_rows(largest, sum, classes, scales, norms, inverse);
    for (int r = 0; r < ROWS; r++) {
        lanes up = inverse[r] - (lanes){0};
        bfp_words(x + r * row, 1, 0, LANES, BFP_WORDS / LANES, &up);
    }
    return coarse;
}

/* Quantizes BFP_WORDS words of ROWS rows, interleaved word by word. In CYCLE words, which are whole vectors,
 * each lane belongs to one row and class. */
INLINE bool bfp_interleaved(word *x, float scales[ROWS], float norms[ROWS])
{
    enum { CYCLE = CLASSES * ROWS, SERIES = CYCLE / LANES, COUNT = BFP_WORDS / CLASSES };
    ints top[SERIES];
    lanes squares[SERIES], up[SERIES];
    uint32_t tops[CYCLE + ROWS_WIDE] = {0}, largest[ROWS_WIDE] = {0};
    float sums[CYCLE + ROWS_WIDE] = {0}, sum[ROWS_WIDE] = {0}, inverse[ROWS_WIDE], cycle[CYCLE + ROWS_WIDE],
                       classes[CLASSES * ROWS_WIDE];
    add_squares(x, SERIES, LANES, CYCLE, COUNT, squares);
    tops_where_needed(x, SERIES, LANES, CYCLE, COUNT, squares, top);
    for (int v = 0; v < SERIES; v++) tops_of(top[v], tops + v * LANES);
    memcpy(sums, squares, sizeof squares);
    for (int c = 0; c < CLASSES; c++) SIMD for (int r = 0; r < ROWS_WIDE; r++)
        {
            largest[r] = tops[c * ROWS + r] > largest[r] ? tops[c * ROWS + r] : largest[r];
            sum[r] += sums[c * ROWS + r];
            classes[c * ROWS_WIDE + r] = sums[c * ROWS + r];
        }
    bool coarse = scale_rows(largest, sum, classes, scales, norms, inverse);
    for (int l = 0; l < CYCLE; l += ROWS) /* the next copy overwrites the excess beyond ROWS */
        memcpy(cycle + l, inverse, sizeof inverse);
    memcpy(up, cycle, sizeof up);
    bfp_words(x, SERIES, LANES, CYCLE, COUNT, up);
    return coarse;
}

/* Quantizes a panel of B, `depth` words by PANEL columns. Scales and norms: (blocks, PANEL). Classes are
 * contiguous. Returns the coarse blocks, a bit for each. */
static inline unsigned bfp_panel(word *x, int64_t depth, float *scales, float *norms)
{
    unsigned coarse = 0, block = 1;
    for (int64_t p = 0; p < depth;
         p += BFP_WORDS, x += BFP_WORDS * PANEL, scales += PANEL, norms += PANEL, block <<= 1) {
        int64_t count = depth - p < BFP_WORDS ? depth - p : BFP_WORDS;
        ints top[VECTORS];
        lanes squares[VECTORS], class[CLASSES][VECTORS], up[VECTORS];
        uint32_t tops[PANEL];
        float sums[PANEL], inverse[PANEL], classes[CLASSES * PANEL];
        int each[PANEL], any = 0;
        for (int v = 0; v < VECTORS; v++) squares[v] = (lanes){0};
        for (int64_t c = 0; c < CLASSES; c++) {
            int64_t from = count * c / CLASSES, to = count * (c + 1) / CLASSES;
            add_squares(x + from * PANEL, VECTORS, LANES, PANEL, to - from, class[c]);
            for (int v = 0; v < VECTORS; v++) squares[v] += class[c][v];
        }
        tops_where_needed(x, VECTORS, LANES, PANEL, count, squares, top);
        for (int v = 0; v < VECTORS; v++) tops_of(top[v], tops + v * LANES);
        memcpy(sums, squares, sizeof squares);
        memcpy(classes, class, sizeof class);
        SIMD for (int c = 0; c < PANEL; c++)
        {
            scales[c] = scale_of(tops[c], sums[c]);
            inverse[c] = inverse_scale(tops[c], sums[c]);
        }
        find_coarse(PANEL, classes, PANEL, scales, each);
        SIMD for (int c = 0; c < PANEL; c++)
        {
            norms[c] = norm_of(tops[c], sums[c], inverse[c], each[c]);
            any |= norms[c] < 0;
        }
        if (any) coarse |= block;
        memcpy(up, inverse, sizeof up);
        bfp_words(x, VECTORS, LANES, PANEL, count, up);
    }
    return coarse;
}

/* Quantizes `rows` rows of `depth` words. Word (r, p) is x[r * row + p * step]: row 1 and step ROWS if
 * interleaved, else row `depth` and step 1. Scales and norms: (blocks, ROWS). Returns the coarse blocks, a
 * bit for each. */
static inline unsigned bfp_rows(word *x, int64_t rows, int64_t depth, int interleaved, float *scales,
                                float *norms)
{
    word copy[BFP_WORDS * ROWS] = {0};
    unsigned coarse = 0, block = 1;
    for (int64_t p = 0; p < depth; p += BFP_WORDS, scales += ROWS, norms += ROWS, block <<= 1) {
        int64_t count = depth - p < BFP_WORDS ? depth - p : BFP_WORDS;
        bool whole = count == BFP_WORDS, any;
        if (interleaved) {
            word *at = x + p * ROWS;
            size_t bytes = (size_t)(count * ROWS) * sizeof *copy;
            if (!whole) memcpy(copy, at, bytes);
            any = bfp_interleaved(whole ? at : copy, scales, norms);
            if (!whole) memcpy(at, copy, bytes);
        } else if (whole && rows == ROWS) any = bfp_separate(x + p, depth, scales, norms);
        else {
            size_t bytes = (size_t)count * sizeof *copy;
            if (!whole) memset(copy, 0, sizeof copy); /* clear the words after the end */
            for (int64_t r = 0; r < rows; r++) memcpy(copy + r * BFP_WORDS, x + r * depth + p, bytes);
            any = bfp_separate(copy, BFP_WORDS, scales, norms);
            for (int64_t r = 0; r < rows; r++) memcpy(x + r * depth + p, copy + r * BFP_WORDS, bytes);
        }
        if (any) coarse |= block;
    }
    return coarse;
}

/* ---- Multiplication ------------------------------------------------------------------------------------ */

/* As tile() of tile.h. Scales of A: (blocks, ROWS), of B: (blocks, PANEL). */
INLINE void bfp_tile(int rows, const word *a, int64_t row, int64_t step, const float *a_scales, const word *b,
                     const float *b_scales, float *c, int64_t depth, int add, const struct fetch *fetch)
{
    for (int64_t p = 0, stop, at = 0; p < depth; p = stop, a_scales += ROWS, b_scales += PANEL, add = 1) {
        ints sum[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) sum[i][j] = (ints){0};
        stop = p + BFP_WORDS < depth ? p + BFP_WORDS : depth;
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
            lanes scale = load_lanes(b_scales + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                float *to = c + i * PANEL + j * LANES;
                lanes before = add ? load_lanes(to) : (lanes){0};
                *(words *)(void *)to = (words)(before + to_floats(sum[i][j]) * (a_scales[i] * scale));
            }
        }
    }
}

INLINE void bfp_tile_of_rows(int rows, const word *a, int64_t row, int64_t step, const float *a_scales,
                             const word *b, const float *b_scales, float *c, int64_t depth, int add,
                             const struct fetch *fetch)
{
#define TILE(r) bfp_tile(r, a, row, step, a_scales, b, b_scales, c, depth, add, fetch)
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
INLINE float sum_of(lanes x) { return x[0]; } /* never called */
static inline unsigned bfp_panel(word *x, int64_t depth, float *scales, float *norms)
{
    (void)x, (void)depth, (void)scales, (void)norms;
    return 0;
}
static inline unsigned bfp_rows(word *x, int64_t rows, int64_t depth, int interleaved, float *scales,
                                float *norms)
{
    (void)rows, (void)interleaved;
    return bfp_panel(x, depth, scales, norms);
}
INLINE void bfp_tile_of_rows(int rows, const word *a, int64_t row, int64_t step, const float *a_scales,
                             const word *b, const float *b_scales, float *c, int64_t depth, int add,
                             const struct fetch *fetch)
{
    (void)rows, (void)a, (void)row, (void)step, (void)a_scales, (void)b, (void)b_scales, (void)c, (void)depth,
        (void)add, (void)fetch;
}
#endif

#endif
