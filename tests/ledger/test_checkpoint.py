"""A checkpoint only saves time: a ledger opened from one equals its journal, whatever the checkpoint contains."""

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
    dies,
    epsilon_spent,
    gaussian,
    pure,
    reserve,
)
from support.releases import content_of

from dpdist.errors import DataError, RefusedError
from dpdist.ledger import checkpoint, journal
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.checkpoint import encoded, resumed
from dpdist.ledger.journal import Event, entry_of
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import View
from dpdist.privacy.accounting import caps_for
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss

pytestmark = pytest.mark.usefixtures("state")
BUDGET = PrivacyLoss.parse("2", "1e-6").mixed(1_000_000, 10**11)
POINT = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("0.1", "1e-8"), None, Arithmetic.IDEAL_REAL, "none")
KINDS = [pure(1), gaussian("0.1", "1e-6"), gaussian("0.3", "1e-6"), POINT]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SPACING", 1)


def kept(ledger: Ledger) -> Path:
    path = checkpoint.path_of(ledger.ledger_id)
    assert path is not None
    return path


def folded(ledger: Ledger) -> bytes:
    """Return the view of the journal, folded from its first entry."""
    view = View()
    with ledger._storage.transaction() as transaction:
        entries, after, head = transaction.read(0, view.head)
    for entry in entries:
        view.fold(entry)
    view.after, view.head = after, head
    return encoded(view)


def opened(place: LedgerAddress) -> bytes:
    return encoded(Ledger(place)._snapshot())


def resumed_at(place: LedgerAddress) -> int:
    """Return the number of the entry at which reading resumes; 0: the start."""
    ledger = Ledger(place)
    ledger._snapshot()
    return ledger._checkpointed


def draw(name: str, draws: int) -> list[Event]:
    events: list[Event] = [journal.Begun(name, "0")]
    for number in range(1, draws):
        stage = journal.Staged(name, f"{name}.{number}.s", str(number) * 64)
        events += [stage, journal.CommitWitnessed(name), journal.Begun(name, "1")]
    last = journal.Committed(name, f"{name}.2.x", sha256(name.encode()).hexdigest())
    return [*events, last, journal.CommitWitnessed(name), journal.Published(name)]


def history(chance: random.Random) -> list[Event]:
    """Return a journal with periods, charges of all kinds, aborts, repeated ids, stages, and an adoption."""
    budget: dict[str, Any] = {**BUDGET.to_json()}
    capped = tuple(caps.to_json() for caps in caps_for(BUDGET))
    head = journal.Created(format="dpdist-ledger-periods/4", ledger_id="e" * 32, dataset_id=DATASET, **budget)
    events: list[Event] = [head, journal.Capped(capped)]
    closed: list[str] = []
    for step in range(20):
        if chance.random() < 0.3:
            closed.append(f"p{step:03}")
            events.append(journal.Closed(closed[-1], f"seal {step}"))
        guarantee = chance.choice(KINDS)
        periods = tuple(sorted(chance.sample(closed, chance.randint(0, len(closed)))))
        weighted = guarantee.mu_squared is not None and chance.random() < 0.5
        weights = tuple(chance.randint(1, 64) for _ in periods) if weighted else ()
        draws: Any = chance.choice([1, 2, 3])
        parameters: dict[str, object] = {"a\ud800": [1, 0.1, None], "step": chance.randint(0, 2)}
        reserved = journal.Reserved(f"r{step}", parameters, guarantee.to_json(), periods, draws, weights)
        drawn = draw(reserved.id, draws)[: chance.randint(0, 10)]
        aborted = journal.Aborted(reserved.id)
        events += chance.choice([[reserved, *drawn], [reserved, aborted], [reserved, aborted, reserved, *drawn]])
    release = journal.CommittedRelease("other", {}, gaussian("0.01", "1e-6").to_json(), (), "7" * 64)
    adopted = journal.Adopted("8" * 64, (), (release,), {}, journal.Caps(capped, None))
    return [*events, adopted, journal.Reserved("last", {}, POINT.to_json())]


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_accounts_resumed_anywhere_are_those_of_the_whole_journal(seed: int) -> None:
    chance = random.Random(seed)
    events = history(chance)
    cut = chance.randint(1, len(events))
    complete = View()
    for event in events[:cut]:
        complete.fold(entry_of(event))
    content = encoded(complete)
    later, sibling, copy = resumed(content), resumed(content), complete.copy()
    assert later is not None
    for event in events[cut:]:
        complete.fold(entry_of(event))
        later.fold(entry_of(event))
    assert encoded(later) == encoded(complete)
    assert list(later.records.items()) == list(complete.records.items())
    for release_id in complete.records:
        assert later.accounts == complete.accounts  # exact fractions, and the closed sets
        for view in (later, complete):
            if view.accounts is not None:
                view.accounts.refund(release_id)
    # changes of one copy do not affect the others
    assert resumed(content) == sibling
    assert sibling is not None
    assert encoded(sibling) == encoded(copy) == content


