"""MVG noise of any two covariances, ``N = Sigma^{1/2} G Psi^{1/2}``: a mechanism for a moment, and what is true of it.

G is a d x d matrix of independent standard normals. N is not symmetric unless by chance, while the moment M is, so what
:class:`TwoCovariances` releases is the symmetric part of M + N.

**Law.** Both covariances are diagonal in one basis, not orthogonal unless they commute: there is a W with
``Sigma = W diag(r) W^T`` and ``Psi = W W^T``. A root of Sigma is ``W diag(sqrt r)`` times a rotation, one of Psi a
rotation times ``W^T``, and G is the same in law after rotations. So N has the law of ``W diag(sqrt r) G W^T``. In this
basis the entries of the symmetric part on and above the diagonal are independent, of variance ``r_i`` on it and
``(r_i + r_j) / 4`` above. The geometric mean of both is ``A = W diag(sqrt r) W^T`` (Pusz & Woronowicz 1975): the square
root of ``Sigma Psi`` where they commute.

**Guarantee.** Moments that differ by D, ``E = W^{-1} D W^{-T}``, are told apart by M + N as by a Gaussian of
``mu² = tr(Sigma^{-1} D Psi^{-1} D) = sum_ij E_ij² / r_i``, by its symmetric part as by one of
``mu² = sum_ij 2 E_ij² / (r_i + r_j)``. A harmonic mean is at most the arithmetic one, so the second is never larger,
and as large only where E_ij = 0 for all r_i != r_j: the antisymmetric part, which holds nothing of M, betrays something
through its correlation with the other. And a geometric mean is at most the arithmetic one:

    mu² <= sum_ij E_ij² / sqrt(r_i r_j) = tr(A^{-1} D A^{-1} D),

the loss of noise with A on both sides. For rows of ``|v|² <= S`` the module :mod:`dpdist.literature.mvg` bounds that:
with ``p1 >= p2`` the largest eigenvalues of ``A^{-1}``, ``mu <= S p1`` under add-remove and
``mu² <= S² (p1² + p2²)`` under replace-one. Both are attained where Sigma and Psi commute. ∎

**What it is good for.** Nothing: along any symmetric B, ``F = W^T B W``, the noise ``<B, N>`` has variance
``sum_ij F_ij² (r_i + r_j) / 2``, and noise with A on both sides has ``sum_ij F_ij² sqrt(r_i r_j)``, never more. So
`mvg-exact` with ``sigma = A`` is at least as accurate for every symmetric query, with the same proved guarantee (the
same true one where they commute); :func:`geometric_mean` gives A.

**Arithmetic.** Float64: `ideal-real`. It is an experiment on public data, not a release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dpdist.core.errors import UsageError
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import normals
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from papers.common.data import Floats


@dataclass(frozen=True)
class TwoCovariances:
    """The symmetric part of matrix-variate Gaussian noise with a covariance for either side (see the module).

    Parameters
    ----------
    rows, columns
        Sigma and Psi, (d, d), symmetric, positive definite.

    Raises
    ------
    UsageError
        If they are not.
    """

    rows: Floats
    columns: Floats

    def __post_init__(self) -> None:
        for matrix in (self.rows, self.columns):
            if matrix.shape != self.rows.shape or not np.array_equal(matrix, matrix.T) or _least(matrix) <= 0:
                raise UsageError("Both covariances are symmetric, positive definite, and of one size.")

    @classmethod
    def calibrated(
        cls, rows: Floats, columns: Floats, loss: PrivacyLoss, norm: float, neighbours: Neighbours
    ) -> TwoCovariances:
        """Return noise of this shape, scaled to a guarantee for rows of at most this norm."""
        shape = cls(rows, columns)
        scale = shape.mu(norm, neighbours) * gaussian_sigma(loss)
        return cls(scale * rows, scale * columns)

    def mu(self, norm: float, neighbours: Neighbours) -> float:
        """Return the proved GDP parameter of a release, rows of at most this norm."""
        precisions = 1 / np.linalg.eigvalsh(geometric_mean(self.rows, self.columns))
        counted = precisions[: 1 if neighbours is Neighbours.ADD_REMOVE else 2]
        return norm**2 * math.sqrt(float(np.sum(counted**2)))

    def mu_squared(self, change: Floats, *, whole: bool = False) -> float:
        """Return the exact mu² between moments that differ by this, (d, d); of the whole M + N, or what is released."""
        basis, ratios = _together(self.rows, self.columns)
        inverse = np.linalg.inv(basis)
        seen = (inverse @ change @ inverse.T) ** 2
        return float(np.sum(seen / ratios[:, None] if whole else 2 * seen / (ratios[:, None] + ratios)))

    def release(self, moment: Floats, entropy: Entropy) -> Floats:
        """Return the symmetric part of a moment with noise, (d, d); draws anew at every call."""
        basis, ratios = _together(self.rows, self.columns)
        direction = normals(len(ratios) ** 2, entropy).reshape(len(ratios), len(ratios))
        noise = basis @ (np.sqrt(ratios)[:, None] * direction) @ basis.T
        released: Floats = moment + (noise + noise.T) / 2
        return released


def geometric_mean(first: Floats, second: Floats) -> Floats:
    """Return the geometric mean of two positive definite matrices, (d, d)."""
    basis, ratios = _together(first, second)
    mean: Floats = (basis * np.sqrt(ratios)) @ basis.T
    return (mean + mean.T) / 2


def _together(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return W and r with ``first = W diag(r) W^T`` and ``second = W W^T``."""
    ratios, vectors = scipy.linalg.eigh(first, second)
    basis: Floats = np.linalg.inv(np.asarray(vectors, dtype=np.float64)).T
    return basis, ratios


def _least(matrix: Floats) -> float:
    return float(np.linalg.eigvalsh(matrix)[0])
