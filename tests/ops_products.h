/* Products for tests/ops.c. Those by whole numbers (kernels/cpu/codes.h) are held to the very codes, in
 * float64 and to a sum of floats' error, and these to the bound that codes.h gives. */
#ifndef MEOPT_TESTS_OPS_PRODUCTS_H
#define MEOPT_TESTS_OPS_PRODUCTS_H

#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "tests/ops_reference.h"

/* gemm: m n k, bits (1 transpose_a, 2 transpose_b, 4 bias, 8 C is float, 16 alpha beta, 32 padded rows) */
static struct gemm gemm_of(struct trial *T)
{
    SIZES(m, n, k, bits);
    int64_t pad = bits & 32 ? 7 : 0;
    return (struct gemm){.m = m,
                         .n = n,
                         .k = k,
                         .transpose_a = bits & 1,
                         .transpose_b = bits & 2,
                         .a = P(0),
                         .b = P(1),
                         .c = P(2),
                         .lda = (bits & 1 ? m : k) + pad,
                         .ldb = (bits & 2 ? k : n) + pad,
                         .ldc = n + pad,
                         .ab_type = T->t,
                         .c_type = bits & 8 ? F32 : T->t,
                         .alpha = bits & 16 ? 0.5f : 1,
                         .beta = bits & 16 ? -1.5f : 0,
                         .bias = bits & 4 ? P(3) : NULL};
}
static void gemm_setup(struct trial *T)
{
    struct gemm g = gemm_of(T);
    operand_add(T, IN, T->t, (g.transpose_a ? g.k : g.m) * g.lda, 1);
    operand_add(T, IN, T->t, (g.transpose_b ? g.n : g.k) * g.ldb, 1);
    for (int i = 0; i < 2 && g.k > 64; i++) /* some are much larger, some are much smaller */
        for (int64_t j = i; j < T->o[i].count; j += 29) T->o[i].x[j] *= ldexp(1, (int)(j % 31) - 15);
    operand_add(T, ADD, g.c_type, g.m * g.ldc, 1); /* the padding keeps its values */
    operand_add(T, IN, F32, g.n, 1);
}
static void gemm_call(struct trial *T)
{
    struct gemm g = gemm_of(T);
    OPS->gemm(T->device, &g);
}
/* What codes.h makes of n elements along the inner dimension, as it is documented there; units: of each
 * element's block. */
static void code_along(const double *x, int64_t n, double *coded, double *units)
{
    enum { BLOCK = 2 * 64 };
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t to = n < from + BLOCK ? n : from + BLOCK;
        double largest = 0, squares = 0, products = 0, unit = 1;
        for (int64_t p = from; p < to; p++) {
            largest = fmax(largest, fabs(x[p]));
            squares += x[p] * x[p];
        }
        while (largest > 0 && squares < 0x1p28 * unit * unit) unit /= 2;
        while (squares >= 0x1p30 * unit * unit) unit *= 2;
        for (int64_t p = from; p < to; p++) {
            double code = nearbyint(x[p] / unit);
            products += code * code;
            units[p] = largest > 0 ? unit : 0;
            coded[p] = unit * code;
        }
        assert_true(products < 0x1p31);
    }
}

/* op(A) or op(B) row by row of the inner dimension: (rows, k) */
struct along {
    double *x, *coded, *unit;
};
static struct along along_of(const double *x, int64_t rows, int64_t k, int64_t row, int64_t step)
{
    size_t count = (size_t)(rows * k);
    struct along a = {malloc(count * sizeof(double)), malloc(count * sizeof(double)),
                      malloc(count * sizeof(double))};
    assert_true(a.x && a.coded && a.unit);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t p = 0; p < k; p++) a.x[i * k + p] = x[i * row + p * step];
        code_along(a.x + i * k, k, a.coded + i * k, a.unit + i * k);
    }
    return a;
}
static void along_free(struct along *a)
{
    free(a->x);
    free(a->coded);
    free(a->unit);
}

static bool by_codes(const struct trial *T)
{
    return T->device->kind == DEVICE_CPU && T->t == DTYPE_BF16 && !gemm_amx_available() &&
           cpu_ops_select()->gemm_codes;
}

