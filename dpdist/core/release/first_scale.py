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
from functools import cached_property

from dpdist.core.ledger.ledger import Account
from dpdist.core.mechanisms.columns import BEYOND, GRID, NAME
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.release import stages
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.histograms import ColumnsDraw
from dpdist.core.release.plan import UNKNOWN, Plan, planned, proved
from dpdist.core.release.request import ReleaseRequest, common_parameters, id_of
from dpdist.core.release.transaction import ReleaseTransaction
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table


def plan_of_series(series: ReleaseRequest, columns: int, counted_rows: int, schema: Schema | None) -> Plan:
    """Plan the choice of a scale and one release of a period; the share of the choice is independent of n."""
    shared = replace(series, scale_share=series.scale_share or UNKNOWN)
    return planned(shared, Dimensions(columns, changed_rows=counted_rows, schema=schema, counted=False))


@dataclass(frozen=True)
class FirstScale(ColumnsDraw, ReleaseTransaction):
    """Histograms of the columns of the first period of a series: a release that is stored in the ledger only."""

    series: ReleaseRequest  # its loss covers the histograms and all releases of the series
    table: Table
    ledger: Account

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The loss of the histograms, and of the releases of the series."""
        return plan_of_series(self.series, self.table.columns, self.table.max_rows, self.table.schema)

    @property
    def accepts_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is intended."""
        return self.series.accept_large_delta

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the histograms."""
        return proved(self.plan.choice)

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of the histograms besides the rows, as JSON values."""
        (period,) = self.table.seals
        common = common_parameters(self.table, NAME, self.guarantee.loss, self.series.neighbours)
        return {**common, "grid": GRID, "period": period}

    @property
    def release_id(self) -> str:
        """The id, which follows from the parameters."""
        return id_of("s", self.parameters)

    def require_seen(self) -> None:
        """Refuse tables so small that the scale could not be seen; reads no row."""
        stages.require_seen(self.plan.request, self.counting(), self.table.rows, self.table.max_rows)

    def blindly_scaled(self) -> tuple[list[str], list[str]]:
        """Return the columns scaled without a measured variance, and the columns without weight."""
        names = [self.table.names[place] for place in self.counting().places]
        columns = list(zip(names, self.read().standardised, strict=True))
        weightless = [name for name, column in columns if column.scale == BEYOND]
        return [name for name, column in columns if not column.seen and name not in weightless], weightless

    def following(self) -> ReleaseRequest:
        """Return the request for all releases of the series, with the committed centre and scale."""
        bound, _ = stages.standardised(self.plan, self.read(), self.table.names)
        return replace(
            self.series, loss=self.plan.loss, clip_norm=bound.clip_norm, centre=bound.centre, scale=bound.scale,
            scale_share=None, clip_share=None, clip_components=None, targets=(),
        )  # fmt: skip
