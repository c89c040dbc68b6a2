/* The few statistics that a comparison of repeated runs needs.
 *
 * Spread of a ratio: first-order propagation, ratio * sqrt((s1/m1)^2 + (s2/m2)^2), as hyperfine does.
 * Difference of two means: Welch's t-test (B. L. Welch 1947), two-sided, p from the regularised incomplete
 * beta function. Outliers: distance from the median over the median absolute deviation, the rule of B.
 * Iglewicz and D. Hoaglin 1993 with hyperfine's threshold: robust where a mean and a standard deviation would
 * be dragged along by what they should find.
 */
#ifndef MEOPT_COMPARE_STATISTICS_H
#define MEOPT_COMPARE_STATISTICS_H

#include <stdbool.h>

double statistics_mean(const double *x, int n); /* NAN when n is 0 */
double statistics_sd(const double *x, int n);   /* of the sample, n - 1 below; NAN when n < 2 */
double statistics_median(const double *x, int n);
/* Median of |x - median|, not scaled. */
double statistics_mad(const double *x, int n);
/* Farther than 10 robust standard deviations (1.4826 MAD each) from the median; n < 3: none. A MAD below 1e-3
 * |median| counts as that much, so that equal runs with one a hair aside raise no alarm. */
bool statistics_outlier(const double *x, int n, int i);
/* NAN when either spread is. */
double statistics_ratio_sd(double m1, double s1, double m2, double s2);

struct welch {
    double t, df, p; /* NAN when either has fewer than two values */
};
struct welch statistics_welch(double m1, double s1, int n1, double m2, double s2, int n2);

#endif
