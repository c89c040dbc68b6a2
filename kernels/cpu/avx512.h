/* Inside kernels/cpu: AVX-512 versions of the functions that dominate activations and softmax. */
#ifndef MEOPT_KERNELS_CPU_AVX512_H
#define MEOPT_KERNELS_CPU_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static inline

AVX512 __m512 constant16(float x) { return _mm512_set1_ps(x); }

/* e^x, x <= about 88, to 2 ulp (Cephes' polynomial); 0 far below. */
AVX512 __m512 exp16(__m512 x)
{
    x = _mm512_max_ps(constant16(-100.0f), x); /* this order of operands keeps NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, constant16(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, constant16(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, constant16(-2.12194440e-4f), r);
    __m512 p = constant16(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, constant16(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, constant16(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, constant16(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, constant16(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, constant16(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, constant16(1.0f)));
    return _mm512_scalef_ps(p, n);
}

/* 2^x to 2 ulp, for rows of scores: 2^(x - floor(x)) by a polynomial that is 1 at 0 (minimax, relative error
 * 8.3e-8); 0 far below, infinite far above, NaN stays. A third fewer instructions than exp16. */
AVX512 __m512 exp2_16(__m512 x)
{
    x = _mm512_max_ps(constant16(-200.0f), x);
    __m512 r = _mm512_reduce_ps(x, 1), p = constant16(1.8671300495e-3f); /* 1: x - floor(x) */
    p = _mm512_fmadd_ps(p, r, constant16(9.0170307085e-3f));
    p = _mm512_fmadd_ps(p, r, constant16(5.5799912661e-2f));
    p = _mm512_fmadd_ps(p, r, constant16(2.4016444385e-1f));
    p = _mm512_fmadd_ps(p, r, constant16(6.9315129519e-1f));
    p = _mm512_fmadd_ps(p, r, constant16(1.0f));
    return _mm512_scalef_ps(p, x); /* p 2^floor(x) */
}

/* 1 / x, 1 <= x < 2^126, to 2 ulp: 14 bits from a table and one Newton step, a third of a division's time. */
AVX512 __m512 reciprocal16(__m512 x)
{
    __m512 r = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, r, constant16(1.0f)), r, r);
}

/* not_below and within of vector.h */
AVX512 __m512 not_below16(__m512 x) { return _mm512_max_ps(constant16(-100.0f), x); }
AVX512 __m512 within16(__m512 x) { return _mm512_min_ps(constant16(100.0f), not_below16(x)); }

/* normal_cdf of vector.h, the same formula */
AVX512 __m512 normal_cdf16(__m512 x, __m512 *density)
{
    __m512 z = _mm512_min_ps(constant16(100.0f), _mm512_abs_ps(x)),
           e = exp16(_mm512_mul_ps(_mm512_mul_ps(x, constant16(-0.5f)), x));
    __m512 t = reciprocal16(_mm512_fmadd_ps(z, constant16(0.3275911f * 0.70710678f), constant16(1.0f)));
    __m512 q = _mm512_fmadd_ps(t, constant16(1.061405429f), constant16(-1.453152027f));
    q = _mm512_fmadd_ps(q, t, constant16(1.421413741f));
    q = _mm512_fmadd_ps(q, t, constant16(-0.284496736f));
    q = _mm512_fmadd_ps(q, t, constant16(0.254829592f));
    q = _mm512_mul_ps(_mm512_mul_ps(q, t), _mm512_mul_ps(e, constant16(0.5f)));
    *density = e;
    return _mm512_mask_sub_ps(q, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLT_UQ), constant16(1.0f),
                              q);
}

/* 1 / (1 + e^-x), 0 below -87 */
AVX512 __m512 sigmoid16(__m512 x)
{
    __m512 e = exp16(_mm512_min_ps(constant16(87.0f), _mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, constant16(-87.0f), _CMP_NLT_UQ),
                               reciprocal16(_mm512_add_ps(constant16(1.0f), e)));
}

/* the first `left` of 16; none when left < 1 */
AVX512 __mmask16 mask16(int64_t left)
{
    unsigned bits = left >= 16 ? 0xffffu : left < 1 ? 0 : (1u << left) - 1;
    return (__mmask16)bits;
}

/* Elements at..at+15 of floats or bf16, those in the mask. */
AVX512 __m512 load16(int bf16, const void *p, int64_t at, __mmask16 mask)
{
    if (!bf16) return _mm512_maskz_loadu_ps(mask, (const float *)p + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + at)), 16));
}

/* bf16: nearest even, NaN kept */
AVX512 void store16(int bf16, void *p, int64_t at, __mmask16 mask, __m512 x)
{
    if (!bf16) {
        _mm512_mask_storeu_ps((float *)p + at, mask, x);
        return;
    }
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)),
                                       _mm512_and_si512(high, _mm512_set1_epi32(1)));
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                   _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16((uint16_t *)p + at, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

/* 16 x 16 transpose of 32-bit elements. */
AVX512 void transpose16(__m512i r[16])
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

#endif
