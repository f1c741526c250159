"""Releases in several draws under one id, and their formats.

Two draws, deaths and copies are played in ``tests/whole/test_state_space.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.folders import STORED
from support.ledgers import DATASET, DiedError, copy_of, dies, losses, pure, reserve

from dpdist.errors import DataError, DpdistError, RefusedError
from dpdist.ledger import state, witness
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Draws, entry_of
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.ledger.state_folder import StateFile, state_home
from dpdist.privacy.guarantee import PrivacyLoss

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


def test_an_older_version_refuses_a_ledger_and_its_witness_from_the_first_release_in_several_draws_on(
    ledger: Ledger, folder: Path
) -> None:
    def of_an_older_version(newest: int) -> int:
        formats = {name: periodic for name, periodic in state._FORMATS.items() if int(name[-1]) <= newest}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "_FORMATS", formats)
            return len(Ledger(folder).records)

    path = Path(witness.FolderWitness().path(ledger.ledger_id))
    older: StateFile[witness.WitnessRecord] = StateFile(path, "witness", "dpdist-witness/1", witness.WitnessRecord, "")
    reserve(ledger, "b")
    drawn(ledger, Part.RELEASE, b"release", "b")
    assert of_an_older_version(2) == 1
    assert older.read() is not None
    several: tuple[Draws, ...] = (2, 3)
    for draws in several:
        reserved(ledger, f"r{draws}", draws=draws)
        with pytest.raises(DataError, match=f"This ledger has format 'dpdist-ledger/{draws + 1}'; this version reads"):
            of_an_older_version(draws)
        assert of_an_older_version(draws + 1) == draws
        drawn(ledger, Part.STAGE, b"stage", f"r{draws}")
        with pytest.raises(DataError, match=f"has format 'dpdist-witness/{draws}'"):
            older.read()
    assert Ledger(folder).budget == PrivacyLoss.parse("3")


def test_a_journal_that_begins_twice_and_not_alike_is_refused(folder_ledger: Ledger) -> None:
    with folder_ledger._locked() as (view, transaction):
        larger = {"epsilon_micro": 9_000_000, "format": "dpdist-ledger/3"}
        transaction.append({**entry_of(view.created), **larger}, view.after, view.head)
    with pytest.raises(DataError, match="two different first entries"):
        folder_ledger.verify()


def test_a_stored_ledger_with_a_stage_is_finished_from_that_very_stage(tmp_path: Path) -> None:
    # written by the first version with stages; never rewritten
    path = tmp_path / "staged"
    shutil.copytree(STORED / "ledgers-3" / "staged", path)
    shutil.copytree(STORED / "ledgers-3" / "witness", state_home() / "witness")
    ledger = Ledger(path)
    assert standing(ledger) == (State.STAGED, 1)
    assert reserved(ledger) is State.STAGED
    assert drawn(ledger, Part.STAGE, b"never drawn") == b"the stage"
    assert drawn(ledger, Part.RELEASE, b"release") == b"release"
    ledger.published("a")
    ledger.verify()
