"""Privacy profiles of a random projection: r independent normal rows whose covariance depends on the data.

**Setting.** The release is a function of r independent draws of N(0, K), ``K = M + w² I``, M the second moment. A
change of M by rows of squared norm at most S changes K by generalised eigenvalues ``1 + s`` and ``1 / (1 + u)``, s for
the row put in and u for the one taken out (Rayleigh quotients against ``K0 = K`` without both), with
``s, u <= g = S / w²``, the *gain*. In the basis that diagonalises both, the draws are independent, so the pair of
distributions is the product of the pairs ``N(0, 1)^r, N(0, 1+s)^r`` and ``N(0, 1+u)^r, N(0, 1)^r``.

**Worst case (proved).** Normal scale families have monotone likelihood ratio in their chi-squared statistic T: the most
powerful tests of N(0, 1)^r against N(0, 1+s)^r are thresholds of T, the same for all s, and their power grows with s,
as the distribution of T does. So the trade-off function at g is below that at s < g, hence the pair at s is a
randomised function of the pair at g (Blackwell; Dong, Roth & Su 2022, theorem 2), and so are products of such pairs.
The worst case is s = u = g, attained by orthogonal rows of full norm over an otherwise empty table: no other
configuration needs to be searched, and delta grows with g. With one column both rows are on one line and only one of s,
u differs from 0.

**Add-remove.** With ``h = (r/2) ln(1+g)``, F the chi-squared distribution function with r degrees of freedom and
F' = 1 - F, without the row against with it, and with it against without it:

    F(t) - e^epsilon F(t / (1+g)),               t = 2 (h - epsilon) (1+g) / g,
    F'(t' / (1+g)) - e^epsilon F'(t'),           t' = 2 (h + epsilon) (1+g) / g.

**Replace-one.** The loss is ``(g/2) (y - x/(1+g))``, x and y independent chi-squared variables, and
``delta = E G(x)``, where G is the mean over y of the positive part of ``1 - exp(epsilon - loss)``:

    G(x) = F'(z) - exp(epsilon + g x / 2(1+g)) (1+g)^{-r/2} F'((1+g) z),   z = x/(1+g) + 2 epsilon / g.

It is a convex decreasing function of ``q = exp(g x / 2(1+g))``. On each cell of a grid of x it is replaced by its chord
in q, whose mean is exact, because q tilts one chi-squared distribution into another. The result is an upper bound; with
8192 cells it exceeds delta by a relative 1e-5 or less for delta down to 1e-18.

**Arithmetic.** float64 in the log domain, incomplete gamma functions from SciPy with relative errors below 1e-12 for up
to 10⁵ degrees of freedom (beyond, its lower tail is wrong by tens of per cent: the series is cut off); every rounding
and underflow below is towards the larger delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-10  # relative error allowed for each of two terms that are subtracted
_FLOOR = 1e-24  # added to every delta: above any underflow, far below the unit of delta
_CELLS = 8192
_BELOW, _ABOVE = 10.0, 6.0  # the grid of x, in standard deviations of sqrt(2 x)
_TILT_ROUNDING = 1e-9  # relative error allowed for the ratio of two differences of distribution functions over one cell
MAX_SKETCH = 100_000  # largest r for which the incomplete gamma functions are accurate
MAX_RIDGE = 2**60  # largest ridge, so that sums with it fit in int64
_MIN_RIDGE_SHARE = 1024
"""The ridge is at least S over this, far above the rounding errors of a matrix whose trace is n S."""


def _difference(first: Floats, log_second: Floats) -> Floats:
    """Return ``first - exp(log_second)``, rounded up; the exact value is between 0 and ``first``."""
    second: Floats = np.minimum(np.exp(np.minimum(log_second, 0.0)), first)
    return first * (1 + _ROUNDING) - second * (1 - _ROUNDING)


def _head(sketch: int, chi2: Floats) -> Floats:
    from scipy.special import gammainc  # noqa: PLC0415 - SciPy takes its time, and few need it

    return np.asarray(gammainc(sketch / 2, chi2 / 2), dtype=np.float64)


def _tail(sketch: int, chi2: Floats) -> Floats:
    from scipy.special import gammaincc  # noqa: PLC0415 - SciPy takes its time, and few need it

    return np.asarray(gammaincc(sketch / 2, chi2 / 2), dtype=np.float64)


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)


def row_in(epsilon: float, sketch: int, gain: float) -> float:
    """Return delta of the distribution without the row against the distribution with it, rounded up."""
    t = ((sketch / 2) * math.log1p(gain) - epsilon) * 2 * (1 + gain) / gain
    if t <= 0:
        return _FLOOR
    first, second = _head(sketch, np.array([t, t / (1 + gain)]))
    return float(_difference(first, epsilon + _log(second))) + _FLOOR


def row_out(epsilon: float, sketch: int, gain: float) -> float:
    """Return delta of the distribution with the row against the distribution without it, rounded up."""
    t = ((sketch / 2) * math.log1p(gain) + epsilon) * 2 * (1 + gain) / gain
    first, second = _tail(sketch, np.array([t / (1 + gain), t]))
    return float(_difference(first, epsilon + _log(second))) + _FLOOR


def _cells(sketch: int, edges: Floats) -> Floats:
    """Return the probabilities of a chi-squared variable between consecutive edges, each from its nearer tail."""
    return np.where(edges[1:] < sketch, np.diff(_head(sketch, edges)), -np.diff(_tail(sketch, edges)))


@lru_cache(maxsize=4096)  # a calibration needs the same forty values repeatedly
def row_replaced(epsilon: float, sketch: int, gain: float) -> float:
    """Return delta of two orthogonal rows exchanged for each other, rounded up (the same in both directions)."""
    ratio, rate = 1 + gain, gain / 2
    shift = sketch / 2 * math.log1p(gain)
    centre = math.sqrt(2 * sketch)
    x = np.linspace(max(0.0, centre - _BELOW), centre + _ABOVE, _CELLS + 1) ** 2 / 2
    z = x / ratio + epsilon / rate
    value = _difference(_tail(sketch, z), epsilon + rate * x / ratio - shift + _log(_tail(sketch, ratio * z)))
    mass = _cells(sketch, x)
    step = np.expm1(rate * np.diff(x) / ratio)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # mean of q / q_k in a cell, where q_k belongs to its left edge; a cell without mass may have any
        tilted = np.exp(shift - rate * x[:-1] / ratio + _log(_cells(sketch, x / ratio)))
        weight = np.nan_to_num((tilted / mass * (1 - _TILT_ROUNDING) - 1) / step, nan=0.0)
    weight = np.clip(weight, 0.0, 1.0)
    inside = float(np.sum(mass * (value[:-1] - weight * (value[:-1] - value[1:]))))
    outside = float(_head(sketch, x[:1])[0] + _tail(sketch, x[-1:])[0] * value[-1])
    return (inside + outside) * (1 + _TILT_ROUNDING) + _FLOOR


def profile(neighbours: Neighbours, size: int, sketch: int) -> Callable[[float, float], float]:
    """Return delta, rounded up, as a function of epsilon and gain, for d = size columns, r = sketch draws."""
    if not 1 <= sketch <= MAX_SKETCH:
        raise UsageError(
            f"The number of random combinations must be from 1 to {MAX_SKETCH}.", parameter="options.sketch"
        )
    if neighbours is Neighbours.REPLACE_ONE and size > 1:
        return lambda epsilon, gain: row_replaced(epsilon, sketch, gain)
    return lambda epsilon, gain: max(row_in(epsilon, sketch, gain), row_out(epsilon, sketch, gain))


def least_ridge(loss: PrivacyLoss, neighbours: Neighbours, size: int, sketch: int, bound: int) -> int:
    """Return the smallest integer ridge w² that keeps (epsilon, delta), up to a relative 2^-30 on the safe side."""
    delta = profile(neighbours, size, sketch)

    def private(ridge: int) -> bool:
        return delta(loss.epsilon, bound / ridge) <= loss.delta

    low = -(-bound // _MIN_RIDGE_SHARE)
    if private(low):
        return low
    high = low
    while not private(high):
        low, high = high, 2 * high
        if high > MAX_RIDGE:
            raise UsageError(
                f"At {loss} and a norm bound of {bound} lattice units the ridge exceeds 2^60 units: use fewer grid "
                f"bits ({parameter('grid_bits')}), a larger epsilon or a smaller sketch.",
                parameter="options.sketch",
            )
    while high - low > max(1, high >> 30):
        middle = (low + high) // 2
        low, high = (low, middle) if private(middle) else (middle, high)
    return high
