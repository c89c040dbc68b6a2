/* C = alpha op(A) op(B) + beta C of fp32 or bf16, for the matrices of muon where a device has no GEMM. Every
 * element of C is one sum of fused multiply-adds in rising order of k, whatever the instruction set, the
 * blocks and the threads. kernels/cpu/gemm.c is faster with bf16, and sums in the order of its set.
 *
 * Blocks of C of 96 x 256 are one thread's. Slices of 256 of the inner dimension are packed as fp32: A in
 * strips of 6 rows, B in strips of the columns whose sums stay in registers. */

#define PRODUCT_VECTORS (LANES == 16 ? 4 : 2)
#define PRODUCT_PANEL   (PRODUCT_VECTORS * LANES)
#define PRODUCT_STRIP   6

OPTIM_FN float product_value(const void *x, enum dtype type, int64_t at)
{
    if (type == DTYPE_F32) return ((const float *)x)[at];
    return constant_real((uint32_t)((const uint16_t *)x)[at] << 16);
}

/* Packs `count` rows of op(A), or columns of op(B), by `depth` from (first, k) as [strip][depth][width], with
 * zeros beyond them. along: neighbours in memory are neighbours in k. */
OPTIM_FN void product_pack(float *to, const void *x, enum dtype type, int64_t ld, bool along, int64_t first,
                           int64_t count, int64_t k, int64_t depth, int width)
{
    for (int64_t strip = 0; strip < count; strip += width, to += depth * width) {
        int64_t held = count - strip < width ? count - strip : width;
        if (held < width) memset(to, 0, (size_t)(depth * width) * sizeof *to);
        if (along)
            for (int64_t i = 0; i < held; i++)
                for (int64_t p = 0; p < depth; p++)
                    to[p * width + i] = product_value(x, type, (first + strip + i) * ld + k + p);
        else
            for (int64_t p = 0; p < depth; p++)
                for (int64_t i = 0; i < held; i++)
                    to[p * width + i] = product_value(x, type, (k + p) * ld + first + strip + i);
    }
}

/* Adds a strip of A times a strip of B to PRODUCT_STRIP rows of sums. */
OPTIM_FN void product_tile(const float *a, const float *b, int64_t depth, float *sums)
{
    real c[PRODUCT_STRIP][PRODUCT_VECTORS];
    for (int i = 0; i < PRODUCT_STRIP; i++)
        for (int j = 0; j < PRODUCT_VECTORS; j++)
            c[i][j] = load_reals(sums + i * OPTIM_PRODUCT_COLUMNS + j * LANES);
    for (int64_t p = 0; p < depth; p++, a += PRODUCT_STRIP, b += PRODUCT_PANEL) {
        real row[PRODUCT_VECTORS];
        for (int j = 0; j < PRODUCT_VECTORS; j++) row[j] = load_reals(b + j * LANES);
        for (int i = 0; i < PRODUCT_STRIP; i++)
            for (int j = 0; j < PRODUCT_VECTORS; j++) c[i][j] = real_fma(real_all(a[i]), row[j], c[i][j]);
    }
    for (int i = 0; i < PRODUCT_STRIP; i++)
        for (int j = 0; j < PRODUCT_VECTORS; j++)
            store_reals(sums + i * OPTIM_PRODUCT_COLUMNS + j * LANES, c[i][j]);
}

OPTIM_FN void product_store(const struct gemm *g, int64_t row, int64_t column, int64_t columns,
                            const float *sums)
{
    real alpha = real_all(g->alpha), beta = real_all(g->beta);
    for (int64_t j = 0; j < columns; j += LANES) {
        size_t at = (size_t)(row * g->ldc + column + j),
               held = (size_t)(columns - j < LANES ? columns - j : LANES);
        float old[LANES] = {0};
        for (size_t i = 0; i < held && g->beta != 0; i++)
            old[i] = product_value(g->c, g->c_type, (int64_t)(at + i));
        real x = load_reals(sums + j) * alpha;
        if (g->beta != 0) x = real_fma(load_reals(old), beta, x);
        if (g->c_type == DTYPE_F32) {
            float values[LANES];
            store_reals(values, x);
            memcpy((float *)g->c + at, values, held * 4);
        } else {
            uint32_t bits[LANES];
            word rounded = bf16_nearest(as_word(x));
            memcpy(bits, &rounded, sizeof bits);
            for (size_t i = 0; i < held; i++) ((uint16_t *)g->c)[at + i] = (uint16_t)(bits[i] >> 16);
        }
    }
}

OPTIM_FN void product_block(const struct gemm *g, float *scratch, int64_t row, int64_t column)
{
    enum { ROWS = OPTIM_PRODUCT_ROWS, COLUMNS = OPTIM_PRODUCT_COLUMNS, DEPTH = OPTIM_PRODUCT_DEPTH };
    float *a = scratch, *b = a + ROWS * DEPTH, *sums = b + COLUMNS * DEPTH;
    int64_t rows = g->m - row < ROWS ? g->m - row : ROWS,
            columns = g->n - column < COLUMNS ? g->n - column : COLUMNS;
    memset(sums, 0, (size_t)ROWS * COLUMNS * sizeof *sums);
    for (int64_t k = 0; k < g->k; k += DEPTH) {
        int64_t depth = g->k - k < DEPTH ? g->k - k : DEPTH;
        product_pack(a, g->a, g->ab_type, g->lda, !g->transpose_a, row, rows, k, depth, PRODUCT_STRIP);
        product_pack(b, g->b, g->ab_type, g->ldb, g->transpose_b, column, columns, k, depth, PRODUCT_PANEL);
        for (int64_t j = 0; j < columns; j += PRODUCT_PANEL)
            for (int64_t i = 0; i < rows; i += PRODUCT_STRIP)
                product_tile(a + i * depth, b + j * depth, depth, sums + i * COLUMNS + j);
    }
    for (int64_t i = 0; i < rows; i++) product_store(g, row + i, column, columns, sums + i * COLUMNS);
}

void OPTIM_NAME(optim_product)(const struct gemm *g, void *scratch, int64_t begin, int64_t end)
{
    int64_t down = (g->m + OPTIM_PRODUCT_ROWS - 1) / OPTIM_PRODUCT_ROWS;
    for (int64_t i = begin; i < end; i++)
        product_block(g, scratch, i % down * OPTIM_PRODUCT_ROWS, i / down * OPTIM_PRODUCT_COLUMNS);
}
