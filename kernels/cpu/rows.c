/* Layer norm, residuals, column sums and LayerScale: operations along rows, and sums over rows. See ops.h.
 *
 * Sums over rows consist of ROW_SHARES fixed shares, each computed by one thread, and added in order.
 */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"

#include <assert.h>

/* Computes y of `count` elements of a row, from xhat. */
static void affine_piece(const struct layernorm *o, int64_t row, int64_t at, int64_t count, const float *hat)
{
    int bf16 = storage_of(o->type);
    float out[PIECE];
    const float *weight = o->weight + at, *bias = o->bias ? o->bias + at : NULL;
    float *w = piece_for(bf16, o->y, row * o->D + at, out);
    if (bias) SIMD for (int64_t i = 0; i < count; i++) w[i] = hat[i] * weight[i] + bias[i];
    else SIMD for (int64_t i = 0; i < count; i++) w[i] = hat[i] * weight[i];
    write_piece(bf16, o->y, row * o->D + at, count, w);
}

/* The same from x, through xhat rounded as it is stored. */
static void normalise_piece(const struct layernorm *o, int64_t row, int64_t at, int64_t count, const float *v)
{
    int hats = storage_of(o->hat_type);
    float hat[PIECE], mean = o->rms ? 0 : o->mean[row], rstd = o->rstd[row];
    uint16_t rounded[PIECE];
    SIMD for (int64_t i = 0; i < count; i++) hat[i] = (v[i] - mean) * rstd;
    if (o->hat) store_piece(hats, o->hat, row * o->D + at, count, hat);
    if (o->hat) affine_piece(o, row, at, count, read_piece(hats, o->hat, row * o->D + at, count, hat));
    else if (hats) {
        write_piece(hats, rounded, 0, count, hat);
        affine_piece(o, row, at, count, read_piece(hats, rounded, 0, count, hat));
    } else affine_piece(o, row, at, count, hat);
}
static void normalise(const struct layernorm *o, int64_t row)
{
    int x_type = storage_of(o->x_type);
    for (int64_t at = 0; at < o->D; at += PIECE) {
        float in[PIECE];
        int64_t count = piece(o->D, at);
        const float *v = read_piece(x_type, o->x, row * o->x_stride + at, count, in);
        normalise_piece(o, row, at, count, v);
    }
}

/* Computes mean and rstd of neighbouring rows at once, because the additions of one row depend on each other.
 * Missing rows are replaced by the last. Rows of bf16 up to KEPT stay in the first-level cache as floats for
 * the second pass. mean NULL: the mean is 0 (RMS norm). */
enum { TOGETHER = 4, KEPT = 4 * PIECE };
static void moments(int bf16, const void *x, int64_t at, int64_t stride, int64_t rows, int64_t D, double eps,
                    float *mean, float *rstd)
{
    int first = mean ? 0 : 1;
    float in[TOGETHER][KEPT], m[TOGETHER] = {0};
    const float *v[TOGETHER];
    bool kept = bf16 && D <= KEPT;
    double sum[TOGETHER] = {0}, squares[TOGETHER] = {0};
    for (int pass = first; pass < 2; pass++)
        for (int64_t from = 0; from < D; from += PIECE) {
            int64_t count = piece(D, from);
            for (int64_t r = 0; r < TOGETHER; r++) {
                float *to = in[r] + (kept ? from : 0);
                v[r] = to;
                if (!kept || pass == first)
                    v[r] = read_piece(bf16, x, at + (r < rows ? r : rows - 1) * stride + from, count, to);
            }
            const float *v0 = v[0], *v1 = v[1], *v2 = v[2], *v3 = v[3];
            float p0 = 0, p1 = 0, p2 = 0, p3 = 0, m0 = m[0], m1 = m[1], m2 = m[2], m3 = m[3];
            if (pass == 0)
#pragma omp simd reduction(+ : p0, p1, p2, p3)
                for (int64_t i = 0; i < count; i++) {
                    p0 += v0[i];
                    p1 += v1[i];
                    p2 += v2[i];
                    p3 += v3[i];
                }
            else
#pragma omp simd reduction(+ : p0, p1, p2, p3)
                for (int64_t i = 0; i < count; i++) {
                    p0 += (v0[i] - m0) * (v0[i] - m0);
                    p1 += (v1[i] - m1) * (v1[i] - m1);
                    p2 += (v2[i] - m2) * (v2[i] - m2);
                    p3 += (v3[i] - m3) * (v3[i] - m3);
                }
            const float part[TOGETHER] = {p0, p1, p2, p3};
            double *to = pass == 0 ? sum : squares;
            for (int r = 0; r < TOGETHER; r++) {
                to[r] += (double)part[r];
                if (pass == 0) m[r] = (float)(sum[r] / (double)D);
            }
        }
    for (int64_t r = 0; r < rows; r++) {
        if (mean) mean[r] = m[r];
        rstd[r] = (float)(1.0 / sqrt(squares[r] / (double)D + eps));
    }
}

