"""Tests and strength of the association of two variables of a release, with the noise in the law: post-processing.

**Test of two categories.** Of n independent rows whose variables are independent, D = R - r_i r_j'/n has, in the
coordinates of :mod:`dpdist.answers.variables`, the mean 0 and to first order the covariance

    V = n C_i x C_j + v_R I + v_j (aa') x I + v_i I x (bb') + v_n (aa') x (bb') - (v_i v_j/n²) I,

a = r_i/n, b = r_j/n, with the covariances C_i and C_j of the coordinates of one row. D'V^-1 D has the chi-square
distribution with (k - 1)(l - 1) degrees of freedom, also if categories are empty. A test that ignores the noise
rejects nearly every true hypothesis.

**Test of a number by category** (one-way analysis of variance). With D = X - r m, m = t/n, and if all categories have
the same mean and the variance sd² = Q/n - m², Q the sum of squares,

    V = n sd² C + v_X I + m² v_r I + v_t aa' + v_n m² aa' - (v_r v_t/n²) I.

**Test of two numbers.** The covariance of independent numbers has the variance ``sd_a² sd_b² / n``, and that of its
noise is added.

**Strength.** Cramér's V is the root of phi²/(min(k, l) - 1), where n phi² is Pearson's statistic of the table; eta² is
the share of a number's variance between categories; r is the correlation. The squared deviations of cells or group sums
from those of independence are divided by their expected counts, and the part of the noise is subtracted: with W the
covariance of its errors d and w the inverse expected counts, ``sum w d² - tr(wW)`` is unbiased, and has the variance
``2 tr(wWwW) + 4 d'wWw d``, about a + b q for the exact value q; the interval has the values q that explain the
estimate, and for eta the noise of the whole variance is part of it (Fieller's interval of a ratio). It would drown in
the noise of rare categories, so those are merged with the next rarer ones until each has ten times the noise of a cell:
the strength in that table is measured, as small categories are merged before Pearson's test. A variable with one
category left says nothing.

Measured (a9a, cardiotocography, Covertype at epsilon 1, a9a at .1, all pairs of columns): the intervals hold the V of
the merged table in .93 to .97 of cases; V is off by .016 (root mean square; Covertype .005, cardiotocography .09) from
that of the merged table, and by .027 (.024, .16) from that of all categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm

from dpdist.answers.block import NORMAL
from dpdist.answers.categories import Categorical
from dpdist.answers.crosstab import category_shares, covariance_of_shares
from dpdist.answers.variables import Numeric, Variables

Matrix = npt.NDArray[np.float64]
_CLEAR = 10.0
"""Least count of a category whose strength is measured, in standard deviations of a cell."""


@dataclass(frozen=True)
class Test:
    """A test of the hypothesis that two variables are not associated."""

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True)
class Strength:
    """How strongly two variables are associated, from 0 to 1."""

    measure: str  # Cramér's V, eta or r
    value: float
    interval: tuple[float, float]  # 95 %, with respect to the noise
    merged: tuple[tuple[str, tuple[str, ...]], ...] = ()  # variables, with those of their categories that were merged


def independence(held: Variables, a: Categorical, b: Categorical) -> Test:
    """Test whether two categorical variables are independent."""
    n = held.rows
    of_a, of_b = (covariance_of_shares(category_shares(held, v.name), v.basis) for v in (a, b))
    product = held.margin(a.name).variance * held.margin(b.name).variance / n**2
    noise = _pair_noise(held, a, b)
    variance = n * np.kron(of_a, of_b) + noise - product * np.eye(len(noise))
    return _chi_square(_residual(held, a, b).ravel(), variance)


def same_means(held: Variables, number: Numeric, by: Categorical) -> Test:
    """Test whether the means of a number are the same in all categories of a variable."""
    spread = _spread(held, number)
    residual, noise = _group_residual(held, number, by, spread.mean)
    of_one = covariance_of_shares(category_shares(held, by.name), by.basis)
    product = held.margin(by.name).variance * held.total(number.place).variance / held.rows**2
    return _chi_square(residual, held.rows * spread.variance * of_one + noise - product * np.eye(len(noise)))


def no_correlation(held: Variables, a: Numeric, b: Numeric) -> Test:
    """Test whether two numbers are not correlated."""
    n, (first, second), product = held.rows, (_spread(held, v) for v in (a, b)), held.product(a.place, b.place)
    both = first.mean * second.mean
    noise = product.variance + both**2 * held.precision.rows
    noise += second.mean**2 * held.total(a.place).variance + first.mean**2 * held.total(b.place).variance
    z = (float(product.values) / n - both) / math.sqrt(noise / n**2 + first.variance * second.variance / n)
    return Test(z**2, 1, float(2 * norm.sf(abs(z))))


def cramers_v(held: Variables, a: Categorical, b: Categorical) -> Strength | None:
    """Return Cramér's V of two variables, without the noise; None if a variable is below it."""
    cell = math.sqrt(held.pair(a.name, b.name).variance)
    left, right = (_merging(_counts(held, v), _CLEAR * cell) for v in (a, b))
    smaller = min(left.shape[1], right.shape[1])
    if smaller < 2:
        return None
    expected = np.outer(left.T @ _counts(held, a), right.T @ _counts(held, b)) / held.rows
    onto = np.kron(left.T @ a.basis, right.T @ b.basis)
    share, fixed, growing = _without_noise(
        onto @ _residual(held, a, b).ravel(), onto @ _pair_noise(held, a, b) @ onto.T, 1 / expected.ravel()
    )
    merged = (*_merged(a, left), *_merged(b, right))
    return _rooted("Cramér's V", share, held.rows * (smaller - 1), (fixed, growing, 0.0), merged)


