/* AVX-512 and AMX in plain C: kernels/cpu/gemm_amx.c and attention_amx.c are compiled with this header before
 * them (tests/CMakeLists.txt), so that the set `amx` is tried on every x86-64 processor. It has the
 * intrinsics that these files use; another one does not compile without its target. Differences from the
 * processor's: a fused multiply-add rounds twice (through double), an approximate reciprocal is exact, sums
 * of TDPBF16PS are of floats in the order of the inner dimension. */
#ifndef MEOPT_TESTS_UNIT_EMULATE_AMX_H
#define MEOPT_TESTS_UNIT_EMULATE_AMX_H

#include "core/base/cpu.h"
#include "kernels/bf16.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef MEOPT_HAS_AMX
#define MEOPT_HAS_AMX                  1
#define target(...)                         /* __attribute__((target(...))): for the processor of the build */
#define cpu_can(what)                  true /* CAN_AMX */
#define syscall(number, code, feature) 0    /* the system grants tile state */

typedef uint32_t words __attribute__((vector_size(64)));
typedef int32_t numbers32 __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(64)));
typedef uint16_t halves16 __attribute__((vector_size(32)));
#define EMULATED static inline __attribute__((unused))
#define LANES(n) for (int i = 0; i < (n); i++)

/* Where bit i of the mask is set a, else b */
EMULATED __m512 em_choose(__mmask16 mask, __m512 a, __m512 b)
{
    LANES(16) if (mask >> i & 1) b[i] = a[i];
    return b;
}
/* Copies the elements of `size` bytes whose bits are set. */
EMULATED void em_copy(void *to, const void *from, uint32_t mask, size_t size)
{
    LANES(32) if (mask >> i & 1) memcpy((char *)to + i * (int)size, (const char *)from + i * (int)size, size);
}
EMULATED __m512 em_load_floats(__m512 x, __mmask16 mask, const float *p)
{
    em_copy(&x, p, mask, sizeof *p);
    return x;
}
EMULATED __m512i em_load_halves(__mmask32 mask, const void *p)
{
    __m512i x = {0};
    em_copy(&x, p, mask, 2);
    return x;
}
EMULATED __m256i em_load_halves16(__mmask16 mask, const void *p)
{
    __m256i x = {0};
    em_copy(&x, p, mask, 2);
    return x;
}
EMULATED void em_store(void *p, __m512i x)
{
    if ((uintptr_t)p % 64) abort();
    memcpy(p, &x, sizeof x);
}
EMULATED __m512 em_set_float(float f)
{
    __m512 x;
    LANES(16) x[i] = f;
    return x;
}
EMULATED __m512i em_set_word(uint32_t w)
{
    words x;
    LANES(16) x[i] = w;
    return (__m512i)x;
}
EMULATED __m512 em_multiply_add(__m512 a, __m512 b, __m512 c)
{
    LANES(16) c[i] = (float)((double)a[i] * (double)b[i] + (double)c[i]);
    return c;
}
/* The second operand where one of both is NaN */
EMULATED __m512 em_max(__m512 a, __m512 b)
{
    LANES(16) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}
EMULATED __m512 em_min(__m512 a, __m512 b)
{
    LANES(16) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}