void NAME(layernorm_forward)(const struct layernorm *o)
{
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row += TOGETHER)
    {
        int64_t end = row + TOGETHER < o->R ? row + TOGETHER : o->R;
        moments(storage_of(o->x_type), o->x, row * o->x_stride, o->x_stride, end - row, o->D, (double)o->eps,
                o->rms ? NULL : o->mean + row, o->rstd + row);
        for (int64_t r = row; r < end; r++) normalise(o, r);
    }
}

void NAME(layernorm_apply)(const struct layernorm *o)
{
    int hats = storage_of(o->hat_type);
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row++)
    {
        if (!o->hat) normalise(o, row);
        for (int64_t at = 0; o->hat && at < o->D; at += PIECE) {
            float in[PIECE];
            int64_t count = piece(o->D, at);
            affine_piece(o, row, at, count, read_piece(hats, o->hat, row * o->D + at, count, in));
        }
    }
}

static float drop_factor(const struct drop_path *o, int64_t row) { return o->keep[row / o->rows]; }

/* Multiplies `count` elements of a row of branch + bias by gamma, and by the row's factor. */
static void scale_branch(const struct residual *o, int64_t row, int64_t at, int64_t count, float *u)
{
    float in[PIECE];
    const float *v = read_piece(storage_of(o->type), o->branch, row * o->D + at, count, in);
    if (o->gamma) {
        const float *gamma = o->gamma + at;
        SIMD for (int64_t i = 0; i < count; i++) u[i] = gamma[i] * v[i];
    } else memcpy(u, v, (size_t)count * sizeof *u);
    if (!o->drop.keep) return;
    float factor = drop_factor(&o->drop, row);
    SIMD for (int64_t i = 0; i < count; i++) u[i] *= factor;
}

/* stored(x) + u */
static void second_row(const struct residual *o, int64_t row)
{
    const struct second_input *s = o->second;
    int stored = storage_of(s->from.type);
    float mean = s->from.mean ? s->from.mean[row] : 0, deviation = s->from.rstd ? 1 / s->from.rstd[row] : 1;
    for (int64_t at = 0; at < o->D; at += PIECE) {
        float u[PIECE], in[PIECE];
        int64_t count = piece(o->D, at), here = row * o->D + at;
        scale_branch(o, row, at, count, u);
        const float *x = read_piece(stored, s->from.x, here, count, in);
        SIMD for (int64_t i = 0; i < count; i++) u[i] += x[i] * deviation + mean;
        if (s->norm) normalise_piece(s->norm, row, at, count, u);
        else store_piece(stored, s->z, here, count, u);
    }
}

/* Processes a few rows at a time, so that they stay in the first-level cache. */
void NAME(residual_forward)(const struct residual *o)
{
    assert(!o->bias);
    const struct layernorm *n = o->second ? o->second->norm : NULL;
    int64_t D = o->D;
    PARALLEL_FOR for (int64_t row = 0; row < o->R; row += TOGETHER)
    {
        int64_t end = row + TOGETHER < o->R ? row + TOGETHER : o->R;
        for (int64_t r = row; r < end && o->x; r++)
            for (int64_t at = 0; at < D; at += PIECE) {
                float u[PIECE], *y = o->y + r * D + at;
                const float *x = o->x + r * D + at;
                int64_t count = piece(D, at);
                scale_branch(o, r, at, count, u);
                SIMD for (int64_t i = 0; i < count; i++) y[i] = x[i] + u[i];
            }
        if (n && o->x)
            moments(0, o->y, row * D, D, end - row, D, (double)n->eps, n->rms ? NULL : n->mean + row,
                    n->rstd + row);
        for (int64_t r = row; r < end && o->second; r++) second_row(o, r);
    }
}

