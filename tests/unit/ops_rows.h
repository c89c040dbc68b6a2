/* Rotary positions and means of rows for tests/unit/ops.c: operands and float64 references (as in
 * ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_ROWS_H
#define MEOPT_TESTS_UNIT_OPS_ROWS_H

#include "tests/unit/ops_reference.h"

/* rotate: B N H dh, G (0: H), dims; 0 qkv, 1 table, 2 x (for the objective only), 3 begins. Half pairs where
 * dh is a multiple of 8, backwards where N is odd; after one token, or three where N is above 4. With G, from
 * the first token on, in segments of three tokens. */
static struct rotation rotation_of(struct trial *T)
{
    return (struct rotation){.type = T->t,
                             .qkv = P(0),
                             .table = P(1),
                             .B = T->s[0],
                             .N = T->s[1],
                             .H = T->s[2],
                             .G = T->s[4] ? T->s[4] : T->s[2],
                             .dh = T->s[3],
                             .skip = T->s[4]       ? 0
                                     : T->s[1] > 4 ? 3
                                                   : 1,
                             .half = T->s[3] % 8 == 0,
                             .inverse = T->s[1] % 2 == 1,
                             .begins = T->s[4] ? P(3) : NULL,
                             .dims = T->s[5]};
}
static void rotate_setup(struct trial *T)
{
    struct rotation o = rotation_of(T);
    int64_t elements = o.B * o.N * (o.H + 2 * o.G) * o.dh;
    operand_add(T, ADD, T->t, elements, 1); /* in place */
    operand_add(T, IN, F32, (T->s[4] ? 3 : o.N - o.skip) * (o.dims ? o.dims : o.dh), 1);
    operand_add(T, IN, F32, elements, 1);
    operand_add(T, IN, DTYPE_I32, o.B * o.N, 1);
    for (int64_t i = 0; i < o.B * o.N; i++) X(3)[i] = (double)(i % o.N / 3 * 3);
}
static void rotate_call(struct trial *T)
{
    struct rotation o = rotation_of(T);
    OPS->rotate(T->device, &o);
}
/* A pair of elements with its cosine and sine */
struct rotated {
    int64_t i, j;
    double c, s;
};
/* Returns false after the last pair. */
static bool rotated_pair(struct trial *T, int64_t n, struct rotated *r)
{
    struct rotation o = rotation_of(T);
    int64_t dims = o.dims ? o.dims : o.dh, pairs = dims / 2, heads = o.H + o.G, tokens = o.N - o.skip;
    int64_t k = n % pairs, head = n / pairs % heads, token = n / pairs / heads % tokens,
            row = n / pairs / heads / tokens * o.N + o.skip + token;
    const double *table = X(1) + (token - (T->s[4] ? (int64_t)X(3)[row] : 0)) * dims;
    r->i = row * (o.H + 2 * o.G) * o.dh + head * o.dh + (o.half ? k : 2 * k);
    r->j = r->i + (o.half ? pairs : 1);
    r->c = table[k];
    r->s = (o.inverse ? -1 : 1) * table[pairs + k];
    return n + 1 < o.B * tokens * heads * pairs;
}
static void rotate_reference(struct trial *T)
{
    struct rotated r;
    bool more = true;
    for (int64_t n = 0; more; n++) {
        more = rotated_pair(T, n, &r);
        double a = X(0)[r.i], b = X(0)[r.j];
        W(0)[r.i] = a * r.c - b * r.s;
        W(0)[r.j] = b * r.c + a * r.s;
        S(0)[r.i] = 4 * u32 * (fabs(a * r.c) + fabs(b * r.s));
        S(0)[r.j] = 4 * u32 * (fabs(b * r.c) + fabs(a * r.s));
    }
}

/* What is rotated, g, is the gradient with respect to x of g . R'x with R' the rotation back; less g . x,
 * because the check takes what was there off the result. */
