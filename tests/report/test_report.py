"""The page about a release: correct, self-contained, safe for any names of columns, and readable."""

from __future__ import annotations

import html
import math
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import zarr
from support.releases import drawn_over

from dpdist.answers.alignment import Alignment, Values
from dpdist.answers.bias import ClippedRows
from dpdist.answers.correlation import correlation
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline import budget
from dpdist.core.pipeline.charged import statement_of
from dpdist.core.pipeline.release import combine_releases, release_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.units import Unit
from dpdist.core.text import exactly
from dpdist.estimators.fit import guarantee_of
from dpdist.report import components_text as words_of
from dpdist.report import explained, officer
from dpdist.report.charts import spectrum
from dpdist.report.html import shape_of, write
from dpdist.report.promise import accuracy, hits
from papers.common.drawn import drawn

HOSTILE = "<script>alert('$x$')</script>&\"'"
NAMES = (HOSTILE, "age", "height", "weight")
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "desc", "style", "rect", "path", "text"}


def released(
    mechanism: str = "gaussian", delta: str = "1e-6", epsilon: str = "2", clip: float = 1.0, **more: object
) -> Release:
    request = ReleaseRequest(
        mechanism, PrivacyLoss.parse(epsilon, delta), clip, for_reproduction=mechanism in {"sn", "none"}, options=more
    )
    exact = np.diag(
        [
            int(share * 5000 * clip**2 / planned(request, Dimensions(4)).bound.unit ** 2)
            for share in (0.6, 0.2, 0.1, 0.01)
        ]
    )
    return drawn_over(request, exact, 4, 5000, NAMES)


def page(folder: Path, release: Release, **more: object) -> str:
    write(release, folder / "out.html", **more)  # type: ignore[arg-type]
    return (folder / "out.html").read_text()


def test_the_page_says_what_is_promised_and_what_stands_above_the_noise(tmp_path: Path) -> None:
    release = released()
    text = page(tmp_path, release, count=4)
    percent = math.ceil(1000 * accuracy(guarantee_of(release))) / 10
    said = f"which of two rows it is. With this release, at most {percent:g} % of such guesses are right"
    assert said in " ".join(text.split())
    assert "7.39 times" in text  # e²
    assert "Gaussian differential privacy" in text
    assert "dpdist.core.mechanisms.gaussian" in text
    assert re.search(r"[234] components can be distinguished from noise", text)


@pytest.mark.parametrize("clip", [1e-4, 1234567.0])
def test_numbers_are_short_whatever_the_units_are(tmp_path: Path, clip: float) -> None:
    text = page(tmp_path, released(clip=clip), count=4).partition("<body>")[2]
    text = re.sub(r" (d|href)=\"[^\"]*\"", "", text)
    assert not re.findall(r"\d[eE][-+]?\d", text)  # 9.66245e+08
    seen = re.sub(r"clipped\s+to\s+norm\s+[\d.]+", "", text.partition('id="components"')[2].partition("</section>")[0])
    assert not re.findall(r"\d{7}", seen)
    table = text.partition('aria-label="Components that can be distinguished"')[2].partition("</table>")[0]
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", table)]
    assert len(cells) in {5 * 2, 5 * 3, 5 * 4}
    assert max(map(len, cells)) <= 2 * 8 + 3
    told = re.search(r"Euclidean norm ([^,]*),", text)
    assert told is not None
    assert told[1] == exactly(clip)


def test_components_that_may_be_noise_are_grey_and_folded(tmp_path: Path) -> None:
    for _ in range(9):  # in one of some twenty, the noise passes for the weakest one
        text = page(tmp_path, released(epsilon="0.1"), count=4)
        above = re.search(r"(\d) components? can be distinguished from noise", text)
        if above is not None and above[1] != "4":
            break
    assert above is not None
    shown, _, rest = text.partition('<details class="noisy">')
    folded, _, rest = rest.partition("</details>")
    numbers = {int(number) for number in re.findall(r"<h3>Component (\d)</h3>", folded)}
    assert numbers == set(range(int(above[1]) + 1, 5)) != set()
    assert len(re.findall(r"<h3>Component (\d)</h3>", shown + rest)) == int(above[1])


def told(values: Values, count: int, edge: float) -> Alignment:
    """Return the alignment of components; the first ``count`` rise above the noise."""
    known = np.where(np.arange(len(values)) < count, 0.9, np.nan)
    groups = tuple(range(i, i + 1) for i in range(count))
    ends = np.column_stack([known, known])
    return Alignment(values, count, groups, known * values, known, ends, None, edge, np.full(len(values), edge))


