/* Operations over rows and columns of a matrix: layer norm, column sums, LayerScale, losses, norms.
 *
 * A row belongs to one block. Sums over rows (column sums, the weight gradients of a norm) take two kernels:
 * the first sums a share of the rows into `partial` (shares, columns), the second adds the shares up in
 * order. No atomics: the same bits on every run. */
#include "kernels/gpu/vendor.h"

enum { WAVES = MAX_THREADS / 32 };

/* Stores y, and hat unless it is NULL, at element i of column d for the given xhat. bias NULL: 0 */
template <class T, class H>
DEVICE void normalized(T *y, H *hat, int64_t i, float xhat, const float *weight, const float *bias, int64_t d)
{
    float h = rounded(hat, xhat);
    if (hat) store(hat, i, h);
    store(y, i, bias ? h * weight[d] + bias[d] : h * weight[d]);
}

template <class X, class T, class H>
DEVICE void layernorm_forward(const X *x, int64_t stride, const float *weight, const float *bias, T *y,
                              float *mean, float *rstd, H *hat, int64_t D, float eps, int rms)
{
    SHARED float partial[WAVES];
    int64_t row = BLOCK_X;
    const X *in = x + row * stride;
    float sum = 0, squares = 0;
    for (int64_t d = THREAD; d < D && !rms; d += THREADS) sum += load(in, d);
    float m = rms ? 0.0f : block_sum(sum, partial) / (float)D;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        float c = load(in, d) - m;
        squares += c * c;
    }
    float r = 1.0f / sqrtf(block_sum(squares, partial) / (float)D + eps);
    for (int64_t d = THREAD; d < D; d += THREADS)
        normalized(y, hat, row * D + d, (load(in, d) - m) * r, weight, bias, d);
    if (THREAD == 0) {
        if (!rms) mean[row] = m;
        rstd[row] = r;
    }
}

/* mean NULL: 0; rstd NULL: x is xhat */
template <class X, class T>
DEVICE void layernorm_apply(const X *x, int64_t stride, const float *weight, const float *bias,
                            const float *mean, const float *rstd, T *y, int64_t D)
{
    int64_t row = BLOCK_X;
    float m = mean ? mean[row] : 0.0f, r = rstd ? rstd[row] : 1.0f;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        float hat = (load(x, row * stride + d) - m) * r;
        store(y, row * D + d, bias ? hat * weight[d] + bias[d] : hat * weight[d]);
    }
}

/* A thread has the columns THREAD, THREAD + THREADS, ... of a row. The first KEPT of them stay in registers
 * between the passes over the row, enough for the widths of towers; later columns are loaded again. */
enum { KEPT = 8 };

/* Returns element d of the row of a branch that begins at `at`: gamma (branch + bias), times its factor. */
template <class T>
DEVICE float scaled(const T *branch, int64_t at, int64_t d, const float *bias, const float *gamma,
                    float factor)
{
    return exact_mul(factor, exact_mul(gamma ? gamma[d] : 1.0f, biased(branch, at + d, bias, d)));
}

/* y = x + gamma * (branch + bias), and norm(stored(x) + gamma * (branch + bias)) with mean and rstd of y; the
 * branch times the row's factor. x NULL: with the stored mean and rstd. n may be branch. */
