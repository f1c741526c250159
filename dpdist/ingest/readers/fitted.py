"""A source whose columns are mapped to rows of numbers by a schema: downstream nobody knows what they were.

Each piece of rows is mapped by itself, where it is read. So whoever reads which piece, the rows have the same bits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dpdist.ingest.readers.base import CURE, NoRowsError, Places, Rows, Runs, Source, State, Survey
from dpdist.ingest.readers.hive import Keys
from dpdist.rows.encoding import Fault, UnfitError, encoded, holds_numbers, require_types, units_of
from dpdist.rows.schema import Schema

Part = tuple[int, int] | None
_LOOKED_AT = 256
"""Pieces, about a MiB of text each, by which a draft of a schema is judged."""


@dataclass(frozen=True)
class Fitted(Source):
    """A source with a schema.

    Parameters
    ----------
    inner
        Reads the file.
    keys
        Name and text of every key of the folders that it lies in: these are columns too.
    """

    inner: Any = None  # a Source
    keys: Keys = ()

    @property
    def _schema(self) -> Schema:
        return cast("Schema", self.choices.schema)

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where the columns are that are read, by name; the keys come last.

        Raises
        ------
        UsageError
            If the source has other columns than the schema says.
        """
        names = (*self.inner.names, *(key for key, _ in self.keys))
        found = {names[place]: place for place in self._schema.places(names)}
        if self.inner.kinds is not None:
            require_types(self._schema, dict(zip(self.inner.names, self.inner.kinds, strict=True)))
        return found

    @property
    def names(self) -> tuple[str, ...]:
        self._places  # noqa: B018 - refuses what does not fit
        return self._schema.features

    @property
    def unnamed(self) -> int | None:
        return None

    @property
    def guess(self) -> str | None:
        found: str | None = self.inner.guess
        return found

    @property
    def unpacked(self) -> int:
        return int(self.inner.unpacked)

    def survey(self, keep: Places) -> Survey:
        rows = self.inner.counted
        if rows is None:
            rows = self._count(self.blocks(keep))
            self.inner.require_rows(rows)
        if not rows:
            raise NoRowsError(f"{self.path} has no rows. Remove it, or add rows.")
        return Survey(rows, np.dtype(np.float64))

    def _count(self, blocks: Generator[Rows]) -> int:
        with closing(blocks):
            return sum(len(block) for block in blocks)

    def blocks(self, keep: Places) -> Generator[Rows]:
        return self._mapped(keep, None)

    def runs(self, keep: Places) -> Runs | None:
        found: Runs | None = self.inner.cuts(self._read(), 8 * len(keep))
        return found

    def part(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        return self._mapped(keep, (start, stop))

    def ranges(self, size: int) -> list[tuple[int, int]] | None:
        found: list[tuple[int, int]] | None = self.inner.ranges(size)
        return found

    def scan(self, start: int, stop: int) -> bytes:
        found: bytes = self.inner.scan(start, stop)
        return found

    def pieces(self, scans: Any) -> list[tuple[int, int]] | None:
        found: list[tuple[int, int]] | None = self.inner.pieces(scans)
        return found

    def piece_survey(self, keep: Places, start: int, stop: int) -> Survey:
        return Survey(self._count(self.piece(keep, start, stop)), np.dtype(np.float64))

    def piece(self, keep: Places, start: int, stop: int) -> Generator[Rows]:
        return self._mapped(keep, (start, stop))

    def state(self, start: int, stop: int) -> State:
        found: State = self.inner.state(start, stop)
        return found

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:  # noqa: ARG002 - the schema says it
        def digests(columns: Mapping[str, Any], rows: int) -> Iterator[Rows]:  # noqa: ARG001 - the columns tell
            yield units_of(self._schema, columns, key)

        return self._each(None, digests)

    def _read(self) -> Places:
        """Return the places of the columns that are read from the file."""
        count = len(self.inner.names)
        return tuple(place for place in self._places.values() if place < count)

    def _mapped(self, keep: Places, part: Part) -> Generator[Rows]:
        whole = keep == tuple(range(len(self._schema.features)))

        def rows(columns: Mapping[str, Any], count: int) -> Iterator[Rows]:
            for block in encoded(self._schema, columns, count):
                yield block if whole else block[:, list(keep)]

        return self._each(part, rows)

    def words(self) -> set[str]:
        """Return the columns of text that hold something that is no number, of as many pieces as `_LOOKED_AT`."""
        if self.inner.kinds is not None:
            return set()
        read = self._read()
        names = [name for name, place in self._places.items() if place in set(read)]
        found = set[str]()
        with closing(self.inner.cells(read, None)) as batches:
            for batch in islice(batches, _LOOKED_AT):
                columns = zip(names, batch.columns, strict=True)
                found |= {name for name, column in columns if name not in found and not holds_numbers(column)}
        return found

    def _each(self, part: Part, make: Any) -> Generator[Rows]:
        """Yield what is made of each batch of columns; a value that cannot be used is told by its place in the file."""
        read = self._read()
        names = [name for name, place in self._places.items() if place in set(read)]
        keys = {name: text for name, text in self.keys if name in self._places}
        faults, row = dict[str, Fault](), 0
        with closing(self.inner.cells(read, part)) as batches:
            for batch in batches:
                columns = dict(zip(names, batch.columns, strict=True))
                columns |= {name: pa.repeat(pa.scalar(text), batch.num_rows) for name, text in keys.items()}
                try:
                    for block in make(columns, batch.num_rows):
                        if not faults:
                            yield block
                except UnfitError as error:  # it is read on: all columns that do not fit are told at once
                    for fault in error.after(row).faults:
                        faults.setdefault(fault.column, fault)
                row += batch.num_rows
        if faults:
            raise UnfitError(*faults.values()).told(str(self.path), partial(self.inner.row_in, part), CURE)
