/* softmax(q k^T / sqrt(dh)) v and its gradient, one (image, head) at a time: see ops.h.
 *
 * Each thread holds one head's N x N at most, in its scratch. Operands are widened to dense floats and
 * multiplied by plain vector loops: fp32, and bf16 where there are no tiles (attention_amx.c). */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"
#ifdef _OPENMP
#include <omp.h>
#endif

/* C (m, n) = A B, dense floats; A (m, k), or (k, m) when transposed; B (k, n) */
static void multiply(const float *a, int transpose_a, const float *b, float *c, int64_t m, int64_t n,
                     int64_t k)
{
    memset(c, 0, (size_t)(m * n) * sizeof(float));
    for (int64_t k0 = 0; k0 < k; k0 += 64)
        for (int64_t i = 0; i < m; i++)
            for (int64_t p = k0; p < k0 + 64 && p < k; p++) {
                float x = transpose_a ? a[p * m + i] : a[i * k + p], *to = c + i * n;
                const float *from = b + p * n;
                SIMD for (int64_t j = 0; j < n; j++) to[j] += x * from[j];
            }
}

/* dense floats (N, dh) from rows with a stride in elements; transposed: (dh, N) */
static void gather(int bf16, const void *x, int64_t at, int64_t stride, int64_t N, int64_t dh, int transposed,
                   float *to)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < dh; d++) {
            float v = bf16 ? widen_one(((const uint16_t *)x)[at + n * stride + d])
                           : ((const float *)x)[at + n * stride + d];
            to[transposed ? d * N + n : n * dh + d] = v;
        }
}
static void scatter(int bf16, const float *from, int64_t N, int64_t dh, void *x, int64_t at, int64_t stride)
{
    for (int64_t n = 0; n < N; n++) {
        if (bf16) write_piece(1, x, at + n * stride, dh, from + n * dh);
        else memcpy((float *)x + at + n * stride, from + n * dh, (size_t)dh * 4);
    }
}

/* s (N, N) to probabilities in place: p_ij = exp(scale s_ij - lse_i), lse_i = log sum_j exp(scale s_ij), both
 * against the row's largest so that nothing overflows */
static void softmax_rows(float *s, float *lse, int64_t N, float scale)
{
    for (int64_t i = 0; i < N; i++) {
        float *row = s + i * N, top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
        for (int64_t j = 0; j < N; j++) top = row[j] > top ? row[j] : top;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < N; j++) {
            row[j] = exp_one((row[j] - top) * scale);
            sum += row[j];
        }
        float inverse = 1.0f / sum;
        SIMD for (int64_t j = 0; j < N; j++) row[j] *= inverse;
        lse[i] = top * scale + logf(sum);
    }
}

/* One thread's scratch: floats S, T (N, N), U (4 of (N, dh)). */
struct room {
    float *s, *t, *u;
};

static struct room room_of(void *scratch, int64_t N, int64_t dh)
{
#ifdef _OPENMP
    size_t thread = (size_t)omp_get_thread_num();
#else
    size_t thread = 0;
#endif
    char *base = (char *)scratch + thread * attention_scratch(N, dh, 1);
    size_t square = ((size_t)(N * N) + 15) & ~(size_t)15;
    struct room r;
    r.s = (float *)(void *)base;
    r.t = r.s + square;
    r.u = r.t + square;
    return r;
}

void NAME(attention_forward)(const struct attention *o, void *scratch, int threads)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t B = o->B, N = o->N, H = o->H, dh = o->dh;
    float scale = 1.0f / sqrtf((float)dh);
    int64_t row = 3 * H * dh, out_row = H * dh;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < B * H; i++) {
        struct room r = room_of(scratch, N, dh);
        int64_t b = i / H, h = i % H, q = b * N * row + h * dh, k = q + H * dh, v = k + H * dh,
                at = b * N * out_row + h * dh;
        float *qf = r.u, *kf = qf + N * dh, *vf = kf + N * dh, *of = vf + N * dh;
        gather(bf16, o->qkv, q, row, N, dh, 0, qf);
        gather(bf16, o->qkv, k, row, N, dh, 1, kf);
        gather(bf16, o->qkv, v, row, N, dh, 0, vf);
        multiply(qf, 0, kf, r.s, N, N, dh);
        softmax_rows(r.s, o->lse + i * N, N, scale);
        multiply(r.s, 0, vf, of, N, dh, N);
        scatter(bf16, of, N, dh, o->out, at, out_row);
    }
}

