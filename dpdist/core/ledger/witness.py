"""The witness: a record of a ledger's releases outside the ledger, so that no copy can draw a second time.

A copy or a restored backup of a ledger is consistent by itself, so no rule inside it can detect that another copy was
used. So each ledger identity has one private file in the state folder of the user. It records all committed releases:
id, parameters, charge, periods, and the digests of the committed draws.

**Rules.** (1) A ledger that lacks a release in its witness may not charge, draw or commit. (2) Committed bytes are
given out only after the witness has recorded them. The order is: the journal commits, the witness is replaced, the
journal notes ``witnessed``, the bytes are given out. The witness is locked from before the journal is read until after
the witness is replaced.

**Theorem.** Among all copies of a ledger that share a witness, at most one draw of each release id is ever given out.
If a release has several parts, at most one draw of each part is given out, and it follows from the given-out draws of
the earlier parts.

*Proof.* The witness only grows: it is replaced under its lock, by the records of a ledger that contains the old one. A
ledger has one digest for each part of each id, its own or an adopted one, so the witness never has two digests for a
part that was given out under it. Everything given out is in the witness, by (2). A later part is drawn by a ledger that
is not behind, so the stages before it are those in the witness. ∎

**Crashes.** Before the journal commits, nothing has happened. Between the commit and the replacement of the witness,
the draw is only in the journal. The same ledger finds it there and continues. If a copy commits first, its draw counts;
the other ledger is behind, and its draw is never given out. After the witness is replaced, the same command gives the
bytes out.

Copies on another machine, or under another state folder, cannot be detected. The witness contains no key or seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote

from msgspec import Struct

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.balance import FoldedLedger
from dpdist.core.ledger.journal import Adopted, Caps, CommittedRelease, CommitWitnessed, Storage, Transaction
from dpdist.core.ledger.memory import MemoryWitness
from dpdist.core.ledger.state import State, View, draw_ids
from dpdist.core.ledger.state_folder import VARIABLE, StateFile, state_home
from dpdist.core.naming import step
from dpdist.core.text import counted, listed

FORMAT = "dpdist-witness/1"


class WitnessRecord(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The stored record of a ledger."""

    head: str  # digest of the last entry of the journal when it was written
    releases: tuple[CommittedRelease, ...]  # all releases with a committed draw
    periods: dict[str, str] | None  # the closed periods with their digests; None without periods
    capped: Caps | None  # the caps that were fixed before the first release
    exhausted: bool = False  # the whole budget was charged to a copy, because a witness was lost

    @classmethod
    def of(cls, view: View) -> WitnessRecord:
        """Return the record of a ledger."""
        releases = tuple(record.witness_record for record in view.records.values() if record.latest is not None)
        periods = None if view.periods is None else dict(view.periods)
        return cls(view.head, releases, periods, view.capped, view.exhausted)

    @cached_property
    def draw_ids(self) -> frozenset[tuple[str, str]]:
        """Identities of the committed draws."""
        return frozenset().union(*map(_draw_ids, self.releases))

    def unknown_to(self, view: View) -> list[CommittedRelease]:
        """Return the releases that a ledger lacks, in the order of commitment."""
        ids = view.draw_ids
        if self.draw_ids <= ids:
            return []
        return [release for release in self.releases if not _draw_ids(release) <= ids]

    def requires_exhaustion(self, view: View) -> bool:
        """Return whether the whole budget must be charged to a ledger, as it was to another copy."""
        return self.exhausted and not view.exhausted

    def covers(self, view: View) -> bool:
        """Return whether it records all committed draws of a ledger, and its exhaustion."""
        return view.draw_ids <= self.draw_ids and (self.exhausted or not view.exhausted)


def _draw_ids(release: CommittedRelease) -> frozenset[tuple[str, str]]:
    return draw_ids(release.id, release.drawn)


@lru_cache(maxsize=1)
def _file_at(path: Path) -> StateFile[WitnessRecord]:
    """Return the file; cached, because jobs open a ledger many times."""
    lost = f"If it is lost, remove it, then run {step('ledger adopt')}."
    return StateFile(path, "witness", FORMAT, WitnessRecord, lost)


class FolderWitness:
    """One private file per ledger and one per data set, under :func:`state_home`."""

    def _file(self, ledger_id: str) -> StateFile[WitnessRecord]:
        if not re.fullmatch(r"[0-9a-f]{32}", ledger_id):
            raise DataError("The ledger has no valid identity: it is damaged. Restore it from a copy.")
        return _file_at(state_home() / "witness" / f"{ledger_id}.json")

    def path(self, ledger_id: str) -> str:
        """Return the path of the witness of a ledger, for messages."""
        return str(self._file(ledger_id).path)

    def elsewhere(self, ledger_id: str) -> Path | None:
        """Return another usual state folder with the witness of a ledger, if any."""
        return state_folder.other_with(Path("witness", f"{ledger_id}.json"))

    def read(self, ledger_id: str) -> WitnessRecord | None:
        """Return the record of a ledger, without a lock; no file is created."""
        return self._file(ledger_id).read()

    @contextmanager
    def locked(self, ledger_id: str) -> Iterator[StateFile[WitnessRecord]]:
        """Lock the witness of a ledger."""
        file = self._file(ledger_id)
        with file.locked():
            yield file

    def charge(self, dataset_id: str, ledger_id: str, location: str) -> None:
        """Record a ledger as the one that is charged for a data set; RefusedError if there is another."""
        state_folder.charge(dataset_id, ledger_id, location)


