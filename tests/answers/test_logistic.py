"""Logistic regression from a moment: close to the maximum of the likelihood, with intervals for the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from support.releases import assemble_drawn

from dpdist.answers.logistic import logistic
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.report.pairs import odds_text

N = 20_000
SCHEMA = Schema(
    [
        Column("region", "category", categories=["north", "south", "east", "west"]), Column("premium", "boolean"),
        Column("age", "number", range=(18, 90)), Column("income", "number", range=(0, 150)),
        Column("churned", "boolean"),
    ],
    "range",
)  # fmt: skip


def table(seed: int, n: int = N) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    region = random.choice(["north", "south", "east", "west"], n, p=[0.4, 0.3, 0.2, 0.1])
    premium = random.random(n) < np.where(region == "north", 0.4, 0.2)
    age = np.clip(random.normal(45, 15, n), 18, 90)
    income = np.clip(20 + 0.5 * age + 8 * premium + random.normal(0, 15, n), 0, 150)
    eta = -1 + 0.03 * (age - 45) - 1.2 * premium + 0.8 * (region == "west") - 0.02 * (income - 45)
    churned = random.random(n) < expit(eta)
    return pd.DataFrame(
        {"region": region, "premium": premium, "age": age, "income": income, "churned": churned}
    )  # fmt: skip


def design(frame: pd.DataFrame) -> Any:
    regions = [(frame["region"] == name).to_numpy(float) for name in ("south", "east", "west")]
    return np.column_stack([*regions, frame["premium"], frame["age"], frame["income"]]).astype(float)


def held(frame: pd.DataFrame, epsilon: str, neighbours: Neighbours = Neighbours.REPLACE_ONE) -> Any:
    asked = ReleaseRequest(
        "gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema", neighbours, centring=Centring.SCHEMA,
        rows_at_most=10 * N,
    )  # fmt: skip
    return map(variables, assemble_drawn(asked, SCHEMA, frame))


@pytest.mark.parametrize("neighbours", Neighbours)
def test_without_noise_it_is_near_the_maximum_of_the_likelihood(neighbours: Neighbours) -> None:
    frame = table(1)
    (model,) = logistic(next(held(frame, "1000000", neighbours)), "churned")
    assert [each.name for each in model.effects] == [
        "region=south", "region=east", "region=west", "premium=yes", "age", "income",
    ]  # fmt: skip
    assert model.references == ("region=north", "premium=no")
    exact = LogisticRegression(C=1e9, max_iter=5000).fit(design(frame), frame["churned"])
    off = np.array([each.value for each in model.effects]) - exact.coef_[0]
    assert np.abs(off * [1, 1, 1, 1, 15, 15]).max() < 0.1  # of slopes for a deviation
    eta = design(frame) @ np.array([each.value for each in model.effects]) + model.intercept
    assert expit(eta).mean() == pytest.approx(frame["churned"].mean(), abs=0.01)
    assert model.share == pytest.approx(frame["churned"].mean(), abs=1e-3)
    # of one variable it is exact: the log of the odds ratio of a table
    (alone,) = logistic(next(held(frame, "1000000", neighbours)), "churned", ["premium"])
    (a, b), (c, d) = pd.crosstab(frame["premium"], frame["churned"]).to_numpy()
    assert alone.effects[0].value == pytest.approx(np.log(d * a / (b * c)), abs=5e-3)
    three = logistic(next(held(frame, "1000000", neighbours)), "region", ["premium", "age"])
    assert [each.target for each in three] == ["region=north", "region=south", "region=east", "region=west"]


def test_intervals_are_for_the_noise() -> None:
    """150 draws: each holds the model of the exact moment in .89 or more, .93 on average; half as wide ones do not."""
    frame, inside, halves = table(2), [], []
    draws = [logistic(each, "churned")[0] for _, each in zip(range(150), held(frame, "1"), strict=False)]
    exact = next(held(frame, "1000000"))
    models = {ridge: logistic(exact, "churned", ridge=ridge)[0] for ridge in {draw.ridge for draw in draws}}
    for draw in draws:
        truth = np.array([each.value for each in models[draw.ridge].effects])
        ends = np.array([each.interval for each in draw.effects])
        middle, reach = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
        inside.append(np.abs(truth - middle) <= reach)
        halves.append(np.abs(truth - middle) <= reach / 2)
    assert np.mean(inside, axis=0).min() > 0.89
    assert 0.93 < np.mean(inside) < 0.99
    assert np.mean(halves) < 0.8


def test_it_ranks_rows_as_the_exact_model_does_or_is_refused() -> None:
    train, test = table(3), table(4)
    exact = LogisticRegression(C=1e9, max_iter=5000).fit(design(train), train["churned"])
    best = roc_auc_score(test["churned"], exact.decision_function(design(test)))
    (model,) = logistic(next(held(train, "1")), "churned")
    found = roc_auc_score(test["churned"], design(test) @ np.array([each.value for each in model.effects]))
    assert found > best - 0.015
    for ridge, words in ((0.0, False), (0.01, True)):
        told = odds_text(logistic(next(held(train, "1")), "churned", ridge=ridge)[0], "of the rows")
        assert ("are of the model with it" in " ".join(told.split())) is words
    rare = train.assign(churned=np.arange(N) < 15)  # noise decides the odds of so few
    for found_in, _ in zip(held(rare, "1"), range(20), strict=False):
        with pytest.raises(BelowNoiseError, match="Too few rows have churned=yes"):
            logistic(found_in, "churned")
    drowned: Variables = next(held(train.head(300), "0.3"))
    with pytest.raises(BelowNoiseError, match="churned"):
        logistic(drowned, "churned")
    with pytest.raises(UsageError, match="'age' is a number"):
        logistic(drowned, "age")
    with pytest.raises(UsageError, match="other than itself"):
        logistic(drowned, "churned", ["churned", "age"])
