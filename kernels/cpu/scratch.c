/* Sizes of the scratch memory that callers of kernels provide: see ops.h. */
#include "kernels/cpu/ops.h"

/* the operands of attention.c, the larger of its forms of each; with blocks of keys also those keys and
 * values, and gradients of all */
size_t attention_scratch(int64_t N, int64_t dh, int64_t block, int threads)
{
    size_t n = ((size_t)N + 15) & ~(size_t)15, d = ((size_t)dh + 15) & ~(size_t)15;
    return (size_t)threads * ((block ? 9 : 5) * n * d + ATTENTION_ROWS * (3 * d + 4 * n + 1)) * sizeof(float);
}

size_t gemm_scratch(int threads)
{
    size_t floats = GEMM_DEPTH * (GEMM_ROWS + GEMM_PANEL) + GEMM_GAPS + 2 * GEMM_SCALES + GEMM_FALLBACK +
                    2 * GEMM_DEPTH * GEMM_PANEL + GEMM_ROWS * GEMM_COLUMNS;
    return (size_t)threads * ((floats + 15) & ~(size_t)15) * sizeof(float);
}
