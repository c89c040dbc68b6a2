/* softmax(q k^T / sqrt(dh)) v and its gradient, tile by tile (Dao et al., FlashAttention, arXiv 2205.14135:
 * running maximum and sum forward; recomputed probabilities backward), for any N and any dh up to 128.
 *
 * Shapes and masks: struct attention. delta (B, H, N). A block processes one (sample, head) and QT queries
 * (forward, dq), or one (sample, key and value head) and KT keys with all query heads in order (dk, dv). It
 * reads the tiles from the first to the last key that one of its queries sees, or the other way round. No
 * N x N matrix is stored. Statistics and sums are fp32.
 *
 * bf16 uses matrix instructions on cards that have them, and on which matrix_check of gemm.hip passes; others
 * use the kernels with the suffix _plain. Each wave keeps 16 rows, their sums and statistics in registers,
 * and the waves of a block share tiles of the other operand. Probabilities and gradients of scores are
 * rounded to bf16 when they become operands. */
#include "kernels/attention_shape.h"
#include "kernels/gpu/matrix.h"

enum {
    QT = 16,
    KT = 16,
    DH = 128,
    PAD = DH + 1,
    ATTENTION_THREADS = 256,
    KEEP = QT * DH / ATTENTION_THREADS
};

/* From first to end; both never decrease with the token. */
struct range {
    int first, end;
};
/* Returns the keys that query i of a sample sees; none after row N. */
DEVICE range keys_of(const attention_shape &s, int64_t b, int64_t i)
{
    if (i >= s.N) return {0, 0};
    int64_t first = s.begins ? s.begins[b * s.N + i] : 0, end = s.ends ? s.ends[b * s.N + i] : s.N;
    if (s.window && first <= i - s.window) first = i - s.window + 1;
    if (s.causal && end > i + 1) end = i + 1;
    return {(int)first, (int)end};
}
/* Returns the queries that see key j; none after row N. */
DEVICE range queries_of(const attention_shape &s, int64_t b, int64_t j)
{
    if (j >= s.N) return {0, 0};
    int64_t first = s.begins ? s.begins[b * s.N + j] : 0, end = s.ends ? s.ends[b * s.N + j] : s.N;
    if (s.causal && first < j) first = j;
    if (s.window && end > j + s.window) end = j + s.window;
    return {(int)first, (int)end};
}
/* Returns the range of all of `count` tokens, the first of which is below N. */
template <range (*OF)(const attention_shape &, int64_t, int64_t)>
DEVICE range range_of(const attention_shape &s, int64_t b, int64_t first, int count)
{
    int64_t last = first + count < s.N ? first + count - 1 : s.N - 1;
    return {OF(s, b, first).first, OF(s, b, last).end};
}
DEVICE bool inside(const range &r, int64_t i) { return i >= r.first && i < r.end; }

/* The key and the value head of a query head in qkv, after the H query heads */
DEVICE int64_t key_head(const attention_shape &s, int64_t h) { return s.H + h / (s.H / s.G); }
DEVICE int64_t value_head(const attention_shape &s, int64_t h) { return key_head(s, h) + s.G; }

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

#if MEOPT_MATRIX
enum {
    MOST = DH / 16,
    FEW = 6,       /* parts of 16 of a row of q, k or v; those after dh are skipped */
    TALL = 64,     /* rows of a tile in shared memory */
    WIDE = DH + 8, /* elements per row: neighbouring rows start in different banks */
    TILE_CHUNKS = TALL * WIDE / 8,
    OWNED = ATTENTION_THREADS / WAVE * 16, /* rows of a block, two tiles at most; the grid is the plain
                                              kernels': blocks after row N return */
};

