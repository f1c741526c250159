"""The variables of a release with a schema, in coordinates that all tables, means by group and tests start from.

Let U_i be an orthonormal basis of the complement of the vector of ones in R^k_i, for a variable of k_i categories with
the weight w_i in the bounded rows. The released moment of the rows ``[w_i (e - 1/k_i) ..., x_q ..., c]``, with the
constant c, is a change of coordinates of

    n,    r_i = U_i' N_i,    R_ij = U_i' T_ij U_j,    t_q = sum x_q,    X_iq = U_i' (sums of x_q by category),

with the counts N_i of the categories and the table T_ij. With noise of variance s² on the diagonal and s²/2 beside it,
the estimates by generalised least squares are

    n   = [c² M_cc + sum_i w_i² tr(P_i M_ii) / k_i] / D,    D = c^4 + sum_i w_i^4 (k_i - 1) / k_i²,    variance s²/D,
    r_i = [2 c w_i U_i'M_ic + w_i² U_i' diag(P_i M_ii P_i)] / D_i,    D_i = 2 c² w_i² + w_i^4 (1 - 2/k_i),    s²/D_i,

``R_ij = U_i'M_ij U_j / (w_i w_j)`` with the variance ``s² / (2 w_i² w_j²)``, ``t_q = M_qc / c`` and ``X_iq = U_i'M_iq /
w_i`` with ``s² / (2 c²)`` and ``s² / (2 w_i²)``; P_i = U_i U_i'. They are unbiased, and uncorrelated with each other
(normal noise: independent), as each is a function of other entries, or of orthogonal functionals of the same ones. A
public n has no variance. A boolean is one column, ``w (N_1 - N_0) / sqrt(2)``: the coordinate of two categories.
Categories about zero, by a release without a centre, have ``diag(M_ii)`` in place of ``diag(P M_ii P)``, and 1 in place
of 1 - 2/k.

Noise that is not invariant under rotations has the larger of its variances here, s² = max(on, 2 off), so that no
interval is too narrow.

*Rows that are dropped* count as the centre of the others, zero here, but in the constant: n is then that of complete
rows, by the traces alone. *Variables that are not complete* are left out, and named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpdist.answers.block import entry_noise, moment_of, require_noise_distribution, source_units
from dpdist.answers.categories import Categorical, Matrix, Precision, category_of, centre_cure, rows_information
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.core.rows.columns import Column
from dpdist.core.text import did_you_mean, listed

_MOST_COLUMNS = 8192


@dataclass(frozen=True)
class Numeric:
    """A variable whose values are numbers."""

    name: str  # of its numbers in the rows: with its transform, if it has one
    place: int
    shift: float  # shift + unit * x is in units of the source
    unit: float
    indicator: int | None = None  # column that is 1 where it is missing; the number is then the centre, x = 0
    weight: float = 1.0  # of the indicator
    filled: bool = False  # missing cells count as the centre, and are not counted
    column: Column | None = None  # of the schema
    limits: tuple[float, float] = (-math.inf, math.inf)  # of clipped values, in units of the source


@dataclass(frozen=True)
class Estimate:
    """Coordinates of one kind, with the variance of each."""

    values: Matrix
    variance: float


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of each category, with the variance of one and the covariance of two."""

    values: Matrix  # (k,)
    variance: float
    shared: float


