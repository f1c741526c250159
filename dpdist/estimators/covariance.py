"""PrivateCovariance: mean and covariance of private rows, with the standard deviation of the noise on every entry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from dpdist._util.notebook import Shown
from dpdist._util.paths import AnyPath
from dpdist.errors import DataError, UsageError
from dpdist.estimators.fit import (
    ESTIMATORS,
    Centre,
    facts_of,
    parameters_of,
    proved,
    released,
    releases_subspace,
    require_private,
    tell_columns,
)
from dpdist.ledger.address import LedgerAddressGiven
from dpdist.ledger.budget import Budget
from dpdist.naming import naming
from dpdist.pca.components import about_mean
from dpdist.pca.scree import entry_errors
from dpdist.privacy.guarantee import Neighbours, Number
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.runtime.cluster import Cluster

Matrix = npt.NDArray[np.float64]


class PrivateCovariance(Shown, BaseEstimator):  # type: ignore[misc] # no types
    """Mean and covariance of private rows from one differentially private release.

    Parameters
    ----------
    epsilon : str, int, float or Decimal
        What the release may cost, of whole millionths. Required.
    clip : float
        The clip norm C > 0, in the units of X after the public centre and scale; public. Required.
    delta : str, int, float or Decimal, default None
        Likewise, below 1; None for pure differential privacy.
    mechanism : str, default None
        Its name; None takes ``gaussian`` where a delta is given and ``two-sided-wishart`` where none is.
    neighbours : {"replace-one", "add-remove"}, default "replace-one"
        One row exchanged, and the number of rows public; or one row more or fewer, and it is private.
    centre : str, path-like, sequence of float or mapping, default "private"
        ``"private"``: mean and covariance are released together for the one price. Otherwise the covariance is the
        second moment about what is public: zero (``"none"``), or the centre given.
    ledger, release : str or path-like, default None
        The place of the ledger, and where to publish the release, as of :class:`dpdist.PrivatePCA`.
    budget_epsilon, budget_delta : str, int, float or Decimal, default None
        What all fits that share a row may cost, as of :class:`dpdist.PrivatePCA`.
    budget : Budget, default None
        The budget this fit is charged to, as of :class:`dpdist.PrivatePCA`.
    accept_large_delta : bool, default False
        Whether a delta of 1/n or more is meant.
    grid_bits : int, default 16
        The clip norm is ``2**grid_bits`` steps of the integer grid.
    options : mapping of str, default None
        Public parameters of the mechanism, by name.
    cluster : Cluster, default None
        For the path of a rows.zarr: where to compute.

    Attributes
    ----------
    covariance_ : ndarray
        (d, d) float64, symmetric, in squared units of X: of n rows, shortened to ``clip``, divided by n. Noise may
        leave it with negative eigenvalues; :mod:`dpdist.pca.postprocess` removes them, at no cost.
    location_ : ndarray
        (d,) float64, in units of X: the mean of rows shortened to ``clip``, or what is public instead.
    errors_ : ndarray or None
        (d, d) float64: standard deviation of the noise on each entry of ``covariance_``; that of the mean, of lower
        order, is left out. None where the mechanism states no variance.
    guarantee_, release_ : Guarantee, Release
        As of :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_ : int, ndarray of str
        d and, where the columns have names, these.

    See Also
    --------
    PrivatePCA : Components instead; its notes hold here too.
    Budget : What all fits on the same people may cost.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018. What is proved of each mechanism stands in its module
    (:mod:`dpdist.mechanisms`).

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
        epsilon: Number,
        clip: float,
        delta: Number | None = None,
        mechanism: str | None = None,
        neighbours: str = "replace-one",
        centre: Centre = "private",
        ledger: LedgerAddressGiven | None = None,
        release: AnyPath | None = None,
        budget_epsilon: Number | None = None,
        budget_delta: Number | None = None,
        budget: Budget | None = None,
        accept_large_delta: bool = False,
        grid_bits: int = 16,
        options: Mapping[str, object] | None = None,
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
            opened = release if isinstance(release, Release) else open_release(release)
            require_private(opened)
            made = cls(**parameters_of(opened))
            tell_columns(made, opened)
            made.release_ = opened
            made._learn(opened)
        return made

    def fit(self, X: object, y: object = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's names
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
        self.guarantee_ = proved(release)
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