EMULATED float em_sum(__m512 x) /* of halves, as the instructions add */
{
    for (int n = 8; n; n /= 2) LANES(n) x[i] += x[i + n];
    return x[0];
}
EMULATED float em_largest(__m512 x)
{
    for (int n = 8; n; n /= 2) LANES(n) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
    return x[0];
}
EMULATED __m512 em_round(__m512 x, int fraction) /* fraction: x - floor(x) */
{
    LANES(16) x[i] = fraction ? x[i] - floorf(x[i]) : nearbyintf(x[i]);
    return x;
}
EMULATED __m512 em_scale(__m512 x, __m512 power) /* x 2^floor(power) */
{
    LANES(16) x[i] *= exp2f(floorf(power[i]));
    return x;
}
EMULATED __m512 em_reciprocal(__m512 x)
{
    LANES(16) x[i] = 1 / x[i];
    return x;
}
EMULATED __m512 em_abs(__m512 x)
{
    LANES(16) x[i] = fabsf(x[i]);
    return x;
}
EMULATED __mmask16 em_compare(__m512 a, __m512 b, int how) /* not less, or unordered */
{
    unsigned mask = 0;
    LANES(16)
    {
        bool set = how == _CMP_NLT_UQ ? !(a[i] < b[i]) : isnan(a[i]) || isnan(b[i]);
        mask |= (unsigned)set << i;
    }
    return (__mmask16)mask;
}
EMULATED uint16_t em_half(float f) /* denormals are 0 */
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bf16_of_bits(bits & 0x7f800000 ? bits : bits & 0x80000000);
}
EMULATED __m512i em_to_halves(__m512 high, __m512 low)
{
    halves x;
    LANES(16) x[i] = em_half(low[i]), x[i + 16] = em_half(high[i]);
    return (__m512i)x;
}
EMULATED __m512i em_widen(__m256i x)
{
    words w;
    LANES(16) w[i] = ((halves16)x)[i];
    return (__m512i)w;
}
EMULATED __m256i em_narrow(__m512i x)
{
    halves16 h;
    LANES(16) h[i] = (uint16_t)((words)x)[i];
    return (__m256i)h;
}
/* Elements of `size` bytes from the lower or the upper half of each 128 bits, of a and b alternately */
EMULATED __m512i em_unpack(__m512i a, __m512i b, size_t size, int upper)
{
    __m512i x;
    for (size_t quarter = 0; quarter < 64; quarter += 16)
        for (size_t at = 0; at < 8; at += size) {
            size_t from = quarter + at + (upper ? 8 : 0), to = quarter + 2 * at;
            memcpy((char *)&x + to, (char *)&a + from, size);
            memcpy((char *)&x + to + size, (char *)&b + from, size);
        }
    return x;
}
EMULATED __m512i em_shuffle(__m512i a, __m512i b, int order) /* quarters, two of each operand */
{
    __m512i x;
    LANES(8)
    {
        int quarter = order >> i / 2 * 2 & 3;
        x[i] = (i < 4 ? a : b)[2 * quarter + i % 2];
    }
    return x;
}
EMULATED __m512i em_permute(__m512i order, __m512i x)
{
    __m512i y;
    LANES(8) y[i] = x[order[i] & 7];
    return y;
}

#define EM_STORE(type, p, mask, x, size)                                                                     \
    do {                                                                                                     \
        type em_value = (x);                                                                                 \
        em_copy(p, &em_value, mask, size);                                                                   \
    } while (0)

/* macros in some compilers */
#undef _mm512_cmp_ps_mask
#undef _mm512_reduce_ps
#undef _mm512_roundscale_ps
#undef _mm512_shuffle_i32x4
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#define _mm256_mask_storeu_epi16(p, mask, x)     EM_STORE(__m256i, p, mask, x, 2)
#define _mm256_maskz_loadu_epi16(mask, p)        em_load_halves16(mask, p)
#define _mm512_abs_ps(x)                         em_abs(x)
#define _mm512_add_epi32(a, b)                   ((__m512i)((words)(a) + (words)(b)))
#define _mm512_add_ps(a, b)                      ((__m512)((a) + (b)))
#define _mm512_and_si512(a, b)                   ((__m512i)((a) & (b)))
#define _mm512_castps_si512(x)                   ((__m512i)(x))
#define _mm512_castsi512_ps(x)                   ((__m512)(x))
#define _mm512_cmp_ps_mask(a, b, how)            em_compare(a, b, how)
#define _mm512_cvtepi32_epi16(x)                 em_narrow(x)
#define _mm512_cvtepu16_epi32(x)                 em_widen(x)
#define _mm512_cvtne2ps_pbh(high, low)           em_to_halves(high, low)
#define _mm512_fmadd_ps(a, b, c)                 em_multiply_add(a, b, c)
#define _mm512_fmsub_ps(a, b, c)                 em_multiply_add(a, b, -(c))
#define _mm512_fnmadd_ps(a, b, c)                em_multiply_add(-(a), b, c)
#define _mm512_load_ps(p)                        em_load_floats(em_set_float(0), 0xffff, p)
#define _mm512_mask_load_ps(x, mask, p)          em_load_floats(x, mask, p)
#define _mm512_mask_or_epi32(x, mask, a, b)      (__m512i) em_choose(mask, (__m512)((a) | (b)), (__m512)(x))
#define _mm512_mask_storeu_epi16(p, mask, x)     EM_STORE(__m512i, p, mask, x, 2)
#define _mm512_mask_storeu_ps(p, mask, x)        EM_STORE(__m512, p, mask, x, 4)
#define _mm512_mask_sub_ps(x, mask, a, b)        em_choose(mask, (a) - (b), x)
#define _mm512_maskz_loadu_epi16(mask, p)        em_load_halves(mask, p)
#define _mm512_maskz_loadu_ps(mask, p)           em_load_floats(em_set_float(0), mask, p)
#define _mm512_maskz_mov_ps(mask, x)             em_choose(mask, x, em_set_float(0))
#define _mm512_max_ps(a, b)                      em_max(a, b)
#define _mm512_min_ps(a, b)                      em_min(a, b)
#define _mm512_mul_ps(a, b)                      ((__m512)((a) * (b)))
#define _mm512_permutexvar_epi64(order, x)       em_permute(order, x)
#define _mm512_rcp14_ps(x)                       em_reciprocal(x)
#define _mm512_reduce_add_ps(x)                  em_sum(x)
#define _mm512_reduce_max_ps(x)                  em_largest(x)
#define _mm512_reduce_ps(x, how)                 em_round(x, 1)
#define _mm512_roundscale_ps(x, how)             em_round(x, 0)
#define _mm512_scalef_ps(x, power)               em_scale(x, power)
#define _mm512_set1_epi32(w)                     em_set_word((uint32_t)(w))
#define _mm512_set1_ps(f)                        em_set_float(f)
#define _mm512_set_epi64(h, g, f, e, d, c, b, a) ((__m512i){a, b, c, d, e, f, g, h})
#define _mm512_setzero_ps()                      em_set_float(0)
#define _mm512_setzero_si512()                   ((__m512i){0})
#define _mm512_shuffle_i32x4(a, b, order)        em_shuffle(a, b, order)
#define _mm512_slli_epi32(x, n)                  ((__m512i)((words)(x) << (n)))
#define _mm512_srli_epi32(x, n)                  ((__m512i)((words)(x) >> (n)))
#define _mm512_store_si512(p, x)                 em_store(p, x)
#define _mm512_stream_si512(p, x)                em_store(p, x)
#define _mm512_sub_ps(a, b)                      ((__m512)((a) - (b)))
#define _mm512_unpackhi_epi16(a, b)              em_unpack(a, b, 2, 1)
#define _mm512_unpacklo_epi16(a, b)              em_unpack(a, b, 2, 0)
#define _mm512_unpackhi_epi32(a, b)              em_unpack(a, b, 4, 1)
#define _mm512_unpacklo_epi32(a, b)              em_unpack(a, b, 4, 0)
#define _mm512_unpackhi_epi64(a, b)              em_unpack(a, b, 8, 1)
#define _mm512_unpacklo_epi64(a, b)              em_unpack(a, b, 8, 0)

