/* Adafactor's step of a group. Part of kernels/cpu/optim_kernel.h. */
#ifndef MEOPT_KERNELS_CPU_OPTIM_FACTORED_H
#define MEOPT_KERNELS_CPU_OPTIM_FACTORED_H

#include "kernels/optim_factor.h"

/* Elements of a group that are in one row. */
struct row_run {
    int64_t row, column, count; /* row: of all matrices */
};
OPTIM_FN struct row_run row_run(const struct optim_task *t, int64_t element, int64_t left)
{
    int64_t columns = t->factors.columns, column = element % columns;
    return (struct row_run){element / columns, column, columns - column < left ? columns - column : left};
}
OPTIM_FN int64_t group_count(const struct optim_task *t, int64_t group)
{
    int64_t left = t->count - group * OPTIM_GROUP;
    return left < OPTIM_GROUP ? left : OPTIM_GROUP;
}

/* Loads the roots of the second moment of a group; 1 where there is no element. */
OPTIM_FN void load_factored_roots(real root[VECTORS], const struct optim_task *t, int64_t group)
{
    const struct optim_factors *f = &t->factors;
    float v[OPTIM_GROUP], row[OPTIM_GROUP];
    int64_t count = group_count(t, group), element = t->first_element + group * OPTIM_GROUP, k = 0;
    struct row_run whole = row_run(t, element, count);
    if (LIKELY(whole.count == OPTIM_GROUP)) {
        const float *column = f->column_means + whole.row / f->rows * f->columns + whole.column;
        for (int i = 0; i < VECTORS; i++)
            root[i] = real_sqrt(load_reals(column + i * LANES)) * f->row_quotients[whole.row];
        return;
    }
    while (k < count) {
        struct row_run run = row_run(t, element + k, count - k);
        float quotient = f->row_quotients[run.row];
        const float *column = f->column_means + run.row / f->rows * f->columns + run.column;
        for (int64_t j = 0; j < run.count; j++) {
            v[k + j] = column[j];
            row[k + j] = quotient;
        }
        k += run.count;
    }
    for (; k < OPTIM_GROUP; k++) v[k] = row[k] = 1;
    for (int i = 0; i < VECTORS; i++)
        root[i] = real_sqrt(load_reals(v + i * LANES)) * load_reals(row + i * LANES);
}

/* Steps a group with Adafactor; v: of a vector. Returns false after a pass for the norms. */
OPTIM_FN bool step_factored(const struct optim_task *t, int64_t group, const real g[VECTORS], real w[VECTORS],
                            real m[VECTORS], real v[VECTORS], const struct m_grid *grid, struct sums *sums)
{
    const struct optim_scalars *s = &t->s;
    real root[VECTORS];
    if (t->factors.matrices) load_factored_roots(root, t, group);
    else {
        load_wide_state(v, t->v, group, STATE_F32);
        for (int i = 0; i < VECTORS; i++) {
            v[i] = rule_average(v[i], rule_factored_square(g[i], s), s->beta2, s->rest2);
            root[i] = real_sqrt(v[i]);
        }
    }
    for (int i = 0; i < VECTORS; i++) {
        root[i] = rule_factored_update(g[i], root[i], s);
        sums->weight[i % SUBVECTORS] = real_fma(w[i], w[i], sums->weight[i % SUBVECTORS]);
        sums->update[i % SUBVECTORS] = real_fma(root[i], root[i], sums->update[i % SUBVECTORS]);
    }
    if (t->norms_only) return false;
    if (uses_m_grid(t)) load_m_grid(m, t, group, grid);
    else if (t->m_format != STATE_NONE) load_scaled(m, t->m, t->scales, group, t->m_format);
    for (int i = 0; i < VECTORS; i++) {
        real step = root[i] * s->lr;
        if (t->m_format != STATE_NONE) step = m[i] = rule_average(m[i], step, s->beta1, s->rest1);
        w[i] = w[i] * s->decay - step;
    }
    return true;
}

#endif
