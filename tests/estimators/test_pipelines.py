"""Private estimators in pipelines of scikit-learn: what stands before one must learn nothing from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.random_projection import GaussianRandomProjection
from support.estimator_scene import CLIP, table

import dpdist
from dpdist.core.errors import RefusedError
from dpdist.core.ledger.register import Register

pytestmark = [
    pytest.mark.filterwarnings("ignore:The same number of rows was released", "ignore::dpdist.BelowNoiseWarning"),
    pytest.mark.filterwarnings("ignore::dpdist.ClippedRowsWarning", "ignore::dpdist.PrivacyLeakWarning"),
    pytest.mark.usefixtures("register"),
]
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP, "budget_epsilon": 99}
CATEGORIES: dict[str, Any] = {"categories": [[0, 1]], "handle_unknown": "ignore"}


class Log(TransformerMixin, BaseEstimator):  # type: ignore[misc] # no types
    """A step as people write it: its fit does nothing."""

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002, N803
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        return np.log1p(np.abs(X))


class Centred(Log):
    """One that learns, and ends no attribute with an underscore."""

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002, N803
        self.middle = X.mean(axis=0)
        return self


class Claiming(Centred):
    """One that says that it needs no fit."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class Wrapping(Log):
    """One that fits its parameter itself."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002, N803
        self.inner.fit(X)
        return self


class Bare:
    """One that knows nothing of scikit-learn."""

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002, N803
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        return X


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(), MinMaxScaler(), Centred(), Claiming(), Wrapping(MinMaxScaler()),
        Wrapping(make_pipeline(Log(), MinMaxScaler())),
        SimpleImputer(strategy="constant"),  # leaves out columns that are empty
        SimpleImputer(strategy="constant", keep_empty_features=True, add_indicator=True),
        RBFSampler(gamma="scale"), SplineTransformer(),
        make_column_transformer((MinMaxScaler(), [0, 1]), remainder="passthrough"),
        make_union(Log(), MinMaxScaler()), make_pipeline(Log(), MinMaxScaler()),
        OneHotEncoder(handle_unknown="ignore"), OneHotEncoder(categories=[[0, 1]] * 7, min_frequency=9,
                                                              handle_unknown="ignore"),
        TargetEncoder(categories=[np.unique(column) for column in table().T], target_type="continuous"),
    ],
    ids=lambda step: type(step).__name__,
)  # fmt: skip
def test_a_step_that_learns_from_the_rows_is_refused_before_a_private_one(step: Any, register: Register) -> None:
    rows, private = table(), dpdist.PrivatePCA(2, **LOSS)
    regressor = TransformedTargetRegressor(dpdist.PrivateRidge(**LOSS))
    for steps, y in (
        ([step, private], rows[:, 0]),
        ([step, make_pipeline(private), LogisticRegression()], (rows[:, 0] > 0).astype(float)),
        ([step, regressor], rows[:, 0]),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=r"fitted to the rows without noise.*FrozenEstimator"):
            make_pipeline(*steps).fit(rows, y)
    assert not register._fits


@pytest.mark.parametrize(
    "step",
    [
        "passthrough", FunctionTransformer(np.tanh), Normalizer(), PolynomialFeatures(2), Log(), Bare(),
        Wrapping(Normalizer()), SimpleImputer(strategy="constant", keep_empty_features=True),
        FrozenEstimator(StandardScaler().fit(table(7))), StandardScaler(with_mean=False, with_std=False),
        make_column_transformer((OneHotEncoder(**CATEGORIES), [0]), (Log(), [1]), remainder="drop"),
        GaussianRandomProjection(3, random_state=1), RBFSampler(gamma=0.1, n_components=5, random_state=1),
        make_union(Log(), Normalizer()), SplineTransformer(knots=np.linspace([-9.0] * 7, [9.0] * 7, 4),
                                                           extrapolation="constant"),
    ],
    ids=lambda step: step if isinstance(step, str) else type(step).__name__,
)  # fmt: skip
def test_a_step_that_learns_nothing_private_may_stand_before(step: Any) -> None:
    found = make_pipeline(step, dpdist.PrivatePCA(2, **LOSS)).fit(table())
    assert found[-1].fresh_


def test_what_stands_behind_a_private_step_may_learn_from_its_scores() -> None:
    after = make_pipeline(dpdist.PrivatePCA(2, **LOSS), StandardScaler(), LogisticRegression())
    after.fit(table(3), table(3)[:, 0] > 0)


def test_a_search_over_a_pipeline_is_refused_as_well() -> None:
    searched = GridSearchCV(
        make_pipeline(MinMaxScaler(), dpdist.PrivatePCA(2, **LOSS)), {"privatepca__whiten": [True]},
        scoring=lambda *_: 0.0, error_score="raise", cv=2,
    )  # fmt: skip
    with pytest.raises(RefusedError, match="MinMaxScaler before PrivatePCA"):
        searched.fit(table())