/* Rows of one head in memory: row i at x + i * step, `rows` rows from x on, dh elements each. */
struct span {
    const bf16 *x;
    int64_t step, rows;
    int dh;
};
DEVICE span qkv_span(const bf16 *qkv, int64_t b, int64_t head, int64_t first, const attention_shape &m)
{
    int64_t heads = m.H + 2 * m.G;
    return {qkv + ((b * m.N + first) * heads + head) * m.dh, heads * m.dh, m.N - first, (int)m.dh};
}
DEVICE span rows_span(const bf16 *x, int64_t b, int64_t h, int64_t first, const attention_shape &m)
{
    return {x + ((b * m.N + first) * m.H + h) * m.dh, m.H * m.dh, m.N - first, (int)m.dh};
}
/* Loads the first `tall` rows, with zeros after the last row up to a multiple of 16 rows and columns. */
DEVICE void tile_load(chunk *tile, const span &s, int tall)
{
    bool aligned = (uintptr_t)s.x % sizeof(chunk) == 0 && s.step % 8 == 0;
    int across = (s.dh + 15) / 16 * 2, down = s.rows < tall ? ((int)s.rows + 15) / 16 * 16 : tall;
    for (int e = THREAD; e < down * across; e += ATTENTION_THREADS) {
        int row = e / across, at = e % across;
        tile[row * (WIDE / 8) + at] = row < s.rows
                                          ? load_chunk(s.x + row * s.step + at * 8, s.dh - at * 8, aligned)
                                          : load_chunk(s.x, 0, false);
    }
}
/* Loads the wave's 16 of the block's first OWNED rows as operands, through the block's two tiles. */
template <int PARTS> DEVICE void factors_load(fragment (&f)[PARTS], chunk *tiles, const span &s)
{
    barrier();
    tile_load(tiles, s, OWNED);
    barrier();
    const bf16 *rows = (const bf16 *)tiles + THREAD / WAVE * 16 * WIDE;
    UNROLLED for (int d = 0; d < PARTS; d++) f[d] =
        16 * d < s.dh ? fragment_rows(rows + 16 * d, WIDE) : fragment{};
}
/* Stores the sum in the rows of s, relative to base. */
template <int PARTS> DEVICE void sums_store(bf16 *base, const span &s, const result (&sum)[PARTS])
{
    bf16 *x = base + (s.x - base);
    UNROLLED for (int d = 0; d < PARTS; d++) UNROLLED for (int i = 0; i < FRAGMENT; i++)
    {
        int64_t row = fragment_row(i);
        int column = 16 * d + fragment_column(i);
        if (row < s.rows && column < s.dh) store(x, row * s.step + column, sum[d].at[i]);
    }
}
/* Multiplies 16 rows of an operand by 16 rows of a tile, over dh. */
template <int PARTS> DEVICE result scores(const fragment (&f)[PARTS], const chunk *tile, int row, int parts)
{
    result sum = {};
    UNROLLED for (int d = 0; d < PARTS; d++) if (d < parts)
        multiply(sum, f[d], partner_rows((const bf16 *)tile + row * WIDE + 16 * d, WIDE));
    return sum;
}
/* sum += weights (16 x 16 rows of the tile) times those rows */
template <int PARTS>
DEVICE void add_rows(result (&sum)[PARTS], const fragment &weights, const chunk *tile, int row, int parts)
{
    UNROLLED for (int d = 0; d < PARTS; d++) if (d < parts)
        multiply(sum[d], weights, partner_columns((const bf16 *)tile + row * WIDE + 16 * d, WIDE));
}

/* Returns whether any of 16 rows from i on are in the range. */
DEVICE bool touches(const range &r, int64_t i) { return i + 16 > r.first && i < r.end; }

