/* real and word of kernels/optim_math.h as vector registers: 16 lanes with AVX-512, 8 with AVX2, else 4. They
 * are vector types of the compiler; this header adds what their operators lack. */
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
typedef int32_t signed_word __attribute__((vector_size(4 * LANES)));
typedef float single;
typedef uint64_t wide __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
#define OPTIM_FN  static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(x, 1)

OPTIM_FN word as_word(real x) { return (word)x; }
OPTIM_FN real as_real(word x) { return (real)x; }
OPTIM_FN float constant_real(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
OPTIM_FN word word_nonzero(real x) { return (word)(x != 0.0f); }
OPTIM_FN real load_reals(const void *p)
{
    real x;
    memcpy(&x, p, sizeof x);
    return x;
}
OPTIM_FN void store_reals(void *p, real x) { memcpy(p, &x, sizeof x); }

/* For each instruction set:
 *   word_all ... word_max           see kernels/optim_math.h
 *   word_largest, word_any_reaches  the largest lane; whether a lane is >= limit
 *   load_...                        LANES elements at any address, widened; high: to the highest bits
 *   store_bytes                     the lowest byte of each lane
 *   store_high_halves2, store_halves2    the upper, lower halves of two vectors
 *   pack_halves, store_packed       four vectors whose lanes fit in 16, then 8 bits, to bytes
 *   word_signs                      the highest bit of each lane, as a mask
 *   word_swap_eights                exchanges the two halves of 16 lanes
 *   shift_halves                    shifts each 16-bit half right
 *   multiply_even                   32 x 32 -> 64 bits of the even lanes
 *   wide_high                       the upper 32 bits of each 64, in the lower ones; the others undefined */
#if LANES == 16
OPTIM_FN real real_sqrt(real x) { return (real)_mm512_sqrt_ps((__m512)x); }
OPTIM_FN real real_fma(real x, real y, real z)
{
    return (real)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
}
OPTIM_FN real real_fnma(real x, real y, real z)
{
    return (real)_mm512_fnmadd_ps((__m512)x, (__m512)y, (__m512)z);
}
/* Hides the value from the compiler, which would otherwise recompute it on the busiest execution port. */
OPTIM_FN word word_all(uint32_t x)
{
    __m512i all = _mm512_set1_epi32((int)x);
    __asm__("" : "+v"(all));
    return (word)all;
}
OPTIM_FN real real_all(float x) { return (real)_mm512_set1_ps(x); }
OPTIM_FN real real_limit(real x, float limit)
{
    return (real)_mm512_range_ps((__m512)x, _mm512_set1_ps(limit), 2);
} /* the smaller magnitude, the sign of x */
OPTIM_FN word word_max(word x, word y) { return (word)_mm512_max_epu32((__m512i)x, (__m512i)y); }
OPTIM_FN uint32_t word_largest(word x) { return _mm512_reduce_max_epu32((__m512i)x); }
OPTIM_FN int word_any_reaches(word x, uint32_t limit)
{
    return _mm512_cmpge_epu32_mask((__m512i)x, _mm512_set1_epi32((int)limit)) != 0;
}
OPTIM_FN word load_bytes(const void *p) { return (word)_mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
OPTIM_FN word load_high_bytes(const void *p)
{
    const char z = -1;
    __m512i order = _mm512_set_epi8(15, z, z, z, 14, z, z, z, 13, z, z, z, 12, z, z, z, 11, z, z, z, 10, z, z,
                                    z, 9, z, z, z, 8, z, z, z, 7, z, z, z, 6, z, z, z, 5, z, z, z, 4, z, z, z,
                                    3, z, z, z, 2, z, z, z, 1, z, z, z, 0, z, z, z);
    return (word)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(p)), order);
}
OPTIM_FN word load_high_halves(const void *p)
{
    __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0,
                                     4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    return (word)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order,
                                                _mm512_castsi256_si512(_mm256_loadu_si256(p)));
}
OPTIM_FN void store_bytes(void *p, word x) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8((__m512i)x)); }
OPTIM_FN word load_signed_bytes(const void *p) { return (word)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
OPTIM_FN word load_signed_halves(const void *p) { return (word)_mm512_cvtepi16_epi32(_mm256_loadu_si256(p)); }
OPTIM_FN word pack_halves(word x, word y) { return (word)_mm512_packus_epi32((__m512i)x, (__m512i)y); }
OPTIM_FN void store_packed(void *p, word x, word y)
{
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16((__m512i)x, (__m512i)y)));
}
OPTIM_FN word shift_halves(word x, int n) { return (word)_mm512_srl_epi16((__m512i)x, _mm_cvtsi32_si128(n)); }
OPTIM_FN void store_high_halves2(void *p, const word x[2])
{
    __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26,
                                     24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    _mm512_storeu_si512(
        p, _mm512_permutexvar_epi16(order, (__m512i)((x[0] >> 16) | (x[1] & word_all(0xffff0000u)))));
}
OPTIM_FN wide multiply_even(wide x, uint32_t y)
{
    return (wide)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)y));
}
OPTIM_FN wide wide_high(wide x) { return (wide)_mm512_shuffle_epi32((__m512i)x, 0xf5); }
OPTIM_FN wide lane_indices(void) { return (wide){0, 1, 2, 3, 4, 5, 6, 7}; }
OPTIM_FN word load_halves(const void *p) { return (word)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, (__m512i)pack_halves(x[0], x[1])));
}
OPTIM_FN uint32_t word_signs(word x) { return (uint32_t)_mm512_movepi32_mask((__m512i)x); }
OPTIM_FN word word_swap_eights(word x) { return (word)_mm512_shuffle_i64x2((__m512i)x, (__m512i)x, 0x4e); }
OPTIM_FN uint32_t word_largest_of_eight(word x)
{
    __m256i all = _mm512_castsi512_si256((__m512i)x);
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(n, _mm_shuffle_epi32(n, 0xb1)));
}
typedef __mmask16 lanes;
OPTIM_FN lanes lanes_of_bits(uint32_t bits) { return (__mmask16)bits; }
OPTIM_FN uint32_t lanes_bits(lanes l) { return l; }
OPTIM_FN lanes lanes_at_most(real x, real y) { return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_LE_OQ); }
OPTIM_FN real lanes_times(lanes l, real x, float factor)
{
    return (real)_mm512_mask_mul_ps((__m512)x, l, (__m512)x, _mm512_set1_ps(factor));
}
#elif LANES == 8
OPTIM_FN real real_sqrt(real x) { return (real)_mm256_sqrt_ps((__m256)x); }
OPTIM_FN real real_fma(real x, real y, real z)
{
    return (real)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
}
OPTIM_FN real real_fnma(real x, real y, real z)
{
    return (real)_mm256_fnmadd_ps((__m256)x, (__m256)y, (__m256)z);
}
OPTIM_FN word word_all(uint32_t x) { return (word)_mm256_set1_epi32((int)x); }
OPTIM_FN real real_all(float x) { return (real)_mm256_set1_ps(x); }
OPTIM_FN real real_limit(real x, float limit)
{
    return (real)_mm256_min_ps(_mm256_max_ps((__m256)x, _mm256_set1_ps(-limit)), _mm256_set1_ps(limit));
}
OPTIM_FN word word_max(word x, word y) { return (word)_mm256_max_epu32((__m256i)x, (__m256i)y); }
OPTIM_FN uint32_t word_largest(word x)
{
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(n, _mm_shuffle_epi32(n, 0xb1)));
}
OPTIM_FN int word_any_reaches(word x, uint32_t limit) { return word_largest(x) >= limit; }
OPTIM_FN word load_bytes(const void *p) { return (word)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
OPTIM_FN word load_high_bytes(const void *p) { return load_bytes(p) << 24; }
OPTIM_FN word load_high_halves(const void *p)
{
    return (word)_mm256_cvtepu16_epi32(_mm_loadu_si128(p)) << 16;
}
OPTIM_FN __m128i narrow_halves(word x)
{
    __m256i y = (__m256i)(x & 0xffffu);
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}
OPTIM_FN void store_bytes(void *p, word x)
{
    __m128i y = narrow_halves(x & 0xffu);
    _mm_storel_epi64(p, _mm_packus_epi16(y, y));
}
OPTIM_FN word load_signed_bytes(const void *p) { return (word)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
OPTIM_FN word load_signed_halves(const void *p) { return (word)_mm256_cvtepi16_epi32(_mm_loadu_si128(p)); }
OPTIM_FN word pack_halves(word x, word y) { return (word)_mm256_packus_epi32((__m256i)x, (__m256i)y); }
OPTIM_FN void store_packed(void *p, word x, word y)
{
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16((__m256i)x, (__m256i)y), order));
}
OPTIM_FN word shift_halves(word x, int n) { return (word)_mm256_srli_epi16((__m256i)x, n); }
OPTIM_FN void store_high_halves2(void *p, const word x[2])
{
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64((__m256i)pack_halves(x[0] >> 16, x[1] >> 16), 0xd8));
}
OPTIM_FN wide multiply_even(wide x, uint32_t y)
{
    return (wide)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)y));
}
OPTIM_FN wide wide_high(wide x) { return (wide)_mm256_shuffle_epi32((__m256i)x, 0xf5); }
OPTIM_FN wide lane_indices(void) { return (wide){0, 1, 2, 3}; }
OPTIM_FN word load_halves(const void *p) { return (word)_mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64((__m256i)pack_halves(x[0], x[1]), 0xd8));
}
OPTIM_FN uint32_t word_signs(word x) { return (uint32_t)_mm256_movemask_ps((__m256)x); }
OPTIM_FN word word_swap_eights(word x) { return x; }
OPTIM_FN uint32_t word_largest_of_eight(word x) { return word_largest(x); }
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
OPTIM_FN real real_fnma(real x, real y, real z) { return real_fma(-x, y, z); }
OPTIM_FN word word_choose(word mask, word x, word y) { return (x & mask) | (y & ~mask); }
OPTIM_FN word word_all(uint32_t x) { return (word){0} + x; }
OPTIM_FN real real_all(float x) { return (real)word_all(0) + x; }
OPTIM_FN real real_limit(real x, float limit)
{
    word most = (word)(real_all(0) + limit);
    x = (real)word_choose((word)(x > -limit), (word)x, most | 0x80000000u);
    return (real)word_choose((word)(x < limit), (word)x, most);
}
OPTIM_FN word word_max(word x, word y) { return word_choose((word)(x > y), x, y); }
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
OPTIM_FN word load_high_bytes(const void *p) { return load_bytes(p) << 24; }
OPTIM_FN word load_halves(const void *p)
{
    halves x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, word);
}
OPTIM_FN word load_high_halves(const void *p) { return load_halves(p) << 16; }
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
OPTIM_FN word pack_halves(word x, word y) { return x | (y << 16); }
OPTIM_FN void store_packed(void *p, word x, word y)
{
    store_bytes((char *)p, x);
    store_bytes((char *)p + LANES, x >> 16);
    store_bytes((char *)p + 2 * LANES, y);
    store_bytes((char *)p + 3 * LANES, y >> 16);
}
OPTIM_FN word shift_halves(word x, int n) { return (x >> n) & (0x10001u * (0xffffu >> n)); }
OPTIM_FN void store_high_halves2(void *p, const word x[2])
{
    for (int i = 0; i < 2; i++) store_halves((char *)p + i * LANES * 2, x[i] >> 16);
}
OPTIM_FN wide multiply_even(wide x, uint32_t y) { return (x & 0xffffffffu) * (uint64_t)y; }
OPTIM_FN wide wide_high(wide x) { return x >> 32; }
OPTIM_FN wide lane_indices(void) { return (wide){0, 1}; }
OPTIM_FN void store_halves2(void *p, const word x[2])
{
    for (int i = 0; i < 2; i++) store_halves((char *)p + i * LANES * 2, x[i]);
}
OPTIM_FN uint32_t word_signs(word x)
{
    uint32_t signs = 0;
    for (int i = 0; i < LANES; i++) signs |= x[i] >> 31 << i;
    return signs;
}
OPTIM_FN word word_swap_eights(word x) { return x; }
OPTIM_FN uint32_t word_largest_of_eight(word x) { return word_largest(x); }
#endif

