/* Attention for tests/unit/ops.c: operands, float64 reference with its bound, objective (as in
 * ops_reference.h).
 */
#ifndef MEOPT_TESTS_UNIT_OPS_ATTENTION_H
#define MEOPT_TESTS_UNIT_OPS_ATTENTION_H

#include "tests/unit/ops_reference.h"

/* attention: B N H dh; 0 qkv, 1 out, 2 lse, 3 dout, 4 dqkv */
static void attention_forward_setup(struct trial *T)
{
    SIZES(B, N, H, dh);
    operand_add(T, IN, T->t, B * N * 3 * H * dh, 1);
    operand_add(T, OUT, T->t, B * N * H * dh, 1);
    operand_add(T, OUT, F32, B * H * N, 1);
}
static void attention_forward_call(struct trial *T)
{
    OPS->attention_forward(T->device, &(struct attention){T->t, .qkv = P(0), .out = P(1), .lse = P(2),
                                                          T->s[0], T->s[1], T->s[2], T->s[3]});
}
enum { MOST_TOKENS = 1025 };
/* Row i of head (b, h): probabilities into p, returns log-sum-exp; *ds bounds the error of a score. */
static double attention_row(struct trial *T, int64_t b, int64_t h, int64_t i, double *p, double *ds)
{
    SIZES(B, N, H, dh);
    double highest = -INFINITY, sum = 0, scale = 1 / sqrt((double)dh);
    *ds = 0;
    for (int64_t j = 0; j < N; j++) {
        const double *q = X(0) + ((b * N + i) * 3 * H + h) * dh,
                     *k = X(0) + (((b * N + j) * 3 + 1) * H + h) * dh;
        double size = 0;
        p[j] = 0;
        for (int64_t d = 0; d < dh; d++) {
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
        int64_t b = r / (H * N), h = r / N % H, i = r % N;
        W(2)[r] = attention_row(T, b, h, i, p, &ds);
        S(2)[r] = 2 * ds + 8 * u32 * (1 + fabs(W(2)[r]));
        double e = 4 * ds + loss((double)N) + (T->t == DTYPE_BF16 ? u16 : 0);
        for (int64_t d = 0; d < dh; d++) {
            int64_t at = ((b * N + i) * H + h) * dh + d;
            W(1)[at] = 0;
            for (int64_t j = 0; j < N; j++) {
                double term = p[j] * X(0)[(((b * N + j) * 3 + 2) * H + h) * dh + d];
                W(1)[at] += term;
                S(1)[at] += e * fabs(term);
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
        for (int64_t j = 0; j < N; j++)
            for (int64_t d = 0; d < dh; d++)
                sum += p[j] * X(0)[(((b * N + j) * 3 + 2) * H + h) * dh + d] *
                       X(3)[((b * N + i) * H + h) * dh + d];
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
    OPS->attention_backward(T->device, &(struct attention_gradient){T->t, .qkv = P(0), .out = P(1),
                                                                    .lse = P(2), .dout = P(3), .dqkv = P(4),
                                                                    T->s[0], T->s[1], T->s[2], T->s[3]});
}
static void attention_backward_reference(struct trial *T)
{
    SIZES(B, N, H, dh);
    double p[MOST_TOKENS], ds, scale = 1 / sqrt((double)dh);
    memset(W(4), 0, (size_t)T->o[4].count * sizeof(double));
    for (int64_t r = 0; r < B * H * N; r++) {
        int64_t b = r / (H * N), h = r / N % H, i = r % N;
        double lse = attention_row(T, b, h, i, p, &ds), delta = 0, delta_size = 0;
        double e = 2 * ds + loss((double)N) + 4 * u32 * fabs(lse) + (T->t == DTYPE_BF16 ? u16 : 0);
        const double *g = X(3) + ((b * N + i) * H + h) * dh;
        double dp[MOST_TOKENS], dp_size[MOST_TOKENS];
        for (int64_t j = 0; j < N; j++) {
            const double *v = X(0) + (((b * N + j) * 3 + 2) * H + h) * dh;
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
                p[j] * scale * (loss((double)dh) * (dp_size[j] + delta_size) + unit(T->t) * delta_size);
            int64_t q = ((b * N + i) * 3 * H + h) * dh, k = (((b * N + j) * 3 + 1) * H + h) * dh,
                    v = k + H * dh;
            for (int64_t d = 0; d < dh; d++) {
                W(4)[q + d] += grad * X(0)[k + d];
                S(4)[q + d] += (error + loss((double)N) * fabs(grad)) * fabs(X(0)[k + d]);
                W(4)[k + d] += grad * X(0)[q + d];
                S(4)[k + d] += (error + loss((double)N) * fabs(grad)) * fabs(X(0)[q + d]);
                W(4)[v + d] += p[j] * g[d];
                S(4)[v + d] += (e + loss((double)N)) * p[j] * fabs(g[d]);
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
    device->ops->attention_forward(
        device, &(struct attention){t, .qkv = qkv, .out = out, .lse = (float *)(void *)lse, 1, N, 1, dh});
    device->ops->attention_backward(
        device, &(struct attention_gradient){t, .qkv = qkv, .out = out, .lse = (float *)(void *)lse,
                                             .dout = qkv, .dqkv = dqkv, 1, N, 1, dh});
    device->sync(device);
    assert_int_equal(device_check(device, &err), 0);
    device->download(device, host, dqkv, bytes);
    for (int i = 0; i < N * IN_ROW; i++) assert_true(isfinite(decode(t, host + (size_t)i * element)));
    device_free(device, qkv);
    device_free(device, dqkv);
    device_free(device, out);
    device_free(device, lse);
}

static double attention_flops(const int64_t *s)
{
    return 4.0 * (double)(s[0] * s[2]) * (double)(s[1] * s[1]) * (double)s[3];
}
static double attention_backward_flops(const int64_t *s) { return 2.5 * attention_flops(s); }

static const struct operation attention_operations[] = {
    {OP(attention_forward),
     NULL,
     {-1},
     {{1, 1, 1, 1},
      {1, 2, 1, 3},
      {2, 17, 2, 32},
      {1, 33, 3, 80},
      {1, 257, 1, 88},
      {1, 50, 2, 64},
      {2, 31, 1, 100}},
     {8, 257, 16, 88},
     attention_flops},
    {OP(attention_backward),
     attention_objective,
     {0, 4, -1},
     {{1, 1, 1, 1},
      {1, 2, 1, 3},
      {2, 17, 2, 32},
      {1, 33, 3, 80},
      {1, 257, 1, 88},
      {1, 50, 2, 64},
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
};

#endif
