/* PHI-S (Ranzinger et al., arXiv 2410.01680): the affine map of a teacher's tokens after which every channel
 * has mean 0 and variance 1, and which keeps all angles,
 *
 *     y = M (x - mean), M = H U^T / (alpha sqrt(D)), alpha^2 = trace(C) / D
 *
 * C = U diag(lambda) U^T is the covariance of x, H a Hadamard matrix of order D: (H U^T C U H^T)_ii is the
 * sum of all lambda. Eigenvalues are in descending order, the largest component of each eigenvector is
 * positive. */
#ifndef MEOPT_EXPERIMENT_PHI_S_H
#define MEOPT_EXPERIMENT_PHI_S_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns whether a Hadamard matrix of that order is known here: Sylvester's doubling of order 1, or of one
 * of Paley's, whose q is a prime. */
bool phi_s_order(int64_t D);
/* matrix (D, D) = M of a covariance (D, D), which is overwritten. *alpha: see above. Returns EXIT_DIVERGED
 * unless alpha is finite and above 0. */
int phi_s_matrix(double *covariance, int64_t D, double *matrix, double *alpha, struct error *err);
/* Rows of `vectors` (D, D) = the eigenvectors of a symmetric matrix (D, D), which is overwritten, values (D)
 * their eigenvalues: Householder's tridiagonal form, then implicit QL. */
void phi_s_eigen(double *symmetric, int64_t D, double *vectors, double *values);

#endif
