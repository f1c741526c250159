"""Synthetic rows with the categories and ranges of a schema, from one release: post-processing, free of charge.

**Categories and booleans** are drawn along the spanning tree of their tables with the largest mutual information
(Chow & Liu 1968): the best tree, for the tables it is given. The first variable is drawn by its counts, each other one
by the table with its neighbour. Tables are those of the nearest moment that rows can have
(:mod:`dpdist.answers.feasible`), so none has a negative cell. So the tables of neighbours are those of the release, and
the others only as far as these imply them. Mutual information is that of the shrunk tables
(:mod:`dpdist.answers.crosstab`), because noise has some of its own, more in tables of more cells.

**Numbers** are drawn given all categories: normal, with the mean that their linear regression on the categories gives,
and the covariance of its residuals. The regression uses the directions along which the categories vary by 2.5 times the
edge of the noise: a category of a few rows, or of none, has no mean of its own. A number with bins is drawn within its
bin. Values beyond a public range are at its end, as those beyond the clip norm, which clipped rows do not have. Whole
numbers are rounded, others to a thousandth of their spread, and transforms are taken back. Where a value is
missing in the rows, it is in as many synthetic ones, by its bins, or at random with ``missing = "pairwise"``.

The generator needs no secret: all parameters are public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.stats import truncnorm

from dpdist.answers.categories import Categorical, Matrix
from dpdist.answers.crosstab import crosstab
from dpdist.answers.dates import date_of
from dpdist.answers.feasible import Layout, feasible
from dpdist.answers.synthetic import MOST_NUMBERS, source_values
from dpdist.answers.variables import Numeric, Variables
from dpdist.core.errors import UsageError
from dpdist.core.rows.columns import Binned, Column
from dpdist.core.rows.schema import Schema

Codes = dict[str, npt.NDArray[np.int64]]
Generator = np.random.Generator
_LEAST, _CLEAR = 1e-9, 2.5
"""Least eigenvalue of a covariance that is inverted, in the largest one, and in edges of the noise."""


@dataclass(frozen=True)
class Step:
    """A variable of the tree, and the one that it is drawn from; None for the first."""

    name: str
    given: str | None
    shares: Matrix  # (l, k): rows add up to 1; (1, k) for the first


@dataclass(frozen=True)
class Tree:
    """The distribution of synthetic rows of a schema."""

    held: Variables
    schema: Schema
    steps: tuple[Step, ...]
    onto: Matrix = field(repr=False)  # (numbers, coordinates of categories): the regression of numbers on categories
    factor: Matrix = field(repr=False)  # of the covariance of its residuals
    mean: Matrix = field(repr=False)  # of all coordinates, categories first

    @property
    def columns(self) -> list[Column]:
        """The columns of the source that are drawn, in their order."""
        held = {*self.held.categorical, *self.held.numeric}
        return [column for column in self.schema.sources if column.stored and {column.name, column.value_name} & held]

    def draw(self, count: int, generator: Generator) -> dict[str, npt.NDArray[Any]]:
        """Return columns of the source by name: text, yes or no, or numbers; NaN or None where a value is missing."""
        found = dict[str, npt.NDArray[Any]]()
        for column, values in self._drawn(count, generator):
            variable = self.held.categorical.get(column.name)
            found[column.name] = _typed(column, values) if variable is None else _named(variable, column, values)
        return found

    def draw_coded(self, count: int, generator: Generator) -> dict[str, Matrix]:
        """Return the same rows as numbers: a column of 0 and 1 for each value of a category, days for a date."""
        found = dict[str, Matrix]()
        for column, values in self._drawn(count, generator):
            variable = self.held.categorical.get(column.name)
            if variable is None or len(variable.places) == 1:
                found[column.name] = values
            else:
                found |= {f"{column.name}={name}": 1.0 * (values == i) for i, name in enumerate(variable.categories)}
        return found

    def _drawn(self, count: int, generator: Generator) -> Iterator[tuple[Column, Matrix]]:
        """Yield each column with its numbers, or the indices of its categories."""
        width = len(self.mean)
        if not 1 <= count <= MOST_NUMBERS // width:
            raise UsageError(f"Draw between 1 and {MOST_NUMBERS // width} rows at once, not {count}.")
        codes = self._codes(count, generator)
        numbers = self._numbers(codes, generator)
        for column in self.columns:
            if column.name in self.held.categorical:
                yield column, codes[column.name].astype(np.float64)
            else:
                yield column, self._values(column, numbers[column.value_name], codes, generator)

    def _codes(self, count: int, generator: Generator) -> Codes:
        codes = Codes()
        for step in self.steps:
            rows = np.zeros(count, np.int64) if step.given is None else codes[step.given]
            ends = step.shares.cumsum(axis=1)
            codes[step.name] = (generator.random(count)[:, None] > ends[rows, :-1]).sum(axis=1)
        return codes

    def _numbers(self, codes: Codes, generator: Generator) -> dict[str, tuple[Matrix, Matrix]]:
        """Return the mean of each number in each row, and what is drawn, in units of the source."""
        coordinates = [
            (variable.basis * variable.weight)[codes[name]] for name, variable in self.held.categorical.items()
        ]
        count, known = len(next(iter(codes.values()))), self.onto.shape[1]
        given = np.hstack(coordinates) - self.mean[:known] if coordinates else np.zeros((count, 0))
        means = self.mean[known:] + given @ self.onto.T
        drawn = means + generator.standard_normal((count, len(self.factor))) @ self.factor.T
        most = self.held.release.bound.clip_norm
        means, drawn = np.clip(means, -most, most), np.clip(drawn, -most, most)
        numbers = self.held.numeric.values()
        return {
            number.name: (number.shift + number.unit * means[:, i], number.shift + number.unit * drawn[:, i])
            for i, number in enumerate(numbers)
        }

    def _values(self, column: Column, drawn: tuple[Matrix, Matrix], codes: Codes, generator: Generator) -> Matrix:
        """Return the values of a number, an integer or a date, NaN where one is missing."""
        means, values = drawn
        number, bins = self.held.numeric[column.value_name], f"{column.name}_bins"
        lacking = np.zeros(len(values), np.bool_)
        if bins in codes and column.bins is not None:
            lacking = codes[bins] > len(_edges(column))
            values = _within(column, means, self._deviation(number), codes[bins], generator)
        elif number.indicator is not None:
            held = self.held
            share = float(held.total(number.indicator).values[0]) / number.weight / held.rows
            lacking = generator.random(len(values)) < share
        if column.transform is not None:
            values = source_values(column, values)
        if column.range is not None:
            low, high = map(column.number_of, column.range)
            values = np.clip(values, low, high)
        if column.kind == "integer":
            values = np.floor(values) if column.bins is not None else np.rint(values)
        return np.where(lacking, np.nan, values)

    def _deviation(self, number: Numeric) -> float:
        place = [*self.held.numeric].index(number.name)
        return abs(number.unit) * float(np.linalg.norm(self.factor[place]))


def tree(held: Variables) -> Tree:
    """Return the distribution of synthetic rows; refuse a release without categories about their middles."""
    schema = held.release.schema
    if schema is None or not held.categorical:
        raise UsageError("Rows with categories are drawn from a release with some. This one has none.")
    layout, found = Layout(held), feasible(held)
    reduced = layout.onto.T @ found.moment @ layout.onto
    mean = reduced[0, 1:] / (layout.c * held.rows)
    covariance = reduced[1:, 1:] / held.rows - np.outer(mean, mean)
    known = layout.numbers.start - 1
    edge = math.sqrt(2 * held.precision.noise * len(reduced)) / held.rows
    inverse = _inverse(covariance[:known, :known], _CLEAR * edge)
    onto = covariance[known:, :known] @ inverse
    rest = covariance[known:, known:] - onto @ covariance[:known, known:]
    values, vectors = np.linalg.eigh((rest + rest.T) / 2)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    return Tree(held, schema, _steps(held, found.tables), onto, factor, mean)


def _inverse(covariance: Matrix, least: float) -> Matrix:
    """Return the inverse along the directions that vary by more than the noise."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(least, _LEAST * max(values[-1], 0.0))
    inverse: Matrix = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return inverse


