"""scikit-learn's own checks of the estimators, but for those that must fail, and what notebooks show of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpdist import PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.answers.components import components
from dpdist.answers.model import Model
from dpdist.core.moment.arrays import Survey
from dpdist.core.pipeline.release import Outcome

# the checks fit the same rows again and again; one that declared no budget would be refused, as it should
ASKED: dict[str, Any] = {"epsilon": 1000, "delta": 1e-6, "clip": 100, "budget_epsilon": 10**6, "budget_delta": 0.5}
LITTLE_NOISE = {**ASKED, "epsilon": 10**5, "clip": 5}  # the rows are few, and likelihoods of noise are refused
ESTIMATORS = [
    PrivatePCA(1, **LITTLE_NOISE, whiten=True),
    PrivatePCA(1, **LITTLE_NOISE, centre="private", correlation=True),
    PrivateCovariance(**ASKED),
    PrivateRidge(**LITTLE_NOISE),
]
FAR = {"check_fit_check_is_fitted", "check_fit_idempotent", "check_n_features_in"}
BELOW_NOISE = "no column of so few rows, far from zero or alone, varies above the noise: the fit is refused"
ALIKE = FAR | {"check_fit_score_takes_y", "check_estimators_fit_returns_self", "check_n_features_in_after_fitting"}
CLIPPED = "rows far from zero are clipped so much that their target may be below the noise: the fit is refused"


@parametrize_with_checks(ESTIMATORS)  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings(
    "ignore::dpdist.core.errors.PrivacyLeakWarning",
    "ignore::dpdist.core.errors.ClippedRowsWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:The same number of rows was released",
)
def test_scikit_learn(estimator: Any, check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Survey, "standardised_by_data", False)  # some checks fit rows that they standardised: a refusal
    name = getattr(check, "func", check).__name__
    # each reason is the text of its constant, above
    if hasattr(estimator, "predict") and name in FAR:
        pytest.skip(CLIPPED)
    if getattr(estimator, "correlation", False) and name in ALIKE | {"check_fit2d_1sample"}:
        pytest.skip(BELOW_NOISE)
    check(estimator)


@pytest.mark.filterwarnings("ignore:The same number of rows was released")
def test_what_is_found_is_shown_in_a_line_and_in_a_table_without_marks_of_others() -> None:
    rows = np.random.default_rng(2).normal(size=(300, 6))
    asked: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": 5}
    pca = PrivatePCA(3, **asked)
    assert "<th>fitted</th><td>no</td>" in pca._repr_html_()
    pca.fit(rows)
    found = components(pca.release_, 3)
    assert repr(pca.guarantee_) == "Guarantee(epsilon=1, delta=1e-06, replace-one)"
    model = Model(pca.release_.release_id, ("<b>",) * 6, found)
    for shown in (pca.guarantee_, pca.release_, found, model, Outcome(pca.release_, Path("r.zarr"), fresh=True)):
        assert len(repr(shown)) <= 80, repr(shown)
        assert "\n" not in repr(shown)
    covariance = PrivateCovariance(**asked).fit(np.random.default_rng(3).normal(size=(40, 2)))
    for shown in (pca, covariance, pca.release_, found, model):
        page = shown._repr_html_()
        assert page.startswith("<table>")
        assert "<script" not in page
    assert "epsilon 1, delta 1e-06 under replace-one" in pca._repr_mimebundle_()["text/html"]
    assert repr(pca) == pca._repr_mimebundle_()["text/plain"]
    page = PrivatePCA(1, **{**asked, "neighbours": "<script>alert(1)</script>"})._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
