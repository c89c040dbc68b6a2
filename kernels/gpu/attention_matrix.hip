/* Attention of bf16 by matrix instructions, on cards that have them and on which matrix_check of gemm.hip
 * passes; see attention.hip for what is computed. A kernel for each width of heads (PARTS of 16 columns; dh
 * may be less, a multiple of 8); all tensors begin at multiples of 16 bytes.
 *
 * A block is four waves. Each has rows of its own (queries, or in attention_backward_kv keys), their sums and
 * statistics in registers, and all share tiles of TALL rows of two other operands. A tile is on its way to
 * shared memory, or to registers, while the one before it is used. Probabilities and gradients of scores are
 * rounded to bf16 when they become operands. exp(x) is 2^(x log2(e)), with that factor in the scale of
 * scores. A mask is applied only in tiles that a row of the wave does not see whole. */
#include "kernels/gpu/attention_range.h"
#include "kernels/gpu/matrix.h"

#if MEOPT_MATRIX
enum { BLOCK_WAVES = 4, BLOCK = BLOCK_WAVES * WAVE, BUFFERS = ASYNC ? 2 : 1 };
#define LOG2_E 1.44269504f
#define LN_2   0.693147182f

/* Elements in memory as words: memcpy of nvcc takes single bytes. */
typedef uint32_t __attribute__((may_alias)) word;
struct alignas(2 * RUN) words {
    uint32_t at[RUN / 2];
} __attribute__((may_alias));

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

/* A tile in shared memory. Neighbouring rows begin in different banks. */
template <int PARTS, int TALL> struct tile {
    enum { ACROSS = 2 * PARTS, WIDE = 16 * PARTS + 8, CHUNKS = TALL * ACROSS };
    chunk at[TALL * WIDE / 8];
    DEVICE_METHOD const bf16 *part(int row, int column) const
    {
        return (const bf16 *)at + row * WIDE + column;
    }
};
/* Tiles of two operands, of which the next is on its way while one is used. A thread brings every SHARE-th
 * chunk of the same row of both, which are counted one after the other. What is after the last row and column
 * is 0 or any other chunk of the operand: those rows are masked, and those columns multiplied by 0, or not
 * stored. */
