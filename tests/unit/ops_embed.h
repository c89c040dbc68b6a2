/* Patches, the embedding and its positions for tests/unit/ops.c: operands and float64 references (as in
 * ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_EMBED_H
#define MEOPT_TESTS_UNIT_OPS_EMBED_H

#include "tests/unit/ops_reference.h"

/* patchify: B S p */
static void patchify_setup(struct trial *T)
{
    SIZES(B, S_, p, unused);
    operand_add(T, IN, F32, B * 3 * S_ * S_, 1);
    operand_add(T, OUT, T->t, B * (S_ / p) * (S_ / p) * 3 * p * p, 1);
}
static void patchify_call(struct trial *T)
{
    OPS->patchify(T->device, T->t, P(0), P(1), T->s[0], T->s[1], T->s[2]);
}
static void patchify_reference(struct trial *T)
{
    SIZES(B, S_, p, unused);
    int64_t at = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t gy = 0; gy < S_ / p; gy++)
            for (int64_t gx = 0; gx < S_ / p; gx++)
                for (int64_t c = 0; c < 3; c++)
                    for (int64_t y = gy * p; y < gy * p + p; y++)
                        for (int64_t x = gx * p; x < gx * p + p; x++)
                            W(1)[at++] = X(0)[((b * 3 + c) * S_ + y) * S_ + x];
}

/* embed: B N D Q; 0 patches, 1 cls, 2 pos, 3 registers, 4 tokens. No positions with more than four registers;
 * forward 5 the patches' bias, on cards, with an odd N. CLASSLESS + Q: no class token. */
enum { CLASSLESS = 16 };
#define EMBED_SIZES                                                                                          \
    int64_t B = T->s[0], N = T->s[1], D = T->s[2], Q = T->s[3] % CLASSLESS, C = T->s[3] < CLASSLESS;         \
    (void)B
static bool has_bias(const struct trial *T) { return takes_bias(T) && T->s[1] % 2 == 1; }
static bool has_positions(const struct trial *T) { return T->s[3] % CLASSLESS <= 4; }
static void embed_forward_setup(struct trial *T)
{
    EMBED_SIZES;
    operand_add(T, IN, T->t, B * (N - Q - C) * D, 1);
    operand_add(T, IN, F32, D, 1);
    operand_add(T, IN, F32, (N - Q) * D, 1);
    operand_add(T, IN, F32, (Q ? Q : 1) * D, 1);
    operand_add(T, OUT, F32, B * N * D, 1);
    operand_add(T, IN, F32, D, 1);
}
static void embed_forward_call(struct trial *T)
{
    EMBED_SIZES;
    OPS->embed_forward(T->device,
                       &(struct embedding){T->t, .patches = P(0), .bias = has_bias(T) ? P(5) : NULL,
                                           .cls = C ? P(1) : NULL, .pos = has_positions(T) ? P(2) : NULL,
                                           .registers = P(3), .tokens = P(4), B, N, D, Q});
}
static void embed_forward_reference(struct trial *T)
{
    EMBED_SIZES;
    for (int64_t i = 0; i < B * N * D; i++) {
        int64_t b = i / (N * D), n = i / D % N, j = i % D;
        bool is_register = n >= C && n < C + Q;
        double pos = has_positions(T) && !is_register ? X(2)[(n < C ? 0 : n - Q) * D + j] : 0;
        if (n < C) W(4)[i] = X(1)[j] + pos;
        else if (is_register) W(4)[i] = X(3)[(n - C) * D + j];
        else {
            double patch = X(0)[(b * (N - Q - C) + n - Q - C) * D + j] + (has_bias(T) ? X(5)[j] : 0);
            W(4)[i] = patch + pos;
            S(4)[i] = has_bias(T) ? 2 * u32 * fabs(patch) : 0;
        }
    }
}
/* 0 dtokens, 1 dpatches, 2 dcls, 3 dpos, 4 dregisters */
static void embed_backward_setup(struct trial *T)
{
    EMBED_SIZES;
    operand_add(T, IN, F32, B * N * D, 1);
    operand_add(T, OUT, T->t, B * (N - Q - C) * D, 1);
    operand_add(T, ADD, F32, D, 1);
    operand_add(T, ADD, F32, (N - Q) * D, 1);
    operand_add(T, ADD, F32, (Q ? Q : 1) * D, 1);
}
static void embed_backward_call(struct trial *T)
{
    EMBED_SIZES;
    OPS->embed_backward(T->device, &(struct embedding_gradient){T->t, .dtokens = P(0), .dpatches = P(1),
                                                                .dcls = C ? P(2) : NULL,
                                                                .dpos = has_positions(T) ? P(3) : NULL,
                                                                .dregisters = P(4), B, N, D, Q});
}
static void embed_backward_reference(struct trial *T)
{
    EMBED_SIZES;
    for (int64_t i = 0; i < B * N * D; i++) {
        int64_t b = i / (N * D), n = i / D % N, j = i % D;
        double d = X(0)[i];
        bool is_register = n >= C && n < C + Q;
        int64_t to = is_register ? 4 : 3, row = is_register ? n - C : n < C ? 0 : n - Q;
        if (n >= C + Q) W(1)[(b * (N - Q - C) + n - Q - C) * D + j] = d;
        if (n < C) {
            W(2)[j] += d;
            S(2)[j] += loss((double)B) * (1 + fabs(d));
        }
        if (to == 3 && !has_positions(T)) continue;
        W(to)[row * D + j] += d;
        S(to)[row * D + j] += loss((double)B) * (1 + fabs(d));
    }
}

