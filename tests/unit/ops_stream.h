/* Norms and residuals of the residual stream for tests/unit/ops.c: fp32 in, its stored form (operations.h)
 * out and
 * back in. Operands and float64 references (as in ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_STREAM_H
#define MEOPT_TESTS_UNIT_OPS_STREAM_H

#include "tests/unit/ops_reference.h"

/* What is stored of a stream of a tower of that compute type, and its unit roundoff. */
static enum dtype stored_type(const struct trial *T) { return T->t == DTYPE_BF16 ? DTYPE_F16 : F32; }
static double stored_unit(const struct trial *T) { return T->t == DTYPE_BF16 ? 0x1p-11 : u32; }

/* stream_norm: R D gap, 1 hat wanted | 2 y in F32; 0 x, 1 weight, 2 bias, 3 y, 4 mean, 5 rstd, 6 hat */
static void stream_norm_setup(struct trial *T)
{
    SIZES(R, D, gap, how);
    layernorm_forward_setup(T);
    T->o[0].type = F32;
    X(0)[D / 2] *= 300; /* one that stands above the others */
    if (how & 2) T->o[3].type = F32;
    operand_add(T, how & 1 ? OUT : IN, stored_type(T), R * D, 1);
    (void)gap;
}
static void stream_norm_call(struct trial *T)
{
    SIZES(R, D, gap, how);
    OPS->layernorm_forward(T->device, &(struct layernorm){.type = how & 2 ? F32 : T->t,
                                                          .x = P(0),
                                                          .x_stride = D + gap,
                                                          .weight = P(1),
                                                          .bias = P(2),
                                                          .y = P(3),
                                                          .mean = P(4),
                                                          .rstd = P(5),
                                                          .R = R,
                                                          .D = D,
                                                          .eps = 1e-6f,
                                                          .hat_type = stored_type(T),
                                                          .hat = how & 1 ? P(6) : NULL});
}
static void stream_norm_reference(struct trial *T)
{
    SIZES(R, D, gap, how);
    layernorm_forward_reference(T);
    for (int64_t i = 0; i < R * D; i++) {
        int64_t r = i / D, j = i % D;
        double x = X(0)[r * (D + gap) + j], hat = (x - W(4)[r]) * W(5)[r],
               off = hat * S(5)[r] / W(5)[r] + S(4)[r] * W(5)[r] + 4 * u32 * fabs(hat);
        if (how & 1) W(6)[i] = hat;
        if (how & 1) S(6)[i] = fabs(off);
        S(3)[i] += (2 * stored_unit(T) * fabs(hat) + 0x1p-24 + 2 * fabs(off)) * fabs(X(1)[j]);
    }
}

/* stream_norm_apply: R D; 0 hat, 1 weight, 2 bias, 3 y */
static void stream_norm_apply_setup(struct trial *T)
{
    SIZES(R, D, unused, unused2);
    operand_add(T, IN, stored_type(T), R * D, 1);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, D, 1);
    operand_add(T, OUT, T->t, R * D, 1);
}
static void stream_norm_apply_call(struct trial *T)
{
    OPS->layernorm_apply(T->device,
                         &(struct layernorm){T->t, .weight = P(1), .bias = P(2), .y = P(3), .R = T->s[0],
                                             .D = T->s[1], .hat_type = stored_type(T), .hat = P(0)});
}
static void stream_norm_apply_reference(struct trial *T)
{
    for (int64_t i = 0; i < T->s[0] * T->s[1]; i++) {
        int64_t j = i % T->s[1];
        W(3)[i] = X(0)[i] * X(1)[j] + X(2)[j];
        S(3)[i] = 2 * u32 * (fabs(X(0)[i] * X(1)[j]) + fabs(X(2)[j]));
    }
}

/* stream_norm_backward: R D gap, types: 0 dy and x as in a block, 1 dy F32 and in its place, 2 x F32; 0 dy, 1
 * hat, 2 weight, 3 rstd, 4 dx, 5 dweight, 6 dbias */
