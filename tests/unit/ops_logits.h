/* Tokens in and logits out for tests/unit/ops.c: operands and float64 references (as in ops_reference.h). */
#ifndef MEOPT_TESTS_UNIT_OPS_LOGITS_H
#define MEOPT_TESTS_UNIT_OPS_LOGITS_H

#include "tests/unit/ops_elements.h"

/* Tokens of a small vocabulary, so that they repeat; and with `window`, a part of its rows. */
enum {
    TOKEN_POSITIONS = 1,
    TOKEN_BEGINS = 2,
    TOKEN_WINDOW = 4,
    TOKEN_ADD = 8,
    TOKEN_SAME = 16,
    TOKEN_ALONE = 32
};
enum { TOKEN_ROWS = 37, WINDOW_FIRST = 5, WINDOW_ROWS = 20 };
static int64_t token_first(int64_t bits) { return bits & TOKEN_WINDOW ? WINDOW_FIRST : 0; }
static int64_t token_rows(int64_t bits) { return bits & TOKEN_WINDOW ? WINDOW_ROWS : TOKEN_ROWS; }
static void tokens_add(struct trial *T)
{
    SIZES(B, N, D, bits);
    operand_add(T, IN, DTYPE_I32, B * N, 0);
    for (int64_t r = 0; r < B * N; r++)
        X(0)[r] = bits & TOKEN_SAME ? 11 : (double)(r * r * 7919 % TOKEN_ROWS);
}
/* Documents of up to 5 tokens, the first one of each sample shorter. */
static void begins_add(struct trial *T)
{
    SIZES(B, N, D, bits);
    operand_add(T, IN, DTYPE_I32, B * N, 0);
    for (int64_t r = 0; r < B * N; r++) {
        int64_t i = r % N, cut = i < 2 ? 0 : (i - 2) / 5 * 5 + 2;
        X(T->count - 1)[r] = (double)cut;
    }
}
static int64_t token_position(const struct trial *T, int begins, int64_t r)
{
    return r % T->s[1] - (T->s[3] & TOKEN_BEGINS ? (int64_t)X(begins)[r] : 0);
}

/* token_embed: B N D bits; 0 tokens, 1 table, 2 positions, 3 begins, 4 y */
static void token_embed_setup(struct trial *T)
{
    SIZES(B, N, D, bits);
    tokens_add(T);
    operand_add(T, IN, T->t, token_rows(bits) * D, 1);
    operand_add(T, IN, F32, N * D, 1);
    begins_add(T);
    operand_add(T, bits & TOKEN_WINDOW ? ADD : OUT, F32, B * N * D, 1);
}
static void token_embed_call(struct trial *T)
{
    SIZES(B, N, D, bits);
    OPS->token_embed(T->device, &(struct token_embedding){.type = T->t,
                                                          .tokens = P(0),
                                                          .table = P(1),
                                                          .positions = bits & TOKEN_POSITIONS ? P(2) : NULL,
                                                          .begins = bits & TOKEN_BEGINS ? P(3) : NULL,
                                                          .y = P(4),
                                                          .R = B * N,
                                                          .N = N,
                                                          .D = D,
                                                          .first = token_first(bits),
                                                          .rows = token_rows(bits)});
}
static void token_embed_reference(struct trial *T)
{
    SIZES(B, N, D, bits);
    for (int64_t r = 0; r < B * N; r++) {
        int64_t token = (int64_t)X(0)[r] - token_first(bits), position = token_position(T, 3, r);
        for (int64_t d = 0; d < D && token >= 0 && token < token_rows(bits); d++)
            W(4)[r * D + d] = X(1)[token * D + d] + (bits & TOKEN_POSITIONS ? X(2)[position * D + d] : 0);
    }
}

