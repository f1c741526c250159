"""A fitted PrivatePCA as text, as a table of a notebook and as pictures."""

from __future__ import annotations

import re

import matplotlib as mpl
import numpy as np
import pytest

from dpdist import PrivatePCA
from dpdist.core.errors import UsageError

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
    loadings = fitted.plot("loadings", component=1)
    assert sorted(bar.get_width() for bar in loadings.patches) == pytest.approx(sorted(fitted.components_[1]))
    circle = fitted.plot("circle")
    assert {text.get_text() for text in circle.texts} & {"c3", "c4"}
    plain = PrivatePCA.from_release(fitted.release_, 2)
    assert plain.plot().get_ylabel() == "eigenvalue"
    for kind, component, said in (
        ("heat", 0, "kind must be"),
        ("loadings", 9, "between 0 and"),
        ("circle", 0, "needs"),
    ):
        with pytest.raises(UsageError, match=said):
            plain.plot(kind, component=component)
