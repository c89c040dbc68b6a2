/* softmax(q k^T / sqrt(dh)) v and its gradient, tile by tile (Dao et al., FlashAttention, arXiv 2205.14135: running
 * maximum and sum forward; recomputed probabilities backward), for any N and any dh up to 128.
 *
 * qkv (B, N, 3, H, dh); out, dout (B, N, H, dh); lse, delta (B, H, N). A block owns one (image, head) and QT queries
 * (forward, dq) or KT keys (dk, dv). Nothing of size N x N exists. Statistics and sums are fp32. */
#include "kernels/gpu/vendor.h"

enum { QT = 16, KT = 16, DH = 128, PAD = DH + 1, ATTENTION_THREADS = 256, KEEP = QT * DH / ATTENTION_THREADS };

/* rows x dh of q, k or v (which 0, 1, 2) into shared memory, zeros behind row N */
template <class T>
DEVICE void load_tile(float (*tile)[PAD], const T *qkv, int which, int64_t b, int64_t h, int64_t first, int64_t N, int64_t H, int dh)
{
    for (int e = THREAD; e < QT * dh; e += ATTENTION_THREADS) {
        int64_t row = first + e / dh;
        tile[e / dh][e % dh] = row < N ? load(qkv, (((b * N + row) * 3 + which) * H + h) * dh + e % dh) : 0.0f;
    }
}
template <class T>
DEVICE void load_rows(float (*tile)[PAD], const T *x, int64_t b, int64_t h, int64_t first, int64_t N, int64_t H, int dh)
{
    for (int e = THREAD; e < QT * dh; e += ATTENTION_THREADS) {
        int64_t row = first + e / dh;
        tile[e / dh][e % dh] = row < N ? load(x, ((b * N + row) * H + h) * dh + e % dh) : 0.0f;
    }
}
DEVICE float dot(const float *a, const float *b, int dh)
{
    float sum = 0;
    for (int d = 0; d < dh; d++) sum += a[d] * b[d];
    return sum;
}

