"""Private histograms, charged, drawn and committed once, in the same transaction as a release of a moment.

The noisy counts are committed as JSON in the ledger only, and are available again at no cost. The exact counts are a
local variable of :func:`finalise`. Subclasses decide what is counted and committed: the norms of rows
(:mod:`dpdist.core.release.norm_histogram`), or the numbers of each column. A transaction is a separate release, such as
the scale of a series (:mod:`dpdist.core.release.first_scale`), or the stage of a release: drawn under its id, and
committed first. For columns, only the bins that count (:mod:`dpdist.core.mechanisms.columns`) are committed, because
everything else follows from them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.core._version import __version__
from dpdist.core.errors import DataError
from dpdist.core.ledger.ledger import Account
from dpdist.core.ledger.state import Part
from dpdist.core.mechanisms.columns import GRID, Grid, Standardised, counting_bins, intervals_of, standardised
from dpdist.core.mechanisms.counts import CalibratedHistogram, CountNoise, Counts, noise_from_json
from dpdist.core.moment.histograms import ColumnCounting, Counting
from dpdist.core.moment.total import Partial, complete
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.release.plan import Plan
from dpdist.core.release.transaction import Draw
from dpdist.core.rows.table import Table
from dpdist.core.text import canonical


class HistogramDraw(Draw):
    """A histogram, as a release of its own or as a stage; stored in the ledger only."""

    @abstractmethod
    def counting(self) -> Counting:
        """Return the definition of the counts."""

    @abstractmethod
    def calibrated(self) -> CalibratedHistogram:
        """Return the noise."""

    @abstractmethod
    def content(self, noisy: Counts, ledger_head: str) -> dict[str, object]:
        """Return the committed document, with the noisy counts, as JSON values."""

    def published(self) -> dict[str, Any]:
        """Read the committed values, verified, and record their publication; idempotent."""
        with self.committed() as content:
            values: dict[str, Any] = json.loads(content.read())
        return values


def finalise(transaction: HistogramDraw, total: Partial[np.int64] | None = None) -> None:
    """Check the total, draw the noise and commit; idempotent, and only once even if others run it too."""
    exact: Counts = complete(transaction.table, total).values

    def fresh(ledger_head: str) -> Iterator[bytes]:  # one noisy histogram, without the exact counts
        noisy = drawn(transaction.calibrated(), exact)
        yield canonical(transaction.content(noisy, ledger_head) | {"library": f"dpdist {__version__}"}).encode()

    transaction.commit(fresh)


def drawn(calibrated: CalibratedHistogram, exact: Counts) -> Counts:
    """Return the counts with fresh noise: each call is a draw, and must have been charged."""
    return calibrated.answer(exact, SYSTEM)


FORMAT = "dpdist-columns/1"


@dataclass(frozen=True)
class ColumnHistograms:
    """Released histograms of the columns of numbers. Public."""

    grids: tuple[Grid, ...]
    counting: tuple[tuple[tuple[int, int], ...], ...]  # the bins of each column that count, with their noisy counts
    noise: CountNoise

    @classmethod
    def of_noisy(cls, counting: ColumnCounting, noisy: Counts, noise: CountNoise) -> ColumnHistograms:
        """Select the bins that count from the noisy counts of all bins."""
        intervals, columns = intervals_of(counting.grids), zip(counting.grids, counting.of_columns(noisy), strict=True)
        bins = (tuple(counting_bins(grid, counts, noise, intervals)) for grid, counts in columns)
        return cls(counting.grids, tuple(bins), noise)

    @property
    def standardised(self) -> list[Standardised]:
        """Centre and scale of each column of numbers."""
        return [standardised(grid, counting) for grid, counting in zip(self.grids, self.counting, strict=True)]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ColumnHistograms:
        """Read a committed document."""
        if value["format"] != FORMAT:
            raise DataError(
                f"The histograms have format {value['format']!r}; this version reads {FORMAT}. Use the "
                "version that wrote it."
            )
        if value["grid"] != GRID:
            raise DataError("The histograms use another grid than this version. Use the version that made them.")
        grids = tuple(map(Grid.from_json, value["ranges"]))
        counting = tuple(tuple((index, count) for index, count in column) for column in value["counts"])
        return cls(grids, counting, noise_from_json(value["noise"]))

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "grid": GRID,
            "ranges": [grid.to_json() for grid in self.grids],
            "noise": self.noise.to_json(),
            "counts": [[list(pair) for pair in counting] for counting in self.counting],
        }


class ColumnsDraw(HistogramDraw):
    """Histograms of all columns of numbers, by which a plan chooses a scale."""

    plan: Plan

    def counting(self) -> ColumnCounting:
        """Return the definition of the counts."""
        return ColumnCounting.of(self.table.columns, self.table.schema)

    def calibrated(self) -> CalibratedHistogram:
        """Return the noise."""
        return self.plan.stages["scale"]

    def content(self, noisy: Counts, ledger_head: str) -> dict[str, object]:
        """Return the committed document, with the noisy counts."""
        histograms = ColumnHistograms.of_noisy(self.counting(), noisy, self.calibrated().noise)
        named = {"format": FORMAT, "release_id": self.release_id}
        return {**named, **histograms.to_json(), "ledger_head": ledger_head}

    def read(self) -> ColumnHistograms:
        """Return the committed histograms."""
        return ColumnHistograms.from_json(self.published())


@dataclass(frozen=True)
class ColumnsStage(ColumnsDraw):
    """The histograms as the first stage of a release, which is charged for them."""

    plan: Plan
    table: Table
    ledger: Account
    of: str

    @property
    def release_id(self) -> str:
        """The id of the release."""
        return self.of

    @property
    def part(self) -> Part:
        """The first stage."""
        return Part.STAGE
