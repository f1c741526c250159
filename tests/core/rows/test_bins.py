"""Bins of a number: a category beside it, by public edges, that is encoded row by row and answers like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from support.releases import assemble_drawn

from dpdist import Column, PrivacyLoss, ReleaseRequest, Schema, ingest_rows
from dpdist.answers.block import beside
from dpdist.answers.crosstab import counts, crosstab
from dpdist.answers.group_means import group_means
from dpdist.answers.logistic import logistic
from dpdist.answers.prospect import prospect
from dpdist.answers.relate import relations
from dpdist.answers.variables import variables
from dpdist.core.errors import UsageError
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.plan import planned
from dpdist.core.rows.chunks import ChunkReader

EDGES = [18, 30, 50, 65]
GROUPS = ("below 18", "18 to 29", "30 to 49", "50 to 64", "65 or more")


def schema(**age: Any) -> Schema:
    return Schema(
        [
            Column("age", **{"kind": "integer", "range": (0, 120), "bins": EDGES, "missing": "pairwise"} | age),
            Column("sex", "category", categories=["f", "m"]), Column("income", "number", range=(0, 100)),
        ],
        "range",
    )  # fmt: skip


def frame(n: int = 3000) -> pd.DataFrame:
    random = np.random.default_rng(1)
    ages = np.where(random.random(n) < 0.1, np.nan, random.integers(0, 140, n))
    return pd.DataFrame(
        {"age": ages, "sex": random.choice(["f", "m"], n), "income": np.clip(random.normal(40, 10, n), 0, 100)}
    )


def expected(ages: Any) -> Any:
    cut = pd.cut(ages, [-np.inf, *EDGES, np.inf], right=False, labels=GROUPS)
    return pd.Series(cut).cat.add_categories("missing").fillna("missing")


def test_each_value_is_in_the_bin_that_begins_at_or_below_it_and_the_ends_are_open() -> None:
    table, found = frame(), schema().transform(frame())
    names = [f"age_bins={group}" for group in (*GROUPS, "missing")]
    assert list(found.columns[-6:]) == names
    assert (found[names].sum(axis=1) == 1).all()
    assert (found[names].idxmax(axis=1).str.removeprefix("age_bins=").to_numpy() == expected(table["age"])).all()
    dates = Schema([Column("day", "date", bins=["2020-01-01", "2021-01-01"]), Column("x", "number", bins=[0.5, 2])])
    rows = dates.transform(pd.DataFrame({"day": ["2019-12-31", "2020-01-01", "2021-01-01"], "x": [0.5, 1e300, -7]}))
    assert rows.iloc[:, 2:].to_numpy().tolist() == [[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]]
    assert dates.features[2:] == (
        "day_bins=before 2020-01-01", "day_bins=2020-01-01 to before 2021-01-01", "day_bins=2021-01-01 or later",
        "x_bins=below 0.5", "x_bins=0.5 to below 2", "x_bins=2 or more",
    )  # fmt: skip


def test_an_edge_at_the_low_end_of_the_range_makes_no_empty_bin() -> None:
    column = schema(range=(18, 95), bins=[18, 30, 50, 65], missing=None).columns[-1]
    assert column.features == [f"age_bins={name}" for name in ("18 to 29", "30 to 49", "50 to 64", "65 or more")]
    rows = schema(range=(18, 95), bins=[18, 30, 50, 65], missing=None).transform(
        pd.DataFrame({"age": [17, 18, 29, 30, 99], "sex": "f", "income": 1})
    )
    assert rows.iloc[:, -4:].to_numpy().argmax(axis=1).tolist() == [0, 0, 0, 1, 3]  # 17 is clipped to 18


def test_files_and_tables_in_memory_give_the_same_rows(tmp_path: Path) -> None:
    table, exact = frame(), schema().transform(frame()).to_numpy()
    table.to_csv(tmp_path / "table.csv", index=False)
    table.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "schema.toml").write_text(
        f'scale = "range"\n[[column]]\nname = "age"\nkind = "integer"\nrange = [0, 120]\nbins = {EDGES}\n'
        'missing = "pairwise"\n[[column]]\nname = "sex"\nkind = "category"\ncategories = ["f", "m"]\n'
        '[[column]]\nname = "income"\nkind = "number"\nrange = [0, 100]\n'
    )
    sources = [tmp_path / "table.csv", tmp_path / "table.parquet", table, dd.from_pandas(table, npartitions=3)]
    for number, source in enumerate(sources):
        rows = ingest_rows(source, tmp_path / f"{number}.zarr", schema=tmp_path / "schema.toml")
        assert rows.schema == schema()
        found = np.concatenate([each.copy() for i in range(rows.chunks) for each in ChunkReader(rows, 500).read(i)])
        assert np.array_equal(found, exact, equal_nan=True)
    assert Schema.from_json(schema().to_json()) == schema() == Schema(schema().columns, "range")


def test_a_release_answers_about_age_groups_as_about_any_category() -> None:
    table = frame()
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1000000", "1e-6"), "schema")
    held = variables(next(assemble_drawn(request, schema(), table)))
    groups = expected(table["age"])
    assert held.categorical["age_bins"].categories == (*GROUPS, "missing")
    exact = pd.crosstab(groups, table["sex"]).loc[[*GROUPS, "missing"]].to_numpy()
    assert np.abs(crosstab(held, "age_bins", "sex").estimates - exact).max() < 0.2
    assert np.abs(counts(held, "age_bins").estimates - exact.sum(axis=1)).max() < 0.2
    means = table.groupby(groups, observed=False)["income"].mean().loc[[*GROUPS, "missing"]]
    assert np.abs(group_means(held, "income", "age_bins").means.estimates - means).max() < 0.01


def test_the_noise_that_bins_add_is_said_before_they_are_paid_for() -> None:
    def noise(which: Schema) -> tuple[float, Any]:
        size = Dimensions(len(which.features), 3000, schema=which)
        request = by_schema(ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), "schema"), size)
        plan = planned(request, size)
        return float(plan.moment.noise.variance_diagonal or 0) ** 0.5 * plan.bound.unit**2, prospect(plan)

    with_bins, said = noise(schema())
    without, plain = noise(schema(bins=None))
    assert said.bins == pytest.approx(with_bins / without, rel=0.02)
    assert plain.bins == 1
    assert f"The bins of numbers make all noise {100 * (said.bins - 1):.2g} % larger." in said.describe()


@pytest.mark.parametrize(
    ("bins", "match"),
    [
        ([], "bins is blank"), ([30, 18], "in increasing order"), (["a"], "must be a list of numbers"),
        ([18, 18], "each edge once"), ([0], "an edge between two bins"), ([-1, 18], "within the range"),
        ([18, 121], "within the range"),
        ([18.5], "must begin with whole numbers"), (18, "must be a list"), ([float("inf")], "must be a list"),
    ],
)  # fmt: skip
def test_unusable_edges_are_refused(bins: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        schema(bins=bins)


def test_a_category_takes_no_bins_and_names_stay_one_columns() -> None:
    with pytest.raises(UsageError, match="bins is not permitted"):
        Schema([Column("sex", "category", categories=["f"], bins=[1]), Column("b", "boolean")])
    with pytest.raises(UsageError, match=r"the bins of 'age' have this name.*rename"):
        Schema([Column("age", "number", bins=[1]), Column("age_bins", "boolean")])


@pytest.mark.parametrize(("missing", "last"), [(None, GROUPS[-1]), ("drop", GROUPS[-1]), ("centre", "missing")])
def test_missing_values_are_a_category_unless_they_are_refused_or_drop_the_row(missing: str | None, last: str) -> None:
    assert schema(missing=missing).columns[-1].features[-1] == f"age_bins={last}"


def test_a_number_and_its_bins_explain_nothing_about_each_other() -> None:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1000", "1e-6"), "schema")
    release = next(assemble_drawn(request, schema(), frame()))
    found = {frozenset((each.first, each.second)) for each in relations(variables(release))}
    assert frozenset(("age", "age_bins")) not in found
    assert frozenset(("age_bins", "income")) in found
    age = release.names.index("age")
    assert {release.names[place].partition("=")[0] for place in beside(release, [age])} == {"sex", "income"}
    named = {each.name.partition("=")[0] for fit in logistic(variables(release), "age_bins") for each in fit.effects}
    assert named == {"sex", "income"}


@pytest.mark.parametrize("unit", ["seconds", "hours", "days", "weeks", "years"])
def test_a_date_on_an_edge_is_in_the_bin_that_begins_with_it(unit: str) -> None:
    edges = [f"{year}-{month:02d}-01" for year in range(1995, 2025) for month in (1, 3, 7, 11)]
    column = Column("day", "date", range=("1990-01-01", "2030-01-01"), bins=edges, unit=unit, origin="1987-03-09")
    rows = Schema([column]).transform(pd.DataFrame({"day": edges}))  # one column, and its bins
    found = [name.partition("=")[2] for name in rows.drop(columns="day").idxmax(axis=1)]
    assert [name.split()[0] for name in found] == edges


def test_edges_and_ranges_may_be_arrays() -> None:
    listed = Column("age", "integer", range=[0, 99], bins=[18, 65])
    assert Column("age", "integer", range=np.array([0, 99]), bins=np.array([18, 65])) == listed