def test_the_whole_spectrum_is_drawn_small_however_wide_the_release_is() -> None:
    """The drawing has the edge, and a dot for each component that is not hidden by another."""
    values = np.sort(np.random.default_rng(1).normal(size=2000))[::-1]
    values[:5] += [90, 50, 30, 20, 10]
    chart = spectrum(told(values, 5, 4.0), per_row=True, total=2000)
    assert len(chart) < 100_000
    drawing = ET.fromstring(chart)  # noqa: S314 - of this library
    dots = {path.get("class"): path.get("d", "").count("M") for path in drawing.iter("path")}
    assert dots["dots"] == 5
    assert dots["dots faint"] > 200
    assert "5 of 2000 components can be distinguished from noise, whose eigenvalues are below 4" in chart


def test_the_most_that_an_attacker_finds_follows_from_the_guarantee() -> None:
    """The largest ``hits - e^epsilon alarms`` of a Gaussian release is its delta (Dong, Roth & Su 2022)."""
    gaussian = guarantee_of(released("gaussian", "1e-6", "1"))
    assert gaussian.mu_squared is not None
    alarms = np.linspace(0, 1, 20001)
    for epsilon in (0.0, 0.5):
        excess = max(hits(gaussian, float(a)) - math.exp(epsilon) * a for a in alarms)
        assert excess == pytest.approx(gaussian_delta(Fraction(epsilon), gaussian.mu_squared), abs=1e-6)
    loss = PrivacyLoss.parse("1.098612", "0.1")  # log 3
    general = Guarantee(Neighbours.REPLACE_ONE, loss, None, Arithmetic.INTEGER_EXACT, "")
    found = [hits(general, a) for a in (0.0, 0.1, 0.25, 0.5, 1.0)]
    assert found == pytest.approx([0.1, 0.4, 0.7833, 0.8667, 1.0], abs=1e-4)
    assert hits(replace(general, loss=PrivacyLoss.parse("1000000")), 0.01) == 1
    # pure epsilon = log 3: 3/4; Gaussian noise: Phi(mu/2) with mu of sigma = 4.2247 at (1, 1e-6)
    assert accuracy(guarantee_of(released("two-sided-wishart", "0", "1.098612"))) == pytest.approx(0.75, abs=1e-6)
    assert accuracy(gaussian) == pytest.approx(0.5471, abs=1e-4)


HOSTILE_NAMES = (HOSTILE, "</title></svg><img src=x onerror=alert(1)>", "\u05d2\u05d9\u05dc" * 70, "\u202e{{ 7 * 7 }}")


def test_nothing_is_loaded_and_nothing_is_run_whatever_columns_are_called(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(5000, 4)) @ (np.eye(4) + 0.5)
    itself = f"{{{{ 10 ** 30 + 7 }}}}{{% raw %}}{HOSTILE}"
    release = replace(drawn(rows, 4.0, "4").release(), names=HOSTILE_NAMES, unit=Unit(HOSTILE, 3), release_id=itself)
    text = page(tmp_path, release, targets=HOSTILE_NAMES[2:])
    assert all(name not in text for name in HOSTILE_NAMES[:2])
    assert all(name in html.unescape(text) for name in (*HOSTILE_NAMES, f"<code>{itself}</code>"))
    assert str(10**30 + 7) not in text  # not a number of a release
    saved = re.findall(r'href="data:image/svg\+xml,([^"]*)"', text)
    assert len(saved) >= 7  # one for each chart
    for picture in map(unquote, saved):  # of its own, without a page around it
        assert {each.tag.removeprefix(SVG) for each in ET.fromstring(picture).iter()} <= DRAWN  # noqa: S314
        assert "var(" not in picture
    text = re.sub(r'href="data:image/svg\+xml,[^"]*"', "", text)
    active = r"<(?:script|link|iframe|object|img)|\son\w+\s*=(?=[^<]*>)"
    assert not re.findall(active, text.replace("onerror=alert(1)&gt;", ""))
    assert not re.findall(r'(?:src|href)\s*=\s*["\'](?!#)', text)
    assert "default-src 'none'" in text
    charts = re.findall(r"<svg class=\"chart\".*?</svg>", text, re.DOTALL)
    assert len(charts) >= 7  # components that stand alone have a circle
    for chart in charts:  # each has a title and a description with unique identifiers
        drawing = ET.fromstring(chart)  # noqa: S314 - of this library
        named = {each.get("id"): each.text for each in drawing if each.tag in {"title", "desc"}}
        assert drawing.get("aria-labelledby", "").split() == list(named)
        assert all(named.values())
    names = re.findall(r"\sid=\"([^\"]*)\"", text)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("mechanism", "said"), [("sn", "claimed by its authors"), ("none", "nothing is proved")])
