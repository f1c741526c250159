"""A job with periods: each run ingests and releases the new periods and adds them to the total.

::

    published/2026-01-05.zarr               the release of one period
    published/2026-01-05--2026-01-08.zarr   the release of four periods, with ``continual`` only
    published/total/2026-01-08.zarr         the total up to this period, estimated from all these releases

With ``factorisation = "square-root"`` or ``"banded"`` each release is named after one period and is a weighted sum of
it and earlier ones (:mod:`dpdist.core.release.series`). Then only the totals are second moments, and with ``window =
7`` ::

    published/window-7/2026-01-08.zarr      the sum of the last 7 periods, or of all if there are fewer
    models/window-7/2026-01-08.zarr         with [pca], its components, next to those of the totals

Runs may be concurrent, repeated or skipped. Periods are closed and released in the order of their names. An existing
release is left as it is; an interrupted one resumes by its id. The clock plays no part: a period is new if its entry is
in the source and the ledger has not closed it. A run reads the rows of the new periods; with ``continual``, also those
of each larger node that they complete; with weights, those of all periods or of the last ones.

Three faults do not stop new periods: late or changed files of a closed period, a duplicate entry, and an entry whose
name is not a period. They are reported at the end, and the run is refused. Periods after a new one with unusable files
wait, so that it is closed before them once it is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpdist.answers.bias import described
from dpdist.core.errors import DataError, DpdistError, RefusedError
from dpdist.core.ingest.periods import changes, discard, ingest_period, waiting
from dpdist.core.ledger.balance import Balance
from dpdist.core.ledger.state import State
from dpdist.core.naming import parameter, step
from dpdist.core.paths import local
from dpdist.core.pipeline import release
from dpdist.core.pipeline.clip_norm import draw_alone
from dpdist.core.pipeline.release import Outcome
from dpdist.core.privacy import checks
from dpdist.core.privacy.parallel import Charge
from dpdist.core.progress import steps
from dpdist.core.release import advice
from dpdist.core.release.plan import plan_of, proved
from dpdist.core.release.series import Toeplitz
from dpdist.core.rows.periods import Span
from dpdist.core.rows.persons import read_excluded
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.atomic import make_public_folder
from dpdist.core.storage.store import store_at
from dpdist.core.text import OfRows
from dpdist.jobs.job_file import Job
from dpdist.jobs.series import Series, open_series, past_horizon, require_same_schema, series_guarantee
from dpdist.jobs.totals import conclude

_DRAWN = {State.COMMITTED, State.PUBLISHED, State.ADOPTED}


@dataclass(frozen=True)
class PeriodicOutcome:
    """Result of a run of a job with periods."""

    periods: int  # closed
    released: tuple[str, ...]  # ids of releases computed in this run
    balance: Balance
    total: Path | None  # up to the last period
    model: Path | None


def run(job: Job, *, say: Callable[[str], None]) -> PeriodicOutcome:
    """Ingest and release the new periods of a job, and write the total."""
    series = open_series(job)
    series.ledger.require_relation(job.request.neighbours)  # a private n is printed nowhere
    require_same_schema(job, series.table, list(series.ledger.periods))
    problems: list[DpdistError] = []
    sources, strays = waiting(local(str(job.source)), list(series.ledger.periods))
    for folder in filter(None, (series.releases, series.releases / "total", series.models)):
        make_public_folder(folder)
    _require_unchanged(series)
    if (columns := job.known_columns) is not None:
        job.require_model(columns)
    count, fresh, published = 0, list[str](), {path.name for path in series.releases.iterdir()}
    with job.cluster.kept() as cluster:
        for count, periods in _counts(series, sources, say, problems):
            fresh += _release(series, periods[:count], len(periods), published, cluster, say)
    total, model = conclude(series, list(series.ledger.periods)[:count], say)
    problems = _changed(series, sources) + problems + strays
    try:
        series.ledger.require_current()  # even without a charge in this run: the balance must be current
    except RefusedError as error:
        problems.append(error)
    if problems:
        raise type(problems[0])(" ".join(dict.fromkeys(map(str, problems))))  # each once
    balance = series.ledger.balance()
    say(
        f"Every {'row' if job.unit is None else job.unit.column} keeps the budget of {series.ledger.budget}: {balance}."
    )
    return PeriodicOutcome(count, tuple(fresh), balance, total, model)


def _counts(
    series: Series, sources: dict[str, Path], say: Callable[[str], None], problems: list[DpdistError]
) -> Iterator[tuple[int, list[str]]]:
    """Yield 1, 2, ... for the closed periods, each with the names of all, closing new ones on the way."""
    count, horizon = 0, series.plan.horizon
    periods = series.ledger.periods
    for close in (None, *(source for source in sources.items() if source[0] not in periods)):
        if close is not None:
            if horizon is not None and close[0] not in series.ledger.periods and len(series.ledger.periods) >= horizon:
                problems.append(RefusedError(past_horizon(horizon, close[0])))
                return
            try:
                _close(series, *close, say)
            except RefusedError as error:  # late or a duplicate: later periods need not wait
                problems.append(error)
            except DataError as error:
                problems.append(error)
                return
        closed: list[str] = []
        while count < len(closed) or count < len(
            closed := list(series.ledger.periods)
        ):  # concurrent runs may close some too
            if count == horizon:
                problems.append(RefusedError(past_horizon(count, closed[count])))
                return
            count += 1
            yield count, closed


def of_no_rows(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says messages that tell nothing of the rows, as the output of a job is public."""
    return lambda text: None if isinstance(text, OfRows) else say(text)


