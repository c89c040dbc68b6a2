/* The two passes of PIL's resize over RGB bytes (core/data/resize.c): whole-number
 * arithmetic, the same bytes on every instruction set. A weight has 22 fractional
 * bits; the vector form splits it into 11 low bits and the rest, so that two taps
 * are one multiplication of 16-bit pairs, and adds high * 2048 + low at the end. */
#ifndef MEOPT_KERNELS_CPU_RESIZE_H
#define MEOPT_KERNELS_CPU_RESIZE_H

#include <stdbool.h>
#include <stdint.h>

enum { RESIZE_BITS = 22 };

/* The input positions and weights of `count` output positions along one axis. */
struct resize_axis {
    int count, size; /* weights held per output position */
    int *first;      /* (count): first input position */
    int *length;     /* (count): how many */
    int *weights;    /* (count, size) */
    /* resize_pack: the horizontal pass four taps at a time; NULL: not packed */
    int groups;
    int *start;      /* (count): first input position read */
    int16_t *packed; /* (count, groups, high and low, 16) */
};

/* Chosen at run time: MEOPT_CPU_ISA=plain switches the vector form off. */
bool resize_vector(void);
/* Prepares `axis` for the vector form of resize_across; a row of `in` pixels too short for it, or no memory:
 * left as it is. */
void resize_pack(struct resize_axis *axis, int in);
/* rows x count pixels from rows of `stride` bytes; rows of the output lie 3 count bytes apart. */
void resize_across(const struct resize_axis *axis, const uint8_t *in, int64_t stride, int rows, uint8_t *out);
/* Output row i; input row 0 lies at rows, row_bytes from each to the next. */
void resize_down(const struct resize_axis *axis, int i, const uint8_t *rows, int row_bytes, bool vector,
                 uint8_t *out);

#endif
