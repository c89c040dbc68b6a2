/* softmax(q k^T / sqrt(dh)) v and its gradient: see ops.h. A thread processes one (sample, head) at a time,
 * backward one (sample, key and value head) with its query heads in order, segment by segment.
 *
 * Keys and values of a head are packed once. Forward processes ATTENTION_ROWS queries at a time, with a mask
 * MASKED_ROWS, and of the keys those from the first to the last that one of these queries sees. Their scores
 * stay in the second-level cache, e^(s - max) overwrites them, and the result is divided by the row's sum.
 * Backward processes as many queries (FlashAttention, arXiv 2205.14135; rows of S and dO V^T in scratch):
 *
 *     P = exp(S - lse)   dS = P (dO V^T - delta) / sqrt(dh)   delta_i = dO_i . O_i
 *     dQ = dS K, and for all keys  dV += P^T dO,  dK += dS^T Q
 *
 * so that there is no N x N matrix, and one pass over each score. Block-sparse attention copies the keys and
 * values of a block's list, and computes the block's queries with these as with all. Words (tile.h) are
 * floats, or pairs of bf16 with AVX512-BF16 and bf16 tensors. With pairs, P and dS are rounded to bf16, as on
 * AMX tiles, unless the caller requests floats. Sums and exponentials are fp32.
 *
 * Rows of dh are zeros from dh to d (whole vectors), rows of N keys from N to n: d and n are multiples of 16.
 */
#include "kernels/cpu/attention_mask.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/table.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

enum { BLOCK = ATTENTION_ROWS, MASKED_ROWS = 24 };
#define LOG2_E 1.44269504f
#ifdef __AVX512BF16__
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif

struct head {
    const struct attention_shape *shape;
    int bf16, pairs;             /* the tensors; the words */
    int64_t N, dh, n, d, nw, dw; /* nw, dw: words of rows of n and d elements */
    int64_t deep;                /* words of rows of dh elements */
    int64_t rows;                /* queries of a block */
    int64_t qkv_row, out_row;    /* elements between tokens */
    float scale, scale2;         /* 1 / sqrt(dh); the same by log2(e), for powers of 2 */
    word *kt, *vt;               /* (dw, n): k^T, v^T */
    word *k, *v;                 /* (n words, d): inner dimension down the rows */
    word *q, *g;                 /* (BLOCK, dw): rows of q and dout */
    word *q_in, *g_in;           /* (BLOCK words, d) */
    float *s, *t;                /* (BLOCK, n): scores, dO V^T */
    word *p, *ds;                /* (BLOCK, nw) */
    word *p_in, *ds_in;          /* (BLOCK words, n) */
    float *o;                    /* (BLOCK, d) */
    float *dk, *dv;              /* (n, d) */
    float *factor;               /* (BLOCK): one for each row */
    float *rest;                 /* with blocks: scratch memory after those of all N tokens */
};

static float *carve(float **memory, int64_t count)
{
    float *at = *memory;
    *memory += count;
    return at;
}

/* Divides the scratch memory of attention_scratch for a segment of N tokens. With floats, both forms of an
 * operand are the same. */
