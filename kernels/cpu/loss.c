/* Losses of rows and their gradients: contracts in kernels/operations.h.
 *
 * Distillation, in double:
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

/* The distribution of a row's labels: `part` of label[k], both 0 for a row without a label */
struct row_labels {
    int64_t label[2];
    double part[2];
};
static struct row_labels labels_of_row(const struct cross_entropy *o, int64_t r)
{
    bool two = o->label2 && o->label2[r] >= 0;
    double share = two ? (double)o->share[r] : 1;
    return (struct row_labels){{o->label[r], two ? o->label2[r] : -1}, {share, two ? 1 - share : 0}};
}

/* Returns the number of classes ahead of `label`. */
static int64_t classes_ahead(const float *z, int64_t C, int64_t label)
{
    int64_t ahead = 0;
#pragma omp simd reduction(+ : ahead)
    for (int64_t j = 0; j < label; j++) ahead += !(z[j] < z[label]);
#pragma omp simd reduction(+ : ahead)
    for (int64_t j = label + 1; j < C; j++) ahead += !(z[j] <= z[label]);
    return ahead;
}

/* log p_j = z_j - lse, lse = top + log(sum of exp(z_j - top)): exponentials in float, the rest in double.
 * values: loss, and the shares of labels among the top 1 and top 5 */
static void cross_entropy_row(const struct cross_entropy *o, const float *z, struct row_labels q, float *dz,
                              double values[3])
{
    int64_t C = o->C;
    float top = z[0];
    double sum = 0, total = 0, smooth = (double)o->smoothing, scale = (double)o->weight;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < C; j++) top = z[j] > top ? z[j] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < C; j++) sum += (double)exp_one(z[j] - top);
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < C; j++) total += (double)z[j];
    double lse = (double)top + log(sum);
    float each = (float)(scale / sum), even = (float)(scale * smooth / (double)C);
    SIMD for (int64_t j = 0; j < (dz ? C : 0); j++) dz[j] = exp_one(z[j] - top) * each - even;
    values[0] = smooth > 0 ? scale * smooth * (lse - total / (double)C) : 0;
    for (int k = 0; k < 2; k++) {
        int64_t label = q.label[k];
        double part = q.part[k], both = label == q.label[1 - k] ? 1 : part;
        if (!(part != 0)) continue;
        int64_t ahead = classes_ahead(z, C, label);
        double log_p = (double)z[label] - lse;
        values[0] -= scale * (1 - smooth) * part * log_p;
        values[1] += ahead < 1 ? part : 0;
        values[2] += ahead < 5 ? part : 0;
        if (dz) dz[label] = (float)(scale * (exp(log_p) - smooth / (double)C - (1 - smooth) * both));
    }
}

void NAME(cross_entropy)(const struct cross_entropy *o, void *scratch)
{
    double *values = scratch;
    int64_t R = o->R, C = o->C;
    PARALLEL_FOR for (int64_t r = 0; r < R; r++)
    {
        float *dz = o->dlogits ? o->dlogits + r * C : NULL;
        memset(values + 3 * r, 0, 3 * sizeof *values);
        if (o->label[r] >= 0)
            cross_entropy_row(o, o->logits + r * C, labels_of_row(o, r), dz, values + 3 * r);
        else if (dz) memset(dz, 0, (size_t)C * sizeof *dz);
    }
    for (int64_t r = 0; r < R; r++) {
        *o->loss += values[3 * r];
        *o->top1 += values[3 * r + 1];
        *o->top5 += values[3 * r + 2];
    }
}
