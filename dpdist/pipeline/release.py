"""The steps of a job, each complete in itself: ingest, release, components, scores. The command line calls these.

Every step may be repeated. What exists already and is the same is left alone; what is different is never overwritten.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dpdist._util.notebook import table
from dpdist._util.paths import AnyPath, local
from dpdist._util.text import listed
from dpdist.errors import DataError, UsageError
from dpdist.ledger.address import PlaceGiven, place_given
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.base import IndependentEntries
from dpdist.moment.layout import Layout, layout_of
from dpdist.moment.operator import Matrix, MomentBands, MomentProducts, ProductTask, partition_product
from dpdist.moment.total import (
    Partial,
    add_partials,
    complete,
    partition_moment,
    plan,
    require_summable,
)
from dpdist.pca import lanczos, projection
from dpdist.pca import model as models
from dpdist.pca.components import Components, components
from dpdist.pca.scree import above_noise
from dpdist.pca.shortened import shortened
from dpdist.pipeline.budget import default_ledger
from dpdist.privacy import caution
from dpdist.release import trusted
from dpdist.release.artefact import Release, open_release
from dpdist.release.reproduction import admit, require_undeclared
from dpdist.release.request import ReleaseRequest
from dpdist.rows.dataset import RowsTable, open_rows
from dpdist.runtime import engine
from dpdist.runtime.tls import Certificates, require_safe
from dpdist.storage.arrays import attributes_at
from dpdist.storage.atomic import make_once, require_new, scratch


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
    certificates: Certificates | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise UsageError("Give either a scheduler or a number of local workers, not both.")
        if self.workers is not None and self.workers < 1:
            raise UsageError("At least one worker is needed (--workers).")
        if self.scheduler is not None:
            if not self.scheduler.strip():
                raise UsageError(
                    "The address of the scheduler is empty, perhaps an unset variable: name one, such as "
                    "tls://10.0.0.1:8786, or leave --scheduler out to compute on this machine."
                )
            require_safe(self.scheduler, self.certificates, insecure=self.insecure)
        elif self.certificates is not None:
            raise UsageError(
                "Certificates are for an existing scheduler: name it with --scheduler, or leave --tls-ca, --tls-cert "
                "and --tls-key out. Worker processes on this machine get keys of their own."
            )

    @property
    def named(self) -> bool:
        """Whether a scheduler or a number of workers was named, for what this process could do as well."""
        return self.scheduler is not None or self.workers is not None

    @contextmanager
    def connected(self, *, trusted_worker: bool = False) -> Iterator[engine.Engine]:
        """Connect for the time of a block; with ``trusted_worker`` one of the workers must be the trusted one."""
        with ExitStack() as stack:
            folder = None if self.scheduler is not None else _folder_of_workers(stack)
            yield stack.enter_context(
                engine.connected(
                    self.scheduler,
                    self.workers,
                    trusted_worker=trusted_worker,
                    certificates=self.certificates,
                    insecure=self.insecure,
                    folder=folder,
                )
            )

    @contextmanager
    def kept(self) -> Iterator[Cluster]:
        """Give the same cluster, connected to when it is first needed and kept for the rest of the block."""
        with ExitStack() as stack:
            shared = {name: getattr(self, name) for name in Cluster.__dataclass_fields__}
            yield _KeptCluster(**shared, stack=stack)


def _folder_of_workers(stack: ExitStack) -> Path:
    """Make a folder for what local workers leave, in TMPDIR; removed when the stack is closed."""
    parent = Path(tempfile.gettempdir())
    try:
        return stack.enter_context(scratch(parent, "dpdist-workers"))
    except OSError as error:
        raise DataError(
            f"The workers' files cannot be put in {parent}: {error.strerror}. Set TMPDIR to a folder on a local disk."
        ) from None


@dataclass(frozen=True)
class _KeptCluster(Cluster):
    """A cluster that is connected to once."""

    stack: ExitStack = field(default_factory=ExitStack)
    engines: list[engine.Engine] = field(default_factory=list)

    @contextmanager
    def connected(self, *, trusted_worker: bool = False) -> Iterator[engine.Engine]:  # noqa: ARG002
        """Give the one connection."""
        if not self.engines:
            self.engines.append(self.stack.enter_context(super().connected(trusted_worker=self.trusted_worker)))
        yield self.engines[0]


@dataclass(frozen=True)
class Outcome:
    """A published release, and whether it was computed now or had been committed before."""

    release: Release
    path: Path
    fresh: bool

    def __repr__(self) -> str:
        return f"Outcome({self.path.name!r}, {'released now' if self.fresh else 'released before'})"

    def _repr_html_(self) -> str:
        return table("Outcome", {"release": self.path, "released now": self.fresh}) + self.release._repr_html_()

    def to_json(self) -> dict[str, Any]:
        """Return what is public about it as JSON values."""
        found = self.release
        return {
            "release": str(self.path), "fresh": self.fresh, **found.attributes(), "cautions": list(found.cautions),
        }  # fmt: skip

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
            f"{self.path}: {found.release_id} ({how}). {found.mechanism}, "
            f"{found.guarantee_words()}, {found.guarantee.arithmetic}. This file is public."
            f"{caution.in_words(found.cautions)} {shortened(found).warning()}".rstrip()
        )


def release_rows(
    rows: AnyPath,
    target: AnyPath,
    request: ReleaseRequest,
    *,
    ledger: PlaceGiven | None = None,
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
        If the budget does not suffice, or there is none; for reproduction, if there ever was one.
    DataError
        If rows, cluster or target cannot be used.
    ResumableError
        If the cluster was lost half-way.
    """
    return release_table(open_rows(rows), target, request, ledger=ledger, cluster=cluster)