/* ---- Independent of the instruction set ---- */
OPTIM_FN real real_of(word x) { return __builtin_convertvector((signed_word)x, real); }
OPTIM_FN word word_of(real x) { return (word) __builtin_convertvector(x, signed_word); }
OPTIM_FN word word_at_least(word x, uint32_t limit) { return (word)(x >= limit); }
OPTIM_FN word word_where_nonzero(real x, word a, word b)
{
#if LANES == 16
    return (word)_mm512_mask_mov_epi32((__m512i)b, _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), 4),
                                       (__m512i)a);
#else
    word mask = word_nonzero(x);
    return (a & mask) | (b & ~mask);
#endif
}
/* Returns the larger magnitude. */
OPTIM_FN real real_largest(real x, real y)
{
#if LANES == 16
    return (real)_mm512_range_ps((__m512)x, (__m512)y, 0xb);
#else
    return as_real(word_max(as_word(x) & 0x7fffffffu, as_word(y) & 0x7fffffffu));
#endif
}
/* Loads 16-bit integers minus an integer. */
OPTIM_FN real load_halves_less(const void *p, float less)
{
#if LANES == 16 /* after the exponent of 2^23 */
    __m512i order = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6,
                                     5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return (real)_mm512_mask_permutexvar_epi16(_mm512_set1_epi32(0x4b000000), 0x55555555u, order,
                                               _mm512_castsi256_si512(_mm256_loadu_si256(p))) -
           (8388608.0f + less);
#else
    return real_of(load_halves(p)) - less;
#endif
}
/* Returns all ones in the lanes whose bit is set. */
OPTIM_FN word word_of_bits(uint32_t bits)
{
#if LANES == 16
    return (word)_mm512_movm_epi32((__mmask16)bits);
#else
    word n;
    for (int i = 0; i < LANES; i++) n[i] = (uint32_t)i;
    return word_all(0) - ((word_all(bits) >> n) & 1u);
#endif
}
#if LANES != 16
typedef word lanes;
OPTIM_FN lanes lanes_of_bits(uint32_t bits) { return word_of_bits(bits); }
OPTIM_FN uint32_t lanes_bits(lanes l) { return word_signs(l); }
OPTIM_FN lanes lanes_at_most(real x, real y) { return (word)(x <= y); }
OPTIM_FN real lanes_times(lanes l, real x, float factor)
{
    word one = word_all(0x3f800000u);
    return x * as_real(one ^ (l & (one ^ as_word(real_all(factor)))));
}
#endif
OPTIM_FN single single_of(uint32_t x) { return (single)(int32_t)x; }
OPTIM_FN uint32_t single_whole(single x) { return (uint32_t)(int32_t)x; }
OPTIM_FN uint32_t bits_of(single x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
OPTIM_FN word word_min(word x, word y) { return ~word_max(~x, ~y); }

#endif
