"""Where the rows of privacy units begin, if the rows of each are stored together.

The object ``units`` of a rows.zarr has one bit per row, set for the first row of a unit: for each chunk the bits of its
rows and their CRC32C. Private. A task takes the units that begin in its chunks: it skips the rows before the first one,
and reads on until the last one ends. So every unit is in exactly one task, whatever the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.table import UNITS, Shape
from dpdist.core.rows.unit_moment import Starts
from dpdist.core.rows.units import KeptRows, among
from dpdist.core.storage.arrays import CHECKSUM_BYTES

_PIECES = 8
"""Batches that are read at once: only where they begin and end are rows copied."""
_LARGEST = 256 << 20
"""Bytes of the largest unit, as float64: some copies of it are in memory when it is bounded."""
Rows = npt.NDArray[np.generic]


def largest_unit(columns: int) -> int:
    """Return the most rows of a privacy unit whose rows are all kept."""
    return _LARGEST // (8 * columns)


def _segment(shape: Shape) -> int:
    """Return the bytes of a chunk's bits, without their checksum."""
    return -(-shape.chunk_rows // 8)


def packed_starts(begins: KeptRows, shape: Shape) -> bytes:
    """Return the content of the object, from the rows with which units begin."""
    size, content = _segment(shape), bytearray()
    for start in range(0, shape.rows, shape.chunk_rows):
        flags = begins.among(start, min(shape.chunk_rows, shape.rows - start))
        chunk = np.packbits(flags, bitorder="little").tobytes().ljust(size, b"\0")
        content += chunk + google_crc32c.value(chunk).to_bytes(CHECKSUM_BYTES, "little")
    return bytes(content)


def starts_in(table: RowsTable, index: int) -> npt.NDArray[np.bool_]:
    """Return which rows of a chunk are the first of their unit."""
    size = _segment(table)
    damaged = DataError(f"{table} is damaged: where its privacy units begin. Restore it, or ingest the source again.")
    try:
        content = table.store.get_range(UNITS, index * (size + CHECKSUM_BYTES), size + CHECKSUM_BYTES)
    except OSError:
        raise damaged from None
    bits, checksum = content[:size], content[size:]
    if len(content) != size + CHECKSUM_BYTES or google_crc32c.value(bits) != int.from_bytes(checksum, "little"):
        raise damaged
    starts = among(bits, 0, table.rows_in(index))
    if index == 0 and not starts[0]:
        raise damaged
    return starts


class UnitBatches:
    """Reads the units that begin in some chunks, in batches of whole units, which are valid until the next."""

    def __init__(self, table: RowsTable, chunks: range, limit: int, centre: Sequence[float] | None) -> None:
        self._table, self._chunks, self._limit = table, chunks, limit
        self._reader = ChunkReader(table, _PIECES * limit, centre)
        self.checksums: list[tuple[int, int]] = []
        """Index and checksum of each of the chunks, once it is read."""

    def __iter__(self) -> Iterator[tuple[int, Rows, Starts]]:
        """Yield the number of the first row, about ``limit`` rows or one unit, and where units begin in them."""
        waiting, starts, first, count = list[Rows](), list[Starts](), 0, 0
        for number, rows, begins in self._pieces():
            taken, done = 0, 0  # rows and units of this piece
            if not starts and begins.size:  # rows before the first unit belong to another task
                first, taken = number + int(begins[0]), int(begins[0])
            while count + len(rows) - taken > self._limit:
                # a batch ends before the last unit that does not fit, or after its only one
                last = int(np.searchsorted(begins, taken + self._limit - count, side="right")) - 1
                cut = max(last, done + (not waiting))
                if cut >= begins.size:
                    break
                stop = int(begins[cut])
                waiting.append(rows[taken:stop])
                starts.append(begins[done:cut] + (count - taken))
                yield first, _joined(waiting), _joined(starts)
                waiting, starts, first, count, taken, done = [], [], number + stop, 0, stop, cut
            if waiting or done < begins.size:
                waiting.append(rows[taken:].copy())
                starts.append(begins[done:] + (count - taken))
                count += len(rows) - taken
        if waiting:
            yield first, _joined(waiting), _joined(starts)

    def _pieces(self) -> Iterator[tuple[int, Rows, Starts]]:
        """Yield batches of the chunks, and of those behind them up to the end of the last unit."""
        begun = False
        for index in range(self._chunks.start, self._table.chunks):
            begins = np.flatnonzero(starts_in(self._table, index))
            inside = index < self._chunks.stop
            begun |= inside and bool(begins.size)
            if not (inside or begun):
                return
            stop, row = self._table.rows_in(index) if inside or not begins.size else int(begins[0]), 0
            for rows in self._reader.read(index) if stop else ():  # to its end, which verifies it
                taken = rows[: max(0, stop - row)]
                if len(taken):
                    low, high = np.searchsorted(begins, (row, row + len(taken)))
                    yield self._table.first_row(index) + row, taken, begins[low:high] - row
                row += len(rows)
            if inside:
                self.checksums.append((index, self._reader.checksum))
            elif begins.size:
                return


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
