/* Elementwise operations: casts, patches, tokens, residuals, activations, resize. Grid-stride loops: any grid
 * covers any size. Contracts: kernels/operations.h, same names. */
#include "kernels/gpu/elements.h"

#define CODES8_FN        DEVICE
#define CODES8_MUL(a, b) exact_mul(a, b)
#include "kernels/codes8.h"

/* cast_SRC_DST */
template <int N, class S, class T> DEVICE void cast_part(const S *src, T *dst, int64_t from, int64_t n)
{
    FOR_EACH(i, n)
    {
        float x[N];
        load_many(x, src, from + i * N);
        store_many(dst, from + i * N, x);
    }
}
template <class S, class T> DEVICE void cast(const S *src, T *dst, int64_t n)
{
    int64_t wide = in_chunks(src, dst) ? n / MANY<T> : 0;
    cast_part<MANY<T>>(src, dst, 0, wide);
    cast_part<1>(src, dst, wide * MANY<T>, n - wide * MANY<T>);
}
#define CAST(name, S, T)                                                                                     \
    KERNEL(name, const S *src, T *dst, int64_t n) { cast(src, dst, n); }
CAST(cast_f32_f32, float, float)
CAST(cast_f32_bf16, float, bf16)
CAST(cast_bf16_f32, bf16, float)
CAST(cast_bf16_bf16, bf16, bf16)

/* patches (B * G*G, 3*p*p), G = S / p */
template <class T> DEVICE void patchify(const float *images, T *patches, int64_t B, int64_t S, int64_t p)
{
    int64_t rest, G = divide(S, p, &rest), row = 3 * p * p;
    FOR_EACH_AT(w, 6, B * G * G * row, p, p, 3, G, G)
    {
        int64_t x = w.at[0], y = w.at[1], c = w.at[2], gx = w.at[3], gy = w.at[4], b = w.at[5];
        store(patches, w.i, images[((b * 3 + c) * S + gy * p + y) * S + gx * p + x]);
    }
}
KERNEL(patchify_f32, const float *images, float *patches, int64_t B, int64_t S, int64_t p)
{
    patchify(images, patches, B, S, p);
}
KERNEL(patchify_bf16, const float *images, bf16 *patches, int64_t B, int64_t S, int64_t p)
{
    patchify(images, patches, B, S, p);
}

template <class T>
DEVICE void embed_forward(const T *patch_out, const float *bias, const float *cls, const float *pos,
                          const float *registers, float *tokens, int64_t B, int64_t N, int64_t D, int64_t Q)
{
    int64_t C = cls ? 1 : 0;
    FOR_EACH_AT(w, 3, B * N * D, D, N)
    {
        int64_t i = w.i, d = w.at[0], n = w.at[1], b = w.at[2];
        if (n >= C && n < C + Q) {
            tokens[i] = registers[(n - C) * D + d];
            continue;
        }
        float x = n < C ? cls[d] : biased(patch_out, (b * (N - Q - C) + n - Q - C) * D + d, bias, d);
        tokens[i] = pos ? x + pos[(n < C ? 0 : n - Q) * D + d] : x;
    }
}
KERNEL(embed_forward_f32, const float *patch_out, const float *bias, const float *cls, const float *pos,
       const float *registers, float *tokens, int64_t B, int64_t N, int64_t D, int64_t Q)
{
    embed_forward(patch_out, bias, cls, pos, registers, tokens, B, N, D, Q);
}
KERNEL(embed_forward_bf16, const bf16 *patch_out, const float *bias, const float *cls, const float *pos,
       const float *registers, float *tokens, int64_t B, int64_t N, int64_t D, int64_t Q)
{
    embed_forward(patch_out, bias, cls, pos, registers, tokens, B, N, D, Q);
}