template <class T, class H>
DEVICE void residual_norm(const float *x, const T *branch, const float *branch_bias, const float *gamma,
                          float *y, const H *stored, const float *from_mean, const float *from_rstd,
                          const float *weight, const float *bias, T *n, H *hat, float *mean, float *rstd,
                          int64_t D, float eps, const float *keep, int64_t rows, int rms)
{
    SHARED float partial[WAVES];
    int64_t row = BLOCK_X, at = row * D, after = KEPT * THREADS + THREAD;
    float factor = drop_factor(keep, rows, row);
    float added[KEPT], made[KEPT], sum = 0, squares = 0, m = rms ? 0.0f : mean[row], r = rstd[row];
    float from = from_mean ? from_mean[row] : 0.0f, deviation = 1.0f / from_rstd[row];
    UNROLLED for (int k = 0; k < KEPT; k++)
    {
        int64_t d = k * THREADS + THREAD;
        added[k] = made[k] = 0;
        if (d >= D) continue;
        added[k] = scaled(branch, at, d, branch_bias, gamma, factor);
        if (!x) continue;
        made[k] = exact_add(x[at + d], added[k]);
        y[at + d] = made[k];
        sum += made[k];
    }
    if (x) {
        for (int64_t d = after; d < D; d += THREADS) {
            y[at + d] = exact_add(x[at + d], scaled(branch, at, d, branch_bias, gamma, factor));
            sum += y[at + d];
        }
        m = rms ? 0.0f : block_sum(sum, partial) / (float)D;
        UNROLLED for (int k = 0; k < KEPT; k++)
        {
            if (k * THREADS + THREAD >= D) continue;
            squares += (made[k] - m) * (made[k] - m);
        }
        for (int64_t d = after; d < D; d += THREADS) squares += (y[at + d] - m) * (y[at + d] - m);
        r = 1.0f / sqrtf(block_sum(squares, partial) / (float)D + eps);
        if (THREAD == 0) {
            if (!rms) mean[row] = m;
            rstd[row] = r;
        }
    }
    UNROLLED for (int k = 0; k < KEPT; k++)
    {
        int64_t d = k * THREADS + THREAD;
        if (d >= D) continue;
        float z = exact_add(exact_add(exact_mul(load(stored, at + d), deviation), from), added[k]);
        normalized(n, hat, at + d, (z - m) * r, weight, bias, d);
    }
    for (int64_t d = after; d < D; d += THREADS) {
        float u = scaled(branch, at, d, branch_bias, gamma, factor),
              z = exact_add(exact_add(exact_mul(load(stored, at + d), deviation), from), u);
        normalized(n, hat, at + d, (z - m) * r, weight, bias, d);
    }
}

/* dx += rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight; or stores that in `to`, which may be
 * dy. With a branch also plain = dx times the row's factor, scaled = gamma plain (either may be dy). mean
 * NULL: x is xhat. rms: x is xhat, and mean(g) is left out.
 *
 * Share BLOCK_X of BLOCKS_X of the rows, one after the other. partial (2 or 3, shares, D): sums of dy * xhat,
 * of dy, and with a branch of dx. */
template <class T, class X>
DEVICE void layernorm_backward(const T *dy, const X *x, int64_t stride, const float *weight,
                               const float *mean, const float *rstd, float *dx, int64_t dx_stride, T *to,
                               T *plain, T *scaled, const float *gamma, float *partial, int64_t R, int64_t D,
                               const float *keep, int64_t rows, int rms)
{
    SHARED float sums[WAVES], products[WAVES];
    int64_t shares = BLOCKS_X, step = (R + shares - 1) / shares, begin = BLOCK_X * step,
            end = begin + step < R ? begin + step : R, after = KEPT * THREADS + THREAD;
    float *of_weight = partial + BLOCK_X * D, *of_bias = of_weight + shares * D,
          *of_dx = of_bias + shares * D;
    float dweight[KEPT] = {}, dbias[KEPT] = {}, ddx[KEPT] = {};
    for (int64_t d = after; d < D; d += THREADS) {
        of_weight[d] = of_bias[d] = 0;
        if (plain) of_dx[d] = 0;
    }
    for (int64_t row = begin; row < end; row++) {
        float r = rstd[row], m = mean ? mean[row] : 0.0f, scale = mean ? r : 1.0f, sum = 0, product = 0,
              factor = drop_factor(keep, rows, row), given[KEPT], hat[KEPT];
        const T *g = dy + row * D;
        const X *v = x + row * stride;
        float *out = to ? nullptr : dx + row * dx_stride;
        UNROLLED for (int k = 0; k < KEPT; k++)
        {
            int64_t d = k * THREADS + THREAD;
            given[k] = d < D ? load(g, d) : 0.0f;
            hat[k] = d < D ? (load(v, d) - m) * scale : 0.0f;
        }
        UNROLLED for (int k = 0; k < KEPT; k++)
        {
            int64_t d = k * THREADS + THREAD;
            if (d >= D) continue;
            float w = given[k] * weight[d];
            sum += w;
            product += w * hat[k];
            dweight[k] += given[k] * hat[k];
            dbias[k] += given[k];
        }
        for (int64_t d = after; d < D; d += THREADS) {
            float one = load(g, d), c = (load(v, d) - m) * scale, w = one * weight[d];
            sum += w;
            product += w * c;
            of_weight[d] += one * c;
            of_bias[d] += one;
        }
        block_sums(sum, product, sums, products);
        sum = rms ? 0.0f : sum / (float)D;
        product /= (float)D;
        UNROLLED for (int k = 0; k < KEPT; k++)
        {
            int64_t d = k * THREADS + THREAD;
            if (d >= D) continue;
            float gradient = r * (given[k] * weight[d] - sum - hat[k] * product);
            if (to) {
                store(to, row * D + d, gradient);
                continue;
            }
            gradient += out[d];
            out[d] = gradient;
            if (!plain) continue;
            gradient *= factor;
            ddx[k] += gradient;
            store(plain, row * D + d, gradient);
            if (gamma) store(scaled, row * D + d, gamma[d] * gradient);
        }
        for (int64_t d = after; d < D; d += THREADS) {
            float gradient = r * (load(g, d) * weight[d] - sum - (load(v, d) - m) * scale * product);
            if (to) {
                store(to, row * D + d, gradient);
                continue;
            }
            gradient += out[d];
            out[d] = gradient;
            if (!plain) continue;
            gradient *= factor;
            of_dx[d] += gradient;
            store(plain, row * D + d, gradient);
            if (gamma) store(scaled, row * D + d, gamma[d] * gradient);
        }
    }
    UNROLLED for (int k = 0; k < KEPT; k++)
    {
        int64_t d = k * THREADS + THREAD;
        if (d >= D) continue;
        of_weight[d] = dweight[k];
        of_bias[d] = dbias[k];
        if (plain) of_dx[d] = ddx[k];
    }
}

