/* softmax(q k^T / sqrt(dh)) v and its gradient for bf16 on AMX tiles. A thread processes one (sample, head)
 * at a time, backward one (sample, key and value head) with its query heads in order, segment by segment.
 *
 * q, k, v of a head are packed into tiles once. Forward processes 32 rows at a time. Their scores stay in the
 * first two cache levels, e^(s - max) is stored in the tiles that multiply v, and the result is divided by
 * the row sum. Backward processes 32 keys at a time (rows of the transposed scores), so that dV = P^T dO and
 * dK = dS^T Q are complete at once (FlashAttention, arXiv 2205.14135):
 *
 *     P = exp(S - lse)   dS = P (dO V^T - delta) / sqrt(dh)   delta_i = dO_i . O_i
 *
 * dS of KEYS panels of keys is stored in bf16 tiles, for dQ += dS K. Scores, sums and exponentials are fp32.
 * Blocks of 32 x 32 scores without keys are skipped. Backward needs no masks for padding: rows after N are
 * zeros in every packed operand, and their factors are finite. P of a padded score of 0 would be e^-lse,
 * which is limited to e. */
#include "kernels/cpu/attention_amx.h"

#if MEOPT_HAS_AMX && defined(__linux__)

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_mask.h"
#include "kernels/cpu/avx512.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { TILES = PANEL * PANEL, KEYS = 16 }; /* floats of a 32 x 32 block; see above */

/* A segment of N tokens */
struct shape {
    const struct attention_shape *all;
    int64_t N, dh, n, d;      /* n, d: panels (also steps) of N and dh */
    int64_t unit;             /* bytes of one packed (N, dh) operand */
    int64_t strip;            /* bytes of dS of a panel of queries */
    int64_t qkv_row, out_row; /* elements between tokens */
    int64_t share;            /* query heads of a key and value head */
    float scale;
};

static struct shape shape_of(const struct attention_shape *a, int64_t N)
{
    int64_t n = up(N, PANEL) / PANEL, d = up(a->dh, PANEL) / PANEL;
    return (struct shape){a,
                          N,
                          a->dh,
                          n,
                          d,
                          n * d * STEP_BYTES,
                          (n < KEYS ? n : KEYS) * STEP_BYTES,
                          (a->H + 2 * a->G) * a->dh,
                          a->H * a->dh,
                          a->H / a->G,
                          1.0f / sqrtf((float)a->dh)};
}

/* Returns the scratch bytes of backward, which needs more than forward: seven operands, scores and their
 * gradients for 32 keys, dS, dq of the head, lse and delta; a panel of dk or dv, both of the head if several
 * query heads add to them. */
static size_t scratch_bytes(const struct attention_shape *a)
{
    struct shape s = shape_of(a, a->N);
    return (size_t)(7 * s.unit + 2 * s.n * (TILES * 4 + STEP_BYTES) + s.n * s.strip + 2 * s.n * PANEL * 4 +
                    (s.n + (s.share > 1 ? 2 * s.n : 1)) * s.d * TILES * 4);
}
size_t attention_amx_scratch(int64_t N, int64_t H, int64_t G, int64_t dh)
{
    return scratch_bytes(&(struct attention_shape){.N = N, .H = H, .G = G, .dh = dh});
}

/* Panels from first to end: of the keys that a panel of queries sees, or of the queries that see a panel of
 * keys. */
struct panels {
    int64_t first, end;
};
static struct panels key_panels(const struct shape *s, int64_t i)
{
    int64_t query = i * PANEL, last = query + PANEL < s->N ? query + PANEL - 1 : s->N - 1;
    return (struct panels){keys_of(s->all, s->N, query).first / PANEL,
                           up(keys_of(s->all, s->N, last).end, PANEL) / PANEL};
}
static struct panels query_panels(const struct shape *s, int64_t j)
{
    int64_t end = s->all->window ? up((j + 1) * PANEL - 1 + s->all->window, PANEL) / PANEL : s->n;
    return (struct panels){s->all->causal ? j : 0, end < s->n ? end : s->n};
}

/* Row r of a block of four tiles: its left 16 floats; the right 16 follow 256 floats later. */
static inline float *block_row(float *block, int64_t r) { return block + r / 16 * 512 + r % 16 * 16; }

TARGET static inline void store_pair(uint8_t *to, __m512 left, __m512 right)
{
    _mm512_store_si512((void *)to, (__m512i)_mm512_cvtne2ps_pbh(right, left));
}

