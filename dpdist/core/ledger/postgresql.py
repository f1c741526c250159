"""A ledger in PostgreSQL: several trusted nodes spend one budget, in turn or concurrently.

Two tables hold all ledgers of a database: the entries of the journals, and the committed releases in parts. A
transaction first takes the advisory lock of its ledger, so that transactions of one ledger are serial. Even without the
lock, the primary key of the entries would reject the second of two entries after the same end. Transactions are durable
when they end: they turn ``synchronous_commit`` on, and a server that runs with ``fsync`` off is refused.

A draw is sent to the server only in the transaction that commits it, so no attempt leaves a draft there. Until then it
is in an unnamed file of the trusted process (in ``TMPDIR``), which disappears with the process. Data of a rolled-back
transaction stays in the files of the server until it is vacuumed: the administrator of the server is trusted like the
owner of a ledger folder.

By default, libpq encrypts only if the server agrees, and an attacker between the two can prevent that. So the address
of a remote server must set an ``sslmode`` that requires encryption.

Messages quote the primary message of the server, but nothing about a statement from the driver.
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

from dpdist.core.errors import DataError, DpdistError, RefusedError, ResumableError
from dpdist.core.ledger.address import Address
from dpdist.core.ledger.journal import ALL, ORIGIN, WAIT_SECONDS, Entry, Transaction, written

_PART = 1 << 26
"""Bytes of a release in one row; PostgreSQL stores at most 1 GiB in a value."""
_TRANSIENT = ("08", "40", "53", "55", "57", "23505", "25006", "25P03")
"""Classes of errors that a retry may avoid: connection, conflict, resources, locks, shutdown, read-only server."""
_LOGIN = re.compile("password authentication failed|no password supplied")
"""Texts of libpq for a failed login, which has no code. In other languages the server counts as unreachable."""
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
    """Refuse an unencrypted connection to another machine, which carries the budget and unpublished releases.

    Sockets and loopback addresses are on this machine. Host names are not resolved, because that could change before
    the connection is made. Environment variables of libpq count like options of the address.
    """
    options = dict(address.connection)
    hosts = ",".join([options.get("host", os.environ.get("PGHOST", "")), os.environ.get("PGHOSTADDR", "")]).split(",")
    remote = [host for host in hosts if host and not _on_this_machine(host)]
    if (remote or "PGSERVICE" in os.environ) and options.get("sslmode") not in _ENCRYPTED:
        raise RefusedError(
            f"The server of the ledger {address} is not on this machine, and the address does not require encryption, "
            "so an attacker on the network could read the ledger or impersonate the server. Add &sslmode=verify-full "
            "(with &sslrootcert=FILE for your own CA). On a trusted network, &sslmode=require suffices: it encrypts, "
            "but does not verify the server."
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
    """An open transaction, under the lock of its ledger."""

    def __init__(self, connection: Connection, address: Address, drafts: dict[str, BinaryIO]) -> None:
        super().__init__(str(address))
        self._connection = connection
        self._ledger = address.ledger
        self._drafts = drafts

    def contains(self, digest: str) -> bool:
        """Return whether an entry has this digest."""
        query = "SELECT 1 FROM dpdist_journal WHERE ledger = %s AND digest = %s LIMIT 1"
        return self._connection.execute(query, (self._ledger, digest)).fetchone() is not None

    def keep(self, name: str) -> bool:
        """Store the draft in parts."""
        with self._drafts.pop(name) as draft:
            draft.seek(0)
            for part, content in enumerate(iter(partial(draft.read, _PART), b"")):
                row = self._ledger, name, part, content
                self._connection.execute("INSERT INTO dpdist_blobs VALUES (%s, %s, %s, %b)", row)
        return True

    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Do nothing: uncommitted attempts leave nothing on the server."""

    def _rows(self, first: int, most: int = ALL) -> Sequence[tuple[int, str, str]]:
        query = (
            "SELECT sequence, entry, digest FROM dpdist_journal WHERE ledger = %s AND sequence >= %s"
            " ORDER BY sequence LIMIT %s"
        )
        return self._connection.execute(query, (self._ledger, first, most)).fetchall()

    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        row = self._ledger, sequence, entry, digest
        self._connection.execute("INSERT INTO dpdist_journal VALUES (%s, %s, %s, %s)", row)