/* Tiles of 16 rows of 64 bytes; abort without a configuration, as the processor faults */
static _Thread_local union {
    uint8_t bytes[16][64];
    float sums[16][16];
    uint16_t halves[16][32];
} em_tiles[8];
static _Thread_local bool em_configured;

EMULATED void em_tiles_on(const void *config)
{
    const uint8_t *c = config;
    em_configured = c[0] == 1;
    LANES(8) em_configured &= c[16 + 2 * i] == 64 && c[17 + 2 * i] == 0 && c[48 + i] == 16;
    memset(em_tiles, 0, sizeof em_tiles);
}
EMULATED void em_tile_load(int tile, const void *p, int64_t stride)
{
    if (!em_configured) abort();
    LANES(16) memcpy(em_tiles[tile].bytes[i], (const char *)p + i * stride, 64);
}
EMULATED void em_tile_store(int tile, void *p, int64_t stride)
{
    if (!em_configured) abort();
    LANES(16) memcpy((char *)p + i * stride, em_tiles[tile].bytes[i], 64);
}
EMULATED float em_float(uint16_t half) /* denormals are 0 */
{
    uint32_t bits = half & 0x7f80 ? (uint32_t)half << 16 : (uint32_t)(half & 0x8000) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
EMULATED void em_tile_multiply(int c, int a, int b) /* c += a b */
{
    float right[32][16];
    if (!em_configured) abort();
    for (int k = 0; k < 32; k++) LANES(16) right[k][i] = em_float(em_tiles[b].halves[k / 2][2 * i + k % 2]);
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 32; k++) {
            float left = em_float(em_tiles[a].halves[m][k]);
            LANES(16) em_tiles[c].sums[m][i] += left * right[k][i];
        }
}
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd         em_tile_load
#define _tile_stream_loadd  em_tile_load
#define _tile_stored        em_tile_store
#define _tile_zero(t)       memset(&em_tiles[t], 0, sizeof em_tiles[t])
#define _tile_dpbf16ps      em_tile_multiply
#define _tile_loadconfig(c) em_tiles_on(c)
#define _tile_release()     (em_configured = false)

#endif
