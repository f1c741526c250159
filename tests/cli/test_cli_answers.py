"""The commands covariance, synthesise and regress: files, output, marks, refusals and their cures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
import zarr
from click.testing import CliRunner
from pyarrow import parquet
from support.cli_scene import Call
from support.folders import unpack
from support.releases import archive_of
from support.samples import SAMPLES

from dpdist import Centring, Neighbours, PrivateCovariance, combine_releases
from dpdist.cli import cli
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.release.archive import publish
from papers.common.drawn import drawn

LOSS = ("--epsilon", "1", "--delta", "1e-6", "--clip", "4")
NAMES = ["height, cm", "weight", "a_name_that_is_longer_than_a_table_has_room_for", "income"]
MARK = "NOT PRIVATE AS CLAIMED: do not publish it."
REGRESS = ("regress", "release.zarr", "--target", "income")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make rows with a budget, a release of them, and two that are not private as claimed."""
    folder = tmp_path_factory.mktemp("answers")
    random = np.random.default_rng(2)
    x = random.normal(size=(5000, 3))
    rows = np.column_stack([x, x @ [1.0, -0.5, 0.0] + random.normal(size=5000)])
    header = ",".join(f'"{name}"' for name in NAMES)
    np.savetxt(folder / "table.csv", rows, delimiter=",", header=header, comments="")
    reproduced = ("--mechanism", "sn", "--epsilon", "1", "--clip", "4", "--for-reproduction")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (
            ("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5"),
            ("release", "rows.zarr", "release.zarr", *LOSS, "--centre", "private"),
            ("ingest", "table.csv", "public.zarr"),
            ("release", "public.zarr", "sn.zarr", *reproduced),
            ("release", "public.zarr", "mean.zarr", *reproduced, "--centre", "private"),
        ):
            CliRunner().invoke(cli, command, catch_exceptions=False)
    return folder