DEVICE void attention_forward(const bf16 *qkv, bf16 *out, float *lse, const attention_shape &m)
{
    SHARED chunk tiles[2 * TILE_CHUNKS];
    chunk *k = tiles, *v = tiles + TILE_CHUNKS;
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, start = m.first + BLOCK_X * OWNED,
            first = start + THREAD / WAVE * 16;
    if (start >= m.N) return;
    int parts = ((int)m.dh + 15) / 16;
    float scale = 1.0f / sqrtf((float)m.dh), top[LANE_ROWS], total[LANE_ROWS] /* of this lane's columns */;
    range all = range_of<keys_of>(m, b, start, OWNED), wave = {0, 0}, keys[LANE_ROWS];
    fragment q[MOST];
    result sum[MOST] = {};
    factors_load(q, tiles, qkv_span(qkv, b, h, start, m));
    if (first < m.N) wave = range_of<keys_of>(m, b, first, 16);
    UNROLLED for (int i = 0; i < FRAGMENT; i++) keys[lane_row(i)] = keys_of(m, b, first + fragment_row(i));
    UNROLLED for (int r = 0; r < LANE_ROWS; r++)
    {
        top[r] = -3e38f;
        total[r] = 0;
    }
    for (int64_t j0 = all.first / TALL * TALL; j0 < all.end; j0 += TALL) {
        barrier();
        tile_load(k, qkv_span(qkv, b, key_head(m, h), j0, m), TALL);
        tile_load(v, qkv_span(qkv, b, value_head(m, h), j0, m), TALL);
        barrier();
        if (first >= m.N) continue;
        result s[TALL / 16];
        float largest[LANE_ROWS], shrink[LANE_ROWS];
        UNROLLED for (int r = 0; r < LANE_ROWS; r++) largest[r] = top[r];
        UNROLLED for (int j = 0; j < TALL / 16; j++)
        {
            if (touches(wave, j0 + 16 * j)) s[j] = scores(q, k, 16 * j, parts);
            UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                float x = inside(keys[lane_row(i)], j0 + 16 * j + fragment_column(i)) ? scale * s[j].at[i]
                                                                                      : -3e38f,
                      &l = largest[lane_row(i)];
                s[j].at[i] = x;
                l = x > l ? x : l;
            }
        }
        UNROLLED for (int r = 0; r < LANE_ROWS; r++)
        {
            largest[r] = row_max(largest[r]);
            shrink[r] = expf(top[r] - largest[r]);
            top[r] = largest[r];
            total[r] *= shrink[r];
        }
        UNROLLED for (int d = 0; d < MOST; d++) UNROLLED for (int i = 0; i < FRAGMENT; i++) sum[d].at[i] *=
            shrink[lane_row(i)];
        UNROLLED for (int j = 0; j < TALL / 16; j++)
        {
            if (!touches(wave, j0 + 16 * j)) continue;
            UNROLLED for (int i = 0; i < FRAGMENT; i++)
            { /* 0 where there is no key, also before the row's first */
                float x = s[j].at[i], p = x > -3e38f ? expf(x - top[lane_row(i)]) : 0.0f;
                s[j].at[i] = p;
                total[lane_row(i)] += p;
            }
            add_rows(sum, fragment_of(s[j]), v, 16 * j, parts);
        }
    }
    if (first >= m.N) return;
    UNROLLED for (int r = 0; r < LANE_ROWS; r++) total[r] = row_sum(total[r]);
    UNROLLED for (int d = 0; d < MOST; d++) UNROLLED for (int i = 0; i < FRAGMENT; i++) sum[d].at[i] /=
        total[lane_row(i)];
    sums_store(out, rows_span(out, b, h, first, m), sum);
    UNROLLED for (int i = 0; i < FRAGMENT; i++)
    { /* lanes with column 0 */
        int64_t row = first + fragment_row(i);
        if (fragment_column(i) == 0 && row < m.N)
            lse[(b * m.H + h) * m.N + row] = top[lane_row(i)] + logf(total[lane_row(i)]);
    }
}

