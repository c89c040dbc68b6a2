/* RMS norms, norms of heads, tokens and logits of language models for tests/unit/ops.c: operands and float64
 * references (as in ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_LANGUAGE_H
#define MEOPT_TESTS_UNIT_OPS_LANGUAGE_H

#include "tests/unit/ops_reference.h"
#include "tests/unit/ops_stream.h"

static const double rms_eps = (double)1e-5f;

/* Returns rstd of a row. */
static double rms_of(const double *x, int64_t D)
{
    double squares = 0;
    for (int64_t j = 0; j < D; j++) squares += x[j] * x[j] / (double)D;
    return 1 / sqrt(squares + rms_eps);
}
static void plant_outliers(struct trial *T, int operand, int64_t D)
{
    for (int64_t i = 0; i < T->o[operand].count; i += D)
        X(operand)[i + i / D % D] *= 100 + 2900 * (double)(i % 2);
}

/* rms_norm: R D gap, 1 hat wanted | 2 y in F32 | 4 bias | 8 a layer norm | 16 x as y; 0 x, 1 weight, 2 bias,
 * 3 y, 4 mean, 5 rstd, 6 hat */
static void rms_norm_setup(struct trial *T)
{
    SIZES(R, D, gap, how);
    operand_add(T, IN, how & 16 ? T->t : F32, R * (D + gap), 1);
    plant_outliers(T, 0, D + gap);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, how & 2 ? F32 : T->t, R * D, 1);
    operand_add(T, how & 8 ? OUT : IN, F32, R, 1);
    operand_add(T, OUT, F32, R, 1);
    operand_add(T, how & 1 ? OUT : IN, stored_type(T), R * D, 1);
}
static void rms_norm_call(struct trial *T)
{
    SIZES(R, D, gap, how);
    OPS->layernorm_forward(T->device, &(struct layernorm){.type = how & 2 ? F32 : T->t,
                                                          .x_type = how & 16 ? T->t : F32,
                                                          .x = P(0),
                                                          .x_stride = D + gap,
                                                          .weight = P(1),
                                                          .bias = how & 4 ? P(2) : NULL,
                                                          .y = P(3),
                                                          .mean = how & 8 ? P(4) : NULL,
                                                          .rstd = P(5),
                                                          .R = R,
                                                          .D = D,
                                                          .eps = 1e-5f,
                                                          .hat_type = how & 1 ? stored_type(T) : F32,
                                                          .hat = how & 1 ? P(6) : NULL,
                                                          .rms = !(how & 8)});
}
static void rms_norm_reference(struct trial *T)
{
    SIZES(R, D, gap, how);
    for (int64_t r = 0; r < R; r++) {
        const double *x = X(0) + r * (D + gap);
        double m = 0, rstd = 0, e = loss((double)D), size = 0, v = 0;
        for (int64_t j = 0; j < D; j++) size = fmax(size, fabs(x[j])), m += x[j] / (double)D;
        if (!(how & 8)) m = 0;
        for (int64_t j = 0; j < D; j++) v += (x[j] - m) * (x[j] - m) / (double)D;
        rstd = 1 / sqrt(v + rms_eps);
        if (how & 8) W(4)[r] = m;
        if (how & 8) S(4)[r] = e * size;
        double off_m = how & 8 ? e * size : 0;
        W(5)[r] = rstd;
        S(5)[r] = e * rstd * (1 + (how & 8 ? size * rstd * e * size * rstd : 0));
        for (int64_t j = 0; j < D; j++) {
            double hat = (x[j] - m) * rstd, off = fabs(hat) * (S(5)[r] / rstd + 4 * u32) + off_m * rstd,
                   stored = how & 1 ? stored_unit(T) * fabs(hat) + 0x1p-25 : 0;
            if (how & 1) W(6)[r * D + j] = hat;
            if (how & 1) S(6)[r * D + j] = off;
            W(3)[r * D + j] = hat * X(1)[j] + (how & 4 ? X(2)[j] : 0);
            S(3)
            [r * D + j] =
                (2 * off + 2 * stored) * fabs(X(1)[j]) + 2 * u32 * (fabs(hat * X(1)[j]) + fabs(X(2)[j]));
        }
    }
}

