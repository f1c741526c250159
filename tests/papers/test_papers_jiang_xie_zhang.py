"""Jiang, Xie & Zhang 2016: small versions of the workflows, as they are run, and what they must show."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.paper_runs import results, run

from papers.jiang_xie_zhang import noise, sample_complexity


def test_the_exponents_of_the_noise(scheduler: str, tmp_path: Path) -> None:
    run(noise.main, scheduler, tmp_path)
    found, rows = results(tmp_path, noise.NAME)
    assert len(rows) == len(noise.NOISES) * 3 * noise.DRAWS
    for name, row in found["table"].items():
        # three sizes up to 64: finite-size effects are below 0.2, and an exponent next to the right one is 0.5 away; of
        # Wishart matrices, the worst, it is 1.09 with a standard deviation of 0.045 (simulated): 0.35 is far off
        assert row["exponent about the mean"] == pytest.approx(row["exponent expected"], abs=0.35), name
    norms = found["table"]["jiang-wishart"]["norm"]
    # the edge of a Wishart matrix, s² (sqrt m + sqrt d)² = 1.5 * 4 d, within a fifth at d = 64
    assert norms["64"] == pytest.approx(6 * 64, rel=0.2)


def test_theorem_7_holds_with_room_and_gaussian_needs_least(scheduler: str, tmp_path: Path) -> None:
    run(sample_complexity.main, scheduler, tmp_path)
    found, _ = results(tmp_path, sample_complexity.NAME)
    needed = found["rows needed"]
    for d in ("8", "16"):
        assert needed["jiang-wishart"][d] < needed["theorem 7"][d]
        assert needed["ppca"][d] < needed["theorem 8"][d]
        assert 1 < needed["jiang-wishart"][d] < needed["laplace-published"][d]


def test_the_least_number_is_found() -> None:
    assert sample_complexity.least(lambda n: n >= 1000) == pytest.approx(1000, rel=0.03)
    assert sample_complexity.least(lambda _: False) == math.inf
    assert sample_complexity.theorem_8(16) == pytest.approx(
        16 / (0.1 * 0.3) * (math.log(10) / 16 + math.log(2 / (0.19 * 0.3)))
    )
