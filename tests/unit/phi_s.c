/* PHI-S: eigenvectors, Hadamard matrices, and what the map promises, of covariances with outliers. */
#include "core/base/memory.h"
#include "core/experiment/phi_s.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static double next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) / 2147483648.0 - 0.5;
}

/* C = B B^T of random B, whose first rows are 1, 300 and 3000 times as large. */
static double *covariance_of(int64_t D)
{
    static const double outliers[] = {3000, 300, 1};
    uint64_t random = (uint64_t)D;
    double *b = xmalloc((size_t)(D * D) * sizeof *b), *c = xcalloc((size_t)(D * D), sizeof *c);
    for (int64_t i = 0; i < D * D; i++) b[i] = next(&random) * outliers[i / D < 2 ? i / D : 2];
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < D; j++)
            for (int64_t k = 0; k < D; k++) c[i * D + j] += b[i * D + k] * b[j * D + k];
    free(b);
    return c;
}

static void eigenvectors_are_orthogonal_and_give_the_matrix_again(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 48, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t D = sizes[s];
        double *c = covariance_of(D), *copy = xmalloc((size_t)(D * D) * sizeof *copy),
               *vectors = xmalloc((size_t)(D * D) * sizeof *vectors),
               *values = xmalloc((size_t)D * sizeof *values), scale = 0;
        memcpy(copy, c, (size_t)(D * D) * sizeof *c);
        phi_s_eigen(copy, D, vectors, values);
        for (int64_t i = 0; i < D * D; i++) scale = fmax(scale, fabs(c[i]));
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = 0; j < D; j++) {
                double dot = 0, again = 0;
                for (int64_t k = 0; k < D; k++) {
                    dot += vectors[i * D + k] * vectors[j * D + k];
                    again += vectors[k * D + i] * values[k] * vectors[k * D + j];
                }
                assert_true(fabs(dot - (i == j)) < 1e-12);
                assert_true(fabs(again - c[i * D + j]) < 1e-13 * (double)D * scale);
            }
        for (int64_t i = 1; i < D; i++) assert_true(values[i] <= values[i - 1]);
        free(c), free(copy), free(vectors), free(values);
    }
}

/* The widths of published towers, and of the tests' own. */
static void every_channel_has_variance_one_and_angles_stay(void **state)
{
    static const int64_t sizes[] = {1, 2, 4, 12, 20, 24, 28, 36, 44, 48, 104, 192, 320};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t D = sizes[s];
        double *c = covariance_of(D), *copy = xmalloc((size_t)(D * D) * sizeof *copy),
               *m = xmalloc((size_t)(D * D) * sizeof *m), alpha;
        struct error err = {0};
        memcpy(copy, c, (size_t)(D * D) * sizeof *c);
        assert_true(phi_s_order(D));
        assert_int_equal(phi_s_matrix(copy, D, m, &alpha, &err), 0);
        for (int64_t i = 0; i < D; i++) {
            double variance = 0;
            for (int64_t j = 0; j < D; j++) {
                double dot = 0, row = 0;
                for (int64_t k = 0; k < D; k++) dot += m[i * D + k] * m[j * D + k];
                for (int64_t k = 0; k < D; k++) row += c[j * D + k] * m[i * D + k];
                variance += m[i * D + j] * row;
                assert_true(fabs(dot * alpha * alpha - (i == j)) < 1e-12); /* M M^T = I / alpha^2 */
            }
            assert_true(fabs(variance - 1) < 1e-9);
        }
        free(c), free(copy), free(m);
    }
    static const int64_t known[] = {384, 512, 768, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 2048, 4096};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_true(phi_s_order(known[i]));
    assert_false(phi_s_order(3) || phi_s_order(6) || phi_s_order(92) || phi_s_order(0));
}

static void outputs_that_do_not_vary_are_refused(void **state)
{
    double zeros[16] = {0}, m[16], alpha;
    struct error err = {0};
    assert_int_equal(phi_s_matrix(zeros, 4, m, &alpha, &err), EXIT_DIVERGED);
    zeros[0] = NAN;
    assert_int_equal(phi_s_matrix(zeros, 4, m, &alpha, &err), EXIT_DIVERGED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eigenvectors_are_orthogonal_and_give_the_matrix_again),
        cmocka_unit_test(every_channel_has_variance_one_and_angles_stay),
        cmocka_unit_test(outputs_that_do_not_vary_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
