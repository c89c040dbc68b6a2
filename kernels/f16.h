/* Rounds fp32 to fp16, for the stored residual stream: to nearest, ties to even; NaN stays NaN. Results are
 * bit-identical on every device. The includer may define F16_FN, the qualifiers of a function. */
#ifndef MEOPT_KERNELS_F16_H
#define MEOPT_KERNELS_F16_H

#include <stdint.h>

#ifndef F16_FN
#define F16_FN static inline
#endif

union f16_bits {
    float f;
    uint32_t u;
};

/* Below 2^-14, the last bit of an fp16 is 2^-24, like that of a float from 1/2 to 1: adding 1/2 rounds. */
F16_FN uint16_t f16_of(float x)
{
    union f16_bits v, small;
    v.f = x;
    uint32_t sign = v.u >> 16 & 0x8000u, magnitude = v.u & 0x7FFFFFFFu,
             h = ((magnitude + 0xFFFu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
    v.u = magnitude;
    small.f = v.f + 0.5f;
    h = magnitude < 0x38800000u ? small.u - 0x3F000000u : h;
    h = magnitude >= 0x477FF000u ? 0x7C00u : h;
    h = magnitude > 0x7F800000u ? 0x7E00u : h;
    return (uint16_t)(sign | h);
}
/* Returns the bits of the same number in fp32. */
F16_FN uint32_t f16_bits_of(uint16_t h)
{
    union f16_bits small;
    uint32_t magnitude = h & 0x7FFFu, sign = (h & 0x8000u) << 16,
             u = (magnitude << 13) + ((magnitude >= 0x7C00u ? 224u : 112u) << 23);
    small.f = (float)(int32_t)magnitude * 0x1p-24f;
    return sign | (magnitude < 0x400u ? small.u : u);
}
F16_FN float f16_value(uint16_t h)
{
    union f16_bits v;
    v.u = f16_bits_of(h);
    return v.f;
}

#endif
