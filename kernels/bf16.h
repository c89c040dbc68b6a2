/* Rounds fp32 to bf16 on every device: to nearest, ties to even; NaN stays NaN. The includer may define
 * BF16_FN, the qualifiers of a function. */
#ifndef MEOPT_KERNELS_BF16_H
#define MEOPT_KERNELS_BF16_H

#include <stdint.h>

#ifndef BF16_FN
#define BF16_FN static inline
#endif

BF16_FN uint16_t bf16_of_bits(uint32_t bits)
{
    uint32_t rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
    return (uint16_t)(((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : rounded) >> 16);
}

#endif
