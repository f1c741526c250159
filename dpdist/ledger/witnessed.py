"""What a ledger asks its witness before each step, and what it tells it afterwards.

The rule, the theorem and its proof stand in :mod:`dpdist.ledger.witness`. Here is where they are kept: nothing is
charged, drawn or committed by a ledger that is behind its witness, and nothing is given out that the witness has not
seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dpdist._util.text import counted, listed
from dpdist.errors import NoWitnessWarning, RefusedError
from dpdist.ledger.charging import restated
from dpdist.ledger.entries import Adopted, CommitWitnessed
from dpdist.ledger.journal import Storage, Transaction
from dpdist.ledger.state import State, View
from dpdist.ledger.state_folder import VARIABLE
from dpdist.ledger.status import FoldedLedger
from dpdist.ledger.witness import Held, Testimony, Witness
from dpdist.naming import step


class Witnessed(FoldedLedger):
    """A ledger and its witness."""

    def __init__(self, storage: Storage, witness: Witness) -> None:
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

    def _require_current(self, witness: Held, view: View) -> None:
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

    def _tell(self, witness: Held, release_id: str) -> None:
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
        out stays charged, with the release that follows from it. If the witness is
        lost, nobody can tell what was committed elsewhere. Then the whole budget is charged to this copy. The new
        witness says so, and every other copy is charged as well before it is used again.

        Returns
        -------
        list of str
            The ids that were adopted: they are charged, and never drawn here.
        """
        with self._witness.held(self.ledger_id) as witness:
            with self._locked() as (view, transaction):
                seen = witness.read()
                lost = seen is None and view.witnessed
                missing = [] if seen is None else seen.unknown_to(view)
                exhausts = lost and not view.exhausted if seen is None else seen.exhausts(view)
                if missing or exhausts:
                    witnessed = set() if seen is None else {one for release in seen.releases for one in release.drawn}
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
                        head=None if seen is None or seen.exhausted else seen.head,  # None: of nothing certain
                        void=tuple(void),
                        releases=tuple(missing),
                        periods={} if seen is None else seen.periods or {},
                        capped=None if seen is None else seen.capped,
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
