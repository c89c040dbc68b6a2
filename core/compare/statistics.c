/* Statistics: see statistics.h. */
#include "core/compare/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double statistics_mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n > 0 ? sum / n : NAN;
}

double statistics_sd(const double *x, int n)
{
    double mean = statistics_mean(x, n), sum = 0;
    for (int i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (n - 1)) : NAN;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double statistics_median(const double *x, int n)
{
    double *copy = n > 0 ? malloc((size_t)n * sizeof *copy) : NULL;
    if (!copy) return NAN;
    memcpy(copy, x, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, ascending);
    double median = n % 2 ? copy[n / 2] : 0.5 * (copy[n / 2 - 1] + copy[n / 2]);
    free(copy);
    return median;
}

double statistics_mad(const double *x, int n)
{
    double median = statistics_median(x, n), *away = n > 0 ? malloc((size_t)n * sizeof *away) : NULL;
    if (!away) return NAN;
    for (int i = 0; i < n; i++) away[i] = fabs(x[i] - median);
    double mad = statistics_median(away, n);
    free(away);
    return mad;
}

bool statistics_outlier(const double *x, int n, int i)
{
    if (n < 3) return false;
    double median = statistics_median(x, n), mad = statistics_mad(x, n);
    mad = fmax(mad, 1e-3 * fabs(median));
    return fabs(x[i] - median) > 10 * 1.4826 * mad;
}

double statistics_ratio_sd(double m1, double s1, double m2, double s2)
{
    return fabs(m1 / m2) * sqrt((s1 / m1) * (s1 / m1) + (s2 / m2) * (s2 / m2));
}

/* Evaluates the continued fraction of the incomplete beta function (NIST DLMF 8.17.22), by Lentz's method. */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m < 10000; m++) {
        for (int odd = 0; odd < 2; odd++) {
            double k = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                           : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
            d = 1 + k * d;
            c = 1 + k / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = fabs(c) < tiny ? tiny : c;
            h *= c * d;
        }
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return h;
}

static double beta_regularised(double a, double b, double x)
{
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                     : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

struct welch statistics_welch(double m1, double s1, int n1, double m2, double s2, int n2)
{
    if (n1 < 2 || n2 < 2) return (struct welch){NAN, NAN, NAN};
    double v1 = s1 * s1 / n1, v2 = s2 * s2 / n2;
    if (v1 + v2 == 0)
        return m1 == m2 ? (struct welch){0, n1 + n2 - 2, 1}
                        : (struct welch){m1 > m2 ? INFINITY : -INFINITY, n1 + n2 - 2, 0};
    double t = (m1 - m2) / sqrt(v1 + v2),
           df = (v1 + v2) * (v1 + v2) / (v1 * v1 / (n1 - 1) + v2 * v2 / (n2 - 1));
    return (struct welch){t, df, beta_regularised(df / 2, 0.5, df / (df + t * t))};
}
