"""The ledger's memory: an append-only, hash-chained journal in one SQLite file.

Nothing is stored twice: budget, balance and the state of every release are folded from the journal's entries, so
there is no table that could be edited apart from its history. Each entry's digest covers the digest before it.

SQLite runs in WAL mode with ``synchronous=FULL`` and every change in one ``BEGIN IMMEDIATE`` transaction: a reader
that later writes would otherwise see its snapshot overtaken. It needs a local disk of the trusted node.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dpdist.errors import DataError, ResumableError

_ORIGIN = "0" * 64
_WAIT_SECONDS = 60.0
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
}
"""What a full disk or another process causes; anything else means the file itself is not what it was."""

Entry = dict[str, Any]


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(previous: str, entry: str) -> str:
    return hashlib.sha256(f"{previous}\n{entry}".encode()).hexdigest()


class Transaction:
    """An open, exclusive transaction on the journal."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def read(self, after: int, head: str) -> tuple[list[Entry], int, str]:
        """Return the entries after a known point, checked against the chain, and the new end.

        Parameters
        ----------
        after, head
            Sequence number and digest of the last entry already known (0 and :func:`origin` at the start).

        Raises
        ------
        DataError
            If the chain is broken: an entry was edited, removed or inserted.
        """
        rows = self._connection.execute(
            "SELECT sequence, entry, digest FROM journal WHERE sequence >= ? ORDER BY sequence", (after,)
        ).fetchall()
        entries = []
        if after and (not rows or rows[0][0] != after or rows[0][2] != head):
            raise self._broken(after)
        for sequence, entry, digest in rows[1 if after else 0 :]:
            if sequence != after + 1 or digest != _digest(head, entry):
                raise self._broken(after + 1)
            entries.append(json.loads(entry))
            after, head = sequence, digest
        return entries, after, head

    def append(self, entry: Entry, after: int, head: str) -> None:
        """Append an entry behind the given end."""
        text = canonical(entry)
        self._connection.execute("INSERT INTO journal VALUES (?, ?, ?)", (after + 1, text, _digest(head, text)))

    def _broken(self, sequence: int) -> DataError:
        return DataError(
            f"The journal of {self._path} is broken at entry {sequence}: it was edited or restored in part. "
            "Nothing can be spent from it; restore the ledger from a copy whose `dpdist ledger verify` passes."
        )


def origin() -> str:
    """Return the digest that stands before the first entry."""
    return _ORIGIN


class Journal:
    """The journal in a folder's ``ledger.sqlite``; opens the file anew for every transaction, so it may be pickled."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.sqlite"

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def create(self) -> None:
        """Create an empty journal, readable by the owner only. The folder must exist and hold none."""
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE journal (sequence INTEGER PRIMARY KEY, entry TEXT NOT NULL, digest TEXT NOT NULL)"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
        )
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Hold the journal exclusively; what was appended is durable when the block ends, or undone if it raises.

        Raises
        ------
        DataError
            If there is no journal here, or the file is damaged.
        ResumableError
            If the disk is full or other processes hold the journal for a minute.
        """
        if not self._path.is_file():
            raise DataError(f"There is no ledger database at {self._path}. Restore it from a copy.")
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(connection, self._path)
                except BaseException:
                    if connection.in_transaction:  # a full disk has undone it already
                        connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
                raise ResumableError(
                    f"The ledger {self._path} could not be written ({error}). What was reserved stays reserved; free "
                    "the disk or wait for the other process, then run the same command again."
                ) from None
            raise DataError(f"The ledger {self._path} is damaged ({error}). Restore it from a copy.") from None
