"""A ledger in PostgreSQL: several trusted nodes, one after the other or at once, spend one budget.

Two tables hold all ledgers of a database: the journals' entries, and the committed releases in parts. A transaction
first takes the advisory lock of its ledger, so transactions of one ledger follow one another. Even without the lock,
the primary key of the entries would refuse the second of two entries behind the same end. A transaction is durable when
it ends: ``synchronous_commit`` is turned on for it, and a server that runs with ``fsync`` off is refused.

A draw is sent to the server in the transaction that commits it, and no sooner, so no attempt leaves a draft there.
Until then it is in a nameless file of the trusted process (in ``TMPDIR``), which is gone when the process is. What a
rolled-back transaction wrote stays in the server's own files until it is vacuumed: whoever administers the server
is trusted with what the owner of a ledger folder sees.

Unless told otherwise, libpq encrypts only if the server agrees, and whoever is between the two can make it disagree. So
an address that leads off this machine must state an ``sslmode`` that requires encryption.

No message repeats what a driver says of a statement; only the server's own sentence is quoted.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from ipaddress import ip_address
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO

import psycopg
from psycopg import Connection, IsolationLevel

from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError
from dpdist.ledger.address import Address
from dpdist.ledger.journal import ORIGIN, WAIT_SECONDS, Entry, Transaction, written

_PART = 1 << 26
"""Bytes of a release in one row; PostgreSQL holds at most a gibibyte in a value."""
_PASSING = ("08", "40", "53", "55", "57", "23505", "25006", "25P03")
"""Classes of errors that another try may not meet: connection, conflict, resources, locks, a server that stops or
only reads."""
_LOGIN = re.compile("password authentication failed|no password supplied")
"""What libpq says of a login that failed; it passes no code on. A server that speaks another language is merely one
that cannot be reached."""
_SETTINGS = (
    "SELECT set_config('lock_timeout', %(wait)s, true),"
    " set_config('idle_in_transaction_session_timeout', %(wait)s, true),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true), current_setting('fsync')"
)
_TABLES = {
    "dpdist_journal": "ledger TEXT, sequence BIGINT, entry TEXT NOT NULL, digest TEXT NOT NULL,"
    " PRIMARY KEY (ledger, sequence)",
    "dpdist_blobs": "ledger TEXT, name TEXT, part INTEGER, content BYTEA NOT NULL, PRIMARY KEY (ledger, name, part)",
}
_ENCRYPTED = ("verify-full", "verify-ca", "require")


def _require_encrypted(address: Address) -> None:
    """Refuse a connection that others could read: the budget is written over it, and releases before they are out.

    A socket's folder and the loopback interface are on this machine. Names are not looked up, because what they mean
    may change until the connection is made; what libpq takes from its own variables counts as if the address said it.
    """
    given = dict(address.connection)
    hosts = ",".join([given.get("host", os.environ.get("PGHOST", "")), os.environ.get("PGHOSTADDR", "")]).split(",")
    elsewhere = [host for host in hosts if host and not _on_this_machine(host)]
    if (elsewhere or "PGSERVICE" in os.environ) and given.get("sslmode") not in _ENCRYPTED:
        raise RefusedError(
            f"The server of the ledger {address} is not on this machine, and the address does not require encryption. "
            "Whoever is between could read the ledger, or answer in the server's place. Add &sslmode=verify-full (with "
            "&sslrootcert=FILE for a CA of your own). Where nobody can be between, &sslmode=require suffices: it "
            "encrypts, and does not check who answers."
        )


def _on_this_machine(host: str) -> bool:
    if host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _has_table(connection: Connection, name: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()
    return row is not None and row[0] is not None


def _lock_key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"dpdist ledger\n{name}".encode()).digest()[:8], "big", signed=True)


class PostgresTransaction(Transaction):
    """An open transaction that holds the lock of its ledger."""

    def __init__(self, connection: Connection, address: Address, drafts: dict[str, BinaryIO]) -> None:
        super().__init__(str(address))
        self._connection = connection
        self._ledger = address.ledger
        self._drafts = drafts

    def contains(self, digest: str) -> bool:
        """Say whether an entry has this digest."""
        query = "SELECT 1 FROM dpdist_journal WHERE ledger = %s AND digest = %s LIMIT 1"
        return self._connection.execute(query, (self._ledger, digest)).fetchone() is not None

    def keep(self, name: str) -> bool:
        """Store the content, in parts."""
        with self._drafts.pop(name) as draft:
            draft.seek(0)
            for part, content in enumerate(iter(partial(draft.read, _PART), b"")):
                row = self._ledger, name, part, content
                self._connection.execute("INSERT INTO dpdist_blobs VALUES (%s, %s, %s, %b)", row)
        return True

    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Do nothing: an attempt that was not committed has left nothing."""

    def _rows(self, first: int) -> Sequence[tuple[int, str, str]]:
        query = (
            "SELECT sequence, entry, digest FROM dpdist_journal WHERE ledger = %s AND sequence >= %s ORDER BY sequence"
        )
        return self._connection.execute(query, (self._ledger, first)).fetchall()

    def _row(self, sequence: int) -> tuple[str, str] | None:
        query = "SELECT entry, digest FROM dpdist_journal WHERE ledger = %s AND sequence = %s"
        return self._connection.execute(query, (self._ledger, sequence)).fetchone()

    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        row = self._ledger, sequence, entry, digest
        self._connection.execute("INSERT INTO dpdist_journal VALUES (%s, %s, %s, %s)", row)


