"""A job whose rows come in periods: every run takes in what is new, releases it, and adds it to the total so far.

::

    published/2026-01-05.zarr               the release of one period
    published/2026-01-05--2026-01-08.zarr   that of four, with ``continual`` only
    published/total/2026-01-08.zarr         the total up to this period, estimated from all these releases

With ``factorisation = "square-root"`` or ``"banded"`` each release is named by one period, and adds it and earlier ones
by weights (:mod:`dpdist.release.toeplitz`). Only the totals are second moments then, and with ``window = 7`` ::

    published/window-7/2026-01-08.zarr      the sum of the last 7 periods, or of all where there are fewer
    models/window-7/2026-01-08.zarr         with [pca], its components, beside those of the totals

A run may be started any number of times, at once or never on some nights. Periods are closed in the order of their
names and released in that order; a release that is there is left alone, one that a dead run left is resumed by its id.
The clock plays no part: a period is new when its entry is in the source and the ledger has not closed it. The work of a
run is the rows of the new periods; with ``continual`` also, on nights that end a larger node, the rows of that node;
with weights, those of all periods or of the last ones.

Three faults do not stop new periods: files of an old period that came late or changed, an entry that repeats another,
and an entry whose name is no period's. They are told at the end, and the run counts as refused. A new period whose
files cannot be used keeps those after it waiting, so that it is closed before them once it is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path

from dpdist._util.paths import local
from dpdist._util.progress import steps
from dpdist._util.text import counted
from dpdist.errors import DataError, DpdistError, DrownedError, RefusedError, UsageError
from dpdist.ingest.opening import open_rows
from dpdist.ingest.periods import changes, discard, take_in, waiting
from dpdist.jobs.job_file import Job
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.balance import Balance
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.naming import parameter, step
from dpdist.pca.scree import require_edge
from dpdist.pipeline import budget, release
from dpdist.pipeline.components import fit_components
from dpdist.pipeline.histograms import draw_alone
from dpdist.pipeline.release import Outcome
from dpdist.privacy import accounting, caution
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge
from dpdist.release import scaling, trusted
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, estimated, last_periods, next_total, write_sum
from dpdist.release.continual import Node, Tree, total_of
from dpdist.release.first_scale import FirstScale, FirstScaleRequest
from dpdist.release.request import ReleaseRequest
from dpdist.release.toeplitz import Night, Toeplitz
from dpdist.rows.periods import PeriodicTable, Span, counted_rows
from dpdist.rows.persons import read_excluded
from dpdist.rows.units import Unit
from dpdist.runtime.cluster import Cluster
from dpdist.storage.arrays import attributes_of
from dpdist.storage.atomic import make_public_folder
from dpdist.storage.store import store_at

_DRAWN = {State.COMMITTED, State.PUBLISHED, State.ADOPTED}


@dataclass(frozen=True)
class PeriodicOutcome:
    """What a run of a job with periods made.

    Attributes
    ----------
    periods
        Number of closed periods.
    released
        Ids of the releases that were computed now.
    balance
        Of the budget, afterwards.
    total, model
        Where the total up to the last period is, and its components; None where there is none.
    """

    periods: int
    released: tuple[str, ...]
    balance: Balance
    total: Path | None
    model: Path | None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "periods": self.periods,
            "released": list(self.released),
            "balance": self.balance.to_json(),
            "total": None if self.total is None else str(self.total),
            "model": None if self.model is None else str(self.model),
        }


@dataclass(frozen=True)
class Series:
    """A job's table of periods, its ledger, and where its releases stand."""

    job: Job
    table: PeriodicTable
    ledger: Ledger
    place: LedgerAddress

    @property
    def plan(self) -> Tree | Toeplitz:
        """What is released when a period is closed."""
        return self.job.plan

    @cached_property
    def request(self) -> ReleaseRequest:
        """What is asked each time: a share of the loss.

        Releases that are added up are rounded alike, on one grid: so all of them are rounded as the first one was.
        """
        (leaf,) = self.plan.released(1)
        first, target = self.span(leaf), self.path_of(list(self.ledger.periods), leaf)
        asked = replace(self._shared, loss=self._loss_of(leaf))
        named = replace(asked, period=first.label)
        charged = replace(trusted.charged_request(named, first, self.ledger, store_at(target)), period=asked.period)
        return charged if first.unit is None else replace(charged, grid_bits=charged.of_table(first).grid_bits)

    def asked(self, node: Node | Night, span: Span) -> ReleaseRequest:
        """Return what is asked of a node or a night."""
        return replace(self.request, loss=self._loss_of(node), period=span.label)

    def _loss_of(self, node: Node | Night) -> PrivacyLoss:
        return share_of(self._shared, len(self.columns), self.plan, node, self.job.unit)

    @cached_property
    def first_scale(self) -> FirstScale | None:
        """The release that chooses the scale of all periods, of the rows of the first; None where none does."""
        if not self.job.request.chooses:
            return None
        ((period, seal), *_) = self.ledger.periods.items()
        return FirstScale(FirstScaleRequest(self.job.request), self.table.span({period: seal}, 0), self.place)

    @cached_property
    def _shared(self) -> ReleaseRequest:
        """What the releases share: what the job asks for, or what is left of it, by the scale that was chosen."""
        return self.job.request if self.first_scale is None else self.first_scale.following()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Column names, those of the first period."""
        return open_rows(self.table.rows_of(next(iter(self.ledger.periods)))).names

    def span(self, node: Node | Night) -> Span:
        """Return the rows of a node or a night; the last one is looked at more than once, and opened once."""
        if node not in self._opened:
            seals = list(self.ledger.periods.items())[node.start : node.stop]
            self._opened.clear()
            self._opened[node] = replace(self.table.span(dict(seals), node.start), weights=node.weights)
        return self._opened[node]

    @cached_property
    def _opened(self) -> dict[Node | Night, Span]:
        return {}

    @property
    def releases(self) -> Path:
        """The folder of the releases."""
        return local(str(self.job.release))

    @property
    def models(self) -> Path | None:
        """The folder of the models, or None."""
        return None if self.job.model is None else local(str(self.job.model))

    def path_of(self, periods: Sequence[str], node: Node | Night) -> Path:
        """Return where the release of a node or a night is published."""
        return self.releases / f"{node.label(periods)}.zarr"

    def total_path(self, period: str) -> Path:
        """Return where the total up to a period is written."""
        return self.releases / "total" / f"{period}.zarr"

    def window_path(self, period: str, window: int) -> Path:
        """Return where the sum of so many periods up to one is written."""
        return self.releases / f"window-{window}" / f"{period}.zarr"


def share_of(
    request: ReleaseRequest, columns: int, plan: Tree | Toeplitz, node: Node | Night, unit: Unit | None
) -> PrivacyLoss:
    """Return the loss of one release, so that all of them together keep the loss that is asked for.

    Where a person may be in several periods, a node of more of them takes a larger share, in proportion to the square
    of what it counts the person for: so all nodes have the same noise, but for the rounding of epsilon.

    Raises
    ------
    UsageError
        If releases of this mechanism cannot be added up, or not by weights, or not of such a privacy unit, or so small
        a loss cannot be divided.
    """
    if unit is not None and request.mechanism != "gaussian":
        raise UsageError(
            f"{request.mechanism} cannot protect somebody with rows in several periods: take "
            f"{parameter('mechanism', 'gaussian')}."
        )
    if isinstance(plan, Toeplitz) and request.mechanism != "gaussian":
        raise UsageError(
            f"{request.mechanism} cannot add periods by weights: take {parameter('mechanism', 'gaussian')}, or "
            f"{parameter('factorisation', 'tree')}."
        )
    if not request.mechanism_info.additive:
        raise UsageError(
            f"{request.mechanism} cannot be added up over periods: take a mechanism that adds noise to the moment, "
            "gaussian or two-sided-wishart."
        )
    guarantee = request.calibrated(columns).guarantee
    gaussian = guarantee is not None and guarantee.mu_squared is not None
    shares = plan.shares
    if isinstance(plan, Tree) and isinstance(node, Node):
        squares = [counted_rows(unit, 1 << level) ** 2 for level in range(plan.levels)]
        shares = Fraction(sum(squares), squares[node.level])
    return accounting.share(request.loss, shares, gaussian=gaussian)


def require_same_unit(job: Job, table: PeriodicTable) -> None:
    """Refuse a folder of periods with another privacy unit than a job says.

    Raises
    ------
    RefusedError
        If they differ.
    """
    if job.unit != table.unit:
        held, wanted = ("one row" if unit is None else f"{unit.column}, {unit.most}" for unit in (table.unit, job.unit))
        raise RefusedError(
            f"{job.rows} protects {held}, and the job asks for {wanted}. That is declared once, with the first period. "
            "Change the job file, or name another place for these rows ([rows] path)."
        )


def open_series(job: Job) -> Series:
    """Open the table and ledger of a job; create them the first time.

    Raises
    ------
    DpdistError
        As :func:`dpdist.pipeline.budget.periodic_table`; or if the rows have another privacy unit than the job.
    """
    table, ledger = budget.periodic_table(job.rows, job.budget, job.ledger, job.unit)
    require_same_unit(job, table)
    return Series(job, table, ledger, job.ledger or budget.default_ledger(job.rows))


def run(job: Job, *, say: Callable[[str], None]) -> PeriodicOutcome:
    """Take in the new periods of a job, release them, and add up the total.

    Parameters
    ----------
    job, say
        As :func:`dpdist.jobs.run.run`.

    Returns
    -------
    PeriodicOutcome
        What is closed, what was released now, and where total and model are.

    Raises
    ------
    RefusedError
        If the budget does not suffice; when all else is done, if files of closed periods came late or changed, an
        entry repeats another, or is of no period.
    DataError
        If rows, cluster or folders cannot be used; when all else is done, if a new period cannot.
    DpdistError
        As :func:`dpdist.pipeline.release.release_table`.
    """
    series = open_series(job)
    problems: list[DpdistError] = []
    sources: dict[str, Path] = {}
    strays: list[DpdistError] = []
    if isinstance(job.source, Path):
        sources, strays = waiting(job.source, list(series.ledger.periods))
    fresh: list[str] = []
    for folder in filter(None, (series.releases, series.releases / "total", series.models)):
        make_public_folder(folder)
    _require_unchanged(series)
    count, there = 0, {path.name for path in series.releases.iterdir()}
    with job.cluster.kept() as cluster:
        for count, periods in _counts(series, sources, say, problems):
            fresh += _release(series, periods[:count], len(periods), there, cluster, say)
    total, model = _conclude(series, list(series.ledger.periods)[:count], say)
    problems = _changed(series, sources) + problems + strays
    try:
        series.ledger.require_current()  # also where nothing was charged tonight: the balance would not be true
    except RefusedError as error:
        problems.append(error)
    if problems:
        raise type(problems[0])(" ".join(map(str, problems)))
    balance = series.ledger.balance()
    say(f"Every {'row' if job.unit is None else job.unit.column} keeps the budget of {series.table.budget}: {balance}.")
    return PeriodicOutcome(count, tuple(fresh), balance, total, model)


def _counts(
    series: Series,
    sources: dict[str, Path],
    say: Callable[[str], None],
    problems: list[DpdistError],
) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers of the closed periods, from 1, each with all that are closed.

    The new ones are closed meanwhile, each when its turn comes.
    """
    count, horizon = 0, series.plan.horizon
    periods = series.ledger.periods
    for close in (None, *(source for source in sources.items() if source[0] not in periods)):
        if close is not None:
            if horizon is not None and close[0] not in series.ledger.periods and len(series.ledger.periods) >= horizon:
                problems.append(RefusedError(past_horizon(horizon, close[0])))
                return
            try:
                _close(series, *close, say)
            except RefusedError as error:  # late, or a repetition: mended or not, those after it need not wait
                problems.append(error)
            except DataError as error:
                problems.append(error)
                return
        closed: list[str] = []
        while count < len(closed) or count < len(closed := list(series.ledger.periods)):  # others may close some too
            if count == horizon:
                problems.append(RefusedError(past_horizon(count, closed[count])))
                return
            count += 1
            yield count, closed


