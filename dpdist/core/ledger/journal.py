"""The journal of a ledger, append-only and hash-chained, and the interface of its storages.

Nothing is stored twice: budget, balance and the state of each release are folded from the entries of the journal, so no
table can be edited independently of its history. The digest of each entry covers the digest before it. An entry is one
of the events below as JSON with sorted keys.

A folder (:mod:`dpdist.core.ledger.sqlite`) or a PostgreSQL database (:mod:`dpdist.core.ledger.postgresql`) stores a
journal and the committed releases. Neither contains ledger semantics.
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

from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.privacy.accounting import CapSet, CapSetJson
from dpdist.core.privacy.guarantee import GuaranteeJson, PrivacyLoss
from dpdist.core.text import canonical

Entry = dict[str, Any]
"""An entry as JSON values."""
Draws = Literal[1, 2, 3]
"""Number of draws of a release: its stages and the final one."""


class Created(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="created"):
    """The first entry: identities of ledger and rows, and the budget."""

    format: str
    ledger_id: str
    dataset_id: str
    epsilon_micro: int
    delta_atto: int
    pure_micro: int | UnsetType = UNSET
    reserve_atto: int | UnsetType = UNSET
    spent: dict[str, int] | UnsetType | None = UNSET  # by releases before this ledger; unset before 0.1.0

    @property
    def budget(self) -> PrivacyLoss:
        """The declared budget."""
        loss = PrivacyLoss(self.epsilon_micro, self.delta_atto)
        return loss.mixed(self.pure_micro or 0, self.reserve_atto or 0)


class Closed(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="closed"):
    """A period was closed; ``digest`` covers its content."""

    period: str
    digest: str


class Capped(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="capped"):
    """The caps were fixed."""

    sets: tuple[CapSetJson, ...]


class Raised(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="event", tag="raised"):
    """The budget was raised; with charges, these are its caps, under a condition that a user stated."""

    budget: dict[str, int]
    sets: tuple[CapSetJson, ...] = ()
    condition: str | None = None


class Reserved(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="event", tag="reserved"):
    """A release was charged, for all its draws, to some periods or to all rows.

    With weights, each period is charged according to its weight.
    """

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...] = ()
    draws: Draws = 1
    weights: tuple[int, ...] = ()


class Begun(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="begun"):
    """An attempt to draw began, under a random name."""

    id: str
    attempt: str


class Staged(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="staged"):
    """A draw became a stage of a release: name and SHA-256 of its bytes."""

    id: str
    blob: str
    digest: str


class Committed(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="committed"):
    """The last draw became the release: name and SHA-256 of its bytes."""

    id: str
    blob: str
    digest: str


class CommitWitnessed(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="witnessed"):
    """The witness has recorded the latest commitment, of a stage or of a release."""

    id: str


class Published(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="event", tag="published"
):
    """The committed bytes were published for the first time, at this path or address."""

    id: str
    path: str = ""


class Aborted(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="aborted"):
    """A reservation was refunded."""

    id: str


class CommittedRelease(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The record that a witness keeps of a release with a committed draw."""

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...]
    digest: str | None  # SHA-256 of the committed bytes; None if only stages were committed
    stage: str | None = None  # digest of the first stage; None for a single draw
    weights: tuple[int, ...] = ()  # weight of each period; empty: 1
    second: tuple[str, ...] | None = None  # with three draws: digest of the second stage, or empty

    @property
    def draws(self) -> Draws:
        """Number of draws."""
        if self.second is not None:
            return 3
        return 1 if self.stage is None else 2

    @property
    def drawn(self) -> tuple[str, ...]:
        """The digests of its committed draws, in order."""
        stages = () if self.stage is None else (self.stage, *(self.second or ()))
        return stages if self.digest is None else (*stages, self.digest)


class Caps(Struct, frozen=True, forbid_unknown_fields=True):
    """Caps and their condition, as a witness stores them."""

    sets: tuple[CapSetJson, ...]
    condition: str | None
    budget: dict[str, int] | UnsetType = UNSET  # if it was raised

    @property
    def fixed(self) -> tuple[CapSet, ...]:
        """The cap sets."""
        return tuple(CapSet.from_json(caps) for caps in self.sets)


