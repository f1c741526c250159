"""Options, limits and errors of all readers.

Any fault of a file is a DataError that names the file but no cell. It is not chained to the error of a library, which
may quote a cell: messages travel further than rows may.
"""

from __future__ import annotations

import csv
import gc
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, DpdistError, UsageError, quiet
from dpdist.core.ingest.other_kinds import NESTED, dividing
from dpdist.core.naming import parameter, step
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.schema import Schema
from dpdist.core.text import as_json, listed

T = TypeVar("T")
P = ParamSpec("P")
Rows = npt.NDArray[np.number]
Places = tuple[int, ...]  # indices of columns in a file
progressed: Callable[[], object] = bool
"""Called for each block: a sign of life from a reader in another process (:mod:`.isolated`)."""
_SIGNS = re.compile(r"[\s_.:#-]+")
_COUNTER = re.compile(
    r"|(unnamed|indexlevel|level)\d+|index\d?|idx|rows?|row(id|idx|index|no|nr|num|number|names?)|s(l|r)?no"
)
PIECE = 8 << 20  # bytes of a block, about
STORED = {"bool": "uint8", "float16": "float32"} | {name: name for name in DTYPES}
"""Stored type by type of the values."""
AT_ONCE = 1 << 28
"""Largest memory, in bytes, of a fragment of rows in place: other workers share the machine."""
MOST_RUNS = 1 << 21  # most fragments of a table in place, 16 TiB of 8 MiB: each takes memory of the driver
EXACT = 2**53  # float64 holds all whole numbers up to it
BEYOND = (
    "a whole number beyond 2^53, which float64 would round. If it is an identifier, leave the column out, or declare "
    "it as a privacy unit in a schema; if it may be rounded, write it as 1.5e17."
)
CURE = "Correct the file and ingest again."
MOST_COLUMNS = 1 << 20  # most columns of a source: a few bytes can declare any number
MOST_LABELS = 1 << 26  # most bytes of all column names
_TYPED = 50  # most names spelled out in a command


class GenotypeRules(Protocol):
    """Rules for genotypes (:class:`dpdist.formats.genotypes.Genotypes`)."""

    @property
    def stated(self) -> Mapping[str, str]:
        """The rules as their user stated them."""

    def to_json(self) -> dict[str, str]:
        """Return the rules as JSON values."""


@dataclass(frozen=True)
class Choices:
    """Options of an ingest for some kinds of files; None: not given."""

    variable: str | None = None  # name of the array of rows, if a file holds several
    missing: int | None = None  # count for missing genotypes; None: refuse them
    header: str | None = None  # whether the first line names the columns; None: guess if clear
    schema: Schema | None = None  # maps columns to numbers; None: they are numbers
    genotypes: GenotypeRules | None = None
    rows_dimension: str | None = None  # dimension of the rows; None: the first

    def __post_init__(self) -> None:
        if self.header not in {None, "yes", "no"}:
            raise UsageError(f"{parameter('header')} takes yes (the first line names the columns) or no (it is a row).")
        if self.missing not in {None, 0, 1, 2}:
            raise UsageError(f"{parameter('missing')} takes the allele count for missing genotypes: 0, 1 or 2.")

    @property
    def made(self) -> list[str]:
        """Names of the given options."""
        return [name for name, value in vars(self).items() if value is not None]

    def to_json(self) -> dict[str, object]:
        """Return JSON values, which identify the same options."""
        values: dict[str, object] = {"variable": self.variable, "missing": self.missing, "header": self.header}
        later = {name: getattr(self, name) for name in ("rows_dimension", "genotypes", "schema")}
        return values | {name: as_json(value) for name, value in later.items() if value is not None}


