"""Reader of comma-separated text, .csv and .csv.gz: fast for valid text, and exact about the line of an error.

The header is guessed only if it is certain: words in all cells, above numbers. A line of numbers is ambiguous: as a
header, it would publish a person's values; as a row, names would be summed. Then the user must choose (``--header``),
and the question does not repeat the line.

A long file is read in fragments of the lines that begin in a range of bytes. The middle of a file does not show what
is quoted. So a fragment is valid only if its quotes enclose whole cells within one line. If this holds for all
fragments, every line begins outside of quotes. Otherwise the file is read from its start.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import (
    BEYOND,
    CURE,
    EXACT,
    PIECE,
    ChoiceRequiredError,
    NoRowsError,
    Places,
    Rows,
    UncutError,
    attempt,
    counts_rows,
    meant_by_schema,
    no_numbers,
    numbered,
    require_columns,
)
from dpdist.core.ingest.readers.dialect import otherwise, respelled
from dpdist.core.ingest.readers.source import Fragment, Head, Survey
from dpdist.core.ingest.readers.tabular import Tabular, matrix
from dpdist.core.naming import parameter
from dpdist.core.paths import read_plain_range

FRAGMENT = 128 << 20  # bytes of a fragment
_LINE = 1 << 20  # longest line, and the block that Arrow parses: "0," becomes eight bytes of float64
_MISSING = frozenset(pacsv.ConvertOptions().null_values)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"([+-]?\d{1,4000})(\.0*)?", re.ASCII)
_FLAGS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_BREAK = re.compile(r"\r\n|\r|\n")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?", re.ASCII)
_SAMPLE = 100  # lines that classify a column
_BATCHES = 256  # batches, of about 1 MiB of text, that classify the columns of a schema draft
_QUOTE_NEIGHBOURS = np.zeros(256, dtype=bool)
"""The bytes allowed before an opening quote, or the second of two, and after a closing one."""
_QUOTE_NEIGHBOURS[list(b',\r\n"')] = True


class Csv(Tabular):
    """A .csv or .csv.gz file; columns that are not kept may hold text."""

    # Arrow does not report where it failed, so an invalid file is read again, slowly, for the line.

    takes = ("header", "schema")

    # --- the lines of a fragment ---

    @property
    def _packed(self) -> str | None:
        return "gzip" if self.path.suffix.lower() == ".gz" else None

    @cached_property
    def _size(self) -> int:
        return int(attempt(self.path, self.path.stat).st_size)

    def _range(self, fragment: tuple[int, int]) -> tuple[int, int]:
        """Return the byte range of the lines that begin in a fragment."""
        start, stop = (self._next_line(offset) for offset in fragment)
        return start, stop

    def _next_line(self, offset: int) -> int:
        """Return the offset of the first line that begins at or after an offset."""
        if not 0 < offset < self._size:
            return offset
        newline = read_range(self.path, offset - 1, min(_LINE + 1, self._size - offset + 1)).find(b"\n")
        if newline < 0 and self._size - offset > _LINE:
            raise UncutError
        return self._size if newline < 0 else offset + newline

    def _stream(self, fragment: Fragment, back: int = 0) -> Any:
        """Open the bytes of a fragment, and ``back`` bytes before it."""
        if fragment is None:  # opened here, because Arrow requires UTF-8 paths
            return pa.input_stream(self.path.open("rb"), compression=self._packed)
        start, stop = self._range(fragment)
        return opened_range(self.path, max(start - back, 0), stop)

    def _skipped_lines(self, fragment: Fragment) -> int:
        """Return the number of lines above the rows."""
        return 0 if fragment is not None and self._range(fragment)[0] else self._head[0]

    def _records(self, fragment: Fragment = None) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line number, from 1, and the cells of each record."""
        before = 0 if fragment is None else ends_before(self.path, self._range(fragment)[0])
        with self._text(fragment) as file:
            reader = csv.reader(self._lines(file, before), strict=True)
            while True:
                number = before + reader.line_num + 1
                try:
                    cells = next(reader, None)
                except csv.Error:
                    break
                if cells is None:
                    return
                if cells:
                    yield number, cells
        raise DataError(
            f"{self.path}, line {number}: a quote is not closed or is inside a cell, or a cell is longer than 128 KiB. "
            f"{CURE}"
        )

    def _text(self, fragment: Fragment) -> io.TextIOWrapper:
        """Open the text of a fragment; invalid UTF-8 becomes lone surrogates, so that its line is reported."""
        mark = "" if fragment is not None and self._range(fragment)[0] else "-sig"  # elsewhere it belongs to a cell
        stream = self._stream(fragment)
        return io.TextIOWrapper(stream, encoding=f"utf-8{mark}", errors="surrogateescape", newline="")

    def _lines(self, file: Any, number: int) -> Iterator[str]:
        while line := file.readline(_LINE + 1):
            number += 1
            if len(line) > _LINE:
                raise DataError(
                    f"{self.path}, line {number} is longer than {_LINE >> 20} MiB. Keep fewer columns, or write the "
                    "table as Parquet; in Python: pandas.read_csv(FILE).to_parquet(NEW)."
                )
            if not line.isascii() and any("\ud800" <= letter <= "\udfff" for letter in line):
                code = "utf-16" if number == 1 and line.startswith(("\udcff\udcfe", "\udcfe\udcff")) else "cp1252"
                raise DataError(
                    f"{self.path}, line {number} is not UTF-8 text. Save the file in UTF-8; in Python, if it is "
                    f"{code}: pathlib.Path(NEW).write_text(pathlib.Path(FILE).read_text({code!r}), 'utf-8')."
                )
            yield line

    # --- the first line ---

    @cached_property
    def _first(self) -> tuple[int, list[str]]:
        """Line number and cells of the first record."""
        cure = attempt(self.path, lambda: otherwise(self._start()))
        other = f"{self.path} has 1 column if commas separate the cells, and a table needs two or more."
        if cure:
            problem = f"{self.path}:" if "," in self._start()[0] else other
            raise DataError(f"{problem}{cure}")  # a later message would quote the whole line as the name of a column
        first: tuple[int, list[str]] | None = attempt(self.path, partial(next, self._records(), None))
        if first is None:
            raise NoRowsError(f"{self.path} is empty. Put comma-separated numbers there.")
        cells = first[1]
        if len(cells) < 2:
            raise DataError(other)
        require_columns(self.path, len(cells))
        return first

    def _start(self) -> list[str]:
        """Return the first readable lines."""
        lines: list[str] = []
        with self._text(None) as file, suppress(DataError):
            lines.extend(islice(self._lines(file, 0), _SAMPLE))
        return lines

    @cached_property
    def _head(self) -> tuple[int, tuple[str, ...]]:
        """Lines to skip, and the column names."""
        number, cells = self._first
        if self._header_choice is None:
            schema = self.choices.schema
            # else it may be a row of words
            may_be_header = schema is None or any(column.name in cells for column in schema.sources)
            if not (may_be_header and attempt(self.path, partial(self._is_header, cells))):
                raise header_asked(self.path)
        if self._header_choice == "no":
            return 0, numbered(len(cells))
        _require_names(self.path, cells)
        over = sum(len(_BREAK.findall(cell)) for cell in cells)  # a name may span lines
        return number + over, tuple(cell or f"c{index}" for index, cell in enumerate(cells))

    @cached_property
    def _header_choice(self) -> str | None:
        """Whether the first line is the header, by the option or by a schema whose names are all words in it."""
        schema, cells = self.choices.schema, self._first[1]
        if self.choices.header is None and schema is not None:
            names = [column.name for column in schema.sources]
            return "yes" if all(name in cells and _kind(name) == "text" for name in names) else None
        return self.choices.header

    def _is_header(self, cells: list[str]) -> bool:
        """Whether the first line is certainly a header: words in all cells, except over an index, above numbers."""
        named = cells[0 if cells[0] else 1 :]
        if any(_kind(cell) != "text" or _DATE.fullmatch(cell) for cell in named):
            return False
        below = [line for _, line in islice(self._records(), 1, _SAMPLE + 1)]
        return not below or any(_kind(cell) in {"number", "flag"} for line in below for cell in line)

    @cached_property
    def stored(self) -> Head:
        skip, names = self._head
        cells = self._first[1] if skip else ()
        guess = None
        if self._header_choice is None:
            guess = (
                f"{self.path}: the first line is read as the names of the columns ({parameter('header', 'yes')}), "
                f"not as a row ({parameter('header', 'no')})."
            )
        return Head(names, indexes=tuple(index for index, cell in enumerate(cells) if counts_rows(cell)), guess=guess)

    @cached_property
    def _flags(self) -> frozenset[int]:
        """Indices of the columns of true and false, by the first row."""
        first = attempt(self.path, lambda: next(self._rows(), (0, [])))[1]
        return frozenset(index for index, cell in enumerate(first) if cell in _FLAGS)

    # --- the rows ---

    def cells(self, columns: Places, fragment: Fragment = None) -> Generator[Any]:
        return self._read({str(column): pa.string() for column in columns}, fragment, (), lambda _: True)

    def numbers(self, keep: Places, fragment: Fragment) -> Generator[Rows]:
        kinds = {str(index): pa.bool_() if index in self._flags else pa.float64() for index in keep}

        def number_block(batch: Any) -> Rows:
            columns = [column.cast(pa.uint8()) if column.type == pa.bool_() else column for column in batch.columns]
            return matrix(columns, batch.num_rows, np.float64)

        for batch in self._read(kinds, fragment, keep, lambda batch: bool(np.isfinite(number_block(batch)).all())):
            yield number_block(batch)

    def _read(
        self, kinds: Mapping[str, Any], fragment: Fragment, numbers: Places, accept: Callable[[Any], bool]
    ) -> Generator[Any]:
        """Yield batches until the first invalid one, and raise an error that names its line."""
        batches, rows = self._batches(kinds, fragment), 0
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError):
                break
            except UncutError:  # quotes inside cells: Arrow may have merged lines
                if fragment is None and rows == attempt(self.path, lambda: sum(1 for _ in self._rows())):
                    return
                break
            if batch is None:
                return
            if not accept(batch):
                break
            rows += batch.num_rows
            yield batch
        # not in the handler: Arrow quotes the cell
        raise attempt(self.path, lambda: self._mistake(numbers)) if fragment is None else UncutError

    def _batches(self, kinds: Mapping[str, Any], fragment: Fragment) -> Iterator[Any]:
        if fragment is not None and len({*self._range(fragment)}) < 2:  # within one line
            return
        # the preceding line feed is an empty line, and keeps Arrow from detecting a byte-order mark
        with _Quotes(self._stream(fragment, back=1)) as file:
            read = pacsv.ReadOptions(
                column_names=[str(index) for index in range(len(self._head[1]))],
                skip_rows=self._skipped_lines(fragment),
                block_size=_LINE,
                use_threads=False,  # threads are no faster, and read ahead one block per core
            )
            convert = pacsv.ConvertOptions(
                column_types=kinds, include_columns=list(kinds),
                true_values=[word for word in _FLAGS if word.lower() == "true"],
                false_values=[word for word in _FLAGS if word.lower() == "false"],
            )  # fmt: skip
            parse = pacsv.ParseOptions(newlines_in_values=fragment is None)
            with pacsv.open_csv(file, read_options=read, convert_options=convert, parse_options=parse) as reader:
                yield from (batch for batch in reader if batch.num_rows)
            if not file.sound or (fragment is not None and file.over_lines):
                raise UncutError

    def number_survey(self, keep: Places, fragment: Fragment) -> Survey:
        rows, low, high, integral = 0, math.inf, -math.inf, True
        for block in self.numbers(keep, fragment):
            rows += block.shape[0]
            low, high = min(low, float(block.min())), max(high, float(block.max()))
            integral = integral and bool((block == np.trunc(block)).all())
        if not rows and fragment is None:
            raise attempt(self.path, lambda: self._mistake(keep))
        if rows and max(-low, high) >= EXACT:  # the text may be a whole number that float64 cannot hold
            attempt(self.path, lambda: self._require_exact(keep, fragment))
            integral = False
        return Survey(rows, "float64", span_of(int(low), int(high)) if rows and integral else None)

    def _require_exact(self, keep: Places, fragment: Fragment) -> None:
        for number, cells in self._rows(fragment):
            for column in keep:
                match = _WHOLE.fullmatch(cells[column].strip(" \t"))
                if not match or abs(value := int(match[1])) <= EXACT:
                    continue
                if not match[2] or value != int(float(value)):  # with a decimal point it may come from float64
                    raise DataError(f"{self.path}, line {number}, column {self._head[1][column]!r}: {BEYOND}")

    def _rows(self, fragment: Fragment = None) -> Iterator[tuple[int, list[str]]]:
        """Yield :meth:`_records` without the header."""
        return (record for record in self._records(fragment) if record[0] > self._head[0])

    def row_in(self, fragment: Fragment, row: int) -> str:
        return f"line {attempt(self.path, lambda: next(islice(self._rows(fragment), row, None)))[0]}"

    def _mistake(self, keep: Places) -> DataError:
        """Return the error for columns without numbers, by the first lines, or else for the first invalid line."""
        names, number = self._head[1], 0
        sample = [cells for _, cells in islice(self._rows(), _SAMPLE)]
        columns = {names[column]: [line[column] for line in sample if column < len(line)] for column in keep}
        kinds = {name: _content_kind(cells) for name, cells in columns.items()}
        texts = {name: columns[name] for name in kinds if kinds[name] == "text"}
        if cure := respelled({name: [cell for cell in cells if cell not in _MISSING] for name, cells in texts.items()}):
            return DataError(f"{self.path}: {cure}")
        if "text" in kinds.values() or "dates" in kinds.values():
            bad = {name: kind for name, kind in kinds.items() if kind is not None}
            indexes = {names[column] for column in self.stored.indexes}
            return no_numbers(self.path, bad, [name for name in kinds if name not in bad and name not in indexes])
        for number, cells in self._rows():
            if len(cells) != len(names):
                return DataError(f"{self.path}, line {number} has {len(cells)} cells, not {len(names)}. {CURE}")
            for column in keep:
                if fault := _fault(cells[column], flag=column in self._flags):
                    where = f"{self.path}, line {number}, column {names[column]!r}"
                    return DataError(f"{where}: {fault}. Correct it, or {meant_by_schema()}.")
        if not number:
            return NoRowsError(f"{self.path} has a header and no rows. Add some.")
        return DataError(f"{self.path} cannot be read as comma-separated numbers, one row per line. Export it again.")


