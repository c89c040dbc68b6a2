/* What tests/unit/ops.c knows of each operation: its operands, a plain float64 reference with a bound of
 * the error
 * that the formats allow, and for backward operations the forward objective whose gradient they claim to be.
 *
 * Bounds. u32 = 2^-24 and u16 = 2^-8 are the unit roundoffs of float and bfloat16. A float sum of n terms is
 * off by about sqrt(n) u32 times the sum of magnitudes (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019):
 * loss(n) below. Every reference adds to `slack` what its intermediate steps may lose; the final rounding to
 * the operand's type is added by the check. */
#ifndef MEOPT_TESTS_UNIT_OPS_REFERENCE_H
#define MEOPT_TESTS_UNIT_OPS_REFERENCE_H

#include "core/base/memory.h"
#include "tests/unit/ops_trial.h"

static const double u32 = 0x1p-24, u16 = 0x1p-8;
static inline double loss(double n) { return (8 + 2 * sqrt(n)) * u32; }
static inline double unit(enum dtype t) { return t == DTYPE_BF16 ? u16 : u32; }

#define X(i) (T->o[i].x)
#define W(i) (T->o[i].want)
#define S(i) (T->o[i].slack)
#define P(i) (T->o[i].device)
#define SIZES(a, b, c, d)                                                                                    \
    int64_t a = T->s[0], b = T->s[1], c = T->s[2], d = T->s[3];                                              \
    (void)a, (void)b, (void)c, (void)d

#define OPS T->device->ops

