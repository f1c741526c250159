"""The interface of readers: column names, fragments, and the rows of a fragment in blocks of about 8 MiB.

A reader is done with these three. Whatever is wrong with a file is a DataError that names the file and no cell, and is
not chained to a library's error that may quote one: messages travel further than rows may.
"""

from __future__ import annotations

import csv
import errno
import gc
import hashlib
import io
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist._util.text import listed
from dpdist.errors import DataError, DpdistError, UsageError, quiet
from dpdist.ingest.readers.genotypes import Genotypes
from dpdist.naming import parameter, step
from dpdist.rows.columns import DTYPES
from dpdist.rows.schema import Schema

T = TypeVar("T")
Rows = npt.NDArray[np.number]
Places = tuple[int, ...]
"""Places of columns in a file, from 0."""
Keys = tuple[tuple[str, str], ...]
"""Name and text of the keys of the folders KEY=VALUE that a file lies in."""
Fragment = tuple[int, int] | None
"""Where the rows of a fragment begin and end: numbers of rows, or of bytes in text; None: all rows of the file."""
progressed: Callable[[], object] = bool
"""Called for each block that was read: a reader in another process (:mod:`.isolated`) says so that it lives."""
UNNAMED = frozenset({"", "Unnamed: 0", "__index_level_0__"})
"""Names that pandas gives an index without a name: in CSV, in CSV that was read and written again, and in Parquet."""
PIECE = 8 << 20
"""Bytes of a block, about."""
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
"""The type in which values are stored, by their type."""
AT_ONCE = 1 << 28
"""Bytes at most that a fragment may take at once where rows are read in place: other workers read beside it."""
MOST_RUNS = 1 << 21
"""Fragments of a table in place at most, 16 TiB of 8 MiB: each takes memory of the driver."""
EXACT = 2**53
"""Up to it float64 holds every whole number."""
BEYOND = (
    "a whole number beyond 2^53, which would be rounded beside numbers that are not whole. If it is an identifier, "
    "leave the column out, or say in a schema that it is a privacy unit; if it may be rounded, write it as 1.5e17."
)
CURE = "Mend it in the file and ingest again."
MOST_COLUMNS = 1 << 20
"""Columns of a source at most: a few bytes may announce any number of them."""
MOST_LABELS = 1 << 26
"""Bytes of the names of all columns at most."""
_TYPED = 50
"""Names that a command is told with."""


class Entry(NamedTuple):
    """A file of a source.

    Attributes
    ----------
    place
        Absolute path, or address.
    shown
        How messages name it.
    keys
        Of the folders that it lies in.
    """

    place: str
    shown: str
    keys: Keys = ()


class Head(NamedTuple):
    """A file as it announces itself.

    Attributes
    ----------
    names
        Of its columns; c0, c1, ... where it has none. With a schema those of the rows.
    rows
        How many it has; None where only reading tells.
    dtype
        Type of all values, of arrays and genotypes.
    kinds
        Arrow types of the columns, of tables of which each column has its own; None: text, or an array.
    indexes
        Places of the columns that may be an index: those without a name, and those that pandas says are one.
    guess
        What was guessed of the file, for people to read; None: nothing.
    labels
        Names of what stands beside the rows and can say whose they are, such as ``obs/donor``.
    samples
        The labels that together name the sample of each row, or none.
    meaning
        A digest of what names do not tell of columns: the alleles that they count, the coordinates along them.
    """

    names: tuple[str, ...]
    rows: int | None = None
    dtype: str = "float64"
    kinds: tuple[Any, ...] | None = None
    indexes: Places = ()
    guess: str | None = None
    labels: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    meaning: str = ""


class Fragments(NamedTuple):
    """Where the rows of a file can be taken apart.

    Attributes
    ----------
    ends
        Ascending, int64: a fragment goes from one of them, or from 0, to another one; the last one is the end of all.
        Between two neighbours are rows of about 8 MiB, or more where the file cannot be cut.
    memory
        Bytes that reading one takes at once, where it can be read in place; 0: it cannot.
    in_bytes
        Whether ends are places in text, and not numbers of rows: a fragment has the lines that begin in it.
    """

    ends: npt.NDArray[np.int64]
    memory: int = 0
    in_bytes: bool = False


class Survey(NamedTuple):
    """Rows and type of a fragment.

    Attributes
    ----------
    rows
        How many.
    dtype
        Native type that holds every value, one of :data:`~dpdist.rows.columns.DTYPES`.
    span
        Of whole numbers in text, whose type is still to be chosen: the least and the greatest value of the narrowest
        types that hold them. No value of the data can be told from it beyond these types.
    """

    rows: int
    dtype: str
    span: tuple[int, int] | None = None


