"""Imtiaz & Sarwate 2016 and its erratum: small versions of the workflows, as they are run, and what they must show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.paper_runs import results, run

from dpdist.errors import PrivacyLeakWarning
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.floats import normals
from dpdist.privacy.guarantee import Neighbours
from papers.common import data as sets
from papers.common.answers import NOTICE, captured_energy, moment_of
from papers.imtiaz_sarwate import erratum, figures, methods, table
from papers.imtiaz_sarwate.published import LABELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small Covertype with the shape of the real one."""
    found = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 54)) * np.r_[900, 400, 200, np.ones(51)]
    np.savez(found / "covertype.npz", X=rows.round().astype(np.int16), y7=rng.integers(0, 8, 500).astype(np.uint8))
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
    before = (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes()
    with pytest.warns(PrivacyLeakWarning):
        run(figures.main, scheduler, tmp_path, "--data", str(folder))
    assert "Captured energy" not in capsys.readouterr().err  # the progress bar: no cell was left
    assert (tmp_path / f"{figures.NAME}.cells.jsonl").read_bytes() == before


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
    measured = {(row["method"], row["split"]): row["measured"] for row in found["table"]}
    # 300 test rows, Bayes error 5.65 %: 15 % has probability below 1e-9 for the best subspace
    assert measured["SVD", "70%"]["any"] < 15
    assert all("matching epsilon" in row for row in found["table"] if row["method"] in LABELS[1:])


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


def test_published_rounds_follow_the_gap() -> None:
    with pytest.warns(PrivacyLeakWarning):
        rows = sets.in_unit_ball(normals(40000, SYSTEM).reshape(4000, 10) * np.r_[8, 8, np.ones(8)])
    moment = moment_of(rows)
    assert methods.rounds_as_published(moment, 2) == 3  # 8 / (8 - 1) ln 10 = 2.63
    found = methods.subspace("random", "1", moment, 2, {})
    assert np.allclose(found @ found.T, np.eye(2))
    assert captured_energy(methods.subspace("SVD", "1", moment, 2, {}), moment) == pytest.approx(100, abs=1e-3)


def test_sn_is_instantiated_as_published() -> None:
    query = LatticeQuery(10, 4**16, Neighbours.REPLACE_ONE)
    noise = erratum.calibrated("SN", "0.5", query).noise
    assert noise["degrees"] == 11
    assert noise["scale"] == query.bound  # 1 / (2 epsilon), in units of C²
    assert erratum.calibrated("dp_stats", "0.5", query).noise["scale"] == query.bound  # 1 / (4 epsilon²)
    assert erratum.calibrated("dp_stats", "0.1", query).noise["scale"] == 25 * query.bound
