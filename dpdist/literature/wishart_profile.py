"""Privacy profiles of one Wishart matrix added to a second moment.

``E = Z Z^T`` with m columns, ``m >= d + 1``, entries of Z normal with variance s², is added to a moment of rows with
squared norm at most S. The profile depends on two numbers: ``kappa = (m - d + 1)/2`` and ``theta = 2 s²/S``. Lengths
are in units of S, ``a = kappa - 1``, and Gamma(k) below is the gamma distribution of shape k and scale theta.

**One row more or fewer.** ``|E - ww^T| = |E| (1 - w^T E^-1 w)``, and ``1 / (u^T E^-1 u)`` has the distribution
Gamma(kappa) for a unit vector u, so only that number matters: the mechanism is a scalar query of sensitivity 1 with
Gamma(kappa) noise. With ``z ~ Gamma(kappa)`` the loss is ``-a log(1 - 1/z) - 1/theta`` (infinite for z <= 1) for a row
that leaves and ``1/theta - a log(1 + 1/z)`` for one that joins. The noise is log-concave, so rows of full norm are
worst.

**One row replaced.** ``vv^T - ww^T`` has the eigenvalues mu1 and -mu2, every pair in [0, 1]² for some rows. The inverse
of a 2 x 2 block of E^-1 is Wishart with m - d + 2 degrees of freedom; its Bartlett factors ``g ~ Gamma(kappa + 1/2)``,
``z ~ Gamma(kappa)``, ``q ~ Gamma(1/2)``, independent, give the loss ``L = -a log R + (mu1 - mu2)/theta`` with

    R = (1 + mu1/g) (1 - c/z) = (1 + mu1/g) (1 - mu2/z) + mu1 q / (g z),  c = mu2 - mu1 q / (g + mu1),

infinite where R <= 0, and ``delta = E (1 - exp(epsilon - L))_+``.

**The worst replacement, certified.**

(i) The density is log-concave and the shift linear in (mu1, mu2): on every line along the shift the likelihood ratio
is monotone, the best test is a half-line and its advantage grows with the shift. So delta grows along rays from
0, and the worst pair is on the edges mu1 = 1 or mu2 = 1.

(ii) For fixed (g, z, q), R is affine in mu1 and in mu2, so L is convex in each: on a cell of an edge L is at most the
larger of its values at the ends, and delta at most *the sum of both deltas*. For the whole edges: the worst delta
is at most that of (1, 1) plus that of add-remove, which is far smaller for large kappa.

(iii) R_+ falls in mu2 and rises in mu1. So for mu2 in [l, h] the loss is at most that of (mu1, h), and for mu1 in
[l, h] that of (l, mu2), plus ``(h - l)/theta``: delta on a cell is at most that of one pair at a smaller epsilon.

(iv) R_+ rises in q and falls in g, so delta given (g, q) rises in g and falls in q: its values at the upper ends of
cells of g and the lower ends of cells of q make an upper sum.

:func:`replace_one_delta` splits the edges until (ii) or (iii) bound the cells well enough, with each delta from (iv).
The only idealisation is in the incomplete gamma functions of SciPy, and :func:`_slack` covers their rounding.

References
----------
Sheffet 2015 (additive Wishart noise); Imtiaz & Sarwate 2016 with the erratum of 2017; Muirhead 1982, theorems 3.2.11,
3.2.12 (blocks of the inverse) and 3.2.14 (Bartlett).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpdist.core.privacy.guarantee import Neighbours

_Floats = npt.NDArray[np.float64]
FLOOR = 1e-50  # added to every delta: one Wishart matrix is never purely private, and a bound must not underflow to 0
_CELLS_G, _CELLS_Q = 512, 16
"""Cells of an upper sum. g is beyond the last cell with probability 1e-21, and in the first, least delta, with 3e-5."""
_NARROWEST = 2.0**-12  # cells of an edge are not split further


def _slack(kappa: float, theta: float) -> float:
    """Return the relative error allowed for each incomplete gamma value and its factor."""
    # the condition number of the argument is at most kappa in the lower tail (``x f(x) <= kappa F(x)``), about x in the
    # upper; the exponents are a few times ``kappa + 1/theta`` at most
    return 1e-12 + 8 * 2.0**-52 * (kappa + 1 / theta)


def _excess(epsilon: _Floats, shift: _Floats, kappa: float, theta: float) -> _Floats:
    """Return ``E (1 - exp(epsilon - L))_+`` for ``L = -a log(1 - shift/z)``, z ~ Gamma(kappa), from above.

    With ``x = epsilon / a`` a positive shift has L above epsilon for z < shift / (1 - e^-x), for every z if x <= 0; a
    negative one for z > shift / (1 - e^-x), and for no z if x >= 0. There, ``exp(-L) f(z) = exp(-shift/theta)
    f(z - shift)``.
    """
    from scipy import special  # noqa: PLC0415 - SciPy takes its time, and few need it

    a = kappa - 1
    slack = _slack(kappa, theta)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        x = epsilon / a if a > 0 else np.where(epsilon > 0, np.inf, -np.inf)
        beyond, short = shift / -np.expm1(-x), shift / np.expm1(x)  # the threshold, and the threshold less the shift
        leaving = shift > 0
        tail = np.where(leaving, x > 0, x < 0)
        # a row that leaves (shift > 0) is seen by small z, one that joins by large z
        first, second = np.zeros_like(shift), np.zeros_like(shift)
        for rows, law in ((leaving & tail, special.gammainc), (~leaving & tail, special.gammaincc)):
            first[rows] = law(kappa, beyond[rows] / theta)
            second[rows] = law(kappa, short[rows] / theta)
        always = (shift >= 0) & (x <= 0)
        first[always], second[always] = 1.0, 1.0
        other = np.exp(epsilon - shift / theta + np.log(second))
    other[second == 0] = 0.0
    return np.clip(first * (1 + slack) - other * (1 - slack), 0.0, 1.0)


def leaving_delta(epsilon: float, kappa: float, theta: float) -> float:
    """Return delta of the row's presence against its absence, seen in its absence, rounded up."""
    return float(_excess(np.array([epsilon + 1 / theta]), np.ones(1), kappa, theta)[0]) + FLOOR


