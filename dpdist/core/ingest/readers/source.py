"""The interface of readers: column names, fragments, and the rows of a fragment in blocks of about 8 MiB.

A reader implements ``head``, ``blocks`` and, if it can start at any row, ``fragments``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import (
    PIECE,
    STORED,
    Choices,
    NoRowsError,
    Places,
    Rows,
    attempt,
    attempt_each,
    not_finite,
)
from dpdist.core.rows.draft import Looks
from dpdist.core.storage.atomic import scratch

Keys = tuple[tuple[str, str], ...]  # name and text of the KEY=VALUE folders of a file
Fragment = tuple[int, int] | None
"""First row and end of a fragment, in bytes for text; None: the whole file."""
WINDOW = 4 * PIECE  # bytes of a block of columns or rows in :func:`transposed`


class Entry(NamedTuple):
    """A file of a source."""

    location: Any  # an absolute path, or a location in a store
    shown: str  # its name in messages
    keys: Keys = ()


class Head(NamedTuple):
    """The metadata of a file."""

    names: tuple[str, ...]  # of its columns, default c0, c1, ...; with a schema, of its features
    rows: int | None = None  # None if unknown
    dtype: str = "float64"  # of the values of arrays and genotypes
    kinds: tuple[Any, ...] | None = None  # Arrow types of the columns; None for text and arrays
    indexes: Places = ()  # columns that may be an index: unnamed, or marked by pandas
    guess: str | None = None  # message about a guess
    absent: str | None = None  # message about chunks that are not stored
    labels: tuple[str, ...] = ()  # row labels that may form a privacy unit, such as obs/donor
    samples: tuple[str, ...] = ()  # the labels that name the sample of a row
    numbered: bool = False  # whether these only count the rows: those of other files may have the same
    meaning: str = ""  # digest of counted alleles, coordinates or units of the columns
    stored: tuple[str, ...] = ()  # names of the columns, if a schema maps them
    features: bool = False  # whether the columns are genes or variants, which are never named for persons

    @property
    def beside(self) -> tuple[str, ...]:
        """The row labels that do not name the sample."""
        return tuple(label for label in self.labels if label not in self.samples)

    @property
    def asked(self) -> tuple[str, ...]:
        """The names that may be of persons."""
        return (*(() if self.features else self.stored or self.names), *self.beside)


class Fragments(NamedTuple):
    """Where a file can be cut into fragments."""

    ends: npt.NDArray[np.int64]  # row indices, ascending; about 8 MiB apart, or more
    memory: int = 0  # for reading a fragment in place, in bytes; 0: impossible


class Survey(NamedTuple):
    """Rows and type of a fragment."""

    rows: int
    dtype: str  # native, holds every value: one of DTYPES
    span: tuple[int, int] | None = None  # of whole numbers in text: limits of the narrowest types, not values


class State(NamedTuple):
    """Metadata of the objects that hold rows."""

    objects: int
    size: int  # total bytes; 0, like objects, if only a request per object would tell
    version: bytes  # 128 bits that change when an object is rewritten


@dataclass(frozen=True)
class Source(ABC):
    """A file of rows."""

    takes: ClassVar[tuple[str, ...]] = ()
    """The options of this kind of file."""
    needs_file: ClassVar[bool] = False
    """Whether it must be a local file, so that an object in a store is fetched first."""
    fragile: ClassVar[bool] = False
    """Whether files can make the library hang, crash or exhaust memory, so that another process reads them."""
    path: Any  # a Path, or a Remote unless needs_file
    scratch_dir: Path
    choices: Choices = Choices()  # noqa: RUF009 - frozen
    keys: Keys = ()

    @property
    @abstractmethod
    def head(self) -> Head:
        """The metadata of the file."""

    def fragments(self, keep: Places) -> Fragments:  # noqa: ARG002 - for readers that can
        """Return where reading can start; DataError if a fragment takes too much memory."""
        return Fragments(np.array([self.head.rows or 0], np.int64))

    @abstractmethod
    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        """Yield the rows of a fragment, shape (r, len(keep)); close the generator to close the file."""

    def survey(self, keep: Places, fragment: Fragment = None) -> Survey:  # noqa: ARG002 - an array is of one type
        """Return rows and type of columns; NoRowsError if the file is empty."""
        head = self.head
        if not head.rows:
            raise NoRowsError(self.path)
        return Survey(head.rows, STORED[head.dtype])

    @property
    def unclear_columns(self) -> dict[str, Looks]:
        """What the columns of text look like that only a schema can describe."""
        return {}

    def rows(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        """Yield :meth:`blocks`; DataError if a value is not finite."""
        row = 0 if fragment is None else fragment[0]
        for block in self.blocks(keep, fragment):
            if block.dtype.kind == "f" and not np.isfinite(block).all():
                offset, column = np.argwhere(~np.isfinite(block))[0]
                raise self.not_finite(row + offset, keep[column])
            row += len(block)
            yield block

    def not_finite(self, row: int, column: int) -> DataError:
        return not_finite(self.path, row, self.head.names[column])

    @property
    def unpacked(self) -> int:
        """Bytes that the library unpacks at once, or 0 if few."""
        return 0

    @property
    def decoded(self) -> int:
        """Bytes that the metadata of the file may take in memory, by their stored length, or 0 if few."""
        return 0

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:  # noqa: ARG002 - for readers that can
        """Yield the privacy unit of every row, a keyed digest of 128 bits: uint64, shape (r, 2)."""
        raise DataError(f"{self.path} has no row labels. Declare the privacy unit in a schema.")

    def state(self, start: int, stop: int) -> State:  # noqa: ARG002 - a file is one object
        """Return the state of the objects that hold these rows; DataError if the file is missing."""
        return attempt(self.path, partial(_state_of_file, self.path))


def _state_of_file(path: Any) -> State:
    """Return the state of a file or object; OSError if it is neither."""
    if not isinstance(path, Path):
        return State(1, path.stat().st_size, version_of([path.version()]))
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return State(1, status.st_size, version_of([(status.st_size, status.st_mtime_ns)]))


def version_of(versions: Sequence[object]) -> bytes:
    """Return a digest of object versions, 128 bits."""
    return hashlib.sha256(json.dumps(versions).encode()).digest()[:16]


def width_for(rows: int, dtype: np.dtype[np.generic]) -> int:
    """Return the number of columns per block."""
    return max(1, WINDOW // (rows * dtype.itemsize))


def neighbours(keep: Places, width: int) -> Iterator[slice]:
    """Yield runs of adjacent columns, which are read together."""
    first = 0
    while first < len(keep):
        last = first + 1
        while last < len(keep) and last - first < width and keep[last] == keep[last - 1] + 1:
            last += 1
        yield slice(first, last)
        first = last


def transposed(
    path: object, scratch_dir: Path, blocks: Iterator[Rows], shape: tuple[int, int], dtype: np.dtype[np.generic]
) -> Generator[Rows]:
    """Yield the rows of a table that is read in blocks of columns, through a private scratch file."""
    # Each block is written row by row, so consecutive rows are contiguous in it, and memory stays below WINDOW.
    n, d = shape
    with scratch(scratch_dir, "unpacked", n * d * dtype.itemsize) as folder:
        widths = []
        with (folder / "X").open("wb") as out:
            for block in attempt_each(path, blocks):
                out.write(np.ascontiguousarray(block, dtype=dtype).data)
                widths.append(block.shape[1])
        step = max(1, WINDOW // (d * dtype.itemsize))
        with (folder / "X").open("rb", buffering=0) as file:
            for start in range(0, n, step):
                rows = np.empty((min(step, n - start), d), dtype=dtype)
                first = 0
                for width in widths:
                    part = np.empty((len(rows), width), dtype=dtype)
                    file.seek((first * n + start * width) * dtype.itemsize)
                    file.readinto(part.data)  # a complete file of ours
                    rows[:, first : first + width] = part
                    first += width
                yield rows
