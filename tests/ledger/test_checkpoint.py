"""A checkpoint saves time and decides nothing: what is opened from one is what the journal says, whatever it says."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ledgers import (
    DATASET,
    DiedError,
    begun,
    committed,
    copy_of,
    dies,
    epsilon_spent,
    gaussian,
    pure,
    reserve,
    sql,
)
from support.releases import content_of

from dpdist.errors import DataError, DpdistError, RefusedError
from dpdist.ledger import checkpoint
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.checkpoint import encoded, resumed
from dpdist.ledger.journal import (
    Aborted,
    Adopted,
    Begun,
    Capped,
    Closed,
    Committed,
    CommittedRelease,
    CommitWitnessed,
    Created,
    Event,
    Published,
    Reserved,
    Staged,
    entry_of,
)
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import View
from dpdist.privacy.accounting import caps_for
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.privacy.parallel import Charge

pytestmark = pytest.mark.usefixtures("state")
PLACES = ("folder",)
BUDGET = PrivacyLoss.parse("2", "1e-6").mixed(1_000_000, 10**11)
POINT = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("0.1", "1e-8"), None, Arithmetic.IDEAL_REAL, "none")
KINDS = [pure(1), gaussian("0.3", "1e-6"), gaussian("0.7", "1e-6"), POINT]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SPACING", 1)


def kept(ledger: Ledger) -> Path:
    path = checkpoint.path_of(ledger.ledger_id)
    assert path is not None
    return path


def folded(ledger: Ledger) -> bytes:
    """Return what the journal says, read from its first entry."""
    with ledger._storage.transaction() as transaction:
        view = View()
        entries, after, head = transaction.read(0, view.head)
    for entry in entries:
        view.fold(entry)
    view.after, view.head = after, head
    return encoded(view)


def opened(place: LedgerAddress) -> bytes:
    """Return what whoever opens the ledger now believes."""
    return encoded(Ledger(place)._snapshot())


def resumed_at(place: LedgerAddress) -> int:
    """Return the number of the entry from which the ledger is opened; 0: from the start."""
    ledger = Ledger(place)
    ledger._snapshot()
    return ledger._kept


# --- what is resumed is what is folded --------------------------------------------------------------------------------


def draw(name: str, draws: int) -> list[Event]:
    stages = [Staged(name, f"{name}.{number}.s", str(number) * 64) for number in range(1, draws)]
    staged: list[Event] = [event for stage in stages for event in (stage, CommitWitnessed(name), Begun(name, "1"))]
    last = Committed(name, f"{name}.2.x", sha256(name.encode()).hexdigest())
    return [Begun(name, "0"), *staged, last, CommitWitnessed(name), Published(name)]


def history(chance: random.Random, steps: int) -> list[Event]:
    """Return a journal: periods, charges of every kind, aborts, ids that come again, stages, adoptions."""
    budget: dict[str, Any] = {**BUDGET.to_json()}
    events: list[Event] = [Created(format="dpdist-ledger-periods/4", ledger_id="e" * 32, dataset_id=DATASET, **budget)]
    events.append(Capped(tuple(caps.to_json() for caps in caps_for(BUDGET))))
    view, closed = View(), []
    for event in events:
        view.fold(entry_of(event))
    for step in range(steps):
        action = chance.choice(["close", "reserve", "reserve", "reserve", "abort", "abort", "draw", "draw", "adopt"])
        open_ = [r.release_id for r in view.records.values() if r.state.value == "reserved"]
        new: list[Event] = []
        if action == "close":
            closed.append(f"p{step:03}")
            new = [Closed(closed[-1], f"seal {step}")]
        elif action == "reserve":
            guarantee = chance.choice(KINDS)
            periods = tuple(sorted(chance.sample(closed, chance.randint(0, len(closed))))) if closed else ()
            accounts = view.accounts_for(guarantee)
            gone = [r.release_id for r in view.records.values() if r.state.value == "aborted"]
            name = chance.choice(gone) if gone and chance.random() < 0.5 else f"r{step}"
            weighted = guarantee.mu_squared is not None and periods and chance.random() < 0.5
            weights = tuple(chance.randint(1, 64) for _ in periods) if weighted else ()
            if accounts is not None and accounts.holds(Charge(guarantee, periods, weights)):
                caps = () if view.accounts else (Capped(tuple(c.to_json() for c in accounts.caps)),)
                draws: Any = chance.choice([1, 2, 3])
                parameters: dict[str, object] = {"a\ud800": [1, 0.1, None], "step": chance.randint(0, 2)}
                new = [*caps, Reserved(name, parameters, guarantee.to_json(), periods, draws, weights)]
        elif action == "abort" and open_:
            new = [Aborted(chance.choice(open_))]
        elif action == "draw" and open_:
            name = chance.choice(open_)
            new = draw(name, view.records[name].draws)[: chance.randint(1, 10)]
        elif action == "adopt" and chance.random() < 0.2:
            release = CommittedRelease(f"other{step}", {}, gaussian("0.01", "1e-6").to_json(), (), "7" * 64)
            new = [Adopted("8" * 64, tuple(open_[:1]), (release,), {}, view.capped)]
        for event in new:
            view.fold(entry_of(event))
            events.append(event)
    return events


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_accounts_resumed_anywhere_are_those_of_the_whole_journal(seed: int) -> None:
    chance = random.Random(seed)
    events = history(chance, 40)
    cut = chance.randint(1, len(events))
    whole, begun_, later = View(), View(), None
    for number, event in enumerate(events, 1):
        whole.fold(entry_of(event))
        if number <= cut:
            begun_.fold(entry_of(event))
        if number == cut:
            later = resumed(encoded(begun_))
        elif later is not None:
            later.fold(entry_of(event))
    assert later is not None
    assert encoded(later) == encoded(whole)
    assert later.records == whole.records
    assert list(later.records) == list(whole.records)
    assert (later.accounts is None) == (whole.accounts is None)
    if whole.accounts is not None and later.accounts is not None:
        assert later.accounts == whole.accounts  # exact fractions, and which sets are closed
        assert later.accounts.to_come.rest == whole.accounts.to_come.rest
        for name in [record.release_id for record in whole.records.values()]:
            later.accounts.refund(name)
            whole.accounts.refund(name)
        assert later.accounts == whole.accounts


@pytest.mark.usefixtures("often")
def test_the_next_process_goes_on_from_the_checkpoint(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("9"), periodic=True)
    for day in "abc":
        Ledger(place).close_period(day, f"seal {day}")
        committed(Ledger(place), day, day.encode())
        assert opened(place) == folded(ledger)
    reserve(Ledger(place), "gone")
    reserve(Ledger(place), "stays")
    assert Ledger(place).abort("gone")
    assert opened(place) == folded(ledger)
    assert resumed_at(place) >= ledger._snapshot().after - 2
    assert content_of(Ledger(place), "b") == b"b"
    ledger.verify()
    with pytest.raises(RefusedError, match="costs"):
        reserve(Ledger(place), "too-much", 9)


@pytest.mark.usefixtures("often")
def test_whoever_only_asks_writes_none(folder: Path) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    for use in (ledger.balance, ledger.verify, lambda: ledger.records, ledger.missing, ledger.require_current):
        use()
    assert not kept(ledger).parent.exists()
    reserve(ledger, "a")
    assert kept(ledger).stat().st_mode & 0o777 == 0o600
    assert kept(ledger).parent.stat().st_mode & 0o777 == 0o700


# --- what may be in the file ------------------------------------------------------------------------------------------


def sealed(body: bytes) -> bytes:
    """Return a body with a digest of its own."""
    return body + b"\n" + sha256(body).hexdigest().encode() + b"\n"


def changed(content: bytes, change: Callable[[Any], object]) -> bytes:
    value = json.loads(content.splitlines()[0])
    change(value)
    return sealed(json.dumps(value).encode())


PASSED_OVER: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "a flipped bit": lambda content: content.replace(b'"r', b'"s', 1)[:-70] + content[-70:-1] + b"\n",
    "no digest": lambda content: content.splitlines()[0],
    "another version": lambda content: changed(content, lambda v: v.update(format="dpdist-checkpoint/1 of dpdist 0.0")),
    "no checkpoint": lambda _: sealed(b"[]"),
    "no record of that guarantee": lambda content: changed(content, lambda v: v.update(guarantees=[])),
    "no price of that number": lambda content: changed(content, lambda v: v.update(prices=[])),
    "no budget": lambda content: changed(content, lambda v: v.update(budget={})),
    "of no entry yet": lambda content: changed(content, lambda v: v["plain"].update(after=99)),
    "of another journal": lambda content: changed(content, lambda v: v["plain"].update(head="0" * 64)),
    "of before the beginning": lambda content: changed(content, lambda v: v["plain"].update(after=0)),
    "of no number": lambda content: changed(content, lambda v: v["plain"].update(after="3")),
}


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_damaged_or_of_something_else_is_passed_over(folder: Path) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    committed(ledger, "r0", b"bytes")
    reserve(ledger, "r1")
    ledger.begin("r1")
    content, truth = kept(ledger).read_bytes(), folded(ledger)
    assert resumed_at(folder) > 0
    for name, damage in PASSED_OVER.items():
        kept(ledger).write_bytes(damage(content))
        assert resumed_at(folder) == 0, name
        assert opened(folder) == truth, name
        Ledger(folder).verify()
    kept(ledger).unlink()
    kept(ledger).mkdir()  # nor can one be written
    reserve(Ledger(folder), "r2")
    with pytest.raises(RefusedError, match="costs"):
        reserve(Ledger(folder), "r3")


@pytest.mark.usefixtures("often")
def test_a_forged_checkpoint_is_found_by_verify(folder_ledger: Ledger, folder: Path) -> None:
    ledger, place = folder_ledger, folder
    reserve(ledger, "a")
    reserve(ledger, "b")
    content, after = kept(ledger).read_bytes(), resumed_at(place)

    def forged(value: Any) -> None:
        value["prices"] = [[{**one, "epsilon_micro": 0} for one in price] for price in value["prices"]]
        value["prices"][value["accounts"]["to_come"][1]] = value["accounts"]["caps"]

    kept(ledger).write_bytes(changed(content, forged))
    assert resumed_at(place) == after
    with pytest.raises(DataError, match=r"does not say what the journal of .* says"):
        Ledger(place).verify()
    kept(ledger).unlink()
    Ledger(place).verify()
    assert epsilon_spent(Ledger(place)) == 2


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("other", ["may write it", "owns it"])
def test_a_checkpoint_in_the_hands_of_another_user_is_passed_over(
    folder_ledger: Ledger, folder: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(folder_ledger, "a")
    reserve(folder_ledger, "b")
    assert resumed_at(folder) > 0
    if other == "may write it":
        kept(folder_ledger).chmod(0o620)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: kept(folder_ledger).stat().st_uid + 1)
    assert resumed_at(folder) == 0
    assert epsilon_spent(Ledger(folder)) == 2


@pytest.mark.usefixtures("often")
def test_a_charge_that_was_edited_before_the_checkpoint_buys_nothing(folder_ledger: Ledger, folder: Path) -> None:
    ledger, place = folder_ledger, folder
    reserve(ledger, "a", 2)
    reserve(ledger, "b")
    ledger.begin("b")
    sql("UPDATE journal SET entry = REPLACE(entry, '2000000', '1') WHERE sequence = 3")(place)
    with pytest.raises(RefusedError, match="costs"):
        reserve(Ledger(place), "c")
    with pytest.raises(DataError, match="broken at entry 3"):
        Ledger(place).verify()


# --- copies, backups, crashes -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
def test_copies_that_share_one_checkpoint_believe_only_their_own(folder_ledger: Ledger, folder: Path) -> None:
    ledger, place = folder_ledger, folder
    reserve(ledger, "a")
    twin = copy_of(place)
    older = kept(ledger).read_bytes()
    reserve(ledger, "b")
    ledger.begin("b")  # the checkpoint knows of b now, and the copy does not
    assert resumed_at(twin) == 0
    assert opened(twin) == folded(Ledger(twin))
    reserve(Ledger(twin), "c", 2)
    assert {r.release_id for r in Ledger(place).records} == {"a", "b"}
    kept(ledger).write_bytes(older)  # a state folder from a backup
    for each in (place, twin):
        assert 0 < resumed_at(each) < Ledger(each)._snapshot().after
        assert opened(each) == folded(Ledger(each))
        Ledger(each).verify()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("point", ["before it is written", "before it is renamed"])
def test_whoever_dies_while_writing_one_loses_nothing(
    folder_ledger: Ledger, folder: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = begun(folder_ledger, "a")
    with monkeypatch.context() as patch:
        if point == "before it is written":
            patch.setattr(checkpoint, "encoded", dies)
        else:
            patch.setattr(Path, "replace", dies)
        with pytest.raises(DiedError):
            reserve(Ledger(folder), "b")
    if point == "before it is renamed":
        aside = kept(folder_ledger).with_suffix(".partial")
        aside.write_bytes(aside.read_bytes()[:100])  # and it was torn
    assert opened(folder) == folded(folder_ledger)
    assert Ledger(folder).record("b") is None
    assert folder_ledger.commit("a", fence, [b"draw"])
    reserve(Ledger(folder), "b")
    assert resumed_at(folder) == folder_ledger._snapshot().after - 1
    assert opened(folder) == folded(folder_ledger)


@pytest.mark.usefixtures("often")
def test_a_twin_that_believed_any_checkpoint_would_be_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    reserve(ledger, "a", 2)
    twin = copy_of(folder)
    ledger.abort("a")
    reserve(ledger, "b")
    begun(ledger, "c")
    monkeypatch.setattr("dpdist.ledger.journal.Transaction.passed", lambda *_: True)
    with pytest.raises((DpdistError, AssertionError)):
        assert opened(twin) == folded(Ledger(twin))
