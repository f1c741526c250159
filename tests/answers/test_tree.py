"""Synthetic rows of a schema: valid for it, with the tables along the tree and the means of the release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call
from support.releases import assemble_drawn

import dpdist
from dpdist import Column, PrivacyLoss, ReleaseRequest, Schema
from dpdist.answers.tree import Tree, tree
from dpdist.answers.variables import variables
from dpdist.core.errors import UsageError
from dpdist.estimators.fit import save

N = 20_000
SCHEMA = Schema(
    [
        Column("region", "category", categories=["north", "south", "east"], other="column"),
        Column("plan", "category", categories=["a", "b", "c"], missing="indicator"), Column("premium", "boolean"),
        Column("age", "integer", range=(18, 90), bins=[30, 50], missing="pairwise"),
        Column("income", "number", range=(0, 200)), Column("spend", "number", range=(0, 1e6), transform="log"),
        Column("joined", "date", range=("2000-01-01", "2030-12-31")), Column("notes", "ignored"),
    ],
    "range",
)  # fmt: skip


def people(seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    region = random.choice(["north", "south", "east", "isle"], N, p=[0.4, 0.3, 0.25, 0.05])
    plan = np.where(random.random(N) < 0.6, np.where(region == "north", "a", "b"), "c").astype(object)
    plan[random.random(N) < 0.1] = None
    premium = random.random(N) < np.where(plan == "a", 0.7, 0.2)
    age = np.clip(random.normal(40 + 10 * premium, 12), 18, 90).round()
    age[random.random(N) < 0.15] = np.nan
    income = np.clip(60 + 30 * premium + 10 * (region == "east") + random.normal(0, 12, N), 0, 200)
    spend = np.exp(random.normal(3 + premium, 0.8)).clip(0, 1e6)
    days = random.integers(3000, 7000, N)
    joined = pd.Timestamp("2000-01-01") + pd.to_timedelta(days, "D")
    return pd.DataFrame(
        {"region": region, "plan": plan, "premium": premium, "age": age, "income": income, "spend": spend,
         "joined": joined.strftime("%Y-%m-%d"), "notes": "x"}
    )  # fmt: skip


def release_of(epsilon: str, **asked: Any) -> dpdist.Release:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema", **asked)
    return next(assemble_drawn(request, SCHEMA, people()))


def drawn(epsilon: str, count: int = N, seed: int = 0) -> tuple[Tree, pd.DataFrame]:
    model = tree(variables(release_of(epsilon)))
    return model, pd.DataFrame(model.draw(count, np.random.default_rng(seed))).astype({"age": float})


def known(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(premium=frame["premium"].isin([True, "yes"]))
    frame = frame.assign(region=frame["region"].replace("isle", "other"), plan=frame["plan"].fillna("none"))
    ages = pd.cut(frame["age"], [-np.inf, 29.5, 49.5, np.inf], labels=["young", "middle", "old"]).astype(object)
    return frame.assign(ages=ages.fillna("none"))


@pytest.mark.parametrize("epsilon", ["0.05", "1", "1000"])
def test_every_row_is_valid_whatever_the_noise(tmp_path: Path, epsilon: str, call: Call) -> None:
    save(release_of(epsilon), tmp_path / "r.zarr")
    model, frame = drawn(epsilon)
    assert list(frame.columns) == ["region", "plan", "premium", "age", "income", "spend", "joined"]
    assert set(frame["region"]) <= {"north", "south", "east", "other"}
    assert frame["income"].between(0, 200).all()
    assert (frame["spend"] >= 0).all()
    assert frame["age"].dropna().between(18, 90).all()
    assert (frame["age"].dropna() % 1 == 0).all()
    made = call("synthesise", tmp_path / "r.zarr", tmp_path / "drawn.csv", "--rows", "300", "--seed", "1")
    if made.code == 4:  # below the noise
        assert epsilon == "0.05"
        return
    assert "They have valid categories and ranges" in " ".join(made.told.split())
    assert "Fit models to the release itself" in " ".join(made.told.split())
    strict = Schema([*SCHEMA.sources[:-1]], "range")  # refuses what it does not list
    again = dpdist.ingest_rows(tmp_path / "drawn.csv", tmp_path / "again.zarr", schema=strict)
    assert again.rows == 300
    for name in ("drawn.npy", "drawn.parquet", "drawn.zarr"):
        assert call("synthesise", tmp_path / "r.zarr", tmp_path / name, "--rows", "300", "--seed", "1").code == 0
    coded = np.load(tmp_path / "drawn.npy")
    assert set(np.unique(coded[:, :4])) <= {0, 1}
    assert (coded[:, :4].sum(axis=1) == 1).all()
    typed = pd.read_parquet(tmp_path / "drawn.parquet").reset_index(drop=True)
    typed = typed.astype(object).where(typed.notna(), np.nan)  # None and NaN are both missing
    pd.testing.assert_frame_equal(typed, pd.read_csv(tmp_path / "drawn.csv").astype(object), check_dtype=False)
    assert model.columns[0].name == "region"


def test_with_little_noise_tables_means_and_gaps_are_those_of_the_rows() -> None:
    model, frame = drawn("1000", 200_000)
    found, exact = known(frame), known(people())
    names = {"age_bins": "ages"}
    for step in model.steps:
        if step.given is not None:
            pair = [names.get(step.given, step.given), names.get(step.name, step.name)]
            tables = [pd.crosstab(each[pair[0]], each[pair[1]], normalize=True) for each in (found, exact)]
            assert np.abs(tables[0] - tables[1]).to_numpy().max() < 0.01, pair
    assert found["age"].isna().mean() == pytest.approx(exact["age"].isna().mean(), abs=0.01)
    for by in ("premium", "region"):
        means = [each.groupby(by)["income"].mean() for each in (found, exact)]
        assert np.abs(means[0] - means[1]).max() < 2
    assert found["income"].std() == pytest.approx(exact["income"].std(), rel=0.05)
    assert found["spend"].median() == pytest.approx(exact["spend"].median(), rel=0.1)
    assert found["spend"].skew() > 2
    order = [pd.to_datetime(each["joined"]).median() for each in (found, exact)]
    assert abs((order[0] - order[1]).days) < 200


@pytest.mark.usefixtures("apart")
def test_a_category_that_no_row_has_makes_no_numbers_of_its_own(call: Call) -> None:
    random = np.random.default_rng(3)
    frame = pd.DataFrame({
        "city": random.choice(["Bern", "Zug"], N), "plan": random.choice(["a", "b"], N),
        "spend": np.exp(random.normal(3, 1.2, N)), "age": random.normal(45, 12, N),
    })  # fmt: skip
    frame.to_csv("t.csv", index=False)
    schema = Schema([
        Column("city", "category", categories=["Bern", "Zug", "Genf"], other="column", missing="indicator"),
        Column("plan", "category", categories=["a", "b"], other="column"),
        Column("spend", "number", transform="log"), Column("age", "number"),
    ])  # fmt: skip
    dpdist.ingest_rows("t.csv", "t.zarr", schema=schema, budget=PrivacyLoss.parse("1", "1e-6"))
    assert call("release", "t.zarr", "r.zarr", "--epsilon", "1", "--delta", "1e-6", "--scale", "private").code == 0
    assert call("synthesise", "r.zarr", "s.csv", "--rows", N).code == 0
    found, norm = pd.read_csv("s.csv"), dpdist.open_release("r.zarr").bound.clip_norm
    for name in ("spend", "age"):
        ends = [each[name].quantile([0.05, 0.5, 0.95]).to_numpy() for each in (found, frame)]
        assert ends[0] == pytest.approx(ends[1], rel=0.25)
    assert np.log1p(found["spend"]).sub(3).abs().max() <= 1.5 * norm * 1.2
    assert found["age"].sub(45).abs().max() <= 1.5 * norm * 12  # what a clipped row can have
    assert found["spend"].nunique() > N / 20


def test_the_tree_joins_what_belongs_together_and_the_rest_by_chance() -> None:
    """Here plan depends on region, premium on plan, and age on premium alone."""
    model, _ = drawn("10", 10)
    pairs = {frozenset((step.given, step.name)) for step in model.steps if step.given is not None}
    assert pairs == {frozenset(p) for p in (("region", "plan"), ("plan", "premium"), ("premium", "age_bins"))}


def test_bins_reach_the_ends_of_the_range_and_ordered_categories_stay_names() -> None:
    schema = Schema(
        [
            Column("grade", "integer", range=(0, 10), bins=[5, 10]), Column("score", "number", range=(0, 1), bins=[1]),
            Column("size", "category", categories=["S", "M", "L"], encoding="ordinal"), Column("paid", "boolean"),
            Column("land", "category", categories=["here"]),
        ],
        "range",
    )  # fmt: skip
    random = np.random.default_rng(1)
    grade = random.integers(0, 11, N)
    rows = pd.DataFrame(
        {"grade": grade, "score": np.where(random.random(N) < 0.3, 1.0, 0.4), "paid": grade > random.integers(0, 11, N),
         "size": random.choice(["S", "M", "L"], N), "land": "here"}
    )  # fmt: skip
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("1000", "1e-6"), "schema")
    held = variables(next(assemble_drawn(asked, schema, rows)))
    assert "land" not in held.names
    found = pd.DataFrame(tree(held).draw(N, np.random.default_rng(2)))
    assert set(found["size"]) == {"S", "M", "L"}
    for name, top in (("grade", 10), ("score", 1.0)):
        assert (found[name] == top).mean() == pytest.approx((rows[name] == top).mean(), abs=0.01)
        assert found[name].min() >= 0


def test_the_same_seed_draws_the_same_rows_and_too_many_are_refused() -> None:
    model = tree(variables(release_of("1")))
    first, second = (model.draw(50, np.random.default_rng(3)) for _ in range(2))
    assert all(np.array_equal(first[name].astype(str), second[name].astype(str)) for name in first)
    with pytest.raises(UsageError, match="rows at once"):
        model.draw(1 << 40, np.random.default_rng(3))
    plain = next(
        assemble_drawn(
            ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 2.0, centring="private"),  # type: ignore[arg-type]
            Schema([Column("a", "number", range=(0, 1)), Column("b", "number", range=(0, 1))], "range"),
            pd.DataFrame({"a": [0.5] * 50, "b": [0.1] * 50}),
        )
    )
    with pytest.raises(UsageError, match="This one has none"):
        tree(variables(plain))