@pytest.fixture
def table(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(made, tmp_path / "answers")
    monkeypatch.chdir(folder)
    return folder


def numbers(path: str) -> Any:
    frame = pa.csv.read_csv(path).to_pandas()  # the floats of pandas 2 may be off by a bit
    assert list(frame) == NAMES
    return frame.to_numpy()


@pytest.mark.usefixtures("table")
def test_a_table_and_arrays_hold_what_the_estimator_does(call: Call) -> None:
    fitted = PrivateCovariance.from_release("release.zarr")
    said = call("covariance", "release.zarr", "found.csv")
    assert ", shrinkage optimal. 4 of 4 directions above the noise." in said.told
    assert "found.csv: covariance of 4 columns of rows clipped to norm" in said.told
    assert np.array_equal(numbers("found.csv"), fitted.covariance_)
    for kind in ("none", "trace"):  # existing files are replaced
        assert call("covariance", "release.zarr", "found.csv", "--shrinkage", kind).code == 0
        known = PrivateCovariance.from_release("release.zarr", kind).covariance_
        assert np.array_equal(numbers("found.csv"), known)
    assert call("covariance", "release.zarr", "found.npz", "--json").json["directions_above_noise"] == 4
    with np.load("found.npz") as read:
        stored = dict(read)
    assert (stored["names"].tolist(), str(stored["status"])) == (NAMES, "private")
    for name in ("covariance", "correlation", "location", "partial_correlation", "partial_ridge"):
        assert np.array_equal(stored[name], getattr(fitted, f"{name}_"))
    for name in ("", "partial_correlation_"):
        ends = np.stack([stored[f"{name}low"], stored[f"{name}high"]], -1)
        assert np.array_equal(ends, getattr(fitted, f"{name or 'covariance_'}intervals_"))
    assert np.all(stored["correlation_low"] <= stored["correlation_high"])


def test_columns_that_drowned_are_named_in_every_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(2).normal(size=(5000, 3)) * [1.5, 0.001, 1.0]
    np.savetxt("table.csv", rows, delimiter=",", header="tall,still,wide", comments="")
    call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5")
    assert call("release", "rows.zarr", "release.zarr", *LOSS[:-1], "6", "--centre", "private").code == 0
    named = "The variance of 1 column is below the noise, so the results for it are mostly noise: still."
    assert named in " ".join(call("covariance", "release.zarr", "found.npz").told.split())
    with np.load("found.npz") as read:
        assert read["drowned"].tolist() == ["still"]
    assert call("covariance", "release.zarr", "found.csv", "--json").json["drowned"] == ["still"]
    assert named in " ".join(call("synthesise", "release.zarr", "drawn.csv", "--rows", "9").told.split())


@pytest.mark.usefixtures("table")
def test_what_is_not_private_as_claimed_is_marked_and_kept_from_others(call: Call) -> None:
    assert MARK in call("covariance", "sn.zarr", "sn.npz").told
    with np.load("sn.npz") as stored:
        assert str(stored["status"]) == "not private as claimed"
    for name in ("drawn.npy", "drawn.zarr"):
        assert MARK in call("synthesise", "mean.zarr", name, "--rows", "9").told
    for name in ("sn.npz", "drawn.npy", "drawn.zarr"):
        assert Path(name).stat().st_mode & 0o077 == 0
    said = call("regress", "sn.zarr", "--target", "income")
    assert (said.code, said.told.startswith(f"{MARK}\n")) == (0, True)
    assert call("regress", "sn.zarr", "--target", "income", "--json").json["status"] == "not private as claimed"
    assert call("inspect", "sn.zarr", "--json").json["card"]["status"] == "not private as claimed"
    assert call("pca", "sn.zarr", "m.zarr", "--components", "1", "--table", "l.csv").code == 0
    assert set(pd.read_csv("l.csv").status) == {"not private as claimed"}


@pytest.mark.usefixtures("table")
def test_a_card_with_a_ledger_says_what_was_charged(call: Call) -> None:
    budget = call("inspect", "release.zarr", "--ledger", "rows.ledger", "--json").json["card"]["budget"]
    assert budget["epsilon"] == 3.0
    assert [(each["epsilon"], each["state"]) for each in budget["charged"]] == [(1.0, "published")]
    wrong = call("inspect", "release.zarr", "--ledger", "nowhere", "--json")
    assert (wrong.code, "There is no ledger at nowhere" in wrong.json["error"]) == (4, True)


@pytest.mark.usefixtures("table")
def test_a_command_takes_both_spellings(call: Call) -> None:
    tables = [(call(name, "release.zarr", f"{name}.csv", "--rows", "5", "--seed", "7").code, Path(f"{name}.csv"))
              for name in ("synthesise", "synthesize")]  # fmt: skip
    assert [(code, path.read_text()) for code, path in tables] == [(0, tables[0][1].read_text())] * 2


@pytest.mark.usefixtures("table")
def test_synthetic_rows_come_in_the_kinds_of_files_that_are_ingested(call: Call) -> None:
    asked = ("synthesise", "release.zarr")
    said = call(*asked, "drawn.csv", "--rows", "3000", "--seed", "7")
    assert said.code == 0
    assert "drawn.csv: 3000 synthetic rows of 4 columns, by the moment of rows clipped to norm" in said.told
    assert "The noise puts their covariance about" in said.told
    rows = numbers("drawn.csv")
    told = PrivateCovariance.from_release("release.zarr").covariance_
    assert np.abs(np.cov(rows, rowvar=False) - told).max() < 0.3  # 4 entries of 16 have 7 deviations, of one seed
    for kind in ("npy", "parquet", "zarr"):
        value = call(*asked, f"drawn.{kind}", "--rows", "3000", "--seed", "7", "--json").json
        assert (value["rows"], value["columns"], value["seed"]) == (3000, NAMES, 7)
        assert 0 < value["covariance_error"] < 0.2
    frame, stored = parquet.read_table("drawn.parquet"), zarr.open_array("drawn.zarr", mode="r")
    assert (frame.column_names, frame.schema.metadata[b"dpdist.status"]) == (NAMES, b"private")
    assert stored.attrs["columns"] == NAMES
    for read in (np.load("drawn.npy"), frame.to_pandas().to_numpy(), np.asarray(stored[...])):
        assert np.array_equal(read, rows)
    again = call(*asked, "rows.zarr", "--rows", "5")  # the private ones
    assert (again.code, "exists already" in again.message) == (4, True)
    for kind in ("csv", "parquet"):
        assert call("ingest", f"drawn.{kind}", f"{kind}.zarr").code == 0


def test_a_regression_is_printed_as_json(table: Path, call: Call) -> None:
    before = sorted(table.iterdir())
    said = call(*REGRESS, "--json").json
    assert [said[key] for key in ("release", "status", "target", "drowned")] == [
        "release.zarr", "private", "income", False,
    ]  # fmt: skip
    assert list(said["coefficients"]) == NAMES[:3]
    for each in (said["intercept"], *said["coefficients"].values()):
        assert each["population_low"] < each["low"] < each["value"] < each["high"] < each["population_high"]
    assert said["coefficients"]["height, cm"]["low"] > 0 > said["coefficients"]["weight"]["high"]
    assert said["r2"]["low"] < said["r2"]["value"] < said["r2"]["high"] < 1
    assert said["shortened"]["norm"] < 4
    some = call(*REGRESS[:3], "weight", "--on", '"height, cm",income', "--ridge", "90", "--json").json
    assert (list(some["coefficients"]), some["ridge"]) == (["height, cm", "income"], 90)
    among = call(*REGRESS, "--components", "3", "--json").json
    assert (among["components"], among["ridge"], said["components"]) == (3, 0, None)
    assert call(*REGRESS, "--components", "auto", "--json").json["components"] == 3
    both = call(*REGRESS[:3], "weight,income", "--json").json["regressions"]
    assert [(each["target"], len(each["coefficients"])) for each in both] == [("weight", 2), ("income", 2)]
    assert sorted(table.iterdir()) == before


@pytest.mark.usefixtures("table")
def test_words_fit_a_terminal_and_what_makes_no_sense_is_refused_in_a_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, command, words in (
        (2, (*REGRESS, "--ridge", "much"), "--ridge takes a number or auto, not 'much'"),
        (2, (*REGRESS, "--components", "2", "--ridge", "3"), "leave out --ridge or --components"),
    ):
        said = call(*command)
        assert (said.code, words in said.message) == (code, True), said.message
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("dpdist.cli.output.on_terminal", lambda **_: True)
    said = call(*REGRESS)
    assert said.code == 0
    assert max(map(len, said.told.splitlines())) <= 80
    for words in ("Regression of income on 3 columns", "a_name_that_is_long...", "R² 0.", "No ridge is needed",
                  "rows clipped to norm 3.9"):  # fmt: skip
        assert words in said.told
    assert "NOT PRIVATE" not in said.told
    assert "2 released principal components of 3 columns" in " ".join(call(*REGRESS, "--components", "2").told.split())


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", ["table.csv", "rows.parquet", "rows.npy"])
def test_synthetic_rows_replace_nothing(call: Call, name: str) -> None:
    if name != "table.csv":
        Path(name).write_bytes(b"rows of somebody")
    before = Path(name).read_bytes()
    said = call("synthesise", "release.zarr", name, "--rows", "3")
    assert (said.code, "exists already" in said.message, Path(name).read_bytes() == before) == (4, True, True)


@pytest.mark.usefixtures("table")
def test_a_file_of_somebody_else_is_not_replaced(call: Call) -> None:
    pca = ("pca", "release.zarr", "model.zarr", "--components", "1", "--table")
    for command, name in (
        (("report", "release.zarr"), "out.html"),
        (("covariance", "release.zarr"), "out.csv"),
        (("covariance", "release.zarr"), "out.npz"),
        (pca, "loadings.csv"),
        (pca, "loadings.parquet"),
    ):
        assert [call(*command, name).code for _ in range(2)] == [0, 0]
        for content in (Path("table.csv").read_bytes(), b"a,b,c\n1,2,3\n"):
            Path(name).write_bytes(content)
            said = call(*command, name)
            assert (said.code, "exists already and is not a " in said.told) == (4, True)
            assert Path(name).read_bytes() == content


TRAITS = ("age", "height", "weight", "shoe", "income")


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of releases that cannot answer something."""
    folder = tmp_path_factory.mktemp("things")
    random = np.random.default_rng(1)
    rows = random.normal(size=(4000, 5))
    rows[:, 4] = rows[:, 0] - rows[:, 1] + 0.3 * rows[:, 4]
    rows[:, 2] = rows[:, 0] + rows[:, 1]
    bare: dict[str, Any] = {"centring": Centring.NONE, "neighbours": Neighbours.ADD_REMOVE}
    made = {
        "good": drawn(rows, 5.0, "2", names=TRAITS).release(),
        "uncentred": drawn(rows, 5.0, "2", names=TRAITS, **bare).release(),
    }
    drowned = drawn(rows, 5.0, "2", names=TRAITS)
    made["few"] = replace(made["good"], rows=3)
    made["drowned"] = replace(drowned.release(), answer=np.diag([-1] * 5 + [drowned.lattice[-1, -1]]))
    frame: dict[str, Any] = {"mechanism": "bingham", "noise": Noise("none"), "answer": np.eye(5)[:2]}
    made["subspace"] = replace(made["uncentred"], **frame)
    for name, release in made.items():
        publish(archive_of(release), folder / f"{name}.zarr")
    halves = [drawn(rows[half::2], 5.0, "2", names=TRAITS).release(half) for half in (0, 1)]
    combine_releases(halves, folder / "sum.zarr")
    samples = folder.with_name(f"{folder.name}-samples")
    unpack(SAMPLES, samples)
    (samples / "weighted" / "published").rename(folder / "published")
    (folder / "published" / "d2.zarr").rename(folder / "night.zarr")
    return folder


INCOME = ("regress", "--target", "income")
BY_OTHERS = "Use a release by gaussian (with a delta) or two-sided-wishart (without)"
TOTAL = "Use the total of the series"
DROWNED = "It takes --scale private, a larger epsilon or more rows"


def test_a_refusal_says_what_can_be_asked(things: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(things)
    before = sorted(things.iterdir())
    for thing, (command, *rest), said in (
        ("good", (*INCOME, "--ridge", "0"), "Use --ridge auto, which is"),
        ("good", ("pca", "OUT.zarr", "--components", "0.99999", "--correlation"), "Ask for a smaller share"),
        ("few", INCOME, "There are fewer rows"),
        ("drowned", INCOME, "Use a larger epsilon or more rows"),
        ("drowned", ("synthesise", "OUT.csv", "--rows", "3"), "dpdist forecast reports what is needed"),
        (
            "drowned",
            ("pca", "OUT.zarr", "--components", "0.5", "--no-correlation"),
            "--components K returns K components anyway",
        ),
        ("drowned", ("pca", "OUT.zarr", "--components", "2", "--correlation"), DROWNED),
        ("uncentred", ("covariance", "OUT.csv"), "Use --centre private"),
        ("subspace", ("synthesise", "OUT.csv", "--rows", "3"), BY_OTHERS),
        ("subspace", ("pca", "OUT.zarr", "--components", "2", "--correlation"), "Leave out --correlation, or"),
        ("subspace", ("pca", "OUT.zarr", "--components", "0.9"), "Pass their number (--components K)"),
        ("night", ("synthesise", "OUT.csv", "--rows", "3"), TOTAL),
        ("night", ("pca", "OUT.zarr", "--components", "2"), TOTAL),
        ("night", ("report", "OUT.html"), TOTAL),
    ):
        told = call(command, f"{thing}.zarr", *rest)
        drowned = thing == "drowned" or "0.99999" in rest  # a valid command that this release cannot answer
        assert (told.code, said in told.message) == (4 if drowned else 2, True), told.message
    assert sorted(things.iterdir()) == before


@pytest.mark.parametrize("thing", ["sum", "published/total/d2"])
def test_sums_and_totals_are_answered_as_releases_are(
    things: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, thing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    release = things / f"{thing}.zarr"
    asked = [("report", "OUT.html"), ("inspect", "--json"), ("covariance", "OUT.csv"),
             ("pca", "OUT.zarr", "--components", "2", "--table", "OUT.parquet"),
             ("regress", "--target", "income", "--table", "regressed.csv"),
             ("synthesise", "drawn.csv", "--rows", "3")]  # fmt: skip
    for command, *rest in asked if thing == "sum" else asked[:4]:  # the total is of a few rows
        told = call(command, release, *rest)
        assert told.code == 0, told.told
