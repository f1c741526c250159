"""Imtiaz & Sarwate 2016 and its erratum: small versions of the workflows, as they are run, and what they must show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import run
from support.tallies import FALSE_ALARM

from dpdist.core.errors import PrivacyLeakWarning
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import Neighbours
from papers.common import wishart_bounds
from papers.common.answers import NOTICE
from papers.imtiaz_sarwate import classifiers, differences, erratum, figures, methods, pages, ppm, table, theorem_2
from papers.imtiaz_sarwate.published import LABELS, counted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small Covertype and a small MNIST with the shapes of the real ones."""
    found = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 54)) * np.r_[900, 400, 200, np.ones(51)]
    np.savez(found / "covertype.npz", X=rows.round().astype(np.int16), y7=rng.integers(0, 8, 500).astype(np.uint8))
    labels = np.repeat([3, 7], 220).astype(np.uint8)
    digits = rng.integers(0, 100, (440, 784)) + 150 * ((labels[:, None] == 7) & (np.arange(784) < 20))
    np.savez(found / "mnist.npz", X=digits.astype(np.uint8), y=labels)
    return found


def test_the_figures_run_are_recorded_and_are_not_run_again(
    scheduler: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(PrivacyLeakWarning) as named:
        found, rows = run(figures, scheduler, tmp_path, "--data", str(folder))
    for leak in ("largest norm", "rounds of PPM"):
        assert any(leak in str(warning.message) for warning in named)
    assert NOTICE in capsys.readouterr().err
    assert found["notice"] == NOTICE
    assert {row["method"] for row in rows} == set(methods.METHODS)
    assert {row["data"] for row in rows} == {"synthetic", "covertype"}
    mean = {(m["figure"], m["data"], m["epsilon"], m["method"]): m["mean"] for m in found["means"]}
    assert mean[1, "synthetic", "10", "SVD"] == pytest.approx(100, abs=1e-3)
    assert mean[1, "synthetic", "10", "gaussian"] > 90  # 3000 rows, delta 1e-6
    assert mean[1, "synthetic", "10", "random"] < 35  # 10 of 100 dimensions; the mean is near 10
    assert len(set(found["facts"]["synthetic"]["sha256"])) == found["facts"]["synthetic"]["draws"] == 2  # drawn anew
    spread = {m["method"]: m for m in found["means"] if (m["figure"], m["data"]) == (1, "synthetic")}
    assert spread["random"]["runs"] == 4
    assert spread["random"]["of the noise"] > 0
    assert "## covertype" in (tmp_path / f"{figures.NAME}.md").read_text()
    before = (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes()
    with pytest.warns(PrivacyLeakWarning):
        run(figures, scheduler, tmp_path, "--data", str(folder))
    assert "Captured energy" not in capsys.readouterr().err  # the progress bar: no cell was left
    assert (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes() == before


def test_differences_of_matrices_are_those_of_the_noise(scheduler: str, folder: Path, tmp_path: Path) -> None:
    with pytest.warns(PrivacyLeakWarning):
        found, rows = run(differences, scheduler, tmp_path, "--data", str(folder))
    assert {row["method"] for row in rows} == set(differences.RELEASING) == set(found["methods"])
    mean = {(m["data"], m["method"], m["measure"]): m["mean"] for m in found["table"]}
    for data in ("synthetic", "covertype"):
        whole = {label: mean[data, label, differences.WHOLE] for label in differences.RELEASING}
        # Wishart noise of d + 1 degrees, scales 1/2 and 3/2 over epsilon: three times the norm, within some per cent
        assert whole["Jiang et al."] / whole["SN"] == pytest.approx(3, rel=0.3)
        assert whole["gaussian"] < whole["SN"]
        for label in differences.RELEASING:  # the part of rank k is off by at most twice, and by lambda_(k+1)
            assert mean[data, label, differences.LOW_RANK] < 2 * whole[label] + 1


def test_the_table_runs_and_compares_with_what_was_printed(scheduler: str, tmp_path: Path) -> None:
    with pytest.warns(PrivacyLeakWarning) as named:
        found, rows = run(table, scheduler, tmp_path)
    for leak in ("largest norm", "rounds of PPM"):
        assert any(leak in str(warning.message) for warning in named)
    assert {row["split"] for row in rows} == {"70%", "50%"}
    printed = {(row["method"], row["split"]): row.get("printed") for row in found["table"]}
    assert printed["SN", "70%"] == 7.99
    assert printed["gaussian", "70%"] is None
    runs = {(row["method"], row["split"], row["classifier"]): row["scan"] for row in found["table"]}
    # 300 test rows, Bayes error 5.65 %: 15 % has probability below 1e-9 for the best subspace
    assert runs["SVD", "70%", "standardised"]["any"]["largest"] < 15
    assert all("agreeing" in row for row in found["table"] if row["method"] in LABELS[1:])
    assert (tmp_path / f"{table.NAME}.md").read_text() == pages.table_page(found)


def test_a_printed_cell_is_compared_with_single_runs_and_not_with_their_mean() -> None:
    assert counted().whole == 30  # every cell of table 1 is one run
    column = table.Column("synthetic", (), 1, 10, ("0.1", "1"), 10, 10, 1, ())
    errors = {"0.1": [5.0, 5.2, 5.5, 5.8, 6.0, 7.0, 7.4, 7.6, 7.9, 8.0], "1": [5.4] * 10}
    rows = [
        {"data": "synthetic", "split": "train 4000", "method": label, "run": i, "epsilon": "" if label == "SVD" else e}
        | {"error": error, "error, not standardised": 50.0}
        for label in ("SVD", "AG", "SN")
        for e, each in errors.items()
        if not (label == "SVD" and e == "1")
        for i, error in enumerate(each)
    ]
    found = {(one["method"], one["classifier"]): one for one in table.compared(rows, [column])}
    # the mean at 0.1 is 6.54 with a standard error of 0.36: 7.5, printed for SN, is 2.7 of them away from it
    assert found["SN", "standardised"]["agreeing"][0] == pytest.approx(0.1)
    assert found["SN", "standardised"]["agreeing"][-1] < 1
    assert found["AG", "standardised"]["agreeing"][-1] < 1  # 5.8: not where every run has 5.4
    assert found["SVD", "standardised"]["agrees"] is True
    assert found["SVD", "not standardised"]["agrees"] is False
    assert found["SN", "not standardised"]["agreeing"] == []
    few = table.compared([row for row in rows if int(row["run"]) < 4], [column])
    assert {one["agreeing"] for one in few if one["method"] == "SN"} == {None}  # 4 runs have no quantiles


def test_classifiers_are_tried_on_digits(scheduler: str, folder: Path, tmp_path: Path) -> None:
    with pytest.warns(PrivacyLeakWarning):
        found, rows = run(classifiers, scheduler, tmp_path, "--data", str(folder))
    assert {row["subspace"] for row in rows} == {"SVD", "random"}
    one = found["classifiers"][0] | {"kernel": "rbf", "train": 4000}
    more = one | {"train": 6000}
    assert pages.with_both([one, more, one | {"C": 10.0}]) == ["rbf, columns standardised"]
    assert all(float(row["error"]) < 10 for row in rows if row["subspace"] == "SVD")  # the digits are far apart
    assert (tmp_path / f"{classifiers.NAME}.md").read_text() == pages.classifiers_page(found)


def test_the_attack_is_certain_after_sn_releases_and_never_after_the_repairs(scheduler: str, tmp_path: Path) -> None:
    found, rows = run(erratum, scheduler, tmp_path)
    assert len(rows) == 5
    attacks = {row["mechanism"]: row for row in found["attacks"]}
    for label, theory in (("SN", 0.6321), ("Jiang et al.", 0.2835), ("dp_stats", 0.8647)):
        row = attacks[label]
        assert row["certain in theory"] == pytest.approx(theory, abs=1e-4)
        assert row["rule fires with the row"] == 0  # impossible, so the attacker is certain
        # 200 releases: 5 standard deviations of a share are 0.177 at most
        assert abs(row["rule fires without the row"] - theory) < 0.177
    assert attacks["SN"]["delta at least"] > 0.05  # claimed is 0; with a share 5 deviations below theory it is 0.09
    assert attacks["two-sided-wishart"]["delta at least"] == 0
    assert attacks["two-sided-wishart"]["rule fires with the row"] > 0.9  # it says nothing there
    assert attacks["wishart"]["delta at least"] == 0
    profiles = found["profiles at claimed epsilon 1"]
    assert profiles["SN"][-1] == pytest.approx(0.6321, abs=1e-4)  # at epsilon 2 as well
    assert profiles["wishart"][2] <= 1e-6
    assert profiles["two-sided-wishart"][2] == 0


def test_sn_is_instantiated_as_published() -> None:
    query = LatticeQuery(10, 4**16, Neighbours.REPLACE_ONE)
    noise = erratum.calibrated("SN", "0.5", query).noise
    assert (noise["degrees"], noise["scale"]) == (11, query.bound)  # 1 / (2 epsilon), in units of C²
    for epsilon, scale in (("0.5", 1), ("0.1", 25)):  # 1 / (4 epsilon²)
        assert erratum.calibrated("dp_stats", epsilon, query).noise["scale"] == scale * query.bound


def test_the_attack_on_ppm_is_on_two_tables_of_rows_that_differ_in_one(scheduler: str, tmp_path: Path) -> None:
    shared, times, last = ppm.tables()
    assert np.linalg.norm([*shared, *last.values()], axis=1) == pytest.approx(np.ones(ppm.COMPONENTS + 2))
    assert times.dtype.kind == "i"
    assert times.min() > 0
    change = np.outer(last["changed"], last["changed"]) - np.outer(last["as it is"], last["as it is"])
    assert np.linalg.norm(change @ shared[-1]) == pytest.approx(1)  # all that replacing one row can do to a direction
    assert np.allclose(change @ shared[:-1].T, 0)
    ppm.main.main(["--quick", "--scheduler", scheduler, "--output", str(tmp_path)], standalone_mode=False)
    (attack,) = json.loads((tmp_path / f"{ppm.NAME}.json").read_text())["attacks"]
    # 500 releases of either table: the estimate is .036 with a standard deviation of .027 (one in ten is below zero)
    assert -0.1 < attack["delta estimated"] < 0.2
    assert 0 <= attack["delta at least"] <= max(0, attack["delta estimated"])


# --- theorem 2: bounds on Wishart noise hold of what the mechanisms draw, and the published rates do not

THEOREM_DRAWS = 30


@pytest.mark.parametrize("method", theorem_2.METHODS)
def test_bounds_hold_of_every_draw_and_the_published_rate_of_none(method: str) -> None:
    size, k = 40, 4
    for epsilon in (1.0, 10.0):
        cell = {"method": method, "epsilon": f"{epsilon:g}", "d": size, "k": k}
        found = [theorem_2.measured(cell | {"draw": i}, None) for i in range(THEOREM_DRAWS)]
        # all draws of both epsilons together exceed a bound with a probability below FALSE_ALARM
        bounds = theorem_2.proved(method, size, k, epsilon, FALSE_ALARM / (2 * THEOREM_DRAWS))
        for measure in theorem_2.MEASURES:
            assert max(one[measure] for one in found) <= bounds[measure], measure
            assert min(one[measure] for one in found) >= 0
        # the norm is above its mean along a fixed direction: no draw is near the published rate
        rate = theorem_2.published(size, k, epsilon)
        for measure in ("norm of the noise", "distance of subspaces"):
            assert min(one[measure] for one in found) > rate[measure], measure
        # a twin with the variance taken as a standard deviation, as published, fails
        wrong = wishart_bounds.wishart_norm(size, size + 1, (0.5 / epsilon) ** 2, FALSE_ALARM / (2 * THEOREM_DRAWS))
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


def test_the_quick_version_of_theorem_2_writes_its_files(scheduler: str, tmp_path: Path) -> None:
    found, rows = run(theorem_2, scheduler, tmp_path)
    assert len(rows) == 2 * len(theorem_2.EPSILONS) * 4
    assert len(found["table"]) == 2 * len(theorem_2.EPSILONS) * len(theorem_2.MEASURES)