/* Share BLOCK_Y of BLOCKS_Y of the rows, one thread per column. plain = dx times the row's factor, scaled =
 * gamma plain; partial (shares, D): sums of plain. */
template <class T>
DEVICE void branch_gradient(const float *dx, const float *gamma, T *plain, T *scaled, float *partial,
                            int64_t R, int64_t D, const float *keep, int64_t rows)
{
    int64_t d = BLOCK_X * THREADS + THREAD, shares = BLOCKS_Y, step = (R + shares - 1) / shares,
            begin = BLOCK_Y * step;
    int64_t end = begin + step < R ? begin + step : R;
    if (d >= D) return;
    float sum = 0, scale = gamma ? gamma[d] : 1.0f, v[AT_ONCE];
    for (int64_t row = begin; row < end; row += AT_ONCE) {
        UNROLLED for (int k = 0; k < AT_ONCE; k++) v[k] = row + k < end ? dx[(row + k) * D + d] : 0.0f;
        UNROLLED for (int k = 0; k < AT_ONCE; k++)
        {
            if (row + k >= end) continue;
            v[k] *= drop_factor(keep, rows, row + k);
            sum += v[k];
            store(plain, (row + k) * D + d, v[k]);
            if (gamma) store(scaled, (row + k) * D + d, scale * v[k]);
        }
    }
    partial[BLOCK_Y * D + d] = sum;
}

template <class T> DEVICE void column_sums(const T *x, float *partial, int64_t R, int64_t D)
{
    int64_t d = BLOCK_X * THREADS + THREAD, shares = BLOCKS_Y, step = (R + shares - 1) / shares,
            begin = BLOCK_Y * step;
    int64_t end = begin + step < R ? begin + step : R;
    if (d >= D) return;
    float sum = 0;
    for (int64_t row = begin; row < end; row++) sum += load(x, row * D + d);
    partial[BLOCK_Y * D + d] = sum;
}

/* sums (D) += partial (shares, D); with two or three blocks in y, also more and most (D) += the second and
 * third part of partial. NULL: not computed. A block loads a tile of shares at a time for SHARE_COLUMNS
 * columns; one thread per column adds them in ascending order, while the others load the next tile. */
enum { SHARE_COLUMNS = 32, SHARE_ROWS = 64 };
KERNEL(add_shares, const float *partial, float *sums, float *more, float *most, int64_t shares, int64_t D)
{
    enum { EACH = SHARE_ROWS * SHARE_COLUMNS / MAX_THREADS, APART = MAX_THREADS / SHARE_COLUMNS };
    SHARED float tile[SHARE_ROWS][SHARE_COLUMNS];
    int column = THREAD % SHARE_COLUMNS, first = THREAD / SHARE_COLUMNS;
    int64_t d = BLOCK_X * SHARE_COLUMNS + column;
    const float *from = partial + BLOCK_Y * shares * D;
    float *to = BLOCK_Y == 0 ? sums : BLOCK_Y == 1 ? more : most, sum = 0, next[EACH];
    if (!to) return; /* the whole block */
    for (int64_t s0 = -SHARE_ROWS; s0 < shares; s0 += SHARE_ROWS) {
        UNROLLED for (int k = 0; k < EACH; k++)
        {
            int64_t s = s0 + SHARE_ROWS + k * APART + first;
            next[k] = s < shares && d < D ? from[s * D + d] : 0.0f;
        }
        if (s0 >= 0 && first == 0)
            for (int s = 0; s < SHARE_ROWS && s0 + s < shares; s++) sum += tile[s][column];
        barrier();
        UNROLLED for (int k = 0; k < EACH; k++) tile[k * APART + first][column] = next[k];
        barrier();
    }
    if (first == 0 && d < D) to[d] += sum;
}

