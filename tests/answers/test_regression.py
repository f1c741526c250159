"""Regression from a release: the ridge of the bounded rows, and intervals that hold as often as they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import Ridge
from support.tallies import FALSE_ALARM

from dpdist import Column, Schema
from dpdist.answers.block import EntryNoise, beside, block_of, places_of, source_units
from dpdist.answers.design import shift_of
from dpdist.answers.regression import Regression, regressions
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.estimators import PrivateRidge
from dpdist.estimators.fit import save
from dpdist.mechanisms.noise_law import EdgeKind, Noise
from dpdist.pca.noise_edge import law_of
from dpdist.privacy.guarantee import Neighbours
from dpdist.release import artefact
from dpdist.release.artefact import open_release
from dpdist.release.combine import combined
from dpdist.release.request import Centring
from dpdist.report.answers import about_intervals, regression
from dpdist.rows.bounding import DITHERED
from dpdist.rows.rounding import entry_variances
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
MUCH = "1000000"
"""An epsilon at which there is no noise to speak of."""


def rows_of(n: int, p: int = 5, signal: float = 1.0, seed: int = 3) -> Floats:
    """Return rows whose last column is a linear function of the others, plus noise of variance 1."""
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


# --- the estimand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("ridge", [0.0, 3000.0])
def test_without_noise_to_speak_of_it_is_the_ridge_of_the_shortened_rows(neighbours: Neighbours, ridge: float) -> None:
    """In the units of the columns, the ridge on the scaled ones, and the intercept free of it."""
    rows = rows_of(4000) * [1, 10, 0.1, 1, 1, 5] + [0, 3, 0, 0, 0, 100]
    scale, centre = (1.0, 10.0, 0.1, 1.0, 1.0, 5.0), (0.0, 3.0, 0.0, 0.0, 0.5, 90.0)
    scene = drawn(rows, 4.0, MUCH, neighbours=neighbours, scale=scale, centre=centre)
    bounded = scene.bounded[:, :-1]
    assert (np.linalg.norm(bounded, axis=1) > 3.99).mean() > 0.05  # some were shortened
    x, y = bounded[:, :-1], bounded[:, -1]
    known = Ridge(alpha=ridge, tol=1e-10).fit(x, y)
    found = first(scene.release(), ridge)
    coefficients = known.coef_ * scale[-1] / np.array(scale[:-1])
    intercept = centre[-1] + scale[-1] * known.intercept_ - coefficients @ np.array(centre[:-1])
    assert np.allclose(values_of(found), [intercept, *coefficients], rtol=1e-3, atol=1e-4)
    assert found.r2.value == pytest.approx(known.score(x, y), abs=1e-4)
    assert found.ridge == ridge
    assert found.centred
    assert found.seen == 5


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


def test_a_plain_inverse_fails_where_ridge_at_the_edge_does_not() -> None:
    random = np.random.default_rng(7)
    x = random.normal(size=(20_000, 20))
    x[:, 1:10] = x[:, :1] + 0.01 * x[:, 1:10]  # nearly collinear
    scene = drawn(np.column_stack([x, x[:, 0] + x[:, 19] + random.normal(size=20_000)]), 12.0)
    exact = scene.moment

    def r2(coefficients: npt.NDArray[np.floating[Any]], intercept: float) -> float:
        kappa = scene.bound.constant * scene.bound.unit
        u = np.array([*-coefficients, 1.0, -intercept / kappa])
        return float(1 - u @ exact @ u / (exact[-2, -2] - exact[-2, -1] ** 2 / exact[-1, -1]))

    ridge, plain = [], []
    for _ in range(80):  # plain is below 0 in 17 of 100, by simulation: in none of them with probability 3e-7
        release = scene.release()
        found, moment = first(release), release.second_moment
        ridge.append(r2(values_of(found)[1:], found.intercept.value))
        plain.append(r2(np.linalg.solve(moment[:20, :20], moment[:20, 20]), 0.0))
    best = Ridge(alpha=1e-6).fit(scene.bounded[:, :20], scene.bounded[:, 20])
    assert min(ridge) > r2(best.coef_, float(best.intercept_)) - 0.1
    assert min(plain) < 0


# --- the intervals ----------------------------------------------------------------------------------------------------

RELEASES = 150


def fewest(count: int) -> int:
    """Return how many of so many intervals hold at least, but for a false alarm in a million where they do at 0.93."""
    return int(stats.binom.ppf(FALSE_ALARM, count, 0.93))


class Held(NamedTuple):
    """How many of the intervals held."""

    intercept: int
    least_sure: int
    mean: float
    r2: int

    @property
    def enough(self) -> bool:
        return min(self.intercept, self.least_sure, self.r2, self.mean * RELEASES) >= fewest(RELEASES)


def held(scene: Drawn, told: Callable[[artefact.Release], artefact.Release] = lambda release: release) -> Held:
    """Count the intervals that hold what they are about, in many releases of the same rows."""
    p, exact = scene.bound.columns - 1, scene.moment
    kappa = scene.bound.constant * scene.bound.unit
    places = [*range(p), p + 1]
    inside, within = [], []
    for _ in range(RELEASES):
        found = first(told(scene.release()))
        penalty = np.diag([found.ridge] * p + [0.0])
        truth = np.linalg.solve(exact[np.ix_(places, places)] + penalty, exact[places, p])
        truth[p] *= kappa
        ends = np.array([each.interval for each in (*found.coefficients, found.intercept)])
        inside.append((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
        u = np.array([*-values_of(found)[1:], 1.0, -found.intercept.value / kappa])
        r2 = 1 - u @ exact @ u / (exact[p, p] - exact[p, -1] ** 2 / exact[-1, -1])
        within.append(found.r2_interval[0] <= r2 <= found.r2_interval[1])
    hits = np.sum(inside, axis=0)
    return Held(int(hits[p]), int(hits[:p].min()), float(np.mean(np.array(inside)[:, :p])), int(np.sum(within)))


@pytest.mark.parametrize(("mechanism", "signal"), [("gaussian", 0.05), ("two-sided-wishart", 1.0)])
def test_intervals_hold_what_they_are_about(mechanism: str, signal: float) -> None:
    assert held(drawn(rows_of(3000, signal=signal), 3.0, mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)).enough


def test_intervals_of_too_little_noise_do_not() -> None:
    def half(release: artefact.Release) -> artefact.Release:
        """Tell a quarter of the variance."""
        less = {name: release.noise[name] / 4 for name in ("variance_diagonal", "variance_off_diagonal")}
        return replace(release, noise=replace(release.noise, **less))

    assert not held(drawn(rows_of(3000), 3.0, neighbours=Neighbours.ADD_REMOVE), half).enough


def test_intervals_of_the_population_hold_over_samples_too() -> None:
    """Of the coefficients without a ridge: those of the noise alone do not, where the rows are few."""
    coefficients = np.linspace(1, -0.5, 3)
    hits: list[npt.NDArray[np.bool_]] = []
    alone: list[npt.NDArray[np.bool_]] = []
    for seed in range(300):
        found = first(drawn(rows_of(400, p=3, seed=seed), 12.0, "800").release(), 0.0)
        for kind, ends in ((hits, [e.population_interval for e in found.coefficients]),
                           (alone, [e.interval for e in found.coefficients])):  # fmt: skip
            low, high = np.array(ends).T
            kind.append((low <= coefficients) & (coefficients <= high))
    assert np.sum(hits, axis=0).min() >= fewest(300)
    assert np.sum(alone, axis=0).max() < fewest(300)


def test_what_noise_adds_on_average_is_taken_away_again() -> None:
    """Of columns that are mostly drowned: coefficients and R² are right on average, and so is what is said of R².

    Without the shift coefficients are too large by a tenth, and without what they have adapted to R² by several of its
    standard errors. The means of 400 releases are off by less than 5 of their own standard errors.
    """
    p = 24
    scene = drawn(rows_of(1200, p=p, signal=0.3), 6.0)
    exact, kappa = scene.moment, scene.bound.constant * scene.bound.unit
    places = [*range(p), p + 1]
    along: list[float] = []
    told: list[float] = []
    true: list[float] = []
    inside = 0
    for _ in range(400):
        found = first(scene.release())
        truth = np.linalg.solve(exact[np.ix_(places, places)] + np.diag([found.ridge] * p + [0.0]), exact[places, p])
        coefficients = values_of(found)[1:]
        along.append(float(coefficients @ truth[:p] / (truth[:p] @ truth[:p])))
        u = np.array([*-coefficients, 1.0, -found.intercept.value / kappa])
        true.append(float(1 - u @ exact @ u / (exact[p, p] - exact[p, -1] ** 2 / exact[-1, -1])))
        told.append(found.r2.value)
        inside += found.r2_interval[0] <= true[-1] <= found.r2_interval[1]
    assert found.seen < p / 2
    assert abs(np.mean(along) - 1) < max(0.02, 5 * float(np.std(along)) / 20)
    apart = np.array(told) - true
    assert abs(float(apart.mean())) < 5 * float(apart.std()) / 20
    assert inside >= stats.binom.ppf(FALSE_ALARM, 400, 0.93)


def test_a_block_holds_what_the_release_does_and_says_how_noisy_it_is() -> None:
    """The public n has no noise, rounding adds to that of the others, and the mean of the noise is taken away."""
    for neighbours, exact in ((Neighbours.REPLACE_ONE, 2), (Neighbours.ADD_REMOVE, None)):
        release = drawn(rows_of(3000), 4.0, neighbours=neighbours).release()
        block, unit = block_of(release, [3, 1]), release.bound.unit**2
        own = release.lattice[np.ix_([3, 1, 6], [3, 1, 6])] * np.outer([1, 1, 1], [1, 1, 1]) * unit
        assert np.allclose(block.moment, own)
        assert block.noise.exact == exact
        assert block.noise.off == pytest.approx(release.noise["variance_off_diagonal"] * unit**2)
        raised = replace(release, noise=replace(release.noise, mean_diagonal=1000.0))
        lowered = block_of(raised, [3, 1]).moment
        assert np.allclose(np.diagonal(block.moment - lowered)[:2], 1000 * unit)
        dithered = replace(release, bound=replace(release.bound, rule=DITHERED))
        on, off = entry_variances(dithered.row_count or 0, release.bound.grid_bits)
        noise = block_of(dithered, [3, 1]).noise
        assert noise.off - block.noise.off == pytest.approx(off * unit**2)
        assert noise.on - block.noise.on == pytest.approx(on * unit**2)


def test_covariances_of_noise_are_those_of_its_entries() -> None:
    """Against the sum over all independent entries, for each shape of the noise."""
    random = np.random.default_rng(4)
    w = 5
    vector, weights = random.normal(size=w), random.normal(size=(w, w))
    weights += weights.T
    for exact in (None, 2):
        noise = EntryNoise(on=3.0, off=0.7, exact=exact)
        products, functional = np.zeros((w, w)), 0.0
        for i in range(w):
            for j in range(i, w):
                one = np.zeros((w, w))
                one[i, j] = one[j, i] = 1
                variance = 0.0 if i == j == exact else (3.0 if i == j else 0.7)
                products += variance * np.outer(one @ vector, one @ vector)
                functional += variance * float((weights * one).sum()) ** 2
        assert np.allclose(noise.of_product(vector), products)
        assert noise.of_functional(weights) == pytest.approx(functional)
    shared = EntryNoise(on=2 * 0.7 + 0.4, off=0.7, shared=0.4)  # E of normal entries, plus the same on the diagonal
    plain = EntryNoise(on=2 * 0.7, off=0.7)
    assert np.allclose(shared.of_product(vector), plain.of_product(vector) + 0.4 * np.outer(vector, vector))
    assert shared.of_functional(weights) == pytest.approx(plain.of_functional(weights) + 0.4 * np.trace(weights) ** 2)


def goe(size: int, count: int) -> Iterator[Floats]:
    random = np.random.default_rng(6)
    for _ in range(count):
        entries = random.normal(size=(size, size))
        yield (entries + entries.T) / np.sqrt(2)


def test_with_the_shift_the_inverse_is_on_average_that_of_the_exact_matrix() -> None:
    """Its trace, at a ridge at the edge of the noise; the twin without the shift is far off."""
    size = 40
    law = law_of(Noise("x", EdgeKind.NORMAL, 2.0, 1.0), size)
    assert law is not None
    exact = np.diag([*np.linspace(50, 400, 10), *[0.0] * 30]) + law.edge * np.eye(size)
    shifted, plain = [], []
    for noise in goe(size, 200):
        values: Floats = np.linalg.eigvalsh(exact + noise).astype(np.float64)
        shift = shift_of(values, law)
        assert shift is not None
        shifted.append((1 / (values + shift)).sum())
        plain.append((1 / values).sum())
    truth = np.trace(np.linalg.inv(exact))
    assert np.mean(shifted) == pytest.approx(truth, rel=0.01)
    assert np.mean(plain) > 1.2 * truth
    alone = np.linalg.eigvalsh(next(goe(size, 1))).astype(np.float64)
    assert shift_of(alone, law) is None  # no ridge at all
    assert shift_of(alone + law.edge, law) is not None
    one = np.array([-2.0, *[1000.0] * (size - 1)])  # one direction is drowned, and all others stand clear
    assert shift_of(one, law) is None
    one[0] = 3
    assert shift_of(one, law) is not None


# --- other releases ---------------------------------------------------------------------------------------------------


def test_a_total_of_releases_tells_of_all_their_rows() -> None:
    scenes = [drawn(rows_of(3000, seed=seed), 4.0) for seed in (1, 2)]
    ridge = 2000.0
    total = first(combined([scene.release(i) for i, scene in enumerate(scenes)]), ridge)
    both = Ridge(alpha=ridge).fit(*(np.concatenate(part) for part in zip(
        *((s.bounded[:, :5], s.bounded[:, 5]) for s in scenes), strict=True)))  # fmt: skip
    low, high = np.array([each.interval for each in total.coefficients]).T
    width = high - low  # six times as wide: a false alarm in 1e20
    assert np.all((low - 2 * width <= both.coef_) & (both.coef_ <= high + 2 * width))
    assert total.coefficients[0].noise > 0
    # of one draw it varies by a tenth: of the mean of 16 a false alarm in 1e12
    pairs = [combined([scenes[0].release(2 * i), scenes[1].release(2 * i + 1)]) for i in range(16)]
    totals = [first(pair, ridge).coefficients[0].noise for pair in pairs]
    ones = [first(scenes[0].release(i), ridge / 2).coefficients[0].noise for i in range(16)]
    assert np.mean(totals) == pytest.approx(np.mean(ones) / 2**0.5, rel=0.2)


def test_a_release_that_stays_on_the_disk_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(drawn(rows_of(3000), 4.0).release(), tmp_path / "release.zarr")
    here = open_release(tmp_path / "release.zarr")
    monkeypatch.setattr(artefact, "_IN_MEMORY", 0)
    monkeypatch.setattr("dpdist.answers.block.TILE", 2)
    there = open_release(tmp_path / "release.zarr")
    assert here.in_memory
    assert not there.in_memory
    found, same = (values_of(regressions(release, [0], [5, 1, 3])[0]) for release in (here, there))
    assert np.array_equal(found, same)


def test_without_a_number_of_rows_there_is_no_interval_of_the_population() -> None:
    scene = drawn(rows_of(3000), 4.0, neighbours=Neighbours.ADD_REMOVE, centring=Centring.NONE)
    found = first(scene.release())
    assert found.coefficients[0].population_interval is None
    assert found.to_json()["coefficients"]["c0"]["population_low"] is None  # type: ignore[index]


# --- columns by name --------------------------------------------------------------------------------------------------


@pytest.fixture
def kinds() -> artefact.Release:
    """Return a release of a category and two numbers, one of which may be missing."""
    schema = Schema([
        Column("kind", "category", categories=["a", "b"], other="column"),
        Column("mass", "number", range=(0, 4), missing="indicator"),
        Column("age", "number", range=(0, 2)),
    ])  # fmt: skip
    rows = np.zeros((3000, 6))
    random = np.random.default_rng(1)
    rows[np.arange(3000), random.integers(0, 3, 3000)] = 1
    rows[:, 3] = rows[:, 1] + random.normal(size=3000)
    rows[:, 5] = random.normal(size=3000)
    return drawn(rows, 4.0, "100", names=schema.features, schema=schema).release()


def test_a_category_stands_for_the_columns_of_its_categories(kinds: artefact.Release) -> None:
    targets = places_of(kinds, ["kind"], "target")
    assert [kinds.names[i] for i in targets] == ["kind=a", "kind=b", "kind=other"]
    assert [kinds.names[i] for i in beside(kinds, targets)] == ["mass", "mass=missing", "age"]
    found = regressions(kinds, targets, places_of(kinds, ["mass", "age"], "on"))
    assert [each.target for each in found] == ["kind=a", "kind=b", "kind=other"]
    assert np.sum([each.intercept.value for each in found]) == pytest.approx(1, abs=0.05)  # shares add up to 1
    assert found[1].coefficients[0].interval[0] > 0


def test_what_was_made_of_the_target_is_no_default_regressor(kinds: artefact.Release) -> None:
    assert [kinds.names[i] for i in beside(kinds, [3])] == ["kind=a", "kind=b", "kind=other", "age"]
    assert [kinds.names[i] for i in beside(kinds, [0])] == ["mass", "mass=missing", "age"]


def test_coefficients_are_in_the_units_of_the_source_of_a_schema() -> None:
    """As least squares of the source itself, where no row is shortened and there is no noise to speak of."""
    schema = Schema(
        [
            Column("height", "number", range=(100, 220), missing="indicator", weight=2),
            Column("day", "date", range=("2020-01-01", "2021-01-01")),
            Column("kind", "category", categories=["a", "b"], weight=3),
            Column("mass", "number", range=(0, 200)),
        ],
        scale="range",
    )
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
    (found,) = regressions(
        release,
        [5],
        places_of(release, ["height", "height=missing", "day", "kind=b"], "on"),
        0.0,
        source_units(release),
    )
    days = (pd.Timestamp("2020-01-01") - pd.Timestamp("1970-01-01")).days + day
    source = np.column_stack([np.where(lacking, 160, height), lacking, days, kind])
    known = Ridge(alpha=1e-9, solver="svd").fit(source, mass)
    assert found.names == ("height", "height=missing", "day", "kind=b")
    assert np.allclose([each.value for each in found.coefficients], known.coef_, rtol=0.02, atol=0.02)
    assert found.intercept.value == pytest.approx(known.intercept_, rel=0.02)


# --- what is refused says what can be asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda r: places_of(r, ["nothing"], "target"), r"no column 'nothing' \(target\)\. There are: c0, c1"),
        (lambda r: places_of(r, ["c0", "c0"], "on"), r"'c0': named twice \(on\)"),
        (lambda r: places_of(r, [], "on"), r"No column is named \(on\)"),
        (lambda r: regressions(r, [5], []), "no column to regress on"),
        (lambda r: regressions(r, [5], [4, 5]), "c5: a target cannot be regressed on itself"),
        (lambda r: regressions(r, [5], [4], -1.0), "at least 0, or auto"),
        (lambda r: regressions(r, [5], [4], float("nan")), "at least 0, or auto"),
        (lambda r: regressions(replace(r, rows=4), [5], range(5)), "4 rows, and 5 columns .*: there are fewer rows"),
        (lambda r: regressions(replace(r, noise=Noise("own")), [5], [4]), "no known law.*by gaussian"),
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


def test_a_target_that_is_drowned_in_noise_is_refused() -> None:
    """It has no variance: that it passes 1.96 standard deviations has probability 0.025, three times 1.6e-5."""
    rows = rows_of(3000)
    rows[:, 5] = 0.7
    for targets, others in (([5], False), ([4, 5], True)):
        refused = []
        for _ in range(3):
            try:
                regressions(drawn(rows, 4.0).release(), targets, [0, 1])
            except BelowNoiseError as error:
                refused.append(str(error))
        assert "'c5' is drowned" in refused[0]
        assert ("name other targets (target)" in refused[0]) is others


def test_columns_that_explain_nothing_are_said_to() -> None:
    """All intervals hold 0 in 153 of 400 releases of these rows: in none of 60 with probability 4e-13."""
    rows = rows_of(3000, signal=0.0)
    assert any(first(drawn(rows, 4.0).release()).drowned for _ in range(60))
    assert not first(drawn(rows_of(3000), 4.0).release()).drowned


def test_the_first_category_is_the_reference_so_that_no_ridge_draws_the_others() -> None:
    """All columns of one variable add up to 1: with all of them the ridge drew every slope to 0, by 7 % here."""
    random = np.random.default_rng(11)
    kind = random.choice(3, 20_000, p=[0.6, 0.3, 0.1])
    x = random.normal(size=20_000) + 0.5 * (kind == 2)
    y = 0.3 * x + np.array([0.0, 0.4, 1.5])[kind] + 0.5 * random.normal(size=20_000)
    rows = np.column_stack([np.eye(3)[kind], x, y])
    columns = [
        Column("kind", "category", categories=["a", "b", "c"]),
        *(Column(n, "number", range=(-9, 9)) for n in "xy"),
    ]
    names = ("kind=a", "kind=b", "kind=c", "x", "y")
    release = drawn(rows, 4.5, "4", names=names, schema=Schema(columns)).release()
    (found,) = regressions(release, [4], [0, 1, 2, 3])
    assert (found.ridge, found.reference, found.names) == (0, ("kind=a",), ("kind=b", "kind=c", "x"))
    for each, slope in zip(found.coefficients, (0.4, 1.5, 0.3), strict=True):
        assert abs(each.value - slope) < 6 * each.noise + 0.03  # what sampling adds
    assert "kind=a is the reference" in regression(found, release)
    (ridged,) = regressions(release, [4], [0, 1, 2, 3], 500.0)  # who asks for a ridge gets all columns
    assert (ridged.reference, len(ridged.names)) == ((), 4)
    assert "All intervals are about the regression with it" in " ".join(regression(ridged, release).split())
    fitted = PrivateRidge.from_release(release, "y")
    assert fitted.coef_[0] == 0
    assert fitted.coef_intervals_[0].tolist() == [0, 0]
    assert fitted.coef_[1:].tolist() == [each.value for each in found.coefficients]


def test_of_a_drowned_column_nothing_is_told() -> None:
    """With the ridge its coefficient was about 0 in a narrow interval, whatever it is."""
    random = np.random.default_rng(6)
    a, year = random.normal(size=(2, 20_000))
    rows = np.column_stack([a, 1e-3 * year, a + year + random.normal(size=20_000)])
    release = drawn(rows, 6.0, "1", centring=Centring.PRIVATE).release()
    (found,) = regressions(release, [2], [0, 1])
    assert found.unknown == ("c1",)
    assert found.coefficients[1].interval == (-math.inf, math.inf)
    assert found.to_json()["coefficients"]["c1"]["low"] is None  # type: ignore[index]
    assert "c1: not above the noise, so nothing is known" in " ".join(regression(found, release).split())


def test_coefficients_with_a_ridge_are_of_no_population() -> None:
    release = drawn(np.random.default_rng(2).normal(size=(9000, 3)), 4.0, "1", centring=Centring.PRIVATE).release()
    plain, ridged = (regressions(release, [2], [0, 1], ridge)[0] for ridge in (0.0, 1e5))
    assert plain.coefficients[0].population_interval is not None
    assert ridged.coefficients[0].population_interval is None
    assert "population" not in about_intervals(release, ridged)