def past_horizon(horizon: int, period: str) -> str:
    """Say why a period is not released: a square root cannot be extended."""
    return (
        f"The period {period} comes after the {horizon} that this series is for ({parameter('continual')}): the nights "
        "of so many have the whole loss of a row, and it cannot be extended. Begin a new table for this period and "
        "those to come: other folders for source and path in [rows], and for path in [release]. Their totals can be "
        f"added to the last one of this ({step('combine')})."
    )


def _close(series: Series, period: str, entry: Path, say: Callable[[str], None]) -> None:
    with series.table.store.locked():
        series.ledger.require_current()  # an older copy does not know what it closed: its rows are no strays
        closed = series.ledger.periods
        if period in closed:
            return
        last = next(reversed(closed), "")
        if period < last:
            raise RefusedError(
                f"{entry} came late: the period {period} comes before {last}, which is closed, and periods are closed "
                "in order. Move its rows to a period to come."
            )
        seal = take_in(
            series.table,
            period,
            entry,
            closed,
            columns=series.job.columns,
            excluded=() if series.job.exclude is None else read_excluded(series.job.exclude),
            choices=series.job.choices,
            progress=steps(series.job.cluster.progress, f"Taking in {period}"),
            say=say,
        )
        try:
            series.ledger.close_period(period, seal)
        except RefusedError:
            if period not in series.ledger.periods:
                discard(series.table, period)
            raise
    say(f"{period}: closed.")