template <class T> DEVICE void attention_forward(const T *qkv, T *out, float *lse, int64_t N, int64_t H, int dh)
{
    SHARED float q[QT][PAD], k[KT][PAD], v[KT][PAD], s[QT][KT + 1], top[QT], total[QT], shrink[QT];
    int64_t b = BLOCK_Y / H, h = BLOCK_Y % H, first = BLOCK_X * QT;
    float scale = 1.0f / sqrtf((float)dh), kept[KEEP] = {};
    load_tile(q, qkv, 0, b, h, first, N, H, dh);
    if (THREAD < QT) {
        top[THREAD] = -3e38f;
        total[THREAD] = 0;
    }
    for (int64_t j0 = 0; j0 < N; j0 += KT) {
        barrier();
        load_tile(k, qkv, 1, b, h, j0, N, H, dh);
        load_tile(v, qkv, 2, b, h, j0, N, H, dh);
        barrier();
        int qi = THREAD / KT, kj = THREAD % KT; /* QT * KT == ATTENTION_THREADS */
        s[qi][kj] = j0 + kj < N ? scale * dot(q[qi], k[kj], dh) : -3e38f;
        barrier();
        if (THREAD < QT) {
            float largest = top[THREAD];
            for (int j = 0; j < KT; j++) largest = s[THREAD][j] > largest ? s[THREAD][j] : largest;
            shrink[THREAD] = expf(top[THREAD] - largest);
            float sum = total[THREAD] * shrink[THREAD];
            for (int j = 0; j < KT; j++) {
                float p = j0 + j < N ? expf(s[THREAD][j] - largest) : 0.0f;
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
    barrier();
    for (int e = 0; e < KEEP; e++) {
        int at = THREAD + e * ATTENTION_THREADS, i = at / DH, d = at % DH;
        if (d < dh && first + i < N) store(out, ((b * N + first + i) * H + h) * dh + d, kept[e] / total[i]);
    }
    if (THREAD < QT && first + THREAD < N) lse[(b * H + h) * N + first + THREAD] = top[THREAD] + logf(total[THREAD]);
}

/* delta = sum over dh of dout * out; one thread a (image, head, row) */
template <class T> DEVICE void attention_delta(const T *out, const T *dout, float *delta, int64_t B, int64_t N, int64_t H, int64_t dh)
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
DEVICE void attention_backward_q(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv, int64_t N, int64_t H, int dh)
{
    SHARED float q[QT][PAD], g[QT][PAD], k[KT][PAD], v[KT][PAD], s[QT][KT + 1];
    int64_t b = BLOCK_Y / H, h = BLOCK_Y % H, first = BLOCK_X * QT, stats = (b * H + h) * N;
    float scale = 1.0f / sqrtf((float)dh), kept[KEEP] = {};
    load_tile(q, qkv, 0, b, h, first, N, H, dh);
    load_rows(g, dout, b, h, first, N, H, dh);
    int qi = THREAD / KT, kj = THREAD % KT;
    float l = first + qi < N ? lse[stats + first + qi] : 0.0f, mean = first + qi < N ? delta[stats + first + qi] : 0.0f;
    for (int64_t j0 = 0; j0 < N; j0 += KT) {
        barrier();
        load_tile(k, qkv, 1, b, h, j0, N, H, dh);
        load_tile(v, qkv, 2, b, h, j0, N, H, dh);
        barrier();
        float p = j0 + kj < N && first + qi < N ? expf(scale * dot(q[qi], k[kj], dh) - l) : 0.0f;
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
        if (d < dh && first + i < N) store(dqkv, (((b * N + first + i) * 3 + 0) * H + h) * dh + d, kept[e]);
    }
}

/* dk, dv of KT keys: dv = sum over queries of p * dout, dk = sum of ds * q */
template <class T>
DEVICE void attention_backward_kv(const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv, int64_t N, int64_t H, int dh)
{
    SHARED float q[QT][PAD], g[QT][PAD], k[KT][PAD], v[KT][PAD], s[KT][QT + 1], t[KT][QT + 1];
    int64_t b = BLOCK_Y / H, h = BLOCK_Y % H, first = BLOCK_X * KT, stats = (b * H + h) * N;
    float scale = 1.0f / sqrtf((float)dh), dk[KEEP] = {}, dv[KEEP] = {};
    load_tile(k, qkv, 1, b, h, first, N, H, dh);
    load_tile(v, qkv, 2, b, h, first, N, H, dh);
    int ki = THREAD / QT, qj = THREAD % QT;
    for (int64_t i0 = 0; i0 < N; i0 += QT) {
        barrier();
        load_tile(q, qkv, 0, b, h, i0, N, H, dh);
        load_rows(g, dout, b, h, i0, N, H, dh);
        barrier();
        bool real = i0 + qj < N && first + ki < N;
        float p = real ? expf(scale * dot(q[qj], k[ki], dh) - lse[stats + i0 + qj]) : 0.0f;
        s[ki][qj] = p;
        t[ki][qj] = real ? p * (dot(g[qj], v[ki], dh) - delta[stats + i0 + qj]) * scale : 0.0f;
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
        if (d >= dh || first + i >= N) continue;
        store(dqkv, (((b * N + first + i) * 3 + 1) * H + h) * dh + d, dk[e]);
        store(dqkv, (((b * N + first + i) * 3 + 2) * H + h) * dh + d, dv[e]);
    }
}

#define ATTENTION(suffix, T)                                                                                           \
    KERNEL(attention_forward_##suffix, const T *qkv, T *out, float *lse, int64_t N, int64_t H, int dh)                 \
    {                                                                                                                  \
        attention_forward(qkv, out, lse, N, H, dh);                                                                    \
    }                                                                                                                  \
    KERNEL(attention_delta_##suffix, const T *out, const T *dout, float *delta, int64_t B, int64_t N, int64_t H, int64_t dh)   \
    {                                                                                                                  \
        attention_delta(out, dout, delta, B, N, H, dh);                                                                \
    }                                                                                                                  \
    KERNEL(attention_backward_q_##suffix, const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv,  \
           int64_t N, int64_t H, int dh)                                                                               \
    {                                                                                                                  \
        attention_backward_q(qkv, lse, delta, dout, dqkv, N, H, dh);                                                   \
    }                                                                                                                  \
    KERNEL(attention_backward_kv_##suffix, const T *qkv, const float *lse, const float *delta, const T *dout, T *dqkv, \
           int64_t N, int64_t H, int dh)                                                                               \
    {                                                                                                                  \
        attention_backward_kv(qkv, lse, delta, dout, dqkv, N, H, dh);                                                  \
    }
ATTENTION(f32, float)
ATTENTION(bf16, bf16)
