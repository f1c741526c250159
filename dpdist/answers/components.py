"""Principal components of a private matrix: free post-processing of a release.

A private matrix is symmetric but not positive semidefinite. Components are ordered by eigenvalue, not by its magnitude,
since a large negative eigenvalue is noise. The entry of largest magnitude of each component is positive. The same
release then gives the same components up to rounding: BLAS sums in an order that depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpdist.answers.eigen import Matrix, NotConvergedError, _solve, signed, top_eigenpairs, top_eigenpairs_of
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.html import table
from dpdist.core.naming import parameter
from dpdist.core.release.artefact import Release

_SHOWN = 10
_ROUGH = 1e-3
"""Relative tolerance of Lanczos for values that are only compared with the edge of the noise."""
_SLACK = 1e-4
"""Bound on the relative error of such a value. The largest measured was 7e-6 (20000 columns, components within 1 % of
the edge); the largest eigenvalue of the noise is about ten times as far below the edge."""


@dataclass(frozen=True)
class Components:
    """Top principal components of a release.

    Attributes
    ----------
    components : ndarray
        (k, d) float64, orthonormal rows, in the shifted and scaled coordinates in which rows were clipped. The entry of
        largest magnitude in each is positive.
    eigenvalues : ndarray or None
        (k,) float64, descending, in squared units of these coordinates: per row if `per_row`, otherwise of the sum.
        None if the mechanism released a subspace without eigenvalues.
    per_row : bool
        Whether the matrix was divided by the number of rows (public or privately estimated).
    mean : ndarray
        (d,) float64, in input units: subtracted from rows before projection. The public centre (0 without one), plus
        the private mean times the scale if it was released.
    scale : ndarray
        (d,) float64, in input units: divisor after subtracting the mean (1 without a public scale).

    See Also
    --------
    fit_components, open_model : Return it as ``model.components``.
    PrivatePCA : Computes it as an estimator.

    Examples
    --------
    >>> import numpy as np
    >>> import dpdist
    >>> dpdist.Components(np.eye(4)[:2], None, per_row=True, mean=np.zeros(4), scale=np.ones(4))
    Components(k=2, d=4)
    """

    components: Matrix
    eigenvalues: Matrix | None
    per_row: bool
    mean: Matrix
    scale: Matrix

    def __repr__(self) -> str:
        k, d = self.components.shape
        return f"Components(k={k}, d={d}{'' if self.eigenvalues is None else ', with eigenvalues'})"

    def _repr_html_(self) -> str:
        k, d = self.components.shape
        values = None if self.eigenvalues is None else ", ".join(f"{value:.6g}" for value in self.eigenvalues[:_SHOWN])
        named = "eigenvalues per row" if self.per_row else "eigenvalues"
        shown = values and values + (" ..." if k > _SHOWN else "")
        return table("Components", {"components": k, "columns": d, named: shown})

    def leading(self, count: int) -> Components:
        """Return the first ``count`` components."""
        values = None if self.eigenvalues is None else self.eigenvalues[:count]
        return replace(self, components=self.components[:count], eigenvalues=values)


@dataclass(frozen=True)
class AboutMean:
    """The map from a released second moment S to the matrix of the components: ``S/m - u u^T + v I``."""

    mean: Matrix  # u, (d,) float64, in units of the bounded rows; zero without private centring
    divisor: float  # m, a number of rows, or 1
    diagonal: float  # v, in squared units of the bounded rows
    per_row: bool  # whether the divisor is a number of rows

    def matrix(self, moment: Matrix) -> Matrix:
        """Transform a second moment, (d, d), into the matrix in place; memory may not suffice for a copy."""
        moment /= self.divisor
        if self.mean.any():
            for i, value in enumerate(self.mean):
                moment[i] -= value * self.mean
        moment[np.diag_indices_from(moment)] += self.diagonal
        return moment

    def times(self, product: Matrix, vectors: Matrix) -> Matrix:
        """Return the matrix times (d, k) vectors, from the product of S with them."""
        return product / self.divisor - np.outer(self.mean, self.mean @ vectors) + self.diagonal * vectors


def about_mean(release: Release) -> AboutMean:
    """Return the map from the second moment of a release to the matrix of the components.

    Without private centring this is the second moment about the public centre, divided by n if n is public. With
    private centring it is the covariance ``S/m - u u^T + v I``, u = row_sum/m, m = n or its private estimate. The
    diagonal of ``u u^T`` is too large by v, the variance of an entry of u, which is corrected. The mean of the noise on
    the diagonal is subtracted.
    """
    total, count = release.row_sum, release.row_count
    mean = np.zeros(release.bound.columns)
    offset = release.noise.mean_diagonal * release.bound.unit**2
    if count is None:
        return AboutMean(mean, 1.0, -offset, per_row=False)
    if count <= 0:
        raise BelowNoiseError(
            "The private estimate of the number of rows is not positive: the data are below the noise, so this release "
            "has no mean and no covariance. Use a larger epsilon or more rows."
        )
    if total is not None:
        mean = total / count
    return AboutMean(mean, count, mean_variance(release) - offset / count, per_row=True)


def mean_variance(release: Release) -> float:
    """Return the noise variance of an entry of the private mean, in squared units of the bounded rows; 0 without."""
    count = release.row_count
    if not release.bound.constant or not count:
        return 0.0
    variance = release.noise.variance_off_diagonal or 0.0
    spread = variance * (release.bound.unit / release.bound.constant / count) ** 2
    return spread + release.rounding_diagonal / count**2  # the variance of the rounded sum is n/4 steps² too


def _from_products(
    about: AboutMean, product: Callable[[Matrix], Matrix], count: int, tolerance: float = 0.0
) -> tuple[Matrix, Matrix]:
    """Return :func:`top_eigenpairs` of a matrix given by its products, at some tolerance."""
    size = about.mean.size
    if not 1 <= count < size:
        raise UsageError(
            f"{count} components were requested of a release too large for memory. Ask for 1 to {size - 1}."
        )

    def times(vectors: Matrix) -> Matrix:
        return about.times(product(vectors), vectors)

    try:
        values, columns = top_eigenpairs_of(times, size, count, tolerance)
    except NotConvergedError:
        raise UsageError(
            f"Lanczos did not converge: the eigenvalues of the first {count} components are too close. Ask for fewer "
            f"components ({parameter('components')})."
        ) from None
    if not tolerance and not _solve(times(columns), values, columns, float(np.abs(values).max())):
        raise ArithmeticError("Lanczos' eigenvectors do not solve the eigenvalue equation: the BLAS is defective.")
    order = np.argsort(-values, kind="stable")
    return values[order], signed(columns[:, order].T)


def _rounded(release: Release, product: Callable[[Matrix], Matrix]) -> Callable[[Matrix], Matrix]:
    """Return the product with the second moment; the stored one still includes the diagonal from rounding."""
    return lambda vectors: product(vectors) - release.rounding_diagonal * vectors


def components(release: Release, count: int, product: Callable[[Matrix], Matrix] | None = None) -> Components:
    """Return the top components of a release, with the mean and scale in input units."""
    centre, scale = release.bound.input_units
    if (subspace := release.subspace) is not None:
        if not 1 <= count <= len(subspace):
            message = f"{count} components were requested, but the release has {len(subspace)}."
            raise UsageError(message, parameter="components")
        return Components(signed(subspace[:count]), None, per_row=False, mean=centre, scale=scale)
    about = about_mean(release)
    if product is None:
        values, vectors = top_eigenpairs(about.matrix(release.second_moment), count)
    else:
        values, vectors = _from_products(about, _rounded(release, product), count)
    return Components(vectors, values, about.per_row, centre + scale * about.mean, scale)


def highest_eigenvalues(release: Release, count: int, product: Callable[[Matrix], Matrix]) -> Matrix:
    """Return upper bounds on the eigenvalues of the components, (k,), of a release given by its products."""
    # The error of a value is the squared error of its vector, so Lanczos stops earlier. For components below the noise,
    # whose eigenvalues are close, it needs a third of the products of :func:`components` (20000 columns, measured).
    values, _ = _from_products(about_mean(release), _rounded(release, product), count, _ROUGH)
    return values + _SLACK * np.abs(values)


def total_variance(release: Release) -> float | None:
    """Return the trace of the matrix of the components, unbiased but possibly negative; None for a subspace."""
    if release.subspace is not None:
        return None
    about, trace = about_mean(release), float(release.moment_diagonal.sum())
    return trace / about.divisor - float(about.mean @ about.mean) + release.bound.columns * about.diagonal


def captured_variance(vectors: Matrix, matrix: Matrix) -> float:
    """Return ``tr(V A V^T)`` over the sum of A's k largest eigenvalues: 1 for the best subspace. Private if A is."""
    best, _ = top_eigenpairs(matrix, vectors.shape[0])
    return float(np.einsum("ij,jk,ik->", vectors, matrix, vectors, optimize=True) / best.sum())
