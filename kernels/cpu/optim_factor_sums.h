/* Adafactor's sums over rows and columns of squared gradients. Part of kernels/cpu/optim_kernel.h. */
#ifndef MEOPT_KERNELS_CPU_OPTIM_FACTOR_SUMS_H
#define MEOPT_KERNELS_CPU_OPTIM_FACTOR_SUMS_H

typedef double doubles __attribute__((vector_size(4 * LANES)));
typedef float half_reals __attribute__((vector_size(2 * LANES)));
enum { DOUBLES = LANES / 2 };

OPTIM_FN doubles load_doubles(const double *p)
{
    doubles x;
    memcpy(&x, p, sizeof x);
    return x;
}
/* factor_square of each */
OPTIM_FN void group_squares(double x[OPTIM_GROUP], const float values[OPTIM_GROUP])
{
    for (int k = 0; k < OPTIM_GROUP; k += DOUBLES) {
        half_reals half;
        memcpy(&half, values + k, sizeof half);
        doubles g = __builtin_convertvector(half, doubles), square = g * g;
        wide bits = ((wide)square + FACTOR_SQUARE_HALF) & ~(wide)((wide){0} + (2 * FACTOR_SQUARE_HALF - 1));
        bits &= (wide)(square < FACTOR_SQUARE_MOST);
        memcpy(x + k, &bits, sizeof bits);
    }
}
/* Adds the units of one level of squares, which it removes from them, to that of the columns. Returns their
 * sum; *left: whether something stays. */
OPTIM_FN double level_add(double *x, int64_t count, int level, double *column, bool *left)
{
    double rounder = factor_rounder(level), sum = 0;
    doubles part = {0};
    wide rest = {0};
    uint64_t more = 0;
    int64_t i = 0;
    for (; i + DOUBLES <= count; i += DOUBLES) {
        doubles square = load_doubles(x + i), units = (square + rounder) - rounder,
                total = load_doubles(column + i) + units;
        square -= units;
        part += units;
        rest |= (wide)square;
        memcpy(column + i, &total, sizeof total);
        memcpy(x + i, &square, sizeof square);
    }
    for (; i < count; i++) {
        double units = (x[i] + rounder) - rounder;
        uint64_t bits;
        column[i] += units;
        sum += units;
        x[i] -= units;
        memcpy(&bits, &x[i], sizeof bits);
        more |= bits;
    }
    for (int k = 0; k < DOUBLES; k++) {
        sum += part[k];
        more |= rest[k];
    }
    *left = more != 0;
    return sum;
}
/* Adds squares of one row, which it changes, to the levels of the row, and of its columns. */
OPTIM_FN void run_add(double *x, int64_t count, double *row, double *columns, int64_t stride)
{
    wide most = {0};
    uint64_t largest = 0, bits;
    bool left = true;
    int64_t i = 0;
    for (; i + DOUBLES <= count; i += DOUBLES) { /* bits of positive numbers have their order */
        wide now = (wide)load_doubles(x + i), more = (wide)((doubles)now > (doubles)most);
        most = (now & more) | (most & ~more);
    }
    for (; i < count; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        largest = bits > largest ? bits : largest;
    }
    for (int k = 0; k < DOUBLES; k++) largest = most[k] > largest ? most[k] : largest;
    for (int level = largest ? factor_level(largest) : -1; level >= 0 && left; level--)
        row[level] += level_add(x, count, level, columns + level * stride, &left);
}

void OPTIM_NAME(optim_factor_sums)(const struct optim_task *t, int64_t begin, int64_t end, double *rows,
                                   double *columns)
{
    const struct optim_factors *f = &t->factors;
    int64_t first_row = (t->first_element + begin * OPTIM_GROUP) / f->columns,
            first_matrix = first_row / f->rows;
    struct padded_group padded_group;
    for (int64_t first = begin; first < end; first += OPTIM_BATCH) { /* sums of long runs cost less */
        double x[OPTIM_BATCH * OPTIM_GROUP];
        int64_t stop = first + OPTIM_BATCH < end ? first + OPTIM_BATCH : end, count = 0;
        for (int64_t group = first; group < stop; group++) {
            struct group_at at = group_at(t, group, &padded_group);
            real g[VECTORS];
            float values[OPTIM_GROUP];
            load_gradient(g, t, at.gradient, group);
            for (int i = 0; i < VECTORS; i++) store_reals(values + i * LANES, g[i] * t->s.gradient_scale);
            group_squares(x + (group - first) * OPTIM_GROUP, values);
            count += group_count(t, group);
        }
        int64_t element = t->first_element + first * OPTIM_GROUP;
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
