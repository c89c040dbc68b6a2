/* Operations of language models: norms of heads, tokens in, logits out. Contracts: kernels/operations.h. */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"

static const float *head_weight(const float *const weight[2], int64_t head, int64_t H)
{
    return weight[head < H ? 0 : 1];
}

static void norm_head(const struct head_norm *o, int64_t row, int64_t head)
{
    int bf16 = storage_of(o->type);
    int64_t dh = o->dh, from = (row * (o->H + 2 * o->G) + head) * dh;
    const float *weight = head_weight(o->weight, head, o->H);
    float in[PIECE], out[PIECE];
    double squares = 0;
    for (int64_t at = 0; at < dh; at += PIECE) {
        int64_t count = piece(dh, at);
        const float *v = read_piece(bf16, o->x, from + at, count, in);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < count; i++) part += v[i] * v[i];
        squares += (double)part;
    }
    float rstd = (float)(1.0 / sqrt(squares / (double)dh + (double)o->eps));
    o->rstd[row * (o->H + o->G) + head] = rstd;
    for (int64_t at = 0; at < dh; at += PIECE) {
        int64_t count = piece(dh, at);
        const float *v = read_piece(bf16, o->x, from + at, count, in), *w = weight + at;
        SIMD for (int64_t i = 0; i < count; i++) out[i] = v[i] * rstd * w[i];
        store_piece(bf16, o->y, from + at, count, out);
    }
}

void NAME(head_norm)(const struct head_norm *o)
{
    int64_t heads = o->H + o->G, width = (heads + o->G) * o->dh;
    size_t element = o->type == DTYPE_F32 ? 4 : 2, values = (size_t)(o->G * o->dh) * element;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        for (int64_t head = 0; head < heads; head++) norm_head(o, row, head);
        size_t at = (size_t)(row * width + heads * o->dh) * element;
        if (o->x != o->y) memcpy((char *)o->y + at, (const char *)o->x + at, values);
    }
}

/* dx = rstd (g - xhat mean(g xhat)), g = dy weight, xhat = x rstd; share (dh) += dy xhat */
static void norm_head_gradient(const struct head_norm_gradient *o, int64_t row, int64_t head, float *share)
{
    int bf16 = storage_of(o->type);
    int64_t dh = o->dh, from = (row * (o->H + 2 * o->G) + head) * dh;
    const float *weight = head_weight(o->weight, head, o->H);
    float b1[PIECE], b2[PIECE], out[PIECE], rstd = o->rstd[row * (o->H + o->G) + head];
    double product = 0;
    for (int64_t at = 0; at < dh; at += PIECE) {
        int64_t count = piece(dh, at);
        const float *v = read_piece(bf16, o->x, from + at, count, b1),
                    *d = read_piece(bf16, o->dqkv, from + at, count, b2), *w = weight + at;
        float *sums = share + at, part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < count; i++) {
            float one = d[i] * v[i] * rstd;
            part += one * w[i];
            sums[i] += one;
        }
        product += (double)part;
    }
    float mean = (float)(product / (double)dh);
    for (int64_t at = 0; at < dh; at += PIECE) {
        int64_t count = piece(dh, at);
        const float *v = read_piece(bf16, o->x, from + at, count, b1),
                    *d = read_piece(bf16, o->dqkv, from + at, count, b2), *w = weight + at;
        SIMD for (int64_t i = 0; i < count; i++) out[i] = rstd * (d[i] * w[i] - v[i] * rstd * mean);
        store_piece(bf16, o->dqkv, from + at, count, out);
    }
}

void NAME(head_norm_gradient)(const struct head_norm_gradient *o, void *scratch)
{
    float *shares = scratch;
    int64_t R = o->R, dh = o->dh, step = (R + ROW_SHARES - 1) / ROW_SHARES;
    PARALLEL_FOR for (int64_t s = 0; s < ROW_SHARES; s++)
    {
        float *share = shares + s * 2 * dh;
        memset(share, 0, (size_t)(2 * dh) * sizeof *share);
        for (int64_t row = s * step; row < (s + 1) * step && row < R; row++)
            for (int64_t head = 0; head < o->H + o->G; head++)
                norm_head_gradient(o, row, head, share + (head < o->H ? 0 : dh));
    }
    for (int k = 0; k < 2 && o->dweight[k]; k++) NAME(add_shares)(shares + k * dh, 2 * dh, dh, o->dweight[k]);
}

static int64_t position_of(const int32_t *begins, int64_t row, int64_t N)
{
    return row % N - (begins ? begins[row] : 0);
}