/* One thread per (token, column): sums over the batch in a fixed order. */
template <class T>
DEVICE void embed_backward(const float *dtokens, T *dpatch_out, float *dcls, float *dpos, float *dregisters,
                           int64_t B, int64_t N, int64_t D, int64_t Q)
{
    int64_t C = dcls ? 1 : 0;
    FOR_EACH_AT(w, 2, N * D, D)
    {
        int64_t d = w.at[0], n = w.at[1];
        float sum = 0;
        for (int64_t b = 0; b < B; b++) {
            float x = dtokens[(b * N + n) * D + d];
            sum += x;
            if (n >= C + Q) store(dpatch_out, (b * (N - Q - C) + n - Q - C) * D + d, x);
        }
        if (n >= C && n < C + Q) {
            dregisters[(n - C) * D + d] += sum;
            continue;
        }
        if (dpos) dpos[(n < C ? 0 : n - Q) * D + d] += sum;
        if (n < C) dcls[d] += sum;
    }
}
KERNEL(embed_backward_f32, const float *dtokens, float *dpatch_out, float *dcls, float *dpos,
       float *dregisters, int64_t B, int64_t N, int64_t D, int64_t Q)
{
    embed_backward(dtokens, dpatch_out, dcls, dpos, dregisters, B, N, D, Q);
}
KERNEL(embed_backward_bf16, const float *dtokens, bf16 *dpatch_out, float *dcls, float *dpos,
       float *dregisters, int64_t B, int64_t N, int64_t D, int64_t Q)
{
    embed_backward(dtokens, dpatch_out, dcls, dpos, dregisters, B, N, D, Q);
}

/* out (n_out, D) = w (n_out, n_in) in (n_in, D); at most 16 weights of a row are not zero */
KERNEL(resize_rows, const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D)
{
    FOR_EACH_AT(at, 2, n_out * D, D)
    {
        int64_t i = at.i, d = at.at[0], o = at.at[1];
        float sum = 0;
        for (int64_t k = 0; k < n_in; k++) {
            float x = w[o * n_in + k];
            if (x != 0) sum += x * in[k * D + d];
        }
        out[i] = sum;
    }
}
/* out (n_in, D) += w^T in (n_out, D) */
KERNEL(resize_rows_transposed, const float *w, const float *in, float *out, int64_t n_out, int64_t n_in,
       int64_t D)
{
    FOR_EACH_AT(at, 2, n_in * D, D)
    {
        int64_t i = at.i, d = at.at[0], k = at.at[1];
        float sum = 0;
        for (int64_t o = 0; o < n_out; o++) {
            float x = w[o * n_in + k];
            if (x != 0) sum += x * in[o * D + d];
        }
        out[i] += sum;
    }
}

/* One thread per pair of q or k: (a, b) -> (a c - b s, a s + b c), s -> -s if inverse. table (positions, 2,
 * dims/2). Pairs are 2i and 2i+1, or with half i and i + dims/2. */
template <class I, class T>
DEVICE void rotate_part(T *qkv, const float *table, const int32_t *begins, int64_t B, int64_t N, int64_t H,
                        int64_t G, int64_t dh, int64_t dims, int64_t skip, int half, int inverse)
{
    FOR_EACH_AT_BY(I, w, 4, B * (N - skip) * (H + G) * (dims / 2), dims / 2, H + G, N - skip)
    {
        I pair = w.at[0], pairs = w.size[0], n = w.at[2], token = w.at[3] * (I)N + (I)skip + n,
          at = (token * (I)(H + 2 * G) + w.at[1]) * (I)dh, first = at + (half ? pair : 2 * pair),
          second = first + (half ? pairs : 1);
        int64_t position = ((int64_t)n - (begins ? begins[token] : 0)) * dims + (int64_t)pair;
        float c = table[position], s = table[position + (int64_t)pairs], x = load(qkv, (int64_t)first),
              y = load(qkv, (int64_t)second);
        if (inverse) s = -s;
        store(qkv, (int64_t)first, x * c - y * s);
        store(qkv, (int64_t)second, y * c + x * s);
    }
}
template <class T>
DEVICE void rotate(T *qkv, const float *table, const int32_t *begins, int64_t B, int64_t N, int64_t H,
                   int64_t G, int64_t dh, int64_t dims, int64_t skip, int half, int inverse)
{
    BY_INDEX(rotate_part, B * N * (H + 2 * G) * dh, qkv, table, begins, B, N, H, G, dh, dims, skip, half,
             inverse);
}
KERNEL(rotate_f32, float *qkv, const float *table, const int32_t *begins, int64_t B, int64_t N, int64_t H,
       int64_t G, int64_t dh, int64_t dims, int64_t skip, int half, int inverse)
{
    rotate(qkv, table, begins, B, N, H, G, dh, dims, skip, half, inverse);
}
KERNEL(rotate_bf16, bf16 *qkv, const float *table, const int32_t *begins, int64_t B, int64_t N, int64_t H,
       int64_t G, int64_t dh, int64_t dims, int64_t skip, int half, int inverse)
{
    rotate(qkv, table, begins, B, N, H, G, dh, dims, skip, half, inverse);
}