template <int PARTS, int TALL> struct tiles {
    using part = tile<PARTS, TALL>;
    enum { SHARE = BLOCK / TALL, EACH = 2 * part::ACROSS / SHARE };
    static_assert(EACH * SHARE == 2 * part::ACROSS, "");
    using pair = part[2];
    pair *buffers;
    const bf16 *any;                 /* of what may be read */
    const bf16 *from[2];             /* this thread's first chunk of the next tile, in each operand */
    int step[2], rows, columns, now; /* to the end, from that chunk on */
    chunk held[ASYNC ? 1 : EACH];
    DEVICE_METHOD tiles(pair *shared, const span &a, const span &b) : buffers(shared), any(a.x), now(0)
    {
        int row = THREAD / SHARE, column = THREAD % SHARE * 8;
        from[0] = a.x + row * a.step + column;
        from[1] = b.x + row * b.step + column;
        step[0] = (int)a.step;
        step[1] = (int)b.step;
        rows = (int)a.rows - row;
        columns = a.dh - column;
    }
    /* Returns whether this thread's chunk i is one of the second operand. */
    DEVICE_METHOD static bool second(int i)
    {
        int first = i * SHARE;
        return first >= part::ACROSS ||
               (first + SHARE > part::ACROSS && THREAD % SHARE >= part::ACROSS - first);
    }
    DEVICE_METHOD chunk &place(int buffer, int i) const
    {
        enum { ROW = part::WIDE / 8, BACK = part::ACROSS };
        int first = THREAD / SHARE * ROW + THREAD % SHARE + i * SHARE;
        /* One place in two forms: sm_100 spills by the first one, AMD has more registers by the second. */
        chunk *both = (chunk *)buffers[buffer];
        if (!ASYNC) return both[first + (second(i) ? TALL * ROW - BACK : 0)];
        return buffers[buffer][second(i)].at[first - (second(i) ? BACK : 0)];
    }
    DEVICE_METHOD void skip(int count)
    {
        UNROLLED for (int which = 0; which < 2; which++) from[which] += (int64_t)count * step[which];
        rows -= count;
    }
    DEVICE_METHOD void begin()
    {
        UNROLLED for (int i = 0; i < EACH; i++)
        {
            int column = 8 * (i * SHARE - (second(i) ? part::ACROSS : 0));
            const bf16 *x = (second(i) ? from[1] : from[0]) + column;
            bool real = (rows > 0) & (column < columns);
            if (ASYNC) copy_async(&place(now ^ 1, i), x, real);
            else held[i] = load_chunk(real ? x : any, 8, true);
        }
        skip(TALL);
    }
    /* The next tiles become the current ones; every thread calls it, and then barrier(). */
    DEVICE_METHOD void turn()
    {
        if (ASYNC) {
            now ^= 1;
            copies_wait();
            return;
        }
        barrier();
        UNROLLED for (int i = 0; i < EACH; i++) place(now, i) = held[ASYNC ? 0 : i];
    }
    DEVICE_METHOD const part &operator[](int i) const { return buffers[now][i]; }
};
/* Loads 16 rows from `row` on, and zeros after the last row and column. */
template <int PARTS> DEVICE void factors_load(fragment (&f)[PARTS], const span &s, int row)
{
    UNROLLED for (int d = 0; d < PARTS; d++) UNROLLED for (int i = 0; i < FRAGMENT; i += RUN)
    {
        int64_t r = row + fragment_row(i);
        int column = 16 * d + fragment_column(i);
        words x = {};
        if (r < s.rows && column < s.dh) x = *(const words *)(s.x + r * s.step + column);
        UNROLLED for (int p = 0; p < RUN / 2; p++) f[d].pair[i / 2 + p] = x.at[p];
    }
}
/* Stores the same rows in the wave's own tile. */
template <int PARTS> DEVICE void factors_store(tile<PARTS, 16> &t, const span &s, int row)
{
    for (int e = THREAD % WAVE; e < t.CHUNKS; e += WAVE) {
        int r = e / t.ACROSS, at = e % t.ACROSS;
        bool real = row + r < s.rows && at * 8 < s.dh;
        t.at[r * (t.WIDE / 8) + at] = real ? load_chunk(s.x + (row + r) * s.step + at * 8, 8, true) : chunk{};
    }
}
/* Stores `factor` of the lane's rows times the sums of add_rows into the rows of s, relative to base. */
template <int PARTS>
DEVICE void sums_store(bf16 *base, const span &s, int first, const result (&sum)[PARTS],
                       const float (&factor)[LANE_ROWS])
{
    bf16 *x = base + (s.x - base);
    UNROLLED for (int d = 0; d < PARTS; d++) UNROLLED for (int i = 0; i < FRAGMENT; i++)
    {
        bool grouped = group_of(PARTS, d) > 1; /* neighbours in a row are of two parts, else of one */
        if ((grouped ? d : i) % 2) continue;
        int64_t row = first + fragment_row(i);
        int column = grouped_column(PARTS, d, i);
        float f = factor[lane_row(i)], next = grouped ? sum[d + grouped].at[i] : sum[d].at[i + !grouped];
        uint32_t pair = bf16_pair(f * sum[d].at[i], f * next);
        if (row < s.rows && column < s.dh) *(word *)(x + row * s.step + column) = pair;
    }
}
/* Loads numbers of the lane's columns of a sum, of 16 from `at` on. */
DEVICE void columns_load(float (&x)[FRAGMENT], const float *at)
{
    UNROLLED for (int i = 0; i < FRAGMENT; i += RUN)
        __builtin_memcpy(&x[i], __builtin_assume_aligned(at + fragment_column(i), 4 * RUN), 4 * RUN);
}
/* Part d of 16 rows of a first operand, in registers or, where these are short, in a tile */
template <int PARTS> DEVICE const fragment &factor_part(const fragment (&f)[PARTS], int d) { return f[d]; }
template <int PARTS> DEVICE fragment factor_part(const tile<PARTS, 16> &t, int d)
{
    return fragment_rows(t.part(0, 16 * d), t.WIDE);
}
/* Multiplies 16 rows of an operand each by rows of a tile, over dh. */
template <int PARTS, int TALL, int DOWN, int STEPS, class F>
DEVICE void scores(result (&s)[DOWN][STEPS], const F *f, const tile<PARTS, TALL> &t, int row)
{
    UNROLLED for (int j = 0; j < STEPS; j++) UNROLLED for (int d = 0; d < PARTS; d++)
    {
        partner rows = partner_rows(t.part(row + 16 * j, 16 * d), t.WIDE);
        UNROLLED for (int w = 0; w < DOWN; w++) multiply(s[w][j], factor_part(f[w], d), rows);
    }
}
/* sum += weights (16 x 16 rows of the tile each) times those rows */
template <int PARTS, int TALL, int DOWN, int BEGIN = 0>
DEVICE void add_rows(result (&sum)[DOWN][PARTS], const fragment (&weights)[DOWN], const tile<PARTS, TALL> &t,
                     int row)
{
    constexpr int GROUP = group_of(PARTS, BEGIN);
    partner columns[GROUP];
    partner_columns(columns, t.part(row, 16 * BEGIN), t.WIDE);
    UNROLLED for (int p = 0; p < GROUP; p++) UNROLLED for (int w = 0; w < DOWN; w++)
        multiply(sum[w][BEGIN + p], weights[w], columns[p]);
    if constexpr (BEGIN + GROUP < PARTS) add_rows<PARTS, TALL, DOWN, BEGIN + GROUP>(sum, weights, t, row);
}

