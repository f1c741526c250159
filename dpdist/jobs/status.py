"""What an operator asks of a job: what would it spend, and where does it stand. Nothing is written, charged or summed.

Everything told is public or the operator's own: periods by name, releases by id, budgets. No value or count of rows is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from dpdist._util.paths import local
from dpdist._util.text import fields_as_json
from dpdist.errors import DataError, RefusedError
from dpdist.ingest.periods import waiting
from dpdist.ingest.registered import open_rows
from dpdist.jobs.job_file import Job
from dpdist.jobs.run import require_components, require_same_rows
from dpdist.jobs.series import past_horizon, require_same_unit, share_of, whole_of
from dpdist.jobs.totals import TotalNoise, TotalReads, largest, total_noise, total_reads
from dpdist.ledger.balance import Balance
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Record, State
from dpdist.mechanisms.columns import NAME as SCALES
from dpdist.pipeline.budget import ledger_of
from dpdist.pipeline.components import made_from
from dpdist.privacy import caution
from dpdist.privacy.accounting import Left, caps_for
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters
from dpdist.release.first_scale import shared
from dpdist.release.request import Parts, auto_clip
from dpdist.release.series import Toeplitz
from dpdist.release.trusted import charged_request, stands_at
from dpdist.release.worth import choice_refused
from dpdist.rows.dataset import RowsTable
from dpdist.rows.periods import counted_rows, open_periods
from dpdist.rows.units import Unit
from dpdist.storage.atomic import require_folder
from dpdist.storage.store import Store, store_at

_UNFINISHED = {State.RESERVED, State.STAGED, State.COMMITTED}


@dataclass(frozen=True)
class PersonNoise:
    """The noise of releases of a table of persons, who may have rows in several periods.

    Attributes
    ----------
    rows
        For how many rows of one period a person is counted: least and most of the releases that are planned.
    deviation
        Standard deviation of an entry off the diagonal, in the units of the columns as they are bounded: the largest of
        the releases that are planned. None where the number of columns is not known yet.
    """

    rows: tuple[int, int]
    deviation: float | None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return fields_as_json(self)


@dataclass(frozen=True)
class Preview:
    """What the next run of a job would release and spend.

    Attributes
    ----------
    releases
        What each release would be of, and what it would be charged.
    new_periods
        The periods that would be closed.
    budget
        The declared budget, or None.
    charged
        Number of releases charged before.
    left
        What would be left of the whole table; None where nothing can be charged.
    fits
        Whether the run would be paid for.
    parts
        Where a release would choose something first: what its parts cost; else None.
    refused
        Why it would be refused all the same, where it could choose no clip norm, or a series has ended; else None.
    unit
        Whose rows are protected together, as the job says; None: each row alone, or as the rows say.
    totals
        Of periods: what the total of this run opens, and the largest one that the series is planned for; else none.
    person
        Of periods with privacy units: for how many rows each is counted, and the noise of a release; else None.
    """

    releases: tuple[tuple[str, Charge], ...]
    new_periods: tuple[str, ...]
    budget: PrivacyLoss | None
    charged: int
    left: Left | None
    fits: bool
    parts: Parts | None = None
    refused: str | None = None
    unit: Unit | None = None
    totals: tuple[TotalReads, ...] = ()
    person: PersonNoise | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
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
            **({} if self.parts is None else {"parts": self.parts.to_json()}),
            **({} if self.refused is None else {"refused": self.refused}),
            **({} if self.unit is None else {"unit": self.unit.to_json()}),
            **({} if self.person is None else {"person": self.person.to_json()}),
            **{name: each.to_json() for name, each in zip(("total", "largest_total"), self.totals, strict=False)},
        }


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands.

    Attributes
    ----------
    rows
        Its rows.
    refused
        Why nothing new can be released, whatever is asked for: the ledger is not there, or is behind its witness. None
        where nothing is in the way.
    budget, balance
        None where none is declared, and before there is a ledger.
    releases
        Number of releases in each state.
    attempts
        Number of attempts to draw noise.
    unfinished
        The releases that are charged and not published.
    periods_closed, last_period, periods_waiting
        Of rows that come in periods.
    periods_at_most
        How many a series of nights is for; None where there is no last one.
    head
        Digest of the journal's last entry; None before there is a ledger.
    noise
        Of the last total of periods that is published, and of the next; None where there is none.
    """

    rows: Path | Store
    refused: str | None
    budget: PrivacyLoss | None
    balance: Balance | None
    releases: dict[State, int]
    attempts: int
    unfinished: tuple[Record, ...]
    periods_closed: int
    last_period: str | None
    periods_waiting: tuple[str, ...]
    periods_at_most: int | None
    head: str | None
    noise: TotalNoise | None

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        unfinished = [{"id": r.release_id, "state": r.state.value, "attempts": r.fence} for r in self.unfinished]
        return fields_as_json(replace(self, unfinished=())) | {"unfinished": unfinished}


def _budget(job: Job, ledger: Ledger | None) -> PrivacyLoss | None:
    return job.budget if ledger is None else ledger.budget