/* layernorm: R D, extra columns between rows of x (and dx) */
static void row_moments(const double *x, int64_t D, double *mean, double *rstd)
{
    double m = 0, v = 0;
    for (int64_t j = 0; j < D; j++) m += x[j] / (double)D;
    for (int64_t j = 0; j < D; j++) v += (x[j] - m) * (x[j] - m) / (double)D;
    *mean = m;
    *rstd = 1 / sqrt(v + 1e-6);
}
static void layernorm_forward_setup(struct trial *T)
{
    SIZES(R, D, gap, unused);
    operand_add(T, IN, T->t, R * (D + gap), 1);
    for (int64_t i = 0; i < R * (D + gap); i++) X(0)[i] += 2; /* a mean that matters */
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, T->t, R * D, 1);
    operand_add(T, OUT, F32, R, 1);
    operand_add(T, OUT, F32, R, 1);
}
static void layernorm_forward_call(struct trial *T)
{
    OPS->layernorm_forward(T->device,
                           &(struct layernorm){T->t, T->t, .x = P(0), .x_stride = T->s[1] + T->s[2],
                                               .weight = P(1), .bias = P(2), .y = P(3), .mean = P(4),
                                               .rstd = P(5), T->s[0], T->s[1], 1e-6f});
}
static void layernorm_forward_reference(struct trial *T)
{
    SIZES(R, D, gap, unused);
    for (int64_t r = 0; r < R; r++) {
        const double *x = X(0) + r * (D + gap);
        double m, rstd, size = 0, e = loss((double)D);
        row_moments(x, D, &m, &rstd);
        for (int64_t j = 0; j < D; j++) size = fmax(size, fabs(x[j]));
        W(4)[r] = m;
        S(4)[r] = e * size;
        W(5)[r] = rstd;
        S(5)[r] = e * rstd * (1 + size * rstd * e * size * rstd);
        for (int64_t j = 0; j < D; j++) {
            W(3)[r * D + j] = (x[j] - m) * rstd * X(1)[j] + X(2)[j];
            S(3)[r * D + j] = e * (2 * size * rstd * fabs(X(1)[j]) + fabs(X(2)[j]));
        }
    }
}
static void layernorm_apply_setup(struct trial *T)
{
    layernorm_forward_setup(T);
    T->o[4].role = T->o[5].role = IN;
    for (int64_t r = 0; r < T->s[0]; r++) X(5)[r] = fabs(X(5)[r]);
}
static void layernorm_apply_call(struct trial *T)
{
    OPS->layernorm_apply(T->device, &(struct layernorm){T->t, T->t, .x = P(0), .x_stride = T->s[1] + T->s[2],
                                                        .weight = P(1), .bias = P(2), .y = P(3), .mean = P(4),
                                                        .rstd = P(5), .R = T->s[0], .D = T->s[1]});
}
static void layernorm_apply_reference(struct trial *T)
{
    SIZES(R, D, gap, unused);
    for (int64_t i = 0; i < R * D; i++) {
        int64_t r = i / D, j = i % D;
        double x = X(0)[r * (D + gap) + j];
        W(3)[i] = (x - X(4)[r]) * X(5)[r] * X(1)[j] + X(2)[j];
        S(3)[i] = 8 * u32 * ((fabs(x) + fabs(X(4)[r])) * X(5)[r] * fabs(X(1)[j]) + fabs(X(2)[j]));
    }
}
/* 0 dy, 1 x, 2 weight, 3 mean, 4 rstd, 5 dx, 6 dweight, 7 dbias, 8 bias (for the objective only) */
static void layernorm_backward_setup(struct trial *T)
{
    SIZES(R, D, gap, unused);
    operand_add(T, IN, T->t, R * D, 1);
    operand_add(T, IN, T->t, R * (D + gap), 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, ADD, F32, R * (D + gap), 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, IN, F32, D, 1);
    trial_round(T);
    for (int64_t r = 0; r < R; r++) row_moments(X(1) + r * (D + gap), D, &X(3)[r], &X(4)[r]);
}
static void layernorm_backward_call(struct trial *T)
{
    int64_t stride = T->s[1] + T->s[2];
    OPS->layernorm_backward(T->device,
                            &(struct layernorm_gradient){T->t, T->t, .dy = P(0), .x = P(1),
                                                         .x_stride = stride, .weight = P(2), .mean = P(3),
                                                         .rstd = P(4), .dx = P(5), .dx_stride = stride,
                                                         .dweight = P(6), .dbias = P(7), T->s[0], T->s[1]});
}
static void layernorm_backward_reference(struct trial *T)
{
    SIZES(R, D, gap, unused);
    for (int64_t r = 0; r < R; r++) {
        const double *x = X(1) + r * (D + gap), *dy = X(0) + r * D;
        double m, rstd, g_mean = 0, gh_mean = 0, size = 0, e = loss((double)D);
        row_moments(x, D, &m, &rstd);
        for (int64_t j = 0; j < D; j++) {
            double g = dy[j] * X(2)[j], hat = (x[j] - m) * rstd;
            g_mean += g / (double)D;
            gh_mean += g * hat / (double)D;
            size = fmax(size, fabs(g) * (1 + hat * hat));
        }
        for (int64_t j = 0; j < D; j++) {
            double hat = (x[j] - m) * rstd, er = loss((double)R);
            W(5)[r * (D + gap) + j] += rstd * (dy[j] * X(2)[j] - g_mean - hat * gh_mean);
            S(5)[r * (D + gap) + j] = e * (rstd * size * (2 + fabs(hat)) + 1);
            W(6)[j] += dy[j] * hat;
            S(6)[j] += er * (fabs(dy[j]) * (fabs(hat) + 1) + 1);
            W(7)[j] += dy[j];
            S(7)[j] += er * (fabs(dy[j]) + 1);
        }
    }
}
static double layernorm_objective(struct trial *T)
{
    SIZES(R, D, gap, unused);
    double sum = 0;
    for (int64_t r = 0; r < R; r++) {
        double m, rstd;
        row_moments(X(1) + r * (D + gap), D, &m, &rstd);
        for (int64_t j = 0; j < D; j++)
            sum += X(0)[r * D + j] * ((X(1)[r * (D + gap) + j] - m) * rstd * X(2)[j] + X(8)[j]);
    }
    return sum;
}

