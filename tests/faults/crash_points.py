"""The moments of a release at which something can be made to happen, and what a death there leaves behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _always(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Point:
    """A moment in a release: just before or just after a call of ``owner.name`` whose arguments satisfy ``which``."""

    owner: Any
    name: str
    after: bool
    which: Callable[..., bool] = _always
    first: Callable[..., None] = _nothing
    """What has happened by then that no call marks."""

    def patch(self, act: Callable[[], None], armed: Callable[[], bool] = _always) -> None:
        """Let something happen at this point, whenever it is armed."""
        original = getattr(self.owner, self.name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if not (self.which(*arguments, **options) and armed()):
                return original(*arguments, **options)
            if self.after:
                result = original(*arguments, **options)
            self.first(*arguments)
            act()
            return result if self.after else original(*arguments, **options)

        static = isinstance(inspect.getattr_static(self.owner, self.name), staticmethod)
        setattr(self.owner, self.name, staticmethod(wrapper) if static else wrapper)


def _appends(event: str) -> Callable[..., bool]:
    return lambda _, entry, *__, **___: bool(entry["event"] == event)


def _tells(_: Any, content: Any) -> bool:
    return bool(getattr(content, "releases", ()))


def _binds(_: Any, content: Any) -> bool:
    return getattr(content, "release_id", None) is not None and getattr(content, "secret", None) is not None


def _destroys(_: Any, content: Any) -> bool:
    return getattr(content, "release_id", None) is not None and getattr(content, "secret", "") is None


def _continues(_: Any, band: Any, *__: Any, **___: Any) -> bool:
    return bool(band.start > 0)


def _sums(_: Any, futures: list[Any], *__: Any, **___: Any) -> bool:
    return any(name in str(each.key) for each in futures for name in ("dpdist-add", "dpdist-noise"))


def _second(_: Any, *arguments: Any, **__: Any) -> bool:
    return str(arguments[-1]) == "second stage"


def _half_written(path: Path, pieces: Iterable[bytes]) -> None:
    content = b"".join(pieces)
    path.write_bytes(content[: len(content) // 2])


def points() -> dict[str, Point]:
    """Return the moments of a release at which something can be made to happen, in their order."""
    from dpdist.core.ingest import periods
    from dpdist.core.ledger.journal import Transaction
    from dpdist.core.ledger.ledger import Ledger
    from dpdist.core.ledger.postgresql import PostgresStorage, PostgresTransaction
    from dpdist.core.ledger.sqlite import FolderStorage
    from dpdist.core.ledger.state_folder import StateFile
    from dpdist.core.mechanisms.counts import CalibratedHistogram
    from dpdist.core.moment import total
    from dpdist.core.pipeline import release
    from dpdist.core.release import archive, share, stages, transaction, trusted
    from dpdist.core.rows.chunks import ChunkReader
    from dpdist.core.runtime import sums
    from dpdist.core.storage import atomic

    return {
        "before sealing": Point(periods, "seal_rows", after=False),
        "after sealing": Point(periods, "seal_rows", after=True),
        "inside the closing": Point(Transaction, "append", after=True, which=_appends("closed")),
        "after the closing": Point(Ledger, "close_period", after=True),
        "inside the reservation": Point(Transaction, "append", after=True, which=_appends("reserved")),
        "after the reservation": Point(trusted.MomentTransaction, "reserve", after=True),
        "before reading": Point(ChunkReader, "read", after=False),
        "with the cluster at work": Point(sums.DaskExecutor, "_submit_tasks", after=True),
        "after the sum": Point(release, "partition_of_own_key", after=True),
        "after a partial": Point(total, "partition_moment", after=True),
        "before the sums are fetched": Point(sums.DaskExecutor, "_fetch", after=False, which=_sums),
        "before the attempt": Point(Ledger, "begin", after=False),
        "inside the beginning": Point(Transaction, "append", after=True, which=_appends("begun")),
        "after the beginning": Point(Ledger, "begin", after=True),
        "in the second band": Point(transaction, "noisy", after=True, which=_continues),
        "after the draw": Point(trusted, "noisy_answer", after=True),
        "after the counts are drawn": Point(CalibratedHistogram, "answer", after=True),
        "with half a draft": Point(FolderStorage, "_write", after=False, first=_half_written),
        "after the draft": Point(FolderStorage, "_write", after=True),
        "with the draft staged": Point(PostgresStorage, "stage", after=True),
        "with the draft sent": Point(PostgresTransaction, "keep", after=True),
        "inside the staging": Point(Transaction, "append", after=True, which=_appends("staged")),
        "at the second stage": Point(Ledger, "commit", after=False, which=_second),
        "after the second stage": Point(Ledger, "commit", after=True, which=_second),
        "after the stage": Point(stages, "resolved", after=True),
        "inside the commit": Point(Transaction, "append", after=True, which=_appends("committed")),
        "before the witness": Point(StateFile, "write", after=False, which=_tells),
        "after the witness": Point(StateFile, "write", after=True, which=_tells),
        "inside the note of the witness": Point(Transaction, "append", after=True, which=_appends("witnessed")),
        "after the commit": Point(Ledger, "commit", after=True),
        "before publication": Point(trusted, "publish", after=False),
        "before the rename": Point(atomic, "sync_tree", after=True),
        "after the rename": Point(archive, "publish", after=True),
        "inside the record": Point(Transaction, "append", after=True, which=_appends("published")),
        "after publication": Point(trusted, "publish", after=True),
        "before the key is bound": Point(StateFile, "write", after=False, which=_binds),
        "after the key is bound": Point(StateFile, "write", after=True, which=_binds),
        "before the key is destroyed": Point(StateFile, "write", after=False, which=_destroys),
        "after the key is destroyed": Point(StateFile, "write", after=True, which=_destroys),
        "before the share is written": Point(share, "write_once", after=False),
        "after the share is written": Point(share, "write_once", after=True),
    }


@dataclass(frozen=True)
class Left:
    """What a fault leaves: the state of the release, the attempts begun, files in the private folder, a publication."""

    state: str | None
    fence: int = 0
    blobs: int = 0
    published: bool = False


FAULTS = {
    "inside the reservation": Left(None),
    "after the reservation": Left("reserved"),
    "before reading": Left("reserved"),
    "after the sum": Left("reserved"),
    "before the attempt": Left("reserved"),
    "inside the beginning": Left("reserved"),
    "after the beginning": Left("reserved", 1),
    "after the draw": Left("reserved", 1),
    "with half a draft": Left("reserved", 1, 1),
    "after the draft": Left("reserved", 1, 1),
    "inside the commit": Left("reserved", 1, 1),
    "before the witness": Left("committed", 1, 1),
    "after the witness": Left("committed", 1, 1),
    "inside the note of the witness": Left("committed", 1, 1),
    "after the commit": Left("committed", 1, 1),
    "before publication": Left("committed", 1, 1),
    "before the rename": Left("committed", 1, 1),
    "after the rename": Left("committed", 1, 1, published=True),
    "inside the record": Left("committed", 1, 1, published=True),
    "after publication": Left("published", 1, 1, published=True),
}

STAGED_FAULTS = {
    "inside the staging": Left("reserved", 1, 1),
    "before the witness": Left("staged", 2, 1),
    "after the witness": Left("staged", 2, 1),
    "after the stage": Left("staged", 2, 1),
    "after the draw": Left("staged", 3, 1),
    "inside the commit": Left("staged", 3, 2),
    "after the rename": Left("committed", 3, 2, published=True),
}
"""Likewise of a release that chooses its clip norm or scale first: what happens twice strikes in the stage."""

CHOICE_FAULTS = {**FAULTS, **STAGED_FAULTS, "after the counts are drawn": Left("reserved", 1)}
"""Likewise of a release that chooses something first, where each point strikes in whichever part comes to it."""

TWICE_FAULTS = {
    "at the second stage": Left("staged", 3, 1),
    "after the second stage": Left("staged", 4, 2),
    "after the draw": Left("staged", 5, 2),
    "after the rename": Left("committed", 5, 3, published=True),
}
"""Likewise of a release that chooses both, in two stages: what only it comes to, or leaves otherwise."""
