"""The ledger's memory: an append-only, hash-chained journal, and what a place must offer that keeps one.

Nothing is stored twice: budget, balance and the state of every release are folded from the journal's entries, so there
is no table that could be edited apart from its history. Each entry's digest covers the digest before it. An entry is an
event (below) as JSON with sorted keys; what an event did not say in an older version has a default, which is not
written.

Two places keep a journal, and the committed releases beside it: a folder (:mod:`dpdist.ledger.sqlite`) and a
PostgreSQL database (:mod:`dpdist.ledger.postgresql`). What a ledger means is decided in neither.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, BinaryIO, Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dpdist._util.text import canonical
from dpdist.errors import DataError
from dpdist.naming import step
from dpdist.privacy.accounting import CapSet, CapSetJson
from dpdist.privacy.guarantee import GuaranteeJson, PrivacyLoss

Entry = dict[str, Any]
"""An entry as JSON values."""
Draws = Literal[1, 2, 3]
"""How many draws a release takes: the stages, and the release that follows from them."""


class Created(Struct, frozen=True, tag_field="event", tag="created"):
    """The first: which ledger this is, of which rows, with which budget.

    It is said again, with a higher format and all else equal, before the first entry that older versions would
    misunderstand: they read the format, and refuse.
    """

    format: str
    ledger_id: str
    dataset_id: str
    epsilon_micro: int
    delta_atto: int
    pure_micro: int | UnsetType = UNSET
    reserve_atto: int | UnsetType = UNSET

    @property
    def budget(self) -> PrivacyLoss:
        """The declared budget."""
        loss = PrivacyLoss(self.epsilon_micro, self.delta_atto)
        return loss.mixed(self.pure_micro or 0, self.reserve_atto or 0)


class Closed(Struct, frozen=True, tag_field="event", tag="closed"):
    """A period was closed; ``digest`` is that of its content."""

    period: str
    digest: str


class Capped(Struct, frozen=True, omit_defaults=True, tag_field="event", tag="capped"):
    """The caps were fixed, on a condition that a person stated of a ledger of version 1."""

    sets: tuple[CapSetJson, ...]
    condition: str | None = None


class Reserved(Struct, frozen=True, omit_defaults=True, tag_field="event", tag="reserved"):
    """A release was charged, to some periods or to all rows; with several draws, for all of them.

    Where it adds the rows of each period as often as a weight says, each period bears what follows from its weight. A
    version that knows no weights charges all of them the most.
    """

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...] = ()
    draws: Draws = 1
    weights: tuple[int, ...] = ()


class Begun(Struct, frozen=True, tag_field="event", tag="begun"):
    """An attempt to draw began; it has a random name where a version since 0.1 wrote it."""

    id: str
    attempt: str | UnsetType = UNSET


class Staged(Struct, frozen=True, tag_field="event", tag="staged"):
    """A draw before the last became a stage of a release: the name of its bytes, and their SHA-256."""

    id: str
    blob: str
    digest: str


class Committed(Struct, frozen=True, tag_field="event", tag="committed"):
    """A draw became the release: the name of its bytes, and their SHA-256."""

    id: str
    blob: str
    digest: str


class CommitWitnessed(Struct, frozen=True, tag_field="event", tag="witnessed"):
    """The witness has seen the latest commitment, of a stage or of a release."""

    id: str


class Published(Struct, frozen=True, tag_field="event", tag="published"):
    """The committed bytes are out."""

    id: str


class Aborted(Struct, frozen=True, tag_field="event", tag="aborted"):
    """A reservation was refunded."""

    id: str


class CommittedRelease(Struct, frozen=True, omit_defaults=True):
    """What a witness keeps of a release that was committed, or of which a stage was."""

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...]
    digest: str | None  # SHA-256 of the committed bytes; None where only a stage was committed
    stage: str | None = None  # that of the first stage; None of a release of one draw
    weights: tuple[int, ...] = ()  # how often it adds the rows of each period; none: once
    second: tuple[str, ...] | None = None  # of three draws: that of the second stage, if it is there; None: of fewer

    @property
    def draws(self) -> Draws:
        """How many draws it takes."""
        if self.second is not None:
            return 3
        return 1 if self.stage is None else 2

    @property
    def drawn(self) -> tuple[str, ...]:
        """The digests of all that was drawn for it, in order."""
        stages = () if self.stage is None else (self.stage, *(self.second or ()))
        return stages if self.digest is None else (*stages, self.digest)


class Caps(Struct, frozen=True):
    """Caps as a witness keeps them, and the condition on which they rest."""

    sets: tuple[CapSetJson, ...]
    condition: str | None

    @property
    def fixed(self) -> tuple[CapSet, ...]:
        """The cap sets."""
        return tuple(CapSet.from_json(each) for each in self.sets)


class Adopted(Struct, frozen=True, tag_field="event", tag="adopted"):
    """What other copies of the ledger committed was charged here."""

    head: str | None  # of the other journal; None: the witness was lost, and so the whole budget is charged
    void: tuple[str, ...]  # ids of what was under way here, and is refunded
    releases: tuple[CommittedRelease, ...]
    periods: dict[str, str]
    capped: Caps | None


Event = (
    Created | Closed | Capped | Reserved | Begun | Staged | Committed | CommitWitnessed | Published | Aborted | Adopted
)


def event_of(entry: Entry) -> Event:
    """Read an entry."""
    event: Event = msgspec.convert(entry, Event)
    return event


def entry_of(event: Event) -> Entry:
    """Return an event as JSON values."""
    entry: Entry = msgspec.to_builtins(event)
    return entry


ORIGIN = "0" * 64
"""The digest that stands before the first entry."""
_PIECE = 1 << 20
WAIT_SECONDS = 60
"""How long a transaction waits for another process to end its own."""


def _digest(previous: str, entry: str) -> str:
    return hashlib.sha256(f"{previous}\n{entry}".encode()).hexdigest()


class Transaction(ABC):
    """An open, exclusive transaction on the journal of one ledger."""

    def __init__(self, place: str) -> None:
        self._place = place

    def read(self, after: int, head: str) -> tuple[list[Entry], int, str]:
        """Return the entries after a known point, checked against the chain, and the new end."""
        rows = self._rows(after)
        entries = []
        if not rows or (after and rows[0][::2] != (after, head)):
            raise self.broken(after)
        for sequence, entry, digest in rows[1 if after else 0 :]:
            if sequence != after + 1 or digest != _digest(head, entry):
                raise self.broken(after + 1)
            entries.append(json.loads(entry))
            after, head = sequence, digest
        return entries, after, head

    def first(self) -> Entry | None:
        """Return the first entry, or None where there is none that its digest covers."""
        row = self._row(1)
        if row is None or row[1] != _digest(ORIGIN, row[0]):
            return None
        entry: Entry = json.loads(row[0])
        return entry

    def passed(self, after: int, head: str) -> bool:
        """Say whether the entry of this number has this digest."""
        row = self._row(after)
        return row is not None and row[1] == head

    def append(self, entry: Entry, after: int, head: str) -> tuple[int, str]:
        """Append an entry behind the given end, and return the new end."""
        text = canonical(entry)
        head = _digest(head, text)
        self._insert(after + 1, text, head)
        return after + 1, head

    @abstractmethod
    def contains(self, digest: str) -> bool:
        """Say whether an entry has this digest."""

    @abstractmethod
    def keep(self, name: str) -> bool:
        """Make a staged draft stay when this transaction ends well; False if it was swept meanwhile."""

    @abstractmethod
    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Delete the drafts of an id but those to keep; the journal is held, so none can be committed meanwhile."""

    @abstractmethod
    def _rows(self, first: int) -> Sequence[tuple[int, str, str]]:
        """Return sequence, entry and digest of every entry from a number on, in order."""

    @abstractmethod
    def _row(self, sequence: int) -> tuple[str, str] | None:
        """Return one entry and its digest, or None where there is none of that number."""

    @abstractmethod
    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        """Store one entry."""

    def broken(self, sequence: int) -> DataError:
        """Return what is to be raised where an entry is not what was written."""
        return DataError(
            f"The journal of {self._place} is broken at entry {sequence}: it was edited or restored in part. Nothing "
            f"can be spent from it; restore the ledger from a copy whose `{step('ledger verify')}` passes."
        )


