"""PrivateCovariance: mean and covariance of private rows, with the standard deviation of the noise on every entry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from dpdist._util.notebook import Shown
from dpdist.errors import DataError, UsageError
from dpdist.estimators.fit import (
    ESTIMATORS,
    facts_of,
    parameters_of,
    released,
    releases_subspace,
    require_private,
    tell_columns,
)
from dpdist.ledger.budget import Budget
from dpdist.naming import naming
from dpdist.pca.components import about_mean
from dpdist.pca.scree import entry_errors
from dpdist.privacy.guarantee import Guarantee, Neighbours
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.runtime.cluster import Cluster

Matrix = npt.NDArray[np.float64]


class PrivateCovariance(Shown, BaseEstimator):  # type: ignore[misc] # no types
    """Mean and covariance of private rows from one differentially private release.

    Parameters
    ----------
    epsilon, clip, delta, mechanism, neighbours, ledger, release, budget_epsilon, budget_delta, budget
        As of :class:`dpdist.PrivatePCA`.
    accept_large_delta, grid_bits, options, cluster
        As of :class:`dpdist.PrivatePCA`.
    centre
        ``"private"``: mean and covariance are released together for the one price. Otherwise the covariance is the
        second moment about what is public: zero (``"none"``), or the centre given.

    Attributes
    ----------
    covariance_
        (d, d) float64, symmetric, in squared units of X: of n rows, shortened to ``clip``, divided by n. Noise may
        leave it with negative eigenvalues; :mod:`dpdist.pca.postprocess` removes them, at no cost.
    location_
        (d,) float64, in units of X: the mean of rows shortened to ``clip``, or what is public instead.
    errors_
        (d, d) float64: standard deviation of the noise on each entry of ``covariance_``; that of the mean, of lower
        order, is left out. None where the mechanism states no variance.
    guarantee_, release_
        As of :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_
        d and, where the columns have names, these.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dpdist import PrivateCovariance
    >>> found = PrivateCovariance(epsilon=1, delta=1e-6, clip=10).fit(load_iris().data)
    >>> found.covariance_.shape, found.location_.shape, str(found.guarantee_.neighbours)
    ((4, 4), (4,), 'replace-one')
    >>> bool(found.errors_[0, 0] > found.errors_[0, 1])  # twice the variance on the diagonal
    True
    """

    def __init__(
        self,
        *,
        epsilon: Any,
        clip: float,
        delta: Any = None,
        mechanism: str | None = None,
        neighbours: str = "replace-one",
        centre: Any = "private",
        ledger: Any = None,
        release: Any = None,
        budget_epsilon: Any = None,
        budget_delta: Any = None,
        budget: Budget | None = None,
        accept_large_delta: bool = False,
        grid_bits: int = 16,
        options: Mapping[str, Any] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.clip = clip
        self.delta = delta
        self.mechanism = mechanism
        self.neighbours = neighbours
        self.centre = centre
        self.ledger = ledger
        self.release = release
        self.budget_epsilon = budget_epsilon
        self.budget_delta = budget_delta
        self.budget = budget
        self.accept_large_delta = accept_large_delta
        self.grid_bits = grid_bits
        self.options = options
        self.cluster = cluster

    @classmethod
    def from_release(cls, release: Release | str | os.PathLike[str]) -> Self:
        """Return an estimator that is fitted to a release that was made before, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.

        Raises
        ------
        UsageError
            If it is of a subspace, or n is private and no mean was released.
        RefusedError
            If it is not private as claimed.
        DataError
            If there is none, it is damaged, or too large for memory.
        """
        with naming(ESTIMATORS):
            opened = release if isinstance(release, Release) else open_release(Path(release))
            require_private(opened)
            made = cls(**parameters_of(opened))
            tell_columns(made, opened)
            made.release_ = opened
            made._learn(opened)
        return made

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's names
        """Release mean and second moment of X.

        Parameters
        ----------
        X
            (n, d) real numbers, of any kind that :class:`dpdist.PrivatePCA` takes.
        y
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters make no sense. After the release, if the noise drowns the number of rows.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X cannot be used; a ValueError too for what is in memory.
        """
        with naming(ESTIMATORS):
            self._learn(released(self, X, _require_matrix))
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags

    def _facts(self) -> dict[str, object]:
        return facts_of(self)

    def _learn(self, release: Release) -> None:
        self.guarantee_: Guarantee | None = release.guarantee
        if not release.in_memory:
            raise DataError("The release is too large for memory: read release_ in parts (moment_rows).")
        about = about_mean(release)
        if not about.per_row:
            raise UsageError(_NO_ROWS)
        centre, scale = release.bound.input_units
        units = np.outer(scale, scale)
        self.covariance_: Matrix = about.matrix(release.second_moment) * units
        self.location_: Matrix = centre + scale * about.mean
        told = release.noise.variance_off_diagonal is not None
        self.errors_: Matrix | None = entry_errors(release) * units if told else None


_NO_ROWS = (
    "Under add-remove the number of rows is private, so there is no covariance without the private mean: take "
    "centre='private', or neighbours='replace-one'."
)


def _require_matrix(request: ReleaseRequest, columns: int) -> None:
    """Refuse what releases no covariance, before it is paid for."""
    if releases_subspace(request):
        raise UsageError(f"{request.mechanism} releases components, and no covariance of {columns} columns.")
    if request.neighbours is Neighbours.ADD_REMOVE and request.centring is Centring.NONE:
        raise UsageError(_NO_ROWS)