/* Packs the (N, dh) rows of a head; along: dh is the inner dimension, else N. */
TARGET static void pack_head(const struct shape *s, const uint16_t *x, int64_t stride, int along, int b,
                             uint8_t *to)
{
    if (along) pack(x, stride, 1, b, s->N, s->dh, s->d * STEP_BYTES, 0, s->n, 0, s->d * 32, to);
    else pack(x, stride, 0, b, s->dh, s->N, s->n * STEP_BYTES, 0, s->d, 0, s->n * 32, to);
}

/* Stores rows of results from `first` on (d blocks of 32 rows) times factor[row] (NULL: 1) in rows of dh at
 * x. */
TARGET static void write_rows(const struct shape *s, float *blocks, const float *factor, int64_t first,
                              int64_t rows, uint16_t *x, int64_t stride)
{
    for (int64_t r = first; r < rows; r++) {
        __m512 f = _mm512_set1_ps(factor ? factor[r] : 1.0f);
        for (int64_t d = 0; d < s->d; d++) {
            const float *from = block_row(blocks + d * TILES, r);
            int64_t left = s->dh - d * PANEL;
            __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
            __m512 x0 = _mm512_mul_ps(f, _mm512_load_ps(from)),
                   x1 = _mm512_mul_ps(f, _mm512_load_ps(from + 256));
            _mm512_mask_storeu_epi16(x + r * stride + d * PANEL, mask, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
        }
    }
}

/* Columns at..at+15 that are keys */
TARGET static inline __mmask16 seen16(struct keys keys, int64_t at)
{
    return (__mmask16)(mask16(keys.end - at) & ~mask16(keys.first - at));
}

/* Converts row r of the scores of panel i to e^(s - max) in tiles of P. Stores the row's factor and
 * log-sum-exp. */
TARGET static inline void softmax_row(const struct shape *s, int64_t i, struct panels of, float *scores,
                                      int64_t r, uint8_t *p, float *factor, float *lse)
{
    struct keys keys = keys_of(s->all, s->N, i * PANEL + r);
    __m512 lowest = _mm512_set1_ps(-INFINITY), top = lowest, sum = _mm512_setzero_ps(),
           scale = _mm512_set1_ps(s->scale);
    for (int64_t j = of.first; j < of.end; j++) {
        const float *row = block_row(scores + j * TILES, r);
        bool all = j * PANEL >= keys.first && (j + 1) * PANEL <= keys.end;
        __mmask16 m0 = all ? 0xffff : seen16(keys, j * PANEL),
                  m1 = all ? 0xffff : seen16(keys, j * PANEL + 16);
        top = _mm512_max_ps(top, _mm512_mask_load_ps(lowest, m0, row));
        top = _mm512_max_ps(top, _mm512_mask_load_ps(lowest, m1, row + 256));
    }
    float highest = _mm512_reduce_max_ps(top) * s->scale;
    __m512 offset = _mm512_set1_ps(highest);
    for (int64_t j = of.first; j < of.end; j++) {
        const float *row = block_row(scores + j * TILES, r);
        __m512 e0 = exp16(_mm512_fmsub_ps(_mm512_load_ps(row), scale, offset));
        __m512 e1 = exp16(_mm512_fmsub_ps(_mm512_load_ps(row + 256), scale, offset));
        if (j * PANEL < keys.first || (j + 1) * PANEL > keys.end) {
            e0 = _mm512_maskz_mov_ps(seen16(keys, j * PANEL), e0);
            e1 = _mm512_maskz_mov_ps(seen16(keys, j * PANEL + 16), e1);
        }
        sum = _mm512_add_ps(sum, _mm512_add_ps(e0, e1));
        store_pair(p + j * STEP_BYTES + r * 64, e0, e1);
    }
    float total = _mm512_reduce_add_ps(sum);
    *factor = 1.0f / total;
    *lse = highest + logf(total);
}

/* Queries from `first` on; their panels are packed. */
TARGET static void forward_head(const struct shape *s, const uint16_t *q, const uint16_t *k,
                                const uint16_t *v, uint16_t *out, float *lse, int64_t first, uint8_t *memory)
{
    uint8_t *pq = memory, *pk = pq + s->unit, *pv = pk + s->unit, *p = pv + s->unit;
    float *scores = (float *)(void *)(p + s->n * STEP_BYTES), *result = scores + s->n * TILES, factor[PANEL];
    pack(q, s->qkv_row, 1, 0, s->N, s->dh, s->d * STEP_BYTES, first / PANEL, s->n, 0, s->d * 32, pq);
    pack_head(s, k, s->qkv_row, 1, 1, pk);
    pack_head(s, v, s->qkv_row, 0, 1, pv);
    for (int64_t i = first / PANEL; i < s->n; i++) {
        int64_t rows = s->N - i * PANEL < PANEL ? s->N - i * PANEL : PANEL,
                row = first > i * PANEL ? first - i * PANEL : 0;
        struct panels of = key_panels(s, i);
        int64_t from = of.first * STEP_BYTES;
        for (int64_t j = of.first; j < of.end; j++)
            micro(pq + i * s->d * STEP_BYTES, pk + j * s->d * STEP_BYTES, scores + j * TILES, s->d, 0);
        for (int64_t r = row; r < rows; r++)
            softmax_row(s, i, of, scores, r, p, factor + r, lse + i * PANEL + r);
        for (int64_t d = 0; d < s->d; d++)
            micro(p + from, pv + d * s->n * STEP_BYTES + from, result + d * TILES, of.end - of.first, 0);
        write_rows(s, result, factor, row, rows, out + i * PANEL * s->out_row, s->out_row);
    }
}

/* zeros after N. */
TARGET static void row_products(const struct shape *s, const uint16_t *out, const uint16_t *dout,
                                const float *lse, float *row_lse, float *delta)
{
    memset(row_lse, 0, (size_t)(s->n * PANEL) * sizeof *row_lse);
    memset(delta, 0, (size_t)(s->n * PANEL) * sizeof *delta);
    memcpy(row_lse, lse, (size_t)s->N * sizeof *lse);
    for (int64_t i = 0; i < s->N; i++) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t d = 0; d < s->dh; d += 16) {
            __mmask16 mask = mask16(s->dh - d);
            __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, out + i * s->out_row + d));
            __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, dout + i * s->out_row + d));
            sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                                  _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
        }
        delta[i] = _mm512_reduce_add_ps(sum);
    }
}

