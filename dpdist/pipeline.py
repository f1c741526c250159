"""The steps of a job, each complete in itself: ingest, release, components, scores. The command line calls these.

Every step may be repeated. What exists already and is the same is left alone; what is different is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpdist import engine
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.moment.operator import Matrix, MomentProducts, ProductTask, partition_product
from dpdist.moment.total import (
    MomentPlan,
    Partial,
    add_partials,
    complete,
    partition_moment,
    plan,
    require_summable,
)
from dpdist.pca import model as models
from dpdist.pca import projection
from dpdist.pca.spectrum import components
from dpdist.privacy.books import State
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.privacy.ledger import Ledger
from dpdist.privacy.places import Place
from dpdist.release import artefact, trusted
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import ReleaseRequest
from dpdist.rows.dataset import RowsTable, bind_ledger, open_rows
from dpdist.rows.ingest import ingest
from dpdist.staging import locked, require_new
from dpdist.store import attributes_at


@dataclass(frozen=True)
class Cluster:
    """Where to compute.

    Parameters
    ----------
    scheduler
        Address of an existing Dask scheduler, or None for worker processes on this machine.
    workers
        Number of local worker processes, or None for one per core.
    trusted_worker
        Whether ledger and noise live on the worker that offers the resource ``trusted`` instead of in this process.
    certificates
        What to show to a scheduler that speaks TLS, and to know it by.
    insecure
        Whether to use a scheduler on the network that is not encrypted.

    Raises
    ------
    UsageError
        If both a scheduler and a number of workers are given, the number is not positive, or certificates and the
        scheduler's address do not go together.
    RefusedError
        If the scheduler is on the network, not encrypted, and that is not explicitly wanted.
    """

    scheduler: str | None = None
    workers: int | None = None
    trusted_worker: bool = False
    certificates: engine.Certificates | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise UsageError("Give either a scheduler or a number of local workers, not both.")
        if self.workers is not None and self.workers < 1:
            raise UsageError("At least one worker is needed (--workers).")
        if self.scheduler is not None:
            engine.require_safe(self.scheduler, self.certificates, insecure=self.insecure)
        elif self.certificates is not None:
            raise UsageError(
                "Certificates are for an existing scheduler: name it with --scheduler, or leave --tls-ca, --tls-cert "
                "and --tls-key out. Worker processes on this machine get keys of their own."
            )

    def connected(self, *, trusted_worker: bool = False) -> AbstractContextManager[engine.Engine]:
        """Connect for the time of a block; with ``trusted_worker`` one of the workers must be the trusted one."""
        return engine.connected(
            self.scheduler, self.workers, trusted_worker=trusted_worker, certificates=self.certificates
        )


def default_ledger(rows: Path) -> Path:
    """Return where the ledger of a rows.zarr stands unless told otherwise: ``.ledger`` in place of ``.zarr``.

    Examples
    --------
    >>> default_ledger(Path("rows.zarr")).name, default_ledger(Path("visits.2025")).name
    ('rows.ledger', 'visits.2025.ledger')
    """
    return rows.with_name(rows.name.removesuffix(".zarr") + ".ledger")


def ingest_rows(
    source: Path,
    rows: Path,
    *,
    budget: PrivacyLoss | None = None,
    ledger: Place | None = None,
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RowsTable:
    """Write rows.zarr from files and, with a budget, its ledger.

    Raises
    ------
    DataError
        If the source is unusable, or rows or ledger exist already.
    """
    place = ledger or default_ledger(rows)
    if budget is not None:
        _require_no_ledger(place)
    table = ingest(source, rows, budget=budget, columns=columns, progress=progress)
    if budget is not None:
        create_ledger(place, rows, budget)
    return open_rows(rows) if budget is not None else table


def _require_no_ledger(ledger: Place) -> None:
    if ledger.exists() if isinstance(ledger, Path) else Ledger.stands_at(ledger):
        raise DataError(
            f"A ledger stands at {ledger} already. It may be the only record of what was spent on other rows: keep it, "
            "and choose another name for these."
        )
    if isinstance(ledger, Path):
        require_new(ledger, "ledger")


def create_ledger(ledger: Place, rows: Path, budget: PrivacyLoss | None = None) -> Ledger:
    """Create the ledger of rows, once; what died half-way is completed by the same call.

    A table has one budget and one ledger for ever: with a second one, the same release could be drawn twice.

    Parameters
    ----------
    ledger
        The folder, or the name in a database, to create it at.
    rows
        The table it shall be charged for.
    budget
        The budget, or None to take the one declared at ingest.

    Raises
    ------
    UsageError
        If neither the call nor the rows declare a budget.
    RefusedError
        If the rows have a ledger already, or declare another budget.
    DataError
        If another ledger stands there, or it or the rows cannot be written.
    """
    with locked(rows):
        table = open_rows(rows)
        declared = budget or table.budget
        if declared is None:
            raise UsageError(
                f"{rows} declares no budget: pass --budget-epsilon, and --budget-delta where one is allowed."
            )
        if table.ledger_id is not None:
            raise RefusedError(
                f"{rows} has a ledger already; a second one would spend its budget again. If it was moved, pass "
                "--ledger where it is needed; if it is lost, restore it from a copy."
            )
        if table.budget not in {None, declared}:
            raise RefusedError(f"{rows} declares a budget of {table.budget}, and it is declared once.")
        opened = _unused(ledger, table, declared)
        if opened is None:
            _require_no_ledger(ledger)
            opened = Ledger.create(ledger, dataset_id=table.dataset_id, budget=declared)
        bind_ledger(table, declared, opened.ledger_id)
    return opened


def _unused(ledger: Place, table: RowsTable, budget: PrivacyLoss) -> Ledger | None:
    """Return the ledger that was created for this very table by a call that died before it was recorded in it."""
    if not Ledger.stands_at(ledger):
        return None
    found = Ledger(ledger)
    fresh = found.dataset_id == table.dataset_id and found.budget == budget and not found.records
    return found if fresh else None


def complete_ingest(rows: Path, ledger: Place | None = None) -> RowsTable:
    """Open rows, and create the ledger of a declared budget if ingest died before it did."""
    table = open_rows(rows)
    if table.budget is not None and table.ledger_id is None:
        create_ledger(ledger or default_ledger(rows), rows)
    return open_rows(rows)


def verify_ledger(ledger: Place, releases: Sequence[Path] = ()) -> Ledger:
    """Check a ledger from its first entry, and that it knows of these releases; return it.

    Raises
    ------
    DataError
        If anything was altered, in the ledger or in a release.
    RefusedError
        If the ledger has forgotten a release: it was cut short or restored from an older copy.
    """
    opened = Ledger(ledger)
    opened.verify()
    for path in releases:
        trusted.require_remembered(opened, path)
        if not artefact.holds(path, opened.read(open_release(path).release_id)):
            raise DataError(f"{path} is not what was committed to {ledger}: it was altered. Publish it again.")
    return opened


@dataclass(frozen=True)
class Outcome:
    """A published release, and whether it was computed now or had been committed before."""

    release: Release
    path: Path
    fresh: bool

    def to_json(self) -> dict[str, Any]:
        """Return what is public about it as JSON values."""
        return {"release": str(self.path), "fresh": self.fresh, **self.release.attributes()}

    def words(self) -> str:
        """Return the same in a sentence."""
        found = self.release
        how = "released now" if self.fresh else "released before: the same bytes, nothing spent"
        if found.guarantee is None or not found.private_as_claimed:
            proved = "nothing" if found.guarantee is None else str(found.guarantee.loss)
            return (
                f"{self.path}: {found.release_id}. NOT PRIVATE AS CLAIMED: {found.mechanism}, claimed "
                f"{found.claim or 'nothing'}, proved {proved} under {found.neighbours}. Do not publish it."
            )
        return (
            f"{self.path}: {found.release_id} ({how}). {found.mechanism}, {found.guarantee.loss} under "
            f"{found.neighbours}, {found.guarantee.arithmetic}. This file is public."
        )


def release_rows(
    rows: Path,
    target: Path,
    request: ReleaseRequest,
    *,
    ledger: Place | None = None,
    cluster: Cluster | None = None,
) -> Outcome:
    """Publish one private second moment; the same request again publishes the same bytes at no cost.

    The budget is reserved before any row is read. If a chunk turns out to be unusable, the reservation is
    refunded, because no noise was drawn; if anything dies, it is kept and the same call resumes.

    Raises
    ------
    UsageError
        If the request makes no sense for this table.
    RefusedError
        If the budget does not suffice, or there is none.
    DataError
        If rows, cluster or target cannot be used.
    ResumableError
        If the cluster was lost half-way.
    """
    where = cluster or Cluster()
    table = open_rows(rows)
    request.calibrated(table.columns)  # refuse what makes no sense before anything starts or is charged
    require_summable(table, request.bound(table.columns))
    place = ledger or default_ledger(rows)
    account = place.absolute() if isinstance(place, Path) else place
    transaction = trusted.Transaction(request, table, account, target.absolute())
    if request.by_products and where.trusted_worker:
        raise UsageError("Products are multiplied round by round from this process: leave --trusted worker out.")
    if request.for_reproduction:
        return _reproduced(transaction, where, ledger)
    if not where.trusted_worker:
        state = _known_state(transaction)
        if state in {State.COMMITTED, State.PUBLISHED}:
            trusted.reserve(transaction)  # refuses when the id stands for other parameters
            trusted.publish(transaction)
            return Outcome(open_release(target), target, fresh=False)
    with where.connected(trusted_worker=where.trusted_worker) as cluster_engine:
        cluster_engine.require_path(table.path / "zarr.json")
        state = cluster_engine.trusted(trusted.reserve, transaction)
        fresh = state is State.RESERVED
        if fresh:
            _compute(cluster_engine, transaction, where)
        cluster_engine.trusted(trusted.publish, transaction)
    return Outcome(open_release(target), target, fresh)


def _known_state(transaction: trusted.Transaction) -> State | None:
    if not Ledger.stands_at(transaction.ledger):
        return None
    record = Ledger(transaction.ledger).record(transaction.release_id)
    return None if record is None else record.state


def _reproduced(transaction: trusted.Transaction, where: Cluster, ledger: Place | None) -> Outcome:
    """Publish a release that is not private as claimed; no ledger is touched."""
    if ledger is not None:
        raise UsageError("A release for reproduction is charged to no ledger: leave --ledger out.")
    there = trusted.require_place(transaction)
    if not there:
        with where.connected(trusted_worker=where.trusted_worker) as cluster_engine:
            cluster_engine.require_path(transaction.table.path / "zarr.json")
            _compute(cluster_engine, transaction, where)
    return Outcome(open_release(transaction.target), transaction.target, fresh=not there)


def _compute(cluster_engine: engine.Engine, transaction: trusted.Transaction, where: Cluster) -> None:
    """Sum the rows on the workers and conclude the release at the trusted node."""
    if transaction.request.by_products:
        trusted.conclude(transaction, MomentProducts(_product(cluster_engine, transaction)))
        return
    moment = _plan(cluster_engine, transaction)
    try:
        sums = cluster_engine.reduce(partition_moment, add_partials, moment.groups, "Summing rows")
        with ExitStack() as stack:
            finalise: Callable[..., None] = trusted.finalise
            if not where.trusted_worker:
                bar = stack.enter_context(engine.progress_bar("Drawing noise"))
                finalise = partial(trusted.finalise, progress=bar)
            cluster_engine.trusted(finalise, transaction, sums=sums)
    except DataError:
        if not transaction.request.for_reproduction:
            cluster_engine.trusted(trusted.abort, transaction)
        raise


def _plan(cluster_engine: engine.Engine, transaction: trusted.Transaction) -> MomentPlan:
    table = transaction.table
    return plan(table, transaction.request.bound(table.columns), len(cluster_engine.workers))


def _product(cluster_engine: engine.Engine, transaction: trusted.Transaction) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies the moment on the workers; what they are sent is already noisy.

    Noise of a first round may be out when a later one fails, so a failure refunds nothing: the same command resumes.
    """
    groups = _plan(cluster_engine, transaction).groups

    def product(vectors: Matrix) -> Matrix:
        tasks = [[ProductTask(partition, vectors) for partition in group] for group in groups]
        sums = cluster_engine.reduce(partition_product, add_partials, tasks, "Multiplying rows")
        found: Matrix = cluster_engine.trusted(_completed, transaction.table, sums=sums)
        return found

    return product


