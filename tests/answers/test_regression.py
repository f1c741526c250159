"""Regression from a release: the ridge of the bounded rows, with the stated coverage of intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import Ridge
from support.tallies import FALSE_ALARM

from dpdist import Column, Schema
from dpdist.answers.block import beside, block_of, column_indices, source_units
from dpdist.answers.regression import Regression, regressions
from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release import artefact, opening
from dpdist.core.release.combine import combined
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import Centring
from dpdist.core.rows.units import Unit
from dpdist.estimators import PrivateRidge
from dpdist.estimators.fit import save
from dpdist.report.answers import about_intervals, regression
from papers.common.drawn import Drawn, drawn
from papers.common.held import Found, held

Floats = npt.NDArray[np.float64]
MUCH = "1000000"
"""An epsilon with negligible noise."""


def rows_of(n: int, p: int = 5, signal: float = 1.0, seed: int = 3) -> Floats:
    """Return rows whose last column is a linear function of the others and noise of variance 1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p))
    x[:, 1:] += 0.5 * x[:, :1]
    y = 0.5 + signal * x @ np.linspace(1, -0.5, p) + random.normal(size=n)
    return np.column_stack([x, y])


def first(release: artefact.Release, ridge: float | None = None) -> Regression:
    last = release.bound.columns - 1
    (found,) = regressions(release, [last], range(last), ridge)
    return found


def values_of(found: Regression) -> Floats:
    return np.array([found.intercept.value, *(each.value for each in found.coefficients)])


def exact(scene: Drawn, found: Regression) -> tuple[Floats, float]:
    """Return the ridge of the bounded rows, the intercept last, and the R² of the released coefficients."""
    p, moment, kappa = scene.bound.columns - 1, scene.moment, scene.bound.constant * scene.bound.unit
    places = [*range(p), p + 1]
    square = moment[np.ix_(places, places)] + np.diag([found.ridge] * p + [0.0])
    truth = np.asarray(np.linalg.solve(square, moment[places, p]), np.float64)
    truth[p] *= kappa
    u = np.array([*-values_of(found)[1:], 1.0, -found.intercept.value / kappa])
    return truth, float(1 - u @ moment @ u / (moment[p, p] - moment[p, -1] ** 2 / moment[-1, -1]))


@pytest.mark.parametrize(("neighbours", "ridge"), [(Neighbours.REPLACE_ONE, 3000.0), (Neighbours.ADD_REMOVE, 0.0)])
def test_without_noise_to_speak_of_it_is_the_ridge_of_the_shortened_rows(neighbours: Neighbours, ridge: float) -> None:
    """In the units of the columns, the ridge on the scaled ones, and the intercept free of it."""
    rows = rows_of(4000) * [1, 10, 0.1, 1, 1, 5] + [0, 3, 0, 0, 0, 100]
    scale, centre = (1.0, 10.0, 0.1, 1.0, 1.0, 5.0), (0.0, 3.0, 0.0, 0.0, 0.5, 90.0)
    scene = drawn(rows, 4.0, MUCH, neighbours=neighbours, scale=scale, centre=centre)
    bounded = scene.bounded[:, :-1]
    assert (np.linalg.norm(bounded, axis=1) > 3.99).mean() > 0.05  # some were clipped
    x, y = bounded[:, :-1], bounded[:, -1]
    known = Ridge(alpha=ridge, tol=1e-10).fit(x, y)
    found = first(scene.release(), ridge)
    coefficients = known.coef_ * scale[-1] / np.array(scale[:-1])
    intercept = centre[-1] + scale[-1] * known.intercept_ - coefficients @ np.array(centre[:-1])
    assert np.allclose(values_of(found), [intercept, *coefficients], rtol=1e-3, atol=1e-4)
    assert found.r2.value == pytest.approx(known.score(x, y), abs=1e-4)
    assert (found.ridge, found.centred, found.seen) == (ridge, True, 5)


def test_without_a_mean_it_leads_through_the_public_centre() -> None:
    rows = rows_of(4000) + 1
    centre = (1.0,) * 6
    scene = drawn(rows, 4.0, MUCH, centring=Centring.NONE, centre=centre)
    known = Ridge(alpha=7, fit_intercept=False).fit(scene.bounded[:, :-1], scene.bounded[:, -1])
    found = first(scene.release(), 7)
    assert np.allclose(values_of(found), [1 - known.coef_.sum(), *known.coef_], rtol=1e-3, atol=1e-4)
    residual = scene.bounded[:, -1] - scene.bounded[:, :-1] @ known.coef_
    assert found.r2.value == pytest.approx(1 - (residual**2).sum() / (scene.bounded[:, -1] ** 2).sum(), abs=1e-4)
    assert not found.centred