/* Biases that products leave out are given to operations on cards alone (device.h: biases_apart). */
static bool takes_bias(const struct trial *T) { return T->card; }

/* activation: R F kind bias; 0 h, 1 y, 2 bias; backward 0 h, 1 dy, 2 dh, 4 bias */
static double activate(enum activation kind, const double *h, int64_t F, int64_t at)
{
    int64_t r = at / F, j = at % F;
    if (kind == ACTIVATION_GELU) return h[at] * 0.5 * erfc(-h[at] * sqrt(0.5));
    if (kind == ACTIVATION_QUICK_GELU) return h[at] / (1 + exp(-1.702 * h[at]));
    if (kind == ACTIVATION_TANH) return tanh(h[at]);
    if (kind == ACTIVATION_RELU) return h[at] > 0 ? h[at] : 0;
    if (kind == ACTIVATION_GELU_TANH)
        return h[at] / (1 + exp(-2 * sqrt(2 / M_PI) * (h[at] + 0.044715 * h[at] * h[at] * h[at])));
    return h[r * 2 * F + j] / (1 + exp(-h[r * 2 * F + j])) * h[r * 2 * F + F + j];
}
static const void *activation_bias(struct trial *T, int at)
{
    return T->s[3] && takes_bias(T) ? P(at) : NULL;
}
/* h as the activation is to read it, to be freed */
static double *activation_input(struct trial *T, int at)
{
    int64_t count = T->o[0].count, columns = count / T->s[0];
    double *h = xcalloc((size_t)count, sizeof *h);
    for (int64_t i = 0; i < count; i++) h[i] = X(0)[i] + (T->s[3] && takes_bias(T) ? X(at)[i % columns] : 0);
    return h;
}
static void activation_operands(struct trial *T)
{
    SIZES(R, F, kind, unused);
    operand_add(T, IN, T->t, R * F * (kind == ACTIVATION_SWIGLU ? 2 : 1), 3);
    operand_add(T, OUT, T->t, R * F, 1);
}
static void activation_forward_setup(struct trial *T)
{
    activation_operands(T);
    operand_add(T, IN, F32, T->o[0].count / T->s[0], 3);
}
static void activation_forward_call(struct trial *T)
{
    OPS->activation_forward(T->device, &(struct activation_value){T->t, (enum activation)T->s[2], .h = P(0),
                                                                  .bias = activation_bias(T, 2), .y = P(1),
                                                                  T->s[0], T->s[1]});
}
static void activation_values(struct trial *T, const double *h)
{
    SIZES(R, F, kind, bias);
    for (int64_t i = 0; i < R * F; i++) {
        W(1)[i] = activate((enum activation)kind, h, F, i);
        /* GELU: the published error 0.75e-7 of Phi, and roundings */
        double gelu = (0.8e-7 + (bias ? 6 : 4) * u32) * fabs(h[i]);
        S(1)[i] = kind == ACTIVATION_GELU ? gelu : 16 * u32 * fabs(W(1)[i]);
        /* quick: the exponent 1.702 h is rounded, too */
        if (kind == ACTIVATION_QUICK_GELU) S(1)[i] *= 1 + fabs(h[i]) / 4;
        /* tanh: z = h (1.6 + .0714 h^2) is rounded five times, and h once where a bias is added (dz/dh) */
        if (kind == ACTIVATION_GELU_TANH) {
            double square = h[i] * h[i], z = fabs(h[i]) * (1.6 + .0714 * square);
            S(1)[i] += u32 * fabs(W(1)[i]) * (5 * z + (bias ? fabs(h[i]) * (1.6 + .2142 * square) : 0));
        }
    }
}
static void activation_forward_reference(struct trial *T)
{
    double *h = activation_input(T, 2);
    activation_values(T, h);
    free(h);
}
/* with sums, 3, of dh's columns, and the activation, which takes dy's place, where F is odd */
static bool activation_again(const struct trial *T) { return T->s[1] % 2 == 1; }
static void activation_backward_setup(struct trial *T)
{
    activation_operands(T);
    T->o[1].role = activation_again(T) ? ADD : IN;
    operand_add(T, OUT, T->t, T->o[0].count, 1);
    operand_add(T, ADD, F32, T->o[0].count / T->s[0], 1);
    operand_add(T, IN, F32, T->o[0].count / T->s[0], 3);
}
static void activation_backward_call(struct trial *T)
{
    OPS->activation_backward(
        T->device, &(struct activation_gradient){T->t, (enum activation)T->s[2], .dy = P(1), .h = P(0),
                                                 .bias = activation_bias(T, 4), .dh = P(2),
                                                 .act = activation_again(T) ? P(1) : NULL,
                                                 .sums = T->s[0] > 1 ? P(3) : NULL, T->s[0], T->s[1]});
}
static void activation_slopes(struct trial *T, const double *h)
{
    SIZES(R, F, kind, unused);
    for (int64_t i = 0; i < R * F; i++) {
        double d = X(1)[i], x = h[i];
        if (kind == ACTIVATION_GELU) {
            double density = exp(-x * x / 2) * 0.3989422804014327;
            W(2)[i] = d * (0.5 * erfc(-x * sqrt(0.5)) + x * density);
            S(2)[i] = fabs(d) * (0.8e-7 + 8 * u32 * (1 + fabs(x) * density * (1 + x * x)));
            continue;
        }
        if (kind == ACTIVATION_QUICK_GELU) {
            double sigma = 1 / (1 + exp(-1.702 * x));
            W(2)[i] = d * sigma * (1 + 1.702 * x * (1 - sigma));
            S(2)[i] = 16 * u32 * fabs(d) * (1 + fabs(x));
            continue;
        }
        if (kind == ACTIVATION_GELU_TANH) {
            double one = 2 * sqrt(2 / M_PI), cube = one * 0.044715,
                   sigma = 1 / (1 + exp(-x * (one + cube * x * x)));
            W(2)[i] = d * sigma * (1 + x * (1 - sigma) * (one + 3 * cube * x * x));
            S(2)[i] = 16 * u32 * fabs(d) * (1 + fabs(x) * (1 + x * x / 20));
            continue;
        }
        if (kind == ACTIVATION_RELU) {
            W(2)[i] = x > 0 ? d : 0;
            S(2)[i] = u32 * fabs(d);
            continue;
        }
        if (kind == ACTIVATION_TANH) {
            W(2)[i] = d * (1 - tanh(x) * tanh(x));
            S(2)[i] = 16 * u32 * fabs(d);
            continue;
        }
        int64_t at = i / F * 2 * F + i % F;
        double x1 = h[at], x2 = h[at + F], sigma = 1 / (1 + exp(-x1));
        W(2)[at] = d * x2 * (sigma + x1 * sigma * (1 - sigma));
        S(2)[at] = 16 * u32 * fabs(d * x2) * (1 + fabs(x1));
        W(2)[at + F] = d * x1 * sigma;
        S(2)[at + F] = 16 * u32 * fabs(d * x1);
    }
}
static void activation_backward_reference(struct trial *T)
{
    int64_t columns = T->o[3].count;
    double *h = activation_input(T, 4);
    activation_slopes(T, h);
    for (int64_t i = 0; i < T->o[2].count && T->s[0] > 1; i++) { /* of dh as it was rounded */
        W(3)[i % columns] += W(2)[i];
        S(3)[i % columns] += (loss((double)T->s[0]) + unit(T->t)) * fabs(W(2)[i]) + S(2)[i] + u32;
    }
    if (activation_again(T)) activation_values(T, h);
    free(h);
}
static double activation_objective(struct trial *T)
{
    double sum = 0, *h = activation_input(T, 4);
    for (int64_t i = 0; i < T->s[0] * T->s[1]; i++)
        sum += X(1)[i] * activate((enum activation)T->s[2], h, T->s[1], i);
    free(h);
    return sum;
}

