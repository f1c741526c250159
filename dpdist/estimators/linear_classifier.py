"""What classifiers share: their fit, their coefficients, and the prediction of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpdist.answers.bias import clipped_rows
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.naming import ESTIMATORS, naming
from dpdist.core.release.artefact import Release
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.cluster import computed, computing_on
from dpdist.estimators import fit as fits
from dpdist.estimators.base import Matrix, PrivateEstimator
from dpdist.estimators.checked import RowsError
from dpdist.estimators.classes import (
    Linear,
    classes_named,
    described_by,
    groups_of,
    indicators_of,
    is_class_by,
    is_class_of,
    labels_of,
    require_category,
)
from dpdist.estimators.described import as_released, rows_by
from dpdist.estimators.groups import apart, without
from dpdist.estimators.inputs import rows_at, rows_in_memory, set_columns, user_names
from dpdist.estimators.targets import Targets, require_same_labels, require_same_rows, with_labels_of

Names = Sequence[str]
Classes = Sequence[Any]


class LinearClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc] # no types
    """A classifier that is linear in the columns of a release."""

    _centre = "schema"
    classes: Classes | None
    schema: Schema | str | os.PathLike[str] | None
    _target_column: Any = None  # the name of the column of X that was the target of the fit

    @classmethod
    def from_release(
        cls, release: Release | str | os.PathLike[str], target: str, on: str | Names | None = None
    ) -> Self:
        """Return an estimator fitted to an existing release with a schema, at no cost.

        Parameters
        ----------
        release
            A release, or the path of a release.zarr.
        target
            Name of a category or boolean of its schema.
        on
            Names of other columns of the schema. None: all others.

        Raises
        ------
        UsageError
            If there are no such columns, or the target has no categories.
        BelowNoiseError
            If nothing about the target is seen above the noise.
        RefusedError
            If the release is not private as claimed.
        DataError
            If the release is missing or damaged.
        """
        with naming(ESTIMATORS):
            opened = fits.opened(release)
            estimator = cls(**fits.parameters_of(opened))
            estimator.release_ = opened
            estimator._learn(target, [on] if isinstance(on, str) else on)
        return estimator

    def fit(self, X: object, y: object, groups: object = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Release the second moment of X and the classes y together, and compute the model.

        Parameters
        ----------
        X
            (n, p) real numbers; with ``schema``, a DataFrame that has the target, too; or the path of a rows.zarr.
        y
            (n,) classes; with a schema, or for a rows.zarr, the name of the target.
        groups
            Privacy unit of each row, or the name of a column of X: see :meth:`dpdist.PrivatePCA.fit`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters are invalid, or the target has no categories.
        BelowNoiseError
            After the release, if nothing about the target is seen above the noise; ``release_`` is then set.
        RefusedError
            If the budget does not suffice, the mechanism's claim is not proved, or delta is not below 1/n.
        DataError
            If X or y cannot be used; also a ValueError for data in memory.
        """
        with naming(ESTIMATORS), computing_on(self.cluster):
            if not _is_centred(self.centre, self.scale):
                raise UsageError("A classifier needs the mean, and classes about their middle. Leave centre out.")
            stored = rows_at(X) is not None
            if stored or self.schema is not None:
                target, classes, features, self._target_column = _named(y), None, None, None
                if stored:
                    require_category(open_rows(X).schema, target)  # type: ignore[arg-type] # a path
                with self._missing_by_schema(stored=stored):
                    rows = X if stored else self._described(X, target)
                    groups = groups if stored else groups_of(X, groups)
                    fits.released(self, rows, fits.require_matrix, groups=groups)
            else:
                classes = classes_named(self.classes)
                X, y, self._target_column = apart(X, y, groups)  # noqa: N806 - scikit-learn's names
                require_same_labels(X, y)
                target, data = indicators_of(with_labels_of(X, y), classes, self)
                names = (target,) if len(classes) == 2 else tuple(f"{target}={name}" for name in classes)
                fits.released(
                    self, X, fits.require_matrix, join=Targets(data, names, flat=False).joined_to, groups=groups,
                    describe=partial(described_by, target, classes),
                )  # fmt: skip
                features = self.release_.names[: -len(names)]
            try:
                self._learn(target, None, classes, features)
            except (UsageError, BelowNoiseError) as error:
                raise type(error)(f"{error} The release is kept, in release_.") from None
        return self

    def predict_proba(self, X: object) -> Any:  # noqa: N803
        """Return the probability of each class for rows. They are private.

        Parameters
        ----------
        X
            (n, p) in the columns of the fit; or, if the release has a schema, a DataFrame of its source. An array is
            of rows as the schema encodes them.

        Returns
        -------
        probabilities
            (n, k) float64: a lazy Dask array for a Dask array, a DataArray for a DataArray, otherwise a NumPy array.

        Raises
        ------
        DataError
            If X cannot be used or has other columns; also a ValueError.
        """
        return self._mapped(X, partial(_probabilities, self), list(map(str, self.classes_)))

    def decision_function(self, X: object) -> Any:  # noqa: N803
        """Return the linear functions of rows that ``coef_`` and ``intercept_`` are, (n,) for two classes, else (n, k).

        They are private, as those of :meth:`predict_proba`, which has the parameters and errors.
        """
        found = self._mapped(X, partial(_scores, self), [str(i) for i in range(len(self.coef_))])
        return found[:, 0] if len(self.coef_) == 1 else found

    def predict(self, X: object) -> Any:  # noqa: N803
        """Return the most probable class of each row, (n,). Private, as ``predict_proba``."""
        with computing_on(self.cluster):
            return self.classes_[np.asarray(computed(self.predict_proba(X))).argmax(axis=1)]

    def score(self, X: object, y: object, sample_weight: object = None) -> float:  # noqa: N803 - scikit-learn's names
        """Return the share of rows whose class is predicted; DataError for a class that the model does not have.

        y are the classes, (n,), or the name of the target in X.

        It is private, and comes with a warning.
        """
        check_is_fitted(self, "coef_")
        frame: Any = X
        labels: Any = frame[y] if isinstance(y, str) and hasattr(X, "columns") and y in frame.columns else y
        with naming(ESTIMATORS), computing_on(self.cluster):
            predicted = np.asarray(computed(self.predict_proba(X))).argmax(axis=1)
            is_class = self._coded(labels_of(labels))
            require_same_rows(predicted, is_class)
        fits.warn_of_score(self)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return float(np.average(is_class[np.arange(len(is_class)), predicted], weights=weights))

    def summary(self) -> str:
        """Return the coefficients of each class, with intervals if there are some, and the guarantee as text.

        Everything in it is public.
        """
        check_is_fitted(self, "coef_")
        from dpdist.estimators import coefficients  # noqa: PLC0415 - slow to import

        with naming(ESTIMATORS):
            return coefficients.classifier_summary(self)

    def plot(self, target: object = None, *, axes: Any = None) -> Any:
        """Draw the coefficients of a class per standard deviation of each column, with intervals if there are some.

        It needs matplotlib (extra ``plots``). Everything in the picture is public.

        Parameters
        ----------
        target : object, default None
            The class, one of ``classes_``. None: the second of two, or the first of several.
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
            return coefficients.classifier_plot(self, target, axes)

    def _coded(self, y: Any) -> Any:
        """Return which class each row has, (n, k); of a source, as its schema reads it."""
        if self._target is None:
            return is_class_of(y, self.classes_.tolist())
        return is_class_by(self.release_.schema, self._target, y)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.classifier_tags.poor_score = True  # because of the noise
        return tags

    def _facts(self) -> dict[str, object]:
        facts = super()._facts()
        if hasattr(self, "coef_"):
            facts |= {"classes": ", ".join(map(str, self.classes_))}
            facts |= {"rows": f"All is {clipped_rows(self.release_).describe()}."}
        return facts

    @contextmanager
    def _missing_by_schema(self, *, stored: bool) -> Iterator[None]:
        """Let missing cells of a DataFrame with a schema be those that the schema left missing."""
        before, self.missing = self.missing, self.missing if stored else "centre"
        try:
            yield
        finally:
            self.missing = before

    def _described(self, data: Any, target: str) -> Any:
        """Return the rows of a DataFrame by the schema, which will describe the release."""
        if self.classes is not None:
            raise UsageError("The schema has the classes of the target. Leave classes out.")
        schema = self.schema if isinstance(self.schema, Schema) else Schema.read(self.schema)
        require_category(schema, target)
        self.__dict__[fits.DESCRIBED] = schema
        return rows_by(schema, data)

    def _learn(
        self, target: str, on: Names | None, classes: Classes | None = None, features: Names | None = None
    ) -> None:
        """Set the model of a release; ``features``: the columns of X, which are otherwise those of the variables."""
        held = variables(self.release_)
        if not held.categorical:
            raise UsageError(
                "This release has no categories. Ingest the rows with a schema, in which the target is a boolean or a "
                "category, and release them."
            )
        self.guarantee_ = fits.guarantee_of(self.release_)
        labels, slopes, starts, *ends = self._model(held, target, on)
        columns = Linear(held, held.named(target), on, features)
        self.coef_, self.intercept_ = columns.per_unit(labels, slopes), starts
        self._of_encoded = columns.per_input(labels, slopes), starts + columns.offset(labels, slopes)
        if ends:
            ordered = [columns.per_unit(labels, each, sign * np.inf) for each, sign in zip(ends, (-1, 1), strict=True)]
            self.coef_intervals_ = np.stack(ordered, axis=-1)
        variable = held.categorical[columns.target]
        known = [False, True] if len(variable.places) == 1 else variable.categories
        self.classes_ = np.array(known if classes is None else classes)
        self._target = None if classes is not None else columns.target  # in the schema of the source
        self._features = columns.features
        self._fills = {
            name: fill for name, fill in zip(columns.features, columns.fills, strict=True) if fill is not None
        }
        set_columns(self, len(columns.features), user_names(columns.features))

    def _model(self, held: Variables, target: str, on: Names | None) -> tuple[Any, ...]:
        """Return labels, slopes (r, p) and intercepts (r,) in units of the source; and the ends of slopes, if known."""
        raise NotImplementedError  # each kind of classifier has a model of its own

    def _mapped(self, data: Any, function: Any, names: Names) -> Any:
        check_is_fitted(self, "coef_")
        with naming(ESTIMATORS):
            refusal = f"{type(self).__name__} predicts rows in memory or lazy ones, not the path of a rows.zarr."
            data = without(data, self._target_column)
            data = data if self._target is None else as_released(self, data, self._fills.items())
            return rows_in_memory(self, data, refusal).mapped(function, len(names), np.float64, names, "class")


def _is_centred(centre: object, scale: object) -> bool:
    """Whether a release has the mean, and classes about their middle."""
    return isinstance(centre, str) and (centre == "schema" or (centre == "private" and isinstance(scale, str)))


def _named(y: object) -> str:
    if not isinstance(y, str):
        raise RowsError("With a schema, or for the path of a rows.zarr, y must be the name of the target.")
    return y


def _scores(model: Any, rows: Any) -> Matrix:
    slopes, starts = model._of_encoded  # noqa: SLF001 - of this module
    scores: Matrix = rows.astype(np.float64) @ slopes.T + starts
    return scores


def _probabilities(model: Any, rows: Any) -> Matrix:
    return model._of_scores(_scores(model, rows))  # type: ignore[no-any-return] # noqa: SLF001 - of this module