/* token_embed_gradient: B N D bits; 0 tokens, 1 order, 2 begins, 3 dx, 4 dtable, 5 dpositions */
static void token_embed_gradient_setup(struct trial *T)
{
    SIZES(B, N, D, bits);
    tokens_add(T);
    operand_add(T, IN, DTYPE_I32, B * N, 0);
    int64_t k = 0;
    for (int64_t token = 0; token < TOKEN_ROWS; token++)
        for (int64_t r = 0; r < B * N; r++)
            if (X(0)[r] == (double)token) X(1)[k++] = (double)r;
    begins_add(T);
    operand_add(T, IN, F32, B * N * D, 1);
    for (int64_t r = 0; r < B * N; r++) X(3)[r * D + r % D] *= 1000;
    operand_add(T, bits & TOKEN_ALONE ? IN : bits & TOKEN_ADD ? ADD : OUT, T->t, token_rows(bits) * D, 1);
    operand_add(T, bits & TOKEN_POSITIONS ? ADD : IN, F32, N * D, 1);
}
static void token_embed_gradient_call(struct trial *T)
{
    SIZES(B, N, D, bits);
    OPS->token_embed_gradient(
        T->device, &(struct token_embedding_gradient){.type = T->t,
                                                      .tokens = P(0),
                                                      .order = P(1),
                                                      .begins = bits & TOKEN_BEGINS ? P(2) : NULL,
                                                      .dx = P(3),
                                                      .dtable = bits & TOKEN_ALONE ? NULL : P(4),
                                                      .dpositions = bits & TOKEN_POSITIONS ? P(5) : NULL,
                                                      .R = B * N,
                                                      .N = N,
                                                      .D = D,
                                                      .first = token_first(bits),
                                                      .rows = token_rows(bits),
                                                      .add = bits & TOKEN_ADD});
}
static void token_embed_gradient_reference(struct trial *T)
{
    SIZES(B, N, D, bits);
    for (int64_t r = 0; r < B * N; r++) {
        int64_t token = (int64_t)X(0)[r] - token_first(bits), position = token_position(T, 2, r);
        for (int64_t d = 0; d < D; d++) {
            double dx = X(3)[r * D + d];
            if (token >= 0 && token < token_rows(bits) && !(bits & TOKEN_ALONE)) {
                W(4)[token * D + d] += dx;
                S(4)[token * D + d] += loss((double)(B * N)) * (fabs(dx) + u32);
            }
            if (!(bits & TOKEN_POSITIONS)) continue;
            W(5)[position * D + d] += dx;
            S(5)[position * D + d] += loss((double)(B * N)) * (fabs(dx) + u32);
        }
    }
}

/* logit_sums: R C, smoothing in percent, bits (parts of a row, 8 outliers, 16 ties); 0 logits, 1 labels,
 * 2 state, 3 loss, 4 correct */
enum { LOGIT_GAP = 3 };
static void labels_add(struct trial *T, int64_t R, int64_t C)
{
    operand_add(T, IN, DTYPE_I32, R, 0);
    for (int64_t r = 0; r < R; r++) X(T->count - 1)[r] = r % 5 == 4 ? -1 : (double)(r * 7919 % C);
}
static void logits_add(struct trial *T, enum role role, int64_t R, int64_t C, int64_t bits)
{
    operand_add(T, role, F32, R * (C + LOGIT_GAP), bits & 8 ? 1000 : bits & 16 ? 1.5 : 3);
    for (int64_t i = 0; i < R * (C + LOGIT_GAP) && bits & 16; i++)
        X(T->count - 1)[i] = round(X(T->count - 1)[i]);
}
static void logit_sums_setup(struct trial *T)
{
    SIZES(R, C, percent, bits);
    logits_add(T, IN, R, C, bits);
    labels_add(T, R, C);
    operand_add(T, ADD, DTYPE_F64, R * LOGIT_STATE, 1);
    for (int i = 0; i < 2; i++) operand_add(T, ADD, DTYPE_F64, 1, 1);
}
static void logit_sums_call(struct trial *T)
{
    SIZES(R, C, percent, bits);
    int64_t parts = bits & 7 ? bits & 7 : 1, step = (C + parts - 1) / parts;
    for (int64_t first = 0; first < C; first += step) {
        bool last = first + step >= C;
        OPS->logit_sums(T->device, &(struct logit_sums){.logits = (const float *)P(0) + first,
                                                        .stride = C + LOGIT_GAP,
                                                        .labels = P(1),
                                                        .state = P(2),
                                                        .loss = last ? P(3) : NULL,
                                                        .correct = last ? P(4) : NULL,
                                                        .smoothing = (float)percent / 100,
                                                        .weight = 0.75f,
                                                        .R = R,
                                                        .C = last ? C - first : step,
                                                        .first = first,
                                                        .begin = first == 0,
                                                        .classes = C});
    }
}
static void logit_state(const double *z, int64_t C, int64_t label, double *state)
{
    double total = 0;
    int64_t best = 0;
    for (int64_t j = 0; j < C; j++) total += z[j];
    for (int64_t j = 1; j < C; j++) best = z[j] > z[best] ? j : best;
    state[LOGIT_TOP] = z[best];
    state[LOGIT_SUM] = exp(row_lse(z, C) - z[best]);
    state[LOGIT_TARGET] = z[label];
    state[LOGIT_TOTAL] = total;
    state[LOGIT_BEST] = (double)best;
}
/* Error of the sum of exponentials: see cross_entropy_reference; and that of adding floats of a piece. */
static double logit_lost(int64_t C) { return (4 + log((double)C)) * u32 + loss(512); }
/* The state is operand `at`, then loss and correct labels. */
static void whole_rows_reference(struct trial *T, int at)
{
    SIZES(R, C, percent, bits);
    double smooth = (double)((float)percent / 100);
    (void)bits;
    for (int64_t r = 0; r < R; r++) {
        const double *z = X(0) + r * (C + LOGIT_GAP);
        double *state = W(at) + r * LOGIT_STATE, *off = S(at) + r * LOGIT_STATE, sizes = 0;
        if (X(1)[r] < 0) continue;
        logit_state(z, C, (int64_t)X(1)[r], state);
        for (int64_t j = 0; j < C; j++) sizes += fabs(z[j]);
        off[LOGIT_SUM] = logit_lost(C) * state[LOGIT_SUM];
        off[LOGIT_TOTAL] = loss(512) * sizes;
        double lse = state[LOGIT_TOP] + log(state[LOGIT_SUM]);
        W(at + 1)
        [0] += 0.75 *
               ((1 - smooth) * (lse - state[LOGIT_TARGET]) + smooth * (lse - state[LOGIT_TOTAL] / (double)C));
        S(at + 1)
        [0] += logit_lost(C) + smooth * loss(512) * sizes / (double)C + 1e-12 * (1 + fabs(state[LOGIT_TOP]));
        W(at + 2)[0] += state[LOGIT_BEST] == X(1)[r];
    }
}
static void logit_sums_reference(struct trial *T) { whole_rows_reference(T, 2); }