/* Drop path of a trial, if s[3] has the rows of an image: operand `at` has its factors, of which every third
 * is 0. */
static void drop_setup(struct trial *T)
{
    int64_t images = T->s[3] ? (T->s[0] + T->s[3] - 1) / T->s[3] : 1;
    operand_add(T, IN, F32, images, 1);
    for (int64_t i = 0; i < images; i++) X(T->count - 1)[i] = i % 3 == 1 ? 0 : 1 + 0.1 * (double)(i % 7);
}
static struct drop_path drop_of(const struct trial *T, int at)
{
    return (struct drop_path){T->s[3] ? P(at) : NULL, T->s[3]};
}
static double drop_factor(const struct trial *T, int at, int64_t row)
{
    return T->s[3] ? X(at)[row / T->s[3]] : 1;
}

/* residual_forward: R D, 1 gamma there | 2 bias there, drop path; 0 x, 1 branch, 2 gamma, 3 y, 4 bias of the
 * branch, 5 factors */
static bool residual_bias(const struct trial *T) { return (T->s[2] & 2) && takes_bias(T); }
static void residual_forward_setup(struct trial *T)
{
    SIZES(R, D, unused, unused2);
    operand_add(T, IN, F32, R * D, 1);
    operand_add(T, IN, T->t, R * D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, F32, R * D, 1);
    operand_add(T, IN, F32, D, 1);
    drop_setup(T);
}
static void residual_forward_call(struct trial *T)
{
    OPS->residual_forward(T->device, &(struct residual){T->t, .x = P(0), .branch = P(1),
                                                        .bias = residual_bias(T) ? P(4) : NULL,
                                                        .gamma = T->s[2] & 1 ? P(2) : NULL, .y = P(3),
                                                        T->s[0], T->s[1], .drop = drop_of(T, 5)});
}
static void residual_forward_reference(struct trial *T)
{
    SIZES(R, D, gamma, unused);
    for (int64_t i = 0; i < R * D; i++) {
        double add = (X(1)[i] + (residual_bias(T) ? X(4)[i % D] : 0)) * (gamma & 1 ? X(2)[i % D] : 1) *
                     drop_factor(T, 5, i / D);
        W(3)[i] = X(0)[i] + add;
        S(3)[i] = (gamma & 2 ? 4 : 3) * u32 * (fabs(add) + fabs(X(0)[i]));
    }
}

