"""What all readers share: options, limits, and refusals.

Whatever is wrong with a file is a DataError that names the file and no cell, and is not chained to a library's error
that may quote one: messages travel further than rows may.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist._util.text import as_json, listed
from dpdist.errors import DataError, DpdistError, UsageError, quiet
from dpdist.ingest.readers.genotypes import Genotypes
from dpdist.naming import parameter, step
from dpdist.rows.columns import DTYPES
from dpdist.rows.schema import Schema

T = TypeVar("T")
P = ParamSpec("P")
Rows = npt.NDArray[np.number]
Places = tuple[int, ...]  # places of columns in a file, from 0
progressed: Callable[[], object] = bool
"""Called for each block that was read: a reader in another process (:mod:`.isolated`) says so that it lives."""
UNNAMED = frozenset({"", "Unnamed: 0", "__index_level_0__"})
"""Names that pandas gives an index without a name: in CSV, in CSV that was read and written again, and in Parquet."""
PIECE = 8 << 20  # bytes of a block, about
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
"""The type in which values are stored, by their type."""
AT_ONCE = 1 << 28
"""Bytes at most that a fragment may take at once where rows are read in place: other workers read beside it."""
MOST_RUNS = 1 << 21  # fragments of a table in place at most, 16 TiB of 8 MiB: each takes memory of the driver
EXACT = 2**53  # up to it float64 holds every whole number
BEYOND = (
    "a whole number beyond 2^53, which would be rounded beside numbers that are not whole. If it is an identifier, "
    "leave the column out, or say in a schema that it is a privacy unit; if it may be rounded, write it as 1.5e17."
)
CURE = "Mend it in the file and ingest again."
MOST_COLUMNS = 1 << 20  # columns of a source at most: a few bytes may announce any number of them
MOST_LABELS = 1 << 26  # bytes of the names of all columns at most
_TYPED = 50  # names that a command is told with


@dataclass(frozen=True)
class Choices:
    """The options of an ingest that some kinds of files leave open; None: not given."""

    variable: str | None = None  # name of the array of rows, where a file holds several
    missing: int | None = None  # alleles to put where a genotype is missing; None: such a file is refused
    header: str | None = None  # whether the first line of text names the columns; None: guessed where it is clear
    schema: Schema | None = None  # by which columns are mapped to numbers; None: they are numbers
    genotypes: Genotypes | None = None
    rows_dimension: str | None = None  # the dimension along which the rows are; None: the first

    def __post_init__(self) -> None:
        if self.header not in {None, "yes", "no"}:
            raise UsageError(f"{parameter('header')} takes yes (the first line names the columns) or no (it is a row).")
        if self.missing not in {None, 0, 1, 2}:
            raise UsageError(
                f"{parameter('missing')} takes the number of alleles to put where a genotype is missing: 0, 1 or 2."
            )

    @property
    def made(self) -> list[str]:
        """Names of the options that were given."""
        return [name for name, value in vars(self).items() if value is not None]

    def to_json(self) -> dict[str, object]:
        """Return JSON values, by which the same choices are known again."""
        values: dict[str, object] = {"variable": self.variable, "missing": self.missing, "header": self.header}
        later = {name: getattr(self, name) for name in ("rows_dimension", "genotypes", "schema")}
        return values | {name: as_json(value) for name, value in later.items() if value is not None}


class AskError(DataError):
    """A file that can be taken in several ways; nothing is guessed, and whoever asked for it chooses."""

    def __init__(self, message: str, ways: Sequence[tuple[str, str, str]] = (), more: str = "") -> None:
        super().__init__(message)
        self.args = (message, ways, more)  # by which it is made again in another process
        self.ways = ways
        self.more = more

    def __str__(self) -> str:
        return str(self.args[0])

    def asked(self, source: object, target: object) -> str:
        """Return the question with the steps to choose from."""
        steps = ", or ".join(
            f"{step('ingest', source, target, **{name: value})} ({meaning})" for name, value, meaning in self.ways
        )
        typed = f" Repeat it, with what else you chose, as: {steps}." if steps else ""
        return f"{self}{typed}{self.more and f' {self.more}'}"


class NoRowsError(DataError):
    """A file has no rows and is sound otherwise: for a table a mistake, for a period like any other content."""

    def __init__(self, subject: object) -> None:
        super().__init__(subject if isinstance(subject, str) else f"{subject} has no rows. Add some.")


class UncutError(Exception):
    """A fragment of text cannot be read by itself, because quotes go over its lines: the file is read as a whole."""


def only_columns(names: Iterable[str], meaning: str) -> tuple[str, str, str]:
    r"""Return the way to take some columns only; of very many, that their names are to be written there.

    Examples
    --------
    >>> only_columns(["a", "b, c"], "leaves d out")
    ('columns', 'a,"b, c"', 'leaves d out')
    """
    names = list(names)
    if len(names) > _TYPED:
        return "columns", "NAMES", f"{meaning}; NAMES are the {len(names)} others"
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return "columns", line.getvalue(), meaning


def no_numbers(path: object, bad: Mapping[str, str], others: Sequence[str]) -> AskError:
    """Return the refusal of columns that are no numbers, each with what it holds, and the names of the others."""
    columns = listed(f"{name!r} ({kind})" for name, kind in bad.items())
    ways = [only_columns(others, "leaves them out")] if len(others) > 1 else []
    # a privacy unit is looked at alone
    advice = (
        "" if ways or len(bad) + len(others) == 1 else "Fewer than two columns hold numbers, and a table needs two. "
    )
    advice += (
        "To take them in, say what they mean in a schema, which also says whose row it is: "
        f"{step('schema', 'SOURCE', 'SCHEMA')} drafts one."
    )
    return AskError(f"{path}: these columns hold no numbers: {columns}.", ways, advice)


def schema_says_columns() -> UsageError:
    """Return the refusal of columns that are chosen beside a schema."""
    return UsageError(
        'The schema says which columns are kept: leave the others out there, with kind = "ignored".',
        parameter="columns",
    )


def meant_by_schema() -> str:
    """Return the part of a sentence that leads to a schema."""
    return f"say in a schema what such cells mean: {step('schema', 'SOURCE', 'SCHEMA')} drafts one"


def attempt(path: object, action: Callable[[], T]) -> T:
    """Return what the action returns; any failure is a DataError that names the file and no cell.

    Foreign bytes make the libraries raise anything, from OSError to SyntaxError. The DataError is raised when their
    error is gone, because theirs may quote a row and would stay attached as its context.
    """
    with quiet():
        try:
            return action()
        except (DpdistError, UncutError):
            raise
        except MemoryError:
            kind = "larger than the memory"
            reason = "a part of it that is needed at once does not fit into the memory"
        except Exception as error:  # noqa: BLE001 - see above
            kind = f"damaged or of another kind ({type(error).__name__})"
            reason = getattr(error, "strerror", None) or f"it is {kind}"
        gc.collect(1)  # what a library left half-made complains once more when it goes: now, while nobody listens
    if not isinstance(path, Path):
        raise DataError(
            f"{path} cannot be read: the store does not give it, or it is {kind}. Check the address and your "
            "credentials for the store, or mend the file, and ingest again."
        )
    raise DataError(f"{path} cannot be read: {reason}. Mend or replace the file and ingest again.")


def attempted(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make all of a reader's method an :func:`attempt`."""

    @wraps(method)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return attempt(self.path, lambda: method(self, *args, **kwargs))

    return called


