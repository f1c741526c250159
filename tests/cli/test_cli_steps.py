"""The commands ingest, pca, project and forecast: each prints its result, and a failure leaves nothing.

No message repeats a value of the data.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.cli_scene import LOSS, ROWS, Call, names_in, tree

from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss


def test_ingest_tells_what_it_made(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3), dtype=np.uint8))
    declared = ("--budget-epsilon", "0.1", "--budget-delta", "1e-6")
    said = call("ingest", "table.npy", "rows.zarr", *declared, "--columns", "c2, c0", "--json")
    table = open_rows(tmp_path / "rows.zarr")
    assert said.json == {
        "rows": "rows.zarr", "fresh": True, "n": 4, "d": 2, "dtype": "uint8", "chunks": 1,
        "dataset_id": table.dataset_id, "ledger": "rows.ledger",
    }  # fmt: skip
    assert table.names == ("c2", "c0")
    assert Ledger(tmp_path / "rows.ledger").budget == PrivacyLoss(100_000, 10**12)
    words = call("ingest", "table.npy", "more.zarr")
    assert words.code == 0
    assert "more.zarr: 4 rows of 3 columns" in words.told
    assert "No budget declared" in words.told


def test_ingest_never_replaces_a_ledger(here: Path, call: Call) -> None:
    (here / "table.csv").write_text("a,b\n1,2\n3,4\n")
    before = tree(here / "rows.ledger")
    shutil.rmtree("rows.zarr")  # the ledger still contains the charges of these rows
    said = call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "9")
    assert (said.code, "only record of the budget" in said.message) == (4, True)
    assert not (here / "rows.zarr").exists()
    assert tree(here / "rows.ledger") == before


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
        assert all(name in said.message for name in (other, str(tmp_path / "first.ledger")))
    assert not (tmp_path / "second.ledger").exists()
    (tmp_path / "link").symlink_to(tmp_path)
    assert call(*made, str(tmp_path / "link" / "first.ledger")).code == 0
    (tmp_path / "first.ledger").rename("moved.ledger")
    assert call(*made, "moved.ledger").code == 0


PLANTED = "73519.625"


HEAD = f"a,b,c\n{PLANTED},1,2\n3,{PLANTED},4\n"


def test_no_message_about_bad_data_repeats_a_value_of_it(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for source, content in (
        ("t.csv", HEAD + f"5,6,{PLANTED}kg\n"), ("t.csv", HEAD + f"5,6,7,{PLANTED}\n"),
        ("t.csv", HEAD + f'{PLANTED},"{PLANTED},1\n'), ("t.npy", HEAD), ("t.parquet", HEAD),
    ):  # fmt: skip
        Path(source).write_text(content)
        said = call("ingest", source, "rows.zarr", "--budget-epsilon", "1")
        assert (said.code, source in said.message, "73519" in said.message) == (4, True, False), content
        assert names_in(tmp_path) == [source]
        Path(source).unlink()


def test_no_message_about_damaged_rows_repeats_a_value_of_them(
    tmp_path: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(f"a,b\n{PLANTED},{PLANTED}\n{PLANTED},1\n".encode()))
    assert call("ingest", "table.csv.gz", "rows.zarr", "--budget-epsilon", "9").code == 0
    chunk = tmp_path / "rows.zarr" / "c" / "0" / "0"
    sound = chunk.read_bytes()
    assert np.float64(PLANTED).tobytes() in sound
    for content in (sound[:-1], sound[1:] + sound[:1], PLANTED.encode() * 4, b""):
        chunk.write_bytes(content)
        said = call("release", "rows.zarr", "r.zarr", "--epsilon", "9", "--clip", "300", "--scheduler", scheduler)
        assert said.code == 4
        assert "73519" not in said.message


def test_pca_and_project_tell_what_they_made(released: Path, call: Call, scheduler: str) -> None:
    said = call("pca", "release.zarr", "model.zarr", "--components", "2", "--json").json
    assert (said["model"], said["components"], len(said["eigenvalues"])) == ("model.zarr", 2, 2)
    assert said["eigenvalues_per_row"] is True
    for cosine, (low, high) in zip(said["squared_cosines"], said["squared_cosine_intervals"], strict=True):
        assert cosine is low is high is None or 0 <= low <= cosine <= high <= 1
    told = call("project", "rows.zarr", "model.zarr", "told.zarr", "--scheduler", scheduler)
    assert (told.code, "PRIVATE" in told.out) == (0, True)
    told = call("project", "rows.zarr", "model.zarr", "scores.zarr", "--scheduler", scheduler, "--json")
    assert told.json == {"scores": "scores.zarr", "fresh": True, "n": ROWS, "private": True}
    assert zarr.open_array(released / "scores.zarr", mode="r").shape == (ROWS, 2)
    pytest.importorskip("matplotlib")
    told = call("pca", "release.zarr", "third.zarr", "--components", "3", "--plot", "scree.png")
    assert told.code == 0
    for words in ("alignment", "between", "can be distinguished"):  # one component, or none: that is chance
        assert words in told.told
    assert (released / "scree.png").stat().st_size > 1000


@pytest.mark.usefixtures("silent")  # so that the components above the noise are certain
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
        assert (said.code, "No component of this release can be distinguished" in said.message) == (4, True)
    assert names_in(here) == before


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
    assert said.code == 0
    assert all(words in said.told for words in ("edge of the noise", "share of C²", "two-sided-wishart"))
    assert "2 of 3 components will be distinguished from noise" in call(*FORECAST, "--spectrum", "40,9,0.01").told
    orbit = (
        "forecast",
        "--d",
        "30",
        "--n",
        "9",
        "--epsilon",
        "1",
        "--mechanism",
        "orbit",
        "--option",
        "spectrum=9",
        "--clip",
        "1",
    )
    assert "lower bound" in call(*orbit, "--spectrum", "1").told
    for code, words, arguments in (
        (2, "numbers separated by commas", (*FORECAST, "--spectrum", "4;2")),
        (2, "depends on the spectrum", orbit),
    ):
        refused = call(*arguments)
        assert (refused.code, words in refused.message) == (code, True)
