"""Principal components of a private matrix: free post-processing of a release.

A private matrix is symmetric but not positive semidefinite, so components are ordered by eigen*value*: by magnitude,
a large negative eigenvalue, which is noise, would come first. Each component's sign makes its entry of largest
magnitude positive, so the same release gives the same components, to rounding: BLAS adds
in another order on another number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.linalg.blas import dsymv
from scipy.sparse.linalg import ArpackError

from dpdist._util.notebook import table
from dpdist.errors import UsageError
from dpdist.pca.lanczos import top_eigenpairs_of
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
_DENSE_LIMIT = 500
"""Up to here LAPACK takes a few hundredths of a second, whatever is asked for."""
_SHOWN = 10
_LANCZOS_SHARE = 40
"""Lanczos is asked for no more than one component in so many columns: see :func:`top_eigenpairs`."""
_RESIDUAL = 1e-12
"""Largest ``|A v - value v|`` that is let through, relative to the norm of A."""
_ROUGH = 1e-3
"""The same, relative to the value, where values are only compared with the edge of the noise."""
_SLACK = 1e-4
"""What such a value may be short of, relative to it: at most 7e-6 was seen, of 20000 columns and components within one
percent of the edge. The noise's own largest eigenvalue is some ten times as far below the edge."""


@dataclass(frozen=True)
class Components:
    """Top principal components of a release.

    Attributes
    ----------
    components
        (k, d), orthonormal rows, in the shifted and scaled coordinates in which rows were clipped.
    eigenvalues
        (k,), descending, in squared units of those coordinates; per row when ``per_row``, else of the sum. None
        where the mechanism released a subspace and nothing about eigenvalues.
    per_row
        Whether the matrix was divided by the number of rows (public, or privately estimated).
    mean
        (d,), in the input's units: what is subtracted from a row before it is projected. The public centre (0
        without one), plus the private mean times the scale when that was released.
    scale
        (d,), in the input's units: what the difference is divided by (1 without a public scale).
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
        values = None if self.eigenvalues is None else ", ".join(f"{value:.6g}" for value in self.eigenvalues[:_SHOWN])
        more = " ..." if values and len(self.components) > _SHOWN else ""
        k, d = self.components.shape
        return table(
            "Components",
            {
                "components": k,
                "columns": d,
                "eigenvalues per row" if self.per_row else "eigenvalues": values and values + more,
            },
        )

    def leading(self, count: int) -> Components:
        """Return the first ``count`` of them."""
        values = None if self.eigenvalues is None else self.eigenvalues[:count]
        return replace(self, components=self.components[:count], eigenvalues=values)


@dataclass(frozen=True)
class AboutMean:
    """What turns a released second moment S into the matrix of the components: ``S/m - u u^T + v I``.

    Attributes
    ----------
    mean
        u, (d,) float64, in units of the bounded rows; zero without private centring.
    divisor
        m, a number of rows, or 1.
    diagonal
        v, in squared units of the bounded rows.
    per_row
        Whether the divisor is a number of rows.
    """

    mean: Matrix
    divisor: float
    diagonal: float
    per_row: bool

    def matrix(self, moment: Matrix) -> Matrix:
        """Turn a second moment, (d, d), into the matrix, in squared units of the bounded rows: in place.

        A second copy of a large matrix, and be it for a moment, may be what memory cannot hold.
        """
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
    """Say how the matrix whose eigenvectors are the components follows from a second moment.

    Without private centring it is the second moment about the public centre, divided by n where n is public. With
    private centring it is the covariance ``S/m - u u^T + v I``, u = row_sum/m, m = n or its private
    estimate; ``u u^T`` exceeds its expectation by v = (variance of an entry of u) on the diagonal, which is put back
    (mechanisms in the field subtract it silently). The mean of the noise on the diagonal is taken away.

    Raises
    ------
    UsageError
        If the private estimate of the number of rows is not positive: the noise drowns the data.
    """
    total, count = release.row_sum, release.row_count
    mean = np.zeros(release.bound.columns)
    offset = release.noise.mean_diagonal * release.bound.unit**2
    if count is None:
        return AboutMean(mean, 1.0, -offset, per_row=False)
    if count <= 0:
        raise UsageError(
            "The private estimate of the number of rows is not positive: at this budget the noise drowns the data. "
            "No mean or covariance can be taken from this release."
        )
    spread = 0.0
    if total is not None:
        mean = total / count
        variance = release.noise.variance_off_diagonal or 0.0
        spread = variance * (release.bound.unit / release.bound.constant / count) ** 2
    return AboutMean(mean, count, spread - offset / count, per_row=True)


def by_lapack(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the top eigenvalues, ascending, and eigenvectors (columns) from a dense reduction (LAPACK's syevr)."""
    size = matrix.shape[0]
    values, columns = eigh(matrix, subset_by_index=[size - count, size - 1])
    return values, columns


