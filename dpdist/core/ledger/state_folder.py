"""The state folder: private files of this user, outside all ledgers and tables, and shared by copies of them.

Each file has one line of JSON and one with its SHA-256. It is replaced atomically under its own lock, so readers
without the lock see the last complete version. Copies on other machines, or under another user or state folder, cannot
be detected.

**Data sets.** If rows are copied before they have a ledger, each copy could create a ledger of its own, and so a second
budget, or be released for reproduction without noise. But copies keep the identity of the data set. So each identity
has one file, which either names the one ledger that may be charged, or records a release for reproduction. The first of
the two permanently excludes the other.

The file is written after the ledger was created and before the rows name it. If the process dies before the write, the
ledger has no charges; the same command reuses it, unless the ledger of another copy is recorded first. If the process
dies after the write, the same command finds the recorded ledger and completes the rows. A ledger without a record, from
another machine, is recorded at its first charge here.

**Registered rows.** Registering copies nothing, so it could be repeated at no cost, each time with a new identity and a
new budget. So a digest of the contents of a registered table maps to the identity it was given first: registered again,
the table is a copy, charged to the same ledger. Names, paths and times of files do not matter. All columns of a source
are registered, so that a selection of columns cannot make different rows. Rows written in another order or format, a
part of the rows, additional rows, and ingested rows count as different. The digests are derived from private rows:
anyone who can read the state folder can use them to test guesses of a whole table.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from dpdist.core.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.core.ledger.journal import WAIT_SECONDS
from dpdist.core.naming import parameter, step
from dpdist.core.storage.atomic import replace_durably, sync
from dpdist.core.text import canonical, random_token

VARIABLE = "DPDIST_STATE_HOME"
_INSTALLED = Path("/var/lib/dpdist/state")  # of the files in cluster/
_POLL_SECONDS = 0.01
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE}


def state_home() -> Path:
    """Return ``DPDIST_STATE_HOME``, or ``dpdist`` in ``XDG_STATE_HOME``, or ``~/.local/state/dpdist``."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not Path(chosen).is_absolute():
            raise UsageError(f"{VARIABLE} is {chosen!r}, which is a relative path. Set it to an absolute path.")
        return Path(chosen)
    common = os.environ.get("XDG_STATE_HOME", "")
    if Path(common).is_absolute():
        return Path(common, "dpdist")
    try:
        return Path.home() / ".local" / "state" / "dpdist"
    except RuntimeError:
        raise DataError(
            "The witness of the ledger needs a folder, but this user has no home directory. Set "
            f"{VARIABLE} to a private, persistent folder."
        ) from None


def other_with(file: Path) -> Path | None:
    """Return another usual state folder that has a file: those without the variable, or that of cron and systemd."""
    folders = [_INSTALLED, Path(os.environ.get("XDG_STATE_HOME", ""), "dpdist")]
    with suppress(RuntimeError):  # no home directory
        folders.append(Path.home() / ".local" / "state" / "dpdist")
    for folder in folders:
        with suppress(OSError):  # a folder of another user
            if folder.is_absolute() and folder != state_home() and (folder / file).is_file():
                return folder
    return None


Content = TypeVar("Content", bound=Struct)


