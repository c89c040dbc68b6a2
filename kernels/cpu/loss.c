/* Distillation losses of rows (D) and their gradient, in double: see ops.h.
 *
 *   l = sum_i f(e_i), e = u - v; u = y, v = t, or normalised u = y/|y|, v = t/|t| (norms at least 1e-12, as
 *   F.normalize). du_i = f'(e_i). du/dy = (1 - u u^T) / |y|, so normalised dy = (du - u (u . du)) / |y|.
 *   cosine: l = 1 - c, c = y.t / (|y| |t|), dy = (c y/|y| - t/|t|) / |y|
 */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"

/* f' and f: e^2; smooth l1: e^2 / 2 within 1, |e| - 1/2 beyond */
static double slope(enum loss_kind kind, double e)
{
    return kind != LOSS_SMOOTH_L1 ? 2 * e : e > 1 ? 1 : e < -1 ? -1 : e;
}
static double value(enum loss_kind kind, double e)
{
    return kind != LOSS_SMOOTH_L1 ? e * e : fabs(e) < 1 ? 0.5 * e * e : fabs(e) - 0.5;
}

static void loss_row(enum loss_kind kind, bool normalize, double scale, const float *y, const float *t,
                     float *dy, int64_t D, double *loss, double *cosine)
{
    double yy = 0, tt = 0, yt = 0, sum = 0, dot = 0;
    for (int64_t i = 0; i < D; i++) {
        yy += (double)y[i] * (double)y[i];
        tt += (double)t[i] * (double)t[i];
        yt += (double)y[i] * (double)t[i];
    }
    double ny = fmax(sqrt(yy), 1e-12), nt = fmax(sqrt(tt), 1e-12), c = yt / (ny * nt);
    double sy = normalize ? 1 / ny : 1, st = normalize ? 1 / nt : 1;
    for (int64_t i = 0; i < D; i++) {
        double u = (double)y[i] * sy, e = u - (double)t[i] * st;
        sum += value(kind, e);
        dot += u * slope(kind, e);
    }
    for (int64_t i = 0; i < D && dy; i++) {
        double u = (double)y[i] * sy, g = slope(kind, u - (double)t[i] * st);
        if (kind == LOSS_COSINE) g = (c * (double)y[i] / ny - (double)t[i] / nt) / ny;
        else if (normalize) g = (g - u * dot) / ny;
        dy[i] += (float)(scale * g);
    }
    *loss = scale * (kind == LOSS_COSINE ? 1 - c : sum);
    *cosine = c;
}

void NAME(distill_loss)(const struct distillation *o, void *scratch)
{
    double *losses = scratch, *cosines = losses + o->R;
    int64_t R = o->R, D = o->D;
    double scale = (double)o->weight / (double)R / (o->sum_dim || o->kind == LOSS_COSINE ? 1.0 : (double)D);
    PARALLEL_FOR for (int64_t r = 0; r < R; r++)
        loss_row(o->kind, o->normalize, scale, o->y + r * D, o->target + r * D, o->dy ? o->dy + r * D : NULL,
                 D, losses + r, cosines + r);
    for (int64_t r = 0; r < R; r++) {
        *o->loss += losses[r];
        if (o->cosine) *o->cosine += cosines[r];
    }
}
