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

A ledger asks its witness before each step, and tells it afterwards (:class:`Witnessed`): nothing is charged, drawn or
committed by a ledger that is behind its witness, and nothing is given out that the witness has not seen.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path

from msgspec import Struct

from dpdist._util.text import counted, listed
from dpdist.errors import DataError, NoWitnessWarning, RefusedError
from dpdist.ledger import state_folder
from dpdist.ledger.balance import FoldedLedger, restated
from dpdist.ledger.journal import Adopted, Caps, CommittedRelease, CommitWitnessed, Storage, Transaction
from dpdist.ledger.state import State, View, draws_of
from dpdist.ledger.state_folder import VARIABLE, StateFile, state_home
from dpdist.naming import step

FORMAT = "dpdist-witness/1"
STAGES = {2: "dpdist-witness/2", 3: "dpdist-witness/3"}
"""Formats of one that has seen a stage, by the draws of its release: a version that would forget it refuses them."""


class Testimony(Struct, frozen=True, dict=True):
    """What a witness has seen of a ledger, as it is stored."""

    head: str  # digest of the journal's last entry when it was seen
    releases: tuple[CommittedRelease, ...]  # every one that was committed, or of which a stage was
    periods: dict[str, str] | None  # the closed periods with their digests; None where rows do not come in periods
    capped: Caps | None  # the caps that were fixed before the first release
    exhausted: bool = False  # the whole budget was charged to a copy, because an earlier witness was lost

    @classmethod
    def of(cls, view: View) -> Testimony:
        """Return what a ledger has to tell."""
        releases = tuple(record.testimony for record in view.records.values() if record.latest is not None)
        periods = None if view.periods is None else dict(view.periods)
        return cls(view.head, releases, periods, view.capped, view.exhausted)

    @cached_property
    def draws(self) -> frozenset[tuple[str, str]]:
        """What tells each draw from all others."""
        return frozenset().union(*map(_draws, self.releases))

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


def _draws(release: CommittedRelease) -> frozenset[tuple[str, str]]:
    return draws_of(release.id, release.drawn)


def _format(testimony: Testimony) -> str:
    return STAGES.get(max((release.draws for release in testimony.releases), default=1), FORMAT)


@lru_cache(maxsize=1)
def _file_at(path: Path) -> StateFile[Testimony]:
    """Return the file; what was read of it last need not be decoded again, as a night opens its ledger many times."""
    lost = f"If it is lost, remove it and see what {step('ledger adopt')} says."
    return StateFile(path, "witness", FORMAT, Testimony, lost, later=(tuple(STAGES.values()), _format))


class FolderWitness:
    """One private file for each ledger and one for each data set, under :func:`state_home`."""

    def _file(self, ledger_id: str) -> StateFile[Testimony]:
        if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
            raise DataError("The ledger has no proper identity: it is damaged. Restore it from a copy.")
        return _file_at(state_home() / "witness" / f"{ledger_id}.json")

    def place(self, ledger_id: str) -> str:
        """Return where the witness of a ledger is kept, for messages."""
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

    def charged(self, dataset_id: str) -> state_folder.Seen:
        """Return what was seen of a data set, without a lock; nothing is created."""
        return state_folder.seen(dataset_id)

    def charge(self, dataset_id: str, ledger_id: str, place: str) -> None:
        """Let a ledger be the one that is charged for a data set, unless another one is."""
        state_folder.charge(dataset_id, ledger_id, place)


