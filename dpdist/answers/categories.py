"""Variables with categories, and the variance of each estimate about them, which follows from public numbers.

The formulas and their argument are in :mod:`dpdist.answers.variables` and :mod:`dpdist.answers.crosstab`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dpdist.core.naming import parameter
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema

Matrix = npt.NDArray[np.float64]
_CLOSE = 1e-9


@dataclass(frozen=True)
class Categorical:
    """A variable with a value of each row among k categories."""

    name: str
    categories: tuple[str, ...]  # k
    places: tuple[int, ...]  # its columns in the release: k, or the one of a boolean
    weight: float  # w, in units of the bounded rows
    centred: bool  # whether its columns are about 1/k
    limit: str = ""  # what the schema did to its values, as part of a sentence

    @property
    def size(self) -> int:
        """The number of categories, k."""
        return len(self.categories)

    @property
    def basis(self) -> Matrix:
        """U, (k, k - 1)."""
        return contrasts(self.size)

    @property
    def columns(self) -> Matrix:
        """The map of its columns to coordinates, (columns, k - 1)."""
        return np.ones((1, 1)) if len(self.places) == 1 else self.basis


@dataclass(frozen=True)
class Precision:
    """The variances of the noise in the estimates of a release, or of a planned one."""

    noise: float  # s²
    constant: float  # c; 0 without
    rows: float  # of n; 0 if it is public

    def of_margin(self, variable: Categorical) -> float:
        """Return the variance of each entry of r."""
        return self.noise / self.information(variable)

    def information(self, variable: Categorical) -> float:
        """Return s² over the variance of each entry of r."""
        shrunk = 1 - 2 / variable.size if variable.centred else 1.0
        return 2 * self.constant**2 * variable.weight**2 + variable.weight**4 * shrunk

    def of_pair(self, first: Categorical, second: Categorical) -> float:
        """Return the variance of each entry of R."""
        return self.noise / 2 / (first.weight * second.weight) ** 2

    @property
    def of_total(self) -> float:
        """The variance of the sum of a number."""
        return self.noise / 2 / self.constant**2

    def of_category(self, variable: Categorical) -> float:
        """Return the variance of each entry of X."""
        return self.noise / 2 / variable.weight**2

    def of_count(self, variable: Categorical) -> float:
        """Return the variance of the count of a category."""
        k = variable.size
        return self.rows / k**2 + self.of_margin(variable) * (1 - 1 / k)

    def of_sum(self, variable: Categorical) -> float:
        """Return the variance of the sum of a number over the rows of a category."""
        k = variable.size
        return self.of_total / k**2 + self.of_category(variable) * (1 - 1 / k)

    def of_cell(self, first: Categorical, second: Categorical) -> float:
        """Return the variance of a cell of a table."""
        k, m = first.size, second.size
        margins = self.of_count(first) / m**2 + self.of_count(second) / k**2 - self.rows / (k * m) ** 2
        return margins + self.of_pair(first, second) * (1 - 1 / k) * (1 - 1 / m)


def rows_information(categorical: Iterable[Categorical], constant: float) -> float:
    """Return D, s² over the variance of n."""
    return constant**4 + sum(variable.weight**4 * (variable.size - 1) / variable.size**2 for variable in categorical)


@cache
def contrasts(k: int) -> Matrix:
    """Return an orthonormal basis of the complement of the vector of ones, (k, k - 1): Helmert's.

    >>> contrasts(2).T.round(3)
    array([[-0.707,  0.707]])
    """
    basis = np.zeros((k, k - 1))
    for j in range(1, k):
        basis[:j, j - 1] = -1.0
        basis[j, j - 1] = j
        basis[:, j - 1] /= np.sqrt(j * (j + 1))
    return basis


def centre_cure() -> str:
    """Return what to do if columns are not about their public middles."""
    return (
        f"Release with {parameter('centre', 'schema')}, the default of rows with categories, by a mechanism that can "
        "release the mean."
    )


def category_of(schema: Schema, bound: RowBound, column: Column, places: Sequence[int]) -> Categorical | str:
    """Return a categorical variable, or the reason that a release of rows with this bound holds no tables of it."""
    centre, scale = bound.input_units
    if column.one_hot and len(places) == 1:
        return "it has one category"
    limit = f"with missing values of {column.name} at a public one" if column.missing == "fill" else ""
    if not column.one_hot:
        return _boolean(schema, bound, column, places, limit)
    weights = float(column.weight or 1) / scale[list(places)]
    shifts = centre[list(places)] / scale[list(places)]
    about = [bool(np.allclose(shifts, weights * share, rtol=_CLOSE, atol=0)) for share in (1 / len(places), 0.0)]
    if not np.allclose(weights, weights[0], rtol=_CLOSE) or not any(about):
        return f"its columns are about a centre of their own. {centre_cure()}"
    prefix = len(column.name) + 1
    names = tuple(feature[prefix:] for feature in column.features)
    return Categorical(column.name, names, tuple(places), float(weights[0]), about[0], limit)


def _boolean(schema: Schema, bound: RowBound, column: Column, places: Sequence[int], limit: str) -> Categorical | str:
    if column.indicated:
        return 'a boolean with missing = "pairwise" is no table: use missing = "indicator"'
    low, high, shift, factor = schema.affine(column)
    centre, scale = (values[places[0]] for values in bound.input_units)
    ends = [((value - shift) * factor - centre) / scale for value in (low, high)]
    if not np.isclose(ends[0], -ends[1], rtol=_CLOSE):
        return f"its values are not about their middle. {centre_cure()}"
    return Categorical(column.name, ("no", "yes"), tuple(places), float(np.sqrt(2) * ends[1]), True, limit)
