/* PHI-S: see phi_s.h. */
#include "core/experiment/phi_s.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Eigenvectors of a symmetric matrix ---- */

/* a (n, n) -> its diagonal and the values below it, after reflections by v_k, which are stored in the rows of
 * a (v_k in row k, from column k + 1 on) with factors beta_k: P_k = I - beta_k v_k v_k^T. */
static void tridiagonalize(double *a, int64_t n, double *diagonal, double *below, double *beta)
{
    double *v = xmalloc(2 * (size_t)n * sizeof *v), *w = v + n;
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = n - k - 1;
        double norm = 0;
        diagonal[k] = a[k * n + k];
        beta[k] = 0;
        if (!rest) break;
        for (int64_t i = 0; i < rest; i++) norm = hypot(norm, v[i] = a[(k + 1 + i) * n + k]);
        below[k] = rest == 1 ? v[0] : v[0] > 0 ? -norm : norm;
        if (rest > 1 && norm > 0) {
            double dot = 0;
            v[0] -= below[k];
            beta[k] = 1 / (-v[0] * below[k]);
#pragma omp parallel for schedule(static)
            for (int64_t i = 0; i < rest; i++) {
                const double *row = a + (k + 1 + i) * n + k + 1;
                double sum = 0;
                for (int64_t j = 0; j < rest; j++) sum += row[j] * v[j];
                w[i] = beta[k] * sum;
            }
            for (int64_t i = 0; i < rest; i++) dot += v[i] * w[i];
            for (int64_t i = 0; i < rest; i++) w[i] -= 0.5 * beta[k] * dot * v[i];
#pragma omp parallel for schedule(static)
            for (int64_t i = 0; i < rest; i++) {
                double *row = a + (k + 1 + i) * n + k + 1;
                for (int64_t j = 0; j < rest; j++) row[j] -= v[i] * w[j] + w[i] * v[j];
            }
        }
        memcpy(a + k * n + k + 1, v, (size_t)rest * sizeof *v);
    }
    free(v);
}

/* q (n, n) = (P_0 P_1 ...)^T: its rows become the eigenvectors when `implicit_ql` turns them. */
static void accumulate(const double *a, int64_t n, const double *beta, double *q)
{
    memset(q, 0, (size_t)(n * n) * sizeof *q);
    for (int64_t i = 0; i < n; i++) q[i * n + i] = 1;
    for (int64_t k = n - 2; k >= 0; k--) {
        const double *v = a + k * n + k + 1;
        int64_t rest = n - k - 1;
        if (beta[k] == 0) continue;
#pragma omp parallel for schedule(static)
        for (int64_t i = k + 1; i < n; i++) { /* each row times P_k */
            double *row = q + i * n + k + 1, sum = 0;
            for (int64_t j = 0; j < rest; j++) sum += row[j] * v[j];
            for (int64_t j = 0; j < rest; j++) row[j] -= beta[k] * sum * v[j];
        }
    }
}

/* Turns rows i and i + 1. */
static void turn(double *q, int64_t n, int64_t i, double c, double s)
{
    double *x = q + i * n, *y = x + n;
    for (int64_t k = 0; k < n; k++) {
        double upper = x[k];
        x[k] = c * upper - s * y[k];
        y[k] = s * upper + c * y[k];
    }
}

