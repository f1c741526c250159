"""What the papers' workflows share: results kept cell by cell, functions for workers that lack the scripts, data."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from support.folders import ROOT
from support.hand import started_by_hand

from dpdist.core.errors import DataError, PrivacyLeakWarning, UsageError
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import LocalExecutor
from papers.common import answers, data, runs

SETTINGS = {"seed": 1}
CELLS = [{"x": x} for x in range(5)]
RNG = np.random.default_rng(3)


def squared(cell: runs.Json, shared: int) -> runs.Json:
    return {"y": cell["x"] ** 2 + shared}


def refusing(_: runs.Json, __: Any) -> runs.Json:
    raise UsageError("no")


class Counting(LocalExecutor):
    """Runs cells here and stops after some, as a killed run would."""

    def __init__(self, until: int | None = None) -> None:
        super().__init__()
        self.until, self.asked = until, 0

    def results(self, function: Any, tasks: Any, shared: Any, label: str, step: str = "") -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        self.asked += len(tasks)
        for i in reversed(range(len(tasks))):  # they may end in any order
            if self.until == 0:
                raise KeyboardInterrupt
            self.until = None if self.until is None else self.until - 1
            yield i, function(tasks[i], shared)


def test_a_killed_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.cells.jsonl"
    with pytest.raises(KeyboardInterrupt), runs.opened(path, SETTINGS) as store:
        runs.run(Counting(until=3), store, squared, CELLS, shared=1)
    path.write_bytes(path.read_bytes() + b'{"cell": {"x": 0}, "res')  # the line that was being written
    again = Counting()
    with runs.opened(path, SETTINGS) as store:
        rows = runs.run(again, store, squared, CELLS, shared=1)
    assert rows == [{"x": x, "y": x**2 + 1} for x in range(5)]
    assert again.asked == 2
    assert len(path.read_bytes().splitlines()) == 6


def test_a_store_of_other_settings_or_in_use_or_damaged_is_refused_and_a_refusal_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.cells.jsonl"
    with runs.opened(path, SETTINGS) as store:
        assert runs.run(Counting(), store, refusing, CELLS[:1]) == [{"x": 0, "refused": "no"}]
        with pytest.raises(DataError, match="Another process"), runs.opened(path, SETTINGS):
            pass
    with pytest.raises(DataError, match="other data or settings"), runs.opened(path, {"seed": 2}):
        pass
    path.write_text("something else\n")
    with pytest.raises(DataError, match="something else"), runs.opened(path, SETTINGS):
        pass
    assert path.read_text() == "something else\n"
    with pytest.raises(DataError, match="written"), runs.opened(tmp_path / "no" / "a", SETTINGS):
        pass


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[str]:
    """Start a scheduler and a worker that can import dpdist and none of the scripts."""
    (tmp_path / "dpdist").symlink_to(ROOT / "dpdist")
    with started_by_hand(tmp_path, {"PYTHONPATH": str(tmp_path)}, ()) as address:
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=600)  # longer than a command waits: starting may be slow here
        yield address


def energy_there(cell: runs.Json, moment: answers.PublicMoment) -> runs.Json:
    request = answers.request_for("gaussian", ("1000", "1e-3"), moment.bound, {})
    components = answers.private_components(request, moment, cell["k"])
    there = importlib.util.find_spec("benchmarks") is not None
    return {"energy": answers.captured_energy(components, moment), "scripts": there}


def test_cells_reach_workers_that_have_dpdist_and_not_the_scripts(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in (energy_there, refusing):
        monkeypatch.setattr(function, "__module__", "__main__")  # as in a script
    with pytest.warns(PrivacyLeakWarning, match="largest norm"):
        moment = answers.moment_of(data.in_unit_ball(RNG.normal(size=(5000, 3)) * [3, 1, 1]))
    cells = [{"k": 1, "run": run} for run in range(3)]
    with Cluster(bare).connected() as found, runs.opened(tmp_path / "a", SETTINGS) as store:
        rows = runs.run(found, store, energy_there, cells, shared=moment)
        with pytest.raises(UsageError, match="no"):
            list(found.results(refusing, cells, None, "Refusing"))
    assert [row["run"] for row in rows] == [0, 1, 2]
    assert all(row["energy"] > 99 and not row["scripts"] for row in rows)


def test_data_sets_come_from_the_folder_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "covertype.npz", X=np.arange(12).reshape(4, 3), y7=np.array([1, 6, 7, 6], dtype=np.uint8))
    table = data.covertype(tmp_path)
    assert [list(found) for found in table.of_classes((6, 7))] == [[1, 3], [2]]
    assert data.chosen(table, 2, 5).tolist() == data.chosen(table, 2, 5).tolist()
    with pytest.raises(DataError, match="5 rows"):
        data.chosen(table, 5, 5)

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    with pytest.raises(DataError, match=r"no mnist\.npz in .*could not fetch mnist"):
        data.mnist(tmp_path)
    with pytest.raises(DataError, match="No data folder was named"):
        data.mnist(None)
    (tmp_path / "mnist.npz").write_text("no")
    with pytest.raises(DataError, match="cannot be read"):
        data.mnist(tmp_path)