class Witnessed(FoldedLedger):
    """A ledger and its witness."""

    def __init__(self, storage: Storage, witness: FolderWitness) -> None:
        super().__init__(storage)
        self._witness = witness

    @contextmanager
    def _current(self, release_id: str | None = None) -> Iterator[tuple[View, Transaction]]:
        """Hold the journal, and before it the witness, which must know nothing that the journal does not know.

        The witness is not asked about a release whose bytes were given out: they can only be given out again.
        """
        record = None if release_id is None else self.record(release_id)
        if record is not None and record.given_out:
            with self._locked() as found:
                yield found
            return
        ledger_id = self.ledger_id
        self._witness.charge(self._view.dataset_id, ledger_id, str(self._storage))
        with self._witness.held(ledger_id) as witness, self._locked() as (view, transaction):
            self._require_current(witness, view)
            self._keep(view)
            yield view, transaction

    def _require_current(self, witness: StateFile[Testimony], view: View) -> None:
        """Refuse a ledger that is behind its witness; else let the witness see what is new to it."""
        seen = witness.read()
        self._require_knows(seen, view)
        if seen is None and any(record.drawn for record in view.records.values()):
            warnings.warn(
                f"The ledger {self._storage} never had a witness, so a copy of it that was used before now cannot be "
                f"seen. From now on {self._witness.place(view.ledger_id)} is its witness: keep it.",
                NoWitnessWarning,
                stacklevel=2,
            )
        if seen is None or not seen.tells(view):
            witness.write(Testimony.of(view))

    def _require_knows(self, seen: Testimony | None, view: View) -> None:
        """Refuse a ledger that does not know all that its witness has seen, or whose witness is lost."""
        place = self._witness.place(view.ledger_id)
        if seen is None:
            if view.witnessed:
                raise RefusedError(
                    f"The witness of the ledger {self._storage} is missing: there is none at {place}. Without it "
                    "nobody can tell what another copy of the ledger has released. Bring the file back: mount the "
                    f"volume with it, and name its folder in {VARIABLE}. If it is lost, "
                    f"{step('ledger adopt', self._storage)} goes on without it, and charges the whole budget."
                )
            return
        if seen.exhausts(view):
            raise RefusedError(
                f"The ledger {self._storage} is behind its witness {place}. An earlier witness was lost, and another "
                "copy of this ledger was therefore charged the whole budget. Nothing was drawn. Charge it to this copy "
                f"with: {step('ledger adopt', self._storage)}"
            )
        missing = seen.unknown_to(view)
        if missing:
            raise RefusedError(
                f"The ledger {self._storage} is behind its witness {place}. It is a copy, or was restored from a "
                f"backup, and lacks {counted(len(missing), 'release')} committed elsewhere: "
                f"{listed(release.id for release in missing)}. Nothing was drawn. Use the ledger that has them, or "
                f"charge them to this one with: {step('ledger adopt', self._storage)}"
            )

    def require_current(self) -> None:
        """Refuse where the next charge would be refused whatever it is for; nothing is written, and nothing charged.

        Raises
        ------
        RefusedError
            If the ledger is behind its witness, the witness is lost, or another ledger is charged for the data set.
        DataError
            If the witness is damaged.
        """
        seen, view = self._looked_at()
        self._witness.charged(view.dataset_id).require_charged_to(view.ledger_id, str(self._storage))
        self._require_knows(seen, view)

    def _looked_at(self) -> tuple[Testimony | None, View]:
        """Return what the witness has seen, and how the ledger stands, without a lock on both.

        The witness is read first: what it has seen was in the journal before, so a commit in between is no fault.
        """
        seen, view = self._witness.read(self.ledger_id), self._snapshot()
        if seen is None and view.witnessed:  # the first commit may have come in between
            seen, view = self._witness.read(self.ledger_id), self._snapshot()
        return seen, view

    def _tell(self, witness: StateFile[Testimony], release_id: str) -> None:
        """Let the witness see what was committed, and note in the journal that it did."""
        with self._locked() as (view, transaction):
            self._require_current(witness, view)
            record = self._known(view, release_id)
            if record.state in {State.STAGED, State.COMMITTED} and not record.witnessed:
                self._append(view, transaction, CommitWitnessed(release_id))

    def missing(self) -> list[str]:
        """Return the ids of releases that the witness has seen and this ledger does not know of; none: it is current.

        Raises
        ------
        DataError
            If the witness is damaged.
        """
        seen, view = self._looked_at()
        return [] if seen is None else [release.id for release in seen.unknown_to(view)]

    @property
    def exhausted_elsewhere(self) -> bool:
        """Whether the whole budget was charged to another copy, because a witness was lost, and not to this one."""
        seen, view = self._looked_at()
        return seen is not None and seen.exhausts(view)

    def adopt(self) -> list[str]:
        """Charge what was committed to other copies of this ledger, so that it may be used again; idempotent.

        What was under way here and never given out is refunded: another copy may have drawn it. A stage that was given
        out stays charged, with the release that follows from it. If the witness is lost, nobody can tell what was
        committed elsewhere, so the whole budget is charged to this copy. The new witness says so, and every other copy
        is charged as well before it is used again.

        Returns
        -------
        list of str
            The ids that were adopted: they are charged, and never drawn here.
        """
        with self._witness.held(self.ledger_id) as witness:
            with self._locked() as (view, transaction):
                seen = witness.read()
                lost = seen is None and view.witnessed
                heard = seen or Testimony("", (), None, None, exhausted=lost)
                missing = heard.unknown_to(view)
                if missing or heard.exhausts(view):
                    witnessed = {digest for release in heard.releases for digest in release.drawn}
                    void = [
                        record.release_id
                        for record in view.records.values()
                        if record.state in {State.RESERVED, State.STAGED, State.COMMITTED}
                        and not record.witnessed
                        and record.latest not in witnessed
                    ]
                    for release_id in void:
                        transaction.sweep(release_id, keep=view.records[release_id].voided().blobs)
                    adopted = Adopted(
                        head=None if heard.exhausted else heard.head,  # None: of nothing certain
                        void=tuple(void),
                        releases=tuple(missing),
                        periods=heard.periods or {},
                        capped=heard.capped,
                    )
                    draws = max((release.draws for release in missing), default=1)
                    self._append(view, transaction, *restated(view, draws), adopted)
            with self._locked() as (view, _):
                # looked at anew: should the books have been exchanged meanwhile, the witness must forget nothing
                if lost and view.exhausted:
                    witness.write(Testimony.of(view))
                else:
                    self._require_current(witness, view)
        return [release.id for release in missing]
