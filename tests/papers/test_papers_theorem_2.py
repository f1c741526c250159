"""Bounds on Wishart noise: they hold of what the mechanisms draw, and the published rates do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import results, run
from support.tallies import FALSE_ALARM

from papers.common import wishart_bounds
from papers.imtiaz_sarwate import theorem_2

DRAWS = 30


@pytest.mark.parametrize("method", theorem_2.METHODS)
def test_bounds_hold_of_every_draw_and_the_published_rate_of_none(method: str) -> None:
    size, k = 40, 4
    for epsilon in (1.0, 10.0):
        cell = {"method": method, "epsilon": f"{epsilon:g}", "d": size, "k": k}
        found = [theorem_2.measured(cell | {"draw": i}, None) for i in range(DRAWS)]
        # all draws of both epsilons together exceed a bound with a probability below FALSE_ALARM
        bounds = theorem_2.proved(method, size, k, epsilon, FALSE_ALARM / (2 * DRAWS))
        for measure in theorem_2.MEASURES:
            assert max(one[measure] for one in found) <= bounds[measure], measure
            assert min(one[measure] for one in found) >= 0
        # the norm is above its mean along a fixed direction: no draw is near the published rate
        rate = theorem_2.published(size, k, epsilon)
        for measure in ("norm of the noise", "distance of subspaces"):
            assert min(one[measure] for one in found) > rate[measure], measure
        # a twin with the variance taken as a standard deviation, as published, fails
        wrong = wishart_bounds.wishart_norm(size, size + 1, (0.5 / epsilon) ** 2, FALSE_ALARM / (2 * DRAWS))
        if epsilon > 1:
            assert wrong < min(one["norm of the noise"] for one in found)


def test_noise_of_any_sign_moves_subspaces_and_ranks_no_farther_than_proved() -> None:
    rng = np.random.default_rng(7)
    for _ in range(100):
        size, k = 6, int(rng.integers(1, 6))
        levels = np.sort(rng.exponential(5, size))[::-1]
        z = rng.normal(size=(size, size))
        positive = bool(rng.integers(2))
        noise = rng.exponential(2) * (z @ z.T / size if positive else (z + z.T) / 2)
        values = np.linalg.eigvalsh(noise)
        width, norm = float(values[-1] - values[0]), float(np.abs(values).max())
        found, vectors = np.linalg.eigh(np.diag(levels) + noise)
        top = vectors[:, -k:]
        lost = levels[:k].sum() - np.trace(top.T @ np.diag(levels) @ top)
        assert -1e-9 <= lost <= wishart_bounds.captured_loss(width, size, k) + 1e-9
        distance = np.linalg.norm(top @ top.T - np.diag((np.arange(size) < k).astype(float)), 2)
        assert distance <= wishart_bounds.subspace_distance(width, float(levels[k - 1] - levels[k])) + 1e-9
        error = np.linalg.norm(np.diag(levels) - (top * found[-k:]) @ top.T, 2)
        assert error <= wishart_bounds.low_rank_error(norm, float(levels[k]), semidefinite=positive) + 1e-9


def test_the_quick_version_writes_its_files(scheduler: str, tmp_path: Path) -> None:
    run(theorem_2.main, scheduler, tmp_path)
    found, rows = results(tmp_path, theorem_2.NAME)
    assert len(rows) == 2 * len(theorem_2.EPSILONS) * 4
    assert len(found["table"]) == 2 * len(theorem_2.EPSILONS) * len(theorem_2.MEASURES)