/* branch_gradient: R D, gamma there, drop path; 0 dx, 1 gamma, 2 plain, 3 scaled, 4 sums, 5 factors */
static void branch_gradient_setup(struct trial *T)
{
    SIZES(R, D, gamma, unused);
    operand_add(T, IN, F32, R * D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, T->t, R * D, 1);
    operand_add(T, gamma ? OUT : IN, T->t, R * D, 1);
    operand_add(T, ADD, F32, D, 1);
    drop_setup(T);
}
static struct branch_gradient branch_gradient_of(struct trial *T, int first)
{
    return (struct branch_gradient){.type = T->t,
                                    .dx = P(first),
                                    .gamma = T->s[2] ? P(first + 1) : NULL,
                                    .plain = P(first + 2),
                                    .scaled = P(first + 3),
                                    .sums = P(first + 4),
                                    .R = T->s[0],
                                    .D = T->s[1],
                                    .drop = drop_of(T, first + 5)};
}
static void branch_gradient_call(struct trial *T)
{
    struct branch_gradient o = branch_gradient_of(T, 0);
    OPS->branch_gradient(T->device, &o);
}
static void branch_gradient_reference(struct trial *T)
{
    SIZES(R, D, gamma, unused);
    for (int64_t i = 0; i < R * D; i++) {
        double dx = X(0)[i] * drop_factor(T, 5, i / D);
        W(2)[i] = dx;
        S(2)[i] = u32 * fabs(dx);
        if (gamma) W(3)[i] = dx * X(1)[i % D];
        if (gamma) S(3)[i] = 2 * u32 * fabs(W(3)[i]);
        W(4)[i % D] += dx;
        S(4)[i % D] += loss((double)R) * (fabs(X(0)[i]) + u32);
    }
}

