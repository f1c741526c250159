"""rows.zarr: a Zarr v3 array of n x d private rows with an identity and a declared budget.

A chunk contains consecutive full rows, little-endian, with a CRC32C checksum. A worker reads or decompresses (Blosc
LZ4) it into one reused buffer that fits the cache. Zarr reads a missing chunk as zeros; here a missing, truncated or
altered chunk is an error, as a lost block of rows would give a wrong answer with a valid guarantee.
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

from dpdist.core.errors import DataError, ResumableError, quiet
from dpdist.core.naming import step
from dpdist.core.paths import local
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import UNITS, Reference, RowsAttributes, Shape, UnitAttributes, builtins_of
from dpdist.core.rows.units import Unit
from dpdist.core.rows.writing import RowsWriter, chunk_key
from dpdist.core.storage.arrays import ROOT, Array, array_options, attributes_of, require_format, set_attributes
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import random_token

FORMAT = "dpdist-rows/1"
_DROPPED = "nan"
_TARGET_CHUNK = 8 << 20
_LZ4_MOST = 255
"""Largest compression ratio of LZ4."""


@dataclass(frozen=True, kw_only=True)
class RowsTable(Shape):
    """An opened, validated rows.zarr: a :data:`dpdist.core.rows.table.Table`. ``str`` gives its location."""

    seals: ClassVar[Mapping[str, str]] = {}
    """No seals: the ledger charges the entire table."""
    store: Store  # reachable from every worker under the same name
    dataset_id: str  # 32 random hexadecimal digits, drawn at ingest
    names: tuple[str, ...]
    budget: PrivacyLoss | None
    ledger_id: str | None = None  # of the only ledger to charge; None before it is created
    period: str | None = None  # name of the period; its table may be empty
    unit: Unit | None = None  # None: each row is a unit
    seal: str | None = None  # authenticates all chunks (:mod:`dpdist.core.rows.chunks`)
    reproduced: bool = False  # used for a reproduction (:mod:`dpdist.core.release.trusted`)
    reference: Reference | None = None  # chunks of registered rows; None: stored here
    schema: Schema | None = None  # None: the source had numeric columns
    variant: str | None = None  # part of the ids of releases

    def __str__(self) -> str:
        return str(self.store)

    def __repr__(self) -> str:
        name = str(self.store).rpartition("/")[2]
        budget = "no budget" if self.budget is None else f"budget {self.budget}"
        return f"{type(self).__name__}({name!r}, {self.rows} x {self.columns}, {self.dtype}, {budget})"

    @property
    def published_as(self) -> str:
        """What its releases name it by, as a digest."""
        return self.dataset_id

    @property
    def path(self) -> Path:
        """Its local folder; UsageError if it is remote."""
        return local(str(self.store))

    @property
    def max_rows(self) -> int:
        """Rows of largest norm that those of one privacy unit count as."""
        return 1 if self.unit is None else self.unit.counted_rows

    @property
    def together(self) -> bool:
        """Whether all rows of a privacy unit are kept, and bounded together."""
        return self.unit is not None and self.unit.max_rows is None

    @property
    def changed_rows(self) -> int:
        """Number of rows that one privacy unit may change."""
        return self.max_rows

    @property
    def centring(self) -> bool:
        """Whether a missing cell may count as the centre of its column."""
        return self.schema is not None and bool(self.schema.centring)

    @property
    def probe(self) -> Store:
        """A rows.zarr that exists wherever the rows do: this one."""
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
        """Bytes of all chunks; an upper bound if they are compressed."""
        return super().stored_bytes if self.reference is None else self.reference.stored_bytes

    def buffer_bytes(self, piece_rows: int) -> int:
        """Memory in bytes for reading chunks in batches of at most ``piece_rows`` rows."""
        return super().buffer_bytes(piece_rows) if self.reference is None else self.reference.buffer_bytes

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; n for the index after the last chunk."""
        return min(self.rows, index * self.chunk_rows) if self.reference is None else self.reference.first_row(index)

    def rows_in(self, index: int) -> int:
        """Return the number of rows of a chunk."""
        return self.first_row(index + 1) - self.first_row(index)

    def chunk_of(self, row: int) -> int:
        """Return the index of the chunk of a row."""
        return row // self.chunk_rows if self.reference is None else self.reference.chunk_of(row)

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that stores a chunk, and the index of the chunk in it."""
        return self, index

    def weight_of(self, index: int) -> int:  # noqa: ARG002
        """Return 1: each row is added once."""
        return 1


def chunk_rows_for(columns: int, dtype: str, rows: int) -> int:
    """Return the rows per chunk: about 8 MiB, at most the table."""
    return max(1, min(rows, math.ceil(_TARGET_CHUNK / (columns * np.dtype(dtype).itemsize))))


def partitions(chunks: int, count: int) -> list[range]:
    """Split chunks into at most ``count`` contiguous ranges whose lengths differ by at most one.

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
    """Create a rows.zarr with a head of :func:`head_of`, published at the end of the block if all rows were written."""
    shape = shape_of(rows, len(names), dtype, compress=compress)
    with store_at(target).staged("rows", private=True) as staging:
        require_space(staging, shape, rows)
        writer = RowsWriter(staging, shape)
        yield writer
        if writer.rows != rows:
            raise DataError(
                f"The source announced {rows} rows and yielded {writer.rows}: it changed while it was read. Repeat "
                "this when it is complete."
            )
        staging.put(ROOT, head_of(shape, names, budget, **head))


