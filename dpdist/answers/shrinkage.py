"""From a noisy symmetric matrix to a covariance: shrunk, positive. Post-processing, free of charge.

A private matrix is symmetric but has negative eigenvalues, and noise spreads all eigenvalues: the large ones are too
large, the small ones too small. :class:`Shrinkage` names three corrections.

**Optimal.** Among all matrices with the eigenvectors u of the released one, that with the eigenvalues ``u^T A0 u`` is
nearest to the exact matrix A0 in Frobenius norm. For noise E that is asymptotically free of A0 these values follow from
the release (Bun, Allez, Bouchaud & Potters 2016, for normal noise). Let R be the R-transform of the noise, y a released
eigenvalue, g the Cauchy transform of the released spectrum at ``z = y - i eta``, and ``w = z - R(g)``. Then

    xi(y)  =  Im(w g) / Im g  =  y - Im(g R(g)) / Im g,

as the mean of ``A0 (z - A)^-1`` is ``A0 (w - A0)^-1``, with normalised trace ``w g - 1``. For a semicircle, ``R = v
g``, it is ``y - 2 v Re g``. eta is ``sqrt(v / d)``, the spread of one released eigenvalue. Three constraints are then
imposed: the values ascend like the released ones (isotonic regression), none is below a minimum, and their sum is the
released trace, which has little noise. The minimum is the standard deviation of that trace over d, the accuracy of the
mean of the exact values, so the matrix is positive definite. The minimum means only that a direction varies little.

**Trace.** The second moment of n rows of norm at most C has trace at most ``n C²``. The positive semidefinite matrices
with this property are a convex set that contains the exact matrix, so projecting on it never increases the distance
(Nikolov, Talwar & Zhang 2013; Dwork, Talwar, Thakurta & Zhang 2014, section 4).

**None.** The released matrix: every entry is unbiased, with a known error.

Distances from the exact matrix: `benchmarks/shrinkage.py`.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from dpdist.answers.noise_edge import NoiseLaw
from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.noise_law import EdgeKind

Matrix = npt.NDArray[np.float64]
_BATCH_NUMBERS = 1 << 22
"""Complex numbers in memory at once."""


class Shrinkage(enum.StrEnum):
    """Corrections of a released matrix."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    TRACE = "trace"
    NONE = "none"


def optimal(matrix: Matrix, law: NoiseLaw) -> Matrix:
    """Return the matrix with the eigenvectors of a noisy one and optimally shrunk eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    return _from_eigenpairs(optimal_values(values, law), vectors)


def optimal_values(values: Matrix, law: NoiseLaw) -> Matrix:
    """Return the optimally shrunk eigenvalues of a noisy matrix, (d,) ascending."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow to import, rarely used

    d = values.size
    variance = law.variance / d  # of an entry off the diagonal
    shrunk = np.empty(d)
    step = max(1, _BATCH_NUMBERS // d)
    for start in range(0, d, step):
        batch = slice(start, start + step)
        g = (1 / (values[batch, None] - 1j * np.sqrt(variance) - values)).mean(axis=1)
        shrunk[batch] = values[batch] - (g * law.transform(g)).imag / g.imag
    ascending: Matrix = isotonic_regression(shrunk).x
    least = float(np.sqrt(2 * variance / d))
    return least + on_simplex(ascending - least, float(values.sum()) - d * least)


def excess(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return the mean excess of a noisy matrix along some of its own eigenvectors, due to selecting them."""
    if not others.size:
        return np.zeros_like(values)
    width = np.sqrt(law.variance / law.size)
    g = (1 / (values[:, None] - 1j * width - others)).sum(axis=1) / law.size
    excesses: Matrix = (g * law.transform(g)).imag / g.imag
    return excesses


def excess_variance(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return the variance of the excess, (k,), to second order in the noise: ``8 v² sum (y_i - y_j)^-2``."""
    v = law.variance / law.size
    variances: Matrix = 8 * v**2 * (1 / ((values[:, None] - others) ** 2 + v)).sum(axis=1)
    return variances


_TIED = {EdgeKind.WISHART: (3.0, 1), EdgeKind.TWO_SIDED_WISHART: (1.12, 2), EdgeKind.NUCLEAR: (1.12, 2)}


def tied(values: Matrix, others: Matrix, law: NoiseLaw) -> Matrix:
    """Return the relative increase of the variance of noise in a further column along the eigenvectors, (k,)."""
    # Normal noise in a further column is independent of the matrix. A Wishart matrix of scale s is s G G^T: given G,
    # its product with the further column has variance s² |u^T G|² along u, and u is selected where that is large. With
    # x = d s g, the derivative of g R(g) gives its mean relative to an arbitrary direction: 1 / (1 - x)², and
    # (1 / (1 - x)² + 1 / (1 + x)²) / 2 for the difference of two. These are bounded from above by functions growing
    # like g and g², from 1 to the values at the critical g for as many degrees of freedom as columns. Nuclear-norm
    # noise is treated like the difference of two.
    if not others.size:
        return np.zeros_like(values)
    width = np.sqrt(law.variance / law.size)
    g = np.abs((1 / (values[:, None] - 1j * width - others)).sum(axis=1)) / law.size
    share = np.minimum(1.0, g / law.critical)
    shares = np.zeros_like(values)
    for largest, power in (_TIED[kind] for kind in law.kinds if kind in _TIED):
        shares = np.maximum(shares, largest * share**power)
    return shares


def within_trace(matrix: Matrix, bound: float) -> Matrix:
    """Return the nearest positive semidefinite matrix of trace at most ``bound``, in Frobenius norm."""
    if not bound > 0:
        raise UsageError("The bound on the trace must be positive: the number of rows times the squared clip norm.")
    values, vectors = np.linalg.eigh(matrix)
    positive = np.maximum(values, 0)
    return _from_eigenpairs(on_simplex(values, bound) if positive.sum() > bound else positive, vectors)


def on_simplex(values: Matrix, total: float) -> Matrix:
    """Return the nearest nonnegative numbers with this sum; zeros if it is not positive.

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
    projected: Matrix = np.maximum(values - excess[np.flatnonzero(descending > excess)[-1]], 0)
    return projected


def _from_eigenpairs(values: Matrix, vectors: Matrix) -> Matrix:
    matrix = (vectors * values) @ vectors.T
    return (matrix + matrix.T) / 2
