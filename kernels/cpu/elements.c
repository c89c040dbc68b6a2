/* Elementwise operations: see ops.h. */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"
#include "kernels/codes8.h"

#include <assert.h>

void NAME(cast)(const void *src, enum dtype src_type, void *dst, enum dtype dst_type, int64_t n)
{
    int src_bf16 = src_type == DTYPE_BF16, dst_bf16 = dst_type == DTYPE_BF16;
    if (src_bf16 == dst_bf16) {
        if (src != dst) memmove(dst, src, (size_t)n * (src_bf16 ? 2 : 4));
        return;
    }
    PARALLEL_FOR for (int64_t at = 0; at < n; at += PIECE)
    {
        float buffer[PIECE];
        int64_t count = piece(n, at);
        const float *x = read_piece(src_bf16, src, at, count, buffer);
        if (dst_bf16) write_piece(1, dst, at, count, x);
        else memcpy((float *)dst + at, x, (size_t)count * 4);
    }
}

void NAME(patchify)(enum dtype t, const float *images, void *patches, int64_t B, int64_t S, int64_t p)
{
    int bf16 = t == DTYPE_BF16;
    int64_t G = S / p, row = 3 * p * p;
    PARALLEL_FOR for (int64_t patch = 0; patch < B * G * G; patch++)
    {
        int64_t b = patch / (G * G), gy = patch / G % G, gx = patch % G;
        for (int64_t c = 0; c < 3; c++)
            for (int64_t y = 0; y < p; y++) {
                const float *in = images + ((b * 3 + c) * S + gy * p + y) * S + gx * p;
                int64_t at = patch * row + (c * p + y) * p;
                if (bf16) write_piece(1, patches, at, p, in);
                else memcpy((float *)patches + at, in, (size_t)p * 4);
            }
    }
}

void NAME(embed_forward)(const struct embedding *o)
{
    assert(!o->bias);
    int bf16 = o->type == DTYPE_BF16;
    int64_t N = o->N, D = o->D, Q = o->Q, C = o->cls ? 1 : 0, patches = N - Q - C;
    const float *pos = o->pos;
    PARALLEL_FOR for (int64_t row = 0; row < o->B * N; row++)
    {
        int64_t b = row / N, n = row % N;
        float in[PIECE];
        for (int64_t at = 0; at < D; at += PIECE) {
            int64_t count = piece(D, at);
            const float *x = NULL, *p = NULL;
            float *y = o->tokens + row * D + at;
            if (n < C) x = o->cls + at;
            else if (n < C + Q) x = o->registers + (n - C) * D + at;
            else x = read_piece(bf16, o->patches, (b * patches + n - Q - C) * D + at, count, in);
            if (pos && (n < C || n >= C + Q)) p = pos + (n < C ? 0 : n - Q) * D + at;
            if (p) SIMD for (int64_t i = 0; i < count; i++) y[i] = x[i] + p[i];
            else memcpy(y, x, (size_t)count * sizeof *y);
        }
    }
}

void NAME(embed_backward)(const struct embedding_gradient *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t N = o->N, D = o->D, Q = o->Q, C = o->dcls ? 1 : 0;
    PARALLEL_FOR for (int64_t n = 0; n < N; n++) for (int64_t b = 0; b < o->B; b++)
    {
        const float *g = o->dtokens + (b * N + n) * D;
        bool is_register = n >= C && n < C + Q;
        float *p = is_register ? o->dregisters + (n - C) * D
                   : o->dpos   ? o->dpos + (n < C ? 0 : n - Q) * D
                               : NULL;
        float *dcls = o->dcls;
        if (p) SIMD for (int64_t i = 0; i < D; i++) p[i] += g[i];
        if (n < C) {
            SIMD for (int64_t i = 0; i < D; i++) dcls[i] += g[i];
            continue;
        }
        if (is_register) continue;
        int64_t at = (b * (N - Q - C) + n - Q - C) * D;
        if (bf16) write_piece(1, o->dpatches, at, D, g);
        else memcpy((float *)o->dpatches + at, g, (size_t)D * 4);
    }
}

/* A row of w has at most 16 nonzero values. Each row of `out` is computed by one thread, in a fixed order. */
void NAME(resize_rows)(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in, int64_t D,
                       bool transpose)
{
    int64_t rows = transpose ? n_in : n_out, terms = transpose ? n_out : n_in;
    PARALLEL_FOR for (int64_t r = 0; r < rows; r++)
    {
        float *y = out + r * D;
        if (!transpose) memset(y, 0, (size_t)D * 4);
        for (int64_t k = 0; k < terms; k++) {
            float x = transpose ? w[k * n_in + r] : w[r * n_in + k];
            const float *v = in + k * D;
            if (x != 0) SIMD for (int64_t i = 0; i < D; i++) y[i] += x * v[i];
        }
    }
}