def shape_of(rows: int, columns: int, dtype: str, *, compress: bool = False) -> Shape:
    """Return the shape of a table with the chunks of ingest."""
    return Shape(rows, columns, dtype, chunk_rows_for(columns, dtype, rows), compress)


def require_space(store: Store, shape: Shape, rows: int) -> None:
    """Raise DataError if the store has no space for ``rows`` rows."""
    size = rows * shape.row_bytes
    store.require_space(size // _LZ4_MOST if shape.compressed else size, "rows")


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
    identity: tuple[str, str] | None = None,
) -> bytes:
    """Return the metadata of a new table, with a new identity unless one is given with the variant of its rows.

    It is written after its chunks.
    """
    dataset_id, variant = identity or (random_token(), None)
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
        dataset_id=dataset_id,
        columns=names,
        budget=None if budget is None else budget.to_json(),
        ledger_id=ledger_id,
        period=period,
        unit=None if unit is None else UnitAttributes(unit.column, unit.max_rows, unit.keep, unit.max_periods),
        origin=origin,
        schema=None if schema is None else schema.to_json(),
        dropped=_DROPPED if schema is not None and schema.dropping else None,
        variant=variant,
    )
    array.attrs["dpdist"] = builtins_of(attributes)
    (head,) = objects._store_dict.values()  # noqa: SLF001 - zarr reads a store by coroutines only
    return head.to_bytes()


def bind_ledger(table: RowsTable, budget: PrivacyLoss, ledger_id: str) -> RowsTable:
    """Record permanently which ledger is charged for these rows; the caller holds ``table.store.locked()``."""
    # with a second ledger for the same rows, a release could be drawn twice and its noise averaged away
    if (attributes_of(table.store) or {}).get("ledger_id") is not None:
        raise DataError(f"{table} already has a ledger: name that one.")
    set_attributes(
        table.store,
        "rows",
        lambda attributes: attributes["ledger_id"] is None and not attributes.get("reproduced", False),
        budget=budget.to_json(),
        ledger_id=ledger_id,
    )
    return replace(table, budget=budget, ledger_id=ledger_id)


def mark_reproduced(table: RowsTable) -> None:
    """Record permanently that rows were released for reproduction; the caller holds ``table.store.locked()``."""
    set_attributes(
        table.store,
        "rows",
        lambda attributes: attributes["ledger_id"] is None and attributes["budget"] is None,
        reproduced=True,
    )


