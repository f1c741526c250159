"""Steps before a private one in a scikit-learn pipeline: what they learn from the rows, they learn without noise.

scikit-learn tells a step nothing of its pipeline, so that is looked up among the calls that led here. A pipeline whose
steps run in other processes is not seen, nor is a step that ran before the pipeline (:func:`dpdist.estimators.fit`
refuses rows that were centred).
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import currentframe
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import get_tags

from dpdist.core.errors import RefusedError
from dpdist.estimators.base import PrivateEstimator


def require_nothing_learnt(estimator: PrivateEstimator) -> None:
    """Refuse to fit in a pipeline whose earlier steps are fitted to the same rows."""
    frame = currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and (learning := next(_learning_before(owner), None)) is not None:
            name, private = type(learning).__name__, type(estimator).__name__
            raise RefusedError(
                f"{name} before {private} in a pipeline is fitted to the rows without noise, so the guarantee of "
                f"{private} would not hold. Leave {name} out: scale='private' of {private} chooses a centre and a "
                "scale from the same budget. If it was fitted to public data, pass it as "
                f"sklearn.frozen.FrozenEstimator(fitted). Nothing was charged."
            )
        frame = frame.f_back


def _learning_before(pipeline: Pipeline) -> Iterator[Any]:
    """Yield what learns in the steps before the last private one."""
    steps = [step for _, step in pipeline.steps]
    private = [number for number, step in enumerate(steps) if any(map(_is_private, _parts(step)))]
    for step in steps[: private[-1]] if private else []:
        yield from (part for part in _parts(step) if _learns(part))


def _parts(step: Any) -> Iterator[Any]:
    """Yield a step, or the steps that it consists of."""
    if isinstance(step, Pipeline):
        parts = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        parts = [part for _, part in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        parts = [step.remainder, *(part for _, part, _ in step.transformers)]
    else:
        yield step
        return
    for part in parts:
        yield from _parts(part)


def _is_private(step: Any) -> bool:
    return isinstance(step, PrivateEstimator)


def _learns(step: Any) -> bool:
    """Whether a step learns more from rows than their number of columns."""
    if step is None or isinstance(step, str | PrivateEstimator | PolynomialFeatures):
        return False  # 'passthrough' and 'drop' are texts
    if type(step).__name__ == "FrozenEstimator":
        return False
    given = (getattr(step, "categories", "auto") != "auto", getattr(step, "strategy", None) == "constant")
    return not any(given) and bool(get_tags(step).requires_fit)