/* Returns which of the 16 queries from `at` on see a key. */
TARGET static inline __mmask16 seeing16(const struct attention_shape *a, int64_t key, int64_t at)
{
    __mmask16 late = a->window ? mask16(key + a->window - at) : 0xffff;
    return (__mmask16)(late & ~(a->causal ? mask16(key - at) : 0));
}

/* Converts a 32 x 32 block of transposed scores (rows: keys of panel j, columns: queries of panel i) and of
 * dO V^T to tiles of P^T and dS^T. */
TARGET static inline void score_gradients(const struct shape *s, int64_t i, int64_t j, float *scores,
                                          float *grads, const float *lse, const float *delta, uint8_t *pt,
                                          uint8_t *st)
{
    const struct attention_shape *a = s->all;
    bool masked = (a->causal && i <= j) || (a->window && (i + 1) * PANEL > j * PANEL + a->window);
    __m512 l0 = _mm512_load_ps(lse), l1 = _mm512_load_ps(lse + 16), d0 = _mm512_load_ps(delta),
           d1 = _mm512_load_ps(delta + 16);
    __m512 scale = _mm512_set1_ps(s->scale), most = _mm512_set1_ps(1.0f); /* in this order: NaN stays */
    for (int64_t r = 0; r < PANEL; r++) {
        const float *score = block_row(scores, r), *grad = block_row(grads, r);
        __m512 p0 = exp16(_mm512_min_ps(most, _mm512_fmsub_ps(_mm512_load_ps(score), scale, l0))),
               p1 = exp16(_mm512_min_ps(most, _mm512_fmsub_ps(_mm512_load_ps(score + 256), scale, l1)));
        __m512 g0 = _mm512_mul_ps(_mm512_mul_ps(p0, scale), _mm512_sub_ps(_mm512_load_ps(grad), d0));
        __m512 g1 = _mm512_mul_ps(_mm512_mul_ps(p1, scale), _mm512_sub_ps(_mm512_load_ps(grad + 256), d1));
        if (masked) {
            __mmask16 m0 = seeing16(a, j * PANEL + r, i * PANEL),
                      m1 = seeing16(a, j * PANEL + r, i * PANEL + 16);
            p0 = _mm512_maskz_mov_ps(m0, p0), p1 = _mm512_maskz_mov_ps(m1, p1);
            g0 = _mm512_maskz_mov_ps(m0, g0), g1 = _mm512_maskz_mov_ps(m1, g1);
        }
        store_pair(pt + r * 64, p0, p1);
        store_pair(st + r * 64, g0, g1);
    }
}

