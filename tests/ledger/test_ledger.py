"""The ledger charges once, commits once and forgets nothing, whoever asks and however many at once.

One contract for both places, a folder and a PostgreSQL database; what only one of them can do wrong is tested apart.
What follows one another in any order (charges, attempts, refunds, drafts) is played in ``test_ledger_model.py``.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import crash_driver as driver
from support.ledgers import (
    DATASET,
    begun,
    behind,
    blobs,
    committed,
    epsilon_spent,
    gaussian,
    losses,
    pure,
    reserve,
    sql,
)
from support.releases import content_of

from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Capped, Reserved, Transaction
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.sqlite import FolderStorage
from dpdist.ledger.state import State
from dpdist.privacy.accounting import caps_for
from dpdist.privacy.guarantee import MICRO, Neighbours, PrivacyLoss

PATIENCE = 300.0
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let every permission bit through, so that only the product narrows them."""
    before = os.umask(0)
    yield
    os.umask(before)


# --- creation ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_read_a_ledger(folder: Path) -> None:
    made = committed(Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3")), "a", b"bytes")
    with made._locked() as (view, transaction):
        transaction.append({"event": "begun", "id": "a"}, view.after, view.head)
        # the write-ahead log exists only while a connection is open, and holds the same secrets
        modes = {p.relative_to(folder): stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
        assert Path("ledger.sqlite-wal") in modes
        directories = {p.relative_to(folder) for p in folder.rglob("*") if p.is_dir()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert directories == {Path("blobs")}
    assert len(modes) >= 4
    for path, mode in modes.items():
        assert mode == (0o700 if path in directories else 0o600), path


def test_a_new_ledger_knows_its_data_set_and_budget_and_nothing_else(place: LedgerAddress) -> None:
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1.5", "1e-7"))
    ledger = Ledger(place)
    assert ledger.dataset_id == DATASET
    assert ledger.budget == PrivacyLoss.parse("1.5", "1e-7")
    assert ledger.records == []
    assert ledger.charges == []
    assert blobs(place) == set()
    ledger.verify()


def test_a_ledger_is_never_created_over_something(ledger: Ledger, place: LedgerAddress) -> None:
    reserve(ledger, "a")
    with pytest.raises(DataError):
        Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("100"))
    assert Ledger(place).budget == PrivacyLoss.parse("3")
    assert epsilon_spent(Ledger(place)) == 1
    if isinstance(place, Path):
        assert {path.name for path in place.parent.iterdir()} - {"deep"} == {place.name}  # beside the state folder


def test_a_missing_ledger_is_not_invented(place: LedgerAddress) -> None:
    assert not Ledger.stands_at(place)
    with pytest.raises(DataError, match="There is no ledger"):
        Ledger(place)
    assert not Ledger.stands_at(place)


def test_a_ledger_that_is_lost_while_it_is_used_is_not_invented(ledger: Ledger, place: LedgerAddress) -> None:
    if isinstance(place, Path):
        (place / "ledger.sqlite").unlink()
    else:
        sql("DELETE FROM journal")(place)
    with pytest.raises(DataError):
        reserve(ledger, "a")
    assert not Ledger.stands_at(place)


# --- charging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"period": "may"}, "period"),
        ({"columns": ["y", "x"]}, "columns"),
        ({"columns": ["y", "x"], "period": ""}, "columns, period"),
        ({"epsilon": 2}, "epsilon"),
        ({"bound": {"clip_norm": 2.0}}, "bound"),
        ({"since_the_next_version": None}, "since_the_next_version"),
    ],
)
def test_a_refusal_names_the_parameters_that_differ(ledger: Ledger, change: dict[str, Any], named: str) -> None:
    asked: dict[str, Any] = {"columns": ["x", "y"], "period": "april", "bound": {"clip_norm": 1.0}}
    reserve(ledger, "a", **asked)
    head = ledger.head
    asked = {"epsilon": 1, **asked, **change}
    with pytest.raises(RefusedError, match=f": {named} differ"):
        ledger.reserve("a", dataset_id=DATASET, parameters=asked, guarantee=pure())
    assert ledger.head == head
    assert epsilon_spent(ledger) == 1


