/* Losses, casts, copies and sums of squares for tests/unit/ops.c: operands and float64 references (as in
 * ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_ELEMENTS_H
#define MEOPT_TESTS_UNIT_OPS_ELEMENTS_H

#include "tests/unit/ops_reference.h"

/* distill_loss: rows D, kind, bits (1 normalize, 2 sum_dim); 0 y, 1 target, 2 dy, 3 loss, 4 cosine */
static void distill_loss_setup(struct trial *T)
{
    operand_add(T, IN, F32, T->s[0] * T->s[1], 1);
    operand_add(T, IN, F32, T->s[0] * T->s[1], 1);
    operand_add(T, ADD, F32, T->s[0] * T->s[1], 1e-3);
    operand_add(T, ADD, DTYPE_F64, 1, 1);
    operand_add(T, ADD, DTYPE_F64, 1, 1);
}
static void distill_loss_call(struct trial *T)
{
    OPS->distill_loss(T->device,
                      &(struct distillation){(enum loss_kind)T->s[2], .normalize = T->s[3] & 1,
                                             .sum_dim = T->s[3] & 2, .y = P(0), .target = P(1), .dy = P(2),
                                             .loss = P(3), .cosine = P(4), 0.75f, T->s[0], T->s[1]});
}
static double distill_objective(struct trial *T)
{
    SIZES(rows, D, kind, bits);
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *y = X(0) + r * D, *t = X(1) + r * D;
        double yy = 0, tt = 0, yt = 0, part = 0;
        for (int64_t j = 0; j < D; j++) yy += y[j] * y[j], tt += t[j] * t[j], yt += y[j] * t[j];
        for (int64_t j = 0; j < D; j++) {
            double d = fabs(bits & 1 ? y[j] / sqrt(yy) - t[j] / sqrt(tt) : y[j] - t[j]);
            part += kind == LOSS_MSE ? d * d : d < 1 ? d * d / 2 : d - 0.5;
        }
        if (kind == LOSS_COSINE) sum += 1 - yt / sqrt(yy * tt);
        else sum += bits & 2 ? part : part / (double)D;
    }
    return 0.75 * sum / (double)rows;
}
/* The gradient of the reference is the finite difference itself. */
static void distill_loss_reference(struct trial *T)
{
    SIZES(rows, D, kind, bits);
    W(3)[0] += distill_objective(T);
    S(3)[0] = 1e-12 * (1 + fabs(W(3)[0]));
    S(4)[0] = 1e-12 * (double)rows;
    for (int64_t r = 0; r < rows; r++) {
        const double *y = X(0) + r * D, *t = X(1) + r * D;
        double yy = 0, tt = 0, yt = 0;
        for (int64_t j = 0; j < D; j++) yy += y[j] * y[j], tt += t[j] * t[j], yt += y[j] * t[j];
        W(4)[0] += yt / sqrt(yy * tt);
    }
    for (int64_t i = 0; i < rows * D; i++) {
        double old = X(0)[i], h = 1e-5;
        X(0)[i] = old + h;
        double up = distill_objective(T);
        X(0)[i] = old - h;
        double down = distill_objective(T);
        X(0)[i] = old;
        W(2)[i] += (up - down) / (2 * h);
        S(2)[i] = 1e-9 + 4 * u32 * fabs((up - down) / (2 * h));
    }
}

/* cross_entropy: R, C, smoothing in percent, bits (1 two labels, 2 outliers, 4 ties, 8 without a gradient); 0
 * logits, 1 label, 2 label2, 3 share, 4 dlogits, 5 loss, 6 top1, 7 top5 */
