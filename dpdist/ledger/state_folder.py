"""The state folder: private files of this user, outside of every ledger and table, that copies of these share.

Each file is one line of JSON and one with its SHA-256. It is replaced as a whole, under a lock of its own, so whoever
reads it without the lock sees what was written last, complete. A copy on another machine, under another state folder or
another user's cannot be seen.

**What was seen of a data set.** Rows that were copied before they had a ledger know nothing of it, and each copy would
get a ledger of its own, and so a second budget; or it would be reproduced from without noise. But a copy keeps the
identity of its data set. So each identity has one file, which names the one ledger that may be charged, or says that a
release for reproduction was made. The first of the two excludes the other for ever.

It is written when the ledger is there, and before the rows name it. Should the process die before that, the ledger was
charged nothing: the same command takes it up, or another copy's ledger comes first. Should it die after that, the same
command finds its own ledger named and completes the rows. A ledger that none of this happened to (an older version made
it, or another machine) is written down when it is first charged here.

**What was registered.** Registering makes no copy, so it can be done again at no cost, and each time there would be a
new identity with a new budget. So a digest of what a registered table holds leads to the identity that it was given
first: registered again, it is a copy, and charged to the same ledger. Nothing else decides: no name, place or time of a
file. All columns of a source are registered, so that no choice makes other rows of the same files. Rows that were
written in another order or way, a part of them, more than them, or ingested ones, are other rows to this. The digests
are of private rows: whoever can read the state folder can test guesses at a whole table with them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from dpdist._util.text import canonical, listed, random_token
from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.ledger.journal import WAIT_SECONDS
from dpdist.naming import parameter, step
from dpdist.storage.atomic import put_in_place, sync

VARIABLE = "DPDIST_STATE_HOME"
_POLL_SECONDS = 0.01
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE}


def state_home() -> Path:
    """Return the state folder of this user.

    It is ``DPDIST_STATE_HOME``, else ``dpdist`` in ``XDG_STATE_HOME``, else ``~/.local/state/dpdist``.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not Path(chosen).is_absolute():
            raise UsageError(f"{VARIABLE} is {chosen!r}: give an absolute path, which means the same in every folder.")
        return Path(chosen)
    common = os.environ.get("XDG_STATE_HOME", "")
    if Path(common).is_absolute():
        return Path(common, "dpdist")
    try:
        return Path.home() / ".local" / "state" / "dpdist"
    except RuntimeError:
        raise DataError(
            "The witness of the ledger needs a folder, and this user has no home. Name a private folder that lasts in "
            f"{VARIABLE}."
        ) from None


Content = TypeVar("Content", bound=Struct)


