"""From rows to a private release, published once.

Every step may be repeated. What exists already and is the same is left alone; what is different is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np

from dpdist._util.html import table
from dpdist._util.paths import AnyPath
from dpdist._util.progress import steps
from dpdist._util.text import exactly
from dpdist.errors import DataError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger.address import LedgerAddressGiven, absolute
from dpdist.ledger.state import State
from dpdist.mechanisms.base import IndependentEntries
from dpdist.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, Layout, layout_of, units_of
from dpdist.moment.operator import Digits, Matrix, MomentBands, MomentProducts, ProductTask, partition_product
from dpdist.moment.total import (
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
from dpdist.naming import parameter
from dpdist.pca.bias import clipped_rows
from dpdist.pca.bias import warning as rounding_warning
from dpdist.pipeline.budget import ledger_place
from dpdist.pipeline.clip_norm import draw_stages, require_choice
from dpdist.privacy import checks
from dpdist.privacy.guarantee import Guarantee
from dpdist.release import advice, stages, trusted
from dpdist.release.advice import blindly_scaled_words
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, write_sum
from dpdist.release.request import ReleaseRequest
from dpdist.release.trusted import admit, require_undeclared
from dpdist.rows.table import Table
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Engine, Secret, Work
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import AnyStore, store_at


@dataclass(frozen=True)
class Outcome:
    """A published release, where it stands, and whether it was made now or had been before, and is the same."""

    release: Release
    path: AnyPath
    fresh: bool

    def __repr__(self) -> str:
        return f"Outcome({PurePath(self.path).name!r}, {'released now' if self.fresh else 'released before'})"

    def _repr_html_(self) -> str:
        return table("Outcome", {"release": self.path, "released now": self.fresh}) + self.release._repr_html_()

    def to_json(self) -> dict[str, object]:
        """Return what is public about it as JSON values."""
        found = self.release
        return {
            "release": str(self.path), "fresh": self.fresh, **found.attributes(), "cautions": list(found.cautions),
        }  # fmt: skip

    def describe(self) -> str:
        """Return the same in a sentence."""
        found = self.release
        how = "released now" if self.fresh else "released before: the same bytes, nothing spent"
        if found.guarantee is None or not found.private_as_claimed:
            proved = "nothing" if found.guarantee is None else str(found.guarantee.loss)
            return (
                f"{self.path}: {found.release_id}. NOT PRIVATE AS CLAIMED: {found.mechanism}, claimed "
                f"{found.claim or 'nothing'}, proved {proved} under {found.neighbours}. Do not publish it."
            )
        # what a sum of several weights is not is told of their total
        clipped = "" if found.weights else f"{clipped_rows(found).warning()}{rounding_warning(found)}"
        return (
            f"{self.path}: {found.release_id} ({how}). {found.mechanism}, "
            f"{found.guarantee_words()}, {found.guarantee.arithmetic}.{stage_words(found)} This file is public."
            f"{checks.in_words(found.cautions)} {clipped}".rstrip()
        )


def stage_words(found: Release) -> str:
    """Say what a release chose first, and what part of the loss that was; sentences after a space, or nothing."""
    if found.stage is None or found.guarantee is None:
        return ""
    alone = Guarantee.from_json(found.stage.guarantee)
    if alone.mu_squared is not None and found.guarantee.mu_squared is not None:
        part = f"{float(alone.mu_squared / found.guarantee.mu_squared):.1%} of its mu²"
    else:
        part = f"epsilon {alone.loss.epsilon:g} of it"
    said = f" Chosen first, privately, by {found.stage.mechanism} ({part}): "
    share = found.stage.chosen.get("quantile")
    if "scale" in found.stage.chosen:
        what = "centre and scale" if "centre" in found.stage.chosen else "the scale"
        clip = f", clip norm {exactly(found.bound.clip_norm)}" if "clip_norm" in found.stage.chosen else ""
        clip += "" if share is None else f", about the {share:g}-quantile of the norms of scaled rows"
        return f"{said}{what} of each column{clip}. {blindly_scaled_words(found)}".rstrip()
    where = "which no row exceeds by the schema" if share is None else f"about the {share:g}-quantile of the norms"
    return f"{said}clip norm {exactly(found.bound.clip_norm)}, {where}."


def release_rows(
    rows: AnyStore,
    release: AnyStore,
    request: ReleaseRequest,
    *,
    ledger: LedgerAddressGiven | None = None,
    cluster: Cluster | None = None,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Publish a release.zarr: one private second moment; the same request again is the same bytes at no cost.

    The budget is reserved before any row is read. If a chunk turns out to be unusable, the reservation is refunded,
    because no noise was drawn; if anything dies, it is kept and the same call resumes.

    A request with ``clip_norm="private"`` is released in two draws under one id: a histogram of the norms, which
    chooses the clip norm, and then the moment. One with ``scale="private"`` likewise chooses centre and scale of each
    column, by histograms of all columns; ``release.blindly_scaled`` names columns of which these saw too little. One
    with both is released in three draws. All are charged beforehand, and ``release.stage`` tells the choice; once the
    first is drawn nothing is refunded.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address.
    release : str or path-like
        The folder to publish, or its address. A release that stands there already is never replaced by another one.
    request : ReleaseRequest
        What to release, and at what loss.
    ledger : str or path-like, default None
        Where the budget is kept. None: beside the rows; of rows at an address, the one that this machine remembers.
    cluster : Cluster, default None
        Where to compute. None: threads of this process.
    say : callable, default None
        Called with what should be known (str) before a clip norm is paid for that the schema gives for nothing. None:
        nobody is told.

    Returns
    -------
    Outcome
        ``release`` (a :class:`dpdist.Release`), ``path``, and ``fresh``: whether it was drawn now.

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

    See Also
    --------
    choose_clip_norm : Where the clip norm does not follow from what is publicly known.
    forecast_release : What a release will show, before anything is spent.
    fit_components, open_release : What comes next.
    PrivatePCA, PrivateCovariance : The same of rows in memory.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018. What is proved of each mechanism stands in its module
    (:mod:`dpdist.mechanisms`).

    Examples
    --------
    Here it is not run.

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
    ledger: LedgerAddressGiven | None = None,
    cluster: Cluster | None = None,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Publish one private second moment of an opened table, or of some of its periods, as :func:`release_rows`."""
    where, store, tell = chosen(cluster), store_at(target), say or _ignored
    account = Path() if request.for_reproduction else ledger_place(table, ledger)  # which charges no ledger
    asked = request, table, absolute(account), store.absolute()
    elsewhere = where.trusted_worker and not request.for_reproduction
    transaction = trusted.MomentTransaction(*asked) if elsewhere else trusted.as_charged(*asked)
    _tell_older(transaction, request, tell)
    guarantee = transaction.request.guarantee(table)  # refuses what makes no sense, before anything else
    with_placeholders = transaction.with_placeholders()
    require_summable(table, with_placeholders.request.bound(table.columns))
    if request.by_products and where.trusted_worker:
        raise UsageError(
            f"Products are multiplied round by round from this process: leave {parameter('trusted', 'worker')} out."
        )
    if request.for_reproduction:
        _require_centre(transaction, tell)
        return _reproduced(transaction, where, ledger)
    if guarantee is not None:
        checks.warn(guarantee.loss, request.neighbours, table.rows)
    committed = {State.COMMITTED, State.PUBLISHED, State.ADOPTED}
    if not where.trusted_worker and transaction.state() in committed:
        transaction.reserve()  # refuses when the id stands for other parameters
        trusted.publish(transaction)
        return Outcome(open_release(store), store.address(), fresh=False)
    if transaction.draws > 1:
        require_choice(transaction)
        _tell_free_norm(transaction, tell)
    if where.trusted_worker or transaction.state() in {None, State.ABORTED}:
        _require_centre(transaction, tell)
    with where.connected() as engine:
        engine.require_visible(table.probe, ROOT)
        if elsewhere:
            transaction = engine.trusted(trusted.as_charged, *asked)
            with_placeholders = transaction.with_placeholders()
        layout = _layout(engine, with_placeholders, where)  # refuses what has no room before anything is charged
        fresh = engine.trusted(transaction.reserve) in {State.RESERVED, State.STAGED}
        if fresh and transaction.draws > 1:
            draw_stages(engine, transaction)
            _compute(engine, engine.trusted(stages.resolved, transaction), where, layout)
        elif fresh:
            _compute(engine, transaction, where, layout)
        engine.trusted(trusted.publish, transaction)
    return Outcome(open_release(store), store.address(), fresh)