DEVICE void attention_backward_q(const bf16 *qkv, const float *lse, const float *delta, const bf16 *dout,
                                 bf16 *dqkv, const attention_shape &m)
{
    SHARED chunk tiles[2 * TILE_CHUNKS];
    chunk *k = tiles, *v = tiles + TILE_CHUNKS;
    if (BLOCK_X * OWNED >= m.N) return;
    int64_t b = BLOCK_Y / m.H, h = BLOCK_Y % m.H, start = BLOCK_X * OWNED, first = start + THREAD / WAVE * 16,
            stats = (b * m.H + h) * m.N;
    int parts = ((int)m.dh + 15) / 16;
    float scale = 1.0f / sqrtf((float)m.dh), l[LANE_ROWS], mean[LANE_ROWS];
    range all = range_of<keys_of>(m, b, start, OWNED), wave = {0, 0}, keys[LANE_ROWS];
    fragment q[MOST], g[MOST];
    result sum[MOST] = {};
    factors_load(q, tiles, qkv_span(qkv, b, h, start, m));
    factors_load(g, tiles, rows_span(dout, b, h, start, m));
    if (first < m.N) wave = range_of<keys_of>(m, b, first, 16);
    UNROLLED for (int i = 0; i < FRAGMENT; i++)
    {
        int64_t row = first + fragment_row(i);
        l[lane_row(i)] = row < m.N ? lse[stats + row] : 0.0f;
        mean[lane_row(i)] = row < m.N ? delta[stats + row] : 0.0f;
        keys[lane_row(i)] = keys_of(m, b, row);
    }
    for (int64_t j0 = all.first / TALL * TALL; j0 < all.end; j0 += TALL) {
        barrier();
        tile_load(k, qkv_span(qkv, b, key_head(m, h), j0, m), TALL);
        tile_load(v, qkv_span(qkv, b, value_head(m, h), j0, m), TALL);
        barrier();
        if (first >= m.N) continue;
        ROLLED for (int j = 0; j < TALL / 16; j++)
        {
            if (!touches(wave, j0 + 16 * j)) continue;
            result s = scores(q, k, 16 * j, parts), ds = scores(g, v, 16 * j, parts);
            UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                float p = inside(keys[lane_row(i)], j0 + 16 * j + fragment_column(i))
                              ? expf(scale * s.at[i] - l[lane_row(i)])
                              : 0.0f;
                ds.at[i] = p * (ds.at[i] - mean[lane_row(i)]) * scale;
            }
            add_rows(sum, fragment_of(ds), k, 16 * j, parts);
        }
    }
    sums_store(dqkv, qkv_span(dqkv, b, h, first, m), sum);
}

/* Computes dk, dv, or both, for dh up to 16 PARTS. */
template <int PARTS, bool DK, bool DV>
DEVICE void backward_kv(chunk *tiles, float *l, float *mean, const bf16 *qkv, const float *lse,
                        const float *delta, const bf16 *dout, bf16 *dqkv, const attention_shape &m)
{
    chunk *q = tiles, *g = tiles + TILE_CHUNKS;
    int64_t b = BLOCK_Y / m.G, kv = BLOCK_Y % m.G, start = BLOCK_X * OWNED,
            first = start + THREAD / WAVE * 16, share = m.H / m.G;
    int parts = ((int)m.dh + 15) / 16;
    float scale = 1.0f / sqrtf((float)m.dh);
    range all = range_of<queries_of>(m, b, start, OWNED), wave = {0, 0}, queries[LANE_ROWS];
    fragment k[PARTS], v[PARTS];
    result dk[PARTS] = {}, dv[PARTS] = {};
    factors_load(k, tiles, qkv_span(qkv, b, m.H + kv, start, m));
    if (DK) factors_load(v, tiles, qkv_span(qkv, b, m.H + m.G + kv, start, m));
    if (first < m.N) wave = range_of<queries_of>(m, b, first, 16);
    UNROLLED for (int i = 0; i < FRAGMENT; i++) queries[lane_row(i)] =
        queries_of(m, b, first + fragment_row(i));
    for (int64_t h = kv * share; h < (kv + 1) * share; h++)
        for (int64_t i0 = all.first / TALL * TALL; i0 < all.end; i0 += TALL) {
            int64_t stats = (b * m.H + h) * m.N + i0;
            barrier();
            tile_load(q, qkv_span(qkv, b, h, i0, m), TALL);
            tile_load(g, rows_span(dout, b, h, i0, m), TALL);
            if (THREAD < TALL && i0 + THREAD < m.N) {
                l[THREAD] = lse[stats + THREAD];
                mean[THREAD] = delta[stats + THREAD];
            }
            barrier();
            if (first >= m.N) continue;
            ROLLED for (int j = 0; j < TALL / 16; j++)
            {
                if (!touches(wave, i0 + 16 * j)) continue;
                result s = scores(k, q, 16 * j, parts), ds = {};
                if (DK) ds = scores(v, g, 16 * j, parts);
                UNROLLED for (int i = 0; i < FRAGMENT; i++)
                {
                    int query = 16 * j + fragment_column(i);
                    bool real = inside(queries[lane_row(i)], i0 + query);
                    float p = real ? expf(scale * s.at[i] - l[query]) : 0.0f;
                    s.at[i] = p;
                    ds.at[i] = real ? p * (ds.at[i] - mean[query]) * scale : 0.0f;
                }
                if (DV) add_rows(dv, fragment_of(s), g, 16 * j, parts);
                if (DK) add_rows(dk, fragment_of(ds), q, 16 * j, parts);
            }
        }
    if (DK) sums_store(dqkv, qkv_span(dqkv, b, m.H + kv, first, m), dk);
    if (DV) sums_store(dqkv, qkv_span(dqkv, b, m.H + m.G + kv, first, m), dv);
}
/* With more than FEW parts, both sums exceed the registers of a lane with wave 32: computes one after the
 * other. */
