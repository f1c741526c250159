"""A part of a released second moment: some columns, the constant if there is one, and the distribution of its noise.

Columns are named as in the rows or the schema, and converted to the units of the source.

With private centring every row has a constant entry, ``kappa`` in the units of the bounded rows. The release then holds
the sums of the columns and the number of rows. Here they are the last row and column of the matrix, as products with
that constant. Under replace-one n is public, so the last entry has no noise.

Noise on different entries is uncorrelated, but for symmetric ones. An entry on the diagonal has more of it: twice the
variance for `gaussian` and `two-sided-wishart`. Nuclear-norm noise is invariant under rotations, and entries of its
diagonal are correlated instead. Rounding adds variances of its own (:mod:`dpdist.rows.rounding`), at most those that
are added here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpdist._util.text import listed, repeated
from dpdist.errors import BelowNoiseError, DataError, UsageError
from dpdist.mechanisms.noise_law import EdgeKind, Noise
from dpdist.naming import parameter
from dpdist.pca.alignment import entry_variances
from dpdist.pca.noise_edge import NoiseLaw, law_of
from dpdist.release.artefact import Release
from dpdist.triangle import TILE

if TYPE_CHECKING:
    from dpdist.rows.dataset import RowsTable

Matrix = npt.NDArray[np.float64]
NORMAL = 1.959964
"""Standard deviations to each side that hold 0.95 of a normal."""
_MOST_COLUMNS = 8192
"""Largest block: it is held in memory several times, and decomposed."""


@dataclass(frozen=True)
class EntryNoise:
    """Variances of the noise on the entries of a symmetric matrix, squared units of its entries."""

    on: float
    off: float
    exact: int | None = None  # place on the diagonal of the one entry without noise
    shared: float = 0.0  # covariance of two entries of the diagonal

    @property
    def own(self) -> float:
        """What an entry of the diagonal has beyond a law that is invariant under rotations."""
        return self.on - 2 * self.off - self.shared

    def of_product(self, vector: Matrix) -> Matrix:
        """Return the covariance of ``E u``, (w, w), of a fixed vector u."""
        found: Matrix = (self.off + self.shared) * np.outer(vector, vector)
        diagonal = self.off * float(vector @ vector) + self.own * vector**2
        if self.exact is not None:
            diagonal[self.exact] -= self.on * vector[self.exact] ** 2
        found[np.diag_indices_from(found)] += diagonal
        return found

    def of_functional(self, weights: Matrix) -> float:
        """Return the variance of ``tr(B E)`` of a fixed symmetric matrix B, (w, w)."""
        diagonal = np.diagonal(weights).copy()
        whole = float((weights**2).sum())
        if self.exact is not None:
            whole -= float(diagonal[self.exact]) ** 2
            diagonal[self.exact] = 0
        squares = float((diagonal**2).sum())
        return 2 * self.off * whole + self.own * squares + self.shared * float(diagonal.sum()) ** 2


@dataclass(frozen=True)
class Block:
    """Some columns of a release."""

    moment: Matrix  # (w, w), the sum over rows in squared units of the bounded rows; the constant is last, if any
    columns: tuple[int, ...]  # their places in the release; w of them, or one less
    kappa: float  # the constant; 0 where there is none
    noise: EntryNoise  # of the entries of the moment
    rows: float | None  # n, or its private estimate
    release: Release

    def noise_of(self, count: int) -> EntryNoise:
        """Return the noise on the first columns, the constant and one more column behind it."""
        return replace(self.noise, exact=None if self.noise.exact is None else count)

    def law(self, size: int) -> NoiseLaw:
        """Return the law of the noise on some of its rows and columns."""
        found = law_of(self.release.noise, size, self.release.bound.unit**2)
        if found is None:
            raise AssertionError("a block is made where the law is known")
        return found


def ends(values: Matrix, deviations: Matrix, low: float = -math.inf, high: float = math.inf) -> Matrix:
    """Return the two ends of 95 % intervals, one more axis than the values, within what is possible."""
    reach = NORMAL * deviations
    return np.clip(np.stack([values - reach, values + reach], axis=-1), low, high)


def correlation_ends(values: Matrix, deviations: Matrix) -> Matrix:
    """Return the ends of intervals of a matrix of correlations, whose diagonal is exact."""
    found = ends(values, deviations, -1, 1)
    found[np.diag_indices(len(found))] = 1
    return found


def block_of(release: Release, columns: Sequence[int] | npt.NDArray[np.int64]) -> Block:
    """Return the part of a release that is about some of its columns."""
    require_law(release.mechanism, release.noise if release.subspace is None else None)
    if len(columns) > _MOST_COLUMNS:
        raise DataError(
            f"{len(columns)} columns are too many to solve for at once, {_MOST_COLUMNS} are not: name those that count "
            f"({parameter('on')})."
        )
    rows, unit = release.row_count, release.bound.unit**2
    if rows is not None and rows <= 0:
        raise BelowNoiseError(
            "The private estimate of the number of rows is not positive: the noise drowns the data. Take a larger "
            "epsilon or more rows."
        )
    chosen = np.array(columns)
    moment = moment_of(release, chosen)
    moment[np.diag_indices_from(moment)] -= release.noise.mean_diagonal * unit
    kappa = release.bound.constant * release.bound.unit
    if kappa and rows is not None and release.row_sum is not None:
        sums = kappa * release.row_sum[chosen]
        moment = np.block([[moment, sums[:, None]], [sums[None], np.array([[kappa**2 * rows]])]])
    exact = len(columns) if kappa and release.rows is not None else None
    return Block(moment, tuple(map(int, columns)), kappa, entry_noise(release, exact), rows, release)


def require_law(mechanism: str, noise: Noise | None) -> None:
    """Refuse noise of which nothing could be said."""
    instead = "gaussian (with a delta) or two-sided-wishart (without)"
    if noise is None:
        raise UsageError(
            f"{mechanism} releases components and no second moment, which regression and covariance need: take a "
            f"release by {instead}."
        )
    if not noise.summands or noise.variance_diagonal is None or noise.variance_off_diagonal is None:
        raise UsageError(
            f"The noise of {mechanism} has no known law, so nothing could be said of the error: take a release by "
            f"{instead}."
        )


def require_about(release: Release) -> None:
    """Refuse a release of which nothing says about what its columns vary."""
    if release.weights:
        release.require_moment()
    if not release.bound.constant and release.bound.centre is None and release.subspace is None:
        raise UsageError(
            "This release has no mean and no centre, so nothing says about what its columns vary. Release with "
            f"{parameter('centre', 'private')} or a public centre. Its second moment about zero is the array "
            "second_moment of the release."
        )


def moment_of(release: Release, columns: npt.NDArray[np.int64]) -> Matrix:
    """Return the second moment of some columns, (w, w); a row of tiles is read at a time."""
    if release.in_memory:
        return release.second_moment[np.ix_(columns, columns)]
    found = np.empty((columns.size, columns.size))
    for tile in np.unique(columns // TILE):
        inside = np.flatnonzero(columns // TILE == tile)
        found[inside] = release.moment_rows(tile * TILE, (tile + 1) * TILE)[columns[inside] - tile * TILE][:, columns]
    return found


def entry_noise(release: Release, exact: int | None) -> EntryNoise:
    """Return the variances of the entries of a second moment, rounding included; ``exact`` is the place of public n."""
    noise = release.noise
    per_row = (release.row_count or 1.0) ** 2  # the units of eigenvalues are per row where n is known
    on, off = (variance * per_row for variance in entry_variances(release))
    nuclear = {part.kind for part in noise.summands} == {EdgeKind.NUCLEAR}
    apart = (noise.variance_diagonal or 0.0) - 2 * (noise.variance_off_diagonal or 0.0)
    return EntryNoise(on, off, exact, apart * release.bound.unit**4 if nuclear else 0.0)


def deviation(variance: float) -> float:
    """Return the root of a variance that rounding may have made negative."""
    return math.sqrt(max(0.0, variance))


def places_of(table: Release | RowsTable, names: Sequence[str], what: str) -> tuple[int, ...]:
    """Return the places of columns; a column of the schema stands for all that were made of it."""
    place = {name: i for i, name in enumerate(table.names)}
    made = _made(table) | {name: (name,) for name in table.names}
    unknown = [name for name in names if name not in made]
    found = [column for name in names for column in made.get(name, ())]
    if unknown or not found:
        said = f"There is no column {listed(map(repr, unknown))}" if unknown else "No column is named"
        raise UsageError(f"{said} ({parameter(what)}). There are: {listed(table.names)}.")
    if twice := repeated(found):
        raise UsageError(f"{listed(map(repr, twice))}: named twice ({parameter(what)}).")
    return tuple(place[name] for name in found)


def beside(release: Release, targets: Sequence[int]) -> tuple[int, ...]:
    """Return the columns that may explain the targets where nobody names any.

    These are all but what was made of the same column, and what weighs nothing in the release
    (:func:`dpdist.release.advice.weightless`).
    """
    names = {release.names[i] for i in targets}
    kin = {name for made in _made(release).values() if names & set(made) for name in made}
    known = kin | names | set(release.blindly_scaled[1])
    return tuple(i for i, name in enumerate(release.names) if name not in known)


def references(release: Release, on: Sequence[int]) -> tuple[int, ...]:
    """Return the first column of each categorical variable of which all columns are among some.

    They add up to 1, so that with all of them a regression with a constant has no one solution.
    """
    place = {name: i for i, name in enumerate(release.names)}
    columns = () if release.schema is None else release.schema.columns
    made = [[place.get(name) for name in column.features] for column in columns if column.stored and column.one_hot]
    return tuple(each[0] for each in made if len(each) > 1 and each[0] is not None and set(each) <= set(on))


def source_units(release: Release) -> tuple[Matrix, Matrix]:
    """Return centre and scale, (d,) each, by which ``centre + scale * row`` is in the units of the source of the rows.

    Without a schema these are those of the rows as they were given, ``release.bound.input_units``. A category, and
    what tells that a value is missing, is 0 or 1; a date counts its unit since its origin.
    """
    centre, scale = release.bound.input_units
    if release.schema is None:
        return centre, scale
    place = {name: i for i, name in enumerate(release.names)}
    for column in release.schema.columns:
        affine = release.schema.affine(column) if column.stored else None
        for name in column.features:
            i = place.get(name)
            if i is None or affine is None:
                continue
            own = name == column.name or column.one_hot
            factor = affine.factor if own else float(column.weight or 1)
            centre[i] = (affine.shift if own else 0.0) + centre[i] / factor
            scale[i] /= factor
    return centre, scale


def _made(table: Release | RowsTable) -> dict[str, tuple[str, ...]]:
    """Return the columns of the rows that were made of each column of the schema."""
    have = set(table.names)
    columns = () if table.schema is None else table.schema.columns
    kept = {column.name: tuple(name for name in column.features if name in have) for column in columns}
    return {name: made for name, made in kept.items() if made}
