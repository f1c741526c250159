"""The page about a release begins with what the release shows, in words, and says no more than its intervals hold."""

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
from dpdist.answers.correlation import correlation
from dpdist.answers.covariance import Correlations
from dpdist.report.correlations import heat_of, kept_columns, standardised_of
from dpdist.report.findings import NOTHING, rising
from dpdist.report.html import write
from papers.common.drawn import drawn

N = 20_000
NAMES = ("spend", "basket", "income", "score", "complaints", "faint")


def customers(seed: int = 4, epsilon: str = "4") -> Release:
    """Return a release: three columns rise together, one falls with another, and one is below the noise."""
    random = np.random.default_rng(seed)
    wealth, anger = random.normal(size=(2, N))
    rows = np.column_stack([
        wealth, wealth + 0.5 * random.normal(size=N), wealth + 0.7 * random.normal(size=N),
        -anger, anger + 0.5 * random.normal(size=N), 0.001 * (wealth + anger),
    ])  # fmt: skip
    return replace(drawn(rows, 8.0, epsilon).release(), names=NAMES)


def page(folder: Path, release: Release, **more: Any) -> str:
    write(release, folder / "out.html", **more)
    return re.sub(r'href="data:[^"]*"', "", (folder / "out.html").read_text().partition("<body>")[2])


def sentences(text: str) -> list[str]:
    """Return the findings of a page as text."""
    section = text.partition("<section")[2].partition("</section>")[0]
    assert 'id="findings"' in section  # the first section
    return [html.unescape(re.sub(r"<[^>]+>", "", item)) for item in re.findall(r"<li>(.*?)</li>", section)]


def test_the_page_begins_with_columns_that_rise_together_and_the_strongest_associations(tmp_path: Path) -> None:
    release = customers()
    text = page(tmp_path, release)
    first, second, third = sentences(text)
    together = re.fullmatch(r"(.*) rise together: (\d+) to (\d+) % of the variance of all columns\.", first)
    assert together is not None
    assert set(re.split(", | and ", together[1])) == {"spend", "basket", "income"}
    share = 100 * correlation(release, None).shares[0]
    assert int(together[2]) <= share <= int(together[3])
    assert re.match(r"(complaints rises where score|score rises where complaints) falls: ", second)
    ends = re.search(r"score with complaints \(r (.0\.\d\d) to (.0\.\d\d)\)", third)
    assert ends is not None
    low, high = (float(end.replace("\N{MINUS SIGN}", "-")) for end in ends.groups())
    exact = heat_of(release).every
    assert exact is not None
    assert low <= exact.intervals[3, 4, 0] <= exact.intervals[3, 4, 1] <= high < 0
    assert text.index('id="findings"') < text.index("noise")
    assert text.index('href="#guarantee">the guarantee') < text.index('id="findings"')


def test_a_column_below_the_noise_is_in_no_finding_and_no_correlation(tmp_path: Path) -> None:
    release = customers()
    assert correlation(release, None).left_out == ("faint",)
    text = page(tmp_path, release)
    assert not any("faint" in sentence for sentence in sentences(text))
    correlations = text.partition('id="correlations"')[2].partition("</section>")[0]
    assert "5 columns of 6. The others have a variance below 4 standard deviations" in correlations
    assert "faint" not in correlations


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_can_be_told_one_sentence_says_so(tmp_path: Path, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(300, 4))
    assert sentences(page(tmp_path, drawn(rows, 3.0, "0.05").release())) == [NOTHING]


def test_columns_are_named_only_if_each_pair_is_correlated_as_the_sentence_says() -> None:
    vector, ends = np.array([0.6, 0.5, 0.45, -0.4]), np.array([[0.5, 0.7], [0.4, 0.6], [0.3, 0.6], [-0.5, -0.3]])
    intervals = np.full((4, 4, 2), 1.0)

    def between(i: int, j: int, low: float, high: float) -> None:
        intervals[i, j] = intervals[j, i] = low, high

    for i, j in ((0, 1), (0, 2), (1, 2)):
        between(i, j, 0.2, 0.4)
    for i in range(3):
        between(i, 3, -0.4, -0.2)
    every = Correlations((0, 1, 2, 3), 4, np.eye(4), intervals)
    assert rising(vector, ends, every, "abcd") == {0: 1, 1: 1, 2: 1, 3: -1}
    between(1, 2, -0.1, 0.4)  # may be 0
    assert rising(vector, ends, every, "abcd") == {0: 1, 1: 1, 3: -1}
    between(1, 3, -0.03, -0.01)
    assert rising(vector, ends, every, "abcd", 0.02) == {0: 1, 1: 1}  # not above chance
    assert rising(vector, ends, every, "aabc") == {0: 1, 2: 1, 3: -1}  # categories of one variable
    ends[3] = -0.5, 0.1  # its loading may be 0
    assert rising(vector, ends, every, "abcd") == {0: 1, 1: 1}