class ChoiceRequiredError(DataError):
    """A file with several interpretations, between which the user chooses."""

    def __init__(self, message: str, ways: Sequence[tuple[str, str, str]] = (), more: str = "") -> None:
        super().__init__(message)
        self.args = (message, ways, more)  # for pickling
        self.ways = ways
        self.more = more

    def __str__(self) -> str:
        return str(self.args[0])

    def asked(self, source: object, target: object) -> str:
        """Return the question with the commands to choose from."""
        steps = ", or ".join(
            f"{step('ingest', source, target, **{name: value})} ({meaning})" for name, value, meaning in self.ways
        )
        typed = f" Choose, with your other options: {steps}." if steps else ""
        return f"{self}{typed}{self.more and f' {self.more}'}"


class NoRowsError(DataError):
    """A valid file without rows: an error for a table, not for a period."""

    def __init__(self, subject: object) -> None:
        super().__init__(subject if isinstance(subject, str) else f"{subject} has no rows. Add some.")


class UncutError(Exception):
    """Quotes in text span lines, or do not enclose whole cells: a fragment must be read with its whole file."""


def only_columns(names: Iterable[str], meaning: str) -> tuple[str, str, str]:
    r"""Return the option that selects columns; for very many, with a placeholder.

    Examples
    --------
    >>> only_columns(["a", "b, c"], "leaves d out")
    ('columns', 'a,"b, c"', 'leaves d out')
    """
    names = list(names)
    if len(names) > _TYPED:
        return "columns", "NAMES", f"{meaning}; NAMES are the {len(names)} other columns"
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return "columns", line.getvalue(), meaning


def no_numbers(path: object, bad: Mapping[str, str], others: Sequence[str]) -> ChoiceRequiredError:
    """Return the error for columns that do not hold numbers, each with its content, and the names of the others."""
    columns = listed(f"{name!r} ({kind})" for name, kind in bad.items())
    ways = [only_columns(others, "leaves them out")] if len(others) > 1 else []
    schema = f"{step('schema', 'SOURCE', 'SCHEMA')} drafts one, for {parameter('schema')}"
    advice = f"To keep them, map them to numbers with a schema: {schema}."
    if nested := {name: kind for name, kind in bad.items() if kind.startswith(NESTED)}:
        advice = dividing(path, nested)
    elif not ways and len(bad) + len(others) > 1:  # a privacy unit is surveyed alone
        advice = f"Fewer than two columns hold numbers, and a table needs two. {advice}"
    elif len(bad) == 1 and not others:
        advice = (
            f'A privacy unit of text is declared in a schema, by kind = "privacy unit" for its column, in place of the '
            f"option: {schema}."
        )
    return ChoiceRequiredError(f"{path}: these columns do not hold numbers: {columns}.", ways, advice)


def schema_says_columns() -> UsageError:
    """Return the error for columns chosen in addition to a schema."""
    return UsageError(
        'The schema chooses the columns. Leave others out there, with kind = "ignored".',
        parameter="columns",
    )


def meant_by_schema() -> str:
    """Return the advice to map cells with a schema."""
    return f"map such cells with a schema: {step('schema', 'SOURCE', 'SCHEMA')} drafts one"


def attempt(path: object, action: Callable[[], T]) -> T:
    """Return the result of an action; any failure becomes a DataError that names the file but no cell."""
    # Damaged files make libraries raise anything, from OSError to SyntaxError. The DataError is raised outside of the
    # handler: a library's error may quote a row, and would stay attached as its context.
    with quiet():
        try:
            return action()
        except (DpdistError, UncutError):
            raise
        except MemoryError:
            kind = "larger than the memory"
            reason = "a part that must be read at once does not fit into memory"
        except Exception as error:  # noqa: BLE001 - see above
            kind = f"damaged or of another kind ({type(error).__name__})"
            reason = getattr(error, "strerror", None) or f"it is {kind}"
        gc.collect(1)  # finalisers of half-built objects may print: collect them inside quiet()
    if not isinstance(path, Path):
        raise DataError(
            f"{path} cannot be read: the store denies access, or the file is {kind}. Check the address and your "
            "credentials, or repair the file, and ingest again."
        )
    raise DataError(f"{path} cannot be read: {reason}. Repair or replace the file and ingest again.")


