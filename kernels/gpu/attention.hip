/* softmax(q k^T / sqrt(dh)) v and its gradient, tile by tile (Dao et al., FlashAttention, arXiv 2205.14135:
 * running maximum and sum forward; recomputed probabilities backward), for any N and any dh up to 128, by
 * ordinary arithmetic. bf16 on cards with matrix instructions: attention_matrix.hip.
 *
 * Threads are 16 x 16. Thread (r, c) has rows r and r + 16 of a block's QT, their scores with row c of a tile
 * of KT, and four columns of their sums from 4 c on, and from 64 + 4 c on.
 *
 * Shapes and masks: struct attention. delta (B, H, N). A block processes one (sample, head) and QT queries
 * (forward, dq), or one (sample, key and value head) and KT keys with all query heads in order (dk, dv). It
 * reads the tiles from the first to the last key that one of its queries sees, or the other way round. No
 * N x N matrix is stored. Statistics and sums are fp32.
 *
 * SPARSE: with lists of blocks. A GPU block's queries or keys then belong to one block, whose list it follows
 * in place of one range; the grid has ceil(block / QT) GPU blocks for each. */
#include "kernels/gpu/attention_range.h"

enum { QT = 32, KT = 16, DH = 128, WIDTH = DH + 4, ATTENTION_THREADS = 256, OWN = QT / 16 };
typedef float row_tile[QT][WIDTH];
typedef float other_tile[KT][WIDTH];
typedef float score_tile[QT][KT + 4];

/* Four neighbours in shared memory: one access of 16 bytes */
struct alignas(16) four {
    float at[4];
};
DEVICE four four_of(const float *p) { return *(const four *)p; }

/* Loads rows of head `head` of `heads` from `first` on into shared memory, zeros from row `end` on, and
 * after dh up to a multiple of 4. */
template <class T, int ROWS>
DEVICE void load_tile(float (&tile)[ROWS][WIDTH], const T *x, int64_t heads, int64_t b, int64_t head,
                      int64_t first, int64_t end, const attention_shape &s)
{
    int dh = (int)s.dh, across = (dh + 3) / 4 * 4;
    for (int e = THREAD; e < ROWS * across; e += ATTENTION_THREADS) {
        int64_t row = first + e / across;
        int d = e % across;
        tile[e / across][d] = row < end && d < dh ? load(x, ((b * s.N + row) * heads + head) * dh + d) : 0.0f;
    }
}
/* Scalar products of this thread's rows of a and its row of b, in the order of d. */
DEVICE void dots(float (&sum)[OWN], const row_tile &a, const other_tile &b, int dh)
{
    for (int d = 0; d < dh; d += 4) {
        four y = four_of(&b[THREAD % 16][d]);
        UNROLLED for (int r = 0; r < OWN; r++)
        {
            four x = four_of(&a[THREAD / 16 + 16 * r][d]);
            UNROLLED for (int i = 0; i < 4; i++) sum[r] += x.at[i] * y.at[i];
        }
    }
}
/* This thread's part of a sum (QT, dh) */
struct sums {
    float at[OWN][DH / 64][4];
};
/* sum += weights (QT, KT) times rows (KT, dh), in the order of these rows. */
DEVICE void add_weighted(sums &sum, const score_tile &weights, const other_tile &rows, int dh)
{
    UNROLLED for (int j = 0; j < KT; j += 4)
    {
        four w[OWN];
        UNROLLED for (int r = 0; r < OWN; r++) w[r] = four_of(&weights[THREAD / 16 + 16 * r][j]);
        UNROLLED for (int g = 0; g < DH / 64; g++)
        {
            int column = 64 * g + THREAD % 16 * 4;
            if (column >= dh) continue;
            UNROLLED for (int k = 0; k < 4; k++)
            {
                four y = four_of(&rows[j + k][column]);
                UNROLLED for (int r = 0; r < OWN; r++) UNROLLED for (int i = 0; i < 4; i++) sum.at[r][g][i] +=
                    w[r].at[k] * y.at[i];
            }
        }
    }
}
/* Stores factor[r] times the sums as rows of head `head` of `heads`. */
template <class T>
DEVICE void sums_store(T *x, int64_t heads, int64_t b, int64_t head, int64_t first, int64_t end,
                       const attention_shape &s, const sums &sum, const float (&factor)[OWN])
{
    for (int e = 0; e < OWN * (DH / 64) * 4; e++) {
        int r = e / (DH / 16), g = e / 4 % (DH / 64), column = 64 * g + THREAD % 16 * 4 + e % 4;
        int64_t row = first + THREAD / 16 + 16 * r;
        if (row < end && column < s.dh)
            store(x, ((b * s.N + row) * heads + head) * s.dh + column, sum.at[r][g][e % 4] * factor[r]);
    }
}

