"""PrivateLogisticRegression and PrivateLDA: classes predicted from one private release."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from scipy.special import expit, logit, softmax

from dpdist.answers.discriminant import discriminant
from dpdist.answers.logistic import logistic
from dpdist.answers.variables import Variables
from dpdist.core.rows.schema import Schema
from dpdist.estimators.base import Matrix, Shared, with_shared_parameters
from dpdist.estimators.linear_classifier import LinearClassifier

Names = Sequence[str]
Classes = Sequence[Any]


@with_shared_parameters
class PrivateLogisticRegression(LinearClassifier):
    """Logistic regression of a class from one differentially private release, with intervals.

    ``fit`` releases the second moment of X and y together, once, with the guarantee in ``guarantee_``. All fitted
    attributes are functions of that release, so they and the pickled estimator may be published. A release with a
    schema answers for each of its categories at no cost (:meth:`from_release`).

    Parameters
    ----------
    classes : sequence, default None
        The classes, from public knowledge. None: 0 and 1, or False and True.
    schema : Schema, str or path-like, default None
        The meaning of the columns of a DataFrame X, of which y names the target. None: X are numbers.
    centre : {"schema", "private"}, default "schema"
        The mean is released as well, with classes and categories about public middles. ``"private"`` is the same where
        no public scale is given.
    {shared}

    Attributes
    ----------
    classes_ : ndarray
        (k,) the classes.
    coef_ : ndarray
        (1, p) float64 for two classes, else (k, p): logarithms of odds ratios per unit of a column of X, by a schema in
        the units of its source. 0 for the first category of a variable, for a column that a private scale left out,
        and for a class about which nothing is seen above the noise.
    intercept_ : ndarray
        (1,) or (k,) float64.
    coef_intervals_ : ndarray
        The shape of ``coef_`` with a last axis of two: intervals for the noise, of the model that the exact moment of
        the clipped rows has, in 95 of 100 releases.
    guarantee_ : Guarantee
        What is proved of the release.
    release_ : Release
        The release.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    A moment has no likelihood: the model takes the sum of the columns for normal, or normal within the categories of
    one variable, and has the ridge that the noise needs (:mod:`dpdist.answers.logistic`). So it ranks rows nearly as
    well as the maximum of the likelihood (an area under the curve of .900 for .905 on held-out rows of a9a, epsilon 1),
    and its probabilities may be off. Results of the methods for rows are private.

    See Also
    --------
    PrivateLDA : Linear discriminant analysis.
    PrivateRidge : Regression of numbers.

    References
    ----------
    Stein 1981; Böhning 1992, Multinomial logistic regression algorithm.

    Examples
    --------
    >>> import numpy as np
    >>> from dpdist import PrivateLogisticRegression
    >>> draw = np.random.default_rng(1)
    >>> X = draw.normal(size=(20000, 2))
    >>> y = draw.random(20000) < 1 / (1 + np.exp(-X @ [1, -2]))
    >>> model = PrivateLogisticRegression(epsilon=1, delta=1e-6).fit(X, y)
    >>> model.coef_.shape, model.predict_proba(X[:3]).shape
    ((1, 2), (3, 2))
    """

    def __init__(
        self,
        classes: Classes | None = None,
        *,
        schema: Schema | str | os.PathLike[str] | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        shared.setdefault("centre", self._centre)
        super().__init__(**shared)
        self.classes = classes
        self.schema = schema

    def _model(self, held: Variables, target: str, on: Names | None) -> tuple[Any, ...]:
        found = {model.target: model for model in logistic(held, target, on)}
        labels = [each.name for each in next(iter(found.values())).effects]
        names, counts = held.categorical[held.named(target)].categories, held.counts(target).values
        wanted = list(found) if len(names) == 2 else [f"{target}={name}" for name in names]
        unseen = [(0.0, -np.inf, np.inf)] * len(labels)  # so it is predicted by its share
        ends = [
            [(each.value, *each.interval) for each in found[name].effects] if name in found else unseen
            for name in wanted
        ]
        values, low, high = np.moveaxis(np.array(ends), -1, 0)
        shares = np.clip(counts / held.rows, 1 / held.rows, 1 - 1 / held.rows)
        starts = [found[name].intercept if name in found else logit(shares[i]) for i, name in enumerate(wanted)]
        return labels, values, np.array(starts), low, high

    def _of_scores(self, scores: Matrix) -> Matrix:
        found: Matrix = expit(scores)
        if found.shape[1] == 1:
            return np.hstack([1 - found, found])
        found /= found.sum(axis=1, keepdims=True)
        return found


@with_shared_parameters
class PrivateLDA(LinearClassifier):
    """Linear discriminant analysis of a class from one differentially private release.

    As :class:`PrivateLogisticRegression`, with probabilities for columns that are normal in each class, with one
    covariance.

    Parameters
    ----------
    classes : sequence, default None
        The classes, from public knowledge. None: 0 and 1, or False and True.
    schema : Schema, str or path-like, default None
        The meaning of the columns of a DataFrame X, of which y names the target. None: X are numbers.
    centre : {"schema", "private"}, default "schema"
        As for :class:`PrivateLogisticRegression`.
    {shared}

    Attributes
    ----------
    classes_ : ndarray
        (k,) the classes.
    coef_, intercept_ : ndarray
        (1, p) and (1,) for two classes, else (k, p) and (k,) float64: the discriminants, per unit of a column of X, by
        a schema in the units of its source.
    guarantee_ : Guarantee
        What is proved of the release.
    release_ : Release
        The release.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    PrivateLogisticRegression : The same in terms of odds, with intervals.

    References
    ----------
    Fisher 1936, The use of multiple measurements in taxonomic problems.

    Examples
    --------
    >>> import numpy as np
    >>> from dpdist import PrivateLDA
    >>> draw = np.random.default_rng(1)
    >>> y = draw.integers(0, 2, 20000)
    >>> X = draw.normal(size=(20000, 3)) + y[:, None] * [1, 0, -1]
    >>> PrivateLDA(epsilon=1, delta=1e-6).fit(X, y).coef_.shape
    (1, 3)
    """

    def __init__(
        self,
        classes: Classes | None = None,
        *,
        schema: Schema | str | os.PathLike[str] | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        shared.setdefault("centre", self._centre)
        super().__init__(**shared)
        self.classes = classes
        self.schema = schema

    def _model(self, held: Variables, target: str, on: Names | None) -> tuple[Any, ...]:
        found = discriminant(held, target, on)
        if len(found.slopes) == 2:
            return found.names, found.slopes[1:] - found.slopes[:1], found.intercepts[1:] - found.intercepts[:1]
        return found.names, found.slopes, found.intercepts

    def _of_scores(self, scores: Matrix) -> Matrix:
        if scores.shape[1] == 1:
            second: Matrix = expit(scores)
            return np.hstack([1 - second, second])
        found: Matrix = softmax(scores, axis=1)
        return found
