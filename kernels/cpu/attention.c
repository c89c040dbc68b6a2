/* softmax(q k^T / sqrt(dh)) v and its gradient, one (image, head) at a time per thread: see ops.h.
 *
 * Keys and values of a head are packed once. Forward takes ATTENTION_ROWS queries: their scores stay in the
 * second-level cache, e^(s - max) takes their place, and the division by the row's sum waits for the result.
 * Backward takes as many queries (FlashAttention, arXiv 2205.14135; with rows of S and dO V^T in scratch):
 *
 *     P = exp(S - lse)   dS = P (dO V^T - delta) / sqrt(dh)   delta_i = dO_i . O_i
 *     dQ = dS K, and for all keys  dV += P^T dO,  dK += dS^T Q
 *
 * so there is no N x N, and one pass over each score. Words (product.h) are floats; where the processor
 * multiplies pairs of bf16 (AVX512-BF16) and the tensors are bf16, they are pairs: then P and dS are rounded
 * to bf16, as on AMX tiles. Sums and exponentials are fp32.
 *
 * Rows of dh are zeros from dh to d (whole vectors), rows of N keys from N to n: d and n are multiples of 16.
 */
#include "kernels/cpu/pack.h"
#include "kernels/cpu/table.h"
#ifdef _OPENMP
#include <omp.h>
#endif

enum { BLOCK = ATTENTION_ROWS };
#ifdef __AVX512BF16__
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif

struct head {
    int bf16, pairs;             /* the tensors; the words */
    int64_t N, dh, n, d, nw, dw; /* nw, dw: words of rows of n and d elements */
    int64_t qkv_row, out_row;    /* elements between tokens */
    float scale;
    word *kt, *vt;      /* (dw, n): k^T, v^T */
    word *k, *v;        /* (n words, d): inner dimension down the rows */
    word *q, *g;        /* (BLOCK, dw): rows of q and dout */
    word *q_in, *g_in;  /* (BLOCK words, d) */
    float *s, *t;       /* (BLOCK, n): scores, dO V^T */
    word *p, *ds;       /* (BLOCK, nw) */
    word *p_in, *ds_in; /* (BLOCK words, n) */
    float *o;           /* (BLOCK, d) */
    float *dk, *dv;     /* (n, d) */
    float *factor;      /* (BLOCK): one for each row */
};

static float *carve(float **room, int64_t count)
{
    float *at = *room;
    *room += count;
    return at;
}

/* All that attention_scratch counts; with floats, the two forms of an operand are one. */
static struct head head_of(int bf16, int64_t N, int64_t H, int64_t dh, void *scratch)
{
#ifdef _OPENMP
    size_t thread = (size_t)omp_get_thread_num();
#else
    size_t thread = 0;
#endif
    float *room = (float *)(void *)((char *)scratch + thread * attention_scratch(N, dh, 1));
    struct head h = {.bf16 = bf16, .pairs = HAS_PAIRS && bf16, .N = N, .dh = dh};
    h.n = (N + 15) & ~(int64_t)15;
    h.d = (dh + 15) & ~(int64_t)15;
    h.nw = h.n >> h.pairs;
    h.dw = h.d >> h.pairs;
    h.qkv_row = 3 * H * dh;
    h.out_row = H * dh;
    h.scale = 1.0f / sqrtf((float)dh);
    h.kt = carve(&room, h.dw * h.n);
    h.vt = carve(&room, h.dw * h.n);
    h.k = carve(&room, h.nw * h.d);
    h.v = h.vt; /* forward has only the one, backward the other */
    h.q = carve(&room, BLOCK * h.dw);
    h.g = carve(&room, BLOCK * h.dw);
    h.q_in = h.pairs ? carve(&room, BLOCK / 2 * h.d) : h.q;
    h.g_in = h.pairs ? carve(&room, BLOCK / 2 * h.d) : h.g;
    h.s = carve(&room, BLOCK * h.n);
    h.t = carve(&room, BLOCK * h.n);
    h.p = h.pairs ? carve(&room, BLOCK * h.nw) : h.s;
    h.ds = h.pairs ? carve(&room, BLOCK * h.nw) : h.t;
    h.p_in = h.pairs ? carve(&room, BLOCK / 2 * h.n) : h.s;
    h.ds_in = h.pairs ? carve(&room, BLOCK / 2 * h.n) : h.t;
    h.o = carve(&room, BLOCK * h.d);
    h.dk = carve(&room, h.n * h.d);
    h.dv = carve(&room, h.n * h.d);
    h.factor = carve(&room, BLOCK);
    return h;
}

static __attribute__((noinline)) void multiply(int pairs, const word *a, int64_t row, int64_t step,
                                               const word *b, int64_t ldb, float *c, int64_t ldc, int64_t m,
                                               int64_t n, int64_t depth, int add)
{
    if (HAS_PAIRS && pairs) product(1, a, row, step, b, ldb, c, ldc, m, n, depth, add);
    else product(0, a, row, step, b, ldb, c, ldc, m, n, depth, add);
}