/* The rows of this GPU block: QT or fewer, from `first` on. */
struct own_rows {
    int64_t first, end, block;
};
template <bool SPARSE> DEVICE own_rows own_rows_of(const attention_shape &m)
{
    if (!SPARSE) return {m.first + BLOCK_X * QT, m.N, 0};
    int64_t tiles = (m.block + QT - 1) / QT, block = BLOCK_X / tiles, end = (block + 1) * m.block;
    return {block * m.block + BLOCK_X % tiles * QT, end < m.N ? end : m.N, block};
}
/* The tokens on the other side: stretches of a list, or one range from the beginning of a tile. */
template <bool SPARSE> struct stretches {
    range all;
    block_list list;
    DEVICE_METHOD int count() const { return SPARSE ? list.count : 1; }
    DEVICE_METHOD range at(const attention_shape &m, int i) const
    {
        if (!SPARSE) return {all.first / KT * KT, all.end};
        return tokens_of(m, list.at[i], all);
    }
};
template <bool SPARSE>
DEVICE stretches<SPARSE> stretches_of(const attention_shape &m, const range &all, const int32_t *lists,
                                      int64_t h, int64_t block)
{
    if (!SPARSE) return {all, {nullptr, 1}};
    return {all, list_of(m, lists, h, block)};
}

template <bool SPARSE, class T>
DEVICE void attention_forward(const T *qkv, T *out, float *lse, const attention_shape &m)
{
    SHARED row_tile q alignas(16);
    SHARED other_tile k alignas(16), v alignas(16);
    SHARED score_tile s alignas(16);
    int dh = (int)m.dh, column = THREAD % 16;
    own_rows own = own_rows_of<SPARSE>(m);
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, first = own.first, end = own.end, heads = m.H + 2 * m.G;
    float scale = 1.0f / sqrtf((float)dh), top[OWN], total[OWN] /* of this thread's columns */, inverse[OWN];
    if (SPARSE && first >= end) return;
    range keys[OWN];
    stretches<SPARSE> list =
        stretches_of<SPARSE>(m, range_of<keys_of>(m, b, first, QT), m.keys, h, own.block);
    sums kept = {};
    load_tile(q, qkv, heads, b, h, first, end, m);
    for (int r = 0; r < OWN; r++) {
        keys[r] = keys_of(m, b, first + THREAD / 16 + 16 * r);
        top[r] = -3e38f;
        total[r] = 0;
    }
    for (int e = 0; e < list.count(); e++) {
        range part = list.at(m, e);
        for (int64_t j0 = part.first; j0 < part.end; j0 += KT) {
            barrier();
            load_tile(k, qkv, heads, b, key_head(m, h), j0, m.N, m);
            load_tile(v, qkv, heads, b, value_head(m, h), j0, m.N, m);
            barrier();
            float x[OWN] = {};
            dots(x, q, k, dh);
            UNROLLED for (int r = 0; r < OWN; r++)
            {
                bool sees = inside(keys[r], j0 + column) && (!SPARSE || j0 + column < part.end);
                x[r] = sees ? scale * x[r] : -3e38f;
                float largest = x[r];
                for (int mask = 1; mask < 16; mask *= 2) largest = fmaxf(largest, wave_xor(largest, mask));
                largest = fmaxf(largest, top[r]);
                float shrink = expf(top[r] - largest), p = sees ? expf(x[r] - largest) : 0.0f;
                top[r] = largest;
                total[r] = total[r] * shrink + p;
                s[THREAD / 16 + 16 * r][column] = p;
                for (int e = 0; e < DH / 16; e++) kept.at[r][e / 4][e % 4] *= shrink;
            }
            barrier();
            add_weighted(kept, s, v, dh);
        }
    }
    for (int r = 0; r < OWN; r++) {
        int64_t row = first + THREAD / 16 + 16 * r;
        for (int mask = 1; mask < 16; mask *= 2) total[r] += wave_xor(total[r], mask);
        inverse[r] = 1.0f / total[r];
        if (column == 0 && row < end) lse[BLOCK_Y * m.N + row] = top[r] + logf(total[r]);
    }
    sums_store(out, m.H, b, h, first, end, m, kept, inverse);
}

