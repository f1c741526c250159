"""Writes the chunks of a table, possibly shared by several processes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

from dpdist.core.rows.table import Shape
from dpdist.core.storage.arrays import ChunkWriter, array_options
from dpdist.core.storage.store import Store


def chunk_key(index: int) -> str:
    """Return the Zarr key of a chunk of rows or scores."""
    return f"c/{index}/0"


class RowsWriter:
    """Takes consecutive rows in batches of any length, and writes the chunks that are not stored yet."""

    def __init__(
        self, store: Store, shape: Shape, first: int = 0, stop: int | None = None,
        stored: AbstractSet[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._store, self._shape, self._stored = store, shape, stored
        self.before: Callable[[], object] = bool  # called before a chunk is written; may prevent it by raising
        self._next = self._first = first * shape.chunk_rows
        self._last = shape.rows if stop is None else min(stop * shape.chunk_rows, shape.rows)
        self._chunk = ChunkWriter((shape.chunk_rows, shape.columns), shape.dtype)
        self.keys: list[str] = []

    @property
    def rows(self) -> int:
        """Number of rows taken."""
        return self._next - self._first

    @property
    def full(self) -> bool:
        """Whether all chunks are written."""
        return self._next >= self._last

    def lacks(self, start: int, stop: int) -> bool:
        """Say whether a chunk with any of these rows is still to be written."""
        start, stop, high = max(start, self._next), min(stop, self._last), self._shape.chunk_rows
        return start < stop and any(index not in self._stored for index in range(start // high, -(-stop // high)))

    def skip(self, stop: int) -> int:
        """Skip rows of stored chunks and return their number."""
        before, self._next = self._next, min(max(self._next, stop), self._last)
        return self._next - before

    def append(self, rows: npt.NDArray[Any], start: int | None = None) -> npt.NDArray[Any]:
        """Take rows, (r, d), whose values fit the stored dtype, and return those taken."""
        high, start = self._shape.chunk_rows, self._next if start is None else start
        taken = rows = rows[max(0, self._next - start) : max(0, self._last - start)]
        while rows.shape[0]:
            position = self._next % high
            take = min(rows.shape[0], high - position)
            self._chunk.rows[position : position + take] = rows[:take]
            self._next += take
            rows = rows[take:]
            if self._next % high == 0 or self._next == self._last:
                self._write((self._next - 1) // high)
        return taken

    def _write(self, index: int) -> None:
        if index not in self._stored:
            self.before()
            self._chunk.rows[self._next - index * self._shape.chunk_rows :] = 0
            write_chunk(self._store, self._shape, index, self._chunk)
            self.keys.append(chunk_key(index))


def write_chunk(store: Store, shape: Shape, index: int, chunk: ChunkWriter) -> None:
    """Write a chunk of a table from a buffer in the format of Zarr."""
    if not shape.compressed:
        chunk.write(store, chunk_key(index))
        return
    objects = MemoryStore()
    array = zarr.create_array(
        store=objects, shape=chunk.rows.shape, chunks=chunk.rows.shape, **array_options(shape.dtype, compress=True)
    )
    array[:] = chunk.rows
    packed = objects._store_dict[chunk_key(0)]  # noqa: SLF001 - zarr reads a store by coroutines only
    store.put(chunk_key(index), packed.to_bytes())