static struct head head_of(const struct attention_shape *shape, int bf16, bool floats, int64_t N,
                           void *scratch)
{
    int64_t dh = shape->dh;
#ifdef _OPENMP
    size_t thread = (size_t)omp_get_thread_num();
#else
    size_t thread = 0;
#endif
    size_t bytes = attention_scratch(shape->N, dh, shape->block, 1);
    float *memory = (float *)(void *)((char *)scratch + thread * bytes);
    struct head h = {.shape = shape, .bf16 = bf16, .pairs = HAS_PAIRS && bf16 && !floats, .N = N, .dh = dh};
    h.rest = memory + attention_scratch(shape->N, dh, 0, 1) / sizeof *memory;
    h.n = (N + 15) & ~(int64_t)15;
    h.d = (dh + 15) & ~(int64_t)15;
    h.nw = h.n >> h.pairs;
    h.dw = h.d >> h.pairs;
    h.deep = (dh + h.pairs) >> h.pairs;
    h.rows = is_masked(shape) ? MASKED_ROWS : BLOCK;
    h.qkv_row = (shape->H + 2 * shape->G) * dh;
    h.out_row = shape->H * dh;
    h.scale = 1.0f / sqrtf((float)dh);
    h.scale2 = h.scale * LOG2_E;
    h.kt = carve(&memory, h.dw * h.n);
    h.vt = carve(&memory, h.dw * h.n);
    h.k = carve(&memory, h.nw * h.d);
    h.v = h.vt; /* forward uses only one of them, backward the other */
    h.q = carve(&memory, BLOCK * h.dw);
    h.g = carve(&memory, BLOCK * h.dw);
    h.q_in = h.pairs ? carve(&memory, BLOCK / 2 * h.d) : h.q;
    h.g_in = h.pairs ? carve(&memory, BLOCK / 2 * h.d) : h.g;
    h.s = carve(&memory, BLOCK * h.n);
    h.t = carve(&memory, BLOCK * h.n);
    h.p = h.pairs ? carve(&memory, BLOCK * h.nw) : h.s;
    h.ds = h.pairs ? carve(&memory, BLOCK * h.nw) : h.t;
    h.p_in = h.pairs ? carve(&memory, BLOCK / 2 * h.n) : h.s;
    h.ds_in = h.pairs ? carve(&memory, BLOCK / 2 * h.n) : h.t;
    h.o = carve(&memory, BLOCK * h.d);
    h.dk = carve(&memory, h.n * h.d);
    h.dv = carve(&memory, h.n * h.d);
    h.factor = carve(&memory, BLOCK);
    return h;
}

/* Queries from `first` on, and the keys from low to end that one of them sees, in whole words and vectors
 * from low to high. */
struct block {
    int64_t first, rows, low, end, high;
};
static struct block block_of(const struct head *h, int64_t first)
{
    int64_t rows = h->N - first < h->rows ? h->N - first : h->rows;
    struct block b = {first, rows, keys_of(h->shape, h->N, first).first & ~(int64_t)31,
                      keys_of(h->shape, h->N, first + rows - 1).end, 0};
    b.high = (b.end + 15) & ~(int64_t)15;
    return b;
}

static __attribute__((noinline)) void multiply(int pairs, const word *a, int64_t row, int64_t step,
                                               const word *b, int64_t ldb, float *c, int64_t ldc, int64_t m,
                                               int64_t n, int64_t depth, int add)
{
    if (HAS_PAIRS && pairs) small_gemm(1, a, row, step, b, ldb, c, ldc, m, n, depth, add);
    else small_gemm(0, a, row, step, b, ldb, c, ldc, m, n, depth, add);
}

/* ---- Storing results ----------------------------------------------------------------------------------- */

#ifdef __AVX512F__

/* Stores rows of d floats, each times factor[row] (NULL: 1), as dh elements at x. */
static void write_rows(const struct head *h, const float *from, const float *factor, int64_t rows, void *x,
                       int64_t at, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < h->dh; e += 16)
            store16(
                h->bf16, x, at + r * stride + e, mask16(h->dh - e),
                _mm512_mul_ps(constant16(factor ? factor[r] : 1.0f), _mm512_loadu_ps(from + r * h->d + e)));
}

#else

static void write_rows(const struct head *h, const float *from, const float *factor, int64_t rows, void *x,
                       int64_t at, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++, from += h->d) {
        float f = factor ? factor[r] : 1.0f;
        uint16_t *half = (uint16_t *)x + at + r * stride;
        float *full = (float *)x + at + r * stride;
        if (h->bf16) SIMD for (int64_t e = 0; e < h->dh; e++) half[e] = narrow_one(from[e] * f);
        else SIMD for (int64_t e = 0; e < h->dh; e++) full[e] = from[e] * f;
    }
}

#endif

/* ---- Rows of scores ----------------------------------------------------------------------------------- */

#ifdef __AVX512F__

/* Conversion to bf16: 16 pairs of neighbours from two vectors, 8 pairs from one, 16 pairs of two rows */
#ifdef __AVX512BF16__
static inline void store_two(word *to, __m512 left, __m512 right)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(right, left));
}
static inline void store_one(word *to, __m512 x)
{
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(x));
}
static inline void store_below(word *to, __m512 upper, __m512 lower)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(lower, upper)));
}
#else
static inline void store_two(word *to, __m512 left, __m512 right) { (void)to, (void)left, (void)right; }
static inline void store_one(word *to, __m512 x) { (void)to, (void)x; }
static inline void store_below(word *to, __m512 upper, __m512 lower) { store_two(to, upper, lower); }
#endif

