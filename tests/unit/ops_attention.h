/* Attention for tests/unit/ops.c: operands, float64 reference with its bound, objective (as in
 * ops_reference.h).
 */
#ifndef MEOPT_TESTS_UNIT_OPS_ATTENTION_H
#define MEOPT_TESTS_UNIT_OPS_ATTENTION_H

#include "tests/unit/ops_reference.h"

/* attention: B N H dh, G (0: H), mask, window or with BLOCKS block, first query; forward 0 qkv, 1 out, 2 lse,
 * 3 begins, 4 ends, 5 lists of keys, 6 of queries; backward 7 dout, 8 dqkv */
enum { CAUSAL = 1, SEGMENTS = 2, OUTLIERS = 4, BLOCKS = 8 };
enum { DOUT = 7 };
#define ATTENTION_SIZES                                                                                      \
    SIZES(B, N, H, dh);                                                                                      \
    int64_t G = T->s[4] ? T->s[4] : H, row = (H + 2 * G) * dh;                                               \
    (void)row

/* The segments of sample b: lengths 1, 18, 35, ... or those after them. */
static int64_t segment_begin(const struct trial *T, int64_t b, int64_t i)
{
    int64_t first = 0;
    if (T->s[5] & SEGMENTS)
        for (int64_t length = 1 + 17 * (b % 3); first + length <= i; length += 17) first += length;
    return first;
}
/* How often the list of block i has block j. */
static int listed(int64_t h, int64_t i, int64_t j)
{
    return i == 0 || j == i ? 1 : j == 0 ? 2 : (3 * i + 5 * j + h) % 4 == 0;
}
/* Adds lists of keys, or of queries; without BLOCKS none. */
static void add_lists(struct trial *T, bool queries)
{
    bool blocks = T->s[5] & BLOCKS;
    int64_t N = T->s[1], H = T->s[2], nb = blocks ? (N + T->s[6] - 1) / T->s[6] : 0, at = H * nb + 1;
    int32_t *lists = malloc((size_t)(at + H * nb * (nb + 1)) * sizeof *lists);
    assert_non_null(lists);
    for (int64_t r = 0; r < H * nb; r++) {
        int64_t h = r / nb, i = r % nb;
        lists[r] = (int32_t)at;
        for (int64_t j = 0; j < nb; j++)
            for (int n = queries ? listed(h, j, i) : listed(h, i, j); n > 0; n--) lists[at++] = (int32_t)j;
    }
    lists[H * nb] = (int32_t)at;
    operand_add(T, IN, DTYPE_I32, at, 1);
    for (int64_t i = 0; i < at; i++) X(T->count - 1)[i] = lists[i];
    free(lists);
}
/* How often query i sees key j. */
static int sees(struct trial *T, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t N = T->s[1], at = b * N;
    if (T->s[5] & SEGMENTS && (j < X(3)[at + i] || j >= X(4)[at + i])) return 0;
    if (T->s[5] & BLOCKS) return listed(h, i / T->s[6], j / T->s[6]);
    return !(T->s[5] & CAUSAL && j > i) && !(T->s[6] && j <= i - T->s[6]);
}
static void attention_forward_setup(struct trial *T)
{
    ATTENTION_SIZES;
    operand_add(T, IN, T->t, B * N * row, 1);
    if (T->s[5] & OUTLIERS) /* of 100 to 3,000 times */
        for (int64_t i = 0; i < B * N * row; i += 97) X(0)[i] *= 100 * (double)(1 + i % 30);
    operand_add(T, OUT, T->t, B * N * H * dh, 1);
    operand_add(T, OUT, F32, B * H * N, 1);
    operand_add(T, IN, DTYPE_I32, B * N, 1);
    operand_add(T, IN, DTYPE_I32, B * N, 1);
    for (int64_t i = 0; i < B * N; i++) X(3)[i] = (double)segment_begin(T, i / N, i % N);
    for (int64_t i = B * N - 1; i >= 0; i--)
        X(4)[i] = (i + 1) % N == 0 ? (double)N : X(3)[i + 1] > X(3)[i] ? X(3)[i + 1] : X(4)[i + 1];
    add_lists(T, false);
    add_lists(T, true);
}
static struct attention attention_of(struct trial *T)
{
    ATTENTION_SIZES;
    bool blocks = T->s[5] & BLOCKS;
    return (struct attention){.type = T->t,
                              .qkv = P(0),
                              .out = P(1),
                              .lse = P(2),
                              .B = B,
                              .N = N,
                              .H = H,
                              .G = G,
                              .dh = dh,
                              .causal = T->s[5] & CAUSAL,
                              .window = blocks ? 0 : T->s[6],
                              .block = blocks ? T->s[6] : 0,
                              .keys = blocks ? P(5) : NULL,
                              .queries = blocks ? P(6) : NULL,
                              .begins = T->s[5] & SEGMENTS ? P(3) : NULL,
                              .ends = T->s[5] & SEGMENTS ? P(4) : NULL,
                              .first = T->s[7]};
}
static void attention_forward_call(struct trial *T)
{
    struct attention o = attention_of(T);
    OPS->attention_forward(T->device, &o);
}
enum { MOST_TOKENS = 1025 };
#define PROBABILITY 0x1p-126 /* smaller ones may be 0 */
/* Elements of q, of k and of v of a token. */
struct vectors {
    int64_t q, k, v;
};
static struct vectors vectors_of(const struct trial *T, int64_t b, int64_t h, int64_t i)
{
    ATTENTION_SIZES;
    int64_t at = (b * N + i) * row, kv = h / (H / G);
    (void)B;
    return (struct vectors){at + h * dh, at + (H + kv) * dh, at + (H + G + kv) * dh};
}
/* Row i of head (b, h): probabilities into p, returns log-sum-exp; *ds bounds the error of a score. */
static double attention_row(struct trial *T, int64_t b, int64_t h, int64_t i, double *p, double *ds)
{
    SIZES(B, N, H, dh);
    double highest = -INFINITY, sum = 0, scale = 1 / sqrt((double)dh);
    const double *q = X(0) + vectors_of(T, b, h, i).q;
    *ds = 0;
    for (int64_t j = 0; j < N; j++) {
        const double *k = X(0) + vectors_of(T, b, h, j).k;
        double size = 0;
        int times = sees(T, b, h, i, j);
        p[j] = times ? log(times) : -INFINITY;
        for (int64_t d = 0; d < dh && p[j] > -INFINITY; d++) {
            p[j] += q[d] * k[d] * scale;
            size += fabs(q[d] * k[d]) * scale;
        }
        *ds = fmax(*ds, loss((double)dh) * size);
        highest = fmax(highest, p[j]);
    }
    for (int64_t j = 0; j < N; j++) sum += exp(p[j] - highest);
    for (int64_t j = 0; j < N; j++) p[j] = exp(p[j] - highest) / sum;
    return highest + log(sum);
}
static void attention_forward_reference(struct trial *T)
{
    SIZES(B, N, H, dh);
    double p[MOST_TOKENS], ds;
    for (int64_t r = 0; r < B * H * N; r++) {
        int64_t b = r / (H * N), h = r / N % H, i = r % N, at = ((b * N + i) * H + h) * dh;
        if (i < T->s[7]) { /* not computed: as before */
            W(2)[r] = NAN;
            for (int64_t d = 0; d < dh; d++) W(1)[at + d] = NAN;
            continue;
        }
        W(2)[r] = attention_row(T, b, h, i, p, &ds);
        S(2)[r] = 2 * ds + 8 * u32 * (1 + fabs(W(2)[r]));
        double e = 4 * ds + loss((double)N) + (T->t == DTYPE_BF16 ? u16 : 0);
        memset(W(1) + at, 0, (size_t)dh * sizeof *W(1));
        for (int64_t j = 0; j < N; j++) {
            const double *v = X(0) + vectors_of(T, b, h, j).v;
            for (int64_t d = 0; d < dh; d++) {
                W(1)[at + d] += p[j] * v[d];
                S(1)[at + d] += e * fabs(p[j] * v[d]) + PROBABILITY * fabs(v[d]);
            }
        }
    }
}
static double attention_objective(struct trial *T)
{
    SIZES(B, N, H, dh);
    double p[MOST_TOKENS], ds, sum = 0;
    for (int64_t r = 0; r < B * H * N; r++) {
        int64_t b = r / (H * N), h = r / N % H, i = r % N;
        attention_row(T, b, h, i, p, &ds);
        for (int64_t j = 0; j < N; j++) {
            const double *v = X(0) + vectors_of(T, b, h, j).v;
            for (int64_t d = 0; d < dh; d++) sum += p[j] * v[d] * X(DOUT)[((b * N + i) * H + h) * dh + d];
        }
    }
    return sum;
}
static void attention_backward_setup(struct trial *T)
{
    attention_forward_setup(T);
    operand_add(T, IN, T->t, T->o[1].count, 1);
    operand_add(T, OUT, T->t, T->o[0].count, 1);
    trial_round(T);
    attention_forward_reference(T); /* its results are operands here */
    for (int i = 1; i <= 2; i++) {
        T->o[i].role = IN;
        memcpy(X(i), W(i), (size_t)T->o[i].count * sizeof(double));
        memset(S(i), 0, (size_t)T->o[i].count * sizeof(double));
    }
}
static void attention_backward_call(struct trial *T)
{
    OPS->attention_backward(T->device, &(struct attention_gradient){attention_of(T), P(DOUT), P(DOUT + 1)});
}
static void attention_backward_reference(struct trial *T)
{
    ATTENTION_SIZES;
    double p[MOST_TOKENS], ds, scale = 1 / sqrt((double)dh), share = (double)(N * H / G);
    memset(W(DOUT + 1), 0, (size_t)T->o[DOUT + 1].count * sizeof(double));
    for (int64_t r = 0; r < B * H * N; r++) {
        int64_t b = r / (H * N), h = r / N % H, i = r % N;
        double lse = attention_row(T, b, h, i, p, &ds), delta = 0, delta_size = 0;
        double e = 2 * ds + loss((double)N) + 4 * u32 * fabs(lse) + (T->t == DTYPE_BF16 ? u16 : 0);
        const double *g = X(DOUT) + ((b * N + i) * H + h) * dh;
        double dp[MOST_TOKENS], dp_size[MOST_TOKENS];
        for (int64_t j = 0; j < N; j++) {
            const double *v = X(0) + vectors_of(T, b, h, j).v;
            dp[j] = dp_size[j] = 0;
            for (int64_t d = 0; d < dh; d++) {
                dp[j] += g[d] * v[d];
                dp_size[j] += fabs(g[d] * v[d]);
            }
            delta += p[j] * dp[j];
        }
        for (int64_t d = 0; d < dh; d++) delta_size += fabs(g[d] * X(1)[((b * N + i) * H + h) * dh + d]);
        for (int64_t j = 0; j < N; j++) {
            double grad = p[j] * (dp[j] - delta) * scale;
            double error =
                fabs(grad) * e +
                p[j] * scale * (loss((double)dh) * (dp_size[j] + delta_size) + unit(T->t) * delta_size) +
                PROBABILITY * scale * (dp_size[j] + delta_size);
            int64_t q = vectors_of(T, b, h, i).q, k = vectors_of(T, b, h, j).k, v = vectors_of(T, b, h, j).v;
            for (int64_t d = 0; d < dh; d++) {
                W(DOUT + 1)[q + d] += grad * X(0)[k + d];
                S(DOUT + 1)[q + d] += (error + loss((double)N) * fabs(grad)) * fabs(X(0)[k + d]);
                W(DOUT + 1)[k + d] += grad * X(0)[q + d];
                S(DOUT + 1)[k + d] += (error + loss(share) * fabs(grad)) * fabs(X(0)[q + d]);
                W(DOUT + 1)[v + d] += p[j] * g[d];
                S(DOUT + 1)[v + d] += ((e + loss(share)) * p[j] + PROBABILITY) * fabs(g[d]);
            }
        }
    }
}

