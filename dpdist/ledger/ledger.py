"""The durable budget of one data set, and the state of each release charged to it.

::

    (none) --reserve--> RESERVED --commit(fence)--> COMMITTED --publish--> PUBLISHED
    (none) --reserve--> RESERVED --commit(fence)--> STAGED --commit(fence)--> COMMITTED --publish--> PUBLISHED
                                            with three draws twice: STAGED --commit(fence)--> STAGED
                        begin(): fence += 1, dead attempts' drafts deleted
                        abort(): refund, only while nothing was committed --> ABORTED
                        adopt(): committed to another copy of this ledger --> ADOPTED

A release is charged when it is reserved, before any row is read, and stays charged whatever dies afterwards. Its
noise becomes *the* noise in the one transaction that commits it. A draw that was not committed stays in the private
folder of the ledger, is never published, and is deleted before the next draw. So a crash can cost budget, never
privacy, and the same id always yields the same bytes. For ledgers that were copied or restored, a witness outside of
them (:mod:`dpdist.ledger.witness`) ensures the same: committed bytes are given out when the witness has seen them.

**Several draws.** A release may be drawn in parts under one id: a stage, such as a histogram, perhaps a second one that
follows from what the first published, and then the release, which follows from both. One charge pays for all, from the
reservation on, so nothing is left to be charged when a stage is known. Each part is drawn and committed as above, once:
before a stage is committed it is drawn; afterwards its committed bytes are read, and only what comes after it is still
to come. They are read when the witness has seen them, as those of a release, and nothing is drawn after a stage that it
has not seen. From its commitment on a stage counts as published: nothing of the id is refunded any more. (By the
theorem of :mod:`dpdist.privacy.profile` the parts that were not drawn could be refunded, since the sums count what was
drawn. They are not: the id would have a second price, which a copy of the ledger could not know.) The parameters of all
parts are fixed with the id, so nobody chooses anything after seeing a stage.

Charges stay below caps that are fixed with the first charge, in the same transaction, and never change. Then all
releases together keep the budget, even if each is chosen from the answers before it (theorem:
:mod:`dpdist.privacy.profile`; caps: :mod:`dpdist.privacy.accounting`).

The budget is kept under one neighbouring relation, that of the first release: a loss under one relation cannot be
added to a loss under the other.

The rows of a table may come in periods. A period is closed once, with a digest of its content. A release names the
periods it reads, with the digests it found. Then each row is charged for the releases of its own period only
(:mod:`dpdist.privacy.parallel`). Whether rows come in periods is decided when the ledger is created.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dpdist._util.text import canonical, counted, listed, random_token
from dpdist.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.ledger.address import LedgerAddress, LedgerAddressGiven, address_given
from dpdist.ledger.balance import (
    Balance,
    caps_to_fix,
    charge_of,
    closed_as_read,
    require_apart,
    require_charged,
    require_kept,
    restated,
)
from dpdist.ledger.journal import (
    Aborted,
    Begun,
    Capped,
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
from dpdist.ledger.sqlite import FolderStorage
from dpdist.ledger.state import FORMAT, PERIODIC, Part, Record, State
from dpdist.ledger.witness import FolderWitness, Witnessed
from dpdist.naming import parameter, step
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import PERIOD_PATTERN, PeriodFilters

ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
"""What a release id is made of; no dots, because drafts are named ``id.fence.token``."""
_POLL_SECONDS = 0.05


class Ledger(Witnessed):
    """The durable budget of one table, and every release that was charged to it.

    It is folded from its journal whenever it is asked. :func:`dpdist.create_ledger` makes one, and
    :func:`dpdist.release_rows` charges it.

    Parameters
    ----------
    place : str or path-like
        A folder, or ``postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME``.

    Attributes
    ----------
    budget : PrivacyLoss
        What all releases together may cost.
    records : list of Record
        The releases, in the order in which they were charged.
    dataset_id, ledger_id : str
        Identities of the table and of the ledger.
    periods : dict of str to str
        The closed periods in order, each with its digest; none also where rows do not come in periods.
    head : str
        Digest of the last entry of the journal, 64 hexadecimal digits.

    Raises
    ------
    UsageError
        If the address makes no sense, or what a database needs is not installed.
    DataError
        If there is no ledger, or its journal is damaged.

    See Also
    --------
    create_ledger : Makes one.
    Budget : A budget in memory, for estimators.

    References
    ----------
    Rogers, Roth, Ullman & Vadhan 2016 (privacy filters); the theorem is in :mod:`dpdist.privacy.profile`.

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
    ([], 'charged 0 releases; left: one pure release of epsilon 2')
    >>> here.cleanup()
    """

    def __init__(self, place: LedgerAddressGiven) -> None:
        super().__init__(_storage(place), _witness())
        if not self._storage.exists():
            raise DataError(
                f"There is no ledger at {place}. If it was moved, pass {parameter('ledger')}; if it is lost, restore "
                "it from a copy: what was spent is known nowhere else."
            )

    def __repr__(self) -> str:
        return f"Ledger({str(self._storage)!r})"

    @classmethod
    def create(
        cls, place: LedgerAddressGiven, *, dataset_id: str, budget: PrivacyLoss, periodic: bool = False
    ) -> Ledger:
        """Create a ledger with a budget where there is none.

        Parameters
        ----------
        place
            Where it shall be.
        dataset_id
            Identity of the table.
        budget
            What all releases together may cost any row.
        periodic
            Whether the rows come in periods.

        Raises
        ------
        DataError
            If something is there already, or the place cannot be written.
        RefusedError
            If the place cannot be trusted to keep it.
        """
        _storage(place).create(
            entry_of(
                Created(
                    format=PERIODIC if periodic else FORMAT,
                    ledger_id=random_token(),
                    dataset_id=dataset_id,
                    **budget.to_json(),
                )
            )
        )
        return cls(place)

    @classmethod
    def charged_for(cls, rows: object, ledger_id: str, place: LedgerAddress) -> Ledger:
        """Open the one ledger that may be charged for rows, by the id that they name, or raise RefusedError."""
        if not cls.stands_at(place):
            raise RefusedError(
                f"The ledger of {rows} is not at {place}. If it was moved, name its place ({parameter('ledger')}, or "
                "ledger in a job file); if it is lost, restore it from a copy: what was spent is known nowhere else."
            )
        ledger = cls(place)
        if ledger.ledger_id != ledger_id:
            raise RefusedError(
                f"{place} is not the ledger of {rows}. Name the one that was created for it ({parameter('ledger')}, or "
                "ledger in a job file)."
            )
        return ledger

    @staticmethod
    def stands_at(place: LedgerAddressGiven) -> bool:
        """Say whether there is a ledger at a place."""
        return _storage(place).exists()

    def close_period(self, name: str, digest: str) -> None:
        """Close the next period: from now on its rows are those with this digest; idempotent.

        Parameters
        ----------
        name
            Sorts after every period that is closed already.
        digest
            A keyed digest of its content, equal for equal content; the ledger's administrator must learn nothing of
            the rows from it.

        Raises
        ------
        UsageError
            If the name is malformed.
        RefusedError
            If it is closed with other content, comes late, repeats the content of another period, or the rows of this
            ledger do not come in periods.
        """
        if not re.fullmatch(PERIOD_PATTERN, name):
            raise UsageError(
                f"{name!r} cannot name a period: take up to 64 letters and digits with single dots, hyphens or "
                "underscores between, which sort in time, such as 2026-01-05."
            )
        with self._current() as (view, transaction):
            if view.periods is None:
                raise RefusedError(f"The rows of {self._storage} do not come in periods; a table is one or the other.")
            if name in view.periods:
                if view.periods[name] == digest:
                    return
                raise RefusedError(f"The period {name} is closed, and its rows were other ones: they cannot change.")
            last = next(reversed(view.periods), "")
            if name < last:
                raise RefusedError(
                    f"The period {name} comes late: {last} is closed already, and periods are closed in the order of "
                    "their names. Put its rows into a period to come."
                )
            for other, known in view.periods.items():
                if known == digest:
                    raise RefusedError(
                        f"The rows of the period {name} are those of {other}: released again, each would be charged "
                        "and counted twice. Remove the repetition; or, if these are other people with the very same "
                        "numbers, put the rows of both into one period."
                    )
            self._append(view, transaction, Closed(name, digest))

    def attest(self) -> Balance:
        """State in the journal that every request so far was fixed before the first answer; of version 1 only.

        Caps cannot be chosen after answers were seen. A ledger of version 1 that mixed kinds of releases has none, and
        is closed. If its requests did not follow from answers, neither do caps that follow from the requests alone.

        Raises
        ------
        RefusedError
            If the ledger has caps, or can go on without such a statement, or exceeds its budget even so.
        """
        with self._current() as (view, transaction):
            if view.accounts_for() is not None or view.accounts is not None:
                raise RefusedError(
                    f"{self._storage} needs no statement: its caps were fixed before an answer was seen."
                )
            caps = view.fixed_caps()
            count = len(view.charged)
            condition = f"the {counted(count, 'request')} up to entry {view.after} were fixed before the first answer"
            trial = PeriodFilters(view.declared, (caps,), view.periods or ())
            if not all(trial.book(str(i), charge) for i, charge in enumerate(view.charged)):
                raise RefusedError(
                    f"The releases charged to {self._storage} do not keep its budget, even if all of them were fixed "
                    "beforehand: nothing more can be charged to it."
                )
            self._append(view, transaction, Capped((caps.to_json(),), condition))
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
        """Charge a release, once: the same id with the same parameters is charged no second time.

        Parameters
        ----------
        release_id, dataset_id, parameters, guarantee
            What is released, and what it promises.
        periods
            The periods it reads, each with the digest of the content it will read; none: it may read every row.
        draws
            2 or 3 where one stage or two are drawn first; then the guarantee is that of all together.
        weights
            How often it adds the rows of each period, where these differ; the guarantee is for the largest.

        Returns
        -------
        State
            Where the release stands now.

        Raises
        ------
        RefusedError
            If the budget does not suffice, the id stands for other parameters, the ledger belongs to another data
            set or is behind its witness, the neighbouring relation is not the ledger's, or a period is not closed with
            this content, or repeats that of another.
        UsageError
            If the id is malformed.
        """
        requested: dict[str, object] = json.loads(canonical(parameters))
        place = str(self._storage)
        if not re.fullmatch(ID_PATTERN, release_id):
            raise UsageError("A release id is 1 to 64 letters, digits, hyphens or underscores.", parameter="id")
        with self._current(release_id) as (view, transaction):
            if view.dataset_id != dataset_id:
                raise RefusedError(
                    f"The ledger {self._storage} belongs to another data set. Pass the ledger of these rows.",
                    parameter="ledger",
                )
            charge = charge_of(guarantee, closed_as_read(view, periods or {}, place), weights or {})
            known = view.records.get(release_id)
            if known is not None:
                stored = known.parameters
                names = sorted(k for k in stored | requested if stored.get(k, ...) != requested.get(k, ...))
                reads = (known.periods, known.draws, known.weights) == (charge.periods, draws, charge.weights)
                if names or not reads:
                    raise RefusedError(
                        f"The release id {release_id} stands for other parameters in {place}: "
                        f"{', '.join(names) or 'periods'} differ. Choose another {parameter('id')}."
                    )
                if known.state is not State.ABORTED:
                    require_charged(known, guarantee, place)
                    return known.state
            require_apart(view, charge.periods, place)
            caps = caps_to_fix(view, charge, place)
            reserved = Reserved(release_id, requested, guarantee.to_json(), charge.periods, draws, charge.weights)
            self._append(view, transaction, *restated(view, draws), *caps, reserved)
        return State.RESERVED

    def begin(self, release_id: str, part: Part = Part.RELEASE) -> int | None:
        """Start an attempt at a part: fence out every earlier one and delete their drafts.

        Returns
        -------
        int or None
            The fence to commit with, or None when this part is committed already.

        Raises
        ------
        RefusedError
            If the release is not reserved (it was aborted or adopted), or the ledger is behind its witness.
        DpdistError
            If the release follows from a stage that is not committed, or that the witness has not seen.
        """
        with self._current(release_id) as (view, transaction):
            record = self._known(view, release_id)
            if record.state is State.ADOPTED:
                raise self._adopted(record)
            if record.has(part):
                return None
            if record.state is State.ABORTED:
                raise RefusedError(
                    f"The release {release_id} was aborted and refunded while this run was at work. Run it again."
                )
            if record.due is not part:
                raise DpdistError(f"The release {release_id} is {record.state}: its {part} is not to be drawn now.")
            transaction.sweep(release_id, keep=record.blobs)
            # the token makes this head unlike that of the same attempt in a ledger that was restored and used again
            self._append(view, transaction, Begun(release_id, random_token()))
            return record.fence + 1

    def commit(self, release_id: str, fence: int, content: Iterable[bytes], part: Part = Part.RELEASE) -> bool:
        """Make this draw the release, or its stage, unless a later attempt began or another one committed.

        The content is written to the place of the ledger first, piece by piece, as it is drawn: it need not fit in
        memory. One transaction then records its name and digest, and the witness sees it. If the process dies before
        that transaction, it leaves a draft that was never published; the next :meth:`begin` deletes it. If the process
        dies after it, :meth:`opened` lets the witness see the content.

        Returns
        -------
        bool
            False if this attempt was fenced out; its draft is deleted and must not be used.

        Raises
        ------
        ResumableError
            If the disk is full; the reservation stays and a later run may succeed.
        RefusedError
            If the ledger is behind its witness: another copy has committed meanwhile.
        """
        name = f"{release_id}.{fence}.{random_token()[:16]}"
        committed = False
        try:
            digest = self._storage.stage(name, content)
            with self._witness.held(self.ledger_id) as witness:
                with self._locked() as (view, transaction):
                    self._require_current(witness, view)
                    record = self._known(view, release_id)
                    live = record.due is part and record.fence == fence
                    if live and transaction.keep(name):
                        kind = Committed if part is Part.RELEASE else Staged
                        self._append(view, transaction, kind(release_id, name, digest))
                        committed = True
                if committed:
                    self._tell(witness, release_id)
        finally:
            if not committed:
                self._storage.discard(name)
        return committed

    def wait(self, release_id: str, fence: int, seconds: float, part: Part = Part.RELEASE) -> bool:
        """Wait until the attempt that fenced this one out has committed its part or was aborted.

        Returns
        -------
        bool
            False if it did not within the time, counted from the latest attempt's beginning: it died.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            record = self.record(release_id)
            if record is None or record.due is not part:
                return True
            if record.fence > fence + 1:
                fence = record.fence - 1  # yet another attempt is alive: give it the full time
                deadline = time.monotonic() + seconds
            time.sleep(_POLL_SECONDS)
        return False

    @contextmanager
    def opened(self, release_id: str, part: Part = Part.RELEASE) -> Iterator[BinaryIO]:
        """Open the committed bytes of a part for reading, checked against their digest, when the witness has seen them.

        Raises
        ------
        DataError
            If nothing was committed, or the stored bytes are missing or were altered.
        RefusedError
            If the ledger is behind its witness, and these bytes were never given out.
        """
        record = self._known(self._snapshot(), release_id)
        draw = record.committed(part)
        waits = record.state in {State.STAGED, State.COMMITTED} and not record.witnessed
        if waits and draw is not None and draw.digest == record.latest:
            with self._witness.held(self.ledger_id) as witness:
                self._tell(witness, release_id)
            record = self._known(self._snapshot(), release_id)
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
                    "ledger from a copy; the noise cannot be drawn again."
                )
            file.seek(0)
            yield file

    def published(self, release_id: str) -> None:
        """Record that the committed bytes were published; idempotent."""
        with self._locked() as (view, transaction):
            record = self._known(view, release_id)
            transaction.sweep(release_id, keep=record.blobs)
            if record.state is State.COMMITTED:
                self._append(view, transaction, Published(release_id))

    def abort(self, release_id: str) -> bool:
        """Refund a reservation of which nothing was committed; any attempt still alive is fenced out.

        Returns
        -------
        bool
            Whether the release is aborted now; False once it, or its stage, was committed.
        """
        with self._locked() as (view, transaction):
            record = self._known(view, release_id)
            if record.state is State.RESERVED:
                transaction.sweep(release_id, keep=())
                self._append(view, transaction, Aborted(release_id))
                return True
            return record.state is State.ABORTED

    def verify(self) -> None:
        """Check the chain of the journal from its first entry, the witness, the budget, and every committed blob.

        A checkpoint (:mod:`dpdist.ledger.checkpoint`) is not believed: it must say what the journal says.

        Raises
        ------
        DataError
            If anything was altered, or the charges exceed the budget.
        RefusedError
            If the ledger is behind its witness.
        """
        self._prove()
        missing = self.missing()
        if missing or self.exhausted_elsewhere:
            what = f"{listed(missing)} committed" if missing else "the whole budget charged, as an earlier one was lost"
            raise RefusedError(
                f"The ledger {self._storage} is an older copy: its witness has seen {what}. Restore a newer copy, or "
                f"charge what is missing to this one with: {step('ledger adopt', self._storage)}"
            )
        view = self._snapshot()
        require_kept(view, str(self._storage))
        for record in view.records.values():
            for part in Part:
                if record.has(part) and record.state is not State.ADOPTED:
                    with self._content(record, part):
                        pass  # what is altered cannot be opened

    def remembers(self, release_id: str, head: str) -> bool:
        """Say whether a release was committed here, and the journal once ended in this head, which it tells.

        One that was adopted is remembered too; which head it tells is known to the copy that committed it.

        If not, the journal was cut short or restored from an older copy since: it no longer knows of a draw that
        somebody has seen, and would pay for a second one.
        """
        with self._locked() as (view, transaction):
            record = view.records.get(release_id)
            if record is not None and record.state is State.ADOPTED:
                return True
            return record is not None and record.blob is not None and transaction.contains(head)

    def _adopted(self, record: Record) -> RefusedError:
        return RefusedError(
            f"The release {record.release_id} was committed to another copy of the ledger {self._storage}; here it is "
            f"only charged. A second draw would undo the noise of both. Publish it from that copy (its committed bytes "
            f"have SHA-256 {str(record.digest)[:16]}...), or copy the published release to its place."
        )


def _storage(place: LedgerAddressGiven) -> Storage:
    address = address_given(place)
    if isinstance(address, Path):
        return FolderStorage(address)
    try:
        from dpdist.ledger.postgresql import PostgresStorage  # noqa: PLC0415 - an extra, needed for no other ledger
    except ImportError:
        raise UsageError(
            "A ledger in PostgreSQL needs psycopg. Install it with: pip install 'dpdist[postgres]'"
        ) from None
    return PostgresStorage(address)


def _witness() -> FolderWitness:
    return FolderWitness()
