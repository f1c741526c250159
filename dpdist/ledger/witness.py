"""The witness: what this machine has seen of a ledger, kept outside of it, so that a copy cannot draw a second time.

A ledger that was copied, or restored from a backup, is sound by itself: no rule inside it can tell that another copy
has gone on. So each ledger identity has one private file under the user's state directory. It holds every release that
was committed: id, parameters, charge, periods, and the digest of the committed bytes; of a release in several draws,
those of each, from its commitment on.

**The rule.** (1) A ledger that does not know everything its witness has seen may neither charge nor draw nor commit.
(2) Committed bytes are given out only after the witness has seen them. The order is: the journal commits, the witness
is replaced, the journal notes ``witnessed``, the bytes are given out. The witness is locked from before the journal is
read until after the witness is replaced.

**Theorem.** Of all copies of a ledger that share a witness, at most one draw of each release id is ever given out;
where a release is drawn in parts, at most one draw of each part, and each follows from those very ones before it.

*Proof.* The witness only grows: it is replaced under its lock, by what a ledger knows that knows all of it. A ledger
knows one digest for each part of each id, its own or an adopted one, so the witness never holds two for one part that
was given out under it. What is given out is in the witness, by (2). A later part is drawn by a ledger that is not
behind, so the stages before it are those in the witness. ∎

**Crashes.** Before the journal commits, nothing has happened. After it, and before the witness is replaced, the draw is
in the journal only. The same ledger finds it there and goes on. If a copy commits first, the copy's draw counts, and
the other is behind and never given out. After the witness is replaced, the same command gives the bytes out.

A copy on another machine, or under another state directory, cannot be seen. Nothing here is a key or a seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from dpdist.errors import DataError
from dpdist.ledger import datasets
from dpdist.ledger.entries import Caps, CommittedRelease
from dpdist.ledger.state import View, draw_of
from dpdist.ledger.state_folder import StateFile, state_home
from dpdist.naming import step

FORMAT = "dpdist-witness/1"
STAGES = {2: "dpdist-witness/2", 3: "dpdist-witness/3"}
"""Formats of one that has seen a stage, by the draws of its release: a version that would forget it refuses them."""


def _lost() -> str:
    return f"If it is lost, remove it and see what {step('ledger adopt')} says."


class Testimony(Struct, frozen=True, dict=True):
    """What a witness has seen of a ledger, as it is stored.

    Attributes
    ----------
    head
        Digest of the journal's last entry when it was seen.
    releases
        Every release that was committed, or of which a stage was, with its charge.
    periods
        The closed periods with their digests; None where rows do not come in periods.
    capped
        The caps that were fixed before the first release; None where none were.
    exhausted
        Whether the whole budget was charged to a copy, because an earlier witness was lost.
    """

    head: str
    releases: tuple[CommittedRelease, ...]
    periods: dict[str, str] | None
    capped: Caps | None
    exhausted: bool = False

    @classmethod
    def of(cls, view: View) -> Testimony:
        """Return what a ledger has to tell."""
        releases = tuple(record.testimony for record in view.records.values() if record.latest is not None)
        periods = None if view.periods is None else dict(view.periods)
        return cls(view.head, releases, periods, view.capped, view.exhausted)

    @cached_property
    def draws(self) -> frozenset[tuple[str, str]]:
        """What tells each draw from all others."""
        return frozenset(draw for release in self.releases for draw in _draws(release))

    def unknown_to(self, view: View) -> list[CommittedRelease]:
        """Return the releases that a ledger does not know of, in the order of commitment."""
        known = view.draws
        if self.draws <= known:
            return []
        return [release for release in self.releases if not _draws(release) <= known]

    def exhausts(self, view: View) -> bool:
        """Say whether the whole budget was charged elsewhere, and not to this ledger yet."""
        return self.exhausted and not view.exhausted

    def tells(self, view: View) -> bool:
        """Say whether every release that the ledger committed was seen, and that it is exhausted if it is."""
        return view.draws <= self.draws and (self.exhausted or not view.exhausted)


def _draws(release: CommittedRelease) -> set[tuple[str, str]]:
    return {draw_of(release.id, digest) for digest in release.drawn}


def _format(testimony: Testimony) -> str:
    return STAGES.get(max((release.draws for release in testimony.releases), default=1), FORMAT)


class Held(Protocol):
    """The witness of one ledger, locked."""

    def read(self) -> Testimony | None:
        """Return what was seen last, or None where there is nothing."""
        ...

    def write(self, content: Testimony, /) -> None:
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

    def charged(self, dataset_id: str) -> datasets.Seen:
        """Return which ledger is charged for a data set, without a lock; nothing is created."""
        ...

    def charge(self, dataset_id: str, ledger_id: str, place: str) -> None:
        """Let a ledger be the one that is charged for a data set, or raise RefusedError if another one is."""
        ...


@lru_cache(maxsize=1)
def _file_at(path: Path) -> StateFile[Testimony]:
    """Return the file; what was read of it last need not be decoded again, as a night opens its ledger many times."""
    return StateFile(path, "witness", FORMAT, Testimony, _lost(), later=(tuple(STAGES.values()), _format))


class FolderWitness:
    """One private file for each ledger and one for each data set, under :func:`state_home`."""

    def _file(self, ledger_id: str) -> StateFile[Testimony]:
        if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
            raise DataError("The ledger has no proper identity: it is damaged. Restore it from a copy.")
        return _file_at(state_home() / "witness" / f"{ledger_id}.json")

    def place(self, ledger_id: str) -> str:
        """Return the file."""
        return str(self._file(ledger_id).path)

    def read(self, ledger_id: str) -> Testimony | None:
        """Return what was seen last of a ledger, without a lock; nothing is created."""
        return self._file(ledger_id).read()

    @contextmanager
    def held(self, ledger_id: str) -> Iterator[StateFile[Testimony]]:
        """Lock the witness of a ledger against every other process."""
        file = self._file(ledger_id)
        with file.locked():
            yield file

    def charged(self, dataset_id: str) -> datasets.Seen:
        """Return what was seen of a data set, without a lock; nothing is created."""
        return datasets.seen(dataset_id)

    def charge(self, dataset_id: str, ledger_id: str, place: str) -> None:
        """Let a ledger be the one that is charged for a data set, unless another one is."""
        datasets.charge(dataset_id, ledger_id, place)
