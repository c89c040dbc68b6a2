/* The optimizer kernels of the CPU. A call processes groups `begin` to `end` of a task. Different groups are
 * independent, so the caller distributes them over threads. All variants are bit-identical. */
#ifndef MEOPT_KERNELS_CPU_OPTIM_H
#define MEOPT_KERNELS_CPU_OPTIM_H

#include "kernels/operations.h"
#include "kernels/optim_task.h"

#include <stddef.h>

struct optim_kernels {
    const char *name; /* "avx512", "avx2", "plain" */
    void (*step)(const struct optim_task *task, int64_t begin, int64_t end, struct optim_partial *out);
    /* Convert fp32 values, padded to whole groups, to the task's formats (to nearest) and back. v NULL: the
     * rule has none. */
    void (*weights_in)(const struct optim_task *task, int64_t begin, int64_t end, const float *values);
    void (*weights_out)(const struct optim_task *task, int64_t begin, int64_t end, float *values);
    void (*state_in)(const struct optim_task *task, int64_t begin, int64_t end, const float *m,
                     const float *v);
    void (*state_out)(const struct optim_task *task, int64_t begin, int64_t end, float *m, float *v);
    /* Updates the average of the weights, after `step`. */
    void (*average)(const struct optim_task *task, int64_t begin, int64_t end);
    /* Computes blocks `begin` to `end`, of optim_product_blocks, of a GEMM without bias. Each element of C is
     * one sum in rising order of k, so bits depend on nothing else. C overlaps neither A nor B. scratch:
     * OPTIM_PRODUCT_SCRATCH bytes, 64-byte aligned, one for each thread. */
    void (*product)(const struct gemm *gemm, void *scratch, int64_t begin, int64_t end);
    /* Adds squared gradients to sums (kernels/optim_factor.h) of rows (FACTOR_LEVELS each), from that of the
     * first element of the range on, and of columns (FACTOR_LEVELS, columns), from its matrix on. */
    void (*factor_sums)(const struct optim_task *task, int64_t begin, int64_t end, double *rows,
                        double *columns);
};

enum { OPTIM_PRODUCT_ROWS = 96, OPTIM_PRODUCT_COLUMNS = 256, OPTIM_PRODUCT_DEPTH = 256 }; /* of a block */
#define OPTIM_PRODUCT_SCRATCH                                                                                \
    ((size_t)(2 * OPTIM_PRODUCT_ROWS + OPTIM_PRODUCT_COLUMNS) * OPTIM_PRODUCT_DEPTH * sizeof(float))
static inline int64_t optim_product_blocks(const struct gemm *g)
{
    return ((g->m + OPTIM_PRODUCT_ROWS - 1) / OPTIM_PRODUCT_ROWS) *
           ((g->n + OPTIM_PRODUCT_COLUMNS - 1) / OPTIM_PRODUCT_COLUMNS);
}

/* Returns the kernels called `name`, NULL if unknown or not runnable. name NULL: those of MEOPT_CPU_ISA, else
 * the fastest of this processor. */
const struct optim_kernels *optim_kernels_find(const char *name);

/* Return the bytes of a group: of a state (0 for STATE_NONE), of its scales, of its residual bits. Joint
 * codes are stored in m, and take the bytes of both moments. */
static inline size_t optim_state_bytes(int format)
{
    return format == STATE_NONE   ? 0
           : format == STATE_F32  ? 256
           : format == STATE_8BIT ? 64
           : format == STATE_4BIT ? 32
                                  : 128;
}
static inline size_t optim_scale_bytes(int m_format, int v_format)
{
    return OPTIM_JOINT(m_format, v_format)                      ? 4
           : OPTIM_M_GRID(m_format, v_format)                   ? 2
           : OPTIM_LOW_BIT(m_format) || OPTIM_LOW_BIT(v_format) ? 1
                                                                : 0;
}
/* Returns the bytes of a stored weight: fp32, or the bf16 half. */
static inline size_t optim_weight_bytes(int weight_format)
{
    return weight_format <= WEIGHTS_F32_COPY ? 4 : 2;
}
static inline size_t optim_residual_bytes(int weight_format)
{
    return weight_format == WEIGHTS_20   ? 32
           : weight_format == WEIGHTS_24 ? 64
           : weight_format == WEIGHTS_32 ? 128
                                         : 0;
}

/* Return the number of groups, or chunks, of `count` elements. */
static inline int64_t optim_groups(int64_t count) { return (count + OPTIM_GROUP - 1) / OPTIM_GROUP; }
static inline int64_t optim_chunks(int64_t count)
{
    return (optim_groups(count) + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
}

/* Computes the sum of squares in double, and whether all values are finite. */
void optim_sum_squares(const void *x, int gradient_format, int64_t count, double *squares, int *finite);

/* Returns whether no value is a NaN or an infinity. */
int optim_all_finite(const void *x, int gradient_format, int64_t count);

#endif
