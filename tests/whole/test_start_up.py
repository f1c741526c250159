"""What a command imports: start-up is most of what a small table takes. It is counted in modules, not in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cli_scene import LOSS

FOR_WORKERS = {"dask", "distributed", "tornado", "cryptography"}
FOR_FILES = {"pyarrow", "pandas", "h5py"}
FOR_OTHERS = {"numba", "sklearn", "matplotlib", "jinja2", "scipy.optimize"}
LIBRARIES = {"numpy", "scipy", "zarr", "mpmath", "msgspec"}


def imported(folder: Path, *arguments: str | Path) -> set[str]:
    """Return the packages that a command imports, but those of Python; and ``scipy.optimize``, which is slow."""
    command = [sys.executable, "-X", "importtime", "-m", "dpdist", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    told = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    slow = {name for name in told if name == "scipy.optimize"}
    return slow | {name.partition(".")[0] for name in told} - sys.stdlib_module_names


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_who_asks_for_the_version_or_for_help_waits_for_no_library(tmp_path: Path, option: str) -> None:
    found = imported(tmp_path, option)
    assert "click" in found
    assert not found & (LIBRARIES | FOR_WORKERS | FOR_FILES | FOR_OTHERS)


def test_a_small_release_needs_no_cluster_no_compiler_and_no_reader_of_files(here: Path) -> None:
    found = imported(here, "release", "rows.zarr", "release.zarr", *LOSS)
    assert found >= LIBRARIES - {"scipy"}
    assert not found & (FOR_WORKERS | FOR_FILES | FOR_OTHERS)


def test_rows_without_a_schema_need_no_pandas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    found = imported(tmp_path, "ingest", "t.csv", "rows.zarr", "--budget-epsilon", "2")
    assert "pyarrow" in found
    assert not found & ({"pandas", "h5py"} | FOR_WORKERS | FOR_OTHERS)


def test_components_of_a_release_and_scores_need_no_reader_of_files(released: Path) -> None:
    found = imported(released, "pca", "release.zarr", "model.zarr", "--components", "1")
    assert not found & (FOR_WORKERS | FOR_FILES | FOR_OTHERS - {"scipy.optimize"})
    found = imported(released, "project", "rows.zarr", "model.zarr", "scores.zarr")
    assert not found & (FOR_WORKERS | FOR_FILES | FOR_OTHERS)
