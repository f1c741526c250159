"""Steps before a private one in a scikit-learn pipeline: what they learn from the rows, they learn without noise.

scikit-learn tells a step nothing of its pipeline, so that is looked up among the calls that led here; by then the
earlier steps are fitted, and hold what they learnt. This guards against a mistake, not an intention: not seen are a
pipeline whose steps run in other processes, a step that ran before it (:func:`dpdist.estimators.fit` refuses rows that
were standardised), and a step that learns in the function of a FunctionTransformer, its parameters or its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import currentframe
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from dpdist.core.errors import RefusedError
from dpdist.core.rows.schema import Schema
from dpdist.estimators.base import PrivateEstimator


def _by_categories(step: Any) -> bool:
    return not (
        isinstance(step.categories, str)
        or getattr(step, "min_frequency", None) is not None
        or getattr(step, "max_categories", None) is not None
    )


def _always(_: Any) -> bool:
    return True


_PUBLIC: Mapping[str, Callable[[Any], bool]] = {
    "FrozenEstimator": _always,
    "PolynomialFeatures": _always,
    "PolynomialCountSketch": _always,
    "GaussianRandomProjection": _always,
    "SparseRandomProjection": _always,
    "RBFSampler": lambda step: step.gamma != "scale",
    "OneHotEncoder": _by_categories,
    "OrdinalEncoder": _by_categories,
    "SkewedChi2Sampler": _always,
    "SimpleImputer": lambda step: step.strategy == "constant" and step.keep_empty_features and not step.add_indicator,
    "StandardScaler": lambda step: not (step.with_mean or step.with_std),
    "SplineTransformer": lambda step: not isinstance(step.knots, str),
    "CountVectorizer": lambda step: step.vocabulary is not None,
    "TfidfVectorizer": lambda step: step.vocabulary is not None and not step.use_idf,
    "TfidfTransformer": lambda step: not step.use_idf,
}
"""Steps of scikit-learn that learn nothing but the number of columns, if so, and hold something all the same."""
_NEUTRAL = {"n_features_in_", "feature_names_in_", "n_features_out_", "n_samples_seen_", "is_fitted_"}
"""What a step may hold after a fit: that there was one, shapes and names."""


def require_nothing_learnt(estimator: PrivateEstimator) -> None:
    """Refuse to fit in a pipeline whose earlier steps were fitted to the same rows."""
    frame = currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and (learning := next(_learning_before(owner), None)) is not None:
            name, private = type(learning).__name__, type(estimator).__name__
            raise RefusedError(
                f"{name} before {private} in a pipeline is fitted to the rows without noise, so the guarantee of "
                f"{private} would not hold. Leave {name} out; in place of a scaler, scale='private' of {private} "
                "chooses a centre and a scale from the same budget. If it was fitted to public data, pass it as "
                "sklearn.frozen.FrozenEstimator(fitted). Nothing was charged."
            )
        frame = frame.f_back


def _learning_before(pipeline: Pipeline) -> Iterator[Any]:
    """Yield what learnt something in the steps before the last private one."""
    steps = [step for _, step in pipeline.steps]
    private = [number for number, step in enumerate(steps) if _has_private(step)] or [len(steps) - 1]
    for step in steps[: private[-1]]:
        yield from (part for part in _parts(step) if _learns(part))


def _parts(step: Any) -> Iterator[Any]:
    """Yield a step, or the steps that it consists of, fitted if they are."""
    if isinstance(step, Pipeline):
        parts = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        parts = [part for _, part in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        parts = [part for _, part, _ in getattr(step, "transformers_", step.transformers)]
    else:
        yield step
        return
    for part in parts:
        yield from _parts(part)


def _has_private(step: Any) -> bool:
    inner = step.get_params(deep=True).values() if hasattr(step, "get_params") else ()
    return any(isinstance(each, PrivateEstimator) for each in (step, *inner))


def _learns(step: Any) -> bool:
    """Whether a step learnt more from rows than their number of columns."""
    if step is None or isinstance(step, str | PrivateEstimator | Schema):
        return False  # 'passthrough' and 'drop' are texts
    if type(step).__module__.partition(".")[0] == "sklearn" and type(step).__name__ in _PUBLIC:
        return not _PUBLIC[type(step).__name__](step)
    parameters = step.get_params(deep=False) if hasattr(step, "get_params") else {}
    attributes = {name for name in getattr(step, "__dict__", {}) if not name.startswith(("_sklearn", "_metadata"))}
    inner = [value for value in parameters.values() if hasattr(value, "fit") and not isinstance(value, type)]
    return bool(attributes - set(parameters) - _NEUTRAL) or any(
        _learns(part) for value in inner for part in _parts(value)
    )
