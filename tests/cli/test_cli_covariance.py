"""dpdist covariance: the files that it writes for other tools, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import zarr
from pyarrow import parquet
from support.cli_scene import Call

from dpdist import DrownedWarning, PrivateCovariance


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Path:
    """Work beside a release of three columns."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(2).normal(size=(5000, 3)) @ [[1.0, 0.5, 0], [0, 1, 0], [0, 0, 0.5]]
    np.savetxt("table.csv", rows, delimiter=",", header='"a, b",weight,age', comments="")
    assert call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5").code == 0
    asked = ("--epsilon", "1", "--delta", "1e-6", "--clip", "4", "--centre", "private")
    assert call("release", "rows.zarr", "release.zarr", *asked).code == 0
    return tmp_path / "release.zarr"


def test_a_table_and_arrays_hold_what_the_estimator_does(release: Path, call: Call) -> None:
    fitted = PrivateCovariance.from_release(release)
    said = call("covariance", "release.zarr", "found.csv")
    assert said.code == 0
    assert ", shrinkage optimal. 3 of 3 directions vary more than" in said.err
    assert "found.csv: covariance of 3 columns of rows clipped to norm" in said.err
    with Path("found.csv").open() as file:
        names, *lines = csv.reader(file)
    assert names == ["a, b", "weight", "age"]
    assert np.array_equal(np.array(lines, dtype=np.float64), fitted.covariance_)
    assert call("covariance", "release.zarr", "found.npz", "--json").json["directions_above_noise"] == 3
    with np.load("found.npz") as read:
        stored = dict(read)
    assert stored["names"].tolist() == names
    assert str(stored["status"]) == "private"
    for name, known in (("covariance", fitted.covariance_), ("correlation", fitted.correlation_),
                        ("location", fitted.location_)):  # fmt: skip
        assert np.array_equal(stored[name], known)
    assert fitted.covariance_intervals_ is not None
    assert np.array_equal(np.stack([stored["low"], stored["high"]], -1), fitted.covariance_intervals_)
    assert np.all(stored["correlation_low"] <= stored["correlation_high"])
    assert np.array_equal(stored["partial_correlation"], fitted.partial_correlation_)
    ends = np.stack([stored["partial_correlation_low"], stored["partial_correlation_high"]], -1)
    assert np.array_equal(ends, fitted.partial_correlation_intervals_)
    assert stored["partial_ridge"] == fitted.partial_ridge_ == 0


def test_columns_that_drowned_are_named_in_every_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(2).normal(size=(5000, 3)) * [1.5, 0.001, 1.0]
    np.savetxt("table.csv", rows, delimiter=",", header="tall,still,wide", comments="")
    call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5")
    asked = ("--epsilon", "1", "--delta", "1e-6", "--clip", "6", "--centre", "private")
    assert call("release", "rows.zarr", "release.zarr", *asked).code == 0
    named = "1 column did not stand above the noise, and numbers about it are mostly noise: still."
    assert named in " ".join(call("covariance", "release.zarr", "found.npz").err.split())
    with np.load("found.npz") as read:
        assert read["drowned"].tolist() == ["still"]
    assert call("covariance", "release.zarr", "found.csv", "--json").json["drowned"] == ["still"]
    assert named in " ".join(call("synthesise", "release.zarr", "drawn.csv", "--rows", "9").err.split())
    with pytest.warns(DrownedWarning, match="mostly noise: still"):
        PrivateCovariance.from_release("release.zarr")


@pytest.mark.usefixtures("release")
def test_other_shrinkages_are_a_choice_and_what_is_there_is_replaced(call: Call) -> None:
    for kind in ("none", "trace"):
        assert call("covariance", "release.zarr", "found.csv", "--shrinkage", kind).code == 0
        known = PrivateCovariance.from_release("release.zarr", kind).covariance_
        assert np.array_equal(np.loadtxt("found.csv", delimiter=",", skiprows=1), known)


@pytest.mark.usefixtures("release")
def test_what_is_not_private_as_claimed_is_marked_and_kept_from_others(call: Call) -> None:
    assert call("ingest", "table.csv", "public.zarr").code == 0
    reproduced = ("--mechanism", "sn", "--epsilon", "1", "--clip", "4", "--for-reproduction")
    assert call("release", "public.zarr", "sn.zarr", *reproduced).code == 0
    said = call("covariance", "sn.zarr", "sn.npz")
    assert "NOT PRIVATE AS CLAIMED: do not publish it." in said.err
    with np.load("sn.npz") as stored:
        assert str(stored["status"]) == "not private as claimed"
    assert Path("sn.npz").stat().st_mode & 0o077 == 0


def test_synthetic_rows_come_in_the_kinds_of_files_that_are_ingested(release: Path, call: Call) -> None:
    asked = ("synthesise", "release.zarr")
    said = call(*asked, "drawn.csv", "--rows", "3000", "--seed", "7")
    assert said.code == 0
    assert "drawn.csv: 3000 synthetic rows of 3 columns, by the moment of rows clipped to norm" in said.err
    assert "% off by the noise" in said.err
    with Path("drawn.csv").open() as file:
        names, *lines = csv.reader(file)
    assert names == ["a, b", "weight", "age"]
    rows = np.array(lines, dtype=np.float64)
    told = PrivateCovariance.from_release(release).covariance_
    assert np.abs(np.cov(rows, rowvar=False) - told).max() < 0.2  # 7 deviations
    for kind in ("npy", "parquet", "zarr"):
        value = call(*asked, f"drawn.{kind}", "--rows", "3000", "--seed", "7", "--json").json
        assert (value["rows"], value["columns"], value["seed"]) == (3000, names, 7)
        assert 0 < value["covariance_error"] < 0.2
    frame = parquet.read_table("drawn.parquet")
    assert frame.column_names == names
    assert frame.schema.metadata[b"dpdist.status"] == b"private"
    stored = zarr.open_array("drawn.zarr", mode="r")
    assert stored.attrs["columns"] == names
    for read in (np.load("drawn.npy"), frame.to_pandas().to_numpy(), np.asarray(stored[...])):
        assert np.array_equal(read, rows)
    assert call(*asked, "drawn.npy", "--rows", "5").code == 0
    assert np.load("drawn.npy").shape == (5, 3)  # a file is replaced
    again = call(*asked, "rows.zarr", "--rows", "5")  # the private ones
    assert (again.code, "exists already" in again.message) == (4, True)
    for kind in ("csv", "parquet"):
        assert call("ingest", f"drawn.{kind}", f"{kind}.zarr").code == 0


@pytest.mark.usefixtures("release")
def test_what_makes_no_sense_is_refused_in_a_sentence(call: Call) -> None:
    said = call("covariance", "release.zarr", "found.txt")
    assert said.code == 2
    assert "ends in .csv or .npz is written, and found.txt does not." in said.message
    assert not Path("found.txt").exists()
    assert call("covariance", "rows.zarr", "found.csv").code == 4
