"""Reader of comma-separated text, .csv and .csv.gz: fast while the text is sound, exact about where it is not.

Whether the first line names the columns or is a row is guessed only where it cannot be otherwise: words in all cells,
over numbers. A line of numbers may be either: taken for names, a person's values would be published; taken for a row,
names would be summed as if they were one. So it is asked for, in words that do not repeat the line, and which way it is
never depends on a value once it was told (``--header``).
"""

from __future__ import annotations

import csv
import io
import math
import re
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
    CURE,
    AskError,
    NoRowsError,
    Places,
    Rows,
    Source,
    Survey,
    attempt,
    changed,
    matrix,
    no_numbers,
    numbered,
    require_columns,
)
from dpdist.ingest.readers.ranges import cut, ends_before, opened_range, read_range, scanned
from dpdist.naming import parameter

_LINE = 1 << 20  # longest line, and the block Arrow parses: "0," is two bytes of text and eight of float64
_MISSING = frozenset(pacsv.ConvertOptions().null_values)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_WORD = "the cell is not a number"
_FLAGS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?", re.ASCII)
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_SAMPLE = 100
"""Lines by which a column is judged."""
_SCAN = struct.Struct("<?q")
"""Whether a range is sound, and where the first line begins in it; -1: nowhere."""
_END = re.compile(rb"\r\n?|\n")


