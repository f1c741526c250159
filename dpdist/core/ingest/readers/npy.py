"""Readers of NumPy files: .npy, and .npz with one table."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import (
    PIECE,
    Places,
    Rows,
    attempt,
    attempt_each,
    bounded,
    ends_of,
    numbered,
    require_table,
)
from dpdist.core.ingest.readers.chunked import only
from dpdist.core.ingest.readers.source import Fragment, Fragments, Head, Source
from dpdist.core.storage.atomic import scratch
from dpdist.core.text import listed

_PIECE = 1 << 20
_HEAD = 1 << 14  # longest header in bytes: NumPy refuses longer ones, but only after reading them


class Header(NamedTuple):
    """The header of a .npy file, the offset of its numbers, and its size in bytes."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]
    offset: int
    size: int

    @classmethod
    def read(cls, file: IO[bytes], size: int) -> Header:
        versions = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        start = io.BytesIO(file.read(_HEAD))
        shape, fortran, dtype = versions[np.lib.format.read_magic(start)](start)
        if any(n < 0 for n in shape):
            raise ValueError
        return cls(shape, fortran, dtype, start.tell(), size)

    @property
    def needed(self) -> int:
        """Bytes of header and numbers."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    @property
    def step(self) -> int:
        """Rows per block."""
        return max(1, PIECE // (self.shape[1] * self.dtype.itemsize))

    def checked(self, path: object) -> Header:
        require_table(path, self.shape, self.dtype)
        if self.size < self.needed:
            raise DataError(f"{path} is truncated: shorter than its header declares. Restore the file.")
        return self

    def blocks(self, path: Any, keep: Places, first: int = 0, last: int | None = None) -> Iterator[Rows]:
        """Yield rows of the .npy file at path."""
        # no memory map: its pages would count as our memory, and a failing disk would kill the process
        n, d = self.shape
        last = n if last is None else last
        with path.open("rb", **({"buffering": 0} if isinstance(path, Path) else {})) as file:  # readinto fills

            def fill(buffer: Rows, first_value: int) -> Rows:
                file.seek(self.offset + first_value * self.dtype.itemsize)
                if file.readinto(buffer.data) != buffer.nbytes:
                    raise EOFError
                return buffer

            for start in range(first, last, self.step):
                rows = min(self.step, last - start)
                if self.fortran:
                    block = np.empty((len(keep), rows), dtype=self.dtype)
                    for index, column in enumerate(keep):
                        fill(block[index], column * n + start)
                    yield block.T
                else:
                    block = fill(np.empty((rows, d), dtype=self.dtype), start * d)
                    yield block if keep == tuple(range(d)) else block[:, keep]


class Npy(Source):
    """A .npy file, in C or Fortran order."""

    @cached_property
    def _header(self) -> Header:
        def read() -> Header:
            with self.path.open("rb") as file:
                return Header.read(file, self.path.stat().st_size)

        return attempt(self.path, read).checked(self.path)

    @cached_property
    def head(self) -> Head:
        n, d = self._header.shape
        return Head(self._names(d), n, self._header.dtype.name)

    def _names(self, d: int) -> tuple[str, ...]:
        return numbered(d)

    def fragments(self, keep: Places) -> Fragments:  # noqa: ARG002 - all columns are read
        return Fragments(ends_of(self.path, self._header.shape[0], self._header.step), 2 * PIECE)

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        return attempt_each(self.path, self._header.blocks(self.path, keep, *(fragment or ())))


class Npz(Npy):
    """An array of an .npz archive: the chosen one, X, or the only 2-D one; ``feature_names`` names its columns."""

    # The array is unpacked first: packed data can only be read from the start, and in Fortran order the first row
    # extends over all of it.

    takes = ("variable",)
    needs_file = True

    @cached_property
    def _members(self) -> dict[str, tuple[zipfile.ZipInfo, Header]]:
        def read() -> dict[str, tuple[zipfile.ZipInfo, Header]]:
            members: dict[str, tuple[zipfile.ZipInfo, Header]] = {}
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if name in members:
                        raise DataError(f"{self.path} holds two arrays with the same name. Rename one.")
                    if info.filename.endswith(".npy"):
                        with archive.open(info) as file:
                            members[name] = info, Header.read(file, info.file_size)
            return members

        return attempt(self.path, read)

    @cached_property
    def _member(self) -> str:
        tables = {name: header.shape for name, (_, header) in self._members.items() if len(header.shape) == 2}
        if not tables and {"indices", "indptr", "data", "shape"} <= self._members.keys():
            raise DataError(
                f"{self.path} holds a sparse matrix of SciPy. Convert it to a dense one; in Python: numpy.save(NEW, "
                "scipy.sparse.load_npz(FILE).toarray())."
            )
        if not tables:
            listing = listed(f"{name} of shape {header.shape}" for name, (_, header) in self._members.items())
            raise DataError(f"{self.path} holds {listing or 'no array'}. Save the rows as a 2-D array.")
        chosen = self.choices.variable
        return only(self.path, tables, "X" if chosen is None and "X" in tables else chosen, "array")

    @cached_property
    def _header(self) -> Header:
        return self._members[self._member][1].checked(self.path)

    def _names(self, d: int) -> tuple[str, ...]:
        if "feature_names" not in self._members:
            return numbered(d)
        _, labels = self._members["feature_names"]
        if self.choices.variable is not None and labels.shape != (d,):  # they belong to another array
            return numbered(d)
        if labels.dtype.kind == "O":
            raise DataError(
                f"{self.path}: feature_names is an array of Python objects, which may run code. Save it as text, "
                "feature_names.astype(str)."
            )
        if labels.shape != (d,) or labels.dtype.kind not in "US":
            raise DataError(f"{self.path}: feature_names does not hold {d} texts, one per column. Correct it.")
        return bounded(self.path, attempt_each(self.path, self._labels(labels)))

    def _labels(self, labels: Header) -> Iterator[list[str]]:
        size = labels.dtype.itemsize
        if not 0 < size <= _PIECE:
            raise ValueError
        unread = b""
        for number, block in enumerate(self._unpacked("feature_names")):
            unread += block if number else block[labels.offset :]
            count = len(unread) // size
            yield np.frombuffer(unread, dtype=labels.dtype, count=count).astype(str).tolist()
            unread = unread[count * size :]

    def _unpacked(self, name: str) -> Iterator[bytes]:
        """Yield a member, up to its declared size."""
        info, header = self._members[name]
        if header.size != header.needed:
            raise ValueError
        with zipfile.ZipFile(self.path) as archive, archive.open(info) as file:
            remaining = header.size
            while block := file.read(_PIECE):  # the checksum is compared at the end
                remaining -= len(block)
                if remaining < 0:
                    raise ValueError
                yield block
            if remaining:
                raise EOFError

    def fragments(self, keep: Places) -> Fragments:
        return Source.fragments(self, keep)

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:  # noqa: ARG002 - it has one
        with scratch(self.scratch_dir, "unpacked", self._header.size) as folder:
            plain = folder / "X.npy"
            with plain.open("wb") as out:
                for block in attempt_each(self.path, self._unpacked(self._member)):
                    out.write(block)
            yield from attempt_each(self.path, self._header.blocks(plain, keep))