def new_periods(job: Job, closed: list[str]) -> list[str]:
    """Return the periods that wait in the source and would be closed by the next run, in order."""
    if not job.periodic or not isinstance(job.source, Path):
        return []
    entries, _ = waiting(job.source, closed)
    return [period for period in entries if period not in closed and (not closed or period > closed[-1])]


def _release_id(job: Job, ledger: Ledger | None) -> str:
    """Return the id of the release of rows that are there, as it was charged."""
    table = open_rows(job.rows)
    return charged_request(job.request, table, ledger, store_at(job.release)).release_id(table)


def _table(job: Job) -> RowsTable | None:
    """Return the one table that a job releases; None for periods, and before there is one."""
    return None if job.periodic or not store_at(job.rows).exists() else open_rows(job.rows)


def _columns(job: Job, table: RowsTable | None, ledger: Ledger | None = None) -> int:
    """Return the number of columns, as far as it is known; what a release costs hardly depends on it, by rounding."""
    if table is not None:
        return table.columns
    return _columns_of_periods(job, ledger) or 2


def _columns_of_periods(job: Job, ledger: Ledger | None) -> int | None:
    """Return the number of columns of the first period that is closed, or what the job file says; None: neither."""
    first = next(iter(ledger.periods), None) if job.periodic and ledger is not None else None
    return _columns_said(job) if first is None else open_rows(open_periods(job.rows).rows_of(first)).columns


def _columns_said(job: Job) -> int | None:
    """Return the number of columns that a job file says; None where it does not."""
    features = None if job.choices.schema is None else job.choices.schema.features
    scale = None if job.request.scale == "private" else job.request.scale
    vector = job.request.centre or scale or job.columns or features
    return len(vector) if vector else None


def _max_rows(job: Job, table: RowsTable | None) -> int:
    """Return how many rows one privacy unit may own."""
    if table is not None:
        return table.max_rows
    return job.unit.max_rows if job.unit else 1


def _parts(job: Job, table: RowsTable | None, ledger: Ledger | None) -> Parts | None:
    """Return what is chosen first, of the table or of the first period, and what is left; None where nothing is."""
    rows = counted_rows(job.unit, 1) if job.periodic else _max_rows(job, table)
    request = shared(job.request) if table is None and job.request.scale == "private" else job.request
    request = request if table is None else request.of_table(table)
    return request.parts(_columns(job, table, ledger), rows)


def planned(job: Job, ledger: Ledger | None) -> list[tuple[str, Charge]]:
    """Return what the next run would charge: of which period or run of periods, and what for."""
    table = _table(job)
    columns, unit = _columns(job, table, ledger), _max_rows(job, table)
    if not job.periodic:
        if table is not None:
            require_same_rows(job, table)
            require_components(job, table)
            known = ledger.record(_release_id(job, ledger)) if ledger else None
            if known is not None and known.state is not State.ABORTED:
                return []
            _require_small_delta(job, table.rows)
        return [("the whole table", Charge(_proved(job.request.proved(columns, unit))))]
    closed = list(ledger.periods) if ledger else []
    if closed:
        require_same_unit(job, open_periods(job.rows))
    periods = [*closed, *new_periods(job, closed)]
    charged = {(record.periods, record.weights) for record in _charged(ledger) if not _of_scale(record)}
    if len(periods) > len(closed):
        _require_small_delta(job, open_periods(job.rows).count(closed) if closed else 1)
    out, parts = [], _parts(job, table, ledger)
    shared = job.request if parts is None else parts.moment
    for count in range(1, _released_of(job, len(periods)) + 1):
        for node in job.plan.released(count):
            names = tuple(periods[node.start : node.stop])
            if (names, node.weights) not in charged:
                request = replace(shared, loss=share_of(shared, columns, job.plan, node, job.unit))
                changed = counted_rows(job.unit, len(names), weighted=bool(node.weights)) * max(node.weights, default=1)
                guarantee = _proved(request.calibrated(columns, changed).guarantee)
                out.append((node.label(periods), Charge(guarantee, names, node.weights)))
    return out


def planned_scale(job: Job, ledger: Ledger | None) -> list[tuple[str, Charge]]:
    """Return what the next run would charge the first period, where the scale of all periods is chosen by its rows."""
    closed = list(ledger.periods) if ledger else []
    first, parts = [*closed, *new_periods(job, closed)][:1], _parts(job, None, ledger) if job.periodic else None
    if not first or parts is None:
        return []
    if any(_of_scale(record) and record.charge.guarantee.loss == parts.choice.loss for record in _charged(ledger)):
        return []
    return [(f"the scale, of {first[0]}", Charge(parts.choice, tuple(first)))]


def _charged(ledger: Ledger | None) -> list[Record]:
    return [record for record in ledger.records if record.state is not State.ABORTED] if ledger else []


def _of_scale(record: Record) -> bool:
    return record.parameters.get("mechanism") == SCALES


def _released_of(job: Job, periods: int) -> int:
    """Return how many of so many periods are released: no more than a series is for."""
    return periods if job.plan.horizon is None else min(periods, job.plan.horizon)


