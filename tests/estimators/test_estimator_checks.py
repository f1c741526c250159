"""scikit-learn's own checks of the estimators, but for those that a private estimator must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpdist import PrivateCovariance, PrivatePCA, PrivateRidge

# the checks fit the same rows again and again; one that declared no budget would be refused, as it should
ASKED: dict[str, Any] = {"epsilon": 1000, "delta": 1e-6, "clip": 100, "budget_epsilon": 10**6, "budget_delta": 0.5}
LITTLE_NOISE = {**ASKED, "epsilon": 10**5, "clip": 5}  # the rows are few, and likelihoods of noise are refused
ESTIMATORS = [
    PrivatePCA(1, **LITTLE_NOISE, whiten=True),
    PrivatePCA(1, **LITTLE_NOISE, centre="private", correlation=True),
    PrivateCovariance(**ASKED),
    PrivateRidge(**LITTLE_NOISE),
]
FAR = {"check_fit_check_is_fitted", "check_n_features_in"}
DROWNED = "no column of so few rows, far from zero or one alone, varies above the noise, which is refused"
ALIKE = FAR | {"check_fit_score_takes_y", "check_estimators_fit_returns_self", "check_n_features_in_after_fitting"}
SHORT = "rows far from zero are shortened so much that the noise may drown their target, which is refused"
NOISE = "a second fit of the same rows draws its noise afresh: that the two agree would be chance"
TWICE = {"check_fit_idempotent", "check_regressor_data_not_an_array", "check_supervised_y_2d", "check_regressors_int"}


@parametrize_with_checks(ESTIMATORS)  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings(
    "ignore::dpdist.errors.PrivacyLeakWarning",
    "ignore::dpdist.errors.ClippedRowsWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:Rows of the same number and kind were released",
)
def test_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    name = getattr(check, "func", check).__name__
    if hasattr(estimator, "predict") and name in FAR:
        pytest.skip(SHORT)
    if getattr(estimator, "correlation", False) and name in ALIKE | {"check_fit2d_1sample"}:
        pytest.skip(DROWNED)
    if name in TWICE:
        pytest.skip(NOISE)
    check(estimator)