def header_asked(path: object) -> ChoiceRequiredError:
    """Return the question whether the first line is a header."""
    return ChoiceRequiredError(
        f"{path}: the first line may be a header or a row, and column names are published.",
        [("header", "yes", "it names the columns"), ("header", "no", "it is a row, and the columns are c0, c1, ...")],
        'In a job file: header = "yes" or "no".',
    )


_BOUNDS = (2**7 - 1, 2**8 - 1, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1)


def span_of(low: int, high: int) -> tuple[int, int]:
    """Return the limits of the narrowest integer types that hold two values.

    Examples
    --------
    >>> span_of(0, 200), span_of(-3, 100)
    ((0, 255), (-128, 127))
    """
    least = 0 if low >= 0 else -1 - next(bound for bound in _BOUNDS[::2] if -1 - low <= bound)
    return least, next(bound for bound in _BOUNDS if high <= bound)


class _Quotes:
    """A stream of text for Arrow that checks quotes; ``over_lines``: whether a line ended within quotes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._wrong = self._inside = self.over_lines = False
        self._last = ord("\n")
        self._closing = False  # whether the last byte was a closing quote, so that the next one is checked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def read(self, size: int) -> bytes:
        content: bytes = self._stream.read(size)
        if content:
            self._scan(content)
        return content

    def _scan(self, content: bytes) -> None:
        if b'"' not in content:
            self.over_lines |= self._inside and (b"\n" in content or b"\r" in content)
            if self._closing:
                self._wrong |= not _QUOTE_NEIGHBOURS[content[0]]
            self._closing, self._last = False, content[-1]
            return
        letters = np.frombuffer(bytes([self._last]) + content, dtype=np.uint8)
        quotes = np.flatnonzero(letters[1:] == ord('"')) + 1
        if self._closing:
            self._wrong |= not _QUOTE_NEIGHBOURS[letters[1]]
        opening, closing = (quotes[1::2], quotes[::2]) if self._inside else (quotes[::2], quotes[1::2])
        behind = closing[closing + 1 < len(letters)] + 1
        self._wrong |= not (_QUOTE_NEIGHBOURS[letters[opening - 1]].all() and _QUOTE_NEIGHBOURS[letters[behind]].all())
        ends = np.flatnonzero((letters[1:] == ord("\n")) | (letters[1:] == ord("\r"))) + 1
        self.over_lines |= bool(((np.searchsorted(quotes, ends) + self._inside) % 2).any())
        self._inside ^= bool(len(quotes) % 2)
        self._closing = not self._inside and letters[-1] == ord('"')
        self._last = content[-1]

    @property
    def sound(self) -> bool:
        """Whether all quotes so far enclose whole cells."""
        return not self._wrong and not self._inside


def read_range(path: Any, start: int, length: int) -> bytes:
    """Return ``length`` bytes of a file or object; DataError if there are fewer."""
    read: Callable[[int, int], bytes] = partial(read_plain_range, path) if isinstance(path, Path) else path.range
    return attempt(path, partial(read, start, length))


class _Range(io.RawIOBase):
    def __init__(self, path: Any, start: int, stop: int) -> None:
        self._path, self._offset, self._stop = path, start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._stop - self._offset)
        if size:
            buffer[:size] = read_range(self._path, self._offset, size)
            self._offset += size
        return size


def opened_range(path: Any, start: int, stop: int) -> io.BufferedReader:
    """Open a range of bytes as a file, with a buffer of about 8 MiB."""
    return io.BufferedReader(_Range(path, start, stop), max(1, min(PIECE, stop - start)))


def ends_before(path: Any, offset: int) -> int:
    """Return the number of line ends before an offset: line feeds, carriage returns, or both."""
    with io.TextIOWrapper(opened_range(path, 0, offset), "latin-1") as text:
        return sum(block.count("\n") for block in iter(partial(text.read, PIECE), ""))


def _require_names(path: object, cells: list[str]) -> None:
    """Refuse a first line of numbers as names, which are published: it may be a row."""
    kinds = [_kind(cell) for cell in cells]
    numbers = [cell.strip() for cell, kind in zip(cells, kinds, strict=True) if kind == "number"]
    numbers = [cell for cell in numbers if any(map(str.isdecimal, cell))]  # inf may be a name among others
    whole = [int(cell) for cell in numbers if cell.isdecimal() and len(cell) < 19]
    steps = {after - before for before, after in pairwise(whole)}
    counted = len(whole) > 2 and len(steps) == 1 and steps != {0}  # pandas' columns, years or wavelengths
    if len(whole) < len(numbers) or not (counted or "text" in kinds or set(kinds) == {"nothing"}):
        raise DataError(
            f"{path}: the first line, which is to name the columns, holds numbers. It may be a row, and names are "
            f"published. If it is a row, add {parameter('header', 'no')}, or put a header above it; if these are "
            "names, put a letter before each number."
        )


def _kind(cell: str) -> str:
    """Classify a cell: nothing, flag, number or text."""
    if cell in _MISSING:
        return "nothing"
    if cell in _FLAGS:
        return "flag"
    return "number" if _NUMBER.fullmatch(cell.strip(" \t")) else "text"


def _content_kind(cells: list[str]) -> str | None:
    """Classify a column without numbers by some cells; None if it has numbers, or only one cell."""
    kinds = {_kind(cell) for cell in cells}
    if len(cells) < 2 or kinds & {"number", "flag"}:
        return None
    if kinds == {"nothing"}:
        return "no values"
    return "dates" if all(_DATE.fullmatch(cell) for cell in cells if cell not in _MISSING) else "text"


def _fault(cell: str, *, flag: bool = False) -> str | None:
    text = cell.strip(" \t")
    if cell in _MISSING:
        return "the value is missing, and no schema says how to fill it"
    if flag:
        return None if cell in _FLAGS else "the cell is neither true nor false, unlike those above"
    if not _NUMBER.fullmatch(text):
        return "the cell is not a number"
    return None if math.isfinite(float(text)) else "the value is not finite"