#define NORM_FORWARD(name, X, T, H)                                                                          \
    KERNEL(layernorm_forward_##name, const X *x, int64_t stride, const float *weight, const float *bias,     \
           T *y, float *mean, float *rstd, H *hat, int64_t D, float eps, int rms)                            \
    {                                                                                                        \
        layernorm_forward(x, stride, weight, bias, y, mean, rstd, hat, D, eps, rms);                         \
    }
#define NORM_APPLY(name, X, T)                                                                               \
    KERNEL(layernorm_apply_##name, const X *x, int64_t stride, const float *weight, const float *bias,       \
           const float *mean, const float *rstd, T *y, int64_t D)                                            \
    {                                                                                                        \
        layernorm_apply(x, stride, weight, bias, mean, rstd, y, D);                                          \
    }
#define NORM_BACKWARD(name, T, X)                                                                            \
    KERNEL_TWICE(layernorm_backward_##name, const T *dy, const X *x, int64_t stride, const float *weight,    \
                 const float *mean, const float *rstd, float *dx, int64_t dx_stride, T *to, T *plain,        \
                 T *scaled, const float *gamma, float *partial, int64_t R, int64_t D, const float *keep,     \
                 int64_t rows, int rms)                                                                      \
    {                                                                                                        \
        layernorm_backward(dy, x, stride, weight, mean, rstd, dx, dx_stride, to, plain, scaled, gamma,       \
                           partial, R, D, keep, rows, rms);                                                  \
    }
/* Names contain the types of x, y and hat; of x and y; of dy and x. The tables are in gpu_ops.c. */
NORM_FORWARD(f32_f32_f32, float, float, float)
NORM_FORWARD(f32_f32_f16, float, float, f16)
NORM_FORWARD(f32_bf16_f32, float, bf16, float)
NORM_FORWARD(f32_bf16_f16, float, bf16, f16)
NORM_FORWARD(bf16_bf16_f32, bf16, bf16, float)
NORM_APPLY(f32_f32, float, float)
NORM_APPLY(bf16_bf16, bf16, bf16)
NORM_APPLY(f16_bf16, f16, bf16)
NORM_BACKWARD(f32_f32, float, float)
NORM_BACKWARD(f32_bf16, float, bf16)
NORM_BACKWARD(f32_f16, float, f16)
NORM_BACKWARD(bf16_f32, bf16, float)
NORM_BACKWARD(bf16_bf16, bf16, bf16)
NORM_BACKWARD(bf16_f16, bf16, f16)

