"""The state folder: private files of this user, outside of every ledger and table, that copies of these share.

Each file is one line of JSON and one with its SHA-256. It is replaced as a whole, under a lock of its own, so whoever
reads it without the lock sees what was written last, complete.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from dpdist._util.text import canonical, listed
from dpdist.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.ledger.journal import WAIT_SECONDS
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
            handle = _lock_file(self.path.with_suffix(".lock"))
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


def _lock_file(path: Path) -> int:
    """Open a file that only its owner can read, whatever the umask, and create it where there is none."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.fchmod(handle, 0o600)
    return handle
