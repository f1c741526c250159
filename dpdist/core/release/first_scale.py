"""The scale of a series of periods: chosen once, by private histograms of the columns of the first period.

Releases of a series are added, so all of them need the same centre and scale, also for future periods. The histograms
(:mod:`dpdist.core.release.histograms`) are a separate release with its own id, charged to the first period alone,
before the releases of the series. The series takes the rest of the loss.

**Theorem.** Divide the loss of the series as in :func:`dpdist.core.privacy.staged.divided`: the histograms S cost
``mu_1²``, or epsilon_1, and all releases of the series together cost no row more than ``mu_2²``, or epsilon_2, for any
centre and scale. Then S and the series keep the loss for every row. A row of a later period is affected by the series
alone.

*Proof.* S reads the first period only, and is charged to it (:mod:`dpdist.core.privacy.parallel`). Centre and scale
follow from its answer by a fixed rule: adaptive composition (:mod:`dpdist.core.privacy.staged`). ∎ With a privacy unit
the histograms are calibrated for as many rows as a release of one period (:mod:`dpdist.core.privacy.persons`). That
theorem requires that the norm of the change of an answer is at most the sum of the changes of the rows, which holds for
counts, and that the noise is Gaussian.

The histograms take a tenth if no share is given, because the cost of a run is stated before the first period exists.

The guarantee of a release of the series holds given centre and scale, as for public ones. The ledger has both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpdist.core.mechanisms.columns import BEYOND, GRID, NAME
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.release import stages
from dpdist.core.release.histograms import ColumnsTransaction
from dpdist.core.release.request import UNKNOWN, Parts, ReleaseRequest, common_parameters, id_of, parts_of
from dpdist.core.rows.table import Table


def shared(series: ReleaseRequest) -> ReleaseRequest:
    """Return the series with an explicit share for its first choice, independent of n."""
    return replace(series, scale_share=series.scale_share or UNKNOWN)


@dataclass(frozen=True)
class FirstScaleRequest:
    """Histograms of the columns of the first period of a series."""

    series: ReleaseRequest  # its loss covers the histograms and all releases of the series

    @property
    def accept_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is intended."""
        return self.series.accept_large_delta

    def parts(self, table: Table) -> Parts:
        """Return the loss of the histograms, and the request for the releases of the series."""
        return parts_of(shared(self.series), table.columns, table.max_rows)

    def guarantee(self, table: Table) -> Guarantee:
        """Return the guarantee of the histograms."""
        return self.parts(table).choice

    def parameters(self, table: Table) -> dict[str, object]:
        """Return the parameters of the histograms besides the rows, as JSON values."""
        (period,) = table.seals
        return {
            **common_parameters(table, NAME, self.guarantee(table).loss, self.series.neighbours),
            "grid": GRID,
            "period": period,
        }

    def release_id(self, table: Table) -> str:
        """Return the id, which follows from the parameters."""
        return id_of("s", self.parameters(table))


class FirstScale(ColumnsTransaction[FirstScaleRequest]):
    """The release of these histograms, which is stored in the ledger only."""

    @property
    def choosing(self) -> ReleaseRequest:
        """The request of the series."""
        return shared(self.request.series)

    def require_seen(self) -> None:
        """Refuse tables so small that the scale could not be seen; reads no row."""
        stages.require_seen(self.choosing, self.counting(), self.table.rows, self.table.max_rows)

    def blindly_scaled(self) -> tuple[list[str], list[str]]:
        """Return the columns scaled without a measured variance, and the columns without weight."""
        columns = list(zip(self.table.names, self.read().standardised, strict=True))
        weightless = [name for name, column in columns if column.scale == BEYOND]
        return [name for name, column in columns if not column.seen and name not in weightless], weightless

    def following(self) -> ReleaseRequest:
        """Return the request for all releases of the series, with the committed centre and scale."""
        series, parts = self.request.series, self.request.parts(self.table)
        return stages.standardising(series, parts, self.read(), self.table.names)[0]
