"""Rows that were copied before they had a ledger share one budget, and no copy can be released for reproduction."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import Call
from support.ledgers import DATASET, DiedError, dies, new_address, pure, reserve

from dpdist.errors import RefusedError
from dpdist.ingest.registered import open_rows
from dpdist.ledger import state_folder
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.ledger.state_folder import StateFile
from dpdist.pipeline import budget
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows import periods
from dpdist.runtime.cluster import Cluster

pytestmark = pytest.mark.usefixtures("state")
PLACES = ("folder",)
BUDGET = PrivacyLoss.parse("2")
DECLARED = ("--budget-epsilon", "2")
PURE = ("--epsilon", "2", "--clip", "20")
REPRODUCE = ("--epsilon", "1", "--clip", "20", "--mechanism", "none", "--for-reproduction")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a table, computing in this process."""
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.random.default_rng(1).normal(size=(60, 3)) * 8)
    return tmp_path


@pytest.fixture
def twins(here: Path) -> tuple[Path, Path]:
    """Return rows without a budget, and a copy of them."""
    rows = budget.ingest_rows("table.npy", here / "rows.zarr").path
    return rows, Path(shutil.copytree(rows, here / "twin.zarr"))


@pytest.mark.usefixtures("twins")
def test_a_copy_made_before_the_ledger_gets_that_one_and_no_second_budget(here: Path, call: Call) -> None:
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *DECLARED).code == 0
    assert call("release", "rows.zarr", "a.zarr", *PURE).code == 0
    refused = call("ledger", "create", "twin.ledger", "--rows", "twin.zarr", *DECLARED)
    assert refused.code == 3
    assert all(part in refused.message for part in (f"{here / 'rows.ledger'}", "--ledger", "dpdist ledger adopt"))
    assert not Path("twin.ledger").exists()
    assert open_rows("twin.zarr").ledger_id is None
    assert call("release", "twin.zarr", "b.zarr", *PURE).code == 3
    other = call("ledger", "create", "rows.ledger", "--rows", "twin.zarr", "--budget-epsilon", "3")
    assert other.code == 2
    assert "declared once" in other.message
    assert call("ledger", "create", here / "rows.ledger", "--rows", "twin.zarr").code == 0
    twin = open_rows("twin.zarr")
    assert (twin.budget, twin.ledger_id) == (BUDGET, open_rows("rows.zarr").ledger_id)
    more = call("release", "twin.zarr", "b.zarr", "--epsilon", "1", "--clip", "20", "--ledger", "rows.ledger")
    assert more.code == 3
    assert "budget" in more.message
    # repeating the release from any copy gives the same bytes
    assert call("release", "twin.zarr", "c.zarr", *PURE, "--ledger", "rows.ledger").code == 0


def test_a_ledger_in_a_database_is_the_only_one_even_of_two_machines(
    twins: tuple[Path, Path],
    here: Path,
    call: Call,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, twin = twins
    with new_address(request.getfixturevalue("postgres")) as address:
        other = address.text.replace("ledger=books", "ledger=other")
        assert call("ledger", "create", address, "--rows", rows, *DECLARED).code == 0
        assert call("release", rows, "a.zarr", *PURE, "--ledger", address).code == 0
        refused = call("ledger", "create", "twin.ledger", "--rows", twin, *DECLARED)
        assert refused.code == 3
        assert str(address) in refused.message
        monkeypatch.setenv("DPDIST_STATE_HOME", str(here / "another machine"))
        refused = call("ledger", "create", other, "--rows", twin, *DECLARED)
        assert refused.code == 3
        assert "called books" in refused.message
        assert not Ledger.stands_at(other)
        assert call("ledger", "create", address, "--rows", twin, *DECLARED).code == 0
        assert call("release", twin, "b.zarr", "--epsilon", "1", "--clip", "20", "--ledger", address).code == 3


def test_a_folder_of_periods_that_was_copied_before_its_ledger_gets_one(here: Path) -> None:
    periods.create_periods(here / "visits", BUDGET)
    shutil.copytree("visits", "twin")
    _, table = budget.periodic_table(here / "visits")
    with pytest.raises(RefusedError, match=r"visits\.ledger.*dpdist\.create_ledger"):
        budget.periodic_table(here / "twin")
    assert not Path("twin.ledger").exists()
    _, named = budget.periodic_table(here / "twin", ledger=here / "visits.ledger")
    assert named.ledger_id == table.ledger_id


def test_two_copies_get_one_ledger_if_both_create_it_at_once(twins: tuple[Path, Path], here: Path) -> None:
    barrier = threading.Barrier(2)

    def created(rows: Path) -> bool:
        barrier.wait()
        with suppress(RefusedError):
            return bool(budget.create_ledger(budget.default_ledger(rows), rows, BUDGET))
        return False

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(created, twins)) == 1
    assert len(list(here.glob("*.ledger"))) == 1


