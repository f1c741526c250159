"""Imtiaz & Sarwate 2016 and its erratum: small versions of the workflows, as they are run, and what they must show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import results, run

from dpdist.errors import PrivacyLeakWarning
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy.guarantee import Neighbours
from papers.common.answers import NOTICE
from papers.imtiaz_sarwate import classifiers, differences, erratum, figures, methods, pages, table
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
        run(figures.main, scheduler, tmp_path, "--data", str(folder))
    for leak in ("largest norm", "rounds of PPM"):
        assert any(leak in str(warning.message) for warning in named)
    assert NOTICE in capsys.readouterr().err
    found, rows = results(tmp_path, figures.NAME)
    assert found["notice"] == NOTICE
    assert {row["method"] for row in rows} == set(methods.METHODS)
    assert {row["data"] for row in rows} == {"synthetic", "covertype"}
    mean = {(m["figure"], m["data"], m["epsilon"], m["method"]): m["mean"] for m in found["means"]}
    assert mean[1, "synthetic", "10", "SVD"] == pytest.approx(100, abs=1e-3)
    assert mean[1, "synthetic", "10", "gaussian"] > 99  # 3000 rows against noise of about 0.4
    assert mean[1, "synthetic", "10", "random"] < 35  # 10 of 100 dimensions; the mean is near 10
    assert len(set(found["data"]["synthetic"]["sha256"])) == found["facts"]["synthetic"]["draws"] == 2  # drawn anew
    spread = {m["method"]: m for m in found["means"] if (m["figure"], m["data"]) == (1, "synthetic")}
    assert spread["random"]["runs"] == 4
    assert spread["random"]["of the noise"] > 0
    assert "## covertype" in (tmp_path / f"{figures.NAME}.md").read_text()
    before = (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes()
    with pytest.warns(PrivacyLeakWarning):
        run(figures.main, scheduler, tmp_path, "--data", str(folder))
    assert "Captured energy" not in capsys.readouterr().err  # the progress bar: no cell was left
    assert (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes() == before


def test_differences_of_matrices_are_those_of_the_noise(scheduler: str, folder: Path, tmp_path: Path) -> None:
    with pytest.warns(PrivacyLeakWarning):
        run(differences.main, scheduler, tmp_path, "--data", str(folder))
    found, rows = results(tmp_path, differences.NAME)
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
        run(table.main, scheduler, tmp_path)
    for leak in ("largest norm", "rounds of PPM"):
        assert any(leak in str(warning.message) for warning in named)
    found, rows = results(tmp_path, table.NAME)
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
        run(classifiers.main, scheduler, tmp_path, "--data", str(folder))
    found, rows = results(tmp_path, classifiers.NAME)
    assert {row["subspace"] for row in rows} == {"SVD", "random"}
    assert all(float(row["error"]) < 10 for row in rows if row["subspace"] == "SVD")  # the digits are far apart
    assert (tmp_path / f"{classifiers.NAME}.md").read_text() == pages.classifiers_page(found)


def test_the_attack_is_certain_after_sn_releases_and_never_after_the_repairs(scheduler: str, tmp_path: Path) -> None:
    run(erratum.main, scheduler, tmp_path)
    found, rows = results(tmp_path, erratum.NAME)
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
    assert noise["degrees"] == 11
    assert noise["scale"] == query.bound  # 1 / (2 epsilon), in units of C²
    assert erratum.calibrated("dp_stats", "0.5", query).noise["scale"] == query.bound  # 1 / (4 epsilon²)
    assert erratum.calibrated("dp_stats", "0.1", query).noise["scale"] == 25 * query.bound
