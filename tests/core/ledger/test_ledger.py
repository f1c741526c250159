"""The ledger charges once, commits once and loses nothing: one contract for a folder and a PostgreSQL database.

Charges, attempts, refunds and drafts in any order are played in ``test_ledger_model.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import stat
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import crash_driver as driver
from support.ledgers import (
    DATASET,
    DiedError,
    begun,
    blobs,
    committed,
    dies,
    epsilon_spent,
    gaussian,
    pure,
    reserve,
    sql,
)

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.journal import Transaction
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.sqlite import FolderStorage
from dpdist.core.ledger.state import State
from dpdist.core.privacy.accounting import caps_for
from dpdist.core.privacy.guarantee import MICRO, Neighbours, PrivacyLoss

PLACES = ("folder", "postgres")


def test_only_the_owner_can_read_a_ledger(folder: Path) -> None:
    before = os.umask(0)  # all permission bits are allowed
    try:
        ledger = committed(Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3")), "a", b"bytes")
        with ledger._locked() as (view, transaction):
            transaction.append({"event": "begun", "id": "a"}, view.after, view.head)
            # the write-ahead log exists only while a connection is open, and contains the same secrets
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
            assert folder / "ledger.sqlite-wal" in modes
            assert modes == {path: 0o700 if path in {folder, folder / "blobs"} else 0o600 for path in modes}
    finally:
        os.umask(before)


def test_a_new_ledger_has_its_data_set_and_budget_and_is_never_overwritten(place: LedgerAddress) -> None:
    budget = PrivacyLoss.parse("1.5", "1e-7")
    Ledger.create(place, dataset_id=DATASET, budget=budget)
    ledger = Ledger(place)
    assert (ledger.dataset_id, ledger.budget, ledger.records, ledger.charges) == (DATASET, budget, [], [])
    assert blobs(place) == set()
    ledger.verify()
    reserve(ledger, "a")
    with pytest.raises(DataError):
        Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("100"))
    assert (Ledger(place).budget, epsilon_spent(Ledger(place))) == (budget, 1)
    if isinstance(place, Path):
        assert {path.name for path in place.parent.iterdir()} - {"deep"} == {place.name}  # apart from the state folder


def test_a_missing_or_lost_ledger_is_not_created_again(place: LedgerAddress) -> None:
    with pytest.raises(DataError, match="There is no ledger"):
        Ledger(place)
    assert not Ledger.stands_at(place)
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    if isinstance(place, Path):
        (place / "ledger.sqlite").unlink()
    else:
        sql("DELETE FROM journal")(place)
    with pytest.raises(DataError):
        reserve(ledger, "a")
    assert not Ledger.stands_at(place)


def test_a_refusal_names_the_parameters_that_differ(ledger: Ledger) -> None:
    parameters: dict[str, Any] = {"epsilon": 1, "columns": ["x", "y"], "period": "april", "bound": {"clip_norm": 1.0}}
    changes: dict[str, dict[str, Any]] = {
        "period": {"period": "may"},
        "columns, period": {"columns": ["y", "x"], "period": ""},
        "bound": {"bound": {"clip_norm": 2.0}},
        "since_the_next_version": {"since_the_next_version": None},
    }
    reserve(ledger, "a", **parameters)
    for aborted in (False, True):
        head = ledger.head
        for named, change in changes.items():
            with pytest.raises(RefusedError, match=f": {named} differ"):
                ledger.reserve("a", dataset_id=DATASET, parameters={**parameters, **change}, guarantee=pure())
        assert ledger.head == head
        assert aborted or ledger.abort("a")


def test_another_data_set_or_a_malformed_id_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match="another data set"):
        ledger.reserve("a", dataset_id="f" * 32, parameters={}, guarantee=pure())
    for release_id in ("", "a.b", "a/b", "../a", "a b", "a\n", "a*", "é", "a" * 65):
        with pytest.raises(UsageError):
            reserve(ledger, release_id)
    assert ledger.records == []


def test_a_release_reserved_at_a_lower_price_is_not_drawn_at_a_higher_one(ledger: Ledger) -> None:
    reserve = partial(ledger.reserve, "a", dataset_id=DATASET, parameters={})
    reserve(guarantee=pure(1))
    assert reserve(guarantee=pure(1)) is State.RESERVED
    with pytest.raises(RefusedError, match=r"Another version of dpdist reserved .* at epsilon 1"):
        reserve(guarantee=pure(2))
    assert reserve(guarantee=replace(pure(1), bounded_ranges=(Fraction(1),))) is State.RESERVED


def test_losses_under_two_relations_are_never_added(ledger: Ledger) -> None:
    reserve(ledger, "a")
    with pytest.raises(RefusedError, match="replace-one"):
        ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    assert [record.release_id for record in ledger.records] == ["a"]
    # without a charge, the relation is not fixed
    ledger.abort("a")
    assert ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    with pytest.raises(RefusedError, match="add-remove"):
        reserve(ledger, "a")


def test_a_budget_without_a_delta_pays_for_no_gaussian_release_and_says_so(ledger: Ledger) -> None:
    for loss in (("1", "1e-6"), ("0.1", "1e-9")):  # at epsilon 3 the delta of the second is too small for a float
        with pytest.raises(RefusedError, match=r"The delta of this budget is 0.*delta=D"):
            ledger.reserve("g", dataset_id=DATASET, parameters={}, guarantee=gaussian(*loss))
    assert ledger.records == []


def test_caps_are_written_with_the_first_charge_and_never_again(folder: Path) -> None:
    budget, point = PrivacyLoss.parse("3", "1e-6"), replace(pure(1), loss=PrivacyLoss.parse("1", "1e-7"))
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=budget)
    assert ledger.caps == ()
    ledger.reserve("w", dataset_id=DATASET, parameters={}, guarantee=point)
    assert ledger.caps == caps_for(budget, point)
    ledger.abort("w")  # without a commit, the next release is the first again
    assert ledger.caps == ()
    committed(ledger, "p", b"bytes")
    with pytest.raises(RefusedError):
        ledger.reserve("w", dataset_id=DATASET, parameters={}, guarantee=point)
    reserve(ledger, "q", 1)
    ledger.abort("q")
    assert Ledger(folder).caps == caps_for(budget)
    ledger.verify()


def test_a_draft_swept_by_an_attempt_that_then_died_cannot_be_committed(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, write = begun(folder_ledger, "a"), FolderStorage._write

    def swept(path: Path, chunks: Iterable[bytes]) -> None:
        write(path, chunks)
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "append", dies)
            with pytest.raises(DiedError):
                Ledger(folder).begin("a")  # deletes the draft, then its transaction is rolled back
        assert not path.exists()

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "_write", staticmethod(swept))
        assert not folder_ledger.commit("a", fence, [b"draw"])
    (record,) = folder_ledger.records
    assert (record.state, record.fence) == (State.RESERVED, fence)  # so the fence alone would have accepted it
    assert folder_ledger.commit("a", folder_ledger.begin("a") or 0, [b"second draw"])
    folder_ledger.verify()


def test_three_processes_together_spend_exactly_the_budget(place: LedgerAddress) -> None:
    processes, attempts, affordable = 3, 10, 20
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss(affordable * MICRO))
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(processes)  # all start at the same time
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=driver.meet_at, initargs=(barrier,)) as pool:
        runs = [pool.submit(driver.reserve_many, place, f"p{process}", attempts) for process in range(processes)]
        ids = [release_id for run in runs for release_id in run.result(300.0)]
    assert len(ids) == affordable == epsilon_spent(ledger)
    assert {record.release_id for record in ledger.records} == set(ids)
    ledger.verify()
    with pytest.raises(RefusedError):
        reserve(ledger, "one-more")


def test_an_address_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dpdist.core.ledger.postgresql", None)  # as without psycopg
    with pytest.raises(UsageError, match=r"needs psycopg\. Install it"):
        Ledger("postgresql+psycopg://somebody@127.0.0.1/budgets?ledger=people")
