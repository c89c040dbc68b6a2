/* C = alpha op(A) op(B) + beta C + bias on AMX tiles; row-major, row strides in elements. */
#ifndef MEOPT_KERNELS_GEMM_AMX_H
#define MEOPT_KERNELS_GEMM_AMX_H

#include <stddef.h>
#include <stdint.h>

struct gemm_bf16 {
    int64_t m, n, k;
    int transpose_a, transpose_b; /* A stored (k, m), B stored (n, k) */
    const uint16_t *a, *b;        /* bf16 */
    void *c;                      /* float or bf16 */
    int64_t lda, ldb, ldc;
    int c_bf16;
    float alpha, beta;
    const float *bias; /* (n) or NULL */
};

/* Returns whether processor and operating system support tiles. The first call requests permission. */
int gemm_amx_available(void);
/* Returns the bytes of 64-byte aligned memory that gemm_amx requires. */
size_t gemm_amx_workspace(int64_t m, int64_t n, int64_t k, int threads);
/* threads 1: callable from inside a parallel region. */
void gemm_amx(const struct gemm_bf16 *gemm, void *workspace, int threads);

#endif