def joining_delta(epsilon: float, kappa: float, theta: float) -> float:
    """Return delta of the row's absence against its presence, seen in its presence, rounded up."""
    return float(_excess(np.array([epsilon - 1 / theta]), -np.ones(1), kappa, theta)[0]) + FLOOR


def add_remove_delta(epsilon: float, kappa: float, theta: float) -> float:
    """Return the smallest delta at epsilon under add-remove, rounded up."""
    return max(leaving_delta(epsilon, kappa, theta), joining_delta(epsilon, kappa, theta))


def _quantile(shape: float, x: _Floats) -> _Floats:
    """Return the point x standard deviations from the mean of Gamma, scale 1 (Wilson & Hilferty 1931, approximate)."""
    return np.asarray(shape * (1 - 1 / (9 * shape) + x / (3 * math.sqrt(shape))) ** 3)


def _lowest(shape: float) -> float:
    """Return the x whose quantile is 0."""
    return (1 / (9 * shape) - 1) * 3 * math.sqrt(shape)


@lru_cache(maxsize=16)
def _cells(kappa: float) -> tuple[_Floats, _Floats, _Floats, _Floats]:
    """Return cells of g (upper ends, the last infinite) and sqrt(q) (lower ends), scale 1, and their probabilities."""
    from scipy import special  # noqa: PLC0415 - SciPy takes its time, and few need it

    shape = kappa + 0.5
    ends = _quantile(shape, np.linspace(max(-4.0, 0.99 * _lowest(shape)), 9.5, _CELLS_G))
    below, above = special.gammainc(shape, ends), special.gammaincc(shape, ends)
    inner = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))  # from the side that does not cancel
    count = round(min(_CELLS_Q, max(1.0, 800 / kappa)))  # q matters less for large kappa
    root = np.linspace(0.0, 2.5, count, endpoint=False)
    mass = np.append(np.diff(special.erf(root)), special.erfc(root[-1]))
    return np.append(ends, np.inf), np.concatenate((below[:1], inner, above[-1:])), root, mass


