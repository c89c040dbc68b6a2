/* CPU operations: pure functions over pointers and sizes, one table per instruction set (ISA).
 *
 * The sources rows.c, elements.c, activation.c, attention.c, gemm.c, loss.c and language.c are compiled once
 * per ISA (CMakeLists.txt), each time with a different suffix. An ISA that differs from another only in how
 * it multiplies has its own gemm.c (and attention.c) and shares the rest. cpu_ops_select returns the best
 * table that this CPU can run.
 * Functions, contracts and shapes: OPERATIONS (kernels/operations.h). All loops are parallel (OpenMP). Sums
 * over rows consist of a fixed number of shares, added in order, so results do not depend on the number of
 * threads. */
#ifndef MEOPT_KERNELS_CPU_OPS_H
#define MEOPT_KERNELS_CPU_OPS_H

#include "kernels/operations.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_ops {
    const char *isa; /* of cpu_isa_names */
#define SLOT_KERNEL(name, kind, parameters, ...)  void(*name) parameters;
#define SLOT_SCRATCH(name, kind, parameters, ...) void (*name)(OPERATION_LIST parameters, void *scratch);
#define SLOT_DEVICE(...)
    OPERATION_ROWS(SLOT_KERNEL, SLOT_SCRATCH, SLOT_DEVICE)
#undef SLOT_KERNEL
#undef SLOT_SCRATCH
#undef SLOT_DEVICE
    /* scratch: attention_scratch(N, dh, block, threads) */
    void (*attention_forward)(const struct attention *, void *scratch, int threads);
    void (*attention_backward)(const struct attention_gradient *, void *scratch, int threads);
    /* scratch: gemm_scratch(threads). Returns the number of tiles that were multiplied in fp32 because of
     * outliers, 0 without gemm_bfp. */
    int64_t (*gemm)(const struct gemm *, void *scratch, int threads);
    bool gemm_bfp; /* bf16 GEMM in block floating point: bfp.h */
};

enum { ROW_SHARES = 64, SUM_SHARES = 256, ATTENTION_ROWS = 96 };
static inline size_t row_shares_bytes(int64_t columns)
{
    return (size_t)ROW_SHARES * (size_t)columns * sizeof(float);
}
/* GEMM blocking: rows and columns of a block of C, words of a slice of the inner dimension, columns of a
 * panel at most, words of the gaps between groups of rows. 516 rows are two images of 257 tokens in groups of
 * 6. 128 words of a panel, of a group of rows and their sums fit the first-level cache together. */
enum {
    GEMM_ROWS = 516,
    GEMM_COLUMNS = 2112,
    GEMM_DEPTH = 128,
    GEMM_PANEL = 64,
    GEMM_GAPS = 272,
    GEMM_BLOCK = 64, /* words of codes with one scale (bfp.h) */
    GEMM_SCALES = GEMM_DEPTH / GEMM_BLOCK * (GEMM_ROWS + GEMM_PANEL),
    GEMM_FALLBACK = 1024, /* floats of a group's rows of a block, 2 * 64 * 6, and of the gap after it */
};
size_t gemm_scratch(int threads); /* whole cache lines for each thread */
size_t attention_scratch(int64_t N, int64_t dh, int64_t block, int threads);

/* Returns the table of this CPU's ISA, or of the ISA in MEOPT_CPU_ISA if the CPU can run it: select.h. (amx,
 * the default where available, adds bf16 GEMM and attention on the matrix unit to the CPU's own ISA.) */
const struct cpu_ops *cpu_ops_select(void);
extern const struct cpu_ops cpu_ops_avx512_bf16, cpu_ops_avx512_vnni, cpu_ops_avx512, cpu_ops_avx2_vnni,
    cpu_ops_avx2, cpu_ops_avx2_fma, cpu_ops_plain;

#endif