def late(entry: Path, period: str, last: str) -> str:
    """Return why a period before the last closed one is refused."""
    return (
        f"{entry} is late: its period {period} is before {last}, which is closed, and periods are closed in order. "
        "Move its rows to a later period."
    )


def _close(series: Series, period: str, entry: Path, say: Callable[[str], None]) -> None:
    with series.table.store.locked():
        series.ledger.require_current()  # a stale copy does not know its closed periods
        closed = series.ledger.periods
        if period in closed:
            return
        last = next(reversed(closed), "")
        if period < last:
            raise RefusedError(late(entry, period, last))
        seal = ingest_period(
            series.table,
            period,
            entry,
            closed,
            columns=series.job.columns,
            excluded=() if series.job.exclude is None else read_excluded(series.job.exclude),
            choices=series.job.choices,
            progress=steps(series.job.cluster.progress, f"Ingesting {period}"),
            say=of_no_rows(say),
        )
        try:
            series.ledger.close_period(period, seal)
        except RefusedError:
            if period not in series.ledger.periods:
                discard(series.table, period)
            raise
    say(f"{period}: closed.")


def _changed(series: Series, sources: dict[str, Path]) -> list[DpdistError]:
    """Return errors for closed periods whose sources changed."""
    problems = (changes(series.table, p, sources[p]) for p in series.ledger.periods if p in sources)
    return [RefusedError(problem) for problem in problems if problem]


def _release(
    series: Series,
    periods: Sequence[str],
    closed: int,
    published: Collection[str],
    cluster: Cluster,
    say: Callable[[str], None],
) -> list[str]:
    """Release the nodes that end with the last period; return new ids. ``published``: file names before the run."""
    series.job.require_model(len(series.columns))
    _choose_scale(series, cluster, say)
    nodes = [(node, series.path_of(periods, node)) for node in series.plan.released(len(periods))]
    if len(periods) < closed:  # published by an earlier run
        nodes = [(node, target) for node, target in nodes if target.name not in published]
    fresh = []
    for number, (node, target) in enumerate(nodes):
        span = series.span(node)
        request = series.request_for(node, span)
        release_id = plan_of(request, span).release_id(span)
        _require_same_job(target, release_id)
        record = series.ledger.record(release_id)
        if number and target.exists() and record is not None and record.state is State.PUBLISHED:
            continue  # the first one is checked, to detect a changed ledger
        _require_series_budget(series, release_id, span)
        _require_small_delta(series, release_id, periods)
        outcome: Outcome = release.release_table(span, target, request, ledger=series.ledger_address, cluster=cluster)
        if outcome.fresh:
            fresh.append(outcome.release.release_id)
            say(described(outcome))
    return fresh


