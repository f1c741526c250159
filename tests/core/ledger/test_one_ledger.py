"""Rows that were copied before they had a ledger share one budget, and no copy can be released for reproduction."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call
from support.ledgers import DATASET, DiedError, dies, new_address, reserve, sql

from dpdist.core.errors import RefusedError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.ledger.state_folder import StateFile
from dpdist.core.pipeline import budget
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows import periods
from dpdist.core.runtime.cluster import Cluster

pytestmark = pytest.mark.usefixtures("state")
BUDGET = PrivacyLoss.parse("2")
DECLARED = ("--budget-epsilon", "2")
PURE = ("--epsilon", "2", "--clip", "20")


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
    rows = ingest_rows("table.npy", here / "rows.zarr").path
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
    assert call("release", "twin.zarr", "b.zarr", *PURE, "--mechanism", "none", "--for-reproduction").code == 3
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


@pytest.mark.usefixtures("twins")
def test_a_copy_that_was_given_the_ledger_of_its_rows_is_released_without_naming_it(here: Path, call: Call) -> None:
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *DECLARED).code == 0
    assert call("ledger", "create", "rows.ledger", "--rows", "twin.zarr").code == 0
    assert call("release", "twin.zarr", "a.zarr", *PURE).code == 0
    Path("rows.ledger").rename("moved.ledger")
    refused = call("release", "twin.zarr", "b.zarr", "--id", "b", *PURE)
    assert (refused.code, f"is not at {here / 'twin.ledger'}" in refused.message) == (3, True)


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
        verify = ("ledger", "verify", address, "--release", "a.zarr")
        assert call(*verify).code == 0
        sql("DELETE FROM journal WHERE sequence > 4")(address)  # as it was before the commit
        for arguments in (verify, ("release", rows, "a.zarr", *PURE, "--ledger", address)):
            refused = call(*arguments)  # without a witness, the release itself reveals it
            assert (refused.code, "older copy" in refused.message) == (3, True)
        assert [record.state for record in Ledger(address).records] == [State.RESERVED]


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


@pytest.mark.parametrize(
    ("owner", "step", "first"), [(StateFile, "write", 0), (StateFile, "write", 1), (budget, "bind_ledger", 0)]
)
def test_whatever_dies_while_a_ledger_is_created_there_is_one(
    twins: tuple[Path, Path], owner: object, step: str, first: int
) -> None:
    def created(rows: Path) -> Ledger:
        return budget.create_ledger(budget.default_ledger(rows), rows, BUDGET)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, step, dies)
        with pytest.raises(DiedError):
            created(twins[0])
    if owner is budget:  # it is recorded, so that no copy can come first
        with pytest.raises(RefusedError, match=r"rows\.ledger"):
            created(twins[1])
    ledger_id = created(twins[first]).ledger_id
    table = open_rows(twins[first])
    assert state_folder.seen(table.dataset_id).ledger_id == ledger_id == table.ledger_id
    with pytest.raises(RefusedError, match=rf"{twins[first].stem}\.ledger"):
        created(twins[1 - first])


@pytest.mark.usefixtures("twins")
def test_copies_of_rows_have_a_budget_or_are_reproduced_never_both(call: Call) -> None:
    reproduce = ("--epsilon", "1", "--clip", "20", "--mechanism", "none", "--for-reproduction")
    create = ("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *DECLARED)
    assert call("release", "twin.zarr", "exact.zarr", *reproduce).code == 0
    refused = call(*create)
    assert (refused.code, "reproduction" in refused.message) == (3, True)
    assert not Path("rows.ledger").exists()
    assert call("release", "rows.zarr", "again.zarr", *reproduce).code == 0


def test_of_two_ledgers_the_first_that_is_charged_is_the_only_one_and_none_if_rows_were_reproduced(
    place: LedgerAddress, tmp_path: Path
) -> None:
    # as two machines could create them
    first, second = (Ledger.create(at, dataset_id=DATASET, budget=BUDGET) for at in (place, tmp_path / "second"))
    assert reserve(first, "a") is State.RESERVED
    with pytest.raises(RefusedError, match="Two ledgers would be two budgets") as refused:
        reserve(second, "b")
    assert str(place) in str(refused.value)
    with state_folder.held(DATASET) as data:
        data.write(state_folder.DatasetRecord(reproduced=True))
    with pytest.raises(RefusedError, match="released for reproduction"):
        reserve(first, "b")
    assert (len(first.records), second.records) == (1, [])
