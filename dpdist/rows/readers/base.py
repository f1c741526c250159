"""What every reader of files is: asked for column names, for a survey, then for the rows, in pieces of about 8 MiB.

The survey gives rows and type, so that every file is judged before anything is written. No message repeats a cell or
is chained to a library's error that may quote one: messages travel further than rows may.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, DpdistError, UsageError
from dpdist.rows.dataset import DTYPES

T = TypeVar("T")
Rows = npt.NDArray[Any]
Places = tuple[int, ...]
PIECE = 8 << 20
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
CURE = "Mend it in the file and ingest again."


class Location(Protocol):
    """Where a source is: a :class:`~pathlib.Path`, or an object in a store (:mod:`dpdist.rows.readers.remote`)."""

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    def open(self, mode: str, /) -> IO[Any]: ...

    def stat(self) -> Any: ...


@dataclass(frozen=True)
class Choices:
    """What a kind of file leaves open.

    Attributes
    ----------
    variable
        Name of the array of rows, where a file holds several.
    missing
        The number of alleles, 0, 1 or 2, to put where a genotype is missing; None: such a file is refused.
    """

    variable: str | None = None
    missing: int | None = None

    def __post_init__(self) -> None:
        if self.missing not in {None, 0, 1, 2}:
            raise UsageError("--missing takes the number of alleles to put where a genotype is missing: 0, 1 or 2.")

    @property
    def made(self) -> list[str]:
        """Names of the options that were given."""
        return [name for name, value in vars(self).items() if value is not None]


class NoRowsError(DataError):
    """A file has no rows and is sound otherwise: for a table a mistake, for a period like any other content."""


@dataclass(frozen=True)
class Survey:
    """What a file holds.

    Attributes
    ----------
    rows
        Number of rows, at least 1.
    dtype
        Native type that holds every value, one of :data:`~dpdist.rows.dataset.DTYPES`.
    span
        Least and greatest value if all are whole numbers written as text, whose type is still to be chosen.
    """

    rows: int
    dtype: np.dtype[Any]
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Source(ABC):
    """A file of rows; columns are chosen by their places. Whatever is wrong with the file is a DataError.

    Parameters
    ----------
    path
        The file.
    beside
        Folder in which it may be unpacked for a while.
    choices
        What the user chose, of what the kind of file leaves open.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    """The choices that this kind of file leaves open."""
    needs_file: ClassVar[bool] = False
    """Whether a file is needed, and an object in a store has to be fetched first."""
    path: Any  # a Location; a Path where needs_file
    beside: Path
    choices: Choices = Choices()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of all columns; c0, c1, ... where the file has none."""

    @abstractmethod
    def survey(self, keep: Places) -> Survey:
        """Return the number of rows and the type of some columns; NoRowsError where there are none."""

    def kept_as(self, place: int) -> np.dtype[Any] | None:  # noqa: ARG002 - for readers that widen
        """Return the type of a column in the file where :meth:`blocks` yields a wider one, or None."""
        return None

    @abstractmethod
    def blocks(self, keep: Places) -> Generator[Rows]:
        """Yield all rows in order, in arrays of shape (r, len(keep)); close it to drop what it opened."""


def attempt(path: Location, action: Callable[[], T]) -> T:
    """Return what the action returns; any failure is a DataError that names the file and no cell.

    Foreign bytes make the libraries raise anything, from OSError to SyntaxError. The DataError is raised when their
    error is gone, because theirs may quote a row and would stay attached as its context.
    """
    try:
        return action()
    except (DpdistError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        kind = f"damaged or of another kind ({type(error).__name__})"
        reason = getattr(error, "strerror", None) or f"it is {kind}"
    if not isinstance(path, Path):
        raise DataError(
            f"{path} cannot be read: the store does not give it, or it is {kind}. Check the address and your "
            "credentials for the store, or mend the file, and ingest again."
        )
    raise DataError(f"{path} cannot be read: {reason}. Mend or replace the file and ingest again.")


def each(path: Location, pieces: Iterator[T]) -> Generator[T]:
    """Pass pieces on; only their making counts as an attempt, not what the receiver does with them."""
    while (piece := attempt(path, partial(next, pieces, None))) is not None:
        yield piece


def required(module: str, extra: str, kind: str) -> Any:
    """Import a package that only one kind of file needs.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        pass
    raise UsageError(f"Reading {kind} needs {module}. Install it with: pip install 'dpdist[{extra}]'")


def unbuffered(path: Location) -> Any:
    """Open a file so that readinto fills what it is given."""
    return path.open("rb", buffering=0) if isinstance(path, Path) else path.open("rb")


def require_table(path: Location, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array that is no table of numbers.

    Raises
    ------
    DataError
        With its shape or type.
    """
    if len(shape) != 2 or shape[1] < 2:
        raise DataError(
            f"{path} holds an array of shape {shape}, not a table of at least one row and two columns. "
            "Save it as one 2-D array with a record per row."
        )
    if dtype.name not in STORED:
        raise DataError(f"{path} holds values of type {dtype.name}. Save it as {', '.join(DTYPES)}.")


def surveyed(path: Location, rows: int, dtype: str) -> Survey:
    """Return what an array is, if it has rows.

    Raises
    ------
    NoRowsError
        If it has none.
    """
    if not rows:
        raise NoRowsError(f"{path} has no rows. Remove it, or add rows.")
    return Survey(rows, np.dtype(STORED[dtype]))


def numbered(columns: int) -> tuple[str, ...]:
    """Name columns that have no names."""
    return tuple(f"c{i}" for i in range(columns))


def matrix(batch: Any, fields: list[str], dtype: npt.DTypeLike) -> Rows:
    """Put columns of an Arrow batch side by side."""
    out = np.empty((len(fields), batch.num_rows), dtype=dtype)
    for place, field in enumerate(fields):
        out[place] = batch.column(field).to_numpy(zero_copy_only=False)
    return out.T
