/* The linear probe: its coefficients, and the choice of l2, are those of ridge regression on standardised
 * features in long double; batches do not change bits; classes are ranked by their scores; without a
 * solution, no class is predicted. */
#include "core/base/memory.h"
#include "core/step/probe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { IMAGES = 90, WIDTH = 21, CLASSES = 7, EMPTY = 4 /* a class without images */, BATCH = 16 };

struct set {
    float rows[IMAGES * WIDTH];
    int32_t labels[IMAGES];
};

/* Features of unit length in clusters, two of them nearly constant; every 13th image has no label. */
static void draw(struct set *s, uint32_t random)
{
    for (int i = 0; i < IMAGES; i++) {
        double square = 0, row[WIDTH];
        int class = i % CLASSES;
        s->labels[i] = i % 13 == 12 || class == EMPTY ? -1 : class;
        for (int k = 0; k < WIDTH; k++) {
            random = random * 1664525u + 1013904223u;
            row[k] = (k % CLASSES == class) + (random >> 8) / 8388608.0;
            if (k == 3) row[k] = 1;
            square += row[k] * row[k];
        }
        for (int k = 0; k < WIDTH; k++) s->rows[i * WIDTH + k] = (float)(row[k] / sqrt(square));
        s->rows[i * WIDTH + 5] = 0.25f;
    }
}

static struct device *cpu;

static struct probe *fit(const struct set *s, int64_t batch, double l2)
{
    struct probe *p;
    struct error err;
    assert_int_equal(probe_create(&p, cpu, WIDTH, CLASSES, BATCH, l2, &err), 0);
    for (int pass = 0; pass < 2; pass++) { /* the second evaluation is as the first */
        probe_begin(p);
        for (int64_t i = 0; i < IMAGES; i += batch)
            probe_add(p, s->rows + i * WIDTH, s->labels + i, i + batch < IMAGES ? batch : IMAGES - i);
        probe_fit(p);
    }
    return p;
}

/* Solves (Z^T Z + l2) w = Z^T y for all classes by Gaussian elimination; returns the error of generalised
 * cross-validation, with tr Z (Z^T Z + l2)^-1 Z^T + 1 degrees of freedom. */
static double solve(const struct set *s, double l2, long double w[CLASSES][WIDTH], double b[CLASSES])
{
    static long double z[IMAGES][WIDTH], a[WIDTH][2 * WIDTH];
    int count = 0, labels[IMAGES];
    for (int i = 0; i < IMAGES; i++) {
        if (s->labels[i] < 0) continue;
        labels[count] = s->labels[i];
        for (int k = 0; k < WIDTH; k++) z[count][k] = s->rows[i * WIDTH + k];
        count++;
    }
    for (int k = 0; k < WIDTH; k++) {
        long double mean = 0, square = 0;
        for (int i = 0; i < count; i++) mean += z[i][k] / count;
        for (int i = 0; i < count; i++) square += (z[i][k] - mean) * (z[i][k] - mean) / count;
        for (int i = 0; i < count; i++) z[i][k] = (z[i][k] - mean) / (sqrtl(square) + 1e-5L);
    }
    for (int j = 0; j < WIDTH; j++)
        for (int k = 0; k < 2 * WIDTH; k++) {
            a[j][k] = k == j ? l2 : k == j + WIDTH;
            for (int i = 0; i < count && k < WIDTH; i++) a[j][k] += z[i][j] * z[i][k];
        }
    for (int j = 0; j < WIDTH; j++) {
        long double pivot = a[j][j];
        for (int k = 0; k < 2 * WIDTH; k++) a[j][k] /= pivot;
        for (int i = 0; i < WIDTH; i++) {
            long double factor = i == j ? 0 : a[i][j];
            for (int k = 0; k < 2 * WIDTH && i != j; k++) a[i][k] -= factor * a[j][k];
        }
    }
    long double freedom = WIDTH + 1, error = 0;
    for (int k = 0; k < WIDTH; k++) freedom -= l2 * a[k][WIDTH + k];
    for (int c = 0; c < CLASSES; c++) {
        long double sum[WIDTH] = {0}, mean = 0;
        for (int i = 0; i < count; i++) mean += (labels[i] == c ? 1.0L : -1.0L) / count;
        for (int k = 0; k < WIDTH; k++)
            for (int i = 0; i < count; i++) sum[k] += z[i][k] * (labels[i] == c ? 1 : -1);
        for (int j = 0; j < WIDTH; j++) {
            w[c][j] = 0;
            for (int k = 0; k < WIDTH; k++) w[c][j] += a[j][WIDTH + k] * sum[k];
        }
        b[c] = (double)mean;
        for (int i = 0; i < count && c != EMPTY; i++) {
            long double off = mean - (labels[i] == c ? 1 : -1);
            for (int k = 0; k < WIDTH; k++) off += w[c][k] * z[i][k];
            error += off * off;
        }
    }
    return (double)(error / count / ((1 - freedom / count) * (1 - freedom / count)));
}