class Witnessed(FoldedLedger):
    """A ledger and its witness."""

    def __init__(self, storage: Storage, witness: FolderWitness | MemoryWitness) -> None:
        super().__init__(storage)
        self._witness = witness

    @contextmanager
    def _current(self, release_id: str | None = None) -> Iterator[tuple[View, Transaction]]:
        """Lock the witness, then the journal, which must not be behind; a given-out release needs no witness."""
        record = None if release_id is None else self.record(release_id)
        if record is not None and record.given_out:
            with self._locked() as locked:
                yield locked
            return
        ledger_id = self.ledger_id
        self._witness.charge(self._view.dataset_id, ledger_id, str(self._storage))
        with self._witness.locked(ledger_id) as witness, self._locked() as (view, transaction):
            self._require_current(witness, view)
            yield view, transaction

    def _require_current(self, witness: StateFile[WitnessRecord] | MemoryWitness, view: View) -> None:
        """Refuse a ledger that is behind its witness; otherwise update the witness."""
        recorded = witness.read()
        self._require_not_behind(recorded, view)
        if recorded is None or not recorded.covers(view):
            witness.write(WitnessRecord.of(view))

    def _require_not_behind(self, record: WitnessRecord | None, view: View) -> None:
        path = self._witness.path(view.ledger_id)
        if record is None:
            if not view.had_witness:
                return
            elsewhere = self._witness.elsewhere(view.ledger_id)
            if elsewhere is not None:
                raise RefusedError(
                    f"A witness of the ledger {self._storage} is in "
                    f"{elsewhere / 'witness' / f'{view.ledger_id}.json'}, perhaps the one of an earlier command; this "
                    f"one looked for {path}. Nothing was drawn. If it is a copy, or from a backup, restore the newest "
                    f"one; if that is lost, {step('ledger adopt', self._storage)} continues and charges the whole "
                    "budget. Otherwise move that file to where this command looked, or give all commands of this "
                    f"ledger its state folder: export {VARIABLE}={quote(str(elsewhere))}"
                )
            raise RefusedError(
                f"The witness of the ledger {self._storage} is missing: there is no file {path}. Without it, "
                "releases of other copies cannot be detected. Nothing was drawn. If an earlier command ran as another "
                f"user, or with another {VARIABLE}, set it to the state folder of that command; else restore the file, "
                f"or mount the volume that has it. If it is lost, continue with {step('ledger adopt', self._storage)}, "
                "which charges the whole budget."
            )
        if record.requires_exhaustion(view):
            raise RefusedError(
                f"The ledger {self._storage} is behind its witness {path}: another copy was charged the whole budget, "
                "because an earlier witness was lost. Nothing was drawn. Charge it to this copy with: "
                f"{step('ledger adopt', self._storage)}"
            )
        missing = record.unknown_to(view)
        if missing:
            raise RefusedError(
                f"The ledger {self._storage} is behind its witness {path}: it is a copy or a restored backup, and "
                f"lacks {counted(len(missing), 'release')} of another copy: "
                f"{listed(release.id for release in missing)}. Nothing was drawn. Use the ledger that has them, or "
                f"charge them to this one with: {step('ledger adopt', self._storage)}"
            )

    def require_current(self) -> None:
        """Refuse a ledger that refuses all charges: behind its witness, without it, or not the one of its data set."""
        record, view = self._witness_and_view()
        state_folder.seen(view.dataset_id).require_charged_to(view.ledger_id, str(self._storage))
        self._require_not_behind(record, view)

    def _witness_and_view(self) -> tuple[WitnessRecord | None, View]:
        """Return the record of the witness and the view without locks, in an order in which commits do no harm."""
        record, view = self._witness.read(self.ledger_id), self._snapshot()
        if record is None and view.had_witness:  # the first commit may have happened in between
            record, view = self._witness.read(self.ledger_id), self._snapshot()
        return record, view

    def _notify_witness(self, witness: StateFile[WitnessRecord] | MemoryWitness, release_id: str) -> None:
        """Record a commitment in the witness, then note that in the journal."""
        with self._locked() as (view, transaction):
            self._require_current(witness, view)
            record = self._existing(view, release_id)
            if record.state in {State.STAGED, State.COMMITTED} and not record.witnessed:
                self._append(view, transaction, CommitWitnessed(release_id))

    def missing(self) -> list[str]:
        """Return the ids of releases in the witness that this ledger lacks; empty if it is current."""
        record, view = self._witness_and_view()
        return [] if record is None else [release.id for release in record.unknown_to(view)]

    @property
    def exhausted_elsewhere(self) -> bool:
        """Whether only another copy was charged the whole budget, because a witness was lost."""
        record, view = self._witness_and_view()
        return record is not None and record.requires_exhaustion(view)

    def adopt(self) -> list[str]:
        """Charge the releases of other copies to this ledger, so that it can be used again; return their ids."""
        # Unfinished releases here are refunded, because another copy may have drawn them; a stage that was given out
        # stays charged, with its release. If the witness is lost, the releases of other copies are unknown, so the
        # whole budget is charged, which the new witness requires of all other copies too.
        with self._witness.locked(self.ledger_id) as witness:
            with self._locked() as (view, transaction):
                stored = witness.read()
                lost = stored is None and view.had_witness
                recorded = stored or WitnessRecord("", (), None, None, exhausted=lost)
                missing = recorded.unknown_to(view)
                if missing or recorded.requires_exhaustion(view):
                    witnessed = {digest for release in recorded.releases for digest in release.drawn}
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
                        head=None if recorded.exhausted else recorded.head,  # None: unknown releases
                        void=tuple(void),
                        releases=tuple(missing),
                        periods=recorded.periods or {},
                        capped=recorded.capped,
                    )
                    self._append(view, transaction, adopted)
            with self._locked() as (view, _):
                # checked again: if the ledger was replaced meanwhile, the witness must not lose releases
                if lost and view.exhausted:
                    witness.write(WitnessRecord.of(view))
                else:
                    self._require_current(witness, view)
        return [release.id for release in missing]
