"""The trusted node: the one place where noise meets the exact total.

Every function here may run any number of times; the ledger decides which draw counts
(:mod:`dpdist.release.transaction`). The un-noised total is a local variable of :func:`finalise`: it is never a file, a
log line or part of an exception. Partial sums are in the memory of the workers until then, and on no disk
(:mod:`dpdist.runtime.sums`); whoever can connect to the cluster can ask for them. What leaves is only what was read
back from the ledger after the commit. Core dumps are forbidden before a cluster is connected to, and again in every
task, because sums are in this process's memory before this module is called.

What a release chooses first has stages of its own (:mod:`dpdist.release.stages`), and what follows from them is read
from the committed bytes alone.

Rows for reproduction, or rows with a budget: a table is one of the two for ever, and its metadata remember which.

A release for reproduction may be the exact second moment, and no ledger charges it. Whoever then sees a charged release
of the same rows subtracts the two, and has its noise: nothing that the ledger promises is left. So the first of the
two excludes the other, whichever it was, and wherever the ledger is kept by now, also where copies of the rows were
made before (:mod:`dpdist.ledger.state_folder`). Both look and write while they hold the folder of the rows and what was
seen of their data set, so that of two at once one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from dpdist._util.progress import Steps
from dpdist._util.text import canonical, random_token
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger import state_folder
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Draws, written
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.mechanisms.base import BandedMoment, Calibrated, IndependentEntries, Matrix, released
from dpdist.moment.operator import MomentMatrix
from dpdist.moment.total import Partial, complete
from dpdist.naming import step
from dpdist.noise.entropy import SYSTEM
from dpdist.privacy.guarantee import Guarantee, Neighbours
from dpdist.release import archive, transaction
from dpdist.release.artefact import FORMAT, Heading, Release, open_release
from dpdist.release.attributes import Coverage, Stage
from dpdist.release.request import ReleaseRequest
from dpdist.release.transaction import ReleaseTransaction
from dpdist.rows.bounding import TRUNCATED
from dpdist.rows.dataset import mark_reproduced
from dpdist.rows.table import Table
from dpdist.storage.arrays import attributes_of
from dpdist.storage.store import AnyStore, Store
from dpdist.triangle import Band, Triangle, unpacked


@dataclass(frozen=True)
class Staged:
    """What a release tells of the stages that were drawn before it, and what is proved of all together."""

    stage: Stage
    guarantee: Guarantee


@dataclass(frozen=True)
class MomentTransaction(ReleaseTransaction[ReleaseRequest]):
    """The release of a second moment, and where it is published; its number of grid bits is fixed."""

    target: Store
    staged: Staged | None = None  # where stages were drawn before it

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", self.request.of_table(self.table))

    @property
    def draws(self) -> Draws:
        """One more for each thing that is to be chosen first."""
        every: tuple[Draws, ...] = (1, 2, 3)
        return every[len(self.request.chooses)]

    def has(self, part: Part) -> bool:
        """Say whether a part is committed."""
        record = Ledger(self.ledger).record(self.release_id)
        return record is not None and record.has(part)

    def with_placeholders(self) -> MomentTransaction:
        """Return it with a clip norm of 1 or no scale where that is not chosen yet: no width or cost depends on it."""
        return replace(self, request=self.request.with_placeholders)

    def reserve(self) -> State:
        """Charge the release, as any, once its place is known to be free or its own."""
        stands = stands_at(self.target, self.release_id)
        if self.request.for_reproduction:
            raise UsageError("A release for reproduction has no guarantee that a ledger could charge.")
        ledger = self.account()
        if stands:
            require_remembered(ledger, self.target)
        return self.charge(ledger)


def charged_request(
    request: ReleaseRequest, table: Table, ledger: Ledger | None, target: Store | None = None
) -> ReleaseRequest:
    """Return what a request stands for: what the same words asked for under an older rule, where that was charged.

    Rows were truncated to the grid, and clip norm and scale chosen otherwise, by versions up to 0.1.0. A release that
    was charged or published then is the same for ever: to draw it again by today's rule would be a second draw of the
    same rows, charged again.
    """
    attributes = {} if target is None else attributes_of(target) or {}
    for older in request.older():
        release_id, parameters = older.release_id(table), json.loads(canonical(older.parameters(table)))
        record = None if ledger is None else ledger.record(release_id)
        if record is not None:
            # what was refunded is charged anew; but a chosen id stands for what it was chosen for
            alive = record.state is not State.ABORTED or request.name is not None
            matches = record.parameters == parameters and alive
        else:
            bound = attributes.get("bound")
            if request.chooses and isinstance(bound, dict):  # these were chosen since
                bound = bound | {name: parameters["bound"][name] for name in ("clip_norm", "scale", "centre")}
            matches = (attributes.get("release_id"), bound) == (release_id, parameters["bound"])
        if matches:
            return older.of_table(table)
    return request.of_table(table)


def as_charged(request: ReleaseRequest, table: Table, address: LedgerAddress, target: Store) -> MomentTransaction:
    """Return the release that a request stands for, as :func:`charged_request` says."""
    ledger = Ledger(address) if Ledger.stands_at(address) else None
    return MomentTransaction(charged_request(request, table, ledger, target), table, address, target)


def require_remembered(ledger: Ledger, target: AnyStore) -> None:
    """Refuse a ledger that has forgotten a release: it would pay for a second draw of the same noise-free sum."""
    release = open_release(target)
    if release.ledger_head is None or not ledger.remembers(release.release_id, release.ledger_head):
        raise RefusedError(
            f"{target} holds the release {release.release_id}, and the ledger does not know of it. The ledger was cut "
            "short or restored from an older copy, or the release was charged to another ledger. A second draw would "
            "undo the noise of both. Restore a copy of the ledger that is at least as new as the release. If a witness "
            f"saw the release, {step('ledger adopt')} charges it to this ledger."
        )


def stands_at(target: Store, release_id: str | None) -> bool:
    """Say whether a release stands at a place; None: no release does that is meant."""
    attributes = attributes_of(target) or {}
    if release_id is not None and attributes.get("release_id") == release_id and attributes.get("format") == FORMAT:
        return True
    if attributes.get("format") == FORMAT:
        raise DataError(
            f"{target} holds another release, of other rows or other parameters: {step('inspect', target)} shows them. "
            "Choose another place for this one, or move that one away."
        )
    target.require_new("release")
    return False


def finalise(
    transaction: MomentTransaction,
    total: Partial[np.int64] | None = None,
    progress: Steps | None = None,
) -> None:
    """Check the total and conclude the release."""
    total = complete(transaction.table, total)
    width = transaction.request.bound(transaction.table.columns).width
    conclude(transaction, MomentMatrix(total.values, width), progress)


def conclude(transaction: MomentTransaction, moment: BandedMoment, progress: Steps | None = None) -> None:
    """Draw the noise and commit: idempotent, and once whoever else runs it.

    A reproduction is written right away, to a folder that nobody but its owner can enter, and only of rows that never
    had a budget.

    How fast a slow draw proceeds may depend on the data: progress is for the trusted node's own terminal.

    An attempt that was fenced out discards its draw and waits for the winner; only when the winner died does it
    begin again, with a new draw.
    """
    if transaction.request.for_reproduction:
        admit(transaction.table)
        with TemporaryFile() as file:
            written(file, _drawn(transaction, moment, progress))
            archive.publish(file, transaction.target, private=True)
        return
    ledger = Ledger(transaction.ledger)
    condition = ledger.condition
    transaction.commit(lambda head: _drawn(transaction, moment, progress, ledger_head=head, condition=condition))


def _drawn(
    transaction: MomentTransaction,
    moment: BandedMoment,
    progress: Steps | None = None,
    *,
    ledger_head: str | None = None,
    condition: str | None = None,
) -> Iterator[bytes]:
    """Yield the archive of one fresh noisy release, drawn on the way; nothing of the exact moment is in it."""
    request, table = transaction.request, transaction.table
    calibrated = request.calibrated(table.columns, table.changed_rows)
    heading = _heading(
        request,
        calibrated,
        transaction.staged,
        table.names,
        table.rows,
        release_id=transaction.release_id,
        extents=(Coverage.of(table),),
        unit=table.unit,
        ledger_head=ledger_head,
        condition=condition,
        schema=table.schema,
        weights=table.weights,
    )
    return archive.archived(heading, _noisy(calibrated, heading.bound.width, moment, progress))


def _heading(
    request: ReleaseRequest, calibrated: Calibrated, staged: Staged | None, names: tuple[str, ...], rows: int,
    **attributes: Any,
) -> Heading:  # fmt: skip
    """Return the public header of a release: what was asked for, what is proved, and n only where it is public."""
    public = request.neighbours is Neighbours.REPLACE_ONE
    return Heading(
        mechanism=request.mechanism,
        names=names,
        neighbours=request.neighbours,
        claim=calibrated.claim if staged is None else staged.guarantee.loss,
        guarantee=calibrated.guarantee if staged is None else staged.guarantee,
        bound=request.bound(len(names)),
        noise=calibrated.noise,
        rows=rows if public else None,
        rows_at_most=None if public or request.rule == TRUNCATED else request.rows_at_most,
        stage=None if staged is None else staged.stage,
        **attributes,
    )


def draw_unrecorded(
    request: ReleaseRequest,
    moment: MomentMatrix,
    *,
    names: tuple[str, ...],
    rows: int,
    datasets: tuple[str, ...],
    staged: Staged | None = None,
) -> Release:
    """Draw the noise once over rows that no ledger knows, and keep the release in memory: called twice, it costs twice.

    There is no id by which a second call could be told from the first. Whoever calls this has charged
    the draw before, to the register of this process (:mod:`dpdist.ledger.in_memory`), and calls it once.
    """
    calibrated = request.calibrated(len(names))
    if request.for_reproduction:
        raise RefusedError("Rows in memory are not released for reproduction: ingest them, and use the command line.")
    extents = tuple(Coverage(dataset) for dataset in datasets)
    heading = _heading(
        request, calibrated, staged, names, rows, release_id=f"m-{random_token()}", extents=extents
    )  # fmt: skip
    attributes = {field.name: getattr(heading, field.name) for field in fields(heading)}
    answer = _noisy(calibrated, heading.bound.width, moment, None)
    if isinstance(answer, np.ndarray):
        return Release(answer=answer, **attributes)
    ((_, values),) = answer
    if heading.corner is not None:
        values[-1] = heading.corner  # n is public: as in the archive of a release
    return Release(answer=unpacked(values, heading.bound.width), **attributes)


def _noisy(
    calibrated: Calibrated, width: int, moment: BandedMoment, progress: Steps | None
) -> Matrix | Iterator[tuple[Band, Triangle]]:
    """Return a noisy subspace, or the noisy bands of the moment, each drawn when it is asked for."""
    if isinstance(calibrated, IndependentEntries):
        return _noisy_bands(calibrated, moment)
    answer = released(calibrated, moment, SYSTEM, progress)
    if answer.ndim == 1:
        return iter([(Band.whole(width), answer.astype(np.int64, copy=False))])
    return answer.astype(np.float64, copy=False)


def _noisy_bands(calibrated: IndependentEntries, moment: BandedMoment) -> Iterator[tuple[Band, Triangle]]:
    """Yield band after band with its noise, and hold none when the next one comes."""
    for band, exact in moment.bands():
        noisy = transaction.noisy(calibrated, band, exact, SYSTEM)
        del exact
        yield band, noisy
        del noisy


def publish(transaction: MomentTransaction) -> None:
    """Read the committed bytes back, publish them, and record it; idempotent."""
    ledger = Ledger(transaction.ledger)
    record = ledger.record(transaction.release_id)
    if record is not None and record.state is State.ADOPTED and stands_at(transaction.target, record.release_id):
        return  # published by the copy of the ledger that committed it
    with transaction.committed() as content:
        archive.publish(content, transaction.target)


def require_undeclared(table: Table) -> None:
    """Refuse rows for which a budget was ever declared.

    The rows' own metadata tell: a ledger that was moved away, that lies in a database, or that was not created yet
    counts too. Of rows that were copied before they had one, what was seen of their data set tells. Rows that come in
    periods always have a budget.
    """
    copied = state_folder.seen(table.dataset_id).ledger_id is not None
    if not copied and table.budget is None and table.ledger_id is None and not table.periodic:
        return
    raise RefusedError(
        f"A budget is declared for {table}{', or for a copy of it' if copied else ''}, and a release for "
        "reproduction is charged to no ledger: it would undo what the budget promises. No row was read, and nothing "
        f"was written. To reproduce, ingest the source again without a budget: {step('ingest', 'SOURCE', 'ROWS')}."
    )


def admit(table: Table) -> None:
    """Let rows be released for reproduction: refuse those that have a budget, and mark the others; idempotent."""
    require_undeclared(table)
    with table.store.locked(), state_folder.held(table.dataset_id) as data:
        current = open_rows(table.store)
        require_undeclared(current)
        if current.dataset_id != table.dataset_id:
            raise DataError(f"{table} was replaced by other rows meanwhile. Run the same command again.")
        if not state_folder.seen(table.dataset_id).reproduced:
            data.write(state_folder.Seen(reproduced=True))
        if not current.reproduced:
            mark_reproduced(current)


def reproduced(rows: Store) -> RefusedError:
    """Return what is said where rows, or a copy of them, were released for reproduction and shall have a budget."""
    return RefusedError(
        f"A release for reproduction was made of {rows}, or of a copy of it, perhaps without any noise. Whoever has "
        "that release can remove the noise from any other release of these rows, so no budget can promise anything. "
        "Nothing was written. If nobody has it, delete it and these rows, and ingest the source again with a budget: "
        f"{step('ingest', 'SOURCE', 'ROWS', budget_epsilon='E')}."
    )