/* rms_apply: R D; 1 from x, not from hat | 2 bias; 0 x or hat, 1 weight, 2 bias, 3 y, 4 rstd */
static void rms_apply_setup(struct trial *T)
{
    SIZES(R, D, how, unused);
    operand_add(T, IN, how & 1 ? T->t : stored_type(T), R * D, 1);
    plant_outliers(T, 0, D);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, T->t, R * D, 1);
    operand_add(T, IN, F32, R, 1);
}
static void rms_apply_call(struct trial *T)
{
    SIZES(R, D, how, unused);
    struct layernorm o = {.type = T->t,
                          .x_type = T->t,
                          .x = P(0),
                          .x_stride = D,
                          .weight = P(1),
                          .bias = how & 2 ? P(2) : NULL,
                          .y = P(3),
                          .rstd = P(4),
                          .R = R,
                          .D = D,
                          .rms = true};
    if (!(how & 1)) o.x = NULL, o.hat = P(0), o.hat_type = stored_type(T);
    OPS->layernorm_apply(T->device, &o);
}
static void rms_apply_reference(struct trial *T)
{
    SIZES(R, D, how, unused);
    for (int64_t i = 0; i < R * D; i++) {
        double y = X(0)[i] * X(1)[i % D] * (how & 1 ? X(4)[i / D] : 1);
        W(3)[i] = y + (how & 2 ? X(2)[i % D] : 0);
        S(3)[i] = 4 * u32 * (fabs(y) + fabs(X(2)[i % D]));
    }
}

/* rms_backward: R D gap; 1 dy F32 and in its place | 2 a branch follows | 4 a layer norm without bias; 0 dy,
 * 1 hat, 2 weight, 3 rstd, 4 dx, 5 dweight, 6 plain, 7 gamma, 8 scaled */
static void rms_backward_setup(struct trial *T)
{
    SIZES(R, D, gap, how);
    operand_add(T, how & 1 ? ADD : IN, how & 1 ? F32 : T->t, R * D, 1);
    operand_add(T, IN, stored_type(T), R * D, 1);
    plant_outliers(T, 1, D);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, how & 1 ? IN : ADD, F32, R * (D + gap), 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, how & 2 ? OUT : IN, T->t, R * D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, how & 2 ? OUT : IN, T->t, R * D, 1);
}
static void rms_backward_call(struct trial *T)
{
    SIZES(R, D, gap, how);
    struct branch_gradient then = {
        .type = T->t, .dx = P(4), .gamma = P(7), .plain = P(6), .scaled = P(8), .R = R, .D = D};
    OPS->layernorm_backward(T->device, &(struct layernorm_gradient){.type = how & 1 ? F32 : T->t,
                                                                    .x_type = stored_type(T),
                                                                    .dy = P(0),
                                                                    .x = P(1),
                                                                    .x_stride = D,
                                                                    .weight = P(2),
                                                                    .rstd = P(3),
                                                                    .dx = P(4),
                                                                    .dx_stride = D + gap,
                                                                    .dweight = P(5),
                                                                    .R = R,
                                                                    .D = D,
                                                                    .to = how & 1 ? P(0) : NULL,
                                                                    .then = how & 2 ? &then : NULL,
                                                                    .rms = !(how & 4)});
}
static void rms_backward_reference(struct trial *T)
{
    SIZES(R, D, gap, how);
    for (int64_t r = 0; r < R; r++) {
        const double *hat = X(1) + r * D, *dy = X(0) + r * D;
        double g_mean = 0, mean = 0, size = 0, sizes = 0, e = loss((double)D), er = loss((double)R);
        for (int64_t j = 0; j < D; j++) {
            double g = dy[j] * X(2)[j];
            if (how & 4) g_mean += g / (double)D;
            mean += g * hat[j] / (double)D;
            sizes += fabs(g * hat[j]) / (double)D;
            size = fmax(size, fabs(g));
        }
        for (int64_t j = 0; j < D; j++) {
            double made = X(3)[r] * (dy[j] * X(2)[j] - g_mean - hat[j] * mean),
                   off = e * (fabs(X(3)[r]) * (2 * size + fabs(hat[j]) * sizes) + fabs(made));
            int64_t i = r * D + j, at = how & 1 ? i : r * (D + gap) + j, to = how & 1 ? 0 : 4;
            W(to)[at] = made + (how & 1 ? 0 : X(4)[at]);
            S(to)[at] = off + u32 * fabs(X(4)[at]);
            if (how & 2) W(6)[i] = W(4)[at];
            if (how & 2) S(6)[i] = S(4)[at] + u32 * fabs(W(4)[at]);
            if (how & 2) W(8)[i] = W(4)[at] * X(7)[j];
            if (how & 2) S(8)[i] = (S(4)[at] + 2 * u32 * fabs(W(4)[at])) * fabs(X(7)[j]);
            W(5)[j] += dy[j] * hat[j];
            S(5)[j] += er * (fabs(dy[j] * hat[j]) + 1);
        }
    }
}