/* The packed operands and results of backward for one key and value head */
struct packed {
    uint8_t *ka, *va, *qb, *gb, *q_in, *g_in, *k_in, *pt, *st, *ds;
    float *scores, *grads, *dq, *lse, *delta, *sums;
};
static struct packed packed_of(const struct shape *s, uint8_t *memory)
{
    int64_t row_panel = s->n * STEP_BYTES;
    struct packed p = {.ka = memory};
    p.va = p.ka + s->unit;
    p.qb = p.va + s->unit;
    p.gb = p.qb + s->unit;
    p.q_in = p.gb + s->unit;
    p.g_in = p.q_in + s->unit;
    p.k_in = p.g_in + s->unit;
    p.pt = p.k_in + s->unit;
    p.st = p.pt + row_panel;
    p.ds = p.st + row_panel;
    p.scores = (float *)(void *)(p.ds + s->n * s->strip);
    p.grads = p.scores + s->n * TILES;
    p.dq = p.grads + s->n * TILES;
    p.lse = p.dq + s->n * s->d * TILES;
    p.delta = p.lse + s->n * PANEL;
    p.sums = p.delta + s->n * PANEL;
    return p;
}

/* Pointers to the first token of a head */
struct pointers {
    const uint16_t *q, *out, *dout;
    uint16_t *dq, *dk, *dv;
};

/* Adds the gradients of query head `head` of the share to dk and dv of key panel j. The last one stores
 * them. */
TARGET static void add_key_gradients(const struct shape *s, const struct packed *p, const struct pointers *x,
                                     int64_t j, int64_t head)
{
    int64_t rows = s->N - j * PANEL < PANEL ? s->N - j * PANEL : PANEL, row_panel = s->n * STEP_BYTES;
    struct panels of = query_panels(s, j);
    int64_t from = of.first * STEP_BYTES;
    for (int v = 0; v < 2; v++) {
        const uint8_t *weights = (v ? p->pt : p->st) + from, *in = (v ? p->g_in : p->q_in) + from;
        float *sum = p->sums + (s->share > 1 ? (2 * j + v) * s->d * TILES : 0);
        for (int64_t d = 0; d < s->d; d++)
            micro(weights, in + d * row_panel, sum + d * TILES, of.end - of.first, head > 0);
        if (head + 1 == s->share)
            write_rows(s, sum, NULL, 0, rows, (v ? x->dv : x->dk) + j * PANEL * s->qkv_row, s->qkv_row);
    }
}

/* Stores dS of key panel j, one of those from `first` on, and adds to dk and dv, for query head `head`. */
TARGET static void backward_keys(const struct shape *s, const struct packed *p, const struct pointers *x,
                                 int64_t j, int64_t first, int64_t head)
{
    int64_t panel = s->d * STEP_BYTES; /* bytes of a panel with inner dh */
    struct panels of = query_panels(s, j);
    for (int64_t i = of.first; i < of.end; i++) {
        micro(p->ka + j * panel, p->qb + i * panel, p->scores + i * TILES, s->d, 0);
        micro(p->va + j * panel, p->gb + i * panel, p->grads + i * TILES, s->d, 0);
    }
    for (int64_t i = of.first; i < of.end; i++) {
        uint8_t *tile = p->st + i * STEP_BYTES;
        score_gradients(s, i, j, p->scores + i * TILES, p->grads + i * TILES, p->lse + i * PANEL,
                        p->delta + i * PANEL, p->pt + i * STEP_BYTES, tile);
        pack_step((const uint16_t *)(const void *)tile, PANEL, 0, 0, PANEL, 32,
                  p->ds + i * s->strip + (j - first) * STEP_BYTES);
    }
    add_key_gradients(s, p, x, j, head);
}

/* Adds the products of dS of the key panels from `first` to `end` to dq of query panel i. The last ones store
 * it. */
TARGET static void backward_queries(const struct shape *s, const struct packed *p, const struct pointers *x,
                                    int64_t i, int64_t first, int64_t end)
{
    int64_t rows = s->N - i * PANEL < PANEL ? s->N - i * PANEL : PANEL;
    struct panels all = key_panels(s, i),
                  of = {all.first > first ? all.first : first, all.end < end ? all.end : end};
    float *dq = p->dq + i * s->d * TILES;
    if (of.first >= of.end) return;
    for (int64_t d = 0; d < s->d; d++)
        micro(p->ds + i * s->strip + (of.first - first) * STEP_BYTES,
              p->k_in + (d * s->n + of.first) * STEP_BYTES, dq + d * TILES, of.end - of.first,
              of.first > all.first);
    if (of.end == all.end) write_rows(s, dq, NULL, 0, rows, x->dq + i * PANEL * s->qkv_row, s->qkv_row);
}