class PostgresStorage:
    """One ledger of a database; every transaction has a connection of its own, so a fork shares none."""

    def __init__(self, address: Address) -> None:
        _require_encrypted(address)
        self._address = address
        self._drafts: dict[str, BinaryIO] = {}

    def __str__(self) -> str:
        return str(self._address)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Give a connection in a transaction, committed when the block ends; the server undoes what was not."""
        options: dict[str, Any] = {"connect_timeout": "10", "application_name": "dpdist"}
        options |= dict(self._address.connection)
        try:
            with closing(psycopg.connect(**options)) as connection:
                connection.isolation_level = IsolationLevel.READ_COMMITTED
                yield connection
                connection.commit()
        except psycopg.Error as error:
            raise self._translated(error) from None

    def _translated(self, error: psycopg.Error) -> DpdistError:
        if error.sqlstate is None:
            reason = " ".join(str(error).split())  # of a connection, never of a statement
            if _LOGIN.search(reason):
                return RefusedError(
                    f"The server of the ledger {self} refused the login: role or password is wrong, or no password "
                    "was given. Give the right one in a file (~/.pgpass, or the one PGPASSFILE names) or in the "
                    "variable PGPASSWORD of the trusted process."
                )
            return ResumableError(
                f"The ledger {self} cannot be reached ({reason}). What was reserved stays reserved. Start the server, "
                "or mend address and password (PGPASSFILE or PGPASSWORD), then run the same command again."
            )
        message = error.diag.message_primary or error.sqlstate
        if error.sqlstate.startswith(_PASSING):
            return ResumableError(
                f"The ledger {self} could not be used now ({message}). What was reserved stays reserved; run the "
                "same command again."
            )
        return DataError(
            f"PostgreSQL refused to use the ledger {self} ({message}). Its role needs SELECT and INSERT on "
            f"{' and '.join(_TABLES)}, and CREATE where they are missing; if they were altered, restore them."
        )

    def exists(self) -> bool:
        """Say whether the database has a journal of that name."""
        with self._connection() as connection:
            return self._has_journal(connection)

    def _has_journal(self, connection: Connection) -> bool:
        if not _has_table(connection, "dpdist_journal"):
            return False
        query = "SELECT 1 FROM dpdist_journal WHERE ledger = %s LIMIT 1"
        return connection.execute(query, (self._address.ledger,)).fetchone() is not None

    def create(self, first: Entry) -> None:
        """Write the first entry of the journal, and the tables if there are none."""
        with self._connection() as connection:
            self._lock(connection, "")
            for name, columns in _TABLES.items():
                if not _has_table(connection, name):  # a role may lack CREATE where the tables are there
                    connection.execute(f"CREATE TABLE {name} ({columns})")
            self._lock(connection, self._address.ledger)
            if self._has_journal(connection):
                raise DataError(f"{self} exists already. Choose another name for the ledger (?ledger=NAME).")
            self._require_only(connection, first)
            PostgresTransaction(connection, self._address, self._drafts).append(first, 0, ORIGIN)

    def _require_only(self, connection: Connection, first: Entry) -> None:
        """Refuse a second ledger of a data set in one database: another machine may have created the first."""
        for name, entry in connection.execute("SELECT ledger, entry FROM dpdist_journal WHERE sequence = 1"):
            if f'"dataset_id":"{first["dataset_id"]}"' in entry:
                raise RefusedError(
                    f"The database of {self} holds a ledger of these rows, or of a copy of them, under the name "
                    f"{name}; a second one would spend their budget again. Name that one (?ledger={name})."
                )

    def _lock(self, connection: Connection, name: str) -> None:
        settings = connection.execute(_SETTINGS, {"wait": f"{WAIT_SECONDS}s"}).fetchone()
        if settings is None or settings[-1] != "on":
            raise RefusedError(
                f"The server of {self} runs with fsync off: after a power cut it would have forgotten what was spent. "
                "Turn fsync on, or use another server."
            )
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_key(name),))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Hold the journal exclusively; what was appended is durable when the block ends, or undone if it raises."""
        with self._connection() as connection:
            self._lock(connection, self._address.ledger)
            yield PostgresTransaction(connection, self._address, self._drafts)

    def stage(self, name: str, pieces: Iterable[bytes]) -> str:
        """Write a nameless file; it is sent in the transaction that commits it."""
        try:
            self._drafts[name] = TemporaryFile()  # noqa: SIM115 - it is closed when it is discarded or kept
            return written(self._drafts[name], pieces)
        except OSError as error:
            raise ResumableError(
                f"The release could not be stored in {gettempdir()} ({error.strerror}) on its way to {self}. Its "
                "reservation stays; free the disk, or name another folder in TMPDIR, and run the same command again."
            ) from None

    def discard(self, name: str) -> None:
        """Drop the nameless file."""
        if name in self._drafts:
            self._drafts.pop(name).close()

    @contextmanager
    def blob(self, name: str) -> Iterator[BinaryIO]:
        """Copy what was committed under a name to a nameless file; an empty one if it is missing."""
        query = "SELECT content FROM dpdist_blobs WHERE ledger = %s AND name = %s ORDER BY part"
        with TemporaryFile() as file:
            with self._connection() as connection:
                for (content,) in connection.cursor().stream(query, (self._address.ledger, name)):
                    file.write(content)
            file.seek(0)
            yield file
