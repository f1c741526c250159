"""The state machine of a release, exhaustively: every interleaving of small sets of processes that die and are copied.

Larger sets are searched by ``benchmarks/state_space.py``; its results are in ``benchmarks/results/state_space.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from faults.state_machine import Command
from faults.state_space import Space, ViolationError

from dpdist.core.errors import DataError
from dpdist.core.ledger import witness
from dpdist.core.ledger.journal import Aborted
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Part, Record, State, View
from dpdist.core.privacy.parallel import PeriodFilters

X, Y = Command("x"), Command("y")
COPY_OF_X = Command("x", 1)
STAGED = Command("x", draws=2)
THREE = Command("x", draws=3)
COPY_OF_STAGED, FAILED, HASTY = STAGED._replace(copy=1), STAGED._replace(fails=True), STAGED._replace(hasty=True)
SPACES = {
    "one release run twice at once, a death": (Space([X, X], deaths=1), 7_000),
    "two releases for one budget, a death, a restored backup": (Space([X, Y], deaths=1, restored=True), 5_000),
    "a copied ledger, a restored backup": (Space([X, COPY_OF_X], copied=True, restored=True), 10_000),
    "a copied ledger, a death": (Space([X, COPY_OF_X], deaths=1, copied=True), 5_000),
    "one in two draws on a copied ledger": (Space([STAGED, COPY_OF_STAGED], copied=True), 4_000),
    "one in two draws, and who asks for a refund": (Space([STAGED, FAILED]), 300),
    "one in three draws, a death": (Space([THREE], deaths=1), 50),
    "one in three draws, by who would draw it without its stages": (Space([THREE._replace(hasty=True)], deaths=1), 20),
}


@pytest.mark.parametrize(("space", "least"), SPACES.values(), ids=SPACES.keys())
def test_no_interleaving_breaks_an_invariant(space: Space, least: int) -> None:
    space.explore()
    assert space.complete
    assert space.states > least
    assert {"done"} <= space.outcomes or all(command.hasty for command in space.commands)
    assert space.outcomes <= {"done", "adopted", "over budget", "behind", "gave up", "failed"}


def _knows(patch: pytest.MonkeyPatch, change: Callable[[Record, dict[str, Any]], Record]) -> None:
    """Let the ledger see other records than there are, by the variables of who asks."""
    known = Ledger._existing

    def knows(self: Ledger, view: View, release_id: str) -> Record:
        return change(known(self, view, release_id), sys._getframe(1).f_locals)

    patch.setattr(Ledger, "_existing", knows)


def _without_fencing(patch: pytest.MonkeyPatch) -> None:
    """Let every attempt commit, whatever was begun or committed since."""

    def change(record: Record, at: dict[str, Any]) -> Record:
        return replace(record, state=State.RESERVED, fence=at["fence"], drawn=()) if "fence" in at else record

    _knows(patch, change)


def _release_before_its_stage(patch: pytest.MonkeyPatch) -> None:
    def change(record: Record, at: dict[str, Any]) -> Record:
        return replace(record, draws=1) if at.get("part") is Part.RELEASE and not record.drawn else record

    _knows(patch, change)


def _stage_refunded(patch: pytest.MonkeyPatch) -> None:
    def aborts(self: Ledger, release_id: str) -> bool:
        with self._locked() as (view, transaction):
            self._append(view, transaction, Aborted(release_id))
        return True

    patch.setattr(Ledger, "abort", aborts)


def _without_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_require_current", lambda *_: None)


def _witness_never_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(witness.WitnessRecord, "covers", lambda *_: True)


def _without_caps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeriodFilters, "book", lambda *_: True)


TWINS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Space, str]] = {
    "fencing": (_without_fencing, Space([X, X]), "given out|more is charged"),
    "the witness": (_without_witness, Space([X, COPY_OF_X], copied=True), "before the witness"),
    "telling the witness": (_witness_never_told, Space([X]), "before the witness"),
    "the cap": (_without_caps, Space([X, Y]), "more is charged"),
    "charging the stage for good": (_stage_refunded, Space([STAGED, FAILED]), "the charge of x is lost"),
    "the stage first": (_release_before_its_stage, Space([HASTY]), "commits the wrong number of draws of x"),
}


@pytest.mark.parametrize(("remove", "space", "words"), TWINS.values(), ids=TWINS.keys())
def test_the_search_finds_what_goes_wrong_without(
    remove: Callable[[pytest.MonkeyPatch], None], space: Space, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch)
    with pytest.raises((ViolationError, DataError), match=words):  # of the journal, or of the search
        space.explore()
