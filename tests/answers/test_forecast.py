"""Forecasts agree with releases."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.parts import table_of

from dpdist.answers.forecast import GOOD, SHARES, forecast_release
from dpdist.cli import cli
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.pipeline.budget import create_ledger, default_ledger
from dpdist.core.pipeline.release import release_rows
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.periods import counted_rows
from dpdist.core.rows.units import Unit
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment
from dpdist.report import text

D, C = 60, 10.0
SPECTRUM = (20.0, 6.0, 2.0, 0.5)
BUDGET = PrivacyLoss.parse("9", "1e-6")


def request(mechanism: str = "gaussian", epsilon: str = "1", delta: str = "1e-6") -> ReleaseRequest:
    return ReleaseRequest(mechanism, PrivacyLoss.parse(epsilon, delta), C)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the other mechanisms, which take most of the time."""
    monkeypatch.setattr("dpdist.answers.forecast._alternatives", lambda *_: ())


@pytest.mark.parametrize(("mechanism", "delta"), [("gaussian", "1e-6"), ("two-sided-wishart", "0")])
def test_releases_show_what_was_forecast(mechanism: str, delta: str) -> None:
    """Mean squared cosines of 20 releases agree to 0.06; entries spread as stated, to 5 %."""
    rows = 4000
    asked = request(mechanism, delta=delta)
    found = forecast_release(asked, D, rows, SPECTRUM)
    calibrated, unit = planned(asked, Dimensions(D)).moment, planned(asked, Dimensions(D)).bound.unit ** 2
    exact = np.rint(np.diag([*SPECTRUM, *[0] * (D - 4)]) * rows / unit).astype(np.int64)
    cosines, entries, seen = [], [], []
    for _ in range(20):
        answer = unpacked(calibrated.answer(KnownMoment(exact), SYSTEM).astype(np.int64), D) * unit / rows
        values, vectors = np.linalg.eigh(answer)
        cosines.append([vectors[i, -1 - i] ** 2 for i in range(4)])
        entries.append((answer - exact * unit / rows)[~np.eye(D, dtype=bool)])
        seen.append(values[-1 - len(SPECTRUM)] < found.edge)
    expected = [e.squared_cosine for e in found.expected]
    # near the threshold the limit is approached slowly
    assert (expected[0] > 0.8, expected[3]) == (True, 0)
    for measured, stated in zip(np.mean(cosines, axis=0), expected, strict=True):
        assert measured == pytest.approx(stated, abs=0.06 if stated > 0.5 else 0.25)
    assert np.std(entries) == pytest.approx(found.error, rel=0.05)
    assert sum(seen) >= 12  # each is with probability .95: fewer with 1e-8


@pytest.mark.parametrize(("rows", "periods", "counted", "most"), [(3, None, 3, 3), (2, 7, 6, 14), (1, 1, 1, 1)])
def test_a_privacy_unit_is_forecast_as_it_is_released(rows: int, periods: int | None, counted: int, most: int) -> None:
    found, alone = forecast_release(request(), D, 4000, max_rows=rows, max_periods=periods), request()
    unit = Unit("person", rows, max_periods=periods)
    assert periods is None or (counted, most) == (counted_rows(unit, 1), counted_rows(unit, 365))
    plan = planned(replace(found.request, grid_bits=found.plan.bound.grid_bits), Dimensions(D, changed_rows=counted))
    assert found.error == plan.moment.noise["variance_off_diagonal"] ** 0.5 * plan.bound.unit**2 / 4000
    assert found.error == pytest.approx(counted * forecast_release(alone, D, 4000).error, rel=1e-3)
    alternatives = dict(found.alternatives)
    assert alternatives["gaussian"] == pytest.approx(found.threshold)
    assert "wishart" not in alternatives  # no proof for several rows, nor for periods
    assert ("two-sided-wishart" in alternatives) == (periods is None)
    words = " ".join(text.forecast(found).split())
    assert (f"up to {rows} rows" in words) == (rows > 1)
    assert (f"counts as {most}." in words) == (periods is not None)


@pytest.mark.usefixtures("alone")
def test_rows_for_a_good_component_are_just_enough() -> None:
    first = forecast_release(request(), D, 1000, SPECTRUM)
    for i, one in enumerate(first.expected):
        assert one.rows_for_good is not None
        assert one.rows_to_see is not None
        assert forecast_release(request(), D, one.rows_for_good, SPECTRUM).expected[i].squared_cosine >= GOOD
        assert forecast_release(request(), D, one.rows_to_see, SPECTRUM).expected[i].told
        assert not forecast_release(request(), D, int(0.99 * one.rows_to_see), SPECTRUM).expected[i].told