RELEASES = 150


def fewest(count: int) -> int:
    """Return the least number of intervals that hold, up to a false alarm in a million at a coverage of 0.93."""
    return int(stats.binom.ppf(FALSE_ALARM, count, 0.93))


def answered(scene: Drawn, release: artefact.Release) -> Found:
    found = first(release)
    truth, r2 = exact(scene, found)
    ends = np.array([each.interval for each in (*found.coefficients, found.intercept)])
    return {"coefficients": (truth, ends), "R²": (np.array([r2]), np.array([found.r2_interval]))}


@pytest.mark.parametrize(("mechanism", "signal"), [("gaussian", 0.05), ("two-sided-wishart", 1.0)])
def test_intervals_hold_and_those_of_a_fifth_of_the_length_do_not(mechanism: str, signal: float) -> None:
    scene = drawn(rows_of(3000, signal=signal), 3.0, mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)
    found = held(scene, answered, RELEASES)
    assert found.refused == 0
    for kind, shares in found.shares.items():
        assert shares.min() >= fewest(RELEASES) / RELEASES, kind
        assert found.short[kind].min() < fewest(RELEASES) / RELEASES, kind  # the twin


def test_intervals_of_the_population_hold_over_samples_too() -> None:
    """Coefficients without a ridge: intervals for the noise alone fail with few rows."""
    coefficients, hits = np.linspace(1, -0.5, 3)[:, None], np.zeros((3, 2))
    for seed in range(300):
        found = first(drawn(rows_of(400, p=3, seed=seed), 12.0, "800").release(), 0.0)
        ends = np.array([(each.population_interval, each.interval) for each in found.coefficients])
        hits += (ends[..., 0] <= coefficients) & (coefficients <= ends[..., 1])
    assert hits[:, 0].min() >= fewest(300)
    assert hits[:, 1].max() < fewest(300)


def test_what_noise_adds_on_average_is_taken_away_again() -> None:
    """Of columns that are mostly drowned. The means of 300 releases are off by less than 6 of their standard errors.

    Without the shift coefficients are too large by a tenth, and R² by several standard errors without that of theirs.
    """
    p, count, inside = 24, 300, 0
    scene = drawn(rows_of(1200, p=p, signal=0.3), 6.0)
    along, apart = np.empty(count), np.empty(count)
    for i in range(count):
        found = first(scene.release())
        truth, r2 = exact(scene, found)
        along[i] = values_of(found)[1:] @ truth[:p] / (truth[:p] @ truth[:p])
        apart[i] = found.r2.value - r2
        inside += found.r2_interval[0] <= r2 <= found.r2_interval[1]
    assert found.seen < p / 2
    assert abs(along.mean() - 1) < max(0.02, 6 * along.std() / count**0.5)
    # R² is too large by one standard error: a false alarm in 3e-7
    assert abs(apart.mean()) < 6 * apart.std() / count**0.5
    assert inside >= fewest(count)


def test_the_mean_of_the_noise_on_the_diagonal_is_taken_away() -> None:
    release = drawn(rows_of(3000), 4.0).release()
    raised = replace(release, noise=replace(release.noise, mean_diagonal=1000.0))
    lowered = np.diagonal(block_of(release, [3, 1]).moment - block_of(raised, [3, 1]).moment)
    assert lowered == pytest.approx([1000 * release.bound.unit**2] * 2 + [0])  # the public n has no noise


def test_a_total_of_releases_tells_of_all_their_rows() -> None:
    scenes = [drawn(rows_of(3000, seed=seed), 4.0) for seed in (1, 2)]
    x, y = (np.concatenate([scene.bounded[:, part] for scene in scenes]) for part in (slice(5), 5))
    both = Ridge(alpha=2000).fit(x, y)
    # of one draw the noise varies by a tenth: of the mean of 16 a false alarm in 1e12
    totals = [first(combined([scenes[0].release(2 * i), scenes[1].release(2 * i + 1)]), 2000.0) for i in range(16)]
    low, high = np.array([each.interval for each in totals[0].coefficients]).T
    width = high - low  # six times as wide: a false alarm in 1e20
    assert np.all((low - 2 * width <= both.coef_) & (both.coef_ <= high + 2 * width))
    ones = [first(scenes[0].release(i), 1000.0).coefficients[0].noise for i in range(16)]
    assert np.mean([total.coefficients[0].noise for total in totals]) == pytest.approx(np.mean(ones) / 2**0.5, rel=0.2)


