"""The requests and paths of a series of releases of periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.naming import parameter, step
from dpdist.core.paths import local
from dpdist.core.pipeline import budget
from dpdist.core.privacy import accounting
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.release.bounds import Dimensions, without_choices
from dpdist.core.release.first_scale import FirstScale
from dpdist.core.release.plan import plan_of, planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.series import Node, PeriodSum, Toeplitz, Tree
from dpdist.core.rows.periods import PeriodicTable, Span, counted_rows
from dpdist.core.rows.units import Unit
from dpdist.jobs.job_file import Job


@dataclass(frozen=True)
class Series:
    """A job's table of periods, its ledger and its releases."""

    job: Job
    table: PeriodicTable
    ledger: Ledger
    ledger_address: LedgerAddress

    @property
    def plan(self) -> Tree | Toeplitz:
        """The plan of releases."""
        return self.job.plan

    @cached_property
    def request(self) -> ReleaseRequest:
        """The request of the first release; the others share its grid, as they are added up."""
        (leaf,) = self.plan.released(1)
        request, first = replace(self._shared, loss=self._loss_of(leaf)), self.span(leaf)
        return replace(request, grid_bits=plan_of(request, first).bound.grid_bits)

    def request_for(self, node: Node | PeriodSum, span: Span) -> ReleaseRequest:
        """Return the request for a node."""
        return replace(self.request, loss=self._loss_of(node), period=span.label)

    def _loss_of(self, node: Node | PeriodSum) -> PrivacyLoss:
        return share_of(self._shared, len(self.columns), self.plan, node, self.job.unit)

    @cached_property
    def first_scale(self) -> FirstScale | None:
        """The release that chooses the scale of all periods from the first one, or None."""
        if not self.job.request.chooses:
            return None
        ((period, seal), *_) = self.ledger.periods.items()
        first = self.table.span({period: seal}, 0)
        return FirstScale(self.job.request, first, self.ledger_address)

    @cached_property
    def _shared(self) -> ReleaseRequest:
        """The request of the job, or its remainder after the choice of the scale."""
        return self.job.request if self.first_scale is None else self.first_scale.following()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Column names of the first period."""
        return open_rows(self.table.rows_of(next(iter(self.ledger.periods)))).names

    def span(self, node: Node | PeriodSum) -> Span:
        """Return the rows of a node; the last one is cached."""
        if node not in self._opened:
            seals = list(self.ledger.periods.items())[node.start : node.stop]
            self._opened.clear()
            self._opened[node] = replace(self.table.span(dict(seals), node.start), weights=node.weights)
        return self._opened[node]

    @cached_property
    def _opened(self) -> dict[Node | PeriodSum, Span]:
        return {}

    @property
    def releases(self) -> Path:
        """The folder of the releases."""
        return local(str(self.job.release))

    @property
    def models(self) -> Path | None:
        """The folder of the models, or None."""
        return None if self.job.model is None else local(str(self.job.model))

    def path_of(self, periods: Sequence[str], node: Node | PeriodSum) -> Path:
        """Return the path of the release of a node."""
        return self.releases / f"{node.label(periods)}.zarr"

    def total_path(self, period: str) -> Path:
        """Return the path of the total up to a period."""
        return self.releases / "total" / f"{period}.zarr"

    def window_path(self, period: str, window: int) -> Path:
        """Return the path of the sum of the last ``window`` periods."""
        return self.releases / f"window-{window}" / f"{period}.zarr"


def share_of(
    request: ReleaseRequest, columns: int, plan: Tree | Toeplitz, node: Node | PeriodSum, unit: Unit | None
) -> PrivacyLoss:
    """Return the loss of one release, so that all releases together have the requested loss."""
    # With a privacy unit, the share of a node is proportional to the square of the number of rows for which it counts
    # the unit, so all nodes have the same noise up to the rounding of epsilon.
    if unit is not None and request.mechanism != "gaussian":
        raise UsageError(
            f"{request.mechanism} cannot protect a privacy unit with rows in several periods. Use "
            f"{parameter('mechanism', 'gaussian')}."
        )
    if isinstance(plan, Toeplitz) and request.mechanism != "gaussian":
        raise UsageError(
            f"{request.mechanism} cannot release weighted sums. Use {parameter('mechanism', 'gaussian')}, or "
            f"{parameter('factorisation', 'tree')}."
        )
    if not request.mechanism_info.additive:
        raise UsageError(
            f"Releases of {request.mechanism} cannot be added up over periods. Use a mechanism that adds noise to the "
            "moment: gaussian or two-sided-wishart."
        )
    guarantee = planned(without_choices(request), Dimensions(columns)).guarantee
    gaussian = guarantee is not None and guarantee.mu_squared is not None
    shares = plan.shares
    if isinstance(plan, Tree) and isinstance(node, Node):
        squares = [counted_rows(unit, 1 << level) ** 2 for level in range(plan.levels)]
        shares = Fraction(sum(squares), squares[node.level])
    return accounting.share(request.loss, shares, gaussian=gaussian)


def require_same_unit(job: Job, table: PeriodicTable) -> None:
    """Refuse a table of periods with another privacy unit than the job file."""
    if job.unit != table.unit:
        actual, requested = (
            "one row" if unit is None else f"{unit.column}, {unit.most}" for unit in (table.unit, job.unit)
        )
        raise RefusedError(
            f"{job.rows} protects {actual}, but the job file asks for {requested}. The privacy unit is declared once, "
            "with the first period. Change the job file, or change [rows] path to ingest these rows elsewhere."
        )


def require_same_schema(job: Job, table: PeriodicTable, closed: Sequence[str]) -> None:
    """Refuse a schema other than that of the closed periods, whose sum it would change."""
    if closed and open_rows(table.rows_of(closed[-1])).schema != job.choices.schema:
        raise RefusedError(
            f"The job file has another schema than the closed periods of {job.rows}, whose rows are summed with new "
            "ones. Use their schema, or change [rows] path and [release] path to begin another table of periods."
        )


def open_series(job: Job) -> Series:
    """Open the table and ledger of a job, or create them."""
    table, ledger = budget.periodic_table(job.rows, job.budget, job.ledger, job.unit)
    require_same_unit(job, table)
    return Series(job, table, ledger, job.ledger or budget.default_ledger(job.rows))


def series_guarantee(guarantee: Guarantee, plan: Toeplitz) -> Guarantee:
    """Return the joint guarantee of all releases of a series for a row in all of them, from that of one release."""
    if guarantee.mu_squared is None:
        raise AssertionError("a series has Gaussian releases")
    return replace(guarantee, mu_squared=guarantee.mu_squared * plan.shares)


def past_horizon(horizon: int, period: str) -> str:
    """Explain why a period is not released: a square-root factorisation has a fixed length."""
    return (
        f"The period {period} exceeds the {horizon} periods of this series ({parameter('continual')}), which use the "
        "whole loss of a row and cannot be extended. Start a new table for this and later periods, with other folders "
        "for source and path in [rows] and for path in [release]. Their totals can be added to the last total of this "
        f"series ({step('combine')})."
    )
