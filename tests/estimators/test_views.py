"""A fitted PrivatePCA as text, as a table of a notebook and as pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from dpdist import PrivateCovariance, PrivateLDA, PrivateLogisticRegression, PrivatePCA, PrivateRidge
from dpdist.answers.alignment import Alignment
from dpdist.answers.correlation import correlation
from dpdist.core.errors import UsageError
from dpdist.report.figures import draw_scree_of_correlations, scree

mpl.use("agg")


@pytest.fixture(scope="module")
def fitted() -> PrivatePCA:
    """Fit correlated pairs of columns, a pair of equal eigenvalues and a column of noise."""
    random = np.random.default_rng(1)
    size, age = random.normal(size=(2, 20_000))
    rows = np.column_stack([
        size, size + 0.4 * random.normal(size=20_000), size + 0.4 * random.normal(size=20_000),
        age, age + 0.5 * random.normal(size=20_000), *random.normal(size=(2, 20_000)),
    ])  # fmt: skip
    return PrivatePCA("auto", correlation=True, epsilon=2, delta=1e-6).fit(rows * [1, 5, 9, 2, 40, 3, 8])


def test_summary_and_notebook_tell_shares_alignment_and_loadings_that_are_known(fitted: PrivatePCA) -> None:
    summary, page = fitted.summary(), fitted._repr_html_()
    shares = np.asarray(fitted.explained_variance_ratio_)
    for said in ("gaussian, epsilon 2, delta 1e-06", "share of", "can be distinguished from noise"):
        assert said in " ".join(summary.split())
    for i in range(fitted.n_components_):
        assert f"<th>component {i + 1}</th><td>{shares[i]:.3f} of the variance" in page
    assert re.search(r"component 1</th>.*?c[012] \+0\.5\d \(", page)
    for group in fitted.component_groups_ or ():  # in 19 of 20 releases the two columns of noise are one
        for i in group if len(group) > 1 else ():
            row = page.partition(f"<th>component {i + 1}</th>")[2].partition("</tr>")[0]
            assert "alignment" in row
            assert "c" not in row.partition("alignment")[2]  # no loadings of single members


def test_pictures_show_the_spectrum_the_loadings_and_the_circle(fitted: PrivatePCA) -> None:
    scree = fitted.plot()
    assert sum(len(line.get_xdata()) for line in scree.lines) == 7
    assert "of 7 components can be distinguished from noise" in scree.get_title()
    loadings = fitted.plot("loadings", component=2)  # counted from 1, as in the title
    assert sorted(bar.get_width() for bar in loadings.patches) == pytest.approx(sorted(fitted.components_[1]))
    assert loadings.get_title().startswith("Loadings of component 2")
    shares = np.asarray(fitted.explained_variance_ratio_)
    assert loadings.get_xlabel() == f"component 2 ({100 * shares[1]:.0f} %)"
    low, high = loadings.get_xlim()
    assert low <= fitted.components_[1].min() <= fitted.components_[1].max() <= high
    small = PrivatePCA.from_release(fitted.release_, 7, correlation=True).plot("loadings", component=7)
    assert np.diff(small.get_xlim())[0] < 2
    circle = fitted.plot("circle")
    assert {text.get_text() for text in circle.texts} & {"c3", "c4"}
    plain = PrivatePCA.from_release(fitted.release_, 2)
    assert plain.plot().get_ylabel() == "eigenvalue"
    for kind, component, said in (
        ("heat", 1, "kind must be"),
        ("loadings", 0, "between 1 and 2"),
        ("loadings", 3, "between 1 and 2"),
        ("circle", 1, "needs"),
    ):
        with pytest.raises(UsageError, match=said):
            plain.plot(kind, component=component)


def test_names_in_the_circle_do_not_overlap() -> None:
    random = np.random.default_rng(5)
    x, y = random.normal(size=(2, 20_000))
    rows = np.column_stack([x + 0.1 * random.normal(size=20_000) for _ in range(6)] + [y, y + 0.2 * x])
    axes = PrivatePCA(2, correlation=True, epsilon=4, delta=1e-6).fit(rows).plot("circle")
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) >= 2
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert re.fullmatch(r"component 1 \(\d+ %\)", axes.get_xlabel())


def test_the_line_in_the_spectrum_is_where_the_count_ends() -> None:
    """Component 3 is counted, below the edge of the noise of an empty table."""
    values, known = np.array([9.0, 5, 2, 1, 0.5]), np.array([8.5, 4.6, 1.7, np.nan, np.nan])
    groups = tuple(range(i, i + 1) for i in range(3))
    ends = np.column_stack([known, known])
    found = Alignment(values, 3, groups, known, known / 10, ends, None, 2.5, np.full(5, 2.5))
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    scree(axes, found)
    lines = {line.get_label(): line for line in axes.lines}
    assert np.asarray(lines["after it: may be only noise"].get_xdata()).tolist() == [3.5, 3.5]
    heights = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert [2.5, 2.5] not in heights  # the edge, which does not decide
    assert axes.get_title() == "3 of 5 components can be distinguished from noise"


def test_shares_of_correlations_are_drawn_to_a_file(fitted: PrivatePCA, tmp_path: Path) -> None:
    draw_scree_of_correlations(correlation(fitted.release_, None), tmp_path / "shares.svg")
    assert b"<svg" in (tmp_path / "shares.svg").read_bytes()


def test_every_estimator_has_a_summary_and_a_picture_of_what_is_known() -> None:
    def rows(seed: int) -> tuple[Any, np.random.Generator]:  # of other people, and another number of them
        random = np.random.default_rng(seed)
        x = random.normal(size=(20_000 + seed, 3))
        x[:, 1] += x[:, 0]
        return x, random

    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6}
    x, random = rows(1)
    ridge = PrivateRidge(**asked).fit(x, x @ [1.0, 0, -0.5] + 0.5 * random.normal(size=len(x)))
    covariance = PrivateCovariance.from_release(ridge.release_, "none")
    classifiers = []
    for seed, kind in ((2, PrivateLogisticRegression), (3, PrivateLDA)):
        x, random = rows(seed)
        classifiers.append(kind(**asked).fit(x, random.random(len(x)) < 1 / (1 + np.exp(-2 * x[:, 2]))))
    odds, discriminant = classifiers
    for model in (covariance, ridge, odds, discriminant):
        assert "gaussian, epsilon 4, delta 1e-06" in " ".join(model.summary().split())
    assert "c0 and c1 +0." in " ".join(covariance.summary().split())
    for low, high in re.findall(r"([-+]0\.\d\d) \.\. ([-+]0\.\d\d)", covariance.summary()):
        assert float(low) * float(high) > 0  # none that may be 0
    heat = covariance.plot()
    assert np.asarray(heat.images[0].get_array()).shape == (4, 4)
    drawn = ridge.plot()
    assert [tick.get_text() for tick in drawn.get_yticklabels()][-1] == "c0"  # the largest, on top
    known = ridge.coef_intervals_[0]
    deviations = np.sqrt(np.diag(covariance.covariance_))
    (segment,) = [s for s in drawn.collections[0].get_segments() if s[0, 1] == 2]
    assert segment[:, 0] == pytest.approx(known * deviations[0] / deviations[3], rel=0.02)
    with pytest.raises(UsageError, match="target must be one of"):
        ridge.plot("nobody")
    assert odds.plot().get_title() == "Coefficients of 1"
    assert "odds ratio" in odds.summary()
    assert "No intervals are known" in discriminant.summary()
    assert "no intervals are known" in discriminant.plot().get_xlabel()
