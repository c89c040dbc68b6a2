/* Operations of language models: norms of heads, tokens in, logits out. Contracts: kernels/operations.h, same
 * names. Sums have a fixed order, without atomics. */
#include "kernels/gpu/vendor.h"

/* HEAD_DIM: GPU_HEAD_DIM of core/device/gpu.h */
enum { HEAD_DIM = 128, LANE_VALUES = HEAD_DIM / WAVE, MOST_WAVES = MAX_THREADS / 32 };

/* Returns value k of this lane of a head, 0 beyond its end. */
template <class T> DEVICE float lane_value(const T *x, int64_t from, int64_t dh, int k)
{
    int64_t d = THREAD % WAVE + k * WAVE;
    return d < dh ? load(x, from + d) : 0.0f;
}

/* One block per row, one wave per head. */
template <class T>
DEVICE void head_norm(const T *x, T *y, const float *of_queries, const float *of_keys, float *rstd, int64_t H,
                      int64_t G, int64_t dh, float eps)
{
    int64_t row = BLOCK_X, heads = H + G, width = (heads + G) * dh;
    for (int64_t head = THREAD / WAVE; head < heads; head += THREADS / WAVE) {
        int64_t from = row * width + head * dh;
        const float *weight = head < H ? of_queries : of_keys;
        float v[LANE_VALUES], squares = 0;
        UNROLLED for (int k = 0; k < LANE_VALUES; k++)
        {
            v[k] = lane_value(x, from, dh, k);
            squares += v[k] * v[k];
        }
        float r = 1.0f / sqrtf(wave_sum(squares) / (float)dh + eps);
        UNROLLED for (int k = 0; k < LANE_VALUES; k++)
        {
            int64_t d = THREAD % WAVE + k * WAVE;
            if (d < dh) store(y, from + d, v[k] * r * weight[d]);
        }
        if (THREAD % WAVE == 0) rstd[row * heads + head] = r;
    }
    for (int64_t d = heads * dh + THREAD; d < width && x != y; d += THREADS)
        store(y, row * width + d, load(x, row * width + d));
}

/* Share BLOCK_X of BLOCKS_X of the rows; wave w has heads w, w + waves, ... of each. partial (2, shares, dh):
 * sums of dy xhat over queries, over keys. */
template <class T>
DEVICE void head_norm_gradient(const T *x, T *dqkv, const float *of_queries, const float *of_keys,
                               const float *rstd, float *partial, int64_t R, int64_t H, int64_t G, int64_t dh)
{
    SHARED float sums[2][MOST_WAVES][HEAD_DIM];
    int64_t shares = BLOCKS_X, step = (R + shares - 1) / shares, begin = BLOCK_X * step,
            end = begin + step < R ? begin + step : R, heads = H + G, width = (heads + G) * dh;
    int wave = THREAD / WAVE, waves = THREADS / WAVE;
    float dweight[2][LANE_VALUES] = {};
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = wave; head < heads; head += waves) {
            int64_t from = row * width + head * dh;
            const float *weight = head < H ? of_queries : of_keys;
            float r = rstd[row * heads + head], product = 0, hat[LANE_VALUES], g[LANE_VALUES];
            UNROLLED for (int k = 0; k < LANE_VALUES; k++)
            {
                int64_t d = THREAD % WAVE + k * WAVE;
                float dy = lane_value(dqkv, from, dh, k);
                hat[k] = lane_value(x, from, dh, k) * r;
                g[k] = d < dh ? dy * weight[d] : 0.0f;
                product += g[k] * hat[k];
                dweight[0][k] += head < H ? dy * hat[k] : 0.0f;
                dweight[1][k] += head < H ? 0.0f : dy * hat[k];
            }
            float mean = wave_sum(product) / (float)dh;
            UNROLLED for (int k = 0; k < LANE_VALUES; k++)
            {
                int64_t d = THREAD % WAVE + k * WAVE;
                if (d < dh) store(dqkv, from + d, r * (g[k] - hat[k] * mean));
            }
        }
    UNROLLED for (int k = 0; k < LANE_VALUES; k++)
    {
        sums[0][wave][THREAD % WAVE + k * WAVE] = dweight[0][k];
        sums[1][wave][THREAD % WAVE + k * WAVE] = dweight[1][k];
    }
    barrier();
    for (int64_t i = THREAD; i < 2 * dh; i += THREADS) {
        int64_t of = i < dh ? 0 : 1, d = i - of * dh;
        float sum = 0;
        for (int w = 0; w < waves; w++) sum += sums[of][w][d];
        partial[(of * shares + BLOCK_X) * dh + d] = sum;
    }
}

