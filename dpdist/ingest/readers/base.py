"""What every reader of files is: asked for column names, for a survey, then for the rows, in pieces of about 8 MiB.

The survey gives rows and type, so that every file is judged before anything is written. No message repeats a cell or
is chained to a library's error that may quote one: messages travel further than rows may.
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
progressed: Callable[[], object] = bool
"""Called for every piece that was read; a reader in another process (:mod:`.isolated`) says so that it lives."""
_TYPED = 50
"""Names that a command is told with."""
UNNAMED = frozenset({"", "Unnamed: 0", "__index_level_0__"})
"""What pandas calls an index without a name, in CSV, in CSV that it read and wrote again, and in Parquet."""
Rows = npt.NDArray[np.number]
Places = tuple[int, ...]
PIECE = 8 << 20
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
AT_ONCE = 1 << 28
"""Bytes at most that have to be read at once where rows are read in place: other workers do the same beside it."""
MOST_RUNS = 1 << 21
"""Chunks of a table in place at most, 16 TiB of 8 MiB: each takes memory of the driver, and none on the disk."""
CURE = "Mend it in the file and ingest again."
MOST_COLUMNS = 1 << 20
"""Columns of a source at most: before any is named, because a few bytes may announce any number of them."""
MOST_LABELS = 1 << 26
"""Bytes of the names of all columns at most."""


class Runs(NamedTuple):
    """Where the rows of a file can be taken apart.

    Attributes
    ----------
    ends
        Numbers of rows, ascending, int64: a part of the rows may begin and end there, and between two of them are rows
        of about 8 MiB, or more where the file cannot be cut. The last one is n.
    memory
        Bytes that reading a part takes at once.
    """

    ends: npt.NDArray[np.int64]
    memory: int


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
    """What a kind of file leaves open.

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

    Raises
    ------
    UsageError
        If one is none of these.
    """

    variable: str | None = None
    missing: int | None = None
    header: str | None = None
    schema: Schema | None = None
    genotypes: Genotypes | None = None

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
        said |= {} if self.genotypes is None else {"genotypes": self.genotypes.to_json()}
        return said if self.schema is None else {**said, "schema": self.schema.to_json()}

    @property
    def packed(self) -> dict[str, object]:
        """JSON values for whoever reads a part."""
        said = self.to_json()
        said |= {} if self.schema is None else {"schema": self.schema.packed}
        return said if self.genotypes is None else {**said, "genotypes": self.genotypes.packed}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Choices:
        """Return the choices that were packed."""
        schema, rules = packed.get("schema"), packed.get("genotypes")
        return cls(**{
            **packed,
            "schema": None if schema is None else Schema.unpacked(schema),
            "genotypes": None if rules is None else Genotypes(**rules),
        })  # fmt: skip


class AskError(DataError):
    """A file that can be taken in several ways; nothing is guessed, and whoever asked for it chooses.

    Parameters
    ----------
    said
        What is left open.
    ways
        The parameters of an ingest to choose from: name, value, and what it means.
    more
        What else can be done.
    """

    def __init__(self, said: str, ways: Sequence[tuple[str, str, str]], more: str = "") -> None:
        super().__init__(said)
        self.ways = ways
        self.more = more

    def asked(self, source: object, target: object) -> str:
        """Return the question with the steps to choose from."""
        steps = ", or ".join(
            f"{step('ingest', source, target, **{name: value})} ({meaning})" for name, value, meaning in self.ways
        )
        typed = f" Repeat it, with what else you chose, as: {steps}." if steps else ""
        return f"{self}{typed}{self.more and f' {self.more}'}"


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
    """Return the refusal of columns that are no numbers, all of them at once.

    Parameters
    ----------
    path
        The file.
    bad
        Their names, each with what it holds.
    others
        The names of those that hold numbers.
    """
    told = listed(f"{name!r} ({kind})" for name, kind in bad.items())
    ways = [only_columns(others, "leaves them out")] if len(others) > 1 else []
    # a privacy unit is looked at alone
    few = "" if ways or len(bad) + len(others) == 1 else "Fewer than two columns hold numbers, and a table needs two. "
    few += (
        "To take them in, say what they mean in a schema, which also says whose row it is: "
        f"{step('schema', 'SOURCE', 'SCHEMA')} drafts one."
    )
    return AskError(f"{path}: these columns hold no numbers: {told}.", ways, few)


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
    dtype: np.dtype[np.generic]
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
    fragile: ClassVar[bool] = False
    """Whether a file can make its library hang, crash or take the memory, so that another process reads it."""
    companions: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that lie beside one of this kind, and belong to it."""
    path: Any  # a Location; a Path where needs_file
    beside: Path
    choices: Choices = Choices()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of all columns; c0, c1, ... where the file has none."""

    @property
    def unnamed(self) -> int | None:
        """Place of the column that whoever wrote the file gave no name, or None: it may be an index."""
        return next((place for place, name in enumerate(self.names) if name in UNNAMED), None)

    @property
    def guess(self) -> str | None:
        """What was guessed of the file, for whoever asked for it to read; None: nothing."""
        return None

    @abstractmethod
    def survey(self, keep: Places) -> Survey:
        """Return the number of rows and the type of some columns; NoRowsError where there are none."""

    def kept_as(self, place: int) -> np.dtype[np.generic] | None:  # noqa: ARG002 - for readers that widen
        """Return the type of a column in the file where :meth:`blocks` yields a wider one, or None."""
        return None

    @property
    def unpacked(self) -> int:
        """Bytes that the library unpacks at once, as the file announces them, or 0 where they are few."""
        return 0

    @abstractmethod
    def blocks(self, keep: Places) -> Generator[Rows]:
        """Yield all rows in order, in arrays of shape (r, len(keep)); close it to drop what it opened."""

    def runs(self, keep: Places) -> Runs | None:  # noqa: ARG002 - for readers that can
        """Return where rows can be read without those before them; None: nowhere.

        Raises
        ------
        DataError
            If as much as must be read at once is too much for that.
        """
        return None

    def part(self, keep: Places, start: int, stop: int) -> Generator[Rows]:  # noqa: ARG002 - for readers that can
        """Yield the rows from one of the ends of :meth:`runs` to another, as :meth:`blocks` does."""
        raise DataError(f"{self.path} is of a kind of which no part can be read by itself.")

    def ranges(self, size: int) -> list[tuple[int, int]] | None:  # noqa: ARG002 - for readers that can
        """Return ranges of bytes of about this size, which are the file together; None: it cannot be cut.

        Each is given to :meth:`scan`, on any machine, and what all of them say to :meth:`pieces`. The pieces are then
        surveyed and read, each by itself. All of it is of one state of the file: whoever asks compares the states.
        """
        return None

    def scan(self, start: int, stop: int) -> bytes:  # noqa: ARG002 - for readers that can
        """Return what one of the ranges says of where lines end; a few bytes, and no cell."""
        raise self._uncut()

    def pieces(self, scans: Sequence[bytes]) -> list[tuple[int, int]] | None:  # noqa: ARG002 - for readers that can
        """Return ranges of bytes, each of whole rows, which are the file together; None: it is read from its start.

        Parameters
        ----------
        scans
            What the ranges say, in order.
        """
        return None

    def piece_survey(self, keep: Places, start: int, stop: int) -> Survey:  # noqa: ARG002 - for readers that can
        """Return the rows and the type of a piece, which may be without rows; see :func:`joined`."""
        raise self._uncut()

    def piece(self, keep: Places, start: int, stop: int) -> Generator[Rows]:  # noqa: ARG002 - for readers that can
        """Yield the rows of a piece as :meth:`blocks` does, with the same refusals: they name the line of the file."""
        raise self._uncut()

    def _uncut(self) -> DataError:
        return DataError(f"{self.path} is of a kind that is not cut by bytes.")

    # --- columns as the file holds them: text, numbers and dates, for whoever maps them ------------------------------

    @property
    def kinds(self) -> tuple[Any, ...] | None:
        """Arrow types of all columns; None: it is text, which tells none."""
        return None

    @property
    def counted(self) -> int | None:
        """The number of rows, as the file announces it; None: whoever reads them all knows."""
        return None

    def cells(self, keep: Places, part: tuple[int, int] | None = None) -> Generator[Any]:  # noqa: ARG002 - as above
        """Yield columns as they are, in order, as Arrow batches.

        Parameters
        ----------
        keep
            Their places.
        part
            What :meth:`part` or :meth:`piece` takes, whichever it has; None: all rows.
        """
        raise DataError(f"{self.path} is of a kind without columns of different kinds.")

    def row_in(self, part: tuple[int, int] | None, row: int) -> str:
        """Return how a message names a row, by its number from the start of a part."""
        return f"row {row + (0 if part is None else part[0])} (counting from 0)"

    def require_rows(self, found: int) -> None:  # noqa: B027 - most readers count as they read
        """Refuse the file if reading its cells gave another number of rows than it has."""

    def cuts(self, keep: Places, row_bytes: int) -> Runs | None:  # noqa: ARG002 - for readers that can
        """Return what :meth:`runs` does, for cells of which a row is mapped to so many bytes."""
        return None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of what stands beside the rows and can say whose they are, such as ``obs/donor``."""
        return ()

    @property
    def repeated(self) -> str | None:
        """What the file says that makes several rows one person's, for a refusal where no privacy unit is named."""
        return None

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:  # noqa: ARG002 - few readers know units
        """Yield the privacy unit of every row: arrays of shape (r, 2), uint64, a keyed digest of what it is called.

        Parameters
        ----------
        key
            Of the digest.
        labels
            Which of :attr:`labels` say together whose row it is; none where a schema says it.
        """
        raise DataError(f"{self.path} is read without a schema, which would say whose row it is.")

    def state(self, start: int, stop: int) -> State:  # noqa: ARG002 - a file is one object
        """Return the state of the objects that these rows lie in.

        Raises
        ------
        DataError
            If the file is not there, or is no file any more.
        """
        return attempt(self.path, partial(state_of_file, self.path))