/* What each of a block's rows from `start` on sees, in shared memory, to be read after a barrier. Rows of a
 * wave after row N - 1 see what that one sees; a wave after it sees nothing. */
template <range (*OF)(const attention_shape &, int64_t, int64_t), int ROWS> struct ranges {
    const range *seen; /* of the wave's rows */
    DEVICE_METHOD ranges(range (&shared)[BLOCK_WAVES * ROWS], const attention_shape &m, int64_t b, int start)
        : seen(shared + THREAD / WAVE * ROWS)
    {
        int end = (int)m.N - start;
        for (int e = THREAD; e < BLOCK_WAVES * ROWS; e += BLOCK)
            shared[e] = OF(m, b, start + (e < end || e / ROWS * ROWS >= end ? e : end - 1));
    }
    /* Returns whether a row sees any of `count` columns from j on. `&`: && would branch. */
    DEVICE_METHOD bool any(int j, int count) const
    {
        return agreed((j + count > seen[0].first) & (j < seen[ROWS - 1].end));
    }
    /* Returns whether each row sees all of them. */
    DEVICE_METHOD bool all(int j, int count) const
    {
        return agreed((j >= seen[ROWS - 1].first) & (j + count <= seen[0].end));
    }
};
/* Columns from `column` on that a row does not see become -inf; seen: of 16 rows. */
DEVICE void mask(result &s, const range *seen, int column)
{
    UNROLLED for (int i = 0; i < FRAGMENT; i++)
    {
        bool sees = inside(seen[fragment_row(i)], column + fragment_column(i));
        s.at[i] = sees ? s.at[i] : -INFINITY;
    }
}