def _ignored(_: str) -> None:
    """Take a sentence that nobody wants to be told."""


def _tell_older(
    transaction: trusted.MomentTransaction, request: ReleaseRequest, tell: Callable[[str], None]
) -> None:  # fmt: skip
    """Say that a release that was charged by an older version knows nothing of what was asked for since."""
    if transaction.request.choice_rule != request.choice_rule and (request.components or request.targets):
        tell(
            f"This release was charged by an older version of dpdist, which knew neither {parameter('components')} nor "
            f"{parameter('targets')}: it stays as it was chosen then."
        )


def _tell_free_norm(transaction: trusted.MomentTransaction, tell: Callable[[str], None]) -> None:
    """Say that the schema gives a clip norm for nothing, where one is about to be paid for."""
    free = advice.free_norm(transaction.table, transaction.request).lstrip()
    if free and transaction.request.clip_norm == "private":
        tell(f"{free} A privately chosen one may be shorter, with less noise.")


def _require_centre(transaction: trusted.MomentTransaction, tell: Callable[[str], None]) -> None:
    """Refuse rows of which some are dropped where they have no centre, and say what they are in an older table."""
    request = transaction.request
    advice.require_centre_of_dropped(
        transaction.table, centred=request.centre is not None or "scale" in request.chooses
    )
    if dropped := advice.dropped(transaction.table):
        tell(dropped)


