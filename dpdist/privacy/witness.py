"""The witness: what this machine has seen of a ledger, kept outside of it, so that a copy cannot draw a second time.

A ledger that was copied, or restored from a backup, is sound by itself: no rule inside it can tell that another copy
has gone on. So each ledger identity has one private file under the user's state directory. It holds every release that
was committed: id, parameters, charge, periods, and the digest of the committed bytes.

**The rule.** (1) A ledger that does not know everything its witness has seen may neither charge nor draw nor commit.
(2) Committed bytes are given out only after the witness has seen them. The order is: the journal commits, the witness
is replaced, the journal notes ``witnessed``, the bytes are given out. The witness is locked from before the journal is
read until after the witness is replaced.

**Theorem.** Of all copies of a ledger that share a witness, at most one draw of each release id is ever given out.

*Proof.* The witness only grows: it is replaced under its lock, by what a ledger knows that knows all of it. A ledger
knows one digest for each id, its own or an adopted one, so the witness never holds two for one id that was given out
under it. What is given out is in the witness, by (2). ∎

**Crashes.** Before the journal commits, nothing has happened. After it, and before the witness is replaced, the draw is
in the journal only. The same ledger finds it there and goes on. If a copy commits first, the copy's draw counts, and
the other is behind and never given out. After the witness is replaced, the same command gives the bytes out.

A copy on another machine, or under another state directory, cannot be seen. Nothing here is a key or a seed.
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpdist.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.privacy.books import View
from dpdist.privacy.journal import WAIT_SECONDS, Entry, canonical
from dpdist.staging import put_in_place, sync

FORMAT = "dpdist-witness/1"
VARIABLE = "DPDIST_STATE_HOME"
_POLL_SECONDS = 0.01
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE}


@dataclass(frozen=True)
class Testimony:
    """What a witness has seen of a ledger.

    Attributes
    ----------
    head
        Digest of the journal's last entry when it was seen.
    releases
        JSON values of every release that was committed, with its charge.
    periods
        The closed periods with their digests; None where rows do not come in periods.
    capped
        The caps that were fixed before the first release; None where none were.
    exhausted
        Whether the whole budget was charged to a copy, because an earlier witness was lost.
    """

    head: str
    releases: tuple[Entry, ...]
    periods: dict[str, str] | None
    capped: Entry | None
    exhausted: bool = False

    @classmethod
    def of(cls, view: View) -> Testimony:
        """Return what a ledger has to tell."""
        releases = tuple(record.testimony() for record in view.records.values() if record.digest is not None)
        periods = None if view.periods is None else dict(view.periods)
        return cls(view.head, releases, periods, view.capped, view.exhausted)

    def unknown_to(self, view: View) -> list[Entry]:
        """Return the releases that a ledger does not know of, in the order of commitment."""
        known = {_draw(record.release_id, record.digest) for record in view.records.values()}
        return [entry for entry in self.releases if _draw(entry["id"], entry["digest"]) not in known]

    def exhausts(self, view: View) -> bool:
        """Say whether the whole budget was charged elsewhere, and not to this ledger yet."""
        return self.exhausted and not view.exhausted

    def tells(self, view: View) -> bool:
        """Say whether every release that the ledger committed was seen, and that it is exhausted if it is."""
        seen = {_draw(entry["id"], entry["digest"]) for entry in self.releases}
        known = all(r.digest is None or _draw(r.release_id, r.digest) in seen for r in view.records.values())
        return known and (self.exhausted or not view.exhausted)


def _draw(release_id: str, digest: str | None) -> tuple[str, str | None]:
    """Return what tells one draw from another, also where two draws under one id are both known."""
    return release_id.partition(".")[0], digest


class Held(Protocol):
    """The witness of one ledger, locked."""

    def read(self) -> Testimony | None:
        """Return what was seen last, or None where there is nothing."""
        ...

    def write(self, testimony: Testimony) -> None:
        """Replace it; it is durable when this returns."""
        ...


class Witness(Protocol):
    """Where the witnesses of ledgers are kept."""

    def held(self, ledger_id: str) -> AbstractContextManager[Held]:
        """Lock the witness of a ledger against every other process."""
        ...

    def read(self, ledger_id: str) -> Testimony | None:
        """Return what was seen last of a ledger, without a lock; nothing is created."""
        ...

    def place(self, ledger_id: str) -> str:
        """Return where the witness of a ledger is kept, for messages."""
        ...


def state_home() -> Path:
    """Return the folder in which this user's witnesses are kept.

    It is ``DPDIST_STATE_HOME``, else ``dpdist`` in ``XDG_STATE_HOME``, else ``~/.local/state/dpdist``.

    Raises
    ------
    UsageError
        If DPDIST_STATE_HOME is not an absolute path.
    DataError
        If none of them is set and the user has no home.
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