template <int PARTS, int DOWN, int TALL>
DEVICE void attention_forward(const bf16 *qkv, bf16 *out, float *lse, const attention_shape &m)
{
    enum { ROWS = 16 * DOWN, OWNED = BLOCK_WAVES * ROWS, STEPS = TALL / 16 };
    SHARED tile<PARTS, TALL> buffers[BUFFERS][2];
    SHARED range keys[OWNED];
    int heads = (int)m.H, b = (int)BLOCK_Y / heads, h = (int)BLOCK_Y % heads,
        blocks = (int)(m.N - m.first + OWNED - 1) / OWNED;
    if (BLOCK_X >= blocks) return;
    /* Blocks of the last rows come first: with a causal mask they take longest. */
    int start = (int)m.first + (blocks - 1 - (int)BLOCK_X) * OWNED, own = THREAD / WAVE * ROWS;
    range all = range_of<keys_of>(m, b, start, OWNED);
    ranges<keys_of, ROWS> wave(keys, m, b, start);
    float factor = LOG2_E / sqrtf((float)m.dh), top[DOWN][LANE_ROWS], total[DOWN][LANE_ROWS];
    fragment q[DOWN][PARTS];
    result sum[DOWN][PARTS] = {};
    int j0 = all.first / TALL * TALL;
    tiles<PARTS, TALL> kv(buffers, qkv_span(qkv, b, key_head(m, h), j0, m),
                          qkv_span(qkv, b, value_head(m, h), j0, m));
    kv.begin();
    UNROLLED for (int w = 0; w < DOWN; w++)
    {
        factors_load(q[w], qkv_span(qkv, b, h, start, m), own + 16 * w);
        UNROLLED for (int r = 0; r < LANE_ROWS; r++)
        {
            top[w][r] = -INFINITY;
            total[w][r] = 0; /* of this lane's columns */
        }
    }
    for (; j0 < all.end; j0 += TALL) {
        kv.turn();
        barrier();
        if (j0 + TALL < all.end) kv.begin();
        if (!wave.any(j0, TALL)) continue;
        result s[DOWN][STEPS] = {};
        scores(s, q, kv[0], 0);
        if (!wave.all(j0, TALL))
            UNROLLED for (int w = 0; w < DOWN; w++) UNROLLED for (int j = 0; j < STEPS; j++)
                mask(s[w][j], wave.seen + 16 * w, j0 + 16 * j);
        UNROLLED for (int w = 0; w < DOWN; w++)
        {
            float largest[LANE_ROWS], shrink[LANE_ROWS], base[LANE_ROWS];
            UNROLLED for (int r = 0; r < LANE_ROWS; r++) largest[r] = -INFINITY;
            UNROLLED for (int j = 0; j < STEPS; j++) UNROLLED for (int i = 0; i < FRAGMENT; i++)
                largest[lane_row(i)] = fmaxf(largest[lane_row(i)], s[w][j].at[i]);
            UNROLLED for (int r = 0; r < LANE_ROWS; r++)
            {
                largest[r] = fmaxf(top[w][r], row_max(largest[r]) * factor);
                base[r] = largest[r] > -INFINITY ? largest[r] : 0.0f; /* no key yet */
                shrink[r] = power_of_2(top[w][r] - base[r]);
                top[w][r] = largest[r];
                total[w][r] *= shrink[r];
            }
            UNROLLED for (int d = 0; d < PARTS; d++) UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                sum[w][d].at[i] *= shrink[lane_row(i)];
            }
            UNROLLED for (int j = 0; j < STEPS; j++) UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                float p = power_of_2(fmaf(s[w][j].at[i], factor, -base[lane_row(i)]));
                s[w][j].at[i] = p;
                total[w][lane_row(i)] += p;
            }
        }
        UNROLLED for (int j = 0; j < STEPS; j++)
        {
            fragment p[DOWN];
            UNROLLED for (int w = 0; w < DOWN; w++) p[w] = fragment_of(s[w][j]);
            add_rows(sum, p, kv[1], 16 * j);
        }
    }
    UNROLLED for (int w = 0; w < DOWN; w++)
    {
        float inverse[LANE_ROWS];
        UNROLLED for (int r = 0; r < LANE_ROWS; r++)
        {
            int row = start + own + 16 * w + row_of_lane(r);
            float all_columns = row_sum(total[w][r]);
            inverse[r] = 1.0f / all_columns;
            if (fragment_column(0) == 0 && row < m.N)
                lse[BLOCK_Y * m.N + row] = top[w][r] * LN_2 + logf(all_columns);
        }
        sums_store(out, rows_span(out, b, h, start, m), own + 16 * w, sum[w], inverse);
    }
}