def _reproduced(transaction: trusted.MomentTransaction, where: Cluster, ledger: LedgerAddressGiven | None) -> Outcome:
    """Write a release that is not private as claimed, of rows that never had a budget; no ledger is touched."""
    if ledger is not None:
        raise UsageError(f"A release for reproduction is charged to no ledger: leave {parameter('ledger')} out.")
    require_undeclared(transaction.table)
    there = trusted.stands_at(transaction.target, transaction.release_id)
    if not there:
        with where.connected() as engine:
            engine.require_visible(transaction.table.probe, ROOT)
            engine.trusted(admit, transaction.table)  # before a row is read
            _compute(engine, transaction, where, _layout(engine, transaction, where))
    return Outcome(open_release(transaction.target), transaction.target.address(), fresh=not there)


def _layout(engine: Engine, transaction: trusted.MomentTransaction, where: Cluster) -> Layout | None:
    """Return how the moment is laid out over bands and workers; None where it is never formed."""
    request, table = transaction.request, transaction.table
    if request.by_products:
        return None
    independent = isinstance(request.calibrated(table.columns, table.changed_rows), IndependentEntries)
    bound, (workers, threads, memory) = request.bound(table.columns), engine.resources()
    how = {"divisible": independent, "fewer_threads": engine.limits_threads}
    layout = layout_of(table, bound, workers, memory, threads=threads, **how)
    if len(layout.bands) > 1 and where.trusted_worker:
        raise UsageError(
            f"A second moment of {bound.width} columns is noised band by band from this process: leave "
            f"{parameter('trusted', 'worker')} out, or give the workers more memory."
        )
    return layout


def _compute(engine: Engine, transaction: trusted.MomentTransaction, where: Cluster, layout: Layout | None) -> None:
    """Sum the rows on the workers and conclude the release at the trusted node; each attempt dithers rows anew.

    Rows are bounded as the release says, whose clip norm may have been chosen since they were laid out.
    """
    bound = transaction.request.bound(transaction.table.columns)
    if layout is None:
        trusted.conclude(transaction, MomentProducts(_product(engine, transaction, common_key(bound))))
        return
    layout = replace(layout, bound=bound)
    try:
        if len(layout.bands) > 1:
            moment = MomentBands(partial(_bands, engine, transaction.table, layout, common_key(bound)))
            trusted.conclude(transaction, moment)
            return
        finalise: Callable[..., None] = trusted.finalise
        if not where.trusted_worker:
            finalise = partial(finalise, progress=steps(where.progress, "Drawing noise"))
        (work,) = _works(transaction.table, layout, partition_of_own_key)
        engine.reduce(work, finalise, transaction, label="Summing rows")
    except DataError:
        if not transaction.request.for_reproduction:
            engine.trusted(transaction.abort)
        raise


