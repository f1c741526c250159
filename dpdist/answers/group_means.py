"""Means of a number by category, from a release: post-processing.

From the coordinates of :mod:`dpdist.answers.variables`, the sums of a number over the rows of each category are

    S = t/k 1 + U X,    var S_g = v_t/k² + v_X (1 - 1/k),    cov(S_g, S_h) = v_t/k² - v_X/k.

Where cells of the number are missing and counted (``missing = "pairwise"``), the number of rows with a value is N less
the count of gaps by category, which is a sum of the same kind. A mean m_g = S_g / N_g is a ratio with noise in both,
S and N are uncorrelated, and the interval is that of Fieller (:mod:`dpdist.answers.ratios`): of the mean of these rows,
as they were clipped. A group whose count is within the noise has no mean. The difference of two means has the variance

    sum over g and h of (var S + m² var N)/N² - 2 (cov S + m_g m_h cov N)/(N_g N_h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.answers.block import NORMAL
from dpdist.answers.categories import Categorical, Matrix
from dpdist.answers.crosstab import categorical_of
from dpdist.answers.ratios import Ratios, ratios
from dpdist.answers.variables import Numeric, Sums, Variables
from dpdist.core.errors import UsageError


@dataclass(frozen=True)
class GroupMeans:
    """The mean of a number in each category of a variable, in units of the source."""

    variable: Categorical
    number: Numeric
    counts: Matrix  # (k,) rows with a value
    count_deviation: float
    means: Ratios  # (k,)
    differences: Matrix  # (k, k): of the mean in each row less that in each column; NaN where one is unknown
    deviations: Matrix  # (k, k): of the noise in the differences

    def difference(self, i: int, j: int) -> tuple[float, float, float]:
        """Return the difference of two means with the ends of its interval, none beyond what the range allows."""
        value, reach = float(self.differences[i, j]), NORMAL * float(self.deviations[i, j])
        most = self.number.limits[1] - self.number.limits[0]
        value, low, high = np.clip([value, value - reach, value + reach], -most, most).tolist()
        return value, low, high


def group_means(held: Variables, number: str, by: str) -> GroupMeans:
    """Return the means of a number by the categories of a variable."""
    variable, numeric = categorical_of(held, by), numeric_of(held, number)
    sums, counts = held.sums(variable.name, numeric.place), held.counts(variable.name)
    if numeric.indicator is not None:
        gaps = held.sums(variable.name, numeric.indicator)
        w = numeric.weight
        counts = Sums(
            counts.values - gaps.values / w, counts.variance + gaps.variance / w**2, counts.shared + gaps.shared / w**2
        )
    means = ratios(sums.values, counts.values, sums.variance, counts.variance)
    m, size = means.estimates, counts.values
    own = (sums.variance + m**2 * counts.variance) / size**2
    both = (sums.shared + np.outer(m, m) * counts.shared) / np.outer(size, size)
    deviations = np.sqrt(np.maximum(own[:, None] + own[None] - 2 * both, 0.0))
    np.fill_diagonal(deviations, 0.0)
    unit = abs(numeric.unit)
    return GroupMeans(
        variable, numeric, size, float(np.sqrt(counts.variance)),
        means.mapped(numeric.shift, numeric.unit).clipped(*numeric.limits),
        numeric.unit * (m[:, None] - m[None]), unit * deviations,
    )  # fmt: skip


def numeric_of(held: Variables, name: str) -> Numeric:
    """Return a number of a release by name."""
    name = held.named(name)
    if name not in held.numeric:
        raise UsageError(f"{name!r} has categories: a mean is of a number.")
    return held.numeric[name]
