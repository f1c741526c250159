"""A copy of a ledger, or one restored from a backup, draws nothing a second time; a crash locks nobody out."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import (
    DATASET,
    DiedError,
    begun,
    copy_of,
    dies,
    epsilon_spent,
    gaussian,
    pure,
    reserve,
)
from support.releases import content_of

from dpdist.errors import DataError, NoWitnessWarning, RefusedError, ResumableError, UsageError
from dpdist.ledger import state_folder, witness
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Transaction
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.sqlite import FolderStorage
from dpdist.ledger.state import State
from dpdist.ledger.state_folder import StateFile, state_home
from dpdist.ledger.witness import FolderWitness
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

pytestmark = pytest.mark.usefixtures("typed")

SEAL = "5" * 64
pytestmark = pytest.mark.usefixtures("state")
PLACES = ("folder",)


def file_of(ledger: Ledger) -> Path:
    return Path(FolderWitness().place(ledger.ledger_id))


def released(place: LedgerAddress, release_id: str, content: bytes) -> bytes:
    ledger = Ledger(place)
    state = reserve(ledger, release_id)
    if state is State.RESERVED:
        fence = ledger.begin(release_id)
        assert fence is not None
        assert ledger.commit(release_id, fence, [content])
    out = content_of(ledger, release_id)
    ledger.published(release_id)
    return out


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ledger")
def test_the_same_release_of_a_copied_ledger_is_refused_and_nothing_is_drawn(place: LedgerAddress) -> None:
    twin = copy_of(place)
    assert released(place, "a", b"first draw") == b"first draw"
    head = Ledger(twin).head
    with pytest.raises(RefusedError, match=r"committed elsewhere: a\. Nothing was drawn.*dpdist ledger adopt"):
        reserve(Ledger(twin), "a")
    assert Ledger(twin).head == head
    assert Ledger(twin).records == []
    assert Ledger(twin).missing() == ["a"]
    with pytest.raises(RefusedError, match="older copy"):
        Ledger(twin).verify()
    # the ledger itself goes on
    assert released(place, "a", b"never drawn") == b"first draw"
    assert released(place, "b", b"next") == b"next"
    Ledger(place).verify()


def test_a_copy_that_is_behind_spends_nothing_of_any_kind(place: LedgerAddress) -> None:
    made = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"), periodic=True)
    begun(made, "b")
    twin = Ledger(copy_of(place))
    released(place, "a", b"draw")
    for use in (
        lambda: reserve(twin, "c"),
        lambda: reserve(twin, "b"),
        lambda: twin.begin("b"),
        lambda: twin.commit("b", 1, [b"draw"]),
        lambda: twin.close_period("p", SEAL),
    ):
        head = twin.head
        with pytest.raises(RefusedError, match="behind its witness"):
            use()
        assert twin.head == head
    assert twin.abort("b")  # to take back what was never committed is no harm


def test_many_copies_at_once_give_out_one_draw(folder: Path) -> None:
    Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    copies = [copy_of(folder, f"copy{number}") for number in range(6)]
    out: list[bytes] = []
    refused: list[RefusedError] = []
    barrier = threading.Barrier(len(copies))

    def run(number: int) -> None:
        barrier.wait()
        try:
            out.append(released(copies[number], "a", f"draw {number}".encode()))
        except RefusedError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(out), len(refused)) == (1, len(copies) - 1)


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_while_one_looks_is_not_taken_for_a_copys(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    read, names = FolderWitness.read, iter("abc")

    def committed_meanwhile(self: FolderWitness, ledger_id: str) -> witness.Testimony | None:
        found = read(self, ledger_id) if after else None
        released(place, next(names), b"draw")
        return found if after else read(self, ledger_id)

    def looked() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(FolderWitness, "read", committed_meanwhile)
            return ledger.missing() == []

    assert looked()
    ledger.require_current()


@pytest.mark.usefixtures("ledger")
def test_whether_a_ledger_is_current_is_told_and_nothing_is_written(place: LedgerAddress, state: Path) -> None:
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
    Ledger(twin).require_current()  # as it always was where nothing was committed
    assert not state.exists()


# --- adopting ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ledger")
def test_what_was_released_elsewhere_is_adopted_charged_and_never_drawn(place: LedgerAddress) -> None:
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
    # which head an adopted release tells is known to the copy that committed it
    assert restored.remembers("b", "f" * 64)
    assert not restored.remembers("a", "f" * 64)
    assert not restored.remembers("c", restored.head)
    assert released(backup, "a", b"never drawn") == b"first"
    assert released(backup, "c", b"third") == b"third"
    with pytest.raises(RefusedError, match="budget"):
        reserve(restored, "d")
    # now the other one is behind, and may adopt in its turn
    with pytest.raises(RefusedError, match="elsewhere: c"):
        reserve(Ledger(place), "c")
    assert Ledger(place).adopt() == ["c"]
    assert content_of(Ledger(place), "b") == b"second"
    assert epsilon_spent(Ledger(place)) == 3


@pytest.mark.usefixtures("ledger")
def test_adopting_refunds_what_was_under_way_and_never_given_out(place: LedgerAddress) -> None:
    twin = Ledger(copy_of(place))
    fence = begun(twin, "b")
    released(place, "a", b"draw")
    assert twin.adopt() == ["a"]
    assert not twin.commit("b", fence, [b"late"])
    states = {record.release_id: record.state for record in twin.records}
    assert states == {"b": State.ABORTED, "a": State.ADOPTED}
    assert epsilon_spent(twin) == 1
    assert reserve(twin, "b") is State.RESERVED


@pytest.mark.usefixtures("ledger")
def test_the_parameters_of_an_adopted_release_bind_its_id(place: LedgerAddress) -> None:
    twin = Ledger(copy_of(place))
    released(place, "a", b"draw")
    twin.adopt()
    with pytest.raises(RefusedError, match="period differ"):
        reserve(twin, "a", period="may")


def test_closed_periods_are_adopted_with_the_releases_that_read_them(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    twin = Ledger(copy_of(place))
    for name, seal in (("1", "a" * 64), ("2", "b" * 64)):
        ledger.close_period(name, seal)
        ledger.reserve(name, dataset_id=DATASET, parameters={}, guarantee=pure(), periods={name: seal})
        fence = ledger.begin(name)
        assert fence is not None
        assert ledger.commit(name, fence, [name.encode()])
    assert twin.adopt() == ["1", "2"]
    assert twin.periods == ledger.periods
    assert [(r.release_id, r.periods) for r in twin.records] == [("1", ("1",)), ("2", ("2",))]
    with pytest.raises(RefusedError, match="budget"):
        twin.reserve("again", dataset_id=DATASET, parameters={}, guarantee=pure(), periods={"1": "a" * 64})
    twin.close_period("3", "c" * 64)
    twin.reserve("3", dataset_id=DATASET, parameters={}, guarantee=pure(), periods={"3": "c" * 64})


def test_rows_that_two_copies_closed_as_different_periods_are_charged_once(place: LedgerAddress) -> None:
    made = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"), periodic=True)
    twin = Ledger(copy_of(place))
    asked: dict[str, Any] = {"dataset_id": DATASET, "parameters": {}, "guarantee": pure()}
    made.close_period("2026-01-06", SEAL)
    twin.close_period("2026-01-05", SEAL)
    twin.close_period("2026-01-07", "7" * 64)
    made.reserve("a", periods={"2026-01-06": SEAL}, **asked)
    fence = made.begin("a")
    assert fence is not None
    assert made.commit("a", fence, [b"draw"])
    assert twin.adopt() == ["a"]
    head = twin.head
    for name in ("2026-01-05", "2026-01-06"):
        with pytest.raises(RefusedError, match=r"charge and count each row twice\. Nothing was drawn"):
            twin.reserve("b", periods={name: SEAL}, **asked)
        with pytest.raises(RefusedError, match="charge and count each row twice"):
            twin.reserve("b", periods={name: SEAL, "2026-01-07": "7" * 64}, **asked)
    assert twin.head == head
    assert twin.reserve("a", periods={"2026-01-06": SEAL}, **asked) is State.ADOPTED
    assert twin.reserve("b", periods={"2026-01-07": "7" * 64}, **asked) is State.RESERVED


def test_the_caps_are_adopted_that_were_fixed_before_the_first_answer(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-5"))
    twin = Ledger(copy_of(place))
    point = replace(pure(), loss=PrivacyLoss.parse("0.5", "1e-6"))
    twin.reserve("point", dataset_id=DATASET, parameters={}, guarantee=point)
    ledger.reserve("a", dataset_id=DATASET, parameters={}, guarantee=gaussian("1", "1e-6"))
    assert twin.caps != ledger.caps  # what is reserved first may decide of them
    fence = ledger.begin("a")
    assert fence is not None
    assert ledger.commit("a", fence, [b"draw"])
    twin.adopt()
    assert twin.caps == ledger.caps
    assert twin.balance().left == ledger.balance().left
    twin.verify()
    with pytest.raises(RefusedError, match="budget"):  # the caps that the answer precedes
        twin.reserve("point", dataset_id=DATASET, parameters={}, guarantee=point)
    with pytest.raises(RefusedError, match="budget"):
        ledger.reserve("point", dataset_id=DATASET, parameters={}, guarantee=point)


def test_a_price_that_follows_from_what_another_copy_charged_is_not_chosen_anew(place: LedgerAddress) -> None:
    """A release that could be charged as Gaussian or as pure was charged as one, and no later answer may change it."""
    mixed = PrivacyLoss.declared("2", "1e-5", "0.5")
    ledger = Ledger.create(place, dataset_id=DATASET, budget=mixed)
    twin = Ledger(copy_of(place))
    ledger.reserve("a", dataset_id=DATASET, parameters={}, guarantee=gaussian("1", "1e-6"))
    first = ledger.begin("a")
    assert first is not None
    assert ledger.commit("a", first, [b"draw"])
    twin.adopt()  # one price: no pure part holds it
    assert not twin.exhausted
    small = replace(pure(), loss=PrivacyLoss.parse("0.25", "0"))
    ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=small)
    fence = ledger.begin("b")
    assert fence is not None
    assert ledger.commit("b", fence, [b"more"])
    assert not ledger.exhausted
    twin.adopt()
    assert twin.exhausted
    assert "whole budget was charged" in str(twin.balance())
    with pytest.raises(RefusedError, match="could have been charged in two ways"):
        twin.reserve("c", dataset_id=DATASET, parameters={}, guarantee=replace(pure(), loss=PrivacyLoss.parse("0.01")))


@pytest.mark.usefixtures("ledger")
def test_two_draws_that_two_machines_gave_out_are_both_charged(
    place: LedgerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    twin = copy_of(place)
    released(place, "a", b"here")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
    released(twin, "a", b"there")  # which this machine cannot see, and PRIVACY.md says so
    monkeypatch.setenv("DPDIST_STATE_HOME", str(state))
    brought = Ledger(twin)
    with pytest.raises(RefusedError, match="behind its witness"):
        reserve(brought, "b")
    assert brought.adopt() == ["a"]
    assert epsilon_spent(brought) == 2
    again = Ledger(place)
    assert len(again.adopt()) == 1
    assert epsilon_spent(again) == 2
    assert again.adopt() == brought.adopt() == []


def test_draws_of_two_machines_beyond_the_budget_are_told_as_what_they_are(
    place: LedgerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    made = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1"))
    assert "keeps the budget, even if" in made.balance().promise
    twin = copy_of(place)
    released(place, "a", b"here")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
    released(twin, "a", b"there")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(state))
    brought = Ledger(twin)
    assert brought.adopt() == ["a"]
    balance = brought.balance()
    assert balance.promise == "all of it together exceeds the budget"
    assert str(balance) == "charged 2 releases; left: nothing, because what is charged exceeds the budget"
    with pytest.raises(DataError, match="without a common witness"):
        reserve(brought, "b")


def test_draws_of_two_machines_under_two_relations_keep_no_budget(
    ledger: Ledger, place: LedgerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    # a row replaced is one removed and one added: a loss under one relation cannot be added to one under the other
    twin = copy_of(place)
    asked = partial(ledger.reserve, dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    assert asked("a") is State.RESERVED
    assert ledger.commit("a", ledger.begin("a") or 0, [b"here"])
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
    released(twin, "b", b"there")
    monkeypatch.setenv("DPDIST_STATE_HOME", str(state))
    assert Ledger(twin).adopt() == ["a"]
    assert ledger.adopt() == ["b"]
    for each in (ledger, Ledger(twin)):
        assert each.balance().promise == "all of it together exceeds the budget"
        with pytest.raises(DataError, match="without a common witness"):
            reserve(each, "c")
        with pytest.raises(DataError, match="exceed its budget"):
            each.verify()
    with pytest.raises(DataError, match="without a common witness"):
        asked("d")


# --- a witness that is lost, or was never written ---------------------------------------------------------------------


def test_a_lost_witness_stops_all_and_costs_the_whole_budget(ledger: Ledger, place: LedgerAddress, state: Path) -> None:
    released(place, "a", b"draw")
    begun(ledger, "b")
    shutil.rmtree(state)  # a container's home, or a job on another host
    for use in (lambda: reserve(ledger, "c"), lambda: ledger.begin("b"), lambda: ledger.commit("b", 1, [b"draw"])):
        with pytest.raises(
            RefusedError, match=r"mount the volume.*DPDIST_STATE_HOME.*dpdist ledger adopt.*whole budget"
        ):
            use()
    ledger.verify()
    assert released(place, "a", b"never drawn") == b"draw"  # bytes that are out may be given out again
    assert ledger.adopt() == []
    assert ledger.adopt() == []
    assert ledger.exhausted
    assert ledger.balance().closed
    assert "whole budget was charged" in str(ledger.balance())
    for release_id in ("b", "c"):
        with pytest.raises(RefusedError, match="whole budget"):
            reserve(ledger, release_id)
    assert released(place, "a", b"never drawn") == b"draw"
    Ledger(place).verify()


def test_the_whole_budget_is_charged_to_every_copy_once_a_witness_was_lost(
    ledger: Ledger, place: LedgerAddress, state: Path
) -> None:
    released(place, "a", b"draw")
    other, third = copy_of(place, "other"), copy_of(place, "third")
    assert released(third, "b", b"the draw of b that is out") == b"the draw of b that is out"
    shutil.rmtree(state)
    assert ledger.adopt() == []
    twin = Ledger(other)
    for use in (lambda: reserve(twin, "b"), twin.verify):
        with pytest.raises(RefusedError, match=r"witness.*whole budget.*dpdist ledger adopt"):
            use()
    assert twin.exhausted_elsewhere
    assert twin.adopt() == []
    assert twin.exhausted
    assert not twin.exhausted_elsewhere
    with pytest.raises(RefusedError, match="whole budget"):
        reserve(twin, "b")  # a second draw of b would undo the noise of the first
    assert Ledger(third).adopt() == []
    assert Ledger(third).exhausted
    Ledger(third).verify()
    assert released(third, "b", b"never drawn") == b"the draw of b that is out"


def test_a_ledger_that_never_had_a_witness_adopts_nothing_and_pays_nothing(ledger: Ledger) -> None:
    assert ledger.adopt() == []
    assert not ledger.exhausted
    assert reserve(ledger, "a") is State.RESERVED
    assert epsilon_spent(ledger) == 1


def test_an_old_ledger_is_told_once_that_it_had_no_witness(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    append = Transaction.append

    def without_witness(self: Transaction, entry: dict[str, Any], after: int, head: str) -> tuple[int, str]:
        return (after, head) if entry["event"] == "witnessed" else append(self, entry, after, head)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append", without_witness)
        patch.setattr(Ledger, "_tell", lambda *_: None)
        fence = begun(ledger, "a")
        assert ledger.commit("a", fence, [b"old draw"])
        ledger.published("a")
    shutil.rmtree(state)
    twin = copy_of(place)
    with pytest.warns(NoWitnessWarning, match="never had a witness"):
        assert reserve(Ledger(place), "b") is State.RESERVED
    released(place, "b", b"draw")
    released(place, "c", b"draw")  # and not again: a warning is an error here
    assert Ledger(twin).missing() == ["b", "c"]


def test_a_damaged_witness_is_exit_4_and_names_the_file(ledger: Ledger, place: LedgerAddress) -> None:
    released(place, "a", b"draw")
    path = file_of(ledger)
    content = bytearray(path.read_bytes())
    for wrong in (content[:-9], bytes(content).replace(b'"a"', b'"b"'), b""):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"witness .*\.json is damaged") as refusal:
            reserve(Ledger(place), "b")
        assert refusal.value.exit_code == 4
        with pytest.raises(DataError):
            Ledger(place).adopt()
    path.write_bytes(content)
    assert reserve(Ledger(place), "b") is State.RESERVED


# --- where it is kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_its_owner_can_read_a_witness_whatever_the_umask(folder: Path, state: Path, umask: int) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    before = os.umask(umask)
    try:
        with FolderWitness().held(ledger.ledger_id) as held, ledger._locked() as (view, _):
            held.write(witness.Testimony.of(view))
    finally:
        os.umask(before)
    for path in [state.parent, state, *state.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert sorted(path.suffix for path in (state / "witness").iterdir()) == [".json", ".lock"]


def test_a_folder_that_others_could_enter_is_closed_to_them(ledger: Ledger, state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o755)  # a volume's own root is the operator's
    (state / "witness").mkdir(mode=0o755)
    reserve(ledger, "a")
    assert stat.S_IMODE((state / "witness").stat().st_mode) == 0o700
    assert stat.S_IMODE(state.stat().st_mode) == 0o755


def test_the_folder_is_the_one_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_home() == tmp_path / "deep" / "state"
    monkeypatch.setenv("DPDIST_STATE_HOME", "")
    assert state_home() == tmp_path / "xdg" / "dpdist"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the specification of XDG tells to ignore
    assert state_home() == tmp_path / ".local" / "state" / "dpdist"
    monkeypatch.setenv("DPDIST_STATE_HOME", "relative")
    with pytest.raises(UsageError, match="absolute"):
        state_home()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_charged_or_drawn(
    ledger: Ledger, state: Path
) -> None:
    state.parent.mkdir()
    state.write_text("a file is in the way")
    head = ledger.head
    with pytest.raises(DataError, match="DPDIST_STATE_HOME"):
        reserve(ledger, "a")
    assert ledger.head == head


@pytest.mark.parametrize(("number", "kind"), [(28, ResumableError), (13, DataError)])
def test_a_full_disk_stops_the_commit_and_the_same_command_goes_on(
    ledger: Ledger, place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    fence = begun(ledger, "a")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(kind, match="DPDIST_STATE_HOME"):
            ledger.commit("a", fence, [b"draw"])
        with pytest.raises(kind, match="DPDIST_STATE_HOME"):
            content_of(Ledger(place), "a")  # committed, and not seen by the witness: not given out
    assert released(place, "a", b"never drawn") == b"draw"


def test_who_holds_a_witness_for_too_long_makes_others_give_up_for_now(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "WAIT_SECONDS", 0)
    with FolderWitness().held(ledger.ledger_id), pytest.raises(ResumableError, match="Another process"):
        reserve(ledger, "a")
    assert reserve(ledger, "a") is State.RESERVED


@pytest.mark.parametrize("identity", ["../../escape", "", "A" * 32])
def test_an_identity_that_is_none_names_no_file(identity: str) -> None:
    with pytest.raises(DataError):
        FolderWitness().place(identity)


def test_a_witness_holds_charges_and_no_draw(ledger: Ledger, place: LedgerAddress) -> None:
    released(place, "a", b"the draw itself")
    body = json.loads(file_of(ledger).read_bytes().partition(b"\n")[0])
    assert body["format"] == "dpdist-witness/1"
    (entry,) = body["releases"]
    assert entry.keys() == {"id", "parameters", "guarantee", "periods", "digest"}
    assert entry["guarantee"] == pure().to_json()
    assert b"the draw itself" not in file_of(ledger).read_bytes()


# --- crashes ----------------------------------------------------------------------------------------------------------


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
def test_a_death_around_the_witness_locks_nobody_out_and_gives_out_one_draw(
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
    record = ledger.record("a")
    assert record is not None
    assert record.state is State.COMMITTED
    seen = death is _dies_after_the_witness
    if first == "ledger" or seen:
        if seen:
            with pytest.raises(RefusedError):
                reserve(Ledger(twin), "a")
        assert released(place, "a", b"never drawn") == b"ours"
        with pytest.raises(RefusedError):
            released(twin, "a", b"theirs")
        return
    # nobody saw our draw: the copy may draw, and then ours is never given out
    assert released(twin, "a", b"theirs") == b"theirs"
    for _ in range(2):
        with pytest.raises(RefusedError):
            released(place, "a", b"never drawn")
        Ledger(place).adopt()
    mended = Ledger(place)
    mended.verify()
    assert [(r.release_id, r.state) for r in mended.records] == [("a", State.ADOPTED)]
    assert epsilon_spent(mended) == 1


def test_what_the_witness_has_seen_is_not_taken_back_when_another_release_is_adopted(
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


@pytest.mark.usefixtures("ledger")
def test_a_death_while_adopting_is_mended_by_adopting_again(
    place: LedgerAddress, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    twin = Ledger(copy_of(place))
    released(place, "a", b"draw")
    assert twin.adopt() == ["a"]
    begun(twin, "b")
    assert twin.commit("b", 1, [b"draw"])
    shutil.rmtree(state)
    lost = twin
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", dies)
        with pytest.raises(DiedError):
            lost.adopt()
    assert lost.exhausted  # the charge comes first
    lost.adopt()
    assert lost.balance().closed


def test_a_witness_forgets_nothing_when_the_books_are_exchanged_while_it_is_adopted(
    folder: Path, folder_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # found by the search of test_state_space.py: between its two transactions a backup was restored
    twin, backup = (Path(shutil.copytree(folder, folder.with_name(name))) for name in ("twin", "backup"))
    released(folder, "a", b"draw")
    transaction, append, adopted = FolderStorage.transaction, Transaction.append, []

    def appended(self: Transaction, entry: dict[str, Any], after: int, head: str) -> tuple[int, str]:
        adopted.append(entry["event"])
        return append(self, entry, after, head)

    def restored(self: FolderStorage) -> Any:
        if adopted == ["adopted"]:
            shutil.rmtree(twin)
            shutil.copytree(backup, twin)
        return transaction(self)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append", appended)
        patch.setattr(FolderStorage, "transaction", restored)
        with pytest.raises(RefusedError, match="elsewhere: a"):
            Ledger(twin).adopt()
    assert Ledger(twin).missing() == ["a"]
    assert released(folder, "a", b"never drawn") == b"draw"
    assert folder_ledger.missing() == []