void NAME(add_shares)(const float *shares, int64_t stride, int64_t columns, float *sums)
{
    PARALLEL_FOR for (int64_t at = 0; at < columns; at += PIECE)
    {
        int64_t count = piece(columns, at);
        for (int64_t s = 0; s < ROW_SHARES; s++) {
            const float *v = shares + s * stride + at;
            SIMD for (int64_t i = 0; i < count; i++) sums[at + i] += v[i];
        }
    }
}

/* One row of y = xhat w + b, xhat = (x - mean) rstd (D). mean and rstd depend on x, too, with derivatives 1/D
 * and -rstd^2 xhat_i / D for x_i. With the gradient of xhat, g = dy w:
 *   dx += rstd (g - mean(g) - xhat mean(g xhat))
 * and, for the share, dw += dy xhat, db += dy. With `to` the row is stored there. rms: without mean(g). */
static void backward_row(const struct layernorm_gradient *o, int64_t row, float *share_w, float *share_b)
{
    int dys = storage_of(o->type), xs = storage_of(o->x_type);
    int64_t D = o->D, x_at = row * o->x_stride, dy_at = row * D;
    const float *weight = o->weight;
    float *dx = o->to ? NULL : o->dx + row * o->dx_stride, rstd = o->rstd[row],
          mean = o->mean && !o->rms ? o->mean[row] : 0, scale = o->mean && !o->rms ? rstd : 1;
    float b1[PIECE], b2[PIECE];
    double sum = 0, product = 0;
    for (int64_t at = 0; at < D; at += PIECE) {
        int64_t count = piece(D, at);
        const float *v = read_piece(xs, o->x, x_at + at, count, b1),
                    *d = read_piece(dys, o->dy, dy_at + at, count, b2), *w = weight + at;
        float *sw = share_w + at, *sb = share_b + at, s = 0, p = 0;
#pragma omp simd reduction(+ : s, p)
        for (int64_t i = 0; i < count; i++) {
            float xhat = (v[i] - mean) * scale, g = d[i] * w[i];
            s += g;
            p += g * xhat;
            sw[i] += d[i] * xhat;
            sb[i] += d[i];
        }
        sum += (double)s;
        product += (double)p;
    }
    float a = o->rms ? 0 : (float)(sum / (double)D), b = (float)(product / (double)D);
    for (int64_t at = 0; at < D; at += PIECE) {
        int64_t count = piece(D, at);
        const float *v = read_piece(xs, o->x, x_at + at, count, b1),
                    *d = read_piece(dys, o->dy, dy_at + at, count, b2), *w = weight + at;
        if (o->to) {
            float made[PIECE];
            SIMD for (int64_t i = 0; i < count; i++) made[i] =
                rstd * (d[i] * w[i] - a - (v[i] - mean) * scale * b);
            store_piece(dys, o->to, dy_at + at, count, made);
            continue;
        }
        float *out = dx + at;
        SIMD for (int64_t i = 0; i < count; i++) out[i] +=
            rstd * (d[i] * w[i] - a - (v[i] - mean) * scale * b);
    }
}

/* Computes plain, scaled and, for the share, the sums of a row. */
static void branch_row(const struct branch_gradient *o, int64_t row, float *share)
{
    int bf16 = o->type == DTYPE_BF16;
    float out[PIECE], kept[PIECE];
    for (int64_t at = 0; at < o->D; at += PIECE) {
        int64_t count = piece(o->D, at), here = row * o->D + at;
        const float *v = o->dx + here, *gamma = o->gamma ? o->gamma + at : NULL;
        if (o->drop.keep) {
            float factor = drop_factor(&o->drop, row);
            SIMD for (int64_t i = 0; i < count; i++) kept[i] = factor * v[i];
            v = kept;
        }
        add_piece(0, v, 0, count, share + at);
        store_piece(bf16, o->plain, here, count, v);
        if (!gamma) continue;
        SIMD for (int64_t i = 0; i < count; i++) out[i] = gamma[i] * v[i];
        store_piece(bf16, o->scaled, here, count, out);
    }
}

