"""Log-likelihood ratios of a release under two moments, for each distribution.

The ratio ``log p(y | moment) - log p(y | neighbour)`` is the most powerful test statistic (Neyman & Pearson 1933), and
privacy bounds it: a pure mechanism has ``|ratio| <= epsilon`` for neighbouring moments. Each function takes two moments
as (d, d) float64 matrices in lattice units and returns the ratio as a function of a release. The ratios are those of
the real-valued distributions; rounding a release to the lattice changes them by the lattice unit over the scale of the
noise, about 1e-9.

A release is the attacker's view: the (d, d) matrix, the (k, d) rows of a subspace, or all frames of an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from dpdist.core.mechanisms.base import Calibrated, Matrix
from dpdist.core.mechanisms.gaussian import RoundedNormals
from dpdist.core.mechanisms.laplace import CalibratedLaplace
from dpdist.core.mechanisms.wishart import CalibratedTwoSidedWishart
from dpdist.literature.integrals import log_bingham, log_orbit

LogRatio = Callable[[Matrix], float]
_NEGLIGIBLE = 1e-12  # smaller changes, relative to the largest, are rounding errors of an eigendecomposition
_RAYS = np.linspace(-11, 11, 301)


def log_ratio(calibrated: Calibrated, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
    """Return ``log p(release | moment) - log p(release | neighbour)``, or None if it is unknown."""
    match calibrated:
        case HasLogRatio():
            return calibrated.log_ratio(moment, neighbour)
        case RoundedNormals():  # of the normals before rounding: the release is their post-processing
            variance = np.full(moment.shape, float(calibrated.sigma_off_diagonal) ** 2)
            np.fill_diagonal(variance, float(calibrated.sigma_diagonal) ** 2)
            return gaussian(moment, neighbour, variance)
        case CalibratedLaplace():
            return laplace(moment, neighbour, calibrated.scale)
        case CalibratedTwoSidedWishart():
            return two_sided_wishart(moment, neighbour, calibrated.size + 1, calibrated.scale)
    return None


@runtime_checkable
class HasLogRatio(Protocol):
    """A calibrated mechanism of the literature, which knows the ratio of its releases."""

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        """Return ``log p(release | moment) - log p(release | neighbour)``, or None if it is unknown."""
        ...


def gaussian(moment: Matrix, neighbour: Matrix, variance: Matrix, basis: Matrix | None = None) -> LogRatio:
    """Symmetric noise with independent normal entries: ``sum_{i<=j} D_ij (y_ij - m_ij) / v_ij``, m the mean moment."""

    def rotated(matrix: Matrix) -> Matrix:
        return matrix if basis is None else basis.T @ matrix @ basis

    weights = np.triu(rotated(moment - neighbour) / variance)
    middle = float(np.sum(weights * rotated(moment + neighbour))) / 2
    return lambda y: float(np.sum(weights * rotated(y))) - middle


def laplace(moment: Matrix, neighbour: Matrix, scale: float) -> LogRatio:
    """Independent (discrete) Laplace entries on and above the diagonal."""
    upper = np.triu_indices(len(moment))
    a, b = moment[upper], neighbour[upper]
    return lambda y: float(np.sum(np.abs(y[upper] - b) - np.abs(y[upper] - a))) / scale


def norm(moment: Matrix, neighbour: Matrix, scale: float, length: Callable[[Matrix], float]) -> LogRatio:
    """Noise with density proportional to ``exp(-|E| / scale)`` (Hardt & Talwar 2010)."""
    return lambda y: (length(y - neighbour) - length(y - moment)) / scale


def wishart(moment: Matrix, neighbour: Matrix, degrees: int, scale: float) -> LogRatio:
    """Noise ``scale Z Z^T`` with Z of ``degrees`` >= d normal columns; infinite outside the support of one moment."""
    # density |E|^((degrees-d-1)/2) exp(-tr E / 2 scale) on the positive definite cone (Wishart 1928)
    power = (degrees - len(moment) - 1) / 2

    def log_density(noise: Matrix) -> float:
        values = np.linalg.eigvalsh(noise)
        if values[0] <= 0:
            return -math.inf
        return power * float(np.sum(np.log(values))) - float(np.trace(noise)) / (2 * scale)

    def ratio(y: Matrix) -> float:
        first, second = log_density(y - moment), log_density(y - neighbour)
        return 0.0 if first == second else first - second  # outside both supports only by rounding to the lattice

    return ratio


def two_sided_wishart(moment: Matrix, neighbour: Matrix, columns: int, scale: float) -> LogRatio:
    """Noise ``W1 - W2``, each ``scale Z Z^T`` of ``columns`` columns: the ratio of the entries that change."""
    # Along orthonormal eigenvectors of the change the diagonal entries of each Wishart matrix are independent, scale
    # times chi-squared with `columns` degrees of freedom. Their difference x has a density proportional to
    # |z|^n K_n(|z|), z = x / 2 scale, n = (columns - 1) / 2 (Kotz, Kozubowski & Podgorski 2001, section 4.1). These
    # entries are post-processing of the release, so the ratio is valid; no practical formula is known for the matrix.
    from scipy.special import kve  # noqa: PLC0415 - slow to import, rarely used

    change, vectors = np.linalg.eigh(moment - neighbour)
    moved = vectors[:, np.abs(change) > _NEGLIGIBLE * np.abs(change).max(initial=0)]
    a, b = (np.einsum("ij,ij->j", moved, matrix @ moved) for matrix in (moment, neighbour))
    order = (columns - 1) / 2

    def log_density(x: Matrix) -> float:
        z = np.maximum(np.abs(x) / (2 * scale), 1e-3)  # the density is flat at 0
        return float(np.sum(order * np.log(z) + np.log(kve(order, z)) - z))

    def ratio(y: Matrix) -> float:
        entries = np.einsum("ij,ij->j", moved, y @ moved)
        return log_density(entries - a) - log_density(entries - b)

    return ratio


def projection(moment: Matrix, neighbour: Matrix, sketch: int, ridge: float) -> LogRatio:
    """Second moment Y of r normal vectors with covariance ``K = M + ridge I``, divided by r."""
    # -(r/2) (log|K| - log|K'| + tr(K^{-1} - K'^{-1}) Y): the vectors are normal, and Y is sufficient for K
    first, second = (matrix + ridge * np.eye(len(matrix)) for matrix in (moment, neighbour))
    inverse = np.linalg.inv(first) - np.linalg.inv(second)
    shift = float(np.linalg.slogdet(first)[1] - np.linalg.slogdet(second)[1])
    return lambda y: -sketch / 2 * (shift + float(np.sum(inverse * y)))


def successive_bingham(moment: Matrix, neighbour: Matrix, concentration: float) -> LogRatio:
    """Rows x_i of density ``exp(c x^T M x) / Z_i`` on the unit sphere orthogonal to the previous rows."""
    # c sum_i x_i^T D x_i minus the change of every log Z_i, the normaliser of the moment on that complement
    a, b = concentration * moment, concentration * neighbour
    first = _normaliser(b) - _normaliser(a)

    def ratio(rows: Matrix) -> float:
        total = first + float(np.sum((rows @ (a - b)) * rows))
        for i in range(1, len(rows)):
            basis = np.linalg.qr(rows[:i].T, mode="complete")[0][:, i:]
            if basis.size:
                total += _normaliser(basis.T @ b @ basis) - _normaliser(basis.T @ a @ basis)
        return total

    return ratio


def _normaliser(matrix: Matrix) -> float:
    return log_bingham(np.linalg.eigvalsh(matrix).astype(np.float64, copy=False))


def _log_laplace_clipped(value: float, scale: float) -> float:
    """Return the log probability that a Laplace variable with mean ``value`` is not positive."""
    return -value / scale - math.log(2) if value >= 0 else math.log1p(-math.exp(value / scale) / 2)


def deflated_pair(moment: Matrix, neighbour: Matrix, concentration: float, scale: float) -> LogRatio:
    """Release of ``l u u^T``: u a Bingham vector of the moment, l Laplace with mean ``u^T M u``."""
    # the ratio of u plus that of l given u; the matrix determines both
    direction = successive_bingham(moment, neighbour, concentration)

    def ratio(y: Matrix) -> float:
        values, vectors = np.linalg.eigh(y)
        index = int(np.argmax(np.abs(values)))
        u, value = vectors[:, index], float(values[index])
        return direction(u[None]) + (abs(value - float(u @ neighbour @ u)) - abs(value - float(u @ moment @ u))) / scale

    return ratio


def clipped_pair(
    moment: Matrix, neighbour: Matrix, scale: float, direction: Callable[[Matrix, float], float]
) -> LogRatio:
    """Release of ``l X``: l Laplace around the largest eigenvalue, clipped at 0, X independent with trace 1."""
    a, b = (float(np.linalg.eigvalsh(matrix)[-1]) for matrix in (moment, neighbour))
    clipped = _log_laplace_clipped(a, scale) - _log_laplace_clipped(b, scale)

    def ratio(y: Matrix) -> float:
        value = float(np.trace(y))
        if value <= 0:
            return clipped
        return (abs(value - b) - abs(value - a)) / scale + direction(y, value)

    return ratio


def orbit(moment: Matrix, neighbour: Matrix, spectrum: Matrix, rate: float) -> Callable[[Matrix], float]:
    """``X = Re U diag(g) U*`` with density ``exp(rate tr(M X))`` with respect to the invariant measure of the orbit."""
    # the density does not depend on the imaginary part of the Hermitian matrix, so the real part is sufficient
    a, b = (
        log_orbit((rate * np.linalg.eigvalsh(m)).astype(np.float64, copy=False), spectrum) for m in (moment, neighbour)
    )
    change = rate * (moment - neighbour)
    return lambda x: float(np.sum(change * x)) + b - a


def power_rounds(moment: Matrix, neighbour: Matrix, shape: str, scale: float, *, relative: bool) -> LogRatio:
    """All frames of the power method for one vector, ``x <- ±(M x + g) / |M x + g|``: rows x_0, x_1, ..., x_L."""
    # Given x, the next vector has the density integral over r of |r|^(d-1) f(r x' - M x), f the density of g and r from
    # minus to plus infinity, because the sign is lost. The integral is a sum over a grid around its peak. x_0 does not
    # depend on the data, and the ratios of the rounds add up.
    size = len(moment)

    def log_density(mean: Matrix, following: Matrix, width: float) -> float:
        grid = float(mean @ following) + width * np.sinh(_RAYS)
        if shape == "normal":
            grid = float(mean @ following) + width * _RAYS
            exponent = -((np.outer(grid, following) - mean) ** 2).sum(axis=1) / (2 * width**2)
            step: Matrix = np.zeros_like(grid)
        else:
            noise = np.outer(grid, following) - mean
            lengths = np.abs(noise).sum(axis=1) if shape == "laplace" else np.linalg.norm(noise, axis=1)
            exponent, step = -lengths / width, np.log(np.cosh(_RAYS))
        exponent += (size - 1) * np.log(np.maximum(np.abs(grid) / width, 1e-300)) + step
        highest = float(exponent.max())
        return highest + math.log(float(np.exp(exponent - highest).sum()))

    def ratio(frames: Matrix) -> float:
        total = 0.0
        for x, following in pairwise(frames):
            width = scale * (float(np.abs(x).max()) if relative else 1.0)
            total += log_density(moment @ x, following, width) - log_density(neighbour @ x, following, width)
        return total

    return ratio