def attempt_each(path: object, items: Iterator[T]) -> Generator[T]:
    """Pass pieces on; only their making counts as an attempt, not what the receiver does with them."""
    while (item := attempt(path, partial(next, items, None))) is not None:
        progressed()
        yield item


def required(module: str, extra: str, kind: str) -> Any:
    """Import a package that only one kind of file needs; UsageError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        pass
    raise UsageError(f"Reading {kind} needs {module}. Install it with: pip install 'dpdist[{extra}]'")


def fits(block: Rows, dtype: np.dtype[Any]) -> bool:
    """Tell whether storing the block alters no value; only whole numbers from text can need a look."""
    if np.can_cast(block.dtype, dtype):
        return True
    with np.errstate(invalid="ignore"):
        return bool((block.astype(dtype) == block).all())


def changed(path: object) -> DataError:
    """Return the refusal of a file that changed meanwhile."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def not_finite(where: object, row: int, name: str, coordinates: str = "", cure: str = CURE) -> DataError:
    """Return the refusal of a value that is not finite, by its row and column."""
    cell = f"{where}, row {row} (counting from 0), column {name!r}"
    return DataError(f"{cell}{coordinates and f' ({coordinates})'}: the value is not finite. {cure}")


def require_exact(where: object, start: int, block: Rows, dtype: npt.DTypeLike, names: Sequence[str]) -> None:
    """Refuse whole numbers that a type of floats would round, by row and column."""
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8 and np.dtype(dtype).kind == "f":
        beyond = (block > EXACT) | (block < -EXACT if block.dtype.kind == "i" else False)
        if beyond.any():
            row, column = np.argwhere(beyond)[0]
            raise DataError(f"{where}, row {start + row} (counting from 0), column {names[column]!r}: {BEYOND}")


def require_runs(path: object, count: int) -> None:
    """Refuse more fragments than a table in place may have."""
    if count > MOST_RUNS:
        raise DataError(
            f"{path} has {count} chunks, with those of the files before it, and a table in place has at most "
            f"{MOST_RUNS}. Write it in chunks of more rows, or copy its rows with {step('ingest')}."
        )


def ends_of(path: object, n: int, high: int) -> npt.NDArray[np.int64]:
    """Return the ends of n rows that are cut after every so many; DataError if these are too many parts."""
    require_runs(path, -(-n // high))
    return np.append(np.arange(high, n, high), n)


def require_table(path: object, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse an array that is no table of numbers, with its shape or type."""
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 2:
        raise DataError(
            f"{path} holds an array of shape {shape}, not a table of at least one row and two columns. "
            "Save it as one 2-D array with a record per row."
        )
    require_columns(path, shape[1])
    if dtype.name not in STORED:
        raise DataError(f"{path} holds values of type {dtype.name}. Save it as {', '.join(DTYPES)}.")


def require_columns(path: object, count: int) -> None:
    """Refuse more columns than can be named in little memory."""
    if count > MOST_COLUMNS:
        raise DataError(
            f"{path} has more than {MOST_COLUMNS} columns, too many to take it for a table. Write those that you need "
            "to a file of their own."
        )


def bounded(path: object, batches: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names in some pieces; DataError, before more are read, once they are too long together."""
    names: list[str] = []
    size = 0
    for batch in batches:
        names += map(str, batch)
        size += sum(map(len, batch))
        if size > MOST_LABELS:
            raise DataError(f"{path} names its columns by more than {MOST_LABELS >> 20} MiB. Give them shorter names.")
    return tuple(names)


def numbered(columns: int) -> tuple[str, ...]:
    """Name columns that have no names."""
    return tuple(f"c{i}" for i in range(columns))
