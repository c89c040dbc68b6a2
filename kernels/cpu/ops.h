/* CPU operations: pure functions over pointers and sizes, one table per instruction set.
 *
 * The sources rows.c, elements.c, activation.c, attention.c, gemm.c and loss.c are compiled once for each
 * instruction set (CMakeLists.txt), each time with another suffix; a set that differs from another in
 * products only has its own gemm.c and the other's rest. cpu_ops_select takes the best table that this
 * processor can run. Contracts and shapes are those of the slots of the same name in core/device/device.h;
 * here tensors of the compute type outside a struct are `void *` with bf16 != 0 for bf16, 0 for float. All
 * loops are parallel (OpenMP), and sums over rows are taken over a fixed number of shares added up in order,
 * so results do not depend on the number of threads.
 */
#ifndef MEOPT_KERNELS_CPU_OPS_H
#define MEOPT_KERNELS_CPU_OPS_H

#include "kernels/operations.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_ops {
    const char *isa; /* of cpu_set_names */
    void (*patchify)(int bf16, const float *images, void *patches, int64_t B, int64_t S, int64_t p);
    void (*embed_forward)(const struct embedding *);
    void (*embed_backward)(const struct embedding_gradient *);
    void (*resize_rows)(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D,
                        int transpose);
    void (*layernorm_forward)(const struct layernorm *);
    void (*layernorm_apply)(const struct layernorm *);
    /* shares: row_shares_bytes(2 * D) of scratch, (3 * D) with `then` */
    void (*layernorm_backward)(const struct layernorm_gradient *, float *shares);
    /* scratch: attention_scratch(N, dh, threads) */
    void (*attention_forward)(const struct attention *, void *scratch, int threads);
    void (*attention_backward)(const struct attention_gradient *, void *scratch, int threads);
    /* scratch: gemm_scratch(threads). Returns how many tiles of blocks were multiplied as floats beside
     * outliers, 0 without gemm_codes. */
    int64_t (*gemm)(const struct gemm *, void *scratch, int threads);
    bool gemm_codes; /* those of bf16 are by whole numbers: codes.h */
    void (*rotate)(const struct rotation *);
    void (*row_mean_forward)(const struct row_mean *);
    void (*row_mean_backward)(const struct row_mean_gradient *);
    void (*gelu_forward)(int bf16, const void *h, void *y, int64_t n);
    void (*quick_gelu_forward)(int bf16, const void *h, void *y, int64_t n);
    void (*swiglu_forward)(int bf16, const void *h, void *y, int64_t R, int64_t F);
    /* shares: row_shares_bytes(columns of dh) of scratch, with sums */
    void (*activation_backward)(const struct activation_gradient *, float *shares);
    void (*residual_forward)(const struct residual *);
    void (*branch_gradient)(const struct branch_gradient *, float *shares); /* row_shares_bytes(D) */
    void (*column_sums)(int bf16, const void *x, float *sums, int64_t R, int64_t D,
                        float *shares); /* row_shares_bytes(R, D) */
    void (*layerscale_backward)(const struct layerscale_gradient *);
    void (*encode)(const struct coded *);
    void (*decode)(const struct coded *);
    /* scratch: 2 * R doubles */
    void (*distill_loss)(const struct distillation *, double *scratch);
    void (*cast)(const void *src, int src_bf16, void *dst, int dst_bf16, int64_t n);
    /* scratch: SUM_SHARES doubles; returns whether all are finite */
    int (*sum_squares)(const void *x, int bf16, int64_t n, double *sum, double *scratch);
};

enum { ROW_SHARES = 64, SUM_SHARES = 256, ATTENTION_ROWS = 96 };
static inline size_t row_shares_bytes(int64_t columns)
{
    return (size_t)ROW_SHARES * (size_t)columns * sizeof(float);
}
/* blocks of products: of C's rows and columns, words of the inner dimension, columns of a panel at most;
 * words that lie unused behind the groups of rows. 516 rows are two images of 257 tokens in groups of 6; 128
 * words of a panel, of a group of rows and their sums lie in the nearest cache together. */
enum {
    GEMM_ROWS = 516,
    GEMM_COLUMNS = 2112,
    GEMM_DEPTH = 128,
    GEMM_PANEL = 64,
    GEMM_GAPS = 272,
    GEMM_BLOCK = 64, /* words of codes with one unit (codes.h) */
    GEMM_UNITS = GEMM_DEPTH / GEMM_BLOCK * (GEMM_ROWS + GEMM_PANEL),
    GEMM_EXACT = 1024, /* floats of a group's rows of a block, 2 * 64 * 6, and of the gap behind it */
};
size_t gemm_scratch(int threads); /* whole cache lines for each thread */
size_t attention_scratch(int64_t N, int64_t dh, int threads);

/* The table of the set that this processor takes by itself, or of the one that MEOPT_CPU_ISA asks for and
 * that it can run: select.h. (amx, the default where it exists, is products and attention of bf16 on the
 * matrix unit, beside the processor's own set.) */
const struct cpu_ops *cpu_ops_select(void);
extern const struct cpu_ops cpu_ops_avx512_bf16, cpu_ops_avx512_vnni, cpu_ops_avx512, cpu_ops_avx2_vnni,
    cpu_ops_avx2, cpu_ops_avx2_fma, cpu_ops_plain;

#endif