def by_lanczos(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the top eigenvalues and eigenvectors (columns) from restarted Lanczos (ARPACK).

    Products with a vector are bound by memory; one that reads a triangle only takes little more than half the time.

    Raises
    ------
    ArpackError
        If it does not converge.
    """
    transposed = np.ascontiguousarray(matrix).T  # what BLAS takes without a copy
    return top_eigenpairs_of(lambda x: dsymv(1.0, transposed, np.ravel(x), lower=1), matrix.shape[0], count)


def _solves(matrix: Matrix, values: Matrix, columns: Matrix) -> bool:
    """Whether every pair solves the eigenvalue equation; the norm of A is at least its longest row."""
    norm = max(float(np.einsum("ij,ij->i", matrix, matrix).max()) ** 0.5, float(np.abs(values).max()))
    return _solve(matrix @ columns, values, columns, norm)


def _solve(product: Matrix, values: Matrix, columns: Matrix, norm: float) -> bool:
    return bool(np.linalg.norm(product - columns * values, axis=0).max() <= _RESIDUAL * norm)


def top_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the eigenpairs of largest eigenvalue of a symmetric matrix.

    Lanczos for few components of a large matrix, else LAPACK. Processor seconds on one core (2.6 GHz, OpenBLAS of the
    SkylakeX kernels, other work beside it), where k components are clear of the noise / where most are drowned in
    it and eigenvalues lie close (`workflows/eigen_times.py`):

    ======  =====  ===============  =============
    d       k      Lanczos          LAPACK, syevr
    ======  =====  ===============  =============
    500     10     0.004 / 0.005    0.012
    500     25     0.007 / 0.026    0.015
    1000    10     0.010 / 0.017    0.07
    1000    25     0.021 / 0.089    0.08
    1000    50     0.040 / 0.12     0.08
    1000    100    0.09 / 0.28      0.12
    2000    10     not run / 0.13   0.71
    2000    50     not run / 0.86   0.6
    5000    50     1.0 / 6.1        15
    10000   50     4.4 / 26         not run
    ======  =====  ===============  =============

    Whatever solver found them, all pairs are checked. Memory beside the matrix: 3 k + 20 vectors for Lanczos, and for
    LAPACK a copy of the matrix.

    Parameters
    ----------
    matrix
        (d, d), symmetric.
    count
        k, between 1 and d.

    Returns
    -------
    eigenvalues
        (k,), descending.
    vectors
        (k, d), orthonormal rows; the entry of largest magnitude of each is positive.

    Raises
    ------
    UsageError
        If k is out of range.
    ArithmeticError
        If a pair does not solve the eigenvalue equation to 1e-12 of the matrix's norm.
    """
    size = matrix.shape[0]
    if not 1 <= count <= size:
        raise UsageError(f"{count} components were asked for; there are between 1 and {size} (--components).")
    found = None
    if size > _DENSE_LIMIT and count <= size // _LANCZOS_SHARE:
        with suppress(ArpackError):
            found = by_lanczos(matrix, count)
    if found is None or not _solves(matrix, *found):
        found = by_lapack(matrix, count)
        if not _solves(matrix, *found):
            raise ArithmeticError("LAPACK's eigenvectors do not solve the eigenvalue equation: the BLAS is defective.")
    values, columns = found
    order = np.argsort(-values, kind="stable")
    return values[order], _signed(columns[:, order].T)


def _from_products(
    about: AboutMean, product: Callable[[Matrix], Matrix], count: int, tolerance: float = 0.0
) -> tuple[Matrix, Matrix]:
    """Return what :func:`top_eigenpairs` does, of a matrix that is only multiplied, or less precisely."""
    size = about.mean.size
    if not 1 <= count < size:
        raise UsageError(f"{count} components were asked for; of so large a release take 1 to {size - 1}.")

    def times(vectors: Matrix) -> Matrix:
        return about.times(product(vectors), vectors)

    try:
        values, columns = top_eigenpairs_of(times, size, count, tolerance)
    except ArpackError:
        raise UsageError(
            f"The {count} components of largest eigenvalue cannot be told apart: Lanczos does not converge. Ask for "
            "fewer (--components), of which each stands above the noise."
        ) from None
    if not tolerance and not _solve(times(columns), values, columns, float(np.abs(values).max())):
        raise ArithmeticError("Lanczos' eigenvectors do not solve the eigenvalue equation: the BLAS is defective.")
    order = np.argsort(-values, kind="stable")
    return values[order], _signed(columns[:, order].T)


def _signed(vectors: Matrix) -> Matrix:
    largest = np.abs(vectors).argmax(axis=1)
    return np.ascontiguousarray(vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None])