def test_what_is_not_private_says_so_in_red(tmp_path: Path, mechanism: str, said: str) -> None:
    text = page(tmp_path, released(mechanism, "0"))
    assert (tmp_path / "out.html").stat().st_mode & 0o077 == 0
    assert said in text
    assert "class='status not'" in text
    assert "Do not publish it" in text
    assert "class='status private'" not in text


def test_a_subspace_shows_its_directions_only(tmp_path: Path) -> None:
    text = page(tmp_path, released("bingham", "0", components=2))
    assert "but not their strengths" in text
    assert text.count('class="card"') == 2
    assert "Correlations" not in text


def test_components_may_be_images(tmp_path: Path) -> None:
    text = page(tmp_path, released(), count=3, image=shape_of("2x2"))
    assert text.count('shape-rendering="crispEdges"') == 3
    assert text.count('as an image"') == 3
    with pytest.raises(UsageError, match=r"\(image\)"):
        page(tmp_path, released(), image=shape_of("3x2"))
    for text in ("28", "ax4", "0x4", "2x2x1", "-2x-2"):
        with pytest.raises(UsageError, match=r"\(image\)"):
            shape_of(text)


def test_the_budget_is_that_of_the_ledger_that_was_charged_and_a_sum_is_charged_as_its_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(4)[np.arange(300) % 4])
    request = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), 1.0)
    tables, places = [[tmp_path / f"{kind}{i}.zarr" for i in range(2)] for kind in ("rows", "release")]
    for table, place in zip(tables, places, strict=True):
        ingest_rows(tmp_path / "rows.npy", table, budget=PrivacyLoss.parse("4", "1e-5"))
        release_rows(table, place, request)
    ledger, other = (Ledger(budget.default_ledger(table)) for table in tables)
    release = open_release(places[0])
    text = page(tmp_path, release, ledger=statement_of(ledger, release, places[0]))
    assert "So far: charged 1 release; left: one more release of epsilon 3" in text
    assert ledger.head in text
    assert str(release.ledger_head) in text
    assert f"<code>{release.release_id}</code> (this one)" in text
    shutil.copytree(places[0], tmp_path / "altered.zarr")
    altered: Any = zarr.open_array(tmp_path / "altered.zarr" / "lattice")
    altered[0, 0] += 1
    moment: Any = zarr.open_array(tmp_path / "altered.zarr" / "second_moment")
    moment[0, 0] = altered[0, 0] * release.bound.unit**2
    with pytest.raises(DataError, match="it was altered"):
        statement_of(ledger, open_release(tmp_path / "altered.zarr"), tmp_path / "altered.zarr")
    total = combine_releases(places, tmp_path / "sum.zarr").release
    assert "sum of 2 releases" in page(tmp_path, total)
    for shown, books in ((release, other), (total, ledger), (total, other)):
        with pytest.raises(UsageError, match="does not contain"):
            statement_of(books, shown, places[0] if shown is release else tmp_path / "sum.zarr")


def correlated(columns: int = 3, epsilon: str = "1") -> Release:
    """Return a release of rows whose first two columns have the correlation 0.8."""
    x = np.random.default_rng(6).normal(size=(20_000, columns))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    return drawn(x, 8.0, epsilon).release()


def test_correlations_stand_beside_what_the_noise_may_do_to_them(tmp_path: Path) -> None:
    """The interval fails with probability 0.05; one of five times its length with less than 1e-20."""
    text = page(tmp_path, correlated())
    first = text.partition('aria-label="Correlations"')[2].partition("</tr>")[2].partition("</tr>")[0]
    told = html.unescape(first).replace("\N{MINUS SIGN}", "-")
    middle, low, high = map(float, re.findall(r"-?\d\.\d\d\d", told))
    assert low <= middle <= high
    assert abs(middle - 0.8) <= 5 * max(high - middle, 0.005)
    assert "Effect of the noise" in text
    assert "half of each interval" in text
    wide = page(tmp_path, correlated(14))
    assert "14 columns of 14." in wide
    assert "None are shown. The release has no mean and no centre" in page(tmp_path, released())
    # two of the columns pass four standard deviations of such noise with probability 1e-8
    assert re.search("(varies|vary) clearly above the noise", page(tmp_path, correlated(epsilon="0.001")))