@pytest.mark.usefixtures("often")
def test_the_next_process_goes_on_from_the_checkpoint(folder: Path) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("9"), periodic=True)
    ledger.verify()
    ledger.require_current()
    assert not kept(ledger).parent.exists()  # reading writes none
    for day in "ab":
        Ledger(folder).close_period(day, f"seal {day}")
        committed(Ledger(folder), day, day.encode())
    reserve(Ledger(folder), "gone")
    reserve(Ledger(folder), "stays")
    assert Ledger(folder).abort("gone")
    assert opened(folder) == folded(ledger)
    assert resumed_at(folder) >= ledger._snapshot().after - 2
    assert [kept(ledger).stat().st_mode & 0o777, kept(ledger).parent.stat().st_mode & 0o777] == [0o600, 0o700]
    assert content_of(Ledger(folder), "b") == b"b"
    ledger.verify()
    with pytest.raises(RefusedError, match="costs"):
        reserve(Ledger(folder), "too-much", 9)


def changed(content: bytes, change: Callable[[Any], object]) -> bytes:
    """Change a checkpoint, and its digest with it."""
    value = json.loads(content.splitlines()[0])
    change(value)
    body = json.dumps(value).encode()
    return body + b"\n" + sha256(body).hexdigest().encode() + b"\n"


PASSED_OVER: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "a flipped bit": lambda content: content.replace(b'"r', b'"s', 1)[:-70] + content[-70:-1] + b"\n",
    "no digest": lambda content: content.splitlines()[0],
    "another version": lambda content: changed(content, lambda v: v.update(format="dpdist-checkpoint/1 of dpdist 0.0")),
    "no price of that number": lambda content: changed(content, lambda v: v.update(prices=[])),
    "of no entry yet": lambda content: changed(content, lambda v: v["plain"].update(after=99)),
    "of another journal": lambda content: changed(content, lambda v: v["plain"].update(head="0" * 64)),
    "of before the beginning": lambda content: changed(content, lambda v: v["plain"].update(after=0)),
}


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_damaged_or_of_something_else_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    committed(ledger, "r0", b"bytes")
    begun(ledger, "r1")
    content, truth = kept(ledger).read_bytes(), folded(ledger)
    for name, damage in PASSED_OVER.items():
        kept(ledger).write_bytes(damage(content))
        assert resumed_at(folder) == 0, name
        assert opened(folder) == truth, name
        Ledger(folder).verify()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)  # it leaves its staging file
        with pytest.raises(DiedError):
            reserve(Ledger(folder), "r2")
    assert opened(folder) == truth
    kept(ledger).unlink()
    begun(Ledger(folder), "r2")
    assert resumed_at(folder) == ledger._snapshot().after - 1
    kept(ledger).unlink()
    kept(ledger).mkdir()  # nor can it be written
    with pytest.raises(RefusedError, match="costs"):
        reserve(Ledger(folder), "r3")


@pytest.mark.usefixtures("often")
def test_a_forged_checkpoint_is_found_by_verify(folder_ledger: Ledger, folder: Path) -> None:
    reserve(folder_ledger, "a")
    reserve(folder_ledger, "b")
    content, after = kept(folder_ledger).read_bytes(), resumed_at(folder)

    def forged(value: Any) -> None:
        value["prices"] = [[{**one, "epsilon_micro": 0} for one in price] for price in value["prices"]]
        value["prices"][value["accounts"]["to_come"][1]] = value["accounts"]["caps"]

    kept(folder_ledger).write_bytes(changed(content, forged))
    assert resumed_at(folder) == after
    with pytest.raises(DataError, match=r"was altered: it differs from the journal of "):
        Ledger(folder).verify()
    kept(folder_ledger).unlink()
    Ledger(folder).verify()
    assert epsilon_spent(Ledger(folder)) == 2


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