/* ---- Results to their tensor --------------------------------------------------------------------------- */

#ifdef __AVX512F__

/* rows of d floats, each times factor[row] (NULL: 1), to dh elements each at x */
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

/* to bf16: 16 pairs of two vectors of neighbours, 8 pairs of one, 16 pairs of what is below one another */
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

/* Row r of scores to e^(s - max), zeros behind N; the row's factor 1 / sum and its log-sum-exp. */
static void softmax_row(const struct head *h, int64_t r, float *lse)
{
    float *row = h->s + r * h->n;
    word *p = h->p + r * h->nw;
    __m512 top = constant16(-INFINITY), sum = _mm512_setzero_ps(), scale = constant16(h->scale);
    for (int64_t j = 0; j < h->N; j += 16)
        top = _mm512_mask_max_ps(top, mask16(h->N - j), top, _mm512_loadu_ps(row + j));
    float highest = _mm512_reduce_max_ps(top) * h->scale;
    __m512 offset = constant16(highest), before = sum;
    for (int64_t j = 0; j < h->n; j += 16) {
        __m512 e = exp16(_mm512_fmsub_ps(_mm512_loadu_ps(row + j), scale, offset));
        e = _mm512_maskz_mov_ps(mask16(h->N - j), e);
        sum = _mm512_add_ps(sum, e);
        if (!h->pairs) _mm512_storeu_ps(p + j, e);
        else if (j & 16) store_two(p + j / 2 - 8, before, e);
        else if (j + 16 == h->n) /* the last of an odd number */ store_one(p + j / 2, e);
        before = e;
    }
    float total = _mm512_reduce_add_ps(sum);
    h->factor[r] = 1.0f / total;
    *lse = highest + logf(total);
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

struct gradients {
    __m512 p, ds;
};
static inline struct gradients gradient16(const struct head *h, int64_t at, float lse, float delta,
                                          __mmask16 mask)
{
    __m512 scale = constant16(h->scale),
           p = exp16(_mm512_fmsub_ps(_mm512_loadu_ps(h->s + at), scale, constant16(lse)));
    p = _mm512_maskz_mov_ps(mask, p); /* behind N there are no scores: e^-lse may be anything */
    __m512 grad = _mm512_sub_ps(_mm512_loadu_ps(h->t + at), constant16(delta));
    return (struct gradients){p, _mm512_mul_ps(_mm512_mul_ps(p, scale), grad)};
}

/* Rows r and, with pairs and where there is one, r + 1 of s and t to P and dS. */
static void gradient_rows(const struct head *h, int64_t r, int64_t rows, const float *lse)
{
    for (int64_t j = 0; j < h->n; j += 16) {
        __mmask16 mask = mask16(h->N - j);
        int64_t at = r * h->n + j, to = r * h->nw + j / 2, in = r / 2 * h->n + j;
        struct gradients a = gradient16(h, at, lse[r], h->factor[r], mask), b = {{0}, {0}};
        if (!h->pairs) {
            _mm512_storeu_ps(h->s + at, a.p);
            _mm512_storeu_ps(h->t + at, a.ds);
            continue;
        }
        if (r + 1 < rows) b = gradient16(h, at + h->n, lse[r + 1], h->factor[r + 1], mask);
        store_one(h->ds + to, a.ds);
        store_one(h->ds + to + h->nw, b.ds);
        store_below(h->p_in + in, a.p, b.p);
        store_below(h->ds_in + in, a.ds, b.ds);
    }
}

#else

static void softmax_row(const struct head *h, int64_t r, float *lse)
{
    float *row = h->s + r * h->n, top = -INFINITY, sum = 0, scale = h->scale;
    int64_t N = h->N;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < N; j++) top = row[j] > top ? row[j] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < N; j++) {
        row[j] = exp_one((row[j] - top) * scale);
        sum += row[j];
    }
    memset(row + N, 0, (size_t)(h->n - N) * sizeof *row);
    h->factor[r] = 1.0f / sum;
    *lse = top * scale + logf(sum);
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

static void gradient_rows(const struct head *h, int64_t r, int64_t rows, const float *lse)
{
    float *p = h->s + r * h->n, *g = h->t + r * h->n, scale = h->scale, l = lse[r], delta = h->factor[r];
    (void)rows;
    SIMD for (int64_t j = 0; j < h->N; j++)
    {
        p[j] = exp_one(p[j] * scale - l);
        g[j] = p[j] * (g[j] - delta) * scale;
    }
    memset(p + h->N, 0, (size_t)(h->n - h->N) * sizeof *p);
    memset(g + h->N, 0, (size_t)(h->n - h->N) * sizeof *g);
}

#endif

/* ---- A head ------------------------------------------------------------------------------------------- */

static struct source rows_of(const struct head *h, const void *x, int64_t at, int64_t stride, int64_t rows)
{
    return (struct source){h->bf16, h->pairs, x, at, stride, rows, h->dh};
}

