/* 8 bits for values that are read once more: what a block keeps between forward and backward. A group of up
 * to 64 neighbours of a row has one scale, the largest magnitude / 127, and each value x is kept as the whole
 * number q from -127 to 127 that stands for q scale, rounded up or down at random so that on average it is x
 * (stochastic rounding; of values it is what keeps the sums of a weight's gradient unbiased).
 *
 * The random numbers come from the values themselves: the bits of a group's values, each times an odd number
 * of its own, add up to the group's seed, and a hash of seed and place (lowbias32, Chris Wellons's
 * hash-prospector) is the number. So nothing has to be remembered or handed over: the same values give the
 * same codes in a run that was resumed, on any number of ranks and in any micro-batch, for a row knows of no
 * other row. Sums are of whole numbers, a product is rounded once and cut to a whole number of 65536ths, and
 * no multiply-add is left to be fused: every device and instruction set gives the same bits.
 *
 * Where a value is not finite the scale of its group is a NaN, and all 64 are read back as that. A group
 * whose largest value is below 2^-100 is kept as zeros.
 *
 * Expected value: the code's, but for at most 2^-16 of a scale that is cut off. The includer may define
 * CODES8_FN, the qualifiers of a function, and CODES8_MUL and CODES8_DIV, rounded correctly. */
#ifndef MEOPT_KERNELS_CODES8_H
#define MEOPT_KERNELS_CODES8_H

#include <stdint.h>

#ifndef CODES8_FN
#define CODES8_FN        static inline
#define CODES8_MUL(a, b) ((a) * (b))
#define CODES8_DIV(a, b) ((a) / (b))
#endif

enum { CODES8_GROUP = 64 };
#define CODES8_NONE 0x7F800000u /* bits of a magnitude from here on: not finite */
#define CODES8_TINY 0x0D800000u /* 2^-100 */
#define CODES8_NAN  0x7FC00000u

/* What element i of a group adds to its seed. Of bf16 the lower half of the bits is empty. */
CODES8_FN uint32_t codes8_seed(uint32_t bits, uint32_t i)
{
    return (bits ^ bits >> 16) * ((2 * i + 1) * 0x9E3779B1u);
}
/* 16 random bits */
CODES8_FN uint32_t codes8_random(uint32_t seed, uint32_t i)
{
    uint32_t x = seed + i * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x = (x ^ x >> 15) * 0xD35A2D97u;
    return x >> 16;
}
/* Of a group whose largest magnitude is neither CODES8_NONE nor CODES8_TINY: what a value is multiplied with.
 */
CODES8_FN float codes8_inverse(float largest) { return CODES8_DIV(8323072.0f /* 127 * 65536 */, largest); }
CODES8_FN float codes8_scale(float largest) { return CODES8_DIV(largest, 127.0f); }
CODES8_FN int8_t codes8_code(float x, float inverse, uint32_t random)
{
    return (int8_t)(((int32_t)CODES8_MUL(x, inverse) + (int32_t)random) >> 16);
}

#endif