def test_a_release_that_stays_on_the_disk_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(drawn(rows_of(3000), 4.0).release(), tmp_path / "release.zarr")
    here = open_release(tmp_path / "release.zarr")
    monkeypatch.setattr(opening, "_IN_MEMORY", 0)
    monkeypatch.setattr("dpdist.answers.block.TILE", 2)
    there = open_release(tmp_path / "release.zarr")
    assert here.in_memory
    assert not there.in_memory
    found, same = (values_of(regressions(release, [0], [5, 1, 3])[0]) for release in (here, there))
    assert np.array_equal(found, same)


def test_without_a_number_of_rows_or_with_a_ridge_there_is_no_interval_of_the_population() -> None:
    found = first(drawn(rows_of(3000), 4.0, neighbours=Neighbours.ADD_REMOVE, centring=Centring.NONE).release())
    assert found.coefficients[0].population_interval is None
    assert found.to_json()["coefficients"]["c0"]["population_low"] is None  # type: ignore[index]
    release = drawn(np.random.default_rng(2).normal(size=(9000, 3)), 4.0, "1", centring=Centring.PRIVATE).release()
    plain, ridged = (regressions(release, [2], [0, 1], ridge)[0] for ridge in (0.0, 1e5))
    assert plain.coefficients[0].population_interval is not None
    assert ridged.coefficients[0].population_interval is None
    assert "population" not in about_intervals(release, [ridged])
    owned = replace(release, unit=Unit("who", 2))
    assert "One who may own several rows, which are probably dependent" in about_intervals(owned, [plain])


def test_a_category_stands_for_its_columns_and_what_was_made_of_the_target_is_no_default_regressor() -> None:
    schema = Schema([
        Column("kind", "category", categories=["a", "b"], other="column"),
        Column("mass", "number", range=(0, 4), missing="indicator"),
        Column("age", "number", range=(0, 2)),
    ])  # fmt: skip
    rows, random = np.zeros((3000, 6)), np.random.default_rng(1)
    rows[np.arange(3000), random.integers(0, 3, 3000)] = 1
    rows[:, 3] = rows[:, 1] + random.normal(size=3000)
    rows[:, 5] = random.normal(size=3000)
    kinds = drawn(rows, 4.0, "100", names=schema.features, schema=schema).release()
    targets = column_indices(kinds, ["kind"], "target")
    assert [kinds.names[i] for i in targets] == ["kind=a", "kind=b", "kind=other"]
    for of in (targets, [0]):
        assert [kinds.names[i] for i in beside(kinds, of)] == ["mass", "mass=missing", "age"]
    assert [kinds.names[i] for i in beside(kinds, [3])] == ["kind=a", "kind=b", "kind=other", "age"]
    found = regressions(kinds, targets, column_indices(kinds, ["mass", "age"], "on"))
    assert [each.target for each in found] == ["kind=a", "kind=b", "kind=other"]
    assert np.sum([each.intercept.value for each in found]) == pytest.approx(1, abs=0.05)  # shares add up to 1
    assert found[1].coefficients[0].interval[0] > 0