static void forward_head(const struct head *h, const struct attention *o, int64_t q, int64_t out, float *lse)
{
    struct source k = rows_of(h, o->qkv, q + h->out_row, h->qkv_row, h->N),
                  v = rows_of(h, o->qkv, q + 2 * h->out_row, h->qkv_row, h->N);
    pack_transposed(&k, h->dw, h->n, h->kt, h->n);
    pack_down(&v, h->d, h->v, h->d);
    for (int64_t i = 0; i < h->N; i += BLOCK) {
        int64_t rows = h->N - i < BLOCK ? h->N - i : BLOCK;
        struct source block = rows_of(h, o->qkv, q + i * h->qkv_row, h->qkv_row, rows);
        pack_rows(&block, h->dw, h->q, h->dw);
        multiply(h->pairs, h->q, h->dw, 1, h->kt, h->n, h->s, h->n, rows, h->n, h->dw, 0);
        for (int64_t r = 0; r < rows; r++) softmax_row(h, r, lse + i + r);
        multiply(h->pairs, h->p, h->nw, 1, h->v, h->d, h->o, h->d, rows, h->d, (h->N + h->pairs) >> h->pairs,
                 0);
        write_rows(h, h->o, h->factor, rows, o->out, out + i * h->out_row, h->out_row);
    }
}

static void backward_head(const struct head *h, const struct attention_gradient *o, int64_t q, int64_t out,
                          const float *lse)
{
    int64_t k = q + h->out_row, v = k + h->out_row, words_of_N = (h->N + h->pairs) >> h->pairs;
    struct source keys = rows_of(h, o->qkv, k, h->qkv_row, h->N),
                  values = rows_of(h, o->qkv, v, h->qkv_row, h->N);
    pack_transposed(&keys, h->dw, h->n, h->kt, h->n);
    pack_transposed(&values, h->dw, h->n, h->vt, h->n);
    pack_down(&keys, h->d, h->k, h->d);
    for (int64_t i = 0; i < h->N; i += BLOCK) {
        int64_t rows = h->N - i < BLOCK ? h->N - i : BLOCK, depth = (rows + h->pairs) >> h->pairs;
        int64_t step = 1 + h->pairs, from = q + i * h->qkv_row, at = out + i * h->out_row;
        struct source queries = rows_of(h, o->qkv, from, h->qkv_row, rows),
                      gradients = rows_of(h, o->dout, at, h->out_row, rows);
        pack_rows(&queries, h->dw, h->q, h->dw);
        pack_rows(&gradients, h->dw, h->g, h->dw);
        if (h->pairs) {
            pack_down(&queries, h->d, h->q_in, h->d);
            pack_down(&gradients, h->d, h->g_in, h->d);
        }
        multiply(h->pairs, h->q, h->dw, 1, h->kt, h->n, h->s, h->n, rows, h->n, h->dw, 0);
        multiply(h->pairs, h->g, h->dw, 1, h->vt, h->n, h->t, h->n, rows, h->n, h->dw, 0);
        for (int64_t r = 0; r < rows; r++)
            h->factor[r] = row_product(h, o->out, o->dout, at + r * h->out_row);
        for (int64_t r = 0; r < rows; r += step) gradient_rows(h, r, rows, lse + i);
        multiply(h->pairs, h->p_in, 1, h->n, h->g_in, h->d, h->dv, h->d, h->N, h->d, depth, i > 0);
        multiply(h->pairs, h->ds_in, 1, h->n, h->q_in, h->d, h->dk, h->d, h->N, h->d, depth, i > 0);
        multiply(h->pairs, h->ds, h->nw, 1, h->k, h->d, h->o, h->d, rows, h->d, words_of_N, 0);
        write_rows(h, h->o, NULL, rows, o->dqkv, from, h->qkv_row);
    }
    write_rows(h, h->dk, NULL, h->N, o->dqkv, k, h->qkv_row);
    write_rows(h, h->dv, NULL, h->N, o->dqkv, v, h->qkv_row);
}

void NAME(attention_forward)(const struct attention *o, void *scratch, int threads)
{
    (void)threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < o->B * o->H; i++) {
        struct head h = head_of(o->type == DTYPE_BF16, o->N, o->H, o->dh, scratch);
        int64_t first = i / o->H * o->N, column = i % o->H * o->dh;
        forward_head(&h, o, first * h.qkv_row + column, first * h.out_row + column, o->lse + i * o->N);
    }
}

void NAME(attention_backward)(const struct attention_gradient *o, void *scratch, int threads)
{
    (void)threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < o->B * o->H; i++) {
        struct head h = head_of(o->type == DTYPE_BF16, o->N, o->H, o->dh, scratch);
        int64_t first = i / o->H * o->N, column = i % o->H * o->dh;
        backward_head(&h, o, first * h.qkv_row + column, first * h.out_row + column, o->lse + i * o->N);
    }
}