/* column_sums: R D; 0 x, 1 sums */
static void column_sums_setup(struct trial *T)
{
    operand_add(T, IN, T->t, T->s[0] * T->s[1], 1);
    operand_add(T, ADD, F32, T->s[1], 1);
}
static void column_sums_call(struct trial *T)
{
    OPS->column_sums(T->device, T->t, P(0), P(1), T->s[0], T->s[1]);
}
static void column_sums_reference(struct trial *T)
{
    SIZES(R, D, c_, d_);
    for (int64_t i = 0; i < R * D; i++) {
        W(1)[i % D] += X(0)[i];
        S(1)[i % D] += loss((double)R) * (fabs(X(0)[i]) + u32);
    }
}

/* layerscale_backward: D K; 0 W, 1 G, 2 b, 3 s, 4 gamma, 5 dgamma, 6 db. db is overwritten: the branch's bias
 * has no other gradient. */
static void layerscale_backward_setup(struct trial *T)
{
    SIZES(D, K, c_, d_);
    operand_add(T, IN, T->t, D * K, 1);
    operand_add(T, ADD, T->t, D * K, 1);
    for (int i = 0; i < 3; i++) operand_add(T, IN, F32, D, 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, OUT, F32, D, 1);
}
static void layerscale_backward_call(struct trial *T)
{
    OPS->layerscale_backward(T->device, &(struct layerscale_gradient){.weights = P(0),
                                                                      .weight_type = T->t,
                                                                      .gradient = P(1),
                                                                      .gradient_type = T->t,
                                                                      .bias = P(2),
                                                                      .sums = P(3),
                                                                      .gamma = P(4),
                                                                      .dgamma = P(5),
                                                                      .dbias = P(6),
                                                                      T->s[0],
                                                                      T->s[1]});
}
static void layerscale_backward_reference(struct trial *T)
{
    SIZES(D, K, c_, d_);
    for (int64_t j = 0; j < D; j++) {
        double sum = X(2)[j] * X(3)[j], size = fabs(sum) + 1;
        for (int64_t k = 0; k < K; k++) {
            double term = X(0)[j * K + k] * X(1)[j * K + k];
            sum += term;
            size += fabs(term);
            W(1)[j * K + k] = X(1)[j * K + k] * X(4)[j];
            S(1)[j * K + k] = u32 * fabs(W(1)[j * K + k]);
        }
        W(5)[j] += sum;
        S(5)[j] = loss((double)K) * size;
        W(6)[j] = X(4)[j] * X(3)[j];
        S(6)[j] = 2 * u32 * fabs(W(6)[j]);
    }
}

