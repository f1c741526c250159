"""What PrivatePCA makes of the variances of its scores: whitening, and the likelihood of probabilistic PCA.

Both divide by a variance. Where the noise of the release lets it be 0, the interval of the variance says so, and both
are refused.

What PrivatePCA refuses of components of the correlation matrix, before anything is paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted
from dpdist.answers.captured import Captured, captured
from dpdist.errors import UsageError
from dpdist.estimators.fit import releases_subspace
from dpdist.naming import parameter
from dpdist.pca.components import Components
from dpdist.pca.correlation import require_correlated
from dpdist.release.request import Centring, ReleaseRequest

Matrix = npt.NDArray[np.float64]
_LARGER = "Take a larger epsilon or more rows."


@dataclass(frozen=True)
class Normal:
    """The model of probabilistic PCA (Tipping & Bishop 1999).

    Attributes
    ----------
    components
        (k, d), orthonormal rows, of rows less ``mean`` over ``scale``.
    variances
        (k,), positive: along them.
    rest
        Positive, along all other directions; 0 where there are none.
    mean, scale
        (d,).
    """

    components: Matrix
    variances: Matrix
    rest: float
    mean: Matrix
    scale: Matrix

    def log_likelihoods(self, rows: npt.NDArray[np.generic]) -> Matrix:
        """Return the log-likelihood of each of (n, d) rows, (n, 1)."""
        k, d = self.components.shape
        apart = (rows.astype(np.float64) - self.mean) / self.scale
        scores = apart @ self.components.T
        found: Matrix = (scores**2 / self.variances).sum(axis=1)
        found += float(np.log(self.variances).sum()) + d * math.log(2 * math.pi)
        if k < d:
            found += ((apart - scores @ self.components) ** 2).sum(axis=1) / self.rest + (d - k) * math.log(self.rest)
        found /= -2
        found -= float(np.log(self.scale).sum())
        return found[:, None]


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
        require(known, "whitened", len(found.components), 0)


def deviations(estimator: Any) -> Matrix:
    """Return what scores are divided by, (k, 1): 1 where they are not whitened."""
    k = estimator.components_.shape[0]
    return np.ones((k, 1)) if not estimator.whiten else np.sqrt(np.asarray(estimator.score_variances_))[:, None]


def model_of(estimator: Any) -> Normal:
    """Return the model of a fitted estimator."""
    if estimator.correlation:
        raise UsageError("Nothing can be told of likelihoods of standardised columns: fit without correlation.")
    k, d = estimator.components_.shape
    about = estimator.explained_variance_ is not None  # per row
    found = Components(estimator.components_, None, per_row=about, mean=estimator.mean_, scale=estimator.scale_)
    held = require(captured(estimator.release_, found) if about else None, "told of likelihoods", k, d - k)
    return Normal(estimator.components_, held.variances, held.rest, estimator.mean_, estimator.scale_)


def require(held: Captured | None, what: str, k: int, rest: int) -> Captured:
    """Return the variances of k scores, and of so many other directions, if the noise leaves all of them positive."""
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


def require_kind(correlation: object, whiten: object) -> None:
    """Refuse what does not go with components of the correlation matrix, before anything is paid for."""
    if not isinstance(correlation, bool | np.bool_):
        raise UsageError("correlation is True or False.")
    if correlation and whiten:
        raise UsageError("Scores of standardised columns are not whitened: leave whiten or correlation out.")


def require_release(request: ReleaseRequest) -> None:
    """Refuse a release that will have no correlations."""
    require_correlated(
        subspace=releases_subspace(request),
        mechanism=request.mechanism,
        centred=request.centring is Centring.PRIVATE or request.centre is not None or request.scale == "private",
    )
