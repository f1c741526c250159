"""The state machine of a release, exhaustively: every interleaving of small sets of processes that die and are copied.

Larger sets are searched by ``workflows/state_space.py``; its results are in ``workflows/results/state_space.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpdist.ledger import witness
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Record, State, View
from dpdist.privacy.parallel import PeriodFilters
from faults.state_machine import Command
from faults.state_space import Space, ViolationError

X, Y = Command("x"), Command("y")
COPY_OF_X = Command("x", 1)
SPACES = {
    "one release run twice at once, two deaths": (Space([X, X], deaths=2), 20_000),
    "two releases for one budget, a death, a restored backup": (Space([X, Y], deaths=1, restored=True), 5_000),
    "a copied ledger, a death, a restored backup": (
        Space([X, COPY_OF_X], deaths=1, copied=True, restored=True),
        90_000,
    ),
    "three processes on a copied ledger, a death": (Space([X, Y, COPY_OF_X], deaths=1, copied=True), 50_000),
}


@pytest.mark.parametrize(("space", "least"), SPACES.values(), ids=SPACES.keys())
def test_no_interleaving_breaks_an_invariant(space: Space, least: int) -> None:
    space.explore()
    assert space.complete
    assert space.states > least
    assert {"done"} <= space.outcomes <= {"done", "adopted", "over budget", "behind", "gave up"}


# --- twins that must fail ---------------------------------------------------------------------------------------------


def _without_fencing(patch: pytest.MonkeyPatch) -> None:
    """Let every attempt commit, whatever was begun or committed since."""
    fences: list[int] = []
    commit, known = Ledger.commit, Ledger._known

    def commits(self: Ledger, release_id: str, fence: int, content: Any) -> bool:
        fences[:] = [fence]
        try:
            return commit(self, release_id, fence, content)
        finally:
            fences.clear()

    def knows(self: Ledger, view: View, release_id: str) -> Record:
        record = known(self, view, release_id)
        return replace(record, state=State.RESERVED, fence=fences[0]) if fences else record

    patch.setattr(Ledger, "commit", commits)
    patch.setattr(Ledger, "_known", knows)


def _without_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_require_current", lambda *_: None)


def _witness_never_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(witness.Testimony, "tells", lambda *_: True)


def _without_caps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeriodFilters, "book", lambda *_: True)


TWINS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Space, str]] = {
    "fencing": (_without_fencing, Space([X, X]), "given out"),
    "the witness": (_without_witness, Space([X, COPY_OF_X], copied=True), "before the witness"),
    "telling the witness": (_witness_never_told, Space([X]), "before the witness"),
    "the cap": (_without_caps, Space([X, Y]), "more is charged"),
}


@pytest.mark.parametrize(("remove", "space", "words"), TWINS.values(), ids=TWINS.keys())
def test_the_search_finds_what_goes_wrong_without(
    remove: Callable[[pytest.MonkeyPatch], None], space: Space, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch)
    with pytest.raises(ViolationError, match=words):
        space.explore()
