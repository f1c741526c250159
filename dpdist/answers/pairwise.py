"""Moments of a table with gaps, from the rows that have both values: free post-processing.

A missing cell of a column with ``missing = "pairwise"`` counts as the centre c of its column, and a column of zeros and
weights indicates it. With x about c, 0 where it is missing, and q = 1 where it is, a release has the sums of x_a x_b,
x_a q_b, q_a q_b, and with the mean also of x_a and q_a. For a pair of columns, of the N rows that have both values:

    N_ab = n - q_a - q_b + q_ab    (n - q_a on the diagonal),    S_ab = sum x_a - sum x_a q_b,

    covariance_ab = (sum x_a x_b) / N_ab - S_ab S_ba / N_ab²,    mean_a = (sum x_a) / N_aa.

This is exact for any c, and for columns without gaps, q = 0. It is the covariance of all rows where gaps are unrelated
to the values (missing completely at random; they may be related to each other). If large values are missing more often,
it is not. The matrix is not positive semidefinite by itself. Of 10 numbers of Covertype, 100,000 rows, its relative
error is in ``benchmarks/results/gaps.md``.

**Noise**, to first order: the entries of the moment are independent, and each enters with its derivative. With
``g = 2 S_ab S_ba / N³ - XX / N²``, the variance of a covariance is

    v (1/N² + (S_ba² + S_ab²) / N^4 (1/k² + 1/w²) + g² (2/(k w)² + 1/w^4))

with v the variance of an entry beside the diagonal, k the constant and w the weight of an indicator; terms of an
indicator that is not there are 0, and on the diagonal its variance is that of a diagonal entry. A private n adds that
of the last entry. *Other answers* are given the matrix ``n (covariance + mean mean')`` with noise larger by the largest
ratio of these deviations to those without gaps, so that their intervals are too wide rather than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import entry_variances
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.release.artefact import Release
from dpdist.core.text import listed

Matrix = npt.NDArray[np.float64]
Columns = Sequence[int] | npt.NDArray[np.int64]
_CLEAR = 4.0
"""Least number of rows with both values, in standard deviations of its noise."""


@dataclass(frozen=True)
class Pairwise:
    """Moments of the pairs of columns of a release, in units of the bounded rows."""

    covariance: Matrix  # (d, d)
    mean: Matrix  # (d,): of the rows that have the value
    deviations: Matrix  # (d, d): of the noise in the covariance
    rows: Matrix  # (d, d): N


def pairwise(release: Release, columns: Columns | None = None) -> Pairwise | None:
    """Return the moments of some columns, None: all, from the rows that have both values; None without gaps."""
    indicators = {} if release.schema is None or release.subspace is not None else release.schema.pairwise
    places = {name: place for place, name in enumerate(release.names)}
    chosen = range(len(release.names)) if columns is None else columns
    if not any(release.names[place] in indicators for place in chosen):
        return None
    total, n = release.row_sum, release.row_count
    if total is None or n is None or not release.in_memory:
        raise UsageError(
            f"Covariances of a table with gaps need the mean: release with {parameter('centre', 'private')}, with a "
            "mechanism that can release it, and not too wide for memory."
        )
    if release.noise.variance_diagonal is None or release.noise.variance_off_diagonal is None:
        raise UsageError(f"The noise of {release.mechanism} has no known variance. Use gaussian or two-sided-wishart.")
    moment = release.second_moment
    moment[np.diag_indices_from(moment)] -= release.noise.mean_diagonal * release.bound.unit**2
    beside = np.array([places.get(indicators.get(release.names[place], ""), -1) for place in chosen])
    return _of(release, moment, np.array(chosen), beside, n)


def _of(
    release: Release, moment: Matrix, columns: npt.NDArray[np.int64], beside: npt.NDArray[np.int64], n: float
) -> Pairwise:
    total, constant = release.row_sum, release.bound.constant * release.bound.unit
    described = () if release.schema is None else release.schema.columns
    weights = {column.value_name: float(column.weight or 1) for column in described if column.missing == "pairwise"}
    has = beside >= 0
    weight = np.array([weights.get(release.names[place], 1.0) for place in columns])
    inverse = np.where(has, 1 / weight, 0.0)  # 0 where no indicator adds noise
    # the inputs: XX, sums, q, x_a q_b and q_a q_b
    products, sums = moment[np.ix_(columns, columns)], (total if total is not None else np.zeros(0))[columns]
    gaps = np.where(has, (total if total is not None else np.zeros(0))[beside], 0.0) * inverse
    mixed = np.where(has[None], moment[np.ix_(columns, beside)], 0.0) * inverse[None]
    np.fill_diagonal(mixed, 0.0)  # exactly: the value is the centre where it is missing
    both = np.where(np.outer(has, has), moment[np.ix_(beside, beside)], 0.0) * np.outer(inverse, inverse)
    rows = n - gaps[:, None] - gaps[None] + both
    np.fill_diagonal(rows, n - gaps)
    # the variances of the inputs
    on, off = (variance * n**2 for variance in entry_variances(release))
    of_n = 0.0 if release.exact_count is not None else on / constant**4
    single = (inverse / constant) ** 2
    pairs = single[:, None] + single[None] + np.outer(inverse, inverse) ** 2
    np.fill_diagonal(pairs, single)
    _require_rows(release, columns[has], rows[has], np.sqrt(off * pairs + of_n)[has])
    left = sums[:, None] - mixed  # S_ab, and its transpose S_ba
    covariance = products / rows - left * left.T / rows**2
    slope = 2 * left * left.T / rows**3 - products / rows**2
    crossed = left.T**2 / rows**4 * (1 / constant**2 + inverse[None] ** 2)
    variance = off * (1 / rows**2 + crossed + crossed.T + slope**2 * pairs) + of_n * slope**2
    place = np.diag_indices_from(variance)
    own, square = rows[place], np.square(sums)
    on_diagonal = on / own**2 + off * (4 * square / own**4 / constant**2 + slope[place] ** 2 * single)
    variance[place] = on_diagonal + of_n * slope[place] ** 2
    covariance[place] += off / constant**2 / own**2  # the square of a noisy sum is too large
    return Pairwise(covariance, sums / own, np.sqrt(variance), rows)


def indicators(release: Release) -> list[int]:
    """Return the columns that are about another one: those that count gaps, and bins of numbers."""
    columns = () if release.schema is None else release.schema.columns
    names = set() if release.schema is None else set(release.schema.pairwise.values())
    names |= {name for column in columns if column.source is not column for name in column.features}
    return [place for place, name in enumerate(release.names) if name in names]


def _require_rows(release: Release, columns: npt.NDArray[np.int64], rows: Matrix, deviations: Matrix) -> None:
    few = np.flatnonzero((rows < _CLEAR * deviations).any(axis=1) | (rows < 1).any(axis=1))
    if few.size:
        names = listed(release.names[columns[place]] for place in few)
        raise BelowNoiseError(
            f"Too few rows have both values of some pairs of these columns to count them in this noise: {names}. Leave "
            "columns with many gaps out, or use more rows or a larger epsilon."
        )


def completed(release: Release, columns: Columns | None = None) -> Release:
    """Return a release as of complete rows, with larger noise, for answers about some columns; itself without gaps."""
    found, n = pairwise(release, columns), release.row_count
    if found is None or n is None:
        return release
    chosen = np.arange(len(release.names)) if columns is None else np.array(columns)
    bound, noise, step = release.bound, release.noise, release.bound.unit**2
    on, off = map(math.sqrt, entry_variances(release))
    usual = np.full(found.deviations.shape, off)
    np.fill_diagonal(usual, on)
    ratio = max(1.0, float((found.deviations / usual).max()), float((n / np.diagonal(found.rows)).max()))
    larger = noise.weighted(ratio)
    moment = n * (found.covariance + np.outer(found.mean, found.mean))
    moment[np.diag_indices_from(moment)] += larger.mean_diagonal * step + release.rounding_diagonal
    # an answer about the mean subtracts the variance of its noise, as if it were in the moment
    moment[np.diag_indices_from(moment)] -= ratio**2 * _of_mean(release, n)
    lattice = release.lattice.copy()
    lattice[np.ix_(chosen, chosen)] = np.rint(moment / step).astype(np.int64)
    sums = np.rint(n * found.mean / release.row_sum_step).astype(np.int64)
    lattice[chosen, bound.columns] = lattice[bound.columns, chosen] = sums
    if release.exact_count is None:  # the estimate of n has no larger noise, but its mean is that of the noise
        lattice[-1, -1] += round(larger.mean_diagonal - noise.mean_diagonal)
    return replace(release, answer=lattice, noise=larger)


def _of_mean(release: Release, n: float) -> float:
    """Return n times the variance of an entry of the mean, in squared units of the bounded rows."""
    variance = float(release.noise.variance_off_diagonal or 0)
    return n * variance * (release.bound.unit / release.bound.constant / n) ** 2