@dataclass(frozen=True)
class Variables:
    """The variables of a release, and the estimates of their coordinates."""

    release: Release
    categorical: dict[str, Categorical]
    numeric: dict[str, Numeric]
    left_out: dict[str, str]  # the others, with the reason of each
    rows: float  # n, or the number of complete rows
    precision: Precision
    public: bool  # whether n is public
    moment: Matrix = field(repr=False)  # (d, d), or (d + 1, d + 1) with the constant

    def margin(self, name: str) -> Estimate:
        """Return r of a variable, (k - 1,)."""
        variable, c = self.categorical[name], self.precision.constant
        k, w, basis = variable.size, variable.weight, variable.basis
        total = 2 * c * w * (variable.columns.T @ self._with_constant(variable.places)) if c else np.zeros(k - 1)
        if len(variable.places) > 1:
            block = self.moment[np.ix_(variable.places, variable.places)]
            if variable.centred:
                block = basis @ (basis.T @ block @ basis) @ basis.T
            total = total + w**2 * (basis.T @ np.diagonal(block))
        return Estimate(total / self.precision.information(variable), self.precision.of_margin(variable))

    def pair(self, first: str, second: str) -> Estimate:
        """Return R of two variables, (k - 1, l - 1)."""
        a, b = self.categorical[first], self.categorical[second]
        block = self.moment[np.ix_(a.places, b.places)]
        values: Matrix = a.columns.T @ block @ b.columns / (a.weight * b.weight)
        return Estimate(values, self.precision.of_pair(a, b))

    def total(self, place: int) -> Estimate:
        """Return the sum of a column of numbers, in units of the bounded rows."""
        if not self.precision.constant:
            raise UsageError(f"This release holds no sums of numbers. {centre_cure()}")
        return Estimate(self._with_constant([place]) / self.precision.constant, self.precision.of_total)

    def by_category(self, name: str, place: int) -> Estimate:
        """Return X of a variable and a column of numbers, (k - 1,)."""
        variable = self.categorical[name]
        values: Matrix = variable.columns.T @ self.moment[list(variable.places), place] / variable.weight
        return Estimate(values, self.precision.of_category(variable))

    def counts(self, name: str) -> Sums:
        """Return N of a variable, (k,)."""
        return self._by_category(name, self.rows, self.precision.rows, self.margin(name))

    def sums(self, name: str, place: int) -> Sums:
        """Return the sums of a column of numbers over the rows of each category, (k,)."""
        total = self.total(place)
        return self._by_category(name, float(total.values[0]), total.variance, self.by_category(name, place))

    def _by_category(self, name: str, total: float, of_total: float, margin: Estimate) -> Sums:
        k, shared = self.categorical[name].size, of_total / self.categorical[name].size ** 2
        values = total / k + self.categorical[name].basis @ margin.values
        return Sums(values, shared + margin.variance * (1 - 1 / k), shared - margin.variance / k)

    def number_and_category(self, first: str, second: str) -> tuple[str, str]:
        """Return the names of a number and of a variable with categories, in this order."""
        return (first, second) if first in self.numeric else (second, first)

    def square(self, place: int) -> Estimate:
        """Return the sum of squares of a column of numbers."""
        return Estimate(self.moment[place, place], self.precision.noise)

    def product(self, first: int, second: int) -> Estimate:
        """Return the sum of products of two columns of numbers."""
        return Estimate(self.moment[first, second], self.precision.noise / 2)

    def _with_constant(self, places: Sequence[int]) -> Matrix:
        return self.moment[list(places), -1]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all variables that answers can be about."""
        return (*self.categorical, *self.numeric)

    def of_one_column(self, first: str, second: str) -> bool:
        """Whether two variables are read from one column of the source: a number and its bins."""
        schema = self.release.schema
        sources = {
            name: column.source.name
            for column in (() if schema is None else schema.columns)
            for name in (column.name, column.value_name)
        }
        return sources.get(first, first) == sources.get(second, second)

    def explaining(self, target: str) -> list[str]:
        """Return the variables that a model explains a target by, unless others are named: no bins of numbers."""
        schema = self.release.schema
        bins = {c.name for c in (() if schema is None else schema.columns) if c.source is not c}
        return [name for name in self.names if name not in bins and not self.of_one_column(name, target)]

    def named(self, name: str) -> str:
        """Return the name of a variable; refuse an unknown one, or one that is left out, with the reason."""
        if name in self.categorical or name in self.numeric:
            return name
        schema = self.release.schema
        for column in () if schema is None else schema.columns:
            if column.name == name and column.value_name in self.numeric:
                return column.value_name  # the numbers of a column with a transform
        if name in self.left_out:
            raise UsageError(f"No table or mean of {name!r} is held: {self.left_out[name]}.")
        columns = [column.name for column in (() if schema is None else schema.columns) if column.stored]
        question = did_you_mean(name, [*self.names, *columns])
        raise UsageError(
            f"There is no variable {name!r}.{question} There are: {listed([*self.names, *self.left_out])}."
        )


def variables(release: Release) -> Variables:
    """Return the variables of a release, numbers without a schema; refuse noise of no known distribution."""
    require_noise_distribution(release.mechanism, release.noise if release.subspace is None else None)
    release.require_moment()
    d, bound = release.bound.columns, release.bound
    if d > _MOST_COLUMNS:
        raise DataError(f"Tables are of at most {_MOST_COLUMNS} columns, not {d}.")
    c, unit = bound.constant * bound.unit, bound.unit**2
    exact = release.exact_count is not None
    entries = entry_noise(release, None)
    noise = max(entries.on, 2 * entries.off)
    moment = moment_of(release, np.arange(d))
    moment[np.diag_indices(d)] -= release.noise.mean_diagonal * unit
    if c and release.row_sum is not None and release.row_count is not None:
        sums = c * release.row_sum
        corner = np.array([[c**2 * release.row_count]])
        moment = np.block([[moment, sums[:, None]], [sums[None], corner]])
    categorical, numeric, left_out = _described(release)
    rows, rows_variance = _rows(release, categorical.values(), moment, c, noise)
    if rows <= 0:
        raise BelowNoiseError("The estimate of the number of rows is not positive: the data are below the noise.")
    public = exact and not (release.schema is not None and release.schema.dropping)
    return Variables(release, categorical, numeric, left_out, rows, Precision(noise, c, rows_variance), public, moment)


def _rows(
    release: Release, categorical: Iterable[Categorical], moment: Matrix, c: float, noise: float
) -> tuple[float, float]:
    """Return n with its variance: public, or by all traces and the corner; of complete rows by the traces alone."""
    dropping = release.schema is not None and bool(release.schema.dropping)
    if release.exact_count is not None and not dropping:
        return float(release.exact_count), 0.0
    categorical, c = list(categorical), 0.0 if dropping else c
    total = c**2 * float(moment[-1, -1]) if c else 0.0
    for variable in categorical:
        k, w, places = variable.size, variable.weight, variable.places
        block = variable.columns.T @ moment[np.ix_(places, places)] @ variable.columns
        total += w**2 * float(np.trace(block)) / k
    information = rows_information(categorical, c)
    if not information:
        raise UsageError(f"This release holds no number of rows. {centre_cure()}")
    return total / information, noise / information


def _described(release: Release) -> tuple[dict[str, Categorical], dict[str, Numeric], dict[str, str]]:
    """Return the variables of the schema of a release by name: categories, numbers, and reasons to leave one out."""
    categorical, numeric, left_out = dict[str, Categorical](), dict[str, Numeric](), dict[str, str]()
    index = {name: place for place, name in enumerate(release.names)}
    unseen = {*release.blindly_scaled[0], *release.blindly_scaled[1]}
    shifts, units = source_units(release)
    if release.schema is None:
        names = [name for name in release.names if name not in unseen]
        numeric = {n: Numeric(n, index[n], float(shifts[index[n]]), float(units[index[n]])) for n in names}
        return {}, numeric, dict.fromkeys(sorted(unseen), "the private scale did not see it")
    for column in release.schema.columns:
        if not column.stored:
            continue
        places = [index.get(name) for name in column.features]
        if None in places:
            left_out[column.name] = "the rows were made without some of its columns"
        elif column.whole:
            found = category_of(release.schema, release.bound, column, [p for p in places if p is not None])
            if isinstance(found, str):
                left_out[column.name] = found
            else:
                categorical[column.name] = found
        elif column.value_name in unseen:
            left_out[column.name] = "the private scale did not see it"
        else:
            place = index[column.value_name]
            shift, (low, high, *_) = float(shifts[place]), release.schema.affine(column)
            numeric[column.value_name] = Numeric(
                column.value_name, place, shift, float(units[place]),
                index[f"{column.name}=missing"] if column.missing == "pairwise" else None,
                float(column.weight or 1), column.missing in {"centre", "fill", "indicator"}, column,
                (min(low, shift), max(high, shift)),  # clipped rows move towards the centre, which may be elsewhere
            )  # fmt: skip
    return categorical, numeric, left_out
