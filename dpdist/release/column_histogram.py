"""Private histograms of all columns, by which a release chooses centre and scale: the stage of that release.

They are drawn as :mod:`dpdist.release.histogram` says, under the id of the release, and committed before the release is
drawn. Of the noisy counts those of the bins that count (:mod:`dpdist.mechanisms.columns`) are committed: all that
follows is a function of them. They stand in the release too. Those of a series of periods are a release of their own
(:mod:`dpdist.release.first_scale`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from dpdist.errors import DataError
from dpdist.ledger.state import Part
from dpdist.mechanisms.columns import GRID, Grid, Standardised, counting_bins, intervals_of, standardised, threshold
from dpdist.mechanisms.counts import CalibratedHistogram, CountNoise, Counts, noise_from_json
from dpdist.moment.histograms import ColumnCounting, grids_of
from dpdist.release.histogram import HistogramTransaction
from dpdist.release.request import CHOICE_RULE, FIRST_RULE, ReleaseRequest
from dpdist.release.transaction import RequestT_co

FORMATS = {FIRST_RULE: "dpdist-columns/1", CHOICE_RULE: "dpdist-columns/2"}
"""By the rule."""


@dataclass(frozen=True)
class ColumnHistograms:
    """Released histograms of columns. Public.

    Attributes
    ----------
    grids
        One for each column.
    counting
        The bins of each column that count, with their noisy counts, in the order of the bins.
    noise
        That of each count.
    rule
        By which they count.
    """

    grids: tuple[Grid, ...]
    counting: tuple[tuple[tuple[int, int], ...], ...]
    noise: CountNoise
    rule: int = CHOICE_RULE

    @classmethod
    def of_noisy(cls, found: ColumnCounting, noisy: Counts, noise: CountNoise, rule: int) -> ColumnHistograms:
        """Take the bins that count, by a rule, from the noisy counts of all bins."""
        if rule == FIRST_RULE:
            least = threshold(noise, found.bins)
            counting = [
                [(place, count) for place, count in enumerate(counts.tolist()) if count > least]
                for counts in found.of_columns(noisy)
            ]
        else:
            intervals = intervals_of(found.grids)
            counting = [
                counting_bins(grid, counts, noise, intervals)
                for grid, counts in zip(found.grids, found.of_columns(noisy), strict=True)
            ]
        return cls(found.grids, tuple(map(tuple, counting)), noise, rule)

    @property
    def standardised(self) -> list[Standardised]:
        """Centre and scale of each column."""
        return [standardised(grid, counting) for grid, counting in zip(self.grids, self.counting, strict=True)]

    @property
    def _bins(self) -> int:
        return sum(grid.bins for grid in self.grids)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ColumnHistograms:
        """Read what was committed in this version or an earlier one."""
        rule = {name: number for number, name in FORMATS.items()}.get(value["format"])
        if rule is None:
            known = " and ".join(map(repr, FORMATS.values()))
            raise DataError(f"The histograms have format {value['format']!r}; this version reads {known}.")
        if value["grid"] != GRID:
            raise DataError("The histograms are over another grid than that of this version.")
        grids = tuple(Grid() if ends is None else Grid((ends[0], ends[1])) for ends in value["ranges"])
        counting = tuple(tuple((place, count) for place, count in column) for column in value["counts"])
        return cls(grids, counting, noise_from_json(value["noise"]), rule)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {
            "grid": GRID,
            "ranges": [grid.ends and list(grid.ends) for grid in self.grids],
            "noise": self.noise.to_json(),
            **({"rule": self.rule} if self.rule != FIRST_RULE else {"threshold": threshold(self.noise, self._bins)}),
            "counts": [[list(pair) for pair in counting] for counting in self.counting],
        }


class ColumnsTransaction(HistogramTransaction[RequestT_co], ABC):
    """The release of histograms of all columns."""

    @property
    @abstractmethod
    def rule(self) -> int:
        """By which bins count."""

    def counting(self) -> ColumnCounting:
        """Return what is counted."""
        return ColumnCounting(grids_of(self.table))

    def told(self, noisy: Counts, ledger_head: str) -> dict[str, object]:
        """Return what is committed of the noisy counts."""
        found = ColumnHistograms.of_noisy(self.counting(), noisy, self.calibrated().noise, self.rule)
        named = {"format": FORMATS[self.rule], "release_id": self.release_id}
        return {**named, **found.to_json(), "ledger_head": ledger_head}

    def read(self) -> ColumnHistograms:
        """Return what was committed, from these bytes alone."""
        return ColumnHistograms.from_json(self.published())


class ColumnsStage(ColumnsTransaction[ReleaseRequest]):
    """The histograms as the stage of a release: the request is that of the release, whose id they stand under."""

    part: ClassVar[Part] = Part.STAGE

    @property
    def rule(self) -> int:
        """That of the release."""
        return self.request.choice_rule

    def calibrated(self) -> CalibratedHistogram:
        """Return the noise."""
        parts = self.request.parts(self.table.columns, self.table.max_rows)
        if parts is None:
            raise AssertionError("it has no stage")
        return parts.stages["scale"]