void NAME(token_embed)(const struct token_embedding *o)
{
    int bf16 = storage_of(o->type);
    int64_t D = o->D;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        int64_t token = o->tokens[row] - o->first;
        if (token < 0 || token >= o->rows) continue;
        const float *positions = o->positions ? o->positions + position_of(o->begins, row, o->N) * D : NULL;
        for (int64_t at = 0; at < D; at += PIECE) {
            float in[PIECE], *y = o->y + row * D + at;
            int64_t count = piece(D, at);
            const float *v = read_piece(bf16, o->table, token * D + at, count, in);
            if (!positions) memcpy(y, v, (size_t)count * sizeof *y);
            else SIMD for (int64_t i = 0; i < count; i++) y[i] = v[i] + positions[at + i];
        }
    }
}

/* Adds the rows of one token, from order[k] on, to `count` columns of its row of the table. */
static void add_run(const struct token_embedding_gradient *o, int64_t k, int64_t token, int64_t at)
{
    int bf16 = storage_of(o->type);
    int64_t D = o->D, count = piece(D, at), to = (token - o->first) * D + at;
    float sum[PIECE] = {0}, in[PIECE];
    for (; k < o->R && o->tokens[o->order[k]] == token; k++)
        add_piece(0, o->dx, o->order[k] * D + at, count, sum);
    if (o->add) {
        const float *old = read_piece(bf16, o->dtable, to, count, in);
        SIMD for (int64_t i = 0; i < count; i++) sum[i] += old[i];
    }
    store_piece(bf16, o->dtable, to, count, sum);
}

static void clear_table(const struct token_embedding_gradient *o)
{
    size_t row = (size_t)o->D * (o->type == DTYPE_F32 ? 4 : 2);
    PARALLEL_FOR for (int64_t r = 0; r < o->rows; r++) memset((char *)o->dtable + (size_t)r * row, 0, row);
}

void NAME(token_embed_gradient)(const struct token_embedding_gradient *o)
{
    int64_t D = o->D, pieces = (D + PIECE - 1) / PIECE;
    if (o->dtable && !o->add) clear_table(o);
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t unit = 0; unit < (o->dtable ? o->R * pieces : 0); unit++) {
        int64_t k = unit / pieces, token = o->tokens[o->order[k]];
        if (token < o->first || token >= o->first + o->rows) continue;
        if (k == 0 || o->tokens[o->order[k - 1]] != token) add_run(o, k, token, unit % pieces * PIECE);
    }
    enum { COLUMNS = 64 };
    PARALLEL_FOR for (int64_t at = 0; at < (o->dpositions ? D : 0); at += COLUMNS)
    {
        int64_t count = D - at < COLUMNS ? D - at : COLUMNS;
        for (int64_t row = 0; row < o->R; row++)
            add_piece(0, o->dx, row * D + at, count,
                      o->dpositions + position_of(o->begins, row, o->N) * D + at);
    }
}

/* Returns the largest of n floats; NaN are skipped. */
static float largest_of(const float *z, int64_t n)
{
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) top = z[i] > top ? z[i] : top;
    return top;
}

/* One pass over the logits: when a piece has a larger logit than all before, the sum is scaled to it. */
static void sum_row(const struct logit_sums *o, int64_t row)
{
    const float *z = o->logits + row * o->stride;
    double *state = o->state + row * LOGIT_STATE, sum = state[LOGIT_SUM], total = state[LOGIT_TOTAL];
    float top = (float)state[LOGIT_TOP];
    int64_t label = o->labels[row] - o->first;
    for (int64_t at = 0; at < o->C; at += PIECE) {
        int64_t count = piece(o->C, at), best = 0;
        const float *v = z + at;
        float here = largest_of(v, count), part = 0, plain = 0;
        if (here > top) {
            sum = top > -INFINITY ? sum * exp((double)top - (double)here) : 0;
            top = here;
            while (!(v[best] == here)) best++;
            state[LOGIT_BEST] = (double)(o->first + at + best);
        }
#pragma omp simd reduction(+ : part, plain)
        for (int64_t i = 0; i < count; i++) {
            part += exp_one(v[i] - top);
            plain += v[i];
        }
        sum += (double)part;
        total += (double)plain;
    }
    if (label >= 0 && label < o->C) state[LOGIT_TARGET] = (double)z[label];
    state[LOGIT_TOP] = (double)top;
    state[LOGIT_SUM] = sum;
    state[LOGIT_TOTAL] = total;
}

