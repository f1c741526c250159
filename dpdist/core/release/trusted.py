"""The trusted node, the only place that adds noise to the exact total.

Every function here may run any number of times; the ledger decides which draw counts
(:mod:`dpdist.core.release.transaction`). The exact total is a local variable of :func:`finalise`: it is never in a
file, a log line or an exception. Until then, partial sums are in the memory of the workers, and on no disk
(:mod:`dpdist.core.runtime.sums`); anyone who can connect to the cluster can read them. The only output is read back
from the ledger after the commit. Core dumps are disabled before a connection to a cluster, and again in every task,
because sums are in this process's memory before this module is called.

The private choices of a release are separate stages (:mod:`dpdist.core.release.stages`), and the release uses only
their committed bytes.

A table has either a budget or releases for reproduction, permanently, and its metadata record which.

A release for reproduction may be the exact second moment, and no ledger charges it. Subtracting it from a charged
release of the same rows yields its noise, and the ledger's guarantee is void. So the first of the two excludes the
other, in either order, wherever the ledger has been moved, and also for earlier copies of the rows
(:mod:`dpdist.core.ledger.state_folder`). Both are checked and recorded under the locks of the rows' folder and of the
data set's record, so one of two concurrent attempts is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.journal import Draws, written
from dpdist.core.ledger.ledger import Account, Ledger
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.base import BandedMoment, Calibrated, IndependentEntries, Matrix, released
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.moment.total import Partial, complete
from dpdist.core.naming import parameter, step
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Guarantee, Neighbours
from dpdist.core.progress import Steps
from dpdist.core.release import archive, transaction
from dpdist.core.release.artefact import FORMAT, Heading, Release
from dpdist.core.release.attributes import Coverage, Stage
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import Plan, plan_of, proved
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.transaction import ReleaseTransaction
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import mark_reproduced
from dpdist.core.rows.table import Table
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, Store
from dpdist.core.triangle import Band, Triangle

Answer = Matrix | Iterator[tuple[Band, Triangle]]
"""A noisy subspace, or the noisy bands of a moment."""


@dataclass(frozen=True)
class Realised:
    """The bound of the rows that follows from the stages of a release, and the stages as the release describes them."""

    bound: RowBound
    stage: Stage


@dataclass(frozen=True)
class MomentTransaction(ReleaseTransaction):
    """The release of a second moment by a plan, and its target."""

    plan: Plan
    table: Table
    ledger: Account
    target: Store
    realised: Realised | None = None  # if stages were drawn first

    @classmethod
    def of(cls, request: ReleaseRequest, table: Table, ledger: Account, target: Store) -> MomentTransaction:
        """Plan a release of a table."""
        return cls(plan_of(request, table), table, ledger, target)

    @cached_property
    def release_id(self) -> str:
        """The id, from the plan and the identity of the table."""
        return self.plan.release_id(self.table)

    @property
    def place(self) -> str:
        """Where it is published."""
        return str(self.target)

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of the release besides the rows, as JSON values."""
        return self.plan.parameters(self.table)

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of all draws together."""
        return self.plan.guarantee

    @property
    def accepts_large_delta(self) -> bool:
        """Whether a delta of 1/n or more is intended."""
        return self.plan.request.accept_large_delta

    @property
    def bound(self) -> RowBound:
        """How rows are bounded; with placeholders until the stages are drawn."""
        return self.plan.bound if self.realised is None else self.realised.bound

    def stored(self, heading: Heading, answer: Answer) -> Iterator[bytes]:
        """Yield the bytes that are committed."""
        return archive.archived(heading, answer)

    @property
    def draws(self) -> Draws:
        """One draw, and one more for each private choice."""
        draws: tuple[Draws, ...] = (1, 2, 3)
        return draws[len(self.plan.stages)]

    def has(self, part: Part) -> bool:
        """Whether a part is committed."""
        record = Ledger(self.ledger).record(self.release_id)
        return record is not None and record.has(part)

    def reserve(self) -> State:
        """Charge the release, once its target is known to be free or to contain it."""
        stands = stands_at(self.target, self.release_id)
        if self.plan.request.for_reproduction:
            raise UsageError(
                f"A release for reproduction cannot be charged to a ledger: leave {parameter('for_reproduction')} out."
            )
        ledger = self.account()
        if stands:
            require_recorded(ledger, self.target)
        return self.charge(ledger)


def require_recorded(ledger: Ledger, target: AnyStore) -> Release:
    """Open a published release; refuse a ledger without its record: it would pay for a second draw of the same sum."""
    release = open_release(target)
    require_remembered(ledger, target, release.release_id, release.ledger_head)
    return release


def require_remembered(ledger: Ledger, target: AnyStore, release_id: str, head: str | None) -> None:
    """Refuse a ledger that has no record of a published release with this head."""
    if head is None or not ledger.remembers(release_id, head):
        raise RefusedError(
            f"{target} contains the release {release_id}, which the ledger has no record of. The ledger was "
            "truncated or restored from an older copy, or the release was charged to another ledger. A second draw "
            "would undo the noise of both. Restore a copy of the ledger that is at least as new as the release. If a "
            f"witness saw the release, {step('ledger adopt')} charges it to this ledger."
        )


def stands_at(target: Store, release_id: str | None) -> bool:
    """Whether target contains the release; refuses another release. With None, any release is another one."""
    attributes = attributes_of(target) or {}
    if release_id is not None and attributes.get("release_id") == release_id and attributes.get("format") == FORMAT:
        return True
    if attributes.get("format") == FORMAT:
        raise DataError(
            f"{target} contains another release, of other rows or parameters: {step('inspect', target)} shows them. "
            "Choose another path for this release, or move the other one away."
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
    conclude(transaction, MomentMatrix(total.values, transaction.bound.width), progress)


def conclude(transaction: MomentTransaction, moment: BandedMoment, progress: Steps | None = None) -> None:
    """Draw the noise and commit; idempotent, and only once even if others run it too.

    The speed of a slow draw may depend on the data: show progress on the trusted node's own terminal only.
    """
    if transaction.plan.request.for_reproduction:
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
    """Yield the archive of one fresh noisy release, without the exact moment."""
    plan, table = transaction.plan, transaction.table
    heading = _heading(
        plan,
        transaction.realised,
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
    return transaction.stored(heading, noisy_answer(plan.moment, heading.bound.width, moment, progress))


def _heading(
    plan: Plan, realised: Realised | None, names: tuple[str, ...], rows: int, **attributes: Any
) -> Heading:  # fmt: skip
    """Return the public header of a release: request, guarantee, and n if it is public."""
    request = plan.request
    public = request.neighbours is Neighbours.REPLACE_ONE
    claim = plan.moment.claim if realised is None else proved(plan.guarantee).loss
    return Heading(
        mechanism=request.mechanism,
        names=names,
        neighbours=request.neighbours,
        claim=claim,
        guarantee=plan.guarantee,
        bound=plan.bound if realised is None else realised.bound,
        noise=plan.moment.noise,
        rows=rows if public else None,
        rows_at_most=None if public else request.rows_at_most,
        stage=None if realised is None else realised.stage,
        **attributes,
    )


def noisy_answer(calibrated: Calibrated, width: int, moment: BandedMoment, progress: Steps | None) -> Answer:
    """Return a noisy subspace, or an iterator of the noisy bands of the moment, each drawn on demand."""
    if isinstance(calibrated, IndependentEntries):
        return _noisy_bands(calibrated, moment)
    answer = released(calibrated, moment, SYSTEM, progress)
    if answer.ndim == 1:
        return iter([(Band.whole(width), answer.astype(np.int64, copy=False))])
    return answer.astype(np.float64, copy=False)


def _noisy_bands(calibrated: IndependentEntries, moment: BandedMoment) -> Iterator[tuple[Band, Triangle]]:
    """Yield band after band with its noise, and keep none."""
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
    """Refuse rows for which a budget was ever declared, by their metadata and the record of their data set."""
    copied = state_folder.seen(table.dataset_id).ledger_id is not None
    if not copied and table.budget is None and table.ledger_id is None and not table.periodic:
        return
    raise RefusedError(
        f"A budget is declared for {table}{', or for a copy of it' if copied else ''}, and a release for "
        "reproduction, which no ledger is charged for, would void its guarantee. No row was read, and nothing was "
        f"written. To reproduce, ingest the source again without a budget: {step('ingest', 'SOURCE', 'ROWS')}."
    )


def admit(table: Table) -> None:
    """Allow a release for reproduction: refuse rows with a budget, and mark the others; idempotent."""
    require_undeclared(table)
    with table.store.locked(), state_folder.held(table.dataset_id) as data:
        current = open_rows(table.store)
        require_undeclared(current)
        if current.dataset_id != table.dataset_id:
            raise DataError(f"{table} was replaced by other rows meanwhile. Run the command again.")
        if not state_folder.seen(table.dataset_id).reproduced:
            data.write(state_folder.DatasetRecord(reproduced=True))
        if not current.reproduced:
            mark_reproduced(current)


def reproduced(rows: object) -> RefusedError:
    """Return the error for declaring a budget for rows that were released for reproduction."""
    return RefusedError(
        f"A release for reproduction was made of {rows}, or of a copy, perhaps without any noise. With it, the noise "
        "of any other release of these rows can be removed, so no budget has a guarantee. Nothing was written. If the "
        "release was not passed on, delete it and these rows, and ingest the source again with a budget: "
        f"{step('ingest', 'SOURCE', 'ROWS', budget_epsilon='E')}."
    )