static void cross_entropy_setup(struct trial *T)
{
    SIZES(R, C, percent, bits);
    operand_add(T, IN, F32, R * C, bits & 2 ? 1000 : bits & 4 ? 1.5 : 3); /* outliers: beyond 3,000 */
    operand_add(T, IN, DTYPE_I32, R, 0);
    operand_add(T, IN, DTYPE_I32, R, 0);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, bits & 8 ? IN : OUT, F32, R * C, 1);
    for (int i = 0; i < 3; i++) operand_add(T, ADD, DTYPE_F64, 1, 1);
    for (int64_t i = 0; i < R * C && bits & 4; i++) X(0)[i] = round(X(0)[i]);
    static const double shares[] = {0.25, 1, 0, 0.7};
    for (int64_t r = 0; r < R; r++) {
        X(1)[r] = r % 5 == 4 ? -1 : (double)(r * 7919 % C);
        X(2)[r] = r % 3 == 2 ? -1 : (double)(r * 104729 % C); /* with C small also the first label */
        X(3)[r] = shares[r % 4];
    }
}
static void cross_entropy_call(struct trial *T)
{
    SIZES(R, C, percent, bits);
    OPS->cross_entropy(T->device, &(struct cross_entropy){.logits = P(0),
                                                          .label = P(1),
                                                          .label2 = bits & 1 ? P(2) : NULL,
                                                          .share = P(3),
                                                          .smoothing = (float)percent / 100,
                                                          .weight = 0.75f,
                                                          .dlogits = bits & 8 ? NULL : P(4),
                                                          .loss = P(5),
                                                          .top1 = P(6),
                                                          .top5 = P(7),
                                                          .R = R,
                                                          .C = C});
}
static double row_lse(const double *z, int64_t C)
{
    double top = z[0], sum = 0;
    for (int64_t j = 0; j < C; j++) top = fmax(top, z[j]);
    for (int64_t j = 0; j < C; j++) sum += exp(z[j] - top);
    return top + log(sum);
}
/* The share of the row's first label, and the probability of class j according to both */
static double first_share(struct trial *T, int64_t r) { return T->s[3] & 1 && X(2)[r] >= 0 ? X(3)[r] : 1; }
static double label_probability(struct trial *T, int64_t r, int64_t j)
{
    double smooth = (double)((float)T->s[2] / 100), share = first_share(T, r),
           hard = (X(1)[r] == (double)j ? share : 0) + (X(2)[r] == (double)j ? 1 - share : 0);
    return (1 - smooth) * hard + smooth / (double)T->s[1];
}
static double cross_entropy_objective(struct trial *T)
{
    SIZES(R, C, percent, bits);
    double sum = 0;
    for (int64_t r = 0; r < R; r++) {
        const double *z = X(0) + r * C;
        double lse = row_lse(z, C);
        for (int64_t j = 0; j < C && X(1)[r] >= 0; j++) sum += label_probability(T, r, j) * (lse - z[j]);
    }
    return 0.75 * sum;
}
/* With d_j = top - z_j, exp(-d_j) in float is off by (4 + d_j) u32, and the sum of them by the mean of that,
 * at most (4 + ln C) u32 because the mean of d_j is below the entropy. */
static void cross_entropy_reference(struct trial *T)
{
    SIZES(R, C, percent, bits);
    double lost = (4 + log((double)C)) * u32;
    W(5)[0] += cross_entropy_objective(T);
    for (int64_t r = 0; r < R; r++) {
        const double *z = X(0) + r * C;
        double lse = row_lse(z, C), top = z[0], share = first_share(T, r);
        for (int64_t j = 0; j < C; j++) top = fmax(top, z[j]);
        S(5)[0] += X(1)[r] < 0 ? 0 : lost + 1e-12 * (1 + fabs(top));
        for (int64_t j = 0; j < C && !(bits & 8); j++) {
            double p = exp(z[j] - lse), q = label_probability(T, r, j);
            W(4)[r * C + j] = X(1)[r] < 0 ? 0 : 0.75 * (p - q);
            S(4)[r * C + j] = X(1)[r] < 0 ? 0 : p * (lost + (6 + top - z[j]) * u32) + 2 * u32 * q;
        }
        for (int k = 0; k < 2 && X(1)[r] >= 0; k++) {
            double part = k ? 1 - share : share;
            int64_t ahead = 0, label = part > 0 ? (int64_t)X(1 + k)[r] : 0;
            for (int64_t j = 0; j < C; j++) ahead += z[j] > z[label] || (z[j] == z[label] && j < label);
            W(6)[0] += ahead < 1 ? part : 0;
            W(7)[0] += ahead < 5 ? part : 0;
        }
    }
    S(6)[0] = S(7)[0] = 1e-12 * (double)R;
}

