"""What PrivatePCA makes of the variances of its scores: whitening, and the likelihood of probabilistic PCA.

Both divide by a variance. Where the noise of the release lets it be 0, the interval of the variance says so, and both
are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted
from dpdist.answers.captured import Captured, captured
from dpdist.errors import UsageError
from dpdist.estimators.base import Matrix
from dpdist.naming import parameter
from dpdist.pca.components import Components

_LARGER = "Take a larger epsilon or more rows."


def tell(estimator: Any, found: Components, held: Captured | None) -> None:
    """Give an estimator the attributes about the variances of its scores."""
    known = held if found.per_row else None
    estimator.score_variances_ = None if known is None else known.variances
    estimator.score_variance_intervals_ = None if known is None else known.intervals
    estimator.noise_variance_ = None if known is None else known.rest
    estimator.noise_variance_interval_ = None if known is None else known.rest_interval
    estimator.captured_variance_ratio_ = None if held is None else float(held.shares[-1])
    estimator.captured_variance_ratio_interval_ = None if held is None else held.share_intervals[-1]
    if estimator.whiten:
        _require(known, "whitened", len(found.components), 0)


def deviations(estimator: Any) -> Matrix:
    """Return what scores are divided by, (k, 1): 1 where they are not whitened."""
    k = estimator.components_.shape[0]
    return np.ones((k, 1)) if not estimator.whiten else np.sqrt(np.asarray(estimator.score_variances_))[:, None]


def model_of(estimator: Any) -> Callable[[npt.NDArray[np.generic]], Matrix]:
    """Return the log-likelihood of (n, d) rows, (n, 1), by the model of probabilistic PCA (Tipping & Bishop 1999)."""
    if estimator.correlation:
        raise UsageError("Nothing can be told of likelihoods of standardised columns: fit without correlation.")
    k, d = estimator.components_.shape
    about = estimator.explained_variance_ is not None  # per row
    found = Components(estimator.components_, None, per_row=about, mean=estimator.mean_, scale=estimator.scale_)
    held = _require(captured(estimator.release_, found) if about else None, "told of likelihoods", k, d - k)
    return partial(_log_likelihoods, found=found, variances=held.variances, rest=held.rest)


def _log_likelihoods(rows: npt.NDArray[np.generic], found: Components, variances: Matrix, rest: float) -> Matrix:
    """Return them for positive variances along the components, and one along all other directions, if there are any."""
    k, d = found.components.shape
    apart = (rows.astype(np.float64) - found.mean) / found.scale
    scores = apart @ found.components.T
    total: Matrix = (scores**2 / variances).sum(axis=1)
    total += float(np.log(variances).sum()) + d * math.log(2 * math.pi)
    if k < d:
        total += ((apart - scores @ found.components) ** 2).sum(axis=1) / rest + (d - k) * math.log(rest)
    total /= -2
    total -= float(np.log(found.scale).sum())
    return total[:, None]


def _require(held: Captured | None, what: str, k: int, rest: int) -> Captured:
    """Return the variances of k scores, and of so many other directions, if noise leaves all of them positive."""
    if held is None:
        raise UsageError(
            f"Nothing can be {what}: this release tells no variances per row, or the noise drowns them all. Take a "
            f"mechanism that adds noise to a second moment, and {parameter('neighbours', 'replace-one')} or "
            f"{parameter('centre', 'private')}."
        )
    sure = held.intervals[:, 0] > 0
    if not sure.all():
        first = int(np.argmin(sure))
        instead = f"Ask for {first} or fewer ({parameter('components')})" if first else "There is none that could"
        raise UsageError(
            f"Nothing can be {what}: as far as the noise lets see, component {first + 1} of {k} may not vary at all. "
            f"{instead}. {_LARGER}"
        )
    if rest and held.rest_interval[0] <= 0:
        raise UsageError(
            f"Nothing can be {what}: as far as the noise lets see, the rows may not vary along the other "
            f"{counted(rest, 'direction')}. {_LARGER}"
        )
    return held