def test_the_parameters_of_an_aborted_release_still_bind_its_id(ledger: Ledger) -> None:
    reserve(ledger, "a", period="april")
    ledger.abort("a")
    with pytest.raises(RefusedError, match=r": period differ"):
        reserve(ledger, "a", period="may")


def test_a_budget_without_delta_pays_for_no_gaussian_release(ledger: Ledger) -> None:
    # its delta at epsilon 3 is far below what a float can hold, and still not 0: no Gaussian release is pure
    with pytest.raises(RefusedError):
        ledger.reserve("a", dataset_id=DATASET, parameters={}, guarantee=gaussian("0.1", "1e-9"))
    assert ledger.records == []


def test_a_budget_without_delta_is_the_plain_sum_of_epsilons(place: LedgerAddress) -> None:
    # an account that trades epsilon for a delta too small for a float still has a delta
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1.9"))
    small = replace(pure(), loss=PrivacyLoss.parse("0.001"))
    with ledger._locked() as (view, transaction):
        caps = tuple(caps.to_json() for caps in caps_for(PrivacyLoss.parse("1.9")))
        charges = [Reserved(f"r{number}", {}, small.to_json()) for number in range(1900)]
        ledger._append(view, transaction, Capped(caps), *charges)
    ledger.verify()
    assert len(losses(ledger)) == 1900
    with pytest.raises(RefusedError):
        ledger.reserve("one-more", dataset_id=DATASET, parameters={}, guarantee=small)


def test_another_data_set_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RefusedError):
        ledger.reserve("a", dataset_id="f" * 32, parameters={}, guarantee=pure())
    assert ledger.records == []


@pytest.mark.parametrize("release_id", ["", "a.b", "a/b", "../a", "a b", "a\n", "a*", "é", "a" * 65])
def test_a_malformed_id_is_refused(ledger: Ledger, release_id: str) -> None:
    with pytest.raises(UsageError):
        reserve(ledger, release_id)
    assert ledger.records == []


def test_what_was_reserved_at_a_lower_price_is_not_drawn_at_a_higher_one(ledger: Ledger) -> None:
    asked = partial(ledger.reserve, "a", dataset_id=DATASET, parameters={})
    asked(guarantee=pure(1))
    assert asked(guarantee=pure(1)) is State.RESERVED
    with pytest.raises(RefusedError, match=r"reserved .* by another version of dpdist, at epsilon 1"):
        asked(guarantee=pure(2))
    assert asked(guarantee=replace(pure(1), bounded_ranges=(Fraction(1),))) is State.RESERVED


def test_losses_under_two_relations_are_never_added(ledger: Ledger) -> None:
    reserve(ledger, "a")
    with pytest.raises(RefusedError, match="replace-one"):
        ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    assert [record.release_id for record in ledger.records] == ["a"]
    # while nothing is charged, no relation is chosen
    ledger.abort("a")
    assert ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    with pytest.raises(RefusedError, match="add-remove"):
        reserve(ledger, "a")


