"""From a noisy symmetric matrix to a covariance: shrunk, positive. Post-processing, free of charge.

A private matrix is symmetric, but it has negative eigenvalues, and noise spreads all of them: the large ones lie too
high, the small ones too low. Three ways lead to a matrix that is used further; :class:`Shrinkage` names them.

**Optimal.** Of all matrices with the eigenvectors u of the released one, that with the values ``u^T A0 u`` is nearest
to the exact matrix A0 in Frobenius norm. For noise E that is asymptotically free of A0 they follow from what was
released (Bun, Allez, Bouchaud & Potters 2016, for normal noise). Let R be the R-transform of the noise, y a released
eigenvalue, g the Cauchy transform of the released spectrum at ``z = y - i eta``, and ``w = z - R(g)``. Then

    xi(y)  =  Im(w g) / Im g  =  y - Im(g R(g)) / Im g,

as the mean of ``A0 (z - A)^-1`` is ``A0 (w - A0)^-1``, of normalised trace ``w g - 1``. Of a semicircle, ``R = v g``,
it is ``y - 2 v Re g``. eta is ``sqrt(v / d)``, the spread of one released eigenvalue. Then three things are made true
of these: they ascend as the released ones do (isotonic regression), none is below a least value, and their sum is the
released trace, whose noise is small. The least value is the standard deviation of that trace over d, to which the mean
of the exact values is known. So the matrix is positive definite. Where it has the least value, nothing is known of a
direction but that it varies little.

**Trace.** n rows of norm at most C have a second moment of trace ``n C²`` at most. The positive semidefinite matrices
with that property are a convex set that holds the exact matrix, so projecting on it never increases the distance from
it (Nikolov, Talwar & Zhang 2013; Dwork, Talwar, Thakurta & Zhang 2014, section 4).

**None.** The released matrix: every entry is right on average, and the errors of entries are known.

How far each is from the exact matrix: `benchmarks/shrinkage.py`.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.mechanisms.noise_law import EdgeKind
from dpdist.pca.noise_edge import NoiseLaw

Matrix = npt.NDArray[np.float64]
_PIECE = 1 << 22
"""Complex numbers that are held at once."""


class Shrinkage(enum.StrEnum):
    """What is done to a released matrix."""

    OPTIMAL = "optimal"
    TRACE = "trace"
    NONE = "none"


def optimal(matrix: Matrix, law: NoiseLaw) -> Matrix:
    """Return the matrix with the eigenvectors of a noisy one and the values that are nearest to the exact matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return _rebuilt(optimal_values(values, law), vectors)


def optimal_values(values: Matrix, law: NoiseLaw) -> Matrix:
    """Return what :func:`optimal` makes of the eigenvalues of a noisy matrix, (d,) ascending."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - SciPy takes its time, and few need it

    d = values.size
    variance = law.variance / d  # of an entry off the diagonal
    found = np.empty(d)
    step = max(1, _PIECE // d)
    for start in range(0, d, step):
        piece = slice(start, start + step)
        g = (1 / (values[piece, None] - 1j * np.sqrt(variance) - values)).mean(axis=1)
        found[piece] = values[piece] - (g * law.transform(g)).imag / g.imag
    ascending: Matrix = isotonic_regression(found).x
    least = float(np.sqrt(2 * variance / d))
    return least + on_simplex(ascending - least, float(values.sum()) - d * least)


def excess(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return what noise adds to a noisy matrix along some of its eigenvectors, because they are that."""
    if not others.size:
        return np.zeros_like(values)
    width = np.sqrt(law.variance / law.size)
    g = (1 / (values[:, None] - 1j * width - others)).sum(axis=1) / law.size
    found: Matrix = (g * law.transform(g)).imag / g.imag
    return found


def excess_variance(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return the variance of that excess, (k,), to second order in the noise: ``8 v² sum (y_i - y_j)^-2``."""
    v = law.variance / law.size
    return 8 * v**2 * (1 / ((values[:, None] - others) ** 2 + v)).sum(axis=1)


_TIED = {EdgeKind.WISHART: (3.0, 1), EdgeKind.TWO_SIDED_WISHART: (1.12, 2), EdgeKind.NUCLEAR: (1.12, 2)}


def tied(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return by which share noise beside a noisy matrix varies more along its eigenvectors, (k,).

    Let a further column be beside the matrix. For normal noise what it has is independent of the matrix. A Wishart
    matrix of scale s is ``s G G^T``: given G, the product with the further column varies along u by ``s² |u^T G|²``,
    and u is where that is large. With ``x = d s g``, the derivative of ``g R(g)`` tells its mean: ``1 / (1 - x)²``
    times that of any direction, and for the difference of two ``(1 / (1 - x)² + 1 / (1 + x)²) / 2``. Here these are
    taken to grow like g and g², from 1 to their values at the critical g for as many degrees of freedom as columns,
    which is not less. Nuclear-norm noise is taken like the difference of two.
    """
    if not others.size:
        return np.zeros_like(values)
    width = np.sqrt(law.variance / law.size)
    g = np.abs((1 / (values[:, None] - 1j * width - others)).sum(axis=1)) / law.size
    share = np.minimum(1.0, g / law.critical)
    found = np.zeros_like(values)
    for most, power in (_TIED[kind] for kind in law.kinds if kind in _TIED):
        found = np.maximum(found, most * share**power)
    return found


def within_trace(matrix: Matrix, bound: float) -> Matrix:
    """Return the nearest positive semidefinite matrix of trace at most ``bound``, in Frobenius norm."""
    if not bound > 0:
        raise UsageError("The largest trace must be positive. It is the number of rows times the squared clip norm.")
    values, vectors = np.linalg.eigh(matrix)
    positive = np.maximum(values, 0)
    return _rebuilt(on_simplex(values, bound) if positive.sum() > bound else positive, vectors)


def on_simplex(values: Matrix, total: float) -> Matrix:
    """Return the nearest numbers that are not negative and have this sum; zeros if it is not positive.

    Source: Duchi, Shalev-Shwartz, Singer & Chandra 2008.

    Examples
    --------
    >>> on_simplex(np.array([-1.0, 1.0, 4.0]), 3.0)
    array([0., 0., 3.])
    """
    if total <= 0:
        return np.zeros_like(values)
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, values.size + 1)
    found: Matrix = np.maximum(values - excess[np.flatnonzero(descending > excess)[-1]], 0)
    return found


def _rebuilt(values: Matrix, vectors: Matrix) -> Matrix:
    found = (vectors * values) @ vectors.T
    return (found + found.T) / 2
