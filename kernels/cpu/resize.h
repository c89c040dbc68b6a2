/* The two passes of PIL's resize over RGB bytes (core/data/resize.c), in integer arithmetic: bit-identical on
 * every instruction set. A weight has 22 fractional bits. The vector form splits it into 11 low bits and the
 * rest, so that two taps are one multiplication of 16-bit pairs, and adds high * 2048 + low at the end. */
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
/* Prepares `axis` for the vector form of resize_across. Does nothing without memory, or if a row of `in`
 * pixels is too short. */
void resize_pack(struct resize_axis *axis, int in);
/* Computes rows x count pixels from rows of `stride` bytes; output rows have 3 count bytes. */
void resize_across(const struct resize_axis *axis, const uint8_t *in, int64_t stride, int rows, uint8_t *out);
/* Computes output row i. Input row 0 is at rows, with row_bytes between rows. */
void resize_down(const struct resize_axis *axis, int i, const uint8_t *rows, int row_bytes, bool vector,
                 uint8_t *out);

#endif