SCHEMA = Schema(
    [Column("plan", "category", categories=["basic", "plus"]), Column("churned", "boolean"),
     Column("city", "category", categories=["a", "b", "c"]), Column("age", "number", range=(-4, 4))],
    "range",
)  # fmt: skip


def mixed(seed: int = 1) -> Release:
    """Return a release in which plan and churned are associated, and nothing else."""
    random = np.random.default_rng(seed)
    plan = random.choice(["basic", "plus"], N)
    frame = pd.DataFrame({
        "plan": plan, "churned": random.random(N) < np.where(plan == "plus", 0.3, 0.7),
        "city": random.choice(["a", "b", "c"], N), "age": np.clip(random.normal(size=N), -4, 4),
    })  # fmt: skip
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("2", "1e-6"), "schema")
    return next(assemble_drawn(asked, SCHEMA, frame))


def test_associations_are_those_above_noise_and_chance_and_no_category_is_told_against_its_own(tmp_path: Path) -> None:
    (*others, last) = sentences(page(tmp_path, mixed()))
    found = re.fullmatch(r"The strongest association: plan with churned \(Cramér's V 0\.(\d\d) to 0\.(\d\d)\)\.", last)
    assert found is not None
    assert int(found[1]) <= 40 <= int(found[2])
    assert not any("city" in sentence for sentence in others)


def test_reasons_are_told_once_and_not_in_every_row(tmp_path: Path) -> None:
    release = customers()
    text = page(tmp_path, release, targets=["spend"])
    section = text.partition('id="explained"')[2].partition("</section>")[0]
    assert "unknown" not in section.partition("<tbody>")[2].rpartition("</tbody>")[0]
    assert section.count("faint: not above the noise, coefficient unknown") == 1
    if "interval for the population" not in section:
        assert section.count("There are no intervals for the population, as") == 1
    assert sentences(text)[0].startswith("The other columns explain ")


def test_all_columns_are_in_the_correlations_up_to_forty(tmp_path: Path) -> None:
    def wide(columns: int) -> Release:
        x = np.random.default_rng(columns).normal(size=(N, columns))
        return drawn(x + 0.5 * x[:, :1], 14.0, "8").release()

    release = wide(19)
    heat = heat_of(release)
    assert heat.shown == tuple(range(19))
    assert "19 columns of 19." in page(tmp_path, release)
    assert len(heat_of(wide(45)).shown) == 40


def test_the_components_are_those_of_the_correlations_and_their_number_is_that_of_the_commands(tmp_path: Path) -> None:
    release = customers()
    result = correlation(release, None)
    assert result.alignment is not None
    shown = standardised_of(release)
    assert shown is not None
    assert shown.table is not None
    assert shown.sentence.startswith(f"{result.alignment.counted} component")
    rows = [str(row[0]) for row in shown.table.rows]
    assert rows == [f"{g.start + 1}" if len(g) == 1 else f"{g.start + 1} to {g.stop}, together" for g in
                    result.alignment.groups]  # fmt: skip
    assert kept_columns(release, result) == [0, 1, 2, 3, 4]
    text = page(tmp_path, release)
    assert "Eigenvalues over the noise" not in text  # the spectrum of the second moment
    assert "Components of the correlations" in text


def test_the_title_is_the_name_of_the_release_or_of_the_page(tmp_path: Path) -> None:
    release = customers()
    for source, out, title in (
        ("customers-release.zarr", "report.html", "customers"),
        ("<b>&.zarr", "report.html", "&lt;b&gt;&amp;"),
        ("release.zarr", "spending.html", "spending"),
        ("release.zarr", "report.html", "A private release"),
    ):
        write(release, tmp_path / out, source=tmp_path / source)
        assert f"<h1><bdi>{title}</bdi></h1>" in (tmp_path / out).read_text()
    write(release, tmp_path / "report.html", source="customers.zarr", title="Mine")
    assert "<title>Mine</title>" in (tmp_path / "report.html").read_text()


def test_a_release_writes_its_page_itself(tmp_path: Path) -> None:
    release = customers()
    release.report(tmp_path / "one.html", targets=["spend"], title="T")
    write(release, tmp_path / "two.html", targets=["spend"], title="T")
    assert (tmp_path / "one.html").read_text() == (tmp_path / "two.html").read_text()