def _bands(engine: Engine, table: Table, layout: Layout, key: Secret | None) -> Iterator[Partial[np.int64]]:
    """Sum the bands of the moment on the workers, and bring them here one after the other."""
    works = _works(table, layout, partition_moment, key)
    sums = engine.reduce_each(works, "Summing rows in bands", under_way=layout.under_way)
    with closing(sums):
        for total in sums:
            yield complete(table, total)
            del total


def _works(
    table: Table, layout: Layout, function: Callable[[MomentTask], Partial[np.int64]], key: Secret | None = None
) -> list[Work]:
    """Return the pass of each band."""
    return [
        Work("sum", function, task, units, add_partials, nbytes=8 * task.band.entries, threads=layout.threads, key=key)
        for task, units in zip(layout.tasks(table), layout.units, strict=True)
    ]


def _product(engine: Engine, transaction: trusted.MomentTransaction, key: Secret | None) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies the moment on the workers; what they are sent is already noisy.

    Noise of a first round may be out when a later one fails, so a failure refunds nothing: the same command resumes.
    """
    table, bound = transaction.table, transaction.request.bound(transaction.table.columns)
    task, digits = moment_task(table, bound), Digits.of(table, bound)

    def product(vectors: Matrix) -> Matrix:
        entries = digits.count * vectors.size
        row_seconds = BOUND_SECONDS * table.columns + MULTIPLY_SECONDS * (vectors.size + entries)
        workers = engine.resources().slots
        units = units_of(table, row_seconds=row_seconds, entries=entries, workers=workers)
        values = ProductTask(task, vectors)
        work = Work("sum", partition_product, values, units, add_partials, nbytes=8 * entries, key=key)
        return digits.joined(engine.reduce(work, partial(complete, table), label="Multiplying rows").values)

    return product


def combine_releases(releases: Sequence[AnyStore | Release], total: AnyStore, *, disjoint: bool = False) -> Outcome:
    """Write a release.zarr that is the sum of releases of disjoint rows, with their joint guarantee. Free.

    Releases of periods of one table are disjoint, and their sum is as private as the weakest of them. Those of
    different tables are composed, unless their owners say that no row is in two of them. The same sum that stands there
    already is left alone.

    Parameters
    ----------
    releases : sequence of str, path-like or Release
        Second moments of one mechanism, with the same columns, bound and neighbouring relation; some may be sums.
    total : str or path-like
        The folder to write, or its address. The sum is held in memory meanwhile: (d, d) int64.
    disjoint : bool, default False
        Whether the owners of different tables say that no row stands in two of them; of releases with a privacy unit,
        that no unit does.

    Returns
    -------
    Outcome
        The sum, where it stands, and whether it was written now.

    Raises
    ------
    UsageError
        If there are none, or their matrices cannot be added up.
    RefusedError
        If two are of the same rows, or one is not private as claimed.
    DataError
        If one is damaged, the sum leaves 64-bit integers, something else stands at its place, or it cannot be written.

    See Also
    --------
    release_rows : Makes releases.
    fit_components : Components of the sum.

    References
    ----------
    McSherry 2009, Privacy integrated queries (parallel composition); the theorem for periods of one table is in
    :mod:`dpdist.privacy.parallel`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> ask = {"epsilon": 1, "delta": 1e-6, "clip": 4}
    >>> tables = [np.random.default_rng(n).normal(size=(n, 4)) for n in (600, 700)]
    >>> sites = [dpdist.PrivateCovariance(**ask).fit(table).release_ for table in tables]
    >>> found = dpdist.combine_releases(sites, f"{here.name}/sum.zarr", disjoint=True)
    >>> found, found.release.rows, found.release.guarantee
    (Outcome('sum.zarr', released now), 1300, Guarantee(epsilon=1, delta=1e-06, replace-one))
    >>> here.cleanup()
    """
    if isinstance(releases, str | os.PathLike | Release):
        raise UsageError("Releases to combine are given as a list, also a single one.")
    made = combined([each if isinstance(each, Release) else open_release(each) for each in releases], disjoint=disjoint)
    fresh = write_sum(made, total)
    return Outcome(made, store_at(total).address(), fresh)