template <int PARTS, int TALL>
DEVICE void attention_backward_q(const bf16 *qkv, const float *lse, const float *delta, const bf16 *dout,
                                 bf16 *dqkv, const attention_shape &m)
{
    enum { OWNED = BLOCK_WAVES * 16 };
    SHARED tile<PARTS, TALL> buffers[BUFFERS][2];
    SHARED range keys[OWNED];
    int heads = (int)m.H, b = (int)BLOCK_Y / heads, h = (int)BLOCK_Y % heads,
        blocks = (int)(m.N + OWNED - 1) / OWNED;
    if (BLOCK_X >= blocks) return;
    int start = (blocks - 1 - (int)BLOCK_X) * OWNED, own = THREAD / WAVE * 16;
    int64_t stats = BLOCK_Y * m.N;
    float scale = 1.0f / sqrtf((float)m.dh), factor = LOG2_E * scale, l[LANE_ROWS], mean[LANE_ROWS];
    range all = range_of<keys_of>(m, b, start, OWNED);
    ranges<keys_of, 16> wave(keys, m, b, start);
    fragment q[1][PARTS], g[1][PARTS];
    result sum[1][PARTS] = {};
    int j0 = all.first / TALL * TALL;
    tiles<PARTS, TALL> kv(buffers, qkv_span(qkv, b, key_head(m, h), j0, m),
                          qkv_span(qkv, b, value_head(m, h), j0, m));
    kv.begin();
    factors_load(q[0], qkv_span(qkv, b, h, start, m), own);
    factors_load(g[0], rows_span(dout, b, h, start, m), own);
    UNROLLED for (int r = 0; r < LANE_ROWS; r++)
    {
        int64_t row = start + own + row_of_lane(r);
        l[r] = row < m.N ? lse[stats + row] * LOG2_E : 0.0f;
        mean[r] = row < m.N ? delta[stats + row] : 0.0f;
    }
    for (; j0 < all.end; j0 += TALL) {
        kv.turn();
        barrier();
        if (j0 + TALL < all.end) kv.begin();
        if (!wave.any(j0, TALL)) continue;
        bool masked = !wave.all(j0, TALL);
        UNROLLED for (int j = 0; j < TALL; j += 16)
        {
            result s[1][1] = {}, ds[1][1] = {};
            scores(s, q, kv[0], j);
            scores(ds, g, kv[1], j);
            if (masked) mask(s[0][0], wave.seen, j0 + j);
            UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                float p = power_of_2(fmaf(s[0][0].at[i], factor, -l[lane_row(i)]));
                ds[0][0].at[i] = p * (ds[0][0].at[i] - mean[lane_row(i)]);
            }
            fragment weights[1] = {fragment_of(ds[0][0])};
            add_rows(sum, weights, kv[0], j);
        }
    }
    float scales[LANE_ROWS];
    UNROLLED for (int r = 0; r < LANE_ROWS; r++) scales[r] = scale;
    sums_store(dqkv, qkv_span(dqkv, b, h, start, m), own, sum[0], scales);
}

template <int PARTS, int TALL>
DEVICE void attention_backward_kv(const bf16 *qkv, const float *lse, const float *delta, const bf16 *dout,
                                  bf16 *dqkv, const attention_shape &m)
{
    enum { OWNED = BLOCK_WAVES * 16 };
    SHARED tile<PARTS, TALL> buffers[BUFFERS][2];
    SHARED range queries[OWNED];
    /* Of the queries: log-sum-exp, from TALL on delta; the rest is written, but not read. */
    SHARED float stats[BUFFERS][BLOCK] __attribute__((aligned(16)));
    static_assert(2 * TALL <= BLOCK, "");
    int heads = (int)m.G, b = (int)BLOCK_Y / heads, kv = (int)BLOCK_Y % heads, share = (int)m.H / heads,
        start = (int)BLOCK_X * OWNED, own = THREAD / WAVE * 16;
    if (start >= m.N) return;
    float scale = 1.0f / sqrtf((float)m.dh), factor = LOG2_E * scale, stat = 0;
    range all = range_of<queries_of>(m, b, start, OWNED);
    ranges<queries_of, 16> wave(queries, m, b, start);
    enum { SHORT = ASYNC && PARTS > 5 }; /* of registers: v is in shared memory */
    SHARED tile<PARTS, 16> values[SHORT ? BLOCK_WAVES : 1];
    fragment k[1][PARTS], v[1][SHORT ? 1 : PARTS];
    result dk[1][PARTS] = {}, dv[1][PARTS] = {};
    int h = kv * share, begin = all.first / TALL * TALL, i0 = begin;
    tiles<PARTS, TALL> qg(buffers, qkv_span(qkv, b, h, i0, m), rows_span(dout, b, h, i0, m));
    const float *stats_from = (THREAD < TALL ? lse : delta) + (b * m.H + h) * m.N;
    auto bring = [&](int row) {
        int query = row + THREAD % TALL;
        qg.begin();
        stat = stats_from[query < m.N ? query : 0];
    };
    bring(i0);
    factors_load(k[0], qkv_span(qkv, b, m.H + kv, start, m), own);
    span v_rows = qkv_span(qkv, b, m.H + m.G + kv, start, m);
    if constexpr (SHORT) factors_store(values[THREAD / WAVE], v_rows, own);
    else factors_load(v[0], v_rows, own);
    for (int row = i0, left = share; left > 0; row = i0) {
        qg.turn();
        stats[qg.now][THREAD] = THREAD < TALL ? stat * LOG2_E : stat;
        barrier();
        bool next_head = i0 + TALL >= all.end;
        int back = next_head ? begin - i0 - TALL : 0;
        i0 += TALL + back;
        left -= next_head;
        qg.skip(back);
        UNROLLED for (int i = 0; i < 2; i++) qg.from[i] += next_head ? (int)m.dh : 0;
        stats_from += next_head ? (int)m.N : 0;
        if (left > 0) bring(i0);
        if (!wave.any(row, TALL)) continue;
        bool masked = !wave.all(row, TALL);
        UNROLLED for (int j = 0; j < TALL; j += 16)
        {
            result s[1][1] = {}, ds[1][1] = {};
            scores(s, k, qg[0], j);
            if constexpr (SHORT) scores(ds, &values[THREAD / WAVE], qg[1], j);
            else scores(ds, v, qg[1], j);
            if (masked) mask(s[0][0], wave.seen, row + j);
            float l[FRAGMENT], mean[FRAGMENT];
            columns_load(l, stats[qg.now] + j);
            columns_load(mean, stats[qg.now] + TALL + j);
            UNROLLED for (int i = 0; i < FRAGMENT; i++)
            {
                float p = power_of_2(fmaf(s[0][0].at[i], factor, -l[i]));
                s[0][0].at[i] = p;
                ds[0][0].at[i] = p * (ds[0][0].at[i] - mean[i]);
            }
            fragment p[1] = {fragment_of(s[0][0])}, weights[1] = {fragment_of(ds[0][0])};
            add_rows(dv, p, qg[1], j);
            add_rows(dk, weights, qg[0], j);
        }
    }
    float scales[LANE_ROWS], ones[LANE_ROWS];
    UNROLLED for (int r = 0; r < LANE_ROWS; r++)
    {
        scales[r] = scale;
        ones[r] = 1.0f;
    }
    sums_store(dqkv, qkv_span(dqkv, b, m.H + kv, start, m), own, dk[0], scales);
    sums_store(dqkv, qkv_span(dqkv, b, m.H + m.G + kv, start, m), own, dv[0], ones);
}

