"""Synthetic rows: normal ones with the mean and the shrunk covariance of a release. Post-processing, free of charge.

A row is ``location + L z``, with z standard normal and ``L L^T`` the shrunk covariance
(:mod:`dpdist.answers.covariance`). So means, variances and correlations of many rows are those of the release, and
nothing else is: no skewness, no categories, no ranges. A column of a category or a boolean holds numbers about the
share of its ones, and not 0 and 1. A number may lie beyond a public range.

**Errors.** The covariance the rows are drawn from is off by what the noise does to the release; how far in all is an
estimate (``Covariance.distance``), and the intervals of entries are those of the covariance. A sample covariance of N
rows is off from that by its sampling error besides, as of any N rows.

The generator needs no secret: what is drawn follows from what is public. Its seed is given by the caller or comes from
the operating system, and never from rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import require_about
from dpdist.answers.covariance import covariance, drowned_words
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.naming import step
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
MOST_NUMBERS = 1 << 27
"""That are drawn at once: 1 GiB."""


@dataclass(frozen=True)
class Synthetic:
    """What synthetic rows are drawn from."""

    names: tuple[str, ...]  # of their columns: those that weigh something in the release
    location: Matrix
    factor: Matrix  # L
    distance: float | None  # of the covariance from that of the shortened rows, relative to it, about
    drowned: str  # a sentence about columns that do not stand above the noise, or nothing

    def draw(self, count: int, generator: np.random.Generator | np.random.RandomState) -> Matrix:
        """Return rows, (count, c)."""
        most = MOST_NUMBERS // len(self.names)
        if not 1 <= count <= most:
            raise UsageError(f"From 1 to {most} rows of {len(self.names)} columns are drawn at once, not {count}.")
        found: Matrix = generator.standard_normal((count, len(self.names))) @ self.factor.T
        found += self.location
        return found


def synthetic(release: Release, units: tuple[Matrix, Matrix] | None = None) -> Synthetic:
    """Return what synthetic rows of a release are drawn from, in units as of the covariance."""
    require_about(release)
    found = covariance(release, units=units)
    if found.seen == 0:
        raise BelowNoiseError(
            "No direction of the columns varies more than the noise of this release, so rows drawn from it would be "
            f"noise. Take a larger epsilon, more rows or fewer columns: {step('forecast')} says what would be needed."
        )
    matrix = found.matrix[np.ix_(found.known, found.known)]
    spread = np.sqrt(np.diagonal(matrix))
    factor = np.linalg.cholesky(matrix / np.outer(spread, spread)) * spread[:, None]
    return Synthetic(
        tuple(release.names[i] for i in found.known), found.location[found.known], factor, found.distance,
        drowned_words(found, release.names),
    )  # fmt: skip