def joined(surveys: Sequence[Survey]) -> Survey | None:
    """Return what the pieces of a file are together; None: they have no rows, and a survey of the file says why."""
    filled = [each for each in surveys if each.rows]
    if not filled:
        return None
    spans = [each.span for each in filled if each.span is not None]
    span = (min(low for low, _ in spans), max(high for _, high in spans)) if len(spans) == len(filled) else None
    return Survey(sum(each.rows for each in filled), np.result_type(*(each.dtype for each in filled)), span)


def attempt(path: Location, action: Callable[[], T]) -> T:
    """Return what the action returns; any failure is a DataError that names the file and no cell.

    Foreign bytes make the libraries raise anything, from OSError to SyntaxError. The DataError is raised when their
    error is gone, because theirs may quote a row and would stay attached as its context.
    """
    with quiet():
        try:
            return action()
        except DpdistError:
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


def state_of_file(path: Any) -> State:
    """Return the state of one file, or of one object in a store.

    Raises
    ------
    OSError
        If it is no file, such as a link by now.
    """
    if not isinstance(path, Path):
        return State(1, path.stat().st_size, version_of([path.version()]))
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is a link or no file")
    return State(1, about.st_size, version_of([(about.st_size, about.st_mtime_ns)]))


def fits(block: Rows, dtype: np.dtype[Any]) -> bool:
    """Tell whether storing the block alters no value; only whole numbers from text can need a look."""
    if np.can_cast(block.dtype, dtype):
        return True
    with np.errstate(invalid="ignore"):
        return bool((block.astype(dtype) == block).all())


