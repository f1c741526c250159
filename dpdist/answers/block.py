"""A block of a released second moment: some columns, the constant if there is one, and the distribution of the noise.

Columns are named as in the rows or the schema, and converted to the units of the source.

With private centring every row has a constant entry, ``kappa`` in the units of the bounded rows. The release then
contains the column sums and the number of rows. Here they are the last row and column of the matrix, as products with
that constant. Under replace-one n is public, so the last entry has no noise.

The noise of different entries is uncorrelated, except for symmetric ones. Diagonal entries have a larger variance:
twice that of the others for `gaussian` and `two-sided-wishart`. Nuclear-norm noise is invariant under rotations, and
its diagonal entries are correlated instead. Rounding adds variances (:mod:`dpdist.core.rows.rounding`); the values
added here are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import entry_variances
from dpdist.answers.bias import described_by
from dpdist.answers.noise_edge import NoiseLaw, law_of
from dpdist.answers.pairwise import completed, indicators
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.naming import parameter
from dpdist.core.release.artefact import Release
from dpdist.core.text import did_you_mean, listed, repeated
from dpdist.core.triangle import TILE

if TYPE_CHECKING:
    from dpdist.core.rows.dataset import RowsTable

Matrix = npt.NDArray[np.float64]
NORMAL = 1.959964
"""Two-sided 0.95 quantile of the standard normal distribution."""
_MOST_COLUMNS = 8192
"""Largest block: several copies are held in memory, and it is decomposed."""


@dataclass(frozen=True)
class EntryNoise:
    """Variances of the noise in the entries of a symmetric matrix, in squared units of the entries."""

    on: float  # on the diagonal
    off: float  # off the diagonal
    exact: int | None = None  # index of the diagonal entry without noise, if there is one
    shared: float = 0.0  # covariance of two diagonal entries

    @property
    def diagonal_excess(self) -> float:
        """Variance of a diagonal entry in excess of a rotation-invariant distribution."""
        return self.on - 2 * self.off - self.shared

    def of_product(self, vector: Matrix) -> Matrix:
        """Return the covariance of ``E u``, (w, w), for a fixed vector u."""
        product: Matrix = (self.off + self.shared) * np.outer(vector, vector)
        diagonal = self.off * float(vector @ vector) + self.diagonal_excess * vector**2
        if self.exact is not None:
            diagonal[self.exact] -= self.on * vector[self.exact] ** 2
        product[np.diag_indices_from(product)] += diagonal
        return product

    def of_functional(self, weights: Matrix) -> float:
        """Return the variance of ``tr(B E)`` for a fixed symmetric matrix B, (w, w)."""
        diagonal = np.diagonal(weights).copy()
        squared_norm = float((weights**2).sum())
        if self.exact is not None:
            squared_norm -= float(diagonal[self.exact]) ** 2
            diagonal[self.exact] = 0
        squares = float((diagonal**2).sum())
        return 2 * self.off * squared_norm + self.diagonal_excess * squares + self.shared * float(diagonal.sum()) ** 2


@dataclass(frozen=True)
class Block:
    """Some columns of a release."""

    moment: Matrix  # (w, w), sum over rows in squared units of the bounded rows; the constant, if any, is last
    columns: tuple[int, ...]  # their indices in the release: w of them, or w - 1 with a constant
    kappa: float  # the constant; 0 if there is none
    noise: EntryNoise  # of the entries of the moment
    rows: float | None  # n, or its private estimate
    release: Release

    def noise_of(self, count: int) -> EntryNoise:
        """Return the noise of the first columns, followed by the constant and one more column."""
        return replace(self.noise, exact=None if self.noise.exact is None else count)

    def law(self, size: int) -> NoiseLaw:
        """Return the distribution of the noise on ``size`` rows and columns."""
        distribution = law_of(self.release.noise, size, self.release.bound.unit**2)
        if distribution is None:
            raise AssertionError("a block has noise of a known distribution")
        return distribution


def ends(values: Matrix, deviations: Matrix, low: float = -math.inf, high: float = math.inf) -> Matrix:
    """Return the ends of 95 % intervals along a new last axis, clipped to [low, high]."""
    reach = NORMAL * deviations
    return np.clip(np.stack([values - reach, values + reach], axis=-1), low, high)


def correlation_ends(values: Matrix, deviations: Matrix) -> Matrix:
    """Return the ends of the intervals of a correlation matrix, whose diagonal is exact."""
    result = ends(values, deviations, -1, 1)
    result[np.diag_indices(len(result))] = 1
    return result


def block_of(release: Release, columns: Sequence[int] | npt.NDArray[np.int64]) -> Block:
    """Return the block of some columns of a release."""
    require_noise_distribution(release.mechanism, release.noise if release.subspace is None else None)
    if len(columns) > _MOST_COLUMNS:
        raise DataError(
            f"A regression has at most {_MOST_COLUMNS} columns, not {len(columns)}. Name fewer ({parameter('on')})."
        )
    release = completed(release, columns)
    rows, unit = release.row_count, release.bound.unit**2
    if rows is not None and rows <= 0:
        raise BelowNoiseError(
            "The private estimate of the number of rows is not positive: the data are below the noise. Use a larger "
            "epsilon or more rows."
        )
    chosen = np.array(columns)
    moment = moment_of(release, chosen)
    moment[np.diag_indices_from(moment)] -= release.noise.mean_diagonal * unit
    kappa = release.bound.constant * release.bound.unit
    if kappa and rows is not None and release.row_sum is not None:
        sums = kappa * release.row_sum[chosen]
        moment = np.block([[moment, sums[:, None]], [sums[None], np.array([[kappa**2 * rows]])]])
    exact = len(columns) if kappa and release.exact_count is not None else None
    return Block(moment, tuple(map(int, columns)), kappa, entry_noise(release, exact), rows, release)


def require_noise_distribution(mechanism: str, noise: Noise | None) -> None:
    """Refuse noise of unknown distribution."""
    instead = "gaussian (with a delta) or two-sided-wishart (without)"
    if noise is None:
        raise UsageError(
            f"{mechanism} releases components and no second moment, which regression and covariance need. Use a "
            f"release by {instead}."
        )
    if not noise.summands or noise.variance_diagonal is None or noise.variance_off_diagonal is None:
        raise UsageError(
            f"The noise of {mechanism} has no known distribution, so errors cannot be computed. Use a release by "
            f"{instead}."
        )


def require_about(release: Release) -> None:
    """Refuse a release with neither a mean nor a centre."""
    if release.weights:
        release.require_moment()
    if not release.bound.constant and release.bound.centre is None and release.subspace is None:
        raise UsageError(
            "This release has no mean and no centre, so it has no covariance. Release with "
            f"{parameter('centre', 'private')} or a public centre. The second moment about zero is the array "
            "second_moment of the release."
        )


def moment_of(release: Release, columns: npt.NDArray[np.int64]) -> Matrix:
    """Return the second moment of some columns, (w, w), reading one row of tiles at a time."""
    if release.in_memory:
        return release.second_moment[np.ix_(columns, columns)]
    moment = np.empty((columns.size, columns.size))
    for tile in np.unique(columns // TILE):
        inside = np.flatnonzero(columns // TILE == tile)
        moment[inside] = release.moment_rows(tile * TILE, (tile + 1) * TILE)[columns[inside] - tile * TILE][:, columns]
    return moment


def entry_noise(release: Release, exact: int | None) -> EntryNoise:
    """Return the noise of a second moment, rounding included; ``exact`` is the index of a public n."""
    noise = release.noise
    per_row = (release.row_count or 1.0) ** 2  # eigenvalues are per row if n is known
    on, off = (variance * per_row for variance in entry_variances(release))
    nuclear = {part.kind for part in noise.summands} == {EdgeKind.NUCLEAR}
    excess = (noise.variance_diagonal or 0.0) - 2 * (noise.variance_off_diagonal or 0.0)
    return EntryNoise(on, off, exact, excess * release.bound.unit**4 if nuclear else 0.0)


def deviation(variance: float) -> float:
    """Return the root of a variance that rounding may have made slightly negative."""
    return math.sqrt(max(0.0, variance))


def column_indices(table: Release | RowsTable, names: Sequence[str], option: str) -> tuple[int, ...]:
    """Return the indices of named columns; a column of the schema stands for all columns derived from it."""
    index = {name: i for i, name in enumerate(table.names)}
    features = _features_of(table) | {name: (name,) for name in table.names}
    unknown = [name for name in names if name not in features]
    expanded = [column for name in names for column in features.get(name, ())]
    if unknown or not expanded:
        problem = f"There is no column {listed(map(repr, unknown))}" if unknown else "No column is named"
        question = did_you_mean(unknown[0], [*features]) if len(unknown) == 1 else ""
        raise UsageError(f"{problem} ({parameter(option)}).{question} There are: {listed(table.names)}.")
    if duplicates := repeated(expanded):
        raise UsageError(f"{listed(map(repr, duplicates))}: named twice ({parameter(option)}).")
    return tuple(index[name] for name in expanded)


def beside(release: Release, targets: Sequence[int]) -> tuple[int, ...]:
    """Return the default regressors: all columns with a known scale, but those derived from a target's columns."""
    names = {release.names[i] for i in targets}
    described = () if release.schema is None else release.schema.columns
    sources = {column.source.name for column in described if names & set(column.features)}
    kin = {name for column in described if column.source.name in sources for name in column.features}
    unseen, weightless = release.blindly_scaled  # their noise would take a ridge, which shrinks all slopes
    excluded = kin | names | set(unseen) | set(weightless) | {release.names[i] for i in indicators(release)}
    return tuple(i for i, name in enumerate(release.names) if name not in excluded)


