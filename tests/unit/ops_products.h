/* GEMMs for tests/unit/ops.c. The integer GEMM (kernels/cpu/bfp.h) is held to the very codes or to exact
 * operands, in float64 and to a sum of floats' error, and codes to the bound that codes.h gives. */
#ifndef MEOPT_TESTS_UNIT_OPS_PRODUCTS_H
#define MEOPT_TESTS_UNIT_OPS_PRODUCTS_H

#include "kernels/cpu/ops.h"
#include "tests/unit/ops_reference.h"

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
enum { BFP_BLOCK = 2 * 64 };
static void code_along(const double *x, int64_t n, double *coded, double *units)
{
    for (int64_t from = 0; from < n; from += BFP_BLOCK) {
        int64_t to = n < from + BFP_BLOCK ? n : from + BFP_BLOCK;
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

/* The products of the operands. A set that multiplies as integers may take the codes of each block, or its
 * floats where there are outliers: the difference of both is in `bfp`. */
static void gemm_reference(struct trial *T)
{
    struct gemm g = gemm_of(T);
    struct along a = along_of(X(0), g.m, g.k, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1),
                 b = along_of(X(1), g.n, g.k, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb);
    double *bfp = T->o[2].bfp = calloc((size_t)T->o[2].count + 1, sizeof *bfp);
    assert_non_null(bfp);
    for (int64_t i = 0; i < g.m; i++)
        for (int64_t j = 0; j < g.n; j++) {
            double sum = 0, off = 0, either = 0, block = 0, size = 0, bound = 0, *c = &W(2)[i * g.ldc + j];
            for (int64_t p = 0; p < g.k; p++) {
                int64_t at = i * g.k + p, bt = j * g.k + p;
                double term = a.x[at] * b.x[bt];
                sum += term;
                size += fabs(term);
                block += a.coded[at] * b.coded[bt] - term;
                bound +=
                    (a.unit[at] * fabs(b.x[bt]) + b.unit[bt] * fabs(a.x[at]) + a.unit[at] * b.unit[bt] / 2) /
                    2;
                if (p % BFP_BLOCK < BFP_BLOCK - 1 && p + 1 < g.k) continue;
                off += block;
                either += fabs(block);
                block = 0;
            }
            if (!(fabs(off) <= bound * (1 + 1e-9)))
                fail_msg("codes are off by %g, their bound is %g", fabs(off), bound);
            double old = (double)g.beta * *c, bias = T->s[3] & 4 ? X(3)[j] : 0;
            *c = (double)g.alpha * sum + old + bias;
            double slack = loss((double)g.k) * size + 4 * u32 * (fabs(old) + fabs(bias));
            /* a card's library adds the bias in the type of C */
            if (g.c_type == DTYPE_BF16 && T->card) slack += u16 * fabs(bias);
            S(2)[i * g.ldc + j] = slack;
            /* sums of codes are of numbers as large as codes may be off */
            bfp[i * g.ldc + j] = fabs((double)g.alpha) * either + loss((double)g.k) * bound;
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

/* An operand's outliers: `size` times a normal number at the same inner channel of each of its rows, one or
 * `many` in a block of 128, and what the other operand has there. */
enum { MEETS_NORMAL, MEETS_ZEROS, MEETS_SMALL };
struct outliers {
    double size; /* 0: none */
    int in;      /* 0 A, 1 B, 2 both, each at channels of its own */
    int meets, many;
};
enum { OUTLIER_M = 38, OUTLIER_N = 70, OUTLIER_K = 700 };

static void outlier_fill(double *x, double *other, int64_t rows, int64_t other_rows, const struct outliers *o,
                         int64_t channel)
{
    for (int64_t block = 0; block < OUTLIER_K; block += 128)
        for (int64_t n = 0; n < o->many; n++) {
            int64_t p = block + (channel + n * 37 + block / 128 * 11) % 128;
            if (p >= OUTLIER_K) continue;
            for (int64_t r = 0; r < rows; r++) x[r * OUTLIER_K + p] *= o->size;
            double factor = o->meets == MEETS_ZEROS ? 0 : o->meets == MEETS_SMALL ? 1 / o->size : 1;
            for (int64_t r = 0; r < other_rows; r++) other[r * OUTLIER_K + p] *= factor;
        }
}

/* Error of a product relative to that of the same operands in float64, both as norms: of all, of the worst
 * row and of the worst column. */
static void outlier_errors(struct device *device, const struct outliers *o, int transposed, double worst[3])
{
    enum { M = OUTLIER_M, N = OUTLIER_N, K = OUTLIER_K };
    struct error err;
    double *a = malloc(M * K * sizeof *a), *b = malloc(N * K * sizeof *b), rows[M][2] = {{0}},
           columns[N][2] = {{0}}, all[2] = {0};
    uint16_t *words = malloc(N * K * sizeof *words);
    float *c = malloc(M * N * sizeof *c);
    assert_true(a && b && words && c);
    random_state = 3;
    for (int64_t i = 0; i < M * K; i++) a[i] = random_normal();
    for (int64_t i = 0; i < N * K; i++) b[i] = random_normal();
    if (o->size != 0 && o->in != 1) outlier_fill(a, b, M, N, o, 5);
    if (o->size != 0 && o->in != 0) outlier_fill(b, a, N, M, o, 77);
    bool ta = transposed & 1, tb = transposed & 2;
    struct gemm g = {.m = M, .n = N, .k = K, .lda = ta ? M : K, .ldb = tb ? K : N, .ldc = N, .alpha = 1};
    g.transpose_a = ta;
    g.transpose_b = tb;
    g.ab_type = DTYPE_BF16;
    g.c_type = F32;
    void *da = device_alloc(device, MEMORY_DATA, M * K * 2, "a", &err),
         *db = device_alloc(device, MEMORY_DATA, N * K * 2, "b", &err),
         *dc = device_alloc(device, MEMORY_DATA, M * N * 4, "c", &err);
    for (int64_t i = 0; i < M; i++)
        for (int64_t p = 0; p < K; p++) {
            uint16_t *word = &words[ta ? p * M + i : i * K + p];
            *word = to_bf16(a[i * K + p]);
            a[i * K + p] = decode(DTYPE_BF16, word);
        }
    device->upload(device, da, words, M * K * 2);
    for (int64_t j = 0; j < N; j++)
        for (int64_t p = 0; p < K; p++) {
            uint16_t *word = &words[tb ? j * K + p : p * N + j];
            *word = to_bf16(b[j * K + p]);
            b[j * K + p] = decode(DTYPE_BF16, word);
        }
    device->upload(device, db, words, N * K * 2);
    g.a = da, g.b = db, g.c = dc;
    device->ops->gemm(device, &g);
    device->sync(device);
    device->download(device, c, dc, M * N * 4);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t p = 0; p < K; p++) sum += a[i * K + p] * b[j * K + p];
            double value[2] = {((double)c[i * N + j] - sum) * ((double)c[i * N + j] - sum), sum * sum};
            for (int e = 0; e < 2; e++) all[e] += value[e], rows[i][e] += value[e], columns[j][e] += value[e];
        }
    worst[0] = sqrt(all[0] / all[1]);
    worst[1] = worst[2] = 0;
    for (int64_t i = 0; i < M; i++) worst[1] = fmax(worst[1], sqrt(rows[i][0] / rows[i][1]));
    for (int64_t j = 0; j < N; j++) worst[2] = fmax(worst[2], sqrt(columns[j][0] / columns[j][1]));
    device_free(device, da);
    device_free(device, db);
    device_free(device, dc);
    free(a);
    free(b);
    free(words);
    free(c);
}

/* Outliers cost a GEMM no precision, whatever they meet: 5e-4 is what codes_suffice in gemm.c promises of
 * each tile. It estimates by the 6 or more sums of a row or column of a tile, so of a single row or column
 * twice that is allowed. */
static void check_outliers(struct device *device, enum dtype t)
{
    static const double sizes[] = {0, 30, 50, 100, 300, 1000, 3000, 1e4, 1e6};
    int step =
        device->kind == DEVICE_CPU ? 1 : 5; /* cards have one product for all, and emulated ones take time */
    if (t != DTYPE_BF16) return;
    for (int row = 0; row < (int)(sizeof sizes / sizeof *sizes) * 18; row += step) {
        struct outliers o = {sizes[row / 18], row % 18 / 6, row % 3, row % 6 < 3 ? 1 : 6};
        double worst[3];
        outlier_errors(device, &o, (row + row / 4) % 4, worst);
        if (worst[0] <= 5e-4 && worst[1] <= 1e-3 && worst[2] <= 1e-3) continue;
        fail_msg("%s: outliers of %g in %s, %d in a block, which meet %s: off by %.1e, a row by %.1e, a "
                 "column by %.1e",
                 cpu_ops_select()->isa, o.size,
                 o.in == 0   ? "A"
                 : o.in == 1 ? "B"
                             : "both",
                 o.many,
                 o.meets == MEETS_ZEROS   ? "zeros"
                 : o.meets == MEETS_SMALL ? "small numbers"
                                          : "others",
                 worst[0], worst[1], worst[2]);
    }
}

/* Without rows or columns nothing is written; without an inner dimension C = beta C + bias. */
static void check_empty_gemms(struct device *device, enum dtype t)
{
    enum { M = 5, N = 7 };
    struct error err;
    float host[M * N], bias[N];
    if (device->kind != DEVICE_CPU) return;
    float *a = device_alloc(device, MEMORY_DATA, 64, "a", &err),
          *c = device_alloc(device, MEMORY_DATA, sizeof host, "c", &err),
          *d = device_alloc(device, MEMORY_DATA, sizeof bias, "bias", &err);
    for (int i = 0; i < N; i++) bias[i] = (float)i;
    device->upload(device, d, bias, sizeof bias);
    for (int empty = 1; empty < 16; empty++) {
        struct gemm g = {.m = empty & 1 ? 0 : M, .n = empty & 2 ? 0 : N, .k = empty & 4 ? 0 : 1};
        g.a = a, g.b = a, g.c = c, g.bias = d;
        g.lda = g.ldb = g.ldc = N;
        g.ab_type = t, g.c_type = F32;
        g.alpha = 3, g.beta = 2;
        g.transpose_a = g.transpose_b = empty & 8;
        if (!(empty & 7)) continue;
        for (int i = 0; i < M * N; i++) host[i] = 10;
        device->upload(device, c, host, sizeof host);
        device->ops->gemm(device, &g);
        device->sync(device);
        device->download(device, host, c, sizeof host);
        for (int i = 0; i < M * N; i++) assert_float_equal(host[i], g.m && g.n ? 20 + bias[i % N] : 10, 0);
    }
    device_free(device, a);
    device_free(device, c);
    device_free(device, d);
}

static double gemm_flops(const int64_t *s) { return 2.0 * (double)s[0] * (double)s[1] * (double)s[2]; }

static const struct operation products_operations[] = {
    {OP(gemm),
     NULL,
     {-1},
     {{1, 1, 1, 0},
      {5, 3, 7, 4},
      {33, 17, 65, 1},
      {40, 50, 31, 2 | 4},
      {64, 96, 32, 3 | 8},
      {37, 129, 70, 1 | 16 | 32},
      {130, 33, 600, 2 | 4 | 16 | 32},
      {257, 70, 88, 8 | 16},
      {31, 515, 96, 1 | 8 | 4 | 32},
      {1, 64, 300, 2 | 4},
      {300, 1, 40, 8 | 4},
      {290, 530, 33, 2 | 8 | 16}},
     {2056, 6144, 1408, 2 | 4},
     gemm_flops},
    {OP(gemm), NULL, {-1}, {{14, 70, 1700, 2}, {70, 14, 1700, 1}}, {2056, 1408, 6144, 0}, gemm_flops},
    {OP(gemm), NULL, {-1}, {{3, 2, 2, 3}}, {1408, 6144, 2056, 1 | 8}, gemm_flops},
};

#endif