class State(NamedTuple):
    """The objects that rows lie in, as their place tells of them: nothing of what they hold.

    Attributes
    ----------
    objects, size
        How many are there, and their bytes together; 0 where a place tells only by being asked for each.
    version
        128 bits that change when an object is written again, as far as the place tells: times of files, or tags.
    """

    objects: int
    size: int
    version: bytes


class Location(Protocol):
    """Where a source is: a :class:`~pathlib.Path`, or an object in a store (:mod:`dpdist.ingest.remote`)."""

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    def open(self, mode: str, /) -> IO[bytes]: ...

    def stat(self) -> os.stat_result: ...


@dataclass(frozen=True)
class Choices:
    """The options of an ingest that some kinds of files leave open.

    Attributes
    ----------
    variable
        Name of the array of rows, where a file holds several.
    missing
        The number of alleles, 0, 1 or 2, to put where a genotype is missing; None: such a file is refused.
    header
        ``yes`` if the first line of text names the columns, ``no`` if it is a row; None: guessed where it is clear.
    schema
        What the columns mean, by which they are mapped to numbers; None: they are numbers.
    genotypes
        Rules for genotypes (:mod:`dpdist.ingest.readers.genotypes`), or None.
    rows_dimension
        Name of the dimension of an array along which the rows are; None: the first.
    """

    variable: str | None = None
    missing: int | None = None
    header: str | None = None
    schema: Schema | None = None
    genotypes: Genotypes | None = None
    rows_dimension: str | None = None

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
        said: dict[str, object] = {"variable": self.variable, "missing": self.missing, "header": self.header}
        said |= {} if self.rows_dimension is None else {"rows_dimension": self.rows_dimension}
        said |= {} if self.genotypes is None else {"genotypes": self.genotypes.to_json()}
        return said if self.schema is None else {**said, "schema": self.schema.to_json()}


class AskError(DataError):
    """A file that can be taken in several ways; nothing is guessed, and whoever asked for it chooses."""

    def __init__(self, said: str, ways: Sequence[tuple[str, str, str]] = (), more: str = "") -> None:
        super().__init__(said)
        self.args = (said, ways, more)  # by which it is made again in another process
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