def _changed(series: Series, sources: dict[str, Path]) -> list[DpdistError]:
    """Return what is wrong with the sources of closed periods."""
    found = (changes(series.table, p, sources[p]) for p in series.ledger.periods if p in sources)
    return [RefusedError(problem) for problem in found if problem]


def _release(
    series: Series,
    periods: Sequence[str],
    closed: int,
    there: Collection[str],
    cluster: Cluster,
    say: Callable[[str], None],
) -> list[str]:
    """Release the nodes that end with the last of some periods, and return the ids of those that were computed now.

    ``there`` are the names that were published when the run began; what another run published since is found again.
    """
    _choose_scale(series, cluster, say)
    nodes = [(node, series.path_of(periods, node)) for node in series.plan.released(len(periods))]
    if len(periods) < closed:  # published on an earlier night
        nodes = [(node, target) for node, target in nodes if target.name not in there]
    if nodes and series.job.model is not None and series.job.needs_edge:
        require_edge(series.request, len(series.columns))
    fresh = []
    for number, (node, target) in enumerate(nodes):
        span = series.span(node)
        request = series.asked(node, span)
        release_id = request.release_id(span)
        _require_same_job(target, release_id)
        record = series.ledger.record(release_id)
        if number and target.exists() and record is not None and record.state is State.PUBLISHED:
            continue  # the first of the last night is looked at, so that a changed ledger is noticed
        _require_whole(series, release_id, span)
        _require_small_delta(series, release_id, periods)
        outcome: Outcome = release.release_table(span, target, request, ledger=series.place, cluster=cluster)
        if outcome.fresh:
            fresh.append(outcome.release.release_id)
            say(outcome.words())
    return fresh


