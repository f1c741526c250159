"""A copy or restored backup of a ledger draws nothing twice, and no crash locks users out."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import DATASET, DiedError, begun, copy_of, dies, epsilon_spent, gaussian, pure, reserve
from support.releases import content_of

from dpdist.errors import DataError, RefusedError, ResumableError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Transaction
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.ledger.state_folder import StateFile
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

pytestmark = pytest.mark.usefixtures("typed", "state")
PLACES = ("folder",)
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


def released_elsewhere(place: LedgerAddress, release_id: str, tmp_path: Path) -> None:
    """Release on another machine without the witness, as in PRIVACY.md."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
        assert released(place, release_id, b"there") == b"there"


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
    before = {path: path.read_bytes() for path in state.rglob("*.json")}
    Ledger(place).require_current()
    with pytest.raises(RefusedError, match=r"behind its witness.*a\. Nothing was drawn"):
        Ledger(twin).require_current()
    assert {path: path.read_bytes() for path in state.rglob("*.json")} == before
    shutil.rmtree(state)
    with pytest.raises(RefusedError, match=r"The witness of the ledger .* is missing"):
        Ledger(place).require_current()
    Ledger(twin).require_current()  # as always if nothing was committed
    assert not state.exists()


def test_releases_of_another_copy_are_adopted_charged_and_never_drawn(ledger: Ledger, place: LedgerAddress) -> None:
    released(place, "a", b"first")
    backup = copy_of(place, "backup")
    released(place, "b", b"second")
    restored = Ledger(backup)
    assert restored.adopt() == ["b"]
    assert restored.adopt() == []
    assert [(r.release_id, r.state) for r in restored.records] == [("a", State.PUBLISHED), ("b", State.ADOPTED)]
    assert epsilon_spent(restored) == 2
    restored.verify()
    assert reserve(restored, "b") is State.ADOPTED
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


@pytest.mark.usefixtures("ledger")
def test_adopting_refunds_unfinished_releases_and_binds_the_adopted_id(place: LedgerAddress) -> None:
    twin = Ledger(copy_of(place))
    fence = begun(twin, "b")
    released(place, "a", b"draw")
    assert twin.adopt() == ["a"]
    assert not twin.commit("b", fence, [b"late"])
    states = {record.release_id: record.state for record in twin.records}
    assert states == {"b": State.ABORTED, "a": State.ADOPTED}
    assert epsilon_spent(twin) == 1
    assert reserve(twin, "b") is State.RESERVED
    with pytest.raises(RefusedError, match="period differ"):
        reserve(twin, "a", period="may")