def attempted(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Wrap a method of a reader in :func:`attempt`."""

    @wraps(method)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return attempt(self.path, lambda: method(self, *args, **kwargs))

    return called


def attempt_each(path: object, items: Iterator[T]) -> Generator[T]:
    """Yield items, each produced within :func:`attempt`; errors of the consumer pass."""
    while (item := attempt(path, partial(next, items, None))) is not None:
        progressed()
        yield item


def required(module: str, extra: str, kind: str) -> Any:
    """Import an optional package; UsageError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        pass
    raise UsageError(f"Reading {kind} needs {module}. Install it in the clone of dpdist: pip install '.[{extra}]'")


def fits(block: Rows, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype stores the block exactly."""
    if np.can_cast(block.dtype, dtype):
        return True
    with np.errstate(invalid="ignore"):
        return bool((block.astype(dtype) == block).all())


def changed(path: object) -> DataError:
    """Return the error for a file that changed during reading."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def not_finite(where: object, row: int, name: str, coordinates: str = "", cure: str = CURE) -> DataError:
    """Return the error for a value that is not finite."""
    cell = f"{where}, row {row} (counting from 0), column {name!r}"
    return DataError(f"{cell}{coordinates and f' ({coordinates})'}: the value is not finite. {cure}")


def require_exact(where: object, start: int, block: Rows, dtype: npt.DTypeLike, names: Sequence[str]) -> None:
    """Refuse whole numbers that a float dtype would round."""
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8 and np.dtype(dtype).kind == "f":
        beyond = (block > EXACT) | (block < -EXACT if block.dtype.kind == "i" else False)
        if beyond.any():
            row, column = np.argwhere(beyond)[0]
            raise DataError(f"{where}, row {start + row} (counting from 0), column {names[column]!r}: {BEYOND}")


def require_runs(path: object, count: int) -> None:
    """Refuse too many fragments for a table in place."""
    if count > MOST_RUNS:
        raise DataError(
            f"{path} has {count} chunks, including the files before it; a table in place has at most "
            f"{MOST_RUNS}. Write it in chunks of more rows, or copy its rows with {step('ingest')}."
        )


def ends_of(path: object, n: int, high: int) -> npt.NDArray[np.int64]:
    """Return the ends of parts of ``high`` rows; DataError if there are too many."""
    require_runs(path, -(-n // high))
    return np.append(np.arange(high, n, high), n)


def require_table(path: object, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse an array whose shape or type is not that of a table."""
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 2:
        raise DataError(
            f"{path} holds an array of shape {shape}, not a table of at least one row and two columns. "
            "Save it as one 2-D array with a record per row."
        )
    require_columns(path, shape[1])
    if dtype.name not in STORED:
        raise DataError(f"{path} holds values of type {dtype.name}. Save it as {', '.join(DTYPES)}.")


def require_columns(path: object, count: int) -> None:
    """Refuse too many columns."""
    if count > MOST_COLUMNS:
        raise DataError(
            f"{path} has more than {MOST_COLUMNS} columns, the limit of a table. Write the columns that you need to "
            "their own file."
        )


def bounded(path: object, batches: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Concatenate names; DataError once they exceed the limit."""
    names: list[str] = []
    size = 0
    for batch in batches:
        names += map(str, batch)
        size += sum(map(len, batch))
        if size > MOST_LABELS:
            raise DataError(f"{path} has column names of more than {MOST_LABELS >> 20} MiB. Shorten them.")
    return tuple(names)


def counts_rows(name: str) -> bool:
    """Return whether a column has a name that pandas, polars, R or a database gives to a count of the rows.

    >>> [name for name in ("", "Unnamed: 0.1", "index", "level_0", "row_nr", "...1", "age") if counts_rows(name)]
    ['', 'Unnamed: 0.1', 'index', 'level_0', 'row_nr', '...1']
    """
    return name.startswith("...") or _COUNTER.fullmatch(_SIGNS.sub("", name.lower())) is not None


def numbered(columns: int) -> tuple[str, ...]:
    """Return default names of columns."""
    return tuple(f"c{i}" for i in range(columns))