/* One block per row */
template <class T>
DEVICE void token_embed(const int32_t *tokens, const T *table, const float *positions, const int32_t *begins,
                        float *y, int64_t N, int64_t D, int64_t first, int64_t rows)
{
    int64_t row = BLOCK_X, token = tokens[row] - first,
            position = (uint32_t)row % (uint32_t)N - (begins ? begins[row] : 0);
    if (token < 0 || token >= rows) return;
    for (int64_t d = THREAD; d < D; d += THREADS)
        y[row * D + d] =
            positions ? load(table, token * D + d) + positions[position * D + d] : load(table, token * D + d);
}

/* One block per place k of the order; the first of a token has all of its rows. */
template <class T>
DEVICE void token_embed_gradient(const int32_t *tokens, const int32_t *order, const float *dx, T *dtable,
                                 int64_t R, int64_t D, int64_t first, int64_t rows, int add)
{
    int64_t k = BLOCK_X, token = tokens[order[k]], end = k + 1, at = (token - first) * D;
    if (token < first || token >= first + rows || (k > 0 && tokens[order[k - 1]] == token)) return;
    while (end < R && tokens[order[end]] == token) end++;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        float sum = 0;
        for (int64_t i = k; i < end; i++) sum += dx[order[i] * D + d];
        store(dtable, at + d, add ? sum + load(dtable, at + d) : sum);
    }
}

/* One block per position: the rows of that position, sample by sample */
KERNEL(position_gradient, const int32_t *begins, const float *dx, float *dpositions, int64_t R, int64_t N,
       int64_t D)
{
    int64_t position = BLOCK_X;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        float sum = dpositions[position * D + d];
        for (int64_t from = 0; from < R; from += N)
            for (int64_t i = position; i < (begins ? N : position + 1); i++)
                if (!begins || i - begins[from + i] == position) sum += dx[(from + i) * D + d];
        dpositions[position * D + d] = sum;
    }
}

/* Members of a row's state, LOGIT_... of kernels/operations.h */
enum { TOP, SUM, TARGET, TOTAL, BEST, STATE };

/* One block per row: updates its state; values (2, R): its loss, and 1 if its label has the largest logit.
 * Sums in two floats; double once per row, in one thread. */
KERNEL(logit_sums, const float *logits, int64_t stride, const int32_t *labels, double *states, double *values,
       float smoothing, float weight, int64_t R, int64_t C, int64_t first, int64_t classes, int continued)
{
    SHARED two_floats partial[MOST_WAVES];
    SHARED float largest[MOST_WAVES];
    SHARED int indices[MOST_WAVES];
    int64_t row = BLOCK_X, label = labels[row];
    const float *z = logits + row * stride;
    double *state = states + row * STATE, smooth = smoothing;
    two_floats powers = {0, 0}, all = {0, 0};
    if (label < 0) {
        if (THREAD == 0) values[row] = values[R + row] = 0;
        return;
    }
    float top = -INFINITY, before = continued ? (float)state[TOP] : -INFINITY;
    int best = (int)C;
    for (int64_t j = THREAD; j < C; j += THREADS)
        if (z[j] > top) {
            top = z[j];
            best = (int)j;
        }
    float here = block_max(top, largest);
    best = -block_max(top == here ? -best : -(int)C, indices);
    top = here > before ? here : before;
    for (int64_t j = THREAD; j < C; j += THREADS) {
        add_to(powers, expf(z[j] - top));
        add_to(all, z[j]);
    }
    double sum = block_total(powers, partial), total = block_total(all, partial);
    if (THREAD) return;
    double target = continued ? state[TARGET] : (double)NAN, most = continued ? state[BEST] : 0;
    if (continued) {
        sum += state[SUM] * exp((double)before - (double)top);
        total += state[TOTAL];
    }
    if (here > before) most = (double)(first + best);
    if (label >= first && label < first + C) target = z[label - first];
    double lse = top + log(sum);
    state[TOP] = top;
    state[SUM] = sum;
    state[TARGET] = target;
    state[TOTAL] = total;
    state[BEST] = most;
    values[row] = (double)weight * ((1 - smooth) * (lse - target) +
                                    (smooth > 0 ? smooth * (lse - total / (double)classes) : 0));
    values[R + row] = most == (double)label;
}

