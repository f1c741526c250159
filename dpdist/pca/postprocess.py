"""What may be done to any released second moment, free of charge: all of it is post-processing.

A private matrix is symmetric, but it has negative eigenvalues and too large a trace. The exact matrix is positive
semidefinite, and n rows of norm at most C give it a trace of at most n C². The matrices with both properties are a
convex set that holds the exact one. Projecting the released matrix on that set therefore never increases its distance
from the exact one in Frobenius norm.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError

Matrix = npt.NDArray[np.float64]


def symmetric_part(matrix: Matrix) -> Matrix:
    """Return ``(Y + Y^T) / 2`` of a (d, d) matrix."""
    return (matrix + matrix.T) / 2


def positive_part(matrix: Matrix) -> Matrix:
    """Return the nearest positive semidefinite matrix in Frobenius norm: negative eigenvalues become 0.

    Parameters
    ----------
    matrix
        (d, d); only its symmetric part counts.

    Examples
    --------
    >>> positive_part(np.diag([2.0, -1.0]))
    array([[2., 0.],
           [0., 0.]])
    """
    values, vectors = np.linalg.eigh(symmetric_part(matrix))
    return _rebuilt(np.maximum(values, 0), vectors)


def within_trace(matrix: Matrix, bound: float) -> Matrix:
    """Return the nearest positive semidefinite matrix of trace at most ``bound``, in Frobenius norm.

    This is the projection on the possible second moments of n rows of norm at most C, ``bound = n C²``: on the part of
    the nuclear-norm ball in the positive cone. Where n is small against the noise it removes most of its error
    (Nikolov, Talwar & Zhang 2013; Dwork, Talwar, Thakurta & Zhang 2014, section 4). The eigenvalues are projected on a
    simplex (Duchi, Shalev-Shwartz, Singer & Chandra 2008); the eigenvectors and their order stay.

    Parameters
    ----------
    matrix
        (d, d); only its symmetric part counts.
    bound
        The largest trace, positive, in the units of the matrix. It must be public.

    Raises
    ------
    UsageError
        If the bound is not positive.
    """
    if not bound > 0:
        raise UsageError("The largest trace must be positive. It is the number of rows times the squared clip norm.")
    values, vectors = np.linalg.eigh(symmetric_part(matrix))
    if np.maximum(values, 0).sum() > bound:
        descending = values[::-1]
        excess = (np.cumsum(descending) - bound) / np.arange(1, values.size + 1)
        values = values - excess[np.flatnonzero(descending > excess)[-1]]
    return _rebuilt(np.maximum(values, 0), vectors)


def truncated(matrix: Matrix, rank: int) -> Matrix:
    """Return the part of a symmetric matrix along its ``rank`` largest eigenvalues; what is negative among them is 0.

    Raises
    ------
    UsageError
        If the rank is not between 1 and d.
    """
    size = matrix.shape[0]
    if not 1 <= rank <= size:
        raise UsageError(f"The rank must lie between 1 and {size}.")
    values, vectors = np.linalg.eigh(symmetric_part(matrix))
    return _rebuilt(np.maximum(values[-rank:], 0), vectors[:, -rank:])


def _rebuilt(values: Matrix, vectors: Matrix) -> Matrix:
    return symmetric_part((vectors * values) @ vectors.T)
