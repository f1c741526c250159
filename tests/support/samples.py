"""Samples of what this version stores; ``DPDIST_RECORD=samples pytest tests/whole/test_golden.py`` writes them anew.

From 0.1.0 on they are not written again: a later format adds another sample.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dpdist.core.pipeline import release
from support.cli_scene import Call
from support.folders import STORED
from support.record import fix_random_numbers

SAMPLES = STORED / "golden-1.tar.gz"
G = ("--delta", "1e-6")
RELEASES: dict[str, tuple[str, ...]] = {
    "plain": ("--epsilon", "10", *G, "--clip", "200"),
    "centred": ("--epsilon", "10", *G, "--clip", "200", "--centre", "private"),
    "pure": ("--epsilon", "10", "--clip", "200"),
    "laplace": ("--epsilon", "10", "--clip", "200", "--mechanism", "laplace"),
    "clipped": ("--epsilon", "20", *G, "--clip", "private"),
    "scaled": ("--epsilon", "40", *G, "--scale", "private", "--clip", "auto"),
    "staged": ("--epsilon", "50", *G, "--scale", "private", "--clip", "private"),
}
DEAD: dict[str, tuple[str, ...]] = {
    "dead-scale": ("--epsilon", "41", *G, "--scale", "private", "--clip", "auto"),
    "dead-clip": ("--epsilon", "21", *G, "--clip", "private"),
    "dead-both": ("--epsilon", "51", *G, "--scale", "private", "--clip", "private"),
}
"""Each drew its first stages, and died before the moment."""
BUDGET = ("--budget-epsilon", "400", "--budget-delta", "1e-4", "--budget-pure", "40")
JOB = """[rows]
path = "job-rows.zarr"
source = "table.csv"
header = "yes"
budget_epsilon = 30
budget_delta = 1e-5

[release]
path = "job-release.zarr"
epsilon = 10
delta = 1e-6
clip = 200.0

[pca]
path = "job-model.zarr"
components = 2

[project]
path = "job-scores.zarr"
"""
NIGHTLY = """[rows]
path = "visits"
source = "incoming"
header = "yes"
periods = true
privacy_unit = "person"
max_rows = 2
max_periods = 3
budget_epsilon = 8
budget_delta = 1e-5

[release]
path = "published"
epsilon = 8
delta = 1e-6
clip = 4.0
continual = 4

[pca]
path = "models"
components = 1
"""
WEIGHTED = """[rows]
path = "weighted/rows"
source = "weighted/incoming"
periods = true
budget_epsilon = 1
budget_delta = 1e-6

[release]
path = "weighted/published"
epsilon = 1
delta = 1e-6
clip = 8.0
factorisation = "square-root"
continual = 3
"""


class DiedError(BaseException):
    """A process died."""


def record(folder: Path, call: Call) -> None:
    """Write all samples in an empty folder, and pack them."""

    def run(*words: str) -> None:
        done = call(*words)
        assert done.code in {0, 4}, (words, done.told)  # four means that no component stood above the noise

    computed = release.compute

    def dies(*_: object) -> None:
        raise DiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DPDIST_STATE_HOME", str(folder / "state"))
        fix_random_numbers(patch, "samples")  # so that ids stay the same
        _write_sources(folder)
        run("ingest", "table.csv", "rows.zarr", "--header", "yes", *BUDGET)
        for name, options in RELEASES.items():
            run("release", "rows.zarr", f"{name}.zarr", *options)
        for name, options in DEAD.items():
            patch.setattr(release, "compute", dies)
            with pytest.raises(DiedError):
                call("release", "rows.zarr", f"{name}.zarr", *options)
        patch.setattr(release, "compute", computed)
        run("pca", "plain.zarr", "model.zarr", "--components", "2")
        run("pca", "staged.zarr", "correlation.zarr", "--components", "2", "--correlation")
        run("project", "rows.zarr", "model.zarr", "scores.zarr")
        run("register", "array.npy", "registered.zarr")
        run("release-matrix", "matrix.npy", "matrix.zarr", "--nuclear", "2", "--l1", "3", "--epsilon", "1")
        for job in ("job", "nightly", "weighted"):
            run("run", f"{job}.toml")
    with tarfile.open(SAMPLES, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


def _write_sources(folder: Path) -> None:
    draws = np.random.default_rng(5)
    mean, spread = [40, 170, 30, 5], [12, 9, 8, 2]
    rows = np.round(draws.normal(size=(400, 4)) * spread + mean, 1)
    np.savetxt(folder / "table.csv", rows, fmt="%g", delimiter=",", header="age,height,income,visits", comments="")
    np.save(folder / "array.npy", draws.integers(-100, 100, size=(40, 3), dtype=np.int16))
    half = np.round(draws.normal(size=(5, 5)), 2)
    np.save(folder / "matrix.npy", half + half.T)
    (folder / "job.toml").write_text(JOB)
    (folder / "nightly.toml").write_text(NIGHTLY)
    (folder / "weighted.toml").write_text(WEIGHTED)
    (folder / "incoming").mkdir()
    (folder / "weighted" / "incoming").mkdir(parents=True)
    for day in (1, 2):
        visits = np.column_stack([draws.integers(1000, 1060, 80), np.round(draws.normal(size=(80, 2)), 3)])
        path = folder / "incoming" / f"2026-01-0{day}.csv"
        np.savetxt(path, visits, fmt="%g", delimiter=",", header="person,a,b", comments="")
        np.save(folder / "weighted" / "incoming" / f"d{day}.npy", draws.normal(size=(4, 3)))


def recorded(folder: Path, call: Call) -> Path:
    """Return the samples: recorded now if that was asked for."""
    if os.environ.get("DPDIST_RECORD") == "samples" and not _DONE:
        fresh = folder / "fresh"
        fresh.mkdir()
        record(fresh, call)
        shutil.rmtree(fresh)
        _DONE.append(True)
    return SAMPLES


_DONE: list[bool] = []