/* `dims` values of one head of one token; table: dims/2 cosines, dims/2 sines. */
static void rotate_pairs(int bf16, void *x, int64_t at, int64_t dims, int half, const float *table,
                         float sign)
{
    int64_t pairs = dims / 2;
    for (int64_t from = 0; from < pairs; from += PIECE / 2) {
        int64_t count = pairs - from < PIECE / 2 ? pairs - from : PIECE / 2;
        const float *c = table + from, *s = table + pairs + from;
        float in[PIECE], out[PIECE];
        if (half) {
            float in2[PIECE / 2], out2[PIECE / 2];
            const float *a = read_piece(bf16, x, at + from, count, in),
                        *b = read_piece(bf16, x, at + pairs + from, count, in2);
            SIMD for (int64_t i = 0; i < count; i++)
            {
                out[i] = a[i] * c[i] - b[i] * sign * s[i];
                out2[i] = b[i] * c[i] + a[i] * sign * s[i];
            }
            store_piece(bf16, x, at + from, count, out);
            store_piece(bf16, x, at + pairs + from, count, out2);
            continue;
        }
        const float *v = read_piece(bf16, x, at + 2 * from, 2 * count, in);
        SIMD for (int64_t i = 0; i < count; i++)
        {
            out[2 * i] = v[2 * i] * c[i] - v[2 * i + 1] * sign * s[i];
            out[2 * i + 1] = v[2 * i + 1] * c[i] + v[2 * i] * sign * s[i];
        }
        store_piece(bf16, x, at + 2 * from, 2 * count, out);
    }
}

void NAME(rotate)(const struct rotation *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t tokens = o->N - o->skip, heads = o->H + o->G, dims = o->dims ? o->dims : o->dh;
    float sign = o->inverse ? -1.0f : 1.0f;
    PARALLEL_FOR for (int64_t row = 0; row < o->B * tokens; row++)
    {
        int64_t n = row % tokens, token = row / tokens * o->N + o->skip + n,
                at = token * (heads + o->G) * o->dh;
        const float *table = o->table + (n - (o->begins ? o->begins[token] : 0)) * dims;
        for (int64_t h = 0; h < heads; h++)
            rotate_pairs(bf16, o->qkv, at + h * o->dh, dims, o->half, table, sign);
    }
}

/* Encodes n values of a group to codes and top. Returns the group's word. */
static inline uint32_t encode_group(const float *x, int64_t n, int8_t *codes, uint16_t *top)
{
    float others[CODES8_GROUP];
    uint32_t key = 0, sum = 0, largest = 0;
    _Pragma("omp simd reduction(max : key) reduction(+ : sum)") for (int64_t i = 0; i < n; i++)
    {
        uint32_t bits = bits_one(x[i]), one = codes8_key(bits, (uint32_t)i);
        key = one > key ? one : key;
        sum += codes8_add(bits, (uint32_t)i);
    }
    *top = 0;
    if (key >= CODES8_NONE) {
        memset(codes, 0, (size_t)n);
        return CODES8_NAN;
    }
    int64_t at = codes8_top_index(key);
    *top = codes8_top(bits_one(x[at]));
    _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < n; i++)
    {
        others[i] = i == at ? 0 : x[i];
        uint32_t magnitude = bits_one(others[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    uint32_t word = 0;
    if (largest < CODES8_TINY) memset(codes, 0, (size_t)n);
    else {
        word = codes8_word(bits_one(float_one(largest) / 127.0f), sum);
        float step = 65536.0f / float_one(codes8_scale_bits(word));
        SIMD for (int64_t i = 0; i < n; i++) codes[i] =
            codes8_code(others[i], step, codes8_dither(word, (uint32_t)i));
    }
    codes[at] = CODES8_TOP;
    return word;
}
static inline void decode_group(const int8_t *codes, uint32_t word, uint16_t top, int64_t n, float *y)
{
    float part = float_one(codes8_scale_bits(word)) * 0x1p-16f, apart = widen_one(top);
    SIMD for (int64_t i = 0; i < n; i++) y[i] =
        codes[i] == CODES8_TOP ? apart : codes8_value(codes[i], part, codes8_dither(word, (uint32_t)i));
}

void NAME(encode)(const struct coded *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t D = o->D, groups = (D + CODES8_GROUP - 1) / CODES8_GROUP;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++) for (int64_t g = 0; g < groups; g++)
    {
        float buffer[CODES8_GROUP];
        int64_t at = row * D + g * CODES8_GROUP, left = D - g * CODES8_GROUP;
        bool whole = left >= CODES8_GROUP;
        const float *x = read_piece(bf16, o->x, at, whole ? CODES8_GROUP : left, buffer);
        o->words[row * groups + g] =
            whole ? encode_group(x, CODES8_GROUP, o->codes + at, o->tops + row * groups + g)
                  : encode_group(x, left, o->codes + at, o->tops + row * groups + g);
    }
}

void NAME(decode)(const struct coded *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t D = o->D, groups = (D + CODES8_GROUP - 1) / CODES8_GROUP;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++) for (int64_t g = 0; g < groups; g++)
    {
        float buffer[CODES8_GROUP];
        uint32_t word = o->words[row * groups + g];
        uint16_t top = o->tops[row * groups + g];
        int64_t at = row * D + g * CODES8_GROUP, left = D - g * CODES8_GROUP;
        bool whole = left >= CODES8_GROUP;
        float *y = piece_for(bf16, o->x, at, buffer);
        if (whole) decode_group(o->codes + at, word, top, CODES8_GROUP, y);
        else decode_group(o->codes + at, word, top, left, y);
        write_piece(bf16, o->x, at, whole ? CODES8_GROUP : left, y);
    }
}
