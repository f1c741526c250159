"""PrivateRidge: a linear regression of private targets on private columns, with intervals, by scikit-learn's rules."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpdist._util.text import counted
from dpdist.answers.block import beside, places_of, require_law
from dpdist.answers.regression import Estimate, Regression, regressions
from dpdist.errors import BelowNoiseError, BelowNoiseWarning, UsageError
from dpdist.estimators import fit as fits
from dpdist.estimators.base import Matrix, PrivateEstimator, Shared, sharing
from dpdist.estimators.inputs import Rows, RowsError, given_names, rows_at, rows_in_memory, tell_columns
from dpdist.estimators.targets import Targets, targets_of
from dpdist.ingest.registered import open_rows
from dpdist.naming import ESTIMATORS, naming
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.advice import weightless
from dpdist.release.artefact import Release
from dpdist.release.request import ReleaseRequest

Names = str | Sequence[str]
AUTO = "auto"


@sharing
class PrivateRidge(MultiOutputMixin, RegressorMixin, PrivateEstimator):  # type: ignore[misc] # no types
    """Ridge regression of private rows from one differentially private release, with intervals.

    ``fit`` releases the second moment of X and y together, once, under the guarantee that ``guarantee_`` states. All
    fitted attributes are functions of that release: they may be published, and so may the pickled estimator. The same
    release answers every other regression among its columns too, at no cost (:meth:`from_release`).

    Parameters
    ----------
    ridge : float or "auto", default "auto"
        What is added to the sum of squares of each column of X, in squared units of the rows after the public centre
        and scale, as ``alpha`` of scikit-learn's ``Ridge``. ``"auto"``: 0 where the columns vary clearly more than the
        noise along every direction; else the edge of the noise, below which nothing can be seen. The intercept is free
        of it.
    n_components : int or "auto", default None
        How many principal components of X, as released, to regress on instead of a ridge; ``"auto"``: those clear of
        the noise. Then ``coef_`` is in their span, and intervals are about the regression on these directions. None:
        the ridge.
    clip : float, "auto" or "private"
        The clip norm C > 0 of a row of X and y together, in their units after centre and scale; public. Required.
        ``"auto"`` and ``"private"`` as of :class:`dpdist.PrivatePCA`.
    centre : str, path-like, sequence of float or mapping, default "private"
        As of :class:`dpdist.PrivatePCA`, of the columns of X and then those of y. Only ``"private"`` fits an intercept;
        otherwise the regression leads through the public centre.
    scale, scale_share : str, default "none" and None
        As of :class:`dpdist.PrivatePCA`, of the columns of X and of those of y. A private scale makes a deviation of y
        a quarter of the clip norm, so that noise hides less of it: of a rows.zarr another y is then another release,
        charged anew. A public one does so at 4 / C of the deviation.
    {shared}

    Attributes
    ----------
    coef_ : ndarray
        (p,) float64, or (k, p) where y has two dimensions: in units of the target per unit of the column.
    intercept_ : float or ndarray
        Of k targets (k,).
    coef_intervals_, intercept_intervals_ : ndarray
        The shape of the estimates and two more entries last: between these the ridge regression of the rows, shortened
        to ``clip``, lies in 95 of 100 releases; with ``n_components`` in nine of ten, where some of these stand just
        above the noise.
    coef_population_intervals_, intercept_population_intervals_ : ndarray or None
        The same for the population, if the rows are independent draws from it with residuals of equal variance; None
        where n is private and no mean was released, or incomplete rows count as the centre. Rows of one privacy unit
        are hardly independent: where a unit may own several (``release_.unit``), these intervals are too narrow.
    r2_ : float or ndarray
        The share of the variance of the shortened rows' target that the coefficients explain, as the release tells:
        about its mean, where that was released, else about the centre.
    r2_intervals_ : ndarray
        Two ends for each, as above.
    ridge_ : float
        The ridge that was taken; 0 on principal components.
    n_components_ : int or None
        How many principal components were taken; None: the ridge.
    target_names_ : ndarray of str
        Names of the targets, (k,).
    guarantee_, release_ : Guarantee, Release
        As of :class:`dpdist.PrivatePCA`.
    n_features_in_, feature_names_in_ : int, ndarray of str
        p and, where the columns have names, these.

    Notes
    -----
    X is of any kind that :class:`dpdist.PrivatePCA` takes. y is an array, (n,) or (n, k), a Series or a DataFrame, or a
    Dask array where X is one. For the path of a rows.zarr, y is the name of one of its columns, or a list of names; a
    column of its schema stands for all that were made of it, so that a category is explained by one regression for each
    of its values. Rows are shortened together with their targets, and everything is about rows so shortened.

    A private scale may find numbers beyond 2^20 in a column. It weighs nothing then (``release_.blindly_scaled``): its
    coefficient is 0, in an interval without ends, or it is left out where columns are taken by name. As a target it is
    refused.

    What ``predict`` and ``score`` return is private where the rows are. How intervals follow from the law of the noise:
    :mod:`dpdist.answers.regression`.

    See Also
    --------
    PrivateCovariance : Mean and covariance instead.
    PrivatePCA : Components instead; its notes hold here too.

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
    >>> found = PrivateRidge(epsilon=1, delta=1e-6, clip=6).fit(X, y)
    >>> found.coef_.shape, found.coef_intervals_.shape, str(found.guarantee_.loss)
    ((3,), (3, 2), 'epsilon 1, delta 1e-06')
    >>> found.predict(X[:2]).shape
    (2,)
    >>> PrivateRidge.from_release(found.release_, "c0", on=["c1", "c2"]).coef_.shape  # another one, free
    (2,)
    """

    _centre = "private"

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
    ) -> Self:
        """Return an estimator that is fitted to a release that was made before, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        target
            Name of a column, or a list of names; one of the schema stands for all columns that were made of it.
        on
            Likewise, the columns of X. None: all that were made of other columns than the targets.
        ridge, n_components
            As of the class.

        Raises
        ------
        UsageError
            If there are no such columns, the release is of a subspace, there are fewer rows than columns, or the noise
            drowns the target.
        RefusedError
            If it is not private as claimed.
        DataError
            If there is none, it is damaged, or there are too many columns.
        """
        with naming(ESTIMATORS):
            opened = fits.opened(release)
            made = cls(ridge, n_components=n_components, **fits.parameters_of(opened))
            made.release_ = opened
            made._learn(opened, target, on)
        return made

    def fit(self, X: object, y: object) -> Self:  # noqa: N803 - scikit-learn's names
        """Release the second moment of X and y, and take the regression of y on X from it.

        Parameters
        ----------
        X
            (n, p) real numbers, or the path of a rows.zarr; see the notes of the class.
        y
            (n,) or (n, k) real numbers, or names of columns of the rows.zarr.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters make no sense. After the release, if the noise drowns the target: ``release_`` is there then.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X or y cannot be used; a ValueError too for what is in memory.
        """
        with naming(ESTIMATORS):
            _asked(self.ridge, self.n_components)
            if (path := rows_at(X)) is None:
                given = targets_of(y, self)
                joined = partial(self._joined, given)
                release = fits.released(self, X, _require_matrix, targets=given.names, beside=joined)
                target: Names = given.names[0] if given.flat else given.names
                on: Names | None = [name for name in release.names if name not in given.names]
            else:
                target, on = _named(y), None
                table = open_rows(path)
                places = places_of(table, _listed(target), "y")  # before anything is charged
                release = fits.released(self, X, _require_matrix, targets=[table.names[i] for i in places])
            try:
                self._learn(release, target, on, whole=on is not None)
            except (UsageError, BelowNoiseError) as error:
                kept = "What was released is kept: PrivateRidge.from_release(fitted.release_, target) is free."
                raise type(error)(f"{error} {kept}") from None
        return self

    def predict(self, X: object) -> Any:  # noqa: N803
        """Return the targets that rows should have: ``X @ coef_ + intercept_``. They are private.

        Parameters
        ----------
        X
            (n, p), of any kind that ``fit`` takes but the path of a rows.zarr.

        Returns
        -------
        targets
            (n,) or (n, k) float64: of a Dask array a Dask array, nothing of which is computed yet; of a DataArray a
            DataArray; else a NumPy array.

        Raises
        ------
        DataError
            If X cannot be used or has other columns; a ValueError too.
        """
        check_is_fitted(self, "coef_")
        with naming(ESTIMATORS):
            refusal = "predict takes rows of the columns of X, in memory or lazy, and no rows.zarr."
            rows = rows_in_memory(self, X, refusal)
            slopes, start = np.atleast_2d(self.coef_).T, np.atleast_1d(self.intercept_)
            names = [str(name) for name in self.target_names_]
            found = rows.mapped(partial(_told, slopes=slopes, start=start), len(names), np.float64, names, "target")
            return found[:, 0] if self.coef_.ndim == 1 else found

    def score(self, X: object, y: object, sample_weight: object = None) -> float:  # noqa: N803 - scikit-learn's names
        """Return R² of the prediction of rows. It is private, and a warning says so.

        Parameters
        ----------
        X
            (n, d), as of :meth:`predict`.
        y
            (n,) or (n, t): the targets.
        sample_weight
            (n,), or None.
        """
        found = float(super().score(X, y, sample_weight))
        fits.warn_of_score(self)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.regressor_tags.poor_score = True  # noise is the price
        return tags

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if hasattr(self, "coef_"):
            facts |= {"targets": ", ".join(map(str, self.target_names_)), "R²": np.round(self.r2_, 3)}
        return facts

    def _joined(self, given: Targets, rows: Rows) -> Rows:
        known = rows.known_rows if self.neighbours == Neighbours.REPLACE_ONE.value else None
        if known is not None and known < rows.columns:  # as the release would be refused, before it is paid for
            raise RowsError(
                f"X has {counted(known, 'sample')} and {counted(rows.columns, 'column')}: there are fewer rows than "
                "columns. Leave columns out."
            )
        return given.beside(rows)

    def _learn(self, release: Release, target: Names, on: Names | None, *, whole: bool = False) -> None:
        """Take the regression from a release; ``whole``: columns of which it tells nothing keep a place."""
        self.guarantee_ = fits.proved(release)
        targets = places_of(release, _listed(target), "target")
        columns = beside(release, targets) if on is None else places_of(release, _listed(on), "on")
        unknown = set(weightless(release, columns)) if whole else set()
        known = [i for i in columns if i not in unknown]
        ridge, components = _asked(self.ridge, self.n_components)
        found = regressions(release, targets, known, ridge, components=components)
        flat = isinstance(target, str) and len(found) == 1
        names = tuple(release.names[i] for i in columns)
        tell_columns(self, len(names), given_names(names))
        self.ridge_, self.n_components_ = found[0].ridge, found[0].components
        self.target_names_ = np.array([each.target for each in found], dtype=object)
        slopes = [_placed(each, names) for each in found]
        self.coef_, self.coef_intervals_, self.coef_population_intervals_ = _arrays(slopes, flat=flat)
        starts, start_ends, population = _arrays([[each.intercept] for each in found], flat=flat)
        if self.missing == "centre":  # rows that count as the centre are no sample of the population
            self.coef_population_intervals_ = population = None
        only = 0 if flat else (slice(None), 0)
        self.intercept_ = float(starts[0]) if flat else starts[:, 0]
        self.intercept_intervals_ = start_ends[only]
        self.intercept_population_intervals_ = None if population is None else population[only]
        shares, share_ends = np.array([each.r2.value for each in found]), np.array([each.r2_interval for each in found])
        self.r2_ = float(shares[0]) if flat else shares
        self.r2_intervals_ = share_ends[0 if flat else slice(None)]
        if drowned := [each.target for each in found if each.drowned]:
            warnings.warn(
                f"As far as the noise lets see, the columns may explain nothing of {', '.join(drowned)}: r2_intervals_ "
                "begin below 0. Take a larger epsilon, more rows, or fewer columns.",
                BelowNoiseWarning,
                stacklevel=3,
            )


def _arrays(estimates: Sequence[Sequence[Estimate]], *, flat: bool) -> tuple[Matrix, Matrix, Matrix | None]:
    """Return estimates of each target, their intervals, and those for the population: without targets if flat."""
    only = 0 if flat else slice(None)
    values = np.array([[one.value for one in each] for each in estimates])
    ends = np.array([[one.interval for one in each] for each in estimates])
    population = [[one.population_interval for one in each] for each in estimates]
    known = not any(one is None for each in population for one in each)
    return values[only], ends[only], np.array(population, dtype=np.float64)[only] if known else None


def _placed(found: Regression, names: Sequence[str]) -> list[Estimate]:
    """Return an estimate for each column: 0 of a reference; and of those of which nothing is known, in an open one."""
    known = dict(zip(found.names, found.coefficients, strict=True))
    known |= dict.fromkeys(found.reference, Estimate(0.0, 0.0, 0.0))
    return [known.get(name, Estimate(0.0, math.inf, math.inf)) for name in names]


def _told(rows: npt.NDArray[np.generic], slopes: Matrix, start: Matrix) -> Matrix:
    found: Matrix = rows.astype(np.float64) @ slopes
    found += start
    return found


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _named(y: object) -> Names:
    if isinstance(y, str) or (isinstance(y, Sequence) and y and all(isinstance(each, str) for each in y)):
        return y
    raise RowsError("For the path of a rows.zarr y is the name of one of its columns, or a list of names.")


def _asked(ridge: object, components: object) -> tuple[float | None, int | str | None]:
    """Return ridge and number of components as :func:`dpdist.answers.regression.regressions` takes them."""
    known = isinstance(ridge, str) and ridge == AUTO
    if not known and (isinstance(ridge, bool) or not isinstance(ridge, numbers.Real)):
        raise UsageError(f"ridge is a number, at least 0, or {AUTO!r}: the edge of the noise.")
    taken = None if known else float(ridge)  # type: ignore[arg-type]
    if components is None or (isinstance(components, str) and components == AUTO):
        return taken, components
    if isinstance(components, bool) or not isinstance(components, numbers.Integral) or components < 1:
        raise UsageError(f"n_components is a number of at least 1, {AUTO!r}, or None: a ridge.")
    if not known:
        raise UsageError("Components that stand above the noise need no ridge: leave ridge or n_components out.")
    return None, int(components)


def _require_matrix(request: ReleaseRequest, columns: int) -> None:
    """Refuse what gives no regression, before it is paid for."""
    noise = None if fits.releases_subspace(request) else request.with_placeholders.calibrated(columns).noise
    require_law(request.mechanism, noise)