/* Eigenvalues of the tridiagonal matrix in d; e is overwritten. */
static void implicit_ql(double *d, double *e, int64_t n, double *q)
{
    e[n - 1] = 0;
    for (int64_t first = 0; first < n; first++) {
        for (;;) {
            int64_t last = first;
            while (last + 1 < n && fabs(e[last]) > 1e-16 * (fabs(d[last]) + fabs(d[last + 1]))) last++;
            if (last == first) break;
            double g = (d[first + 1] - d[first]) / (2 * e[first]), c = 1, s = 1, p = 0;
            g = d[last] - d[first] + e[first] / (g + copysign(hypot(g, 1), g));
            int64_t i = last - 1;
            for (; i >= first; i--) {
                double f = s * e[i], b = c * e[i], r = hypot(f, g);
                e[i + 1] = r;
                if (r == 0) {
                    d[i + 1] -= p;
                    e[last] = 0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                turn(q, n, i, c, s);
            }
            if (i >= first) continue;
            d[first] -= p;
            e[first] = g;
            e[last] = 0;
        }
    }
}

struct eigen {
    double value;
    int64_t row;
};
static int descending(const void *a, const void *b)
{
    const struct eigen *x = a, *y = b;
    return x->value > y->value ? -1 : x->value < y->value ? 1 : x->row < y->row ? -1 : 1;
}

void phi_s_eigen(double *a, int64_t n, double *vectors, double *values)
{
    double *e = xcalloc(2 * (size_t)n, sizeof *e), *q = xmalloc((size_t)(n * n) * sizeof *q);
    struct eigen *order = xmalloc((size_t)n * sizeof *order);
    tridiagonalize(a, n, values, e, e + n);
    accumulate(a, n, e + n, q);
    implicit_ql(values, e, n, q);
    for (int64_t i = 0; i < n; i++) order[i] = (struct eigen){values[i], i};
    qsort(order, (size_t)n, sizeof *order, descending);
    for (int64_t i = 0; i < n; i++) {
        const double *from = q + order[i].row * n;
        int64_t largest = 0;
        for (int64_t k = 1; k < n; k++)
            if (fabs(from[k]) > fabs(from[largest])) largest = k;
        for (int64_t k = 0; k < n; k++) vectors[i * n + k] = from[largest] < 0 ? -from[k] : from[k];
        values[i] = order[i].value;
    }
    free(order);
    free(q);
    free(e);
}

/* ---- Hadamard matrices: Kronecker products of Paley's with Sylvester's ---- */

static bool is_prime(int64_t q)
{
    for (int64_t k = 2; k * k <= q; k++)
        if (q % k == 0) return false;
    return q > 1;
}
/* Paley's construction of that order: 1, 2, or 0 if there is none. */
static int construction(int64_t order)
{
    if (order % 4 == 0 && is_prime(order - 1)) return 1;
    return order % 4 == 0 && order / 2 % 4 == 2 && is_prime(order / 2 - 1) ? 2 : 0;
}
/* The largest 2^k that divides D so that an order D / 2^k is known; 0: none. */
static int64_t doubling(int64_t D)
{
    for (int64_t two = D & -D; two >= 1; two /= 2)
        if (D / two == 1 || construction(D / two)) return two;
    return 0;
}
bool phi_s_order(int64_t D) { return D > 0 && doubling(D) > 0; }

/* chi(x): 1 for a square modulo the prime q, -1 for another number, 0 for 0. */
static void residues(int64_t q, int8_t *chi)
{
    for (int64_t x = 0; x < q; x++) chi[x] = -1;
    for (int64_t x = 1; x < q; x++) chi[x * x % q] = 1;
    chi[0] = 0;
}

/* h (order, order): order 1, or one of Paley's. */
static void base_matrix(int64_t order, int8_t *h)
{
    int kind = construction(order);
    int64_t q = kind == 2 ? order / 2 - 1 : order - 1, n = q + 1;
    if (order == 1) {
        h[0] = 1;
        return;
    }
    int8_t *chi = xmalloc((size_t)q);
    residues(q, chi);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int entry = i == 0 && j == 0 ? 0
                        : i == 0         ? 1
                        : j == 0         ? (kind == 1 ? -1 : 1)
                                         : chi[((i - j) % q + q) % q];
            if (kind == 1) h[i * n + j] = (int8_t)(entry + (i == j));
            else
                for (int k = 0; k < 4; k++) /* C x (1 1; 1 -1) + I x (1 -1; -1 -1) */
                    h[(2 * i + k / 2) * order + 2 * j + k % 2] =
                        (int8_t)(entry * (k == 3 ? -1 : 1) + (i == j) * (k == 0 ? 1 : -1));
        }
    free(chi);
}

/* x (D, D) = H x, with the rows as Kronecker product of the base and of the doubling. */
static void multiply_hadamard(double *x, int64_t D)
{
    int64_t two = doubling(D), order = D / two;
    int8_t *h = xmalloc((size_t)(order * order));
    base_matrix(order, h);
#pragma omp parallel
    {
        double *column = xmalloc(2 * (size_t)D * sizeof *column), *out = column + D;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < D; c++) {
            for (int64_t i = 0; i < D; i++) column[i] = x[i * D + c];
            for (int64_t step = 1; step < two; step *= 2)
                for (int64_t i = 0; i < D; i++) {
                    if (i / step % 2) continue;
                    double a = column[i], b = column[i + step];
                    column[i] = a + b;
                    column[i + step] = a - b;
                }
            for (int64_t i = 0; i < D; i++) {
                double sum = 0;
                for (int64_t k = 0; k < order; k++) sum += h[i / two * order + k] * column[k * two + i % two];
                out[i] = sum;
            }
            for (int64_t i = 0; i < D; i++) x[i * D + c] = out[i];
        }
        free(column);
    }
    free(h);
}

int phi_s_matrix(double *covariance, int64_t D, double *matrix, double *alpha, struct error *err)
{
    double trace = 0, *values = xmalloc((size_t)D * sizeof *values);
    for (int64_t i = 0; i < D; i++) trace += covariance[i * D + i];
    *alpha = sqrt(trace / (double)D);
    if (!(*alpha > 0 && isfinite(*alpha))) {
        free(values);
        return error_set(err, EXIT_DIVERGED, "check the teacher's weights, and the images",
                         "the variance of the teacher's outputs is %g", trace / (double)D);
    }
    phi_s_eigen(covariance, D, matrix, values);
    multiply_hadamard(matrix, D);
    for (int64_t i = 0; i < D * D; i++) matrix[i] /= *alpha * sqrt((double)D);
    free(values);
    return 0;
}