def release_table(
    table: RowsTable,
    target: AnyPath,
    request: ReleaseRequest,
    *,
    ledger: PlaceGiven | None = None,
    cluster: Cluster | None = None,
) -> Outcome:
    """Publish one private second moment of an opened table, or of some of its periods, as :func:`release_rows`."""
    where = cluster or Cluster()
    calibrated = request.calibrated(table.columns, table.max_rows)  # refuses what makes no sense, before anything else
    require_summable(table, request.bound(table.columns))
    target = local(target)
    place = place_given(ledger or default_ledger(table.path))
    account = place.absolute() if isinstance(place, Path) else place
    transaction = trusted.Transaction(request, table, account, target.absolute())
    if request.by_products and where.trusted_worker:
        raise UsageError("Products are multiplied round by round from this process: leave --trusted worker out.")
    if request.for_reproduction:
        return _reproduced(transaction, where, ledger)
    if calibrated.guarantee is not None:
        caution.warn(calibrated.guarantee.loss, request.neighbours, table.rows)
    if not where.trusted_worker:
        state = _known_state(transaction)
        if state in {State.COMMITTED, State.PUBLISHED, State.ADOPTED}:
            trusted.reserve(transaction)  # refuses when the id stands for other parameters
            trusted.publish(transaction)
            return Outcome(open_release(target), target, fresh=False)
    with where.connected(trusted_worker=where.trusted_worker) as cluster_engine:
        cluster_engine.require_path(table.landmark)
        layout = _layout(cluster_engine, transaction, where)  # refuses what has no room before anything is charged
        state = cluster_engine.trusted(trusted.reserve, transaction)
        fresh = state is State.RESERVED
        if fresh:
            _compute(cluster_engine, transaction, where, layout)
        cluster_engine.trusted(trusted.publish, transaction)
    return Outcome(open_release(target), target, fresh)


def _known_state(transaction: trusted.Transaction) -> State | None:
    if not Ledger.stands_at(transaction.ledger):
        return None
    record = Ledger(transaction.ledger).record(transaction.release_id)
    return None if record is None else record.state


