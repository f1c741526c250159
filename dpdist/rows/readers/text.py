"""Reader of comma-separated text, .csv and .csv.gz: fast while the text is sound, exact about where it is not."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from dpdist.errors import DataError
from dpdist.rows.readers.base import CURE, NoRowsError, Places, Rows, Source, Survey, attempt, matrix, numbered

_LINE = 1 << 20  # longest line, and the block Arrow parses: "0," is two bytes of text and eight of float64
_MISSING = frozenset(pacsv.ConvertOptions().null_values)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_WORD = "the cell is not a number"


class Csv(Source):
    """A .csv or .csv.gz file, one line per row; text columns are allowed where they are not kept.

    Arrow does the reading and does not say where it failed, so a failed file is read again, slowly, for the line.
    """

    def _stream(self) -> Any:
        packed = self.path.suffix.lower() == ".gz"
        source = str(self.path) if isinstance(self.path, Path) else self.path.open("rb")
        return pa.input_stream(source, compression="gzip" if packed else None)

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not empty, with their numbers from 1."""
        # bytes that are not UTF-8 become lone surrogates, so that their line can be told
        with io.TextIOWrapper(self._stream(), encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            number = 0
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
    def _head(self) -> tuple[int, tuple[str, ...]]:
        """Lines to pass over, and the column names.

        A first line of numbers and missing values is no header: taken for one, a row would be lost and its cells
        published as names.
        """
        first = attempt(self.path, partial(next, self._lines(), None))
        if first is None:
            raise DataError(f"{self.path} is empty. Remove it, or put comma-separated numbers there.")
        cells = self._cells(*first)
        if all(_fault(cell) != _WORD for cell in cells):
            return 0, numbered(len(cells))
        return first[0], tuple(cells)

    @property
    def names(self) -> tuple[str, ...]:
        return self._head[1]

    def survey(self, keep: Places) -> Survey:
        rows, low, high, whole = 0, math.inf, -math.inf, True
        for block in self.blocks(keep):
            rows += block.shape[0]
            low, high = min(low, block.min()), max(high, block.max())
            whole = whole and bool((block == np.trunc(block)).all())
        # a quote left open in a column that is not kept would swallow whole lines unseen
        if not rows or (len(keep) < len(self.names) and rows != attempt(self.path, self._count)):
            raise attempt(self.path, lambda: self._mistake(keep))
        # from 2^53 on, the text may have been a whole number that float64 does not hold
        whole = whole and max(-low, high) < 2**53
        return Survey(rows, np.dtype(np.float64), (int(low), int(high)) if whole else None)

    def _count(self) -> int:
        return sum(number > self._head[0] for number, _ in self._lines())

    def blocks(self, keep: Places) -> Generator[Rows]:
        batches = self._batches(keep)
        while True:
            try:
                block = next(batches, None)
            except (pa.ArrowException, OSError):
                break
            if block is None:
                return
            if not np.isfinite(block).all():
                break
            yield block
        raise attempt(self.path, lambda: self._mistake(keep))  # outside the handler: Arrow's error quotes the cell

    def _batches(self, keep: Places) -> Iterator[Rows]:
        skip, names = self._head
        fields = [str(place) for place in keep]
        read = pacsv.ReadOptions(
            column_names=[str(place) for place in range(len(names))],
            skip_rows=skip,
            block_size=_LINE,
            use_threads=False,  # threads are no faster here, and read ahead one block per core
        )
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(fields, pa.float64()), include_columns=fields)
        with self._stream() as file, pacsv.open_csv(file, read_options=read, convert_options=convert) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield matrix(batch, fields, np.float64)

    def _mistake(self, keep: Places) -> DataError:
        """Find the first line that is not a row of finite numbers."""
        skip, names = self._head
        number = skip
        for number, line in self._lines():
            if number <= skip:
                continue
            cells = self._cells(number, line)
            if len(cells) != len(names):
                return DataError(f"{self.path}, line {number} has {len(cells)} cells, not {len(names)}. {CURE}")
            for place in keep:
                if fault := _fault(cells[place]):
                    return DataError(f"{self.path}, line {number}, column {names[place]!r}: {fault}. {CURE}")
        if number <= skip:
            return NoRowsError(f"{self.path} has a header and no rows. Remove it, or add rows.")
        return DataError(f"{self.path} cannot be read as comma-separated numbers, a row per line. Export it again.")


def _fault(cell: str) -> str | None:
    """Say what is wrong with a cell, as Arrow reads it."""
    text = cell.strip(" \t")
    if cell in _MISSING:
        return "the value is missing"
    if not _NUMBER.fullmatch(text):
        return _WORD
    return None if math.isfinite(float(text)) else "the value is not finite"