/* Scores far below zero, whose log-sum-exp e^-x cannot undo where padding stands at 0. */
static void low_scores_have_gradients(struct device *device, enum dtype t)
{
    enum { N = 21, dh = 24, IN_ROW = 3 * dh };
    struct error err;
    size_t element = dtype_bytes(t), bytes = N * IN_ROW * element, out_bytes = N * dh * element;
    char *qkv = device_alloc(device, MEMORY_DATA, bytes, "qkv", &err),
         *dqkv = device_alloc(device, MEMORY_DATA, bytes, "dqkv", &err),
         *out = device_alloc(device, MEMORY_DATA, out_bytes, "out", &err),
         *lse = device_alloc(device, MEMORY_DATA, N * sizeof(float), "lse", &err), host[N * IN_ROW * 4];
    for (int i = 0; i < N * IN_ROW; i++) {
        int part = i % IN_ROW / dh; /* q 8, k -8: each score is -8 * 8 * sqrt(24) = -313 */
        encode(t, part == 0 ? 8 : part == 1 ? -8 : (double)(i % 7), host + (size_t)i * element);
    }
    device->upload(device, qkv, host, bytes);
    struct attention_gradient o = {{t, qkv, out, (float *)(void *)lse, 1, N, 1, 1, .dh = dh}, qkv, dqkv};
    device->ops->attention_forward(device, &o.forward);
    device->ops->attention_backward(device, &o);
    device->sync(device);
    assert_int_equal(device_check(device, &err), 0);
    device->download(device, host, dqkv, bytes);
    for (int i = 0; i < N * IN_ROW; i++) assert_true(isfinite(decode(t, host + (size_t)i * element)));
    device_free(device, qkv);
    device_free(device, dqkv);
    device_free(device, out);
    device_free(device, lse);
}

