"""Classes as targets, and linear functions of the columns of X."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdist.answers.block import source_units
from dpdist.answers.categories import Matrix
from dpdist.answers.variables import Variables
from dpdist.core.errors import UsageError
from dpdist.core.frames import is_a
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
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
    if isinstance(y, str):
        raise RowsError("y can be a name only with a schema, or for a rows.zarr. Pass the class of each row.")
    name = getattr(y, "name", None)
    name = name if isinstance(name, str) and (is_a(y, "pandas", "Series") or is_a(y, "dask", "Series")) else "y"
    if is_a(y, "dask", "Series"):
        y = y.to_dask_array()
    if is_a(y, "dask", "Array"):
        if y.ndim != 1:
            raise RowsError("y must have one class per row, so one dimension.")
        width = 1 if len(classes) == 2 else len(classes)
        coded = y.map_blocks(
            _coded, classes=classes, dtype=np.float64, new_axis=1, chunks=(y.chunks[0], (width,)),
            meta=np.empty((0, 0)),
        )  # fmt: skip
        return name, coded
    values = np.asarray(y)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise RowsError("y must have one class per row, so one dimension.")
    coded = _coded(values, classes)
    if not np.isfinite(coded).all():
        raise RowsError(
            f"y has another class than {', '.join(map(repr, classes))}. Classes are public: name all of them, from "
            "public knowledge (classes=[...])."
        )
    return name, coded


def _coded(values: Any, classes: tuple[Any, ...]) -> Matrix:
    """Return columns of 0 and 1; NaN for an unknown class."""
    is_class = np.stack([np.asarray(values == each, dtype=np.bool_) for each in classes], axis=1)
    coded = is_class.astype(np.float64)
    coded[~is_class.any(axis=1)] = np.nan
    return coded[:, 1:] if len(classes) == 2 else coded


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
        names = [name for name in held.names if not held.of_one_column(name, target)]
        labels, places = dict[int, str](), list[int]()
        for name in names if on is None else map(held.named, on):
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

    def _chosen(self, labels: Names, values: Matrix, absent: float) -> Matrix:
        """Return the values of the columns: 0 for the first of a category, ``absent`` for one that is left out."""
        known = {name: values[:, place] for place, name in enumerate(labels)}
        none, zero = np.full(len(values), absent), np.zeros(len(values))
        return np.stack([known.get(name, zero) if name is not None else none for name in self.labels], axis=1)

    def per_input(self, labels: Names, values: Matrix, absent: float = 0.0) -> Matrix:
        """Return coefficients per unit of X, (r, p)."""
        chosen: Matrix = self._chosen(labels, values, absent) * self.factors
        return chosen

    def offset(self, labels: Names, values: Matrix) -> Matrix:
        """Return what is added to the intercepts, (r,)."""
        added: Matrix = self._chosen(labels, values, 0.0) @ self.offsets
        return added
