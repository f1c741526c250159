"""rows.zarr: a Zarr v3 array of n x d private rows with an identity and a declared budget.

The chunks are full-width runs of rows, little-endian bytes with a CRC32C checksum, so a worker reads or unpacks (Blosc
LZ4) a chunk straight into one reused buffer, small enough to stay in its cache. Zarr reads a missing chunk as zeros;
here a missing, short or altered chunk is an error: a dropped block of rows is a wrong answer with a right guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from dpdist._util.paths import local
from dpdist._util.text import random_token
from dpdist.errors import DataError, ResumableError, quiet
from dpdist.naming import step
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.columns import DTYPES
from dpdist.rows.schema import Schema
from dpdist.rows.table import Reference, RowsAttributes, Shape, UnitAttributes, builtins_of
from dpdist.rows.units import Unit
from dpdist.rows.writing import RowsWriter, chunk_key
from dpdist.storage.arrays import ROOT, Array, array_options, attributes_of, require_format, set_attributes
from dpdist.storage.store import AnyStore, Store, store_at

FORMAT = "dpdist-rows/1"
_TARGET_CHUNK = 8 << 20
_LZ4_MOST = 255
"""Bytes that LZ4 makes of one at most."""


@dataclass(frozen=True, kw_only=True)
class RowsTable(Shape):
    """An opened, validated rows.zarr: a :data:`dpdist.rows.table.Table`. Its text is where it is."""

    seals: ClassVar[Mapping[str, str]] = {}
    """No seals: the ledger charges a whole table."""
    store: Store  # reachable under the same name from every worker
    dataset_id: str  # 32 random hexadecimal digits drawn at ingest
    names: tuple[str, ...]
    budget: PrivacyLoss | None
    ledger_id: str | None = None  # of the one ledger that may be charged; None while none was created
    period: str | None = None  # name of the period whose rows these are; such a table may have no rows
    unit: Unit | None = None  # None: every row counts alone
    seal: str | None = None  # what every chunk must agree with (:mod:`dpdist.rows.chunks`)
    reproduced: bool = False  # a release for reproduction was made of them (:mod:`dpdist.release.trusted`)
    reference: Reference | None = None  # holds the chunks of rows that were registered; None: they are here
    schema: Schema | None = None  # None: the columns of the source were numbers
    dropped: str = "zeros"  # see :class:`dpdist.rows.table.RowsAttributes`

    def __str__(self) -> str:
        return str(self.store)

    def __repr__(self) -> str:
        name = str(self.store).rpartition("/")[2]
        budget = "no budget" if self.budget is None else f"budget {self.budget}"
        return f"{type(self).__name__}({name!r}, {self.rows} x {self.columns}, {self.dtype}, {budget})"

    @property
    def path(self) -> Path:
        """Its folder on this machine; UsageError where it lies elsewhere."""
        return local(str(self.store))

    @property
    def max_rows(self) -> int:
        """How many rows one privacy unit may own."""
        return 1 if self.unit is None else self.unit.max_rows

    @property
    def changed_rows(self) -> int:
        """Those of one privacy unit."""
        return self.max_rows

    @property
    def probe(self) -> Store:
        """A rows.zarr that is there wherever the rows are: this one."""
        return self.store

    @property
    def periodic(self) -> bool:
        """Whether these are the rows of a period."""
        return self.period is not None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return super().chunks if self.reference is None else self.reference.chunks

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; the most they can be if they are compressed."""
        return super().stored_bytes if self.reference is None else self.reference.stored_bytes

    def buffer_bytes(self, piece_rows: int) -> int:
        """Bytes that reading its chunks takes, in pieces of so many rows at most."""
        return super().buffer_bytes(piece_rows) if self.reference is None else self.reference.buffer_bytes

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; that of the chunk behind the last one is n."""
        return min(self.rows, index * self.chunk_rows) if self.reference is None else self.reference.first_row(index)

    def rows_in(self, index: int) -> int:
        """Rows of a chunk."""
        return self.first_row(index + 1) - self.first_row(index)

    def chunk_of(self, row: int) -> int:
        """Return the number of the chunk in which a row is."""
        return row // self.chunk_rows if self.reference is None else self.reference.chunk_of(row)

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that holds a chunk, and the number of the chunk there."""
        return self, index

    def weight_of(self, index: int) -> int:  # noqa: ARG002
        """Return 1: every row is added once."""
        return 1