/* Two blocks find shared memory: of 100 KiB since sm_80, of 64 KiB on AMD and Hygon. */
DEVICE constexpr int tall(int parts) { return ASYNC || parts == 8 ? 32 : 64; }
/* Two times 16 rows of a wave in the forward kernel halve its loads; a DCU's wave has registers for one. */
enum { TWO = MEOPT_MATRIX == MATRIX_MMAC ? 1 : 2, WIDE_TWO = ASYNC ? 1 : TWO };
/* The last three: the blocks of each kernel for which a multiprocessor of NVIDIA has registers, none of which
 * is spilled (tests/gpu/attention_code.sh). */
#define ATTENTION_MATRIX(width, PARTS, DOWN, FORWARD, Q, KV)                                                 \
    KERNEL_BLOCKS(FORWARD, attention_forward_bf16_##width, const bf16 *qkv, bf16 *out, float *lse,           \
                  attention_shape m)                                                                         \
    {                                                                                                        \
        attention_forward<PARTS, DOWN, tall(PARTS)>(qkv, out, lse, m);                                       \
    }                                                                                                        \
    KERNEL_BLOCKS(Q, attention_backward_q_bf16_##width, const bf16 *qkv, const float *lse,                   \
                  const float *delta, const bf16 *dout, bf16 *dqkv, attention_shape m)                       \
    {                                                                                                        \
        attention_backward_q<PARTS, tall(PARTS)>(qkv, lse, delta, dout, dqkv, m);                            \
    }                                                                                                        \
    KERNEL_BLOCKS(KV, attention_backward_kv_bf16_##width, const bf16 *qkv, const float *lse,                 \
                  const float *delta, const bf16 *dout, bf16 *dqkv, attention_shape m)                       \
    {                                                                                                        \
        attention_backward_kv<PARTS, ASYNC && PARTS == 8 ? 16 : tall(PARTS)>(qkv, lse, delta, dout, dqkv,    \
                                                                             m);                             \
    }
ATTENTION_MATRIX(32, 2, TWO, 3, 4, 3)
ATTENTION_MATRIX(64, 4, TWO, 2, 3, 2)
ATTENTION_MATRIX(80, 5, TWO, 2, 3, 2)
ATTENTION_MATRIX(96, 6, WIDE_TWO, 3, 2, 2)
ATTENTION_MATRIX(128, 8, WIDE_TWO, 2, 2, 2)
#endif