def _steps(held: Variables, tables: dict[tuple[str, str], Matrix]) -> tuple[Step, ...]:
    names = list(held.categorical)
    information = np.zeros((len(names), len(names)))
    for (i, first), (j, second) in combinations(enumerate(names), 2):
        information[i, j] = _mutual_information(crosstab(held, first, second).shrunk)
    # every pair is an edge, so that unrelated variables are reached, too
    lengths = np.triu(information.max() - information + 1.0, 1)
    spanning: Any = minimum_spanning_tree(lengths)
    root = int((information + information.T).sum(axis=1).argmax())
    order, before = breadth_first_order(spanning, root, directed=False)
    steps = []
    for place in order:
        name, given = names[place], None if place == root else names[before[place]]
        if given is None:
            counts = np.maximum(held.counts(name).values, 0.0)[None]
        else:
            counts = tables[given, name] if (given, name) in tables else tables[name, given].T
        steps.append(Step(name, given, _shares(counts)))
    return tuple(steps)


def _shares(counts: Matrix) -> Matrix:
    """Return the shares of each row; those of all rows where a row is empty."""
    totals = counts.sum(axis=0)
    totals = totals if totals.sum() > 0 else np.ones_like(totals)
    own = counts.sum(axis=1, keepdims=True)
    shares: Matrix = np.where(own > 0, counts, totals) / np.where(own > 0, own, totals.sum())
    return shares


