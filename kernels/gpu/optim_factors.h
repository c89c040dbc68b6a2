/* Adafactor on a card: its sums over rows and columns, the means that follow from them, and its step of a
 * lane. Part of optim.hip. The sums are exact (kernels/optim_factor.h), so they have the CPU's bits in any
 * order. */
#ifndef MEOPT_GPU_OPTIM_FACTORS_H
#define MEOPT_GPU_OPTIM_FACTORS_H

#include "kernels/gpu/optim_lane.h"
#define FACTOR_FN DEVICE
#include "kernels/optim_factor.h"

/* Returns an element's gradient, given or accumulated. */
DEVICE real gradient_at(const optim_task *t, int64_t i)
{
    bool accumulated = t->gradient_format == GRADIENT_ACCUMULATOR;
    int format = accumulated                          ? t->accumulator_format
                 : t->gradient_format == GRADIENT_F32 ? STATE_F32
                                                      : STATE_BF16;
    if (format == STATE_F32) return load_whole<float>((const float *)t->gradient + i);
    if (!OPTIM_LOW_BIT(format)) {
        word half = load_whole<uint16_t>((const uint16_t *)t->gradient + i);
        return t->gradient_format == GRADIENT_F16 ? f16_read(half) : as_real(half << 16);
    }
    int64_t group = i / OPTIM_GROUP;
    int e = (int)(i % OPTIM_GROUP);
    const uint8_t *codes = (const uint8_t *)t->gradient;
    uint32_t exponent = load_whole<uint8_t>(t->gradient_scales + group);
    word code;
    if (format == STATE_4BIT) {
        word both = load_whole<uint8_t>(codes + group * (OPTIM_GROUP / 2) + e % 32);
        code = (both >> e / 32 * 4 & 15u) << 28;
    } else code = (word)load_whole<uint8_t>(codes + i) << 24;
    return exponent ? m_decode(code, exponent << 23, 0, code_of(format)) : real(0.0f);
}
/* Adds the square of an element to the levels. */
DEVICE void levels_add(double sums[FACTOR_LEVELS], const optim_task *t, int64_t i)
{
    double left = factor_square((gradient_at(t, i) * t->s.gradient_scale).x);
    UNROLLED for (int level = FACTOR_LEVELS - 1; level >= 0; level--)
    {
        double rounder = factor_rounder(level), units = (left + rounder) - rounder;
        sums[level] += units;
        left -= units;
    }
}

/* The rows of the elements here, one wave each. sums: of rows (FACTOR_LEVELS), then of columns. */
KERNEL(optim_factor_rows, const optim_row *row, double *sums)
{
    const optim_task *t = &row->task;
    const optim_factors *f = &t->factors;
    int64_t first = t->first_element, end = first + t->count, waves = THREADS / WAVE;
    int64_t r = first / f->columns + BLOCK_X * waves + THREAD / WAVE;
    int64_t begin = r * f->columns, stop = begin + f->columns;
    double levels[FACTOR_LEVELS] = {0};
    if (begin < first) begin = first;
    if (stop > end) stop = end;
    for (int64_t i = begin + THREAD % WAVE; i < stop; i += WAVE) levels_add(levels, t, i - first);
    UNROLLED for (int level = 0; level < FACTOR_LEVELS; level++)
    {
        double sum = wave_sum(levels[level]);
        if (begin < stop && THREAD % WAVE == 0) sums[r * FACTOR_LEVELS + level] = sum;
    }
}

/* The columns of the elements here: a block has COLUMN_STRIP columns of a matrix. */
enum { COLUMN_STRIP = 32 };
KERNEL(optim_factor_columns, const optim_row *row, double *sums)
{
    SHARED double part[MAX_THREADS];
    const optim_task *t = &row->task;
    const optim_factors *f = &t->factors;
    int64_t first = t->first_element, end = first + t->count,
            strips = (f->columns + COLUMN_STRIP - 1) / COLUMN_STRIP;
    int64_t matrix = first / f->columns / f->rows + BLOCK_X / strips,
            column = BLOCK_X % strips * COLUMN_STRIP + THREAD % COLUMN_STRIP;
    double levels[FACTOR_LEVELS] = {0};
    int step = THREADS / COLUMN_STRIP;
    if (column < f->columns)
        for (int64_t r = THREAD / COLUMN_STRIP; r < f->rows; r += step) {
            int64_t i = (matrix * f->rows + r) * f->columns + column;
            if (i >= first && i < end) levels_add(levels, t, i - first);
        }
    double *to = sums + (f->matrices * f->rows + matrix * f->columns) * FACTOR_LEVELS + column;
    UNROLLED for (int level = 0; level < FACTOR_LEVELS; level++)
    {
        part[THREAD] = levels[level];
        barrier();
        if (THREAD < COLUMN_STRIP && column < f->columns) {
            double sum = 0;
            for (int k = 0; k < step; k++) sum += part[k * COLUMN_STRIP + THREAD];
            to[level * f->columns] = sum;
        }
        barrier();
    }
}