def _choose_scale(series: Series, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Draw the histograms by which the scale of all periods is chosen, unless they were drawn; the first period pays.

    They are of no use without the releases that they are for. So the first period must be able to bear all of it.
    """
    chosen = series.first_scale
    if chosen is None or chosen.state() in _DRAWN:
        return
    if chosen.state() in {None, State.ABORTED}:
        chosen.require_seen()
        whole = chosen.request.parts(chosen.table).guarantee
        accounts = series.ledger.accounts(chosen.request.guarantee(chosen.table))
        if accounts is not None and not accounts.holds(Charge(whole, tuple(chosen.table.seals))):
            raise RefusedError(
                f"The scale of all periods and their releases together cost each row {whole.loss}; the budget is "
                f"{series.ledger.budget}, and of it there is left for a row of {', '.join(chosen.table.seals)}: "
                f"{accounts.left(chosen.table.seals)}. Nothing was charged or drawn. Ask for less "
                f"({parameter('epsilon')})."
            )
    if draw_alone(chosen, cluster, "Counting columns"):
        share = chosen.request.parts(chosen.table).share_words
        say(
            f"{chosen.release_id}: centre and scale of each column, for all periods, were chosen privately from the "
            f"rows of {', '.join(chosen.table.seals)}, which bear {share} for it. "
            f"{scaling.words(*chosen.blindly_scaled())}".rstrip()
        )


def _require_unchanged(series: Series) -> None:
    """Refuse a job whose parameters changed before anything is charged: by the latest release that is published."""
    periods = list(series.ledger.periods)
    for count in range(len(periods), 0, -1):
        node = series.plan.released(count)[0]
        target = series.path_of(periods, node)
        if target.exists():
            if series.first_scale is not None and series.first_scale.state() not in _DRAWN:
                raise _other_parameters(target)
            span = series.span(node)
            _require_same_job(target, series.asked(node, span).release_id(span))
            return


def _require_same_job(target: Path, release_id: str) -> None:
    found = (attributes_of(store_at(target)) or {}).get("release_id", release_id)
    if found != release_id:
        raise _other_parameters(target)


def _other_parameters(target: Path) -> RefusedError:
    return RefusedError(
        f"{target} was released with other parameters than the job has now. A job with periods keeps its parameters: "
        "otherwise each row would be charged for both. Undo the change. If the budget suffices, you can name another "
        "folder instead ([release] path)."
    )


def whole_of(night: Guarantee, plan: Toeplitz) -> Guarantee:
    """Return what all nights of a series together cost a row that is in all of them, from what one night guarantees."""
    if night.mu_squared is None:
        raise AssertionError("a night is a Gaussian release")
    return replace(night, mu_squared=night.mu_squared * plan.shares)


def _require_whole(series: Series, release_id: str, span: Span) -> None:
    """Refuse a night where a row of a period to come could not bear all nights: the series could not go on."""
    record = series.ledger.record(release_id)
    if not isinstance(series.plan, Toeplitz) or (record is not None and record.state is not State.ABORTED):
        return
    night = series.request.guarantee(span)
    accounts = None if night is None else series.ledger.accounts(night)
    if night is None or accounts is None:
        return  # the charge itself will say why
    if not accounts.to_come.holds(whole_of(night, series.plan)):
        raise RefusedError(
            f"The nights of this series together cost each row {series.job.request.loss}; the budget is "
            f"{series.ledger.budget}, and of it there is left for a row to come: {accounts.to_come.left()}. Nothing "
            f"was charged or drawn. Ask for less ({parameter('epsilon')})."
        )


def _require_small_delta(series: Series, release_id: str, periods: Sequence[str]) -> None:
    """Refuse to go on when delta is not below one over the number of rows so far, unless that was accepted.

    Each row may lose the whole delta, over all levels, and all releases together are of all rows.
    """
    record, asked = series.ledger.record(release_id), series.job.request
    if asked.loss.delta_atto and (record is None or record.state is State.ABORTED):
        rows = series.table.count(periods)
        caution.require_small_delta(asked.loss, asked.neighbours, rows, accepted=asked.accept_large_delta)


def _conclude(series: Series, periods: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """Write the total of the periods, and the components of it; return where they are."""
    job = series.job
    if not periods:
        return None, None
    total = series.total_path(periods[-1])
    _write_total(series, periods, total)
    together = " for all releases that it is made of, together" if series.plan.shares > 1 else ""
    released = open_release(total)
    words = f"{released.guarantee_words()}{together}"
    if series.first_scale is not None:
        both = series.first_scale.request.parts(series.first_scale.table).guarantee.loss
        words += f"; with the choice of the scale, which rows of {periods[0]} bear as well, {both}"
    say(
        f"{total}: the total of {counted(len(periods), 'period')}, {words}. This file is public."
        f"{caution.in_words(released.cautions)}"
    )
    parts = [(total, series.models)]
    if job.window is not None and isinstance(series.plan, Toeplitz):
        window = _write_window(series, series.plan, periods, job.window)
        last = counted(min(job.window, len(periods)), "period")
        say(f"{window}: that of the last {last}, from the same releases. This file is public.")
        parts.append((window, series.models and series.models / window.parent.name))
    made = [_fit(job, of, folder / of.name, say) for of, folder in parts if folder is not None]
    return total, made[0] if made else None


def _fit(job: Job, of: Path, model: Path, say: Callable[[str], None]) -> Path | None:
    """Write the components of a total or a window; None where all of them drown in the noise."""
    make_public_folder(model.parent)
    try:
        found, _, _ = fit_components(of, model, job.components, correlation=job.correlation, cluster=job.cluster)
    except DrownedError as error:  # more periods may lift some above it: the release of this one is no failure
        say(f"No model of {of} was written. {error}")
        return None
    say(f"{model}: {counted(len(found.components.components), 'component')}.")
    return model


def _opened(series: Series, periods: Sequence[str], node: Node | Night) -> Release:
    return open_release(series.path_of(periods, node))


def _write_total(series: Series, periods: Sequence[str], target: Path) -> None:
    """Write the total of some periods: of a tree, the sum of the best estimates of its trees; else that of all nights.

    The total of the periods before the last tree, if it is still there, spares reading the releases of these again. A
    total that an older version made, which took the roots only, stays as it was published, and is not built upon.
    """
    plan, parts = series.plan, list[Release]()
    if isinstance(plan, Toeplitz):
        _write_totals(series, plan, periods)
        return
    for node in reversed(total_of(len(periods), plan.levels)):
        parts.append(estimated(node, partial(_opened, series, periods)))
        known = _known_total(series, plan, periods[: node.start])
        if known is not None:
            parts.append(known)
            break
    total = combined(parts)
    stands = set((attributes_of(store_at(target)) or {}).get("releases", ()))
    if not (stands and stands < set(total.releases)):
        write_sum(total, target)


def _write_totals(series: Series, plan: Toeplitz, periods: Sequence[str]) -> None:
    """Write the total of all nights, and before it those that it follows from and that are not there.

    These are of nights that were caught up, or whose run died, and of those that somebody removed.
    """
    missing, needed = [], {len(periods)}
    if series.job.window is not None:
        needed.add(len(periods) - series.job.window)
    for count in range(len(periods), 0, -1):
        if count in needed and not series.total_path(periods[count - 1]).exists():
            missing.append(count)
            needed.update(plan.earlier(count))
    for count in reversed(missing):
        night = _opened(series, periods, plan.night(count))
        write_sum(next_total(plan, night, partial(_total, series, periods)), series.total_path(periods[count - 1]))


def _write_window(series: Series, plan: Toeplitz, periods: Sequence[str], window: int) -> Path:
    """Write the sum of the last periods, where it is not there yet, and return where."""
    count = len(periods)
    target = series.window_path(periods[-1], window)
    if target.exists():
        return target
    make_public_folder(target.parent)
    earlier = _total(series, periods, count - window) if count > window else None
    night = _opened(series, periods, plan.night(count))
    write_sum(last_periods(plan, window, night, _total(series, periods, count), earlier), target)
    return target


def _total(series: Series, periods: Sequence[str], count: int) -> Release:
    return open_release(series.total_path(periods[count - 1]))


def _known_total(series: Series, plan: Tree, periods: Sequence[str]) -> Release | None:
    """Return the published total of some periods, or None if there is none or it was not made of all their releases."""
    if not periods or not (target := series.total_path(periods[-1])).exists():
        return None
    known = open_release(target)
    number = sum((2 << node.level) - 1 for node in total_of(len(periods), plan.levels))
    return known if len(known.releases) == number else None
