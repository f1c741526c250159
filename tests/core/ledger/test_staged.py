"""Releases in several draws under one id, and their formats.

Two draws, deaths and copies are played in ``tests/whole/test_state_space.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ledgers import DATASET, DiedError, copy_of, dies, losses, pure, reserve

from dpdist.core.errors import DataError, DpdistError, RefusedError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.journal import ORIGIN, Draws
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Part, State
from dpdist.core.ledger.state_folder import StateFile

pytestmark = pytest.mark.usefixtures("state")


def reserved(ledger: Ledger, release_id: str = "a", draws: Draws = 2, **more: Any) -> State:
    return ledger.reserve(
        release_id, dataset_id=DATASET, parameters={"mechanism": "none"}, guarantee=pure(), draws=draws, **more
    )


def drawn(ledger: Ledger, part: Part, content: bytes, release_id: str = "a") -> bytes:
    fence = ledger.begin(release_id, part)
    if fence is not None:
        assert ledger.commit(release_id, fence, [content], part)
    with ledger.opened(release_id, part) as file:
        return file.read()


def dies_in_commit(ledger: Ledger, part: Part = Part.RELEASE) -> None:
    """Draw the part after a stage, and die before the witness records it."""
    fence = ledger.begin("a", part)
    assert fence is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            ledger.commit("a", fence, [part.encode()], part)


def standing(ledger: Ledger, release_id: str = "a") -> tuple[State, int]:
    record = ledger.record(release_id)
    assert record is not None
    return record.state, len(losses(ledger))


def test_each_draw_comes_once_and_after_the_witness_has_seen_the_one_before_it(ledger: Ledger) -> None:
    reserved(ledger, draws=3)
    for part, later in ((Part.STAGE, Part.SECOND), (Part.SECOND, Part.RELEASE)):
        fence = ledger.begin("a", part)
        assert fence is not None
        assert not ledger.commit("a", fence, [b"too early"], later)
        dies_in_commit(ledger, part)
        assert ledger.begin("a", part) is None
        assert not ledger.commit("a", fence + 1, [b"again"], part)
        with pytest.raises(DpdistError, match="cannot be drawn now"):
            ledger.begin("a", later)
        assert not ledger.abort("a")
        assert drawn(ledger, part, b"never drawn") == part.encode()
    assert drawn(ledger, Part.RELEASE, b"release") == b"release"
    ledger.published("a")
    assert standing(ledger) == (State.PUBLISHED, 1)
    assert [drawn(ledger, part, b"never drawn") for part in Part] == [part.encode() for part in Part]
    ledger.verify()


def test_a_copy_adopts_the_draws_that_were_given_out(ledger: Ledger, place: LedgerAddress) -> None:
    reserved(ledger, draws=3)
    twin = Ledger(copy_of(place))
    for part in (Part.STAGE, Part.SECOND, Part.RELEASE):
        drawn(ledger, part, part.encode())
        assert twin.adopt() == ["a"]
        assert standing(twin) == (State.ADOPTED, 1)
        assert reserved(twin, draws=3) is State.ADOPTED
    for part in Part:
        with pytest.raises(RefusedError, match="another copy"):
            drawn(twin, part, b"ours")
    twin.verify()


def test_adopting_another_release_refunds_an_unfinished_one_but_not_its_stage(
    ledger: Ledger, place: LedgerAddress
) -> None:
    reserved(ledger)
    drawn(ledger, Part.STAGE, b"stage")
    twin = Ledger(copy_of(place))
    dies_in_commit(ledger)
    reserve(twin, "b")
    drawn(twin, Part.RELEASE, b"other", "b")
    assert ledger.adopt() == ["b"]
    assert standing(ledger) == (State.STAGED, 2)
    assert drawn(ledger, Part.STAGE, b"never drawn") == b"stage"
    assert drawn(ledger, Part.RELEASE, b"a new draw") == b"a new draw"


def test_two_stages_that_two_machines_gave_out_are_both_charged(
    folder_ledger: Ledger, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved(folder_ledger)
    twin = Ledger(copy_of(folder))
    assert drawn(folder_ledger, Part.STAGE, b"ours") == b"ours"
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "elsewhere"))  # a machine with its own witness
    assert drawn(twin, Part.STAGE, b"theirs") == b"theirs"
    with pytest.raises(RefusedError, match="behind its witness"):
        drawn(folder_ledger, Part.RELEASE, b"never drawn")
    folder_ledger.adopt()
    assert standing(folder_ledger) == (State.ADOPTED, 2)
    folder_ledger.verify()
    twin.adopt()
    assert standing(twin) == (State.STAGED, 2)
    assert drawn(twin, Part.RELEASE, b"release") == b"release"


def test_a_journal_that_begins_twice_is_refused(folder_ledger: Ledger) -> None:
    with folder_ledger._locked() as (view, transaction):
        first = transaction.read(0, ORIGIN)[0][0]
        transaction.append({**first, "epsilon_micro": 9_000_000}, view.after, view.head)
    with pytest.raises(DataError, match="two first entries"):
        folder_ledger.verify()