/* rms_residual: R D, 4 again | 8 bias; 0 x and what it becomes, 1 branch and the norm's output, 2 weight,
 * 3 bias, 4 rstd, 5 what is stored of x, 6 its rstd, 7 hat */
static void rms_residual_setup(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4;
    operand_add(T, again ? IN : ADD, F32, R * D, 1);
    plant_outliers(T, 0, D);
    operand_add(T, ADD, T->t, R * D, 1);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, D, 1);
    operand_add(T, again ? IN : OUT, F32, R, 1);
    operand_add(T, IN, stored_type(T), R * D, 1);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, OUT, stored_type(T), R * D, 1);
    for (int64_t r = 0; r < R; r++) X(6)[r] = 1 + fabs(X(6)[r]);
    for (int64_t r = 0; r < R && again; r++) X(4)[r] = fabs(X(4)[r]);
}
static void rms_residual_call(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4;
    struct layernorm norm = {.type = T->t,
                             .weight = P(2),
                             .bias = how & 8 ? P(3) : NULL,
                             .y = P(1),
                             .rstd = P(4),
                             .R = R,
                             .D = D,
                             .eps = 1e-5f,
                             .hat_type = stored_type(T),
                             .hat = P(7),
                             .rms = true};
    struct second_input second = {.from = {stored_type(T), .x = P(5), .rstd = P(6)}, .norm = &norm};
    OPS->residual_forward(T->device, &(struct residual){.type = T->t,
                                                        .x = again ? NULL : P(0),
                                                        .branch = P(1),
                                                        .y = again ? NULL : P(0),
                                                        .R = R,
                                                        .D = D,
                                                        .second = &second});
}
static void rms_residual_reference(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4;
    for (int64_t r = 0; r < R; r++) {
        double rstd = X(4)[r], e = again ? 0 : 2 * loss((double)D);
        for (int64_t i = r * D; i < (r + 1) * D && !again; i++) {
            W(0)[i] = X(0)[i] + X(1)[i];
            S(0)[i] = u32 * fabs(W(0)[i]);
        }
        if (!again) {
            rstd = rms_of(W(0) + r * D, D);
            W(4)[r] = rstd;
            S(4)[r] = e * rstd;
        }
        for (int64_t i = r * D; i < (r + 1) * D; i++) {
            double z = X(5)[i] / X(6)[r] + X(1)[i], hat = z * rstd,
                   off =
                       (6 * u32 * (fabs(X(5)[i] / X(6)[r]) + fabs(X(1)[i])) + (e + 4 * u32) * fabs(z)) * rstd;
            W(7)[i] = hat;
            S(7)[i] = off;
            W(1)[i] = hat * X(2)[i % D] + (how & 8 ? X(3)[i % D] : 0);
            S(1)
            [i] = (2 * off + 2 * stored_unit(T) * fabs(hat) + 0x1p-24) * fabs(X(2)[i % D]) +
                  2 * u32 * fabs(X(3)[i % D]);
        }
    }
}