/* Rows of the softmax's gradient: s: scores q k^T -> probabilities p; t: dp = dout v^T -> ds. With p_ij =
 * exp(scale s_ij - lse_i): ds_ij = scale p_ij (dp_ij - delta_i), delta_i = sum_j p_ij dp_ij, which is
 * sum_d dout_id out_id, because out = p v (FlashAttention's form: no second pass over j). */
static void softmax_backward_rows(int bf16, const void *out, const void *dout, int64_t at, int64_t stride,
                                  const float *lse, float *s, float *t, int64_t N, int64_t dh, float scale)
{
    for (int64_t i = 0; i < N; i++) {
        float a[PIECE], b[PIECE], delta = 0, l = lse[i], *p = s + i * N, *g = t + i * N;
        for (int64_t d = 0; d < dh; d += PIECE) {
            int64_t count = piece(dh, d);
            const float *u = read_piece(bf16, out, at + i * stride + d, count, a),
                        *w = read_piece(bf16, dout, at + i * stride + d, count, b);
#pragma omp simd reduction(+ : delta)
            for (int64_t k = 0; k < count; k++) delta += u[k] * w[k];
        }
        SIMD for (int64_t j = 0; j < N; j++)
        {
            p[j] = exp_one(p[j] * scale - l);
            g[j] = p[j] * (g[j] - delta) * scale;
        }
    }
}

/* One head, q, k, v, out (N, dh), p (N, N) = softmax(scale q k^T), out = p v:
 *   dv = p^T dout, dp = dout v^T, ds of softmax_backward_rows, dq = ds k, dk = ds^T q
 * p is made again from q, k and lse. */
void NAME(attention_backward)(const struct attention_gradient *o, void *scratch, int threads)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t B = o->B, N = o->N, H = o->H, dh = o->dh;
    float scale = 1.0f / sqrtf((float)dh);
    int64_t row = 3 * H * dh, out_row = H * dh;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < B * H; i++) {
        struct room r = room_of(scratch, N, dh);
        int64_t b = i / H, h = i % H, q = b * N * row + h * dh, k = q + H * dh, v = k + H * dh,
                at = b * N * out_row + h * dh;
        float *one = r.u, *two = one + N * dh, *three = two + N * dh;
        gather(bf16, o->qkv, q, row, N, dh, 0, one);
        gather(bf16, o->qkv, k, row, N, dh, 1, two);
        multiply(one, 0, two, r.s, N, N, dh);
        gather(bf16, o->dout, at, out_row, N, dh, 0, one);
        gather(bf16, o->qkv, v, row, N, dh, 1, two);
        multiply(one, 0, two, r.t, N, N, dh);
        softmax_backward_rows(bf16, o->out, o->dout, at, out_row, o->lse + i * N, r.s, r.t, N, dh, scale);
        multiply(r.s, 1, one, three, N, dh, N);
        scatter(bf16, three, N, dh, o->dqkv, v, row);
        gather(bf16, o->qkv, k, row, N, dh, 0, one);
        multiply(r.t, 0, one, three, N, dh, N);
        scatter(bf16, three, N, dh, o->dqkv, q, row);
        gather(bf16, o->qkv, q, row, N, dh, 0, one);
        multiply(r.t, 1, one, three, N, dh, N);
        scatter(bf16, three, N, dh, o->dqkv, k, row);
    }
}