def test_components_of_the_correlations_are_drawn_in_their_circle_and_coefficients_over_zero(tmp_path: Path) -> None:
    release = correlated(3, "4")
    text = page(tmp_path, release, targets=[release.names[1]])
    assert text.index('id="findings"') < text.index('id="explained"') < text.index('id="guarantee"')
    found = correlation(release, None)
    ends = np.sqrt(np.asarray(found.components.eigenvalues)[:2])[:, None] * found.components.components[:2]
    arrows = re.search(r"Columns as arrows: (.*?)\.</desc>", text)
    assert arrows is not None
    told = {name: (float(x), float(y)) for name, x, y in re.findall(r"(\w+) (-?[\d.]+), (-?[\d.]+)(?:;|$)", arrows[1])}
    assert told == {name: pytest.approx(ends[:, j], abs=0.006) for j, name in enumerate(release.names)}
    # in standard deviations .8 for the first column; the third one has no influence, and 0 within 95 of 100 intervals
    assert re.search("[12] of 2 coefficients have an interval without 0", text)
    few = page(tmp_path, correlated(epsilon="0.001"))
    assert "Correlation circle" not in few


def test_the_page_for_the_officer_tells_what_the_files_show_from_what_is_declared(tmp_path: Path) -> None:
    release = replace(correlated(), names=HOSTILE_NAMES[:3])
    officer.write(release, tmp_path / "v.html", title="<b>T</b>", author="A. B.")
    text = (tmp_path / "v.html").read_text()
    assert text.count("<section") == 6
    assert all(name not in text for name in ("<b>T</b>", *HOSTILE_NAMES[:2]))
    known = [html.unescape(said) for said in re.findall(r'class="known">known</span>(.*?)</li>', text)]
    declared = [html.unescape(said) for said in re.findall(r"to confirm</span>(.*?)</li>", text)]
    assert any("epsilon 1, delta 1e-06" in said for said in known)
    assert any("It is proved" in said for said in known)
    for sentence in ("no person has two rows", "clip norm 8 comes from public knowledge", "No ledger was given"):
        assert any(sentence in said for said in declared), sentence
    officer.write(released("sn", delta="0"), tmp_path / "w.html")
    assert "No: it is not private as claimed. Do not publish it." in (tmp_path / "w.html").read_text()


def test_a_column_is_explained_by_others_if_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = correlated()
    assert 'id="explained"' not in page(tmp_path, release)
    first, second, _ = release.names
    text = page(tmp_path, release, targets=[second], on=[first])
    said = re.search(r"1 column explains (\d+) % of its variance about its mean", text)
    assert said is not None
    assert abs(int(said[1]) - 64) < 20  # 0.8²
    with pytest.raises(UsageError, match="name one"):
        page(tmp_path, release, on=[first])
    with pytest.raises(UsageError, match="no column"):
        page(tmp_path, release, targets=["nobody"])

    def drowned(*_: object) -> NoReturn:
        raise BelowNoiseError("Its variance is under water.")

    monkeypatch.setattr(explained, "regressions", drowned)
    assert "Its variance is under water." in page(tmp_path, release, targets=[second])


def test_one_column_is_a_page_too(tmp_path: Path) -> None:
    release = drawn(np.random.default_rng(2).normal(size=(5000, 1)), 4.0).release()
    text = page(tmp_path, release)
    assert "1 component can be distinguished from noise" in text
    assert "a correlation needs two" in text


def test_all_colours_stand_out_of_their_grounds_in_light_and_in_the_dark() -> None:
    """Web Content Accessibility Guidelines 2.2: a contrast of 4.5 for text (1.4.3), 3 for graphics (1.4.11)."""
    style = (files("dpdist.report") / "templates" / "release.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): #(\w+)", part)) for part in style.split("@media")[:2])

    def brightness(colour: str) -> float:
        whole = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
        parts = [int(whole[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((brightness(one), brightness(other)))
        return (high + 0.05) / (low + 0.05)

    for colours in (light, light | dark):
        for ground in ("page", "fill", "pale"):
            assert min(contrast(colours[text], colours[ground]) for text in ("ink", "soft")) >= 4.5
        assert min(contrast("ffffff", colours[ground]) for ground in ("good", "weak", "bad")) >= 4.5
        assert min(contrast(colours[part], colours["page"]) for part in ("seen", "plus", "minus", "noise", "bad")) >= 3


CLIPPED = ClippedRows(1.0, None, None)


def test_a_table_of_which_all_is_noise_breaks_no_word_and_says_what_helps() -> None:
    values = np.array([5.4, 1.9])
    nothing, something = told(values, 0, 7.1), told(values, 0, 3.0)
    words = " ".join(words_of.alignment(nothing, CLIPPED).split())
    assert "clipped" in words
    assert words.count("unknown") == 4  # in the legend, too, of alignment and of the rows as they are
    assert "No component can be distinguished from noise. A larger epsilon or more rows may reveal some" in words
    words = " ".join(words_of.alignment(something, CLIPPED).split())
    assert "No single component can be distinguished, but there is more than noise" in words
    assert "may reveal some" not in words_of.alignment(told(values, 2, 1.0), CLIPPED)
