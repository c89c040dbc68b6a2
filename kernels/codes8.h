/* 8-bit quantization of activations that a block saves between forward and backward. A group is up to 64
 * neighbours of a row. Its largest value, the top, is stored in bf16 and has the code -128, so that one
 * outlier does not widen the scale of the others. Their scale is the largest remaining magnitude / 127,
 * rounded up to bf16. A value x is stored as an integer q from -127 to 127:
 *
 *     q = floor(x / scale + u),    read back as (q + 1/2 - u) scale,    0 <= u < 1 at random
 *
 * (subtractive dither: Roberts 1962, Schuchman 1964). Over u, the error is uniform in +- scale / 2 for every
 * x. Its mean is zero, like that of stochastic rounding, with half the variance. Unlike rounding to nearest,
 * similar rows have different errors.
 *
 * u is derived from the values: their bits, each times its own odd number, add up to a seed of 16 bits. The
 * lower half of the scale's word stores it. u is a hash of seed and index (constants: Chris Wellons,
 * hash-prospector). A row does not depend on other rows, so the codes are the same in a resumed run, on any
 * number of ranks and in any micro-batch. Sums are integer sums, each product is rounded once, and there is
 * no multiply-add to fuse. All devices and instruction sets are therefore bit-identical.
 *
 * If a value is not finite, the scale of its group is NaN, and all 64 are read back as NaN. A group whose
 * largest value is below 2^-100 is stored as zeros. x / scale is truncated to 65536ths, which shifts the mean
 * by at most 2^-16 of a scale.
 *
 * The includer may define CODES8_FN, the qualifiers of a function, and CODES8_MUL, a product that is not
 * fused. */
#ifndef MEOPT_KERNELS_CODES8_H
#define MEOPT_KERNELS_CODES8_H

#include "kernels/bf16.h"

#include <stdint.h>

#ifndef CODES8_FN
#define CODES8_FN        static inline
#define CODES8_MUL(a, b) ((a) * (b))
#endif

enum { CODES8_GROUP = 64, CODES8_TOP = -128 };
#define CODES8_NONE 0x7F800000u /* bits of a magnitude from here on: not finite */
#define CODES8_TINY 0x0D800000u /* 2^-100 */
#define CODES8_NAN  0x7FC00000u

/* Returns the contribution of element i to the sum that gives the seed. The lower half of a bf16 is 0. */
CODES8_FN uint32_t codes8_add(uint32_t bits, uint32_t i)
{
    return (bits ^ bits >> 16) * ((2 * i + 1) * 0x9E3779B1u);
}
/* Returns a key that orders elements by magnitude, then by index: the largest key is the top. For F32 the six
 * low bits are not compared. */
CODES8_FN uint32_t codes8_key(uint32_t bits, uint32_t i)
{
    return (bits & 0x7FFFFFC0u) | (CODES8_GROUP - 1 - i);
}
CODES8_FN uint32_t codes8_top_index(uint32_t key) { return CODES8_GROUP - 1 - (key & (CODES8_GROUP - 1)); }
/* Rounds a finite top to a finite bf16. */
CODES8_FN uint16_t codes8_top(uint32_t bits)
{
    uint16_t h = bf16_of_bits(bits);
    return (uint16_t)((h & 0x7FFFu) == 0x7F80u ? h - 1u : h);
}
/* Returns the word of a group: the scale in bf16 (rounded up), and the seed. */
CODES8_FN uint32_t codes8_word(uint32_t scale, uint32_t sum)
{
    return ((scale + 0xFFFFu) & 0xFFFF0000u) | ((sum ^ sum >> 15) * 0x21F0AAADu) >> 16;
}
CODES8_FN uint32_t codes8_scale_bits(uint32_t word) { return word & 0xFFFF0000u; }
/* Returns u of element i, in 65536ths. */
CODES8_FN int32_t codes8_dither(uint32_t word, uint32_t i)
{
    uint32_t x = ((word & 0xFFFFu) + i * 65536u) * 0x9E3779B1u;
    x = (x ^ x >> 15) * 0xD35A2D97u;
    return (int32_t)(x >> 16);
}
/* step: 65536 / scale */
CODES8_FN int8_t codes8_code(float x, float step, int32_t dither)
{
    return (int8_t)(((int32_t)CODES8_MUL(x, step) + dither) >> 16);
}
/* part: scale / 65536 */
CODES8_FN float codes8_value(int8_t code, float part, int32_t dither)
{
    return CODES8_MUL((float)(code * 65536 + 32768 - dither), part);
}

#endif