class Csv(Source):
    """A .csv or .csv.gz file, one line per row; text columns are allowed where they are not kept.

    Arrow does the reading and does not say where it failed, so a failed file is read again, slowly, for the line.

    A file that is not packed is cut behind line feeds where all its lines are beyond doubt (:mod:`.ranges`): then no
    cut is within quotes, and each line is by itself what it is in the file. Else the file is read from its start, which
    knows what is quoted, or finds the line to refuse.
    """

    takes = ("header", "schema")

    def _stream(self) -> Any:
        packed = self.path.suffix.lower() == ".gz"
        # opened here, because Arrow takes no name that is not UTF-8
        return pa.input_stream(self.path.open("rb"), compression="gzip" if packed else None)

    def _lines(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not empty, or those of a piece, with their numbers in the file from 1."""
        stream = self._stream() if stop is None else opened_range(self.path, start, stop)
        mark = "-sig" if start == 0 else ""  # elsewhere it is a letter of a cell
        # bytes that are not UTF-8 become lone surrogates, so that their line can be told
        with io.TextIOWrapper(stream, encoding=f"utf-8{mark}", errors="surrogateescape", newline="") as file:
            number = ends_before(self.path, start)
            while line := file.readline(_LINE + 1):
                number += 1
                if len(line) > _LINE:
                    raise DataError(f"{self.path}, line {number} is longer than {_LINE >> 20} MiB. {CURE}")
                if line.strip("\r\n"):
                    yield number, line

    def _cells(self, number: int, line: str) -> list[str]:
        if not line.isascii() and any("\ud800" <= letter <= "\udfff" for letter in line):
            raise DataError(f"{self.path}, line {number} is not UTF-8 text. Save the file in UTF-8.")
        cells = None
        with suppress(csv.Error):
            cells = next(csv.reader([line], strict=True))
        if cells is None:
            raise DataError(f"{self.path}, line {number}: a quote is not closed in the line it is opened in. {CURE}")
        return cells

    @cached_property
    def _first(self) -> tuple[int, list[str]]:
        """Number and cells of the first line."""
        first = attempt(self.path, partial(next, self._lines(), None))
        if first is None:
            raise DataError(f"{self.path} is empty. Remove it, or put comma-separated numbers there.")
        cells = self._cells(*first)
        if len(cells) < 2:  # said here: whatever names the column would repeat a line of several
            few = f"{self.path} gives 1 column, and a table needs two or more."
            if (mark := next((mark for mark in _SEPARATORS if mark in cells[0]), None)) is None:
                raise DataError(few)
            raise DataError(
                f"{few} Its cells seem to be separated by {_SEPARATORS[mark]}. Save it with commas between cells and "
                f"points within numbers; in Python: pandas.read_csv(FILE, sep={mark!r}).to_csv(NEW, index=False)."
            )
        require_columns(self.path, len(cells))
        return first[0], cells

    @cached_property
    def _head(self) -> tuple[int, tuple[str, ...]]:
        """Lines to pass over, and the column names."""
        number, cells = self._first
        header = "yes" if self._is_said else self.choices.header
        if header is None and not (self._is_known(cells) and attempt(self.path, partial(self._is_header, cells))):
            raise header_asked(self.path)
        if header == "no":
            return 0, numbered(len(cells))
        return number, tuple(cell or f"c{place}" for place, cell in enumerate(cells))

    @property
    def _is_said(self) -> bool:
        """Whether all names that a schema says are words in the first line: it is the header, then."""
        schema, cells = self.choices.schema, self._first[1]
        if self.choices.header is not None or schema is None:
            return False
        return all(_kind(each.name) == "text" and each.name in cells for each in schema.columns)

    def _is_known(self, cells: list[str]) -> bool:
        """Whether a name of the schema, if there is one, stands among cells: else they may be a row of words."""
        schema = self.choices.schema
        return schema is None or any(each.name in cells for each in schema.columns)

    def _is_header(self, cells: list[str]) -> bool:
        """Say whether the first line names columns, beyond doubt: words in all cells, and numbers below some of them.

        A first cell may be empty, as over an index.
        """
        if any(_kind(cell) != "text" for cell in cells[0 if cells[0] else 1 :]):
            return False
        below = list(islice(self._sample(1), _SAMPLE))
        return not below or any(_kind(cell) in {"number", "flag"} for line in below for cell in line)

    def _sample(self, skip: int) -> Iterator[list[str]]:
        """Yield the cells of the lines behind so many that are not empty."""
        for number, line in islice(self._lines(), skip, None):
            yield self._cells(number, line)

    @property
    def unnamed(self) -> int | None:
        if self.choices.header == "no":
            return None
        return 0 if not self._first[1][0] else super().unnamed

    @property
    def guess(self) -> str | None:
        if self.choices.header is not None or self._is_said:
            return None
        return (
            f"{self.path}: the first line is taken for the names of the columns ({parameter('header', 'yes')}), not "
            f"for a row ({parameter('header', 'no')})."
        )

    @cached_property
    def _flags(self) -> frozenset[int]:
        """Places of the columns that hold true and false, by the first row."""
        skip, _ = self._head
        first = attempt(self.path, lambda: next(self._sample(1 if skip else 0), []))
        return frozenset(place for place, cell in enumerate(first) if cell in _FLAGS)

    @property
    def names(self) -> tuple[str, ...]:
        return self._head[1]

    def survey(self, keep: Places) -> Survey:
        found = _judged(self.blocks(keep))
        # a quote left open in a column that is not kept would swallow whole lines unseen
        if not found.rows or (len(keep) < len(self.names) and found.rows != attempt(self.path, self._count)):
            raise attempt(self.path, lambda: self._mistake(keep))
        return found

    def _count(self) -> int:
        return sum(number > self._head[0] for number, _ in self._lines())

    def blocks(self, keep: Places) -> Generator[Rows]:
        return self._sound(keep, self._numbers(keep, self._stream, self._head[0]), 0, None, _is_finite)

    def _sound(
        self, keep: Places, batches: Iterator[Any], start: int, stop: int | None, accept: Callable[[Any], bool]
    ) -> Generator[Any]:
        """Pass pieces on up to the first that is not sound, and say which line is not; keep: columns of numbers."""
        while True:
            try:
                block = next(batches, None)
            except (pa.ArrowException, OSError):
                break
            if block is None:
                return
            if not accept(block):
                break
            yield block
        raise attempt(self.path, lambda: self._mistake(keep, start, stop))  # not in the handler: Arrow quotes the cell

    def _numbers(self, keep: Places, stream: Callable[[], Any], skip: int) -> Iterator[Rows]:
        kinds = {str(place): pa.bool_() if place in self._flags else pa.float64() for place in keep}
        for batch in self._batches(kinds, stream, skip):
            columns = [each.cast(pa.uint8()) if each.type == pa.bool_() else each for each in batch.columns]
            yield matrix(pa.RecordBatch.from_arrays(columns, batch.schema.names), list(kinds), np.float64)

    def _batches(self, kinds: Mapping[str, Any], stream: Callable[[], Any], skip: int) -> Iterator[Any]:
        read = pacsv.ReadOptions(
            column_names=[str(place) for place in range(len(self.names))],
            skip_rows=skip,
            block_size=_LINE,
            use_threads=False,  # threads are no faster here, and read ahead one block per core
        )
        convert = pacsv.ConvertOptions(
            column_types=kinds, include_columns=list(kinds),
            true_values=[word for word in _FLAGS if word.lower() == "true"],
            false_values=[word for word in _FLAGS if word.lower() == "false"],
        )  # fmt: skip
        with stream() as file, pacsv.open_csv(file, read_options=read, convert_options=convert) as reader:
            yield from (batch for batch in reader if batch.num_rows)

    @property
    def _size(self) -> int:
        return int(attempt(self.path, self.path.stat).st_size)

    def ranges(self, size: int) -> list[tuple[int, int]] | None:
        return None if self.path.suffix.lower() == ".gz" else cut(self._size, size)

    def scan(self, start: int, stop: int) -> bytes:
        return _SCAN.pack(*scanned(self.path, start, stop, self._size, _LINE))

    def pieces(self, scans: Sequence[bytes]) -> list[tuple[int, int]] | None:
        said = [_SCAN.unpack(each) for each in scans]
        size, head = self._size, attempt(self.path, self._behind_head)
        if head is None or head >= size or not all(sound for sound, _ in said):
            return None
        return list(pairwise([0, *(first for _, first in said if first > head), size]))

    def _behind_head(self) -> int | None:
        """Return the place behind the line that names the columns; None: not near the start of the file."""
        skip, _ = self._head
        if not skip:
            return 0
        start = read_range(self.path, 0, min(self._size, 2 * _LINE))
        end = next(islice(_END.finditer(start), skip - 1, None), None)
        return None if end is None or end.end() == len(start) else end.end()

    def piece_survey(self, keep: Places, start: int, stop: int) -> Survey:
        return _judged(self.piece(keep, start, stop))

    def piece(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        found = self._numbers(keep, *self._within(start, stop))
        yield from self._sound(keep, found, start, stop, _is_finite)

    def _within(self, start: int, stop: int) -> tuple[Callable[[], Any], int]:
        """Return what opens a piece, and the lines to pass over in it."""
        # the line feed before a piece is an empty line, and keeps Arrow from taking what follows for a byte-order mark
        before = max(start - 1, 0)
        if start and read_range(self.path, before, 1) != b"\n":
            raise changed(self.path)
        return partial(opened_range, self.path, before, stop), 0 if start else self._head[0]

    def cells(self, keep: Places, part: tuple[int, int] | None = None) -> Generator[Any]:
        opened = (self._stream, self._head[0]) if part is None else self._within(*part)
        found = self._batches({str(place): pa.string() for place in keep}, *opened)
        start, stop = (0, None) if part is None else part
        yield from self._sound((), found, start, stop, lambda _: True)

    def row_in(self, part: tuple[int, int] | None, row: int) -> str:
        lines = (number for number, _ in self._lines(*(part or ())) if number > self._head[0])
        return f"line {attempt(self.path, lambda: next(islice(lines, row, None)))}"

    def require_rows(self, found: int) -> None:
        # a quote left open would swallow whole lines unseen
        if found != attempt(self.path, self._count):
            raise attempt(self.path, lambda: self._mistake(()))

    def _mistake(self, keep: Places, start: int = 0, stop: int | None = None) -> DataError:
        """Find the columns that hold no numbers, or else the first line that is not a row of finite ones.

        The columns are judged by the start of the file; of a piece of it, no line before the piece is.
        """
        skip, names = self._head
        sample = list(islice(self._sample(1 if skip else 0), _SAMPLE))
        held = {names[place]: _held([line[place] for line in sample if place < len(line)]) for place in keep}
        if "text" in held.values() or "dates" in held.values():
            bad = {name: kind for name, kind in held.items() if kind is not None}
            return no_numbers(self.path, bad, [name for name in held if name not in bad])
        number = skip
        for number, line in self._lines(start, stop):
            if number <= skip:
                continue
            cells = self._cells(number, line)
            if len(cells) != len(names):
                return DataError(f"{self.path}, line {number} has {len(cells)} cells, not {len(names)}. {CURE}")
            for place in keep:
                if fault := _fault(cells[place], flag=place in self._flags):
                    return DataError(f"{self.path}, line {number}, column {names[place]!r}: {fault}. {CURE}")
        if number <= skip:
            return NoRowsError(f"{self.path} has a header and no rows. Remove it, or add rows.")
        return DataError(f"{self.path} cannot be read as comma-separated numbers, a row per line. Export it again.")


def header_asked(path: object) -> AskError:
    """Return the question whether the first line names the columns."""
    return AskError(
        f"{path}: the first line may name the columns or be a row, and names are published.",
        [("header", "yes", "it names the columns"), ("header", "no", "it is a row, and the columns are c0, c1, ...")],
        'In a job file: header = "yes" or "no".',
    )


def _is_finite(block: Rows) -> bool:
    return bool(np.isfinite(block).all())


def _judged(blocks: Iterator[Rows]) -> Survey:
    rows, low, high, whole = 0, math.inf, -math.inf, True
    for block in blocks:
        rows += block.shape[0]
        low, high = min(low, float(block.min())), max(high, float(block.max()))
        whole = whole and bool((block == np.trunc(block)).all())
    # from 2^53 on, the text may have been a whole number that float64 does not hold
    whole = whole and rows > 0 and max(-low, high) < 2**53
    return Survey(rows, np.dtype(np.float64), (int(low), int(high)) if whole else None)


def _kind(cell: str) -> str:
    """Say what a cell is: nothing, a flag, a number or text."""
    if cell in _MISSING:
        return "nothing"
    if cell in _FLAGS:
        return "flag"
    return "number" if _NUMBER.fullmatch(cell.strip(" \t")) else "text"


def _held(cells: list[str]) -> str | None:
    """Say what a column holds that is not of numbers, by some of its cells; None: it is, or one cell may be wrong."""
    kinds = {_kind(cell) for cell in cells}
    if len(cells) < 2 or kinds & {"number", "flag"}:
        return None
    if kinds == {"nothing"}:
        return "no values"
    return "dates" if all(_DATE.fullmatch(cell) for cell in cells if cell not in _MISSING) else "text"


def _fault(cell: str, *, flag: bool = False) -> str | None:
    """Say what is wrong with a cell, as Arrow reads it."""
    text = cell.strip(" \t")
    if cell in _MISSING:
        return "the value is missing, and no schema says what becomes of it"
    if flag:
        return None if cell in _FLAGS else "the cell is neither true nor false, and those before it are"
    if not _NUMBER.fullmatch(text):
        return _WORD
    return None if math.isfinite(float(text)) else "the value is not finite"
