"""Jiang, Xie & Zhang 2016: small versions of the workflows, as they are run, and what they must show."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import run

from papers.common import wishart_bounds
from papers.jiang_xie_zhang import noise, sample_complexity, theorems


def test_the_exponents_of_the_noise(scheduler: str, tmp_path: Path) -> None:
    found, rows = run(noise, scheduler, tmp_path)
    assert len(rows) == len(noise.NOISES) * 3 * noise.DRAWS
    for name, row in found["table"].items():
        # three sizes up to 64: finite-size effects are below 0.2, and an exponent next to the right one is 0.5 away; of
        # Wishart matrices, the worst, it is 1.09 with a standard deviation of 0.045 (simulated): 0.35 is far off
        assert row["exponent about the mean"] == pytest.approx(row["exponent expected"], abs=0.35), name
    norms = found["table"]["jiang-wishart"]["norm"]
    # the edge of a Wishart matrix, s² (sqrt m + sqrt d)² = 1.5 * 4 d, within a fifth at d = 64
    assert norms["64"] == pytest.approx(6 * 64, rel=0.2)


def test_theorem_7_holds_with_room_and_gaussian_needs_least(scheduler: str, tmp_path: Path) -> None:
    found, _ = run(sample_complexity, scheduler, tmp_path)
    needed = found["rows needed"]
    for d in ("8", "16"):
        assert needed["jiang-wishart"][d] < needed["theorem 7"][d]
        assert needed["ppca"][d] < needed["theorem 8"][d]
        assert 1 < needed["jiang-wishart"][d] < needed["laplace-published"][d]


def test_the_theorems_hold_where_they_should(scheduler: str, tmp_path: Path) -> None:
    found, rows = run(theorems, scheduler, tmp_path)
    assert len(rows) == 2 * 3 * len(theorems.METHODS)
    for line in found["table"]:
        assert line["norm, mean"]["jiang-wishart"] < line["lemma 1"]
        # draws below the bound for a failure of 1e-8; a third of the noise, as the repair's nuclear sensitivity has, is
        # told apart by the size of the mean
        assert line["norm, largest"]["jiang-wishart"] < wishart_bounds.wishart_norm(line["d"], line["d"] + 1, 1.5, 1e-8)
        assert line["theorem 10, lower bound"] < line["theorem 9"]["1"]["two-sided-wishart"]
        assert line["theorem 5, measured ratio"] < line["theorem 5, published ratio"]
        assert all(of_rank["holds"] for of_rank in line["theorem 6"].values())


def test_bounds_of_the_theorems_in_closed_form() -> None:
    # m + sqrt(2 m theta (r + 2)) + 2 theta r at d = r = 16, m = 17, theta = log(16/0.1), as in theorem 7
    log, bound = math.log(160), theorems.low_rank_lower_bound
    assert wishart_bounds.lemma_1(16, 17, 1.0, 0.1) == pytest.approx(17 + math.sqrt(2 * 17 * 18 * log) + 32 * log)
    assert theorems.subspace_bound(1.0, 4, 10.0) == pytest.approx(0.4)
    assert theorems.subspace_bound(6.0, 4, 10.0) is None
    assert theorems.low_rank_bound(16, 5.0, 1.0, 0.1) == pytest.approx(5 + 1.5 * wishart_bounds.lemma_1(16, 17, 1, 0.1))
    # in the plane lines at an angle of s are pi / (2 arcsin s) to a half turn; d / epsilon for many columns
    sines = np.geomspace(0.01, 0.7, 400)
    plane = max(math.floor(1e3 * math.log(math.pi / 4 / math.asin(s))) * s / 2 for s in sines)
    assert bound(2, 1e-3) == pytest.approx(plane, rel=1e-2)
    assert bound(400, 0.01) == pytest.approx(2 * bound(200, 0.01), rel=0.05)
    assert bound(200, 0.005) == pytest.approx(2 * bound(200, 0.01), rel=0.01)
