/* For tests of momentum on spans (kernels/optim_math.h): what a group's numbers may be off by. */
#ifndef MEOPT_TESTS_OPTIM_OPTIM_SPANS_H
#define MEOPT_TESTS_OPTIM_OPTIM_SPANS_H

#include "core/meopt.h"
#include "tests/optim/optim_numbers.h"

#include <math.h>

#define SPAN_BINADE 8388608.0 /* bits of a float */

/* x has become y on a span that was made for the n numbers m of its group alone, without a gradient: off by
 * half a step of the bits of |m| + c, and by a bit for each of the roundings of x + c and y + c. c: of SGD a
 * 16th of the largest, of Lion the smallest but zero, 12 binades below the largest at least; cut to a 16th of
 * a binade, from 2^-61 to 2^66 15/16. The span: what is needed, a 64th and an eighth of a binade more, up to
 * the next of those that a header can name (16.13 % more at most), a binade or more. 127 steps, of 128 bits
 * each. */
static inline double span_off(int rule, const float *m, int64_t n, double x, double y)
{
    uint32_t largest = 0, smallest = UINT32_MAX, least = 66u << 23, most = least + (2047u << 19);
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = to_bits(m[i]) & 0x7fffffff;
        if (size > largest) largest = size;
        if (size && size < smallest) smallest = size;
    }
    uint32_t under = (rule == MEOPT_LION ? 12u : 4u) << 23;
    if (rule != MEOPT_LION || smallest == UINT32_MAX || smallest + under < largest)
        smallest = largest > under ? largest - under : 0;
    uint32_t low = (smallest < least ? least : smallest > most ? most : smallest) & ~0x7ffffu;
    double need = (double)to_bits(from_bits(largest) + from_bits(low)) - low;
    double span = fmax(SPAN_BINADE, 1.1613 * (need * 65 / 64 + SPAN_BINADE / 8));
    double step = span / 127 + 128;
    return (fmax(fabs(x), fabs(y)) + (double)from_bits(low)) * (step / 2 + 2) / SPAN_BINADE;
}

#endif