def eta(held: Variables, number: Numeric, by: Categorical) -> Strength | None:
    """Return the root of the share of a number's variance between categories; None if one is below the noise."""
    spread = _spread(held, number)
    residual, noise = _group_residual(held, number, by, spread.mean)
    if not spread.seen(held.rows):
        return None
    of_sum = held.by_category(by.name, number.place).variance / spread.variance
    merging = _merging(_counts(held, by), _CLEAR * math.sqrt(held.margin(by.name).variance + of_sum))
    if merging.shape[1] < 2:
        return None
    onto = merging.T @ by.basis
    share, fixed, growing = _without_noise(onto @ residual, onto @ noise @ onto.T, 1 / (merging.T @ _counts(held, by)))
    whole = held.rows * spread.variance
    return _rooted("eta", share, whole, (fixed, growing, spread.noise), _merged(by, merging))


def correlation_of(held: Variables, a: Numeric, b: Numeric) -> Strength | None:
    """Return the correlation of two numbers; None if one varies less than the noise."""
    n, (first, second), product = held.rows, (_spread(held, v) for v in (a, b)), held.product(a.place, b.place)
    if not (first.seen(n) and second.seen(n)):
        return None
    scale = math.sqrt(first.variance * second.variance)
    r = (float(product.values) / n - first.mean * second.mean) / scale
    # the derivatives of n r by the sums, whose noises are independent
    by_squares = [-r / (2 * each.variance) for each in (first, second)]
    by_totals = [
        r * first.mean / first.variance - second.mean / scale,
        r * second.mean / second.variance - first.mean / scale,
    ]
    by_rows = first.mean * second.mean / scale - r / 2 * (
        first.mean**2 / first.variance + second.mean**2 / second.variance
    )
    variance = product.variance / scale**2 + by_rows**2 * held.precision.rows
    for v, by_square, by_total in zip((a, b), by_squares, by_totals, strict=True):
        variance += by_square**2 * held.square(v.place).variance + by_total**2 * held.total(v.place).variance
    deviation = math.sqrt(variance) / n
    ends = (max(-1.0, r - NORMAL * deviation), min(1.0, r + NORMAL * deviation))
    return Strength("r", max(-1.0, min(1.0, r)), ends)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(f"{value:.12g}") for value in adjusted]


def _chi_square(residual: Matrix, variance: Matrix) -> Test:
    statistic = float(residual @ np.linalg.solve(variance, residual))
    return Test(statistic, residual.size, float(chi2.sf(statistic, residual.size)))


def _counts(held: Variables, variable: Categorical) -> Matrix:
    """Return the counts of the categories of a variable, not negative."""
    return held.rows * category_shares(held, variable.name)


def _residual(held: Variables, a: Categorical, b: Categorical) -> Matrix:
    """Return D, (k - 1, l - 1)."""
    r, q = held.margin(a.name).values, held.margin(b.name).values
    residual: Matrix = held.pair(a.name, b.name).values - np.outer(r, q) / held.rows
    return residual