@pytest.mark.usefixtures("alone")
def test_components_of_one_strength_are_told_together_and_never_apart() -> None:
    found = forecast_release(request(), D, 10**7, [2.0, 1.0, 1.0])
    assert found.seen == 3
    assert [one.rows_for_good is None for one in found.expected] == [False, True, True]
    assert min(one.squared_cosine for one in found.expected) > GOOD  # of the two together
    assert found.cosine_at(10**7, 0) == found.expected[0].squared_cosine
    assert "never" in text.forecast(found)
    many = forecast_release(request(), D, 10**7, [1.0] * 7)  # more than a release looks beyond
    assert many.seen == 0
    assert {one.rows_to_see for one in many.expected} == {None}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("columns", [1, 3])
def test_few_columns_have_a_forecast_too_and_without_a_guess_it_is_of_shares_of_the_clip_norm(columns: int) -> None:
    found = forecast_release(request(), columns, 10**5)
    assert [e.variance for e in found.expected] == [s * C**2 for s in SHARES]
    assert found.to_json()["components_seen"] is None
    assert found.expected[0].told
    assert found.expected[0].squared_cosine > GOOD
    whole = forecast_release(request(), columns, 10**6, [3.0 / (i + 1) for i in range(columns)])
    assert whole.seen == columns


@pytest.mark.usefixtures("alone")
def test_guessed_norms_are_weighed_as_clip_norms() -> None:
    """Norms 3 and 4: a clip norm of 3 clips half of the rows, and removes 7 of the 25 of both squared norms."""
    short, long = forecast_release(request(), D, 5000, norms=(4, 3)).trades
    assert (short.clip_norm, short.longer, long.clip_norm, long.longer, long.lost) == (3, 0.5, 4, 0, 0)
    assert short.lost == pytest.approx(7 / 25)
    assert short.noise == pytest.approx(forecast_release(replace(request(), clip_norm=3.0), D, 5000).edge / 9)
    assert long.noise == pytest.approx(forecast_release(replace(request(), clip_norm=4.0), D, 5000).edge / 12.5)
    assert tuple(short.losses) == (1, 5, 20)


def test_the_best_mechanism_comes_first_and_all_are_private_as_claimed() -> None:
    found = forecast_release(request(), D, 5000).alternatives
    names, thresholds = zip(*found, strict=True)
    assert names[0] == "gaussian"
    assert list(thresholds) == sorted(thresholds)
    assert not {"sn", "none", "analyze-gauss", "jiang-wishart"} & set(names)
    pure = forecast_release(request("two-sided-wishart", delta="0"), D, 5000).alternatives
    assert pure[0][0] in {"nuclear", "two-sided-wishart"}
    assert "gaussian" not in dict(pure)


