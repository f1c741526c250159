"""MVG noise with two covariances, ``N = Sigma^{1/2} G Psi^{1/2}``: what it does to a symmetric moment, and its truth.

Sigma and Psi share their eigenvectors here, those of the coordinates, with eigenvalues s and t; entry (i, j) of N has
variance ``s_i t_j``. N is not symmetric unless by chance, and neither is M + N.

**The whole matrix M + N.** Moments that differ by D are told apart as by a Gaussian of
``mu² = tr(Sigma^{-1} D Psi^{-1} D) = sum_ij D_ij² / (s_i t_j)``.

**Its symmetric part** has independent entries on and above the diagonal, of variance ``s_i t_i`` on it and
``(s_i t_j + s_j t_i) / 4`` above, so ``mu² = sum_i D_ii² / (s_i t_i) + sum_(i<j) 4 D_ij² / (s_i t_j + s_j t_i)``. Twice
the inverse of a mean is at most the sum of both inverses (harmonic below arithmetic mean): an entry off the diagonal
says no more than in the whole matrix, and as much only where ``s_i t_j = s_j t_i``. So the antisymmetric part, which
holds nothing of M, still betrays something through its correlation with the symmetric one: that of
:mod:`dpdist.mechanisms.mvg`, with Psi = Sigma, has no such correlation. Only what is released counts: the symmetric
part is post-processing and never has a larger mu.

**For all rows.** With ``a = max 1/s``, ``b = max 1/t``, one row v of ``|v|² <= S`` more gives for the whole matrix
``mu² = (v^T Sigma^{-1} v) (v^T Psi^{-1} v) <= S² a b``, and this is attained where both maxima share a direction.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def whole_mu_squared(change: Floats, rows: Floats, columns: Floats) -> float:
    """Return mu² of M + N for one change D, (d, d), and the eigenvalues s and t, (d,)."""
    return float(np.sum(change**2 / np.outer(rows, columns)))


def symmetric_mu_squared(change: Floats, rows: Floats, columns: Floats) -> float:
    """Return mu² of the symmetric part of M + N for one change D, (d, d), and the eigenvalues s and t, (d,)."""
    product = np.outer(rows, columns)
    return float(np.sum(change**2 * 2 / (product + product.T)))
