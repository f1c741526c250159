"""The durable budget of one data set, and the state of each release charged to it.

::

    (none) --reserve--> RESERVED --commit(fence)--> COMMITTED --publish--> PUBLISHED
    (none) --reserve--> RESERVED --commit(fence)--> STAGED --commit(fence)--> COMMITTED --publish--> PUBLISHED
                                            with three draws twice: STAGED --commit(fence)--> STAGED
                        begin(): fence += 1, drafts of dead attempts deleted
                        abort(): refund, only while nothing was committed --> ABORTED
                        adopt(): committed to another copy of this ledger --> ADOPTED

A release is charged when it is reserved, before any row is read, and stays charged if a process dies later. One
transaction commits its noise. An uncommitted draw stays in the private folder of the ledger, is never published, and is
deleted before the next draw. So a crash can cost budget but not privacy, and the same id always yields the same bytes.
For copied or restored ledgers, a witness outside the ledger (:mod:`dpdist.core.ledger.witness`) ensures the same:
committed bytes are given out only after the witness has recorded them.

**Several draws.** A release may be drawn in parts under one id: a stage, such as a histogram, possibly a second stage
that depends on the first, and the final release, which depends on the stages. One charge pays for all parts, from the
reservation on, so no charge remains when a stage is known. Each part is drawn and committed once, as above. Committed
stages are read, not drawn again, and only after the witness has recorded them; the next part must also wait for that.
Once committed, a stage counts as published, and the release can no longer be refunded. (By the theorem of
:mod:`dpdist.core.privacy.profile`, parts that were not drawn could be refunded, since the sums count drawn parts. That
would give the id a second price, unknown to copies of the ledger.) The parameters of all parts are fixed with the id,
so none can depend on a stage.

Charges stay below caps that are fixed with the first charge, in the same transaction, and never change. Then all
releases together stay within the budget, even if each is chosen from earlier answers (theorem:
:mod:`dpdist.core.privacy.profile`; caps: :mod:`dpdist.core.privacy.accounting`).

The budget is for one neighbouring relation, that of the first release: losses under different relations cannot be
added.

The rows of a table may come in periods. A period is closed once, with a digest of its content. A release names its
periods with their digests. Each row is then charged only for the releases of its own period
(:mod:`dpdist.core.privacy.parallel`). Whether rows come in periods is fixed when the ledger is created.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dpdist.core.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.core.ledger.address import AnyLedgerAddress, parse_address
from dpdist.core.ledger.balance import (
    Balance,
    caps_to_fix,
    charge_of,
    matching_periods,
    raised,
    require_charged,
    require_distinct_rows,
    require_unit,
    require_within_budget,
)
from dpdist.core.ledger.journal import (
    Aborted,
    Begun,
    Closed,
    Committed,
    Created,
    Draws,
    Published,
    Reserved,
    Staged,
    Storage,
    digest_of_file,
    entry_of,
)
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.sqlite import FolderStorage
from dpdist.core.ledger.state import FORMAT, PERIODIC, Part, Record, State
from dpdist.core.ledger.witness import FolderWitness, Witnessed
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.privacy.parallel import PERIOD_PATTERN
from dpdist.core.text import canonical, listed, random_token

ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
"""Pattern of a release id; no dots, because drafts are named ``id.fence.token``."""
_POLL_SECONDS = 0.05
Account = AnyLedgerAddress | MemoryStorage
"""The place of a ledger: a location, or the memory of this process."""


class Ledger(Witnessed):
    """The durable budget of one table, and all releases charged to it.

    Each access reads new entries of its journal. :func:`dpdist.create_ledger` creates a ledger, and
    :func:`dpdist.release_rows` charges it.

    Parameters
    ----------
    place : str or path-like
        A folder, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``.

    Attributes
    ----------
    budget : PrivacyLoss
        The budget for all releases charged here: the declared one, less what was spent before.
    declared : PrivacyLoss
        The budget that was declared for the rows.
    records : list of Record
        The releases, in the order of charging.
    dataset_id, ledger_id : str
        Identities of the table and the ledger.
    periods : dict of str to str
        The closed periods in order, with their digests; empty if rows do not come in periods.
    head : str
        Digest of the last entry of the journal, 64 hexadecimal digits.

    Raises
    ------
    UsageError
        If the address is invalid, or the library for a database is not installed.
    DataError
        If there is no ledger, or its journal is damaged.

    See Also
    --------
    create_ledger : Creates a ledger.
    Budget : A budget in memory, for estimators.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016 (privacy filters); the theorem is in :mod:`dpdist.core.privacy.profile`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> np.save(f"{here.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> budget = dpdist.PrivacyLoss.parse(2)
    >>> table = dpdist.ingest_rows(f"{here.name}/table.npy", f"{here.name}/rows.zarr", budget=budget)
    >>> ledger = dpdist.Ledger(f"{here.name}/rows.ledger")
    >>> ledger.records, str(ledger.balance())
    ([], 'charged 0 releases; left: one more release of epsilon 2 (pure)')
    >>> here.cleanup()
    """

    def __init__(self, place: Account) -> None:
        super().__init__(_storage(place), place.witness if isinstance(place, MemoryStorage) else _witness())
        if not self._storage.exists():
            raise DataError(
                f"There is no ledger at {place}. {step('inspect', 'ROWS')} tells where the ledger of rows is. If it "
                "was moved, give its new place. If it is lost, restore it from a copy: nothing else records the "
                "charges."
            )

    def __repr__(self) -> str:
        return f"Ledger({str(self._storage)!r})"

    @classmethod
    def create(
        cls,
        place: Account,
        *,
        dataset_id: str,
        budget: PrivacyLoss,
        periodic: bool = False,
        spent: PrivacyLoss | None = None,
    ) -> Ledger:
        """Create a ledger with a budget.

        Parameters
        ----------
        place
            A folder, or the address of a database.
        dataset_id
            Identity of the table.
        budget
            The budget for all releases together.
        periodic
            Whether the rows come in periods.
        spent
            What releases of these rows cost before this ledger; it is taken off the budget.

        Raises
        ------
        UsageError
            If nothing of the budget is left.
        DataError
            If the place exists already or cannot be written.
        RefusedError
            If the place is not safe for a ledger, such as a network file system.
        """
        form = PERIODIC if periodic else FORMAT
        if spent is not None:
            budget.less(spent)
        first = Created(
            format=form, ledger_id=random_token(), dataset_id=dataset_id, **budget.to_json(),
            spent=None if spent is None else spent.to_json(),
        )  # fmt: skip
        _storage(place).create(entry_of(first))
        return cls(place)

    @classmethod
    def charged_for(cls, rows: object, ledger_id: str, place: Account) -> Ledger:
        """Open the ledger that may be charged for rows, whose id the rows name, or raise RefusedError."""
        if not cls.stands_at(place):
            raise RefusedError(
                f"The ledger of {rows} is not at {place}. If it was moved, pass its new location "
                f"({parameter('ledger')}, or ledger in a job file). If it is lost, restore it from a copy, because "
                "nothing else records the charges."
            )
        ledger = cls(place)
        if ledger.ledger_id != ledger_id:
            raise RefusedError(
                f"{place} is not the ledger of {rows}. Pass the one that was created for these rows "
                f"({parameter('ledger')}, or ledger in a job file)."
            )
        return ledger

    @staticmethod
    def stands_at(place: Account) -> bool:
        """Return whether there is a ledger at a place."""
        return _storage(place).exists()

    def close_period(self, name: str, digest: str) -> None:
        """Close the next period, which fixes the digest of its rows; idempotent.

        Parameters
        ----------
        name
            Name, which sorts after all closed periods.
        digest
            Keyed digest of its content; the key hides the rows from the administrator of the ledger.

        Raises
        ------
        UsageError
            If the name is malformed.
        RefusedError
            If it is closed with other content, sorts before a closed period, has the content of another one, or the
            rows of this ledger do not come in periods.
        """
        if not re.fullmatch(PERIOD_PATTERN, name):
            raise UsageError(
                f"{name!r} is not a valid name of a period. Use up to 64 letters and digits with single dots, hyphens "
                "or underscores between them, such that names sort by time, such as 2026-01-05."
            )
        with self._current() as (view, transaction):
            if view.periods is None:
                raise RefusedError(
                    f"The rows of {self._storage} do not come in periods, which is fixed when a ledger is created."
                )
            if name in view.periods:
                if view.periods[name] == digest:
                    return
                raise RefusedError(
                    f"The period {name} is closed with other rows, which cannot be changed. Restore those rows."
                )
            last = next(reversed(view.periods), "")
            if name < last:
                raise RefusedError(
                    f"The period {name} is too late: {last} is already closed, and periods are closed in the order of "
                    "their names. Put its rows into a later period."
                )
            for other, closed in view.periods.items():
                if closed == digest:
                    raise RefusedError(
                        f"The rows of the period {name} are equal to those of {other}, so a release would charge and "
                        "count each row twice. Remove the duplicate period. If they belong to other people with the "
                        "same values, put all rows into one period."
                    )
            self._append(view, transaction, Closed(name, digest))

    def raise_budget(self, budget: PrivacyLoss) -> Balance:
        """Raise the budget, which the journal records; after a charge, the guarantee gets a condition.

        All charges together then keep the new budget as if it had been declared at first, provided that it was not
        raised because of an answer: the caps of a filter must not depend on answers. Each release keeps its own
        guarantee in any case. Rows and job files name the first budget as before.

        Parameters
        ----------
        budget
            The new budget, at least as large in each part, with what was spent before this ledger.

        Raises
        ------
        UsageError
            If it is not larger.
        RefusedError
            If the charges do not fit its caps, or nothing can be charged to this ledger.
        """
        with self._current() as (view, transaction):
            before = view.with_spent(view.declared)
            parts = budget.to_json()
            if budget == before or any(parts.get(name, 0) < least for name, least in before.to_json().items()):
                raise UsageError(f"The budget of {self._storage} is {before}. Give a larger one.")
            budget = budget if view.spent is None else budget.less(view.spent)
            event = None if view.accounts_for() is None else raised(view, budget)
            if event is None:
                raise RefusedError(
                    f"The budget of {self._storage} cannot be raised to {budget}: its charges fit no caps that such a "
                    "ledger would have fixed before its first charge."
                )
            self._append(view, transaction, event)
        return self.balance()

    def reserve(
        self,
        release_id: str,
        *,
        dataset_id: str,
        parameters: Mapping[str, object],
        guarantee: Guarantee,
        periods: Mapping[str, str] | None = None,
        draws: Draws = 1,
        weights: Mapping[str, int] | None = None,
    ) -> State:
        """Charge a release, once for the same id with the same parameters.

        Parameters
        ----------
        release_id, dataset_id, parameters, guarantee
            Identities and parameters of the release, and its guarantee.
        periods
            The periods it reads, with the digests of their content. None: all rows.
        draws
            2 or 3 for a release with one or two stages; the guarantee is for all draws together.
        weights
            Weights of the periods, if they differ; the guarantee is for the largest.

        Returns
        -------
        State
            The state of the release.

        Raises
        ------
        RefusedError
            If the budget does not suffice, the id has other parameters, the ledger belongs to another data set or is
            behind its witness, the neighbouring relation differs from that of the ledger, or a period is not closed
            with this content or has the content of another one.
        UsageError
            If the id is malformed.
        """
        requested: dict[str, object] = json.loads(canonical(parameters))
        location = str(self._storage)
        if not re.fullmatch(ID_PATTERN, release_id):
            raise UsageError("A release id has 1 to 64 letters, digits, hyphens or underscores.", parameter="id")
        with self._current(release_id) as (view, transaction):
            if view.dataset_id != dataset_id:
                raise RefusedError(
                    f"The ledger {self._storage} belongs to another data set. Pass the ledger of these rows.",
                    parameter="ledger",
                )
            charge = charge_of(guarantee, matching_periods(view, periods or {}, location), weights or {})
            record = view.records.get(release_id)
            if record is not None:
                stored = record.parameters
                names = sorted(k for k in stored | requested if stored.get(k, ...) != requested.get(k, ...))
                reads = (record.periods, record.draws, record.weights) == (charge.periods, draws, charge.weights)
                if names or not reads:
                    raise RefusedError(
                        f"The release id {release_id} is already used with other parameters in {location}: "
                        f"{', '.join(names) or 'periods'} differ. Choose another {parameter('id')}."
                    )
                if record.state is not State.ABORTED:
                    require_charged(record, guarantee, location)
                    return record.state
            require_distinct_rows(view, charge.periods, location)
            require_unit(view, requested, location)
            caps = caps_to_fix(view, charge, location)
            reserved = Reserved(release_id, requested, guarantee.to_json(), charge.periods, draws, charge.weights)
            self._append(view, transaction, *caps, reserved)
        return State.RESERVED

    def begin(self, release_id: str, part: Part = Part.RELEASE) -> int | None:
        """Start an attempt to draw a part: fence out earlier attempts and delete their drafts.

        Returns
        -------
        int or None
            The fence to commit with, or None if this part is already committed.

        Raises
        ------
        RefusedError
            If the release is not reserved (it was aborted or adopted), or the ledger is behind its witness.
        DpdistError
            If the witness has not recorded the stage before this part.
        """
        with self._current(release_id) as (view, transaction):
            record = self._existing(view, release_id)
            if record.state is State.ADOPTED:
                raise self._adopted(record)
            if record.has(part):
                return None
            if record.state is State.ABORTED:
                raise RefusedError(
                    f"The release {release_id} was aborted and refunded during this run. Run the same command again."
                )
            if record.due is not part:
                raise DpdistError(f"The release {release_id} is {record.state}, so its {part} cannot be drawn now.")
            transaction.sweep(release_id, keep=record.blobs)
            # the token distinguishes this head from that of the same attempt in a restored ledger
            self._append(view, transaction, Begun(release_id, random_token()))
            return record.fence + 1

    def commit(self, release_id: str, fence: int, content: Iterable[bytes], part: Part = Part.RELEASE) -> bool:
        """Commit this draw as the release or a stage, unless a later attempt began or another one committed.

        The content is first written to the storage of the ledger in chunks, as it is drawn, so it need not fit in
        memory. One transaction then records its name and digest, and the witness records it. If the process dies before
        that transaction, the next :meth:`begin` deletes the unpublished draft. If it dies later, :meth:`opened` updates
        the witness.

        Returns
        -------
        bool
            False if this attempt was fenced out; its draft is deleted and must not be used.

        Raises
        ------
        ResumableError
            If the disk is full; the reservation stays.
        RefusedError
            If the ledger is behind its witness, because another copy has committed.
        """
        name = f"{release_id}.{fence}.{random_token()[:16]}"
        committed = False
        try:
            digest = self._storage.stage(name, content)
            with self._witness.locked(self.ledger_id) as witness:
                with self._locked() as (view, transaction):
                    self._require_current(witness, view)
                    record = self._existing(view, release_id)
                    live = record.due is part and record.fence == fence
                    if live and transaction.keep(name):
                        kind = Committed if part is Part.RELEASE else Staged
                        self._append(view, transaction, kind(release_id, name, digest))
                        committed = True
                if committed:
                    self._notify_witness(witness, release_id)
        finally:
            if not committed:
                self._storage.discard(name)
        return committed

    def wait(self, release_id: str, fence: int, seconds: float, part: Part = Part.RELEASE) -> bool:
        """Wait until the attempt that fenced this one out has committed or was aborted.

        Returns
        -------
        bool
            False if it did not within the time since the latest attempt began, so it died.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            record = self.record(release_id)
            if record is None or record.due is not part:
                return True
            if record.fence > fence + 1:
                fence = record.fence - 1  # another attempt is alive: give it the full time
                deadline = time.monotonic() + seconds
            time.sleep(_POLL_SECONDS)
        return False

    @contextmanager
    def opened(self, release_id: str, part: Part = Part.RELEASE) -> Iterator[BinaryIO]:
        """Open the committed bytes of a part, checked against their digest and recorded by the witness.

        Raises
        ------
        DataError
            If nothing was committed, or the stored bytes are missing or were altered.
        RefusedError
            If the ledger is behind its witness and these bytes were never given out.
        """
        record = self._existing(self._snapshot(), release_id)
        draw = record.committed(part)
        waits = record.state in {State.STAGED, State.COMMITTED} and not record.witnessed
        if waits and draw is not None and draw.digest == record.latest:
            with self._witness.locked(self.ledger_id) as witness:
                self._notify_witness(witness, release_id)
            record = self._existing(self._snapshot(), release_id)
        with self._content(record, part) as file:
            yield file

    @contextmanager
    def _content(self, record: Record, part: Part) -> Iterator[BinaryIO]:
        release_id = record.release_id
        if record.state is State.ADOPTED:
            raise self._adopted(record)
        draw = record.committed(part)
        if draw is None or draw.blob is None:
            raise DpdistError(f"The release {release_id} is {record.state}, not committed.")
        with self._storage.blob(draw.blob) as file:
            if digest_of_file(file) != draw.digest:
                raise DataError(
                    f"The committed bytes of {release_id} in {self._storage} are missing or altered. Restore the "
                    "ledger from a copy, because the noise cannot be drawn again."
                )
            file.seek(0)
            yield file

    def published(self, release_id: str, path: str = "") -> None:
        """Record that the committed bytes were published, and where; idempotent."""
        with self._locked() as (view, transaction):
            record = self._existing(view, release_id)
            transaction.sweep(release_id, keep=record.blobs)
            if record.state is State.COMMITTED:
                self._append(view, transaction, Published(release_id, path))

    def abort(self, release_id: str) -> bool:
        """Refund a reservation without committed draws, and fence out live attempts.

        Returns
        -------
        bool
            Whether the release is aborted; False if it or a stage was committed.
        """
        with self._locked() as (view, transaction):
            record = self._existing(view, release_id)
            if record.state is State.RESERVED:
                transaction.sweep(release_id, keep=())
                self._append(view, transaction, Aborted(release_id))
                return True
            return record.state is State.ABORTED

    def verify(self) -> None:
        """Check the chain of the journal from its first entry, the witness, the budget, and all committed bytes.

        Raises
        ------
        DataError
            If anything was altered, or the charges exceed the budget.
        RefusedError
            If the ledger is behind its witness.
        """
        self._verify_journal()
        missing = self.missing()
        if missing or self.exhausted_elsewhere:
            lacking = f"committed {listed(missing)}" if missing else "was charged the whole budget"
            raise RefusedError(
                f"The ledger {self._storage} is an older copy: according to its witness, another copy {lacking}. "
                "Restore a newer copy, or charge the missing releases to this one: "
                f"{step('ledger adopt', self._storage)}"
            )
        view = self._snapshot()
        require_within_budget(view, str(self._storage))
        for record in view.records.values():
            for part in Part:
                if record.has(part) and record.state is not State.ADOPTED:
                    with self._content(record, part):
                        pass  # opening checks the digest

    def remembers(self, release_id: str, head: str) -> bool:
        """Return whether this ledger contains a release and the head that the release states."""
        # If not, the journal was truncated or restored from an older copy, and would pay for a second draw. Only the
        # copy that committed an adopted release knows its head.
        with self._locked() as (view, transaction):
            record = view.records.get(release_id)
            if record is not None and record.state is State.ADOPTED:
                return True
            return record is not None and record.blob is not None and transaction.contains(head)

    def _adopted(self, record: Record) -> RefusedError:
        return RefusedError(
            f"The release {record.release_id} was committed to another copy of the ledger {self._storage}; this copy "
            "only charges it. A second draw would undo the noise of both. Publish it from that copy (its committed "
            f"bytes have SHA-256 {str(record.digest)[:16]}...), or copy the published release to its target."
        )


def _storage(location: Account) -> Storage:
    if isinstance(location, MemoryStorage):
        return location
    address = parse_address(location)
    if isinstance(address, Path):
        return FolderStorage(address)
    try:
        from dpdist.core.ledger.postgresql import PostgresStorage  # noqa: PLC0415 - an extra, needed only here
    except ImportError:
        raise UsageError(
            "A ledger in PostgreSQL needs psycopg. Install it in the clone of dpdist: pip install '.[postgres]'"
        ) from None
    return PostgresStorage(address)


def _witness() -> FolderWitness:
    return FolderWitness()
