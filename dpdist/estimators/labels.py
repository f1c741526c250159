"""Labels of a public centre or scale, which must be the columns of X in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.frames import is_a
from dpdist.estimators.inputs import Rows
from dpdist.formats.labelled import labels_of, layout_of, require_layout


def require_same_columns(estimator: Any, data: Any, rows: Rows) -> None:
    """Refuse a labelled public centre or scale whose labels are not the columns of the rows, in their order."""
    centre = estimator.centre
    vectors = {**centre} if isinstance(centre, Mapping) else {"centre": centre}
    for name, vector in {"scale": estimator.scale, **vectors}.items():
        if is_a(vector, "xarray", "DataArray"):
            _require_field(vector, name, rows)
        elif is_a(vector, "pandas", "Series") or is_a(vector, "pandas", "DataFrame"):
            _require_labels(vector, name, data, rows)


def _require_field(vector: Any, name: str, rows: Rows) -> None:
    if rows.labelled is None:
        raise UsageError(f"{name} has labels, and X has none to compare. Pass {name}.values, in the order of X.")
    require_layout(layout_of(rows.labelled), [("", labels_of(vector, vector.dims))], name, "X")


def _require_labels(vector: Any, name: str, data: Any, rows: Rows) -> None:
    labels = list(vector.columns if vector.ndim == 2 and len(vector) == 1 else vector.index)
    columns: Sequence[Any] | None = rows.names
    if columns is None and (is_a(data, "pandas", "DataFrame") or is_a(data, "dask", "DataFrame")):
        columns = list(data.columns)
    if labels == list(columns or ()):
        return
    counted = all(isinstance(label, int | np.integer) for label in labels) and labels == list(range(rows.columns))
    if counted and not any(isinstance(column, int | np.integer) for column in columns or ()):
        return
    if columns is None:
        raise UsageError(f"{name} has labels, and X has none to compare. Pass {name}.to_numpy(), in the order of X.")
    raise UsageError(
        f"The labels of {name} are not the columns of X in their order. Pass {name}.loc[list(X.columns)], or "
        f"{name}.to_numpy() if its numbers are in the order of X."
    )