def _completed(table: RowsTable, *partials: Partial) -> Matrix:
    values: Matrix = complete(table, partials).values
    return values


def fit_components(release: Path, target: Path, count: int) -> models.Model:
    """Write model.zarr with the top components of a release.

    Raises
    ------
    DataError
        If there is no release, or the target cannot be written.
    UsageError
        If there are not so many components, or the release is drowned in noise.
    """
    require_new(target, "model")
    opened = open_release(release)
    found = models.Model(opened.release_id, opened.names, components(opened, count))
    models.save(found, opened, target)
    return found


def project_rows(rows: Path, model: Path, target: Path, *, cluster: Cluster | None = None) -> int:
    """Write scores.zarr, (n, k) float64; return n. Scores are private.

    Raises
    ------
    DataError
        If rows, model, cluster or target cannot be used.
    """
    where = cluster or Cluster()
    require_new(target, "scores")
    table, found = open_rows(rows), models.open_model(model)
    with where.connected() as cluster_engine:
        tasks = 8 * len(cluster_engine.workers)
        with projection.scores_of(table, found, model, target, tasks) as work:
            for path in (table.path / "zarr.json", model.absolute(), work[0].scores):
                cluster_engine.require_path(path)
            cluster_engine.map(projection.project_chunks, work, "Projecting rows")
    return table.rows


def made_from(path: Path, **expected: Any) -> bool:
    """Say whether a model or scores folder at path carries these attributes; refuse to take it for another's.

    Raises
    ------
    DataError
        If something exists there that was made from something else.
    """
    if not path.exists():
        return False
    info = attributes_at(path) or {}
    if any(info.get(key) != value for key, value in expected.items()):
        raise DataError(f"{path} exists already and was made from something else. Remove it or name another place.")
    return True
