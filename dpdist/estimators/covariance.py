"""PrivateCovariance: mean and covariance of private rows, with the standard deviation of the noise in each entry."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist.answers.covariance import below_noise_message, covariance, expanded, no_rows
from dpdist.answers.design import Partial, partial_correlation
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.synthetic import synthetic
from dpdist.core.errors import BelowNoiseWarning, UsageError, warn_caller
from dpdist.core.naming import ESTIMATORS, naming
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.text import listed
from dpdist.estimators import fit as fits
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, with_shared_parameters
from dpdist.estimators.inputs import rows_in_memory


@with_shared_parameters
class PrivateCovariance(PrivateEstimator):
    """Mean and covariance of private rows from one differentially private release.

    Parameters
    ----------
    shrinkage : {"optimal", "feasible", "trace", "none"}, default "optimal"
        Correction of the released matrix, whose eigenvalues are too spread out and partly negative. ``"optimal"``:
        keeps the eigenvectors and takes the eigenvalues closest to the exact matrix, given the distribution of the
        noise; positive definite. ``"feasible"``: the nearest that rows of a schema can have, without negative cells in
        a table (:mod:`dpdist.answers.feasible`). ``"trace"``: projects on the positive semidefinite matrices whose
        trace is possible for n rows. ``"none"``: the matrix as released, with unbiased entries.
    centre : str, path-like, sequence of float or mapping, default "private"
        ``"private"``: mean and covariance are released together at no extra cost. Otherwise the covariance is the
        second moment about zero (``"none"``) or about the public centre.
    {shared}

    Attributes
    ----------
    covariance_ : ndarray
        (d, d) float64, symmetric, in squared units of X: the covariance, with divisor n, of the n rows clipped to
        ``clip``.
    correlation_ : ndarray
        (d, d) float64: correlations from ``covariance_``.
    precision_ : ndarray or None
        (d, d) float64: the inverse of ``covariance_``. None unless ``shrinkage="optimal"``.
    partial_correlation_, partial_correlation_intervals_ : ndarray
        (d, d) and (d, d, 2) float64: correlation of two columns given all others, and its 95 % interval, computed on
        access. Raises :class:`dpdist.UsageError` with the reason if they do not exist, for example if all columns are
        below the noise.
    partial_ridge_ : float
        Ridge added to the sum of squares of each column for the partial correlations, in squared units of the rows
        after centring and scaling. 0 if every direction is clear of the noise; otherwise the edge of the noise, which
        shrinks partial correlations towards 0.
    covariance_intervals_, correlation_intervals_ : ndarray or None
        (d, d, 2) float64: 95 % intervals of the exact entries over repeated releases. They belong to the released
        entries, so a shrunk entry may be outside. None if the mechanism states no variance.
    location_ : ndarray
        (d,) float64, in units of X: the mean of the rows clipped to ``clip``, or the public centre.
    errors_ : ndarray or None
        (d, d) float64: standard deviation of the noise in each released entry, without the contribution of the mean,
        which is of lower order. None if the mechanism states no variance.
    below_noise_ : tuple of int
        The columns whose variance is below the noise.
    guarantee_, release_ : Guarantee, Release
        See :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_ : int, ndarray of str
        d and, if the columns have names, their names.

    Notes
    -----
    If a private scale finds numbers beyond 2^20 in a column, the column gets weight zero and nothing is known about it
    (``release_.blindly_scaled``). All its entries are NaN; distances, likelihoods and sampled rows use the other
    columns.

    See Also
    --------
    PrivatePCA : Principal components; its notes apply here too.
    Budget : A limit on the joint cost of all fits on the same people.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018; Bun, Allez, Bouchaud & Potters 2016
    (:mod:`dpdist.answers.shrinkage`). Each mechanism's module has its proof (:mod:`dpdist.core.mechanisms`).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dpdist import PrivateCovariance
    >>> model = PrivateCovariance(epsilon=1, delta=1e-6, clip=10).fit(load_iris().data)
    >>> model.covariance_.shape, model.location_.shape, str(model.guarantee_.neighbours)
    ((4, 4), (4,), 'replace-one')
    >>> bool(model.errors_[0, 0] > model.errors_[0, 1])  # twice the variance on the diagonal
    True
    >>> model.mahalanobis(load_iris().data[:2]).shape, model.correlation_intervals_.shape
    ((2,), (4, 4, 2))
    """

    _centre = "private"

    def __init__(self, shrinkage: str = Shrinkage.OPTIMAL.value, **shared: Unpack[Shared]) -> None:
        shared.setdefault("centre", self._centre)
        super().__init__(**shared)
        self.shrinkage = shrinkage

    @classmethod
    def from_release(cls, release: Release | str | os.PathLike[str], shrinkage: str = Shrinkage.OPTIMAL.value) -> Self:
        """Return an estimator fitted to an existing release, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        shrinkage
            See the class.

        Raises
        ------
        UsageError
            If the release contains a subspace, if n is private and no mean was released, or if shrinking needs a noise
            distribution that is unknown.
        RefusedError
            If the release is not private as claimed.
        DataError
            If the release is missing, damaged or too large for memory.
        """
        with naming(ESTIMATORS):
            opened = fits.opened(release)
            estimator = cls(shrinkage, **fits.parameters_of(opened))
            fits.set_release(estimator, opened)
            estimator._learn(opened)
        return estimator

    def fit(self, X: object, y: object = None, groups: object = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's
        """Release the mean and second moment of X.

        Parameters
        ----------
        X
            (n, d) real numbers, in any form accepted by :class:`dpdist.PrivatePCA`.
        y
            Ignored.
        groups
            Privacy unit of each row, or the name of a column of X: see :meth:`dpdist.PrivatePCA.fit`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters are invalid; after the release, if the private number of rows is below the noise.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X cannot be used; also a ValueError for data in memory.
        """
        with naming(ESTIMATORS):
            check = partial(_require_matrix, shrinkage=_shrinkage(self.shrinkage))
            self._learn(fits.released(self, X, check, groups=groups))
        return self

    def get_precision(self) -> Matrix:
        """Return ``precision_``.

        Raises
        ------
        UsageError
            Unless ``shrinkage="optimal"``.
        """
        check_is_fitted(self, "covariance_")
        if self.precision_ is None:
            raise UsageError(
                "This covariance may not be positive definite. "
                "PrivateCovariance.from_release(fitted.release_, shrinkage='optimal') returns one that is, at no cost."
            )
        return self.precision_

    def mahalanobis(self, X: object) -> Any:  # noqa: N803
        """Return the squared Mahalanobis distances of rows from ``location_``, (n,) float64. They are private.

        Parameters
        ----------
        X
            (n, d), in any form accepted by ``fit`` except the path of a rows.zarr. The distances of a Dask array are
            lazy.

        Raises
        ------
        UsageError
            See :meth:`get_precision`.
        DataError
            If X cannot be used or has other columns; also a ValueError.
        """
        precision = self.get_precision()
        with naming(ESTIMATORS):
            rows = rows_in_memory(
                self, X, "mahalanobis takes rows in memory or lazy arrays, not the path of a rows.zarr."
            )
            distances = partial(_distances, location=self.location_, precision=precision)
            return rows.mapped(distances, 1, np.float64, ["distance"], "distance")[:, 0]

    def score(self, X: object, y: object = None) -> float:  # noqa: N803, ARG002 - scikit-learn's names
        """Return the mean log-likelihood of rows under a normal distribution with this mean and covariance.

        Private, and comes with a warning.

        Parameters
        ----------
        X
            As for :meth:`mahalanobis`; a Dask array is computed.
        y
            Ignored.
        """
        finite = np.isfinite(self.location_)
        _, determinant = np.linalg.slogdet(self.get_precision()[np.ix_(finite, finite)])
        distance = float(self.mahalanobis(X).mean())
        fits.warn_of_score(self)
        return float(determinant - distance - finite.sum() * math.log(2 * math.pi)) / 2

    @property
    def partial_correlation_(self) -> Matrix:
        """(d, d): correlation of each two columns given all others."""
        partials, expand = self._partial()
        return expand(partials.matrix)

    @property
    def partial_correlation_intervals_(self) -> Matrix:
        """(d, d, 2): 95 % intervals of the partial correlations over repeated releases."""
        partials, expand = self._partial()
        return expand(partials.intervals)

    @property
    def partial_ridge_(self) -> float:
        """Ridge added to the sum of squares of each column for the partial correlations."""
        return self._partial()[0].ridge

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Matrix:
        """Return synthetic normal rows with mean ``location_`` and covariance ``covariance_``. They may be published.

        Parameters
        ----------
        n_samples
            Number of rows.
        random_state
            Seed or generator, as in scikit-learn; never derived from private data.

        Returns
        -------
        rows
            (n_samples, d) float64, in units of X; NaN in columns with weight zero in the release.

        Raises
        ------
        UsageError
            See :meth:`get_precision`. Also if the release has neither a mean nor a centre, or if no direction varies
            more than the noise.
        """
        self.get_precision()
        with naming(ESTIMATORS):
            model = synthetic(self.release_)
            drawn = model.draw(int(n_samples), check_random_state(random_state))
        rows: Matrix = np.full((len(drawn), self.location_.size), np.nan)
        rows[:, np.isfinite(self.location_)] = drawn
        return rows

    def error_norm(
        self, comp_cov: Matrix, norm: str = "frobenius", *, scaling: bool = True, squared: bool = True
    ) -> float:
        """Return the distance between ``covariance_`` and another covariance, as in scikit-learn.

        Parameters
        ----------
        comp_cov
            (d, d).
        norm
            ``"frobenius"`` or ``"spectral"``.
        scaling
            Whether to divide the squared norm by d.
        squared
            Whether to return the squared norm.

        Raises
        ------
        UsageError
            For any other norm.
        """
        check_is_fitted(self, "covariance_")
        if norm not in {"frobenius", "spectral"}:
            raise UsageError("norm is 'frobenius' or 'spectral'.")
        finite = np.isfinite(self.location_)
        difference = (np.asarray(comp_cov, dtype=np.float64) - self.covariance_)[np.ix_(finite, finite)]
        squared_norm = float(np.linalg.norm(difference, 2 if norm == "spectral" else "fro")) ** 2
        squared_norm /= len(difference) if scaling else 1
        return squared_norm if squared else math.sqrt(squared_norm)

    def summary(self) -> str:
        """Return means, standard deviations, the strongest correlations and the guarantee as text, to be printed.

        Everything in it is public.
        """
        check_is_fitted(self, "covariance_")
        from dpdist.estimators import coefficients  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return coefficients.covariance_summary(self)

    def plot(self, *, axes: Any = None) -> Any:
        """Draw the correlations as a heat map, with crosses where the interval contains 0.

        It needs matplotlib (extra ``plots``). Everything in the picture is public.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, default None
            Where to draw. None: in a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UsageError
            If nothing is above the noise, a parameter is invalid, or matplotlib is not installed.
        """
        check_is_fitted(self, "covariance_")
        from dpdist.estimators import coefficients  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return coefficients.covariance_plot(self, axes)

    def _partial(self) -> tuple[Partial, Callable[[Matrix], Matrix]]:
        """Return the partial correlations of the columns with weight, and a function that expands them to d columns."""
        check_is_fitted(self, "covariance_")
        columns = np.flatnonzero(np.isfinite(self.location_))
        with naming(ESTIMATORS):
            partials = partial_correlation(self.release_, columns)
        return partials, partial(expanded, columns=columns, d=self.location_.size)

    def _learn(self, release: Release) -> None:
        self.guarantee_ = fits.guarantee_of(release)
        result = covariance(release, _shrinkage(self.shrinkage))
        self.covariance_, self.location_, self.errors_ = result.matrix, result.location, result.errors
        self.correlation_ = result.correlation
        self.precision_ = result.precision
        self.below_noise_ = result.drowned
        self.covariance_intervals_ = result.intervals
        self.correlation_intervals_ = result.correlation_intervals
        if result.seen == 0:
            warn_caller(
                "No direction of the columns varies more than the noise of the release, so covariance_ contains "
                "little information. Use a larger epsilon, more rows or fewer columns.",
                BelowNoiseWarning,
            )
        elif message := below_noise_message(result, release.names):
            warn_caller(message, BelowNoiseWarning)


def _distances(rows: npt.NDArray[np.generic], location: Matrix, precision: Matrix) -> Matrix:
    finite = np.isfinite(location)
    centred = rows[:, finite].astype(np.float64) - location[finite]
    distances: Matrix = np.einsum("ij,jk,ik->i", centred, precision[np.ix_(finite, finite)], centred, optimize=True)
    return distances[:, None]


def _shrinkage(name: str) -> Shrinkage:
    try:
        return Shrinkage(name)
    except ValueError:
        raise UsageError(f"shrinkage must be one of {listed(map(repr, map(str, Shrinkage)))}.") from None


def _require_matrix(request: ReleaseRequest, size: Dimensions, *, shrinkage: Shrinkage) -> None:
    """Refuse a request whose release would give no covariance, before it is charged."""
    if shrinkage is Shrinkage.OPTIMAL or fits.releases_subspace(request):
        fits.require_matrix(request, size)
    unknown = size.together or request.neighbours is Neighbours.ADD_REMOVE
    if unknown and request.centring is Centring.NONE:
        raise UsageError(no_rows(weighted=size.together))