/* logit_merge: R, C, smoothing in percent, slices; 0 logits, 1 labels, 2 states of slices, 3 state, 4 loss,
 * 5 correct */
static void logit_merge_setup(struct trial *T)
{
    SIZES(R, C, percent, slices);
    logits_add(T, IN, R, C, slices & 1 ? 8 : 16);
    for (int64_t i = 0; i < R * (C + LOGIT_GAP); i++) X(0)[i] = (double)(float)X(0)[i];
    labels_add(T, R, C);
    operand_add(T, IN, DTYPE_F64, slices * R * LOGIT_STATE, 1);
    operand_add(T, ADD, DTYPE_F64, R * LOGIT_STATE, 1);
    for (int i = 0; i < 2; i++) operand_add(T, ADD, DTYPE_F64, 1, 1);
    (void)percent;
    int64_t each = (C + slices - 1) / slices;
    for (int64_t s = 0; s < slices; s++)
        for (int64_t r = 0; r < R; r++) {
            const double *z = X(0) + r * (C + LOGIT_GAP) + s * each;
            int64_t count = C - s * each < each ? C - s * each : each, label = (int64_t)X(1)[r] - s * each;
            double *state = X(2) + (s * R + r) * LOGIT_STATE;
            logit_state(z, count, label >= 0 && label < count ? label : 0, state);
            state[LOGIT_BEST] += (double)(s * each);
            if (label < 0 || label >= count) state[LOGIT_TARGET] = NAN;
        }
}
static void logit_merge_call(struct trial *T)
{
    SIZES(R, C, percent, slices);
    OPS->logit_merge(T->device, &(struct logit_merge){.states = P(2),
                                                      .labels = P(1),
                                                      .state = P(3),
                                                      .loss = P(4),
                                                      .correct = P(5),
                                                      .smoothing = (float)percent / 100,
                                                      .weight = 0.75f,
                                                      .R = R,
                                                      .S = slices,
                                                      .classes = C});
}

static void logit_merge_reference(struct trial *T) { whole_rows_reference(T, 3); }

/* logit_gradient: R, C, smoothing in percent, bits (8 outliers, 32 a part in the middle); 0 logits, 1 labels,
 * 2 state, 3 the logits once more, and their gradient in place */
