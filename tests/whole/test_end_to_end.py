"""The whole job as a user runs it: the installed command, real files, a LocalCluster and a cluster started by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from scipy import stats
from support.folders import HOW_TO_FETCH, PUBLIC_DATA, ROOT
from support.tallies import FALSE_ALARM

from dpdist import PrivacyLoss, ReleaseRequest, ingest_rows, release_rows
from dpdist.answers.components import captured_variance
from dpdist.core.ledger.ledger import Ledger

SECONDS = 300
LOSS = PrivacyLoss.parse("1", "1e-6")


def dpdist(*arguments: str | Path, code: int = 0) -> Any:
    run = subprocess.run(
        [sys.executable, "-m", "dpdist", *map(str, arguments), "--json"],
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return json.loads(run.stdout) if run.stdout else run.stderr


def rows_of(folder: Path, data: npt.NDArray[Any]) -> Path:
    np.save(folder / "data.npy", data)
    ingest_rows(folder / "data.npy", folder / "rows.zarr", budget=PrivacyLoss.parse("2", "1e-5"))
    return folder / "rows.zarr"


def chi_squared_p(sample: npt.NDArray[np.float64], sigma: float) -> float:
    """Two-sided p-value of N(0, sigma²) for independent draws, by their sum of squares."""
    statistic = float(np.sum((sample / sigma) ** 2))
    return float(2 * min(stats.chi2.cdf(statistic, sample.size), stats.chi2.sf(statistic, sample.size)))


def test_on_rows_of_zeros_the_release_is_the_noise(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, np.zeros((100, 300), dtype=np.uint8))
    release = release_rows(rows, tmp_path / "release.zarr", ReleaseRequest("gaussian", LOSS, 8.0)).release
    moment, sigma = release.second_moment, np.sqrt(2) * 8**2 * 4.224679
    off = moment[np.triu_indices(300, 1)]
    assert chi_squared_p(np.diag(moment), sigma) > FALSE_ALARM
    assert chi_squared_p(off, sigma / np.sqrt(2)) > FALSE_ALARM
    # the twin, with 5 % too little noise, is told apart with probability 1 - 1e-9
    assert chi_squared_p(0.95 * off, sigma / np.sqrt(2)) < FALSE_ALARM
    assert release.noise["sigma_diagonal"] * release.bound.unit**2 == pytest.approx(sigma, rel=1e-5)


NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def test_the_readme_shows_what_the_demo_prints_and_it_spends_once(tmp_path: Path) -> None:
    """The words are those of the README, and the numbers near: in 14 runs they spread over half of the tolerance."""
    block, printed = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0], list[str]()
    assert 8 <= len(block.splitlines()) <= 12
    environment = {**os.environ, "DPDIST_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "80"}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "dpdist", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=True, timeout=SECONDS,
        )  # fmt: skip
        printed.append(run.stdout)
    again = " (made before: nothing was spent)"
    assert again not in printed[0]
    assert printed[1].replace(again, "") == printed[0]
    assert spaced(NUMBER.sub("#", printed[0])) == spaced(NUMBER.sub("#", block))
    for found, shown in zip(NUMBER.findall(printed[0]), NUMBER.findall(block), strict=True):
        near = max(0.1, 0.1 * abs(float(shown))) if "." in shown else 6  # whole numbers are counts and percent
        assert abs(float(found) - float(shown)) <= near
    assert (tmp_path / "dpdist-demo" / "customers.html").exists()
    assert Ledger(tmp_path / "dpdist-demo" / "customers.ledger").balance().charged == 1


def spaced(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


REAL = {"mnist": (2500.0, 50, 60000, 784, 0.92), "covertype": (10000.0, 10, 581012, 54, 0.998)}
"""Clip norm, components, rows, columns, and a captured variance that ten draws exceeded by a wide margin."""


@pytest.mark.parametrize("name", REAL)
def test_real_data_sets_end_to_end(tmp_path: Path, name: str) -> None:
    clip, k, n, d, least = REAL[name]
    if not (PUBLIC_DATA / f"{name}.npz").exists():  # the data sets are not committed: they are large, and not ours
        pytest.skip(f"no {name}.npz: {HOW_TO_FETCH}")
    with np.load(PUBLIC_DATA / f"{name}.npz") as content:
        data = content["X"][:n]
    release, model, scores = (tmp_path / f"{kind}.zarr" for kind in ("release", "model", "scores"))
    options = ("--epsilon", "1", "--delta", "1e-6", "--clip", str(clip), "--workers", "2")
    found = dpdist("release", rows_of(tmp_path, data), release, *options)
    assert (found["n"], len(found["columns"])) == (n, d)
    dpdist("pca", release, model, "--components", str(k))
    dpdist("project", tmp_path / "rows.zarr", model, scores, "--workers", "2")
    vectors = np.asarray(zarr.open_group(model, mode="r")["components"])
    blocks = (data[start : start + 20000].astype(np.float64) for start in range(0, n, 20000))
    assert captured_variance(vectors, sum(block.T @ block for block in blocks)) > least
    last = np.asarray(zarr.open_array(scores, mode="r")[-100:])
    assert np.allclose(last, data[-100:].astype(np.float64) @ vectors.T)
