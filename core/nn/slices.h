/* Sums over the slices of a model (core/model/parameters.h). Each slice contributes a partial product, F32,
 * and the sum of all is that of a balanced binary tree: ((p0 + p1) + (p2 + p3)) + ... A rank has `own` slices
 * that follow each other, a power of 2, so it computes a whole subtree; the ranks then add theirs in a tree
 * (struct slice_ranks). So the sum does not depend on the number of ranks. */
#ifndef MEOPT_NN_SLICES_H
#define MEOPT_NN_SLICES_H

#include "core/device/device.h"

/* The ranks that share the slices (dist.tensor), in memory of the device. */
struct slice_ranks {
    /* Begins to replace values (count) by their sum over the ranks, in a tree. end waits for it. */
    int (*begin)(void *context, float *values, int64_t count, struct error *err);
    int (*end)(void *context, struct error *err);
    /* All-gathers `bytes` of each rank, in rank order; the own ones are in place. */
    int (*gather)(void *context, void *p, size_t bytes, struct error *err);
    void *context;
};

struct slice_sums {
    struct device *device;
    struct slice_ranks ranks; /* begin NULL: one rank has all slices */
    int own;
    float *buffers;      /* (slice_buffers(own), each) */
    int64_t each, width; /* values of a buffer, and of its rows */
    int depth, done;     /* buffers in use, and slices added, of the current sum */
    struct error failed; /* the first error of the ranks; sums after it are not computed */
};

/* Buffers that a sum of `own` slices needs. */
static inline int slice_buffers(int own)
{
    int buffers = 1;
    while (own > 1) buffers++, own /= 2;
    return buffers;
}

/* sum (rows, columns) += part, both F32. */
void rows_add(struct device *device, float *sum, const float *part, int64_t rows, int64_t columns);

/* Returns where the next slice's partial product is to be written, at most `each` values. */
float *slice_sums_next(struct slice_sums *sums);
/* Adds it to those before; count: its values. */
void slice_sums_add(struct slice_sums *sums, int64_t count);
/* In place of these two: the buffer has the sum of all own slices already. */
void slice_sums_all(struct slice_sums *sums);
/* After all own slices: begins to add the other ranks' sums; slice_sums_end returns the sum, which stays
 * until slice_sums_next. */
void slice_sums_begin(struct slice_sums *sums, int64_t count);
float *slice_sums_end(struct slice_sums *sums);
/* All-gathers `bytes` of each rank at p. */
void slice_gather(struct slice_sums *sums, void *p, size_t bytes);

#endif
