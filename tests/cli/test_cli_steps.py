"""Ingest, components, scores and forecasts by the command line: each tells what it made, and a failure leaves nothing.

No message repeats a value of the data.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
import zarr
from support.cli_scene import CHUNK, LOSS, ROWS, Call, names_in, tree

from dpdist.ingest.registered import open_rows
from dpdist.ledger.ledger import Ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.runtime import cluster

# Ingest


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (("--budget-epsilon", "0"), 4),
        (("--budget-epsilon", "-1"), 4),
        (("--budget-epsilon", "nan"), 4),
        (("--budget-epsilon", "lots"), 2),
        (("--budget-epsilon", "1", "--budget-delta", "1"), 4),
        (("--budget-delta", "1e-6"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_bad_budget_is_refused_and_no_rows_are_written(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, budget: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3)))
    said = call("ingest", "table.npy", "rows.zarr", *budget)
    assert said.code == code
    assert said.message
    assert names_in(tmp_path) == ["table.npy"]


def test_ingest_tells_what_it_made(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3), dtype=np.uint8))
    declared = ("--budget-epsilon", "0.1", "--budget-delta", "1e-6")
    said = call("ingest", "table.npy", "rows.zarr", *declared, "--columns", "c2, c0", "--json")
    assert said.code == 0
    table = open_rows(tmp_path / "rows.zarr")
    assert said.json == {
        "rows": "rows.zarr",
        "fresh": True,
        "n": 4,
        "d": 2,
        "dtype": "uint8",
        "chunks": 1,
        "dataset_id": table.dataset_id,
        "ledger": "rows.ledger",
    }
    assert table.names == ("c2", "c0")
    assert Ledger(tmp_path / "rows.ledger").budget == PrivacyLoss(100_000, 10**12)
    words = call("ingest", "table.npy", "more.zarr")
    assert (words.code, words.out) == (0, "")
    assert "more.zarr: 4 rows of 3 columns" in words.err
    assert "No budget declared" in words.err


def test_ingest_never_replaces_rows_or_a_ledger(here: Path, call: Call) -> None:
    (here / "table.csv").write_text("a,b\n1,2\n3,4\n")
    before = tree(here)
    said = call("ingest", "table.csv", "rows.zarr")
    assert said.code == 4
    assert "exists already" in said.message
    shutil.rmtree("rows.zarr")  # the ledger still knows what was spent on these rows
    said = call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "9")
    assert said.code == 4
    assert "only record of what was spent" in said.message
    assert not (here / "rows.zarr").exists()
    assert {k: v for k, v in before.items() if "ledger" in k} == {k: v for k, v in tree(here).items() if "ledger" in k}


def test_rows_that_are_there_take_no_other_ledger(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3)))
    np.save("other.npy", np.zeros((4, 3)))
    made = ("ingest", "table.npy", "rows.zarr", "--budget-epsilon", "1", "--ledger")
    assert call(*made, "first.ledger").code == 0
    assert call("ingest", "other.npy", "others.zarr", "--budget-epsilon", "1").code == 0
    for other in ("second.ledger", "others.ledger"):
        said = call(*made, other)
        assert said.code == 2
        assert other in said.message
        assert str(tmp_path / "first.ledger") in said.message
    assert not (tmp_path / "second.ledger").exists()
    (tmp_path / "link").symlink_to(tmp_path)
    for same in ("first.ledger", "./first.ledger", str(tmp_path / "link" / "first.ledger")):
        assert call(*made, same).code == 0
    (tmp_path / "first.ledger").rename("moved.ledger")
    assert call(*made, "moved.ledger").code == 0


PLANTED = "73519.625"


def _plant(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def _plant_npy(name: str, values: Any, cut: int | None = None) -> Callable[[], object]:
    def write() -> None:
        with Path(name).open("wb") as file:
            np.save(file, values)
        Path(name).write_bytes(Path(name).read_bytes()[:cut])

    return write


HEAD = f"a,b,c\n{PLANTED},1,2\n3,{PLANTED},4\n"
BAD_SOURCES: dict[str, tuple[str, Callable[[], object]]] = {
    "a cell with a unit": ("t.csv", _plant("t.csv", HEAD + f"5,6,{PLANTED}kg\n")),
    "two numbers in a cell": ("t.csv", _plant("t.csv", HEAD + f"5,6,{PLANTED};{PLANTED}\n")),
    "a cell too many": ("t.csv", _plant("t.csv", HEAD + f"5,6,7,{PLANTED}\n")),
    "a cell too few": ("t.csv", _plant("t.csv", HEAD + f"5,{PLANTED}\n")),
    "a missing value": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},,{PLANTED}\n")),
    "not a number": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},nan,{PLANTED}\n")),
    "infinity": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},1e999,{PLANTED}\n")),
    "an open quote": ("t.csv", _plant("t.csv", HEAD + f'{PLANTED},"{PLANTED},1\n')),
    "another separator": ("t.csv", _plant("t.csv", f"{PLANTED};1;2\n{PLANTED};3;4\n")),
    "one column": ("t.csv", _plant("t.csv", f"a\n{PLANTED}\n")),
    "a gzip that is none": ("t.csv.gz", _plant("t.csv.gz", HEAD)),
    "words in an array": ("t.npy", _plant_npy("t.npy", np.array([[PLANTED, "x"], ["y", "z"]]))),
    "one dimension": ("t.npy", _plant_npy("t.npy", np.full(3, float(PLANTED)))),
    "a NaN in an array": ("t.npy", _plant_npy("t.npy", np.array([[float(PLANTED), 1], [np.nan, 2]]))),
    "a truncated array": ("t.npy", _plant_npy("t.npy", np.full((4, 3), float(PLANTED)), -5)),
    "text that claims to be an array": ("t.npy", _plant("t.npy", HEAD)),
    "text that claims to be an archive": ("t.npz", _plant("t.npz", HEAD)),
    "text that claims to be parquet": ("t.parquet", _plant("t.parquet", HEAD)),
    "another kind of file": ("t.txt", _plant("t.txt", HEAD)),
    "nothing there": ("t.csv", lambda: None),
}


@pytest.mark.parametrize(("source", "plant"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_no_message_about_bad_data_repeats_a_value_of_it(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, source: str, plant: Callable[[], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    plant()
    before = names_in(tmp_path)
    said = call("ingest", source, "rows.zarr", "--budget-epsilon", "1")
    assert said.code == 4
    assert source in said.message
    assert "73519" not in said.message
    assert names_in(tmp_path) == before


def test_no_message_about_damaged_rows_repeats_a_value_of_them(
    tmp_path: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(f"a,b\n{PLANTED},{PLANTED}\n{PLANTED},1\n".encode()))
    assert call("ingest", "table.csv.gz", "rows.zarr", "--budget-epsilon", "2").code == 0
    chunk = tmp_path / "rows.zarr" / "c" / "0" / "0"
    sound = chunk.read_bytes()
    assert np.float64(PLANTED).tobytes() in sound
    for content in (sound[:-1], sound[1:] + sound[:1], PLANTED.encode() * 4, b""):
        chunk.write_bytes(content)
        said = call("release", "rows.zarr", "r.zarr", "--epsilon", "1", "--clip", "300", "--scheduler", scheduler)
        assert said.code == 4
        assert "73519" not in said.message


# Components and scores


def test_pca_and_project_tell_what_they_made(released: Path, call: Call, scheduler: str) -> None:
    said = call("pca", "release.zarr", "model.zarr", "--components", "2", "--json")
    assert said.code == 0
    assert (said.json["model"], said.json["components"]) == ("model.zarr", 2)
    assert len(said.json["eigenvalues"]) == 2
    assert said.json["eigenvalues_per_row"] is True
    for cosine, (low, high) in zip(said.json["squared_cosines"], said.json["squared_cosine_intervals"], strict=True):
        assert cosine is low is high is None or 0 <= low <= cosine <= high <= 1
    said = call("project", "rows.zarr", "model.zarr", "scores.zarr", "--scheduler", scheduler, "--json")
    assert said.code == 0
    assert said.json == {"scores": "scores.zarr", "fresh": True, "n": ROWS, "private": True}
    assert zarr.open_array(released / "scores.zarr", mode="r").shape == (ROWS, 2)


def test_pca_says_which_components_stand_above_the_noise(released: Path, call: Call) -> None:
    pytest.importorskip("matplotlib")
    said = call("pca", "release.zarr", "model.zarr", "--components", "3", "--plot", "scree.png")
    assert (said.code, said.out) == (0, "")
    assert all(len(line) <= 80 for line in said.err.splitlines())
    assert "squared" in said.err
    assert "between" in said.err
    assert "can be told" in said.err  # one component, or none: that is chance
    assert (released / "scree.png").stat().st_size > 1000
    said = call("pca", "release.zarr", "other.zarr", "--components", "many")
    assert said.code == 2
    assert "a number, a share of the variance or auto" in said.message


@pytest.mark.usefixtures("silent")  # so that what stands above the noise is no matter of chance
def test_the_number_of_components_may_be_left_to_the_noise(here: Path, call: Call, scheduler: str) -> None:
    def released(name: str, clip: str) -> None:
        assert call("release", "rows.zarr", name, *LOSS[:-1], clip, "--scheduler", scheduler).code == 0

    released("clear.zarr", "300")
    said = call("pca", "clear.zarr", "auto.zarr", "--components", "auto", "--json")
    assert said.json["components"] == said.json["above_noise"] == 1
    assert said.json["eigenvalues"][0] > said.json["noise_edge"]
    said = call("pca", "clear.zarr", "share.zarr", "--components", "0.1", "--json")
    assert said.json["captured_variance"]["low"] >= 0.1
    assert call("pca", "clear.zarr", "share.zarr", "--components", ".1", "--json").json["fresh"] is False

    released("drowned.zarr", "3000")
    before = names_in(here)
    for asked in ("auto", "0.1"):
        said = call("pca", "drowned.zarr", "model.zarr", "--components", asked, "--json")
        assert (said.code, "No component of this release can be told from noise" in said.message) == (4, True)
    assert names_in(here) == before


PURE = ("forecast", "--d", "30", "--n", "9", "--epsilon", "1")
FORECAST = ("forecast", "--d", "30", "--n", "9000", "--epsilon", "1", "--delta", "1e-6", "--clip", "10")


def test_a_forecast_is_text_json_or_a_picture_and_touches_nothing(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    said = call(*FORECAST, "--spectrum", "40,9,0.01", "--json", "--plot", "forecast.png")
    assert said.code == 0
    assert (said.json["mechanism"], said.json["components_seen"]) == ("gaussian", 2)
    assert said.json["alternatives"][0]["mechanism"] == "gaussian"
    assert names_in(tmp_path) == ["forecast.png"]
    said = call(*FORECAST)
    assert (said.code, said.out) == (0, "")
    assert all(words in said.err for words in ("edge of the noise", "share of C²", "two-sided-wishart"))
    assert "2 of 3 components will be told from noise" in call(*FORECAST, "--spectrum", "40,9,0.01").err
    orbit = call(*PURE, "--spectrum", "1", "--mechanism", "orbit", "--option", "spectrum=9")
    assert "lower bound" in orbit.err


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "numbers separated by commas", ("--spectrum", "4;2")),
        (2, "squared clip norm", ("--spectrum", "99,2")),
        (3, "sn was published", ("--mechanism", "sn")),
        (2, "no forecast", ("--mechanism", "bingham", "--option", "components=2")),
        (2, "depends on the spectrum", ("--mechanism", "orbit", "--option", "spectrum=5")),
        (2, "Its forecast also needs a public guess", ("--mechanism", "orbit")),
        (2, "leave them out", ("--mechanism", "orbit", "--option", "spectrum=5", "--norms", "1")),
    ],
)
def test_a_forecast_that_makes_no_sense_is_refused(
    call: Call, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    taken = FORECAST if "--spectrum" in arguments else PURE
    said = call(*taken, *arguments)
    assert said.code == code
    assert words in said.message


def test_whoever_gets_scores_is_told_that_they_are_private(released: Path, call: Call, scheduler: str) -> None:
    assert call("pca", "release.zarr", "model.zarr", "--components", "1").code == 0
    said = call("project", "rows.zarr", "model.zarr", "scores.zarr", "--scheduler", scheduler)
    assert (said.code, said.out) == (0, "")
    assert "PRIVATE" in said.err
    assert names_in(released) == ["model.zarr", "release.zarr", "rows.ledger", "rows.zarr", "scores.zarr"]


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "between 1 and 3", ("release.zarr", "model.zarr", "--components", "0")),
        (2, "between 1 and 3", ("release.zarr", "model.zarr", "--components", "4")),
        (4, "no release at nothing.zarr", ("nothing.zarr", "model.zarr", "--components", "1")),
        (4, "dpdist-rows/1", ("rows.zarr", "model.zarr", "--components", "1")),
        (4, "exists already", ("release.zarr", "rows.zarr", "--components", "1")),
        (4, "does not exist", ("release.zarr", "models/model.zarr", "--components", "1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_components_that_cannot_be_had_are_refused(
    released: Path, call: Call, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    before = tree(released)
    said = call("pca", *arguments)
    assert said.code == code
    assert words in said.message
    assert tree(released) == before


def test_a_private_count_drowned_in_noise_is_refused_in_words(here: Path, call: Call, scheduler: str) -> None:
    # at so small an epsilon half of all releases estimate a negative number of rows: draw until one does
    for i in range(40):
        options = ("--centre", "private", "--neighbours", "add-remove", "--id", f"try-{i}", "--scheduler", scheduler)
        said = call("release", "rows.zarr", f"r{i}.zarr", "--epsilon", "0.000001", "--clip", "300", *options)
        assert said.code == 0
        count = open_release(here / f"r{i}.zarr").row_count
        if count is not None and count <= 0:
            said = call("pca", f"r{i}.zarr", "model.zarr", "--components", "1")
            assert said.code == 4
            assert "noise drowns the data" in said.message
            assert not (here / "model.zarr").exists()
            return
    pytest.fail("no estimate was negative: by chance once in 2^40 runs")


@pytest.mark.parametrize("what", ["no model", "a release", "existing scores", "no rows", "a lost chunk", "no cluster"])
def test_scores_that_cannot_be_had_are_refused_and_leave_nothing(
    released: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert call("pca", "release.zarr", "model.zarr", "--components", "1").code == 0
    places = {"rows": "rows.zarr", "model": "model.zarr", "scores": "scores.zarr", "at": scheduler}
    if what == "no model":
        places["model"] = "nothing.zarr"
    elif what == "a release":
        places["model"] = "release.zarr"
    elif what == "existing scores":
        places["scores"] = "release.zarr"
    elif what == "no rows":
        places["rows"] = "nothing.zarr"
    elif what == "a lost chunk":
        CHUNK.unlink()
    else:
        monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
        places["at"] = "tcp://127.0.0.1:1"
    before = tree(released)
    said = call("project", places["rows"], places["model"], places["scores"], "--scheduler", places["at"])
    assert said.code == 4
    assert said.message
    assert tree(released) == before
    assert not (released / "scores.zarr").exists()


ONCE = """
[rows]
path = "rows.zarr"
[release]
path = "release.zarr"
epsilon = 1
delta = 1e-6
clip = 300
[pca]
path = "model.zarr"
components = 2
[project]
path = "scores.zarr"
[cluster]
workers = 1
"""


def test_a_job_starts_its_workers_once(here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    begin = distributed.LocalCluster.__init__

    def counted(self: Any, **options: Any) -> None:
        started.append(options["n_workers"])
        begin(self, **options)

    monkeypatch.setattr(distributed.LocalCluster, "__init__", counted)
    (here / "job.toml").write_text(ONCE)
    assert call("run", "job.toml").code == 0
    assert (here / "scores.zarr").exists()
    assert started == [1]