/* Documents that are packed into one sample have the bits of samples of their own, on a CPU. */
static void packed_documents_have_their_own_bits(struct device *device, enum dtype t)
{
    enum { N = 70, H = 4, G = 2, dh = 40, ROW = (H + 2 * G) * dh, ALL = N * ROW, OUTPUT = N * H * dh };
    static const int32_t edges[] = {0, 17, 18, 50, N};
    if (device->kind != DEVICE_CPU) return;
    struct error err;
    size_t element = dtype_bytes(t);
    char *memory = device_alloc(device, MEMORY_DATA, (3 * ALL + 3 * OUTPUT) * element, "tensors", &err),
         *packed = memory + ALL * element, *apart = packed + ALL * element, *out = apart + ALL * element,
         *out_apart = out + OUTPUT * element, *dout = out_apart + OUTPUT * element;
    float lse[H * N], lse_apart[H * N];
    int32_t begins[N], ends[N];
    for (int n = 0, d = 0; n < N; n++) {
        if (n == edges[d + 1]) d++;
        begins[n] = edges[d];
        ends[n] = edges[d + 1];
    }
    for (size_t i = 0; i < ALL; i++) encode(t, random_normal(), memory + i * element);
    for (size_t i = 0; i < OUTPUT; i++) encode(t, random_normal(), dout + i * element);
    for (int64_t window = 0; window < 20; window += 9) {
        struct attention_gradient b = {{.type = t,
                                        .qkv = memory,
                                        .out = out,
                                        .lse = lse,
                                        .B = 1,
                                        .N = N,
                                        .H = H,
                                        .G = G,
                                        .dh = dh,
                                        .causal = true,
                                        .window = window,
                                        .begins = begins,
                                        .ends = ends},
                                       dout,
                                       packed};
        struct attention *f = &b.forward;
        device->ops->attention_forward(device, f);
        device->ops->attention_backward(device, &b);
        f->begins = f->ends = NULL;
        for (int d = 0; edges[d] < N; d++) {
            size_t row = (size_t)edges[d] * ROW * element, at = (size_t)edges[d] * H * dh * element;
            f->N = edges[d + 1] - edges[d];
            f->qkv = memory + row;
            f->out = out_apart + at;
            f->lse = lse_apart;
            b.dout = dout + at;
            b.dqkv = apart + row;
            device->ops->attention_forward(device, f);
            device->ops->attention_backward(device, &b);
            for (int h = 0; h < H; h++)
                assert_memory_equal(lse_apart + h * f->N, lse + h * N + edges[d], (size_t)f->N * sizeof *lse);
        }
        assert_memory_equal(out_apart, out, OUTPUT * element);
        assert_memory_equal(apart, packed, ALL * element);
    }
    device_free(device, memory);
}