static double rotate_objective(struct trial *T)
{
    struct rotated r;
    bool more = true;
    double sum = 0;
    for (int64_t n = 0; more; n++) {
        more = rotated_pair(T, n, &r);
        double a = X(2)[r.i], b = X(2)[r.j];
        sum += X(0)[r.i] * (a * r.c + b * r.s - a) + X(0)[r.j] * (b * r.c - a * r.s - b);
    }
    return sum;
}

/* row_mean: B N D skip; forward 0 x, 1 y; backward 0 dy, 1 dx, 2 x (for the objective only) */
static void row_mean_forward_setup(struct trial *T)
{
    SIZES(B, N, D, skip);
    operand_add(T, IN, T->t, B * N * D, 1);
    operand_add(T, OUT, F32, B * D, 1);
}
static void row_mean_forward_call(struct trial *T)
{
    OPS->row_mean_forward(T->device,
                          &(struct row_mean){T->t, .x = P(0), .y = P(1), T->s[0], T->s[1], T->s[2], T->s[3]});
}
static void row_mean_forward_reference(struct trial *T)
{
    SIZES(B, N, D, skip);
    for (int64_t i = 0; i < B * D; i++) {
        int64_t b = i / D, d = i % D;
        double size = 0;
        for (int64_t n = skip; n < N; n++) {
            double x = X(0)[(b * N + n) * D + d];
            W(1)[i] += x / (double)(N - skip);
            size += fabs(x) / (double)(N - skip);
        }
        S(1)[i] = loss((double)N) * size;
    }
}
static void row_mean_backward_setup(struct trial *T)
{
    SIZES(B, N, D, skip);
    operand_add(T, IN, T->t, B * D, 1);
    operand_add(T, ADD, F32, B * N * D, 1);
    operand_add(T, IN, F32, B * N * D, 1);
}
static void row_mean_backward_call(struct trial *T)
{
    OPS->row_mean_backward(T->device, &(struct row_mean_gradient){T->t, .dy = P(0), .dx = P(1), T->s[0],
                                                                  T->s[1], T->s[2], T->s[3]});
}
static void row_mean_backward_reference(struct trial *T)
{
    SIZES(B, N, D, skip);
    for (int64_t i = 0; i < B * N * D; i++) {
        int64_t b = i / (N * D), n = i / D % N;
        if (n < skip) continue;
        double share = X(0)[b * D + i % D] / (double)(N - skip);
        W(1)[i] += share;
        S(1)[i] = 4 * u32 * (fabs(share) + fabs(X(1)[i]));
    }
}
static double row_mean_objective(struct trial *T)
{
    SIZES(B, N, D, skip);
    double sum = 0;
    for (int64_t i = 0; i < B * N * D; i++)
        if (i / D % N >= skip) sum += X(0)[i / (N * D) * D + i % D] * X(2)[i] / (double)(N - skip);
    return sum;
}

/* layernorm_backward, whose dx enters a branch: R D, gamma there, drop path; 0 dy and where that is scaled
 * dx, 1 to 7 as there, 8 gamma, 9 plain, 10 sums, 11 factors */
