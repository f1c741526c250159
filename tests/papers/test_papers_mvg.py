"""Chanyaswad et al. 2018: the identity query's noise and its true privacy, the regression, and the three tasks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.folders import ROOT
from support.paper_runs import run
from support.tallies import FALSE_ALARM

from dpdist.core.errors import PrivacyLeakWarning
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.literature.mvg import published_norm
from papers.chanyaswad import covariance, regression, tasks
from papers.chanyaswad.general import TwoCovariances, geometric_mean
from papers.chanyaswad.identity import METHODS, SHARE, IdentityQuery, theorem_2

LOSS = PrivacyLoss.parse("1", "0.005")
RNG = np.random.default_rng(8)
Floats = npt.NDArray[np.float64]


def test_the_condition_is_the_packages_for_square_queries_and_the_authors_for_others() -> None:
    query = LatticeQuery(7, 4**16, Neighbours.REPLACE_ONE)
    ours = theorem_2((7, 7), 50.0, math.sqrt(2), LOSS)
    assert math.sqrt(ours) == pytest.approx(published_norm(query, LOSS, 50, two_sided=False))
    # compute_precision_budget(6, 248, sqrt(6 * 248), 2 sqrt(6), 1, 0.005) of the authors' code
    m, n = 6, 248
    alpha = (2.45 + 3.6399) * m * n + 2 * 2.45 * math.sqrt(m * n) * 2 * math.sqrt(m)
    zeta = math.sqrt(2 * math.sqrt(-m * n * math.log(0.005)) - 2 * math.log(0.005) + m * n)
    for printed in (False, True):  # without its root, zeta is its square
        beta = 2 * (m * n) ** 0.25 * (zeta**2 if printed else zeta) * 2.45 * 2 * math.sqrt(m)
        theirs = (-beta + math.sqrt(beta**2 + 8 * alpha)) ** 2 / (4 * alpha**2)
        ours = theorem_2((m, n), math.sqrt(m * n), 2 * math.sqrt(m), LOSS, printed=printed)
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_precision_of_the_published_noise_meets_its_condition_with_equality() -> None:
    query = IdentityQuery(240, 6)
    allowed = theorem_2((6, 240), query.largest, query.frobenius, LOSS)
    for method in ("MVG, theorem 2", "MVG, theorem 2, directional"):
        precision = 1 / query.variances(method, LOSS)
        assert np.linalg.norm(precision) * math.sqrt(240) == pytest.approx(allowed)
    assert np.sum(precision[:2] ** 2) / np.sum(precision**2) == pytest.approx(SHARE)


def test_no_two_rows_of_the_box_are_told_apart_better_than_stated() -> None:
    query = IdentityQuery(50, 4)
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=4)))
    assert max(np.linalg.norm(a - b) for a in corners for b in corners) == pytest.approx(query.frobenius)
    assert max(np.abs(a - b).sum() for a in corners for b in corners) == pytest.approx(query.l1)
    for method in ("Gaussian, exact", "Gaussian, exact, directional", "MVG, theorem 2, directional"):
        variances = query.variances(method, LOSS)
        worst = max(float(np.sum((a - b) ** 2 / variances)) for a in corners for b in corners)
        assert query.mu_squared(variances) == pytest.approx(worst)
        if method.startswith("Gaussian"):
            assert math.sqrt(worst) == pytest.approx(1 / gaussian_sigma(LOSS))
        else:
            assert math.sqrt(worst) < 0.01 / gaussian_sigma(LOSS)


@pytest.mark.parametrize("method", METHODS)
def test_copies_have_the_noise_stated(method: str) -> None:
    query = IdentityQuery(4000, 3)
    table = RNG.uniform(-1, 1, (4000, 3))
    noise = query.noisy(table, method, LOSS) - table
    if method == "exponential":  # its radius is one draw, tested below: here the direction
        noise *= math.sqrt(query.variances(method, LOSS)[0] / np.mean(noise**2))
    for column, variance in zip(noise.T, query.variances(method, LOSS), strict=True):
        standard = column / math.sqrt(variance)
        cdf = stats.laplace(scale=math.sqrt(0.5)).cdf if method == "Laplace" else stats.norm().cdf
        assert stats.kstest(standard, cdf).pvalue > FALSE_ALARM
        assert stats.kstest(1.4 * standard, cdf).pvalue < FALSE_ALARM
    assert not np.array_equal(noise, query.noisy(table, method, LOSS) - table)


def test_second_moments_give_the_regression_what_copies_of_rows_do_not() -> None:
    n = 2000
    features = RNG.uniform(-1, 1, (n, 3))
    rows = np.column_stack([0.4 * features[:, 0] - 0.4, features])
    found = {
        method: regression.errors(method, rows, 4, 1).mean()
        for method in ("not private", "Gaussian second moment", "two-sided Wishart", "MVG, theorem 2", "answering zero")
    }
    assert found["not private"] < 0.01 < found["Gaussian second moment"] < 0.1
    assert found["two-sided Wishart"] < 0.15
    assert found["MVG, theorem 2"] > 0.3


def test_exact_calibration_beats_the_published_conditions() -> None:
    rows = np.clip(RNG.normal(size=(3000, 4)) * [0.6, 0.2, 0.1, 0.1], -1, 1)
    deficit = {m: covariance.deficits(m, rows, 10, 0).mean() for m in ("Gaussian, exact", "MVG, theorem 3")}
    assert deficit["Gaussian, exact"] < 1e-3 < deficit["MVG, theorem 3"]
    residual = {
        m: covariance.residuals(m, rows, 3, 0).mean() for m in ("Gaussian, exact", "answering zero", "MVG, theorem 2")
    }
    assert residual["Gaussian, exact"] < 0.01 * residual["answering zero"]
    assert residual["MVG, theorem 2"] > 100 * residual["answering zero"]
    assert 0 < covariance.deficits("random direction", rows, 10, 0).mean() < 0.4


def test_the_quick_version_writes_its_files(scheduler: str, tmp_path: Path) -> None:
    for name, shape in (("liver_disorders", (345, 6)), ("movement_rss", (2000, 4)), ("cardiotocography", (500, 21))):
        np.savez(tmp_path / f"{name}.npz", X=RNG.normal(size=shape))
    output = tmp_path / "out"
    with pytest.warns(PrivacyLeakWarning) as named:
        found, rows = run(tasks, scheduler, output, "--data", str(tmp_path))
    for leak in ("ranges that columns", "known directions"):
        assert any(leak in str(warning.message) for warning in named)
    assert {row["task"] for row in rows} == set(tasks.TASKS)
    assert all(float(row["mean"]) >= 0 for row in rows)
    stated = found["tasks"]["covariance estimation"]["methods"]
    assert stated["Gaussian, exact"]["mu"] > 100 * stated["MVG, theorem 3"]["mu"]


def positive(size: int, *, basis: Floats | None = None) -> Floats:
    """Return a random covariance, in this basis if one is given."""
    turned = np.linalg.qr(RNG.normal(size=(size, size)))[0] if basis is None else basis
    matrix: Floats = (turned * RNG.uniform(0.2, 5, size)) @ turned.T
    return (matrix + matrix.T) / 2


def symmetric_covariance(rows: Floats, columns: Floats) -> Floats:
    """Return the covariance of the entries on and above the diagonal, from that of all entries of N."""
    size = len(rows)
    average = np.zeros((size * (size + 1) // 2, size * size))
    for at, (i, j) in enumerate(zip(*np.triu_indices(size), strict=True)):
        average[at, size * i + j] += 0.5
        average[at, size * j + i] += 0.5
    found: Floats = average @ np.kron(rows, columns) @ average.T
    return found


def test_what_is_proved_of_two_covariances_holds_and_is_reached_where_they_commute() -> None:
    basis = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
    for commute in (True, False):
        of = basis if commute else None
        noise = TwoCovariances.calibrated(
            positive(4, basis=of), positive(4, basis=of), PrivacyLoss.parse("1", "1e-6"), 3.0, Neighbours.REPLACE_ONE
        )
        assert noise.mu(3.0, Neighbours.REPLACE_ONE) == pytest.approx(
            1 / gaussian_sigma(PrivacyLoss.parse("1", "1e-6"))
        )
        one, two = np.linalg.eigh(geometric_mean(noise.rows, noise.columns))[1].T[:2] * 3
        for neighbours, worst in (
            (Neighbours.ADD_REMOVE, np.outer(one, one)),
            (Neighbours.REPLACE_ONE, np.outer(one, one) - np.outer(two, two)),
        ):
            proved = noise.mu(3.0, neighbours) ** 2
            assert noise.mu_squared(worst) == pytest.approx(proved) if commute else noise.mu_squared(worst) < proved
            for _ in range(200):
                v, w = RNG.normal(size=(2, 4))
                removed = 0 if neighbours is Neighbours.ADD_REMOVE else np.outer(w, w) * 9 / (w @ w)
                assert noise.mu_squared(np.outer(v, v) * 9 / (v @ v) - removed) <= proved * (1 + 1e-12)


def test_two_covariances_have_the_law_that_is_proved_and_not_that_of_their_mean() -> None:
    rows = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.2]])
    columns = np.array([[0.5, 0.0, 0.3], [0.0, 4.0, 0.0], [0.3, 0.0, 1.0]])  # they do not commute
    noise, moment = TwoCovariances(rows, columns), np.diag([3.0, 2.0, 1.0])
    drawn = np.array([noise.release(moment, SYSTEM) - moment for _ in range(3000)])
    assert np.array_equal(drawn, drawn.transpose(0, 2, 1))
    entries = drawn[:, *np.triu_indices(3)]
    mean = geometric_mean(noise.rows, noise.columns)

    def plausible(covariance_of_all: Floats) -> bool:
        white = np.linalg.solve(np.linalg.cholesky(covariance_of_all), entries.T)
        off = white @ white.T / len(entries) - np.eye(6)  # of variance 2 / n on the diagonal, 1 / n off it
        scores = np.abs(off) * np.sqrt(len(entries) / (1 + np.eye(6)))
        return bool(scores.max() < 6.5 and stats.kstest(white.ravel(), "norm").pvalue > FALSE_ALARM / 2)

    assert plausible(symmetric_covariance(noise.rows, noise.columns))
    assert not plausible(symmetric_covariance(mean, mean))
    assert not plausible(np.diag(np.diag(symmetric_covariance(rows, columns))))


def test_the_page_shows_how_a_table_is_copied() -> None:
    page = (ROOT / "papers" / "chanyaswad" / "README.md").read_text()
    block = page.partition("```python\n")[2].partition("```")[0]
    made: dict[str, Any] = {}
    exec(block, made)  # noqa: S102 - as printed
    assert made["copy"].shape == (248, 6)
    mu = 2 * math.sqrt(np.sum(1 / made["deviations"] ** 2))
    assert mu == pytest.approx(1 / gaussian_sigma(PrivacyLoss.parse("1", "0.004")))
    assert made["deviations"][1] < made["deviations"][2]