/* One thread per column of an image: sums its rows in order. */
template <class T>
DEVICE void row_mean_forward(const T *x, float *y, int64_t B, int64_t N, int64_t D, int64_t skip)
{
    FOR_EACH_AT(w, 2, B * D, D)
    {
        int64_t i = w.i, d = w.at[0], b = w.at[1];
        float sum = 0;
        for (int64_t n = skip; n < N; n++) sum += load(x, (b * N + n) * D + d);
        y[i] = sum / (float)(N - skip);
    }
}
template <class T>
DEVICE void row_mean_backward(const T *dy, float *dx, int64_t B, int64_t N, int64_t D, int64_t skip)
{
    int64_t rows = N - skip;
    float share = 1.0f / (float)rows;
    FOR_EACH_AT(w, 3, B * rows * D, D, rows)
    {
        int64_t d = w.at[0], row = w.at[1], b = w.at[2];
        dx[(b * N + skip + row) * D + d] += load(dy, b * D + d) * share;
    }
}
#define ROW_MEANS(suffix, T)                                                                                 \
    KERNEL(row_mean_forward_##suffix, const T *x, float *y, int64_t B, int64_t N, int64_t D, int64_t skip)   \
    {                                                                                                        \
        row_mean_forward(x, y, B, N, D, skip);                                                               \
    }                                                                                                        \
    KERNEL(row_mean_backward_##suffix, const T *dy, float *dx, int64_t B, int64_t N, int64_t D,              \
           int64_t skip)                                                                                     \
    {                                                                                                        \
        row_mean_backward(dy, dx, B, N, D, skip);                                                            \
    }
ROW_MEANS(f32, float)
ROW_MEANS(bf16, bf16)

/* y = x + gamma * (branch + bias), the latter times the row's factor; gamma NULL: 1. If the stream is stored
 * without a norm, also z = stored + gamma * (branch + bias), which may be branch; x NULL: only z. */
template <int N, class I, class T>
DEVICE void residual_part(const float *x, const T *branch, const float *bias, const float *gamma, float *y,
                          const T *stored, T *z, int64_t R, int64_t D, const float *keep, int64_t rows)
{
    FOR_EACH_AT_BY(I, w, 2, R * D / N, D / N)
    {
        int64_t i = (int64_t)w.i * N, d = (int64_t)w.at[0] * N;
        float u[N], scale[N], stream[N], kept[N], factor = drop_factor(keep, rows, (int64_t)w.at[1]);
        load_many(u, branch, i);
        if (x) load_many(stream, x, i);
        if (stored) load_many(kept, stored, i);
        if (gamma) load_many(scale, gamma, d);
        add_bias(u, bias, d);
        UNROLLED for (int k = 0; k < N; k++)
        {
            u[k] = exact_mul(factor, gamma ? exact_mul(scale[k], u[k]) : u[k]);
            if (x) stream[k] = exact_add(stream[k], u[k]);
            if (stored) kept[k] = exact_add(kept[k], u[k]);
        }
        if (x) store_many(y, i, stream);
        if (stored) store_many(z, i, kept);
    }
}
template <class T>
DEVICE void residual_forward(const float *x, const T *branch, const float *bias, const float *gamma, float *y,
                             const T *stored, T *z, int64_t R, int64_t D, const float *keep, int64_t rows)
{
    BY_CHUNKS(residual_part, R, D, in_chunks(x, branch, bias, gamma, y, stored, z), x, branch, bias, gamma, y,
              stored, z, R, D, keep, rows);
}
KERNEL(residual_forward_f32, const float *x, const float *branch, const float *bias, const float *gamma,
       float *y, const float *stored, float *z, int64_t R, int64_t D, const float *keep, int64_t rows)
{
    residual_forward(x, branch, bias, gamma, y, stored, z, R, D, keep, rows);
}
KERNEL(residual_forward_bf16, const float *x, const bf16 *branch, const float *bias, const float *gamma,
       float *y, const bf16 *stored, bf16 *z, int64_t R, int64_t D, const float *keep, int64_t rows)
{
    residual_forward(x, branch, bias, gamma, y, stored, z, R, D, keep, rows);
}

/* Sixteen threads per group (kernels/codes8.h); each has every sixteenth element. */
enum { CODERS = 16, CODED = CODES8_GROUP / CODERS };
#define FOR_EACH_GROUP(first, groups)                                                                        \
    for (int64_t first = BLOCK_X * (THREADS / CODERS); first < (groups);                                     \
         first += BLOCKS_X * (THREADS / CODERS))
template <class T>
DEVICE void encode(const T *x, int8_t *codes, uint32_t *words, uint16_t *tops, int64_t R, int64_t D)
{
    int64_t in_row = (D + CODES8_GROUP - 1) / CODES8_GROUP, groups = R * in_row, g;
    int lane = THREAD % CODERS;
    FOR_EACH_GROUP(first, groups) /* every lane of a wave reaches wave_xor */
    {
        int64_t group = first + THREAD / CODERS, row = divide(group < groups ? group : 0, in_row, &g),
                at = row * D + g * CODES8_GROUP, n = group < groups ? D - g * CODES8_GROUP : 0;
        float v[CODED];
        uint32_t key = 0, sum = 0, largest = 0;
        UNROLLED for (int k = 0; k < CODED; k++)
        {
            int i = k * CODERS + lane;
            v[k] = i < n ? load(x, at + i) : 0;
            if (i >= n) continue;
            uint32_t one = codes8_key(bits_of(v[k]), (uint32_t)i);
            key = one > key ? one : key;
            sum += codes8_add(bits_of(v[k]), (uint32_t)i);
        }
        for (int mask = 1; mask < CODERS; mask *= 2) {
            uint32_t other = (uint32_t)wave_xor((int)key, mask);
            key = other > key ? other : key;
            sum += (uint32_t)wave_xor((int)sum, mask);
        }
        bool finite = key < CODES8_NONE;
        int top = (int)codes8_top_index(key);
        UNROLLED for (int k = 0; k < CODED; k++)
        {
            int i = k * CODERS + lane;
            if (i >= n) continue;
            if (i == top) {
                tops[group] = finite ? codes8_top(bits_of(v[k])) : (uint16_t)0;
                v[k] = 0;
            }
            uint32_t magnitude = bits_of(v[k]) & 0x7FFFFFFFu;
            largest = magnitude > largest ? magnitude : largest;
        }
        for (int mask = 1; mask < CODERS; mask *= 2) {
            uint32_t other = (uint32_t)wave_xor((int)largest, mask);
            largest = other > largest ? other : largest;
        }
        bool coded = finite && largest >= CODES8_TINY;
        uint32_t word = coded    ? codes8_word(bits_of(exact_div(float_of(largest), 127.0f)), sum)
                        : finite ? 0u
                                 : CODES8_NAN;
        float step = coded ? exact_div(65536.0f, float_of(codes8_scale_bits(word))) : 0;
        UNROLLED for (int k = 0; k < CODED; k++)
        {
            int i = k * CODERS + lane;
            if (i >= n) continue;
            int8_t code = coded ? codes8_code(v[k], step, codes8_dither(word, (uint32_t)i)) : (int8_t)0;
            codes[at + i] = finite && i == top ? (int8_t)CODES8_TOP : code;
        }
        if (lane == 0 && n > 0) words[group] = word;
    }
}
template <class I, class T>
DEVICE void decode_part(T *x, const int8_t *codes, const uint32_t *words, const bf16 *tops, int64_t R,
                        int64_t D)
{
    I in_row = (I)((D + CODES8_GROUP - 1) / CODES8_GROUP);
    FOR_EACH_AT_BY(I, w, 2, R * D, D)
    {
        int64_t group = (int64_t)(w.at[1] * in_row + w.at[0] / CODES8_GROUP), at = (int64_t)w.i;
        uint32_t i = (uint32_t)(w.at[0] % CODES8_GROUP), word = words[group];
        float part = float_of(codes8_scale_bits(word)) * 0x1p-16f;
        int8_t code = codes[at];
        store(x, at,
              code == CODES8_TOP ? load(tops, group) : codes8_value(code, part, codes8_dither(word, i)));
    }
}
template <class T>
DEVICE void decode(T *x, const int8_t *codes, const uint32_t *words, const bf16 *tops, int64_t R, int64_t D)
{
    BY_INDEX(decode_part, R * D, x, codes, words, tops, R, D);
}
#define CODED_AS(suffix, T)                                                                                  \
    KERNEL(encode_##suffix, const T *x, int8_t *codes, uint32_t *words, uint16_t *tops, int64_t R,           \
           int64_t D)                                                                                        \
    {                                                                                                        \
        encode(x, codes, words, tops, R, D);                                                                 \
    }                                                                                                        \
    KERNEL(decode_##suffix, T *x, const int8_t *codes, const uint32_t *words, const bf16 *tops, int64_t R,   \
           int64_t D)                                                                                        \
    {                                                                                                        \
        decode(x, codes, words, tops, R, D);                                                                 \
    }
CODED_AS(f32, float)
CODED_AS(bf16, bf16)

/* The activations: f(h), and dy f'(h). */
struct gelu {
    DEVICE_METHOD static float value(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
    DEVICE_METHOD static float gradient(float dy, float x)
    {
        return dy * (0.5f * (1.0f + erff(x * 0.70710678118654752f)) +
                     x * 0.39894228040143268f * expf(-0.5f * x * x));
    }
};
struct tanh_of {
    DEVICE_METHOD static float value(float x) { return tanhf(x); }
    DEVICE_METHOD static float gradient(float dy, float x)
    {
        float y = tanhf(x);
        return dy * (1.0f - y * y);
    }
};
struct relu {
    DEVICE_METHOD static float value(float x) { return x <= 0 ? 0 : x; } /* NaN stays */
    DEVICE_METHOD static float gradient(float dy, float x) { return x <= 0 ? 0 : x > 0 ? dy : x; }
};
/* f = h s, s = 1 / (1 + exp(-1.702 h)) */
struct quick_gelu {
    DEVICE_METHOD static float value(float x) { return x / (1.0f + expf(-1.702f * x)); }
    DEVICE_METHOD static float gradient(float dy, float x)
    {
        float a = 1.702f * x, s = 1.0f / (1.0f + expf(-a));
        return dy * s * (1.0f + a * (1.0f - s));
    }
};

/* f = h s, s = 1 / (1 + exp(-z)) = (1 + tanh(z / 2)) / 2, z = 2 sqrt(2 / pi) (h + 0.044715 h^3); for |h|
 * above 100, s is 0 or 1 */
struct gelu_tanh {
    DEVICE_METHOD static float sigmoid(float x)
    {
        return 1.0f / (1.0f + expf(x * (-1.59576912161f - 0.07135481627f * x * x)));
    }
    DEVICE_METHOD static float within(float x) { return x > 100 ? 100 : x < -100 ? -100 : x; }
    DEVICE_METHOD static float value(float x) { return (x < -100 ? -100 : x) * sigmoid(within(x)); }
    DEVICE_METHOD static float gradient(float dy, float x)
    {
        float a = within(x), s = sigmoid(a);
        return dy * s * (1.0f + a * (1.0f - s) * (1.59576912161f + 0.21406444882f * a * a));
    }
};

template <int N, class I, class F, class T>
DEVICE void activation_part(F, const T *h, const float *bias, T *y, int64_t R, int64_t columns)
{
    FOR_EACH_AT_BY(I, w, 2, R * columns / N, columns / N)
    {
        float x[N];
        load_many(x, h, (int64_t)w.i * N);
        add_bias(x, bias, (int64_t)w.at[0] * N);
        UNROLLED for (int k = 0; k < N; k++) x[k] = F::value(x[k]);
        store_many(y, (int64_t)w.i * N, x);
    }
}
template <class F, class T>
DEVICE void activation_forward(const T *h, const float *bias, T *y, int64_t R, int64_t columns)
{
    BY_CHUNKS(activation_part, R, columns, in_chunks(h, bias, y), F(), h, bias, y, R, columns);
}
/* h (R, 2F) = [x1 | x2], y = silu(x1) * x2 */
template <int N, class I, class T>
DEVICE void swiglu_part(const T *h, const float *bias, T *y, int64_t R, int64_t F)
{
    FOR_EACH_AT_BY(I, w, 2, R * F / N, F / N)
    {
        int64_t i = (int64_t)w.i * N, d = (int64_t)w.at[0] * N, at = i + (int64_t)w.at[1] * F;
        float a[N], b[N];
        load_many(a, h, at);
        load_many(b, h, at + F);
        add_bias(a, bias, d);
        add_bias(b, bias, d + F);
        UNROLLED for (int k = 0; k < N; k++)
        {
            float s = 1.0f / (1.0f + expf(-a[k]));
            a[k] = a[k] * s * b[k];
        }
        store_many(y, i, a);
    }
}
template <class T> DEVICE void swiglu_forward(const T *h, const float *bias, T *y, int64_t R, int64_t F)
{
    BY_CHUNKS(swiglu_part, R, F, in_chunks(h, bias, y), h, bias, y, R, F);
}

/* Share BLOCK_Y of BLOCKS_Y of the rows, one thread per column. A thread reads some rows before it writes
 * them: dh may be h, act may be dy. partial (shares, F), for SWIGLU (shares, 2F): sums of dh, or NULL. */
template <class F, class T>
DEVICE void activation_backward(const T *dy, const T *h, const float *bias, T *dh, T *act, float *partial,
                                int64_t R, int64_t columns)
{
    int64_t d = BLOCK_X * THREADS + THREAD, shares = BLOCKS_Y, step = (R + shares - 1) / shares,
            begin = BLOCK_Y * step;
    int64_t end = begin + step < R ? begin + step : R;
    if (d >= columns) return;
    float sum = 0, g[AT_ONCE], x[AT_ONCE];
    for (int64_t row = begin; row < end; row += AT_ONCE) {
        UNROLLED for (int k = 0; k < AT_ONCE; k++)
        {
            int64_t at = (row + k < end ? row + k : row) * columns + d;
            g[k] = load(dy, at);
            x[k] = biased(h, at, bias, d);
        }
        UNROLLED for (int k = 0; k < AT_ONCE; k++)
        {
            if (row + k >= end) continue;
            float made = rounded(dh, F::gradient(g[k], x[k]));
            int64_t at = (row + k) * columns + d;
            store(dh, at, made);
            if (act) store(act, at, F::value(x[k]));
            sum += made;
        }
    }
    if (partial) partial[BLOCK_Y * columns + d] = sum;
}
template <class T>
DEVICE void swiglu_backward(const T *dy, const T *h, const float *bias, T *dh, T *act, float *partial,
                            int64_t R, int64_t F)
{
    int64_t d = BLOCK_X * THREADS + THREAD, shares = BLOCKS_Y, step = (R + shares - 1) / shares,
            begin = BLOCK_Y * step;
    int64_t end = begin + step < R ? begin + step : R;
    if (d >= F) return;
    float sum = 0, sum2 = 0, g[AT_ONCE], x[AT_ONCE], x2[AT_ONCE];
    for (int64_t row = begin; row < end; row += AT_ONCE) {
        UNROLLED for (int k = 0; k < AT_ONCE; k++)
        {
            int64_t at = (row + k < end ? row + k : row) * 2 * F + d;
            g[k] = load(dy, (row + k < end ? row + k : row) * F + d);
            x[k] = biased(h, at, bias, d);
            x2[k] = biased(h, at + F, bias, d + F);
        }
        UNROLLED for (int k = 0; k < AT_ONCE; k++)
        {
            if (row + k >= end) continue;
            float a = x[k], s = 1.0f / (1.0f + expf(-a));
            float made = rounded(dh, g[k] * x2[k] * s * (1.0f + a * (1.0f - s))),
                  made2 = rounded(dh, g[k] * a * s);
            int64_t at = (row + k) * 2 * F + d;
            store(dh, at, made);
            store(dh, at + F, made2);
            if (act) store(act, (row + k) * F + d, a * s * x2[k]);
            sum += made;
            sum2 += made2;
        }
    }
    if (!partial) return;
    partial[BLOCK_Y * 2 * F + d] = sum;
    partial[BLOCK_Y * 2 * F + F + d] = sum2;
}
#define ACTIVATION(name, suffix, T, FORWARD, BACKWARD)                                                       \
    KERNEL(name##_forward_##suffix, const T *h, const float *bias, T *y, int64_t R, int64_t F)               \
    {                                                                                                        \
        FORWARD(h, bias, y, R, F);                                                                           \
    }                                                                                                        \
    KERNEL(name##_backward_##suffix, const T *dy, const T *h, const float *bias, T *dh, T *act,              \
           float *partial, int64_t R, int64_t F)                                                             \
    {                                                                                                        \
        BACKWARD(dy, h, bias, dh, act, partial, R, F);                                                       \
    }
#define ACTIVATIONS(suffix, T)                                                                               \
    ACTIVATION(gelu, suffix, T, activation_forward<gelu>, activation_backward<gelu>)                         \
    ACTIVATION(quick_gelu, suffix, T, activation_forward<quick_gelu>, activation_backward<quick_gelu>)       \
    ACTIVATION(gelu_tanh, suffix, T, activation_forward<gelu_tanh>, activation_backward<gelu_tanh>)          \
    ACTIVATION(tanh, suffix, T, activation_forward<tanh_of>, activation_backward<tanh_of>)                   \
    ACTIVATION(relu, suffix, T, activation_forward<relu>, activation_backward<relu>)                         \
    ACTIVATION(swiglu, suffix, T, swiglu_forward, swiglu_backward)
ACTIVATIONS(f32, float)
ACTIVATIONS(bf16, bf16)

/* Fills every row of c (m, n) with the bias, for BLAS libraries without an epilogue. */
template <class T> DEVICE void bias_rows(const float *bias, T *c, int64_t m, int64_t n, int64_t ldc)
{
    FOR_EACH_AT(w, 2, m * n, n) store(c, w.at[1] * ldc + w.at[0], bias[w.at[0]]);
}
KERNEL(bias_rows_f32, const float *bias, float *c, int64_t m, int64_t n, int64_t ldc)
{
    bias_rows(bias, c, m, n, ldc);
}
KERNEL(bias_rows_bf16, const float *bias, bf16 *c, int64_t m, int64_t n, int64_t ldc)
{
    bias_rows(bias, c, m, n, ldc);
}

/* Run at every start: a code object built for a different card may report success and do nothing. */
KERNEL(sentinel, uint32_t *p, uint32_t seed, int64_t n)
{
    FOR_EACH(i, n) p[i] = seed ^ (uint32_t)i * 2654435761u;
}
/* Stores the wave width of the card in p[0], that of the compiled kernels in p[1]. */
KERNEL(wave_width, int *p)
{
    if (THREAD || BLOCK_X) return;
    p[0] = CARDS_WAVE;
    p[1] = WAVE;
}

/* Sums over ranks: out = ((before + r0) + r1) + ..., in fp32 and in this order for every transport. The data
 * of rank r are at received + r * stride bytes, those of rank `me` at `own`. before NULL: 0 */
template <int N, class T>
DEVICE void sum_part(const float *before, const char *received, int64_t stride, const T *own, int me,
                     int contributors, float *out, int64_t from, int64_t n)
{
    FOR_EACH(i, n)
    {
        float sum[N] = {}, x[N];
        if (before) load_many(sum, before, from + i * N);
        for (int r = 0; r < contributors; r++) {
            load_many(x, r == me ? own : (const T *)(received + r * stride), from + i * N);
            UNROLLED for (int k = 0; k < N; k++) sum[k] = exact_add(sum[k], x[k]);
        }
        store_many(out, from + i * N, sum);
    }
}
template <class T>
DEVICE void sum_ranks(const float *before, const char *received, int64_t stride, const T *own, int me,
                      int contributors, float *out, int64_t n)
{
    int64_t wide = stride % 16 == 0 && in_chunks(before, received, own, out) ? n / MANY<T> : 0;
    sum_part<MANY<T>>(before, received, stride, own, me, contributors, out, 0, wide);
    sum_part<1>(before, received, stride, own, me, contributors, out, wide * MANY<T>, n - wide * MANY<T>);
}
/* Combines values that are zero on all ranks but one; the data of rank r are at received + r * stride
 * bytes. */
KERNEL(unite_ranks, const char *received, int64_t stride, int ranks, uint64_t *out, int64_t n)
{
    FOR_EACH(i, n)
    {
        uint64_t bits = 0;
        for (int r = 0; r < ranks; r++) bits |= ((const uint64_t *)(received + r * stride))[i];
        out[i] = bits;
    }
}
KERNEL(sum_ranks_f32, const float *before, const char *received, int64_t stride, const float *own, int me,
       int contributors, float *out, int64_t n)
{
    sum_ranks(before, received, stride, own, me, contributors, out, n);
}
KERNEL(sum_ranks_bf16, const float *before, const char *received, int64_t stride, const bf16 *own, int me,
       int contributors, float *out, int64_t n)
{
    sum_ranks(before, received, stride, own, me, contributors, out, n);
}

/* The sum of 2, 4 or 8 ranks by a balanced tree: ((r0 + r1) + (r2 + r3)) + ... */
enum { TREE_RANKS = 8, TREE_LEVELS = 4 };
template <int N>
DEVICE void tree_part(const char *received, int64_t stride, const float *own, int me, int ranks, float *out,
                      int64_t from, int64_t n)
{
    FOR_EACH(i, n)
    {
        float x[TREE_LEVELS][N]; /* sums of subtrees that wait for their neighbours, largest first */
        UNROLLED for (int r = 0; r < TREE_RANKS; r++)
        {
            int level = (r & 1) + (r >> 1 & 1) + (r >> 2 & 1);
            if (r >= ranks) continue;
            load_many(x[level], r == me ? own : (const float *)(received + r * stride), from + i * N);
            UNROLLED for (int n = r + 1; n % 2 == 0; n /= 2, level--)
            {
                UNROLLED for (int k = 0; k < N; k++) x[level - 1][k] =
                    exact_add(x[level - 1][k], x[level][k]);
            }
        }
        store_many(out, from + i * N, x[0]);
    }
}
KERNEL(sum_tree_f32, const char *received, int64_t stride, const float *own, int me, int ranks, float *out,
       int64_t n)
{
    int64_t wide = stride % 16 == 0 && in_chunks(received, own, out) ? n / MANY<float> : 0;
    tree_part<MANY<float>>(received, stride, own, me, ranks, out, 0, wide);
    tree_part<1>(received, stride, own, me, ranks, out, wide * MANY<float>, n - wide * MANY<float>);
}
