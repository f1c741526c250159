"""dpdist relate: tables, means by group and associations, as text, JSON and files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call

import dpdist

SCHEMA = """\
scale = "range"

[[column]]
name = "region"
kind = "category"
categories = ["north", "south", "east"]

[[column]]
name = "premium"
kind = "boolean"

[[column]]
name = "income"
kind = "number"
range = [0, 100]

[[column]]
name = "age"
kind = "integer"
range = [18, 98]
"""
ASKED = ("--epsilon", "4", "--delta", "1e-6", "--clip", "schema")


@pytest.fixture
def frame(apart: Path, call: Call) -> pd.DataFrame:
    assert apart.is_dir()
    random = np.random.default_rng(1)
    region = random.choice(["north", "south", "east"], 6000, p=[0.5, 0.3, 0.2])
    premium = random.random(6000) < np.where(region == "north", 0.6, 0.2)
    table = pd.DataFrame(
        {
            "region": region, "premium": np.where(premium, "yes", "no"),
            "income": np.clip(random.normal(40 + 15 * premium, 12), 0, 100).round(1),
            "age": np.clip(random.normal(50, 12, 6000), 18, 98).round(),
        }
    )  # fmt: skip
    table.to_csv("t.csv", index=False)
    Path("s.toml").write_text(SCHEMA)
    assert call("release", "t.csv", "r.zarr", "--schema", "s.toml", *ASKED).code == 0
    return table


def test_questions_about_pairs_are_answered_from_one_release(frame: pd.DataFrame, call: Call) -> None:
    said = call("relate", "r.zarr", "premium", "region")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[1].split() == ["north", "south", "east"]
    exact = pd.crosstab(frame["premium"], frame["region"])[["north", "south", "east"]].to_numpy()
    shown = np.array([[int(cell) for cell in line.split()[1:]] for line in lines[2:4]])
    reach = int(lines[4].split("within ")[1].split()[0])
    assert np.abs(shown - exact).max() <= 3 * reach
    assert "Strength (Cramér's V, 0 to 1): 0." in said.out
    assert "p < 0.0001" in said.out
    percent = call("relate", "r.zarr", "premium", "region", "--percent", "columns")
    assert "percent of its columns" in percent.out
    assert abs(float(percent.out.splitlines()[3].split()[1]) - 100 * exact[1, 0] / exact[:, 0].sum()) < 2
    means = call("relate", "r.zarr", "region", "income")
    assert abs(float(means.out.splitlines()[1].split()[2]) - frame[frame["region"] == "north"]["income"].mean()) < 1
    pair = call("relate", "r.zarr", "age", "income")
    assert pair.out.startswith("Correlation: ")
    one = call("relate", "r.zarr", "premium")
    ordered = [line.split()[0] for line in one.out.splitlines()[6:9]]
    assert ordered[:2] in (["region", "income"], ["income", "region"])
    assert "adjusted for 3 tests (Holm)" in one.out
    assert "adjusted for 6 tests (Holm)" in call("relate", "r.zarr").out
    for text in (said.out, one.out, means.out, percent.out):
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.usefixtures("apart")
def test_means_of_dates_are_dates_and_a_head_tells_what_was_done_to_the_numbers(call: Call) -> None:
    random = np.random.default_rng(5)
    joined = pd.Timestamp("2010-01-01") + pd.to_timedelta(random.integers(0, 3000, 20_000), "D")
    rows = pd.DataFrame(
        {"joined": joined.strftime("%Y-%m-%d"), "paid": random.random(20_000) < 0.5, "debt": random.random(20_000)}
    )  # fmt: skip
    rows.to_csv("rows.csv", index=False)
    dated = dpdist.Column("joined", "date", range=("2000-01-01", "2030-01-01"), unit="weeks", origin="2005-01-01")
    schema = dpdist.Schema([dated, dpdist.Column("paid", "boolean"), dpdist.Column("debt", "number")])
    loss = dpdist.PrivacyLoss.parse(9, "1e-6")
    dpdist.ingest_rows("rows.csv", "rows.zarr", schema=schema, budget=loss)
    release = ("--epsilon", "9", "--delta", "1e-6", "--clip", "9", "--scale", "private")
    assert call("release", "rows.zarr", "r.zarr", *release).code == 0
    told = call("relate", "r.zarr", "joined", "paid").out
    assert "Means are of joined clipped, within its range." in told
    days = [pd.Timestamp(day) for day in re.findall(r"20\d\d-\d\d-\d\d", told)]
    assert len(days) == 6
    means = [joined[rows["paid"] == paid].mean() for paid in (True, False)]
    for value, low, high in (days[:3], days[3:]):
        assert low <= value <= high
        assert min(abs(value - mean) for mean in means) < pd.Timedelta(60, "D")
    assert re.search(r"less that of no: -?[\d.]+ weeks \(", told)
    assert re.search(r"joined changes by \S+ weeks \(", call("relate", "r.zarr", "joined", "debt").out)
    assert re.search(
        r"debt changes by \S+ \(\S+ \.\. \S+\) for one week of joined", call("relate", "r.zarr", "debt", "joined").out
    )


@pytest.mark.usefixtures("apart")
def test_means_of_logarithms_come_with_geometric_means(call: Call) -> None:
    random = np.random.default_rng(5)
    plan = random.choice(["basic", "plus"], 20_000)
    pay = np.exp(random.normal(np.where(plan == "plus", 10, 9), 1)).round(2)
    pd.DataFrame({"pay": pay, "plan": plan}).to_csv("rows.csv", index=False)
    columns = [
        dpdist.Column("pay", "number", transform="log"),
        dpdist.Column("plan", "category", categories=["basic", "plus"]),
    ]
    budget = dpdist.PrivacyLoss.parse(4, "1e-6")
    dpdist.ingest_rows("rows.csv", "rows.zarr", schema=dpdist.Schema(columns), budget=budget)
    release = ("--epsilon", "4", "--delta", "1e-6", "--clip", "9", "--scale", "private")
    assert call("release", "rows.zarr", "r.zarr", *release).code == 0
    lines = call("relate", "r.zarr", "pay", "plan").out.splitlines()
    assert lines[0].split() == ["plan", "rows", "mean", "log1p(pay)", "between", "geometric", "mean", "between"]
    for line in lines[1:3]:
        name, *_, value, low, _, high = line.split()
        assert float(low) < float(value) < float(high)
        # an interval twice as wide lacks it once in 11,000 cases
        wider, exact = (float(high) - float(low)) / 2, np.expm1(np.log1p(pay[plan == name]).mean())
        assert float(low) - wider < exact < float(high) + wider
    assert "A geometric mean is the mean of the logarithm, taken back" in lines[4]


def test_means_come_with_their_difference_and_numbers_with_a_slope(frame: pd.DataFrame, call: Call) -> None:
    told = " ".join(call("relate", "r.zarr", "income", "premium").out.split())
    means = frame.groupby("premium")["income"].mean()
    found = re.search(r"The mean of yes less that of no: ([-\d.]+) \(([-\d.]+) \.\. ([-\d.]+)\)", told)
    assert found is not None
    value, low, high = map(float, found.groups())
    reach = (high - low) / 2
    assert abs(value - (means["yes"] - means["no"])) < 2.5 * reach
    assert "Not in a release: medians, quantiles and spreads within groups." in told
    differences = call("relate", "r.zarr", "income", "region", "--json").json["differences"]
    assert [(each["of"], each["less"]) for each in differences] == [
        ("south", "north"), ("east", "north"), ("east", "south"),
    ]  # fmt: skip
    assert all(each["low"] < each["difference"] < each["high"] for each in differences)
    slope = call("relate", "r.zarr", "income", "age", "--json").json["slope"]
    exact = np.polyfit(frame["age"], frame["income"], 1)[0]
    assert abs(slope["value"] - exact) < 1.25 * (slope["high"] - slope["low"])
    assert "income changes by" in call("relate", "r.zarr", "income", "age").out


def test_json_and_files_have_all_numbers(frame: pd.DataFrame, call: Call) -> None:
    value = json.loads(call("relate", "r.zarr", "premium", "region", "--table", "t1.csv", "--json").out)
    assert value["rows"] == len(frame)
    assert {"rows", "low", "high", "shrunk", "of_row", "of_column", "of_all"} <= value["table"][0].keys()
    assert value["association"]["p_value"] < 1e-4
    with Path("t1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["region"] for row in rows[:3]] == ["north", "south", "east"]
    assert float(rows[0]["rows"]) == value["table"][0]["rows"]
    for number, names in enumerate((["income", "region"], ["premium"], ["age"], [], ["age", "income"])):
        assert call("relate", "r.zarr", *names, "--table", f"t{number}.parquet").code == 0
        assert len(pd.read_parquet(f"t{number}.parquet")) == (3, 3, 3, 6, 1)[number]


def test_a_file_is_projected_as_it_is_read_by_the_model(frame: pd.DataFrame, call: Call) -> None:
    assert call("pca", "r.zarr", "m.zarr", "--components", "2").code == 0
    frame[:50].to_csv("new.csv", index=False)
    said = call("project", "new.csv", "m.zarr", "scores.zarr")
    assert said.code == 4
    typed = re.search(r"dpdist (ingest new\.csv ROWS --schema m\.zarr)", said.message)
    assert typed is not None
    assert call(*typed[1].split()).code == 0
    assert call("project", "ROWS", "m.zarr", "scores.zarr").code == 0
    assert (call("project", "ROWS", "m.zarr", "scores.csv")).code == 2


def test_what_is_not_held_is_said(frame: pd.DataFrame, call: Call) -> None:
    assert "There are: region, premium, income, age" in call("relate", "r.zarr", "nobody").message
    assert "--percent is for the table of two" in call("relate", "r.zarr", "age", "income", "--percent", "all").message
    frame[["income", "age"]].to_csv("n.csv", index=False)
    assert call("release", "n.csv", "n.release.zarr", *ASKED[:4]).code == 0
    said = call("relate", "n.release.zarr", "income", "age")
    assert said.code == 0
    assert "No test: missing values of income, age, if any, are replaced" in " ".join(said.out.split())
    budget = ("--budget-epsilon", "9", "--budget-delta", "1e-5")
    frame[["income", "age"]].assign(other=1.5).to_parquet("m.parquet")
    assert call("ingest", "m.parquet", "rows.zarr", *budget).code == 0
    assert call("release", "rows.zarr", "p.zarr", *ASKED[:4], "--clip", "150", "--centre", "private").code == 0
    said = call("relate", "p.zarr", "age", "income")
    assert said.out.startswith("Correlation: ")
    assert "dpdist schema SOURCE SCHEMA drafts one" in " ".join(said.out.split())
    assert "There are: income, age, other" in call("relate", "p.zarr", "region").message
    assert call("release", "rows.zarr", "q.zarr", *ASKED[:4], "--clip", "150").code == 0
    assert "holds no sums of numbers" in " ".join(call("relate", "q.zarr").message.split())


def test_a_remark_keeps_the_names_of_columns_as_they_are(frame: pd.DataFrame, call: Call) -> None:
    frame.rename(columns={"region": "HomeRegion"}).to_csv("h.csv", index=False)
    named = SCHEMA.replace('"region"', '"HomeRegion"').replace(
        "categories =", 'missing = "fill"\nfill = "north"\ncategories ='
    )
    Path("h.toml").write_text(named)
    assert call("release", "h.csv", "h.release.zarr", "--schema", "h.toml", *ASKED).code == 0
    said = " ".join(call("relate", "h.release.zarr", "premium", "HomeRegion").out.split())
    assert "With missing values of HomeRegion at a public one." in said


def test_a_report_has_the_strongest_associations_and_tables_to_open(frame: pd.DataFrame, call: Call) -> None:
    assert call("report", "r.zarr", "r.html").code == 0
    page = Path("r.html").read_text()
    section = page[page.index('<h2 id="related">') :]
    section = section[: section.index("</section>")]
    assert section.count("<details>") == 5  # all pairs but that of two numbers
    first = re.sub(r"<[^>]+>", "", section[section.index("<tbody>") : section.index("</tr>", section.index("<tbody>"))])
    assert "premium and income" in " ".join(first.split()) or "region and premium" in " ".join(first.split())
    exact = frame[frame["premium"] == "yes"]["income"].mean()
    shown = re.search(
        r"<td[^>]*>([\d.]+)</td><td[^>]*>[\d.]+ … [\d.]+</td></tr>\s*</tbody></table></div>\s*<p", section
    )
    assert shown is not None
    assert abs(float(shown[1]) - exact) < 3
    assert "Pairs</a>" in page
    frame[["income", "age"]].to_csv("n.csv", index=False)
    assert call("release", "n.csv", "n.release.zarr", *ASKED[:4]).code == 0
    assert call("report", "n.release.zarr", "n.html").code == 0
    assert 'id="related"' not in Path("n.html").read_text()


def test_a_logistic_regression_answers_with_odds_ratios(frame: pd.DataFrame, call: Call) -> None:
    said = call("regress", "r.zarr", "--target", "premium", "--logistic", "--table", "odds.csv")
    assert said.code == 0
    (a, b), (c, d) = pd.crosstab(frame["region"], frame["premium"]).loc[["south", "north"]].to_numpy()
    lines = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if line.startswith(("region=", "age"))}
    assert {"region=south", "region=east", "age"} <= set(lines)
    assert float(lines["region=south"][0]) == pytest.approx(b * c / (a * d), rel=0.35)
    value = json.loads(call("regress", "r.zarr", "--target", "premium", "--on", "region", "--logistic", "--json").out)
    assert value["target"] == "premium=yes"
    assert set(value["coefficients"]) == {"region=east", "region=south"}
    assert value["reference"] == ["region=north"]
    assert len(pd.read_csv("odds.csv")) == 4
    refused = call("regress", "r.zarr", "--target", "age", "--logistic")
    assert (refused.code, "'age' is a number" in refused.message) == (2, True)
    assert "Leave --ridge" in call("regress", "r.zarr", "--target", "premium", "--logistic", "--ridge", "3").message


def test_a_boolean_with_gaps_is_told_before_it_is_paid_for(frame: pd.DataFrame, call: Call) -> None:
    frame["premium"] = frame["premium"].where(frame.index % 50 > 0)
    frame[["region", "premium", "age"]].to_csv("gaps.csv", index=False)
    regions = ", ".join(f'"{name}"' for name in sorted(set(frame["region"].dropna())))

    def schema(missing: str) -> None:
        Path("gaps.toml").write_text(f"""scale = "range"
