"""From rows to a private release, published once.

Every step may be repeated. An existing file is kept if it is the same; otherwise it is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.html import table
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import AnyLedgerAddress, absolute
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, Layout, layout_of, split_tasks
from dpdist.core.moment.operator import Digits, Matrix, MomentBands, MomentProducts, ProductTask, partition_product
from dpdist.core.moment.total import (
    MomentTask,
    Partial,
    add_partials,
    common_key,
    complete,
    moment_task,
    partition_moment,
    partition_of_own_key,
    require_summable,
)
from dpdist.core.naming import parameter
from dpdist.core.paths import AnyPath
from dpdist.core.pipeline.budget import ledger_place
from dpdist.core.pipeline.clip_norm import draw_stages, require_choice
from dpdist.core.privacy import checks
from dpdist.core.privacy.accounting import Filter, caps_for
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import LOGGER, steps
from dpdist.core.release import advice, stages, trusted
from dpdist.core.release.advice import stage_words
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.combine import combined, write_sum
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import Plan, has_centre
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.trusted import admit, require_undeclared
from dpdist.core.rows.table import Table
from dpdist.core.runtime.cluster import AnyCluster, Cluster, chosen
from dpdist.core.runtime.local import Computation, Executor, Secret
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import AnyStore, store_at


@dataclass(frozen=True)
class Outcome:
    """A published release, its path, and whether it was drawn now or before."""

    release: Release
    path: AnyPath
    fresh: bool

    def __repr__(self) -> str:
        return f"Outcome({PurePath(self.path).name!r}, {'released now' if self.fresh else 'released before'})"

    def _repr_html_(self) -> str:
        return table("Outcome", {"release": self.path, "released now": self.fresh}) + self.release._repr_html_()

    def to_json(self) -> dict[str, object]:
        """Return its public attributes as JSON values."""
        release = self.release
        return {
            "release": str(self.path), "fresh": self.fresh, **release.attributes(), "cautions": list(release.cautions),
        }  # fmt: skip

    def describe(self) -> str:
        """Return a description in sentences."""
        release = self.release
        status = "released now" if self.fresh else "released before: the same bytes, nothing spent"
        if release.guarantee is None or not release.private_as_claimed:
            proved = "nothing" if release.guarantee is None else str(release.guarantee.loss)
            return (
                f"{self.path}: {release.release_id}. NOT PRIVATE AS CLAIMED: {release.mechanism}, claimed "
                f"{release.claim or 'nothing'}, proved {proved} under {release.neighbours}. Do not publish it."
            )
        return (
            f"{self.path}: {release.release_id} ({status}). {release.mechanism}, "
            f"{release.guarantee_words()}, {release.guarantee.arithmetic}.{stage_words(release)} This file is public."
            f"{checks.cautions_message(release.cautions)}"
        )


def release_rows(
    rows: AnyStore,
    release: AnyStore,
    request: ReleaseRequest,
    *,
    ledger: AnyLedgerAddress | None = None,
    cluster: AnyCluster | None = None,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Publish a release.zarr: one private second moment. Repeating a request returns the same bytes at no cost.

    The budget is reserved before any row is read. If a chunk is unusable, the reservation is refunded, because no noise
    was drawn. If the process dies, the reservation is kept, and the same call resumes the release.

    A request with ``clip_norm="private"`` is released in two draws under one id: a histogram of the norms, which
    determines the clip norm, and then the moment. With ``scale="private"``, histograms of all columns determine the
    centre and scale of each column; ``release.blindly_scaled`` lists the columns with too little information. A request
    with both has three draws. All draws are charged in advance, and ``release.stage`` contains the choices. After the
    first draw, nothing is refunded.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address.
    release : str or path-like
        The folder to publish, or its address. An existing release is never replaced by another one.
    request : ReleaseRequest
        Mechanism, privacy loss and parameters.
    ledger : str or path-like, default None
        The ledger of the budget. None: next to the rows; for rows at an address, the one recorded on this machine.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to compute. None: threads of this process.
    say : callable, default None
        Called with messages (str), such as that the schema already implies a clip norm that is about to be chosen
        privately. None: the logger ``dpdist`` gets them (INFO).

    Returns
    -------
    Outcome
        ``release`` (a :class:`dpdist.Release`), ``path``, and ``fresh``: whether it was drawn now.

    Raises
    ------
    UsageError
        If the request does not fit this table.
    RefusedError
        If the budget does not suffice, or there is none; for reproduction, if a budget was ever declared.
    DataError
        If rows, cluster or target cannot be used.
    ResumableError
        If the connection to the cluster was lost.

    See Also
    --------
    choose_clip_norm : Choose a clip norm that does not follow from public knowledge.
    forecast_release : Forecast the errors of a release before spending budget.
    fit_components, open_release : The next steps.
    PrivatePCA, PrivateCovariance : The same for rows in memory.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018. The proof for each mechanism is in its module
    (:mod:`dpdist.core.mechanisms`).

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=100)
    >>> dpdist.release_rows("rows.zarr", "release.zarr", request)  # doctest: +SKIP
    Outcome('release.zarr', released now)
    """
    return release_table(open_rows(rows), release, request, ledger=ledger, cluster=cluster, say=say)


