"""What cannot be answered from a release is refused in a sentence that says what can be asked instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import Call
from support.folders import STORED, unpack
from support.releases import archive_of

from dpdist import Centring, Neighbours, combine_releases
from dpdist.mechanisms.noise_law import Noise
from dpdist.release.archive import publish
from papers.common.drawn import drawn

NAMES = ("age", "height", "weight", "shoe", "income")


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
        "good": drawn(rows, 5.0, "2", names=NAMES).release(),
        "uncentred": drawn(rows, 5.0, "2", names=NAMES, **bare).release(),
    }
    drowned = drawn(rows, 5.0, "2", names=NAMES)
    made["few"] = replace(made["good"], rows=3)
    made["drowned"] = replace(drowned.release(), answer=np.diag([-1] * 5 + [drowned.lattice[-1, -1]]))
    frame: dict[str, Any] = {"mechanism": "bingham", "noise": Noise("none"), "answer": np.eye(5)[:2]}
    made["subspace"] = replace(made["uncentred"], **frame)
    for name, release in made.items():
        publish(archive_of(release), folder / f"{name}.zarr")
    halves = [drawn(rows[half::2], 5.0, "2", names=NAMES).release(half) for half in (0, 1)]
    combine_releases(halves, folder / "sum.zarr")
    unpack(STORED / "weighted-1.tar.gz", folder)
    (folder / "published" / "d2.zarr").rename(folder / "night.zarr")
    return folder


REGRESS = ("regress", "--target", "income")
BY_OTHERS = "take a release by gaussian (with a delta) or two-sided-wishart (without)"
TOTAL = "Take the total of the series"
DROWNED = "Release anew with --scale private, a larger epsilon or more rows"


@pytest.mark.parametrize(
    ("thing", "asked", "said"),
    [
        ("good", (*REGRESS, "--ridge", "0"), "take --ridge auto, which is"),
        ("good", ("pca", "OUT.zarr", "--components", "2", "--table", "t.xlsx"), "ends in .csv or .parquet"),
        ("good", ("report", "OUT.json"), "The privacy card is printed by: dpdist inspect"),
        ("good", ("pca", "OUT.zarr", "--components", "0.99999", "--correlation"), "Ask for less, or pass their number"),
        ("good", ("pca", "OUT.zarr", "--components", "6", "--correlation"), "Ask for fewer components, or release"),
        ("few", REGRESS, "there are fewer rows"),
        ("drowned", REGRESS, "Take a larger epsilon or more rows"),
        ("drowned", ("synthesise", "OUT.csv", "--rows", "3"), "dpdist forecast says what would be needed"),
        ("drowned", ("pca", "OUT.zarr", "--components", "0.5"), "--components K takes K components all the same"),
        ("drowned", ("pca", "OUT.zarr", "--components", "2", "--correlation"), DROWNED),
        ("uncentred", ("covariance", "OUT.csv"), "take --centre private"),
        ("uncentred", ("synthesise", "OUT.csv", "--rows", "3"), "is the array second_moment of the release"),
        ("uncentred", ("pca", "OUT.zarr", "--components", "2", "--correlation"), "Release with --centre private"),
        ("subspace", REGRESS, BY_OTHERS),
        ("subspace", ("covariance", "OUT.csv"), BY_OTHERS),
        ("subspace", ("synthesise", "OUT.csv", "--rows", "3"), BY_OTHERS),
        ("subspace", ("pca", "OUT.zarr", "--components", "2", "--correlation"), "leave --correlation out, or"),
        ("subspace", ("pca", "OUT.zarr", "--components", "0.9"), "pass their number (--components K)"),
        ("night", ("regress", "--target", "c1"), TOTAL),
        ("night", ("covariance", "OUT.csv"), TOTAL),
        ("night", ("synthesise", "OUT.csv", "--rows", "3"), TOTAL),
        ("night", ("pca", "OUT.zarr", "--components", "2"), TOTAL),
        ("night", ("pca", "OUT.zarr", "--components", "2", "--correlation"), TOTAL),
        ("night", ("report", "OUT.html"), TOTAL),
    ],
)
def test_a_refusal_says_what_can_be_asked(
    things: Path, call: Call, monkeypatch: pytest.MonkeyPatch, thing: str, asked: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(things)
    before = sorted(things.iterdir())
    command, *rest = asked
    told = call(command, f"{thing}.zarr", *rest)
    drowned = thing == "drowned" or "0.99999" in asked  # the command makes sense, and this release cannot answer it
    assert told.code == (4 if drowned else 2)
    assert said in told.message
    assert sorted(things.iterdir()) == before


@pytest.mark.parametrize("thing", ["sum", "published/total/d2"])
def test_sums_and_totals_are_answered_as_releases_are(
    things: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, thing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    release = things / f"{thing}.zarr"
    asked = [("report", "OUT.html"), ("inspect", "--json"), ("covariance", "OUT.csv"),
             ("pca", "OUT.zarr", "--components", "2", "--table", "OUT.parquet")]  # fmt: skip
    if thing == "sum":  # the total is of a few rows
        asked += [
            ("regress", "--target", "income", "--table", "coefficients.csv"),
            ("synthesise", "o.csv", "--rows", "3"),
        ]
    for command, *rest in asked:
        told = call(command, release, *rest)
        assert told.code == 0, told.err


def test_a_release_without_a_clip_norm_is_told_of_those_there_are(tmp_path: Path, call: Call) -> None:
    (tmp_path / "t.csv").write_text("age,height\n" + "".join(f"{20 + i},{150 + i}\n" for i in range(30)))
    (tmp_path / "s.toml").write_text(
        'scale = "range"\n[[column]]\nname = "age"\nkind = "integer"\nrange = [0, 120]\n'
        '[[column]]\nname = "height"\nkind = "number"\nrange = [50, 250]\n'
    )
    asked = ("ingest", tmp_path / "t.csv", tmp_path / "rows.zarr")
    assert call(*asked, "--schema", tmp_path / "s.toml", "--budget-epsilon", "1").code == 0
    for rows, norm in (
        ("rows.zarr", "such as --clip 1.415, beyond which no row is"),
        ("no.zarr", "public knowledge; or"),
    ):
        told = call("release", tmp_path / rows, tmp_path / "r.zarr", "--epsilon", "1")
        assert (told.code, norm in told.message, "--clip private" in told.message) == (2, True, True), told.message
