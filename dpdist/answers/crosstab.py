"""Counts of categories and tables of two of them, from a release: post-processing, with the exact law of the noise.

From the coordinates of :mod:`dpdist.answers.variables`, with independent errors of known variances v_n, v_i, v_j and
v_R,

    N = n/k 1 + U r,    T = n/(kl) 11' + U_i r_i 1'/l + 1 r_j'U_j'/k + U_i R U_j',

    var N_g = v_n/k² + v_i (1 - 1/k),    cov(T_gh, N_g) = v_n/(k² l) + v_i (1 - 1/k)/l,

    var T_gh = v_n/(kl)² + v_i (1 - 1/k)/l² + v_j (1 - 1/l)/k² + v_R (1 - 1/k)(1 - 1/l).

Counts are unbiased, may be negative, and their intervals are 1.96 standard deviations to each side. A share is a ratio
with noise in both: its interval is that of Fieller (:mod:`dpdist.answers.ratios`).

**The shrunk table** is closer to the exact one where a table drowns in the noise. Of the residual D = R - r_i r_j'/n
from independence, the components in Pearson's geometry (eigenvectors of the covariances C_i and C_j of the two
variables, products g of their eigenvalues) have about the variance ``tau g`` for some tau, plus v_R. tau maximises the
likelihood, and each is multiplied by ``tau g / (tau g + v_R)``: empirical Bayes. No theorem says that it is closer for
every table, so it stands beside the unbiased one, never in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from dpdist.answers.block import NORMAL, ends
from dpdist.answers.categories import Categorical, Matrix
from dpdist.answers.ratios import Ratios, ratios
from dpdist.answers.variables import Variables
from dpdist.core.errors import UsageError


@dataclass(frozen=True)
class Counts:
    """The number of rows with each category of a variable."""

    variable: Categorical
    estimates: Matrix  # (k,), unbiased
    deviation: float  # of each
    shares: Ratios  # of all rows, (k,)

    @property
    def intervals(self) -> Matrix:
        """95 % intervals of the counts, (k, 2)."""
        return ends(self.estimates, np.full(self.estimates.shape, self.deviation), low=0.0)


@dataclass(frozen=True)
class Crosstab:
    """A table of two categorical variables."""

    rows: Categorical
    columns: Categorical
    estimates: Matrix  # (k, l), unbiased
    released: Matrix  # (k, l), the same, also where the estimates are those of the nearest moment
    deviation: float  # of each
    shrunk: Matrix  # (k, l), not negative
    of_rows: Ratios  # shares of each row, (k, l)
    of_columns: Ratios
    of_all: Ratios
    drowned: bool  # whether the association is not seen: no component of it is larger than the noise

    @property
    def intervals(self) -> Matrix:
        """95 % intervals of the cells, (k, l, 2)."""
        return ends(self.released, np.full(self.estimates.shape, self.deviation), low=0.0)

    def with_counts(self, counts: Matrix) -> Crosstab:
        """Return it with other counts, none of them negative, and their shares; intervals stay as they are."""

        def of(shares: Ratios, total: Matrix | float) -> Ratios:
            known = np.broadcast_to(np.asarray(total) > 0, counts.shape)
            return replace(shares, estimates=np.divide(counts, total, out=np.full(counts.shape, np.nan), where=known))

        return replace(
            self, estimates=counts, of_rows=of(self.of_rows, counts.sum(axis=1, keepdims=True)),
            of_columns=of(self.of_columns, counts.sum(axis=0)), of_all=of(self.of_all, float(counts.sum())),
        )  # fmt: skip

    @property
    def reach(self) -> int:
        """Rows that each cell is within of the exact one, in 95 of 100 cases."""
        return math.ceil(NORMAL * self.deviation)

    def shares(self, of: str) -> Ratios:
        """Return the shares of ``"rows"``, of ``"columns"`` or of ``"all"``."""
        return {"rows": self.of_rows, "columns": self.of_columns, "all": self.of_all}[of]


def counts(held: Variables, name: str) -> Counts:
    """Return the counts of the categories of a variable."""
    variable = categorical_of(held, name)
    own, n, of_n = held.counts(variable.name), held.rows, held.precision.rows
    shares = ratios(own.values, n, own.variance, of_n, of_n / variable.size)
    return Counts(variable, own.values, float(np.sqrt(own.variance)), shares)


def crosstab(held: Variables, rows: str, columns: str) -> Crosstab:
    """Return the table of two different variables."""
    a, b = categorical_of(held, rows), categorical_of(held, columns)
    if a.name == b.name:
        raise UsageError(f"A table is of two variables, and {a.name!r} was named twice.")
    k, m, n, of_n = a.size, b.size, held.rows, held.precision.rows
    by_row, by_column, both = held.counts(a.name), held.counts(b.name), held.pair(a.name, b.name)
    # n and its error are in both margins
    outside = by_row.values[:, None] / m + by_column.values / k - n / (k * m)
    values = outside + a.basis @ both.values @ b.basis.T
    variance = held.precision.of_cell(a, b)
    shrunk, drowned = _shrunk(held, a, b)
    return Crosstab(
        a, b, values, values, float(np.sqrt(variance)), shrunk,
        ratios(values, by_row.values[:, None], variance, by_row.variance, by_row.variance / m),
        ratios(values, by_column.values, variance, by_column.variance, by_column.variance / k),
        ratios(values, n, variance, of_n, of_n / (k * m)), drowned,
    )  # fmt: skip


def category_shares(held: Variables, name: str) -> Matrix:
    """Return the shares of the categories of a variable: not negative, with the sum 1."""
    variable = categorical_of(held, name)
    return on_simplex(1 / variable.size + variable.basis @ held.margin(name).values / held.rows)


def on_simplex(values: Matrix) -> Matrix:
    """Return the nearest vector of shares.

    >>> on_simplex(np.array([0.7, 0.5, -0.2]))
    array([0.6, 0.4, 0. ])
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, values.size + 1)
    nearest: Matrix = np.maximum(values - excess[ordered > excess][-1], 0.0)
    return nearest


