"""The steps on rows in place: the same release as of a copy, one budget for the same objects, nothing half done."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from support.cli_scene import Call
from support.ledgers import DiedError, dies
from support.replays import Recording, Replaying

from dpdist.core.errors import DataError
from dpdist.core.ingest import register as reading
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ingest.write import ingest
from dpdist.core.ledger import state_folder
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline import budget, sources
from dpdist.core.pipeline.budget import create_ledger
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import register_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster

BUDGET = PrivacyLoss.parse("4", "1e-6")
DECLARED = ("--budget-epsilon", "4", "--budget-delta", "1e-6")
LOSS = ("--epsilon", "1", "--delta", "1e-7", "--clip", "20")
ROWS = np.random.default_rng(3).integers(0, 9, (200, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work beside a source, computing in this process, as somebody who has registered nothing."""
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.setattr(sources, "_TASKS_PER_WORKER", 2)
    monkeypatch.chdir(tmp_path)
    assert not state.exists()
    table = pa.table({name: ROWS[:, place] for place, name in enumerate("abcd")})
    pq.write_table(table, "table.parquet", row_group_size=30)
    np.save("table.npy", ROWS)
    return tmp_path


def test_every_step_takes_rows_in_place(here: Path, call: Call) -> None:
    made = call("register", "table.parquet", "rows.zarr", *DECLARED, "--json")
    assert made.code == 0
    assert [made.json[key] for key in ("n", "d", "fresh", "ledger")] == [200, 4, True, "rows.ledger"]
    for command in (
        ("bound", "rows.zarr", "--epsilon", "3", "--grid", "8:32:1", "--quantile", "0.5"),
        ("release", "rows.zarr", "release.zarr", *LOSS), ("pca", "release.zarr", "model.zarr", "--components", "2"),
        *[("project", "rows.zarr", "model.zarr", "scores.zarr")] * 2, ("report", "release.zarr", "report.html"),
        ("release", "rows.zarr", "release.zarr", *LOSS),
    ):  # fmt: skip
        assert call(*command).code == 0
    assert len(Ledger("rows.ledger").records) == 2
    scores = zarr.open_array("scores.zarr", mode="r")
    assert scores.shape == (200, 2)
    assert np.isfinite(scores[:]).all()
    told = call("inspect", "rows.zarr", "--verify", "--json")
    assert (told.code, told.json["damaged"], told.json["source"]) == (0, [], str(here / "table.parquet"))
    assert "table.parquet" in call("inspect", "rows.zarr").out
    again = call("register", "table.parquet", "rows.zarr", *DECLARED)
    assert again.code == 0
    assert ", unchanged." in again.told
    assert call("register", "table.npy", "rows.zarr", *DECLARED).code == 4
    other = call("register", "table.parquet", "rows.zarr", *DECLARED, "--ledger", "other.ledger")
    assert other.code == 2
    assert "other.ledger" in other.message
    assert str(here / "rows.ledger") in other.message
    assert call("register", "table.parquet", "rows.zarr", "--budget-epsilon", "5").code == 2


@pytest.mark.usefixtures("known_key")
def test_the_same_draws_make_the_same_release_of_rows_in_place_and_of_their_copy(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-7"), 20.0, name="r-1")
    table = register_rows("table.parquet", "there.zarr", budget=BUDGET)
    copied = ingest(here / "table.parquet", here / "copied.zarr", budget=BUDGET)
    create_ledger("copied.ledger", "copied.zarr")
    recorded = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recorded)
    first = release_rows(table.store, "a.zarr", request).release
    monkeypatch.setattr(trusted, "SYSTEM", Replaying(recorded.drawn))
    assert np.array_equal(release_rows(copied.store, "b.zarr", request).release.second_moment, first.second_moment)


def test_a_source_that_changed_costs_nothing_and_nothing_is_published(call: Call) -> None:
    assert call("register", "table.npy", "rows.zarr", *DECLARED).code == 0
    before = Path("table.npy").read_bytes()
    np.save("table.npy", ROWS + 1)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 4
    assert "table.npy" in said.message
    assert "dpdist register" in said.message
    assert not Path("release.zarr").exists()
    assert not Ledger("rows.ledger").balance().charged
    assert call("inspect", "rows.zarr", "--verify").code == 4
    Path("table.npy").write_bytes(before)
    assert call("release", "rows.zarr", "release.zarr", *LOSS).code == 0


