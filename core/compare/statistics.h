/* Statistics for comparing repeated runs.
 *
 * Spread of a ratio: first-order propagation, ratio * sqrt((s1/m1)^2 + (s2/m2)^2), like hyperfine.
 * Difference of two means: Welch's t-test (B. L. Welch 1947), two-sided, p from the regularised incomplete
 * beta function. Outliers: distance from the median over the median absolute deviation, the rule of B.
 * Iglewicz and D. Hoaglin 1993 with hyperfine's threshold. It is robust: mean and standard deviation would
 * be shifted by the outliers themselves.
 */
#ifndef MEOPT_COMPARE_STATISTICS_H
#define MEOPT_COMPARE_STATISTICS_H

#include <stdbool.h>

double statistics_mean(const double *x, int n); /* NAN when n is 0 */
double statistics_sd(const double *x, int n);   /* of the sample, divided by n - 1; NAN if n < 2 */
double statistics_median(const double *x, int n);
/* Returns the median of |x - median|, not scaled. */
double statistics_mad(const double *x, int n);
/* Whether x[i] is more than 10 robust standard deviations (1.4826 MAD each) from the median; n < 3: false.
 * A MAD below 1e-3 |median| counts as that value, so that nearly equal runs have no outliers. */
bool statistics_outlier(const double *x, int n, int i);
/* NAN if either spread is NAN. */
double statistics_ratio_sd(double m1, double s1, double m2, double s2);

struct welch {
    double t, df, p; /* NAN if either has fewer than two values */
};
struct welch statistics_welch(double m1, double s1, int n1, double m2, double s2, int n2);

#endif