/* The means from the sums, one matrix per block. */
KERNEL(optim_factor_means, const optim_row *row, const double *sums)
{
    SHARED double parts[FACTOR_PARTS];
    SHARED double total[1];
    const optim_task *t = &row->task;
    const optim_factors *f = &t->factors;
    int64_t matrix = BLOCK_X, rows = f->rows, columns = f->columns;
    const double *of_columns = sums + (f->matrices * rows + matrix * columns) * FACTOR_LEVELS;
    float *row_means = f->row_means + matrix * rows, *column_means = f->column_means + matrix * columns,
          *quotients = f->row_quotients + matrix * rows;
    if (row->proceed && !*row->proceed) return;
    for (int p = THREAD; p < FACTOR_PARTS; p += THREADS) {
        double part = 0;
        for (int64_t i = p; i < rows; i += FACTOR_PARTS) {
            double total_of_row = factor_total(sums + (matrix * rows + i) * FACTOR_LEVELS, 1);
            float mean = factor_average(load_whole<float>(row_means + i), total_of_row, columns, &t->s);
            store_whole<float>(row_means + i, mean);
            part += (double)mean;
        }
        parts[p] = part;
    }
    barrier();
    if (THREAD == 0) {
        double sum = 0;
        for (int p = 0; p < FACTOR_PARTS; p++) sum += parts[p];
        total[0] = sum;
    }
    barrier();
    for (int p = THREAD; p < FACTOR_PARTS; p += THREADS)
        for (int64_t i = p; i < rows; i += FACTOR_PARTS)
            store_whole<float>(quotients + i,
                               factor_quotient(load_whole<float>(row_means + i), total[0], rows, &t->s));
    for (int64_t j = THREAD; j < columns; j += THREADS)
        store_whole<float>(column_means + j,
                           factor_average(load_whole<float>(column_means + j),
                                          factor_total(of_columns + j, columns), rows, &t->s));
}

/* Loads the roots of the second moment of a lane; 1 where there is no element. */
DEVICE void load_factored_roots(real root[LANE_ELEMENTS], const optim_task *t, int64_t group, int u,
                                int64_t left)
{
    const optim_factors *f = &t->factors;
    int64_t base = t->first_element + group * OPTIM_GROUP, first = base / f->columns,
            begin = base % f->columns;
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        int64_t column = begin + element(k, u), row = first;
        if (column >= f->columns) {
            row += column / f->columns;
            column %= f->columns;
        }
        int64_t matrix = f->matrices > 1 ? row / f->rows : 0;
        root[k] = 1.0f;
        if (element(k, u) < left)
            root[k] = real_sqrt(real(load_whole<float>(f->column_means + matrix * f->columns + column))) *
                      real(load_whole<float>(f->row_quotients + row));
    }
}

/* Steps a group with Adafactor; v: of a vector. grid: of 8-bit m, if it has one. Returns false after a pass
 * for the norms, for all groups. */
DEVICE bool step_factored(const optim_task *t, int m_format, bool has_grid, int64_t group, bool active,
                          const real g[LANE_ELEMENTS], real w[LANE_ELEMENTS], real m[LANE_ELEMENTS],
                          real v[LANE_ELEMENTS], m_grid *grid, real weight[2], real update[2], int u,
                          int64_t left)
{
    const optim_scalars *s = &t->s;
    real root[LANE_ELEMENTS];
    for (int k = 0; k < LANE_ELEMENTS; k++) root[k] = 1.0f;
    if (active && t->factors.matrices) load_factored_roots(root, t, group, u, left);
    else if (active) {
        load_wide(v, t->v, group, STATE_F32, u, OPTIM_GROUP);
        for (int k = 0; k < LANE_ELEMENTS; k++) {
            v[k] = rule_average(v[k], rule_factored_square(g[k], s), s->beta2, s->rest2);
            root[k] = real_sqrt(v[k]);
        }
    }
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        root[k] = rule_factored_update(g[k], root[k], s);
        if (!active) continue;
        weight[k % 2] = real_fma(w[k], w[k], weight[k % 2]);
        update[k % 2] = real_fma(root[k], root[k], update[k % 2]);
    }
    *grid = m_grid_read(0);
    if (t->norms_only) return false;
    if (active && has_grid) load_m_grid(m, grid, t, group, u);
    else if (active && m_format != STATE_NONE) load_scaled(m, t->m, t->scales, group, m_format, u);
    for (int k = 0; k < LANE_ELEMENTS; k++) {
        real step = root[k] * s->lr;
        if (m_format != STATE_NONE) step = m[k] = rule_average(m[k], step, s->beta1, s->rest1);
        w[k] = w[k] * s->decay - step;
    }
    return true;
}

#endif
