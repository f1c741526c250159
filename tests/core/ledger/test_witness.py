"""A copy or restored backup of a ledger draws nothing twice, and no crash locks users out."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cli_scene import tree
from support.ledgers import DATASET, DiedError, begun, copy_of, dies, epsilon_spent, gaussian, pure, reserve
from support.releases import content_of

from dpdist.core.errors import DataError, RefusedError, ResumableError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.journal import Transaction
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.ledger.state_folder import StateFile
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss

pytestmark = pytest.mark.usefixtures("typed", "state")
SEAL = "5" * 64
ASKED: dict[str, Any] = {"dataset_id": DATASET, "parameters": {}, "guarantee": pure()}


def drawn(ledger: Ledger, release_id: str, content: bytes) -> None:
    assert ledger.commit(release_id, ledger.begin(release_id) or 0, [content])


def released(place: LedgerAddress, release_id: str, content: bytes) -> bytes:
    ledger = Ledger(place)
    if reserve(ledger, release_id) is State.RESERVED:
        drawn(ledger, release_id, content)
    out = content_of(ledger, release_id)
    ledger.published(release_id)
    return out


def test_a_copy_that_is_behind_spends_nothing_of_any_kind(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"), periodic=True)
    begun(ledger, "b")
    twin = Ledger(copy_of(place))
    assert released(place, "a", b"first draw") == b"first draw"
    head = twin.head
    for use in (
        lambda: reserve(twin, "a"),
        lambda: reserve(twin, "b"),
        lambda: twin.begin("b"),
        lambda: twin.commit("b", 1, [b"draw"]),
        lambda: twin.close_period("p", SEAL),
    ):
        with pytest.raises(
            RefusedError, match=r"behind its witness.*another copy: a\. Nothing was drawn.*dpdist ledger adopt"
        ):
            use()
    with pytest.raises(RefusedError, match="older copy"):
        twin.verify()
    assert (twin.head, twin.missing()) == (head, ["a"])
    assert twin.abort("b")  # refunding an uncommitted release is harmless
    # the ledger itself continues
    assert released(place, "a", b"never drawn") == b"first draw"
    assert released(place, "c", b"next") == b"next"


@pytest.mark.usefixtures("ledger")
def test_a_check_whether_a_ledger_is_current_writes_nothing(place: LedgerAddress, state: Path) -> None:
    Ledger(place).require_current()
    assert not state.exists()
    twin = copy_of(place)
    released(place, "a", b"draw")
    before = tree(state)
    Ledger(place).require_current()
    with pytest.raises(RefusedError, match=r"behind its witness.*a\. Nothing was drawn"):
        Ledger(twin).require_current()
    assert tree(state) == before
    shutil.rmtree(state)
    with pytest.raises(RefusedError, match=r"The witness of the ledger .* is missing"):
        Ledger(place).require_current()
    assert not state.exists()


def test_releases_of_another_copy_are_adopted_charged_and_never_drawn_and_unfinished_ones_refunded(
    ledger: Ledger, place: LedgerAddress
) -> None:
    released(place, "a", b"first")
    backup = copy_of(place, "backup")
    fence = begun(Ledger(backup), "c")
    released(place, "b", b"second")
    restored = Ledger(backup)
    assert (restored.adopt(), restored.adopt()) == (["b"], [])
    assert not restored.commit("c", fence, [b"late"])
    states = [("a", State.PUBLISHED), ("c", State.ABORTED), ("b", State.ADOPTED)]
    assert [(r.release_id, r.state) for r in restored.records] == states
    assert epsilon_spent(restored) == 2
    restored.verify()
    assert reserve(restored, "b") is State.ADOPTED
    with pytest.raises(RefusedError, match="period differ"):
        reserve(restored, "b", period="may")
    for use in (lambda: restored.begin("b"), lambda: content_of(restored, "b")):
        with pytest.raises(RefusedError, match="another copy"):
            use()
    assert not restored.abort("b")
    # only the copy that committed an adopted release knows its head
    remembered = [restored.remembers(*pair) for pair in (("b", "f" * 64), ("a", "f" * 64), ("c", restored.head))]
    assert remembered == [True, False, False]
    assert released(backup, "a", b"never drawn") == b"first"
    assert released(backup, "c", b"third") == b"third"
    with pytest.raises(RefusedError, match="budget"):
        reserve(restored, "d")
    # now the other one is behind, and may adopt too
    assert ledger.adopt() == ["c"]
    assert content_of(ledger, "b") == b"second"
    assert epsilon_spent(ledger) == 3


def test_closed_periods_are_adopted_and_rows_that_two_copies_closed_as_different_ones_charged_once(
    place: LedgerAddress,
) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    twin = Ledger(copy_of(place))
    ledger.close_period("2026-01-06", SEAL)
    twin.close_period("2026-01-05", SEAL)
    twin.close_period("2026-01-07", "7" * 64)
    ledger.reserve("a", periods={"2026-01-06": SEAL}, **ASKED)
    drawn(ledger, "a", b"draw")
    ledger.close_period("2026-01-08", "8" * 64)
    ledger.reserve("8", periods={"2026-01-08": "8" * 64}, **ASKED)
    drawn(ledger, "8", b"draw")
    assert twin.adopt() == ["a", "8"]
    assert list(twin.periods) == ["2026-01-05", "2026-01-06", "2026-01-07", "2026-01-08"]
    assert [(r.release_id, r.periods) for r in twin.records] == [("a", ("2026-01-06",)), ("8", ("2026-01-08",))]
    with pytest.raises(RefusedError, match="budget"):
        twin.reserve("again", periods={"2026-01-08": "8" * 64}, **ASKED)
    head = twin.head
    for name in ("2026-01-05", "2026-01-06"):
        for more in ({}, {"2026-01-07": "7" * 64}):
            with pytest.raises(RefusedError, match=r"charge and count each row twice\. Nothing was drawn"):
                twin.reserve("b", periods={name: SEAL, **more}, **ASKED)
    assert twin.head == head
    assert twin.reserve("a", periods={"2026-01-06": SEAL}, **ASKED) is State.ADOPTED
    assert twin.reserve("b", periods={"2026-01-07": "7" * 64}, **ASKED) is State.RESERVED


def test_the_caps_are_adopted_that_were_fixed_before_the_first_answer(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-5"))
    twin = Ledger(copy_of(place))
    point = {**ASKED, "guarantee": replace(pure(), loss=PrivacyLoss.parse("0.5", "1e-6"))}
    twin.reserve("point", **point)
    ledger.reserve("a", **{**ASKED, "guarantee": gaussian("1", "1e-6")})
    assert twin.caps != ledger.caps  # the first reservation may determine them
    drawn(ledger, "a", b"draw")
    twin.adopt()
    assert twin.caps == ledger.caps
    assert twin.balance().left == ledger.balance().left
    twin.verify()
    for copy in (twin, ledger):
        with pytest.raises(RefusedError, match="budget"):  # caps fixed after the answer
            copy.reserve("point", **point)


def test_a_price_that_depends_on_charges_of_another_copy_is_not_chosen_again(place: LedgerAddress) -> None:
    """A release with two possible prices was charged one of them, and no later answer may change it."""
    mixed = PrivacyLoss.declared("2", "1e-5", "0.5")
    ledger = Ledger.create(place, dataset_id=DATASET, budget=mixed)
    twin = Ledger(copy_of(place))
    small = replace(pure(), loss=PrivacyLoss.parse("0.25", "0"))
    # the first has one price: it exceeds all pure parts
    for name, guarantee, exhausted in (("a", gaussian("1", "1e-6"), False), ("b", small, True)):
        ledger.reserve(name, **{**ASKED, "guarantee": guarantee})
        drawn(ledger, name, b"draw")
        twin.adopt()
        assert (ledger.exhausted, twin.exhausted) == (False, exhausted)
    assert "whole budget was charged" in str(twin.balance())
    with pytest.raises(RefusedError, match="could have been charged in two ways"):
        twin.reserve("c", **{**ASKED, "guarantee": replace(pure(), loss=PrivacyLoss.parse("0.01"))})


@pytest.mark.parametrize("alike", ["all", "relation", "unit"])
def test_draws_of_two_machines_beyond_the_budget_or_of_two_relations_or_units_are_reported(
    place: LedgerAddress, tmp_path: Path, alike: str
) -> None:
    # losses under different relations, and of different units, cannot be added
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1" if alike == "all" else "3"))
    twin = copy_of(place)
    relation = Neighbours.ADD_REMOVE if alike == "relation" else Neighbours.REPLACE_ONE
    request = {**ASKED, "guarantee": pure(1, relation)}
    if alike == "unit":
        request["parameters"] = {**request["parameters"], "unit": {"column": "who", "max_rows": 1}}
    ledger.reserve("a", **request)
    drawn(ledger, "a", b"here")
    with pytest.MonkeyPatch.context() as patch:  # on another machine without the witness, as in PRIVACY.md
        patch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
        assert released(twin, "b", b"there") == b"there"
    brought = Ledger(twin)
    assert (brought.adopt(), ledger.adopt()) == (["a"], ["b"])
    for copy in (ledger, brought):
        balance = copy.balance()
        assert balance.promise == "all charges together exceed the budget"
        assert str(balance) == "charged 2 releases; left: nothing, because the charges exceed the budget"
        with pytest.raises((DataError, RefusedError), match=r"without a common witness|another privacy unit"):
            copy.reserve("c", **request)
        with pytest.raises(DataError, match="exceed its budget"):
            copy.verify()


def test_a_lost_witness_stops_all_and_costs_every_copy_the_whole_budget_even_if_adopting_dies(
    ledger: Ledger, place: LedgerAddress, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released(place, "a", b"draw")
    begun(ledger, "b")
    third = copy_of(place, "third")
    released(third, "c", b"the draw of c that is out")
    shutil.rmtree(state)  # as in a new container, or on another host
    cure = r"DPDIST_STATE_HOME.*mount the volume.*dpdist ledger adopt.*whole budget"
    for use in (lambda: reserve(ledger, "c"), lambda: ledger.begin("b"), lambda: ledger.commit("b", 1, [b"draw"])):
        with pytest.raises(RefusedError, match=cure):
            use()
    ledger.verify()
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            ledger.adopt()
    assert ledger.exhausted  # the charge comes first
    for _ in range(2):
        assert released(place, "a", b"never drawn") == b"draw"  # published bytes may be given out again
        assert ledger.adopt() == []
    assert ledger.balance().closed
    assert "whole budget was charged" in str(ledger.balance())
    for release_id in ("b", "c"):  # a second draw of c would undo the noise of the first
        with pytest.raises(RefusedError, match="whole budget"):
            reserve(ledger, release_id)
    copy = Ledger(third)
    with pytest.raises(RefusedError, match=r"witness.*whole budget.*dpdist ledger adopt"):
        copy.verify()
    assert copy.exhausted_elsewhere
    assert copy.adopt() == []
    assert (copy.exhausted, copy.exhausted_elsewhere) == (True, False)
    copy.verify()
    with pytest.raises(RefusedError, match="whole budget"):
        reserve(copy, "d")
    assert released(third, "c", b"never drawn") == b"the draw of c that is out"


def test_an_unwritable_folder_is_reported_before_anything_is_charged_or_drawn(ledger: Ledger, state: Path) -> None:
    state.parent.mkdir()
    state.write_text("a file is in the way")
    head = ledger.head
    with pytest.raises(DataError, match="DPDIST_STATE_HOME"):
        reserve(ledger, "a")
    assert ledger.head == head


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, ResumableError), (errno.EACCES, DataError)])
def test_a_full_disk_stops_the_commit_and_the_same_command_goes_on(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    fence = begun(ledger, "a")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        # the second is committed, but not in the witness: not given out
        for use in (lambda: ledger.commit("a", fence, [b"draw"]), lambda: content_of(Ledger(place), "a")):
            with pytest.raises(kind, match="DPDIST_STATE_HOME"):
                use()
    assert released(place, "a", b"never drawn") == b"draw"


def test_recorded_releases_stay_when_another_release_is_adopted(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = copy_of(place)
    fence, append = begun(ledger, "a"), Transaction.append

    def appended(self: Transaction, entry: dict[str, Any], after: int, head: str) -> tuple[int, str]:
        if entry["event"] == "witnessed":
            raise DiedError
        return append(self, entry, after, head)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append", appended)
        with pytest.raises(DiedError):
            ledger.commit("a", fence, [b"ours"])
    assert Ledger(twin).adopt() == ["a"]
    released(twin, "b", b"theirs")
    assert ledger.adopt() == ["b"]
    assert content_of(ledger, "a") == b"ours"
    assert epsilon_spent(ledger) == 2