/* head_norm: R H G dh; in place where R is odd; 0 x, 1 and 2 weights, 3 y, 4 rstd */
static int64_t heads_width(const struct trial *T) { return (T->s[1] + 2 * T->s[2]) * T->s[3]; }
static void head_norm_setup(struct trial *T)
{
    SIZES(R, H, G, dh);
    operand_add(T, R % 2 ? ADD : IN, T->t, R * heads_width(T), 1);
    plant_outliers(T, 0, dh + 1 < heads_width(T) ? heads_width(T) : 1);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, dh, 1);
    operand_add(T, R % 2 ? IN : OUT, T->t, R * heads_width(T), 1);
    operand_add(T, OUT, F32, R * (H + G), 1);
}
static void head_norm_call(struct trial *T)
{
    SIZES(R, H, G, dh);
    OPS->head_norm(T->device, &(struct head_norm){.type = T->t,
                                                  .x = P(0),
                                                  .y = P(R % 2 ? 0 : 3),
                                                  .weight = {P(1), P(2)},
                                                  .rstd = P(4),
                                                  .R = R,
                                                  .H = H,
                                                  .G = G,
                                                  .dh = dh,
                                                  .eps = 1e-5f});
}
static void head_norm_reference(struct trial *T)
{
    SIZES(R, H, G, dh);
    int64_t to = R % 2 ? 0 : 3;
    for (int64_t i = 0; i < R * (H + 2 * G); i++) {
        int64_t row = i / (H + 2 * G), head = i % (H + 2 * G);
        const double *x = X(0) + i * dh, *weight = X(head < H ? 1 : 2);
        double rstd = rms_of(x, dh);
        for (int64_t d = 0; d < dh; d++) {
            W(to)[i * dh + d] = head < H + G ? x[d] * rstd * weight[d] : x[d];
            S(to)[i * dh + d] = head < H + G ? (loss((double)dh) + 4 * u32) * fabs(W(to)[i * dh + d]) : 0;
        }
        if (head < H + G) W(4)[row * (H + G) + head] = rstd;
        if (head < H + G) S(4)[row * (H + G) + head] = loss((double)dh) * rstd;
    }
}

