"""PrivateCovariance: mean and covariance of private rows, with the standard deviation of the noise on every entry."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist._util.text import listed
from dpdist.answers.block import require_law
from dpdist.answers.covariance import covariance, drowned_words, no_rows, spread_out
from dpdist.answers.design import Partial, partial_correlation
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.synthetic import synthetic
from dpdist.errors import BelowNoiseWarning, UsageError
from dpdist.estimators import fit as fits
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, sharing
from dpdist.estimators.inputs import rows_in_memory
from dpdist.naming import ESTIMATORS, naming
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.artefact import Release
from dpdist.release.request import Centring, ReleaseRequest


@sharing
class PrivateCovariance(PrivateEstimator):
    """Mean and covariance of private rows from one differentially private release.

    Parameters
    ----------
    shrinkage : {"optimal", "trace", "none"}, default "optimal"
        What is done to the released matrix, which has negative eigenvalues and too spread ones. ``"optimal"``: the
        matrix of its eigenvectors that is nearest to the exact one by the law of the noise; positive definite.
        ``"trace"``: its projection on positive semidefinite matrices of a trace that n rows can have. ``"none"``: as
        released, every entry right on average.
    centre : str, path-like, sequence of float or mapping, default "private"
        ``"private"``: mean and covariance are released together for the one price. Otherwise the covariance is the
        second moment about what is public: zero (``"none"``), or the centre given.
    {shared}

    Attributes
    ----------
    covariance_ : ndarray
        (d, d) float64, symmetric, in squared units of X: of n rows, shortened to ``clip``, divided by n.
    correlation_ : ndarray
        (d, d) float64, of ``covariance_``.
    precision_ : ndarray or None
        (d, d) float64, the inverse of ``covariance_``; None unless it is shrunk by ``"optimal"``.
    partial_correlation_, partial_correlation_intervals_ : ndarray
        (d, d) and (d, d, 2) float64: correlation of two columns given all others, and its interval as below, made when
        asked for. :class:`dpdist.UsageError` says why there are none, such as where the noise drowns all columns.
    partial_ridge_ : float
        What was added to the sum of squares of each column for these, in squared units of the rows after centre and
        scale: 0 where every direction stands clear of the noise, else the edge of the noise, which draws them to 0.
    covariance_intervals_, correlation_intervals_ : ndarray or None
        (d, d, 2) float64: between these the exact entry lies in 95 of 100 releases. They are about the entries as
        released; a shrunk one may lie beyond an end. None where the mechanism states no variance.
    location_ : ndarray
        (d,) float64, in units of X: the mean of rows shortened to ``clip``, or what is public instead.
    errors_ : ndarray or None
        (d, d) float64: standard deviation of the noise on each entry as released; that of the mean, of lower order, is
        left out. None where the mechanism states no variance.
    guarantee_, release_ : Guarantee, Release
        As of :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_ : int, ndarray of str
        d and, where the columns have names, these.

    Notes
    -----
    A private scale may find numbers beyond 2^20 in a column. It weighs nothing then, and nothing is known of it
    (``release_.blindly_scaled``): all numbers about it are NaN, distances and likelihoods are of the other columns, and
    so are sampled rows.

    See Also
    --------
    PrivatePCA : Components instead; its notes hold here too.
    Budget : What all fits on the same people may cost.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018; Bun, Allez, Bouchaud & Potters 2016
    (:mod:`dpdist.answers.shrinkage`). What is proved of each mechanism stands in its module
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
    >>> found.mahalanobis(load_iris().data[:2]).shape, found.correlation_intervals_.shape
    ((2,), (4, 4, 2))
    """

    _centre = "private"

    def __init__(self, shrinkage: str = Shrinkage.OPTIMAL.value, **shared: Unpack[Shared]) -> None:
        shared.setdefault("centre", self._centre)
        super().__init__(**shared)
        self.shrinkage = shrinkage

    @classmethod
    def from_release(cls, release: Release | str | os.PathLike[str], shrinkage: str = Shrinkage.OPTIMAL.value) -> Self:
        """Return an estimator that is fitted to a release that was made before, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        shrinkage
            As of the class.

        Raises
        ------
        UsageError
            If it is of a subspace, n is private and no mean was released, or the law of its noise, by which it should
            be shrunk, is not known.
        RefusedError
            If it is not private as claimed.
        DataError
            If there is none, it is damaged, or too large for memory.
        """
        with naming(ESTIMATORS):
            opened = fits.opened(release)
            made = cls(shrinkage, **fits.parameters_of(opened))
            fits.take_release(made, opened)
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
            self._learn(fits.released(self, X, partial(_require_matrix, shrinkage=_shrinkage(self.shrinkage))))
        return self

    def get_precision(self) -> Matrix:
        """Return ``precision_``.

        Raises
        ------
        UsageError
            If the covariance is not shrunk to a positive definite one.
        """
        check_is_fitted(self, "covariance_")
        if self.precision_ is None:
            raise UsageError(
                "Only a covariance of shrinkage='optimal' is positive definite: from_release makes it, free."
            )
        return self.precision_

    def mahalanobis(self, X: object) -> Any:  # noqa: N803
        """Return the squared Mahalanobis distances of rows from ``location_``, (n,) float64. They are private.

        Parameters
        ----------
        X
            (n, d), of any kind that ``fit`` takes but the path of a rows.zarr. Of a Dask array the distances are lazy.

        Raises
        ------
        UsageError
            As of :meth:`get_precision`.
        DataError
            If X cannot be used or has other columns; a ValueError too.
        """
        precision = self.get_precision()
        with naming(ESTIMATORS):
            rows = rows_in_memory(self, X, "Distances are of rows in memory or lazy, and not of a rows.zarr.")
            told = partial(_distances, location=self.location_, precision=precision)
            return rows.mapped(told, 1, np.float64, ["distance"], "distance")[:, 0]

    def score(self, X: object, y: object = None) -> float:  # noqa: N803, ARG002 - scikit-learn's names
        """Return the mean log-likelihood of rows, if they are normal with this mean and covariance.

        It is private, and a warning says so.

        Parameters
        ----------
        X
            As of :meth:`mahalanobis`; a Dask array is computed.
        y
            Ignored.
        """
        known = np.isfinite(self.location_)
        _, determinant = np.linalg.slogdet(self.get_precision()[np.ix_(known, known)])
        distance = float(self.mahalanobis(X).mean())
        fits.warn_of_score(self)
        return float(determinant - distance - known.sum() * math.log(2 * math.pi)) / 2

    @property
    def partial_correlation_(self) -> Matrix:
        """(d, d): correlations of two columns given all others."""
        found, in_place = self._partial()
        return in_place(found.matrix)

    @property
    def partial_correlation_intervals_(self) -> Matrix:
        """(d, d, 2): between which they lie in 95 of 100 releases."""
        found, in_place = self._partial()
        return in_place(found.intervals)

    @property
    def partial_ridge_(self) -> float:
        """What was added to the sum of squares of each column for them."""
        return self._partial()[0].ridge

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Matrix:
        """Return synthetic rows: normal, with mean ``location_`` and covariance ``covariance_``. As public as these.

        Parameters
        ----------
        n_samples
            How many.
        random_state
            Seed or generator, as scikit-learn takes them; never from private data.

        Returns
        -------
        rows
            (n_samples, d) float64, in units of X; NaN in columns that weigh nothing in the release.

        Raises
        ------
        UsageError
            As of :meth:`get_precision`; if no mean was released and rows were shifted by no centre, or no direction
            varies more than the noise.
        """
        self.get_precision()
        with naming(ESTIMATORS):
            made = synthetic(self.release_)
            drawn = made.draw(int(n_samples), check_random_state(random_state))
        found: Matrix = np.full((len(drawn), self.location_.size), np.nan)
        found[:, np.isfinite(self.location_)] = drawn
        return found

    def error_norm(
        self, comp_cov: Matrix, norm: str = "frobenius", *, scaling: bool = True, squared: bool = True
    ) -> float:
        """Return how far ``covariance_`` is from another covariance, as scikit-learn's estimators do.

        Parameters
        ----------
        comp_cov
            (d, d).
        norm
            ``"frobenius"`` or ``"spectral"``.
        scaling
            Whether the squared norm is divided by d.
        squared
            Whether the squared norm is returned.

        Raises
        ------
        UsageError
            If the norm is another.
        """
        check_is_fitted(self, "covariance_")
        if norm not in {"frobenius", "spectral"}:
            raise UsageError("norm is 'frobenius' or 'spectral'.")
        known = np.isfinite(self.location_)
        apart = (np.asarray(comp_cov, dtype=np.float64) - self.covariance_)[np.ix_(known, known)]
        found = float(np.linalg.norm(apart, 2 if norm == "spectral" else "fro")) ** 2
        found /= len(apart) if scaling else 1
        return found if squared else math.sqrt(found)

    def _partial(self) -> tuple[Partial, Callable[[Matrix], Matrix]]:
        """Return partial correlations of the columns that weigh something, and what puts them in their places."""
        check_is_fitted(self, "covariance_")
        known = np.flatnonzero(np.isfinite(self.location_))
        with naming(ESTIMATORS):
            found = partial_correlation(self.release_, known)
        return found, partial(spread_out, places=known, d=self.location_.size)

    def _learn(self, release: Release) -> None:
        self.guarantee_ = fits.proved(release)
        found = covariance(release, _shrinkage(self.shrinkage))
        self.covariance_, self.location_, self.errors_ = found.matrix, found.location, found.errors
        self.correlation_ = found.correlation
        self.precision_ = found.precision
        self.covariance_intervals_ = found.intervals
        self.correlation_intervals_ = found.correlation_intervals
        if found.seen == 0:
            warnings.warn(
                "No direction of the columns varies more than the noise of the release: covariance_ says little. Take "
                "a larger epsilon, more rows or fewer columns.",
                BelowNoiseWarning,
                stacklevel=4,
            )
        elif named := drowned_words(found, release.names):
            warnings.warn(named, BelowNoiseWarning, stacklevel=4)


def _distances(rows: npt.NDArray[np.generic], location: Matrix, precision: Matrix) -> Matrix:
    known = np.isfinite(location)
    apart = rows[:, known].astype(np.float64) - location[known]
    found: Matrix = np.einsum("ij,jk,ik->i", apart, precision[np.ix_(known, known)], apart, optimize=True)[:, None]
    return found


def _shrinkage(given: str) -> Shrinkage:
    try:
        return Shrinkage(given)
    except ValueError:
        raise UsageError(f"shrinkage is one of {listed(map(repr, map(str, Shrinkage)))}.") from None


def _require_matrix(request: ReleaseRequest, columns: int, *, shrinkage: Shrinkage) -> None:
    """Refuse what releases no covariance, before it is paid for."""
    subspace = fits.releases_subspace(request)
    if subspace or shrinkage is Shrinkage.OPTIMAL:
        require_law(request.mechanism, None if subspace else request.with_placeholders.calibrated(columns).noise)
    if request.neighbours is Neighbours.ADD_REMOVE and request.centring is Centring.NONE:
        raise UsageError(no_rows())