/* One thread per row. each: columns of a slice */
KERNEL(logit_merge, const double *states, const int32_t *labels, double *merged, double *values,
       float smoothing, float weight, int64_t R, int64_t S, int64_t each, int64_t classes)
{
    for (int64_t row = BLOCK_X * THREADS + THREAD; row < R; row += BLOCKS_X * THREADS) {
        int64_t label = labels[row];
        double *state = merged + row * STATE, smooth = smoothing;
        double top = -INFINITY, sum = 0, target = (double)NAN, total = 0, best = 0;
        values[row] = values[R + row] = 0;
        if (label < 0) continue;
        for (int64_t s = 0; s < S; s++) {
            const double *part = states + (s * R + row) * STATE;
            if (part[TOP] > top) {
                top = part[TOP];
                best = part[BEST];
            }
            if (label >= s * each && label < (s + 1) * each) target = part[TARGET];
            total += part[TOTAL];
        }
        for (int64_t s = 0; s < S; s++) {
            const double *part = states + (s * R + row) * STATE;
            sum += part[SUM] * exp(part[TOP] - top);
        }
        double lse = top + log(sum);
        state[TOP] = top;
        state[SUM] = sum;
        state[TARGET] = target;
        state[TOTAL] = total;
        state[BEST] = best;
        values[row] = (double)weight * ((1 - smooth) * (lse - target) +
                                        (smooth > 0 ? smooth * (lse - total / (double)classes) : 0));
        values[R + row] = best == (double)label;
    }
}

/* One block per row. Values of T are stored in place of the floats: those of a round after all of its floats
 * were read, and they end before the floats of the next. Double once per row, in one thread. */
template <class T>
DEVICE void logit_gradient(void *logits, int64_t stride, const int32_t *labels, const double *states,
                           float smoothing, float weight, int64_t C, int64_t first, int64_t classes)
{
    SHARED float of_row[4];
    int64_t row = BLOCK_X, label = labels[row] - first;
    const float *z = (const float *)logits + row * stride;
    T *dz = (T *)((float *)logits + row * stride);
    const double *state = states + row * STATE;
    bool labelled = labels[row] >= 0;
    if (THREAD == 0 && labelled) {
        double smooth = smoothing, scale = weight;
        of_row[0] = (float)state[TOP];
        of_row[1] = (float)(scale / state[SUM]);
        of_row[2] = (float)(scale * smooth / (double)classes);
        of_row[3] = (float)(scale * (exp(state[TARGET] - state[TOP] - log(state[SUM])) -
                                     smooth / (double)classes - (1 - smooth)));
    }
    barrier();
    float top = labelled ? of_row[0] : 0.0f, each = labelled ? of_row[1] : 0.0f,
          even = labelled ? of_row[2] : 0.0f;
    for (int64_t from = 0; from < C; from += THREADS) {
        int64_t j = from + THREAD;
        float value = j < C && labelled ? expf(z[j] - top) * each - even : 0.0f;
        if (labelled && j == label) value = of_row[3];
        barrier();
        if (j < C) store(dz, j, value);
    }
}

#define LANGUAGE(suffix, T)                                                                                  \
    KERNEL(head_norm_##suffix, const T *x, T *y, const float *of_queries, const float *of_keys, float *rstd, \
           int64_t H, int64_t G, int64_t dh, float eps)                                                      \
    {                                                                                                        \
        head_norm(x, y, of_queries, of_keys, rstd, H, G, dh, eps);                                           \
    }                                                                                                        \
    KERNEL(head_norm_gradient_##suffix, const T *x, T *dqkv, const float *of_queries, const float *of_keys,  \
           const float *rstd, float *partial, int64_t R, int64_t H, int64_t G, int64_t dh)                   \
    {                                                                                                        \
        head_norm_gradient(x, dqkv, of_queries, of_keys, rstd, partial, R, H, G, dh);                        \
    }                                                                                                        \
    KERNEL(token_embed_##suffix, const int32_t *tokens, const T *table, const float *positions,              \
           const int32_t *begins, float *y, int64_t N, int64_t D, int64_t first, int64_t rows)               \
    {                                                                                                        \
        token_embed(tokens, table, positions, begins, y, N, D, first, rows);                                 \
    }                                                                                                        \
    KERNEL(token_embed_gradient_##suffix, const int32_t *tokens, const int32_t *order, const float *dx,      \
           T *dtable, int64_t R, int64_t D, int64_t first, int64_t rows, int add)                            \
    {                                                                                                        \
        token_embed_gradient(tokens, order, dx, dtable, R, D, first, rows, add);                             \
    }                                                                                                        \
    KERNEL(logit_gradient_##suffix, void *logits, int64_t stride, const int32_t *labels,                     \
           const double *states, float smoothing, float weight, int64_t C, int64_t first, int64_t classes)   \
    {                                                                                                        \
        logit_gradient<T>(logits, stride, labels, states, smoothing, weight, C, first, classes);             \
    }
LANGUAGE(f32, float)
LANGUAGE(bf16, bf16)
