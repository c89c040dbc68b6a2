/* 8 bits for values that are read once more: what a block keeps between forward and backward. A group is up
 * to 64 neighbours of a row. Its largest value, the top, is kept apart in bf16, and has the code -128; so one
 * outlier costs the others nothing. The others have one scale, their largest magnitude / 127 (to the next
 * bf16 above), and a value x is kept as a whole number q from -127 to 127,
 *
 *     q = floor(x / scale + u),    read back as (q + 1/2 - u) scale,    0 <= u < 1 at random
 *
 * (subtractive dither: Roberts 1962, Schuchman 1964). Over u the error is uniform in +- scale / 2 whatever x
 * is: zero on average as with stochastic rounding, whose q it is, with half the variance of that; and rows
 * that are alike do not err alike, as they do when rounded to nearest.
 *
 * u comes from the values themselves: the bits of a group's values, each times an odd number of its own, add
 * up to the group's seed of 16 bits, stored in the lower half of the scale's word; u is a hash of seed
 * and place (its constants: Chris Wellons, hash-prospector). So nothing has to be remembered or handed over:
 * the same values give the same codes in a run that was resumed, on any number of ranks and in any
 * micro-batch, for a row knows of no other row. Sums are of whole numbers, each product is rounded once, and
 * no multiply-add is left to be fused: every device and instruction set gives the same bits.
 *
 * Where a value is not finite the scale of its group is a NaN, and all 64 are read back as that. Others whose
 * largest value is below 2^-100 are kept as zeros. x / scale is cut to 65536ths, which moves no mean by
 * more than 2^-16 of a scale.
 *
 * The includer may define CODES8_FN, the qualifiers of a function, and CODES8_MUL, a product that is rounded
 * by itself. */
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

/* What element i of a group adds to the sum that its seed is made of. Of bf16 the lower half is empty. */
CODES8_FN uint32_t codes8_add(uint32_t bits, uint32_t i)
{
    return (bits ^ bits >> 16) * ((2 * i + 1) * 0x9E3779B1u);
}
/* Orders elements by magnitude, of equal ones the first: the largest is the top (of F32 six low bits are not
 * compared). */
CODES8_FN uint32_t codes8_key(uint32_t bits, uint32_t i)
{
    return (bits & 0x7FFFFFC0u) | (CODES8_GROUP - 1 - i);
}
CODES8_FN uint32_t codes8_top_index(uint32_t key) { return CODES8_GROUP - 1 - (key & (CODES8_GROUP - 1)); }
/* bf16 of a top that is finite, and stays so */
CODES8_FN uint16_t codes8_top(uint32_t bits)
{
    uint16_t h = bf16_of_bits(bits);
    return (uint16_t)((h & 0x7FFFu) == 0x7F80u ? h - 1u : h);
}
/* The word of a group: the bits of the others' largest magnitude / 127 rounded up, and the seed. */
CODES8_FN uint32_t codes8_word(uint32_t scale, uint32_t sum)
{
    return ((scale + 0xFFFFu) & 0xFFFF0000u) | ((sum ^ sum >> 15) * 0x21F0AAADu) >> 16;
}
CODES8_FN uint32_t codes8_scale_bits(uint32_t word) { return word & 0xFFFF0000u; }
/* u of element i in 65536ths */
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
