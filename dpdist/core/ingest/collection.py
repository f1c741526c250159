"""Tables of Python code: Dask, NumPy and SciPy arrays, Dask and pandas DataFrames, and xarray.

Class names identify them, so that pandas, xarray and Dask are imported only if used. A table is a sequence of blocks
of whole rows: row chunks of an array, partitions of a DataFrame, or all rows in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import as_frame, is_a, is_labelled, names_beside, require_table, sum_duplicates
from dpdist.core.ingest.readers.base import (
    PIECE,
    STORED,
    Places,
    Rows,
    counts_rows,
    not_finite,
    numbered,
    require_columns,
    require_exact,
    schema_says_columns,
)
from dpdist.core.naming import parameter
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import kept_of_each
from dpdist.core.text import listed

CURE = "Correct the collection and ingest again."


def whole_rows(array: Any) -> Any:
    """Rechunk a Dask array so that blocks hold whole rows."""
    return array if array.numblocks[1] == 1 else array.rechunk({1: -1})


@dataclass(frozen=True)
class Collection:
    """A table in memory or on Dask."""

    kind: str  # its name in messages
    original: Any
    data: Any  # an array or a DataFrame, of Dask or in memory
    lazy: bool  # whether it is on Dask
    names: tuple[str, ...]  # of its columns; with a schema, of its features
    lengths: tuple[int, ...] | None  # rows of every block; None if unknown
    dtype: str | None  # of the values
    schema: Schema | None = None  # maps the columns of a DataFrame; None: they are numbers

    def __str__(self) -> str:
        return f"the {self.kind}"

    @property
    def asked(self) -> list[str]:
        """The names that may be of persons."""
        return [*self.names, *names_beside(self.original)]

    @cached_property
    def token(self) -> str:
        """Identity of the data: a digest of the Dask graph, or of all values in memory; private, like the rows."""
        # Dask draws a random one for graphs that it cannot hash
        from dpdist.core.runtime.collections import token_of  # noqa: PLC0415 - files are ingested without Dask

        if self.lazy or not (self.framed or isinstance(self.data, np.ndarray)):
            return token_of(self.original)
        return token_of([type(self.data).__qualname__, self.names, [token_of(part) for part in self._parts()]])

    def origin(
        self, *, columns: Sequence[str] | None, compress: bool, schema: Schema | None = None
    ) -> dict[str, object]:
        """Return the origin of a table as JSON values."""
        values: dict[str, object] = {
            "collection": [self.kind, self.token],
            "columns": None if columns is None else list(columns),
            "compress": compress,
        }
        return values if schema is None else {**values, "schema": schema.to_json()}

    def _parts(self) -> Iterator[Any]:
        """Yield contiguous parts of a table in memory: Dask hashes the bytes as laid out."""
        if self.framed:
            yield from (self.data.iloc[:, index] for index in range(len(self.names)))
            return
        step = max(1, PIECE // max(1, self.data[:1].nbytes))
        for start in range(0, len(self.data), step):
            yield np.ascontiguousarray(self.data[start : start + step])

    @property
    def framed(self) -> bool:
        """Whether it is a DataFrame, with one type per column."""
        return self.dtype is None and hasattr(self.data, "columns")

    def fitted(self, schema: Schema, columns: Sequence[str] | None) -> Collection:
        """Return the collection with a schema applied."""
        if not self.framed:
            raise UsageError(f"{self} cannot take a schema: only DataFrames can. Leave it out.", parameter="schema")
        if columns is not None:
            raise schema_says_columns()
        if schema.unit is not None and self.lazy:
            raise UsageError(
                f"The schema has a privacy unit: the kept rows depend on row order, and the partitions of {self} have "
                "none. Write it to .parquet and ingest that.",
                parameter="schema",
            )
        from dpdist.core.rows.encoding import require_types, types_of  # noqa: PLC0415 - Arrow

        schema.places(self.names)
        require_types(schema, types_of(self.data))
        return replace(self, names=schema.features, schema=schema)

    def require_numbers(self, keep: Places) -> None:
        """Raise DataError if a column does not hold real numbers."""
        if self.schema is not None:
            return
        dtypes = list(self.data.dtypes) if self.framed else [self.data.dtype] * len(self.names)
        kinds = {self.names[index]: dtypes[index] for index in keep}
        bad = [f"{name!r} ({kind})" for name, kind in kinds.items() if _stored(kind) is None]
        if bad:
            raise DataError(
                f"These columns of {self} do not hold real numbers: {listed(bad)}. Map them with a schema "
                f"({parameter('schema')}), or name the others in {parameter('columns')}."
            )

    def require_no_index(self) -> None:
        """Raise DataError if a column has the name that pandas gives a written index."""
        if self.framed and (indexes := [name for name in self.names if counts_rows(name)]):
            raise DataError(
                f"{listed(map(repr, indexes))} of {self} may be an index or a count of the rows, and would be summed "
                f"like a measurement. Rename it, or name the columns to keep in {parameter('columns')}."
            )

    def reader(self, keep: Places, secret: bytes) -> Reader:
        """Return a reader of blocks."""
        labels, names = None, tuple(self.names[index] for index in keep)
        if self.schema is not None:
            labels, names = self._read_names, self.names
        elif self.framed:
            all_labels = [str(label) for label in self.data.columns]
            labels = [all_labels[index] for index in keep]
        return Reader(str(self), names, keep, len(self.names), labels, self.schema, secret)

    @property
    def _read_names(self) -> list[str]:
        columns = () if self.schema is None else self.schema.columns
        return [column.name for column in columns if column.stored or column.kind == "privacy unit"]

    def blocks(self, keep: Places) -> list[Any]:
        """Return the blocks: Dask delayed objects, or the one in memory."""
        data = self.data
        if self.schema is not None:
            labels = {str(label): label for label in data.columns}
            data = data[[labels[name] for name in self._read_names]]
        elif self.framed:
            data = data[[data.columns[index] for index in keep]] if self.lazy else data.iloc[:, list(keep)]
        if not self.lazy:
            return [data]
        return list(data.to_delayed()) if self.framed else whole_rows(data).to_delayed().ravel().tolist()


def collection_of(value: Any, rows_dimension: str | None = None) -> Collection | None:
    """Return a table as a collection; None if it is something else, such as a path."""
    if not isinstance(value, str | os.PathLike):
        require_table(value, "source")
    value = as_frame(value, "source")
    labels, kind, data = None, "", value
    if is_labelled(value):
        laid = import_module("dpdist.formats.labelled").laid_out(value, rows_dimension)
        kind, data, labels = type(value).__name__, laid.rows(), laid.names
    framed = is_a(data, "dask", "DataFrame") or is_a(data, "pandas", "DataFrame")
    lazy = is_a(data, "dask", "Array") or is_a(data, "dask", "DataFrame")
    sparse = hasattr(data, "tocsr") and hasattr(data, "shape")
    if not (kind or framed or lazy or sparse or isinstance(data, np.ndarray)):
        return None
    if rows_dimension is not None and not is_labelled(value):
        raise UsageError("Only xarray objects have named dimensions. Leave it out.", parameter="rows_dimension")
    kind = kind or ("sparse " * sparse) + ("Dask " * lazy) + ("DataFrame" if framed else "array")
    if not framed and len(data.shape) != 2:  # Dask computes the shape of a DataFrame
        raise DataError(f"The {kind} has {len(data.shape)} dimensions. A table has two: (rows, columns).")
    if not framed and math.isnan(data.shape[1]):
        raise DataError(f"The {kind} has an unknown number of columns. Call source.compute_chunk_sizes() before.")
    count = len(data.columns) if framed else int(data.shape[1])
    require_columns(f"The {kind}", count)
    if framed:
        if not data.columns.is_unique:
            raise DataError(
                f"The {kind} has several columns with the same name: {listed(map(str, data.columns))}. Rename them."
            )
        has_names = any(isinstance(label, str) for label in data.columns)
        names = tuple(map(str, data.columns)) if has_names else numbered(count)
        return Collection(kind, value, data, lazy, names, None, None)
    rows = data.chunks[0] if lazy else data.shape[:1]
    lengths = None if any(map(math.isnan, rows)) else tuple(map(int, rows))
    return Collection(kind, value, data, lazy, labels or numbered(count), lengths, _stored(data.dtype))


def _stored(kind: Any) -> str | None:
    """Return the dtype in which values are stored; None if they are not real numbers."""
    kind = getattr(kind, "numpy_dtype", kind)  # nullable extension types
    kind = kind.subtype if is_a(kind, "pandas", "SparseDtype") else kind
    return STORED.get(kind.name) if isinstance(kind, np.dtype) else None


class Reader(NamedTuple):
    """Reads blocks of a table."""

    table: str  # its name in messages
    names: Sequence[str]  # of the kept columns
    keep: Places  # their indices in an array
    columns: int  # number of columns of an array
    labels: Sequence[str] | None  # of the kept columns of a DataFrame; None for an array
    schema: Schema | None  # maps a DataFrame
    secret: bytes  # keys the choice of rows per privacy unit

    def where(self, number: int) -> str:
        """Return the name of a block in messages."""
        return f"Block {number} (counting from 0) of {self.table}"

    def rows(self, block: Any, number: int) -> Iterator[Rows]:
        """Yield the rows of a block, about 8 MiB at a time, as C-ordered arrays of a storable dtype."""
        row, where = 0, self.where(number)
        for batch in self._batches(block, where):
            if self.schema is None and batch.dtype.kind == "f" and not np.isfinite(batch).all():
                offset, column = np.argwhere(~np.isfinite(batch))[0]
                raise not_finite(where, row + offset, self.names[column], cure=CURE)
            row += len(batch)
            yield batch

    def _batches(self, block: Any, where: str) -> Iterator[Rows]:
        names, framed = self.names, hasattr(block, "iloc")
        shape: tuple[int, ...] = getattr(block, "shape", ())
        labels = [str(label) for label in getattr(block, "columns", ())] if framed else None
        if len(shape) != 2 or labels != self.labels or not (framed or shape[1] == self.columns):
            raise DataError(f"{where} does not have the columns of its metadata. {CURE}")
        if isinstance(block, np.ma.MaskedArray):
            raise DataError(f"{where} is a masked array. Fill the masked entries by a public rule.")
        step = max(1, PIECE // (8 * len(names)))
        block = sum_duplicates(block) if hasattr(block, "tocsr") else block  # other sparse formats cannot be sliced
        mask = None if self.schema is None else _kept_mask(block, where, self.schema, self.secret)
        for start in range(0, block.shape[0], step):
            if self.schema is not None:
                yield from _mapped(block.iloc[start : start + step], where, start, self.schema, mask)
            elif framed:
                yield _of_frame(block.iloc[start : start + step], f"{where}, row", start, names)
            else:
                part = block[start : start + step]
                rows = np.asarray(part.toarray() if hasattr(part, "toarray") else part)
                kind = _stored(rows.dtype)
                if kind is None:
                    raise DataError(f"{where} holds values of type {rows.dtype.name}, not real numbers. {CURE}")
                yield np.ascontiguousarray(rows[:, list(self.keep)], dtype=kind)


def _kept_mask(block: Any, where: str, schema: Schema, key: bytes) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the rows that are kept; None for all."""
    if schema.unit is None:
        return None
    from dpdist.core.rows.encoding import UnfitError, columns_of, units_of  # noqa: PLC0415 - Arrow

    try:
        digests = units_of(schema, columns_of(block, schema.unit_columns), key)
    except UnfitError as error:
        wrong = error
    else:
        return kept_of_each(np.ascontiguousarray(digests).view("S16")[:, 0], schema.unit, key)
    raise wrong.refusal(where, lambda row: f"row {row} (counting from 0)", CURE)


