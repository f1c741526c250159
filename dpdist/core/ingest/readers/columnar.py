"""Readers of Parquet and Arrow files (.arrow, .feather), in memory that does not grow with row groups.

Files may be in folders named KEY=VALUE, as Hive, Spark and Arrow write them. Each key is a column after those of the
file, with its value from the folder name.
"""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import (
    AT_ONCE,
    BEYOND,
    CURE,
    EXACT,
    PIECE,
    STORED,
    NoRowsError,
    Places,
    Rows,
    attempt,
    attempt_each,
    attempted,
    changed,
    counts_rows,
    meant_by_schema,
    no_numbers,
    require_exact,
)
from dpdist.core.ingest.readers.npy import Header
from dpdist.core.ingest.readers.source import Fragment, Fragments, Head, Survey
from dpdist.core.ingest.readers.tabular import Tabular, as_numpy, matrix
from dpdist.core.naming import parameter, step
from dpdist.core.rows.encoding import floats
from dpdist.core.rows.units import spelled
from dpdist.core.storage.atomic import scratch

_ROW_GROUP = 64 << 20  # bytes of a row group above which _COLUMNS columns at a time are unpacked
_COLUMNS = 16
_MOST_READ = 1 << 13  # columns unpacked at once: Arrow takes 18 KB for each, beside its pages
_PAGES = 2 << 20  # bytes of pages per column that Arrow holds while it reads a row group
_LARGEST = 1 << 30  # most bytes of a row group that are unpacked at once
_DECODED = 128  # bytes in memory per byte of the metadata at the end of a file, with all columns being read
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
"""Without the digits of other scripts and the underscores that Python allows."""


_NULL = "__HIVE_DEFAULT_PARTITION__"  # folder name of a missing value in Hive, Spark and Dask


def key_in(name: str) -> tuple[str, str] | None:
    """Parse a folder name into key and value; None if it is not KEY=VALUE.

    Examples
    --------
    >>> key_in("year=2026"), key_in("year")
    (('year', '2026'), None)
    """
    key, equals, value = name.partition("=")
    return (unquote(key), unquote(value)) if equals and key else None


def _is_key(cell: Any, text: str | None) -> bool:
    """Whether a cell equals the value of a folder name, as number or text."""
    if cell is None or text is None:
        return cell is text
    if isinstance(cell, int | float | Decimal) and _WHOLE.fullmatch(text):
        return cell == int(text)
    if isinstance(cell, int | float | Decimal) and _NUMBER.fullmatch(text):
        return float(cell) == float(text)
    return spelled(str(cell)) == spelled(text)


def _type_of(kind: Any) -> np.dtype[np.generic] | None:
    """Return the NumPy type of a column of numbers; decimals of scale 0 are whole numbers."""
    if pa.types.is_decimal(kind):
        return np.dtype(np.int64 if kind.scale <= 0 else np.float64)
    if pa.types.is_boolean(kind):
        return np.dtype(np.uint8)
    return np.dtype(kind.to_pandas_dtype()) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None


Read = Callable[[AbstractSet[str]], Iterator[Any]]
"""Yields batches of named columns."""


