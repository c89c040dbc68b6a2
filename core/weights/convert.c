/* Conversion between number formats, each value rounded once, to nearest even.
 *
 * Every pair goes through a block of floats in the L1 cache: to_float, then from_float. If a double or a wide
 * integer would be rounded twice on its way to 16 bits, the first step rounds to odd instead (Boldo &
 * Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008,
 * theorem 3: exact because float keeps at least two bits more than either 16-bit format). NaNs stay NaNs.
 */
#include "core/base/cpu.h"
#include "core/weights/weights.h"
#include "kernels/bf16.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 1024 };

/* The loops below are written for auto-vectorisation. These macros build each for the baseline and for AVX2,
 * and choose at run time. */
#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_AVX2(name, result, source)                                                                       \
    __attribute__((target("avx2"))) static void name##_avx2(result *restrict y, const source *restrict x,    \
                                                            size_t n)                                        \
    {                                                                                                        \
        name##_loop(y, x, n);                                                                                \
    }                                                                                                        \
    static void name##_base(result *restrict y, const source *restrict x, size_t n)                          \
    {                                                                                                        \
        name##_loop(y, x, n);                                                                                \
    }                                                                                                        \
    static void name(result *restrict y, const source *restrict x, size_t n)                                 \
    {                                                                                                        \
        (cpu_can(CAN_AVX2) ? name##_avx2 : name##_base)(y, x, n);                                            \
    }
#else
#define FOR_AVX2(name, result, source)                                                                       \
    static void name(result *restrict y, const source *restrict x, size_t n) { name##_loop(y, x, n); }
#endif
#define LOOP static inline __attribute__((always_inline)) void

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

LOOP bf16_to_float_loop(float *restrict y, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = float_of((uint32_t)x[i] << 16);
}
FOR_AVX2(bf16_to_float, float, uint16_t)

LOOP float_to_bf16_loop(uint16_t *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = bf16_of_bits(bits_of(x[i]));
}
FOR_AVX2(float_to_bf16, uint16_t, float)

/* Subnormal halves are renormalised by a float subtraction: no operand is subnormal, so the FPU's mode does
 * not matter. */
LOOP half_to_float_loop(float *restrict y, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(x[i] & 0x7fff) << 13, sign = (uint32_t)(x[i] & 0x8000) << 16;
        uint32_t normal = magnitude + ((uint32_t)(127 - 15) << 23);
        uint32_t special = normal + ((uint32_t)(128 - 16) << 23); /* infinity, NaN */
        uint32_t subnormal = bits_of(float_of(normal + (1u << 23)) - float_of((uint32_t)(127 - 14) << 23));
        uint32_t exponent = magnitude & 0x0f800000;
        y[i] = float_of(sign | (exponent == 0x0f800000 ? special : exponent == 0 ? subnormal : normal));
    }
}
FOR_AVX2(half_to_float, float, uint16_t)

LOOP float_to_half_loop(uint16_t *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & 0x7fffffff, sign = bits_of(x[i]) >> 16 & 0x8000;
        /* below 2^-14 adding 0.5 leaves the half's subnormal bits at the low end, rounded by the adder */
        uint32_t subnormal = bits_of(float_of(u < 0x38800000 ? u : 0) + 0.5f) - 0x3f000000;
        uint32_t normal = (u - ((uint32_t)(127 - 15) << 23) + 0xfff + (u >> 13 & 1)) >> 13;
        uint32_t special = u > 0x7f800000 ? 0x7e00 | (u >> 13 & 0x1ff) : 0x7c00;
        y[i] = (uint16_t)(sign | (u < 0x38800000 ? subnormal : u >= 0x47800000 ? special : normal));
    }
}
FOR_AVX2(float_to_half, uint16_t, float)

/* Rounds to nearest even, or to odd: if inexact, to the neighbour whose last bit is set. */
static float round_double(double d, bool odd)
{
    float f = (float)d;
    if (!odd || (double)f == d || d != d) return f;
    uint32_t u = bits_of(f);
    if (fabs((double)f) > fabs(d)) u--; /* towards zero; from infinity to the largest float */
    return float_of(u | 1);
}

/* A wide integer first becomes a double with a sticky last bit (also rounding to odd). */
static float round_integer(int64_t v, bool odd)
{
    if (!odd) return (float)v;
    uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v;
    if (u >> 53) u = (u & ~(uint64_t)0x7ff) | ((u & 0x7ff) != 0) << 11;
    double d = (double)u;
    return round_double(v < 0 ? -d : d, true);
}

static bool is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

/* n <= BLOCK elements; x need not be aligned. odd: the next step rounds again. */
static void to_float(float *restrict y, const void *x, enum dtype type, size_t n, bool odd)
{
    union {
        uint16_t u16[BLOCK];
        int32_t i32[BLOCK];
        int64_t i64[BLOCK];
        double f64[BLOCK];
    } aligned;
    const uint8_t *bytes = x;
    size_t i;
    if (type == DTYPE_F32) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
    const uint16_t *halves = is_aligned(x, 2) ? x : aligned.u16;
    if (dtype_bytes(type) > 2 || x != halves) memcpy(&aligned, x, n * dtype_bytes(type));
    switch (type) {
    case DTYPE_BF16: bf16_to_float(y, halves, n); break;
    case DTYPE_F16: half_to_float(y, halves, n); break;
    case DTYPE_F64:
        for (i = 0; i < n; i++) y[i] = round_double(aligned.f64[i], odd);
        break;
    case DTYPE_I64:
        for (i = 0; i < n; i++) y[i] = round_integer(aligned.i64[i], odd);
        break;
    case DTYPE_I32:
        for (i = 0; i < n; i++) y[i] = round_double(aligned.i32[i], odd);
        break;
    case DTYPE_I16:
        for (i = 0; i < n; i++) y[i] = (int16_t)halves[i];
        break;
    case DTYPE_I8:
        for (i = 0; i < n; i++) y[i] = (int8_t)bytes[i];
        break;
    case DTYPE_U8:
        for (i = 0; i < n; i++) y[i] = bytes[i];
        break;
    case DTYPE_BOOL:
        for (i = 0; i < n; i++) y[i] = bytes[i] != 0;
        break;
    case DTYPE_F32: break;
    }
}

void weights_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t count)
{
    if (dst_type == src_type) {
        if (count) memcpy(dst, src, (size_t)count * dtype_bytes(src_type));
        return;
    }
    float block[BLOCK];
    uint16_t narrow[BLOCK];
    uint8_t *to = dst;
    const uint8_t *from = src;
    bool straight_in = src_type == DTYPE_F32 && is_aligned(src, sizeof(float)),
         straight_out = is_aligned(dst, dtype_bytes(dst_type));
    for (int64_t done = 0; done < count; done += BLOCK) {
        size_t n = (size_t)(count - done < BLOCK ? count - done : BLOCK);
        float *floats = dst_type == DTYPE_F32 && straight_out ? (float *)(void *)to : block;
        const float *in = straight_in ? (const float *)(const void *)from : floats;
        uint16_t *out = straight_out ? (uint16_t *)(void *)to : narrow;
        if (!straight_in) to_float(floats, from, src_type, n, dst_type != DTYPE_F32);
        if (dst_type != DTYPE_F32) {
            (dst_type == DTYPE_BF16 ? float_to_bf16 : float_to_half)(out, in, n);
            if (!straight_out) memcpy(to, narrow, n * sizeof *narrow);
        } else if (!straight_out) memcpy(to, block, n * sizeof *block);
        from += n * dtype_bytes(src_type);
        to += n * dtype_bytes(dst_type);
    }
}
