"""A ledger in memory: the journal is a list, and committed draws are bytes. It ends with the process.

Nothing outside the process can copy or restore it, so its witness is in memory, too.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger.journal import ALL, ORIGIN, Entry, Transaction
from dpdist.core.naming import parameter
from dpdist.core.text import random_token

Row = tuple[int, str, str]
_token = [random_token()]
os.register_at_fork(after_in_child=lambda: _token.__setitem__(0, random_token()))


def this_process() -> tuple[str, int]:
    """Return the identity of this process. A fork has another one, even if it has the same number in a namespace."""
    return _token[0], os.getpid()


class _MemoryTransaction(Transaction):
    """An open transaction on the journal: a copy, which replaces it at the end."""

    def __init__(self, location: str, journal: Sequence[Row], blobs: dict[str, bytes]) -> None:
        super().__init__(location)
        self.journal, self._blobs = [*journal], blobs

    def contains(self, digest: str) -> bool:
        """Return whether an entry has this digest."""
        return any(row[2] == digest for row in self.journal)

    def keep(self, name: str) -> bool:
        """Return whether the draft still exists: a later attempt may have swept it."""
        return name in self._blobs

    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Delete the drafts of a release except those to keep."""
        for name in [name for name in self._blobs if name.startswith(f"{release_id}.") and name not in keep]:
            del self._blobs[name]

    def _rows(self, first: int, most: int = ALL) -> Sequence[Row]:
        return self.journal[max(0, first - 1) :][:most]

    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        self.journal.append((sequence, entry, digest))


class MemoryStorage:
    """The storage of one ledger in this process; it is its own address."""

    def __init__(self) -> None:
        self._name = f"the memory of this process ({random_token()[:8]})"
        self._journal: list[Row] = []
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._process = this_process()
        self._forgotten = False
        self.witness = MemoryWitness()

    def __str__(self) -> str:
        return self._name

    @property
    def nbytes(self) -> int:
        """Bytes of all draws."""
        return sum(map(len, self._blobs.values()))

    def exists(self) -> bool:
        """Return whether the ledger exists."""
        return bool(self._journal)

    def create(self, first: Entry) -> None:
        """Create the ledger with its first entry."""
        if self.exists():
            raise DataError(f"There is a ledger in {self} already.")
        with self.transaction() as transaction:
            transaction.append(first, 0, ORIGIN)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Lock the journal; entries are kept when the block ends, or undone if it raises."""
        # before locking: in a fork, the lock might never be released
        if self._process != this_process():
            raise RefusedError(
                "These rows were released by the same parameters in the process from which this one was forked, and "
                "two processes would draw twice for one charge. Nothing was drawn. Fit in that process, or use its "
                "estimator (from_release(fitted.release_))."
            )
        with self._lock:
            transaction = _MemoryTransaction(str(self), self._journal, self._blobs)
            yield transaction
            self._journal = transaction.journal

    def stage(self, name: str, chunks: Iterable[bytes]) -> str:
        """Keep a draft, and return its SHA-256."""
        content = b"".join(chunks)
        self._blobs[name] = content
        return hashlib.sha256(content).hexdigest()

    def discard(self, name: str) -> None:
        """Delete a draft that was not committed."""
        self._blobs.pop(name, None)

    def forget(self) -> None:
        """Delete all draws; the journal stays, so none is drawn again."""
        self._forgotten = True
        self._blobs.clear()

    @contextmanager
    def blob(self, name: str) -> Iterator[BinaryIO]:
        """Open a draft; an empty file if it is missing."""
        if self._forgotten:
            raise RefusedError(
                "These rows were released by the same parameters before, and this process no longer has it. Nothing "
                "was drawn or charged: a second draw would be a second release. Use the first estimator "
                f"(from_release(fitted.release_)), or ask for a further draw, which is charged: "
                f"{parameter('name', 'NAME')}."
            )
        yield io.BytesIO(self._blobs.get(name, b""))


class MemoryWitness:
    """The witness of one ledger in memory, with the methods of :class:`~dpdist.core.ledger.witness.FolderWitness`."""

    def __init__(self) -> None:
        self._record: Any = None
        self._lock = threading.RLock()

    def path(self, ledger_id: str) -> str:  # noqa: ARG002 - of one ledger
        """Return its name, for messages."""
        return "in memory"

    def elsewhere(self, ledger_id: str) -> None:
        """Return None: it is nowhere else."""

    def read(self, ledger_id: str = "") -> Any:  # noqa: ARG002 - as above
        """Return the record."""
        return self._record

    def write(self, record: Any) -> None:
        """Replace the record."""
        self._record = record

    @contextmanager
    def locked(self, ledger_id: str) -> Iterator[MemoryWitness]:  # noqa: ARG002 - as above
        """Lock it."""
        with self._lock:
            yield self

    def charge(self, dataset_id: str, ledger_id: str, location: str) -> None:
        """Do nothing: the register of the process knows its ledgers."""
