"""Principal components of a private matrix: free post-processing of a release.

A private matrix is symmetric but not positive semidefinite, so components are ordered by eigen*value*: by magnitude,
a large negative eigenvalue, which is noise, would come first. Each component's sign makes its entry of largest
magnitude positive, so the same release gives the same components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from dpdist.errors import UsageError
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
_DENSE_LIMIT = 2000
"""Up to here LAPACK's top-k solver costs little; above it Lanczos is an order of magnitude faster."""


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


def moment_about_mean(release: Release) -> tuple[Matrix, Matrix, bool]:
    """Return the matrix whose eigenvectors are the components, the mean, and whether it is per row.

    Without private centring it is the second moment about the public centre, divided by n where n is public. With
    private centring it is the covariance ``S/m - u u^T + v I``, u = row_sum/m, m = n or its private
    estimate; ``u u^T`` exceeds its expectation by v = (variance of an entry of u) on the diagonal, which is put back
    (mechanisms in the field subtract it silently).

    Returns
    -------
    matrix
        (d, d) float64, in squared units of the bounded rows.
    mean
        (d,) float64, in units of the bounded rows; zero without private centring.
    per_row
        Whether the matrix was divided by a number of rows.

    Raises
    ------
    UsageError
        If the private estimate of the number of rows is not positive: the noise drowns the data.
    """
    moment, total, count = release.second_moment, release.row_sum, release.row_count
    mean = np.zeros(release.bound.columns)
    moment -= release.noise.get("mean_diagonal", 0.0) * release.bound.unit**2 * np.eye(mean.size)
    if count is None:
        return moment, mean, False
    if count <= 0:
        raise UsageError(
            "The private estimate of the number of rows is not positive: at this budget the noise drowns the data. "
            "No mean or covariance can be taken from this release."
        )
    moment = moment / count
    if total is not None:
        mean = total / count
        spread = release.noise["variance_off_diagonal"] * (release.bound.unit / release.bound.constant / count) ** 2
        moment = moment - np.outer(mean, mean) + spread * np.eye(mean.size)
    return moment, mean, True


def top_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the eigenpairs of largest eigenvalue of a symmetric matrix.

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
    """
    size = matrix.shape[0]
    if not 1 <= count <= size:
        raise UsageError(f"{count} components were asked for; there are between 1 and {size} (--components).")
    if size <= _DENSE_LIMIT or count > size // 8:
        values, columns = eigh(matrix, subset_by_index=[size - count, size - 1])
    else:
        start = np.full(size, size**-0.5)  # fixed: the same release gives the same components
        values, columns = eigsh(matrix, k=count, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    return values[order], _signed(columns[:, order].T)


def _signed(vectors: Matrix) -> Matrix:
    largest = np.abs(vectors).argmax(axis=1)
    return np.ascontiguousarray(vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None])


def _leading(subspace: Matrix, count: int) -> Matrix:
    if not 1 <= count <= len(subspace):
        raise UsageError(f"{count} components were asked for; the release has {len(subspace)} (--components).")
    return _signed(subspace[:count])


def components(release: Release, count: int) -> Components:
    """Return the top components of a release, with the bookkeeping that leads back to the input's units.

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
        matrix, mean, per_row = moment_about_mean(release)
        eigenvalues, vectors = top_eigenpairs(matrix, count)
    scale = np.ones(d) if release.bound.scale is None else np.array(release.bound.scale)
    centre = np.zeros(d) if release.bound.centre is None else np.array(release.bound.centre)
    return Components(vectors, eigenvalues, per_row, centre + scale * mean, scale)


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
