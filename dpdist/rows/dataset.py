"""rows.zarr: a Zarr v3 array of n x d private rows with an identity and a declared budget.

The chunks are full-width runs of rows, little-endian bytes with a CRC32C checksum, so a worker reads a chunk file
straight into one reused buffer, small enough to stay in its cache. With compression (Blosc LZ4) a chunk is unpacked
into such a buffer instead. Zarr reads a missing chunk as zeros; here a missing, short or altered chunk is
an error, because a silently dropped block of rows is a wrong answer with a right guarantee.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from dpdist._util.ids import random_token
from dpdist._util.paths import AnyPath, local
from dpdist.errors import DataError, quiet
from dpdist.naming import step
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.units import Unit
from dpdist.storage.arrays import CHECKSUM_BYTES, Array, array_options, names_of, require_format
from dpdist.storage.atomic import replace_file, require_space, staged

FORMAT = "dpdist-rows/1"
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
"""What a stored row may be made of."""
_TARGET_CHUNK = 8 << 20
_LZ4_MOST = 255
"""Bytes that LZ4 makes of one at most."""
BLOSC_BYTES = 16
"""What Blosc adds at most to bytes it cannot compress."""


@dataclass(frozen=True)
class RowsTable:
    """An opened, validated rows.zarr.

    Attributes
    ----------
    path
        Its folder, reachable under the same name from every worker.
    dataset_id
        32 random hexadecimal digits drawn at ingest.
    rows, columns
        n and d.
    dtype
        NumPy name of the stored type, one of :data:`DTYPES`.
    chunk_rows
        Rows per chunk; the last chunk may be shorter.
    names
        Column names.
    budget
        The declared budget, or None.
    ledger_id
        Identity of the one ledger that may be charged for these rows, or None while none was created.
    compressed
        Whether the chunks are compressed.
    period
        Name of the period whose rows these are, or None. Such a table may have no rows.
    unit
        Whose rows these are, and how many of each at most, or None where every row counts alone.
    seal
        Digest every chunk must agree with (:mod:`dpdist.rows.seal`), or None.
    reproduced
        Whether a release for reproduction was made of these rows (:mod:`dpdist.release.reproduction`).
    """

    path: Path
    dataset_id: str
    rows: int
    columns: int
    dtype: str
    chunk_rows: int
    names: tuple[str, ...]
    budget: PrivacyLoss | None
    ledger_id: str | None = None
    compressed: bool = False
    period: str | None = None
    unit: Unit | None = None
    seal: str | None = None
    reproduced: bool = False

    @property
    def max_rows(self) -> int:
        """How many rows one privacy unit may own."""
        return 1 if self.unit is None else self.unit.max_rows

    @property
    def landmark(self) -> Path:
        """A file that is there wherever the rows are."""
        return self.path / "zarr.json"

    @property
    def seals(self) -> dict[str, str]:
        """The periods that are read, each with the seal of its content; none where rows do not come in periods."""
        return {}

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that stores a chunk, and the number of the chunk there."""
        return self, index

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        return self.columns * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk file, the checksum included; the most they can be if it is compressed."""
        return self.chunk_rows * self.row_bytes + CHECKSUM_BYTES + (BLOSC_BYTES if self.compressed else 0)

    def chunk_path(self, index: int) -> Path:
        """Return the file of a chunk."""
        return self.path / "c" / str(index) / "0"

    def rows_in(self, index: int) -> int:
        """Rows of a chunk; the last may hold fewer."""
        return min(self.chunk_rows, self.rows - index * self.chunk_rows)


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


class RowsWriter:
    """Takes rows in pieces of any length and writes whole chunks; made by :func:`created`."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._pending = np.empty(array.chunks, dtype=array.dtype)
        self._filled = 0
        self._written = 0

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._written + self._filled

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Take rows of shape (r, d); their values must fit the stored dtype."""
        while rows.shape[0]:
            take = min(rows.shape[0], self._pending.shape[0] - self._filled)
            self._pending[self._filled : self._filled + take] = rows[:take]
            self._filled += take
            rows = rows[take:]
            if self._filled == self._pending.shape[0]:
                self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        self._array[self._written : self._written + self._filled] = self._pending[: self._filled]
        self._written += self._filled
        self._filled = 0


@contextmanager
def created(
    target: Path,
    *,
    rows: int,
    dtype: str,
    names: tuple[str, ...],
    budget: PrivacyLoss | None,
    compress: bool = False,
    ledger_id: str | None = None,
    period: str | None = None,
    unit: Unit | None = None,
    origin: dict[str, Any] | None = None,
) -> Iterator[RowsWriter]:
    """Create a rows.zarr; it appears at target when the block ends without an error and all rows were written.

    Parameters
    ----------
    target
        Where it shall appear; must not exist.
    rows
        Number of rows n.
    dtype
        One of :data:`DTYPES`.
    names
        Column names; their number is d.
    budget
        The declared budget, or None.
    compress
        Whether to compress the chunks.
    ledger_id, period
        For rows of one period: the ledger of all periods, and the name.
    unit
        The privacy unit, of which no more rows are written than it says, or None.
    origin
        What they are ingested from, as JSON values, or None.

    Raises
    ------
    DataError
        If target exists or its folder cannot be written.
    """
    with staged(target, "rows", private=True) as aside:
        size = rows * len(names) * np.dtype(dtype).itemsize
        require_space(aside, size // _LZ4_MOST if compress else size, "rows")
        array = zarr.create_array(
            store=aside,
            shape=(rows, len(names)),
            chunks=(chunk_rows_for(len(names), dtype, rows), len(names)),
            zarr_format=3,
            **array_options(dtype, compress=compress),
        )
        declared = None if budget is None else budget.to_json()
        array.attrs["dpdist"] = {
            "format": FORMAT,
            "dataset_id": random_token(),
            "columns": list(names),
            "budget": declared,
            "ledger_id": ledger_id,
            **({} if period is None else {"period": period}),
            **({} if unit is None else {"unit": unit.to_json()}),
            **({} if origin is None else {"origin": origin}),
        }
        writer = RowsWriter(array)
        yield writer
        writer.flush()
        if writer.rows != rows:
            raise DataError(
                f"{writer.rows} rows came where {rows} were announced: the source changed while it was read."
            )


def bind_ledger(table: RowsTable, budget: PrivacyLoss, ledger_id: str) -> RowsTable:
    """Record, once and for all, which ledger is charged for these rows; hold ``locked(table.path)`` meanwhile.

    A second ledger of the same rows would let the same release be drawn twice and its noise be averaged away.

    Raises
    ------
    DataError
        If the table has a ledger already, or cannot be written.
    """
    if open_rows(table.path, whole=False).ledger_id is not None:
        raise DataError(f"{table.path} has a ledger already.")
    _declare(table, budget=budget.to_json(), ledger_id=ledger_id)
    return replace(table, budget=budget, ledger_id=ledger_id)


def mark_reproduced(table: RowsTable) -> None:
    """Record, for ever, that rows were released for reproduction; hold ``locked(table.path)`` meanwhile.

    Raises
    ------
    DataError
        If the table cannot be written.
    """
    _declare(table, reproduced=True)


def _declare(table: RowsTable, **declared: Any) -> None:
    """Add to what a table says of itself."""
    file = table.path / "zarr.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    whole["attributes"]["dpdist"].update(declared)
    replace_file(file, json.dumps(whole, indent=2).encode(), "rows", private=True)


@quiet()
def open_rows(path: AnyPath, *, whole: bool = True) -> RowsTable:
    """Open and validate a rows.zarr, the presence and size of every chunk included.

    Parameters
    ----------
    path
        Its folder.
    whole
        Whether every chunk must be there; else see :func:`incomplete`.

    Raises
    ------
    DataError
        If there is none, it was not made by ``dpdist ingest``, or a chunk is missing or has the wrong size.
    """
    path = local(path)
    otherwise = f"There are no usable rows at {path}. Make them with: {step('ingest', 'SOURCE', path)}"
    info = require_format(path, FORMAT, otherwise)
    try:
        array = zarr.open_array(path, mode="r", zarr_format=3)
        declared = info["budget"]
        table: RowsTable | None = RowsTable(
            path=path.absolute(),
            dataset_id=str(info["dataset_id"]),
            rows=int(array.shape[0]),
            columns=int(array.shape[1]),
            dtype=str(array.dtype),
            chunk_rows=int(array.chunks[0]),
            names=names_of(info["columns"]),
            budget=None if declared is None else PrivacyLoss.from_json(declared),
            ledger_id=None if info["ledger_id"] is None else str(info["ledger_id"]),
            compressed=any(isinstance(codec, BloscCodec) for codec in array.metadata.codecs),  # type: ignore[union-attr]
            period=None if info.get("period") is None else str(info["period"]),
            unit=None if info.get("unit") is None else Unit(**info["unit"]),
            reproduced=bool(info.get("reproduced", False)),
        )
    except Exception:  # noqa: BLE001 - whatever a foreign or damaged array lacks, the cure is the same
        table = None
    if table is None:
        raise DataError(otherwise)
    _validate(table, array)
    if whole:
        for _, wrong in incomplete(table):
            raise DataError(f"{table.path} cannot be used: {wrong}. Ingest the source again with {step('ingest')}.")
    return table


def incomplete(table: RowsTable) -> Iterator[tuple[int, str]]:
    """Yield number and fault of every chunk that is missing or has the wrong size; nothing is read."""
    for index in range(table.chunks):
        what = f"chunk {index} of {table.chunks}"
        try:
            about = table.chunk_path(index).lstat()
        except OSError:
            yield index, f"{what} is missing"
            continue
        if not stat.S_ISREG(about.st_mode):  # a link leads anywhere, and a pipe never ends
            yield index, f"{what} is no file"
            continue
        size = about.st_size
        if size > table.chunk_bytes if table.compressed else size != table.chunk_bytes:
            yield index, f"{what} is truncated or too long"


def _validate(table: RowsTable, array: Array) -> None:
    where = f"{table.path} cannot be used:"
    cure = f"Ingest the source again with {step('ingest')}."
    least = 1 if table.period is None else 0
    if array.ndim != 2 or table.columns != len(table.names) or table.columns < 2 or table.rows < least:
        raise DataError(f"{where} it must be a table of at least one row and two named columns. {cure}")
    if table.dtype not in DTYPES:
        raise DataError(f"{where} its dtype is {table.dtype}, not one of {', '.join(DTYPES)}. {cure}")
    if (
        array.chunks != (table.chunk_rows, table.columns)
        or table.chunk_rows > max(1, table.rows)
        or array.shards is not None
    ):
        raise DataError(f"{where} its chunks must be whole rows, at most as many as the table has. {cure}")
    codecs = [type(codec) for codec in array.metadata.codecs]  # type: ignore[union-attr]
    if codecs not in ([BytesCodec, Crc32cCodec], [BytesCodec, BloscCodec, Crc32cCodec]):
        raise DataError(
            f"{where} its chunks must be little-endian bytes, plain or compressed with Blosc, and a CRC32C checksum. "
            f"{cure}"
        )