static int64_t gradient_first(int64_t bits) { return bits & 32 ? 7 : 0; }
static int64_t gradient_columns(int64_t C, int64_t bits) { return bits & 32 ? C - 11 : C; }
static void logit_gradient_setup(struct trial *T)
{
    SIZES(R, C, percent, bits);
    logits_add(T, IN, R, C, bits);
    labels_add(T, R, C);
    operand_add(T, IN, DTYPE_F64, R * LOGIT_STATE, 1);
    operand_add(T, ADD, T->t, R * (C + LOGIT_GAP) * (T->t == F32 ? 1 : 2), 1);
    trial_round(T);
    for (int64_t r = 0; r < R; r++)
        if (X(1)[r] >= 0)
            logit_state(X(0) + r * (C + LOGIT_GAP), C, (int64_t)X(1)[r], X(2) + r * LOGIT_STATE);
}
static void logit_gradient_call(struct trial *T)
{
    SIZES(R, C, percent, bits);
    int64_t first = gradient_first(bits);
    OPS->copy(T->device, P(3), P(0), operand_bytes(&T->o[0]));
    OPS->logit_gradient(T->device, &(struct logit_gradient){.type = T->t,
                                                            .logits = (float *)P(3) + first,
                                                            .stride = C + LOGIT_GAP,
                                                            .labels = P(1),
                                                            .state = P(2),
                                                            .smoothing = (float)percent / 100,
                                                            .weight = 0.75f,
                                                            .R = R,
                                                            .C = gradient_columns(C, bits),
                                                            .first = first,
                                                            .classes = C});
}
/* The logits' bytes as elements of the gradient's type: those that are not written stay. */
static void logit_bytes(struct trial *T)
{
    for (int64_t i = 0; i < T->o[3].count; i++) {
        int64_t halves = T->t == F32 ? 1 : 2;
        float z = (float)X(0)[i / halves];
        uint8_t bytes[12] = {0}; /* decode knows types of 8 bytes, too */
        memcpy(bytes, &z, 4);
        W(3)[i] = decode(T->t, bytes + (size_t)(i % halves) * dtype_bytes(T->t));
    }
}
static void logit_gradient_reference(struct trial *T)
{
    SIZES(R, C, percent, bits);
    int64_t first = gradient_first(bits), halves = T->t == F32 ? 1 : 2;
    double smooth = (double)((float)percent / 100), lost = logit_lost(C);
    logit_bytes(T);
    for (int64_t r = 0; r < R; r++) {
        const double *z = X(0) + r * (C + LOGIT_GAP), *state = X(2) + r * LOGIT_STATE;
        double lse = X(1)[r] < 0 ? 0 : state[LOGIT_TOP] + log(state[LOGIT_SUM]);
        for (int64_t i = 0; i < gradient_columns(C, bits); i++) {
            int64_t j = first + i, at = (r * (C + LOGIT_GAP) + first) * halves + i;
            double p = exp(z[j] - lse), q = (X(1)[r] == (double)j ? 1 - smooth : 0) + smooth / (double)C;
            W(3)[at] = X(1)[r] < 0 ? 0 : 0.75 * (p - q);
            S(3)[at] = X(1)[r] < 0 ? 0 : p * (lost + (6 + state[LOGIT_TOP] - z[j]) * u32) + 2 * u32 * q;
        }
    }
}

static const struct operation logits_operations[] = {
    {OP(token_embed),
     NULL,
     {-1},
     {{1, 1, 1}, {2, 7, 67}, {3, 9, 33, 1}, {2, 23, 530, 3}, {2, 31, 64, 4}, {2, 31, 67, 7}, {3, 40, 8, 16}},
     {4, 1024, 768, 1},
     NULL},
    {OP(token_embed_gradient),
     NULL,
     {-1},
     {{1, 1, 1},
      {2, 7, 67},
      {3, 9, 33, 1},
      {2, 23, 530, 3},
      {2, 31, 64, 4},
      {2, 31, 67, 15},
      {3, 40, 8, 16},
      {3, 40, 1030, 24},
      {2, 23, 67, 32 | 3}},
     {4, 1024, 768, 1},
     NULL},
    {OP(logit_sums),
     NULL,
     {-1},
     {{1, 1, 0, 0},
      {7, 10, 0, 1},
      {13, 10, 10, 3},
      {12, 7, 0, 2 | 16},
      {6, 1003, 0, 4 | 8},
      {6, 1003, 10, 1 | 8},
      {9, 1003, 10, 5 | 16},
      {3, 50257, 0, 1},
      {2, 50257, 10, 3}},
     {128, 50257, 0, 1},
     NULL},
    {OP(logit_merge),
     NULL,
     {-1},
     {{1, 1, 0, 1}, {7, 10, 0, 2}, {13, 10, 10, 4}, {9, 1003, 0, 7}, {9, 1003, 10, 8}, {2, 50257, 10, 4}},
     {128, 50257, 0, 4},
     NULL},
    {OP(logit_gradient),
     NULL,
     {-1},
     {{1, 1, 0, 0},
      {7, 10, 0, 0},
      {13, 40, 10, 32},
      {6, 1003, 0, 8},
      {6, 1003, 10, 8 | 32},
      {9, 1027, 10, 0},
      {3, 50257, 0, 0}},
     {128, 50257, 0, 0},
     NULL},
};

#endif
