"""Tables, means by group, tests and strengths of a release: exact without noise, and by their laws with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from support.releases import assemble_drawn

from dpdist.answers import association
from dpdist.answers.association import correlation_of, cramers_v, eta, holm, independence, same_means
from dpdist.answers.categories import contrasts
from dpdist.answers.covariance import covariance
from dpdist.answers.crosstab import counts, crosstab
from dpdist.answers.feasible import feasible
from dpdist.answers.group_means import group_means
from dpdist.answers.ratios import ratios
from dpdist.answers.relate import relation, relations
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.report.columns import mean_of

Matrix = npt.NDArray[np.float64]
N = 4000
REGIONS = ["north", "south", "east", "west", "other"]
SCHEMA = Schema(
    [
        Column("region", "category", categories=REGIONS[:4], other="column"),
        Column("premium", "boolean"), Column("plan", "category", categories=["a", "b", "c"], missing="indicator"),
        Column("income", "number", range=(0, 100)), Column("age", "number", range=(18, 98), missing="pairwise"),
    ],
    "range",
)  # fmt: skip


def table(seed: int, n: int = N) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    region = random.choice([*REGIONS[:4], "far"], n, p=[0.35, 0.3, 0.2, 0.1, 0.05])
    premium = random.random(n) < np.where(region == "north", 0.6, 0.3)
    income = np.clip(random.normal(40 + 12 * premium, 15), 0, 100)
    age = np.where(random.random(n) < 0.2, np.nan, np.clip(random.normal(50, 14, n), 18, 98))
    plan = random.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]).astype(object)
    plan[random.random(n) < 0.1] = None
    return pd.DataFrame({"region": region, "premium": premium, "plan": plan, "income": income, "age": age})


def request(epsilon: str = "1", neighbours: Neighbours = Neighbours.REPLACE_ONE, **changes: Any) -> ReleaseRequest:
    asked: dict[str, Any] = {"rows_at_most": 10 * N, "centring": Centring.SCHEMA} | changes
    return ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema", neighbours, **asked)


def held(frame: pd.DataFrame, asked: ReleaseRequest, schema: Schema = SCHEMA) -> Iterator[Variables]:
    """Yield the variables of releases of one table, drawn anew."""
    for release in assemble_drawn(asked, schema, frame):
        yield variables(release)


def exact_table(frame: pd.DataFrame, rows: str, columns: str, values: Any) -> Matrix:
    plain = {name: frame[name].fillna("missing").astype(str) for name in (rows, columns)}
    known = pd.DataFrame(plain).replace({"far": "other", "False": "no", "True": "yes"})
    found: Matrix = pd.crosstab(known[rows], known[columns]).reindex(
        index=values(rows), columns=values(columns), fill_value=0
    ).to_numpy(float)  # fmt: skip
    return found


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("centring", [Centring.SCHEMA, Centring.PRIVATE])
def test_at_a_large_epsilon_all_answers_are_those_of_the_rows(neighbours: Neighbours, centring: Centring) -> None:
    frame = table(1)
    found = next(held(frame, request("1000000", neighbours, centring=centring)))
    assert found.rows == pytest.approx(N, abs=1e-2)
    assert found.public == (neighbours is Neighbours.REPLACE_ONE)
    names = {name: variable.categories for name, variable in found.categorical.items()}
    assert names == {"region": tuple(REGIONS), "premium": ("no", "yes"), "plan": ("a", "b", "c", "missing")}
    for first, second in (("region", "premium"), ("premium", "region"), ("plan", "region")):
        expected = exact_table(frame, first, second, names.get)
        result = crosstab(found, first, second)
        assert np.abs(result.estimates - expected).max() < 0.2
        assert np.abs(result.shrunk - expected).max() < 0.5
        assert np.abs(result.of_rows.estimates - expected / expected.sum(1, keepdims=True)).max() < 1e-3
        assert np.abs(result.of_columns.estimates - expected / expected.sum(0)).max() < 1e-3
        pearson = (expected - np.outer(expected.sum(1), expected.sum(0)) / N) ** 2
        square = (pearson / np.outer(expected.sum(1), expected.sum(0))).sum()
        strength = cramers_v(found, found.categorical[first], found.categorical[second])
        assert strength is not None
        assert strength.value == pytest.approx(np.sqrt(square / (min(expected.shape) - 1)), abs=1e-3)
    plans = frame["plan"].fillna("missing").value_counts()[[*"abc", "missing"]]
    assert np.abs(counts(found, "plan").estimates - plans).max() < 0.2
    for number in ("income", "age"):
        means = group_means(found, number, "premium").means.estimates
        assert np.abs(means - frame.groupby("premium")[number].mean()).max() < 1e-2
    between = frame.groupby("premium")["income"].transform("mean").var() / frame["income"].var()
    correlation = eta(found, found.numeric["income"], found.categorical["premium"])
    assert correlation is not None
    assert correlation.value == pytest.approx(np.sqrt(between), abs=1e-3)
    assert found.left_out == {}


@pytest.mark.parametrize("neighbours", Neighbours)
def test_cells_counts_and_means_have_the_errors_that_are_stated(neighbours: Neighbours) -> None:
    """400 draws. A mean square over its variance is 1 within 5 deviations; without the noise of margins it is not."""
    frame, draws = table(2), 400
    names: dict[str, Any] = {"region": REGIONS, "premium": ["no", "yes"], "plan": ["a", "b", "c", "missing"]}
    expected = exact_table(frame, "region", "premium", names.get)
    ratio, twin, inside, shares, of_means, differences = [], [], [], [], [], []
    exact_means = frame.groupby("region")["income"].mean().rename({"far": "other"}).reindex(REGIONS).to_numpy()
    for _, found in zip(range(draws), held(frame, request(neighbours=neighbours)), strict=False):
        result = crosstab(found, "region", "premium")
        errors = result.estimates - expected
        ratio.append(float((errors**2).mean()) / result.deviation**2)
        without = found.pair("region", "premium").variance * (1 - 1 / 5) * (1 - 1 / 2)
        twin.append(float((errors**2).mean()) / without)
        inside.append(((result.intervals[..., 0] <= expected) & (expected <= result.intervals[..., 1])).mean())
        share = expected / expected.sum(1, keepdims=True)
        ends = result.of_rows.intervals
        shares.append(((ends[..., 0] <= share) & (share <= ends[..., 1])).mean())
        means = group_means(found, "income", "region")
        ends = means.means.intervals
        of_means.append(((ends[:, 0] <= exact_means) & (exact_means <= ends[:, 1])).mean())
        error = means.differences[0, 1] - (exact_means[0] - exact_means[1])
        differences.append((error / means.deviations[0, 1]) ** 2)
    spread = np.std(ratio) / np.sqrt(draws)
    assert abs(np.mean(ratio) - 1) < 5 * spread
    assert abs(np.mean(twin) - 1) > 5 * spread
    assert abs(np.mean(differences) - 1) < 5 * np.sqrt(2 / draws)
    for covered in (inside, shares, of_means):
        assert 0.93 < np.mean(covered) < 0.985


@pytest.mark.parametrize("epsilon", ["0.2", "1"])
def test_tests_of_unrelated_columns_have_their_size(epsilon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 tests at .05 of columns permuted anew: .015 to .095; false-alarm rate 5e-4. Without the noise most reject."""
    random, small, means, naive = np.random.default_rng(3), [], [], []
    for seed in range(400):
        frame = table(seed, 2000).apply(lambda column: random.permutation(column.to_numpy()))
        found = next(held(frame, request(epsilon, Neighbours.ADD_REMOVE)))
        first, second = found.categorical["region"], found.categorical["plan"]
        small.append(independence(found, first, second).p_value)
        means.append(same_means(found, found.numeric["income"], first).p_value)
        with monkeypatch.context() as patch:
            patch.setattr(association, "_pair_noise", lambda *_: np.zeros((12, 12)))
            if seed < 40:
                naive.append(independence(found, first, second).p_value)
    for values in (small, means):
        assert 0.015 <= np.mean(np.array(values) < 0.05) <= 0.095
    assert np.mean(np.array(naive) < 0.05) > 0.6


