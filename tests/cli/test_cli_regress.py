"""dpdist regress: what it prints, what it marks, and what it refuses in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call

LOSS = ("--epsilon", "1", "--delta", "1e-6", "--clip", "4")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Path:
    """Work beside rows with a budget, and a release of them."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(2)
    x = random.normal(size=(5000, 3))
    y = x @ [1.0, -0.5, 0.0] + random.normal(size=5000)
    header = '"height, cm",weight,a_name_that_is_longer_than_a_table_has_room_for,income'
    np.savetxt("table.csv", np.column_stack([x, y]), delimiter=",", header=header, comments="")
    assert call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5").code == 0
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--centre", "private").code == 0
    return tmp_path


def test_a_regression_is_printed_as_json(table: Path, call: Call) -> None:
    said = call("regress", "release.zarr", "--target", "income", "--json").json
    assert (said["release"], said["status"], said["target"], said["drowned"]) == (
        "release.zarr",
        "private",
        "income",
        False,
    )
    names = ["height, cm", "weight", "a_name_that_is_longer_than_a_table_has_room_for"]
    assert list(said["coefficients"]) == names
    for each in (said["intercept"], *said["coefficients"].values()):
        assert each["low"] < each["value"] < each["high"]
        assert each["population_low"] < each["low"]
        assert each["high"] < each["population_high"]
    assert said["coefficients"]["height, cm"]["low"] > 0 > said["coefficients"]["weight"]["high"]
    assert said["r2"]["low"] < said["r2"]["value"] < said["r2"]["high"] < 1
    assert said["shortened"]["norm"] < 4
    some = call(
        "regress", "release.zarr", "--target", "weight", "--on", '"height, cm",income', "--ridge", "90", "--json"
    )
    assert list(some.json["coefficients"]) == ["height, cm", "income"]
    assert some.json["ridge"] == 90
    among = call("regress", "release.zarr", "--target", "income", "--components", "3", "--json").json
    assert (among["components"], among["ridge"], said["components"]) == (3, 0, None)
    assert (
        call("regress", "release.zarr", "--target", "income", "--components", "auto", "--json").json["components"] == 3
    )
    both = call("regress", "release.zarr", "--target", "weight,income", "--json").json
    assert [each["target"] for each in both["regressions"]] == ["weight", "income"]
    assert {len(each["coefficients"]) for each in both["regressions"]} == {2}
    assert sorted(path.name for path in table.iterdir()) == ["release.zarr", "rows.ledger", "rows.zarr", "table.csv"]


@pytest.mark.usefixtures("table")
def test_words_fit_a_terminal_and_say_of_which_rows_they_are(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("dpdist.cli.output.on_terminal", lambda: True)
    said = call("regress", "release.zarr", "--target", "income")
    assert (said.code, said.out) == (0, "")
    assert max(map(len, said.err.splitlines())) <= 80
    for words in ("Regression of income on 3 columns", "a_name_that_is_long...", "R² 0.", "There is no ridge",
                  "rows clipped to norm 3.9"):  # fmt: skip
        assert words in said.err
    assert "NOT PRIVATE" not in said.err
    among = " ".join(call("regress", "release.zarr", "--target", "income", "--components", "2").err.split())
    assert "It is on 2 principal components of 3 columns, as released" in among
    assert "about the regression on these" in among
    assert "They are about clipped rows" in among


@pytest.mark.usefixtures("table")
def test_what_is_not_private_as_claimed_is_marked(call: Call) -> None:
    assert call("ingest", "table.csv", "public.zarr").code == 0
    reproduced = ("--mechanism", "sn", "--epsilon", "1", "--clip", "4", "--for-reproduction")
    assert call("release", "public.zarr", "sn.zarr", *reproduced).code == 0
    said = call("regress", "sn.zarr", "--target", "income")
    assert said.code == 0
    assert said.err.startswith("NOT PRIVATE AS CLAIMED: do not publish it.\n")
    assert call("regress", "sn.zarr", "--target", "income", "--json").json["status"] == "not private as claimed"
    assert call("release", "public.zarr", "mean.zarr", *reproduced, "--centre", "private").code == 0
    for name in ("drawn.npy", "drawn.zarr"):
        assert "NOT PRIVATE AS CLAIMED: do not publish it." in call("synthesise", "mean.zarr", name, "--rows", "9").err
        assert Path(name).stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("release.zarr", "--target", "wealth"), "no column 'wealth' (--target). There are: height, cm, weight"),
        (("release.zarr", "--target", "income", "--on", "income,weight"), "leave it out of --on"),
        (("release.zarr", "--target", "income", "--ridge", "much"), "--ridge takes a number or auto, not 'much'"),
        (("release.zarr", "--target", "income", "--ridge", "-1"), "at least 0, or auto (--ridge)"),
        (("release.zarr", "--target", "income", "--components", "0"), "0 components were asked for, of 3 columns"),
        (
            ("release.zarr", "--target", "income", "--components", "2", "--ridge", "3"),
            "leave --ridge or --components out",
        ),
        (("rows.zarr", "--target", "income"), "not 'dpdist-release/1'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(call: Call, asked: tuple[str, ...], words: str) -> None:
    said = call("regress", *asked)
    assert said.code == (4 if asked[0] == "rows.zarr" else 2)
    assert words in said.message


def test_a_report_regresses_the_same_columns(table: Path, call: Call) -> None:
    asked = ("--target", "income", "--on", '"height, cm",weight')
    said = call("regress", "release.zarr", *asked, "--json").json
    assert call("report", "release.zarr", "report.html", *asked).code == 0
    text = (table / "report.html").read_text()
    assert f"R² is {said['r2']['value']:.3f}," in text
    assert call("report", "release.zarr", "report.html", "--target", "nobody").message.startswith(
        "dpdist: There is no column 'nobody' (--target)."
    )