static void stream_norm_backward_setup(struct trial *T)
{
    SIZES(R, D, gap, how);
    operand_add(T, how == 1 ? ADD : IN, how == 1 ? F32 : T->t, R * D, 1);
    operand_add(T, IN, how == 2 ? F32 : stored_type(T), R * D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, R, 1);
    operand_add(T, how == 1 ? IN : ADD, F32, R * (D + gap), 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, ADD, F32, D, 1);
}
static void stream_norm_backward_call(struct trial *T)
{
    SIZES(R, D, gap, how);
    OPS->layernorm_backward(T->device, &(struct layernorm_gradient){.type = how == 1 ? F32 : T->t,
                                                                    .x_type = how == 2 ? F32 : stored_type(T),
                                                                    .dy = P(0),
                                                                    .x = P(1),
                                                                    .x_stride = D,
                                                                    .weight = P(2),
                                                                    .rstd = P(3),
                                                                    .dx = P(4),
                                                                    .dx_stride = D + gap,
                                                                    .dweight = P(5),
                                                                    .dbias = P(6),
                                                                    .R = R,
                                                                    .D = D,
                                                                    .to = how == 1 ? P(0) : NULL});
}
static void stream_norm_backward_reference(struct trial *T)
{
    SIZES(R, D, gap, how);
    for (int64_t r = 0; r < R; r++) {
        const double *hat = X(1) + r * D, *dy = X(0) + r * D;
        double g_mean = 0, gh_mean = 0, size = 0, e = loss((double)D), er = loss((double)R);
        for (int64_t j = 0; j < D; j++) {
            double g = dy[j] * X(2)[j];
            g_mean += g / (double)D;
            gh_mean += g * hat[j] / (double)D;
            size = fmax(size, fabs(g) * (1 + fabs(hat[j])));
        }
        for (int64_t j = 0; j < D; j++) {
            double made = X(3)[r] * (dy[j] * X(2)[j] - g_mean - hat[j] * gh_mean),
                   off = e * (fabs(X(3)[r]) * size * (2 + fabs(hat[j])) + 1);
            int64_t at = how == 1 ? r * D + j : r * (D + gap) + j;
            if (how == 1) W(0)[at] = made;
            else W(4)[at] += made;
            (how == 1 ? S(0) : S(4))[at] = off;
            W(5)[j] += dy[j] * hat[j];
            S(5)[j] += er * (fabs(dy[j] * hat[j]) + 1);
            W(6)[j] += dy[j];
            S(6)[j] += er * (fabs(dy[j]) + 1);
        }
    }
}

/* residual_second: R D, 1 gamma | 2 branch's bias, on cards | 4 again | 8 post-norm, drop path (12: its
 * factors); 0 x and what it becomes,
 * 1 branch and the norm's output or z, 2 gamma, 3 bias of the branch, 4 weight, 5 bias, 6 mean, 7 rstd, 8
 * what is stored of x, 9 its mean, 10 rstd, 11 hat */
static void residual_second_setup(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4, post = how & 8;
    operand_add(T, again ? IN : ADD, F32, R * D, 1);
    operand_add(T, ADD, T->t, R * D, 1);
    for (int i = 0; i < 4; i++) operand_add(T, IN, F32, D, 1);
    for (int i = 0; i < 2; i++) operand_add(T, again || post ? IN : OUT, F32, R, 1);
    operand_add(T, IN, post ? T->t : stored_type(T), R * D, 1);
    for (int i = 0; i < 2; i++) operand_add(T, IN, F32, R, 1);
    operand_add(T, post ? IN : OUT, stored_type(T), R * D, 1);
    drop_setup(T);
    for (int64_t r = 0; r < R; r++) X(10)[r] = 1 + fabs(X(10)[r]);
    for (int64_t r = 0; r < R && again; r++) X(7)[r] = fabs(X(7)[r]);
}
static void residual_second_call(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4, post = how & 8;
    struct layernorm norm = {
        T->t,         .weight = P(4), .bias = P(5), .y = P(1),    .mean = P(6),
        .rstd = P(7), .R = R,         .D = D,       .eps = 1e-6f, .hat_type = stored_type(T),
        .hat = P(11)};
    struct second_input second = {.from = {stored_type(T), P(8), P(9), P(10)}, .norm = &norm};
    if (post) second = (struct second_input){.from = {T->t, .x = P(8)}, .z = P(1)};
    OPS->residual_forward(T->device,
                          &(struct residual){T->t, .x = again ? NULL : P(0), .branch = P(1),
                                             .bias = (how & 2) && takes_bias(T) ? P(3) : NULL,
                                             .gamma = how & 1 ? P(2) : NULL, .y = again ? NULL : P(0), .R = R,
                                             .D = D, .second = &second, .drop = drop_of(T, 12)});
}
static void residual_second_reference(struct trial *T)
{
    SIZES(R, D, how, unused);
    bool again = how & 4, post = how & 8;
    for (int64_t r = 0; r < R; r++) {
        double m = X(6)[r], rstd = X(7)[r], size = 0, e = loss((double)D), off_m = 0, off_r = 0;
        for (int64_t i = r * D; i < (r + 1) * D && !again; i++) {
            double u = (X(1)[i] + ((how & 2) && takes_bias(T) ? X(3)[i % D] : 0)) *
                       (how & 1 ? X(2)[i % D] : 1) * drop_factor(T, 12, r);
            W(0)[i] = X(0)[i] + u;
            S(0)[i] = 4 * u32 * (fabs(u) + fabs(X(0)[i]));
            size = fmax(size, fabs(u) + fabs(X(0)[i]));
        }
        if (!again && !post) {
            row_moments(W(0) + r * D, D, &m, &rstd);
            off_m = e * size;
            off_r = e * rstd * (1 + size * rstd * e * size * rstd + 4 * size * rstd);
            W(6)[r] = m;
            S(6)[r] = off_m;
            W(7)[r] = rstd;
            S(7)[r] = off_r;
        }
        for (int64_t i = r * D; i < (r + 1) * D; i++) {
            double u = (X(1)[i] + ((how & 2) && takes_bias(T) ? X(3)[i % D] : 0)) *
                       (how & 1 ? X(2)[i % D] : 1) * drop_factor(T, 12, r);
            double z = (post ? X(8)[i] : X(8)[i] / X(10)[r] + X(9)[r]) + u,
                   off = 7 * u32 * (fabs(X(8)[i]) + fabs(X(9)[r]) + fabs(u));
            if (post) {
                W(1)[i] = z;
                S(1)[i] = off;
                continue;
            }
            double hat = (z - m) * rstd;
            off = (off + off_m) * rstd + fabs(z - m) * off_r + 4 * u32 * (fabs(z) + fabs(m)) * rstd;
            W(11)[i] = hat;
            S(11)[i] = off;
            W(1)[i] = hat * X(4)[i % D] + X(5)[i % D];
            S(1)
            [i] = (2 * off + 2 * stored_unit(T) * fabs(hat) + 0x1p-24) * fabs(X(4)[i % D]) +
                  2 * u32 * fabs(X(5)[i % D]);
        }
    }
}

