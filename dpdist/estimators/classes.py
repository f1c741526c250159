"""Classes as targets, and linear functions of the columns of X."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import source_units
from dpdist.answers.categories import Matrix
from dpdist.answers.variables import Variables
from dpdist.core.errors import UsageError
from dpdist.core.frames import as_frame, is_a
from dpdist.core.rows.columns import Column
from dpdist.core.rows.encoding import transformed
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.cluster import computed
from dpdist.estimators.checked import RowsError

Names = Sequence[str]


def classes_named(classes: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return the classes of a target, 0 and 1 by default; refuse fewer than two, or one twice."""
    if classes is None:
        return 0, 1
    named = tuple(np.asarray(classes).tolist()) if not isinstance(classes, str) else ()
    if len(set(named)) < max(2, len(named)):
        raise UsageError("classes must be a list of two different classes or more, from public knowledge.")
    return named


def indicators_of(y: Any, classes: tuple[Any, ...], estimator: object) -> tuple[str, Any]:
    """Return the name of a target, and its columns of 0 and 1, (n, 1) for two classes, else (n, k)."""
    if y is None:
        raise RowsError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None. Pass the class of each row."
        )
    name = getattr(y, "name", None)
    name = name if isinstance(name, str) and (is_a(y, "pandas", "Series") or is_a(y, "dask", "Series")) else "y"
    if is_a(y, "dask", "Series"):
        y = (y if isinstance(y.dtype, np.dtype) else y.astype(object)).to_dask_array()
    if is_a(y, "xarray", "DataArray"):
        y = y.data
    if is_a(y, "dask", "Array"):
        if y.ndim != 1:
            raise RowsError("y must have one class per row, so one dimension.")
        width = 1 if len(classes) == 2 else len(classes)
        coded = y.map_blocks(
            _coded, classes=classes, dtype=np.float64, new_axis=1, chunks=(y.chunks[0], (width,)),
            meta=np.empty((0, 0)),
        )  # fmt: skip
        return name, coded
    return name, _coded(labels_of(y), classes)


def labels_of(y: Any) -> Any:
    """Return the classes of rows in memory, (n,)."""
    values = np.asarray(computed(y))
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise RowsError("y must have one class per row, so one dimension.")
    return values


def _coded(values: Any, classes: tuple[Any, ...]) -> Matrix:
    """Return columns of 0 and 1; also in a task, which refuses an unknown class."""
    is_class = is_class_of(values, classes)
    return is_class[:, 1:].astype(np.float64) if len(classes) == 2 else is_class.astype(np.float64)


def is_class_of(values: Any, classes: Sequence[Any]) -> npt.NDArray[np.bool_]:
    """Return which class each row has, (n, k); refuse another one."""
    if values.dtype == object:  # that a missing value of pandas equals a class is neither true nor false
        values = np.array([None if type(value).__name__ == "NAType" else value for value in values], dtype=object)
    found = np.stack([np.asarray(values == each, dtype=np.bool_) for each in classes], axis=1)
    if not found.any(axis=1).all():
        raise RowsError(
            f"y has another class than {', '.join(map(repr, classes))}, or lacks one. Classes are public: name all of "
            "them, from public knowledge (classes=[...])."
        )
    return found


def groups_of(data: Any, groups: object) -> object:
    """Return the privacy units that a column of X names, as the schema leaves it out of the rows."""
    if not isinstance(groups, str):
        return groups
    frame = as_frame(data, "X")
    if not is_a(frame, "pandas", "DataFrame") or groups not in frame.columns:
        raise UsageError(f"With a schema, groups names a column of a DataFrame in memory. X has no {groups!r} there.")
    return frame[groups]


def require_category(schema: Schema | None, target: str) -> None:
    """Refuse a target without categories, before anything is charged."""
    columns = {} if schema is None else {column.name: column for column in schema.columns}
    if schema is None:
        raise UsageError(
            "The rows have no schema. Ingest them with one, in which the target is a boolean or a category."
        )
    if target not in columns or not columns[target].whole:
        named = [name for name, column in columns.items() if column.stored and column.whole]
        raise UsageError(
            f"{target!r} is no boolean or category of the schema. These are: {', '.join(named) or 'none'}."
        )
    column = columns[target]
    if column.indicated and not column.one_hot:
        raise UsageError(f'The boolean {target!r} has missing = "pairwise". Use missing = "indicator", three classes.')
    if column.one_hot and column.width < 2:
        raise UsageError(f"{target!r} has one category, so there is nothing to predict.")


def is_class_by(schema: Any, target: str, y: Any) -> npt.NDArray[np.bool_]:
    """Return which class each row of a source has, (n, k), as its schema reads it."""
    import pandas as pd  # noqa: PLC0415 - may be missing

    (column,) = [each for each in schema.columns if each.name == target]
    coded = transformed(schema, pd.DataFrame({column.source.name: y}), [column]).to_numpy()
    found = np.hstack([coded <= 0, coded > 0]) if len(column.features) == 1 else coded > 0
    if not found.any(axis=1).all():  # dropped
        raise RowsError("y lacks the class of some rows. Leave them out of X and y.")
    return found


def described_by(target: str, classes: tuple[Any, ...], names: Sequence[str]) -> Schema:
    """Return the schema of rows in memory, numbers, and of their target."""
    two = len(classes) == 2
    known = [Column(target, "boolean")] if two else [Column(target, "category", categories=list(map(str, classes)))]
    numbers = list(names)[: -1 if two else -len(classes)]
    return Schema([*(Column(name, "number") for name in numbers), *known])


class Linear:
    """The columns of X, and how coefficients in units of the source become those per unit of X."""

    def __init__(self, held: Variables, target: str, on: Names | None, features: Names | None) -> None:
        self.target = target
        shifts, units = source_units(held.release)
        centre, scale = held.release.bound.input_units
        labels, places = dict[int, str](), list[int]()
        for name in held.explaining(target) if on is None else map(held.named, on):
            variable = held.categorical.get(name)
            if variable is None:
                places.append(held.numeric[name].place)
                labels[places[-1]] = name
                continue
            places += variable.places
            shown = variable.categories if len(variable.places) > 1 else variable.categories[1:]
            labels |= {place: f"{name}={category}" for place, category in zip(variable.places, shown, strict=True)}
        index = {name: place for place, name in enumerate(held.release.names)}
        if features is not None:
            places = [index[name] for name in features]
        self.features = tuple(held.release.names[place] for place in places)
        self.labels = [labels.get(place) for place in places]
        self.factors = units[places] / scale[places]
        self.offsets = shifts[places] - self.factors * centre[places]
        replaced = {number.place for number in held.numeric.values() if number.filled or number.indicator is not None}
        self.fills = [float(centre[place]) if place in replaced else None for place in places]

    def per_unit(self, labels: Names, values: Matrix, absent: float = 0.0) -> Matrix:
        """Return coefficients in units of the source, (r, p): 0 for the first category, ``absent`` if left out."""
        known = {name: values[:, place] for place, name in enumerate(labels)}
        none, zero = np.full(len(values), absent), np.zeros(len(values))
        return np.stack([known.get(name, zero) if name is not None else none for name in self.labels], axis=1)

    def per_input(self, labels: Names, values: Matrix) -> Matrix:
        """Return coefficients per unit of the encoded rows, (r, p)."""
        chosen: Matrix = self.per_unit(labels, values) * self.factors
        return chosen

    def offset(self, labels: Names, values: Matrix) -> Matrix:
        """Return what is added to the intercepts, (r,)."""
        added: Matrix = self.per_unit(labels, values) @ self.offsets
        return added