def _given_g_and_q(
    epsilon: float, kappa: float, theta: float, mu: tuple[float, float], g: _Floats, root: _Floats
) -> _Floats:
    """Return delta given ``g`` and ``q = root²`` (scale 1), shape (g.size, root.size)."""
    mu1, mu2 = mu
    ratio = mu1 / (theta * g)
    adjusted = epsilon - (mu1 - mu2) / theta + (kappa - 1) * np.log1p(ratio)
    shift = mu2 - theta * (ratio / (1 + ratio))[:, None] * root**2
    return _excess(np.broadcast_to(adjusted[:, None], shift.shape), shift, kappa, theta)


def _pair_bound(epsilon: float, kappa: float, theta: float, mu: tuple[float, float]) -> float:
    """Return an upper bound on delta for one pair of eigenvalues: the upper sum over g and q."""
    g, w_g, root, w_q = _cells(kappa)
    # the probabilities of the cells are differences, exact to well below 1e-9 of themselves where they matter
    return float(w_g @ _given_g_and_q(epsilon, kappa, theta, mu, g, root) @ w_q) * (1 + 1e-9) + FLOOR


def _pair(first_is_one: bool, other: float) -> tuple[float, float]:
    return (1.0, other) if first_is_one else (other, 1.0)


def _cell_bound(epsilon: float, kappa: float, theta: float, first_is_one: bool, low: float, high: float) -> float:
    """Return an upper bound on delta on a cell of an edge by (iii): from its end at the larger mu2 or smaller mu1."""
    mu = _pair(first_is_one, high if first_is_one else low)
    return _pair_bound(epsilon - (high - low) / theta, kappa, theta, mu)


def replace_one_delta(epsilon: float, kappa: float, theta: float, enough: float = 0.0) -> float:
    """Return a certified upper bound on delta at epsilon under replace-one, for two columns or more."""
    points = {mu: _pair_bound(epsilon, kappa, theta, mu) for mu in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0))}
    target = max(enough, 1.01 * max(points.values()))
    cells: list[tuple[float, bool, float, float]] = []  # a heap, the worst first

    def add(first_is_one: bool, low: float, high: float) -> None:
        bound = points[_pair(first_is_one, low)] + points[_pair(first_is_one, high)]
        if bound > target:
            bound = min(bound, _cell_bound(epsilon, kappa, theta, first_is_one, low, high))
        heapq.heappush(cells, (-bound, first_is_one, low, high))

    for first_is_one in (True, False):
        add(first_is_one, 0.0, 1.0)
    while True:
        worst, first_is_one, low, high = heapq.heappop(cells)
        if -worst <= target or high - low <= _NARROWEST:
            return -worst
        middle = (low + high) / 2
        mu = _pair(first_is_one, middle)
        points[mu] = _pair_bound(epsilon, kappa, theta, mu)
        add(first_is_one, low, middle)
        add(first_is_one, middle, high)


def least_theta(epsilon: float, delta: float, kappa: float, neighbours: Neighbours) -> float:
    """Return a theta that keeps delta, as larger ones do, from above; the smallest one under add-remove."""
    if neighbours is Neighbours.ADD_REMOVE:
        return _upper_root(lambda theta: add_remove_delta(epsilon, kappa, theta) <= delta, 1.0, 2.0, 1e-12)
    start = least_theta(epsilon, delta, kappa, Neighbours.ADD_REMOVE)  # one of the replacements is a row for none
    theta = _upper_root(lambda theta: _pair_bound(epsilon, kappa, theta, (1.0, 1.0)) <= delta, start, 1.25, 1e-3)
    theta *= 1.002  # room for the cells next to the worst pair
    while replace_one_delta(epsilon, kappa, theta, enough=delta) > delta:
        theta *= 1.002
    return theta


def _upper_root(private: Callable[[float], bool], start: float, factor: float, precision: float) -> float:
    """Return the smallest private number, from above, up to a relative precision."""
    high = start
    while not private(high):
        high *= factor
    low = high / factor
    while private(low):
        low, high = low / factor, low
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    return high