def _pair_noise(held: Variables, a: Categorical, b: Categorical) -> Matrix:
    """Return the covariance of the noise in D, in the order of its rows, to first order."""
    r, q, both = held.margin(a.name), held.margin(b.name), held.pair(a.name, b.name)
    outer, inner = (np.outer(each.values, each.values) / held.rows**2 for each in (r, q))
    one, other = np.eye(a.size - 1), np.eye(b.size - 1)
    noise = q.variance * np.kron(outer, other) + r.variance * np.kron(one, inner)
    noise += held.precision.rows * np.kron(outer, inner)
    return noise + both.variance * np.eye(len(noise))


def _group_residual(held: Variables, number: Numeric, by: Categorical, mean: float) -> tuple[Matrix, Matrix]:
    """Return D of a number by category, and the covariance of its noise."""
    n, r, t, x = held.rows, held.margin(by.name), held.total(number.place), held.by_category(by.name, number.place)
    noise = (x.variance + mean**2 * r.variance) * np.eye(by.size - 1)
    noise += (t.variance + held.precision.rows * mean**2) * np.outer(r.values, r.values) / n**2
    return x.values - mean * r.values, noise


@dataclass(frozen=True)
class _Spread:
    """Mean and variance of a number, and the variance of the noise of n times the latter, to first order."""

    mean: float
    variance: float
    noise: float

    def seen(self, rows: float) -> bool:
        """Whether the number varies by more than the noise."""
        return rows * self.variance > _CLEAR / 2 * math.sqrt(self.noise)


def _spread(held: Variables, number: Numeric) -> _Spread:
    total, square = held.total(number.place), held.square(number.place)
    mean = float(total.values[0]) / held.rows
    noise = square.variance + 4 * mean**2 * total.variance + mean**4 * held.precision.rows
    return _Spread(mean, max(float(square.values) / held.rows - mean**2, 0.0), noise)


def _merging(counts: Matrix, least: float) -> Matrix:
    """Return the map, (k, m) of 0 and 1, that merges the rarest categories until each has a count."""
    order, k = np.argsort(counts, kind="stable"), counts.size
    few = int((counts <= least).sum())
    while 0 < few < k and counts[order[:few]].sum() <= least:
        few += 1
    merging = np.zeros((k, k - max(few - 1, 0)))
    merging[order[:few], 0] = 1
    for place, category in enumerate(order[few:]):
        merging[category, place + (few > 0)] = 1
    return merging


def _merged(variable: Categorical, merging: Matrix) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return a variable with those of its categories that share a group; nothing if all have their own."""
    shared = merging @ merging.sum(axis=0) > 1
    if not shared.any():
        return ()
    names = tuple(name for name, together in zip(variable.categories, shared, strict=True) if together)
    return ((variable.name, names),)


def _without_noise(residual: Matrix, noise: Matrix, weights: Matrix) -> tuple[float, float, float]:
    """Return an unbiased weighted sum of squares q, and a, b: the variance of its noise is about a + b q."""
    weighted = noise * weights
    square, trace = float((weighted * weighted.T).sum()), float(np.trace(weighted))
    found = float(weights @ residual**2) - trace
    growing = 4 * square / trace if trace else 0.0
    if found > 2 * math.sqrt(2 * square):  # clear enough to know along which directions it is
        growing = 4 * max(float((weights * residual) @ noise @ (weights * residual)) - square, 0.0) / found
    return found, 2 * square, growing


def _rooted(
    measure: str, found: float, whole: float, noise: tuple[float, float, float],
    merged: tuple[tuple[str, tuple[str, ...]], ...],
) -> Strength:  # fmt: skip
    """Return the root of a ratio with an interval: the ratios q for which the noise explains ``found - q whole``.

    Its variance is a + b q whole + c q², with c that of ``whole`` (Fieller's interval).
    """
    z, (fixed, growing, of_whole) = NORMAL**2, noise
    leading = whole**2 - z * of_whole
    middle = whole * (found + z * growing / 2) / leading
    reach = math.sqrt(max(middle**2 - (found**2 - z * fixed) / leading, 0.0))
    low, value, high = (math.sqrt(min(1.0, max(0.0, each))) for each in (middle - reach, found / whole, middle + reach))
    return Strength(measure, value, (low, high), merged)