class Storage(Protocol):
    """A place that keeps one ledger; its text names it in messages and holds no secret.

    A place that cannot be reached, or is full, raises ResumableError; one that was damaged, or cannot flush what it
    writes, DataError. A place that several ledgers share refuses a second one of the same data set, with RefusedError.
    """

    def exists(self) -> bool:
        """Say whether there is a ledger."""
        ...

    def create(self, first: Entry) -> None:
        """Create a ledger whose journal begins with an entry, or raise DataError if one is there already."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Hold the journal exclusively; what was appended is durable when the block ends, or undone if it raises."""
        ...

    def stage(self, name: str, pieces: Iterable[bytes]) -> str:
        """Bring a draft, named ``id.fence.token``, to where :meth:`Transaction.keep` can make it stay.

        The pieces are written as they come, one at a time in memory; return the SHA-256 of all of them.
        """
        ...

    def discard(self, name: str) -> None:
        """Delete a draft that was not committed."""
        ...

    def blob(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open what was kept under a name, for reading from its start; it is empty if it is missing."""
        ...


def digest_of_file(file: IO[bytes]) -> str:
    """Return the SHA-256 of what is left to read of a file, hexadecimal."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def written(file: BinaryIO, pieces: Iterable[bytes]) -> str:
    """Write pieces to a file and return the SHA-256 of all of them."""
    digest = hashlib.sha256()
    for piece in pieces:
        file.write(piece)
        digest.update(piece)
    return digest.hexdigest()