def test_a_strength_without_the_noise_is_that_of_the_table_with_small_categories_merged() -> None:
    """300 draws: the interval holds the exact V in .92 to .99, its mean is off by .01; a V with the noise is not."""
    frame = table(5)
    expected = exact_table(frame, "region", "premium", {"region": REGIONS, "premium": ["no", "yes"]}.get)
    merged = np.vstack([expected[:3], expected[3:].sum(axis=0)])  # west and other are too few
    found, inside, naive = [], [], []
    for _, each in zip(range(300), held(frame, request("0.5")), strict=False):
        strength = cramers_v(each, each.categorical["region"], each.categorical["premium"])
        if strength is None or [name for name, _ in strength.merged] != ["region"]:
            continue
        found.append(strength.value)
        inside.append(strength.interval[0] <= pearson_v(merged) <= strength.interval[1])
        naive.append(pearson_v(np.maximum(crosstab(each, "region", "premium").estimates, 1)))
    assert len(found) > 100
    assert 0.92 < np.mean(inside) < 0.995
    assert abs(np.mean(found) - pearson_v(merged)) < 0.01
    assert np.mean(naive) - pearson_v(expected) > 0.005


def pearson_v(counted: Matrix) -> float:
    expected = np.outer(counted.sum(1), counted.sum(0)) / counted.sum()
    return float(np.sqrt(((counted - expected) ** 2 / expected).sum() / counted.sum() / (min(counted.shape) - 1)))


