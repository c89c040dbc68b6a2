/* softmax(q k^T / sqrt(dh)) v and its gradient for bf16 on AMX tiles, one (image, head) at a time per thread.
 *
 * q, k, v of a head are packed into tiles once. Forward processes 32 rows at a time. Their scores stay in the
 * first two cache levels, e^(s - max) is stored in the tiles that multiply v, and the result is divided by
 * the row sum. Backward processes 32 keys at a time (rows of the transposed scores), so that dV = P^T dO and
 * dK = dS^T Q are complete at once (FlashAttention, arXiv 2205.14135):
 *
 *     P = exp(S - lse)   dS = P (dO V^T - delta) / sqrt(dh)   delta_i = dO_i . O_i
 *
 * dS of the whole head is stored in bf16 tiles, for dQ = dS K. Scores, sums and exponentials are fp32.
 * Backward needs no masks for padding: rows after N are zeros in every packed operand, and their factors are
 * finite. P of a padded score of 0 would be e^-lse, which is limited to e. */
#include "kernels/cpu/attention_amx.h"

#if defined(__x86_64__) && defined(__linux__)

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/avx512.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { TILES = PANEL * PANEL }; /* floats of a 32 x 32 block */

struct shape {
    int64_t N, H, dh, n, d;   /* n, d: panels (also steps) of N and dh */
    int64_t unit;             /* bytes of one packed (N, dh) operand */
    int64_t qkv_row, out_row; /* elements between tokens */
    float scale;
};

static struct shape shape_of(int64_t N, int64_t H, int64_t dh)
{
    int64_t n = up(N, PANEL) / PANEL, d = up(dh, PANEL) / PANEL;
    return (struct shape){N, H, dh, n, d, n * d * STEP_BYTES, 3 * H * dh, H * dh, 1.0f / sqrtf((float)dh)};
}

/* Returns the scratch bytes of backward, which needs more than forward: seven operands, scores and their
 * gradients for 32 keys, dS of the head, a block of results, lse and delta. */