class PostgresStorage:
    """One ledger of a database; each transaction opens a connection, so that forks share none."""

    def __init__(self, address: Address) -> None:
        _require_encrypted(address)
        self._address = address
        self._drafts: dict[str, BinaryIO] = {}

    def __str__(self) -> str:
        return str(self._address)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which is committed when the block ends."""
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
            reason = " ".join(str(error).split())  # about the connection, never about a statement
            if _LOGIN.search(reason):
                return RefusedError(
                    f"The server of the ledger {self} refused the login: role or password is wrong, or the password "
                    "is missing. Put the password in ~/.pgpass, in the file that PGPASSFILE names, or in the "
                    "variable PGPASSWORD of the trusted process."
                )
            return ResumableError(
                f"The ledger {self} cannot be reached ({reason}). Reservations stay. Start the server, or correct the "
                "address or the password (PGPASSFILE or PGPASSWORD), then run the same command again."
            )
        message = error.diag.message_primary or error.sqlstate
        if error.sqlstate.startswith(_TRANSIENT):
            return ResumableError(
                f"The ledger {self} is temporarily unavailable ({message}). Reservations stay. Run the same command "
                "again."
            )
        return DataError(
            f"PostgreSQL refused a request of the ledger {self} ({message}). The role needs SELECT and INSERT on "
            f"{' and '.join(_TABLES)}, and CREATE if they are missing. If the tables were altered, restore them."
        )

    def exists(self) -> bool:
        """Return whether the database has a journal of this name."""
        with self._connection() as connection:
            return self._has_journal(connection)

    def _has_journal(self, connection: Connection) -> bool:
        if not _has_table(connection, "dpdist_journal"):
            return False
        query = "SELECT 1 FROM dpdist_journal WHERE ledger = %s LIMIT 1"
        return connection.execute(query, (self._address.ledger,)).fetchone() is not None

    def create(self, first: Entry) -> None:
        """Write the first entry, after creating missing tables."""
        with self._connection() as connection:
            self._lock(connection, "")
            for name, columns in _TABLES.items():
                if not _has_table(connection, name):  # a role may lack CREATE if the tables exist
                    connection.execute(f"CREATE TABLE {name} ({columns})")
            self._lock(connection, self._address.ledger)
            if self._has_journal(connection):
                raise DataError(f"{self} exists already. Choose another name for the ledger (?ledger=NAME).")
            self._require_only(connection, first)
            PostgresTransaction(connection, self._address, self._drafts).append(first, 0, ORIGIN)

    def _require_only(self, connection: Connection, first: Entry) -> None:
        """Refuse a second ledger of the same data set in one database."""
        for name, entry in connection.execute("SELECT ledger, entry FROM dpdist_journal WHERE sequence = 1"):
            if f'"dataset_id":"{first["dataset_id"]}"' in entry:
                raise RefusedError(
                    f"The database of {self} already has a ledger of these rows, or of a copy of them, called {name}. "
                    f"A second one would spend their budget again. Use that one (?ledger={name})."
                )

    def _lock(self, connection: Connection, name: str) -> None:
        settings = connection.execute(_SETTINGS, {"wait": f"{WAIT_SECONDS}s"}).fetchone()
        if settings is None or settings[-1] != "on":
            raise RefusedError(
                f"The server of {self} runs with fsync off, so a power cut could erase charges. Turn fsync on, or use "
                "another server."
            )
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_key(name),))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Lock the journal; entries are durable when the block ends, or undone if it raises."""
        with self._connection() as connection:
            self._lock(connection, self._address.ledger)
            yield PostgresTransaction(connection, self._address, self._drafts)

    def stage(self, name: str, chunks: Iterable[bytes]) -> str:
        """Write an unnamed file, which is sent in the transaction that commits it."""
        try:
            self._drafts[name] = TemporaryFile()  # noqa: SIM115 - closed by discard or keep
            return written(self._drafts[name], chunks)
        except OSError as error:
            raise ResumableError(
                f"The release could not be stored in {gettempdir()} ({error.strerror}) before sending it to {self}. "
                "Its reservation stays. Free disk space, or set TMPDIR to another folder, then run the same command "
                "again."
            ) from None

    def discard(self, name: str) -> None:
        """Close the unnamed file."""
        if name in self._drafts:
            self._drafts.pop(name).close()

    @contextmanager
    def blob(self, name: str) -> Iterator[BinaryIO]:
        """Copy a committed blob to an unnamed file; an empty one if it is missing."""
        query = "SELECT content FROM dpdist_blobs WHERE ledger = %s AND name = %s ORDER BY part"
        with TemporaryFile() as file:
            with self._connection() as connection:
                for (content,) in connection.cursor().stream(query, (self._address.ledger, name)):
                    file.write(content)
            file.seek(0)
            yield file