def test_rows_that_are_dropped_are_not_in_tables() -> None:
    frame = table(6).assign(income=lambda t: t["income"].where(np.arange(N) % 10 > 2))
    schema = Schema(
        [
            Column("region", "category", categories=REGIONS[:4], other="column"), Column("premium", "boolean"),
            Column("income", "number", range=(0, 100), missing="drop"),
        ],
        "range", others="ignored",
    )  # fmt: skip
    found = next(held(frame.drop(columns=["plan", "age"]), request("1000000"), schema))
    kept = frame.dropna(subset=["income"])
    assert found.rows == pytest.approx(len(kept), abs=0.1)
    assert not found.public
    names = {"region": REGIONS, "premium": ["no", "yes"]}
    table_ = crosstab(found, "region", "premium")
    assert np.abs(table_.estimates - exact_table(kept, "region", "premium", names.get)).max() < 0.2
    means = group_means(found, "income", "premium").means.estimates
    assert np.abs(means - kept.groupby("premium")["income"].mean()).max() < 1e-2


def test_ratios_and_adjustments_are_those_of_the_literature() -> None:
    # Fieller by hand: (x - t y)² <= z² (vx - 2 t c + t² vy) at both ends, and not beyond
    found = ratios(30.0, 60.0, 4.0, 9.0, 1.5)
    for end, step in zip(found.intervals, (-1e-6, 1e-6), strict=True):
        square = (30 - end * 60) ** 2 / (4 - 2 * end * 1.5 + end**2 * 9)
        assert square == pytest.approx(1.959964**2)
        beyond = end + step
        assert (30 - beyond * 60) ** 2 / (4 - 3 * beyond + beyond**2 * 9) > 1.959964**2
    unknown = ratios(np.array([3.0, 3.0]), np.array([5.0, -50.0]), 1.0, 9.0)
    assert np.isnan(unknown.estimates).all()
    assert np.isinf(unknown.intervals).all()
    # R: p.adjust(c(.001, .04, .03, .2, .012), "holm")
    assert holm([0.001, 0.04, 0.03, 0.2, 0.012]) == [0.005, 0.09, 0.09, 0.2, 0.048]
    basis = contrasts(5)
    assert np.abs(basis.T @ basis - np.eye(4)).max() < 1e-15
    assert np.abs(basis.sum(axis=0)).max() < 1e-15