def _before_it_is_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateFile, "write", dies)


def _before_the_rows_name_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget, "bind_ledger", dies)


@pytest.mark.parametrize("death", [_before_it_is_seen, _before_the_rows_name_it])
@pytest.mark.parametrize("next_one", [0, 1])
def test_whatever_dies_while_a_ledger_is_created_there_is_one(
    twins: tuple[Path, Path], death: Callable[[pytest.MonkeyPatch], None], next_one: int
) -> None:
    def created(rows: Path) -> Ledger:
        return budget.create_ledger(budget.default_ledger(rows), rows, BUDGET)

    with pytest.MonkeyPatch.context() as patch:
        death(patch)
        with pytest.raises(DiedError):
            created(twins[0])
    # the same command completes, unless the ledger of a copy came first
    first = twins[next_one] if death is _before_it_is_seen else twins[0]
    other = twins[1] if first == twins[0] else twins[0]
    if first != twins[next_one]:
        with pytest.raises(RefusedError, match=r"rows\.ledger"):
            created(other)
    ledger_id = created(first).ledger_id
    assert state_folder.seen(open_rows(first).dataset_id).ledger_id == ledger_id == open_rows(first).ledger_id
    with pytest.raises(RefusedError, match=rf"{first.stem}\.ledger"):
        created(other)


def test_rows_that_were_removed_and_ingested_again_are_a_new_table(here: Path, call: Call) -> None:
    for _ in range(2):
        assert call("ingest", "table.npy", "rows.zarr", *DECLARED).code == 0
        assert call("release", "rows.zarr", "a.zarr", *PURE).code == 0
        for name in ("rows.zarr", "rows.ledger", "a.zarr"):
            shutil.rmtree(here / name)


def test_of_two_ledgers_of_one_data_set_the_first_that_is_charged_is_the_only_one(
    place: LedgerAddress, tmp_path: Path
) -> None:
    """Create ledgers as an older version or two machines could."""
    first = Ledger.create(place, dataset_id=DATASET, budget=BUDGET)
    second = Ledger.create(tmp_path / "second", dataset_id=DATASET, budget=BUDGET)
    request: dict[str, Any] = {"dataset_id": DATASET, "parameters": {}, "guarantee": pure()}
    assert reserve(first, "a") is State.RESERVED
    head = second.head
    for use in (lambda: second.reserve("b", **request), second.attest):
        with pytest.raises(RefusedError, match="Two ledgers would be two budgets") as refused:
            use()
        assert str(place) in str(refused.value)
    assert second.head == head
    assert reserve(Ledger(place), "b") is State.RESERVED


@pytest.mark.usefixtures("twins")
def test_copies_of_rows_have_a_budget_or_are_reproduced_never_both(here: Path, call: Call) -> None:
    assert call("release", "twin.zarr", "exact.zarr", *REPRODUCE).code == 0
    refused = call("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *DECLARED)
    assert refused.code == 3
    assert "reproduction" in refused.message
    assert not Path("rows.ledger").exists()
    assert call("release", "rows.zarr", "again.zarr", *REPRODUCE).code == 0
    rows = budget.ingest_rows("table.npy", here / "others.zarr").path
    shutil.copytree(rows, "copy.zarr")
    assert call("ledger", "create", "others.ledger", "--rows", rows, *DECLARED).code == 0
    refused = call("release", "copy.zarr", "private.zarr", *REPRODUCE)
    assert refused.code == 3
    assert "copy" in refused.message
    assert not Path("private.zarr").exists()


def test_a_ledger_of_another_machine_is_not_charged_for_reproduced_rows(place: LedgerAddress) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=BUDGET)
    with state_folder.held(DATASET) as data:
        data.write(state_folder.DatasetRecord(reproduced=True))
    with pytest.raises(RefusedError, match="released for reproduction"):
        reserve(ledger, "a")
    assert ledger.records == []