def release_table(
    table: Table,
    target: AnyStore,
    request: ReleaseRequest,
    *,
    ledger: AnyLedgerAddress | None = None,
    cluster: AnyCluster | None = None,
    say: Callable[[str], None] | None = None,
    review: Callable[[Plan], object] = lambda _: None,
) -> Outcome:
    """Publish one private second moment of an opened table, or of some of its periods: see :func:`release_rows`.

    ``review`` is called with the plan of a new release before it is charged, and may refuse it.
    """
    cluster, store, on_message = chosen(cluster), store_at(target), say or LOGGER.info
    account = Path() if request.for_reproduction else ledger_place(table, ledger)  # reproduction charges none
    transaction = trusted.MomentTransaction.of(request, table, absolute(account), store.absolute())
    require_summable(table, transaction.bound)
    if request.by_products and cluster.trusted_worker:
        raise UsageError(
            f"Products are computed round by round from this process. Leave {parameter('trusted', 'worker')} out."
        )
    if request.for_reproduction:
        _require_centre(transaction)
        return _reproduced(transaction, cluster, ledger)
    committed, pending = {State.COMMITTED, State.PUBLISHED, State.ADOPTED}, False
    if not cluster.trusted_worker:  # which alone can read the ledger
        _require_relation(transaction)
        if transaction.state() in committed:
            _warn(transaction)
            transaction.reserve()  # refuses an id that belongs to other parameters
            trusted.publish(transaction)
            return _logged(Outcome(open_release(store), store.address(), fresh=False))
        pending = transaction.state() not in {None, State.ABORTED}
        _require_possible(transaction, on_message, pending=pending)
    with cluster.connected() as executor:
        executor.require_visible(table.probe, ROOT)
        if cluster.trusted_worker:
            executor.trusted(_require_relation, transaction)
            pending = executor.trusted(transaction.state) not in {None, State.ABORTED}
            _require_possible(transaction, on_message, pending=pending)
        layout = layout_for(executor, transaction, cluster)  # checks the memory before anything is charged
        if not pending:
            review(transaction.plan)
        fresh = executor.trusted(transaction.reserve) in {State.RESERVED, State.STAGED}
        if fresh and transaction.draws > 1:
            draw_stages(executor, transaction)
            compute(executor, executor.trusted(stages.resolved, transaction), cluster, layout)
        elif fresh:
            compute(executor, transaction, cluster, layout)
        executor.trusted(trusted.publish, transaction)
    return _logged(Outcome(open_release(store), store.address(), fresh))


def _logged(outcome: Outcome) -> Outcome:
    drawn = "drawn and charged" if outcome.fresh else "made before, nothing was charged"
    LOGGER.info(f"{outcome.path} is {outcome.release.release_id}, {outcome.release.guarantee_words()}: {drawn}.")
    return outcome


def _require_relation(transaction: trusted.MomentTransaction) -> None:
    """Refuse another ledger or relation first: messages of replace-one say n, which may be private."""
    transaction.account().require_relation(transaction.plan.request.neighbours)


def _warn(transaction: trusted.MomentTransaction) -> None:
    if transaction.guarantee is not None:
        checks.warn(transaction.guarantee.loss, transaction.plan.request.neighbours, transaction.table.rows)


def _require_possible(
    transaction: trusted.MomentTransaction, on_message: Callable[[str], None], *, pending: bool
) -> None:
    """Warn, and refuse what these rows cannot have released; what was charged is completed."""
    _warn(transaction)
    if pending:
        return
    if transaction.draws > 1:
        require_choice(transaction)
        _report_free_norm(transaction, on_message)
        _report_units(transaction, on_message)
    _require_centre(transaction)
    _require_counted(transaction)


