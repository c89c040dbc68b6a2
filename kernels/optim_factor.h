/* Adafactor's sums of squared gradients by rows and columns of matrices. They are exact, so that no order of
 * addition, number of threads, ranks or shards changes their bits: each square (a product of two floats,
 * exact in double) is split into multiples of the units of FACTOR_LEVELS levels, which are added up apart,
 * without rounding. FACTOR_FN: qualifiers of a function. */
#ifndef MEOPT_KERNELS_OPTIM_FACTOR_H
#define MEOPT_KERNELS_OPTIM_FACTOR_H

#include "kernels/optim_scale.h"

#ifndef FACTOR_FN
#define FACTOR_FN static inline
#endif

/* Squares of groups that are stepped are below 2^126 (GRADIENT_SQUARES_MAX); what is below 2^-151 counts as
 * 0. A sum over 2^25 elements has up to 53 bits on each level. */
enum { FACTOR_LEVELS = 10, FACTOR_BITS = 28, FACTOR_LOWEST = -150, FACTOR_MOST = 1 << 25 };

/* Squares keep 24 bits, so that most need two levels. */
#define FACTOR_SQUARE_HALF 0x10000000u          /* of the last bit that stays */
#define FACTOR_SQUARE_MOST 8.507059173023462e37 /* 2^126; a NaN is not below it */
/* Returns the square of a scaled gradient; 0 if the step skips its group for it. */
FACTOR_FN double factor_square(float g)
{
    union {
        uint64_t bits;
        double value;
    } x;
    x.value = (double)g * (double)g;
    if (!(x.value < FACTOR_SQUARE_MOST)) return 0;
    x.bits = (x.bits + FACTOR_SQUARE_HALF) & ~(uint64_t)(2 * FACTOR_SQUARE_HALF - 1);
    return x.value;
}
FACTOR_FN double factor_power(int exponent)
{
    union {
        uint64_t bits;
        double value;
    } x;
    x.bits = (uint64_t)(1023 + exponent) << 52;
    return x.value;
}
/* Returns the highest level of squares up to this one, given as the bits of a double. */
FACTOR_FN int factor_level(uint64_t bits)
{
    int exponent = (int)(bits >> 52) - 1023 - FACTOR_LOWEST, level = exponent / FACTOR_BITS;
    return exponent < 0 ? 0 : level < FACTOR_LEVELS ? level : FACTOR_LEVELS - 1;
}
/* Adding and subtracting it rounds to multiples of the level's unit. */
FACTOR_FN double factor_rounder(int level)
{
    return 1.5 * factor_power(52 + FACTOR_LOWEST + FACTOR_BITS * level);
}

/* Returns the sum of the levels; it depends on the exact sum alone, not on how the levels share it. */
FACTOR_FN double factor_total(const double *levels, int64_t stride)
{
    int64_t digit[FACTOR_LEVELS], carry = 0;
    for (int l = 0; l < FACTOR_LEVELS; l++) {
        int64_t x = (int64_t)(levels[l * stride] * factor_power(-FACTOR_LOWEST - FACTOR_BITS * l)) + carry;
        digit[l] = x & ((1 << FACTOR_BITS) - 1);
        carry = x >> FACTOR_BITS;
    }
    double total = (double)carry * factor_power(FACTOR_LOWEST + FACTOR_BITS * FACTOR_LEVELS);
    for (int l = FACTOR_LEVELS; l-- > 0;)
        total += (double)digit[l] * factor_power(FACTOR_LOWEST + FACTOR_BITS * l);
    return total;
}

/* Returns the new average of the mean of `count` squares. */
FACTOR_FN float factor_average(float old, double total, int64_t count, const struct optim_scalars *s)
{
    double mean = total / (double)count + (double)s->eps;
    return (float)(SCALE_MUL((double)s->beta2, (double)old) + SCALE_MUL((double)s->rest2, mean));
}

/* The mean of the row means of a matrix has FACTOR_PARTS partial sums, of every FACTOR_PARTS'th row. */
enum { FACTOR_PARTS = 256 };
/* Returns a row's part of the root of the second moment, of its mean / the mean of its matrix. Without the
 * root the product with a column's mean could underflow. */
FACTOR_FN float factor_quotient(float row, double sum, int64_t rows, const struct optim_scalars *s)
{
    double mean = sum / (double)rows, least = (double)s->root_floor;
    return (float)sqrt((double)row / (mean > least ? mean : least));
}

#endif
