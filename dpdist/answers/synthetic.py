"""Synthetic rows: normal, with the mean and the shrunk covariance of a release. Post-processing, free of charge.

A row is ``location + L z``, with z standard normal and ``L L^T`` the shrunk covariance
(:mod:`dpdist.answers.covariance`). Means, variances and correlations of many rows are those of the release. Nothing
else is: no categories, no ranges, and no skewness but that of a transform, which is taken back. The column of a
category or a boolean contains numbers around the share of its ones, not 0 and 1, and numbers may be outside a public
range.

**Errors.** The covariance has the error of the release: ``Covariance.distance`` estimates it in total, and its
intervals are those of the entries. The sample covariance of N rows has the usual sampling error in addition.

The generator needs no secret, as all parameters are public. Its seed comes from the caller or the operating system,
never from rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import require_about
from dpdist.answers.covariance import below_noise_message, covariance
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import step
from dpdist.core.release.artefact import Release
from dpdist.core.rows.columns import Column

Matrix = npt.NDArray[np.float64]
_LARGEST_LOGARITHM = 700.0
"""exp of more overflows."""
MOST_NUMBERS = 1 << 27
"""Largest number of values drawn at once: 1 GiB."""


@dataclass(frozen=True)
class Synthetic:
    """The distribution of synthetic rows."""

    names: tuple[str, ...]  # columns with weight in the release
    location: Matrix
    factor: Matrix  # L
    distance: float | None  # approximate relative error of the covariance of the clipped rows
    drowned: str  # a sentence about columns below the noise, or empty
    transformed: tuple[Column | None, ...] = ()  # the transform that the rows take back, for each column

    def draw(self, count: int, generator: np.random.Generator | np.random.RandomState) -> Matrix:
        """Return rows, (count, c)."""
        limit = MOST_NUMBERS // len(self.names)
        if not 1 <= count <= limit:
            raise UsageError(f"Draw between 1 and {limit} rows of {len(self.names)} columns at once, not {count}.")
        rows: Matrix = generator.standard_normal((count, len(self.names))) @ self.factor.T
        rows += self.location
        for place, column in enumerate(self.transformed):
            if column is not None:
                rows[:, place] = source_values(column, rows[:, place])
        return rows


def source_values(column: Column, values: Matrix) -> Matrix:
    """Return numbers of the source from transformed ones."""
    values = np.minimum(values, _LARGEST_LOGARITHM)
    return np.expm1(values) + column.low if column.transform == "log" else np.sinh(values)


def synthetic(release: Release, units: tuple[Matrix, Matrix] | None = None) -> Synthetic:
    """Return the distribution of the synthetic rows of a release, in the units of the covariance.

    With the units of the source, columns of a transform are numbers of the source again.
    """
    require_about(release)
    result = covariance(release, units=units)
    if result.seen == 0:
        raise BelowNoiseError(
            "No direction of the columns varies more than the noise of this release, so synthetic rows would be "
            f"noise. Use a larger epsilon, more rows or fewer columns; {step('forecast')} reports what is needed."
        )
    matrix = result.matrix[np.ix_(result.known, result.known)]
    spread = np.sqrt(np.diagonal(matrix))
    factor = np.linalg.cholesky(matrix / np.outer(spread, spread)) * spread[:, None]
    by_name = {} if units is None or release.schema is None else release.schema.transformed
    names = tuple(release.names[i] for i in result.known)
    return Synthetic(
        tuple(by_name[name].name if name in by_name else name for name in names), result.location[result.known],
        factor, result.distance, below_noise_message(result, release.names), tuple(by_name.get(name) for name in names),
    )  # fmt: skip