def _leading(subspace: Matrix, count: int) -> Matrix:
    if not 1 <= count <= len(subspace):
        raise UsageError(f"{count} components were asked for; the release has {len(subspace)} (--components).")
    return _signed(subspace[:count])


def components(release: Release, count: int, product: Callable[[Matrix], Matrix] | None = None) -> Components:
    """Return the top components of a release, with the bookkeeping that leads back to the input's units.

    Parameters
    ----------
    release
        The release.
    count
        Number of components.
    product
        Multiplies the released second moment with (d, k) vectors where it is too large for this process, or None.

    Raises
    ------
    UsageError
        If count is out of range or the release is drowned in noise.
    """
    d = release.bound.columns
    eigenvalues: Matrix | None
    if release.subspace is not None:
        eigenvalues, vectors = None, _leading(release.subspace, count)
        mean, per_row = np.zeros(d), False
    else:
        about = about_mean(release)
        mean, per_row = about.mean, about.per_row
        if product is None:
            eigenvalues, vectors = top_eigenpairs(about.matrix(release.second_moment), count)
        else:
            eigenvalues, vectors = _from_products(about, product, count)
    centre, scale = release.bound.input_units
    return Components(vectors, eigenvalues, per_row, centre + scale * mean, scale)


def highest_eigenvalues(release: Release, count: int, product: Callable[[Matrix], Matrix]) -> Matrix:
    """Return how large the eigenvalues of the components may be, (k,), of a release that is only multiplied.

    Lanczos stops sooner: an error of a vector counts squared in its value. Where components are drowned in noise, whose
    eigenvalues lie close, it takes a third of the products that :func:`components` takes to tell them apart, as
    measured of 20000 columns.

    Raises
    ------
    UsageError
        As :func:`components`.
    """
    values, _ = _from_products(about_mean(release), product, count, _ROUGH)
    return values + _SLACK * np.abs(values)


def total_variance(release: Release) -> float | None:
    """Return the trace of the matrix whose eigenvectors are the components; None where a subspace was released.

    It is the sum of all eigenvalues, which the noise leaves as they are on average. It need not be positive.
    """
    if release.subspace is not None:
        return None
    about, trace = about_mean(release), float(release.moment_diagonal.sum())
    return trace / about.divisor - float(about.mean @ about.mean) + release.bound.columns * about.diagonal


def captured_variance(vectors: Matrix, matrix: Matrix) -> float:
    """Return ``tr(V A V^T)`` over the sum of A's k largest eigenvalues: 1 for the best subspace.

    Of the exact A this is a function of private data: compute it on public data only, or of a private matrix.

    Parameters
    ----------
    vectors
        V, (k, d), orthonormal rows.
    matrix
        A, (d, d), symmetric.
    """
    best, _ = top_eigenpairs(matrix, vectors.shape[0])
    return float(np.einsum("ij,jk,ik->", vectors, matrix, vectors, optimize=True) / best.sum())