def chunk_rows_for(columns: int, dtype: str, rows: int) -> int:
    """Rows per chunk: about 8 MiB, at most the table itself."""
    return max(1, min(rows, math.ceil(_TARGET_CHUNK / (columns * np.dtype(dtype).itemsize))))


def partitions(chunks: int, count: int) -> list[range]:
    """Cut chunks into at most ``count`` contiguous runs whose lengths differ by at most one.

    Examples
    --------
    >>> partitions(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    count = max(1, min(chunks, count))
    small, larger = divmod(chunks, count)
    starts = [i * small + min(i, larger) for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


@contextmanager
def created(
    target: AnyStore,
    *,
    rows: int,
    dtype: str,
    names: tuple[str, ...],
    budget: PrivacyLoss | None,
    compress: bool = False,
    **head: Any,
) -> Iterator[RowsWriter]:
    """Create a rows.zarr with a head of :func:`head_of`; it appears when the block ends and all rows were written."""
    shape = shape_of(rows, len(names), dtype, compress=compress)
    with store_at(target).staged("rows", private=True) as aside:
        require_space(aside, shape, rows)
        writer = RowsWriter(aside, shape)
        yield writer
        if writer.rows != rows:
            raise DataError(
                f"{writer.rows} rows came where {rows} were announced: the source changed while it was read."
            )
        aside.put(ROOT, head_of(shape, names, budget, **head))


def shape_of(rows: int, columns: int, dtype: str, *, compress: bool = False) -> Shape:
    """Return the shape of a table, cut into chunks as ingest cuts it."""
    return Shape(rows, columns, dtype, chunk_rows_for(columns, dtype, rows), compress)


def require_space(aside: Store, shape: Shape, rows: int) -> None:
    """Refuse to write so many rows of a table where there is no room for them: DataError."""
    size = rows * shape.row_bytes
    aside.require_space(size // _LZ4_MOST if shape.compressed else size, "rows")


def head_of(
    shape: Shape,
    names: tuple[str, ...],
    budget: PrivacyLoss | None,
    *,
    ledger_id: str | None = None,
    period: str | None = None,
    unit: Unit | None = None,
    origin: Mapping[str, object] | None = None,
    schema: Schema | None = None,
) -> bytes:
    """Return what is stored of a new table beside its chunks, the last of its objects, with a new identity."""
    objects = MemoryStore()
    array = zarr.create_array(
        store=objects,
        shape=(shape.rows, shape.columns),
        chunks=(shape.chunk_rows, shape.columns),
        zarr_format=3,
        **array_options(shape.dtype, compress=shape.compressed),
    )
    attributes = RowsAttributes(
        format=FORMAT,
        dataset_id=random_token(),
        columns=names,
        budget=None if budget is None else budget.to_json(),
        ledger_id=ledger_id,
        period=period,
        unit=None if unit is None else UnitAttributes(unit.column, unit.max_rows, unit.keep, unit.max_periods),
        origin=origin,
        schema=None if schema is None else schema.to_json(),
        dropped="zeros" if schema is None or not schema.dropping else "nan",
    )
    array.attrs["dpdist"] = builtins_of(attributes)
    (head,) = objects._store_dict.values()  # noqa: SLF001 - zarr reads a store by coroutines only
    return head.to_bytes()


def bind_ledger(table: RowsTable, budget: PrivacyLoss, ledger_id: str) -> RowsTable:
    """Record, once and for all, which ledger is charged for these rows; hold ``table.store.locked()`` meanwhile.

    A second ledger of the same rows would let the same release be drawn twice and its noise be averaged away.
    """
    if (attributes_of(table.store) or {}).get("ledger_id") is not None:
        raise DataError(f"{table} has a ledger already.")
    set_attributes(
        table.store,
        "rows",
        lambda found: found["ledger_id"] is None and not found.get("reproduced", False),
        budget=budget.to_json(),
        ledger_id=ledger_id,
    )
    return replace(table, budget=budget, ledger_id=ledger_id)


def mark_reproduced(table: RowsTable) -> None:
    """Record, for ever, that rows were released for reproduction; hold ``table.store.locked()`` meanwhile."""
    set_attributes(
        table.store, "rows", lambda found: found["ledger_id"] is None and found["budget"] is None, reproduced=True
    )


@quiet()
def open_ingested(path: AnyStore) -> RowsTable:
    """Open and validate a rows.zarr that an ingest wrote; of its chunks none is looked at before it is read."""
    store = store_at(path)
    otherwise = f"There are no usable rows at {store}. Make them with: {step('ingest', 'SOURCE', store)}"
    info = require_format(store, FORMAT, otherwise)
    try:
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        said = msgspec.convert(info, RowsAttributes)
        table: RowsTable | None = RowsTable(
            store=store.absolute(),
            dataset_id=said.dataset_id,
            rows=int(array.shape[0]),
            columns=int(array.shape[1]),
            dtype=str(array.dtype),
            chunk_rows=int(array.chunks[0]),
            names=said.columns,
            budget=None if said.budget is None else PrivacyLoss.from_json(said.budget),
            ledger_id=said.ledger_id,
            compressed=any(isinstance(codec, BloscCodec) for codec in array.metadata.codecs),  # type: ignore[union-attr]
            period=said.period,
            unit=None if said.unit is None else said.unit.unit,
            reproduced=said.reproduced,
            schema=None if said.schema is None else Schema.from_json(said.schema),
            dropped=said.dropped,
        )
    except ResumableError:  # its store did not answer
        raise
    except Exception:  # noqa: BLE001 - whatever a foreign or damaged array lacks, the cure is the same
        table = None
    if table is None:
        raise DataError(otherwise)
    _validate(table, array)
    return table


def incomplete(table: RowsTable) -> Iterator[tuple[int, str]]:
    """Yield number and fault of every chunk that is missing or has the wrong size; nothing is read."""
    size_of = table.store.sizes("c")
    for index in range(table.chunks):
        what = f"chunk {index} of {table.chunks}"
        try:
            size = size_of(chunk_key(index))
        except OSError:
            yield index, f"{what} is missing"
            continue
        if size is None:
            yield index, f"{what} is no file"
        elif size > table.chunk_bytes if table.compressed else size != table.chunk_bytes:
            yield index, f"{what} is truncated or too long"


def _validate(table: RowsTable, array: Array) -> None:
    codecs = [type(codec) for codec in array.metadata.codecs]  # type: ignore[union-attr]
    least = 1 if table.period is None else 0
    for sound, said in (
        (
            array.ndim == 2 and table.columns == len(table.names) >= 2 and table.rows >= least,
            "it must be a table of at least one row and two named columns",
        ),
        (table.dtype in DTYPES, f"its dtype is {table.dtype}, not one of {', '.join(DTYPES)}"),
        (
            array.chunks == (table.chunk_rows, table.columns)
            and table.chunk_rows <= max(1, table.rows)
            and array.shards is None,
            "its chunks must be whole rows, at most as many as the table has",
        ),
        (
            codecs in ([BytesCodec, Crc32cCodec], [BytesCodec, BloscCodec, Crc32cCodec]),
            "its chunks must be little-endian bytes, plain or compressed with Blosc, and a CRC32C checksum",
        ),
    ):
        if not sound:
            raise DataError(f"{table} cannot be used: {said}. Ingest the source again with {step('ingest')}.")