def _mutual_information(table: Matrix) -> float:
    shares = table / table.sum()
    alone = np.outer(shares.sum(axis=1), shares.sum(axis=0))
    seen = (shares > 0) & (alone > 0)
    return float((shares[seen] * np.log(shares[seen] / alone[seen])).sum())


def _named(variable: Categorical, column: Column, values: Matrix) -> npt.NDArray[Any]:
    if not column.one_hot:
        return np.array(["no", "yes"], dtype=object)[values.astype(np.int64)]
    names = np.array(variable.categories, dtype=object)
    if column.indicated:
        names[-1] = None
    named: npt.NDArray[Any] = names[values.astype(np.int64)]
    return named


def _edges(column: Column) -> list[float]:
    """Return the edges between the bins of a number, in units of its transform."""
    inner = Binned.of(column).edges
    return [column.value_of(edge) for edge in column.bins if column.number_of(edge) in inner]


def _within(
    column: Column, means: Matrix, deviation: float, codes: npt.NDArray[np.int64], generator: Generator
) -> Matrix:
    """Return normal numbers within their bins, in units of the transform."""
    edges = _edges(column)
    low, high = (-np.inf, np.inf) if column.ends is None else column.ends
    if column.kind == "integer" and column.range is not None:
        high = column.value_of(column.range[1] + 1)  # they are rounded down
    lows, highs = np.array([low, *edges, -np.inf])[codes], np.array([*edges, high, np.inf])[codes]
    spread = max(deviation, 1e-12)
    below, above = (lows - means) / spread, (highs - means) / spread
    above = np.where(above > below, above, np.inf)  # a bin of one value
    drawn: Matrix = truncnorm.rvs(below, above, random_state=generator) * spread + means
    inside = np.maximum(np.minimum(drawn, np.nextafter(highs, -np.inf)), lows)
    return np.where(np.isfinite(inside), inside, np.clip(means, lows, highs))


def _shortened(column: Column, values: Matrix) -> Matrix:
    """Return numbers with the digits that say something; those with bins as they are, so that they stay within them."""
    if column.bins is not None:
        return values
    if column.transform is not None:  # of all sizes: each has its own thousandth
        return np.array([float(f"{value:.4g}") for value in values.tolist()])
    spread = 0.0 if np.isnan(values).all() else float(np.nanstd(values))
    return np.round(values, 3 - math.floor(math.log10(spread))) if spread > 0 else values


def _typed(column: Column, values: Matrix) -> npt.NDArray[Any]:
    """Return numbers, whole numbers, or dates and ordered categories as text."""
    lacking = np.isnan(values)
    if column.kind == "category":
        places = np.clip(np.rint(values), 0, len(column.categories) - 1)
        names: list[str | None] = [*column.categories, None]
        return np.array(names, dtype=object)[np.where(lacking, -1, places).astype(np.int64)]
    if column.kind == "date":
        texts = np.full(len(values), None, dtype=object)
        for place in np.flatnonzero(~lacking):
            texts[place] = date_of(column, float(values[place]), column.format)
        return texts
    if column.kind != "integer":
        return _shortened(column, values)
    if not lacking.any():
        return values.astype(np.int64)
    return np.array([None if gone else int(value) for value, gone in zip(values, lacking, strict=True)], dtype=object)
