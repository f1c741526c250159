"""Mangoubi et al. 2022: errors measured between the bounds, and rates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.folders import ROOT
from support.paper_runs import run

from dpdist.core.errors import UsageError
from papers.common import answers
from papers.mangoubi import orbits, real

Floats = npt.NDArray[np.float64]


def test_constants_are_the_tight_ones_for_rows_of_norm_one() -> None:
    # tr(M - M')H ranges over 2 (replace-one), eigenvalues move by 1 (k = 1) or 2 in l1; half of epsilon for each step
    assert orbits.constants(orbits.Matrix("projector", 5, 1), "orbit", "3") == pytest.approx((1.5, 0))
    assert orbits.constants(orbits.Matrix("projector", 5, 1), "orbit-lowrank", "3") == pytest.approx((0.75, 2 / 3))
    assert orbits.constants(orbits.Matrix("projector", 5, 2), "orbit-lowrank", "3") == pytest.approx((0.75, 4 / 3))
    with pytest.raises(UsageError, match="does not sample from an orbit"):
        orbits.constants(orbits.Matrix("projector", 5, 2), "two-sided-wishart", "1")


def test_the_errors_measured_are_those_of_the_mechanisms() -> None:
    matrix, draws = orbits.Matrix("projector", 5, 1), 300
    exact = orbits.moment(matrix.levels())
    for method in ("algorithm 1", "algorithm 2"):
        mechanism = orbits.METHODS[method]
        request = answers.request_for(mechanism, ("1", "0"), exact.bound, orbits.options_of(matrix))
        theirs = [float(np.linalg.norm(exact.matrix - answers.private_moment(request, exact))) for _ in range(draws)]
        ours = [orbits.orbit_errors(matrix, mechanism, "1")[1] for _ in range(draws)]
        scatter = math.sqrt((np.var(theirs) + np.var(ours)) / draws)
        assert abs(np.mean(theirs) - np.mean(ours)) < 5.2 * scatter
        assert abs(np.mean(theirs) / math.sqrt(2) - np.mean(ours)) > 5.2 * scatter  # twice the exponent


def test_the_quick_version_writes_its_files_and_lies_between_the_bounds(scheduler: str, tmp_path: Path) -> None:
    found, rows = run(orbits, scheduler, tmp_path)
    assert len(rows) == 4 * len(found["bounds"]) == 12
    for stated in found["bounds"]:
        mine = [r for r in rows if (r["family"], int(r["k"])) == (stated["family"], stated["k"])]
        for row in (r for r in mine if r["error of H"]):
            assert stated["lower bound"] < float(row["error of H"]) < stated[f"upper bound, {row['method']}"]
            assert float(row["error"]) < float(row["error of H"])


def turned(drawn: Floats, levels: Floats, pair: tuple[int, int], rate: float = 2.0) -> float:
    """Return how many standard errors the identity of :mod:`papers.mangoubi.real` is off, with this factor in it."""
    i, j = pair
    found = drawn[:, i, i] - drawn[:, j, j] - rate * (levels[i] - levels[j]) * drawn[:, i, j] ** 2
    return float(abs(found.mean()) / found.std() * math.sqrt(len(found)))


def test_the_real_orbit_has_its_law_and_its_twins_fail() -> None:
    source = np.random.default_rng(5)  # the same draws each time
    levels, spectrum = np.array([4.0, 1.5, 0.0]), np.array([1.0, 0.3, 0.0])
    drawn, proposed = real.real_orbit(levels, spectrum, 20_000, source)
    assert np.abs(np.linalg.eigvalsh(drawn) - spectrum[::-1]).max() < 1e-12
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert turned(drawn, levels, pair) < 4.5
        assert turned(drawn, levels, pair, 1.5) > 4.5
    uniform, _ = real.real_orbit(np.zeros(3), spectrum, 20_000, source)
    assert turned(uniform, levels, (0, 2)) > 4.5
    assert 0.1 < 20_000 / proposed < 0.5


def test_what_is_said_of_the_real_part_is_what_was_measured() -> None:
    page = (ROOT / "papers" / "mangoubi" / "README.md").read_text()
    for found in json.loads((ROOT / "papers" / "results" / f"{real.NAME}.json").read_text()):
        orbit, part = found["squared error, real orbit"][0], found["squared error, Re H"][0]
        reach = found["alpha times the range of A"]
        accepted, largest = found["accepted of the proposals"], found["largest eigenvalue of Re H"]
        assert f"| {found['d']} | {reach:g} | {accepted:.2g} | {orbit:.3f} | {part:.3f} | {largest:.3f} |" in page