def _mapped(frame: Any, where: str, start: int, schema: Schema, mask: npt.NDArray[np.bool_] | None) -> Iterator[Rows]:
    """Yield the kept rows of a part of a DataFrame, mapped by the schema; rows that are not kept are validated too."""
    from dpdist.core.rows.encoding import UnfitError, columns_of, encoded  # noqa: PLC0415 - Arrow

    row = start
    try:
        for rows in encoded(schema, columns_of(frame, list(map(str, frame.columns))), len(frame)):
            selected = rows if mask is None else rows[mask[row : row + len(rows)]]
            row += len(rows)
            if len(selected):
                yield selected
    except UnfitError as error:
        wrong = error
    else:
        return
    raise wrong.after(start).refusal(where, lambda row: f"row {row} (counting from 0)", CURE)


def _of_frame(frame: Any, where: str, start: int, names: Sequence[str]) -> Rows:
    kinds: list[Any] = [_stored(kind) for kind in frame.dtypes]
    if None in kinds:
        first_bad = kinds.index(None)
        raise DataError(
            f"{where} {start} on, column {names[first_bad]!r}: {frame.dtypes.iloc[first_bad]} is not a type of real "
            f"numbers. {CURE}"
        )
    rows = np.empty(frame.shape, dtype=np.result_type(*kinds))
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        column = frame.iloc[:, index]
        lacking = column.isna().to_numpy()
        if lacking.any():
            row = start + int(np.argmax(lacking))
            raise DataError(
                f"{where} {row} (counting from 0), column {name!r}: the value is missing, and no schema says how "
                f"to fill it. {CURE}"
            )
        values = column.to_numpy(dtype=kind)
        require_exact(f"{where.removesuffix(', row')}", start, values[:, None], rows.dtype, [name])
        rows[:, index] = values
    return rows