#define ROWS(suffix, T, H)                                                                                   \
    KERNEL(residual_norm_##suffix, const float *x, const T *branch, const float *branch_bias,                \
           const float *gamma, float *y, const H *stored, const float *from_mean, const float *from_rstd,    \
           const float *weight, const float *bias, T *n, H *hat, float *mean, float *rstd, int64_t D,        \
           float eps, const float *keep, int64_t rows, int rms)                                              \
    {                                                                                                        \
        residual_norm(x, branch, branch_bias, gamma, y, stored, from_mean, from_rstd, weight, bias, n, hat,  \
                      mean, rstd, D, eps, keep, rows, rms);                                                  \
    }                                                                                                        \
    KERNEL(branch_gradient_##suffix, const float *dx, const float *gamma, T *plain, T *scaled,               \
           float *partial, int64_t R, int64_t D, const float *keep, int64_t rows)                            \
    {                                                                                                        \
        branch_gradient(dx, gamma, plain, scaled, partial, R, D, keep, rows);                                \
    }                                                                                                        \
    KERNEL(column_sums_##suffix, const T *x, float *partial, int64_t R, int64_t D)                           \
    {                                                                                                        \
        column_sums(x, partial, R, D);                                                                       \
    }
ROWS(f32, float, float)
ROWS(bf16, bf16, f16)

/* Block j: dgamma_j += sum_k W_jk G_jk + b_j s_j; G_jk *= gamma_j; db_j = gamma_j s_j (db may be s). */
template <class W, class G>
DEVICE void layerscale_backward(const W *w, G *grad, const float *b, const float *s, const float *gamma,
                                float *dgamma, float *db, int64_t K)
{
    SHARED float partial[WAVES];
    int64_t j = BLOCK_X;
    float scale = gamma[j], total = s[j], sum = 0;
    for (int64_t k = THREAD; k < K; k += THREADS) {
        float g = load(grad, j * K + k);
        sum += load(w, j * K + k) * g;
        store(grad, j * K + k, g * scale);
    }
    sum = block_sum(sum, partial);
    if (THREAD == 0) {
        dgamma[j] += sum + b[j] * total;
        db[j] = scale * total;
    }
}
#define LAYERSCALE(name, W, G)                                                                               \
    KERNEL(name, const W *w, G *grad, const float *b, const float *s, const float *gamma, float *dgamma,     \
           float *db, int64_t K)                                                                             \
    {                                                                                                        \
        layerscale_backward(w, grad, b, s, gamma, dgamma, db, K);                                            \
    }
LAYERSCALE(layerscale_backward_f32_f32, float, float)
LAYERSCALE(layerscale_backward_f32_bf16, float, bf16)
LAYERSCALE(layerscale_backward_bf16_f32, bf16, float)
LAYERSCALE(layerscale_backward_bf16_bf16, bf16, bf16)

/* One block per row: stores loss and cosine of the row in `values` (2, rows), the gradient in dy. kind: 0
 * mse, 1 cosine, 2 smooth l1. With u = y/|y|, v = t/|t| (norms at least 1e-12), a loss f of u has dL/dy =
 * (df/du - u (u . df/du)) / |y|. */
KERNEL(distill_rows, int kind, int normalize, int sum_dim, const float *y, const float *target, float *dy,
       double *values, float weight, int64_t rows, int64_t D)
{
    SHARED double partial[WAVES];
    int64_t row = BLOCK_X;
    const float *a = y + row * D, *t = target + row * D;
    double aa = 0, tt = 0, at = 0;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        aa += (double)a[d] * a[d];
        tt += (double)t[d] * t[d];
        at += (double)a[d] * t[d];
    }
    aa = sqrt(block_sum(aa, partial));
    tt = sqrt(block_sum(tt, partial));
    at = block_sum(at, partial);
    double na = aa > 1e-12 ? aa : 1e-12, nt = tt > 1e-12 ? tt : 1e-12, cosine = at / (na * nt);
    double scale = (double)weight / (double)rows / (sum_dim || kind == 1 ? 1.0 : (double)D), loss = 0,
           dot = 0;
    double sa = normalize ? 1 / na : 1, st = normalize ? 1 / nt : 1;
    for (int64_t d = THREAD; d < D; d += THREADS) {
        double u = a[d] * sa, e = u - t[d] * st, size = e < 0 ? -e : e;
        loss += kind == 2 ? (size < 1 ? 0.5 * e * e : size - 0.5) : e * e;
        dot += u * (kind == 2 ? (size < 1 ? e : e / size) : 2 * e);
    }
    loss = block_sum(loss, partial);
    dot = block_sum(dot, partial);
    if (kind == 1) loss = 1 - cosine;
    for (int64_t d = THREAD; d < D && dy; d += THREADS) {
        double u = a[d] * sa, e = u - t[d] * st, size = e < 0 ? -e : e,
               g = kind == 2 ? (size < 1 ? e : e / size) : 2 * e;
        if (kind == 1) g = (cosine * a[d] / na - t[d] / nt) / na;
        else if (normalize) g = (g - u * dot) / na;
        dy[row * D + d] += (float)(scale * g);
    }
    if (THREAD == 0) {
        values[row] = loss * scale;
        values[rows + row] = cosine;
    }
}

/* One block per row (struct cross_entropy): stores the row's loss and its shares among the top 1 and top 5 in
 * `values` (3, rows), the gradient in dlogits. Exponentials in float, sums in two floats; double once per
 * row, in one thread. */