/* The keys of a row: whole vectors of 16 from `whole` to `end`, if that is larger, and parts around them. */
struct columns {
    struct keys keys;
    int64_t whole, end;
};
static inline struct columns columns_of(const struct head *h, int64_t query)
{
    struct keys keys = keys_of(h->shape, h->N, query);
    int64_t whole = (keys.first + 15) & ~(int64_t)15, end = keys.end & ~(int64_t)15;
    return (struct columns){keys, whole, end > whole ? end : whole};
}
static inline __mmask16 seen16(const struct columns *c, int64_t j)
{
    return (__mmask16)(mask16(c->keys.end - j) & ~mask16(c->keys.first - j));
}

/* Replaces the scores of columns from j to `to` by e^(s - max); all: they are all of keys. */
struct exponentials {
    __m512 scale, offset, sum, before;
};
INLINE void exponentials_until(const struct head *h, const struct block *b, const struct columns *c,
                               const float *row, word *p, int64_t j, int64_t to, bool all,
                               struct exponentials *x)
{
    for (; j < to; j += 16) {
        __m512 e = exp2_16(_mm512_fmsub_ps(_mm512_loadu_ps(row + j), x->scale, x->offset));
        if (!all) e = _mm512_maskz_mov_ps(seen16(c, j), e);
        x->sum = _mm512_add_ps(x->sum, e);
        if (!h->pairs) _mm512_storeu_ps(p + j, e);
        else if (j & 16) store_two(p + j / 2 - 8, x->before, e);
        else if (j + 16 == b->high) /* the last of an odd number */ store_one(p + j / 2, e);
        x->before = e;
    }
}

/* Replaces row r of scores by e^(s - max), zeros where there are no keys. Stores the row's factor 1 / sum and
 * log-sum-exp. */
static void softmax_row(const struct head *h, const struct block *b, int64_t r, float *lse)
{
    float *row = h->s + r * h->n;
    word *p = h->p + r * h->nw;
    struct columns c = columns_of(h, b->first + r);
    __m512 top = constant16(-INFINITY);
    for (int64_t j = c.keys.first & ~(int64_t)15; j < c.whole; j += 16)
        top = _mm512_mask_max_ps(top, seen16(&c, j), _mm512_loadu_ps(row + j), top);
    for (int64_t j = c.whole; j < c.end; j += 16) top = _mm512_max_ps(_mm512_loadu_ps(row + j), top);
    for (int64_t j = c.end; j < c.keys.end; j += 16)
        top = _mm512_mask_max_ps(top, seen16(&c, j), _mm512_loadu_ps(row + j), top);
    float highest = _mm512_reduce_max_ps(top);
    struct exponentials x = {constant16(h->scale2), constant16(highest * h->scale2), _mm512_setzero_ps(),
                             _mm512_setzero_ps()};
    exponentials_until(h, b, &c, row, p, b->low, c.whole, false, &x);
    exponentials_until(h, b, &c, row, p, c.whole, c.end, true, &x);
    exponentials_until(h, b, &c, row, p, c.end, b->high, false, &x);
    float total = _mm512_reduce_add_ps(x.sum);
    h->factor[r] = 1.0f / total;
    *lse = highest * h->scale + logf(total);
}