def _choose_scale(series: Series, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Draw the histograms that choose the scale of all periods, once, if the first period can be charged for all."""
    chosen = series.first_scale
    if chosen is None or chosen.state() in _DRAWN:
        return
    if chosen.state() in {None, State.ABORTED}:
        chosen.require_seen()
        guarantee = proved(chosen.plan.guarantee)
        accounts = series.ledger.accounts(chosen.guarantee)
        if accounts is not None and not accounts.holds(Charge(guarantee, tuple(chosen.table.seals))):
            raise RefusedError(
                f"The scale and the releases of all periods together cost each row {guarantee.loss}. The budget is "
                f"{series.ledger.budget}, and a row of {', '.join(chosen.table.seals)} has left: "
                f"{accounts.left(chosen.table.seals)}. Nothing was charged or drawn. Reduce {parameter('epsilon')}, "
                f"or raise the budget with {step('ledger raise')}."
            )
    if draw_alone(chosen, cluster, "Counting columns"):
        share = chosen.plan.share_message
        say(
            f"{chosen.release_id}: the centre and scale of each column for all periods were chosen privately from the "
            f"rows of {', '.join(chosen.table.seals)}, which are charged {share} for it. "
            f"{advice.describe(*chosen.blindly_scaled())}".rstrip()
        )


def _require_unchanged(series: Series) -> None:
    """Refuse a job whose parameters differ from those of the latest release, before anything is charged."""
    periods = list(series.ledger.periods)
    for count in range(len(periods), 0, -1):
        node = series.plan.released(count)[0]
        target = series.path_of(periods, node)
        if target.exists():
            if series.first_scale is not None and series.first_scale.state() not in _DRAWN:
                raise _other_parameters(target)
            span = series.span(node)
            _require_same_job(target, plan_of(series.request_for(node, span), span).release_id(span))
            return


def _require_same_job(target: Path, release_id: str) -> None:
    published_id = (attributes_of(store_at(target)) or {}).get("release_id", release_id)
    if published_id != release_id:
        raise _other_parameters(target)


def _other_parameters(target: Path) -> RefusedError:
    return RefusedError(
        f"{target} was released with other parameters than those of the job now. A job with periods must keep its "
        "parameters, as otherwise each row would be charged twice. Undo the change, or, if the budget suffices, change "
        "the folder ([release] path)."
    )


def _require_series_budget(series: Series, release_id: str, span: Span) -> None:
    """Refuse a release if the budget of a row of a later period is too small for the whole series."""
    record = series.ledger.record(release_id)
    if not isinstance(series.plan, Toeplitz) or (record is not None and record.state is not State.ABORTED):
        return
    guarantee = plan_of(series.request, span).guarantee
    accounts = None if guarantee is None else series.ledger.accounts(guarantee)
    if guarantee is None or accounts is None:
        return  # the charge reports why
    if not accounts.to_come.holds(series_guarantee(guarantee, series.plan)):
        raise RefusedError(
            f"All releases of this series together cost each row {series.job.request.loss}. The budget is "
            f"{series.ledger.budget}, and a row of a later period has left: {accounts.to_come.left()}. Nothing was "
            f"charged or drawn. Reduce {parameter('epsilon')}."
        )


def _require_small_delta(series: Series, release_id: str, periods: Sequence[str]) -> None:
    """Refuse a delta not below 1 / (number of rows so far), unless accepted."""
    record, request = series.ledger.record(release_id), series.job.request
    if request.loss.delta_atto and (record is None or record.state is State.ABORTED):
        rows = series.table.count(periods)
        checks.require_small_delta(request.loss, request.neighbours, rows, accepted=request.accept_large_delta)