class StateFile(Generic[Content]):
    """One file in the state folder."""

    def __init__(
        self,
        path: Path,
        what: str,
        format: str,  # noqa: A002 - the key of the content
        kind: type[Content],
        lost: str,
        later: tuple[tuple[str, ...], Callable[[Content], str]] | None = None,
    ) -> None:
        self.path = path
        self._what = what
        self._formats = (format, *(later[0] if later else ()))
        self._written = later[1] if later else lambda _: format
        self._kind = kind
        self._lost = lost
        self._last: tuple[bytes, Content] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold it against every other process; the folder is made if there is none."""
        try:
            make_private(self.path.parent)
            handle = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_WRONLY, 0o600)
            os.fchmod(handle, 0o600)  # whatever the umask
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
                        f"Another process has held the {self._what} {self.path} for {WAIT_SECONDS} seconds. Wait until "
                        "it ends, then run the same command again."
                    ) from None
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise self._unusable(error) from None
            else:
                return

    def read(self) -> Content | None:
        """Return what it says, or None where there is nothing."""
        try:
            whole = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        last = self._last  # of all threads: another one may replace it meanwhile
        if last is None or last[0] != whole:
            self._last = last = whole, self._checked(whole)
        return last[1]

    def _checked(self, whole: bytes) -> Content:
        body, _, digest = whole.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest.strip():
            raise self._damaged()
        try:
            value = json.loads(body)
            stored = msgspec.convert(value, _Format).format
            content = msgspec.convert(value, self._kind) if stored in self._formats else None
        except (ValueError, RecursionError):
            raise self._damaged() from None
        if content is None:
            known = listed(map(repr, self._formats))
            raise DataError(f"{self.path} has format {stored!r}, and this version reads {known}.")
        return content

    def _damaged(self) -> DataError:
        return DataError(
            f"The {self._what} {self.path} is damaged, so nothing can be spent from its ledger. Restore the file "
            f"if you can. {self._lost}"
        )

    def write(self, content: Content) -> None:
        """Replace it, while it is locked; it is durable when this returns."""
        body = _text({"format": self._written(content), **msgspec.structs.asdict(content)})
        whole = body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
        aside = self.path.with_suffix(".partial")  # one name: whoever writes holds the lock
        try:
            aside.unlink(missing_ok=True)
            put_in_place(self.path, aside, whole, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        self._last = whole, content

    def _unusable(self, error: OSError) -> DpdistError:
        kind = ResumableError if error.errno in _PASSING else DataError
        return kind(
            f"The {self._what} {self.path} cannot be kept ({error.strerror}). It is what tells a copy from the ledger "
            "that is charged, so nothing is drawn without it. Mend that, or name a private folder that lasts in "
            f"{VARIABLE}, and run the same command again."
        )


def _text(value: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")  # ten times as fast, and it may be long
    except (ValueError, OverflowError):  # halves of letters, and whole numbers beyond 64 bits
        return canonical(msgspec.to_builtins(value)).encode()


class _Format(Struct):
    format: str


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, which only its owner can enter, whatever the umask."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)
        sync(each.parent)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


_DATASET = "dpdist-dataset/1"


class Seen(Struct, frozen=True):
    """What was seen of a data set, as it is stored."""

    ledger_id: str | None = None  # identity of the one ledger that may be charged for it; None while there is none
    place: str | None = None  # where that ledger was when it was seen first, for messages
    reproduced: bool = False  # a release for reproduction was made of it

    def require_charged_to(self, ledger_id: str, place: str) -> None:
        """Refuse to charge another ledger than the one that was seen first."""
        if self.reproduced:
            raise RefusedError(
                f"The rows of the ledger {place}, or a copy of them, were released for reproduction, perhaps without "
                "any noise. No budget of theirs can promise anything any more. Nothing was drawn."
            )
        if self.ledger_id not in {None, ledger_id}:
            raise RefusedError(
                f"The rows of the ledger {place} have another ledger, {self.place}, created for them or for a copy of "
                "them, and two ledgers would be two budgets. Nothing was drawn. Release from the rows that name that "
                f"ledger, and if it was moved, name its place ({parameter('ledger')}). If it is lost, restore it from "
                f"a copy, and charge what the copy misses with: {step('ledger adopt', 'LEDGER')}. What this ledger has "
                "given out can be published again."
            )


_LOST = "If it is lost, remove it: the ledger that is charged next is then the only one."


def _dataset_file(dataset_id: str) -> StateFile[Seen]:
    if not re.fullmatch(r"[0-9a-f]{32}", dataset_id):
        raise DataError("The rows have no proper identity: their zarr.json is damaged. Restore it from a copy.")
    return StateFile(state_home() / "datasets" / f"{dataset_id}.json", "record of the data set", _DATASET, Seen, _LOST)


def seen(dataset_id: str) -> Seen:
    """Return what was seen of a data set, without a lock; nothing is created."""
    return _dataset_file(dataset_id).read() or Seen()


@contextmanager
def held(dataset_id: str) -> Iterator[StateFile[Seen]]:
    """Hold the file that says what was seen of a data set against every other process."""
    file = _dataset_file(dataset_id)
    with file.locked():
        yield file


def charge(dataset_id: str, ledger_id: str, place: str) -> None:
    """Let a ledger be the one that is charged for a data set; idempotent."""
    known = seen(dataset_id)
    known.require_charged_to(ledger_id, place)
    if known.ledger_id is None:
        with held(dataset_id) as file:
            known = seen(dataset_id)  # another process may have been faster
            known.require_charged_to(ledger_id, place)
            if known.ledger_id is None:
                file.write(Seen(ledger_id, place))


_REGISTERED = "dpdist-registered-rows/1"


class Registration(Struct, frozen=True):
    """What is remembered of rows that were registered, as it is stored."""

    dataset_id: str
    place: str  # where their table was put first, for messages


def identity_of(content: str, place: str) -> str:
    """Return the identity of rows that are registered: that which they had before, or a new one.

    It is remembered when this returns, before there is a table: should the process die then, the next gets the same.
    """
    path = state_home() / "registered" / f"{content}.json"
    lost = "If it is lost, remove it: what it was of is then registered as new rows, with a budget of its own."
    file = StateFile(path, "record of registered rows", _REGISTERED, Registration, lost)
    with file.locked():
        known = file.read()
        if known is None:
            known = Registration(random_token(), place)
            file.write(known)
        return known.dataset_id
