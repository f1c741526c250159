"""Choose a clip norm privately: a quantile of the rows' norms, for a small epsilon, charged once to the ledger.

The noisy histogram of the norms is the release (:mod:`dpdist.core.release.norm_histogram`); the clip norm is
post-processing. The same functions count rows and draw the histogram for a release of its own and for a stage of
another release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import AnyLedgerAddress, absolute
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.quantile import QuantileEstimate, require_quantile
from dpdist.core.moment.histograms import HistogramTask, partition_histogram
from dpdist.core.moment.layout import split_tasks
from dpdist.core.moment.total import add_partials
from dpdist.core.naming import parameter
from dpdist.core.pipeline.budget import ledger_place
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import MICRO, Number, PrivacyLoss
from dpdist.core.progress import LOGGER
from dpdist.core.release import advice, histograms, norm_histogram, stages
from dpdist.core.release.advice import QuantileAccuracy
from dpdist.core.release.clip_trade import ForComponents, noise_share, quantile_for
from dpdist.core.release.first_scale import FirstScale
from dpdist.core.release.histograms import HistogramDraw
from dpdist.core.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.core.release.parse import quantile_from
from dpdist.core.release.request import Choice
from dpdist.core.release.trusted import MomentTransaction
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.periods import is_periodic
from dpdist.core.runtime.cluster import AnyCluster, Cluster, chosen
from dpdist.core.runtime.local import Computation, Executor
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import counted, exactly

_DONE = {State.COMMITTED, State.PUBLISHED}
_Leading = tuple[int, int]
"""Number of leading components, and the epsilon of their release in millionths."""


@dataclass(frozen=True)
class ClipChoice:
    """A privately chosen clip norm, and its accuracy. Public."""

    histogram: NormHistogram  # the release
    quantile: Fraction
    found: QuantileEstimate  # position of the quantile
    fresh: bool  # whether the histogram was drawn now
    enough_micro: int | None = None  # an epsilon, in millionths, for a useful answer, if there is one
    purpose: ForComponents | None = None  # the release that the quantile was chosen for, if not given

    def __repr__(self) -> str:
        clip = "none" if self.clip is None else exactly(self.clip)
        status = "charged now" if self.fresh else "drawn before"
        return f"ClipChoice(clip={clip}, quantile={float(self.quantile):g}, {status})"

    @property
    def worth(self) -> QuantileAccuracy:
        """Accuracy of the answer, with an estimate of n if n is private."""
        histogram = self.histogram
        rows = max(0, sum(histogram.counts)) if histogram.rows is None else histogram.rows
        return QuantileAccuracy(self.quantile, self.found.rows, rows, noun=histogram.noun)

    @property
    def clip(self) -> float | None:
        """The clip norm: the first edge of the grid whose estimate is not below the quantile.

        None if, at the stated confidence, the quantile may be beyond the grid.
        """
        if self.found.edge is None or self.found.up_to_edge is None:
            return None
        return self.histogram.edges[self.found.edge]

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
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
        """Return the clip norm, its accuracy and its cost in sentences."""
        text = self._not_found() if self.clip is None else self._chosen(self.clip)
        if self.clip is not None and self.purpose is not None:
            text += (
                f"\nWhy the {float(self.quantile):g}-quantile: for {counted(self.purpose.number, 'component')} of a "
                f"release of {self.purpose.loss}, the expected error from noise and clipping is smallest there. This "
                "is a rule of thumb. For the error of the whole matrix (Frobenius norm), pass "
                f"{parameter('quantile', '0.95')}, at no cost."
            )
        guarantee = self.histogram.guarantee
        profile = "" if guarantee.mu_squared is None else f" (Gaussian, mu² {float(guarantee.mu_squared):.3g})"
        condition = "" if self.histogram.condition is None else f", if {self.histogram.condition}"
        status = "charged now" if self.fresh else "drawn before: the same answer, nothing spent"
        return (
            f"{text}\nCost: {guarantee.loss}{profile} under {guarantee.neighbours}{condition}, "
            f"{self.histogram.release_id} ({status}).{checks.cautions_message(self.histogram.cautions)}"
        )

    @property
    def _effect(self) -> str:
        if not self.histogram.unit_norm:
            return "would be clipped to it"
        if self.purpose is not None:
            return "their rows would weigh less"
        return (
            "their rows would weigh less. A smaller one, at which more weigh less, often has less error: "
            f"{parameter('clip_components', 'K')} {parameter('release_epsilon', 'E')} choose it"
        )

    @property
    def _quantile_text(self) -> str:
        return f"{float(self.quantile):g}-quantile of the norms"

    def _longer(self) -> str:
        """Return the beginning of a sentence, with its verb, about the rows longer than the edge."""
        share, n, counted_ones = self.found.tail, self.histogram.rows, self.histogram.noun
        if share is None:
            return f"An unknown share of the {counted_ones} is"
        if n is None:
            return f"An estimated {share:.2%} of the {counted_ones} (standard error {self.found.tail_error:.2%}) are"
        return f"An estimated {share * n:.0f} of {n} rows ({share:.2%}) are"

    def _chosen(self, clip: float) -> str:
        position, edges, worth = self.found, self.histogram.edges, self.worth
        lower_end = "" if position.above_edge is None else f"above {exactly(edges[position.above_edge])} and "
        text = (
            f"Clip norm {exactly(clip)}. {self._longer()} longer, and {self._effect}."
            f"\nAccuracy: the noise {worth.moved}"
        )
        if self.histogram.rows is None:
            text += f" of an estimated {worth.rows}. So the clip norm lies, about, {worth.ends()}"
        else:
            text += f" of {worth.rows}. So the clip norm lies {worth.ends()}, rounded up to the grid"
        if not worth.useful:
            epsilon = "" if self.enough_micro is None else f"epsilon {self.enough_micro / MICRO:g} (charged anew), "
            text += f", which is rough. It would be useful with {epsilon}a smaller grid (charged anew) "
            text += f"or, free, a smaller {parameter('quantile')}"
        text += f". The {self._quantile_text} is {lower_end}at most {exactly(edges[position.up_to_edge or 0])}."
        if position.edge == 0:
            text += (
                f" It is the first norm of the grid: a smaller one, with less noise, may suffice ({parameter('grid')})."
            )
        return text

    def _not_found(self) -> str:
        """Return why there is no clip norm, and the remedy: a longer grid, or less noise."""
        position, edges, worth = self.found, self.histogram.edges, self.worth
        end, edge = exactly(edges[-1]), exactly(edges[-1 if position.edge is None else position.edge])
        reason, cure = f"beyond the grid, which ends at {end}. {self._longer()} longer", ""
        if position.above_edge == len(edges) - 1:
            reason = f"is {reason}. A larger epsilon would not help."
        else:
            reason = f"may be {reason} than {edge}, and the noise {worth.moved}: "
            if worth.useful:
                reason += "so little that some rows are beyond. A larger epsilon would not help."
            else:
                reason += "too much to decide."
                epsilon = "a larger epsilon" if self.enough_micro is None else f"epsilon {self.enough_micro / MICRO:g}"
                cure = f"{epsilon}, or a grid of fewer norms ({parameter('grid')}): either is"
        if not cure:
            reaching = parameter("grid", "LOW:HIGH:PER_OCTAVE")
            cure = f"a longer grid, from public knowledge ({reaching}): it is"
        free = self.smaller_quantile()
        cheap = "" if free is None else f" Or pass {parameter('quantile', f'{free:g}')} for this histogram, at no cost."
        return f"No clip norm: the {self._quantile_text} {reason} Repeat with {cure} charged anew.{cheap}"

    def smaller_quantile(self) -> float | None:
        """Return the largest smaller quantile, in hundredths, that this histogram answers; None if below 0.5.

        It is post-processing of the release, and free.
        """
        smaller = self.histogram.answered(math.ceil(100 * self.quantile) - 1)
        return None if smaller is None else float(smaller)


def choose_clip_norm(
    rows: AnyStore,
    request: NormsRequest,
    quantile: str | float | Fraction | None = None,
    *,
    clip_components: int | None = None,
    release_epsilon: Number | None = None,
    ledger: AnyLedgerAddress | None = None,
    cluster: AnyCluster | None = None,
    budget_delta: bool = False,
    say: Callable[[str], None] | None = None,
) -> ClipChoice:
    """Choose the clip norm of a table privately, as a quantile of the norms of its rows.

    A noisy histogram of the norms is released, and charged once to the ledger. Repeating the request, or choosing
    another quantile of the same histogram, costs nothing. Reservation, refund and resumption are as for
    :func:`dpdist.release_rows`.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address (``s3://``, ``gs://``, ``az://``).
    request : NormsRequest
        The privacy loss, and the public grid of norms.
    quantile : str, float or Fraction, default None
        The share of rows with at most the clip norm, between 0 and 1. None: 0.95, or the quantile for
        ``clip_components``.
    clip_components : int, default None
        K, from 1 to d - 1: use the quantile that minimises the expected error of the K leading components from noise
        and clipping, by a rule of thumb (:mod:`dpdist.core.release.clip_trade`). None: use ``quantile``.
    release_epsilon : str, int, float or Decimal, default None
        With ``clip_components``, the epsilon of the planned release; its delta is that of the histogram.
    ledger : str or path-like, default None
        The ledger of the budget. None: next to the rows; for rows at an address, the one recorded on this machine.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to compute. None: threads of this process.
    budget_delta : bool, default False
        Whether a request without a delta uses that of the budget, if any. A histogram that was already released with
        one of these is returned again.
    say : callable, default None
        Called with the expected accuracy (str) before anything is charged or read. None: the logger ``dpdist`` gets it.

    Returns
    -------
    ClipChoice
        ``clip`` (float, in the units of the shifted and scaled rows; None if the quantile may be beyond the grid),
        ``worth``, ``histogram`` and ``fresh``; all public.

    Raises
    ------
    UsageError
        If the request does not fit this table, both a quantile and ``clip_components`` are given, or only one of
        ``clip_components`` and ``release_epsilon``.
    RefusedError
        If the budget does not suffice, there is none, the noise would hide the quantile, or the rows come in periods.
    DataError
        If rows or cluster cannot be used.
    ResumableError
        If the connection to the cluster was lost.

    See Also
    --------
    NormsRequest : The privacy loss and the grid.
    release_rows : Use the clip norm in a :class:`dpdist.ReleaseRequest`.

    References
    ----------
    Dwork, McSherry, Nissim & Smith 2006 (histograms); Balle & Wang 2018 (the Gaussian mechanism). Proof and error are
    in :mod:`dpdist.core.mechanisms.quantile`.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> request = dpdist.NormsRequest(dpdist.PrivacyLoss.parse(0.1))
    >>> choice = dpdist.choose_clip_norm("rows.zarr", request)  # doctest: +SKIP
    >>> choice.clip  # doctest: +SKIP
    90.51
    """
    target = _target(quantile, clip_components, release_epsilon)
    table, cluster, say = _table_at(store_at(rows)), chosen(cluster), say or LOGGER.info
    request.bound(table.columns)  # refuses public vectors of another length
    advice.require_centre_of_dropped(table.schema, centred=request.centre is not None)
    account = absolute(ledger_place(table, ledger))
    transaction = NormsTransaction(request, table, account)
    if not cluster.trusted_worker:
        _require_relation(transaction)
        transaction, state, left_micro = _looked_up(transaction, budget_delta)
        if state in _DONE:
            transaction.reserve()  # refuses a ledger of other rows
            return _choice(transaction, transaction.read(), target, fresh=False)
        _report_accuracy(transaction, target, state, left_micro, say)
    with cluster.connected() as executor:
        executor.require_visible(table.probe, ROOT)
        if cluster.trusted_worker:
            executor.trusted(_require_relation, transaction)
            transaction, state, left_micro = executor.trusted(_looked_up, transaction, budget_delta)
            if state not in _DONE:
                _report_accuracy(transaction, target, state, left_micro, say)
        fresh = executor.trusted(transaction.reserve) is State.RESERVED
        if fresh:
            draw_histogram(executor, transaction, "Counting norms")
        return _choice(transaction, executor.trusted(transaction.read), target, fresh=fresh)


def _target(
    quantile: str | float | Fraction | None, clip_components: int | None, release_epsilon: Number | None
) -> Fraction | _Leading:
    """Return the requested quantile, or the components to choose it for."""
    if (clip_components is None) != (release_epsilon is None):
        raise UsageError(
            f"{parameter('clip_components')} and {parameter('release_epsilon')} belong together: the best clip norm "
            "for components depends on the noise of their release."
        )
    if clip_components is not None and release_epsilon is not None:
        if quantile is not None:
            raise UsageError(
                f"{parameter('clip_components')} determines the quantile. Pass one of it and {parameter('quantile')}."
            )
        if clip_components < 1:
            raise UsageError("The number of components must be at least 1.", parameter="clip_components")
        return clip_components, PrivacyLoss.parse(release_epsilon, 0).epsilon_micro
    share = Fraction(95, 100) if quantile is None else quantile
    if not isinstance(share, Fraction):
        return quantile_from(str(share))
    require_quantile(share)
    return share


def _report_accuracy(
    transaction: NormsTransaction,
    target: Fraction | _Leading,
    state: State | None,
    left_micro: int | None,
    say: Callable[[str], None],
) -> None:
    """Report the expected accuracy; refuse a useless answer unless it is already charged."""
    request, table = transaction.request, transaction.table
    if state is not State.RESERVED:
        checks.require_small_delta(request.loss, request.neighbours, table.rows, accepted=request.accept_large_delta)
    checks.warn(request.calibrated(table).guarantee.loss, request.neighbours, table.rows)
    if state is State.RESERVED:
        return
    if isinstance(target, tuple):
        noise_share(_purpose(target, request), request.neighbours, table.columns, table.max_rows)
    say(advice.forecast(request, table, None if isinstance(target, tuple) else target, left_micro))


def _purpose(leading: _Leading, request: NormsRequest) -> ForComponents:
    number, epsilon_micro = leading
    return ForComponents(number, PrivacyLoss(epsilon_micro, request.loss.delta_atto))


def _choice(
    transaction: NormsTransaction, histogram: NormHistogram, target: Fraction | _Leading, *, fresh: bool
) -> ClipChoice:
    request, table = transaction.request, transaction.table
    purpose = _purpose(target, request) if isinstance(target, tuple) else None
    quantile = target if isinstance(target, Fraction) else Fraction(95, 100)
    if purpose is not None:
        quantile = quantile_for(purpose, histogram, table.columns, table.max_rows)
    choice = ClipChoice(histogram, quantile, histogram.quantile(quantile), fresh, purpose=purpose)
    if choice.worth.useful:
        return choice
    return replace(choice, enough_micro=advice.useful_epsilon(request, table, quantile))


def _require_relation(transaction: NormsTransaction) -> None:
    """Refuse another ledger or relation first: messages of replace-one say n, which may be private."""
    transaction.account().require_relation(transaction.request.neighbours)


def _looked_up(transaction: NormsTransaction, budget_delta: bool) -> tuple[NormsTransaction, State | None, int | None]:
    """Return the transaction with its delta, the state of its histogram, and the remaining epsilon in millionths.

    The state is None if nothing is charged; the epsilon is None without a ledger.
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
    """Open a table without periods."""
    table = None if is_periodic(rows) else open_rows(rows)
    if table is None or table.period is not None:
        raise RefusedError(
            f"The rows of {rows} come in periods, and one clip norm is used for all of them. A quantile of the "
            "existing periods need not fit later ones. Choose the clip norm from public knowledge, or from another "
            "table, such as that of an earlier year."
        )
    return table


def draw_histogram(executor: Executor, draw: HistogramDraw, label: str) -> None:
    """Count the rows and commit a noisy histogram; if the rows are unusable, refund the reservation."""
    table, counting, workers = draw.table, draw.counting(), executor.resources().slots
    task = HistogramTask(table, counting, range(table.chunks))
    row_seconds = counting.value_seconds * table.columns
    tasks = split_tasks(table, row_seconds=row_seconds, entries=counting.bins, workers=workers)
    computation = Computation("sum", partition_histogram, task, tasks, add_partials, nbytes=8 * counting.bins)
    try:
        executor.reduce(computation, histograms.finalise, draw, label=label)
    except DataError:
        executor.trusted(draw.abort)
        raise


def draw_alone(transaction: FirstScale, cluster: Cluster, label: str) -> bool:
    """Charge, draw and commit a histogram that is a release of its own; return whether it was drawn now."""
    table = transaction.table
    with cluster.connected() as executor:
        executor.require_visible(table.probe, ROOT)
        fresh = executor.trusted(transaction.reserve) is State.RESERVED
        if fresh:
            draw_histogram(executor, transaction, label)
    return fresh


def draw_stages(executor: Executor, transaction: MomentTransaction) -> None:
    """Draw the remaining stages of a release, one after the other: see :func:`draw_histogram`."""
    labels: dict[Choice, str] = {
        "scale": "Counting columns",
        "clip norm": "Counting norms",
        "clipped rows": "Counting clipped rows",
    }
    for choice, part in zip(transaction.plan.stages, (Part.STAGE, Part.SECOND), strict=False):
        if not executor.trusted(transaction.has, part):
            draw_histogram(executor, executor.trusted(stages.stage_of, transaction, choice), labels[choice])


def require_choice(transaction: MomentTransaction) -> None:
    """Refuse private choices that cannot work for these rows, from public facts and without a charge."""
    table, request, choices = transaction.table, transaction.plan.request, list(transaction.plan.stages)
    if table.seals:
        alternative = f"its clip norm ({parameter('clip')})"
        if choices[0] == "scale":
            alternative = f"that release for its centre and scale: {parameter('centre', 'PILOT.release.zarr')}"
        raise RefusedError(
            f"The rows come in periods, and one {choices[0]} is used for all of them, so a release of one period "
            "cannot choose it. Choose it from public knowledge; or release a table without periods once, and pass "
            f"{alternative}."
        )
    if "scale" in choices:
        counting = stages.columns_of(transaction).counting()
        stages.require_seen(request, counting, table.rows, table.max_rows, together=table.together)
    refusal = advice.choice_refused(request, table.columns, table.rows, table.max_rows, together=table.together)
    if refusal is not None:
        raise RefusedError(f"{refusal} Nothing was spent.")