static double attention_flops(const int64_t *s)
{
    return (s[5] & CAUSAL ? 2.0 : 4.0) * (double)(s[0] * s[2]) * (double)(s[1] * s[1]) * (double)s[3];
}
static double attention_backward_flops(const int64_t *s) { return 2.5 * attention_flops(s); }

/* Masks, shared key and value heads, widths of heads, tokens that are no multiple of a tile, outliers; a
 * window that leaves one key of a tile out, as 63 tokens do at its end */
#define MASKED_SHAPES                                                                                        \
    {                                                                                                        \
        {1, 2, 2, 3, 1, CAUSAL}, {2, 37, 4, 64, 2, CAUSAL}, {1, 131, 3, 80, 1, CAUSAL | OUTLIERS},           \
            {2, 70, 2, 96, 0, CAUSAL | SEGMENTS}, {1, 99, 4, 128, 1, CAUSAL | SEGMENTS | OUTLIERS},          \
            {3, 45, 7, 24, 1, SEGMENTS}, {1, 150, 2, 64, 1, CAUSAL, 17}, {2, 77, 2, 40, 0, 0, 33},           \
            {1, 203, 4, 32, 2, CAUSAL | SEGMENTS | OUTLIERS, 50}, {2, 5, 2, 8, 2, CAUSAL | SEGMENTS, 1},     \
            {1, 50, 7, 16, 1, OUTLIERS}, {1, 200, 2, 104, 1, CAUSAL, 63},                                    \
            {2, 140, 2, 72, 0, SEGMENTS | OUTLIERS}, {1, 20, 3, 88, 3, CAUSAL},                              \
            {2, 70, 2, 24, 0, BLOCKS, 8}, {1, 130, 4, 64, 2, BLOCKS | SEGMENTS | OUTLIERS, 16},              \
            {1, 271, 3, 40, 1, BLOCKS, 33},                                                                  \
        {                                                                                                    \
            1, 700, 1, 5, 1, BLOCKS, 100                                                                     \
        }                                                                                                    \
    }