def _reproduced(transaction: trusted.Transaction, where: Cluster, ledger: PlaceGiven | None) -> Outcome:
    """Write a release that is not private as claimed, of rows that never had a budget; no ledger is touched."""
    if ledger is not None:
        raise UsageError("A release for reproduction is charged to no ledger: leave --ledger out.")
    require_undeclared(transaction.table)
    there = trusted.require_place(transaction)
    if not there:
        with where.connected(trusted_worker=where.trusted_worker) as cluster_engine:
            cluster_engine.require_path(transaction.table.landmark)
            cluster_engine.trusted(admit, transaction.table)  # before a row is read
            _compute(cluster_engine, transaction, where, _layout(cluster_engine, transaction, where))
    return Outcome(open_release(transaction.target), transaction.target, fresh=not there)


def _layout(cluster_engine: engine.Engine, transaction: trusted.Transaction, where: Cluster) -> Layout | None:
    """Return how the moment is laid out over bands and workers; None where it is never formed.

    Raises
    ------
    UsageError
        If the processes have too little memory for it.
    """
    request, table = transaction.request, transaction.table
    if request.by_products:
        return None
    independent = isinstance(request.calibrated(table.columns, table.max_rows), IndependentEntries)
    bound, workers = request.bound(table.columns), len(cluster_engine.workers)
    layout = layout_of(table, bound, workers, cluster_engine.memory, divisible=independent)
    if len(layout.bands) > 1 and where.trusted_worker:
        raise UsageError(
            f"A second moment of {bound.width} columns is noised band by band from this process: leave --trusted "
            "worker out, or give the workers more memory."
        )
    return layout


def _compute(
    cluster_engine: engine.Engine, transaction: trusted.Transaction, where: Cluster, layout: Layout | None
) -> None:
    """Sum the rows on the workers and conclude the release at the trusted node."""
    if layout is None:
        trusted.conclude(transaction, MomentProducts(_product(cluster_engine, transaction)))
        return
    try:
        if len(layout.bands) > 1:
            trusted.conclude(transaction, MomentBands(partial(_bands, cluster_engine, layout)))
            return
        sums = cluster_engine.reduce(partition_moment, add_partials, layout.plans[0].groups, "Summing rows")
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


def _bands(cluster_engine: engine.Engine, layout: Layout) -> Iterator[Partial]:
    """Sum the bands of the moment on the workers, and bring them here one after the other."""
    passes = [each.groups for each in layout.plans]
    summed = cluster_engine.reduce_each(
        partition_moment, add_partials, passes, "Summing rows in bands", under_way=layout.under_way
    )
    for sums in summed:
        yield cluster_engine.trusted(partial(complete, layout.table), sums=sums)
        sums.clear()  # the workers forget this band before they begin another