def changed(path: object) -> DataError:
    """Return what is said of a file that changed meanwhile."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def require_finite(where: object, start: int, block: Rows, names: Sequence[str], cure: str = CURE) -> None:
    """Refuse a value that is not finite, by its row and column; the first row of the block is number ``start``."""
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        row, place = np.argwhere(~np.isfinite(block))[0]
        raise DataError(
            f"{where}, row {start + row} (counting from 0), column {names[place]!r}: the value is not finite. {cure}"
        )


def require_runs(path: Location, count: int) -> None:
    """Refuse more chunks than a table in place may have.

    Raises
    ------
    DataError
        With their number.
    """
    if count > MOST_RUNS:
        raise DataError(
            f"{path} has {count} chunks, with those of the files before it, and a table in place has at most "
            f"{MOST_RUNS}. Write it in chunks of more rows, or copy its rows with {step('ingest')}."
        )


def ends_of(path: Location, n: int, high: int) -> npt.NDArray[np.int64]:
    """Return the ends of n rows that are cut after every so many.

    Raises
    ------
    DataError
        If these are too many parts; before any is listed.
    """
    require_runs(path, -(-n // high))
    return np.append(np.arange(high, n, high), n)


def version_of(versions: Sequence[object]) -> bytes:
    """Return 128 bits of what places tell of their objects."""
    return hashlib.sha256(json.dumps(versions).encode()).digest()[:16]


def unbuffered(path: Location) -> Any:
    """Open a file so that readinto fills what it is given."""
    return path.open("rb", buffering=0) if isinstance(path, Path) else path.open("rb")


def require_table(path: Location, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse an array that is no table of numbers.

    Raises
    ------
    DataError
        With its shape or type.
    """
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 2:
        raise DataError(
            f"{path} holds an array of shape {shape}, not a table of at least one row and two columns. "
            "Save it as one 2-D array with a record per row."
        )
    require_columns(path, shape[1])
    if dtype.name not in STORED:
        raise DataError(f"{path} holds values of type {dtype.name}. Save it as {', '.join(DTYPES)}.")


def require_columns(path: object, count: int, most: int = MOST_COLUMNS) -> None:
    """Refuse more columns than can be named in little memory.

    Raises
    ------
    DataError
        With the most there may be.
    """
    if count > most:
        raise DataError(
            f"{path} has more than {most} columns, too many to take it for a table. Write those that you need to a "
            "file of their own."
        )


def bounded(path: Location, pieces: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names in some pieces, of which no more are read once they are too long together.

    Raises
    ------
    DataError
        If they are.
    """
    names: list[str] = []
    size = 0
    for piece in pieces:
        names += map(str, piece)
        size += sum(map(len, piece))
        if size > MOST_LABELS:
            raise DataError(f"{path} names its columns by more than {MOST_LABELS >> 20} MiB. Give them shorter names.")
    return tuple(names)


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
        out[place] = _numbers(batch.column(field))
    return out.T


def _numbers(column: Any) -> Rows:
    """Return a column of Arrow as NumPy has it."""
    import pyarrow as pa  # noqa: PLC0415 - whoever has a column has Arrow; others do without

    if (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count:
        found: Any = np.from_dlpack(column)  # to_numpy imports pandas, in every process that reads
    else:
        found = column.to_numpy(zero_copy_only=False)
    numbers: Rows = found
    return numbers