/* head_norm_gradient: R H G dh; 0 x, 1 dqkv, 2 and 3 weights, 4 rstd, 5 and 6 gradients of the weights */
static void head_norm_gradient_setup(struct trial *T)
{
    SIZES(R, H, G, dh);
    operand_add(T, IN, T->t, R * heads_width(T), 1);
    operand_add(T, ADD, T->t, R * heads_width(T), 1);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, dh, 1);
    operand_add(T, IN, F32, R * (H + G), 1);
    for (int i = 0; i < 2; i++) operand_add(T, ADD, F32, dh, 1);
    for (int64_t i = 0; i < R; i++) X(0)[i * heads_width(T) + i % dh] *= dh > 4 ? 1000 : 1;
    trial_round(T);
    for (int64_t i = 0; i < R * (H + G); i++)
        X(4)[i] = rms_of(X(0) + (i / (H + G) * (H + 2 * G) + i % (H + G)) * dh, dh);
}
static void head_norm_gradient_call(struct trial *T)
{
    SIZES(R, H, G, dh);
    OPS->head_norm_gradient(T->device, &(struct head_norm_gradient){.type = T->t,
                                                                    .x = P(0),
                                                                    .dqkv = P(1),
                                                                    .weight = {P(2), P(3)},
                                                                    .rstd = P(4),
                                                                    .dweight = {P(5), P(6)},
                                                                    .R = R,
                                                                    .H = H,
                                                                    .G = G,
                                                                    .dh = dh});
}
static void head_norm_gradient_reference(struct trial *T)
{
    SIZES(R, H, G, dh);
    for (int64_t i = 0; i < R * (H + 2 * G); i++) {
        int64_t row = i / (H + 2 * G), head = i % (H + 2 * G), of = head < H ? 0 : 1;
        if (head >= H + G) continue;
        const double *x = X(0) + i * dh, *dy = X(1) + i * dh, *weight = X(2 + of);
        double rstd = X(4)[row * (H + G) + head], mean = 0, sizes = 0, e = loss((double)dh);
        for (int64_t d = 0; d < dh; d++) {
            mean += dy[d] * weight[d] * x[d] * rstd / (double)dh;
            sizes += fabs(dy[d] * weight[d] * x[d] * rstd) / (double)dh;
        }
        for (int64_t d = 0; d < dh; d++) {
            double hat = x[d] * rstd, g = dy[d] * weight[d];
            W(1)[i * dh + d] = rstd * (g - hat * mean);
            S(1)[i * dh + d] = (e + 4 * u32) * rstd * (fabs(g) + fabs(hat) * sizes);
            W(5 + of)[d] += dy[d] * hat;
            S(5 + of)[d] += loss((double)(R * H)) * (fabs(dy[d] * hat) + u32);
        }
    }
}
/* Less dqkv . x, because the check takes what was there off the result. */
static double head_norm_objective(struct trial *T)
{
    SIZES(R, H, G, dh);
    double sum = 0;
    for (int64_t i = 0; i < R * (H + 2 * G); i++) {
        int64_t head = i % (H + 2 * G);
        const double *x = X(0) + i * dh, *dy = X(1) + i * dh, *weight = X(head < H ? 2 : 3);
        double rstd = rms_of(x, dh);
        for (int64_t d = 0; d < dh && head < H + G; d++) sum += dy[d] * (x[d] * rstd * weight[d] - x[d]);
    }
    return sum;
}

static const struct operation language_operations[] = {
    {OP(rms_norm),
     NULL,
     {-1},
     {{1, 1, 0, 1},
      {7, 67, 0, 1},
      {2, 1408, 0, 0},
      {5, 530, 33, 5},
      {5, 2100, 0, 3},
      {5, 530, 0, 8},
      {3, 67, 5, 9},
      {6, 67, 0, 16},
      {3, 2560, 0, 1}},
     {2048, 2048, 0, 1},
     NULL},
    {OP(rms_apply), NULL, {-1}, {{1, 1}, {7, 67}, {5, 1030, 2}, {3, 67, 1}, {5, 530, 3}}, {2048, 2048}, NULL},
    {OP(rms_backward),
     NULL,
     {-1},
     {{1, 3, 0},
      {7, 67, 5},
      {70, 33, 0, 1},
      {3, 2100, 0, 1},
      {70, 67, 0, 2},
      {3, 2100, 0, 2},
      {5, 530, 0, 4}},
     {2048, 2048, 0, 0},
     NULL},
    {OP(rms_residual),
     NULL,
     {-1},
     {{1, 1}, {7, 67}, {5, 530, 8}, {3, 2100}, {7, 67, 4}, {3, 2100, 12}},
     {2048, 2048},
     NULL},
    {OP(head_norm),
     NULL,
     {-1},
     {{1, 1, 1, 4}, {2, 4, 2, 64}, {3, 3, 1, 80}, {6, 8, 8, 128}, {130, 2, 1, 6}},
     {2048, 16, 8, 128},
     NULL},
    {OP(head_norm_gradient),
     head_norm_objective,
     {0, 1, 2, 5, 3, 6, -1},
     {{1, 1, 1, 4}, {2, 4, 2, 64}, {3, 3, 1, 80}, {6, 8, 8, 128}, {130, 2, 1, 6}},
     {2048, 16, 8, 128},
     NULL},
};

#endif
