"""The interface of readers: column names, fragments, and the rows of a fragment in blocks of about 8 MiB.

A reader is done with ``head``, ``blocks`` and, where rows can be read without those before them, ``fragments``.
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

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
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
from dpdist.storage.atomic import scratch

Keys = tuple[tuple[str, str], ...]  # name and text of the keys of the folders KEY=VALUE that a file lies in
Fragment = tuple[int, int] | None
"""Where the rows of a fragment begin and end: numbers of rows, or of bytes in text; None: all rows of the file."""
WINDOW = 4 * PIECE  # bytes of a block of columns, and of a piece of it: the wider both, the longer the stretches


class Entry(NamedTuple):
    """A file of a source."""

    location: str  # absolute path, or address
    shown: str  # how messages name it
    keys: Keys = ()


class Head(NamedTuple):
    """A file as it announces itself."""

    names: tuple[str, ...]  # of its columns; c0, c1, ... where it has none. With a schema those of the rows
    rows: int | None = None  # None where only reading tells
    dtype: str = "float64"  # of all values, of arrays and genotypes
    kinds: tuple[Any, ...] | None = None  # Arrow types of the columns; None: text, or an array
    indexes: Places = ()  # the columns that may be an index: without a name, or said by pandas to be one
    guess: str | None = None  # what was guessed of the file, for people to read
    labels: tuple[str, ...] = ()  # what stands beside the rows and can say whose they are, such as obs/donor
    samples: tuple[str, ...] = ()  # the labels that together name the sample of each row
    meaning: str = ""  # digest of what names do not tell of columns: alleles counted, coordinates along them


class Fragments(NamedTuple):
    """Where the rows of a file can be taken apart."""

    ends: npt.NDArray[np.int64]  # ascending, in rows; about 8 MiB between two, or more where the file cannot be cut
    memory: int = 0  # bytes that reading one takes at once, where it can be read in place; 0: it cannot


class Survey(NamedTuple):
    """Rows and type of a fragment.

    ``span`` is of whole numbers in text, whose type is still to be chosen: the least and the greatest value of the
    narrowest types that hold them. No value of the data can be told from it beyond these types.
    """

    rows: int
    dtype: str  # native, holds every value: one of DTYPES
    span: tuple[int, int] | None = None


class State(NamedTuple):
    """The objects that rows lie in, as their place tells of them: nothing of what they hold."""

    objects: int
    size: int  # bytes of all; with objects 0 where a place tells only by being asked for each
    version: bytes  # 128 bits that change when an object is written again, as far as the place tells


@dataclass(frozen=True)
class Source(ABC):
    """A file of rows."""

    takes: ClassVar[tuple[str, ...]] = ()
    """The options that this kind of file takes."""
    needs_file: ClassVar[bool] = False
    """Whether a file is needed, and an object in a store has to be fetched first."""
    fragile: ClassVar[bool] = False
    """Whether a file can make its library hang, crash or take the memory, so that another process reads it."""
    companions: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that lie beside one of this kind, and belong to it."""
    path: Any  # a Path, or a Remote unless needs_file
    scratch_dir: Path
    choices: Choices = Choices()  # noqa: RUF009 - frozen
    keys: Keys = ()

    @property
    @abstractmethod
    def head(self) -> Head:
        """The file as it announces itself."""

    def fragments(self, keep: Places) -> Fragments:  # noqa: ARG002 - for readers that can
        """Return where rows can be read without those before them; DataError if too much is read at once for that."""
        return Fragments(np.array([self.head.rows or 0], np.int64))

    @abstractmethod
    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        """Yield the rows of a fragment in order, arrays of shape (r, len(keep)); close it to drop what it opened."""

    def survey(self, keep: Places, fragment: Fragment = None) -> Survey:  # noqa: ARG002 - an array is of one type
        """Return rows and type of some columns; NoRowsError if the file has no rows."""
        head = self.head
        if not head.rows:
            raise NoRowsError(self.path)
        return Survey(head.rows, STORED[head.dtype])

    def rows(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        """Yield what :meth:`blocks` does; DataError where a value is not finite."""
        row = 0 if fragment is None else fragment[0]
        for block in self.blocks(keep, fragment):
            if block.dtype.kind == "f" and not np.isfinite(block).all():
                offset, column = np.argwhere(~np.isfinite(block))[0]
                raise self.not_finite(row + offset, keep[column])
            row += len(block)
            yield block

    def not_finite(self, row: int, column: int) -> DataError:
        """Return the refusal of a value."""
        return not_finite(self.path, row, self.head.names[column])

    @property
    def unpacked(self) -> int:
        """Bytes that the library unpacks at once, as the file announces them, or 0 where they are few."""
        return 0

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:  # noqa: ARG002 - for readers that can
        """Yield the privacy unit of every row: arrays of shape (r, 2), uint64, keyed digests of 128 bits."""
        raise DataError(f"{self.path} is read without a schema, which would say whose row it is.")

    def state(self, start: int, stop: int) -> State:  # noqa: ARG002 - a file is one object
        """Return the state of the objects that these rows lie in; DataError if the file is not there any more."""
        return attempt(self.path, partial(_state_of_file, self.path))


def _state_of_file(path: Any) -> State:
    """Return the state of one file, or of one object in a store; OSError if it is none, such as a link by now."""
    if not isinstance(path, Path):
        return State(1, path.stat().st_size, version_of([path.version()]))
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link or no file")
    return State(1, status.st_size, version_of([(status.st_size, status.st_mtime_ns)]))


def version_of(versions: Sequence[object]) -> bytes:
    """Return 128 bits of what places tell of their objects."""
    return hashlib.sha256(json.dumps(versions).encode()).digest()[:16]


def width_for(rows: int, dtype: np.dtype[np.generic]) -> int:
    """Return how many columns make a block."""
    return max(1, WINDOW // (rows * dtype.itemsize))


def neighbours(keep: Places, width: int) -> Iterator[slice]:
    """Yield runs of columns that are neighbours in the file, and read together."""
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
    """Yield the rows of a table that comes in blocks of columns, through a private file beside the rows.

    Each block of columns is written row by row. So the rows of a piece are one stretch of bytes in every block, and
    neither writing nor reading needs more memory than :data:`WINDOW`.
    """
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
                    file.readinto(part.data)  # our own file, and complete
                    rows[:, first : first + width] = part
                    first += width
                yield rows
