"""What a page says of each variable alone, and of small categories: nothing that the noise invents."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.releases import assemble_drawn

from dpdist import Column, PrivacyLoss, Release, ReleaseRequest, Schema
from dpdist.answers.association import Strength
from dpdist.answers.bias import clipped_rows
from dpdist.answers.crosstab import crosstab
from dpdist.answers.group_means import group_means
from dpdist.answers.relate import Relation
from dpdist.answers.variables import variables
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.request import Centring
from dpdist.report.columns import columns_of, deviation_of, mean_of
from dpdist.report.html import write
from dpdist.report.pairs import relation_text, relations_text, table_text
from papers.common.drawn import drawn

N = 4000
CITIES = [f"city {letter}" for letter in "abcdefghijkl"]
SCHEMA = Schema(
    [Column("plan", "category", categories=["basic", "plus", "none"]), Column("churned", "boolean"),
     Column("city", "category", categories=CITIES), Column("age", "number", range=(18, 98)),
     Column("income", "number", range=(1000, 1e6), transform="log"),
     Column("joined", "date", range=("2000-01-01", "2030-01-01"))],
    "range",
)  # fmt: skip


def customers() -> pd.DataFrame:
    """Return rows none of which is clipped; nobody has the plan "none"."""
    random = np.random.default_rng(3)
    city = random.choice(len(CITIES), N, p=np.linspace(1, 12, 12) / 78)
    return pd.DataFrame({
        "plan": random.choice(["basic", "plus"], N, p=[0.7, 0.3]), "churned": random.random(N) < 0.19,
        "city": np.array(CITIES)[city], "age": np.clip(random.normal(55, 12, N), 18, 98),
        "income": 1000 + np.clip(random.lognormal(10, 0.5, N), 1, 9e5),
        "joined": pd.Timestamp("2010-01-01") + pd.to_timedelta(random.integers(0, 3000, N), "D"),
    })  # fmt: skip


FRAME = customers()


def released(epsilon: str = "4") -> Release:
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema")
    return next(assemble_drawn(asked, SCHEMA, FRAME))


def page(folder: Path, release: Release) -> str:
    write(release, folder / "out.html")
    return (folder / "out.html").read_text().partition("<body>")[2]


def plain(cell: object) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", str(cell))).split())


def cells(release: Release) -> dict[str, list[tuple[str, ...]]]:
    """Return what is said of each variable: label, value and interval."""
    found = columns_of(release, clipped_rows(release))
    assert found is not None
    return {
        plain(each.name): [tuple(map(plain, row)) for row in (*each.rows, *each.folded)]
        for each in (*found.first, *found.others)
    }


def ends(text: str) -> tuple[float, float]:
    low, high = text.replace("\N{MINUS SIGN}", "-").split(" … ")
    return float(low), float(high)


def test_the_page_answers_how_many_churn_and_what_the_average_is(tmp_path: Path) -> None:
    text = page(tmp_path, released())
    assert re.search(r'<a href="#findings">Findings</a>\s*<a href="#columns">Columns</a>', text)
    sections = re.findall(r'<section aria-labelledby="(\w+)"', text)
    assert sections[:3] == ["findings", "columns", "related"]
    section = text.partition('id="columns"')[2].partition("</section>")[0]
    assert f"{N} rows. Shares are percent of them" in section
    assert "rows of this table, not a population" in section
    assert "A geometric mean is the mean of the logarithm, taken back" in section
    found = cells(released())
    assert list(found) == ["plan", "churned", "city", "age", "income", "joined"]  # as in the schema
    exact = 100 * FRAME["churned"].mean()
    assert [label for label, *_ in found["churned"]] == ["no", "yes"]
    assert float(found["churned"][1][1].removesuffix(" %")) == pytest.approx(exact, abs=1)
    assert [row[0] for row in found["age"]] == ["mean", "standard deviation"]
    assert float(found["age"][0][1]) == pytest.approx(FRAME["age"].mean(), abs=0.5)
    assert float(found["age"][1][1]) == pytest.approx(FRAME["age"].std(), rel=0.2)
    (_, day, between), (_, spread, _) = found["joined"]
    days = [pd.Timestamp(text) for text in (between[:10], day, between[-10:])]
    assert days == sorted(days)
    assert abs(days[1] - FRAME["joined"].mean()) < pd.Timedelta(200, "D")
    assert spread.endswith(" days")


def test_categories_are_the_largest_first_and_the_rest_is_folded(tmp_path: Path) -> None:
    release = released("8")
    shares = [float(share.removesuffix(" %")) for _, share, _ in cells(release)["city"]]
    assert shares == sorted(shares, reverse=True)
    found = columns_of(release, clipped_rows(release))
    assert found is not None
    (city,) = [each for each in found.first if plain(each.name) == "city"]
    assert (len(city.rows), len(city.folded)) == (8, 4)
    assert "<summary>4 smaller ones</summary>" in page(tmp_path, release)


def test_means_and_deviations_of_clipped_rows_are_in_their_intervals() -> None:
    """In about .95 of cases, with a public and a private n, and in about .67 if intervals were half as wide."""
    rows = np.random.default_rng(8).normal([3.0, -1.0, 0.5, 0.0], [2.0, 1.0, 1.5, 0.5], (500, 4))
    inside, half = [], []
    for neighbours in (Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE):
        made = drawn(rows, 4.0, "2", neighbours=neighbours)
        clipped = made.bounded[:, :4]
        assert (np.linalg.norm(rows, axis=1) > 4).mean() > 0.2
        for number in range(60):
            held = variables(made.release(number))
            for numeric, mean, deviation in zip(held.numeric.values(), clipped.mean(0), clipped.std(0), strict=True):
                answers = [(mean, float(mean_of(held, numeric).estimates), *mean_of(held, numeric).intervals)]
                spread = deviation_of(held, numeric)
                answers += [] if spread is None else [(deviation, *spread)]
                for exact, value, low, high in answers:
                    inside.append(low <= exact <= high)
                    half.append((low + value) / 2 <= exact <= (high + value) / 2)
    assert len(inside) > 700
    assert 0.91 < np.mean(inside) < 0.99
    assert np.mean(half) < 0.8


def test_a_mean_of_a_logarithm_is_called_so_and_taken_back_as_a_geometric_mean() -> None:
    (label, mean, _), (_, spread, _), (last, taken_back, between) = cells(released("30"))["income"]
    exact = np.log1p(FRAME["income"] - 1000)
    assert (label, last) == ("mean of log1p(income - 1000)", "geometric mean")
    assert float(mean) == pytest.approx(exact.mean(), rel=0.01)
    assert float(spread) == pytest.approx(exact.std(), rel=0.5)
    assert float(taken_back) == pytest.approx(1000 + np.expm1(float(mean)), rel=0.01)
    low, high = ends(between)
    assert low <= float(taken_back) <= high


def test_the_section_is_there_without_a_schema_and_absent_where_no_mean_is_known(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(5, 1, (N, 3))
    found = cells(replace(drawn(rows, 20.0, "4").release(), names=("a", "b", "<c>")))
    assert list(found) == ["a", "b", "<c>"]
    assert float(found["a"][0][1]) == pytest.approx(5, abs=0.5)
    bare = drawn(rows, 20.0, "4", centring=Centring.NONE).release()
    assert columns_of(bare, clipped_rows(bare)) is None
    assert "#columns" not in page(tmp_path, bare)


def test_what_the_noise_hides_is_a_dash() -> None:
    rows = np.random.default_rng(2).normal(0, [1, 1e-4], (N, 2))
    found = cells(drawn(rows, 5.0, "1").release())
    assert [spread[1] == "-" for _, spread in found.values()] == [False, True]
    for row in cells(released("0.1"))["plan"]:
        low_high = row[2]
        assert low_high == "-" or np.ptp(ends(low_high)) <= 40


def is_negative(release: Release, below: str) -> bool:
    """Return whether a count is negative, of a cell of a table or of a group with a mean."""
    held = variables(release)
    if below == "cell":
        return bool((crosstab(held, "plan", "churned").estimates <= -1).any())
    return bool((group_means(held, "age", "plan").counts <= -1).any())


@pytest.mark.parametrize("of", ["rows", "columns"])
def test_a_category_below_the_noise_has_no_share_and_no_count_has_a_minus_sign(
    tmp_path: Path, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for below in ("cell", "cell", "group", "group"):
        release = next(each for each in (released("1") for _ in range(60)) if is_negative(each, below))
        held = variables(release)
        pair = ("plan", "churned") if of == "rows" else ("churned", "plan")
        table = crosstab(held, *pair)
        counts, shares = table_text(table, None), table_text(table, of)
        assert not re.search(r"-\d", counts)
        lines = [line.split() for line in shares.splitlines()]
        told = {line[0]: line[1:] for line in lines if line and line[0] in {"none", "basic", "plus", "no", "yes"}}
        plans = ("basic", "plus", "none")
        by_plan = [told[plan] for plan in plans] if of == "rows" else [*zip(told["no"], told["yes"], strict=True)]
        assert [*by_plan[2]] == ["-", "-"]
        assert not any("-" in shown for shown in by_plan[:2])
        assert "Too few rows for shares: plan=none." in shares
        within = re.search(r"Each share is within ([\d.]+) percentage points", " ".join(shares.split()))
        assert within is not None
        assert 0 < float(within[1]) <= 20
        section = page(tmp_path, release).partition('id="related"')[2].partition("</section>")[0]
        rows = [plain(row) for row in re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)]
        small = [row for row in rows if re.match(r"none\d+ \(", row)]
        assert small
        assert all(re.fullmatch(r"none(\d+ \(-\))+", row) for row in small)
        assert re.search(r'<td data-head="rows">\d', section)  # of means by group
        assert not re.search(r'<td data-head="rows">[-\N{MINUS SIGN}]|<td[^>]*>[-\N{MINUS SIGN}]\d+ \(', section)
        assert "Too few rows for shares: plan=none" in section


def test_of_a_table_of_noise_no_percent_is_told() -> None:
    held = variables(released("0.02"))
    said = table_text(crosstab(held, "plan", "churned"), "all")
    assert "Too few rows for shares: plan by churned." in said
    assert not re.search(r"\d\.\d", said)


def test_merged_categories_are_told_in_a_sentence() -> None:
    merged: Any = (("churned", ("yes", "missing")), ("plan", ("premium", "missing")))
    found = Relation("churned", "plan", Strength("Cramér's V", 0.2, (0.1, 0.3), merged), None, "none")
    said = (
        "yes and missing of churned, and premium and missing of plan, are counted together, as some have too few rows"
    )
    assert said in relation_text(found)
    one = replace(found, strength=Strength("eta", 0.2, (0.1, 0.3), (("plan", ("a", "b", "c")),)))
    assert "; a, b and c of plan are counted together, as some have too few rows for this noise." in relation_text(one)
    footnote = "* Small categories are merged, as they have too few rows for this noise: named with the pair alone."
    assert footnote in " ".join(relations_text([found], None).split())
