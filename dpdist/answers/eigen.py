"""Eigenpairs of a symmetric matrix: by LAPACK, by Lanczos, or from products only.

A matrix too large for one process is only multiplied, which is all that Lanczos needs. Products are computed by tiles
and split at tile boundaries, whatever the number of workers, so a release gives the same components to the bit on any
number of workers with processors of one kind. A release is public, so workers may cache its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError

Matrix = npt.NDArray[np.float64]
_DENSE_LIMIT = 500
"""Columns up to which LAPACK takes a few hundredths of a second for any number of components."""
_LANCZOS_SHARE = 40
"""Least number of columns per component for Lanczos: see :func:`top_eigenpairs`."""
_RESIDUAL = 1e-12
"""Largest accepted ``|A v - value v|``, relative to the norm of A."""


class NotConvergedError(ArithmeticError):
    """Lanczos did not converge."""


def by_lapack(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the top eigenvalues, ascending, and eigenvectors (columns) from a dense reduction (LAPACK's syevr)."""
    from scipy.linalg import eigh  # noqa: PLC0415 - slow to import, and a release needs none

    size = matrix.shape[0]
    values, columns = eigh(matrix, subset_by_index=[size - count, size - 1])
    return values, columns


def by_lanczos(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the top eigenvalues and eigenvectors (columns) from restarted Lanczos (ARPACK)."""
    from scipy.linalg.blas import dsymv  # noqa: PLC0415 - as above

    transposed = np.ascontiguousarray(matrix).T  # BLAS does not copy it
    # products are limited by memory bandwidth; dsymv reads one triangle and takes little more than half the time
    return top_eigenpairs_of(lambda x: dsymv(1.0, transposed, np.ravel(x), lower=1), matrix.shape[0], count)


def _solves(matrix: Matrix, values: Matrix, columns: Matrix) -> bool:
    """Whether every pair solves the eigenvalue equation; the norm of A is at least its longest row."""
    norm = max(float(np.einsum("ij,ij->i", matrix, matrix).max()) ** 0.5, float(np.abs(values).max()))
    return _solve(matrix @ columns, values, columns, norm)


def _solve(product: Matrix, values: Matrix, columns: Matrix, norm: float) -> bool:
    return bool(np.linalg.norm(product - columns * values, axis=0).max() <= _RESIDUAL * norm)


def top_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the eigenpairs of largest eigenvalue of a symmetric matrix; every pair is checked."""
    # Lanczos for few components of a large matrix, else LAPACK (benchmarks/eigen_times.py). Seconds on one core: 25 of
    # 1000 components .02 to .09 by Lanczos, .08 by LAPACK; 50 of 5000 1 to 6, and 15. Additional memory: 3 k + 20
    # vectors for Lanczos, a copy of the matrix for LAPACK.
    size = matrix.shape[0]
    if not 1 <= count <= size:
        raise UsageError(f"{count} components were requested. Ask for 1 to {size}.", parameter="components")
    pairs = None
    if size > _DENSE_LIMIT and count <= size // _LANCZOS_SHARE:
        with suppress(NotConvergedError):
            pairs = by_lanczos(matrix, count)
    if pairs is None or not _solves(matrix, *pairs):
        pairs = by_lapack(matrix, count)
        if not _solves(matrix, *pairs):
            raise ArithmeticError("LAPACK's eigenvectors do not solve the eigenvalue equation: the BLAS is defective.")
    values, columns = pairs
    order = np.argsort(-values, kind="stable")
    return values[order], signed(columns[:, order].T)


def signed(vectors: Matrix) -> Matrix:
    """Return vectors, (k, d), with signs that make the entry of largest magnitude of each positive."""
    largest = np.abs(vectors).argmax(axis=1)
    return np.ascontiguousarray(vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None])


def top_eigenpairs_of(
    product: Callable[[Matrix], Matrix], size: int, count: int, tolerance: float = 0.0
) -> tuple[Matrix, Matrix]:
    """Return the eigenpairs of largest eigenvalue of a symmetric matrix given by its products."""
    # The start is fixed, for reproducible components, and irregular: a start orthogonal to an eigenvector (the constant
    # one, if columns sum to zero) would miss it.

    def times(vector: Matrix) -> Matrix:
        return product(vector.reshape(size, -1)).reshape(vector.shape)

    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # noqa: PLC0415 - as above

    operator = LinearOperator((size, size), matvec=times, matmat=times, dtype=np.float64)
    start = np.modf(np.arange(1, size + 1) * 0.6180339887498949)[0] - 0.5  # Weyl's sequence
    try:
        values, columns = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)
    except ArpackError:
        raise NotConvergedError from None
    return values, columns