static void gemm_reference(struct trial *T)
{
    struct gemm g = gemm_of(T);
    bool codes = by_codes(T);
    struct along a = along_of(X(0), g.m, g.k, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1),
                 b = along_of(X(1), g.n, g.k, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb);
    for (int64_t i = 0; i < g.m; i++)
        for (int64_t j = 0; j < g.n; j++) {
            double sum = 0, exact = 0, size = 0, bound = 0, *c = &W(2)[i * g.ldc + j];
            for (int64_t p = 0; p < g.k; p++) {
                int64_t at = i * g.k + p, bt = j * g.k + p;
                double term = codes ? a.coded[at] * b.coded[bt] : a.x[at] * b.x[bt];
                sum += term;
                exact += a.x[at] * b.x[bt];
                size += fabs(term);
                bound +=
                    (a.unit[at] * fabs(b.x[bt]) + b.unit[bt] * fabs(a.x[at]) + a.unit[at] * b.unit[bt] / 2) /
                    2;
            }
            if (!(fabs(sum - exact) <= bound * (1 + 1e-9)))
                fail_msg("codes are off by %g, their bound is %g", fabs(sum - exact), bound);
            double old = (double)g.beta * *c, bias = g.bias || (T->s[3] & 4) ? X(3)[j] : 0;
            *c = (double)g.alpha * sum + old + bias;
            S(2)[i * g.ldc + j] = loss((double)g.k) * size + 4 * u32 * (fabs(old) + fabs(bias));
            /* a card's library adds the bias in the type of C */
            if (g.c_type == DTYPE_BF16 && T->device->kind != DEVICE_CPU)
                S(2)[i * g.ldc + j] += u16 * fabs(bias);
        }
    along_free(&a);
    along_free(&b);
}

/* A NaN or an infinity is in its row or column of the result and nowhere else; zeros give zeros; rows and
 * columns of any size keep their share of the result, but below codes.h's least. */
static void check_ends_of_products(struct device *device, enum dtype t)
{
    enum { M = 14, N = 70, K = 300 };
    struct error err;
    float *a = calloc(M * K, 4), *b = calloc(N * K, 4), *c = malloc(M * N * 4);
    void *word = malloc(N * K * 4);
    assert_true(a && b && c && word);
    for (int64_t i = 0; i < M * K; i++) a[i] = (float)random_normal();
    for (int64_t j = 0; j < N * K; j++) b[j] = (float)random_normal();
    for (int64_t k = 0; k < K; k++) {
        a[5 * K + k] = 0;
        a[6 * K + k] = 1e33f;
        a[7 * K + k] = 1e-33f;
        b[8 * K + k] = 1e-30f;
        b[9 * K + k] = 1e30f;
        a[8 * K + k] = b[10 * K + k] = k % 128 ? 1 : -4096; /* the largest codes there are */
        a[9 * K + k] = b[11 * K + k] = 0.99609375f;
        b[12 * K + k] = -0.99609375f;
    }
    a[3 * K + 200] = NAN;
    a[4 * K + 299] = INFINITY;
    b[60 * K] = -INFINITY;
    size_t size = dtype_bytes(t);
    struct gemm g = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .transpose_b = true};
    g.ab_type = t;
    g.c_type = F32;
    g.alpha = 1;
    void *da = device_alloc(device, MEMORY_DATA, M * K * size, "a", &err),
         *db = device_alloc(device, MEMORY_DATA, N * K * size, "b", &err),
         *dc = device_alloc(device, MEMORY_DATA, M * N * 4, "c", &err);
    for (int64_t i = 0; i < M * K; i++) encode(t, (double)a[i], (uint8_t *)word + (size_t)i * size);
    device->upload(device, da, word, M * K * size);
    for (int64_t j = 0; j < N * K; j++) encode(t, (double)b[j], (uint8_t *)word + (size_t)j * size);
    device->upload(device, db, word, N * K * size);
    g.a = da, g.b = db, g.c = dc;
    device->ops->gemm(device, &g);
    device->sync(device);
    device->download(device, c, dc, M * N * 4);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            float x = c[i * N + j];
            if (i == 3 || i == 4 || j == 60) assert_false(isfinite(x) && i != 5);
            else if (i == 5) assert_true(x == 0);
            else if ((i == 6 && j == 8) || (i == 7 && j == 9)) {
                float whole = (float)K * a[i * K] * b[j * K];
                assert_true(fabsf(x - whole) < whole / 64);
            } else if (i == 8 && j == 10)
                assert_true(fabsf(x - 50331944.0f) <= 300); /* floats lose the ones */
            else if (i == 9 && (j == 11 || j == 12)) {
                float whole = K * 0.99609375f * 0.99609375f;
                assert_true(fabsf(x - (j == 11 ? whole : -whole)) < whole / 1e5f);
            } else if (i != 6 || j != 9) assert_true(isfinite(x));
        }
    free(a);
    free(b);
    free(c);
    free(word);
}

#endif