/* Applies the branch to each row while it is in the first-level cache. */
void NAME(layernorm_backward)(const struct layernorm_gradient *o, void *scratch)
{
    float *shares = scratch;
    int64_t R = o->R, D = o->D, columns = (o->then ? 3 : 2) * D;
    int64_t step = (R + ROW_SHARES - 1) / ROW_SHARES;
    PARALLEL_FOR for (int64_t s = 0; s < ROW_SHARES; s++)
    {
        float *share = shares + s * columns;
        memset(share, 0, (size_t)columns * sizeof(float));
        for (int64_t row = s * step; row < (s + 1) * step && row < R; row++) {
            backward_row(o, row, share, share + D);
            if (o->then) branch_row(o->then, row, share + 2 * D);
        }
    }
    if (o->dweight) NAME(add_shares)(shares, columns, D, o->dweight);
    if (o->dbias) NAME(add_shares)(shares + D, columns, D, o->dbias);
    if (o->then && o->then->sums) NAME(add_shares)(shares + 2 * D, columns, D, o->then->sums);
}

void NAME(branch_gradient)(const struct branch_gradient *o, void *scratch)
{
    float *shares = scratch;
    int64_t R = o->R, D = o->D, step = (R + ROW_SHARES - 1) / ROW_SHARES;
    PARALLEL_FOR for (int64_t s = 0; s < ROW_SHARES; s++)
    {
        float *share = shares + s * D;
        memset(share, 0, (size_t)D * sizeof(float));
        for (int64_t row = s * step; row < (s + 1) * step && row < R; row++) branch_row(o, row, share);
    }
    if (o->sums) NAME(add_shares)(shares, D, D, o->sums);
}

/* s_j += sum_r x_rj: the gradient of a bias, which is added to every row */
void NAME(column_sums)(enum dtype t, const void *x, float *sums, int64_t R, int64_t D, void *scratch)
{
    int bf16 = t == DTYPE_BF16;
    float *shares = scratch;
    int64_t step = (R + ROW_SHARES - 1) / ROW_SHARES;
    PARALLEL_FOR for (int64_t s = 0; s < ROW_SHARES; s++)
    {
        float *share = shares + s * D;
        memset(share, 0, (size_t)D * sizeof(float));
        for (int64_t row = s * step; row < (s + 1) * step && row < R; row++)
            for (int64_t at = 0; at < D; at += PIECE)
                add_piece(bf16, x, row * D + at, piece(D, at), share + at);
    }
    NAME(add_shares)(shares, D, D, sums);
}

/* y_bd = (1/P) sum_n x_bnd, P = N - skip; so dx_bnd = dy_bd / P */
void NAME(row_mean_forward)(const struct row_mean *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t N = o->N, D = o->D, pieces = (D + PIECE - 1) / PIECE;
    PARALLEL_FOR for (int64_t k = 0; k < o->B * pieces; k++)
    {
        int64_t b = k / pieces, at = k % pieces * PIECE, count = piece(D, at);
        float in[PIECE], out[PIECE];
        double sum[PIECE] = {0};
        for (int64_t n = o->skip; n < N; n++) {
            const float *v = read_piece(bf16, o->x, (b * N + n) * D + at, count, in);
            SIMD for (int64_t i = 0; i < count; i++) sum[i] += (double)v[i];
        }
        SIMD for (int64_t i = 0; i < count; i++) out[i] = (float)(sum[i] / (double)(N - o->skip));
        memcpy(o->y + b * D + at, out, (size_t)count * sizeof *out);
    }
}

