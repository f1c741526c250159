"""The regression on Liver Disorders: a label from private copies of the rows, and from a private second moment.

The paper perturbs the data matrix, and then any regression is post-processing. Here it is least squares with a small
ridge, from the Gram matrix of features, label and the constant 1. The label is `drinks`, as the source's
description says; it and `gammagt`, the marker of drinking among the blood tests, are the informative columns, which is
public knowledge. Methods that answer with a second moment get the Gram matrix from there.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist import PrivacyLoss
from dpdist.core.privacy.guarantee import ATTO, MICRO
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from papers.chanyaswad.identity import METHODS as IDENTITY
from papers.chanyaswad.identity import IdentityQuery, theorem_2
from papers.common.answers import moment_of, private_moment, request_for
from papers.common.data import Floats
from papers.common.runs import Json

ORDER = [5, 4, 0, 1, 2, 3]
"""drinks, gammagt, then mcv, alkphos, sgpt, sgot."""
TRAIN = 0.7
RIDGE = 1.0
SKETCH = 1000
"""Rows of a JL transform: their relative error is sqrt(d/1000)."""
COARSE = 10
"""Grid bits at which the published ridge of the JL transform stays within 64-bit integers."""
_MOMENTS = {
    "JL transform": ("jl", "published"),
    "JL transform, exact": ("jl", "exact"),
    "Gaussian second moment": ("gaussian", ""),
    "two-sided Wishart": ("two-sided-wishart", ""),
}
"""Mechanisms of the package: second moments of the rows with a constant 1, ridge of the JL transform."""
REFERENCES = ("not private", "mean label, not private", "answering zero", "random direction")
METHODS = {
    "not private": True,
    "mean label, not private": True,
    "answering zero": True,
    "MVG, theorem 2": True,
    "MVG, theorem 2, directional": True,
    "Gaussian, classical": True,
    "Laplace": True,
    "exponential": True,
    "JL transform": True,
    "Gaussian, exact": False,
    "Gaussian, exact, directional": False,
    "JL transform, exact": False,
    "Gaussian second moment": False,
    "two-sided Wishart": False,
}


def loss_of(rows: int) -> PrivacyLoss:
    """Return epsilon 1 and delta 1/n, rounded down."""
    return PrivacyLoss(MICRO, ATTO // rows)


def text_of(loss: PrivacyLoss) -> tuple[str, str]:
    """Return a loss as exact decimal text."""
    return f"{loss.epsilon_micro}e-6", f"{loss.delta_atto}e-18"


def with_one(rows: Floats) -> Floats:
    """Return rows with a last column of ones."""
    return np.column_stack([rows, np.ones(len(rows))])


def fitted(gram: Floats, ridge: float) -> Floats:
    """Return the coefficients of the features and of the constant, from the Gram matrix of (label, features, 1).

    A noisy Gram matrix is first replaced by the nearest positive semidefinite one.
    """
    values, vectors = np.linalg.eigh(gram)
    sound = (vectors * np.maximum(values, 0)) @ vectors.T
    inner = sound[1:, 1:] + ridge * np.eye(len(gram) - 1)
    found: Floats = np.linalg.solve(inner, sound[1:, 0])
    return found


def _gram(method: str, train: Floats) -> tuple[Floats, float]:
    """Return a private Gram matrix and the ridge to go with it: RIDGE, or the edge of the noise where there is one."""
    loss = loss_of(len(train))
    if method in IDENTITY:
        noisy = with_one(IdentityQuery(*train.shape).noisy(train, method, loss))
        return noisy.T @ noisy, RIDGE
    augmented = with_one(train)
    size = augmented.shape[1]
    if method == "not private":
        return augmented.T @ augmented, RIDGE
    moment = moment_of(augmented, math.sqrt(size), COARSE if method == "JL transform" else 16)
    mechanism, rule = _MOMENTS[method]
    request = request_for(mechanism, text_of(loss), moment.bound, {"sketch": SKETCH, "ridge": rule})
    noise = planned(request, Dimensions(size)).moment.noise
    unit = moment.bound.unit**2
    shift = noise.mean_diagonal * unit
    edge = 2 * math.sqrt(noise.get("variance_off_diagonal", 0.0) * size) * unit
    return private_moment(request, moment) - shift * np.eye(size), RIDGE + edge


def errors(method: str, rows: Floats, times: int, seed: int) -> Floats:
    """Return the root mean square error of the label on the rows held out, for so many random splits.

    Predictions are cut off at the public range [-1, 1], in whose units the error is.
    """
    found = np.empty(times)
    for run in range(times):
        order = np.random.default_rng([seed, run]).permutation(len(rows))
        count = round(TRAIN * len(rows))
        train, test = rows[order[:count]], rows[order[count:]]
        if method == "answering zero":
            predicted = np.zeros(len(test))
        elif method.startswith("mean label"):
            predicted = np.full(len(test), train[:, 0].mean())
        else:
            predicted = with_one(test[:, 1:]) @ fitted(*_gram(method, train))
        found[run] = math.sqrt(np.mean((np.clip(predicted, -1, 1) - test[:, 0]) ** 2))
    return found


def facts(rows: Floats, methods: list[str]) -> Json:
    """Return the noise of every private copy: standard deviations, over the exact one's, true GDP parameter."""
    count = round(TRAIN * len(rows))
    query, loss = IdentityQuery(count, rows.shape[1]), loss_of(count)
    exact = math.sqrt(query.variances("Gaussian, exact", loss)[0])
    found: Json = {"n": count, "delta": loss.delta, "columns": "drinks, gammagt, mcv, alkphos, sgpt, sgot"}
    found["noise"] = {}
    for method in (name for name in methods if name in IDENTITY):
        deviations = np.sqrt(query.variances(method, loss))
        found["noise"][method] = {
            "standard deviation per column": [float(f"{v:.4g}") for v in deviations],
            "over the exact one": float(f"{math.sqrt(np.mean(deviations**2)) / exact:.4g}"),
        }
        if "Gaussian" in method or "MVG" in method:
            found["noise"][method]["mu"] = float(f"{math.sqrt(query.mu_squared(deviations**2)):.4g}")
    asked = (query.columns, query.rows), query.largest, query.frobenius, loss
    ratio = theorem_2(*asked) / theorem_2(*asked, printed=True)  # of variances
    found["noise with zeta as printed, times that with its root"] = float(f"{math.sqrt(ratio):.4g}")
    return found
