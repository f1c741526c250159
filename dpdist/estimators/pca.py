"""PrivatePCA: principal components of private rows, with scikit-learn's conventions."""

from __future__ import annotations

import numbers
import os
import warnings
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpdist.answers.captured import WIDE, captured, holding
from dpdist.errors import BelowNoiseError, BelowNoiseWarning, DataError, UsageError
from dpdist.estimators import fit as fits
from dpdist.estimators import likelihood
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, sharing
from dpdist.estimators.inputs import rows_at, rows_in_memory, rows_of, scores_given
from dpdist.ingest.labelled import relabelled
from dpdist.ingest.registered import open_rows
from dpdist.naming import ESTIMATORS, naming, parameter, step
from dpdist.pca.alignment import Alignment, alignment, counted_components, require_law
from dpdist.pca.components import Components, components, total_variance
from dpdist.pca.correlation import Correlation, require_correlated
from dpdist.pca.correlation import correlation as correlation_of
from dpdist.pca.projection import Projector, scores_in_memory
from dpdist.pipeline.components import components_of
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.runtime.cluster import Cluster

AUTO = "auto"


@sharing
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc] # no types
    """Principal components of private rows: one differentially private release, then free post-processing.

    ``fit`` releases the second moment (or, by some mechanisms, the components) of X once, under the guarantee that
    ``guarantee_`` states. All fitted attributes are functions of that release: they may be published, and so may the
    pickled estimator. What ``transform`` returns are private rows in fewer dimensions, and may not.

    Parameters
    ----------
    n_components : int, float or "auto", default "auto"
        Number of components k; ``"auto"``: those that can be told from the noise of the release; or, between 0 and 1, a
        share of the variance: the fewest whose interval of that share begins at it or above. With ``clip="private"``
        the clip norm suits this number: another one is another release, charged anew.
    correlation : bool, default False
        Whether to take components of the correlation matrix: columns are standardised by what was released (``scale_``
        is their deviation then), without those that do not stand above the noise (``left_out_``). It needs a
        ``centre`` or ``scale="private"``; scores are not whitened, and have no likelihood.
    whiten : bool, default False
        Whether ``transform`` divides the scores by the square roots of ``score_variances_``. Refused where the noise
        lets one of these be 0.
    options : mapping of str, default None
        Public parameters of the mechanism, by name; ``components`` is filled from ``n_components``.
    {shared}

    Attributes
    ----------
    components_ : ndarray
        (k, d) float64, orthonormal rows, by descending eigenvalue; the entry of largest magnitude of each is positive.
    mean_, scale_ : ndarray
        (d,) float64: what ``transform`` subtracts, and divides by. The mean is zero with ``centre="none"``.
    explained_variance_ : ndarray or None
        (k,) float64: the eigenvalues, per row, as released, of rows shortened to ``clip``. None where n is
        private and no mean was released, or where the mechanism releases no eigenvalues.
    explained_variance_ratio_ : ndarray or None
        (k,) float64, with a sum of at most 1: each eigenvalue without what the noise adds to it (as released, where the
        law of the noise is not known), over the trace of the released matrix or their sum, whichever is larger; 0 where
        the component is not told from noise. None where no matrix was released. Of correlations: over the number of
        columns that were not left out.
    explained_variance_ratio_intervals_ : ndarray or None
        (k, 2): of correlations, where these lie as far as noise goes (:mod:`dpdist.pca.correlation`); else None.
    left_out_ : tuple of str
        Of correlations: names of the columns that do not stand above the noise. Their loadings are 0.
    score_variances_, score_variance_intervals_ : ndarray or None
        (k,) and (k, 2) float64: variance of the scores of the shortened rows on each component, less than its
        eigenvalue, and where it lies in nine of ten releases or more, on average (measured:
        :mod:`dpdist.answers.captured`). None where the law of the noise is not known, n is private and no mean was
        released, or there are more than 2000 columns and nothing asks for them.
    noise_variance_, noise_variance_interval_ : float, ndarray or None
        Mean variance along all other directions, as of scikit-learn's PCA, and (2,) its interval; 0 where k is d. None
        likewise.
    captured_variance_ratio_, captured_variance_ratio_interval_ : float, ndarray or None
        Share of the variance of the shortened rows that the k components hold together, and (2,) its interval.
    n_above_noise_ : int or None
        Number of the k components above the noise of the release; a :class:`dpdist.BelowNoiseWarning` is given if these
        are not all. None if the distribution of the noise is not known.
    component_groups_ : tuple of range or None
        These, counted from 0, in groups of components that cannot be told from one another. None likewise.
    squared_cosines_ : ndarray or None
        (k,) float64: how well each component is aligned with the exact one, 1 for the same direction; of a group of
        several, the mean squared cosine of the space that they span. NaN of components that cannot be told from noise.
        None likewise.
    squared_cosine_intervals_ : ndarray or None
        (k, 2) float64: the squared cosine of each lies between these in nine of ten releases or more; NaN likewise.
    guarantee_ : Guarantee
        What is proved of this release.
    release_ : Release
        The release; there also if what came after it failed.
    n_components_, n_features_in_, feature_names_in_ : int, int, ndarray of str
        k, d and, where the columns have names, these.

    Notes
    -----
    X may be a NumPy array, a SciPy sparse matrix, a pandas DataFrame, a Dask array, a Zarr array, an xarray DataArray
    or Dataset (rows along the first dimension, the others laid out as columns: :meth:`to_xarray`), an AnnData (its
    ``.X``, also sparse or backed), or the path of a rows.zarr. A Dask array is summed block by block where its client
    computes, a Zarr array or backed AnnData is read in pieces.

    **The guarantee is about the rows of X.** It does not cover what was computed from all rows before, such as by a
    fitted ``StandardScaler``: give a public centre and scale, or ``scale="private"``. Choosing parameters by
    cross-validation is not private: it chooses by exact scores of the rows, whatever the fits cost. So every ``score``
    comes with a :class:`dpdist.PrivacyLeakWarning`.

    **A guarantee that promises little** comes with a :class:`dpdist.WeakGuaranteeWarning`: an epsilon above 10,
    or where n is private a delta from 1e-4 on.

    **Later steps of a pipeline are not private.** A classifier fitted to the scores learns from private rows; the
    guarantee covers the estimator, not what is computed from ``transform``.

    **Rows in memory have no ledger.** A register in this process knows rows again by their values: in copies, other
    orders, types and chunkings, and as parts of other tables. It sees neither what other processes released nor rows
    whose values changed, such as by a scaler (:mod:`dpdist.ledger.in_memory`). A second fit of as many rows of the
    same kind therefore warns of the joint cost. Charge all fits on the same people to one :class:`dpdist.Budget`, which
    counts whatever the rows are, or ingest the rows and fit the path: its ledger is durable, and the same fit again is
    the same release at no cost.

    NaN and infinity are refused before anything is charged, but for a rows.zarr, where such a row counts as zero.

    See Also
    --------
    PrivateCovariance : Mean and covariance instead.
    release_rows, fit_components, project_rows : The same steps, of a rows.zarr and as functions.
    Budget : What all fits on the same people may cost.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014; Balle & Wang 2018; Biane 1998 (how well components are aligned with the exact
    ones: :mod:`dpdist.pca.overlap`). What is proved of each mechanism stands in its module
    (:mod:`dpdist.mechanisms`).

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
    >>> pca.fit(X)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    dpdist.errors.RefusedError: Some or all of these rows were released once before in this process. ...
    >>> PrivatePCA.from_release(pca.release_, n_components=3).components_.shape  # free
    (3, 64)

    Another number of components costs nothing, nor does anything else that is computed from ``release_``.
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
        cluster: Cluster | None = None,
    ) -> Self:
        """Return an estimator that is fitted to a release that was made before, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        n_components, correlation, whiten
            As of the class.
        cluster
            Where a release that is too large for memory is multiplied; None: in this process.

        Raises
        ------
        UsageError
            If there are not so many components, none is told from noise, those that are hold no such share for
            sure, or they cannot be whitened.
        RefusedError
            If the release is not private as claimed.
        DataError
            If there is no release, or it is damaged or too large for memory and no path was given.
        """
        with naming(ESTIMATORS):
            count = _count(n_components)
            _require_kind(correlation, whiten)
            if correlation:
                opened = release if isinstance(release, Release) else open_release(release)
                found: Components | Correlation = correlation_of(opened, count)
            elif not isinstance(release, Release):
                opened, found = components_of(release, count, cluster=cluster)
            elif release.in_memory:
                opened, found = release, _taken(release, count)
            else:
                raise DataError("The release is too large for memory: pass the path of its release.zarr.")
            fits.require_private(opened)
            shared = fits.parameters_of(opened) | {"cluster": cluster}
            made = cls(n_components, correlation=correlation, whiten=whiten, **shared)
            fits.take_release(made, opened)
            made._learn(opened, found)
        return made

    def fit(self, X: object, y: object = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's names
        """Release the second moment of X, and take its components.

        Parameters
        ----------
        X
            (n, d) real numbers; see the notes of the class.
        y
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters make no sense. After the release, if no component can be told from noise: ``release_`` is
            there then, and :meth:`from_release` takes as many components of it as wanted.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X cannot be used; a ValueError too for what is in memory.
        """
        with naming(ESTIMATORS):
            count = _count(self.n_components)
            _require_kind(self.correlation, self.whiten)
            check = partial(_require_components, count=count, correlation=self.correlation)
            release = fits.released(self, X, check, _number(count))
            try:
                self._learn(*self._components_of(release, X, count))
            except (UsageError, BelowNoiseError) as error:
                kept = "What was released is kept: PrivatePCA.from_release(fitted.release_, n_components=K) is free."
                raise type(error)(f"{error} {kept}") from None
        return self

    def transform(self, X: object) -> Any:  # noqa: N803
        """Return the scores of rows: ``((X - mean_) / scale_) @ components_.T``, whitened if asked. They are private.

        Parameters
        ----------
        X
            (n, d), of any kind that ``fit`` takes.

        Returns
        -------
        scores
            (n, k) float64, or float32 of float32 rows: of a Dask array a Dask array, nothing of which is computed yet;
            of a DataArray a DataArray of dimensions (rows, component); else a NumPy array. Of the path of a rows.zarr
            the bits that ``dpdist project`` writes, if it does not whiten.

        Raises
        ------
        DataError
            If X cannot be used or has other columns; a ValueError too.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            rows = rows_of(self, X, fitting=False)
            divided = self.components_ / likelihood.deviations(self)
            found = Components(divided, None, per_row=False, mean=self.mean_, scale=self.scale_)
            if (path := rows_at(X)) is not None:
                return scores_in_memory(open_rows(path), found)
            projector = Projector(found, rows.dtype)
            names = list(self.get_feature_names_out())
            return rows.mapped(projector, self.n_components_, projector.dtype, names, "component")

    def inverse_transform(self, X: object) -> Any:  # noqa: N803
        """Return the rows that have these scores and lie in the span of the components about the mean. Private.

        Parameters
        ----------
        X
            Scores, (n, k), of any kind that ``transform`` returns.

        Returns
        -------
        rows
            (n, d) float64, lazy or labelled where the scores are.

        Raises
        ------
        DataError
            If X has another number of columns or is no table; a ValueError too.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            scores = scores_given(X, self.n_components_)
            names = list(getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)]))
            times = self.components_ * likelihood.deviations(self)
            map_ = partial(_rows_of_scores, mean=self.mean_, scale=self.scale_, components=times)
            return scores.mapped(map_, self.n_features_in_, np.float64, names, "feature")

    def score_samples(self, X: object) -> Any:  # noqa: N803
        """Return the log-likelihood of rows by the model of probabilistic PCA, (n,) float64. They are private.

        The model is that of scikit-learn's PCA, from what was released: normal with mean ``mean_``, variances
        ``score_variances_`` along the components and ``noise_variance_`` along all else.

        Parameters
        ----------
        X
            (n, d), of any kind that ``fit`` takes but the path of a rows.zarr. Of a Dask array they are lazy.

        Raises
        ------
        UsageError
            If the release tells no variances, or the noise lets one of them be 0.
        DataError
            If X cannot be used or has other columns; a ValueError too.

        References
        ----------
        Tipping & Bishop 1999.
        """
        check_is_fitted(self, "components_")
        with naming(ESTIMATORS):
            rows = rows_in_memory(self, X, "Likelihoods are of rows in memory or lazy, and not of a rows.zarr.")
            return rows.mapped(likelihood.model_of(self), 1, np.float64, ["likelihood"], "likelihood")[:, 0]

    def score(self, X: object, y: object = None) -> float:  # noqa: N803, ARG002 - scikit-learn's names
        """Return the mean log-likelihood of rows (:meth:`score_samples`). It is private, and a warning says so.

        Parameters
        ----------
        X
            As of :meth:`score_samples`; a Dask array is computed.
        y
            Ignored.
        """
        found = float(self.score_samples(X).mean())
        fits.warn_of_score(self)
        return found

    def to_sklearn(self) -> Any:
        """Return a fitted ``sklearn.decomposition.PCA`` of the same components, for tools that know no other.

        It is as public as this estimator, and gives the same scores, whitened alike, and the same likelihoods where it
        does not whiten: those of scikit-learn are of another model then. Its
        ``explained_variance_`` are ``score_variances_`` and its ``noise_variance_`` is that of the release, at least 0;
        they are missing where the release tells no variances, and so is what needs them.

        Raises
        ------
        UsageError
            If rows are divided by a public scale, which a PCA does not do.
        """
        from sklearn.decomposition import PCA  # noqa: PLC0415 - it takes its time, and few need it

        check_is_fitted(self, "components_")
        if np.any(self.scale_ != 1):
            raise UsageError(
                "A PCA of scikit-learn divides by no scale: divide the rows by scale_ before, and fit without a scale."
            )
        made = PCA(n_components=self.n_components_, whiten=self.whiten)
        made.components_, made.mean_ = self.components_.copy(), self.mean_.copy()
        made.n_components_, made.n_features_in_ = self.n_components_, self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            made.feature_names_in_ = self.feature_names_in_
        if self.score_variances_ is not None and self.noise_variance_ is not None:
            made.explained_variance_ = np.maximum(self.score_variances_, 0)
            made.explained_variance_ratio_ = self.explained_variance_ratio_
            made.noise_variance_ = max(0.0, self.noise_variance_)
        return made

    def to_xarray(self, like: object) -> Any:
        """Return the components laid out as the columns of X are: (component, lat, lon), for example.

        Parameters
        ----------
        like : xarray.DataArray or xarray.Dataset
            X, or any with the same columns, such as one day of it. Its values are not read.

        Returns
        -------
        xarray.Dataset
            ``components`` (component, ...), ``mean`` and ``scale`` (...), and where they are known
            ``explained_variance`` and ``explained_variance_ratio`` (component,). The coordinate ``component`` has the
            names of :meth:`get_feature_names_out`, as what ``transform`` returns. Of a Dataset the first three are
            there for each of its variables, ``tas_components``.

        Raises
        ------
        UsageError
            If `like` is nothing of xarray, or has another number of columns.
        """
        check_is_fitted(self, "components_")
        vectors = {"components": self.components_, "mean": self.mean_, "scale": self.scale_}
        of_each = {
            "explained_variance": self.explained_variance_,
            "explained_variance_ratio": self.explained_variance_ratio_,
        }
        with naming(ESTIMATORS):
            return relabelled(like, vectors, list(self.get_feature_names_out()), of_each)

    @property
    def _n_features_out(self) -> int:  # what ClassNamePrefixFeaturesOutMixin asks for
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if hasattr(self, "components_"):
            facts |= {"components": self.n_components_, "told from noise": self.n_above_noise_}
        return facts

    def _components_of(
        self, release: Release, given: object, count: float | None
    ) -> tuple[Release, Components | Correlation]:
        if self.correlation:
            return release, correlation_of(release, count)
        rows = rows_at(given)
        if release.in_memory or rows is None:
            return release, _taken(release, count)
        place = fits.release_place(self, rows, fits.request_of(self, _number(count)))
        return components_of(place, count, cluster=self.cluster)

    def _learn(self, release: Release, of: Components | Correlation) -> None:
        self.guarantee_ = fits.proved(release)
        shares: Matrix | None
        held = None
        if isinstance(of, Correlation):
            found, told, shares, ends = of.components, of.alignment, of.shares, of.intervals
        else:
            found, told, ends = of, alignment(release, of), None
            shares = _shares(release, of, told)
            if self.whiten or isinstance(_count(self.n_components), float) or release.bound.columns <= WIDE:
                held = captured(release, of)
        k = len(found.components)
        self.components_, self.n_components_ = found.components, k
        self.mean_, self.scale_ = found.mean, found.scale
        self.explained_variance_ = found.eigenvalues if found.per_row else None
        self.explained_variance_ratio_, self.explained_variance_ratio_intervals_ = shares, ends
        self.left_out_ = of.left_out if isinstance(of, Correlation) else ()
        self.n_above_noise_ = None if told is None else min(told.counted, k)
        self.component_groups_ = None if told is None else tuple(each for each in told.groups if each.start < k)
        self.squared_cosines_ = None if told is None else told.squared_cosines
        self.squared_cosine_intervals_ = None if told is None else told.cosine_intervals
        likelihood.tell(self, found, held)
        if told is not None and told.counted < k:
            _warn_of_drowned(told.counted, k)


def _count(n_components: object) -> float | None:
    if isinstance(n_components, str) and n_components == AUTO:
        return None
    if isinstance(n_components, float | np.floating) and 0 < n_components < 1:
        return float(n_components)
    if isinstance(n_components, bool) or not isinstance(n_components, numbers.Integral) or n_components < 1:
        raise UsageError(
            f"n_components is a number of at least 1, a share of the variance between 0 and 1, or {AUTO!r}: those that "
            "can be told from noise."
        )
    return int(n_components)


def _number(count: float | None) -> int | None:
    """Return a number of components; None where it follows from the release."""
    return count if isinstance(count, int) else None


def _require_kind(correlation: object, whiten: object) -> None:
    """Refuse what does not go with components of the correlation matrix, before anything is paid for."""
    if not isinstance(correlation, bool | np.bool_):
        raise UsageError("correlation is True or False.")
    if correlation and whiten:
        raise UsageError("Scores of standardised columns are not whitened: leave whiten or correlation out.")


def _require_components(request: ReleaseRequest, columns: int, *, count: float | None, correlation: bool) -> None:
    """Refuse components that no release could have, before one is paid for."""
    number = _number(count)
    if number is not None and number > columns:
        raise UsageError(
            f"{number} components were asked for ({parameter('components')}), and X has {columns} columns."
        )
    if number is None and not (correlation and count is not None):  # a share of correlations needs no law of the noise
        require_law(request, columns)
    if correlation:
        require_correlated(
            subspace=fits.releases_subspace(request),
            mechanism=request.mechanism,
            centred=request.centring is Centring.PRIVATE or request.centre is not None or request.scale == "private",
        )


def _shares(release: Release, found: Components, told: Alignment | None) -> Matrix | None:
    """Return which share of the total variance each component explains, from 0 to 1; None where nothing is known."""
    trace = total_variance(release)
    if found.eigenvalues is None or trace is None:
        return None
    values = np.maximum(found.eigenvalues, 0) if told is None else np.nan_to_num(told.strengths)
    # the exact trace is no smaller than the sum of some of its eigenvalues; noise alone makes it so, or negative
    whole = max(trace, float(values.sum()))
    return values / whole if whole > 0 else np.zeros_like(values)


def _warn_of_drowned(above: int, count: int) -> None:
    rest = (
        f"PrivatePCA.from_release(fitted.release_, n_components={above}) takes those that do, free."
        if above
        else f"Take a larger epsilon, more rows or fewer columns: {step('forecast')} says what would be needed."
    )
    warnings.warn(
        f"{count - above} of {count} components cannot be told from the noise of the release, and may point anywhere: "
        f"squared_cosines_ says how well each of the others points. {rest}",
        BelowNoiseWarning,
        stacklevel=3,
    )


def _taken(release: Release, count: float | None) -> Components:
    if isinstance(count, float):
        return holding(release, count)
    return counted_components(release) if count is None else components(release, count)


def _rows_of_scores(scores: npt.NDArray[np.generic], mean: Matrix, scale: Matrix, components: Matrix) -> Matrix:
    found: Matrix = scores.astype(np.float64) @ components
    found *= scale
    found += mean
    return found
