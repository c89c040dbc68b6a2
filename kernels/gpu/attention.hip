/* softmax(q k^T / sqrt(dh)) v and its gradient, tile by tile (Dao et al., FlashAttention, arXiv 2205.14135:
 * running maximum and sum forward; recomputed probabilities backward), for any N and any dh up to 128, by
 * ordinary arithmetic. bf16 on cards with matrix instructions: attention_matrix.hip.
 *
 * Shapes and masks: struct attention. delta (B, H, N). A block processes one (sample, head) and QT queries
 * (forward, dq), or one (sample, key and value head) and KT keys with all query heads in order (dk, dv). It
 * reads the tiles from the first to the last key that one of its queries sees, or the other way round. No
 * N x N matrix is stored. Statistics and sums are fp32. */
#include "kernels/gpu/attention_range.h"

enum {
    QT = 16,
    KT = 16,
    DH = 128,
    PAD = DH + 1,
    ATTENTION_THREADS = 256,
    KEEP = QT * DH / ATTENTION_THREADS
};

/* Loads rows x dh of one of the H + 2G heads of qkv into shared memory, zeros after row N. */
template <class T>
DEVICE void load_tile(float (*tile)[PAD], const T *qkv, int64_t b, int64_t head, int64_t first,
                      const attention_shape &s)
{
    int dh = (int)s.dh;
    for (int e = THREAD; e < QT * dh; e += ATTENTION_THREADS) {
        int64_t row = first + e / dh;
        tile[e / dh][e % dh] =
            row < s.N ? load(qkv, ((b * s.N + row) * (s.H + 2 * s.G) + head) * dh + e % dh) : 0.0f;
    }
}
template <class T>
DEVICE void load_rows(float (*tile)[PAD], const T *x, int64_t b, int64_t h, int64_t first,
                      const attention_shape &s)
{
    int dh = (int)s.dh;
    for (int e = THREAD; e < QT * dh; e += ATTENTION_THREADS) {
        int64_t row = first + e / dh;
        tile[e / dh][e % dh] = row < s.N ? load(x, ((b * s.N + row) * s.H + h) * dh + e % dh) : 0.0f;
    }
}
DEVICE float dot(const float *a, const float *b, int dh)
{
    float sum = 0;
    for (int d = 0; d < dh; d++) sum += a[d] * b[d];
    return sum;
}

