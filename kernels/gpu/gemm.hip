/* C = alpha op(A) op(B) + beta C + bias with fp32 sums: the fallback without a BLAS library, and for shapes
 * that BLAS libraries refuse. A block of 256 threads computes a 64 x 64 tile of C, each thread 4 x 4. With
 * bf16 operands and matrix instructions, each wave computes an equal part in pieces of 16 x 16. */
#include "kernels/gpu/matrix.h"

enum { TILE = 64, DEPTH = 16, GEMM_THREADS = 256 };

template <class U>
DEVICE void gemm_finish(U *c, const float *bias, int64_t row, int64_t column, int64_t ldc, float alpha,
                        float beta, float sum)
{
    float x = alpha * sum;
    if (beta != 0) x += beta * load(c, row * ldc + column);
    if (bias) x += bias[column];
    store(c, row * ldc + column, x);
}

template <class T, class U>
DEVICE void gemm(const T *a, const T *b, U *c, const float *bias, int64_t m, int64_t n, int64_t k,
                 int64_t lda, int64_t ldb, int64_t ldc, int transpose_a, int transpose_b, float alpha,
                 float beta)
{
    SHARED float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    int64_t row0 = BLOCK_Y * TILE, column0 = BLOCK_X * TILE;
    int tr = THREAD / 16, tc = THREAD % 16;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
        for (int e = THREAD; e < TILE * DEPTH; e += GEMM_THREADS) {
            /* load along the contiguous dimension of each operand */
            int i = transpose_a ? e % TILE : e / DEPTH, p = transpose_a ? e / TILE : e % DEPTH;
            int64_t row = row0 + i, kk = k0 + p;
            as[p][i] = row < m && kk < k ? load(a, transpose_a ? kk * lda + row : row * lda + kk) : 0.0f;
            int j = transpose_b ? e / DEPTH : e % TILE, q = transpose_b ? e % DEPTH : e / TILE;
            int64_t column = column0 + j;
            kk = k0 + q;
            bs[q][j] =
                column < n && kk < k ? load(b, transpose_b ? column * ldb + kk : kk * ldb + column) : 0.0f;
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
            if (row < m && column < n) gemm_finish(c, bias, row, column, ldc, alpha, beta, sum[i][j]);
        }
}

#if MEOPT_MATRIX
enum { DEEP = 32, STRIDE = DEEP + 8 /* elements per row of a tile: rows start in different banks */ };

/* A tile is 64 rows x DEEP of op(A), or 64 columns of op(B) x DEEP. A thread loads eight elements that are
 * contiguous in memory. `along`: these are eight k of one row, else one k of eight rows. */
DEVICE chunk tile_fetch(const bf16 *x, bool along, bool aligned, int64_t first, int64_t rows, int64_t k0,
                        int64_t k, int64_t ld)
{
    int64_t row = first + (along ? THREAD / 4 : THREAD % 8 * 8),
            p = k0 + (along ? THREAD % 4 * 8 : THREAD / 8);
    if (row >= rows || p >= k) return load_chunk(x, 0, false);
    return along ? load_chunk(x + row * ld + p, k - p, aligned)
                 : load_chunk(x + p * ld + row, rows - row, aligned);
}
DEVICE void tile_put(chunk *tile, bool along, const chunk &c)
{
    if (along) {
        tile[(THREAD / 4 * STRIDE + THREAD % 4 * 8) / 8] = c;
        return;
    }
    bf16 *at = (bf16 *)tile + THREAD % 8 * 8 * STRIDE + THREAD / 8;
    UNROLLED for (int i = 0; i < 8; i++) at[i * STRIDE].bits = (uint16_t)(c.pair[i / 2] >> i % 2 * 16);
}

