"""Tables of Python code: Dask, NumPy and SciPy arrays, Dask and pandas DataFrames, and xarray.

Class names identify them, so that pandas, xarray and Dask are imported only if used. A table is a sequence of blocks
of whole rows: row chunks of an array, partitions of a DataFrame, or all rows in memory. Each becomes a private file: of
numbers, or of the columns that a schema reads.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

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
from dpdist.core.text import listed

CURE = "Correct the collection and ingest again."
_ROW_GROUP = 1 << 16  # rows of a .parquet file that are read together


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

    def reader(self, keep: Places) -> BlockReader:
        """Return a reader of blocks."""
        labels, names = None, tuple(self.names[index] for index in keep)
        if self.schema is not None:
            labels, names = self._read_names, self.names
        elif self.framed:
            all_labels = [str(label) for label in self.data.columns]
            labels = [all_labels[index] for index in keep]
        return BlockReader(str(self), names, keep, len(self.names), labels, self.schema, self.dtype)

    @property
    def _read_names(self) -> list[str]:
        columns = () if self.schema is None else self.schema.sources
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
                f"The {kind} has several columns with the same name: {listed(map(str, data.columns))}. Rename them: "
                "source.columns = [f'{name}.{place}' for place, name in enumerate(source.columns)]."
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


class BlockReader(NamedTuple):
    """Reads blocks of a table, and says what file a block becomes."""

    table: str  # its name in messages
    names: Sequence[str]  # of the kept columns
    keep: Places  # their indices in an array
    columns: int  # number of columns of an array
    labels: Sequence[str] | None  # of the kept columns of a DataFrame; None for an array
    schema: Schema | None  # maps a DataFrame
    dtype: str | None  # of the values; None if unknown

    def where(self, number: int) -> str:
        """Return the name of a block in messages."""
        return f"Block {number} (counting from 0) of {self.table}"

    @property
    def suffix(self) -> str:
        """The suffix of a file of a block."""
        return ".npy" if self.schema is None else ".parquet"

    def content(self, block: Any, number: int, length: int | None) -> Iterator[bytes | memoryview]:
        """Yield the file of a block, about 8 MiB at a time; ``length`` is its announced number of rows, if known."""
        where = self.where(number)
        shape: tuple[int, ...] = getattr(block, "shape", ())
        framed = hasattr(block, "iloc")
        labels = [str(label) for label in getattr(block, "columns", ())] if framed else None
        if len(shape) != 2 or labels != self.labels or not (framed or shape[1] == self.columns):
            raise DataError(f"{where} does not have the columns of its metadata. {CURE}")
        if isinstance(block, np.ma.MaskedArray):
            raise DataError(f"{where} is a masked array. Fill the masked entries by a public rule.")
        if self.schema is not None:
            yield _parquet(block, where, self.schema)
            return
        block = sum_duplicates(block) if hasattr(block, "tocsr") else block  # other sparse formats cannot be sliced
        kind = np.result_type(*_kinds_of(block, where, 0, self.names)).name if framed else _kind_of(block, where)
        if length not in {None, shape[0]} or not np.can_cast(kind, self.dtype or kind):
            raise DataError(f"{where} differs from its metadata. {CURE}")
        yield _npy_header((shape[0], len(self.names)), kind)
        step = max(1, PIECE // (8 * len(self.names)))
        for start in range(0, shape[0], step):
            if framed:
                rows = _of_frame(block.iloc[start : start + step], where, start, self.names)
            else:
                rows = _dense(block[start : start + step])[:, list(self.keep)]
            rows = np.ascontiguousarray(rows, dtype=kind)
            if rows.dtype.kind == "f" and not np.isfinite(rows).all():
                offset, column = np.argwhere(~np.isfinite(rows))[0]
                raise not_finite(where, start + offset, self.names[column], cure=CURE)
            yield rows.data.cast("B") if rows.size else b""


def _dense(part: Any) -> Rows:
    rows: Rows = np.asarray(part.toarray() if hasattr(part, "toarray") else part)
    return rows


def _kind_of(block: Any, where: str) -> str:
    dtype = _dense(block[:0]).dtype
    kind = _stored(dtype)
    if kind is None:
        raise DataError(f"{where} holds values of type {dtype.name}, not real numbers. {CURE}")
    return kind


def _npy_header(shape: tuple[int, int], dtype: str) -> bytes:
    header = io.BytesIO()
    described = {"shape": shape, "fortran_order": False, "descr": np.dtype(dtype).str}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _parquet(frame: Any, where: str, schema: Schema) -> memoryview:
    """Return a file of the columns that a schema reads; the others are empty."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import
    from pyarrow import parquet  # noqa: PLC0415

    from dpdist.core.rows.encoding import UnfitError, columns_of  # noqa: PLC0415 - Arrow

    wrong, sink = None, pa.BufferOutputStream()
    try:
        columns, empty = columns_of(frame, list(map(str, frame.columns))), pa.nulls(len(frame))
        table = pa.table({column.name: columns.get(column.name, empty) for column in schema.sources})
        parquet.write_table(table, sink, row_group_size=_ROW_GROUP, use_dictionary=False, compression="none")
    except UnfitError as error:
        wrong = error.refusal(where, lambda row: f"row {row} (counting from 0)", CURE)
    except pa.ArrowException as error:  # may quote a cell
        wrong = DataError(f"{where} cannot be written: Arrow does not support it ({type(error).__name__}). {CURE}")
    if wrong is not None:
        raise wrong
    return memoryview(sink.getvalue()).cast("B")


def _kinds_of(frame: Any, where: str, start: int, names: Sequence[str]) -> list[Any]:
    """Return the types in which columns are stored."""
    kinds: list[Any] = [_stored(kind) for kind in frame.dtypes]
    if None in kinds:
        first_bad = kinds.index(None)
        raise DataError(
            f"{where}, row {start} on, column {names[first_bad]!r}: {frame.dtypes.iloc[first_bad]} is not a type of "
            f"real numbers. {CURE}"
        )
    return kinds


def _of_frame(frame: Any, where: str, start: int, names: Sequence[str]) -> Rows:
    kinds = _kinds_of(frame, where, start, names)
    rows = np.empty(frame.shape, dtype=np.result_type(*kinds))
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        column = frame.iloc[:, index]
        lacking = column.isna().to_numpy()
        if lacking.any():
            row = start + int(np.argmax(lacking))
            raise DataError(
                f"{where}, row {row} (counting from 0), column {name!r}: the value is missing, and no schema says how "
                f"to fill it. {CURE}"
            )
        values = column.to_numpy(dtype=kind)
        require_exact(where, start, values[:, None], rows.dtype, [name])
        rows[:, index] = values
    return rows
