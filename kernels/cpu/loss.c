/* Distillation losses of rows and their gradient, in double: see ops.h. With u = y/|y| and v = t/|t| (norms
 * at least 1e-12, as F.normalize), a loss f(u) has dL/dy = (f' - u (u . f')) / |y|. */
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector.h"

static double slope(int kind, double e) { return kind != 2 ? 2 * e : e > 1 ? 1 : e < -1 ? -1 : e; }
static double value(int kind, double e)
{
    return kind != 2 ? e * e : fabs(e) < 1 ? 0.5 * e * e : fabs(e) - 0.5;
}

static void loss_row(int kind, int normalize, double scale, const float *y, const float *t, float *dy,
                     int64_t D, double *loss, double *cosine)
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
        if (kind == 1) g = (c * (double)y[i] / ny - (double)t[i] / nt) / ny;
        else if (normalize) g = (g - u * dot) / ny;
        dy[i] += (float)(scale * g);
    }
    *loss = scale * (kind == 1 ? 1 - c : sum);
    *cosine = c;
}

void NAME(distill_loss)(int kind, int normalize, int sum_dim, const float *y, const float *target, float *dy,
                        double *loss, double *cosine, float weight, int64_t rows, int64_t D, double *scratch)
{
    double scale = (double)weight / (double)rows / (sum_dim || kind == 1 ? 1.0 : (double)D);
    PARALLEL_FOR for (int64_t r = 0; r < rows; r++)
        loss_row(kind, normalize, scale, y + r * D, target + r * D, dy ? dy + r * D : NULL, D, scratch + r,
                 scratch + rows + r);
    for (int64_t r = 0; r < rows; r++) {
        *loss += scratch[r];
        if (cosine) *cosine += scratch[rows + r];
    }
}
