/* The statistics against scipy 1.17.1 and numpy 2.4.6: stats.ttest_ind(a, b, equal_var=False), std(ddof=1),
 * stats.median_abs_deviation, and for the ratio r = mean(a)/mean(b): r * hypot(sd(a)/mean(a), sd(b)/mean(b)).
 */
#include "core/compare/statistics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct reference {
    double a[16], b[16];
    int n1, n2;
    double mean, sd, median, mad, t, df, p, ratio_sd;
};

static const struct reference references[] = {
    {{27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4},
     {27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 22.4},
     15,
     15,
     20.819999999999997,
     2.8048936827317665,
     21,
     2,
     -2.71381096433791,
     27.9003956561871,
     0.0112713568133323,
     0.155271995861826},
    {{510.1, 510.4, 509.9},
     {193.7, 193.6, 193.9},
     3,
     3,
     510.13333333333338,
     0.25166114784235533,
     510.1,
     0.2,
     1861.53435473164,
     3.29756097560987,
     4.81021464155951e-11,
     0.00244906373739124},
    {{0.00142, 0.00139, 0.00145, 0.0014},
     {0.00141, 0.0014},
     4,
     2,
     0.001415,
     2.6457513110645882e-05,
     0.00141,
     1.5e-05,
     0.70710678118655,
     3.6923076923077,
     0.521559064293197,
     0.0195011854946105},
    {{1.0, 2.0},
     {1.5, 1.6},
     2,
     2,
     1.5,
     0.70710678118654757,
     1.5,
     0.5,
     -0.099503719020999,
     1.01999800019998,
     0.936619440954284,
     0.458329147670036},
    {{1e-9, 2e-9, 3e-9, 4e-9},
     {100, 101, 99},
     4,
     3,
     2.5e-9,
     1.2909944487358057e-09,
     2.5e-9,
     1e-9,
     -173.205080752558,
     2,
     3.33316667609204e-05,
     1.29123648750594e-11},
};

static void near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-12 * fabs(expected) * 100))
        fail_msg("%.17g, expected %.17g", found, expected);
}

static void all_equal_scipy(void **state)
{
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) {
        const struct reference *r = &references[i];
        double m1 = statistics_mean(r->a, r->n1), s1 = statistics_sd(r->a, r->n1),
               m2 = statistics_mean(r->b, r->n2), s2 = statistics_sd(r->b, r->n2);
        near(m1, r->mean);
        near(s1, r->sd);
        near(statistics_median(r->a, r->n1), r->median);
        near(statistics_mad(r->a, r->n1), r->mad);
        near(statistics_ratio_sd(m1, s1, m2, s2), r->ratio_sd);
        struct welch w = statistics_welch(m1, s1, r->n1, m2, s2, r->n2);
        near(w.t, r->t);
        near(w.df, r->df);
        near(w.p, r->p);
    }
}

static void too_few_values_have_no_spread(void **state)
{
    double one[] = {3};
    assert_true(isnan(statistics_mean(one, 0)) && statistics_mean(one, 1) == 3 &&
                isnan(statistics_sd(one, 1)) && statistics_median(one, 1) == 3);
    assert_true(isnan(statistics_ratio_sd(1, NAN, 2, NAN)));
    assert_true(isnan(statistics_welch(1, NAN, 1, 2, 1, 5).p));
    assert_true(statistics_welch(2, 0, 3, 2, 0, 3).p == 1 && statistics_welch(2, 0, 3, 1, 0, 3).p == 0);
}

static void outliers_are_found_and_equal_runs_are_not(void **state)
{
    double steps[] = {100, 101, 99, 100.5, 180}, equal[] = {5, 5, 5.001, 5}, two[] = {1, 100};
    for (int i = 0; i < 5; i++)
        assert_int_equal(statistics_outlier(steps, 5, i), i == 4); /* MAD 1: limit 14.8 */
    for (int i = 0; i < 4; i++) assert_false(statistics_outlier(equal, 4, i));
    assert_false(statistics_outlier(two, 2, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_equal_scipy),
                                       cmocka_unit_test(too_few_values_have_no_spread),
                                       cmocka_unit_test(outliers_are_found_and_equal_runs_are_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