def test_gaussian_releases_are_counted_as_scipy_counts_them(place: LedgerAddress) -> None:
    from scipy.optimize import brentq
    from scipy.stats import norm

    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-5"))
    guarantee = gaussian("0.5", "1e-6")
    granted = 0
    with suppress(RefusedError):
        while granted < 100:
            ledger.reserve(f"r{granted}", dataset_id=DATASET, parameters={}, guarantee=guarantee)
            granted += 1

    def delta(epsilon: float, mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    mu = brentq(lambda mu: delta(0.5, mu) - 1e-6, 0.01, 2, xtol=1e-13)
    fitting = [k for k in range(1, 100) if delta(2, math.sqrt(k) * mu) <= 1e-5]
    assert fitting == list(range(1, granted + 1))
    assert granted > 4  # what adding up epsilons would allow
    assert len(Ledger(place).records) == granted
    whole = brentq(lambda mu: delta(2, mu) - 1e-5, 0.01, 2, xtol=1e-13)
    left = math.sqrt(whole**2 - granted * mu**2)
    largest = brentq(lambda epsilon: delta(epsilon, left) - 1e-5, 1e-3, 2, xtol=1e-13)
    assert Ledger(place).balance().left.gaussian_micro == pytest.approx(1e6 * largest, abs=3)


def test_a_pure_release_fits_beside_a_gaussian_one_if_that_was_declared_beforehand(place: LedgerAddress) -> None:
    budget = PrivacyLoss.declared("2", "1e-6", "1")
    ledger = Ledger.create(place, dataset_id=DATASET, budget=budget)
    ledger.reserve("g", dataset_id=DATASET, parameters={}, guarantee=gaussian("1", "1e-6"))
    with pytest.raises(RefusedError):
        reserve(ledger, "p", 2)
    reserve(ledger, "p", 1)
    with pytest.raises(RefusedError):
        reserve(ledger, "q", 1)
    assert Ledger(place).budget == budget
    Ledger(place).verify()


def test_a_refusal_of_another_kind_of_release_names_the_parts_of_a_budget(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-6"))
    ledger.reserve("g", dataset_id=DATASET, parameters={}, guarantee=gaussian("0.5", "1e-6"))
    with pytest.raises(RefusedError, match=r"set apart before the first release \(pure, reserve\)"):
        reserve(ledger, "p", 1)


def test_a_budget_without_a_delta_says_so_when_one_is_asked_for(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match=r"The delta of this budget is 0.*delta=D"):
        ledger.reserve("g", dataset_id=DATASET, parameters={}, guarantee=gaussian("1", "1e-6"))


def test_caps_are_written_with_the_first_charge_and_never_again(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3", "1e-6"))
    assert ledger.caps == ()
    point = replace(pure(1), loss=PrivacyLoss.parse("1", "1e-7"))
    ledger.reserve("w", dataset_id=DATASET, parameters={}, guarantee=point)
    assert ledger.caps == caps_for(PrivacyLoss.parse("3", "1e-6"), point)
    ledger.abort("w")  # nothing was committed: the next release is the first again
    assert ledger.caps == ()
    committed(ledger, "p", b"bytes")
    fixed = ledger.caps
    assert fixed == caps_for(PrivacyLoss.parse("3", "1e-6"))
    with pytest.raises(RefusedError):
        ledger.reserve("w", dataset_id=DATASET, parameters={}, guarantee=point)
    reserve(ledger, "q", 1)
    ledger.abort("q")
    assert Ledger(place).caps == fixed
    with behind(place) as execute:
        events = [json.loads(text)["event"] for (text,) in execute("SELECT entry FROM journal").fetchall()]
    assert events.count("capped") == 2
    Ledger(place).verify()


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_begin_deletes_the_drafts_of_dead_attempts_of_this_release_only(folder_ledger: Ledger, folder: Path) -> None:
    committed(folder_ledger, "a-b", b"kept")
    reserve(folder_ledger, "a")
    folder_ledger.begin("a")
    for name in ("a.1.dead", "a.1.beef", "a-b.1.other", "b.1.other"):
        FolderStorage._write(folder / "blobs" / name, [b"draft"])
    folder_ledger.begin("a")
    left = {name for name in blobs(folder) if (folder / "blobs" / name).read_bytes() == b"draft"}
    assert left == {"a-b.1.other", "b.1.other"}
    assert content_of(folder_ledger, "a-b") == b"kept"


def test_abort_and_publication_delete_drafts_but_not_what_was_committed(folder_ledger: Ledger, folder: Path) -> None:
    reserve(folder_ledger, "a")
    FolderStorage._write(folder / "blobs" / "a.1.dead", [b"draft"])
    folder_ledger.abort("a")
    assert blobs(folder) == set()
    committed(folder_ledger, "b", b"kept")
    FolderStorage._write(folder / "blobs" / "b.1.dead", [b"draft"])
    folder_ledger.published("b")
    assert len(blobs(folder)) == 1
    assert content_of(folder_ledger, "b") == b"kept"


def test_publication_is_recorded_once(ledger: Ledger) -> None:
    committed(ledger, "a", b"bytes")
    ledger.published("a")
    head = ledger.head
    ledger.published("a")
    assert ledger.head == head
    assert reserve(ledger, "a") is State.PUBLISHED


def test_a_draft_swept_by_an_attempt_that_then_died_cannot_be_committed(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = begun(folder_ledger, "a")
    write = FolderStorage._write

    class DiedError(Exception):
        pass

    def dies(*_: Any) -> None:
        raise DiedError

    def swept(path: Path, pieces: Iterable[bytes]) -> None:
        write(path, pieces)
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "append", dies)
            with pytest.raises(DiedError):
                Ledger(folder).begin("a")  # deletes the draft, then its transaction is rolled back
        assert not path.exists()

    monkeypatch.setattr(FolderStorage, "_write", staticmethod(swept))
    assert not folder_ledger.commit("a", fence, [b"draw"])
    record = folder_ledger.record("a")
    assert record is not None
    assert (record.state, record.fence) == (State.RESERVED, fence)  # so the fence alone would have let it pass
    monkeypatch.undo()
    again = folder_ledger.begin("a")
    assert again is not None
    assert folder_ledger.commit("a", again, [b"second draw"])
    folder_ledger.verify()


@pytest.mark.parametrize("content", [b"", b"\x00\xff\r\n" * 1000, bytes(range(256)) * 4096])
def test_what_was_committed_is_read_back_bit_for_bit(ledger: Ledger, place: LedgerAddress, content: bytes) -> None:
    committed(ledger, "a", content)
    assert ledger.begin("a") is None
    for state in (State.COMMITTED, State.PUBLISHED):
        assert content_of(Ledger(place), "a") == content
        record = Ledger(place).record("a")
        assert record is not None
        assert record.state is state
        assert record.digest == hashlib.sha256(content).hexdigest()
        ledger.published("a")


# --- several processes ------------------------------------------------------------------------------------------------


def test_four_processes_together_spend_exactly_the_budget(place: LedgerAddress) -> None:
    processes, attempts, affordable = 4, 20, 30
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss(affordable * MICRO))
    barrier = SPAWN.Barrier(processes)  # none begins before all are there
    with ProcessPoolExecutor(processes, mp_context=SPAWN, initializer=driver.meet_at, initargs=(barrier,)) as pool:
        runs = [pool.submit(driver.reserve_many, place, f"p{process}", attempts) for process in range(processes)]
        granted = [run.result(PATIENCE) for run in runs]
    ids = [release_id for each in granted for release_id in each]
    assert len(ids) == affordable
    ledger = Ledger(place)
    assert {record.release_id for record in ledger.records} == set(ids)
    assert epsilon_spent(ledger) == affordable
    ledger.verify()
    with pytest.raises(RefusedError):
        reserve(ledger, "one-more")


def acknowledged_before_the_kill(place: LedgerAddress, prefix: str, reservations: int) -> list[str]:
    """Start a process that reserves without end, kill it after so many reservations, return all it acknowledged."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=driver.reserve_for_ever, args=(place, prefix, theirs))
    process.start()
    theirs.close()
    heard = []
    with ours, suppress(EOFError):
        for _ in range(reservations):
            assert ours.poll(PATIENCE)
            heard.append(ours.recv())
        process.kill()
        while True:  # what it had sent before it died
            heard.append(ours.recv())
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL  # it did not end by itself
    process.close()
    return heard


def test_no_acknowledged_reservation_is_lost_when_its_process_is_killed(place: LedgerAddress) -> None:
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss(10**5 * MICRO))
    acknowledged: list[str] = []
    for number, reservations in enumerate([1, 3, 8], start=1):
        heard = acknowledged_before_the_kill(place, f"k{number}", reservations)
        assert len(heard) >= reservations
        acknowledged += heard
        ledger = Ledger(place)
        ledger.verify()
        recorded = {record.release_id for record in ledger.records}
        assert set(acknowledged) <= recorded
        # each process may die between its last reservation and its last word, no more
        assert len(recorded) <= len(acknowledged) + number
        assert epsilon_spent(ledger) == len(recorded)
