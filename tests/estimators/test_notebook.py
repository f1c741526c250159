"""What a notebook and a prompt show of results: a line, or a table that holds no mark-up of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.pca.components import components
from dpdist.pca.model import Model
from dpdist.pipeline.release import Outcome

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
ASKED: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": 5}


def test_what_is_found_is_shown_in_a_line_and_in_a_table() -> None:
    rows = np.random.default_rng(2).normal(size=(300, 6))
    pca = PrivatePCA(3, **ASKED)
    assert "<th>fitted</th><td>no</td>" in pca._repr_html_()
    pca.fit(rows)
    found = components(pca.release_, 3)
    assert repr(pca.guarantee_) == "Guarantee(epsilon=1, delta=1e-06, replace-one)"
    model = Model(pca.release_.release_id, ("<b>",) * 6, found)
    for shown in (pca.guarantee_, pca.release_, found, model, Outcome(pca.release_, Path("r.zarr"), fresh=True)):
        assert len(repr(shown)) <= 80, repr(shown)
        assert "\n" not in repr(shown)
    covariance = PrivateCovariance(epsilon=1, delta=1e-6, clip=5).fit(np.random.default_rng(3).normal(size=(40, 2)))
    for shown in (pca, covariance, pca.release_, found, model):
        page = shown._repr_html_()
        assert page.startswith("<table>")
        assert "<script" not in page
    assert "epsilon 1, delta 1e-06 under replace-one" in pca._repr_mimebundle_()["text/html"]
    assert repr(pca) == pca._repr_mimebundle_()["text/plain"]


def test_names_in_a_table_are_escaped() -> None:
    page = PrivatePCA(1, **{**ASKED, "neighbours": "<script>alert(1)</script>"})._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