class StateFile(Generic[Content]):
    """One file in the state folder."""

    def __init__(
        self,
        path: Path,
        noun: str,
        format: str,  # noqa: A002 - the key of the content
        kind: type[Content],
        lost: str,
    ) -> None:
        self.path = path
        self._noun = noun
        self._format = format
        self._kind = kind
        self._lost = lost
        self._last: tuple[bytes, Content] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other processes, after creating its folder if needed."""
        try:
            make_private(self.path.parent)
            handle = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_WRONLY, 0o600)
            os.fchmod(handle, 0o600)  # independent of the umask
        except OSError as error:
            raise self._unusable(error) from None
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ResumableError(
                        f"Another process has locked the {self._noun} {self.path} for {WAIT_SECONDS} seconds. Wait "
                        "until it ends, then run the same command again."
                    ) from None
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise self._unusable(error) from None
            else:
                return

    def read(self) -> Content | None:
        """Return the content, or None if there is no file."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        last = self._last  # shared by threads, so that it may be replaced meanwhile
        if last is None or last[0] != data:
            self._last = last = data, self._checked(data)
        return last[1]

    def _checked(self, data: bytes) -> Content:
        body, _, digest = data.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest.strip():
            raise self._damaged()
        try:
            value = json.loads(body)
            stored = msgspec.convert(value, _Format).format
            del value["format"]
            content = msgspec.convert(value, self._kind) if stored == self._format else None
        except (ValueError, RecursionError):
            raise self._damaged() from None
        if content is None:
            raise DataError(
                f"{self.path} has format {stored!r}; this one reads {self._format!r}. Use the version that wrote it."
            )
        return content

    def _damaged(self) -> DataError:
        return DataError(
            f"The {self._noun} {self.path} is damaged, so nothing can be spent from its ledger. Restore the file "
            f"if you can. {self._lost}"
        )

    def write(self, content: Content) -> None:
        """Durably replace the content, under the lock."""
        body = _text({"format": self._format, **msgspec.structs.asdict(content)})
        data = body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
        staging = self.path.with_suffix(".partial")  # a fixed name, because of the lock
        try:
            staging.unlink(missing_ok=True)
            replace_durably(self.path, staging, data, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        self._last = data, content

    def _unusable(self, error: OSError) -> DpdistError:
        kind = ResumableError if error.errno in _TRANSIENT else DataError
        return kind(
            f"The {self._noun} {self.path} cannot be read or written ({error.strerror}). Nothing is drawn without it, "
            "because it distinguishes the charged ledger from copies. Fix the cause, or set "
            f"{VARIABLE} to a private, persistent folder, then run the same command again."
        )


def _text(value: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")  # ten times faster than the canonical text
    except (ValueError, OverflowError):  # lone surrogates, and integers beyond 64 bits
        return canonical(msgspec.to_builtins(value)).encode()


class _Format(Struct):
    format: str


def make_private(folder: Path) -> None:
    """Create a folder and missing parents, accessible to their owner only, independent of the umask."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
        sync(path.parent)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


_DATASET = "dpdist-dataset/1"


class DatasetRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of a data set."""

    ledger_id: str | None = None  # identity of the one ledger that may be charged for it
    place: str | None = None  # where that ledger was first seen, for messages
    reproduced: bool = False  # it was released for reproduction

    def require_charged_to(self, ledger_id: str, location: str) -> None:
        """Refuse to charge any other ledger than the recorded one."""
        if self.reproduced:
            raise RefusedError(
                f"The rows of the ledger {location}, or a copy of them, were released for reproduction, possibly "
                "without noise, so no budget of these rows has a guarantee. Nothing was drawn. Use other rows."
            )
        if self.ledger_id not in {None, ledger_id}:
            raise RefusedError(
                f"The rows of the ledger {location} have another ledger, {self.place}, which was created for them or "
                "for a copy of them. Two ledgers would be two budgets. Nothing was drawn. Release from the rows that "
                f"name that ledger; if it was moved, pass its new location ({parameter('ledger')}). If it is lost, "
                "restore it from a copy, and charge the releases missing there with: "
                f"{step('ledger adopt', 'LEDGER')}. Releases of this ledger can be published again."
            )


_LOST = "If it is lost, remove it: the ledger that is charged next becomes the only one."


def _dataset_file(dataset_id: str) -> StateFile[DatasetRecord]:
    if not re.fullmatch(r"[0-9a-f]{32}", dataset_id):
        raise DataError("The rows have no valid identity: their zarr.json is damaged. Restore it from a copy.")
    return StateFile(
        state_home() / "datasets" / f"{dataset_id}.json", "record of the data set", _DATASET, DatasetRecord, _LOST
    )


def seen(dataset_id: str) -> DatasetRecord:
    """Return the record of a data set, without a lock; no file is created."""
    return _dataset_file(dataset_id).read() or DatasetRecord()


@contextmanager
def held(dataset_id: str) -> Iterator[StateFile[DatasetRecord]]:
    """Lock the record of a data set."""
    file = _dataset_file(dataset_id)
    with file.locked():
        yield file


def charge(dataset_id: str, ledger_id: str, location: str) -> None:
    """Record a ledger as the one that is charged for a data set; idempotent."""
    record = seen(dataset_id)
    record.require_charged_to(ledger_id, location)
    if record.ledger_id is None:
        with held(dataset_id) as file:
            record = seen(dataset_id)  # another process may have been faster
            record.require_charged_to(ledger_id, location)
            if record.ledger_id is None:
                file.write(DatasetRecord(ledger_id, location))


_REGISTERED = "dpdist-registered-rows/1"


class Registration(Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of registered rows."""

    dataset_id: str
    place: str  # first path of their table, for messages


def identity_of(content: str, place: str) -> str:
    """Return the identity of registered rows, by a digest of their content; a new one is recorded first."""
    file = _registration_of(content)
    with file.locked():
        registration = file.read()
        if registration is None:
            registration = Registration(random_token(), place)
            file.write(registration)
        return registration.dataset_id


def ledger_of(content: str) -> str | None:
    """Return the ledger recorded for registered rows, by a digest of their content; nothing is recorded."""
    registration = _registration_of(content).read()
    return None if registration is None else seen(registration.dataset_id).place


def _registration_of(content: str) -> StateFile[Registration]:
    path = state_home() / "registered" / f"{content}.json"
    lost = "If it is lost, remove it: its rows are then registered as new ones, with their own budget."
    return StateFile(path, "record of registered rows", _REGISTERED, Registration, lost)
