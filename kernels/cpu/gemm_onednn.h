/* C = alpha op(A) op(B) + beta C + bias through oneDNN; row-major, row strides in elements.
 *
 * A struct onednn keeps what was compiled for each shape; one caller at a time. onednn_scratch says how many
 * bytes (64-byte aligned) onednn_run wants for the same product: its operands need not exist yet. */
#ifndef MEOPT_KERNELS_GEMM_ONEDNN_H
#define MEOPT_KERNELS_GEMM_ONEDNN_H

#include "kernels/operations.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct matmul {
    int64_t m, n, k;
    bool transpose_a, transpose_b; /* A stored (k, m), B stored (n, k) */
    bool ab_bf16, c_bf16;          /* else float */
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    float alpha, beta;
    const float *bias; /* (n) or NULL */
};

static inline struct matmul matmul_of(const struct gemm *g)
{
    return (struct matmul){.m = g->m,
                           .n = g->n,
                           .k = g->k,
                           .transpose_a = g->transpose_a,
                           .transpose_b = g->transpose_b,
                           .ab_bf16 = g->ab_type == DTYPE_BF16,
                           .c_bf16 = g->c_type == DTYPE_BF16,
                           .a = g->a,
                           .b = g->b,
                           .c = g->c,
                           .lda = g->lda,
                           .ldb = g->ldb,
                           .ldc = g->ldc,
                           .alpha = g->alpha,
                           .beta = g->beta,
                           .bias = g->bias};
}

struct onednn;
struct onednn *onednn_open(void);        /* NULL: no engine, or no memory */
void onednn_close(struct onednn *cache); /* NULL is fine */
/* NO: bf16 on a processor without AVX-512. After a failure of any call FAILED, for good; onednn_why names it.
 */
enum onednn_answer { ONEDNN_NO, ONEDNN_YES, ONEDNN_FAILED };
const char *onednn_why(const struct onednn *cache);
enum onednn_answer onednn_supports(struct onednn *cache, const struct matmul *product);
size_t onednn_scratch(struct onednn *cache, const struct matmul *product);
/* false: failed */
bool onednn_run(struct onednn *cache, const struct matmul *product, void *scratch);

#endif