template <class T> DEVICE void attention_forward(const T *qkv, T *out, float *lse, const attention_shape &m)
{
    SHARED float q[QT][PAD], k[KT][PAD], v[KT][PAD], s[QT][KT + 1], top[QT], total[QT], shrink[QT];
    int dh = (int)m.dh;
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, first = m.first + BLOCK_X * QT;
    float scale = 1.0f / sqrtf((float)dh), kept[KEEP] = {};
    range all = range_of<keys_of>(m, b, first, QT), mine = keys_of(m, b, first + THREAD % QT),
          keys = keys_of(m, b, first + THREAD / KT);
    load_tile(q, qkv, b, h, first, m);
    if (THREAD < QT) {
        top[THREAD] = -3e38f;
        total[THREAD] = 0;
    }
    for (int64_t j0 = all.first / KT * KT; j0 < all.end; j0 += KT) {
        barrier();
        load_tile(k, qkv, b, key_head(m, h), j0, m);
        load_tile(v, qkv, b, value_head(m, h), j0, m);
        barrier();
        int qi = THREAD / KT, kj = THREAD % KT; /* QT * KT == ATTENTION_THREADS */
        s[qi][kj] = inside(keys, j0 + kj) ? scale * dot(q[qi], k[kj], dh) : -3e38f;
        barrier();
        if (THREAD < QT) {
            float largest = top[THREAD];
            for (int j = 0; j < KT; j++) largest = s[THREAD][j] > largest ? s[THREAD][j] : largest;
            shrink[THREAD] = expf(top[THREAD] - largest);
            float sum = total[THREAD] * shrink[THREAD];
            for (int j = 0; j < KT; j++) {
                float p = inside(mine, j0 + j) ? expf(s[THREAD][j] - largest) : 0.0f;
                s[THREAD][j] = p;
                sum += p;
            }
            top[THREAD] = largest;
            total[THREAD] = sum;
        }
        barrier();
        for (int e = 0; e < KEEP; e++) {
            int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
            if (d >= dh) continue;
            float sum = kept[e] * shrink[i];
            for (int j = 0; j < KT; j++) sum += s[i][j] * v[j][d];
            kept[e] = sum;
        }
    }
    for (int e = 0; e < KEEP; e++) {
        int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
        if (d < dh && first + i < m.N)
            store(out, ((b * m.N + first + i) * m.H + h) * dh + d, kept[e] / total[i]);
    }
    if (THREAD < QT && first + THREAD < m.N)
        lse[(b * m.H + h) * m.N + first + THREAD] = top[THREAD] + logf(total[THREAD]);
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
template <class T>
DEVICE void attention_backward_q(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv,
                                 const attention_shape &m)
{
    SHARED float q[QT][PAD], g[QT][PAD], k[KT][PAD], v[KT][PAD], s[QT][KT + 1];
    int dh = (int)m.dh;
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, first = BLOCK_X * QT, stats = (b * m.H + h) * m.N;
    float scale = 1.0f / sqrtf((float)dh), kept[KEEP] = {};
    load_tile(q, qkv, b, h, first, m);
    load_rows(g, dout, b, h, first, m);
    int qi = THREAD / KT, kj = THREAD % KT;
    range all = range_of<keys_of>(m, b, first, QT), keys = keys_of(m, b, first + qi);
    float l = first + qi < m.N ? lse[stats + first + qi] : 0.0f,
          mean = first + qi < m.N ? delta[stats + first + qi] : 0.0f;
    for (int64_t j0 = all.first / KT * KT; j0 < all.end; j0 += KT) {
        barrier();
        load_tile(k, qkv, b, key_head(m, h), j0, m);
        load_tile(v, qkv, b, value_head(m, h), j0, m);
        barrier();
        float p = inside(keys, j0 + kj) ? expf(scale * dot(q[qi], k[kj], dh) - l) : 0.0f;
        s[qi][kj] = p * (dot(g[qi], v[kj], dh) - mean) * scale;
        barrier();
        for (int e = 0; e < KEEP; e++) {
            int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
            if (d >= dh) continue;
            float sum = kept[e];
            for (int j = 0; j < KT; j++) sum += s[i][j] * k[j][d];
            kept[e] = sum;
        }
    }
    for (int e = 0; e < KEEP; e++) {
        int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
        if (d < dh && first + i < m.N)
            store(dqkv, ((b * m.N + first + i) * (m.H + 2 * m.G) + h) * dh + d, kept[e]);
    }
}

/* dk, dv of KT keys: dv = sum over queries of p * dout, dk = sum of ds * q */
template <class T>
DEVICE void attention_backward_kv(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv,
                                  const attention_shape &m)
{
    SHARED float q[QT][PAD], g[QT][PAD], k[KT][PAD], v[KT][PAD], s[KT][QT + 1], t[KT][QT + 1];
    int dh = (int)m.dh;
    int64_t b = BLOCK_Y / m.G, kv = BLOCK_Y % m.G, first = BLOCK_X * KT, share = m.H / m.G;
    float scale = 1.0f / sqrtf((float)dh), dk[KEEP] = {}, dv[KEEP] = {};
    load_tile(k, qkv, b, m.H + kv, first, m);
    load_tile(v, qkv, b, m.H + m.G + kv, first, m);
    int ki = THREAD / QT, qj = THREAD % QT;
    range all = range_of<queries_of>(m, b, first, KT), queries = queries_of(m, b, first + ki);
    for (int64_t h = kv * share; h < (kv + 1) * share; h++)
        for (int64_t i0 = all.first / QT * QT; i0 < all.end; i0 += QT) {
            int64_t stats = (b * m.H + h) * m.N + i0 + qj;
            barrier();
            load_tile(q, qkv, b, h, i0, m);
            load_rows(g, dout, b, h, i0, m);
            barrier();
            bool real = inside(queries, i0 + qj);
            float p = real ? expf(scale * dot(q[qj], k[ki], dh) - lse[stats]) : 0.0f;
            s[ki][qj] = p;
            t[ki][qj] = real ? p * (dot(g[qj], v[ki], dh) - delta[stats]) * scale : 0.0f;
            barrier();
            for (int e = 0; e < KEEP; e++) {
                int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
                if (d >= dh) continue;
                float sum_k = dk[e], sum_v = dv[e];
                for (int j = 0; j < QT; j++) {
                    sum_v += s[i][j] * g[j][d];
                    sum_k += t[i][j] * q[j][d];
                }
                dk[e] = sum_k;
                dv[e] = sum_v;
            }
        }
    for (int e = 0; e < KEEP; e++) {
        int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
        if (d >= dh || first + i >= m.N) continue;
        int64_t row = (b * m.N + first + i) * (m.H + 2 * m.G) + m.H + kv;
        store(dqkv, row * dh + d, dk[e]);
        store(dqkv, (row + m.G) * dh + d, dv[e]);
    }
}

#define ATTENTION(suffix, T)                                                                                 \
    KERNEL(attention_forward_##suffix, const T *qkv, T *out, float *lse, attention_shape m)                  \
    {                                                                                                        \
        attention_forward(qkv, out, lse, m);                                                                 \
    }                                                                                                        \
    KERNEL(attention_backward_q_##suffix, const T *qkv, const float *lse, const float *delta, const T *dout, \
           T *dqkv, attention_shape m)                                                                       \
    {                                                                                                        \
        attention_backward_q(qkv, lse, delta, dout, dqkv, m);                                                \
    }                                                                                                        \
    KERNEL(attention_backward_kv_##suffix, const T *qkv, const float *lse, const float *delta,               \
           const T *dout, T *dqkv, attention_shape m)                                                        \
    {                                                                                                        \
        attention_backward_kv(qkv, lse, delta, dout, dqkv, m);                                               \
    }
ATTENTION(f32, float)
ATTENTION(bf16_plain, bf16)

#define DELTA(suffix, T)                                                                                     \
    KERNEL(attention_delta_##suffix, const T *out, const T *dout, float *delta, int64_t B, int64_t N,        \
           int64_t H, int64_t dh)                                                                            \
    {                                                                                                        \
        attention_delta(out, dout, delta, B, N, H, dh);                                                      \
    }
DELTA(f32, float)
DELTA(bf16, bf16)
