"""Choose a clip norm privately: a quantile of the rows' norms, at a small epsilon, charged once to the table's ledger.

The noisy histogram of the norms is the release (:mod:`dpdist.release.norm_histogram`); the clip norm is post-processing
of it. Rows are counted, and their noisy histogram drawn, in one way for a release of its own and for a release's stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpdist._util.text import counted, exactly
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger.address import LedgerAddressGiven, absolute
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.mechanisms.quantile import QuantileFound, require_quantile
from dpdist.moment.histograms import HistogramTask, partition_histogram
from dpdist.moment.layout import units_of
from dpdist.moment.total import add_partials
from dpdist.naming import parameter
from dpdist.pipeline.budget import ledger_place
from dpdist.privacy import checks
from dpdist.privacy.guarantee import MICRO, Number, PrivacyLoss
from dpdist.release import advice, histograms, norm_histogram, stages
from dpdist.release.advice import Worth
from dpdist.release.clip_trade import ForComponents, noise_share, quantile_for
from dpdist.release.histograms import HistogramTransaction
from dpdist.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.release.parse import quantile_from
from dpdist.release.request import Choice
from dpdist.release.trusted import MomentTransaction
from dpdist.rows.dataset import RowsTable
from dpdist.rows.periods import is_periodic
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Engine, Work
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import AnyStore, Store, store_at

_DONE = {State.COMMITTED, State.PUBLISHED}
_Leading = tuple[int, int]
"""How many components, and the epsilon of their release in millionths."""


@dataclass(frozen=True)
class ClipChoice:
    """A clip norm that was chosen privately, and what is known of it. Public."""

    histogram: NormHistogram  # the release it follows from
    quantile: Fraction
    found: QuantileFound  # where that quantile is
    fresh: bool  # whether the histogram was drawn now, or had been committed before
    enough_micro: int | None = None  # an epsilon, in millionths, with which the answer would be useful, if one is
    purpose: ForComponents | None = None  # what the quantile was chosen for, unless it was asked for

    def __repr__(self) -> str:
        clip, how = "none" if self.clip is None else exactly(self.clip), "charged now" if self.fresh else "drawn before"
        return f"ClipChoice(clip={clip}, quantile={float(self.quantile):g}, {how})"

    @property
    def worth(self) -> Worth:
        """What the answer is worth: where n is private, by its estimate."""
        rows = self.histogram.rows
        return Worth(self.quantile, self.found.rows, max(0, sum(self.histogram.counts)) if rows is None else rows)

    @property
    def clip(self) -> float | None:
        """The clip norm: the first edge of the grid that is estimated not to be below the quantile.

        None where the quantile may lie beyond the grid, at the stated confidence: then nothing is claimed.
        """
        if self.found.edge is None or self.found.up_to_edge is None:
            return None
        return self.histogram.edges[self.found.edge]

    def to_json(self) -> dict[str, object]:
        """Return all of it as JSON values."""
        edges: dict[int | None, float] = dict(enumerate(self.histogram.edges))
        return {
            "clip": self.clip,
            "quantile": float(self.quantile),
            **({} if self.purpose is None else {"components": self.purpose.number, "for": self.purpose.loss.to_json()}),
            "above": edges.get(self.found.above_edge),
            "up_to": edges.get(self.found.up_to_edge),
            "confidence": self.found.confidence,
            **self.worth.to_json(),
            "clipped_share": self.found.tail,
            "clipped_share_standard_error": self.found.tail_error,
            "fresh": self.fresh,
            "histogram": self.histogram.to_json(),
            "cautions": list(self.histogram.cautions),
        }

    def describe(self) -> str:
        """Return what was found, what it is worth and what it cost, in sentences."""
        said = self._not_found() if self.clip is None else self._chosen(self.clip)
        if self.clip is not None and self.purpose is not None:
            said += (
                f"\nWhy the {float(self.quantile):g}-quantile: for {counted(self.purpose.number, 'component')} of a "
                f"release of {self.purpose.loss}, noise and shortening together are expected to cost least there. It "
                "is a rule of thumb. Where the whole matrix counts (Frobenius error), take "
                f"{parameter('quantile', '0.95')}, at no cost."
            )
        guarantee = self.histogram.guarantee
        law = "" if guarantee.mu_squared is None else f" (Gaussian, mu² {float(guarantee.mu_squared):.3g})"
        how = "charged now" if self.fresh else "drawn before: the same answer, nothing spent"
        return (
            f"{said}\nCost: {guarantee.loss}{law} under {guarantee.neighbours}, {self.histogram.release_id} ({how})."
            f"{checks.in_words(self.histogram.cautions)}"
        )

    @property
    def _asked(self) -> str:
        return f"{float(self.quantile):g}-quantile of the norms"

    def _longer(self) -> str:
        """Say how many rows are longer than the edge in question; a sentence up to its verb."""
        share, n = self.found.tail, self.histogram.rows
        if share is None:
            return "An unknown share of the rows is"
        if n is None:
            return f"An estimated {share:.2%} of the rows (standard error {self.found.tail_error:.2%}) are"
        return f"An estimated {share * n:.0f} of {n} rows ({share:.2%}) are"

    def _chosen(self, clip: float) -> str:
        found, edges, worth = self.found, self.histogram.edges, self.worth
        low = "" if found.above_edge is None else f"above {exactly(edges[found.above_edge])} and "
        said = (
            f"Clip norm {exactly(clip)}. {self._longer()} longer, and would be shortened to it."
            f"\nWorth: the noise {worth.moved}"
        )
        if self.histogram.rows is None:
            said += f" of an estimated {worth.rows}. So the clip norm lies, about, {worth.ends()}"
        else:
            said += f" of {worth.rows}. So the clip norm lies {worth.ends()}, rounded up to the grid"
        if not worth.useful:
            more = "" if self.enough_micro is None else f"epsilon {self.enough_micro / MICRO:g} (charged anew), "
            said += f", which is rough. It would be useful with {more}a shorter grid (charged anew) "
            said += f"or, free, a smaller {parameter('quantile')}"
        said += f". The {self._asked} is {low}at most {exactly(edges[found.up_to_edge or 0])}."
        if found.edge == 0:
            said += f" It is the first norm of the grid: a smaller one, with less noise, may do ({parameter('grid')})."
        return said

    def _not_found(self) -> str:
        """Say why there is no clip norm, and what would help: a longer grid, or less noise."""
        found, edges, worth = self.found, self.histogram.edges, self.worth
        end, place = exactly(edges[-1]), exactly(edges[-1 if found.edge is None else found.edge])
        said, cure = f"beyond the grid, which ends at {end}. {self._longer()} longer", ""
        if found.above_edge == len(edges) - 1:
            said = f"lies {said}. A larger epsilon would not help."
        else:
            said = f"may lie {said} than {place}, and the noise {worth.moved}: "
            if worth.useful:
                said += "so little that some rows do lie beyond. A larger epsilon would not help."
            else:
                said += "too much to tell."
                epsilon = "a larger epsilon" if self.enough_micro is None else f"epsilon {self.enough_micro / MICRO:g}"
                cure = f"{epsilon}, or a grid of fewer norms ({parameter('grid')}): either is"
        if not cure:
            reaching = parameter("grid", "LOW:HIGH:PER_OCTAVE")
            cure = f"a grid that reaches further, from public knowledge ({reaching}): it is"
        free = self.smaller_quantile()
        cheap = "" if free is None else f" Or take {parameter('quantile', f'{free:g}')} of this histogram, at no cost."
        return f"No clip norm: the {self._asked} {said} Ask again with {cure} charged anew.{cheap}"

    def smaller_quantile(self) -> float | None:
        """Return the largest quantile below the one asked for, in hundredths, that this histogram does answer.

        None where it answers none from 0.5 on. It is post-processing of the release, and free.
        """
        for hundredths in range(math.ceil(100 * self.quantile) - 1, 49, -1):
            found = self.histogram.quantile(Fraction(hundredths, 100))
            if found.edge is not None and found.up_to_edge is not None:
                return hundredths / 100
        return None


def choose_clip_norm(
    rows: AnyStore,
    request: NormsRequest,
    quantile: str | float | Fraction | None = None,
    *,
    components: int | None = None,
    release_epsilon: Number | None = None,
    ledger: LedgerAddressGiven | None = None,
    cluster: Cluster | None = None,
    budget_delta: bool = False,
    say: Callable[[str], None] | None = None,
) -> ClipChoice:
    """Choose the clip norm of a table privately, as a quantile of the norms of its rows.

    A noisy histogram of the norms is released and charged to the ledger, once. The same request again costs nothing,
    nor does another quantile of the same histogram. What is reserved, refunded and resumed is as of
    :func:`dpdist.release_rows`.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address (``s3://``, ``gs://``, ``az://``).
    request : NormsRequest
        What to spend, and the public grid of norms to choose from.
    quantile : str, float or Fraction, default None
        The share of the rows that shall be at most as long as the clip norm, between 0 and 1. None: 0.95, or the one
        for ``components``.
    components : int, default None
        K, from 1 to d - 1: take the quantile at which noise and shortening are expected to cost the K leading
        components least, by a rule of thumb (:mod:`dpdist.release.clip_trade`). None: take ``quantile``.
    release_epsilon : str, int, float or Decimal, default None
        With ``components``, the epsilon of the release to come, at the delta of the histogram: its noise counts.
    ledger : str or path-like, default None
        Where the budget is kept. None: beside the rows; of rows at an address, the one that this machine remembers.
    cluster : Cluster, default None
        Where to compute. None: threads of this process.
    budget_delta : bool, default False
        Whether a request without a delta takes that of the budget, where it has one. If this very histogram was
        released with either before, that one is given again.
    say : callable, default None
        Called with what the answer will be worth (str), before anything is charged or read. None: nobody is told.

    Returns
    -------
    ClipChoice
        ``clip`` (float, in the units of the shifted and scaled rows; None where the quantile may lie beyond the grid),
        ``worth``, ``histogram`` and ``fresh``; all of it public.

    Raises
    ------
    UsageError
        If the request makes no sense for this table, a quantile and ``components`` are both given, or ``components``
        without ``release_epsilon`` or the reverse.
    RefusedError
        If the budget does not suffice, there is none, the noise would hide the quantile, or the rows come in periods.
    DataError
        If rows or cluster cannot be used.
    ResumableError
        If the cluster was lost half-way.

    See Also
    --------
    NormsRequest : What to ask for.
    release_rows : Takes the clip norm, as part of a :class:`dpdist.ReleaseRequest`.

    References
    ----------
    Dwork, McSherry, Nissim & Smith 2006 (histograms); Balle & Wang 2018 (the Gaussian mechanism). Proof and error are
    in :mod:`dpdist.mechanisms.quantile`.

    Examples
    --------
    Here it is not run.

    >>> import dpdist
    >>> request = dpdist.NormsRequest(dpdist.PrivacyLoss.parse(0.1))
    >>> choice = dpdist.choose_clip_norm("rows.zarr", request)  # doctest: +SKIP
    >>> choice.clip  # doctest: +SKIP
    90.51
    """
    asked = _asked(quantile, components, release_epsilon)
    table, where = _table_at(store_at(rows)), chosen(cluster)
    request.bound(table.columns)  # refuses public vectors of another length
    advice.require_centre_of_dropped(table, centred=request.centre is not None)
    account = absolute(ledger_place(table, ledger))
    transaction = NormsTransaction(request, table, account)
    if not where.trusted_worker:
        transaction, state, left = _looked_up(transaction, budget_delta)
        if state in _DONE:
            transaction.reserve()  # refuses a ledger that is not of these rows
            return _choice(transaction, transaction.read(), asked, fresh=False)
        _foretell(transaction, asked, state, left, say)
    with where.connected() as engine:
        engine.require_visible(table.probe, ROOT)
        if where.trusted_worker:
            transaction, state, left = engine.trusted(_looked_up, transaction, budget_delta)
            if state not in _DONE:
                _foretell(transaction, asked, state, left, say)
        fresh = engine.trusted(transaction.reserve) is State.RESERVED
        if fresh:
            draw_histogram(engine, transaction, "Counting norms")
        return _choice(transaction, engine.trusted(transaction.read), asked, fresh=fresh)


def _asked(
    quantile: str | float | Fraction | None, components: int | None, release_epsilon: Number | None
) -> Fraction | _Leading:
    """Return the quantile that is asked for, or the components that it is to be chosen for."""
    if (components is None) != (release_epsilon is None):
        raise UsageError(
            f"{parameter('components')} and {parameter('release_epsilon')} belong together: how much a clip norm may "
            "shorten depends on the noise of the release that it is for."
        )
    if components is not None and release_epsilon is not None:
        if quantile is not None:
            raise UsageError(
                f"{parameter('components')} chooses the quantile: leave {parameter('quantile')} out, or take it alone."
            )
        if components < 1:
            raise UsageError("At least one component is asked for.", parameter="components")
        return components, PrivacyLoss.parse(release_epsilon, 0).epsilon_micro
    share = Fraction(95, 100) if quantile is None else quantile
    if not isinstance(share, Fraction):
        return quantile_from(str(share))
    require_quantile(share)
    return share


def _foretell(
    transaction: NormsTransaction,
    asked: Fraction | _Leading,
    state: State | None,
    left_micro: int | None,
    say: Callable[[str], None] | None,
) -> None:
    """Say what the answer will be worth; refuse one that is worth nothing, unless it is charged already."""
    request, table = transaction.request, transaction.table
    if state is not State.RESERVED:
        checks.require_small_delta(request.loss, request.neighbours, table.rows, accepted=request.accept_large_delta)
    checks.warn(request.calibrated(table).guarantee.loss, request.neighbours, table.rows)
    if state is State.RESERVED:
        return
    if isinstance(asked, tuple):
        noise_share(_purpose(asked, request), request.neighbours, table.columns, table.max_rows)
    said = advice.forecast(request, table, None if isinstance(asked, tuple) else asked, left_micro)
    if say is not None:
        say(said)


def _purpose(asked: _Leading, request: NormsRequest) -> ForComponents:
    number, epsilon_micro = asked
    return ForComponents(number, PrivacyLoss(epsilon_micro, request.loss.delta_atto))


def _choice(
    transaction: NormsTransaction, histogram: NormHistogram, asked: Fraction | _Leading, *, fresh: bool
) -> ClipChoice:
    request, table = transaction.request, transaction.table
    purpose = _purpose(asked, request) if isinstance(asked, tuple) else None
    quantile = asked if isinstance(asked, Fraction) else Fraction(95, 100)
    if purpose is not None:
        quantile = quantile_for(purpose, histogram, table.columns, table.max_rows)
    choice = ClipChoice(histogram, quantile, histogram.quantile(quantile), fresh, purpose=purpose)
    if choice.worth.useful:
        return choice
    return replace(choice, enough_micro=advice.useful_epsilon(request, table, quantile))


def _looked_up(transaction: NormsTransaction, budget_delta: bool) -> tuple[NormsTransaction, State | None, int | None]:
    """Return the transaction with its delta settled, the state of its histogram, and the epsilon that is left for it.

    The state is None where nothing of it is charged; the epsilon, in millionths, where there is no ledger yet.
    """
    if budget_delta and not transaction.request.loss.delta_atto:
        transaction = norm_histogram.resolved(transaction)
    if not Ledger.stands_at(transaction.ledger):
        return transaction, None, None
    ledger = Ledger(transaction.ledger)
    record, left = ledger.record(transaction.release_id), ledger.balance().left
    state = None if record is None or record.state is State.ABORTED else record.state
    return transaction, state, left.gaussian_micro if transaction.request.loss.delta_atto else left.pure_micro


def _table_at(rows: Store) -> RowsTable:
    """Open a table whose rows do not come in periods."""
    table = None if is_periodic(rows) else open_rows(rows)
    if table is None or table.period is not None:
        raise RefusedError(
            f"The rows of {rows} come in periods, and one clip norm holds for all periods, also for those to come. A "
            "quantile of the periods so far would say nothing of later ones. Choose the clip norm from what is "
            "publicly known, or from another table, such as that of an earlier year."
        )
    return table


def draw_histogram(engine: Engine, transaction: HistogramTransaction[Any], label: str) -> None:
    """Count the rows, and commit a noisy histogram of them; what was reserved is refunded if rows fail."""
    table, counting, workers = transaction.table, transaction.counting(), engine.resources().slots
    task = HistogramTask(table, counting, range(table.chunks))
    row_seconds = counting.value_seconds * table.columns
    units = units_of(table, row_seconds=row_seconds, entries=counting.bins, workers=workers)
    work = Work("sum", partition_histogram, task, units, add_partials, nbytes=8 * counting.bins)
    try:
        engine.reduce(work, histograms.finalise, transaction, label=label)
    except DataError:
        engine.trusted(transaction.abort)
        raise


def draw_alone(transaction: HistogramTransaction[Any], cluster: Cluster, label: str) -> bool:
    """Charge a histogram that is a release of its own, draw and commit it; say whether it was not drawn before."""
    table = transaction.table
    with cluster.connected() as engine:
        engine.require_visible(table.probe, ROOT)
        fresh = engine.trusted(transaction.reserve) is State.RESERVED
        if fresh:
            draw_histogram(engine, transaction, label)
    return fresh


def draw_stages(engine: Engine, transaction: MomentTransaction) -> None:
    """Draw the stages of a release that are not committed yet, one after the other, as :func:`draw_histogram` does."""
    labels: dict[Choice, str] = {"scale": "Counting columns", "clip norm": "Counting norms"}
    for choice, part in zip(transaction.request.chooses, (Part.STAGE, Part.SECOND), strict=False):
        if not engine.trusted(transaction.has, part):
            draw_histogram(engine, engine.trusted(stages.stage_of, transaction, choice), labels[choice])


def require_choice(transaction: MomentTransaction) -> None:
    """Refuse a release that could choose nothing of these rows; it looks at what is public, and charges nothing."""
    table, chosen = transaction.table, transaction.request.chooses
    if table.seals:
        taken = f"its clip norm ({parameter('clip')})"
        if chosen[0] == "scale":
            taken = f"that release, whose centre and scale are taken: {parameter('centre', 'PILOT.release.zarr')}"
        raise RefusedError(
            f"The rows come in periods, and one {chosen[0]} holds for all of them, also for those to come: a release "
            "cannot choose it. Choose it from what is publicly known; or release a table of rows that come in no "
            f"period once, and name {taken}."
        )
    if "scale" in chosen:
        counting = stages.columns_of(transaction).counting()
        stages.require_seen(transaction.request, counting, table.rows, table.max_rows)
    said = advice.choice_refused(transaction.request, table.columns, table.rows, table.max_rows)
    if said is not None:
        raise RefusedError(f"{said} Nothing was read or spent.")
