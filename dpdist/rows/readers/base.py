"""What every reader of files is: asked for column names, for a survey, then for the rows, in pieces of about 8 MiB.

The survey gives rows and type, so that every file is judged before anything is written. No message repeats a cell or
is chained to a library's error that may quote one: messages travel further than rows may.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError
from dpdist.rows.dataset import DTYPES

T = TypeVar("T")
Rows = npt.NDArray[Any]
Places = tuple[int, ...]
PIECE = 8 << 20
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
CURE = "Mend it in the file and ingest again."


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
    """

    path: Path
    beside: Path

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


def attempt(path: Path, action: Callable[[], T]) -> T:
    """Return what the action returns; any failure is a DataError that names the file and no cell.

    Foreign bytes make the libraries raise anything, from OSError to SyntaxError. The DataError is raised when their
    error is gone, because theirs may quote a row and would stay attached as its context.
    """
    try:
        return action()
    except (DataError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        reason = getattr(error, "strerror", None) or f"it is damaged or of another kind ({type(error).__name__})"
    raise DataError(f"{path} cannot be read: {reason}. Mend or replace the file and ingest again.")


def each(path: Path, pieces: Iterator[T]) -> Generator[T]:
    """Pass pieces on; only their making counts as an attempt, not what the receiver does with them."""
    while (piece := attempt(path, partial(next, pieces, None))) is not None:
        yield piece


def numbered(columns: int) -> tuple[str, ...]:
    """Name columns that have no names."""
    return tuple(f"c{i}" for i in range(columns))


def listed(names: Iterable[str]) -> str:
    """Return names for a message, the first twenty of many."""
    names = list(names)
    return ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")


def matrix(batch: Any, fields: list[str], dtype: npt.DTypeLike) -> Rows:
    """Put columns of an Arrow batch side by side."""
    out = np.empty((len(fields), batch.num_rows), dtype=dtype)
    for place, field in enumerate(fields):
        out[place] = batch.column(field).to_numpy(zero_copy_only=False)
    return out.T