def test_there_is_no_test_where_its_law_does_not_hold() -> None:
    frame = table(7)
    found = next(held(frame, request("4")))
    assert relation(found, "region", "premium").test is not None
    assert relation(found, "age", "premium").no_test == ""
    clipped = next(held(frame, replace(request("4"), clip_norm=0.5)))
    assert relation(clipped, "income", "premium").no_test == "numbers of some rows were clipped"
    assert relation(clipped, "region", "premium").test is not None
    persons = replace(found, release=replace(found.release, unit=Unit("patient", 3)))
    assert relation(persons, "region", "premium").no_test == "rows of one patient are not independent"
    drowned = next(held(frame.head(60), request("0.1")))
    assert relation(drowned, "region", "premium").no_test == "its strength cannot be told in this noise"
    every = relations(found)
    assert len(every) == 10
    values = [abs(each.strength.value) for each in every if each.strength is not None]
    assert values == sorted(values, reverse=True)
    tested = [each for each in every if each.test is not None and each.adjusted is not None]
    assert all(each.adjusted >= each.test.p_value for each in tested if each.test and each.adjusted is not None)
    for first, second, words in (
        ("region", "region", "twice"), ("region", "nobody", "There are: region"), ("x", "region", "no variable 'x'"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            relation(found, first, second)


def test_a_release_answers_in_frames() -> None:
    frame = table(8)
    release = next(assemble_drawn(request("1000000"), SCHEMA, frame))
    crossed = release.crosstab("region", "premium")
    expected = pd.crosstab(frame["region"].replace("far", "other"), frame["premium"]).reindex(REGIONS).to_numpy()
    assert np.abs(crossed.xs("value", axis=1, level=1).to_numpy() - expected).max() < 0.2
    assert (list(crossed.index), crossed.index.name, crossed.columns.names) == (REGIONS, "region", ["premium", None])
    percent = release.crosstab("region", "premium", "rows").xs("value", axis=1, level=1)
    assert np.abs(percent.sum(axis=1) - 100).max() < 1e-2
    means = release.group_means("income", "region")
    assert abs(means.loc["north", "mean"] - frame[frame["region"] == "north"]["income"].mean()) < 1e-2
    assert (means["low"] <= means["mean"]).all()
    related = release.relate("premium")
    assert set(related.index.get_level_values("second")) == {"region", "plan", "income", "age"}
    assert (related["strength"].diff().dropna() <= 0).all()
    assert len(release.relate()) == 10
    assert len(release.relate("income", "age")) == 1
    assert release.counts("plan")["share"].sum() == pytest.approx(1)
    assert related.attrs["rows"] == N
    with pytest.raises(UsageError, match="percent must be None or one of"):
        release.crosstab("region", "premium", "cells")


@pytest.mark.parametrize("seed", range(40))
def test_the_nearest_moment_of_rows_is_never_farther_in_the_norm_of_the_noise(seed: int) -> None:
    # of random schemas; a projection on a convex set with the exact matrix, but for the tolerance
    random = np.random.default_rng(seed)
    n, sizes = int(random.integers(50, 3000)), random.integers(2, 7, int(random.integers(1, 5)))
    columns = [Column(f"k{i}", "category", categories=[f"v{v}" for v in range(k)]) for i, k in enumerate(sizes)]
    columns += [Column(f"x{i}", "number", range=(-1, 1)) for i in range(int(random.integers(1, 4)))]
    shares = {f"k{i}": random.dirichlet(np.full(k, 0.5)) for i, k in enumerate(sizes)}
    frame = pd.DataFrame(
        {name: random.choice([f"v{v}" for v in range(len(p))], n, p=p) for name, p in shares.items()}
        | {c.name: np.clip(random.normal(0, 0.5, n), -1, 1) for c in columns if c.kind == "number"}
    )
    schema = Schema(columns, "range")
    asked = request(str(random.choice(["0.1", "0.5", "2"])))
    exact = next(held(frame, request("1000000"), schema))
    found = next(held(frame, asked, schema))
    result = feasible(found)
    scale = (exact.precision.constant / found.precision.constant) ** 2  # grids differ
    closed = found.moment.copy()
    for variable in found.categorical.values():  # the closed form, by hand
        margin, w, basis = found.margin(variable.name), variable.weight, variable.basis
        r = margin.values  # noqa: PD011 - of no frame
        at = np.ix_(variable.places, variable.places)
        project = basis @ basis.T
        closed[at] = w**2 * project @ np.diag(n / variable.size + basis @ r) @ project
        rest = [place for place in range(len(closed) - 1) if place not in variable.places]
        closed[np.ix_(variable.places, rest)] = project @ closed[np.ix_(variable.places, rest)]
        closed[np.ix_(rest, variable.places)] = closed[np.ix_(variable.places, rest)].T
        closed[list(variable.places), -1] = closed[-1, list(variable.places)] = found.precision.constant * w * basis @ r
    truth = exact.moment / scale
    before, after = np.linalg.norm(closed - truth), np.linalg.norm(result.moment - truth)
    assert after <= before * 1.01
    assert np.linalg.eigvalsh(result.moment)[0] > -0.05 * np.sqrt(2 * found.precision.noise * len(closed))
    assert all((cells >= 0).all() for cells in result.tables.values())


def test_a_feasible_covariance_is_closer_and_only_of_complete_variables() -> None:
    frame = table(9).drop(columns=["plan", "age"])
    schema = Schema([c for c in SCHEMA.columns if c.name not in {"plan", "age"}], "range")
    exact = np.cov(schema.transform(frame).to_numpy(float).T, bias=True)
    errors: dict[Shrinkage, list[float]] = {each: [] for each in (Shrinkage.NONE, Shrinkage.FEASIBLE)}
    for _, release in zip(range(30), assemble_drawn(request("0.2"), schema, frame), strict=False):
        for shrinkage, found in errors.items():
            found.append(float(np.linalg.norm(covariance(release, shrinkage).matrix - exact)))
    assert np.mean(errors[Shrinkage.FEASIBLE]) < 0.8 * np.mean(errors[Shrinkage.NONE])
    with pytest.raises(UsageError, match="not of: age=missing"):
        covariance(next(assemble_drawn(request(), SCHEMA, table(9))), Shrinkage.FEASIBLE)


def test_a_weak_strength_has_an_interval_that_holds_it() -> None:
    """300 draws of two weak pairs, of which the estimate is often 0: .92 to 1 of the intervals hold the exact one."""
    random = np.random.default_rng(10)
    frame = table(10).assign(premium=random.random(N) < 0.3)
    frame["income"] = np.clip(frame["income"] + 1.0 * frame["premium"], 0, 100)
    exact = next(held(frame, request("1000000")))
    inside: dict[str, list[bool]] = {"region": [], "income": []}
    truths = {
        "region": cramers_v(exact, exact.categorical["plan"], exact.categorical["premium"]),
        "income": eta(exact, exact.numeric["income"], exact.categorical["premium"]),
    }
    for _, each in zip(range(300), held(frame, request("0.7")), strict=False):
        premium = each.categorical["premium"]
        found = {
            "region": cramers_v(each, each.categorical["plan"], premium),
            "income": eta(each, each.numeric["income"], premium),
        }
        for name, strength in found.items():
            truth = truths[name]
            if strength is not None and truth is not None and not strength.merged:
                inside[name].append(strength.interval[0] <= truth.value <= strength.interval[1])
    for covered in inside.values():
        assert len(covered) > 100
        assert np.mean(covered) > 0.92


@pytest.mark.parametrize("rows", [25_000, 100_000])
def test_strengths_of_numbers_far_from_the_middle_of_their_range_have_intervals_that_hold_them(rows: int) -> None:
    """400 draws, of which fewer than .91 hold the exact value once in 3000 runs; with few rows some are not told."""
    random = np.random.default_rng(12)
    group = random.integers(3, size=rows)
    income = np.clip(90 + 5 * (group - 1) + 1.5 * random.normal(size=rows), 0, 100)
    age = np.clip(90 + (income - 90) + 2 * random.normal(size=rows), 18, 98)
    frame = pd.DataFrame({"income": income, "age": age, "plan": np.array(list("abc"))[group]})
    columns = [
        Column("income", "number", range=(0, 100)), Column("age", "number", range=(18, 98)),
        Column("plan", "category", categories=list("abc")),
    ]  # fmt: skip
    groups = frame.groupby("plan")["income"].transform("mean")
    truths = {"eta": np.sqrt(groups.var() / frame["income"].var()), "r": frame["income"].corr(frame["age"])}
    inside: dict[str, list[bool]] = {name: [] for name in truths}
    asked = request(neighbours=Neighbours.ADD_REMOVE, rows_at_most=10 * rows)
    for _, each in zip(range(400), held(frame, asked, Schema(columns, "range")), strict=False):
        a, b = (each.numeric[name] for name in ("income", "age"))
        told = {"eta": eta(each, a, each.categorical["plan"]), "r": correlation_of(each, a, b)}
        for name, strength in told.items():
            if strength is not None:
                inside[name].append(strength.interval[0] <= truths[name] <= strength.interval[1])
    for covered in inside.values():
        assert len(covered) > 0.3 * 400
        assert np.mean(covered) > 0.91


def test_a_column_with_a_transform_is_named_after_it() -> None:
    random = np.random.default_rng(11)
    frame = pd.DataFrame({"spend": random.lognormal(4, 1, 3000), "kind": random.choice(["a", "b"], 3000)})
    schema = Schema(
        [
            Column("spend", "number", range=(0, 5000), transform="log"),
            Column("kind", "category", categories=["a", "b"]),
        ],
        "range",
    )  # fmt: skip
    found = next(held(frame, request("1000000"), schema))
    assert list(found.numeric) == ["log1p(spend)"]
    for name in ("spend", "log1p(spend)"):
        result = group_means(found, name, "kind")
        assert result.number.name == "log1p(spend)"
        assert np.abs(result.means.estimates - np.log1p(frame["spend"]).groupby(frame["kind"]).mean()).max() < 1e-2


@pytest.mark.parametrize("scale", ["range", "none"])
def test_no_mean_or_interval_is_beyond_what_a_public_range_allows(scale: str) -> None:
    """A mean of clipped rows is between the ends of the range, or between them and the centre of the rows."""
    random = np.random.default_rng(7)
    frame = pd.DataFrame({"premium": random.random(1000) < 0.3, "age": random.choice([20.0, 90.0], 1000, p=[0.9, 0.1])})
    schema = Schema([Column("premium", "boolean"), Column("age", "number", range=(18, 90))], scale)
    least, beyond = 18.0 if scale == "range" else 0.0, []
    for _, found in zip(range(60), held(frame, request("0.2", centring=Centring.PRIVATE), schema), strict=False):
        number = found.numeric["age"]
        without = replace(found, numeric={"age": replace(number, limits=(-np.inf, np.inf))})
        free = group_means(without, "age", "premium").means.intervals
        beyond.append(bool((np.isfinite(free) & ((free < least) | (free > 90))).any()))
        answer = group_means(found, "age", "premium")
        for result in (answer.means, mean_of(found, number)):
            known = np.isfinite(result.intervals).all(axis=-1)
            (low, high), mean = np.moveaxis(result.intervals, -1, 0)[:, known], result.estimates[known]
            assert np.isnan(result.estimates[~known]).all()
            assert ((least <= low) & (low <= mean) & (mean <= high) & (high <= 90)).all()
        value, low, high = answer.difference(1, 0)
        if np.isfinite(value):
            assert least - 90 <= low <= value <= high <= 90 - least
    assert any(beyond) or scale == "none"  # there the range is wider, and hardly ever left