static void coefficients_are_those_of_ridge_regression(void **state)
{
    static const double l2[] = {1e-3, 1, 1024, 0 /* by cross-validation */};
    static struct set s;
    long double w[CLASSES][WIDTH];
    double b[CLASSES];
    draw(&s, 1);
    for (size_t r = 0; r < sizeof l2 / sizeof *l2; r++) {
        struct probe *p = fit(&s, BATCH, l2[r]);
        solve(&s, p->used_l2, w, b);
        for (int c = 0; c < CLASSES; c++) {
            if (c == EMPTY) assert_true(isnan(p->bias[c]));
            else assert_true(fabs(p->bias[c] - b[c]) < 1e-12);
            for (int k = 0; k < WIDTH && c != EMPTY; k++)
                if (fabs(p->sums[c * p->stride + k] - (double)w[c][k]) > 1e-9)
                    fail_msg("l2 %g, class %d, value %d: %.15g, expected %.15Lg", l2[r], c, k,
                             p->sums[c * p->stride + k], w[c][k]);
        }
        probe_close(p);
    }
}

/* With features that say less and less about the class. */
static void the_regularisation_has_the_least_error(void **state)
{
    static struct set s;
    long double w[CLASSES][WIDTH];
    double b[CLASSES], largest = 0, smallest = INFINITY;
    for (int round = 0; round < 4; round++) {
        draw(&s, 6);
        for (int i = 0; i < IMAGES * WIDTH; i++)
            s.rows[i] += (float)(round * sin(i * 12.9898 + i % 7) * (round == 3 ? 40 : 1));
        struct probe *p = fit(&s, BATCH, 0);
        double chosen = solve(&s, p->used_l2, w, b);
        for (int k = 0; k <= 6; k++) {
            double l2 = (double)p->count * pow(10, -k), error = solve(&s, l2, w, b);
            if (error < chosen * (1 - 1e-9))
                fail_msg("l2 %g has error %g, the chosen %g %g", l2, error, p->used_l2, chosen);
        }
        largest = p->used_l2 > largest ? p->used_l2 : largest;
        smallest = p->used_l2 < smallest ? p->used_l2 : smallest;
        probe_close(p);
    }
    assert_true(largest > 50 * smallest);
}

static void batches_do_not_change_bits(void **state)
{
    static const int64_t batches[] = {1, 7, 3 * BATCH, IMAGES};
    static struct set s;
    draw(&s, 2);
    struct probe *p = fit(&s, BATCH, 0);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct probe *other = fit(&s, batches[i], 0);
        assert_memory_equal(p->sums, other->sums, (size_t)(CLASSES * p->stride) * sizeof *p->sums);
        probe_close(other);
    }
    probe_close(p);
}

static void classes_are_ranked_by_their_scores(void **state)
{
    static struct set s, other;
    draw(&s, 3);
    draw(&other, 4);
    struct probe *p = fit(&s, BATCH, 1);
    int first = 0, five = 0, labelled = 0;
    for (int64_t at = 0; at < IMAGES; at += BATCH) {
        struct probe_found found[BATCH];
        int64_t count = at + BATCH < IMAGES ? BATCH : IMAGES - at;
        probe_classify(p, other.rows + at * WIDTH, other.labels + at, count, found);
        for (int64_t i = 0; i < count; i++) {
            double scores[CLASSES];
            int label = other.labels[at + i], before = 0;
            for (int c = 0; c < CLASSES && label >= 0; c++) {
                scores[c] = p->bias[c];
                for (int k = 0; k < WIDTH; k++)
                    scores[c] += p->sums[c * p->stride + k] *
                                 (other.rows[(at + i) * WIDTH + k] - p->mean[k]) / p->scale[k];
            }
            for (int c = 0; c < CLASSES && label >= 0; c++) before += scores[c] > scores[label]; /* not NAN */
            assert_int_equal(found[i].top1, label >= 0 && before < 1);
            assert_int_equal(found[i].top5, label >= 0 && before < 5);
            first += found[i].top1, five += found[i].top5, labelled += label >= 0;
        }
    }
    assert_true(first > labelled * 0.8 && five > first && labelled > 60);
    probe_close(p);
}

static void nothing_is_predicted_without_a_solution(void **state)
{
    static struct set s;
    draw(&s, 5);
    struct probe_found found[BATCH];
    for (int none = 0; none < 2; none++) {
        for (int i = 0; i < IMAGES && none; i++) s.labels[i] = -1;
        if (!none) s.rows[7] = NAN;
        struct probe *p = fit(&s, BATCH, 0);
        for (int i = 0; i < BATCH; i++) s.labels[i] = i % CLASSES;
        probe_classify(p, s.rows, s.labels, BATCH, found);
        for (int i = 0; i < BATCH; i++) assert_false(found[i].top1 || found[i].top5);
        probe_close(p);
    }
}

int main(void)
{
    struct error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coefficients_are_those_of_ridge_regression),
        cmocka_unit_test(the_regularisation_has_the_least_error),
        cmocka_unit_test(batches_do_not_change_bits),
        cmocka_unit_test(classes_are_ranked_by_their_scores),
        cmocka_unit_test(nothing_is_predicted_without_a_solution),
    };
    if (device_open(&cpu, "cpu", 0, &err)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(cpu);
    return failed;
}
