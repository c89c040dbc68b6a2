/* C = alpha op(A) op(B) + beta C + bias with fp32 accumulation: the fallback where no BLAS library is found, and the
 * kernel for shapes that BLAS libraries refuse. A block makes a 64 x 64 tile of C; each of its 256 threads 4 x 4. */
#include "kernels/gpu/vendor.h"

enum { TILE = 64, DEPTH = 16, GEMM_THREADS = 256 };

template <class T, class U>
DEVICE void gemm(const T *a, const T *b, U *c, const float *bias, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                 int transpose_a, int transpose_b, float alpha, float beta)
{
    SHARED float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    int64_t row0 = BLOCK_Y * TILE, column0 = BLOCK_X * TILE;
    int tr = THREAD / 16, tc = THREAD % 16;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
        for (int e = THREAD; e < TILE * DEPTH; e += GEMM_THREADS) {
            /* walk along the contiguous direction of each operand */
            int i = transpose_a ? e % TILE : e / DEPTH, p = transpose_a ? e / TILE : e % DEPTH;
            int64_t row = row0 + i, kk = k0 + p;
            as[p][i] = row < m && kk < k ? load(a, transpose_a ? kk * lda + row : row * lda + kk) : 0.0f;
            int j = transpose_b ? e / DEPTH : e % TILE, q = transpose_b ? e % DEPTH : e / TILE;
            int64_t column = column0 + j;
            kk = k0 + q;
            bs[q][j] = column < n && kk < k ? load(b, transpose_b ? column * ldb + kk : kk * ldb + column) : 0.0f;
        }
        barrier();
        for (int p = 0; p < DEPTH; p++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += as[p][tr + 16 * i] * bs[p][tc + 16 * j];
        barrier();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int64_t row = row0 + tr + 16 * i, column = column0 + tc + 16 * j;
            if (row >= m || column >= n) continue;
            float x = alpha * sum[i][j];
            if (beta != 0) x += beta * load(c, row * ldc + column);
            if (bias) x += bias[column];
            store(c, row * ldc + column, x);
        }
}
#define GEMM(name, T, U)                                                                                               \
    KERNEL(name, const T *a, const T *b, U *c, const float *bias, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,   \
           int64_t ldc, int transpose_a, int transpose_b, float alpha, float beta)                                     \
    {                                                                                                                  \
        gemm(a, b, c, bias, m, n, k, lda, ldb, ldc, transpose_a, transpose_b, alpha, beta);                            \
    }
GEMM(gemm_f32_f32, float, float)
GEMM(gemm_bf16_f32, bf16, float)
GEMM(gemm_bf16_bf16, bf16, bf16)
GEMM(gemm_f32_bf16, float, bf16)