class UncutError(Exception):
    """A fragment of text cannot be read by itself, because quotes go over its lines: the file is read as a whole."""


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
    path: Any  # a Location; a Path where needs_file
    beside: Path
    choices: Choices = Choices()
    keys: Keys = ()

    @property
    @abstractmethod
    def head(self) -> Head:
        """The file as it announces itself."""

    @property
    def cure(self) -> str:
        """What to do about a value that is not finite."""
        return CURE

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
            raise NoRowsError(f"{self.path} has no rows. Add some.")
        return Survey(head.rows, STORED[head.dtype])

    def rows(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        """Yield what :meth:`blocks` does; DataError where a value is not finite."""
        row = 0 if fragment is None else fragment[0]
        for block in self.blocks(keep, fragment):
            if block.dtype.kind == "f" and not np.isfinite(block).all():
                at, place = np.argwhere(~np.isfinite(block))[0]
                raise not_finite(
                    self.path, row + at, self.head.names[keep[place]], self.place_of(keep[place]), self.cure
                )
            row += len(block)
            yield block

    def place_of(self, column: int) -> str:  # noqa: ARG002 - most files say it by the name
        """Return where a column is, as ``lat 10, lon 2``; empty where its name says it."""
        return ""

    @property
    def unpacked(self) -> int:
        """Bytes that the library unpacks at once, as the file announces them, or 0 where they are few."""
        return 0

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:  # noqa: ARG002 - for readers that can
        """Yield the privacy unit of every row: arrays of shape (r, 2), uint64, keyed digests of 128 bits."""
        raise DataError(f"{self.path} is read without a schema, which would say whose row it is.")

    def state(self, start: int, stop: int) -> State:  # noqa: ARG002 - a file is one object
        """Return the state of the objects that these rows lie in; DataError if the file is not there any more."""
        return attempt(self.path, partial(state_of_file, self.path))


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


def no_numbers(path: Location, bad: Mapping[str, str], others: Sequence[str]) -> AskError:
    """Return the refusal of columns that are no numbers, each with what it holds, and the names of the others."""
    told = listed(f"{name!r} ({kind})" for name, kind in bad.items())
    ways = [only_columns(others, "leaves them out")] if len(others) > 1 else []
    # a privacy unit is looked at alone
    few = "" if ways or len(bad) + len(others) == 1 else "Fewer than two columns hold numbers, and a table needs two. "
    few += (
        "To take them in, say what they mean in a schema, which also says whose row it is: "
        f"{step('schema', 'SOURCE', 'SCHEMA')} drafts one."
    )
    return AskError(f"{path}: these columns hold no numbers: {told}.", ways, few)


def meant_by_schema() -> str:
    """Return the part of a sentence that leads to a schema."""
    return f"say in a schema what such cells mean: {step('schema', 'SOURCE', 'SCHEMA')} drafts one"


def attempt(path: Location, action: Callable[[], T]) -> T:
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


def each(path: Location, pieces: Iterator[T]) -> Generator[T]:
    """Pass pieces on; only their making counts as an attempt, not what the receiver does with them."""
    while (piece := attempt(path, partial(next, pieces, None))) is not None:
        progressed()
        yield piece


def required(module: str, extra: str, kind: str) -> Any:
    """Import a package that only one kind of file needs; UsageError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        pass
    raise UsageError(f"Reading {kind} needs {module}. Install it with: pip install 'dpdist[{extra}]'")


def state_of_file(path: Any) -> State:
    """Return the state of one file, or of one object in a store; OSError if it is none, such as a link by now."""
    if not isinstance(path, Path):
        return State(1, path.stat().st_size, version_of([path.version()]))
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is a link or no file")
    return State(1, about.st_size, version_of([(about.st_size, about.st_mtime_ns)]))


def version_of(versions: Sequence[object]) -> bytes:
    """Return 128 bits of what places tell of their objects."""
    return hashlib.sha256(json.dumps(versions).encode()).digest()[:16]


def fits(block: Rows, dtype: np.dtype[Any]) -> bool:
    """Tell whether storing the block alters no value; only whole numbers from text can need a look."""
    if np.can_cast(block.dtype, dtype):
        return True
    with np.errstate(invalid="ignore"):
        return bool((block.astype(dtype) == block).all())


def changed(path: object) -> DataError:
    """Return the refusal of a file that changed meanwhile."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def not_finite(where: object, row: int, name: str, place: str = "", cure: str = CURE) -> DataError:
    """Return the refusal of a value that is not finite, by its row and column."""
    told = f"{where}, row {row} (counting from 0), column {name!r}"
    return DataError(f"{told}{place and f' ({place})'}: the value is not finite. {cure}")


def require_exact(where: object, start: int, block: Rows, dtype: npt.DTypeLike, names: Sequence[str]) -> None:
    """Refuse whole numbers that a type of floats would round, by row and column."""
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8 and np.dtype(dtype).kind == "f":
        beyond = (block > EXACT) | (block < -EXACT if block.dtype.kind == "i" else False)
        if beyond.any():
            row, place = np.argwhere(beyond)[0]
            raise DataError(f"{where}, row {start + row} (counting from 0), column {names[place]!r}: {BEYOND}")


def require_runs(path: Location, count: int) -> None:
    """Refuse more fragments than a table in place may have: DataError."""
    if count > MOST_RUNS:
        raise DataError(
            f"{path} has {count} chunks, with those of the files before it, and a table in place has at most "
            f"{MOST_RUNS}. Write it in chunks of more rows, or copy its rows with {step('ingest')}."
        )


def ends_of(path: Location, n: int, high: int) -> npt.NDArray[np.int64]:
    """Return the ends of n rows that are cut after every so many; DataError if these are too many parts."""
    require_runs(path, -(-n // high))
    return np.append(np.arange(high, n, high), n)


def unbuffered(path: Location) -> Any:
    """Open a file so that readinto fills what it is given."""
    return path.open("rb", buffering=0) if isinstance(path, Path) else path.open("rb")


def require_table(path: Location, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse an array that is no table of numbers: DataError, with its shape or type."""
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 2:
        raise DataError(
            f"{path} holds an array of shape {shape}, not a table of at least one row and two columns. "
            "Save it as one 2-D array with a record per row."
        )
    require_columns(path, shape[1])
    if dtype.name not in STORED:
        raise DataError(f"{path} holds values of type {dtype.name}. Save it as {', '.join(DTYPES)}.")


def require_columns(path: object, count: int, most: int = MOST_COLUMNS) -> None:
    """Refuse more columns than can be named in little memory: DataError."""
    if count > most:
        raise DataError(
            f"{path} has more than {most} columns, too many to take it for a table. Write those that you need to a "
            "file of their own."
        )


def bounded(path: Location, pieces: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names in some pieces; DataError, before more are read, once they are too long together."""
    names: list[str] = []
    size = 0
    for piece in pieces:
        names += map(str, piece)
        size += sum(map(len, piece))
        if size > MOST_LABELS:
            raise DataError(f"{path} names its columns by more than {MOST_LABELS >> 20} MiB. Give them shorter names.")
    return tuple(names)


def numbered(columns: int) -> tuple[str, ...]:
    """Name columns that have no names."""
    return tuple(f"c{i}" for i in range(columns))
