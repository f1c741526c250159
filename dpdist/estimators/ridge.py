"""PrivateRidge: linear regression of private targets on private columns, with intervals."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import beside, column_indices
from dpdist.answers.feasible import nearest
from dpdist.answers.regression import Estimate, Regression, regressions
from dpdist.core.errors import BelowNoiseError, BelowNoiseWarning, UsageError, warn_caller
from dpdist.core.frames import converted
from dpdist.core.ingest.registered import open_rows
from dpdist.core.naming import ESTIMATORS, naming
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.advice import weightless
from dpdist.core.release.artefact import Release
from dpdist.core.runtime.cluster import computed, computing_on
from dpdist.core.text import counted
from dpdist.estimators import fit as fits
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, with_shared_parameters
from dpdist.estimators.checked import RowsError
from dpdist.estimators.described import as_released
from dpdist.estimators.groups import apart, without
from dpdist.estimators.inputs import Rows, rows_at, rows_in_memory, set_columns, user_names
from dpdist.estimators.targets import Targets, require_same_labels, require_same_rows, targets_of, with_labels_of

Names = str | Sequence[str]
AUTO = "auto"
_KEPT = 0.9
"""Least shrinkage without a warning."""


@with_shared_parameters
class PrivateRidge(MultiOutputMixin, RegressorMixin, PrivateEstimator):  # type: ignore[misc] # no types
    """Ridge regression of private rows from one differentially private release, with intervals.

    ``fit`` releases the second moment of X and y together, once, with the guarantee in ``guarantee_``. All fitted
    attributes are functions of that release, so they and the pickled estimator may be published. The same release
    answers every other regression among its columns at no cost (:meth:`from_release`).

    Parameters
    ----------
    ridge : float or "auto", default "auto"
        Ridge added to the sum of squares of each column of X, in squared units of the rows after the public centre and
        scale, like ``alpha`` of scikit-learn's ``Ridge``. ``"auto"``: 0 if the columns vary clearly more than the noise
        along every direction; otherwise the edge of the noise, below which nothing is visible. The intercept is not
        penalised.
    n_components : int or "auto", default None
        Number of released principal components of X to regress on instead of using a ridge; ``"auto"``: those clear of
        the noise. ``coef_`` is then in their span, and intervals refer to the regression on these directions. None: use
        the ridge.
    clip : float, "auto", "private" or "schema", default None
        Clip norm C > 0 of a row of X and y together, in their units after centring and scaling; public. None and words
        as for :class:`dpdist.PrivatePCA`.
    centre : str, path-like, sequence of float or mapping, default "private"
        As for :class:`dpdist.PrivatePCA`, with the columns of X followed by those of y. Only ``"private"`` fits an
        intercept; otherwise the regression passes through the public centre.
    scale, scale_share : str, default "none" and None
        As for :class:`dpdist.PrivatePCA`, for the columns of X and y. A private scale makes the deviation of y a
        quarter of the clip norm, so that the noise hides less of it; for a rows.zarr, another y is then another
        release, charged anew. A public scale of 4 / C times the deviation has the same effect.
    {shared}

    Attributes
    ----------
    coef_ : ndarray
        (p,) float64, or (k, p) if y has two dimensions: in units of the target per unit of the column.
    intercept_ : float or ndarray
        The intercept; (k,) for k targets.
    coef_intervals_, intercept_intervals_ : ndarray
        The shape of the estimates with a last axis of length 2: intervals of the ridge regression of the rows clipped
        to ``clip``. They hold in 95 of 100 releases; with ``n_components``, in nine of ten if some components are just
        above the noise.
    coef_population_intervals_, intercept_population_intervals_ : ndarray or None
        The same for the population, assuming that rows are independent draws with residuals of equal variance. None if
        n is private and no mean was released, or if incomplete rows count as the centre. Rows of one privacy unit are
        rarely independent: if a privacy unit may own several (``release_.unit``), these intervals are too narrow.
    r2_ : float or ndarray
        Estimated share of the variance of the target explained by the coefficients, for the clipped rows: variance
        about the mean if it was released, otherwise about the centre.
    r2_intervals_ : ndarray
        Intervals of ``r2_``, as above.
    ridge_ : float
        The ridge used; 0 with principal components.
    shrinkage_ : ndarray or None
        (p,) float64 from 0 to 1: the part of a slope of least squares that the ridge keeps, for a column that is not
        correlated with the others: the diagonal of ``(A + L)^-1 A``. NaN for a column without a slope. A
        :class:`dpdist.BelowNoiseWarning` is issued below .9. None with principal components.
    n_components_ : int or None
        The number of principal components used; None with a ridge.
    target_names_ : ndarray of str
        Names of the targets, (k,).
    guarantee_, release_ : Guarantee, Release
        See :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_ : int, ndarray of str
        p and, if the columns have names, their names.

    Notes
    -----
    X may have any form accepted by :class:`dpdist.PrivatePCA`. y is an array, (n,) or (n, k), a Series, a DataFrame,
    or a Dask array if X is one. For the path of a rows.zarr, y is the name of one of its columns or a list of names. A
    column of its schema stands for all columns derived from it, so a category has one regression for each of its
    values. Rows are clipped together with their targets, and all results describe the clipped rows.

    If a private scale finds numbers beyond 2^20 in a column, the column gets weight zero
    (``release_.blindly_scaled``). Its coefficient is 0 with an infinite interval, or it is left out if columns are
    taken by name. Such a target is refused.

    Results of ``predict`` and ``score`` are private. See :mod:`dpdist.answers.regression` for the derivation of the
    intervals.

    See Also
    --------
    PrivateCovariance : Mean and covariance.
    PrivatePCA : Principal components; its notes apply here too.

    References
    ----------
    Hoerl & Kennard 1970; Dwork, Talwar, Thakurta & Zhang 2014; Wang 2018, Revisiting differentially private linear
    regression (sufficient statistics); Bun, Allez, Bouchaud & Potters 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from dpdist import PrivateRidge
    >>> draw = np.random.default_rng(1)
    >>> X = draw.normal(size=(20000, 3))
    >>> y = X @ [1, -2, 0] + draw.normal(size=20000)
    >>> model = PrivateRidge(epsilon=1, delta=1e-6, clip=6).fit(X, y)
    >>> model.coef_.shape, model.coef_intervals_.shape, str(model.guarantee_.loss)
    ((3,), (3, 2), 'epsilon 1, delta 1e-06')
    >>> model.predict(X[:2]).shape
    (2,)
    >>> PrivateRidge.from_release(model.release_, "c0", on=["c1", "c2"]).coef_.shape  # another regression, free
    (2,)
    """

    _centre = "private"

    _target_column: Any = None  # the name of the column of X that was the target of the fit

    def __init__(
        self, ridge: float | str = AUTO, *, n_components: int | str | None = None, **shared: Unpack[Shared]
    ) -> None:
        shared.setdefault("centre", self._centre)
        super().__init__(**shared)
        self.ridge = ridge
        self.n_components = n_components

    @classmethod
    def from_release(
        cls,
        release: Release | str | os.PathLike[str],
        target: Names,
        on: Names | None = None,
        *,
        ridge: float | str = AUTO,
        n_components: int | str | None = None,
        feasible: bool = False,
    ) -> Self:
        """Return an estimator fitted to an existing release, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        target
            Name of a column, or a list of names. A column of the schema stands for all columns derived from it.
        on
            Columns of X, in the same form. None: all columns not derived from the same columns as the targets.
        ridge, n_components
            See the class.
        feasible
            Whether to start from the nearest moment that rows of the schema can have: see
            :func:`dpdist.fit_components`.

        Raises
        ------
        UsageError
            If there are no such columns, the release contains a subspace, there are fewer rows than columns, or the
            target is below the noise.
        RefusedError
            If the release is not private as claimed.
        DataError
            If the release is missing or damaged, or there are too many columns.
        """
        with naming(ESTIMATORS):
            opened = fits.opened(release)
            estimator = cls(ridge, n_components=n_components, **fits.parameters_of(opened))
            estimator.release_ = opened
            estimator._learn(nearest(opened)[0] if feasible else opened, target, on)
        return estimator

    def fit(self, X: object, y: object, groups: object = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Release the second moment of X and y, and compute the regression of y on X.

        Parameters
        ----------
        X
            (n, p) real numbers, or the path of a rows.zarr; see the notes of the class.
        y
            (n,) or (n, k) real numbers; or a column of X or its name, which is then taken out of X; of a rows.zarr, one
            name or several. A Dask Series or DataFrame has the partitions and labels of X.
        groups
            Privacy unit of each row, or the name of a column of X: see :meth:`dpdist.PrivatePCA.fit`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters are invalid; after the release, if the target is below the noise (``release_`` is then set).
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X or y cannot be used; also a ValueError for data in memory.
        """
        with naming(ESTIMATORS), computing_on(self.cluster):
            _regularisation(self.ridge, self.n_components)
            if (path := rows_at(X)) is None:
                X, y, self._target_column = apart(X, y, groups)  # noqa: N806 - scikit-learn's names
                targets = targets_of(with_labels_of(X, y), self)
                require_same_labels(X, y)
                join = partial(self._joined, targets)
                release = fits.released(self, X, fits.require_matrix, targets=targets.names, join=join, groups=groups)
                target: Names = targets.names[0] if targets.flat else targets.names
                on: Names | None = [name for name in release.names if name not in targets.names]
            else:
                target, on, self._target_column = _named(y), None, None
                table = open_rows(path)
                indices = column_indices(table, _listed(target), "y")  # before anything is charged
                names = [table.names[i] for i in indices]
                release = fits.released(self, X, fits.require_matrix, targets=names, groups=groups)
            try:
                self._learn(release, target, on, keep_weightless=on is not None)
            except (UsageError, BelowNoiseError) as error:
                advice = "The release is kept: the same fit with another ridge is free."
                raise type(error)(f"{error} {advice}") from None
        return self

    def predict(self, X: object) -> Any:  # noqa: N803
        """Return the predicted targets of rows: ``X @ coef_ + intercept_``. They are private.

        Parameters
        ----------
        X
            (n, p), in any form accepted by ``fit`` except the path of a rows.zarr; or, if the release has a schema, a
            DataFrame of its source. An array is of rows as the schema encodes them.

        Returns
        -------
        targets
            (n,) or (n, k) float64: a lazy Dask array for a Dask array, a DataArray for a DataArray, otherwise a NumPy
            array.

        Raises
        ------
        DataError
            If X cannot be used or has other columns; also a ValueError.
        """
        check_is_fitted(self, "coef_")
        with naming(ESTIMATORS):
            refusal = "predict takes rows in memory or lazy, with the columns of X, not the path of a rows.zarr."
            fills = zip(self.release_.names, self.release_.bound.input_units[0], strict=True)
            rows = rows_in_memory(self, as_released(self, without(X, self._target_column), fills), refusal)
            slopes, start = np.atleast_2d(self.coef_).T, np.atleast_1d(self.intercept_)
            names = [str(name) for name in self.target_names_]
            predictions = rows.mapped(
                partial(_predictions, slopes=slopes, start=start), len(names), np.float64, names, "target"
            )
            return predictions[:, 0] if self.coef_.ndim == 1 else predictions

    def score(self, X: object, y: object, sample_weight: object = None) -> float:  # noqa: N803 - scikit-learn's names
        """Return R² of the prediction of rows. Private, and comes with a warning.

        Parameters
        ----------
        X
            (n, d), as for :meth:`predict`.
        y
            (n,) or (n, t): the targets.
        sample_weight
            (n,), or None.
        """
        check_is_fitted(self, "coef_")
        with naming(ESTIMATORS), computing_on(self.cluster):
            targets = targets_of(y, self)
            require_same_labels(X, y)
            if len(targets.names) != self.target_names_.size:
                raise RowsError(
                    f"y has {counted(len(targets.names), 'column')}, and the fit {self.target_names_.size}."
                )
            predicted, observed = np.asarray(computed(self.predict(X))), np.asarray(computed(targets.data))
        from sklearn.metrics import r2_score  # noqa: PLC0415 - slow to import, rarely used

        require_same_rows(predicted, observed)
        r2 = converted(sample_weight, "sample_weight", lambda w: r2_score(observed, predicted, sample_weight=w))
        fits.warn_of_score(self)
        return float(r2)

    def summary(self) -> str:
        """Return the coefficients of each target with intervals, R² and the guarantee as text, to be printed.

        Everything in it is public.
        """
        check_is_fitted(self, "coef_")
        from dpdist.estimators import coefficients  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return coefficients.ridge_summary(self)

    def plot(self, target: str | None = None, *, axes: Any = None) -> Any:
        """Draw the coefficients of a target in standard deviations, with intervals.

        It needs matplotlib (extra ``plots``). Everything in the picture is public.

        Parameters
        ----------
        target : str, default None
            The target. None: the first one.
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
        check_is_fitted(self, "coef_")
        from dpdist.estimators import coefficients  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return coefficients.ridge_plot(self, target, axes)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.regressor_tags.poor_score = True  # because of the noise
        return tags

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if hasattr(self, "coef_"):
            facts |= {"targets": ", ".join(map(str, self.target_names_)), "R²": np.round(self.r2_, 3)}
            facts |= {"rows": f"All is {clipped_rows(self.release_).describe()}."}
            facts |= {} if self.shrinkage_ is None else {"shrinkage": np.round(self.shrinkage_, 2)}
        return facts

    def _joined(self, targets: Targets, rows: Rows) -> Rows:
        row_count = rows.known_rows if fits.says_rows(Neighbours(self.neighbours)) else None
        if row_count is not None and row_count < rows.columns:  # refuse before the release is charged
            raise RowsError(
                f"X has {counted(row_count, 'sample')} and {counted(rows.columns, 'column')}: fewer rows than columns. "
                "Leave out columns."
            )
        return targets.joined_to(rows)

    def _learn(self, release: Release, target: Names, on: Names | None, *, keep_weightless: bool = False) -> None:
        """Set the regression of a release; ``keep_weightless`` keeps columns with weight zero in X."""
        self.guarantee_ = fits.guarantee_of(release)
        targets = column_indices(release, _listed(target), "target")
        columns = beside(release, targets) if on is None else column_indices(release, _listed(on), "on")
        unknown = set(weightless(release, columns)) if keep_weightless else set()
        used = [i for i in columns if i not in unknown]
        ridge, components = _regularisation(self.ridge, self.n_components)
        results = regressions(release, targets, used, ridge, components=components)
        self._results = results
        flat = isinstance(target, str) and len(results) == 1
        names = tuple(release.names[i] for i in columns)
        set_columns(self, len(names), user_names(names))
        self.ridge_, self.n_components_ = results[0].ridge, results[0].components
        self.target_names_ = np.array([result.target for result in results], dtype=object)
        slopes = [_estimates(result, names) for result in results]
        self.coef_, self.coef_intervals_, self.coef_population_intervals_ = _arrays(slopes, flat=flat)
        starts, start_ends, population = _arrays([[result.intercept] for result in results], flat=flat)
        if self.missing == "centre":  # cells replaced by the centre are no sample of the population
            self.coef_population_intervals_ = population = None
        only = 0 if flat else (slice(None), 0)
        self.intercept_ = float(starts[0]) if flat else starts[:, 0]
        self.intercept_intervals_ = start_ends[only]
        self.intercept_population_intervals_ = None if population is None else population[only]
        shares, share_ends = (
            np.array([result.r2.value for result in results]),
            np.array([result.r2_interval for result in results]),
        )
        self.r2_ = float(shares[0]) if flat else shares
        self.r2_intervals_ = share_ends[0 if flat else slice(None)]
        kept = results[0].shrinkage
        by_name = {} if kept is None else dict(zip(results[0].names, kept, strict=True))
        self.shrinkage_ = None if kept is None else np.array([by_name.get(name, math.nan) for name in names])
        if kept is not None and min(kept) < _KEPT:
            warn_caller(
                f"These are not the slopes of least squares: the ridge keeps {min(kept):.2g} to {max(kept):.2g} of "
                "them (shrinkage_), as the columns vary too little above the noise. n_components='auto' does not "
                "shrink; or use more rows, fewer columns or a larger epsilon.",
                BelowNoiseWarning,
            )
        if hidden := [result.target for result in results if result.drowned]:
            warn_caller(
                f"Given the noise, the columns may explain nothing of {', '.join(hidden)}: r2_intervals_ start below "
                "0. Use a larger epsilon, more rows or fewer columns.",
                BelowNoiseWarning,
            )


def _arrays(estimates: Sequence[Sequence[Estimate]], *, flat: bool) -> tuple[Matrix, Matrix, Matrix | None]:
    """Return the estimates of each target, their intervals, and the population intervals; no target axis if flat."""
    only = 0 if flat else slice(None)
    values = np.array([[estimate.value for estimate in target] for target in estimates])
    ends = np.array([[estimate.interval for estimate in target] for target in estimates])
    population = [[estimate.population_interval for estimate in target] for target in estimates]
    complete = not any(estimate is None for target in population for estimate in target)
    return values[only], ends[only], np.array(population, dtype=np.float64)[only] if complete else None


def _estimates(regression: Regression, names: Sequence[str]) -> list[Estimate]:
    """Return an estimate for each column: exactly 0 for a reference, 0 with infinite error for an unknown column."""
    by_name = dict(zip(regression.names, regression.coefficients, strict=True))
    by_name |= dict.fromkeys(regression.reference, Estimate(0.0, 0.0, 0.0))
    return [by_name.get(name, Estimate(0.0, math.inf, math.inf)) for name in names]


def _predictions(rows: npt.NDArray[np.generic], slopes: Matrix, start: Matrix) -> Matrix:
    predictions: Matrix = rows.astype(np.float64) @ slopes
    predictions += start
    return predictions


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _named(y: object) -> Names:
    if isinstance(y, str) or (isinstance(y, Sequence) and y and all(isinstance(name, str) for name in y)):
        return y
    raise RowsError("For the path of a rows.zarr, y must be the name of one of its columns or a list of names.")


def _regularisation(ridge: object, components: object) -> tuple[float | None, int | str | None]:
    """Return ridge and number of components for :func:`dpdist.answers.regression.regressions`."""
    automatic = isinstance(ridge, str) and ridge == AUTO
    if not automatic and (isinstance(ridge, bool) or not isinstance(ridge, numbers.Real)):
        raise UsageError(f"ridge must be a number of at least 0, or {AUTO!r} (chosen by the noise).")
    value = None if automatic else float(ridge)  # type: ignore[arg-type]
    if components is None or (isinstance(components, str) and components == AUTO):
        return value, components
    if isinstance(components, bool) or not isinstance(components, numbers.Integral) or components < 1:
        raise UsageError(f"n_components must be an integer of at least 1, {AUTO!r}, or None (use the ridge).")
    if not automatic:
        raise UsageError("Components above the noise need no ridge: leave out ridge or n_components.")
    return None, int(components)