void NAME(row_mean_backward)(const struct row_mean_gradient *o)
{
    int bf16 = o->type == DTYPE_BF16;
    int64_t rows = o->N - o->skip, D = o->D;
    float share = 1.0f / (float)rows;
    PARALLEL_FOR for (int64_t row = 0; row < o->B * rows; row++) for (int64_t at = 0; at < D; at += PIECE)
    {
        int64_t b = row / rows, count = piece(D, at);
        float in[PIECE], *dx = o->dx + (b * o->N + o->skip + row % rows) * D + at;
        const float *d = read_piece(bf16, o->dy, b * D + at, count, in);
        SIMD for (int64_t i = 0; i < count; i++) dx[i] += d[i] * share;
    }
}

/* u = a W^T + b scaled by gamma; G = dx^T a, s_j = sum_r dx_rj: dgamma_j = sum_r dx_rj u_rj = sum_k W_jk G_jk
 * + b_j s_j, dW_jk = gamma_j G_jk, db_j = gamma_j s_j (derived in core/nn/backward.c) */
void NAME(layerscale_backward)(const struct layerscale_gradient *o)
{
    int w_bf16 = o->weight_type == DTYPE_BF16, g_bf16 = o->gradient_type == DTYPE_BF16;
    int64_t D = o->D, K = o->K;
    PARALLEL_FOR for (int64_t j = 0; j < D; j++)
    {
        float b1[PIECE], b2[PIECE], out[PIECE], scale = o->gamma[j], total = o->sums[j];
        double sum = 0;
        for (int64_t at = 0; at < K; at += PIECE) {
            int64_t count = piece(K, at), here = j * K + at;
            const float *w = read_piece(w_bf16, o->weights, here, count, b1),
                        *g = read_piece(g_bf16, o->gradient, here, count, b2);
            float part = 0;
#pragma omp simd reduction(+ : part)
            for (int64_t i = 0; i < count; i++) {
                part += w[i] * g[i];
                out[i] = g[i] * scale;
            }
            sum += (double)part;
            if (g_bf16) write_piece(1, o->gradient, here, count, out);
            else memcpy((float *)o->gradient + here, out, (size_t)count * 4);
        }
        o->dgamma[j] += (float)(sum + (double)o->bias[j] * (double)total);
        o->dbias[j] = scale * total;
    }
}

/* Adds the sums of squares of TOGETHER pieces from `at` on to the total, in order. */
static double add_squares(int bf16, const void *x, int64_t at, double total)
{
    float in[TOGETHER][PIECE];
    const float *v[TOGETHER];
    double p0 = 0, p1 = 0, p2 = 0, p3 = 0;
    for (int r = 0; r < TOGETHER; r++) v[r] = read_piece(bf16, x, at + r * PIECE, PIECE, in[r]);
    const float *v0 = v[0], *v1 = v[1], *v2 = v[2], *v3 = v[3];
#pragma omp simd reduction(+ : p0, p1, p2, p3)
    for (int64_t i = 0; i < PIECE; i++) {
        p0 += (double)v0[i] * (double)v0[i];
        p1 += (double)v1[i] * (double)v1[i];
        p2 += (double)v2[i] * (double)v2[i];
        p3 += (double)v3[i] * (double)v3[i];
    }
    return total + p0 + p1 + p2 + p3;
}

void NAME(sum_squares)(const void *x, enum dtype t, int64_t n, double *sum, int *all_finite, void *scratch)
{
    int bf16 = t == DTYPE_BF16;
    double *totals = scratch;
    int64_t step = ((n + SUM_SHARES - 1) / SUM_SHARES + PIECE - 1) / PIECE * PIECE;
    int finite = 1;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t s = 0; s < SUM_SHARES; s++) {
        float in[PIECE];
        double total = 0;
        int64_t at = s * step, end = (s + 1) * step < n ? (s + 1) * step : n;
        for (; at + TOGETHER * PIECE <= end; at += TOGETHER * PIECE) total = add_squares(bf16, x, at, total);
        for (; at < end; at += PIECE) {
            int64_t count = piece(end, at);
            const float *v = read_piece(bf16, x, at, count, in);
            double part = 0;
#pragma omp simd reduction(+ : part)
            for (int64_t i = 0; i < count; i++) part += (double)v[i] * (double)v[i];
            total += part;
        }
        totals[s] = total;
        finite = finite && isfinite(total);
    }
    for (int64_t s = 0; s < SUM_SHARES; s++) *sum += totals[s];
    if (!finite) *all_finite = 0;
}