def require_releasable(
    table: Table, request: ReleaseRequest, budget: PrivacyLoss, review: Callable[[Plan], object] = lambda _: None
) -> None:
    """Refuse a request that these rows or a budget can never have released, from public facts; without a ledger."""
    transaction = trusted.MomentTransaction.of(request, table, Path(), store_at("release.zarr"))
    guarantee = transaction.guarantee
    if guarantee is None or request.for_reproduction:
        raise UsageError("A release for reproduction has no budget. Ingest the file, and release its rows.")
    checks.require_small_delta(guarantee.loss, request.neighbours, table.rows, accepted=request.accept_large_delta)
    _require_centre(transaction)
    _require_counted(transaction)
    if not Filter(budget, caps_for(budget, guarantee)).holds(guarantee):
        raise UsageError(f"A release of {guarantee.loss} exceeds the budget {budget}. Nothing was declared or spent.")
    if request.chooses:
        require_choice(transaction)
    review(transaction.plan)


def _report_free_norm(transaction: trusted.MomentTransaction, on_message: Callable[[str], None]) -> None:
    """Report a clip norm that follows from the schema for free, if one is about to be chosen privately."""
    request = transaction.plan.request
    free = advice.free_norm(transaction.table, request).lstrip()
    if free and request.clip_norm == "private":
        on_message(f"{free} A privately chosen one may be smaller, with less noise.")


def _report_units(transaction: trusted.MomentTransaction, on_message: Callable[[str], None]) -> None:
    """Say how many privacy units a private scale needs: it counts each once, and their number is private."""
    table, request = transaction.table, transaction.plan.request
    if table.together and table.unit is not None and "scale" in request.chooses:
        counting = stages.columns_of(transaction).counting()
        _, least = stages.least_rows(request, counting, Dimensions(len(counting.grids), together=True))
        on_message(
            f"The scale is chosen by counts of each {table.unit.column}, and how many there are stays private: below "
            f"some {least} of them it sees little."
        )


def _require_centre(transaction: trusted.MomentTransaction) -> None:
    """Refuse a table with dropped rows and no centre."""
    advice.require_centre_of_dropped(transaction.table.schema, centred=has_centre(transaction.plan))


def _require_counted(transaction: trusted.MomentTransaction) -> None:
    """Refuse a release of whole privacy units whose sum of weights could not be seen."""
    if refused := advice.count_refused(transaction.plan, transaction.table.rows):
        raise RefusedError(f"{refused} Nothing was spent.")


def _reproduced(transaction: trusted.MomentTransaction, cluster: Cluster, ledger: AnyLedgerAddress | None) -> Outcome:
    """Write a release that is not private as claimed, for rows that never had a budget; no ledger is charged."""
    if ledger is not None:
        raise UsageError(f"A release for reproduction is not charged to a ledger. Leave {parameter('ledger')} out.")
    require_undeclared(transaction.table)
    exists = trusted.stands_at(transaction.target, transaction.release_id)
    if not exists:
        with cluster.connected() as executor:
            executor.require_visible(transaction.table.probe, ROOT)
            executor.trusted(admit, transaction.table)  # before a row is read
            compute(executor, transaction, cluster, layout_for(executor, transaction, cluster))
    return Outcome(open_release(transaction.target), transaction.target.address(), fresh=not exists)


def layout_for(executor: Executor, transaction: trusted.MomentTransaction, cluster: Cluster) -> Layout | None:
    """Return the bands and workers of the moment; None if it is never formed."""
    table, bound = transaction.table, transaction.bound
    if transaction.plan.request.by_products:
        return None
    independent = isinstance(transaction.plan.moment, IndependentEntries)
    workers, threads, memory = executor.resources()
    layout = layout_of(
        table, bound, workers, memory, threads=threads, divisible=independent, fewer_threads=executor.limits_threads
    )
    if len(layout.bands) > 1 and cluster.trusted_worker:
        raise UsageError(
            f"The noise of a second moment of {bound.width} columns is added band by band in this process. Leave "
            f"{parameter('trusted', 'worker')} out, or give the workers more memory."
        )
    return layout


def compute(
    executor: Executor, transaction: trusted.MomentTransaction, cluster: Cluster, layout: Layout | None
) -> None:
    """Sum the rows on the workers, and complete the release at the trusted node; each attempt uses new dithers.

    The bound is that of the transaction, whose clip norm may have been chosen after the layout.
    """
    bound = transaction.bound
    if layout is None:
        trusted.conclude(transaction, MomentProducts(_product(executor, transaction, common_key())))
        return
    layout = replace(layout, bound=bound)
    try:
        if len(layout.bands) > 1:
            moment = MomentBands(partial(_bands, executor, transaction.table, layout, common_key()))
            trusted.conclude(transaction, moment)
            return
        finalise: Callable[..., None] = trusted.finalise
        if not cluster.trusted_worker:
            finalise = partial(finalise, progress=steps(cluster.progress, "Drawing noise"))
        (computation,) = _computations(transaction.table, layout, partition_of_own_key)
        executor.reduce(computation, finalise, transaction, label="Summing rows")
    except DataError:
        if not transaction.plan.request.for_reproduction:
            executor.trusted(transaction.abort)
        raise