/* delta = sum over dh of dout * out; one thread per (image, head, row) */
template <class T>
DEVICE void attention_delta(const T *out, const T *dout, float *delta, int64_t B, int64_t N, int64_t H,
                            int64_t dh)
{
    for (int64_t i = BLOCK_X * THREADS + THREAD; i < B * H * N; i += BLOCKS_X * THREADS) {
        int64_t n = i % N, h = i / N % H, b = i / N / H, at = ((b * N + n) * H + h) * dh;
        float sum = 0;
        for (int64_t d = 0; d < dh; d++) sum += load(out, at + d) * load(dout, at + d);
        delta[i] = sum;
    }
}

/* dq of QT queries: sum over keys of ds * k, ds = p * (dout v^T - delta) / sqrt(dh), p = exp(s - lse) */
template <bool SPARSE, class T>
DEVICE void attention_backward_q(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv,
                                 const attention_shape &m)
{
    SHARED row_tile q alignas(16), g alignas(16);
    SHARED other_tile kv alignas(16); /* values, then keys */
    SHARED score_tile s alignas(16);
    int dh = (int)m.dh;
    own_rows own = own_rows_of<SPARSE>(m);
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, first = own.first, end = own.end, heads = m.H + 2 * m.G;
    float scale = 1.0f / sqrtf((float)dh), l[OWN], mean[OWN], ones[OWN];
    if (SPARSE && first >= end) return;
    range keys[OWN];
    stretches<SPARSE> list =
        stretches_of<SPARSE>(m, range_of<keys_of>(m, b, first, QT), m.keys, h, own.block);
    sums dq = {};
    load_tile(q, qkv, heads, b, h, first, end, m);
    load_tile(g, dout, m.H, b, h, first, end, m);
    for (int r = 0; r < OWN; r++) {
        int64_t row = first + THREAD / 16 + 16 * r;
        keys[r] = keys_of(m, b, row);
        l[r] = row < m.N ? lse[BLOCK_Y * m.N + row] : 0.0f;
        mean[r] = row < m.N ? delta[BLOCK_Y * m.N + row] : 0.0f;
        ones[r] = 1.0f;
    }
    for (int e = 0; e < list.count(); e++) {
        range part = list.at(m, e);
        for (int64_t j0 = part.first; j0 < part.end; j0 += KT) {
            float x[OWN] = {}, dp[OWN] = {};
            barrier();
            load_tile(kv, qkv, heads, b, value_head(m, h), j0, m.N, m);
            barrier();
            dots(dp, g, kv, dh);
            barrier();
            load_tile(kv, qkv, heads, b, key_head(m, h), j0, m.N, m);
            barrier();
            dots(x, q, kv, dh);
            UNROLLED for (int r = 0; r < OWN; r++)
            {
                bool sees = inside(keys[r], j0 + THREAD % 16) && (!SPARSE || j0 + THREAD % 16 < part.end);
                float p = sees ? expf(scale * x[r] - l[r]) : 0.0f;
                s[THREAD / 16 + 16 * r][THREAD % 16] = p * (dp[r] - mean[r]) * scale;
            }
            barrier();
            add_weighted(dq, s, kv, dh);
        }
    }
    sums_store(dqkv, heads, b, h, first, end, m, dq, ones);
}

