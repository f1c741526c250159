"""What readers of chunked arrays share (HDF5, NetCDF, Zarr): rows in bounded memory, whatever the shape of the chunks.

The first dimension is the rows; the others are laid out one after the other as columns, the last one fastest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
    PIECE,
    Places,
    Rows,
    Source,
    Survey,
    each,
    numbered,
    require_table,
    surveyed,
)
from dpdist.ingest.readers.transpose import WINDOW, turned
from dpdist.naming import parameter

_LARGEST = 1 << 30


class Layout(NamedTuple):
    """Shape, type and chunks of an array, whether any is stored, and what its rows are called; chunks of 1 if none.

    Of a chunk that is not stored every value is the fill value. So are sparse arrays written; but of an array without
    any chunk a few bytes could announce more rows than any disk holds.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunks: tuple[int, ...]
    stored: bool = True
    first: object = None

    @property
    def columns(self) -> int:
        """D: all dimensions but the first."""
        return math.prod(self.shape[1:])


class Chunked(Source):
    """An array of two or more dimensions, of which parts can be read."""

    @property
    @abstractmethod
    def _layout(self) -> Layout:
        """Return the layout, as the file states it."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Any]:
        """Open the array: what stands in brackets after it is read."""

    @property
    def names(self) -> tuple[str, ...]:
        return numbered(self._checked.columns)

    @property
    def _checked(self) -> Layout:
        found = self._layout
        require_no_variants(self.path, found.first)
        if len(found.shape) > 2 and min(found.shape) >= 0:
            require_table(self.path, (found.shape[0], found.columns), found.dtype)
        else:
            require_table(self.path, found.shape, found.dtype)
        require_chunks(self.path, math.prod(found.chunks) * found.dtype.itemsize)
        if not found.stored and found.shape[0]:
            raise DataError(
                f"{self.path} announces an array of which nothing is stored. Every cell would be read as the fill "
                "value. Restore the array, or write it with its values."
            )
        return found

    @property
    def unpacked(self) -> int:
        found = self._checked
        return math.prod(found.chunks) * found.dtype.itemsize

    def survey(self, keep: Places) -> Survey:  # noqa: ARG002 - an array has one type for all columns
        found = self._checked
        return surveyed(self.path, found.shape[0], found.dtype.name)

    def blocks(self, keep: Places) -> Generator[Rows]:
        found = self._checked
        whole = keep == tuple(range(found.columns))
        bands = self._bands(found)
        for piece in bands:
            yield piece if whole else piece[:, keep]

    def _bands(self, found: Layout) -> Generator[Rows]:
        """Yield all columns, as many rows at a time as chunks have, or several times as many."""
        n, d = found.shape[0], found.columns
        row = d * found.dtype.itemsize
        slab = row // found.shape[1] * found.chunks[1]
        high = max(1, min(found.chunks[0], n, _LARGEST // slab))
        if high * row <= WINDOW or found.chunks[1:] == found.shape[1:]:
            # a chunk that holds all columns is unpacked as a whole for any of its rows
            yield from each(self.path, self._read(found, high * max(1, PIECE // (high * row)), 0, n))
            return
        for start in range(0, n, high):  # each chunk is unpacked once, if those beside one another are not too many
            stop = min(start + high, n)
            yield from turned(self.path, self.beside, self._slabs(found, start, stop), (stop - start, d), found.dtype)

    def _read(self, found: Layout, height: int, first: int, last: int) -> Iterator[Rows]:
        with self._opened() as array:
            for start in range(first, last, height):
                yield self._piece(array, (slice(start, min(start + height, last)),), found)

    def _slabs(self, found: Layout, start: int, stop: int) -> Iterator[Rows]:
        with self._opened() as array:
            for first in range(0, found.shape[1], found.chunks[1]):
                yield self._piece(array, (slice(start, stop), slice(first, first + found.chunks[1])), found)

    def _piece(self, array: Any, where: tuple[slice, ...], found: Layout) -> Rows:
        read = np.asarray(array[where])
        if read.dtype != found.dtype:
            raise TypeError  # not what the file announced
        return read.reshape(read.shape[0], -1)


def require_no_variants(path: object, first: object) -> None:
    """Refuse an array whose first dimension is called ``variants``, as VCF Zarr and sgkit have it.

    Taken for a table, a variant would be protected, and the people would be its columns.

    Raises
    ------
    DataError
        With what to write instead.
    """
    if first == "variants":
        raise DataError(
            f"{path} holds genotypes of which each of its rows is a variant, and the people, who are to be protected, "
            "would be its columns. Ingest the VCF that it was made from, or write an array with one row for each "
            "sample."
        )


def require_chunks(path: Any, size: int) -> None:
    """Refuse chunks of so many bytes that one of them fills the memory.

    Raises
    ------
    DataError
        With their size, and how large they may be.
    """
    if size > _LARGEST:
        raise DataError(
            f"{path} has chunks of {size >> 20} MiB, and a chunk is unpacked as a whole. Write it with chunks of at "
            f"most {_LARGEST >> 20} MiB."
        )


def only(path: Any, found: dict[str, tuple[int, ...]], variable: str | None, many: str) -> str:
    """Return the name of the array of rows: the one that was chosen, or the only one there is.

    Parameters
    ----------
    path
        The file.
    found
        Shapes by name, of the arrays of two or more dimensions.
    variable
        What was chosen, or None.
    many
        What an array is called there.

    Raises
    ------
    DataError
        If there is none, or several and none was chosen, or not that one. It names the choices.
    """
    if variable in found:
        return str(variable)
    if variable is None and len(found) == 1:
        return next(iter(found))
    if not found:
        raise DataError(f"{path} holds no {many} of two or more dimensions, the first of them the rows.")
    held = "; ".join(f"{name} {shape}" for name, shape in list(found.items())[:20])
    more = f"; ... ({len(found)} in all)" if len(found) > 20 else ""
    asked = f"no {many} {variable!r}" if variable is not None else f"several {many}s"
    raise DataError(f"{path} holds {asked}. Choose with {parameter('variable')}: {held}{more}.")
