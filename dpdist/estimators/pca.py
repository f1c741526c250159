"""PrivatePCA: principal components of private rows, with scikit-learn's conventions."""

from __future__ import annotations

import numbers
import os
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn import get_config
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpdist.answers.alignment import Alignment, alignment, components_above_noise, require_noise_distribution
from dpdist.answers.captured import WIDE, captured, components_with_share
from dpdist.answers.components import Components, components, total_variance
from dpdist.answers.correlation import Correlation, require_correlated
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.answers.feasible import nearest
from dpdist.answers.fitting import components_of
from dpdist.core.errors import BelowNoiseError, BelowNoiseWarning, DataError, UsageError, warn_caller
from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.arrays import with_centre
from dpdist.core.naming import ESTIMATORS, naming, parameter, step
from dpdist.core.pipeline.projection import Projector, scores_in_memory
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import AnyCluster, computed, computing_on
from dpdist.estimators import fit as fits
from dpdist.estimators import likelihood
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, with_shared_parameters
from dpdist.estimators.described import as_released
from dpdist.estimators.inputs import rows_at, rows_in_memory, rows_of, scores_rows
from dpdist.formats.labelled import relabelled

AUTO = "auto"


@with_shared_parameters
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc] # no types
    """Principal components of private rows: one differentially private release, then free post-processing.

    ``fit`` releases the second moment (for some mechanisms, the components) of X once, with the guarantee in
    ``guarantee_``. All fitted attributes are functions of that release, so they and the pickled estimator may be
    published. The scores returned by ``transform`` are private rows in fewer dimensions; do not publish them.

    Parameters
    ----------
    n_components : int, float or "auto", default "auto"
        Number of components k. ``"auto"``: all components above the noise of the release. A float between 0 and 1: a
        share of the variance; k is the smallest number of components whose interval for their share starts at or above
        it. With ``clip="private"`` the clip norm depends on this number, so another one is another release, charged
        anew.
    correlation : bool, default False
        Whether to use the correlation matrix. Columns are standardised by released deviations (``scale_``), and columns
        below the noise are left out (``left_out_``). Needs a ``centre`` or ``scale="private"``. Scores cannot be
        whitened and have no likelihood.
    whiten : bool, default False
        Whether ``transform`` divides the scores by the square roots of ``score_variances_``. Refused if the interval of
        one of these contains 0.
    options : mapping of str, default None
        Public parameters of the mechanism, by name; ``components`` is filled from ``n_components``.
    {shared}

    Attributes
    ----------
    components_ : ndarray
        (k, d) float64, orthonormal rows by descending eigenvalue. The entry of largest magnitude in each is positive.
    mean_, scale_ : ndarray
        (d,) float64: shift and divisor of ``transform``. The mean is zero with ``centre="none"``.
    explained_variance_ : ndarray or None
        (k,) float64: released eigenvalues per row, of the rows clipped to ``clip``. None if n is private and no mean
        was released, or if the mechanism releases no eigenvalues.
    explained_variance_ratio_ : ndarray or None
        (k,) float64, with sum at most 1: each eigenvalue, corrected for the noise (uncorrected if the noise
        distribution is unknown), divided by the trace of the released matrix or by the sum of these values, whichever
        is larger. 0 for components below the noise. None if no matrix was released. With ``correlation=True``, the
        divisor is the number of columns, also of those left out.
    explained_variance_ratio_intervals_ : ndarray or None
        (k, 2): intervals of these ratios that account for the noise, with ``correlation=True``
        (:mod:`dpdist.answers.correlation`); otherwise None.
    left_out_ : tuple of str
        With ``correlation=True``, names of the columns below the noise, and of the first column of each categorical
        variable, which the others determine. Their loadings are 0.
    score_variances_, score_variance_intervals_ : ndarray or None
        (k,) and (k, 2) float64: variance of the scores of the clipped rows on each component, which is below the
        released eigenvalue, and its interval. Intervals hold in nine of ten releases or more on average (measured:
        :mod:`dpdist.answers.captured`). None if the noise distribution is unknown, if n is private and no mean was
        released, or if there are more than 2000 columns and no parameter needs them.
    noise_variance_, noise_variance_interval_ : float, ndarray or None
        Mean variance along all other directions, as in scikit-learn's PCA, and its interval, (2,); 0 if k is d. None in
        the same cases.
    captured_variance_ratio_, captured_variance_ratio_interval_ : float, ndarray or None
        Share of the variance of the clipped rows in the span of the k components, and its interval, (2,).
    n_above_noise_ : int or None
        Number of the k components above the noise of the release; if fewer than k, a
        :class:`dpdist.BelowNoiseWarning` is issued. None if the distribution of the noise is unknown.
    component_groups_ : tuple of range or None
        The components above the noise, counted from 0, in groups that cannot be distinguished from one another. None in
        the same case.
    squared_cosines_ : ndarray or None
        (k,) float64: estimated squared cosine between each component and the exact one, 1 for the same direction; for a
        group of several, the mean squared cosine between their span and the exact span. NaN for components below the
        noise. None in the same case.
    squared_cosine_intervals_ : ndarray or None
        (k, 2) float64: intervals of the squared cosines, which hold in nine of ten releases or more. NaN and None in
        the same cases.
    guarantee_ : Guarantee
        The proved guarantee of the release.
    release_ : Release
        The release. It is set even if a later step of ``fit`` fails.
    n_components_, n_features_in_, feature_names_in_ : int, int, ndarray of str
        k, d and, if the columns have names, their names.

    Notes
    -----
    X may be a NumPy array, a SciPy sparse matrix, a pandas DataFrame, a Dask array, a Zarr array, an xarray DataArray
    or Dataset (rows along the first dimension, the other dimensions as columns: :meth:`to_xarray`), an AnnData (its
    ``.X``, also sparse or backed), or the path of a rows.zarr. A Dask array is summed block by block on its client; a
    Zarr array or backed AnnData is read in batches.

    **The guarantee is about the rows of X.** It does not cover preprocessing that used all rows, such as a fitted
    ``StandardScaler``: use a public centre and scale, or ``scale="private"``. Choosing parameters by cross-validation
    is not private, because it uses exact scores of the rows, whatever the fits cost. Every ``score`` therefore issues a
    :class:`dpdist.PrivacyLeakWarning`.

    **A weak guarantee** comes with a :class:`dpdist.WeakGuaranteeWarning`: an epsilon above 10 or, if n is private, a
    delta of 1e-4 or more.

    **Later steps of a pipeline are not private.** A classifier fitted to the scores learns from private rows. The
    guarantee covers the estimator, not results computed from ``transform``.

    **Rows in memory have no ledger on disk.** A register in this process recognises rows by their values: in copies, in
    other orders, types and chunkings, and as parts of other tables. The same fit of the same rows returns the same
    release and is not charged (``fresh_`` is False); `name` asks for another draw. The register does not see releases
    of other processes, nor rows whose values changed, for example by a scaler (:mod:`dpdist.core.ledger.register`). A
    release of as many rows, of whatever columns, therefore warns of the joint cost. Charge all fits on the same people
    to one :class:`dpdist.Budget`, which counts every release whatever its rows, or ingest the rows and fit the path:
    its ledger is durable.

    NaN and infinity are refused before anything is charged. In a rows.zarr, such a row counts as zero.

    See Also
    --------
    PrivateCovariance : Mean and covariance.
    release_rows, fit_components, project_rows : The same steps as functions, for a rows.zarr.
    Budget : A limit on the joint cost of all fits on the same people.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018; Biane 1998 (alignment with the exact components:
    :mod:`dpdist.answers.overlap`). Each mechanism's module has its proof (:mod:`dpdist.core.mechanisms`).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from dpdist import PrivatePCA
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = PrivatePCA(n_components=5, epsilon=1, delta=1e-6, clip=64, centre="private")
    >>> model = make_pipeline(pca, LogisticRegression(max_iter=5000)).fit(X, y)
    >>> str(pca.guarantee_.loss), pca.components_.shape
    ('epsilon 1, delta 1e-06', (5, 64))
    >>> pca.transform(da.from_array(X, chunks=(600, 64)))
    dask.array<dpdist-project, shape=(1797, 5), dtype=float64, chunksize=(600, 5), chunktype=numpy.ndarray>
    >>> pca.fit(X).fresh_  # the same release again, not charged
    False
    >>> PrivatePCA.from_release(pca.release_, n_components=3).components_.shape  # free
    (3, 64)

    Another number of components is free, like everything else computed from ``release_``.
    """

    def __init__(
        self,
        n_components: float | str = AUTO,
        *,
        correlation: bool = False,
        whiten: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        self.n_components = n_components
        self.correlation = correlation
        self.whiten = whiten

    @classmethod
    def from_release(
        cls,
        release: Release | str | os.PathLike[str],
        n_components: float | str = AUTO,
        *,
        correlation: bool = False,
        whiten: bool = False,
        feasible: bool = False,
        cluster: AnyCluster | None = None,
    ) -> Self:
        """Return an estimator fitted to an existing release, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        n_components, correlation, whiten
            See the class.
        feasible
            Whether to start from the nearest moment that rows of the schema can have: see
            :func:`dpdist.fit_components`.
        cluster
            Where to multiply a release too large for memory. None: in this process.

        Raises
        ------
        UsageError
            If the release has fewer components, none is above the noise, those above it do not provably explain the
            requested share, or whitening is impossible.
        RefusedError
            If the release is not private as claimed.
        DataError
            If the release is missing or damaged, or too large for memory and not given as a path.
        """
        with naming(ESTIMATORS):
            count = _count(n_components)
            _require_kind(correlation, whiten)
            if correlation or feasible:
                opened = release if isinstance(release, Release) else open_release(release)
                basis = nearest(opened)[0] if feasible else opened
                result: Components | Correlation = (
                    correlation_of(basis, count) if correlation else _select_components(basis, count)
                )
            elif not isinstance(release, Release):
                opened, result = components_of(release, count, cluster=cluster)
            elif release.in_memory:
                opened, result = release, _select_components(release, count)
            else:
                raise DataError("The release is too large for memory. Pass the path of its release.zarr.")
            fits.require_private(opened)
            shared = fits.parameters_of(opened) | {"cluster": cluster}
            estimator = cls(n_components, correlation=correlation, whiten=whiten, **shared)
            fits.set_release(estimator, opened)
            estimator._learn(basis if feasible else opened, result)
        return estimator

    def fit(self, X: object, y: object = None, groups: object = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's
        """Release the second moment of X and compute its components.

        Parameters
        ----------
        X
            (n, d) real numbers; see the notes of the class.
        y
            Ignored.
        groups
            Privacy unit of each row, (n,) whole numbers or text, or the name of a column of X, of a coordinate of an
            xarray object or of ``obs`` of an AnnData, which is left out of X. All rows of a unit are protected
            together, and those of busy units weigh less (:mod:`dpdist.core.rows.unit_moment`); rows are sorted in
            private temporary files. A Dask DataFrame takes a name, and is persisted, as its rows may come in another
            order each time they are computed. None: each row is protected alone. For rows in memory only.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters are invalid; after the release, if no component is above the noise. ``release_`` is then set,
            and :meth:`from_release` returns any number of its components.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X cannot be used; also a ValueError for data in memory.
        """
        with naming(ESTIMATORS):
            count = _count(self.n_components)
            _require_kind(self.correlation, self.whiten)
            check = partial(_require_components, count=count, correlation=self.correlation)
            release = fits.released(self, X, check, _number(count), groups=groups)
            try:
                self._learn(*self._components_of(release, X, count))
            except (UsageError, BelowNoiseError) as error:
                advice = "The release is kept: the same fit with another n_components is free."
                if self.clip == "private":  # which depends on n_components
                    advice = "The release is kept: dpdist.PrivatePCA.from_release(release_, n_components=K) is free."
                raise type(error)(f"{error} {advice}") from None
        return self

    def transform(self, X: object) -> Any:  # noqa: N803
        """Return the scores of rows: ``((X - mean_) / scale_) @ components_.T``, whitened if requested. Private.

        Parameters
        ----------
        X
            (n, d), in any form accepted by ``fit``; or, if the release has a schema, a DataFrame of its source. An
            array is of rows as the schema encodes them.

        Returns
        -------
        scores
            (n, k) float64, or float32 for float32 rows: a lazy Dask array for a Dask array, a DataArray with dimensions
            (rows, component) for a DataArray, otherwise a NumPy array. For the path of a rows.zarr and without
            whitening, the same bits as written by ``dpdist project``.

        Raises
        ------
        DataError
            If X cannot be used or has other columns; also a ValueError.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            rows = rows_of(self, self._as_released(X), fitting=False)
            if rows.lazy:
                _require_lazy_output(self)
            divided = self.components_ / likelihood.deviations(self)
            model = Components(divided, None, per_row=False, mean=self.mean_, scale=self.scale_)
            if (path := rows_at(X)) is not None:
                return scores_in_memory(open_rows(path), model)
            projector = Projector(model, rows.dtype)
            names = list(self.get_feature_names_out())
            scores = partial(_scores, projector=projector, centre=self.mean_) if self.missing == "centre" else projector
            return rows.mapped(scores, self.n_components_, projector.dtype, names, "component")

    def _as_released(self, data: object) -> Any:
        """Return a DataFrame of a source by its schema, with the mean for what is missing; other rows as they are."""
        return as_released(self, data, zip(self.release_.names, self.mean_, strict=True))

    def inverse_transform(self, X: object) -> Any:  # noqa: N803
        """Return the rows with these scores in the span of the components about the mean. They are private.

        Parameters
        ----------
        X
            Scores, (n, k), in any form returned by ``transform``.

        Returns
        -------
        rows
            (n, d) float64, lazy or labelled like the scores.

        Raises
        ------
        DataError
            If X has another number of columns or is not a table; also a ValueError.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            scores = scores_rows(X, self.get_feature_names_out())
            names = list(getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)]))
            times = self.components_ * likelihood.deviations(self)
            function = partial(_rows_of_scores, mean=self.mean_, scale=self.scale_, components=times)
            return scores.mapped(function, self.n_features_in_, np.float64, names, "feature")

    def score_samples(self, X: object) -> Any:  # noqa: N803
        """Return the log-likelihoods of rows under probabilistic PCA, (n,) float64. They are private.

        The model is that of scikit-learn's PCA with released parameters: normal with mean ``mean_``, variances
        ``score_variances_`` along the components and ``noise_variance_`` along all other directions.

        Parameters
        ----------
        X
            (n, d), as for :meth:`transform`, except the path of a rows.zarr. Lazy for a Dask array.

        Raises
        ------
        UsageError
            If the release gives no variances, or the interval of one of them contains 0.
        DataError
            If X cannot be used or has other columns; also a ValueError.

        References
        ----------
        Tipping & Bishop 1999.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            refusal = "score_samples takes rows in memory or lazy, not the path of a rows.zarr."
            rows = rows_in_memory(self, self._as_released(X), refusal)
            return rows.mapped(likelihood.model_of(self), 1, np.float64, ["likelihood"], "likelihood")[:, 0]

    def score(self, X: object, y: object = None) -> float:  # noqa: N803, ARG002 - scikit-learn's names
        """Return the mean log-likelihood of rows (:meth:`score_samples`). Private, and comes with a warning.

        Parameters
        ----------
        X
            As for :meth:`score_samples`; a Dask array is computed.
        y
            Ignored.
        """
        with computing_on(self.cluster):
            mean = float(computed(self.score_samples(X)).mean())
        fits.warn_of_score(self)
        return mean

    def summary(self) -> str:
        """Return the components, their alignment with the exact ones, and the guarantee as text, to be printed.

        Everything in it is public.
        """
        check_is_fitted(self, "components_")
        from dpdist.estimators import views  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return views.summary_of(self)

    def plot(self, kind: str = "scree", *, component: int = 1, axes: Any = None) -> Any:
        """Draw the fitted components with matplotlib (extra ``plots``). Everything in the picture is public.

        Parameters
        ----------
        kind : {"scree", "loadings", "circle"}, default "scree"
            ``"scree"``: all eigenvalues with intervals or, with ``correlation=True``, shares of variance, and how many
            components can be distinguished from noise. ``"loadings"``: the largest loadings of one component, with
            intervals where they are known. ``"circle"``: with ``correlation=True``, correlations of the columns with
            components 1 and 2.
        component : int, default 1
            The component of ``"loadings"``, counted from 1.
        axes : matplotlib.axes.Axes, default None
            Where to draw. None: in a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        UsageError
            If a parameter is invalid, or matplotlib is not installed.
        """
        check_is_fitted(self, "components_")
        from dpdist.estimators import views  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return views.plotted(self, kind, component, axes)

    def to_sklearn(self) -> Any:
        """Return a fitted ``sklearn.decomposition.PCA`` with the same components, for tools that require one.

        It may be published like this estimator, and gives the same scores, including whitening. Likelihoods are the
        same without whitening; with whitening, scikit-learn uses another model. Its ``explained_variance_`` is
        ``score_variances_`` and its ``noise_variance_`` is that of the release, but at least 0. Both are missing, as
        are methods that need them, if the release gives no variances.

        Raises
        ------
        UsageError
            If rows are divided by a scale, which scikit-learn's PCA does not support.
        """
        from sklearn.decomposition import PCA  # noqa: PLC0415 - slow to import, rarely used

        check_is_fitted(self, "components_")
        if np.any(self.scale_ != 1):
            raise UsageError(
                "scikit-learn's PCA does not divide by a scale. Divide the rows by scale_ first, and fit without scale."
            )
        pca = PCA(n_components=self.n_components_, whiten=self.whiten)
        pca.components_, pca.mean_ = self.components_.copy(), self.mean_.copy()
        pca.n_components_, pca.n_features_in_ = self.n_components_, self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            pca.feature_names_in_ = self.feature_names_in_
        if self.score_variances_ is not None and self.noise_variance_ is not None:
            pca.explained_variance_ = np.maximum(self.score_variances_, 0)
            pca.explained_variance_ratio_ = self.explained_variance_ratio_
            pca.noise_variance_ = max(0.0, self.noise_variance_)
        return pca

    def to_xarray(self, like: object) -> Any:
        """Return the components in the layout of the columns of X, for example (component, lat, lon).

        Parameters
        ----------
        like : xarray.DataArray or xarray.Dataset
            X, or any object with the same columns, such as one day of X. Its values are not read.

        Returns
        -------
        xarray.Dataset
            ``components`` (component, ...), ``mean`` and ``scale`` (...), and, if known, ``explained_variance`` and
            ``explained_variance_ratio`` (component,). The coordinate ``component`` has the names of
            :meth:`get_feature_names_out`, as in the result of ``transform``. For a Dataset, each variable has its own
            first three, such as ``tas_components``.

        Raises
        ------
        UsageError
            If `like` is not an xarray object, or has another number of columns.
        """
        check_is_fitted(self, "components_")
        vectors = {"components": self.components_, "mean": self.mean_, "scale": self.scale_}
        per_component = {
            "explained_variance": self.explained_variance_,
            "explained_variance_ratio": self.explained_variance_ratio_,
        }
        with naming(ESTIMATORS):
            return relabelled(like, vectors, list(self.get_feature_names_out()), per_component, self._layout)

    @property
    def _n_features_out(self) -> int:  # used by ClassNamePrefixFeaturesOutMixin
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if hasattr(self, "components_"):
            facts |= {"components": self.n_components_, "above the noise": self.n_above_noise_}
            facts |= {"columns below the noise": ", ".join(self.left_out_)} if self.left_out_ else {}
        return facts

    def _repr_html_(self) -> str:
        """Return the facts, and each component with its share, alignment and largest loadings."""
        from dpdist.estimators import views  # noqa: PLC0415 - slow to import

        found = super()._repr_html_()
        return found + views.table_of(self) if hasattr(self, "components_") else found

    def _components_of(
        self, release: Release, data: object, count: float | None
    ) -> tuple[Release, Components | Correlation]:
        if self.correlation:
            return release, correlation_of(release, count)
        rows = rows_at(data)
        if release.in_memory or rows is None:
            return release, _select_components(release, count)
        path = fits.release_target(self, open_rows(rows), fits.request_of(self, _number(count)))
        return components_of(path, count, cluster=self.cluster)

    def _learn(self, release: Release, result: Components | Correlation) -> None:
        self.guarantee_ = fits.guarantee_of(release)
        shares: Matrix | None
        explained = None
        if isinstance(result, Correlation):
            components, quality, shares, ends = result.components, result.alignment, result.shares, result.intervals
        else:
            components, quality, ends = result, alignment(release, result), None
            shares = _shares(release, result, quality)
            if self.whiten or isinstance(_count(self.n_components), float) or release.bound.columns <= WIDE:
                explained = captured(release, result)
        k = len(components.components)
        self.components_, self.n_components_ = components.components, k
        self.mean_, self.scale_ = components.mean, components.scale
        self.explained_variance_ = components.eigenvalues if components.per_row else None
        self.explained_variance_ratio_, self.explained_variance_ratio_intervals_ = shares, ends
        self.left_out_ = result.left_out if isinstance(result, Correlation) else ()
        self.n_above_noise_ = None if quality is None else min(quality.counted, k)
        self.component_groups_ = (
            None if quality is None else tuple(group for group in quality.groups if group.start < k)
        )
        self.squared_cosines_ = None if quality is None else quality.squared_cosines
        self.squared_cosine_intervals_ = None if quality is None else quality.cosine_intervals
        likelihood.set_variances(self, components, explained)
        if quality is not None and quality.counted < k:
            _warn_below_noise(quality.counted, k)


def _count(n_components: object) -> float | None:
    if isinstance(n_components, str) and n_components == AUTO:
        return None
    if isinstance(n_components, float | np.floating) and 0 < n_components < 1:
        return float(n_components)
    if isinstance(n_components, bool) or not isinstance(n_components, numbers.Integral) or n_components < 1:
        raise UsageError(
            f"n_components must be an integer of at least 1, a share of the variance between 0 and 1, or {AUTO!r} (all "
            "above the noise)."
        )
    return int(n_components)


def _number(count: float | None) -> int | None:
    """Return the number of components; None if it depends on the release."""
    return count if isinstance(count, int) else None


def _require_kind(correlation: object, whiten: object) -> None:
    """Refuse whitening of correlation components before anything is charged."""
    if not isinstance(correlation, bool | np.bool_):
        raise UsageError("correlation must be True or False.")
    if not isinstance(whiten, bool | np.bool_):
        raise UsageError("whiten must be True or False.")
    if correlation and whiten:
        raise UsageError("Scores of standardised columns cannot be whitened: leave out whiten or correlation.")


def _require_components(request: ReleaseRequest, size: Dimensions, *, count: float | None, correlation: bool) -> None:
    """Refuse components that no release could have, before it is charged."""
    number = _number(count)
    if number is not None and number > size.columns:
        raise UsageError(
            f"{number} components were requested ({parameter('components')}), but X has {size.columns} columns."
        )
    if number is None and not (correlation and count is not None):  # a share of correlations needs no distribution
        require_noise_distribution(request, size.columns)
    if correlation:
        require_correlated(
            subspace=fits.releases_subspace(request),
            mechanism=request.mechanism,
            centred=request.centred,
        )


def _shares(release: Release, components: Components, quality: Alignment | None) -> Matrix | None:
    """Return the share of the total variance explained by each component, from 0 to 1; None if unknown."""
    trace = total_variance(release)
    if components.eigenvalues is None or trace is None:
        return None
    values = np.maximum(components.eigenvalues, 0) if quality is None else np.nan_to_num(quality.strengths)
    # the exact trace is at least the sum of some eigenvalues; only noise makes it smaller, or negative
    total = max(trace, float(values.sum()))
    return values / total if total > 0 else np.zeros_like(values)


def _warn_below_noise(above: int, count: int) -> None:
    advice = (
        f"PrivatePCA.from_release(fitted.release_, n_components={above}) returns only the others, at no cost."
        if above
        else f"Use a larger epsilon, more rows or fewer columns; {step('forecast')} reports what is needed."
    )
    warn_caller(
        f"{count - above} of {count} components are below the noise of the release, so their directions are arbitrary. "
        f"squared_cosines_ has the alignment of the others. {advice}",
        BelowNoiseWarning,
    )


def _require_lazy_output(estimator: PrivatePCA) -> None:
    """Refuse to make a DataFrame in memory of lazy scores: scikit-learn would compute all of them."""
    own = getattr(estimator, "_sklearn_output_config", {})
    if own.get("transform", get_config()["transform_output"]) != "default":
        raise UsageError(
            "The scores of a Dask collection stay lazy, and scikit-learn is set to make DataFrames in memory of them "
            "(set_output). Call set_output(transform='default') on the estimator before."
        )


def _select_components(release: Release, count: float | None) -> Components:
    if isinstance(count, float):
        return components_with_share(release, count)
    return components_above_noise(release) if count is None else components(release, count)


def _scores(rows: npt.NDArray[np.generic], projector: Projector, centre: Matrix) -> npt.NDArray[np.floating]:
    return projector(with_centre(rows, centre))


def _rows_of_scores(scores: npt.NDArray[np.generic], mean: Matrix, scale: Matrix, components: Matrix) -> Matrix:
    rows: Matrix = scores.astype(np.float64) @ components
    rows *= scale
    rows += mean
    return rows