/* resize_rows: n_out n_in D transpose */
static void resize_rows_setup(struct trial *T)
{
    SIZES(n_out, n_in, D, transpose);
    operand_add(T, IN, F32, n_out * n_in, 1);
    for (int64_t i = 0; i < n_out * n_in; i++)
        if (i % 3) X(0)[i] = 0;
    operand_add(T, IN, F32, (transpose ? n_out : n_in) * D, 1);
    operand_add(T, transpose ? ADD : OUT, F32, (transpose ? n_in : n_out) * D, 1);
}
static void resize_rows_call(struct trial *T)
{
    OPS->resize_rows(T->device, P(0), P(1), P(2), T->s[0], T->s[1], T->s[2], T->s[3]);
}
static void resize_rows_reference(struct trial *T)
{
    SIZES(n_out, n_in, D, transpose);
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t i = 0; i < n_in; i++)
            for (int64_t j = 0; j < D; j++) {
                int64_t to = (transpose ? i : o) * D + j, from = (transpose ? o : i) * D + j;
                double term = X(0)[o * n_in + i] * X(1)[from];
                W(2)[to] += term;
                S(2)[to] += loss((double)(n_out + n_in)) * (fabs(term) + u32);
            }
}

static const struct operation embed_operations[] = {
    {OP(patchify), NULL, {-1}, {{1, 14, 14}, {3, 28, 7}, {2, 12, 4}, {1, 70, 35}}, {8, 224, 14}, NULL},
    {OP(embed_forward),
     NULL,
     {-1},
     {{1, 2, 1},
      {3, 5, 67},
      {2, 17, 600},
      {1, 4, 3, 2},
      {3, 21, 67, 4},
      {2, 9, 5, 5},
      {2, 9, 67, CLASSLESS},
      {3, 8, 5, CLASSLESS + 3}},
     {8, 257, 1408},
     NULL},
    {OP(embed_backward),
     NULL,
     {-1},
     {{1, 2, 1},
      {3, 5, 67},
      {2, 17, 600},
      {1, 4, 3, 2},
      {3, 21, 67, 4},
      {2, 9, 5, 5},
      {2, 9, 67, CLASSLESS},
      {3, 8, 5, CLASSLESS + 3}},
     {8, 257, 1408},
     NULL},
    {OP(resize_rows),
     NULL,
     {-1},
     {{1, 1, 1, 0}, {16, 25, 67, 0}, {16, 25, 67, 1}, {4, 9, 530, 1}},
     {256, 1369, 1024, 1},
     NULL},
};

#endif