/* cast: n, destination type (t is the source's) */
static void cast_setup(struct trial *T)
{
    operand_add(T, IN, T->t, T->s[0], 1);
    operand_add(T, OUT, (enum dtype)T->s[1], T->s[0], 1);
}
static void cast_call(struct trial *T)
{
    OPS->cast(T->device, P(0), T->t, P(1), (enum dtype)T->s[1], T->s[0]);
}
static void cast_reference(struct trial *T) { memcpy(W(1), X(0), (size_t)T->s[0] * sizeof(double)); }

/* fill and copy: bytes / 4 */
static void copy_setup(struct trial *T)
{
    operand_add(T, IN, F32, T->s[0], 1);
    operand_add(T, OUT, F32, T->s[0], 1);
    operand_add(T, OUT, F32, T->s[0], 1);
}
static void copy_call(struct trial *T)
{
    OPS->copy(T->device, P(1), P(0), (size_t)T->s[0] * 4);
    OPS->fill(T->device, P(2), 0, (size_t)T->s[0] * 4);
}
static void copy_reference(struct trial *T)
{
    memcpy(W(1), X(0), (size_t)T->s[0] * sizeof(double));
    memset(W(2), 0, (size_t)T->s[0] * sizeof(double));
}

/* sum_squares: n, an element that is not finite (-1 for none), -1 infinity or NaN; 0 x, 1 sum, 2 finite */
static void sum_squares_setup(struct trial *T)
{
    operand_add(T, IN, T->t, T->s[0], 1);
    if (T->s[1] >= 0) X(0)[T->s[1]] = T->s[2] ? (double)INFINITY : (double)NAN;
    operand_add(T, ADD, DTYPE_F64, 1, 1);
    operand_add(T, ADD, DTYPE_I32, 1, 0);
    X(2)[0] = W(2)[0] = 1;
}
static void sum_squares_call(struct trial *T)
{
    OPS->sum_squares(T->device, P(0), T->t, T->s[0], P(1), P(2));
}
static void sum_squares_reference(struct trial *T)
{
    for (int64_t i = 0; i < T->s[0]; i++) W(1)[0] += X(0)[i] * X(0)[i];
    S(1)[0] = 1e-13 * W(1)[0] * sqrt((double)T->s[0]);
    W(2)[0] = isfinite(W(1)[0]);
}

static const struct operation elements_operations[] = {
    {OP(distill_loss),
     NULL,
     {-1},
     {{3, 33, LOSS_MSE, 0},
      {3, 33, LOSS_MSE, 1},
      {2, 20, LOSS_MSE, 2},
      {2, 20, LOSS_MSE, 3},
      {3, 33, LOSS_COSINE, 0},
      {3, 33, LOSS_COSINE, 1},
      {3, 33, LOSS_SMOOTH_L1, 0},
      {3, 33, LOSS_SMOOTH_L1, 1},
      {2, 20, LOSS_SMOOTH_L1, 2},
      {2, 20, LOSS_SMOOTH_L1, 3},
      {1, 1, LOSS_MSE, 0}},
     {2056, 1536, LOSS_MSE, 1},
     NULL},
    {OP(cross_entropy),
     cross_entropy_objective,
     {0, 4, -1},
     {{7, 10, 0, 0},
      {13, 10, 10, 1},
      {12, 7, 0, 1 | 4},
      {12, 3, 20, 1 | 4},
      {6, 1, 10, 1},
      {9, 1000, 10, 1 | 2},
      {6, 1000, 0, 2},
      {11, 1000, 10, 1 | 8},
      {3, 100000, 10, 1 | 4},
      {4, 100000, 0, 0}},
     {512, 1000, 10, 1},
     NULL},
    {OP(cast),
     NULL,
     {-1},
     {{1, DTYPE_F32}, {1000, DTYPE_BF16}, {33, DTYPE_F32}, {1025, DTYPE_F32}},
     {8650752, DTYPE_BF16},
     NULL},
    {OP(copy), NULL, {-1}, {{1}, {1000}, {300001}}, {8650752}, NULL},
    {OP(sum_squares),
     NULL,
     {-1},
     {{1, -1}, {1000, -1}, {70001, -1}, {5000, 4999, 0}, {5000, 0, 1}},
     {8650752, -1},
     NULL},
};

#endif