class Columnar(Tabular):
    """A file of columns in groups of rows."""

    fragile = True

    @property
    @abstractmethod
    def _schema(self) -> Any:
        """Names and Arrow types of the columns of the file."""

    @property
    @abstractmethod
    def _rows(self) -> int:
        """Number of rows."""

    @abstractmethod
    def _batches(self, fragment: Fragment, names: AbstractSet[str]) -> Iterator[Any]:
        """Yield columns of the file."""

    @cached_property
    @attempted
    def stored(self) -> Head:
        schema = self._schema
        added = [key for key, _ in self.keys if key not in schema.names]
        pandas_indexes = (schema.pandas_metadata or {}).get("index_columns", ())
        indexes = tuple(index for index, name in enumerate(schema.names) if counts_rows(name) or name in pandas_indexes)
        kinds = (*schema.types, *(pa.string() for _ in added))
        return Head((*schema.names, *added), self._rows, kinds=kinds, indexes=indexes)

    def cells(self, columns: Places, fragment: Fragment = None) -> Generator[Any]:
        return attempt_each(self.path, self._cells(columns, partial(self._batches, fragment)))

    def _cells(self, columns: Places, read: Read) -> Iterator[Any]:
        names = [self.stored.names[column] for column in columns]
        keys = {key: None if text == _NULL else text for key, text in self.keys}
        stored = {name for column, name in zip(columns, names, strict=True) if column < len(self._schema)}
        for batch in read(stored):
            for name in stored & set(keys):  # a column that contradicts the folder name
                if not all(_is_key(cell, keys[name]) for cell in batch.column(name).unique().to_pylist()):
                    raise DataError(f"{self.path} has a column named like its folder, with other values. {CURE}")
            arrays = [
                batch.column(name) if name in stored else pa.repeat(pa.scalar(keys[name], pa.string()), batch.num_rows)
                for name in names
            ]
            yield pa.RecordBatch.from_arrays(arrays, [str(column) for column in columns])

    def _key_value(self, column: int) -> np.generic | None:
        """Return the number in a folder name; None for columns of the file."""
        if column < len(self._schema):
            return None
        key = self.stored.names[column]
        text, value = dict(self.keys)[key], math.inf
        if _WHOLE.fullmatch(text):
            value = int(text)
        elif _NUMBER.fullmatch(text):
            value = float(text)
        if not math.isfinite(value) or (isinstance(value, int) and not -(2**63) <= value < 2**64):
            raise DataError(
                f"{self.path}, column {key!r}: the value in the folder name is not a number. Leave the column "
                f"out ({parameter('columns')}), or {meant_by_schema()}."
            )
        number: np.generic = (np.min_scalar_type(value) if isinstance(value, int) else np.dtype(np.float64)).type(value)
        return number

    def _types(self, keep: Places) -> list[np.dtype[np.generic]]:
        """Return the types of columns of numbers; ChoiceRequiredError if some are not."""
        names, kinds = self.stored.names, self._schema.types
        values = {column: self._key_value(column) for column in keep}
        types = {column: _type_of(kinds[column]) if value is None else value.dtype for column, value in values.items()}
        if bad := {names[column]: str(kinds[column]) for column, dtype in types.items() if dtype is None}:
            others = [
                names[column] for column in keep if names[column] not in bad and column not in self.stored.indexes
            ]
            raise no_numbers(self.path, bad, others)
        return [dtype for dtype in types.values() if dtype is not None]

    def number_survey(self, keep: Places, fragment: Fragment) -> Survey:  # noqa: ARG002 - in the metadata
        if not self._rows:
            raise NoRowsError(self.path)
        return Survey(self._rows, np.result_type(*(STORED[kind.name] for kind in self._types(keep))).name)

    def numbers(self, keep: Places, fragment: Fragment) -> Generator[Rows]:
        row = 0 if fragment is None else fragment[0]
        dtype = np.result_type(*self._types(keep))
        return attempt_each(self.path, self._numbers(keep, partial(self._batches, fragment), dtype, row))

    def _numbers(self, keep: Places, read: Read, dtype: np.dtype[Any], row: int = 0) -> Iterator[Rows]:
        names = [self.stored.names[index] for index in keep]
        values = [self._key_value(index) for index in keep]
        for batch in self._cells(keep, read):
            columns = []
            for name, value, cells in zip(names, values, batch.columns, strict=True):
                column = cells if value is None else pa.repeat(pa.scalar(value.item()), batch.num_rows)
                if column.null_count:
                    missing_row = row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                    raise DataError(
                        f"{self.path}, row {missing_row} (counting from 0), column {name!r}: the value is missing, and "
                        f"no schema says how to fill it. Correct it, or {meant_by_schema()}."
                    )
                if pa.types.is_decimal(column.type):
                    column = self._without_decimals(column, name)
                if dtype.kind == "f" and pa.types.is_integer(column.type):
                    require_exact(self.path, row, as_numpy(column)[:, None], dtype, [name])
                columns.append(column)
            yield matrix(columns, batch.num_rows, dtype)
            row += batch.num_rows

    def _without_decimals(self, column: Any, name: str) -> Any:
        try:
            numbers = column.cast(pa.int64()) if column.type.scale <= 0 else floats(column)
        except pa.ArrowInvalid:
            numbers = None
        if numbers is not None and (numbers.type == pa.int64() or np.all(np.abs(as_numpy(numbers)) < EXACT)):
            return numbers
        raise DataError(f"{self.path}, column {name!r}: {BEYOND}")