def test_coefficients_are_in_the_units_of_the_source_of_a_schema() -> None:
    """Least squares of the source itself, if no row is clipped and the noise is negligible."""
    schema = Schema([
        Column("height", "number", range=(100, 220), missing="indicator", weight=2),
        Column("day", "date", range=("2020-01-01", "2021-01-01")),
        Column("kind", "category", categories=["a", "b"], weight=3), Column("mass", "number", range=(0, 200)),
    ], scale="range")  # fmt: skip
    random = np.random.default_rng(4)
    height, day = random.uniform(100, 220, 3000), random.integers(0, 366, 3000)
    kind, lacking = random.integers(0, 2, 3000), random.uniform(size=3000) < 0.2
    mass = 0.5 * height + 0.02 * day + 9 * kind + random.normal(size=3000)
    frame = pd.DataFrame({
        "height": np.where(lacking, np.nan, height), "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(day, "D"),
        "kind": np.array(["a", "b"])[kind], "mass": mass,
    })  # fmt: skip
    rows = schema.transform(frame).to_numpy()
    assert schema.norm is not None
    release = drawn(rows, schema.norm, "1000000", names=schema.features, schema=schema).release()
    on = ("height", "height=missing", "day", "kind=b")
    (found,) = regressions(release, [5], column_indices(release, on, "on"), 0.0, source_units(release))
    days = (pd.Timestamp("2020-01-01") - pd.Timestamp("1970-01-01")).days + day
    source = np.column_stack([np.where(lacking, 160, height), lacking, days, kind])
    known = Ridge(alpha=1e-9, solver="svd").fit(source, mass)
    assert found.names == on
    assert np.allclose([each.value for each in found.coefficients], known.coef_, rtol=0.02, atol=0.02)
    assert found.intercept.value == pytest.approx(known.intercept_, rel=0.02)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda r: column_indices(r, ["c0", "c0"], "on"), r"'c0': named twice \(on\)"),
        (lambda r: column_indices(r, [], "on"), r"No column is named \(on\)"),
        (lambda r: regressions(r, [5], []), "There are no regressors"),
        (lambda r: regressions(r, [5], [4], -1.0), "at least 0, or auto"),
        (lambda r: regressions(r, [5], [4], float("nan")), "at least 0, or auto"),
        (lambda r: regressions(replace(r, rows=4), [5], range(5)), "the release has 4 rows, for 5 columns"),
        (lambda r: regressions(replace(r, noise=Noise("own")), [5], [4]), "no known distribution.*by gaussian"),
        (lambda r: regressions(replace(r, answer=np.eye(6)[:2]), [5], [4]), "releases components.*by gaussian"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(ask: Callable[[artefact.Release], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ask(drawn(rows_of(3000), 4.0).release())


def test_there_is_no_ridge_where_every_direction_is_clear_of_the_noise_and_the_edge_where_one_is_not() -> None:
    clear, few = (first(drawn(rows_of(n), 4.0).release()) for n in (40_000, 600))
    assert (clear.ridge, clear.seen) == (0, 5)
    assert few.ridge > 0
    assert few.ridge == pytest.approx(first(drawn(rows_of(650), 4.0).release()).ridge, rel=1e-6)  # that of the noise


def test_collinear_columns_need_a_ridge() -> None:
    """The noise along one direction passes the edge of that of twelve, 5.1 deviations, with probability 2e-7."""
    rows = rows_of(6000, p=12)
    rows[:, 2] = rows[:, 0] + rows[:, 1]
    release = drawn(rows, 6.0, "4").release()
    with pytest.raises(UsageError, match=r"may be collinear.*ridge='auto', which is [\d.]+ here"):
        first(release, 0.0)
    found = first(release)
    assert found.seen == 11
    assert found.r2_interval[0] > 0
    assert first(release, 2 * found.ridge).seen == 11


def test_the_first_category_is_the_reference_so_that_no_ridge_draws_the_others() -> None:
    """All columns of one variable add up to 1: with all of them the ridge shrank every slope by 7 % here."""
    random = np.random.default_rng(11)
    kind = random.choice(3, 20_000, p=[0.6, 0.3, 0.1])
    x = random.normal(size=20_000) + 0.5 * (kind == 2)
    y = 0.3 * x + np.array([0.0, 0.4, 1.5])[kind] + 0.5 * random.normal(size=20_000)
    rows = np.column_stack([np.eye(3)[kind], x, y])
    columns = [Column("kind", "category", categories=["a", "b", "c"])]
    columns += [Column(name, "number", range=(-9, 9)) for name in "xy"]
    names = ("kind=a", "kind=b", "kind=c", "x", "y")
    release = drawn(rows, 4.5, "4", names=names, schema=Schema(columns)).release()
    (found,) = regressions(release, [4], [0, 1, 2, 3])
    assert (found.ridge, found.reference, found.names) == (0, ("kind=a",), ("kind=b", "kind=c", "x"))
    for each, slope in zip(found.coefficients, (0.4, 1.5, 0.3), strict=True):
        assert abs(each.value - slope) < 6 * each.noise + 0.03  # what sampling adds
    assert "kind=a is the reference" in regression(found, release)
    (ridged,) = regressions(release, [4], [0, 1, 2, 3], 500.0)  # who asks for a ridge gets all columns
    assert (ridged.reference, len(ridged.names)) == ((), 4)
    assert "All intervals apply to the regression with it" in " ".join(regression(ridged, release).split())
    fitted = PrivateRidge.from_release(release, "y")
    assert fitted.coef_[0] == 0
    assert fitted.coef_intervals_[0].tolist() == [0, 0]
    assert fitted.coef_[1:].tolist() == [each.value for each in found.coefficients]


def test_of_a_drowned_column_nothing_is_told() -> None:
    """With the ridge its coefficient was always about 0, in a narrow interval."""
    random = np.random.default_rng(6)
    a, year = random.normal(size=(2, 20_000))
    rows = np.column_stack([a, 1e-3 * year, a + year + random.normal(size=20_000)])
    release = drawn(rows, 6.0, "1", centring=Centring.PRIVATE).release()
    (found,) = regressions(release, [2], [0, 1])
    assert found.unknown == ("c1",)
    assert found.coefficients[1].interval == (-math.inf, math.inf)
    assert found.to_json()["coefficients"]["c1"]["low"] is None  # type: ignore[index]
    assert "c1: not above the noise, coefficient unknown" in " ".join(regression(found, release).split())