static const struct operation attention_operations[] = {
    {OP(attention_forward),
     NULL,
     {-1},
     {{1, 1, 1, 1},
      {1, 2, 1, 3},
      {2, 17, 2, 32},
      {1, 33, 3, 80},
      {1, 257, 1, 88},
      {1, 63, 2, 64},
      {2, 31, 1, 100}},
     {8, 257, 16, 88},
     attention_flops},
    {OP(attention_backward),
     attention_objective,
     {0, DOUT + 1, -1},
     {{1, 1, 1, 1},
      {1, 2, 1, 3},
      {2, 17, 2, 32},
      {1, 33, 3, 80},
      {1, 257, 1, 88},
      {1, 63, 2, 64},
      {2, 31, 1, 100}},
     {8, 257, 16, 88},
     attention_backward_flops},
    {OP(attention_forward),
     NULL,
     {-1},
     {{1, 1025, 1, 16}, {1, 520, 1, 128}},
     {8, 1025, 16, 64},
     attention_flops},
    {OP(attention_backward),
     NULL,
     {-1},
     {{1, 1025, 1, 16}, {1, 520, 1, 128}},
     {8, 1025, 16, 64},
     attention_backward_flops},
    {OP(attention_forward), NULL, {-1}, MASKED_SHAPES, {8, 1024, 16, 64, 0, CAUSAL}, attention_flops},
    {OP(attention_backward),
     attention_objective,
     {0, DOUT + 1, -1},
     MASKED_SHAPES,
     {8, 1024, 16, 64, 0, CAUSAL},
     attention_backward_flops},
    {OP(attention_forward),
     NULL,
     {-1},
     {{1, 40, 2, 64, 1, CAUSAL, 0, 39},
      {1, 1, 1, 8, 1, CAUSAL, 0, 0},
      {1, 131, 3, 80, 1, CAUSAL | OUTLIERS, 0, 100},
      {1, 150, 4, 64, 2, CAUSAL, 17, 148},
      {2, 99, 2, 24, 1, CAUSAL | SEGMENTS, 0, 50},
      {2, 203, 2, 32, 1, CAUSAL | SEGMENTS, 50, 97},
      {1, 77, 2, 40, 0, 0, 0, 33}},
     {1, 1024, 16, 64, 4, CAUSAL, 0, 1023},
     NULL},
    {OP(attention_forward),
     NULL,
     {-1},
     {{1, 1025, 2, 16, 1, CAUSAL}, {1, 700, 1, 64, 1, CAUSAL | SEGMENTS, 300}},
     {8, 1024, 16, 64, 4, CAUSAL},
     attention_flops},
    {OP(attention_backward),
     NULL,
     {-1},
     {{1, 1025, 2, 16, 1, CAUSAL}, {1, 700, 1, 64, 1, CAUSAL | SEGMENTS, 300}},
     {8, 1024, 16, 64, 4, CAUSAL},
     attention_backward_flops},
};

#endif