def require_places(job: Job) -> None:
    """Refuse paths that the run would refuse: of what is read and not there, or written and cannot be."""
    if isinstance(job.source, Path) and not job.source.exists():
        raise DataError(f"There is no source at {job.source}.")
    if not store_at(job.rows).exists():
        if job.source is None:
            open_rows(job.rows)  # says how rows are made
        store_at(job.rows).require_new("rows")
    if job.periodic:
        for folder in filter(None, (job.release, job.model)):
            require_folder(local(str(folder)))
        return
    release_id = _release_id(job, None) if store_at(job.rows).exists() else None
    stands_at(store_at(job.release), release_id)
    for path, what in ((job.model, "model"), (job.scores, "scores")):
        if path is not None and (release_id is None or not made_from(path, what, release_id=release_id)):
            store_at(path).require_new(what)


def _require_small_delta(job: Job, rows: int) -> None:
    asked = job.request
    caution.require_small_delta(asked.loss, asked.neighbours, rows, accepted=asked.accept_large_delta)


def _proved(guarantee: Guarantee | None) -> Guarantee:
    if guarantee is None:
        raise AssertionError("a job asks for what is private as claimed")
    return guarantee


def preview(job: Job) -> Preview:
    """Return what the next run would release and spend; nothing is read, created or charged."""
    require_places(job)
    ledger = ledger_of(job.rows, job.ledger, job.budget)
    if ledger is not None and _charges(job, ledger):
        ledger.require_current()
    budget, nodes, scale = _budget(job, ledger), planned(job, ledger), planned_scale(job, ledger)
    plan = [*scale, *nodes]
    closed = list(ledger.periods) if ledger else []
    fresh = new_periods(job, closed)
    late = _released_of(job, len(closed) + len(fresh))
    beyond, fresh = [*closed, *fresh][late:], fresh[: max(0, late - len(closed))]
    first = plan[0][1].guarantee if plan else None
    if ledger is not None:
        filters = ledger.accounts(first)
    else:
        filters = None if budget is None else PeriodFilters(budget, caps_for(budget, first))
    fits, left = filters is not None or not plan, None
    if filters is not None:
        if nodes and isinstance(job.plan, Toeplitz):
            fits = filters.to_come.holds(whole_of(nodes[0][1].guarantee, job.plan))
        for period in fresh:
            filters.close(period)
        fits = fits and all(filters.book(f"planned {number}", charge) for number, (_, charge) in enumerate(plan))
        left = filters.left()
    charged = ledger.balance().charged if ledger else 0
    parts = refused = None
    if plan and not job.periodic:
        table = _table(job)
        parts = _parts(job, table, ledger)
        if table is not None:  # before, the number of its rows is not known
            refused = choice_refused(job.request, table.columns, table.rows, table.max_rows)
    if beyond:
        refused = past_horizon(late, beyond[0])
    fits = budget is not None and fits
    totals: tuple[TotalReads, ...] = ()
    person = None
    if job.periodic and nodes:
        known = _columns_of_periods(job, ledger)
        totals = tuple(total_reads(job, known, count) for count in (late, largest(job.plan, job.window)))
        person = None if job.unit is None else _person_noise(job, known, [charge for _, charge in nodes])
    return Preview(tuple(plan), tuple(fresh), budget, charged, left, fits, parts, refused, job.unit, totals, person)


def _person_noise(job: Job, columns: int | None, charges: list[Charge]) -> PersonNoise:
    """Return for how many rows of one period a person is counted by the releases that are planned, and their noise."""
    counted, deviations = set(), []
    for read, weights, loss in {(len(c.periods), c.weights, c.guarantee.loss) for c in charges}:
        rows = counted_rows(job.unit, read, weighted=bool(weights))
        counted.add(rows)
        if columns is not None:
            request = replace(job.request.sized, loss=loss)
            if job.request.clip_norm == "auto":
                request = replace(request, clip_norm=auto_clip(columns, request.choice_rule))
            variance = request.calibrated(columns, rows * max(weights, default=1)).noise.variance_off_diagonal
            if variance is not None:
                deviations.append(variance**0.5 * request.bound(columns).unit ** 2)
    return PersonNoise((min(counted), max(counted)), max(deviations, default=None))


def _charges(job: Job, ledger: Ledger) -> bool:
    """Say whether a run would do more than publish again what was given out, so that it would ask the witness."""
    record = None if job.periodic else ledger.record(_release_id(job, ledger))
    return record is None or not record.given_out


def status_of(job: Job) -> JobStatus:
    """Return where a job stands: budget, releases by state, unfinished ones, periods."""
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
        budget=_budget(job, ledger),
        balance=ledger.balance() if ledger else None,
        releases={state: states[state] for state in State},
        attempts=sum(record.fence for record in records),
        unfinished=tuple(
            record for record in records if record.state in {State.RESERVED, State.STAGED, State.COMMITTED}
        ),
        periods_closed=len(closed),
        last_period=closed[-1] if closed else None,
        periods_waiting=tuple(new_periods(job, closed)),
        periods_at_most=job.plan.horizon,
        head=ledger.head if ledger else None,
        noise=total_noise(job, closed) if job.periodic else None,
    )
