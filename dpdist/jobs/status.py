"""Preview and state of a job. Nothing is written, charged or summed.

The output contains no values or counts of rows: only names of periods, ids of releases and budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from msgspec import to_builtins

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ingest.periods import changes, waiting
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.balance import Balance
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Record, State
from dpdist.core.mechanisms.columns import NAME as SCALES
from dpdist.core.paths import local
from dpdist.core.pipeline.budget import ledger_of
from dpdist.core.privacy import checks
from dpdist.core.privacy.accounting import Left, caps_for
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.privacy.parallel import Charge, PeriodFilters
from dpdist.core.release.advice import choice_refused
from dpdist.core.release.bounds import Dimensions, auto_clip, without_choices
from dpdist.core.release.first_scale import plan_of_series
from dpdist.core.release.plan import Plan, plan_of, planned, proved
from dpdist.core.release.series import Toeplitz
from dpdist.core.release.trusted import stands_at
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.periods import counted_rows, open_periods
from dpdist.core.rows.units import Unit
from dpdist.core.storage.arrays import made_from
from dpdist.core.storage.atomic import require_folder
from dpdist.core.storage.store import Store, store_at
from dpdist.core.text import as_json, fields_as_json
from dpdist.jobs import periodic
from dpdist.jobs.job_file import Job
from dpdist.jobs.last_run import LastRun, last_run
from dpdist.jobs.run import require_same_rows
from dpdist.jobs.series import past_horizon, require_same_schema, require_same_unit, series_guarantee, share_of
from dpdist.jobs.totals import TotalNoise, TotalReads, largest, total_noise, total_reads


@dataclass(frozen=True)
class PersonNoise:
    """The noise of planned releases with a privacy unit that may have rows in several periods."""

    rows: tuple[int, int]  # least and largest number of rows of a period for which a unit is counted
    deviation: float | None  # largest of an off-diagonal entry, in bounded units, if columns are known

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return fields_as_json(self)


@dataclass(frozen=True)
class Preview:
    """Releases and charges of the next run of a job."""

    releases: tuple[tuple[str, Charge], ...]  # what is released, and its charge
    new_periods: tuple[str, ...]
    budget: PrivacyLoss | None
    charged: int  # number of earlier releases
    left: Left | None  # of the whole table
    fits: bool  # in the budget
    choosing: Plan | None = None  # of a release that chooses something first
    refused: str | None = None  # the reason, although it fits
    unit: Unit | None = None
    totals: tuple[TotalReads, ...] = ()  # of this run, and the largest planned
    person: PersonNoise | None = None
    entries_refused: tuple[str, ...] = ()  # as in the status

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        parts = None if self.choosing is None else self.choosing.parts_json()
        optional = {
            "entries_refused": self.entries_refused or None, "parts": parts, "refused": self.refused,
            "unit": self.unit, "person": self.person,
        }  # fmt: skip
        return {
            "releases": [
                {
                    "of": of,
                    **charge.guarantee.loss.to_json(),
                    **({"reads": len(charge.periods)} if charge.periods else {}),
                }
                for of, charge in self.releases
            ],
            "new_periods": list(self.new_periods),
            "budget": None if self.budget is None else self.budget.to_json(),
            "charged": self.charged,
            "left": None if self.left is None else self.left.to_json(),
            "fits": self.fits,
            **{name: as_json(value) for name, value in optional.items() if value is not None},
            **{name: reads.to_json() for name, reads in zip(("total", "largest_total"), self.totals, strict=False)},
        }


@dataclass(frozen=True)
class JobStatus:
    """State of a job."""

    rows: Path | Store
    refused: str | None  # why nothing new can be released: ledger missing or behind its witness
    budget: PrivacyLoss | None
    balance: Balance | None
    releases: dict[State, int]
    attempts: int  # number of attempts to draw noise
    unfinished: tuple[Record, ...]  # charged, but not published
    periods_closed: int
    last_period: str | None
    periods_waiting: tuple[str, ...]
    entries_refused: tuple[str, ...]  # why: late, changed after its period was closed, or of a wrong name
    periods_at_most: int | None
    head: str | None  # of the journal
    noise: TotalNoise | None
    last_run: LastRun | None  # on this machine

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        unfinished = [{"id": r.release_id, "state": r.state.value, "attempts": r.fence} for r in self.unfinished]
        last = None if self.last_run is None else to_builtins(self.last_run)
        return fields_as_json(replace(self, unfinished=(), last_run=None)) | {
            "unfinished": unfinished,
            "last_run": last,
        }


def new_periods(job: Job, closed: Sequence[str]) -> list[str]:
    """Return the periods in the source that the next run would close, in order."""
    if not job.periodic or not isinstance(job.source, Path):
        return []
    entries, _ = waiting(job.source, closed)
    return [period for period in entries if period not in closed and (not closed or period > closed[-1])]


def _refused_entries(job: Job, closed: Sequence[str]) -> list[str]:
    """Return why entries of the source will not be released, as the next run says."""
    if not job.periodic or not isinstance(job.source, Path) or not job.source.is_dir():
        return []
    entries, wrong = waiting(job.source, closed)
    late = [periodic.late(entries[p], p, closed[-1]) for p in entries if closed and p not in closed and p < closed[-1]]
    table = open_periods(job.rows) if closed else None
    changed = [changes(table, p, entries[p]) for p in closed if p in entries] if table else []
    return [*filter(None, changed), *late, *map(str, wrong)]


class _NextRun:
    """The releases of the next run of a job, and their parameters."""

    def __init__(self, job: Job, ledger: Ledger | None) -> None:
        self.job, self.ledger = job, ledger
        self.closed = list(ledger.periods) if ledger else []

    def require_chargeable(self) -> None:
        """Refuse a ledger that could be charged for nothing, before any message says how many rows there are."""
        if self.ledger is None:
            return
        if self.record is None or not self.record.given_out:  # otherwise the witness is not needed
            self.ledger.require_current()
        self.ledger.require_relation(self.job.request.neighbours)

    @cached_property
    def periods(self) -> list[str]:
        """All periods closed after the run."""
        return [*self.closed, *new_periods(self.job, self.closed)]

    @cached_property
    def charged(self) -> list[Record]:
        return [record for record in self.ledger.records if record.state is not State.ABORTED] if self.ledger else []

    @cached_property
    def table(self) -> RowsTable | None:
        """The table of a job without periods, or None if it does not exist yet."""
        return None if self.job.periodic or not store_at(self.job.rows).exists() else open_rows(self.job.rows)

    @cached_property
    def record(self) -> Record | None:
        """The record of the release of that table."""
        if self.job.periodic or self.ledger is None:
            return None
        return self.ledger.record(_release_id(self.job))

    @cached_property
    def known_columns(self) -> int | None:
        """The number of columns, from the rows or the job file."""
        if self.table is not None:
            return self.table.columns
        job, schema = self.job, self.job.choices.schema
        if job.periodic and self.closed:
            return open_rows(open_periods(job.rows).rows_of(self.closed[0])).columns
        scale = None if job.request.scale == "private" else job.request.scale
        vector = job.request.centre or scale or job.columns or (None if schema is None else schema.features)
        return len(vector) if vector else None

    @property
    def columns(self) -> int:
        """The number of columns, or 2: it hardly changes the charge."""
        return self.known_columns or 2

    @property
    def max_rows(self) -> int:
        """Largest number of rows of a privacy unit in a release of one table or period."""
        if self.job.periodic:
            return counted_rows(self.job.unit, 1)
        if self.table is not None:
            return self.table.max_rows
        return self.job.unit.counted_rows if self.job.unit else 1

    @property
    def together(self) -> bool:
        """Whether all rows of a privacy unit are kept, and bounded together."""
        return not self.job.periodic and self.job.unit is not None and self.job.unit.max_rows is None

    @cached_property
    def choosing(self) -> Plan | None:
        """The plan of a release that chooses its clip norm or scale first, or None."""
        request = self.job.request
        if not request.chooses:
            return None
        if self.table is not None:
            return plan_of(request, self.table)
        schema = self.job.choices.schema
        if not self.job.periodic:
            return planned(request, self._size)
        return plan_of_series(request, self.columns, self.max_rows, schema)

    @property
    def _size(self) -> Dimensions:
        schema = self.job.choices.schema if self.table is None else self.table.schema
        return Dimensions(self.columns, changed_rows=self.max_rows, schema=schema, together=self.together)

    def releases(self) -> list[tuple[str, Charge]]:
        """Return the planned charges, each with its periods, except for the scale of periods."""
        self.job.require_model(self.columns)
        return self._of_periods() if self.job.periodic else self._of_table()

    def _of_table(self) -> list[tuple[str, Charge]]:
        job, table = self.job, self.table
        if table is not None:
            require_same_rows(job, table)
            if self.record is not None and self.record.state is not State.ABORTED:
                return []
            _require_small_delta(job, table.rows)
        plan = planned(job.request, self._size)
        return [("the whole table", Charge(_require_private(plan.guarantee)))]

    def _of_periods(self) -> list[tuple[str, Charge]]:
        job, periods = self.job, self.periods
        table = open_periods(job.rows) if self.closed else None
        if table is not None:
            require_same_unit(job, table)
            require_same_schema(job, table, self.closed)
        if len(periods) > len(self.closed):
            _require_small_delta(job, 1 if table is None else table.count(self.closed))
        known_spans = {(record.periods, record.weights) for record in self.charged if not _of_scale(record)}
        loss = job.request.loss if self.choosing is None else self.choosing.loss
        period_request = replace(without_choices(job.request), loss=loss)
        charges = []
        for count in range(1, self.released + 1):
            for node in job.plan.released(count):
                names = tuple(periods[node.start : node.stop])
                if (names, node.weights) in known_spans:
                    continue
                request = replace(period_request, loss=share_of(period_request, self.columns, job.plan, node, job.unit))
                changed = counted_rows(job.unit, len(names), weighted=bool(node.weights)) * max(node.weights, default=1)
                guarantee = _require_private(planned(request, Dimensions(self.columns, changed_rows=changed)).guarantee)
                charges.append((node.label(periods), Charge(guarantee, names, node.weights)))
        return charges

    @property
    def released(self) -> int:
        """Number of released periods, at most the length of the series."""
        horizon = self.job.plan.horizon
        return len(self.periods) if horizon is None else min(len(self.periods), horizon)

    def scale(self) -> list[tuple[str, Charge]]:
        """Return the planned charge to the first period for the scale of all periods."""
        if not self.job.periodic or not self.periods or self.choosing is None:
            return []
        choice = proved(self.choosing.choice)
        if any(_of_scale(record) and record.charge.guarantee.loss == choice.loss for record in self.charged):
            return []
        return [(f"the scale, of {self.periods[0]}", Charge(choice, (self.periods[0],)))]


def _of_scale(record: Record) -> bool:
    return record.parameters.get("mechanism") == SCALES


def _release_id(job: Job) -> str:
    """Return the id of the release of existing rows."""
    table = open_rows(job.rows)
    return plan_of(job.request, table).release_id(table)


def _require_paths(job: Job) -> None:
    """Refuse paths that the run would refuse, missing or not writable."""
    if isinstance(job.source, Path) and not job.source.exists():
        raise DataError(f"There is no source at {job.source}.")
    exists = store_at(job.rows).exists()
    if not exists:
        if job.source is None:
            open_rows(job.rows)  # the error explains how to ingest rows
        store_at(job.rows).require_new("rows")
    if job.periodic:
        for folder in filter(None, (job.release, job.model)):
            require_folder(local(str(folder)))
        return
    release_id = _release_id(job) if exists else None
    stands_at(store_at(job.release), release_id)
    for path, noun in ((job.model, "model"), (job.scores, "scores")):
        if path is not None and (release_id is None or not made_from(path, noun, release_id=release_id)):
            store_at(path).require_new(noun)


def _require_small_delta(job: Job, rows: int) -> None:
    request = job.request
    checks.require_small_delta(request.loss, request.neighbours, rows, accepted=request.accept_large_delta)


def _require_private(guarantee: Guarantee | None) -> Guarantee:
    if guarantee is None:
        raise AssertionError("a job has a proved guarantee")
    return guarantee


def preview(job: Job) -> Preview:
    """Return the releases and charges of the next run; nothing is created or charged."""
    _require_paths(job)
    ledger = ledger_of(job.rows, job.ledger, job.budget)
    run = _NextRun(job, ledger)
    run.require_chargeable()
    budget = job.budget if ledger is None else ledger.budget
    nodes = run.releases()
    plan = [*run.scale(), *nodes]
    fresh = run.periods[len(run.closed) : run.released]
    first = plan[0][1].guarantee if plan else None
    if ledger is not None:
        filters = ledger.accounts(first)
    else:
        filters = None if budget is None else PeriodFilters(budget, caps_for(budget, first))
    fits, left = filters is not None or not plan, None
    if filters is not None:
        if nodes and isinstance(job.plan, Toeplitz):
            fits = filters.to_come.holds(series_guarantee(nodes[0][1].guarantee, job.plan))
        for period in fresh:
            filters.close(period)
        fits = fits and all(filters.book(f"planned {number}", charge) for number, (_, charge) in enumerate(plan))
        left = filters.left()
    parts = refused = person = None
    totals: tuple[TotalReads, ...] = ()
    if plan and not job.periodic:
        parts, table = run.choosing, run.table
        if table is not None:  # otherwise the number of rows is unknown
            refused = choice_refused(job.request, table.columns, table.rows, table.max_rows)
    if len(run.periods) > run.released:
        refused = past_horizon(run.released, run.periods[run.released])
    if job.periodic and nodes:
        counts = run.released, largest(job.plan, job.window)
        totals = tuple(total_reads(job, run.known_columns, count) for count in counts)
        person = None if job.unit is None else _person_noise(job, run.known_columns, [charge for _, charge in nodes])
    charged, fits = ledger.balance().charged if ledger else 0, budget is not None and fits
    return Preview(
        tuple(plan), tuple(fresh), budget, charged, left, fits, parts, refused, job.unit, totals, person,
        tuple(_refused_entries(job, run.closed)),
    )  # fmt: skip


def _person_noise(job: Job, columns: int | None, charges: list[Charge]) -> PersonNoise:
    """Return the weight of a privacy unit in the planned releases, and their noise."""
    counted, deviations = set(), []
    for read, weights, loss in {(len(c.periods), c.weights, c.guarantee.loss) for c in charges}:
        rows = counted_rows(job.unit, read, weighted=bool(weights))
        counted.add(rows)
        if columns is not None:
            request = replace(without_choices(job.request), loss=loss)
            size = Dimensions(columns, changed_rows=rows * max(weights, default=1), schema=job.choices.schema)
            if job.request.clip_norm == "auto":
                request = replace(request, clip_norm=auto_clip(size.numbers))
            planned_release = planned(request, size)
            variance = planned_release.moment.noise.variance_off_diagonal
            if variance is not None:
                deviations.append(variance**0.5 * planned_release.bound.unit**2)
    return PersonNoise((min(counted), max(counted)), max(deviations, default=None))


def status_of(job: Job) -> JobStatus:
    """Return the state of a job: budget, releases by state, unfinished ones, periods."""
    ledger, refused = None, None
    try:
        ledger = ledger_of(job.rows, job.ledger)
        if ledger is not None:
            ledger.require_current()
    except RefusedError as error:
        refused = str(error)
    records, closed = (ledger.records, list(ledger.periods)) if ledger else ([], [])
    states = Counter(record.state for record in records)
    return JobStatus(
        rows=job.rows,
        refused=refused,
        budget=job.budget if ledger is None else ledger.budget,
        balance=ledger.balance() if ledger else None,
        releases={state: states[state] for state in State},
        attempts=sum(record.fence for record in records),
        unfinished=tuple(
            record for record in records if record.state in {State.RESERVED, State.STAGED, State.COMMITTED}
        ),
        periods_closed=len(closed),
        last_period=closed[-1] if closed else None,
        periods_waiting=tuple(new_periods(job, closed)),
        entries_refused=tuple(_refused_entries(job, closed)),
        periods_at_most=job.plan.horizon,
        head=ledger.head if ledger else None,
        noise=total_noise(job, closed) if job.periodic else None,
        last_run=last_run(job.rows),
    )