def covariance_of_shares(shares: Matrix, basis: Matrix) -> Matrix:
    """Return the covariance of the coordinates of one row, (k - 1, k - 1)."""
    covariance: Matrix = basis.T @ (np.diag(shares) - np.outer(shares, shares)) @ basis
    return covariance


def _shrunk(held: Variables, a: Categorical, b: Categorical) -> tuple[Matrix, bool]:
    """Return the table by empirical Bayes, and whether all of the residual was taken for noise."""
    n, both = held.rows, held.pair(a.name, b.name)
    first, second = category_shares(held, a.name), category_shares(held, b.name)
    residual = both.values - n * np.outer(a.basis.T @ first, b.basis.T @ second)
    (x, left), (y, right) = (
        np.linalg.eigh(covariance_of_shares(shares, variable.basis)) for shares, variable in ((first, a), (second, b))
    )
    g = np.outer(np.maximum(x, 0), np.maximum(y, 0))
    components = left.T @ residual @ right

    def cost(logarithm: float) -> float:
        variance = np.exp(logarithm) * g + both.variance
        return float((np.log(variance) + components**2 / variance).sum())

    # between that of independent rows, and one larger than that of any table
    tau = float(minimize_scalar(cost, bounds=(np.log(n) - 1, 2 * np.log(n) + 1), method="bounded").x)
    kept = components * (np.exp(tau) * g / (np.exp(tau) * g + both.variance))
    table = n * np.outer(first, second) + a.basis @ left @ kept @ right.T @ b.basis.T
    return np.maximum(table, 0.0), tau < np.log(n)


def categorical_of(held: Variables, name: str) -> Categorical:
    """Return a categorical variable of a release by name."""
    name = held.named(name)
    if name not in held.categorical:
        raise UsageError(
            f"{name!r} is a number, and categories are needed here. A schema says which columns have some."
        )
    return held.categorical[name]