def _product(cluster_engine: engine.Engine, transaction: trusted.Transaction) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies the moment on the workers; what they are sent is already noisy.

    Noise of a first round may be out when a later one fails, so a failure refunds nothing: the same command resumes.
    """
    table = transaction.table
    groups = plan(table, transaction.request.bound(table.columns), len(cluster_engine.workers)).groups

    def product(vectors: Matrix) -> Matrix:
        tasks = [[ProductTask(partition, vectors) for partition in group] for group in groups]
        sums = cluster_engine.reduce(partition_product, add_partials, tasks, "Multiplying rows")
        total = cluster_engine.trusted(partial(complete, table), sums=sums)
        return total.values

    return product


def fit_components(
    release: AnyPath, target: AnyPath, count: int | None, *, cluster: Cluster | None = None
) -> tuple[models.Model, Release, bool]:
    """Write model.zarr with the top components of a release; None takes those that stand above its noise.

    Return the model, the release it was taken from, and whether it was written now: as many components of the same
    release that stand there already are left alone.

    A release that is too large for memory is multiplied from the disk: on the cluster if a scheduler or a number of
    workers is named, else in this process.

    Raises
    ------
    DataError
        If there is no release, something else stands at the target, or it cannot be written, or the cluster cannot be
        used.
    UsageError
        If there are not so many components, the release is drowned in noise, or none stands above it.
    """
    release, target = local(release), local(target)
    opened = open_release(release)
    made = {"format": models.FORMAT, "release_id": opened.release_id}
    if not made_from(target, "model", **made, **({} if count is None else {"k": count})):
        require_new(target, "model")  # before there is any work
    elif count is not None:
        return models.open_model(target), opened, False
    taken = _components_of(opened, release, count, cluster)
    found = models.Model(opened.release_id, opened.names, taken)
    there = partial(made_from, target, "model", **made, k=len(taken.components))
    if make_once(there, partial(models.save, found, opened, target)):
        return found, opened, True
    return models.open_model(target), opened, False


def components_of(release: AnyPath, count: int | None, *, cluster: Cluster | None = None) -> tuple[Release, Components]:
    """Take the top components of a release.zarr, as :func:`fit_components`, and write nothing."""
    release = local(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Path, count: int | None, cluster: Cluster | None) -> Components:
    with ExitStack() as stack:
        product = None
        if not opened.in_memory:
            nodes = stack.enter_context(cluster.connected()) if cluster is not None and cluster.named else None
            product = _release_product(release.absolute(), opened.bound.columns, nodes)
        return above_noise(opened, product) if count is None else components(opened, count, product)


def _release_product(release: Path, size: int, nodes: engine.Engine | None) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies a released second moment, here or on the workers."""
    memory, workers = (engine.memory_here(), 1) if nodes is None else (nodes.memory, len(nodes.workers))
    runs = lanczos.tile_rows(size, workers)
    keep = max(len(run) for run in runs) * size * 8 <= memory // 2
    if nodes is not None:
        nodes.require_path(release / "zarr.json")

    def product(vectors: Matrix) -> Matrix:
        tasks = [lanczos.ProductTask(release, run, vectors, keep) for run in runs]
        if nodes is None:
            return lanczos.stacked(lanczos.joined([lanczos.rows_product(task) for task in tasks]))
        parts = nodes.reduce(lanczos.rows_product, lanczos.joined, [[task] for task in tasks], None)
        return nodes.trusted(lambda *found: lanczos.stacked(lanczos.joined(found)), sums=parts)

    return product


def project_rows(rows: AnyPath, model: AnyPath, target: AnyPath, *, cluster: Cluster | None = None) -> tuple[int, bool]:
    """Write scores.zarr, (n, k) float64, or float32 of float32 rows; they are private.

    Return n, and whether they were written now: scores of the same rows, release and number of components that stand
    there already are left alone.

    Raises
    ------
    DataError
        If something else stands at the target, or rows, model, cluster or target cannot be used.
    """
    where = cluster or Cluster()
    model, target = local(model), local(target)
    table, found = open_rows(rows), models.open_model(model)
    there = partial(
        made_from,
        target,
        "scores",
        format=projection.FORMAT,
        dataset_id=table.dataset_id,
        release_id=found.release_id,
        k=len(found.components.components),
    )
    fresh = make_once(there, partial(_project, table, found, model, target, where))
    if not fresh:
        projection.require_whole(target, table)
    return table.rows, fresh


def _project(table: RowsTable, found: models.Model, model: Path, target: Path, where: Cluster) -> None:
    require_new(target, "scores")  # before there is any work
    with where.connected() as cluster_engine:
        tasks = 8 * len(cluster_engine.workers)
        with projection.scores_of(table, found, model, target, tasks) as work:
            for path in (table.path / "zarr.json", model.absolute(), work[0].scores):
                cluster_engine.require_path(path)
            cluster_engine.map(projection.project_chunks, work, "Projecting rows")


def made_from(path: Path, what: str, **expected: Any) -> bool:
    """Say whether a model or scores folder at path carries these attributes; refuse to take it for another's.

    Raises
    ------
    DataError
        If something exists there that is something else, or was made from something else.
    """
    if not os.path.lexists(path):
        return False
    info = attributes_at(path) or {}
    if other := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{path} exists already and was made from something else, or is no {what}: its {listed(other)} "
            f"{'differs' if len(other) == 1 else 'differ'}. Remove it or name another place."
        )
    return True
