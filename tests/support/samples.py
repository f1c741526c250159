"""Samples of what this version stores; ``DPDIST_RECORD=samples pytest tests/whole/test_golden.py`` writes them anew.

From 0.1.0 on they are not written again: a later format adds another sample.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
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


SCHEMA = """scale = "range"

[[column]]
name = "patient"
kind = "privacy unit"

[[column]]
name = "ward"
kind = "category"
categories = ["north", "south", "east"]
other = "column"

[[column]]
name = "smoker"
kind = "boolean"
missing = "indicator"

[[column]]
name = "age"
kind = "integer"
range = [0, 100]
bins = [18, 40, 65]

[[column]]
name = "dose"
kind = "number"
range = [1, 1000]
transform = "log"
missing = "pairwise"

[[column]]
name = "admitted"
kind = "date"
range = ["2026-01-01", "2026-12-31"]
"""
SITES = ("boston", "lyon", "oslo")


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
        run("ingest", "patients.csv", "patients.zarr", "--header", "yes", "--schema", "schema.toml", *BUDGET)
        run("release", "patients.zarr", "patients-release.zarr", "--epsilon", "50", *G, "--clip", "4")
        run("pca", "patients-release.zarr", "patients-model.zarr", "--components", "2")
        run("report", "patients-release.zarr", "report.html")
        _record_sessions(call, run)
    with tarfile.open(SAMPLES, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


def _record_sessions(call: Call, run: Callable[..., None]) -> None:
    """Write a session that was combined, and one that waits for a last share."""
    for site in SITES:
        run("ingest", f"{site}.csv", f"{site}.zarr", "--header", "yes", *BUDGET)
    for name, sharing in (("study", SITES), ("waiting", SITES[:2])):
        run(
            "session", "create", name, "--sites", ",".join(f"{site}=40" for site in SITES), "--columns", "a,b",
            "--epsilon", "20", *G, "--clip", "4", "--centre", "private", "--anyway",
        )  # fmt: skip
        for site in SITES:
            shown = call("session", "key", name, f"{site}.zarr", "--site", site, "--json")
        for site in sharing:
            fingerprint = ("--fingerprint", shown.json["fingerprint"])
            run("session", "share", name, f"{site}.zarr", "--site", site, *fingerprint)
    run("session", "combine", "study", "study.zarr")


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
    (folder / "schema.toml").write_text(SCHEMA)
    patients = "".join(
        f"{1000 + i // 3},{('north', 'south', 'east', 'west')[i % 4]},{('yes', 'no', '')[i % 3]},{20 + i % 60},"
        f"{1 + i % 300 if i % 7 else ''},2026-0{1 + i % 9}-1{i % 9}\n"
        for i in range(600)
    )
    (folder / "patients.csv").write_text("patient,ward,smoker,age,dose,admitted\n" + patients)
    for site in SITES:
        table = np.round(draws.normal(size=(40, 2)), 3)
        np.savetxt(folder / f"{site}.csv", table, fmt="%g", delimiter=",", header="a,b", comments="")
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
