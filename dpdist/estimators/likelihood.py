"""Whitening and the likelihood of probabilistic PCA, from the variances of PrivatePCA's scores.

Both divide by a variance. They are refused if its interval contains 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.answers.captured import Captured, captured
from dpdist.answers.components import Components
from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter
from dpdist.core.text import counted
from dpdist.estimators.base import Matrix

_LARGER = "Use a larger epsilon or more rows."


def set_variances(estimator: Any, components: Components, explained: Captured | None) -> None:
    """Set an estimator's attributes for the variances of its scores."""
    per_row = explained if components.per_row else None
    estimator.score_variances_ = None if per_row is None else per_row.variances
    estimator.score_variance_intervals_ = None if per_row is None else per_row.intervals
    estimator.noise_variance_ = None if per_row is None else per_row.rest
    estimator.noise_variance_interval_ = None if per_row is None else per_row.rest_interval
    estimator.captured_variance_ratio_ = None if explained is None else float(explained.shares[-1])
    estimator.captured_variance_ratio_interval_ = None if explained is None else explained.share_intervals[-1]
    if estimator.whiten:
        _require(per_row, "whiten the scores", len(components.components), 0)


def deviations(estimator: Any) -> Matrix:
    """Return the divisors of the scores, (k, 1): 1 unless whitened."""
    k = estimator.components_.shape[0]
    return np.ones((k, 1)) if not estimator.whiten else np.sqrt(np.asarray(estimator.score_variances_))[:, None]


def model_of(estimator: Any) -> Callable[[npt.NDArray[np.generic]], Matrix]:
    """Return the log-likelihood function of rows, (n, 1), under probabilistic PCA (Tipping & Bishop 1999)."""
    if estimator.correlation:
        raise UsageError("Cannot compute likelihoods of standardised columns: fit with correlation=False.")
    k, d = estimator.components_.shape
    per_row = estimator.explained_variance_ is not None  # per row
    components = Components(estimator.components_, None, per_row=per_row, mean=estimator.mean_, scale=estimator.scale_)
    explained = _require(captured(estimator.release_, components) if per_row else None, "compute likelihoods", k, d - k)
    return partial(_log_likelihoods, components=components, variances=explained.variances, rest=explained.rest)


def _log_likelihoods(rows: npt.NDArray[np.generic], components: Components, variances: Matrix, rest: float) -> Matrix:
    """Return the log-likelihoods, given the variances along the components and ``rest`` along all other directions."""
    k, d = components.components.shape
    centred = (rows.astype(np.float64) - components.mean) / components.scale
    scores = centred @ components.components.T
    total: Matrix = (scores**2 / variances).sum(axis=1)
    total += float(np.log(variances).sum()) + d * math.log(2 * math.pi)
    if k < d:
        total += ((centred - scores @ components.components) ** 2).sum(axis=1) / rest + (d - k) * math.log(rest)
    total /= -2
    total -= float(np.log(components.scale).sum())
    return total[:, None]


def _require(explained: Captured | None, purpose: str, k: int, rest: int) -> Captured:
    """Return the variances of k scores and ``rest`` other directions; refuse if an interval contains 0."""
    if explained is None:
        raise UsageError(
            f"Cannot {purpose}: the release has no variances per row, or all are below the noise. Use a mechanism that "
            f"adds noise to a second moment, and {parameter('neighbours', 'replace-one')} or "
            f"{parameter('centre', 'private')}."
        )
    sure = explained.intervals[:, 0] > 0
    if not sure.all():
        first = int(np.argmin(sure))
        advice = f" Ask for at most {first} ({parameter('components')})." if first else ""
        raise UsageError(
            f"Cannot {purpose}: given the noise, the variance of component {first + 1} of {k} may be 0.{advice} "
            f"{_LARGER}"
        )
    if rest and explained.rest_interval[0] <= 0:
        raise UsageError(
            f"Cannot {purpose}: given the noise, the variance along the other {counted(rest, 'direction')} may be 0. "
            f"{_LARGER}"
        )
    return explained
