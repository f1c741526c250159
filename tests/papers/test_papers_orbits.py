"""Mangoubi et al. 2022: errors measured between the bounds, and rates."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import results, run

from dpdist.errors import UsageError
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.orbit import hermitian
from papers.common import answers
from papers.mangoubi import orbits, rates


def test_rates_of_projectors_differ_by_the_root_of_the_rank() -> None:
    levels = np.where(np.arange(64) < 16, 1e8, 0.0)
    ratio = rates.amin_rate(levels, 16, 1.0) / rates.low_rank_rate(levels, 16, 1.0)
    assert ratio == pytest.approx(math.sqrt(2 * 16), rel=1e-3)


def test_constants_are_the_tight_ones_for_rows_of_norm_one() -> None:
    # tr(M - M')H ranges over 2 (replace-one), eigenvalues move by 1 (k = 1) or 2 in l1; half of epsilon for each step
    assert orbits.constants(orbits.Matrix("projector", 5, 1), "orbit", "3") == pytest.approx((1.5, 0))
    assert orbits.constants(orbits.Matrix("projector", 5, 1), "orbit-lowrank", "3") == pytest.approx((0.75, 2 / 3))
    assert orbits.constants(orbits.Matrix("projector", 5, 2), "orbit-lowrank", "3") == pytest.approx((0.75, 4 / 3))
    with pytest.raises(UsageError, match="no orbit"):
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
    run(orbits.main, scheduler, tmp_path)
    found, rows = results(tmp_path, orbits.NAME)
    assert len(rows) == 4 * len(found["bounds"]) == 12
    for stated in found["bounds"]:
        mine = [r for r in rows if (r["family"], int(r["k"])) == (stated["family"], stated["k"])]
        for row in (r for r in mine if r["error of H"]):
            assert stated["lower bound"] < float(row["error of H"]) < stated[f"upper bound, {row['method']}"]
            assert float(row["error"]) < float(row["error of H"])


def test_the_real_part_keeps_trace_and_sign_and_leaves_the_orbit() -> None:
    spectrum = np.array([1.0, 0.4, 0.0, 0.0, 0.0, 0.0])
    for _ in range(20):
        drawn = hermitian(spectrum, np.linspace(2, 0, 6), SYSTEM)
        assert np.allclose(np.linalg.eigvalsh(drawn)[::-1], spectrum, atol=1e-9)
        values = np.linalg.eigvalsh(drawn.real)[::-1]
        assert values.sum() == pytest.approx(1.4)
        assert np.all(np.cumsum(values) <= np.cumsum(spectrum) + 1e-9)
        # rank 2k for almost every H: not by chance, but the smallest of the four may be small
        assert values[4] == pytest.approx(0, abs=1e-9)
        assert values[2] > 1e-7