[[column]]
name = "region"
kind = "category"
categories = [{regions}]
[[column]]
name = "premium"
kind = "boolean"
{missing}
[[column]]
name = "age"
kind = "number"
range = [0, 120]
missing = "pairwise"
""")

    schema("")
    release = ("release", "gaps.csv", "g.zarr", *ASKED[:4], "--schema", "gaps.toml")
    assert '(missing = "fill", "indicator" or "drop")' in call(*release).message
    schema('missing = "pairwise"')
    told = (
        'No table of premium will be held: a boolean with missing = "pairwise" is no table: use missing = "indicator".'
    )
    assert told in " ".join(call("forecast", *release[1:2], *release[3:]).out.split())
    said = call(*release)
    assert (said.code, told in " ".join(said.told.split())) == (0, True), said.err
    assert 'use missing = "indicator"' in call("relate", "g.zarr", "region", "premium", "--percent", "rows").message
    schema('missing = "indicator"')
    frame[["region", "age", "premium"]].to_csv("more.csv", index=False)
    assert call("release", "more.csv", "held.zarr", *release[3:]).code == 0
    found = dpdist.open_release("held.zarr").crosstab("region", "premium")
    shown = found.xs("value", axis=1, level=1)
    known = pd.crosstab(frame["region"], frame["premium"].fillna("missing")).loc[found.index]
    assert list(shown.columns) == ["no", "yes", "missing"]
    assert np.abs(shown - known[list(shown.columns)]).to_numpy().max() < 150  # of 6000 rows, 60 of them a deviation