size_t attention_amx_scratch(int64_t N, int64_t dh)
{
    struct shape s = shape_of(N, 1, dh);
    return (size_t)(7 * s.unit + 2 * s.n * (TILES * 4 + STEP_BYTES) + s.n * s.n * STEP_BYTES +
                    s.d * TILES * 4 + 2 * s.n * PANEL * 4);
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

/* Stores 32 rows of results (d blocks) times factor[row] (NULL: 1) in rows of dh at x. */
TARGET static void write_rows(const struct shape *s, float *blocks, const float *factor, int64_t rows,
                              uint16_t *x, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
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

/* Converts one row of scores to e^(s - max) in tiles of P. Stores the row's factor and log-sum-exp. */
TARGET static inline void softmax_row(const struct shape *s, float *scores, int64_t r, uint8_t *p,
                                      float *factor, float *lse)
{
    int64_t left = s->N - (s->n - 1) * PANEL; /* columns of the last panel */
    __mmask16 m0 = mask16(left), m1 = mask16(left - 16);
    __m512 lowest = _mm512_set1_ps(-INFINITY), top = lowest, sum = _mm512_setzero_ps(),
           scale = _mm512_set1_ps(s->scale);
    for (int64_t j = 0; j < s->n; j++) {
        const float *row = block_row(scores + j * TILES, r);
        bool last = j + 1 == s->n;
        top = _mm512_max_ps(top, _mm512_mask_load_ps(lowest, last ? m0 : 0xffff, row));
        top = _mm512_max_ps(top, _mm512_mask_load_ps(lowest, last ? m1 : 0xffff, row + 256));
    }
    float highest = _mm512_reduce_max_ps(top) * s->scale;
    __m512 offset = _mm512_set1_ps(highest);
    for (int64_t j = 0; j < s->n; j++) {
        const float *row = block_row(scores + j * TILES, r);
        bool last = j + 1 == s->n;
        __m512 e0 = exp16(_mm512_fmsub_ps(_mm512_load_ps(row), scale, offset));
        __m512 e1 = exp16(_mm512_fmsub_ps(_mm512_load_ps(row + 256), scale, offset));
        if (last) {
            e0 = _mm512_maskz_mov_ps(m0, e0);
            e1 = _mm512_maskz_mov_ps(m1, e1);
        }
        sum = _mm512_add_ps(sum, _mm512_add_ps(e0, e1));
        store_pair(p + j * STEP_BYTES + r * 64, e0, e1);
    }
    float total = _mm512_reduce_add_ps(sum);
    *factor = 1.0f / total;
    *lse = highest + logf(total);
}

TARGET static void forward_head(const struct shape *s, const uint16_t *q, uint16_t *out, float *lse,
                                uint8_t *memory)
{
    uint8_t *pq = memory, *pk = pq + s->unit, *pv = pk + s->unit, *p = pv + s->unit;
    float *scores = (float *)(void *)(p + s->n * STEP_BYTES), *result = scores + s->n * TILES, factor[PANEL];
    pack_head(s, q, s->qkv_row, 1, 0, pq);
    pack_head(s, q + s->H * s->dh, s->qkv_row, 1, 1, pk);
    pack_head(s, q + 2 * s->H * s->dh, s->qkv_row, 0, 1, pv);
    for (int64_t i = 0; i < s->n; i++) {
        int64_t rows = s->N - i * PANEL < PANEL ? s->N - i * PANEL : PANEL;
        for (int64_t j = 0; j < s->n; j++)
            micro(pq + i * s->d * STEP_BYTES, pk + j * s->d * STEP_BYTES, scores + j * TILES, s->d, 0);
        for (int64_t r = 0; r < rows; r++) softmax_row(s, scores, r, p, factor + r, lse + i * PANEL + r);
        for (int64_t d = 0; d < s->d; d++) micro(p, pv + d * s->n * STEP_BYTES, result + d * TILES, s->n, 0);
        write_rows(s, result, factor, rows, out + i * PANEL * s->out_row, s->out_row);
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

/* Converts a 32 x 32 block of transposed scores and of dO V^T (rows: keys) to tiles of P^T and dS^T. */
TARGET static inline void score_gradients(const struct shape *s, float *scores, float *grads,
                                          const float *lse, const float *delta, uint8_t *pt, uint8_t *st)
{
    __m512 l0 = _mm512_load_ps(lse), l1 = _mm512_load_ps(lse + 16), d0 = _mm512_load_ps(delta),
           d1 = _mm512_load_ps(delta + 16);
    __m512 scale = _mm512_set1_ps(s->scale), most = _mm512_set1_ps(1.0f); /* in this order: NaN stays */
    for (int64_t r = 0; r < PANEL; r++) {
        const float *score = block_row(scores, r), *grad = block_row(grads, r);
        __m512 p0 = exp16(_mm512_min_ps(most, _mm512_fmsub_ps(_mm512_load_ps(score), scale, l0))),
               p1 = exp16(_mm512_min_ps(most, _mm512_fmsub_ps(_mm512_load_ps(score + 256), scale, l1)));
        store_pair(pt + r * 64, p0, p1);
        __m512 g0 = _mm512_mul_ps(_mm512_mul_ps(p0, scale), _mm512_sub_ps(_mm512_load_ps(grad), d0));
        __m512 g1 = _mm512_mul_ps(_mm512_mul_ps(p1, scale), _mm512_sub_ps(_mm512_load_ps(grad + 256), d1));
        store_pair(st + r * 64, g0, g1);
    }
}

TARGET static void backward_head(const struct shape *s, const uint16_t *q, const uint16_t *out,
                                 const float *lse, const uint16_t *dout, uint16_t *dq, uint8_t *memory)
{
    const uint16_t *k = q + s->H * s->dh, *v = k + s->H * s->dh;
    int64_t key_panel = s->d * STEP_BYTES,
            row_panel = s->n * STEP_BYTES; /* bytes of a panel with inner dh, inner N */
    uint8_t *ka = memory, *va = ka + s->unit, *qb = va + s->unit, *gb = qb + s->unit, *q_in = gb + s->unit,
            *g_in = q_in + s->unit;
    uint8_t *k_in = g_in + s->unit, *pt = k_in + s->unit, *st = pt + row_panel, *ds = st + row_panel;
    float *scores = (float *)(void *)(ds + s->n * row_panel), *grads = scores + s->n * TILES,
          *result = grads + s->n * TILES;
    float *row_lse = result + s->d * TILES, *delta = row_lse + s->n * PANEL;

    row_products(s, out, dout, lse, row_lse, delta);
    pack_head(s, k, s->qkv_row, 1, 0, ka);
    pack_head(s, v, s->qkv_row, 1, 0, va);
    pack_head(s, q, s->qkv_row, 1, 1, qb);
    pack_head(s, dout, s->out_row, 1, 1, gb);
    pack_head(s, q, s->qkv_row, 0, 1, q_in);
    pack_head(s, dout, s->out_row, 0, 1, g_in);
    pack_head(s, k, s->qkv_row, 0, 1, k_in);
    for (int64_t j = 0; j < s->n; j++) {
        int64_t rows = s->N - j * PANEL < PANEL ? s->N - j * PANEL : PANEL;
        for (int64_t i = 0; i < s->n; i++) {
            micro(ka + j * key_panel, qb + i * key_panel, scores + i * TILES, s->d, 0);
            micro(va + j * key_panel, gb + i * key_panel, grads + i * TILES, s->d, 0);
        }
        for (int64_t i = 0; i < s->n; i++) {
            uint8_t *tile = st + i * STEP_BYTES;
            score_gradients(s, scores + i * TILES, grads + i * TILES, row_lse + i * PANEL, delta + i * PANEL,
                            pt + i * STEP_BYTES, tile);
            pack_step((const uint16_t *)(const void *)tile, PANEL, 0, 0, PANEL, 32,
                      ds + i * row_panel + j * STEP_BYTES);
        }
        uint16_t *dk = dq + s->H * s->dh + j * PANEL * s->qkv_row, *dv = dk + s->H * s->dh;
        for (int64_t d = 0; d < s->d; d++) micro(st, q_in + d * row_panel, result + d * TILES, s->n, 0);
        write_rows(s, result, NULL, rows, dk, s->qkv_row);
        for (int64_t d = 0; d < s->d; d++) micro(pt, g_in + d * row_panel, result + d * TILES, s->n, 0);
        write_rows(s, result, NULL, rows, dv, s->qkv_row);
    }
    for (int64_t i = 0; i < s->n; i++) {
        int64_t rows = s->N - i * PANEL < PANEL ? s->N - i * PANEL : PANEL;
        for (int64_t d = 0; d < s->d; d++)
            micro(ds + i * row_panel, k_in + d * row_panel, result + d * TILES, s->n, 0);
        write_rows(s, result, NULL, rows, dq + i * PANEL * s->qkv_row, s->qkv_row);
    }
}

static uint8_t *memory_of(void *scratch, const struct shape *s)
{
#ifdef _OPENMP
    return (uint8_t *)scratch + (size_t)omp_get_thread_num() * attention_amx_scratch(s->N, s->dh);
#else
    return (void)s, scratch;
#endif
}

struct tensors {
    const uint16_t *qkv, *out, *dout;
    uint16_t *result; /* out forward, dqkv backward */
    float *lse;
    int64_t B;
    int backward;
};

/* Computes one thread's share of the heads. A separate function, because compilers do not apply the target
 * attribute of a function to its parallel regions. */
TARGET static __attribute__((noinline)) void heads(const struct shape *s, const struct tensors *t,
                                                   uint8_t *memory)
{
    tiles_on();
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < t->B * s->H; i++) {
        int64_t b = i / s->H, h = i % s->H, at = b * s->N * s->qkv_row + h * s->dh,
                o = b * s->N * s->out_row + h * s->dh;
        if (t->backward)
            backward_head(s, t->qkv + at, t->out + o, t->lse + i * s->N, t->dout + o, t->result + at, memory);
        else forward_head(s, t->qkv + at, t->result + o, t->lse + i * s->N, memory);
    }
    _tile_release();
}

static void all_heads(const struct shape *s, const struct tensors *t, void *scratch, int threads)
{
    (void)threads;
#pragma omp parallel num_threads(threads)
    heads(s, t, memory_of(scratch, s));
}

void attention_amx_forward(const struct attention *o, void *scratch, int threads)
{
    struct shape s = shape_of(o->N, o->H, o->dh);
    struct tensors t = {.qkv = o->qkv, .result = o->out, .lse = o->lse, .B = o->B};
    all_heads(&s, &t, scratch, threads);
}

void attention_amx_backward(const struct attention_gradient *o, void *scratch, int threads)
{
    struct shape s = shape_of(o->N, o->H, o->dh);
    struct tensors t = {.qkv = o->qkv,
                        .out = o->out,
                        .dout = o->dout,
                        .result = o->dqkv,
                        .lse = (float *)(uintptr_t)o->lse, /* only forward writes it */
                        .B = o->B,
                        .backward = 1};
    all_heads(&s, &t, scratch, threads);
}

#else

size_t attention_amx_scratch(int64_t N, int64_t dh) { return (void)N, (void)dh, 0; }
void attention_amx_forward(const struct attention *o, void *scratch, int threads)
{
    (void)o, (void)scratch, (void)threads;
}
void attention_amx_backward(const struct attention_gradient *o, void *scratch, int threads)
{
    (void)o, (void)scratch, (void)threads;
}

#endif