static void layernorm_backward_then_setup(struct trial *T)
{
    int64_t gamma = T->s[2];
    T->s[2] = 0; /* no gap between rows */
    layernorm_backward_setup(T);
    T->s[2] = gamma;
    T->o[0].role = gamma ? ADD : IN;
    operand_add(T, OUT, T->t, T->s[0] * T->s[1], 1);
    operand_add(T, ADD, F32, T->s[1], 1);
    drop_setup(T);
}
static void layernorm_backward_then_call(struct trial *T)
{
    struct branch_gradient then = {T->t,          .dx = P(5),     .gamma = T->s[2] ? P(8) : NULL,
                                   .plain = P(9), .scaled = P(0), .sums = P(10),
                                   T->s[0],       T->s[1],        .drop = drop_of(T, 11)};
    OPS->layernorm_backward(
        T->device,
        &(struct layernorm_gradient){T->t, T->t, .dy = P(0), .x = P(1), .x_stride = T->s[1], .weight = P(2),
                                     .mean = P(3), .rstd = P(4), .dx = P(5), .dx_stride = T->s[1],
                                     .dweight = P(6), .dbias = P(7), T->s[0], T->s[1], .then = &then});
}
static void layernorm_backward_then_reference(struct trial *T)
{
    int64_t gamma = T->s[2];
    T->s[2] = 0;
    layernorm_backward_reference(T);
    T->s[2] = gamma;
    for (int64_t i = 0; i < T->o[5].count; i++) {
        int64_t d = i % T->s[1];
        double factor = drop_factor(T, 11, i / T->s[1]), dx = W(5)[i] * factor;
        W(9)[i] = dx;
        S(9)[i] = S(5)[i] * factor + 2 * u32 * fabs(dx);
        if (gamma) W(0)[i] = dx * X(8)[d];
        if (gamma) S(0)[i] = (S(9)[i] + u32 * fabs(dx)) * fabs(X(8)[d]);
        W(10)[d] += dx;
        S(10)[d] += loss((double)T->s[0]) * (fabs(dx) + u32) + S(9)[i];
    }
}

/* layernorm_backward in dy's place: R D; 0 dy and the gradient of x, 1 x, 2 weight, 3 mean, 4 rstd, 5
 * nothing, 6 dweight, 7 dbias */
static void layernorm_backward_to_setup(struct trial *T)
{
    layernorm_backward_setup(T);
    T->o[0].role = ADD;
    T->o[5].role = IN;
}
static void layernorm_backward_to_call(struct trial *T)
{
    OPS->layernorm_backward(
        T->device, &(struct layernorm_gradient){T->t, T->t, .dy = P(0), .x = P(1), .x_stride = T->s[1],
                                                .weight = P(2), .mean = P(3), .rstd = P(4), .dweight = P(6),
                                                .dbias = P(7), T->s[0], T->s[1], .to = P(0)});
}
static void layernorm_backward_to_reference(struct trial *T)
{
    layernorm_backward_reference(T);
    for (int64_t i = 0; i < T->o[5].count; i++) {
        W(0)[i] = W(5)[i] - X(5)[i];
        S(0)[i] = S(5)[i];
        W(5)[i] = X(5)[i];
        S(5)[i] = 0;
    }
}

static const struct operation rows_operations[] = {
    {OP(layernorm_backward_to),
     NULL,
     {-1},
     {{1, 3}, {3, 5}, {7, 67}, {70, 33}, {2, 1030}},
     {2056, 1408},
     NULL},
    {OP(layernorm_backward_then),
     NULL,
     {-1},
     {{1, 3, 0}, {3, 67, 1}, {70, 33, 1}, {3, 2100, 1}, {1100, 5, 0}, {70, 33, 1, 4}, {5, 2100, 0, 2}},
     {2056, 1408, 1},
     NULL},
    {OP(rotate),
     rotate_objective,
     {2, 0, -1},
     {{1, 2, 1, 4},
      {2, 3, 2, 8},
      {3, 7, 2, 20},
      {2, 6, 3, 32},
      {1, 4, 1, 1100},
      {2, 8, 4, 16, 2},
      {1, 7, 7, 24, 1, 8},
      {2, 5, 3, 20, 3, 12}},
     {8, 257, 16, 64},
     NULL},
    {OP(row_mean_forward),
     NULL,
     {-1},
     {{1, 1, 1, 0}, {3, 5, 67, 1}, {2, 17, 600, 5}},
     {8, 257, 1408, 1},
     NULL},
    {OP(row_mean_backward),
     row_mean_objective,
     {2, 1, -1},
     {{1, 1, 1, 0}, {3, 5, 67, 1}, {2, 17, 600, 5}},
     {8, 257, 1408, 1},
     NULL},
};

#endif