@pytest.mark.parametrize(
    ("rows", "more", "told"),
    [
        (0, {}, r"\(rows\)"),
        (10, {"spectrum": (60.0, 50.0)}, "100"),
        (10, {"spectrum": (1.0, -1.0)}, "positive"),
        (10, {"spectrum": (0.1,) * 61}, "60"),
        *(
            (10, {"norms": (1.0, norm)}, r"must be positive and finite \(norms\)")
            for norm in (0.0, float("inf"), float("nan"))
        ),
        (10, {"max_rows": 0}, "from 1 to"),
        (10, {"max_periods": 5000}, "from 1 to 4096"),
    ],
)
def test_the_impossible_is_refused(rows: int, more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        forecast_release(request(), D, rows, **more)


def test_what_has_no_edge_or_no_proof_is_refused() -> None:
    pure = request("two-sided-wishart", delta="0")
    with pytest.raises(UsageError, match="Only gaussian supports"):
        forecast_release(pure, D, 10, max_periods=7)
    with pytest.raises(UsageError, match="no forecast"):
        forecast_release(replace(pure, mechanism="bingham", options={"components": 2}), D, 100)
    with pytest.raises(RefusedError, match="sn was published"):
        forecast_release(request("sn", delta="0"), D, 100)


def test_a_forecast_of_a_table_takes_what_it_declares_and_nothing_of_the_data(tmp_path: Path) -> None:
    for name, value in (("one", 0.0), ("two", 7.0)):
        table_of(tmp_path / f"{name}.zarr", np.full((400, 3), value), budget=BUDGET, unit=Unit("who", 2))
    asked = ["--epsilon", "1", "--delta", "1e-6", "--clip", "3"]
    first, second = (CliRunner().invoke(cli, ["forecast", str(tmp_path / f"{n}.zarr"), *asked]) for n in ("one", "two"))
    typed = CliRunner().invoke(cli, ["forecast", "--d", "3", "--n", "400", "--max-rows", "2", *asked])
    assert (first.exit_code, first.output) == (0, second.output) == (0, typed.output)
    assert "Protects a privacy unit of up to 2 rows as a whole" in " ".join(first.output.split())


def test_a_forecast_does_not_tell_the_rows_of_a_table_that_is_released_under_add_remove(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    table_of(path, np.ones((377, 2)), budget=BUDGET)
    create_ledger(default_ledger(path), path)
    loss = PrivacyLoss.parse("1", "1e-6")
    release_rows(path, tmp_path / "release.zarr", ReleaseRequest("gaussian", loss, 3.0, Neighbours.ADD_REMOVE))
    asked = ["forecast", str(path), "--epsilon", "1", "--delta", "1e-6", "--clip", "3"]
    for more in ([], ["--neighbours", "add-remove"]):
        said = CliRunner().invoke(cli, [*asked, *more])
        assert "377" not in said.output
        assert isinstance(said.exception, UsageError)
        assert "needs --n, as a public guess" in str(said.exception)
    assert "n = 90, d = 2" in CliRunner().invoke(cli, [*asked, "--n", "90"]).output


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("more", [{}, {"scale": "private"}])
def test_where_nothing_can_be_told_it_says_how_many_rows_or_which_epsilon_it_takes(more: dict[str, Any]) -> None:
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("0.03", "1e-6"), "auto" if more else 3.0, **more)
    said = forecast_release(asked, 8, 300).nothing
    found = re.fullmatch(r"No component will be above the noise, .* This needs (\d+) rows, or epsilon=([\d.]+)\.", said)
    assert found is not None
    assert forecast_release(asked, 8, int(found[1]) + 1).nothing == ""
    assert forecast_release(asked, 8, int(0.9 * int(found[1]))).nothing
    enough = replace(asked, loss=PrivacyLoss.parse(found[2], "1e-6"))
    assert forecast_release(enough, 8, 300).nothing == ""
    # rows about zero may have all of C² in one direction, and then it is above the noise
    full = forecast_release(replace(enough, scale=None, clip_norm=3.0), 8, 300, [8.9])
    assert full.seen == 1
    guess = ReleaseRequest("gaussian", PrivacyLoss.parse("0.1", "1e-6"), 3.0)
    drowned = forecast_release(guess, 8, 300, [4.0, 1.0])
    takes = drowned.expected[0].rows_to_see
    assert drowned.nothing == f"No component of this guess will be above the noise: the first needs {takes} rows."
    assert forecast_release(guess, 8, 5000, [4.0, 1.0]).nothing == ""


def test_one_component_of_bingham_captures_more_below_the_gap_that_is_told_and_less_above() -> None:
    """Means of 150 squared cosines; a verdict is wrong with probability below 1e-4."""
    d, rows = 32, 1000
    asked = request("two-sided-wishart", delta="0")
    found = forecast_release(asked, d, rows, [9.0, 2.0])
    gap = found.bingham_gap
    assert gap is not None
    shown = " ".join(text.forecast(found).split())
    assert f"below about {gap:.4g} per row, and less above. By this guess the gap is 7." in shown
    for guess in ([30.0, 25.0], [30.0]):  # two that stand out, or one that is seen anyway
        assert "bingham" not in text.forecast(forecast_release(asked, d, rows, guess))
    bingham = replace(asked, mechanism="bingham", options={"components": 1})
    bound = planned(asked, Dimensions(d)).bound

    def captured(chosen: ReleaseRequest, factor: float) -> float:
        values = np.full(d, 1.0)
        values[0] += factor * gap * rows
        moment, calibrated = (
            KnownMoment(np.rint(np.diag(values) / bound.unit**2).astype(np.int64)),
            planned(chosen, Dimensions(d)).moment,
        )
        cosines = []
        for _ in range(150):
            drawn = np.asarray(calibrated.answer(moment, SYSTEM))
            vector = drawn[0]
            if drawn.ndim == 1:
                vector = np.linalg.eigh(unpacked(drawn.astype(np.int64), d).astype(float))[1][:, -1]
            cosines.append(float(vector[0] ** 2))
        return float(np.mean(cosines))

    assert captured(bingham, 0.67) > captured(asked, 0.67)
    assert captured(bingham, 1.5) < captured(asked, 1.5)
    assert forecast_release(request(), d, rows).bingham_gap is None
    assert forecast_release(asked, d, rows, max_rows=2).bingham_gap is None