def test_the_same_objects_registered_again_are_a_copy_and_share_the_ledger(here: Path, call: Call) -> None:
    assert call("register", "table.npy", "rows.zarr", *DECLARED).code == 0
    shutil.copy("table.npy", "copy.npy")
    for source in ("table.npy", "copy.npy"):
        said = call("register", source, f"{source}.zarr", *DECLARED)
        assert said.code == 3
        assert str(here / "rows.ledger") in said.message
        assert not Path(f"{source}.ledger").exists()
        assert call("register", source, f"{source}.zarr", *DECLARED, "--ledger", "rows.ledger").code == 0
        assert open_rows(f"{source}.zarr").ledger_id == Ledger("rows.ledger").ledger_id
    assert call("release", "rows.zarr", "a.zarr", *LOSS).code == 0
    assert call("release", "copy.npy.zarr", "b.zarr", *LOSS, "--ledger", "rows.ledger").code == 0
    assert open_release("a.zarr").release_id == open_release("b.zarr").release_id
    assert len(Ledger("rows.ledger").records) == 1


def test_neither_times_nor_the_name_of_a_source_make_it_another_table_and_its_rows_do(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr.create_group("g.zarr").create_array("X", data=ROWS, chunks=(50, 4))
    first = register_rows("table.npy", "0.zarr").dataset_id
    os.utime("table.npy", ns=(1, 1))
    os.link("table.npy", "hard.npy")
    Path("folder").mkdir()
    shutil.copy("table.npy", "folder/table.npy")
    for number, source in enumerate(("hard.npy", "folder/", f"file://{here}/table.npy")):
        assert register_rows(source, f"npy-{number}.zarr").dataset_id == first, source
    group = register_rows("g.zarr", "1.zarr").dataset_id
    assert register_rows("g.zarr/X", "2.zarr").dataset_id == group
    np.save("table.npy", ROWS + 1)
    assert register_rows("table.npy", "3.zarr").dataset_id != first
    # a digest of it stands in every release: of an identity made of the rows, a guess at them could be tested
    monkeypatch.setenv("DPDIST_STATE_HOME", str(here / "another"))
    assert register_rows("folder/table.npy", "4.zarr").dataset_id != first


def test_two_that_register_at_once_get_one_identity(state: Path) -> None:
    barrier = threading.Barrier(2)

    def run(place: str) -> str:
        barrier.wait()
        return state_folder.identity_of("a" * 64, place)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(run, ("one", "two")))) == 1
    assert {path.stat().st_mode & 0o077 for path in (state / "registered").iterdir()} == {0}


def test_two_that_register_in_one_place_leave_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    content_of = reading._content_of

    def overtaken(*arguments: Any) -> str:
        monkeypatch.setattr(reading, "_content_of", content_of)
        register_rows("table.npy", "rows.zarr")
        return content_of(*arguments)

    monkeypatch.setattr(reading, "_content_of", overtaken)
    table = register_rows("table.npy", "rows.zarr")
    assert table.rows == 200
    assert state_folder.seen(table.dataset_id) == state_folder.DatasetRecord()


@pytest.mark.parametrize(
    ("module", "point"),
    [(sources, "register_chunks"), (reading, "write_index"), (reading, "_content_of"), (state_folder, "identity_of"),
     (budget, "complete_ingest")],
)  # fmt: skip
def test_whatever_fails_on_the_way_leaves_no_table_and_the_same_call_makes_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, point: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, point, dies)
        with pytest.raises(DiedError):
            register_rows("table.npy", "rows.zarr", budget=BUDGET)
    left = [path for path in here.iterdir() if path.name.startswith(("rows", ".rows"))]
    if module is budget:  # the table is there, and its ledger is not
        assert open_rows("rows.zarr").ledger_id is None
    else:
        assert not left
    assert register_rows("table.npy", "rows.zarr", budget=BUDGET).ledger_id == Ledger("rows.ledger").ledger_id


def test_rows_that_were_ingested_are_not_taken_for_registered_ones(here: Path) -> None:
    ingest(here / "table.npy", here / "rows.zarr")
    with pytest.raises(DataError, match="was not registered from this source"):
        register_rows("table.npy", "rows.zarr")


def test_a_job_registers_where_it_says_so_and_all_columns(here: Path, call: Call) -> None:
    """With some, or in another order, it would be other rows to the state folder, with a budget of their own."""
    text = """
        [rows]
        path = "rows.zarr"
        source = "table.parquet"
        in_place = true
        budget_epsilon = 4
        budget_delta = 1e-6
        [release]
        path = "release.zarr"
        epsilon = 1
        delta = 1e-7
        clip = 20
    """
    assert call("register", "table.npy", "rows.zarr", "--columns", "c1,c0").code == 2
    for more in ('columns = ["b", "a"]', 'privacy_unit = "a"\nmax_rows = 2'):
        (here / "job.toml").write_text(text.replace("in_place = true", f"in_place = true\n{more}"))
        said = call("run", "job.toml")
        assert said.code == 2
        assert "in_place" in said.message
        assert not Path("rows.zarr").exists()
    (here / "job.toml").write_text(text)
    for _ in range(2):
        assert call("run", "job.toml").code == 0
    assert open_rows("rows.zarr").reference is not None