TARGET static void backward_query_head(const struct shape *s, const struct packed *p,
                                       const struct pointers *x, const float *lse, int64_t head)
{
    row_products(s, x->out, x->dout, lse, p->lse, p->delta);
    pack_head(s, x->q, s->qkv_row, 1, 1, p->qb);
    pack_head(s, x->dout, s->out_row, 1, 1, p->gb);
    pack_head(s, x->q, s->qkv_row, 0, 1, p->q_in);
    pack_head(s, x->dout, s->out_row, 0, 1, p->g_in);
    for (int64_t first = 0, end; first < s->n; first = end) {
        end = first + KEYS < s->n ? first + KEYS : s->n;
        for (int64_t j = first; j < end; j++) backward_keys(s, p, x, j, first, head);
        for (int64_t i = 0; i < s->n; i++) backward_queries(s, p, x, i, first, end);
    }
}

struct tensors {
    const uint16_t *qkv, *out, *dout;
    uint16_t *result; /* out forward, dqkv backward */
    float *lse;
    int64_t B;
    int backward;
};

/* Computes the segment of s from token `first` of a sample on: forward of a query head, or backward of a key
 * and value head. */
TARGET static void segment(const struct shape *s, const struct tensors *t, int64_t sample, int64_t first,
                           int64_t unit, uint8_t *memory)
{
    const struct attention_shape *a = s->all;
    int64_t token = sample * a->N + first, row = token * s->qkv_row,
            kv = t->backward ? unit : unit / s->share, k = row + (a->H + kv) * a->dh, v = k + a->G * a->dh,
            share = t->backward ? s->share : 1;
    struct packed p = packed_of(s, memory);
    if (t->backward) {
        pack_head(s, t->qkv + k, s->qkv_row, 1, 0, p.ka);
        pack_head(s, t->qkv + v, s->qkv_row, 1, 0, p.va);
        pack_head(s, t->qkv + k, s->qkv_row, 0, 1, p.k_in);
    }
    for (int64_t n = 0; n < share; n++) {
        int64_t head = unit * share + n, q = row + head * a->dh, out = token * s->out_row + head * a->dh;
        float *lse = t->lse + (sample * a->H + head) * a->N + first;
        if (t->backward) {
            struct pointers x = {.q = t->qkv + q,
                                 .out = t->out + out,
                                 .dout = t->dout + out,
                                 .dq = t->result + q,
                                 .dk = t->result + k,
                                 .dv = t->result + v};
            backward_query_head(s, &p, &x, lse, n);
        } else
            forward_head(s, t->qkv + q, t->qkv + k, t->qkv + v, t->result + out, lse,
                         a->first > first ? a->first - first : 0, memory);
    }
}

/* Computes one thread's share of the heads. A separate function, because compilers do not apply the target
 * attribute of a function to its parallel regions. */
TARGET static __attribute__((noinline)) void heads(const struct attention_shape *a, const struct tensors *t,
                                                   uint8_t *scratch)
{
    int64_t units = t->backward ? a->G : a->H;
#ifdef _OPENMP
    scratch += (size_t)omp_get_thread_num() * scratch_bytes(a);
#endif
    tiles_on();
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < t->B * units; i++)
        for (int64_t first = 0, end; first < a->N; first = end) {
            end = segment_end(a, i / units, first);
            if (end <= a->first) continue;
            struct shape s = shape_of(a, end - first);
            segment(&s, t, i / units, first, i % units, scratch);
        }
    _tile_release();
}

static void all_heads(const struct attention_shape *a, const struct tensors *t, void *scratch, int threads)
{
    (void)threads;
#pragma omp parallel num_threads(threads)
    heads(a, t, scratch);
}

void attention_amx_forward(const struct attention *o, void *scratch, int threads)
{
    struct attention_shape a = ATTENTION_SHAPE(o);
    struct tensors t = {.qkv = o->qkv, .result = o->out, .lse = o->lse, .B = o->B};
    all_heads(&a, &t, scratch, threads);
}

void attention_amx_backward(const struct attention_gradient *g, void *scratch, int threads)
{
    const struct attention *o = &g->forward;
    struct attention_shape a = ATTENTION_SHAPE(o);
    struct tensors t = {.qkv = o->qkv,
                        .out = o->out,
                        .dout = g->dout,
                        .result = g->dqkv,
                        .lse = o->lse,
                        .B = o->B,
                        .backward = 1};
    all_heads(&a, &t, scratch, threads);
}

#else

size_t attention_amx_scratch(int64_t N, int64_t H, int64_t G, int64_t dh)
{
    return (void)N, (void)H, (void)G, (void)dh, 0;
}
void attention_amx_forward(const struct attention *o, void *scratch, int threads)
{
    (void)o, (void)scratch, (void)threads;
}
void attention_amx_backward(const struct attention_gradient *g, void *scratch, int threads)
{
    (void)g, (void)scratch, (void)threads;
}

#endif
