"""The page for an officer: what is to be confirmed is there, and a statistician recomputes the guarantee by hand."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call
from support.folders import ROOT

import dpdist
from dpdist.report import officer, recomputed

NORMAL = NormalDist()
SCHEMA = """\
confirmed = true
each_row_is_a_person = true
missing_values = ["?"]
[[column]]
name = "born"
kind = "date"
range = [1900-01-01, 2030-12-31]
[[column]]
name = "age"
kind = "number"
range = [0, 120]
bins = [18, 65]
[[column]]
name = "area"
kind = "category"
categories = ["north", "south"]
[[column]]
name = "visits"
kind = "number"
missing = "fill"
fill = 7
"""


def released(**asked: Any) -> dpdist.Release:
    rows = np.random.default_rng(1).normal(size=(20_000, 4))
    return dpdist.PrivatePCA(1, **{"epsilon": 1, "delta": 1e-6, **asked}).fit(rows).release_


def delta_of(mu: float, epsilon: float) -> float:
    return NORMAL.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * NORMAL.cdf(-epsilon / mu - mu / 2)


@pytest.mark.usefixtures("register")
@pytest.mark.parametrize(
    "asked",
    [
        {}, {"clip": 4.0}, {"clip": 4.0, "centre": "private"}, {"clip": 4.0, "neighbours": "add-remove"},
        {"clip": 4.0, "grid_bits": 13, "epsilon": 3},
    ],
)  # fmt: skip
def test_each_line_of_the_recomputation_follows_from_those_before(asked: dict[str, Any]) -> None:
    release = released(**asked)
    assert release.guarantee is not None
    told = " ".join(recomputed.lines(release))
    largest = re.search(r"S = 2\^\(2·(\d+)\)(?: \+ (\d+)²)?", told)
    assert largest, told
    norm = 4 ** int(largest[1]) + int(largest[2] or 0) ** 2
    sigma = int(re.findall(r"sigma = (\d+) steps", told)[0])
    assert sigma == release.noise["sigma_off_diagonal"]
    mu = norm / sigma / (math.sqrt(2) if "√2 sigma) =" in told else 1)
    assert float(re.findall(r"mu₁ = S / \S.*? = ([\d.]+):", told)[0]) == pytest.approx(mu, rel=1e-5)
    squared = mu**2
    if stage := re.search(r"mu₁² \+ mu₂² = [\d.e-]+ \+ ([\d.e-]+) =", told):
        squared += float(stage[1])
    assert ("mu₂" in told) == (release.stage is not None)
    assert squared == pytest.approx(float(release.guarantee.mu_squared or 0), rel=1e-4)
    epsilon = asked.get("epsilon", 1)
    assert delta_of(math.sqrt(squared), epsilon) == pytest.approx(1e-6, rel=1e-2)
    assert float(re.findall(r"= ([\d.e-]+) at ε = ", told)[0]) == pytest.approx(1e-6, rel=1e-3)
    guess = float(re.findall(r"Φ\(mu/2\) = ([\d.]+) of", told)[0])
    assert guess == pytest.approx(NORMAL.cdf(math.sqrt(squared) / 2), abs=1e-4)
    alone = float(re.findall(r"exp\(-ε\)\) = ([\d.]+);", told)[0])
    assert guess < alone == pytest.approx(1 / (1 + math.exp(-epsilon)), abs=1e-4)


@pytest.mark.usefixtures("register")
@pytest.mark.usefixtures("register")
@pytest.mark.filterwarnings("ignore::dpdist.core.errors.WeakGuaranteeWarning")
def test_a_large_epsilon_is_recomputed_too() -> None:
    said = " ".join(recomputed.lines(released(epsilon=800, clip=4)))
    delta = float(re.findall(r"= ([\d.e-]+) at ε = 800; declared: 1e-06", said)[0])
    assert delta == pytest.approx(1e-6, rel=1e-3)


def test_a_release_without_mu_has_no_recomputation() -> None:
    assert list(recomputed.lines(released(delta=None, clip=4.0))) == []


def test_the_six_lines_of_the_tutorial_give_the_guarantee_of_the_demo(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert call("demo").code == 0
    Path("release.json").write_text(json.dumps(call("inspect", "dpdist-demo/release.zarr", "--json").json))
    page = (ROOT / "docs" / "tutorials" / "officer.md").read_text()
    capsys.readouterr()
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})  # noqa: S102 - the page says to run it
    assert f"It prints `{capsys.readouterr().out.strip()}`" in page


def test_what_the_schema_says_of_values_is_shown_to_be_confirmed(tmp_path: Path, call: Call) -> None:
    random = np.random.default_rng(1)
    frame = pd.DataFrame({
        "born": ["1980-02-03"] * 4000, "age": random.integers(0, 90, 4000),
        "area": random.choice(["north", "south"], 4000), "visits": random.integers(0, 9, 4000),
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "s.toml").write_text(SCHEMA)
    asked = ("--epsilon", 1, "--delta", 1e-6, "--schema", tmp_path / "s.toml")
    assert call("release", tmp_path / "t.csv", tmp_path / "r.zarr", *asked).code == 0
    officer.write(dpdist.open_release(tmp_path / "r.zarr"), tmp_path / "v.html")
    page = html.unescape(re.sub(r"<[^>]+>", " ", (tmp_path / "v.html").read_text()))
    for words in (
        "born: range 1900-01-01 to 2030-12-31", "age: range 0 to 120; bins 18, 65", "area: categories north, south",
        "'?' mean missing", "visits: ", "missing values count as 7",
    ):  # fmt: skip
        found = re.search(rf"☐ to confirm *From public knowledge, never from the data: [^☐]*{re.escape(words)}", page)
        assert found, words