DEVICE void attention_backward_kv(const bf16 *qkv, const float *lse, const float *delta, const bf16 *dout,
                                  bf16 *dqkv, const attention_shape &m)
{
    SHARED chunk tiles[2 * TILE_CHUNKS];
    SHARED float l[TALL], mean[TALL];
    if (BLOCK_X * OWNED >= m.N) return;
    if (m.dh <= 16 * FEW) {
        backward_kv<FEW, true, true>(tiles, l, mean, qkv, lse, delta, dout, dqkv, m);
        return;
    }
    backward_kv<MOST, false, true>(tiles, l, mean, qkv, lse, delta, dout, dqkv, m);
    backward_kv<MOST, true, false>(tiles, l, mean, qkv, lse, delta, dout, dqkv, m);
}
#endif

/* PATH: the implementation of the arch for T, or the plain one of T */
#define ATTENTION(suffix, T, PATH)                                                                           \
    KERNEL(attention_forward_##suffix, const T *qkv, T *out, float *lse, attention_shape m)                  \
    {                                                                                                        \
        attention_forward PATH(qkv, out, lse, m);                                                            \
    }                                                                                                        \
    KERNEL(attention_backward_q_##suffix, const T *qkv, const float *lse, const float *delta, const T *dout, \
           T *dqkv, attention_shape m)                                                                       \
    {                                                                                                        \
        attention_backward_q PATH(qkv, lse, delta, dout, dqkv, m);                                           \
    }                                                                                                        \
    KERNEL(attention_backward_kv_##suffix, const T *qkv, const float *lse, const float *delta,               \
           const T *dout, T *dqkv, attention_shape m)                                                        \
    {                                                                                                        \
        attention_backward_kv PATH(qkv, lse, delta, dout, dqkv, m);                                          \
    }
ATTENTION(f32, float, )
ATTENTION(bf16, bf16, )
ATTENTION(bf16_plain, bf16, <bf16>)

#define DELTA(suffix, T)                                                                                     \
    KERNEL(attention_delta_##suffix, const T *out, const T *dout, float *delta, int64_t B, int64_t N,        \
           int64_t H, int64_t dh)                                                                            \
    {                                                                                                        \
        attention_delta(out, dout, delta, B, N, H, dh);                                                      \
    }
DELTA(f32, float)
DELTA(bf16, bf16)
