"""DataFrames of a source as the schema of a release reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import as_frame, is_a, is_labelled
from dpdist.core.rows.columns import Column
from dpdist.core.rows.encoding import transformed
from dpdist.core.rows.schema import Schema
from dpdist.estimators.checked import RowsError


def rows_by(schema: Schema, data: Any, only: Sequence[Column] | None = None) -> Any:
    """Return the rows of a DataFrame by a schema, or by some of its columns; lazily, of a lazy one."""
    frame = as_frame(data, "X")
    of_frame = partial(transformed, schema, only=only)
    if is_a(frame, "dask", "DataFrame"):  # its _meta is an empty DataFrame
        return frame.map_partitions(of_frame, meta=of_frame(frame._meta))  # noqa: SLF001
    if not is_a(frame, "pandas", "DataFrame"):
        raise UsageError("Only a DataFrame takes a schema. Leave it out.", parameter="schema")
    return of_frame(frame)


def as_released(estimator: Any, data: Any, fills: Iterable[tuple[str, float]]) -> Any:
    """Return a DataFrame of the source by the schema of the release, with ``fills`` for cells that it leaves missing.

    Other rows are returned as they are.
    """
    schema, features = estimator.release_.schema, list(getattr(estimator, "feature_names_in_", ()))
    if schema is None or not features or isinstance(data, str | os.PathLike) or is_labelled(data):
        return data
    data = as_frame(data, "X")
    if not hasattr(data, "columns"):
        return data
    used = [column for column in schema.columns if set(column.features) & set(features)]
    sources = {column.source.name for column in used}
    names = set(map(str, data.columns))
    derived = any(name not in sources for name in features)  # so encoded rows are told from those of a source
    if derived and set(features) <= names:
        return data
    if absent := [name for name in sources if name not in names]:
        raise RowsError(f"X lacks columns of the source: {', '.join(sorted(absent))}.")
    try:
        return rows_by(schema, data, used)[features].fillna(dict(fills))
    except DataError as error:
        raise RowsError(str(error)) from None