/* Each fp16 is read as what it is, and comes out as itself; between two the nearer one, or the even. */
static void fp16_rounds_to_even_and_keeps_nan(void **state)
{
    for (uint32_t h = 0; h < 0x7C00; h++)
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            double steps = h < 0x400 ? h : (h & 0x3FF) + 0x400, side = sign ? -1 : 1;
            int exponent = h < 0x400 ? -24 : (int)(h >> 10) - 25;
            double x = ldexp(steps, exponent), half = ldexp(0.5, exponent);
            assert_true((double)f16_value((uint16_t)(sign | h)) == side * x);
            assert_int_equal(f16_of((float)(side * x)), sign | h);
            assert_int_equal(f16_of((float)(side * (x + half))), sign | (h + (h & 1)));
            assert_int_equal(f16_of((float)(side * (x + half * 0.99))), sign | h);
            assert_int_equal(f16_of((float)(side * (x + half * 1.01))), sign | (h + 1));
        }
    assert_int_equal(f16_of(INFINITY), 0x7C00);
    assert_int_equal(f16_of(-3e38f), 0xFC00);
    assert_true(isinf(f16_value(0x7C00)) && isnan(f16_value(0x7E00)) && isnan(f16_value(f16_of(NAN))));
}

static const struct operation stream_operations[] = {
    {OP(stream_norm),
     NULL,
     {-1},
     {{1, 1, 0, 1}, {7, 67, 0, 1}, {2, 1408, 0, 0}, {5, 530, 33, 1}, {3, 67, 0, 2}, {5, 2100, 0, 3}},
     {2056, 1408, 0, 1},
     NULL},
    {OP(stream_norm_apply), NULL, {-1}, {{1, 1}, {7, 67}, {5, 1030}}, {2056, 1408}, NULL},
    {OP(stream_norm_backward),
     NULL,
     {-1},
     {{1, 3, 0}, {7, 67, 5}, {70, 33, 0, 1}, {3, 2100, 0, 1}, {2, 1030, 7, 2}},
     {2056, 1408, 0},
     NULL},
    {OP(residual_second),
     NULL,
     {-1},
     {{1, 1, 0},
      {7, 67, 1},
      {5, 530, 3},
      {3, 2100, 3},
      {7, 67, 5},
      {3, 2100, 7},
      {5, 530, 8},
      {3, 67, 15},
      {9, 530, 3, 2},
      {9, 2100, 5, 4},
      {9, 67, 9, 3}},
     {2056, 1408, 1},
     NULL},
};

#endif