class FolderWitness:
    """One private file for each ledger, under :func:`state_home`."""

    def _file(self, ledger_id: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
            raise DataError("The ledger has no proper identity: it is damaged. Restore it from a copy.")
        return state_home() / "witness" / f"{ledger_id}.json"

    def place(self, ledger_id: str) -> str:
        """Return the file."""
        return str(self._file(ledger_id))

    def read(self, ledger_id: str) -> Testimony | None:
        """Return what was seen last of a ledger, without a lock; nothing is created."""
        return HeldFile(self._file(ledger_id)).read()

    @contextmanager
    def held(self, ledger_id: str) -> Iterator[HeldFile]:
        """Lock the witness of a ledger against every other process.

        Raises
        ------
        DataError
            If the folder cannot be made private, written or locked.
        ResumableError
            If the disk is full, or another process holds it for a minute.
        """
        path = self._file(ledger_id)
        try:
            _make_private(path.parent)
            handle = _lock_file(path.with_suffix(".lock"))
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            _lock(handle, path)
            yield HeldFile(path)
        finally:
            os.close(handle)


class HeldFile:
    """The file of one ledger's witness: one line of JSON and one with its SHA-256, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Testimony | None:
        """Return what was seen last, or None where there is nothing.

        Raises
        ------
        DataError
            If the file is damaged or cannot be read.
        """
        try:
            body, _, digest = self._path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self._path, error) from None
        if hashlib.sha256(body).hexdigest().encode() != digest.strip():
            raise DataError(
                f"The witness {self._path} is damaged, so nothing can be spent from its ledger. Restore the file if "
                "you can. If it is lost, remove it and see what dpdist ledger adopt says."
            )
        value: dict[str, Any] = json.loads(body)
        if value["format"] != FORMAT:
            raise DataError(f"{self._path} has format {value['format']!r}, and this version reads {FORMAT!r}.")
        releases, exhausted = tuple(value["releases"]), value.get("exhausted", False)
        return Testimony(value["head"], releases, value["periods"], value["capped"], exhausted)

    def write(self, testimony: Testimony) -> None:
        """Replace it; it is durable when this returns.

        Raises
        ------
        DataError
            If the folder cannot be written.
        ResumableError
            If the disk is full.
        """
        value = {
            "format": FORMAT,
            "head": testimony.head,
            "releases": list(testimony.releases),
            "periods": testimony.periods,
            "capped": testimony.capped,
            "exhausted": testimony.exhausted,
        }
        body = canonical(value).encode()
        aside = self._path.with_suffix(".partial")  # one name: whoever writes holds the lock
        try:
            aside.unlink(missing_ok=True)
            put_in_place(self._path, aside, body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n", 0o600)
        except OSError as error:
            raise _unusable(self._path, error) from None


def _make_private(folder: Path) -> None:
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


def _lock(handle: int, path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ResumableError(
                    f"Another process has held the witness {path} for {WAIT_SECONDS} seconds. Wait until it ends, then "
                    "run the same command again."
                ) from None
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            raise _unusable(path, error) from None
        else:
            return


def _unusable(path: Path, error: OSError) -> DpdistError:
    kind = ResumableError if error.errno in _PASSING else DataError
    return kind(
        f"The witness {path} cannot be kept ({error.strerror}). It is what tells a copy of a ledger from the ledger, "
        f"so nothing is drawn without it. Mend that, or name a private folder that lasts in {VARIABLE}, and run the "
        "same command again."
    )