def references(release: Release, on: Sequence[int]) -> tuple[int, ...]:
    """Return the first column of each categorical variable whose columns are all regressors: their sum is constant."""
    index = {name: i for i, name in enumerate(release.names)}
    columns = () if release.schema is None else release.schema.columns
    categories = [
        [index.get(name) for name in column.features] for column in columns if column.stored and column.one_hot
    ]
    return tuple(
        category[0]
        for category in categories
        if len(category) > 1 and category[0] is not None and set(category) <= set(on)
    )


def incomplete(release: Release, columns: Sequence[int]) -> tuple[str, ...]:
    """Return the columns of the schema that have no value in some rows of the columns of a release, as far as known.

    A missing value that stands at a centre or a public number has no residual, and a dropped row none at all.
    """
    names = {release.names[place] for place in columns}
    gaps = [
        column.name
        for column in described_by(release, columns)
        if column.missing in {"centre", "pairwise", "fill", "indicator"}
        and not (column.one_hot and column.missing == "indicator")
        and (column.one_hot or column.value_name in names)
    ]
    return (*gaps, *(() if release.schema is None else release.schema.dropping))


def source_units(release: Release) -> tuple[Matrix, Matrix]:
    """Return centre and scale, (d,) each: ``centre + scale * row`` is in the units of the source.

    Without a schema they are ``release.bound.input_units``. Categories and indicators of missing values are 0 or 1; a
    date counts its unit from its origin; a column with a transform is in units of that.
    """
    centre, scale = release.bound.input_units
    if release.schema is None:
        return centre, scale
    index = {name: i for i, name in enumerate(release.names)}
    for column in release.schema.columns:
        affine = release.schema.affine(column) if column.stored else None
        for name in column.features:
            i = index.get(name)
            if i is None or affine is None:
                continue
            is_value = name == column.value_name or column.one_hot
            factor = affine.factor if is_value else float(column.weight or 1)
            centre[i] = (affine.shift if is_value else 0.0) + centre[i] / factor
            scale[i] /= factor
    return centre, scale


def _features_of(table: Release | RowsTable) -> dict[str, tuple[str, ...]]:
    """Return the columns of the rows derived from each column of the schema, but those that count gaps."""
    have = set(table.names) - set({} if table.schema is None else table.schema.pairwise.values())
    columns = () if table.schema is None else table.schema.columns
    present = {column.name: tuple(name for name in column.features if name in have) for column in columns}
    return {name: features for name, features in present.items() if features}
