/* Adafactor's sums over rows and columns of squared gradients. Part of kernels/cpu/optim_kernel.h. */
#ifndef MEOPT_KERNELS_CPU_OPTIM_FACTOR_SUMS_H
#define MEOPT_KERNELS_CPU_OPTIM_FACTOR_SUMS_H

/* Adds squares of one row, which it changes, to the levels of the row, and of its columns. */
OPTIM_FN void run_add(double *x, int64_t count, double *row, double *columns, int64_t stride)
{
    double largest = 0;
    uint64_t bits;
    for (int64_t j = 0; j < count; j++) largest = x[j] > largest ? x[j] : largest;
    memcpy(&bits, &largest, sizeof bits);
    for (int level = bits ? factor_level(bits) : -1; level >= 0; level--) {
        double rounder = factor_rounder(level), part[8] = {0}, *column = columns + level * stride;
        uint64_t left = 0;
        for (int64_t i = 0; i < count; i += 8)
            for (int64_t j = i; j < i + 8 && j < count; j++) {
                double units = (x[j] + rounder) - rounder;
                column[j] += units;
                part[j - i] += units;
                x[j] -= units;
                memcpy(&bits, &x[j], sizeof bits);
                left |= bits;
            }
        for (int i = 0; i < 8; i++) row[level] += part[i];
        if (!left) break;
    }
}

void OPTIM_NAME(optim_factor_sums)(const struct optim_task *t, int64_t begin, int64_t end, double *rows,
                                   double *columns)
{
    const struct optim_factors *f = &t->factors;
    int64_t first_row = (t->first_element + begin * OPTIM_GROUP) / f->columns,
            first_matrix = first_row / f->rows;
    struct padded_group padded_group;
    for (int64_t group = begin; group < end; group++) {
        struct group_at at = group_at(t, group, &padded_group);
        real g[VECTORS];
        double x[OPTIM_GROUP];
        float values[OPTIM_GROUP];
        load_gradient(g, t, at.gradient, group);
        for (int i = 0; i < VECTORS; i++) store_reals(values + i * LANES, g[i] * t->s.gradient_scale);
        for (int k = 0; k < OPTIM_GROUP; k++) x[k] = factor_square(values[k]);
        int64_t count = group_count(t, group), element = t->first_element + group * OPTIM_GROUP;
        for (int64_t k = 0; k < count;) {
            struct row_run run = row_run(t, element + k, count - k);
            int64_t matrix = run.row / f->rows - first_matrix;
            run_add(x + k, run.count, rows + (run.row - first_row) * FACTOR_LEVELS,
                    columns + matrix * FACTOR_LEVELS * f->columns + run.column, f->columns);
            k += run.count;
        }
    }
}

#endif
