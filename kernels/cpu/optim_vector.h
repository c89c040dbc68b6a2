/* kernels/optim_math.h's real and word as one vector register, from the compiler's vector types: 16 lanes of AVX-512,
 * 8 of AVX2, 4 of anything else. Arithmetic is the operators; the few things they lack are below.
 */
#ifndef MEOPT_KERNELS_CPU_OPTIM_VECTOR_H
#define MEOPT_KERNELS_CPU_OPTIM_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

typedef float real __attribute__((vector_size(4 * LANES)));
typedef uint32_t word __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
#define OPTIM_FN static inline __attribute__((always_inline))

OPTIM_FN word as_word(real x) { return (word)x; }
OPTIM_FN real as_real(word x) { return (real)x; }
OPTIM_FN float constant_real(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
OPTIM_FN word word_all(uint32_t x) { return (word){0} + x; }
OPTIM_FN real real_all(float x) { return (real)word_all(0) + x; }
OPTIM_FN word word_nonzero(real x) { return (word)(x != 0.0f); }
OPTIM_FN real load_reals(const void *p)
{
    real x;
    memcpy(&x, p, sizeof x);
    return x;
}
OPTIM_FN void store_reals(void *p, real x) { memcpy(p, &x, sizeof x); }

/* real_sqrt, real_fma (x y + z, rounded once), minima and maxima, word_largest (of the lanes), word_any_reaches (a lane >= limit), widening loads and
 * narrowing stores of LANES elements at any address (store_bytes4, store_halves2: four, two vectors whose lanes are in
 * range), multiply_even: 32 x 32 -> 64 bits of the even lanes. */
#if LANES == 16
OPTIM_FN real real_sqrt(real x) { return (real)_mm512_sqrt_ps((__m512)x); }
OPTIM_FN real real_fma(real x, real y, real z) { return (real)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z); }
OPTIM_FN real real_min(real x, real y) { return (real)_mm512_min_ps((__m512)x, (__m512)y); }
OPTIM_FN real real_max(real x, real y) { return (real)_mm512_max_ps((__m512)x, (__m512)y); }
OPTIM_FN word word_min_(word x, word y) { return (word)_mm512_min_epu32((__m512i)x, (__m512i)y); }
OPTIM_FN word word_max_(word x, word y) { return (word)_mm512_max_epu32((__m512i)x, (__m512i)y); }
OPTIM_FN uint32_t word_largest(word x) { return _mm512_reduce_max_epu32((__m512i)x); }
OPTIM_FN int word_any_reaches(word x, uint32_t limit)
{
    return _mm512_cmpge_epu32_mask((__m512i)x, _mm512_set1_epi32((int)limit)) != 0;
}
OPTIM_FN word load_bytes(const void *p) { return (word)_mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
OPTIM_FN word load_halves(const void *p) { return (word)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
OPTIM_FN void store_bytes(void *p, word x) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8((__m512i)x)); }
OPTIM_FN void store_halves(void *p, word x) { _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)x)); }
OPTIM_FN word load_signed_bytes(const void *p) { return (word)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
OPTIM_FN word load_signed_halves(const void *p) { return (word)_mm512_cvtepi16_epi32(_mm256_loadu_si256(p)); }
OPTIM_FN void store_bytes4(void *p, const word x[4])
{
    __m512i a = _mm512_packus_epi32((__m512i)x[0], (__m512i)x[1]), b = _mm512_packus_epi32((__m512i)x[2], (__m512i)x[3]);
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(a, b)));
}
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, _mm512_packus_epi32((__m512i)x[0], (__m512i)x[1])));
}
OPTIM_FN wide multiply_even(wide x, uint32_t y)
{
    return (wide)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)y));
}
OPTIM_FN wide lane_numbers(void) { return (wide){0, 1, 2, 3, 4, 5, 6, 7}; }
#elif LANES == 8
OPTIM_FN real real_sqrt(real x) { return (real)_mm256_sqrt_ps((__m256)x); }
OPTIM_FN real real_fma(real x, real y, real z) { return (real)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z); }
OPTIM_FN real real_min(real x, real y) { return (real)_mm256_min_ps((__m256)x, (__m256)y); }
OPTIM_FN real real_max(real x, real y) { return (real)_mm256_max_ps((__m256)x, (__m256)y); }
OPTIM_FN word word_min_(word x, word y) { return (word)_mm256_min_epu32((__m256i)x, (__m256i)y); }
OPTIM_FN word word_max_(word x, word y) { return (word)_mm256_max_epu32((__m256i)x, (__m256i)y); }
OPTIM_FN uint32_t word_largest(word x)
{
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(n, _mm_shuffle_epi32(n, 0xb1)));
}
OPTIM_FN int word_any_reaches(word x, uint32_t limit) { return word_largest(x) >= limit; }
OPTIM_FN word load_bytes(const void *p) { return (word)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
OPTIM_FN word load_halves(const void *p) { return (word)_mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
OPTIM_FN __m128i narrow_halves(word x)
{
    __m256i y = (__m256i)(x & 0xffffu);
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}
OPTIM_FN void store_halves(void *p, word x) { _mm_storeu_si128(p, narrow_halves(x)); }
OPTIM_FN void store_bytes(void *p, word x)
{
    __m128i y = narrow_halves(x & 0xffu);
    _mm_storel_epi64(p, _mm_packus_epi16(y, y));
}
OPTIM_FN word load_signed_bytes(const void *p) { return (word)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
OPTIM_FN word load_signed_halves(const void *p) { return (word)_mm256_cvtepi16_epi32(_mm_loadu_si128(p)); }
OPTIM_FN void store_bytes4(void *p, const word x[4])
{
    __m256i a = _mm256_packus_epi32((__m256i)x[0], (__m256i)x[1]), b = _mm256_packus_epi32((__m256i)x[2], (__m256i)x[3]);
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)x[0], (__m256i)x[1]), 0xd8));
}
OPTIM_FN wide multiply_even(wide x, uint32_t y)
{
    return (wide)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)y));
}
OPTIM_FN wide lane_numbers(void) { return (wide){0, 1, 2, 3}; }
#else
OPTIM_FN real real_sqrt(real x)
{
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
}
OPTIM_FN real real_fma(real x, real y, real z)
{
    for (int i = 0; i < LANES; i++) z[i] = fmaf(x[i], y[i], z[i]);
    return z;
}
OPTIM_FN word word_choose(word mask, word x, word y) { return (x & mask) | (y & ~mask); }
OPTIM_FN real real_min(real x, real y) { return (real)word_choose((word)(x < y), (word)x, (word)y); }
OPTIM_FN real real_max(real x, real y) { return (real)word_choose((word)(x > y), (word)x, (word)y); }
OPTIM_FN word word_min_(word x, word y) { return word_choose((word)(x < y), x, y); }
OPTIM_FN word word_max_(word x, word y) { return word_choose((word)(x > y), x, y); }
OPTIM_FN uint32_t word_largest(word x)
{
    uint32_t m = 0;
    for (int i = 0; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}
OPTIM_FN int word_any_reaches(word x, uint32_t limit) { return word_largest(x) >= limit; }
OPTIM_FN word load_bytes(const void *p)
{
    bytes x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, word);
}
OPTIM_FN word load_halves(const void *p)
{
    halves x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, word);
}
OPTIM_FN void store_bytes(void *p, word x)
{
    bytes n = __builtin_convertvector(x, bytes);
    memcpy(p, &n, sizeof n);
}
OPTIM_FN void store_halves(void *p, word x)
{
    halves n = __builtin_convertvector(x, halves);
    memcpy(p, &n, sizeof n);
}
OPTIM_FN word load_signed_bytes(const void *p) { return (load_bytes(p) ^ 0x80u) - 0x80u; }
OPTIM_FN word load_signed_halves(const void *p) { return (load_halves(p) ^ 0x8000u) - 0x8000u; }
OPTIM_FN void store_bytes4(void *p, const word x[4])
{
    for (int i = 0; i < 4; i++) store_bytes((char *)p + i * LANES, x[i]);
}
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    for (int i = 0; i < 2; i++) store_halves((char *)p + i * LANES * 2, x[i]);
}
OPTIM_FN wide multiply_even(wide x, uint32_t y) { return (x & 0xffffffffu) * (uint64_t)y; }
OPTIM_FN wide lane_numbers(void) { return (wide){0, 1}; }
#endif

/* of vectors and scalars */
#define word_min(x, y) word_min_((x), word_all(0) + (y))
#define word_max(x, y) word_max_((x), word_all(0) + (y))

#endif