@quiet()
def open_ingested(path: AnyStore) -> RowsTable:
    """Open and validate a rows.zarr written by ingest; chunks are not checked before they are read."""
    store = store_at(path)
    absent = f"There are no rows at {store}. Create them with: {step('ingest', 'SOURCE', store)}"
    info = require_format(store, FORMAT, absent)
    try:
        array = zarr.open_array(store.for_zarr(), mode="r", zarr_format=3)
        attributes = msgspec.convert(info, RowsAttributes)
        table: RowsTable | None = RowsTable(
            store=store.absolute(),
            dataset_id=attributes.dataset_id,
            rows=int(array.shape[0]),
            columns=int(array.shape[1]),
            dtype=str(array.dtype),
            chunk_rows=int(array.chunks[0]),
            names=attributes.columns,
            budget=None if attributes.budget is None else PrivacyLoss.from_json(attributes.budget),
            ledger_id=attributes.ledger_id,
            compressed=any(isinstance(codec, BloscCodec) for codec in array.metadata.codecs),  # type: ignore[union-attr]
            period=attributes.period,
            unit=None if attributes.unit is None else attributes.unit.unit,
            reproduced=attributes.reproduced,
            schema=None if attributes.schema is None else Schema.from_json(attributes.schema),
            variant=attributes.variant,
        )
    except ResumableError:  # the store did not answer
        raise
    except Exception:  # noqa: BLE001 - any defect of a foreign or damaged array
        table = None
    if table is None:
        raise DataError(f"{store} contains no usable rows: it is damaged. Restore it from a copy.")
    if table.schema is not None and table.schema.dropping and attributes.dropped != _DROPPED:
        raise DataError(
            f"A version before 0.1.0 wrote {store}, with zeros in the rows that the schema drops, which this one would "
            f"count. Ingest the source again: {step('ingest', 'SOURCE', 'ROWS')}."
        )
    if table.together and not store.exists(UNITS):
        raise DataError(
            f"{store} is damaged: it does not say where its privacy units begin. Restore it from a copy, or ingest the "
            "source again."
        )
    if table.schema is not None and table.schema.features != table.names:
        raise DataError(f"{store} is damaged: its columns are not those of its schema. Restore it from a copy.")
    _validate(table, array)
    return table


def incomplete(table: RowsTable) -> Iterator[tuple[int, str]]:
    """Yield index and fault of every chunk that is missing or has the wrong size, without reading any."""
    size_of = table.store.sizes("c")
    for index in range(table.chunks):
        chunk = f"chunk {index} of {table.chunks}"
        try:
            size = size_of(chunk_key(index))
        except OSError:
            yield index, f"{chunk} is missing"
            continue
        if size is None:
            yield index, f"{chunk} is not a file"
        elif size > table.chunk_bytes if table.compressed else size != table.chunk_bytes:
            yield index, f"{chunk} has the wrong size"


def _validate(table: RowsTable, array: Array) -> None:
    codecs = [type(codec) for codec in array.metadata.codecs]  # type: ignore[union-attr]
    least = 1 if table.period is None else 0
    for sound, requirement in (
        (
            array.ndim == 2 and table.columns == len(table.names) >= 2 and table.rows >= least,
            "it must have at least one row and two named columns",
        ),
        (table.dtype in DTYPES, f"its dtype is {table.dtype}, not one of {', '.join(DTYPES)}"),
        (
            array.chunks == (table.chunk_rows, table.columns)
            and table.chunk_rows <= max(1, table.rows)
            and array.shards is None,
            "its chunks must contain full rows, at most as many as the table",
        ),
        (
            codecs in ([BytesCodec, Crc32cCodec], [BytesCodec, BloscCodec, Crc32cCodec]),
            "its chunks must be little-endian bytes, uncompressed or compressed with Blosc, with a CRC32C checksum",
        ),
    ):
        if not sound:
            raise DataError(f"{table} cannot be used: {requirement}. Ingest the source again with {step('ingest')}.")
