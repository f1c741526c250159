"""Writing the chunks of a table, by one process or by several that each have some consecutive rows.

Where the rows of a process begin or end within a chunk, it writes its part of that chunk as a fragment, and somebody
puts the fragments together afterwards. So the stored chunks do not depend on who wrote what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

from dpdist.rows.table import Shape
from dpdist.storage.arrays import ChunkWriter, array_options
from dpdist.storage.store import Store

FRAGMENTS = "fragments"
"""Prefix of the fragments, which are removed before a table appears."""


def chunk_key(index: int) -> str:
    """Return the key of a chunk of rows or scores in its store, as Zarr has it."""
    return f"c/{index}/0"


class RowsWriter:
    """Takes consecutive rows in pieces of any length and writes the chunks they fill, and fragments at both ends.

    Parameters
    ----------
    store
        What is being built.
    shape
        The whole table.
    first, last
        Numbers of the first row to come, and of the one behind the last; None: all rows of the table.
    before
        Called before anything is written; if it raises, that is not written.

    Attributes
    ----------
    keys
        Of what was written.
    """

    def __init__(
        self,
        store: Store,
        shape: Shape,
        first: int = 0,
        last: int | None = None,
        before: Callable[[], object] = bool,
    ) -> None:
        self._store, self._shape, self._before = store, shape, before
        self._first = self._next = first
        self._last = shape.rows if last is None else last
        self._chunk = ChunkWriter((shape.chunk_rows, shape.columns), shape.dtype)
        self.keys: list[str] = []

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._next - self._first

    def append(self, rows: npt.NDArray[np.generic]) -> None:
        """Take rows of shape (r, d); their values must fit the stored dtype."""
        high = self._shape.chunk_rows
        while rows.shape[0]:
            place = self._next % high
            take = min(rows.shape[0], high - place)
            self._chunk.rows[place : place + take] = rows[:take]
            self._next += take
            rows = rows[take:]
            if place + take == high:
                self._write(self._next - high)

    def flush(self) -> None:
        """Write what is pending."""
        if pending := self._next % self._shape.chunk_rows:
            self._write(self._next - pending)

    def _write(self, start: int) -> None:
        """Write the chunk that begins with a row, as far as its rows are here."""
        self._before()
        begin = max(start, self._first)
        index, end = start // self._shape.chunk_rows, min(start + self._shape.chunk_rows, self._shape.rows)
        if begin == start and self._next == end:
            self._chunk.rows[end - start :] = 0
            write_chunk(self._store, self._shape, index, self._chunk)
            self.keys.append(chunk_key(index))
        elif begin < self._next:
            key = _fragment_key(index, begin)
            self._store.put(key, self._chunk.rows[begin - start : self._next - start].reshape(-1).view(np.uint8).data)
            self.keys.append(key)


def write_chunk(store: Store, shape: Shape, index: int, chunk: ChunkWriter) -> None:
    """Write a chunk of a table from a buffer, as zarr does."""
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


def shared_chunks(shape: Shape, starts: Sequence[int]) -> dict[int, list[int]]:
    """Return the chunks that several writers have rows of, each with the first row of every fragment of it.

    Parameters
    ----------
    shape
        The whole table.
    starts
        Number of the first row of every writer that has rows, ascending from 0.

    Examples
    --------
    >>> shared_chunks(Shape(10, 2, "uint8", 4), [0, 5, 6, 8])
    {1: [4, 5, 6]}
    """
    found: dict[int, list[int]] = {}
    for start in starts:
        index, inner = divmod(start, shape.chunk_rows)
        if inner:
            found.setdefault(index, [index * shape.chunk_rows]).append(start)
    return found


def join_chunk(store: Store, shape: Shape, index: int, begins: Sequence[int]) -> str:
    """Write a chunk of its fragments, and return its key.

    Raises
    ------
    OSError
        If one is missing, or of another length.
    """
    chunk = ChunkWriter((shape.chunk_rows, shape.columns), shape.dtype)
    start = index * shape.chunk_rows
    end = min(start + shape.chunk_rows, shape.rows)
    chunk.rows[end - start :] = 0
    for begin, stop in zip(begins, [*begins[1:], end], strict=True):
        part = chunk.rows[begin - start : stop - start]
        content = store.get_range(_fragment_key(index, begin), 0, part.nbytes)
        part[:] = np.frombuffer(content, part.dtype).reshape(part.shape)
    write_chunk(store, shape, index, chunk)
    return chunk_key(index)


def _fragment_key(index: int, begin: int) -> str:
    return f"{FRAGMENTS}/{index}-{begin}"