KERNEL(cross_entropy_rows, const float *logits, const int32_t *labels, const int32_t *second,
       const float *shares, float *dlogits, double *values, float smoothing, float weight, int64_t rows,
       int64_t C)
{
    SHARED two_floats partial[WAVES];
    SHARED float largest[WAVES], of_row[2];
    SHARED int counts[WAVES];
    int64_t row = BLOCK_X, label[2] = {labels[row], second ? second[row] : -1};
    bool labelled = label[0] >= 0, two = label[1] >= 0;
    const float *z = logits + row * C;
    float *dz = dlogits ? dlogits + row * C : nullptr, top = z[0];
    two_floats powers = {0, 0}, all = {0, 0};
    int ahead[2] = {0, 0};
    for (int64_t j = THREAD; j < C; j += THREADS) top = z[j] > top ? z[j] : top;
    top = block_max(top, largest);
    for (int64_t j = THREAD; j < C; j += THREADS) {
        add_to(powers, expf(z[j] - top));
        add_to(all, z[j]);
        for (int k = 0; k < 2; k++)
            if (label[k] >= 0)
                ahead[k] += j < label[k] ? !(z[j] < z[label[k]]) : j > label[k] && !(z[j] <= z[label[k]]);
    }
    double sum = block_total(powers, partial), total = block_total(all, partial);
    for (int k = 0; k < 2; k++) ahead[k] = block_sum(ahead[k], counts);
    if (THREAD == 0) {
        of_row[0] = (float)((double)weight / sum);
        of_row[1] = (float)((double)weight * (double)smoothing / (double)C);
    }
    barrier();
    for (int64_t j = THREAD; j < C && dz; j += THREADS)
        dz[j] = labelled ? expf(z[j] - top) * of_row[0] - of_row[1] : 0.0f;
    barrier(); /* the gradients of labels follow */
    if (THREAD) return;
    double share = two ? shares[row] : 1, part[2] = {share, two ? 1 - share : 0}, smooth = smoothing,
           scale = weight, loss = 0, top1 = 0, top5 = 0, lse = top + log(sum);
    if (labelled && smooth > 0) loss = scale * smooth * (lse - total / (double)C);
    for (int k = 0; k < 2; k++) {
        if (!labelled || !(part[k] != 0)) continue;
        double log_p = z[label[k]] - lse, both = label[0] == label[1] ? 1 : part[k];
        loss -= scale * (1 - smooth) * part[k] * log_p;
        top1 += ahead[k] < 1 ? part[k] : 0;
        top5 += ahead[k] < 5 ? part[k] : 0;
        if (dz) dz[label[k]] = (float)(scale * (exp(log_p) - smooth / (double)C - (1 - smooth) * both));
    }
    values[row] = loss;
    values[rows + row] = top1;
    values[2 * rows + row] = top5;
}

/* One block: sums[0] += sum of values (n), in a fixed order. */
KERNEL(add_values, const double *values, double *sum, int64_t n)
{
    SHARED double partial[WAVES];
    double total = 0;
    for (int64_t i = THREAD; i < n; i += THREADS) total += values[i];
    total = block_sum(total, partial);
    if (THREAD == 0) *sum += total;
}

/* partial (2, blocks): sum of squares, count of values that are not finite */
template <class T> DEVICE void sum_squares(const T *x, int64_t n, double *partial_sums)
{
    SHARED double partial[WAVES];
    double sum = 0, bad = 0;
    for (int64_t i = BLOCK_X * THREADS + THREAD; i < n; i += BLOCKS_X * THREADS) {
        float v = load(x, i);
        bad += v - v != 0;
        sum += (double)v * v;
    }
    sum = block_sum(sum, partial);
    bad = block_sum(bad, partial);
    if (THREAD == 0) {
        partial_sums[BLOCK_X] = sum;
        partial_sums[BLOCKS_X + BLOCK_X] = bad;
    }
}
KERNEL(sum_squares_f32, const float *x, int64_t n, double *partial) { sum_squares(x, n, partial); }
KERNEL(sum_squares_bf16, const bf16 *x, int64_t n, double *partial) { sum_squares(x, n, partial); }
/* One block */
KERNEL(add_squares, const double *partial_sums, int64_t blocks, double *sum, int *finite)
{
    SHARED double partial[WAVES];
    double total = 0, bad = 0;
    for (int64_t i = THREAD; i < blocks; i += THREADS) {
        total += partial_sums[i];
        bad += partial_sums[blocks + i];
    }
    total = block_sum(total, partial);
    bad = block_sum(bad, partial);
    if (THREAD) return;
    *sum += total;
    if (bad > 0) *finite = 0;
}