static float row_product(const struct head *h, const void *a, const void *b, int64_t at)
{
    __m512 sum = _mm512_setzero_ps();
    for (int64_t e = 0; e < h->dh; e += 16) {
        __mmask16 mask = mask16(h->dh - e);
        sum = _mm512_fmadd_ps(load16(h->bf16, a, at + e, mask), load16(h->bf16, b, at + e, mask), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

/* P and dS of 16 scores from `at`; lse2: lse times log2(e), delta times the scale. */
struct gradients {
    __m512 p, ds;
};
static inline struct gradients gradient16(const struct head *h, int64_t at, __m512 lse2, __m512 delta)
{
    __m512 p = exp2_16(_mm512_fmsub_ps(_mm512_loadu_ps(h->s + at), constant16(h->scale2), lse2));
    __m512 grad = _mm512_fmsub_ps(_mm512_loadu_ps(h->t + at), constant16(h->scale), delta);
    return (struct gradients){p, _mm512_mul_ps(p, grad)};
}
/* Clears the values that are not of keys, where e^-lse may overflow. */
static inline struct gradients those_of(struct gradients g, __mmask16 mask)
{
    return (struct gradients){_mm512_maskz_mov_ps(mask, g.p), _mm512_maskz_mov_ps(mask, g.ds)};
}

/* A row of scores, or with pairs two: row r and the one after it */
struct gradient_rows {
    int64_t r;
    bool both;
    struct columns keys[2];
    __m512 lse2[2], delta[2];
};

/* Converts 16 scores of each row from column j on to P and dS; all: they are all of keys. */
INLINE void gradient_vectors(const struct head *h, const struct gradient_rows *g, int64_t j, bool all)
{
    int64_t at = g->r * h->n + j, to = g->r * h->nw + j / 2, in = g->r / 2 * h->n + j;
    struct gradients a = gradient16(h, at, g->lse2[0], g->delta[0]), b = {{0}, {0}};
    if (!all) a = those_of(a, seen16(&g->keys[0], j));
    if (!h->pairs) {
        _mm512_storeu_ps(h->s + at, a.p);
        _mm512_storeu_ps(h->t + at, a.ds);
        return;
    }
    if (g->both) b = gradient16(h, at + h->n, g->lse2[1], g->delta[1]);
    if (!all) b = those_of(b, seen16(&g->keys[1], j));
    store_one(h->ds + to, a.ds);
    store_one(h->ds + to + h->nw, b.ds);
    store_below(h->p_in + in, a.p, b.p);
    store_below(h->ds_in + in, a.ds, b.ds);
}

/* Converts row r, and with pairs also row r + 1, of s and t to P and dS. lse: of the block's rows. */
static void gradient_rows(const struct head *h, const struct block *k, int64_t r, const float *lse)
{
    bool both = h->pairs && r + 1 < k->rows;
    int64_t other = r + both, j = k->low;
    struct gradient_rows g = {r,
                              both,
                              {columns_of(h, k->first + r), columns_of(h, k->first + other)},
                              {constant16(lse[r] * LOG2_E), constant16(lse[other] * LOG2_E)},
                              {constant16(h->factor[r] * h->scale), constant16(h->factor[other] * h->scale)}};
    for (; j < k->high && j < g.keys[1].whole; j += 16) gradient_vectors(h, &g, j, false);
    for (; j < g.keys[0].end; j += 16) gradient_vectors(h, &g, j, true);
    for (; j < k->high; j += 16) gradient_vectors(h, &g, j, false);
}

#else

/* Return the larger and the smaller; x if one is NaN. Intrinsics, because compilers turn a constant limit
 * into a selection of results. */
#ifdef __AVX2__
INLINE lanes at_least(lanes x, lanes least) { return (lanes)_mm256_max_ps((__m256)least, (__m256)x); }
INLINE lanes at_most(lanes x, lanes most) { return (lanes)_mm256_min_ps((__m256)most, (__m256)x); }
#elif defined(__SSE__)
INLINE lanes at_least(lanes x, lanes least) { return (lanes)_mm_max_ps((__m128)least, (__m128)x); }
INLINE lanes at_most(lanes x, lanes most) { return (lanes)_mm_min_ps((__m128)most, (__m128)x); }
#else
INLINE lanes at_least(lanes x, lanes least)
{
    for (int l = 0; l < LANES; l++) x[l] = least[l] > x[l] ? least[l] : x[l];
    return x;
}
INLINE lanes at_most(lanes x, lanes most) { return -at_least(-x, -most); }
#endif

typedef uint32_t bits_of_lanes __attribute__((vector_size(LANES * 4)));

INLINE lanes same(float x) { return x - (lanes){0}; }
INLINE void store_lanes(float *p, lanes x) { *(words *)(void *)p = (words)x; }

/* 2^x to 2 ulp: x = n + r, |r| <= 1/2, a polynomial for 2^r that is 1 at 0 (minimax, relative error 9.1e-8),
 * 2^n made of its exponent. 0 below -126.5, at most 2^127, NaN stays. */
INLINE lanes exp2_lanes(lanes x)
{
    const float whole = 12582912.0f + 127.0f; /* 1.5 2^23 rounds to integers; the exponent's bias */
    x = at_most(at_least(x, same(-127.0f)), same(127.0f));
    lanes shifted = x + whole, r = x - (shifted - whole), p = 1.3264727313e-3f * r + 9.6715129912e-3f;
    p = p * r + 5.5507335812e-2f;
    p = p * r + 2.4022242427e-1f;
    p = p * r + 6.9314700365e-1f;
    p = p * r + 1.0f;
    return p * (lanes)((bits_of_lanes)shifted << 23);
}

/* Writes x into the columns of a row that are not of its keys. */
static void close_row(const struct head *h, const struct block *b, int64_t r, float *row, float x)
{
    struct keys keys = keys_of(h->shape, h->N, b->first + r);
    for (int64_t j = b->low; j < keys.first; j++) row[j] = x;
    for (int64_t j = keys.end; j < b->high; j++) row[j] = x;
}

static void softmax_row(const struct head *h, const struct block *b, int64_t r, float *lse)
{
    float *row = h->s + r * h->n, top = -INFINITY, total = 0;
    lanes tops = same(top), sum = {0};
    close_row(h, b, r, row, -INFINITY);
    for (int64_t j = b->low; j < b->high; j += LANES) tops = at_least(load_lanes(row + j), tops);
    for (int l = 0; l < LANES; l++) top = tops[l] > top ? tops[l] : top;
    for (int64_t j = b->low; j < b->high; j += LANES) {
        lanes e = exp2_lanes((load_lanes(row + j) - top) * h->scale2);
        store_lanes(row + j, e);
        sum += e;
    }
    for (int l = 0; l < LANES; l++) total += sum[l];
    h->factor[r] = 1.0f / total;
    *lse = top * h->scale + logf(total);
}

static float row_product(const struct head *h, const void *a, const void *b, int64_t at)
{
    float x[PIECE], y[PIECE], sum = 0;
    for (int64_t e = 0; e < h->dh; e += PIECE) {
        int64_t count = piece(h->dh, e);
        const float *u = read_piece(h->bf16, a, at + e, count, x),
                    *w = read_piece(h->bf16, b, at + e, count, y);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) sum += u[i] * w[i];
    }
    return sum;
}

static void gradient_rows(const struct head *h, const struct block *b, int64_t r, const float *lse)
{
    float *s = h->s + r * h->n, *t = h->t + r * h->n;
    float lse2 = lse[r] * LOG2_E, delta = h->factor[r] * h->scale;
    close_row(h, b, r, s, -INFINITY);
    close_row(h, b, r, t, 0);
    for (int64_t j = b->low; j < b->high; j += LANES) {
        lanes p = exp2_lanes(load_lanes(s + j) * h->scale2 - lse2);
        store_lanes(s + j, p);
        store_lanes(t + j, p * (load_lanes(t + j) * h->scale - delta));
    }
}

#endif

/* ---- A head ------------------------------------------------------------------------------------------- */

static struct source rows_of(const struct head *h, const void *x, int64_t at, int64_t stride, int64_t rows)
{
    return (struct source){h->bf16, h->pairs, x, at, stride, rows, h->dh};
}

/* The first token's elements of head 0 of the three operands and of out, and its lse. */
struct offsets {
    int64_t q, k, v, out, lse;
};
static struct offsets offsets_of(const struct head *h, int64_t sample, int64_t token, int64_t head,
                                 int64_t kv_head)
{
    const struct attention_shape *s = h->shape;
    int64_t row = sample * s->N + token, at = row * h->qkv_row, dh = h->dh;
    return (struct offsets){at + head * dh, at + (s->H + kv_head) * dh, at + (s->H + s->G + kv_head) * dh,
                            row * h->out_row + head * dh, (sample * s->H + head) * s->N + token};
}

/* Queries of block b, rows i on of the segment, with the packed keys and values. */
static void forward_block(const struct head *h, const struct attention *o, const struct offsets *at,
                          const struct block *b, int64_t i)
{
    struct source queries = rows_of(h, o->qkv, at->q + i * h->qkv_row, h->qkv_row, b->rows);
    int64_t low = b->low >> h->pairs, inner = ((b->end + h->pairs) >> h->pairs) - low;
    pack_rows(&queries, h->dw, h->q, h->dw);
    multiply(h->pairs, h->q, h->dw, 1, h->kt + b->low, h->n, h->s + b->low, h->n, b->rows, b->high - b->low,
             h->deep, 0);
    for (int64_t r = 0; r < b->rows; r++) softmax_row(h, b, r, o->lse + at->lse + i + r);
    multiply(h->pairs, h->p + low, h->nw, 1, h->v + low * h->d, h->d, h->o, h->d, b->rows, h->d, inner, 0);
    write_rows(h, h->o, h->factor, b->rows, o->out, at->out + i * h->out_row, h->out_row);
}

/* Queries from `first` on, which see no key before `least`. */
static void forward_head(const struct head *h, const struct attention *o, const struct offsets *at,
                         int64_t first)
{
    int64_t least = block_of(h, first).low;
    struct source k = rows_of(h, o->qkv, at->k + least * h->qkv_row, h->qkv_row, h->N - least),
                  v = rows_of(h, o->qkv, at->v + least * h->qkv_row, h->qkv_row, h->N - least);
    pack_transposed(&k, h->deep, h->n - least, h->kt + least, h->n);
    pack_down(&v, h->d, h->v + (least >> h->pairs) * h->d, h->d);
    for (int64_t i = first; i < h->N; i += h->rows) {
        struct block b = block_of(h, i);
        forward_block(h, o, at, &b, i);
    }
}

/* Adds the gradients of block b, rows i on of the segment, to dk and dv, or writes them; stores its dq. */
static void backward_block(const struct head *h, const struct attention_gradient *g, const struct offsets *at,
                           const struct block *b, int64_t i, bool add)
{
    const struct attention *o = &g->forward;
    int64_t rows = b->rows, depth = (rows + h->pairs) >> h->pairs, step = 1 + h->pairs;
    int64_t low = b->low >> h->pairs, inner = ((b->end + h->pairs) >> h->pairs) - low, down = b->low * h->d;
    int64_t from = at->q + i * h->qkv_row, out = at->out + i * h->out_row;
    struct source queries = rows_of(h, o->qkv, from, h->qkv_row, rows),
                  gradients = rows_of(h, g->dout, out, h->out_row, rows);
    pack_rows(&queries, h->dw, h->q, h->dw);
    pack_rows(&gradients, h->dw, h->g, h->dw);
    if (h->pairs) {
        pack_down(&queries, h->d, h->q_in, h->d);
        pack_down(&gradients, h->d, h->g_in, h->d);
    }
    multiply(h->pairs, h->q, h->dw, 1, h->kt + b->low, h->n, h->s + b->low, h->n, rows, b->high - b->low,
             h->deep, 0);
    multiply(h->pairs, h->g, h->dw, 1, h->vt + b->low, h->n, h->t + b->low, h->n, rows, b->high - b->low,
             h->deep, 0);
    for (int64_t r = 0; r < rows; r++) h->factor[r] = row_product(h, o->out, g->dout, out + r * h->out_row);
    for (int64_t r = 0; r < rows; r += step) gradient_rows(h, b, r, o->lse + at->lse + i);
    multiply(h->pairs, h->p_in + b->low, 1, h->n, h->g_in, h->d, h->dv + down, h->d, b->end - b->low, h->d,
             depth, add);
    multiply(h->pairs, h->ds_in + b->low, 1, h->n, h->q_in, h->d, h->dk + down, h->d, b->end - b->low, h->d,
             depth, add);
    multiply(h->pairs, h->ds + low, h->nw, 1, h->k + low * h->d, h->d, h->o, h->d, rows, h->d, inner, 0);
    write_rows(h, h->o, NULL, rows, g->dqkv, from, h->qkv_row);
}

/* Adds the gradients of one query head to dk and dv, or writes them, and stores its dq. */
static void backward_query_head(const struct head *h, const struct attention_gradient *g,
                                const struct offsets *at, bool add)
{
    for (int64_t i = 0; i < h->N; i += h->rows) {
        struct block b = block_of(h, i);
        backward_block(h, g, at, &b, i, add || i > 0);
    }
}

static void pack_keys(const struct head *h, const struct source *keys, const struct source *values)
{
    pack_transposed(keys, h->deep, h->n, h->kt, h->n);
    pack_transposed(values, h->deep, h->n, h->vt, h->n);
    pack_down(keys, h->d, h->k, h->d);
}

static void backward_head(const struct head *h, const struct attention_gradient *g, int64_t sample,
                          int64_t token, int64_t kv_head)
{
    const struct attention *o = &g->forward;
    int64_t share = o->H / o->G;
    bool masked = is_masked(h->shape);
    struct offsets at = offsets_of(h, sample, token, kv_head * share, kv_head);
    struct source keys = rows_of(h, o->qkv, at.k, h->qkv_row, h->N),
                  values = rows_of(h, o->qkv, at.v, h->qkv_row, h->N);
    pack_keys(h, &keys, &values);
    if (masked) memset(h->dk, 0, (size_t)(2 * h->n * h->d) * sizeof *h->dk); /* and dv */
    for (int64_t head = 0; head < share; head++) {
        at = offsets_of(h, sample, token, kv_head * share + head, kv_head);
        backward_query_head(h, g, &at, masked || head > 0);
    }
    write_rows(h, h->dk, NULL, h->N, g->dqkv, at.k, h->qkv_row);
    write_rows(h, h->dv, NULL, h->N, g->dqkv, at.v, h->qkv_row);
}

/* ---- Blocks ------------------------------------------------------------------------------------------- */

/* Some queries of a block and of a segment, and the keys that all of them see. */
struct sparse {
    int64_t first, rows;
    const int32_t *list, *list_end;
    int64_t begin, end; /* of the segment */
};
/* The queries from `first` on */
static struct sparse sparse_of(const struct attention_shape *s, int64_t sample, int64_t head, int64_t first)
{
    int64_t i = first / s->block, at = sample * s->N + first, end = (i + 1) * s->block;
    const int32_t *starts = s->keys + head * ((s->N + s->block - 1) / s->block) + i;
    struct sparse x = {first,
                       0,
                       s->keys + starts[0],
                       s->keys + starts[1],
                       s->begins ? s->begins[at] : 0,
                       segment_end(s, sample, first)};
    if (end > x.end) end = x.end;
    x.rows = end - first < BLOCK ? end - first : BLOCK;
    return x;
}
/* The rows of a block of the list that the queries see */
static struct keys keys_in(const struct attention_shape *s, const struct sparse *x, int64_t block)
{
    int64_t first = block * s->block, end = first + s->block;
    first = first > x->begin ? first : x->begin;
    end = end < x->end ? end : x->end;
    return (struct keys){first, end > first ? end : first};
}
static int64_t count_keys(const struct attention_shape *s, const struct sparse *x)
{
    int64_t count = 0;
    for (const int32_t *c = x->list; c < x->list_end; c++) {
        struct keys keys = keys_in(s, x, *c);
        count += keys.end - keys.first;
    }
    return count;
}

/* Copies of the keys and values that queries see, (h->N, dh) of the tensors' type, and the gradients of all
 * keys and values of a sample, (N, d). */
struct copies {
    char *k, *v;
    float *dk, *dv;
};
static struct copies copies_of(const struct attention_shape *s, float *memory)
{
    int64_t all = ((s->N + 15) & ~(int64_t)15) * ((s->dh + 15) & ~(int64_t)15);
    struct copies c = {(char *)memory, (char *)(memory + all), memory + 2 * all, memory + 3 * all};
    return c;
}
static void copy_keys(const struct head *h, const struct attention *o, const struct offsets *at,
                      const struct sparse *x, const struct copies *c)
{
    size_t element = h->bf16 ? sizeof(uint16_t) : sizeof(float), row = (size_t)h->dh * element, to = 0;
    const char *qkv = o->qkv;
    for (const int32_t *b = x->list; b < x->list_end; b++) {
        struct keys keys = keys_in(h->shape, x, *b);
        for (int64_t j = keys.first; j < keys.end; j++, to += row) {
            memcpy(c->k + to, qkv + (size_t)(at->k + j * h->qkv_row) * element, row);
            memcpy(c->v + to, qkv + (size_t)(at->v + j * h->qkv_row) * element, row);
        }
    }
}
static void add_gradients(const struct head *h, const struct sparse *x, const struct copies *c)
{
    int64_t from = 0, d = h->d;
    for (const int32_t *b = x->list; b < x->list_end; b++) {
        struct keys keys = keys_in(h->shape, x, *b);
        int64_t count = (keys.end - keys.first) * d, to = keys.first * d;
        for (int64_t e = 0; e < count; e++) c->dk[to + e] += h->dk[from + e];
        for (int64_t e = 0; e < count; e++) c->dv[to + e] += h->dv[from + e];
        from += count;
    }
}

/* The queries of a head from `first` on, as many as one pass computes, with their keys as a head. */
struct sparse_pass {
    struct sparse x;
    struct head h;
    struct offsets at;
    struct copies c;
    struct block b;
    struct source keys, values;
};
static struct sparse_pass sparse_pass_of(const struct attention_shape *s, const struct attention *o,
                                         int64_t sample, int64_t head, int64_t first, void *scratch)
{
    struct sparse_pass p = {.x = sparse_of(s, sample, head, first)};
    p.h = head_of(s, o->type == DTYPE_BF16, o->floats, count_keys(s, &p.x), scratch);
    p.at = offsets_of(&p.h, sample, 0, head, head / (o->H / o->G));
    p.c = copies_of(s, p.h.rest);
    p.b = (struct block){0, p.x.rows, 0, p.h.N, p.h.n};
    copy_keys(&p.h, o, &p.at, &p.x, &p.c);
    p.keys = rows_of(&p.h, p.c.k, 0, p.h.dh, p.h.N);
    p.values = rows_of(&p.h, p.c.v, 0, p.h.dh, p.h.N);
    return p;
}

static void forward_sparse_head(const struct attention_shape *s, const struct attention *o, int64_t sample,
                                int64_t head, void *scratch)
{
    for (int64_t i = 0, rows; i < o->N; i += rows) {
        struct sparse_pass p = sparse_pass_of(s, o, sample, head, i, scratch);
        pack_transposed(&p.keys, p.h.deep, p.h.n, p.h.kt, p.h.n);
        pack_down(&p.values, p.h.d, p.h.v, p.h.d);
        forward_block(&p.h, o, &p.at, &p.b, i);
        rows = p.x.rows;
    }
}

static void backward_sparse_head(const struct attention_shape *s, const struct attention_gradient *g,
                                 int64_t sample, int64_t kv_head, void *scratch)
{
    const struct attention *o = &g->forward;
    int64_t share = o->H / o->G;
    struct head h = head_of(s, o->type == DTYPE_BF16, o->floats, o->N, scratch);
    struct offsets at = offsets_of(&h, sample, 0, 0, kv_head);
    struct copies c = copies_of(s, h.rest);
    memset(c.dk, 0, (size_t)(2 * h.n * h.d) * sizeof *c.dk); /* and dv */
    for (int64_t head = kv_head * share; head < (kv_head + 1) * share; head++)
        for (int64_t i = 0, rows; i < o->N; i += rows) {
            struct sparse_pass p = sparse_pass_of(s, o, sample, head, i, scratch);
            pack_keys(&p.h, &p.keys, &p.values);
            backward_block(&p.h, g, &p.at, &p.b, i, false);
            add_gradients(&p.h, &p.x, &p.c);
            rows = p.x.rows;
        }
    write_rows(&h, c.dk, NULL, o->N, g->dqkv, at.k, h.qkv_row);
    write_rows(&h, c.dv, NULL, o->N, g->dqkv, at.v, h.qkv_row);
}

void NAME(attention_forward)(const struct attention *o, void *scratch, int threads)
{
    struct attention_shape s = ATTENTION_SHAPE(o);
    (void)threads;
    if (o->block) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t i = 0; i < o->B * o->H; i++) forward_sparse_head(&s, o, i / o->H, i % o->H, scratch);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < o->B * o->H; i++)
        for (int64_t first = 0, end; first < o->N; first = end) {
            end = segment_end(&s, i / o->H, first);
            if (end <= o->first) continue;
            struct head h = head_of(&s, o->type == DTYPE_BF16, o->floats, end - first, scratch);
            struct offsets at = offsets_of(&h, i / o->H, first, i % o->H, i % o->H / (o->H / o->G));
            forward_head(&h, o, &at, o->first > first ? o->first - first : 0);
        }
}

void NAME(attention_backward)(const struct attention_gradient *g, void *scratch, int threads)
{
    const struct attention *o = &g->forward;
    struct attention_shape s = ATTENTION_SHAPE(o);
    (void)threads;
    if (o->block) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t i = 0; i < o->B * o->G; i++) backward_sparse_head(&s, g, i / o->G, i % o->G, scratch);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < o->B * o->G; i++)
        for (int64_t first = 0, end; first < o->N; first = end) {
            end = segment_end(&s, i / o->G, first);
            struct head h = head_of(&s, o->type == DTYPE_BF16, o->floats, end - first, scratch);
            backward_head(&h, g, i / o->G, first, i % o->G);
        }
}