static double row_loss(const double *state, float smoothing, float weight, int64_t classes)
{
    double lse = state[LOGIT_TOP] + log(state[LOGIT_SUM]), smooth = (double)smoothing;
    double even = smooth > 0 ? lse - state[LOGIT_TOTAL] / (double)classes : 0;
    return (double)weight * ((1 - smooth) * (lse - state[LOGIT_TARGET]) + smooth * even);
}

void NAME(logit_sums)(const struct logit_sums *o, void *scratch)
{
    double *losses = scratch, *correct = losses + o->R;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        double *state = o->state + row * LOGIT_STATE;
        losses[row] = correct[row] = 0;
        if (o->labels[row] < 0) continue;
        if (o->begin) {
            memset(state, 0, LOGIT_STATE * sizeof *state);
            state[LOGIT_TOP] = -INFINITY;
            state[LOGIT_TARGET] = NAN;
        }
        sum_row(o, row);
        if (!o->loss) continue;
        losses[row] = row_loss(state, o->smoothing, o->weight, o->classes);
        correct[row] = state[LOGIT_BEST] == (double)o->labels[row];
    }
    for (int64_t row = 0; row < (o->loss ? o->R : 0); row++) {
        *o->loss += losses[row];
        *o->correct += correct[row];
    }
}

void NAME(logit_merge)(const struct logit_merge *o, void *scratch)
{
    double *losses = scratch, *correct = losses + o->R;
    int64_t each = (o->classes + o->S - 1) / o->S;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        double *state = o->state + row * LOGIT_STATE;
        int64_t label = o->labels[row];
        losses[row] = correct[row] = 0;
        if (label < 0) continue;
        memset(state, 0, LOGIT_STATE * sizeof *state);
        state[LOGIT_TOP] = -INFINITY;
        state[LOGIT_TARGET] = NAN;
        for (int64_t s = 0; s < o->S; s++) {
            const double *part = o->states + (s * o->R + row) * LOGIT_STATE;
            if (part[LOGIT_TOP] > state[LOGIT_TOP]) {
                state[LOGIT_TOP] = part[LOGIT_TOP];
                state[LOGIT_BEST] = part[LOGIT_BEST];
            }
            if (label / each == s) state[LOGIT_TARGET] = part[LOGIT_TARGET];
            state[LOGIT_TOTAL] += part[LOGIT_TOTAL];
        }
        for (int64_t s = 0; s < o->S; s++) {
            const double *part = o->states + (s * o->R + row) * LOGIT_STATE;
            state[LOGIT_SUM] += part[LOGIT_SUM] * exp(part[LOGIT_TOP] - state[LOGIT_TOP]);
        }
        losses[row] = row_loss(state, o->smoothing, o->weight, o->classes);
        correct[row] = state[LOGIT_BEST] == (double)label;
    }
    for (int64_t row = 0; row < o->R; row++) {
        *o->loss += losses[row];
        *o->correct += correct[row];
    }
}

/* Stores values in place of the logits: the bf16 of a piece end before the logits that are not read yet. */
static void gradient_row(const struct logit_gradient *o, int64_t row)
{
    int bf16 = storage_of(o->type);
    float *z = (float *)o->logits + row * o->stride, out[PIECE];
    const double *state = o->state + row * LOGIT_STATE;
    double smooth = (double)o->smoothing, scale = (double)o->weight;
    float top = (float)state[LOGIT_TOP], each = (float)(scale / state[LOGIT_SUM]),
          even = (float)(scale * smooth / (double)o->classes);
    int64_t label = o->labels[row] - o->first;
    double log_p = state[LOGIT_TARGET] - state[LOGIT_TOP] - log(state[LOGIT_SUM]);
    float of_label = (float)(scale * (exp(log_p) - smooth / (double)o->classes - (1 - smooth)));
    for (int64_t at = 0; at < o->C; at += PIECE) {
        int64_t count = piece(o->C, at);
        SIMD for (int64_t i = 0; i < count; i++) out[i] = exp_one(z[at + i] - top) * each - even;
        if (label >= at && label < at + count) out[label - at] = of_label;
        store_piece(bf16, z, at, count, out);
    }
}

void NAME(logit_gradient)(const struct logit_gradient *o)
{
    size_t bytes = (size_t)o->C * (o->type == DTYPE_F32 ? 4 : 2);
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        if (o->labels[row] >= 0) gradient_row(o, row);
        else memset((float *)o->logits + row * o->stride, 0, bytes);
    }
}