template <class U>
DEVICE void gemm(const bf16 *a, const bf16 *b, U *c, const float *bias, int64_t m, int64_t n, int64_t k,
                 int64_t lda, int64_t ldb, int64_t ldc, int transpose_a, int transpose_b, float alpha,
                 float beta)
{
    enum { DOWN = 2, ACROSS = WAVE / 32 }; /* pieces of a wave; waves are arranged in two rows */
    SHARED chunk as[TILE * STRIDE / 8], bs[TILE * STRIDE / 8];
    int64_t row0 = BLOCK_Y * TILE, column0 = BLOCK_X * TILE;
    int wave = THREAD / WAVE, down = wave % 2 * DOWN * 16, across = wave / 2 * ACROSS * 16;
    bool aligned_a = (uintptr_t)a % sizeof(chunk) == 0 && lda % 8 == 0,
         aligned_b = (uintptr_t)b % sizeof(chunk) == 0 && ldb % 8 == 0;
    result sum[DOWN][ACROSS] = {};
    chunk next_a = tile_fetch(a, !transpose_a, aligned_a, row0, m, 0, k, lda),
          next_b = tile_fetch(b, transpose_b, aligned_b, column0, n, 0, k, ldb);
    for (int64_t k0 = 0; k0 < k; k0 += DEEP) {
        barrier();
        tile_put(as, !transpose_a, next_a);
        tile_put(bs, transpose_b, next_b);
        barrier();
        next_a = tile_fetch(a, !transpose_a, aligned_a, row0, m, k0 + DEEP, k, lda);
        next_b = tile_fetch(b, transpose_b, aligned_b, column0, n, k0 + DEEP, k, ldb);
        UNROLLED for (int p = 0; p < DEEP; p += 16)
        {
            fragment x[DOWN];
            partner y[ACROSS];
            UNROLLED for (int i = 0; i < DOWN; i++) x[i] =
                fragment_rows((bf16 *)as + (down + 16 * i) * STRIDE + p, STRIDE);
            UNROLLED for (int j = 0; j < ACROSS; j++) y[j] =
                partner_rows((bf16 *)bs + (across + 16 * j) * STRIDE + p, STRIDE);
            UNROLLED for (int i = 0; i < DOWN; i++) UNROLLED for (int j = 0; j < ACROSS; j++)
                multiply(sum[i][j], x[i], y[j]);
        }
    }
    UNROLLED for (int i = 0; i < DOWN; i++) UNROLLED for (int j = 0; j < ACROSS; j++)
        UNROLLED for (int e = 0; e < FRAGMENT; e++)
    {
        int64_t row = row0 + down + 16 * i + fragment_row(e),
                column = column0 + across + 16 * j + fragment_column(e);
        if (row < m && column < n) gemm_finish(c, bias, row, column, ldc, alpha, beta, sum[i][j].at[e]);
    }
}
#endif
/* PATH: the implementation of the arch for T, or the plain one */
#define GEMM(name, T, U, PATH)                                                                               \
    KERNEL(name, const T *a, const T *b, U *c, const float *bias, int64_t m, int64_t n, int64_t k,           \
           int64_t lda, int64_t ldb, int64_t ldc, int transpose_a, int transpose_b, float alpha, float beta) \
    {                                                                                                        \
        gemm PATH(a, b, c, bias, m, n, k, lda, ldb, ldc, transpose_a, transpose_b, alpha, beta);             \
    }
GEMM(gemm_f32_f32, float, float, )
GEMM(gemm_f32_bf16, float, bf16, )
GEMM(gemm_bf16_f32, bf16, float, )
GEMM(gemm_bf16_bf16, bf16, bf16, )
#define COMMA ,
GEMM(gemm_bf16_f32_plain, bf16, float, <bf16 COMMA float>)
GEMM(gemm_bf16_bf16_plain, bf16, bf16, <bf16 COMMA bf16>)

/* Run by one wave at every start: checks that the matrix instructions behave as matrix.h assumes. Stores
 * their kind in c[0], then three (16, 16) matrices: a b^T, a b, and (a b^T) b with that sum as the first
 * operand. The host compares (core/device/gpu_matrix.c). Values are small integers, so that every sum is
 * exact. */
KERNEL(matrix_check, const bf16 *a, const bf16 *b, float *c)
{
    if (THREAD == 0 && BLOCK_X == 0) c[0] = MEOPT_MATRIX;
#if MEOPT_MATRIX
    SHARED chunk tiles[2 * 16 * 16 / 8];
    bf16 *as = (bf16 *)tiles, *bs = as + 16 * 16;
    for (int i = THREAD; i < 16 * 16; i += THREADS) {
        as[i] = a[i];
        bs[i] = b[i];
    }
    barrier();
    fragment x = fragment_rows(as, 16);
    result rows = {}, columns = {}, chained = {};
    multiply(rows, x, partner_rows(bs, 16));
    partner down[1];
    partner_columns(down, bs, 16);
    multiply(columns, x, down[0]);
    multiply(chained, fragment_of(rows), down[0]);
    if (THREAD >= WAVE) return;
    UNROLLED for (int i = 0; i < FRAGMENT; i++)
    {
        int at = 1 + fragment_row(i) * 16 + fragment_column(i);
        c[at] = rows.at[i];
        c[at + 256] = columns.at[i];
        c[at + 512] = chained.at[i];
    }
#else
    (void)a, (void)b;
#endif
}