/* dk, dv of QT keys: dv = sum over queries of p * dout, dk = sum of ds * q */
template <bool SPARSE, class T>
DEVICE void attention_backward_kv(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv,
                                  const attention_shape &m)
{
    SHARED row_tile k alignas(16), v alignas(16);
    SHARED other_tile qg alignas(16); /* queries, dout, and queries again */
    SHARED score_tile s alignas(16), t alignas(16);
    int dh = (int)m.dh;
    own_rows own = own_rows_of<SPARSE>(m);
    int64_t b = BLOCK_Y / m.G, kv = BLOCK_Y % m.G, first = own.first, end = own.end, share = m.H / m.G,
            heads = m.H + 2 * m.G;
    float scale = 1.0f / sqrtf((float)dh), ones[OWN];
    if (SPARSE && first >= end) return;
    range all = range_of<queries_of>(m, b, first, QT), queries[OWN];
    sums dk = {}, dv = {};
    load_tile(k, qkv, heads, b, m.H + kv, first, end, m);
    load_tile(v, qkv, heads, b, m.H + m.G + kv, first, end, m);
    for (int r = 0; r < OWN; r++) {
        queries[r] = queries_of(m, b, first + THREAD / 16 + 16 * r);
        ones[r] = 1.0f;
    }
    for (int64_t h = kv * share; h < (kv + 1) * share; h++) {
        stretches<SPARSE> list = stretches_of<SPARSE>(m, all, m.queries, h, own.block);
        for (int e = 0; e < list.count(); e++) {
            range part = list.at(m, e);
            for (int64_t i0 = part.first; i0 < part.end; i0 += KT) {
                int64_t query = i0 + THREAD % 16, stats = (b * m.H + h) * m.N + query;
                float x[OWN] = {}, dp[OWN] = {};
                barrier();
                load_tile(qg, qkv, heads, b, h, i0, m.N, m);
                barrier();
                dots(x, k, qg, dh);
                barrier();
                load_tile(qg, dout, m.H, b, h, i0, m.N, m);
                barrier();
                dots(dp, v, qg, dh);
                UNROLLED for (int r = 0; r < OWN; r++)
                {
                    bool real = inside(queries[r], query) && (!SPARSE || query < part.end);
                    float p = real ? expf(scale * x[r] - lse[stats]) : 0.0f;
                    s[THREAD / 16 + 16 * r][THREAD % 16] = p;
                    t[THREAD / 16 + 16 * r][THREAD % 16] = real ? p * (dp[r] - delta[stats]) * scale : 0.0f;
                }
                barrier();
                add_weighted(dv, s, qg, dh);
                barrier();
                load_tile(qg, qkv, heads, b, h, i0, m.N, m);
                barrier();
                add_weighted(dk, t, qg, dh);
            }
        }
    }
    sums_store(dqkv, heads, b, m.H + kv, first, end, m, dk, ones);
    sums_store(dqkv, heads, b, m.H + m.G + kv, first, end, m, dv, ones);
}

#define ATTENTION(suffix, T, SPARSE)                                                                         \
    KERNEL(attention_forward_##suffix, const T *qkv, T *out, float *lse, attention_shape m)                  \
    {                                                                                                        \
        attention_forward<SPARSE>(qkv, out, lse, m);                                                         \
    }                                                                                                        \
    KERNEL(attention_backward_q_##suffix, const T *qkv, const float *lse, const float *delta, const T *dout, \
           T *dqkv, attention_shape m)                                                                       \
    {                                                                                                        \
        attention_backward_q<SPARSE>(qkv, lse, delta, dout, dqkv, m);                                        \
    }                                                                                                        \
    KERNEL(attention_backward_kv_##suffix, const T *qkv, const float *lse, const float *delta,               \
           const T *dout, T *dqkv, attention_shape m)                                                        \
    {                                                                                                        \
        attention_backward_kv<SPARSE>(qkv, lse, delta, dout, dqkv, m);                                       \
    }
ATTENTION(f32, float, false)
ATTENTION(bf16_plain, bf16, false)
ATTENTION(sparse_f32, float, true)
ATTENTION(sparse_bf16, bf16, true)

#define DELTA(suffix, T)                                                                                     \
    KERNEL(attention_delta_##suffix, const T *out, const T *dout, float *delta, int64_t B, int64_t N,        \
           int64_t H, int64_t dh)                                                                            \
    {                                                                                                        \
        attention_delta(out, dout, delta, B, N, H, dh);                                                      \
    }
DELTA(f32, float)
DELTA(bf16, bf16)
