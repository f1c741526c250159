"""The workflows that people start from, each run unchanged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.cli_scene import Call
from support.folders import ROOT

from dpdist import open_release

WORKFLOWS = ROOT / "workflows"


def table(path: Path, seed: int, rows: int = 20_000, columns: int = 12) -> None:
    draw = np.random.default_rng(seed)
    signal = draw.normal(size=(rows, 3)) @ draw.normal(size=(3, columns))
    names = ",".join(f"x{i}" for i in range(columns))
    np.savetxt(path, 5 * signal + draw.normal(size=(rows, columns)), "%.4f", ",", header=names, comments="")


@pytest.mark.parametrize("name", ["scores.toml", "correlation.toml"])
def test_a_job_is_run_as_it_stands_and_again_for_nothing(name: str, tmp_path: Path, call: Call) -> None:
    shutil.copy(WORKFLOWS / name, tmp_path)
    table(tmp_path / "table.csv", 1)
    for _ in range(2):
        done = call("run", tmp_path / name)
        assert done.code == 0, done.err
    assert open_release(tmp_path / "release.zarr").rows == 20_000
    components = zarr.open_group(tmp_path / "model.zarr", mode="r")["components"]
    assert isinstance(components, zarr.Array)
    if name == "scores.toml":
        assert zarr.open_array(tmp_path / "scores.zarr", mode="r").shape == (20_000, 10)
    else:
        assert 3 <= components.shape[0] <= 12


def test_nights_are_released_as_they_come(tmp_path: Path, call: Call) -> None:
    shutil.copy(WORKFLOWS / "nightly.toml", tmp_path)
    (tmp_path / "arrivals").mkdir()
    for night in (1, 2):
        table(tmp_path / "arrivals" / f"2026-11-2{night}.csv", night)
        done = call("run", tmp_path / "nightly.toml")
        assert done.code == 0, done.err
    assert len(list((tmp_path / "nights").glob("2026-*.zarr"))) == 2
    assert len(list((tmp_path / "releases").glob("*.zarr"))) >= 3  # each night, and their total


def test_the_script_runs_on_a_dask_cluster(tmp_path: Path) -> None:
    table(tmp_path / "table.csv", 1)
    subprocess.run([sys.executable, WORKFLOWS / "on_dask.py"], cwd=tmp_path, check=True, timeout=300)
    assert open_release(tmp_path / "release.zarr").rows == 20_000
    assert (tmp_path / "scores.zarr").is_dir()