def test_closed_periods_are_adopted_with_the_releases_that_read_them(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    twin = Ledger(copy_of(place))
    for name in ("1", "2"):
        ledger.close_period(name, name * 64)
        ledger.reserve(name, periods={name: name * 64}, **ASKED)
        drawn(ledger, name, b"draw")
    assert twin.adopt() == ["1", "2"]
    assert twin.periods == ledger.periods
    assert [(r.release_id, r.periods) for r in twin.records] == [("1", ("1",)), ("2", ("2",))]
    with pytest.raises(RefusedError, match="budget"):
        twin.reserve("again", periods={"1": "1" * 64}, **ASKED)
    twin.close_period("3", SEAL)
    twin.reserve("3", periods={"3": SEAL}, **ASKED)


def test_rows_that_two_copies_closed_as_different_periods_are_charged_once(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    twin = Ledger(copy_of(place))
    ledger.close_period("2026-01-06", SEAL)
    twin.close_period("2026-01-05", SEAL)
    twin.close_period("2026-01-07", "7" * 64)
    ledger.reserve("a", periods={"2026-01-06": SEAL}, **ASKED)
    drawn(ledger, "a", b"draw")
    assert twin.adopt() == ["a"]
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


@pytest.mark.usefixtures("ledger")
def test_two_draws_that_two_machines_gave_out_are_both_charged(place: LedgerAddress, tmp_path: Path) -> None:
    twin = copy_of(place)
    released(place, "a", b"here")
    released_elsewhere(twin, "a", tmp_path)
    brought, again = Ledger(twin), Ledger(place)
    with pytest.raises(RefusedError, match="behind its witness"):
        reserve(brought, "b")
    assert brought.adopt() == ["a"]
    assert len(again.adopt()) == 1
    assert epsilon_spent(brought) == epsilon_spent(again) == 2
    assert again.adopt() == brought.adopt() == []


@pytest.mark.parametrize("neighbours", Neighbours)
def test_draws_of_two_machines_beyond_the_budget_or_of_two_relations_are_reported(
    place: LedgerAddress, tmp_path: Path, neighbours: Neighbours
) -> None:
    # losses under different relations cannot be added
    budget = PrivacyLoss.parse("1" if neighbours is Neighbours.REPLACE_ONE else "3")
    ledger = Ledger.create(place, dataset_id=DATASET, budget=budget)
    assert "keep the budget, even if" in ledger.balance().promise
    twin = copy_of(place)
    request = {**ASKED, "guarantee": pure(1, neighbours)}
    ledger.reserve("a", **request)
    drawn(ledger, "a", b"here")
    released_elsewhere(twin, "b", tmp_path)
    brought = Ledger(twin)
    assert (brought.adopt(), ledger.adopt()) == (["a"], ["b"])
    for copy in (ledger, brought):
        balance = copy.balance()
        assert balance.promise == "all charges together exceed the budget"
        assert str(balance) == "charged 2 releases; left: nothing, because the charges exceed the budget"
        with pytest.raises(DataError, match="without a common witness"):
            reserve(copy, "c")
        with pytest.raises(DataError, match="without a common witness"):
            copy.reserve("d", **request)
        with pytest.raises(DataError, match="exceed its budget"):
            copy.verify()


def test_a_lost_witness_stops_all_and_costs_the_whole_budget(ledger: Ledger, place: LedgerAddress, state: Path) -> None:
    released(place, "a", b"draw")
    begun(ledger, "b")
    shutil.rmtree(state)  # as in a new container, or on another host
    cure = r"mount the volume.*DPDIST_STATE_HOME.*dpdist ledger adopt.*whole budget"
    for use in (lambda: reserve(ledger, "c"), lambda: ledger.begin("b"), lambda: ledger.commit("b", 1, [b"draw"])):
        with pytest.raises(RefusedError, match=cure):
            use()
    ledger.verify()
    for _ in range(2):
        assert released(place, "a", b"never drawn") == b"draw"  # published bytes may be given out again
        assert ledger.adopt() == []
    assert ledger.exhausted
    assert ledger.balance().closed
    assert "whole budget was charged" in str(ledger.balance())
    for release_id in ("b", "c"):
        with pytest.raises(RefusedError, match="whole budget"):
            reserve(ledger, release_id)
    ledger.verify()


def test_the_whole_budget_is_charged_to_every_copy_once_a_witness_was_lost(
    ledger: Ledger, place: LedgerAddress, state: Path
) -> None:
    released(place, "a", b"draw")
    twin, third = (copy_of(place, name) for name in ("twin", "third"))
    released(third, "b", b"the draw of b that is out")
    shutil.rmtree(state)
    assert ledger.adopt() == []
    for copy in (Ledger(twin), Ledger(third)):
        with pytest.raises(RefusedError, match=r"witness.*whole budget.*dpdist ledger adopt"):
            copy.verify()
        assert copy.exhausted_elsewhere
        assert copy.adopt() == []
        assert (copy.exhausted, copy.exhausted_elsewhere) == (True, False)
        copy.verify()
        with pytest.raises(RefusedError, match="whole budget"):
            reserve(copy, "c")
    with pytest.raises(RefusedError):
        reserve(Ledger(twin), "b")  # a second draw of b would undo the noise of the first
    assert released(third, "b", b"never drawn") == b"the draw of b that is out"


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


def _dies_before_the_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateFile, "write", dies)


def _dies_after_the_witness(patch: pytest.MonkeyPatch) -> None:
    append = Transaction.append

    def appended(self: Transaction, entry: dict[str, Any], after: int, head: str) -> tuple[int, str]:
        if entry["event"] == "witnessed":
            raise DiedError
        return append(self, entry, after, head)

    patch.setattr(Transaction, "append", appended)


@pytest.mark.parametrize("death", [_dies_before_the_witness, _dies_after_the_witness])
@pytest.mark.parametrize("first", ["ledger", "copy"])
def test_a_death_around_the_witness_locks_no_copy_out_and_gives_out_one_draw(
    ledger: Ledger,
    place: LedgerAddress,
    monkeypatch: pytest.MonkeyPatch,
    death: Callable[[pytest.MonkeyPatch], None],
    first: str,
) -> None:
    twin = copy_of(place)
    fence = begun(ledger, "a")
    with monkeypatch.context() as patch:
        death(patch)
        with pytest.raises(DiedError):
            ledger.commit("a", fence, [b"ours"])
    assert [record.state for record in ledger.records] == [State.COMMITTED]
    witnessed = death is _dies_after_the_witness
    if first == "ledger" or witnessed:
        if witnessed:
            with pytest.raises(RefusedError):
                reserve(Ledger(twin), "a")
        assert released(place, "a", b"never drawn") == b"ours"
        with pytest.raises(RefusedError):
            released(twin, "a", b"theirs")
        return
    # our draw was not given out: the copy may draw, and then ours never is
    assert released(twin, "a", b"theirs") == b"theirs"
    for _ in range(2):
        with pytest.raises(RefusedError):
            released(place, "a", b"never drawn")
        Ledger(place).adopt()
    mended = Ledger(place)
    mended.verify()
    assert [(r.release_id, r.state) for r in mended.records] == [("a", State.ADOPTED)]
    assert epsilon_spent(mended) == 1


def test_recorded_releases_stay_when_another_release_is_adopted(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = copy_of(place)
    fence = begun(ledger, "a")
    with monkeypatch.context() as patch:
        _dies_after_the_witness(patch)
        with pytest.raises(DiedError):
            ledger.commit("a", fence, [b"ours"])
    assert Ledger(twin).adopt() == ["a"]
    released(twin, "b", b"theirs")
    assert ledger.adopt() == ["b"]
    assert content_of(ledger, "a") == b"ours"
    assert epsilon_spent(ledger) == 2


def test_adopting_again_repairs_a_death_while_adopting(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    released(place, "a", b"draw")
    shutil.rmtree(state)
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            ledger.adopt()
    assert ledger.exhausted  # the charge comes first
    ledger.adopt()
    assert ledger.balance().closed
    with pytest.raises(RefusedError, match="whole budget"):
        reserve(ledger, "b")