static const struct operation reference_operations[] = {
    {OP(layernorm_forward),
     NULL,
     {-1},
     {{1, 1, 0}, {3, 5, 0}, {7, 67, 0}, {2, 1408, 0}, {5, 530, 33}, {130, 64, 64}},
     {2056, 1408, 0},
     NULL},
    {OP(layernorm_apply),
     NULL,
     {-1},
     {{1, 1, 0}, {3, 5, 0}, {7, 67, 0}, {2, 1408, 0}, {5, 530, 33}},
     {2056, 1408, 0},
     NULL},
    {OP(layernorm_backward),
     layernorm_objective,
     {1, 5, 2, 6, 8, 7, -1},
     {{1, 3, 0}, {3, 5, 0}, {7, 67, 0}, {70, 33, 5}, {2, 1030, 0}, {200, 16, 0}, {3, 2100, 7}},
     {2056, 1408, 0},
     NULL},
    {OP(activation_forward),
     NULL,
     {-1},
     {{1, 1, 0}, {3, 67, 0}, {5, 1000, 0}, {1, 1, 1}, {3, 67, 1}, {5, 1000, 1}, {1, 1, 2}, {3, 67, 2}},
     {2056, 6144, 0},
     NULL},
    {OP(activation_forward), NULL, {-1}, {{2, 3, 1}}, {2056, 4096, 1}, NULL},
    {OP(activation_forward),
     NULL,
     {-1},
     {{5, 1000, 2}, {3, 67, 0, 1}, {5, 33, 1, 1}, {3, 67, 2, 1}},
     {2056, 6144, 2},
     NULL},
    {OP(activation_forward), NULL, {-1}, {{1, 1, 3}, {5, 1000, 3}, {3, 67, 3, 1}}, {2056, 6144, 3}, NULL},
    {OP(activation_forward), NULL, {-1}, {{1, 1, 4}, {5, 1000, 4}, {3, 67, 4, 1}}, {2056, 768, 4}, NULL},
    {OP(activation_forward), NULL, {-1}, {{1, 1, 5}, {5, 1000, 5}, {3, 67, 5}}, {2056, 768, 5}, NULL},
    {OP(activation_backward), NULL, {-1}, {{1, 1, 5}, {3, 67, 5}, {70, 5, 5}}, {2056, 768, 5}, NULL},
    {OP(activation_backward),
     activation_objective,
     {0, 2, -1},
     {{1, 1, 4}, {3, 67, 4}, {5, 1000, 4}, {70, 5, 4}, {130, 6, 4, 1}},
     {2056, 768, 4},
     NULL},
    {OP(activation_backward),
     activation_objective,
     {0, 2, -1},
     {{1, 1, 3}, {3, 67, 3}, {5, 1000, 3}, {70, 5, 3}, {130, 6, 3, 1}},
     {2056, 6144, 3},
     NULL},
    {OP(activation_backward),
     activation_objective,
     {0, 2, -1},
     {{1, 1, 0},
      {3, 67, 0},
      {5, 1000, 0},
      {1, 1, 1},
      {3, 67, 1},
      {5, 1000, 1},
      {1, 1, 2},
      {3, 67, 2},
      {130, 6, 0},
      {70, 5, 1}},
     {2056, 6144, 0},
     NULL},
    {OP(activation_backward), activation_objective, {0, 2, -1}, {{2, 3, 1}}, {2056, 4096, 1}, NULL},
    {OP(activation_backward),
     activation_objective,
     {0, 2, -1},
     {{5, 1000, 2}, {70, 67, 0, 1}, {3, 67, 1, 1}, {3, 6, 2, 1}},
     {2056, 6144, 2},
     NULL},
    {OP(residual_forward),
     NULL,
     {-1},
     {{1, 1, 0}, {3, 67, 1}, {70, 530, 1}, {7, 64, 3}, {70, 530, 3, 5}, {9, 67, 0, 2}},
     {2056, 1408, 1},
     NULL},
    {OP(branch_gradient),
     NULL,
     {-1},
     {{1, 1, 0}, {3, 67, 1}, {70, 530, 1}, {5, 64, 0}, {1100, 3, 1}, {70, 530, 1, 5}, {1100, 3, 0, 17}},
     {2056, 1408, 1},
     NULL},
    {OP(column_sums), NULL, {-1}, {{1, 1}, {3, 67}, {700, 33}, {65, 530}}, {2056, 6144}, NULL},
    {OP(layerscale_backward), NULL, {-1}, {{1, 1}, {3, 67}, {70, 530}}, {1408, 1408}, NULL},
};

#endif
