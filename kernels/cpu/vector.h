/* Inside kernels/cpu: names per instruction set, rows of bf16, and inline functions that the compiler
 * vectorizes.
 *
 * An operation processes its rows in pieces of at most PIECE elements. bf16 is widened into a buffer of
 * floats on the stack (first-level cache), computed there, and narrowed back. Float rows are used in
 * place. */
#ifndef MEOPT_KERNELS_CPU_VECTOR_H
#define MEOPT_KERNELS_CPU_VECTOR_H

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"
#include "kernels/f16.h"
#include "kernels/operations.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { PIECE = 512 };
#define SIMD         _Pragma("omp simd")
#define PARALLEL_FOR _Pragma("omp parallel for schedule(static)")

static inline int64_t piece(int64_t n, int64_t at) { return n - at < PIECE ? n - at : PIECE; }

static inline uint32_t bits_one(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float float_one(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline float widen_one(uint16_t h) { return float_one((uint32_t)h << 16); }
static inline uint16_t narrow_one(float x) { return bf16_of_bits(bits_one(x)); }

/* narrow_one for many elements. Handling NaN is a third of its instructions; one comparison finds all NaN. */
#if defined(__AVX512F__)
static inline void narrow32(const float *values, uint16_t *to)
{
    const __m512i below = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1),
                  order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    __m512 x = _mm512_loadu_ps(values), y = _mm512_loadu_ps(values + 16);
    if (_mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q)) {
        for (int i = 0; i < 32; i++) to[i] = narrow_one(values[i]);
        return;
    }
    __m512i u = _mm512_castps_si512(x), v = _mm512_castps_si512(y);
    u = _mm512_add_epi32(_mm512_add_epi32(u, below), _mm512_and_si512(_mm512_srli_epi32(u, 16), one));
    v = _mm512_add_epi32(_mm512_add_epi32(v, below), _mm512_and_si512(_mm512_srli_epi32(v, 16), one));
    u = _mm512_packus_epi32(_mm512_srli_epi32(u, 16), _mm512_srli_epi32(v, 16));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, u));
}
#elif defined(__AVX2__)
static inline void narrow16(const float *values, uint16_t *to)
{
    const __m256i below = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    __m256 x = _mm256_loadu_ps(values), y = _mm256_loadu_ps(values + 8);
    if (_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_UNORD_Q))) {
        for (int i = 0; i < 16; i++) to[i] = narrow_one(values[i]);
        return;
    }
    __m256i u = _mm256_castps_si256(x), v = _mm256_castps_si256(y);
    u = _mm256_add_epi32(_mm256_add_epi32(u, below), _mm256_and_si256(_mm256_srli_epi32(u, 16), one));
    v = _mm256_add_epi32(_mm256_add_epi32(v, below), _mm256_and_si256(_mm256_srli_epi32(v, 16), one));
    u = _mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_srli_epi32(v, 16));
    _mm256_storeu_si256((void *)to, _mm256_permute4x64_epi64(u, 0xd8));
}
#endif

/* Returns how elements are stored: 0 float, 1 bf16, 2 fp16. Functions with a parameter `bf16` accept 0 and
 * 1. */
static inline int storage_of(enum dtype type) { return type == DTYPE_F16 ? 2 : type == DTYPE_BF16; }

/* Returns n elements from element `at` as floats, either in place or in `buffer`. */
static inline const float *read_piece(int bf16, const void *x, int64_t at, int64_t n, float *buffer)
{
    if (!bf16) return (const float *)x + at;
    const uint16_t *h = (const uint16_t *)x + at;
    if (bf16 == 2) {
        SIMD for (int64_t i = 0; i < n; i++) buffer[i] = f16_value(h[i]);
        return buffer;
    }
    SIMD for (int64_t i = 0; i < n; i++) buffer[i] = widen_one(h[i]);
    return buffer;
}
/* Returns where to compute n elements of y from element `at`; write_piece then stores them. */
static inline float *piece_for(int bf16, void *y, int64_t at, float *buffer)
{
    return bf16 ? buffer : (float *)y + at;
}
static inline void write_piece(int bf16, void *y, int64_t at, int64_t n, const float *values)
{
    if (!bf16) return;
    uint16_t *h = (uint16_t *)y + at;
    int64_t whole = 0;
    if (bf16 == 2) {
        SIMD for (int64_t i = 0; i < n; i++) h[i] = f16_of(values[i]);
        return;
    }
#if defined(__AVX512F__)
    whole = n & ~(int64_t)31;
    for (int64_t i = 0; i < whole; i += 32) narrow32(values + i, h + i);
#elif defined(__AVX2__)
    whole = n & ~(int64_t)15;
    for (int64_t i = 0; i < whole; i += 16) narrow16(values + i, h + i);
#endif
    SIMD for (int64_t i = whole; i < n; i++) h[i] = narrow_one(values[i]);
}
/* Stores n values in y from element `at`. */
static inline void store_piece(int bf16, void *y, int64_t at, int64_t n, const float *values)
{
    if (bf16) write_piece(bf16, y, at, n, values);
    else memcpy((float *)y + at, values, (size_t)n * sizeof *values);
}
/* sums += n elements from element `at` */
static inline void add_piece(int bf16, const void *x, int64_t at, int64_t n, float *sums)
{
    float in[PIECE];
    const float *v = read_piece(bf16, x, at, n, in);
    SIMD for (int64_t i = 0; i < n; i++) sums[i] += v[i];
}

/* e^x for x <= 88 to 1 ulp or two: x = n ln2 + r, polynomial for e^r (Cephes expf), 2^n put into the
 * exponent. Below -87 the result is 0. */
static inline float exp_one(float x)
{
    float clamped = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f; /* nearest integer */
    float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits, e = (int32_t)n;
    memcpy(&bits, &p, 4);
    bits += (int32_t)((uint32_t)e << 23);
    memcpy(&p, &bits, 4);
    return x < -87.0f ? 0.0f : p;
}

/* Limits x to -100, where functions that approach 0 or 1 have done so, and 0 times x is 0. NaN stays. */
static inline float not_below(float x) { return x < -100.0f ? -100.0f : x; }
static inline float within(float x) { return x > 100.0f ? 100.0f : not_below(x); }

/* Normal distribution function and density times sqrt(2 pi), from one exponential: Abramowitz and
 * Stegun 7.1.26 for erfc, absolute error 1.5e-7 / 2, relative accuracy kept in the negative tail. */
static inline float normal_cdf(float x, float *density)
{
    float z = fabsf(x) * 0.70710678f, e = exp_one(-0.5f * x * x), t = 1.0f / (1.0f + 0.3275911f * z);
    float q =
        0.5f * e * t *
        (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    *density = e;
    return x >= 0 ? 1.0f - q : q;
}

#endif
