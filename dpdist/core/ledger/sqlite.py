"""A ledger in a private folder: the journal in an embedded SQLite database, with the releases as files next to it.

SQLite runs in WAL mode with ``synchronous=FULL``. Each change is one ``BEGIN IMMEDIATE`` transaction, because the
snapshot of a reader that later writes could be stale. The folder must be on a local disk of the trusted node: known
network file systems, whose locks and shared memory do not work across machines, are refused.
"""

from __future__ import annotations

import io
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpdist.core.errors import DataError, RefusedError, ResumableError
from dpdist.core.ledger.journal import ALL, ORIGIN, WAIT_SECONDS, Entry, Transaction, written
from dpdist.core.naming import parameter
from dpdist.core.storage.atomic import staged, sync
from dpdist.core.storage.store import FolderStore

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    "fuse.ceph", "fuse.cephfs", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mount.s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs",
}  # fmt: skip


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system of a path, or None if it is local."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    above = [resolved, *resolved.parents]
    best, kind = len(above), None
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        point = Path(_unescaped(mount.split()[4]))
        if point in above and above.index(point) <= best:  # a later mount hides an earlier one at the same point
            best, kind = above.index(point), filesystem.split()[0]
    return kind if kind in _NETWORK else None


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_TRANSIENT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, *_FULL}
"""Errors caused by a full disk or another process; all others mean that the file is damaged."""


class FolderTransaction(Transaction):
    """An open transaction on a folder's journal."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        super().__init__(str(folder))
        self._connection = connection
        self._blobs = folder / "blobs"

    def contains(self, digest: str) -> bool:
        """Return whether an entry has this digest."""
        rows = self._connection.execute("SELECT 1 FROM journal WHERE digest = ? LIMIT 1", (digest,))
        return rows.fetchone() is not None

    def keep(self, name: str) -> bool:
        """Return whether the file still exists: a later attempt may have swept it."""
        return (self._blobs / name).exists()

    def sweep(self, release_id: str, keep: Collection[str]) -> None:
        """Delete the files of a release except those to keep."""
        for name in os.listdir(self._blobs):  # noqa: PTH208 - ten times faster than Path.iterdir
            if name.startswith(f"{release_id}.") and name not in keep:
                (self._blobs / name).unlink(missing_ok=True)

    def _rows(self, first: int, most: int = ALL) -> Sequence[tuple[int, str, str]]:
        query = "SELECT sequence, entry, digest FROM journal WHERE sequence >= ? ORDER BY sequence LIMIT ?"
        return self._connection.execute(query, (first, most)).fetchall()

    def _insert(self, sequence: int, entry: str, digest: str) -> None:
        self._connection.execute("INSERT INTO journal VALUES (?, ?, ?)", (sequence, entry, digest))


class FolderStorage:
    """``ledger.sqlite`` and ``blobs/``, readable by the owner only; opened for each transaction."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "ledger.sqlite"

    def __str__(self) -> str:
        return str(self._folder)

    def exists(self) -> bool:
        """Return whether the database exists."""
        return self._path.is_file()

    def create(self, first: Entry) -> None:
        """Create the folder atomically."""
        self._require_local()
        with staged(self._folder, "ledger", private=True) as staging:
            (staging / "blobs").mkdir(mode=0o700)
            storage = FolderStorage(staging)
            os.close(os.open(storage._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(storage._connect()) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(
                    "CREATE TABLE journal (sequence INTEGER PRIMARY KEY, entry TEXT NOT NULL, digest TEXT NOT NULL)"
                )
            with storage.transaction() as transaction:
                transaction.append(first, 0, ORIGIN)

    def _require_local(self) -> None:
        kind = network_file_system(self._folder)
        if kind is not None:
            raise RefusedError(
                f"{self._folder} is on a network file system ({kind}), where SQLite cannot prevent two machines from "
                "spending the same budget. Put the ledger on a local disk of the trusted node "
                f"({parameter('ledger')}), or in PostgreSQL ({parameter('ledger', 'postgresql+psycopg://...')})."
            )

    def _connect(self, mode: str = "mode=rw", begin: str = "") -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?{mode}", uri=True, timeout=WAIT_SECONDS, isolation_level=None
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(begin)
        except BaseException:  # not a database: Python 3.13 warns of unclosed connections
            connection.close()
            raise
        return connection

    def _begun(self) -> sqlite3.Connection:
        """Open a transaction; on a full disk, where SQLite cannot lock, one that reads and refuses to write.

        All committed entries are in the database itself if its log is empty, as after every transaction that ended.
        """
        try:
            return self._connect(begin="BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            path = self._path.resolve()
            log = path.with_name(f"{path.name}-wal")
            if error.sqlite_errorcode & 0xFF not in _FULL or (log.exists() and log.stat().st_size):
                raise
        return self._connect("mode=ro&immutable=1", "BEGIN")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Lock the journal; entries are durable when the block ends, or undone if it raises."""
        if not self.exists():
            raise DataError(f"The ledger database {self._path} is missing. Restore it from a copy.")
        self._require_local()
        try:
            with closing(self._begun()) as connection:
                try:
                    self._require_tables_only(connection)
                    yield FolderTransaction(connection, self._folder)
                except BaseException:
                    if connection.in_transaction:  # a full disk has already rolled it back
                        connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT:
                raise ResumableError(
                    f"The ledger {self._path} could not be written ({error}). Reservations stay. Free disk space, or "
                    "wait for the other process, then run the same command again."
                ) from None
            raise DataError(f"The ledger {self._path} is damaged ({error}). Restore it from a copy.") from None

    def _require_tables_only(self, connection: sqlite3.Connection) -> None:
        """Refuse a database with views or triggers, which could change or block reads and writes."""
        query = "SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1"
        if connection.execute(query).fetchone() is not None:
            raise DataError(
                f"The ledger {self._path} has more than a journal, so dpdist did not write it. Restore it from a copy."
            )

    def stage(self, name: str, chunks: Iterable[bytes]) -> str:
        """Write and flush a new private file, which the next attempt sweeps unless it is kept."""
        try:
            return self._write(self._folder / "blobs" / name, chunks)
        except OSError as error:
            raise ResumableError(
                f"The release could not be stored in {self._folder} ({error.strerror}). Its reservation stays. Free "
                "disk space, then run the same command again."
            ) from None

    @staticmethod
    def _write(path: Path, chunks: Iterable[bytes]) -> str:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            digest = written(file, chunks)
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)
        return digest

    def discard(self, name: str) -> None:
        """Delete a file that was not committed."""
        (self._folder / "blobs" / name).unlink(missing_ok=True)

    @contextmanager
    def blob(self, name: str) -> Iterator[BinaryIO]:
        """Open a file; an empty one if it is missing or not a plain file."""
        file: BinaryIO = io.BytesIO()
        with suppress(OSError):
            file = io.BufferedReader(FolderStore(self._folder / "blobs").opened(name))
        with file:
            yield file
