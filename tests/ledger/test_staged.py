"""Releases in several draws under one id: a stage is drawn once, stays charged, and the release follows from it.

Two draws, deaths and copies are played in ``tests/whole/test_state_space.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.folders import STORED
from support.ledgers import DATASET, DiedError, blobs, copy_of, dies, losses, pure, reserve

from dpdist.errors import DataError, DpdistError, RefusedError
from dpdist.ledger import state, witness
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Draws, entry_of
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.ledger.state_folder import StateFile, state_home
from dpdist.privacy.guarantee import PrivacyLoss

pytestmark = pytest.mark.usefixtures("state")
PLACES = ("folder",)


def reserved(ledger: Ledger, release_id: str = "a", draws: Draws = 2, **more: Any) -> State:
    return ledger.reserve(
        release_id, dataset_id=DATASET, parameters={"mechanism": "none"}, guarantee=pure(), draws=draws, **more
    )


def drawn(ledger: Ledger, part: Part, content: bytes, release_id: str = "a") -> bytes:
    """Draw a part, unless it was drawn, and read what is committed of it."""
    fence = ledger.begin(release_id, part)
    if fence is not None:
        assert ledger.commit(release_id, fence, [content], part)
    with ledger.opened(release_id, part) as file:
        return file.read()


def dies_in_commit(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, part: Part = Part.RELEASE) -> None:
    """Draw what follows a stage, and die before the witness has seen it."""
    fence = ledger.begin("a", part)
    assert fence is not None
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            ledger.commit("a", fence, [b"never given out"], part)


def standing(ledger: Ledger, release_id: str = "a") -> tuple[State, int]:
    record = ledger.record(release_id)
    assert record is not None
    return record.state, len(losses(ledger))


def test_of_three_draws_each_is_drawn_once_and_after_the_one_before_it(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reserved(ledger, draws=3) is State.RESERVED
    first = ledger.begin("a", Part.STAGE)
    assert first is not None
    for later in (Part.SECOND, Part.RELEASE):
        with pytest.raises(DpdistError, match="not to be drawn now"):
            ledger.begin("a", later)
        assert not ledger.commit("a", first, [b"too early"], later)
    assert ledger.commit("a", first, [b"one"], Part.STAGE)
    second = ledger.begin("a", Part.SECOND)
    assert second is not None
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            ledger.commit("a", second, [b"two"], Part.SECOND)
    # it is committed, and nothing follows from it, nor is it drawn again, before the witness has seen it
    for part in (Part.STAGE, Part.SECOND):
        assert ledger.begin("a", part) is None
        assert not ledger.commit("a", second, [b"again"], part)
    with pytest.raises(DpdistError, match="not to be drawn now"):
        ledger.begin("a")
    assert not ledger.abort("a")
    assert drawn(Ledger(place), Part.STAGE, b"never drawn") == b"one"
    assert drawn(Ledger(place), Part.SECOND, b"never drawn") == b"two"
    assert drawn(ledger, Part.RELEASE, b"three") == b"three"
    ledger.published("a")
    assert standing(ledger) == (State.PUBLISHED, 1)
    assert [drawn(ledger, part, b"never drawn") for part in Part] == [b"one", b"two", b"three"]
    assert len(blobs(place)) == 3
    ledger.verify()


def test_a_copy_adopts_as_many_of_three_draws_as_were_given_out(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved(ledger, draws=3)
    twin = Ledger(copy_of(place))
    drawn(ledger, Part.STAGE, b"one")
    halfway = Ledger(copy_of(place, "halfway"))
    for part, content in ((Part.SECOND, b"two"), (Part.RELEASE, b"three")):
        assert twin.adopt() == ["a"]
        assert standing(twin) == (State.ADOPTED, 1)
        assert reserved(twin, draws=3) is State.ADOPTED
        dies_in_commit(halfway, monkeypatch, part)
        assert drawn(ledger, part, content) == content
        with pytest.raises(RefusedError, match="behind its witness"):
            drawn(halfway, part, b"never drawn")
        assert halfway.adopt() == ["a"]
        assert standing(halfway) == (State.ADOPTED, 1)
        halfway = Ledger(copy_of(place, f"after_{part.name.lower()}"))
    assert twin.adopt() == ["a"]
    for part in Part:
        with pytest.raises(RefusedError, match="another copy"):
            drawn(twin, part, b"ours")
    twin.verify()


def test_what_is_adopted_beside_it_refunds_a_release_under_way_and_never_its_stage(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved(ledger)
    drawn(ledger, Part.STAGE, b"stage")
    twin = Ledger(copy_of(place))
    dies_in_commit(ledger, monkeypatch)
    reserve(twin, "b")
    drawn(twin, Part.RELEASE, b"other", "b")
    assert ledger.adopt() == ["b"]
    assert standing(ledger) == (State.STAGED, 2)
    assert drawn(ledger, Part.STAGE, b"never drawn") == b"stage"
    assert drawn(ledger, Part.RELEASE, b"release") == b"release"


def test_two_stages_that_two_machines_gave_out_are_both_charged(
    folder_ledger: Ledger, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved(folder_ledger)
    twin = Ledger(copy_of(folder))
    assert drawn(folder_ledger, Part.STAGE, b"ours") == b"ours"
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "elsewhere"))  # a machine with a witness of its own
    assert drawn(twin, Part.STAGE, b"theirs") == b"theirs"
    with pytest.raises(RefusedError, match="behind its witness"):
        drawn(folder_ledger, Part.RELEASE, b"never drawn")
    folder_ledger.adopt()
    assert standing(folder_ledger) == (State.ADOPTED, 2)
    folder_ledger.verify()
    twin.adopt()
    assert standing(twin) == (State.STAGED, 2)
    assert drawn(twin, Part.RELEASE, b"release") == b"release"


def test_a_stage_is_charged_to_the_periods_that_its_release_reads(place: LedgerAddress) -> None:
    made = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    for period in ("1", "2"):
        made.close_period(period, period * 64)
    reserved(made, "a", periods={"1": "1" * 64})
    drawn(made, Part.STAGE, b"stage")
    assert reserved(made, "b", periods={"2": "2" * 64}) is State.RESERVED
    with pytest.raises(RefusedError, match="budget of"):
        reserved(made, "c", periods={"1": "1" * 64})
    assert drawn(made, Part.RELEASE, b"release") == b"release"
    made.verify()


# --- formats ----------------------------------------------------------------------------------------------------------


def _older(patch: pytest.MonkeyPatch, newest: str = "3") -> None:
    """Be a version that knows of no stages, or of one at most."""
    known = {name: periodic for name, periodic in state._FORMATS.items() if name[-1] < newest}
    patch.setattr(state, "_FORMATS", known)


def test_an_older_version_refuses_a_ledger_from_its_first_release_in_two_draws_on(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(ledger, "b")
    with monkeypatch.context() as patch:
        _older(patch)
        assert Ledger(place).budget == PrivacyLoss.parse("3")
    reserved(ledger)
    reserved(ledger, "c")
    with monkeypatch.context() as patch:
        _older(patch)
        with pytest.raises(DataError, match="This ledger has format 'dpdist-ledger/3'; this version reads"):
            Ledger(place).records  # noqa: B018 - it is read
    assert Ledger(place).budget == PrivacyLoss.parse("3")
    assert len(Ledger(place).records) == 3
    assert ledger.abort("c")
    reserved(ledger, "d", draws=3)
    with monkeypatch.context() as patch:
        _older(patch, "4")
        with pytest.raises(DataError, match="This ledger has format 'dpdist-ledger/4'; this version reads"):
            Ledger(place).records  # noqa: B018 - it is read
    assert len(Ledger(place).records) == 4


def test_an_older_version_refuses_a_witness_that_has_seen_a_stage(ledger: Ledger) -> None:
    path = Path(witness.FolderWitness().place(ledger.ledger_id))
    older: StateFile[witness.Testimony] = StateFile(path, "witness", "dpdist-witness/1", witness.Testimony, "")
    reserve(ledger, "b")
    drawn(ledger, Part.RELEASE, b"release", "b")
    assert older.read() is not None
    reserved(ledger)
    drawn(ledger, Part.STAGE, b"stage")
    with pytest.raises(DataError, match="has format 'dpdist-witness/2'"):
        older.read()
    reserved(ledger, "c", draws=3)
    drawn(ledger, Part.STAGE, b"stage", "c")
    with pytest.raises(DataError, match="has format 'dpdist-witness/3'"):
        older.read()


def test_a_journal_that_begins_twice_and_not_alike_is_refused(folder_ledger: Ledger) -> None:
    with folder_ledger._locked() as (view, transaction):
        larger = {"epsilon_micro": 9_000_000, "format": "dpdist-ledger/3"}
        transaction.append({**entry_of(view.created), **larger}, view.after, view.head)
    with pytest.raises(DataError, match="begins twice"):
        folder_ledger.verify()


def test_a_stored_ledger_with_a_stage_is_finished_from_that_very_stage(tmp_path: Path) -> None:
    # written by dpdist at the commit that brought stages; never written again
    place = tmp_path / "staged"
    shutil.copytree(STORED / "ledgers-3" / "staged", place)
    shutil.copytree(STORED / "ledgers-3" / "witness", state_home() / "witness")
    ledger = Ledger(place)
    assert standing(ledger) == (State.STAGED, 1)
    assert reserved(ledger) is State.STAGED
    assert drawn(ledger, Part.STAGE, b"never drawn") == b"the stage"
    assert drawn(ledger, Part.RELEASE, b"release") == b"release"
    ledger.published("a")
    ledger.verify()
