"""Choose a clip norm privately: a quantile of the rows' norms, at a small epsilon, charged once to the table's ledger.

The noisy histogram of the norms is the release (:mod:`dpdist.release.norms`); the clip norm is post-processing of it.
The same request again is answered from the ledger at no cost, and so is another quantile of the same histogram.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpdist.accounts import default_ledger
from dpdist.errors import DataError, RefusedError
from dpdist.mechanisms.quantile import QuantileFound, quantile_of, require_quantile
from dpdist.moment.histogram import histogram_tasks, partition_histogram
from dpdist.moment.total import add_partials
from dpdist.paths import AnyPath, local
from dpdist.pipeline import Cluster
from dpdist.privacy import caution
from dpdist.privacy.books import State
from dpdist.privacy.guarantee import Neighbours
from dpdist.privacy.ledger import Ledger
from dpdist.privacy.places import PlaceGiven, place_given
from dpdist.release import norms
from dpdist.release.norms import NormHistogram, NormsRequest, NormsTransaction
from dpdist.rows.dataset import RowsTable, open_rows
from dpdist.rows.periods import is_periodic


@dataclass(frozen=True)
class ClipChoice:
    """A clip norm that was chosen privately, and what is known of it. Public.

    Attributes
    ----------
    histogram
        The release it follows from.
    quantile
        What was asked for.
    found
        Where that quantile is.
    fresh
        Whether the histogram was drawn now, or had been committed before.
    """

    histogram: NormHistogram
    quantile: Fraction
    found: QuantileFound
    fresh: bool

    @property
    def clip(self) -> float | None:
        """The clip norm: the first edge of the grid that is estimated not to be below the quantile.

        None where the quantile may lie beyond the grid, at the stated confidence: then nothing is claimed.
        """
        if self.found.edge is None or self.found.up_to_edge is None:
            return None
        return self.histogram.edges[self.found.edge]

    def _edge(self, number: int | None) -> float | None:
        return None if number is None else self.histogram.edges[number]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "clip": self.clip,
            "quantile": float(self.quantile),
            "above": self._edge(self.found.above_edge),
            "up_to": self._edge(self.found.up_to_edge),
            "confidence": self.found.confidence,
            "error_rows": self.found.rows,
            "clipped_share": self.found.tail,
            "clipped_share_standard_error": self.found.tail_error,
            "fresh": self.fresh,
            "histogram": self.histogram.to_json(),
            "cautions": list(self.histogram.cautions),
        }

    def words(self) -> str:
        """Return what was found and what it cost, in sentences."""
        found, edges, q = self.found, self.histogram.edges, f"{float(self.quantile):g}-quantile of the norms"
        longer = "An unknown share of the rows is"
        if found.tail is not None and found.tail_error is not None:
            longer = f"An estimated {found.tail:.2%} of the rows (standard error {found.tail_error:.2%}) are"
        if self.clip is None or found.up_to_edge is None:
            place = edges[-1 if found.edge is None else found.edge]
            said = (
                f"No clip norm: the {q} may lie beyond the grid, which ends at {edges[-1]:g}. {longer} longer than "
                f"{place:g}. Ask again with a grid that reaches further (--grid), or with a larger epsilon."
            )
        else:
            low = "" if found.above_edge is None else f"above {edges[found.above_edge]:g} and "
            said = (
                f"Clip norm {self.clip:g}. {longer} longer, and would be shortened to it. The {q} is {low}at most "
                f"{edges[found.up_to_edge]:g} at confidence {found.confidence:g}; the noise moves the rank of the "
                f"clip norm among the norms by at most {found.rows:.0f} rows."
            )
            if found.edge == 0:
                said += " It is the first norm of the grid: a smaller one, with less noise, may do (--grid)."
        guarantee = self.histogram.guarantee
        law = "" if guarantee.mu_squared is None else f" (Gaussian, mu² {float(guarantee.mu_squared):.3g})"
        how = "charged now" if self.fresh else "drawn before: the same answer, nothing spent"
        return (
            f"{said}\nCost: {guarantee.loss}{law} under {guarantee.neighbours}, {self.histogram.release_id} ({how})."
            f"{caution.in_words(self.histogram.cautions)}"
        )


def choose_clip(
    rows: AnyPath,
    request: NormsRequest,
    quantile: Fraction,
    *,
    ledger: PlaceGiven | None = None,
    cluster: Cluster | None = None,
    budget_delta: bool = False,
) -> ClipChoice:
    """Choose the clip norm of a table as a quantile of its norms; the same request again costs nothing.

    The budget is reserved before any row is read. If a chunk turns out to be unusable, the reservation is refunded,
    because no noise was drawn; if anything dies, it is kept and the same call resumes.

    Parameters
    ----------
    rows
        The table.
    request
        What to spend, on which grid.
    quantile
        Which share of the rows shall be at most as long as the clip norm, between 0 and 1.
    ledger
        Where its budget is kept, if not beside it.
    cluster
        Where to compute.
    budget_delta
        Whether a request without a delta takes that of the budget, where it has one. If this very histogram was
        released with either before, that one is given again.

    Raises
    ------
    UsageError
        If the request makes no sense for this table.
    RefusedError
        If the budget does not suffice, there is none, the noise would hide the quantile, or the rows come in periods.
    DataError
        If rows or cluster cannot be used.
    ResumableError
        If the cluster was lost half-way.
    """
    require_quantile(quantile)
    table, where = _table_at(local(rows)), cluster or Cluster()
    bound = request.bound(table.columns)
    place = place_given(ledger or default_ledger(table.path))
    transaction = NormsTransaction(request, table, place.absolute() if isinstance(place, Path) else place)
    if not where.trusted_worker:
        transaction, committed = _looked_up(transaction, budget_delta)
        if committed:
            norms.reserve(transaction)  # refuses a ledger that is not of these rows
            return _choice(norms.published(transaction), quantile, fresh=False)
        _require_worth(transaction, quantile)
    with where.connected(trusted_worker=where.trusted_worker) as engine:
        engine.require_path(table.landmark)
        if where.trusted_worker:
            transaction, committed = engine.trusted(_looked_up, transaction, budget_delta)
            if not committed:
                _require_worth(transaction, quantile)
        fresh = engine.trusted(norms.reserve, transaction) is State.RESERVED
        if fresh:
            tasks = histogram_tasks(table, bound, request.grid.edges, len(engine.workers))
            try:
                sums = engine.reduce(partition_histogram, add_partials, tasks, "Counting norms")
                engine.trusted(norms.finalise, transaction, sums=sums)
            except DataError:
                engine.trusted(norms.abort, transaction)
                raise
        return _choice(engine.trusted(norms.published, transaction), quantile, fresh=fresh)


def _require_worth(transaction: NormsTransaction, quantile: Fraction) -> None:
    """Refuse a histogram whose noise hides the quantile, and warn of one whose guarantee promises little."""
    request, table = transaction.request, transaction.table
    guarantee = request.calibrated(table).guarantee
    caution.warn(guarantee.loss, guarantee.neighbours, table.rows)
    norms.require_telling(request, table, quantile)


def _choice(histogram: NormHistogram, quantile: Fraction, *, fresh: bool) -> ClipChoice:
    found = quantile_of(histogram.counts, histogram.noise, quantile, rows=histogram.rows)
    return ClipChoice(histogram, quantile, found, fresh)


def _looked_up(transaction: NormsTransaction, budget_delta: bool) -> tuple[NormsTransaction, bool]:
    """Return the transaction with its delta settled, and whether its histogram was committed before."""
    if budget_delta and not transaction.request.loss.delta_atto:
        transaction = norms.settled(transaction)
    if not Ledger.stands_at(transaction.ledger):
        return transaction, False
    record = Ledger(transaction.ledger).record(transaction.release_id)
    return transaction, record is not None and record.state in {State.COMMITTED, State.PUBLISHED}


def _table_at(rows: Path) -> RowsTable:
    """Open a table whose rows do not come in periods.

    Raises
    ------
    RefusedError
        If they do.
    DataError
        If there is none.
    """
    table = None if is_periodic(rows) else open_rows(rows)
    if table is None or table.period is not None:
        raise RefusedError(
            f"The rows of {rows} come in periods, and one clip norm holds for all of them, those to come included: a "
            "quantile of the periods so far would be paid for by their rows and say nothing of later ones. Choose it "
            "from what is publicly known, or from a table of its own, such as an earlier year's."
        )
    return table


def next_command(rows: Path, choice: ClipChoice, centre: str) -> str | None:
    """Return the command that releases with the chosen clip norm, to be completed; None where none was chosen."""
    if choice.clip is None:
        return None
    neighbours, loss = choice.histogram.guarantee.neighbours, choice.histogram.guarantee.loss
    more = "" if centre == "none" else f" --centre {shlex.quote(centre)}"
    more += f" --delta {Decimal(loss.delta_atto).scaleb(-18).normalize()}" if loss.delta_atto else ""
    more += "" if neighbours is Neighbours.REPLACE_ONE else f" --neighbours {neighbours}"
    return f"dpdist release {shlex.quote(str(rows))} RELEASE --epsilon E --clip {choice.clip:g}{more}"