class Parquet(Columnar):
    """A .parquet file."""

    @cached_property
    @attempted
    def _metadata(self) -> Any:
        with self.path.open("rb") as file:
            return pq.read_metadata(file)

    @cached_property
    @attempted
    def _schema(self) -> Any:
        return self._metadata.schema.to_arrow_schema()

    @property
    def _rows(self) -> int:
        return int(self._metadata.num_rows)

    @cached_property
    def _largest(self) -> int:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return max((group.total_byte_size for group in groups), default=0)

    @property
    def unpacked(self) -> int:
        return min(_LARGEST, self._largest)

    @cached_property
    @attempted
    def decoded(self) -> int:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            footer: int = min(size, int.from_bytes(file.read(4), "little"))
            return _DECODED * footer

    def numbers(self, keep: Places, fragment: Fragment) -> Generator[Rows]:
        if fragment is not None or len(keep) <= (_MOST_READ if self._largest <= _ROW_GROUP else _COLUMNS):
            yield from super().numbers(keep, fragment)
            return
        # Arrow holds one or two pages per column, about 2 MiB each: more than a wide table
        at_once = min(
            _MOST_READ, len(self._schema) * _ROW_GROUP // max(1, self._largest), PIECE // (16 * max(1, self._rows))
        )
        width = max(_COLUMNS, at_once)
        dtype, rows = np.result_type(*self._types(keep)), self._rows
        with self._opened() as file, scratch(self.scratch_dir, "unpacked", rows * len(keep) * dtype.itemsize) as folder:
            plain, read = folder / "X", partial(self._read, file, None)
            with plain.open("wb") as out:
                for first in range(0, len(keep), width):
                    start = 0
                    for block in attempt_each(self.path, self._numbers(keep[first : first + width], read, dtype)):
                        for index, column in enumerate(block.T, first):
                            out.seek((index * rows + start) * dtype.itemsize)
                            out.write(np.ascontiguousarray(column).data)
                        start += block.shape[0]
            header = Header((rows, len(keep)), True, dtype, 0, 0)
            yield from attempt_each(self.path, header.blocks(plain, tuple(range(len(keep)))))

    @cached_property
    def _ends(self) -> Any:
        """Row index after each row group."""
        counts = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        return np.cumsum(counts, dtype=np.int64)

    def fragments(self, keep: Places) -> Fragments:
        columns = keep if self.choices.schema is None else tuple(self._mapped.values())
        memory = min(self._largest, _PAGES * len(columns))  # a whole row group, or its pages
        if memory > AT_ONCE:
            raise DataError(
                f"{self.path} has a row group of {self._largest >> 20} MiB. Reading {len(columns)} columns takes "
                f"{memory >> 20} MiB at once, and the limit for rows in place is {AT_ONCE >> 20} MiB. Write it with "
                f"row groups of at most {AT_ONCE >> 20} MiB, or copy its rows with {step('ingest')}."
            )
        ends = np.unique(self._ends)
        size = np.dtype(np.float64) if self.choices.schema is not None else np.result_type(*self._types(keep))
        rows = max(1, PIECE // max(1, len(keep) * size.itemsize))  # merge small row groups
        ends = ends[np.append(ends[:-1] // rows != ends[1:] // rows, True)]
        return Fragments(ends[ends > 0], 2 * memory + 2 * PIECE)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        # small buffers, no pre-buffering: else Arrow loads whole columns of a row group
        options = {"buffer_size": 1 << 14, "pre_buffer": False, "page_checksum_verification": True}
        with (
            attempt(self.path, partial(self.path.open, "rb")) as raw,
            attempt(self.path, partial(pq.ParquetFile, raw, **options)) as file,
        ):
            if file.metadata.num_rows != self._metadata.num_rows:
                raise changed(self.path)
            yield file

    def _read(self, file: Any, groups: list[int] | None, names: AbstractSet[str]) -> Iterator[Any]:
        batch_rows = max(1, PIECE // (16 * max(1, len(names))))  # eight bytes decoded, and eight in transit
        # no threads: they are hardly faster, and each takes memory
        yield from file.iter_batches(batch_rows, row_groups=groups, columns=list(names), use_threads=False)

    def _batches(self, fragment: Fragment, names: AbstractSet[str]) -> Iterator[Any]:
        groups = None
        if fragment is not None:
            begins = np.append(0, self._ends[:-1])
            inside = (begins >= fragment[0]) & (self._ends <= fragment[1]) & (begins < self._ends)
            groups = np.flatnonzero(inside).tolist()
        with self._opened() as file:
            yield from self._read(file, groups, names)


class Arrow(Columnar):
    """An .arrow or .feather file; each record batch is read at once."""

    @property
    def unpacked(self) -> int:
        return min(_LARGEST, int(self.path.stat().st_size))

    def _opened(self, file: Any, fields: list[int] | None = None) -> Any:
        return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))

    @cached_property
    @attempted
    def _facts(self) -> tuple[Any, int]:
        with self.path.open("rb") as file:
            start = file.read(4)
            if start in {b"FEA1", b"\xff\xff\xff\xff"}:
                problem, reading = "a Feather file of version 1", "pyarrow.feather.read_table(FILE)"
                if start != b"FEA1":
                    problem, reading = "an Arrow stream, not a file", "pyarrow.ipc.open_stream(FILE).read_all()"
                raise DataError(
                    f"{self.path} is {problem}. Convert it; in Python: pyarrow.feather.write_feather({reading}, NEW)."
                )
            schema = self._opened(file).schema
            none = self._opened(file, [])
            return schema, sum(none.get_batch(i).num_rows for i in range(none.num_record_batches))

    @property
    def _schema(self) -> Any:
        return self._facts[0]

    @property
    def _rows(self) -> int:
        return self._facts[1]

    def _batches(self, fragment: Fragment, names: AbstractSet[str]) -> Iterator[Any]:  # noqa: ARG002 - it has one
        schema = self._schema
        fields = [index for index, name in enumerate(schema.names) if name in names]
        batch_rows = max(1, PIECE // (16 * max(1, len(names))))
        with self.path.open("rb") as file:
            reader = self._opened(file, fields)
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate(full=True)  # else a false length would read memory of this process
                for start in range(0, batch.num_rows, batch_rows):
                    yield batch.slice(start, batch_rows)