class Adopted(Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag="adopted"):
    """Releases that other copies of the ledger committed were charged here."""

    head: str | None  # of the other journal; None: the witness was lost, and the whole budget is charged
    void: tuple[str, ...]  # ids of unfinished releases here, which are refunded
    releases: tuple[CommittedRelease, ...]
    periods: dict[str, str]
    capped: Caps | None


Event = (
    Created
    | Closed
    | Capped
    | Raised
    | Reserved
    | Begun
    | Staged
    | Committed
    | CommitWitnessed
    | Published
    | Aborted
    | Adopted
)


def event_of(entry: Entry) -> Event:
    """Parse an entry."""
    event: Event = msgspec.convert(entry, Event)
    return event


def entry_of(event: Event) -> Entry:
    """Return an event as JSON values."""
    entry: Entry = msgspec.to_builtins(event)
    return entry


ALL = 2**63 - 1
"""More entries than any journal has."""
ORIGIN = "0" * 64
"""The digest before the first entry."""
_CHUNK = 1 << 20
WAIT_SECONDS = 60
"""How long a transaction waits for that of another process."""


def _digest(previous: str, entry: str) -> str:
    return hashlib.sha256(f"{previous}\n{entry}".encode()).hexdigest()


class Transaction(ABC):
    """An open, exclusive transaction on the journal of one ledger."""

    def __init__(self, location: str) -> None:
        self._location = location

    def read(self, after: int, head: str) -> tuple[list[Entry], int, str]:
        """Return the entries after a known end, checked against the chain, and the new end."""
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

    def has_entry(self, after: int, head: str) -> bool:
        """Return whether the entry of this number has this digest."""
        return [(number, digest) for number, _, digest in self._rows(after, 1)] == [(after, head)]

    def append(self, entry: Entry, after: int, head: str) -> tuple[int, str]:
        """Append an entry after the given end, and return the new end."""
        text = canonical(entry)
        head = _digest(head, text)
        self._insert(after + 1, text, head)
        return after + 1, head

    @abstractmethod
    def contains(self, digest: str) -> bool:
        """Return whether an entry has this digest."""

    @abstractmethod
    def keep(self, name: str) -> bool:
        """Keep a staged draft if this transaction commits; return False if it was swept."""

    @abstractmethod
    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Delete the drafts of a release except those to keep; the lock prevents commits meanwhile."""

    @abstractmethod
    def _rows(self, first: int, most: int = ALL) -> Sequence[tuple[int, str, str]]:
        """Return number, entry and digest of the entries from ``first`` on, in order, at most ``most``."""

    @abstractmethod
    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        """Store one entry."""

    def broken(self, sequence: int) -> DataError:
        """Return the error for an altered entry."""
        return DataError(
            f"The journal of {self._location} is broken at entry {sequence}: it was edited or restored in part, so "
            f"nothing can be spent from it. Restore the ledger from a copy that passes `{step('ledger verify')}`."
        )


class Storage(Protocol):
    """The storage of one ledger; its text names it in messages, without a password.

    A storage that is unreachable or full raises ResumableError; one that is damaged or cannot flush, DataError. A
    storage of several ledgers refuses a second one of the same data set with RefusedError.
    """

    def exists(self) -> bool:
        """Return whether the ledger exists."""

    def create(self, first: Entry) -> None:
        """Create a ledger with a first entry, or raise DataError if it exists."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Lock the journal; entries are durable when the block ends, or undone if it raises."""

    def stage(self, name: str, chunks: Iterable[bytes]) -> str:
        """Write a draft named ``id.fence.token`` for :meth:`Transaction.keep`, chunk by chunk; return its SHA-256."""

    def discard(self, name: str) -> None:
        """Delete a draft that was not committed."""

    def blob(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a kept draft for reading; an empty file if it is missing."""


def digest_of_file(file: IO[bytes]) -> str:
    """Return the hexadecimal SHA-256 of the rest of a file."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def written(file: BinaryIO, chunks: Iterable[bytes]) -> str:
    """Write chunks to a file, and return their SHA-256."""
    digest = hashlib.sha256()
    for chunk in chunks:
        file.write(chunk)
        digest.update(chunk)
    return digest.hexdigest()