def _bands(executor: Executor, table: Table, layout: Layout, key: Secret | None) -> Iterator[Partial[np.int64]]:
    """Sum the bands of the moment on the workers, and yield their totals in this process, one after the other."""
    computations = _computations(table, layout, partition_moment, key)
    sums = executor.reduce_many(computations, "Summing rows in bands", concurrent=layout.concurrent_bands)
    with closing(sums):
        for total in sums:
            yield complete(table, total)
            del total


def _computations(
    table: Table, layout: Layout, function: Callable[[MomentTask], Partial[np.int64]], key: Secret | None = None
) -> list[Computation]:
    """Return the computation of each band."""
    return [
        Computation(
            "sum", function, task, tasks, add_partials, nbytes=8 * task.band.entries, threads=layout.threads, key=key
        )
        for task, tasks in zip(layout.moment_tasks(table), layout.task_chunks(), strict=True)
    ]


def _product(
    executor: Executor, transaction: trusted.MomentTransaction, key: Secret | None
) -> Callable[[Matrix], Matrix]:
    """Return a function that multiplies the moment by vectors on the workers; the vectors are already noisy.

    A failure refunds nothing, because noise of an earlier round may have been published: the same command resumes.
    """
    table, bound = transaction.table, transaction.bound
    task, digits = moment_task(table, bound), Digits.of(table, bound)

    def product(vectors: Matrix) -> Matrix:
        entries = digits.count * vectors.size
        row_seconds = BOUND_SECONDS * table.columns + MULTIPLY_SECONDS * (vectors.size + entries)
        workers = executor.resources().slots
        tasks = split_tasks(table, row_seconds=row_seconds, entries=entries, workers=workers)
        values = ProductTask(task, vectors)
        computation = Computation("sum", partition_product, values, tasks, add_partials, nbytes=8 * entries, key=key)
        return digits.joined(executor.reduce(computation, partial(complete, table), label="Multiplying rows").values)

    return product


def combine_releases(releases: Sequence[AnyStore | Release], total: AnyStore, *, disjoint: bool = False) -> Outcome:
    """Write the sum of releases of disjoint rows, with their joint guarantee, as a release.zarr. Free.

    Releases of periods of one table are disjoint, and their sum is as private as the weakest of them. Releases of
    different tables are composed, unless their owners state that no row is in two tables. An existing, identical sum is
    kept.

    Parameters
    ----------
    releases : sequence of str, path-like or Release
        Second moments of one mechanism, with the same columns, bound and neighbouring relation; some may be sums.
    total : str or path-like
        The folder to write, or its address. The sum, (d, d) int64, must fit in memory.
    disjoint : bool, default False
        Whether the owners of different tables state that no row, or no privacy unit if there is one, is in two tables.

    Returns
    -------
    Outcome
        The sum, its path, and whether it was written now.

    Raises
    ------
    UsageError
        If the list is empty, or the matrices cannot be added.
    RefusedError
        If two releases are of the same rows, or one is not private as claimed.
    DataError
        If a release is damaged, the sum exceeds 64-bit integers, or the folder contains something else or cannot be
        written.

    See Also
    --------
    release_rows : Publish a release.
    fit_components : Write the components of the sum.

    References
    ----------
    McSherry 2009, Privacy integrated queries (parallel composition); the theorem for periods of one table is in
    :mod:`dpdist.core.privacy.parallel`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> ask = {"epsilon": 1, "delta": 1e-6, "clip": 4}
    >>> tables = [np.random.default_rng(n).normal(size=(n, 4)) for n in (600, 700)]
    >>> sites = [dpdist.PrivateCovariance(**ask).fit(table).release_ for table in tables]
    >>> outcome = dpdist.combine_releases(sites, f"{here.name}/sum.zarr", disjoint=True)
    >>> outcome, outcome.release.rows, outcome.release.guarantee
    (Outcome('sum.zarr', released now), 1300, Guarantee(epsilon=1, delta=1e-06, replace-one))
    >>> here.cleanup()
    """
    if isinstance(releases, str | bytes) or not isinstance(releases, Sequence | Iterator):
        raise UsageError("Pass the releases to combine as a list, even a single one.")
    combined_release = combined(
        [release if isinstance(release, Release) else open_release(release) for release in releases], disjoint=disjoint
    )
    fresh = write_sum(combined_release, total)
    return Outcome(combined_release, store_at(total).address(), fresh)
