"""The scale of a series of periods: chosen once, by private histograms of the columns of the first period.

Releases of a series are added up, so all of them take one centre and scale, also for periods to come. The histograms
(:mod:`dpdist.release.histograms`) are a release of their own, with an id of its own. It is charged to the first
period alone, before the releases of the series. These take what is left of the loss.

**Theorem.** Let the loss of the series be divided as :func:`dpdist.privacy.staged.divided` does: the histograms S cost
``mu_1²``, or epsilon_1, and the releases of the series together cost no row more than ``mu_2²``, or epsilon_2, whatever
centre and scale are. Then S and the series keep the loss for every row. A row of a later period loses by the series
alone.

*Proof.* S reads the first period only, and is charged to it (:mod:`dpdist.privacy.parallel`). What follows is chosen
from its answer, by a fixed rule: adaptive composition (:mod:`dpdist.privacy.staged`). ∎ With a privacy unit the
histograms are calibrated for as many rows as any release of one period (:mod:`dpdist.privacy.persons`). Its theorem
asks of an answer that the norm of its change is at most the sum of the changes of the rows, which holds of counts, and
that the noise is Gaussian.

The histograms take a tenth where no share is named: what a run would cost is told before the first period is there.

What a release of the series guarantees it guarantees given centre and scale, as it would of public ones. The ledger
has both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpdist.mechanisms.columns import BEYOND, GRID, NAME
from dpdist.privacy.guarantee import Guarantee
from dpdist.release import stages
from dpdist.release.histograms import ColumnsTransaction
from dpdist.release.request import FIRST_RULE, UNKNOWN, Parts, ReleaseRequest, common_parameters, id_of, parts_of
from dpdist.rows.table import Table


def shared(series: ReleaseRequest) -> ReleaseRequest:
    """Return a series with the share that its first choice takes: what is said of all its rows says nothing of it."""
    return replace(series, scale_share=series.scale_share or UNKNOWN)


@dataclass(frozen=True)
class FirstScaleRequest:
    """Histograms of the columns of the first period of a series."""

    series: ReleaseRequest  # of the whole series: its loss is that of the histograms and all releases together

    @property
    def accept_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is meant."""
        return self.series.accept_large_delta

    def parts(self, table: Table) -> Parts:
        """Return what the histograms cost, and the request that the releases of the series share the rest of."""
        return parts_of(shared(self.series), table.columns, table.max_rows)

    def guarantee(self, table: Table) -> Guarantee:
        """Return what is proved of the histograms."""
        return self.parts(table).choice

    def parameters(self, table: Table) -> dict[str, object]:
        """Return everything the histograms depend on besides the rows, as JSON values."""
        (period,) = table.seals
        return {
            **common_parameters(table, NAME, self.guarantee(table).loss, self.series.neighbours),
            "grid": GRID,
            "period": period,
            **({} if self.series.choice_rule == FIRST_RULE else {"rule": self.series.choice_rule}),
        }

    def release_id(self, table: Table) -> str:
        """Return the id, which follows from the parameters."""
        return id_of("s", self.parameters(table))


class FirstScale(ColumnsTransaction[FirstScaleRequest]):
    """The release of these histograms: it stands in the ledger, and nowhere else."""

    @property
    def choosing(self) -> ReleaseRequest:
        """That of the series."""
        return shared(self.request.series)

    def require_seen(self) -> None:
        """Refuse histograms in which not even a bin with half of all rows would count; it reads no row."""
        stages.require_seen(self.choosing, self.counting(), self.table.rows, self.table.max_rows)

    def blindly_scaled(self) -> tuple[list[str], list[str]]:
        """Return the columns of which no variance was seen, and those that weigh nothing, as a release tells them."""
        columns = list(zip(self.table.names, self.read().standardised, strict=True))
        weightless = [name for name, column in columns if column.scale == BEYOND]
        return [name for name, column in columns if not column.seen and name not in weightless], weightless

    def following(self) -> ReleaseRequest:
        """Return what the releases of the series share: their loss, and the centre and scale that were committed."""
        series, parts = self.request.series, self.request.parts(self.table)
        return stages.standardising(series, parts, self.read(), self.table.names)[0]
